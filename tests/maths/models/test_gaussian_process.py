"""Likelihood, gradient and posterior of Gaussian processes against scikit-learn and by hand."""

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)

from fedkin.federation import Federation
from fedkin.models.gaussian_process import evaluate
from fedkin.models.gp_posterior import SiteCurve
from fedkin.models.gp_rows import prepare
from fedkin.models.kernels import default_spec, form_of, from_spec, to_spec

NOISE = WhiteKernel(0.2)
LENGTHS = np.array([0.5, 0.9])
FAST = [
    ConstantKernel(1.3) * RBF(0.7) + NOISE,
    ConstantKernel(1.3) * RBF(LENGTHS) + NOISE,
    NOISE + Matern(LENGTHS, nu=0.5) * ConstantKernel(1.3),
    ConstantKernel(1.3) * Matern(0.7, nu=1.5) + NOISE,
    ConstantKernel(2.0, "fixed") * Matern(LENGTHS, nu=2.5) + NOISE,
    Matern(LENGTHS, nu=np.inf) + NOISE,
]
GENERIC = [
    RBF(0.6) + Matern(1.1, nu=1.5) + NOISE,
    ConstantKernel(1.5) * RationalQuadratic(0.8, alpha=1.3) + NOISE,
    ConstantKernel(1.5) * Matern(LENGTHS, nu=2.5) + DotProduct(0.7) + NOISE,
    RBF(0.7) * RBF(1.6) + NOISE,
    DotProduct(0.8) ** 2 + NOISE,
    ConstantKernel(1.5) * RBF(0.8) + ConstantKernel(0.4) + NOISE,
    Matern(0.9, nu=0.5) + 0.5 * RBF(2.0) + NOISE,
    RationalQuadratic(1.0, alpha=0.7) * RBF(1.5) + 0.3 * Matern(0.6, nu=1.5) + NOISE,
    Matern(0.9, nu=3.5, length_scale_bounds="fixed") + NOISE,
]
PERIODIC = [
    ConstantKernel(1.5) * ExpSineSquared(1.2, periodicity=1.7) + NOISE,
    RBF(0.9) * ExpSineSquared(1.1, periodicity=2.0) + NOISE,
]
CASES = [(k, 2) for k in FAST + GENERIC] + [(k, 1) for k in PERIODIC]


def sites(d, sizes=(1, 6, 7, 20, 24), seed=0):
    rng = np.random.default_rng(seed)
    return Federation.from_clients([(rng.normal(size=(n, d)), rng.normal(size=n)) for n in sizes])


@pytest.mark.parametrize("kernel", FAST, ids=str)
def test_the_common_kernels_take_the_fast_path(kernel):
    assert form_of(to_spec(kernel), 2).fast is not None


@pytest.mark.parametrize(("kernel", "d"), CASES, ids=str)
def test_likelihood_and_gradient_equal_scikit_learn(kernel, d):
    federation = sites(d)
    form = form_of(to_spec(kernel), d)
    found = evaluate(prepare(federation, False), form, form.start)
    for k in range(federation.n_clients):
        oracle = GaussianProcessRegressor(kernel, alpha=0, optimizer=None)
        oracle.fit(*federation.client(k))
        value, gradient = oracle.log_marginal_likelihood(kernel.theta, eval_gradient=True)
        assert abs(value + found.value[k]) < 1e-8
        if kernel is not GENERIC[-1]:  # scikit-learn differentiates that one numerically
            np.testing.assert_allclose(found.gradient[k], -gradient, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize(("kernel", "d"), CASES, ids=str)
def test_gradient_equals_finite_differences(kernel, d, mean):
    data, form = prepare(sites(d), False, mean), form_of(to_spec(kernel), d)
    found, step = evaluate(data, form, form.start), 1e-3
    for j, unit in enumerate(np.eye(len(form.start))):
        f = [evaluate(data, form, form.start + s * step * unit).value for s in (-2, -1, 1, 2)]
        numeric = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * step)
        size = np.abs(found.gradient).max(axis=1)
        assert (np.abs(found.gradient[:, j] - numeric) <= 1e-6 * size + 1e-9).all()


def test_many_features_far_from_the_origin_lose_no_digits():
    near = sites(6)
    far = Federation(near.X + 1e3, near.offsets, near.names, near.y)
    form = form_of(default_spec(np.ones(6)), 6)
    one, other = (evaluate(prepare(f, False), form, form.start) for f in (near, far))
    np.testing.assert_allclose(one.gradient, other.gradient, rtol=1e-6, atol=1e-8)


def test_each_client_may_have_its_own_parameters():
    federation, form = sites(2), form_of(to_spec(FAST[1]), 2)
    data = prepare(federation, False)
    theta = form.start + 0.1 * np.arange(5)[:, None]
    whole = evaluate(data, form, theta)
    for k in range(5):
        alone = evaluate(data.take(np.array([k])), form, theta[k])
        np.testing.assert_allclose(whole.value[k], alone.value[0], rtol=1e-12)


def test_repeated_rows_without_noise_need_jitter_and_it_is_recorded():
    X = np.repeat(np.linspace(0, 1, 5), 2)[:, None]
    federation = Federation.from_clients([(X, np.sin(6 * X[:, 0]))])
    form = form_of(to_spec(RBF(0.5)), 1)
    found = evaluate(prepare(federation, False), form, form.start)
    assert found.jitter[0] > 0 and np.isfinite(found.value).all()


def test_a_large_site_is_the_sum_of_its_pieces():
    federation, form = sites(1, (50,)), form_of(to_spec(FAST[0]), 1)
    data = prepare(federation, False, max_points=20)
    assert sorted(np.concatenate([p.sizes for p in data.packs])) == [16, 17, 17]
    assert np.isfinite(evaluate(data, form, form.start).value).all()


def test_posterior_equals_scikit_learn():
    federation = sites(2, (20,))
    X, y = federation.client(0)
    Z = np.random.default_rng(1).normal(size=(7, 2))
    for kernel in (FAST[1], GENERIC[2]):
        form = form_of(to_spec(kernel), 2)
        curve = SiteCurve(form, form.start[None], np.ones(1), X, y, 0.0, 1.0)
        oracle = GaussianProcessRegressor(kernel, alpha=0, optimizer=None).fit(X, y)
        for one, other in zip(curve.predict(Z), oracle.predict(Z, return_std=True)):
            np.testing.assert_allclose(one, other, rtol=1e-8)


@pytest.mark.parametrize("kernel", [FAST[0], GENERIC[1]], ids=str)
def test_nearest_rows_predict_like_all_rows(kernel):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 1)) * 20
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=400)
    Z = np.linspace(1, 19, 5)[:, None]
    form = form_of(to_spec(kernel), 1)
    whole = SiteCurve(form, form.start[None], np.ones(1), X, y, 0.0, 1.0)
    near = SiteCurve(form, form.start[None], np.ones(1), X, y, 0.0, 1.0, max_points=200)
    assert near.approximate and not whole.approximate
    for one, other in zip(near.predict(Z), whole.predict(Z)):
        np.testing.assert_allclose(one, other, rtol=0.02, atol=0.01)


# ------------------------------------------------------------------ kernels as data


@pytest.mark.parametrize(("kernel", "d"), CASES, ids=str)
def test_a_kernel_survives_the_journey(kernel, d):
    import json

    spec = json.loads(json.dumps(to_spec(kernel)))
    again = from_spec(spec)
    assert again == kernel
    form = form_of(spec, d)
    np.testing.assert_allclose(form.start, kernel.theta)
    np.testing.assert_allclose(np.stack([form.lower, form.upper], axis=1), kernel.bounds)
    assert len(form.names) == len(kernel.theta)


@pytest.mark.parametrize(
    "spec",
    [
        {"kernel": "__import__('os').system('true')"},
        {"kernel": "GaussianProcessRegressor"},
        {"kernel": "RBF", "length_scale": "1.0"},
        {"kernel": "RBF", "length_scale": 1.0, "metric": "euclidean"},
        {"kernel": "RBF"},
        {"kernel": "Sum", "k1": {"kernel": "RBF", "length_scale": 1.0}, "k2": 3},
        "RBF(1.0)",
        {"kernel": "RBF", "length_scale": -1.0},
    ],
    ids=str,
)
def test_what_is_not_in_the_grammar_is_refused(spec):
    with pytest.raises(ValueError):
        from_spec(spec)


def test_kernels_of_other_people_are_refused():
    from sklearn.gaussian_process.kernels import PairwiseKernel

    with pytest.raises(ValueError, match="not on the list"):
        to_spec(PairwiseKernel())
