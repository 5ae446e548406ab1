"""Curves that are walked give what their covariance gives, whoever else is walked."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from fedkin.federation import Federation
from fedkin.models.gaussian_process import evaluate
from fedkin.models.gp_rows import prepare, thinned
from fedkin.models.gp_walks import can_be_walked
from fedkin.models.kernels import form_of, to_spec
from fedkin.models.site_curves import CurvePlan

TYPICAL = np.array([0.0, 1.0, 1.0, 1.0])


def matern(nu, d=1):
    return form_of(to_spec(ConstantKernel(1.3) * Matern(0.3, nu=nu) + WhiteKernel(0.1)), d)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    sizes = [1, 3, 40, 90, *[100] * 50]
    parts = []
    for n in sizes:
        x = rng.uniform(size=(n, 1))
        parts.append((x, np.sin(9 * x[:, 0]) + rng.normal() + 0.3 * rng.normal(size=n)))
    parts.append((rng.uniform(size=(60, 1)), np.full(60, 2.0)))
    return Federation.from_clients(parts)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
def test_value_and_gradient_are_those_of_the_covariance(data, nu, mean):
    form = matern(nu)
    theta = form.start + 0.1 * np.arange(len(data))[:, None] * [0.1, -0.1, 0.05]
    dense, walked = (prepare(data, True, mean, 500, f) for f in (None, form))
    assert walked.walked is not None and len(walked.walked.owner) >= 50
    one, other = evaluate(dense, form, theta), evaluate(walked, form, theta)
    np.testing.assert_allclose(other.value, one.value, rtol=1e-9, atol=1e-9)
    size = np.abs(one.gradient).max()
    np.testing.assert_allclose(other.gradient, one.gradient, atol=1e-9 * size)
    assert one.value[-1] == other.value[-1] == 0.0


def test_those_taken_out_are_factored_again_if_that_is_faster(data):
    form = matern(1.5)
    walked = prepare(data, True, "linear", 500, form)
    alone = walked.take(np.array([20, 2]))
    assert alone.walked is None and len(alone.packs) == 2
    whole, part = evaluate(walked, form, form.start), evaluate(alone, form, form.start)
    np.testing.assert_allclose(part.value, whole.value[[20, 2]], rtol=1e-9)
    many = walked.take(np.arange(4, 54))
    assert many.walked is not None and len(many.walked.owner) == 50
    found = evaluate(many, form, form.start)
    size = np.abs(whole.gradient).max()
    np.testing.assert_allclose(found.gradient, whole.gradient[4:54], atol=1e-9 * size)


def test_large_sites_are_walked_whole():
    rng = np.random.default_rng(1)
    x = rng.uniform(size=(260, 1))
    site = Federation.from_clients([(x, np.sin(8 * x[:, 0]) + 0.2 * rng.normal(size=260))])
    form = matern(2.5)
    exact = evaluate(prepare(site, True, "constant", 500), form, form.start)
    whole = evaluate(prepare(site, True, "constant", 100, form), form, form.start)
    pieces = evaluate(prepare(site, True, "constant", 100), form, form.start)
    np.testing.assert_allclose(whole.value, exact.value, rtol=1e-9)
    assert abs(pieces.value[0] - exact.value[0]) > 1.0
    grid = np.linspace(-0.2, 1.2, 15)[:, None]
    found = [
        CurvePlan(form, TYPICAL, max_points=most).given(site, form.start[None], np.ones(1))
        for most in (500, 100)
    ]
    for one, other in zip(*(curve.predict(grid) for curve in found)):
        np.testing.assert_allclose(other, one, rtol=1e-7)


def test_which_kernels_can_be_walked():
    assert all(can_be_walked(matern(nu), 1) for nu in (0.5, 1.5, 2.5))
    assert not can_be_walked(matern(1.5, 2), 2)
    assert not can_be_walked(form_of(to_spec(RBF(0.3) + WhiteKernel(0.1)), 1), 1)


@pytest.mark.parametrize("n", [1, 5, 30])
def test_rows_left_out_of_a_prior_are_predicted_from_the_others(n):
    rng = np.random.default_rng(2)
    X, y = rng.uniform(size=(n, 1)), 50.0 + 3.0 * rng.normal(size=n)
    form, weights = matern(1.5), np.ones(1)
    plan = CurvePlan(form, np.array([50.0, 3.0, 4.0, 1.0]), normalize_y="mean")
    site = Federation.from_clients([(X, y)])
    found = plan.left_out(site, form.start[None], weights)
    expected = []
    for j in range(n):
        kept = np.arange(n) != j
        rest = Federation.from_clients([(X[kept], y[kept])]) if n > 1 else None
        curve = (
            plan.without_rows(form.start[None], weights, 1)
            if rest is None
            else plan.given(rest, form.start[None], weights)
        )
        one = X[j : j + 1], y[j : j + 1]
        expected.append((curve.predict(one[0])[0][0], curve.log_density(*one)[0]))
    # The mean is vague, not unknown: with the location of all rows it is a little less so.
    close = 5e-3 if n > 20 else 1e-10
    np.testing.assert_allclose(np.transpose(found), expected, atol=close)


def test_a_site_as_a_new_one_has_the_density_of_the_prior():
    form = matern(1.5)
    plan = CurvePlan(form, np.array([50.0, 3.0, 4.0, 1.0]))
    X, y = np.array([[0.1], [0.4]]), np.array([48.0, 55.0])
    scale, length, noise = 1.3, 0.3, 0.1
    r = np.sqrt(3.0) * 0.3 / length
    across = 9.0 * scale * (1 + r) * np.exp(-r) + 4.0
    own = 9.0 * (scale + noise) + 4.0
    K = np.array([[own, across], [across, own]])
    away = y - 50.0
    expected = -0.5 * (
        away @ np.linalg.solve(K, away) + np.log(np.linalg.det(K)) + 2 * np.log(2 * np.pi)
    )
    site = Federation.from_clients([(X, y)])
    assert plan.as_new(site, form.start[None], np.ones(1)) == pytest.approx(expected)


def test_large_sites_are_thinned_by_name_and_small_ones_left_alone(data):
    few = thinned(data, 50)
    assert few.sizes.max() == 50 and few.sizes[:3].tolist() == [1, 3, 40]
    X, _ = few.client(3)
    assert np.isin(X, data.client(3)[0]).all() and len(np.unique(X)) == 50
    again = thinned(data.take([3, 5]), 50)
    np.testing.assert_array_equal(again.client(0)[0], X)
    assert thinned(data, 500) is data
