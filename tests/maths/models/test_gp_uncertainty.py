"""Clouds of hyper-parameters against integration on a grid."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from fedkin.datasets import make_multi_fidelity
from fedkin.estimators import FGPR
from fedkin.federation import Federation
from fedkin.models.gaussian_process import evaluate
from fedkin.models.gp_rows import prepare
from fedkin.models.gp_uncertainty import cloud, spaced_normals
from fedkin.models.kernels import form_of, to_spec


def curve(n_rows, kernel, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n_rows, 1)) * 3
    y = np.sin(2 * X[:, 0]) + 0.4 * rng.normal(size=n_rows)
    data = prepare(Federation.from_clients([(X, y)]), False)
    return data, form_of(to_spec(kernel), 1)


@pytest.mark.parametrize("spread", [0.3, 2.0])
def test_moments_of_one_parameter_equal_those_on_a_grid(spread):
    data, form = curve(12, ConstantKernel(1.0, "fixed") * RBF(0.7, "fixed") + WhiteKernel(0.2))
    grid, centre = np.linspace(-6, 4, 4001), np.array([-1.0])
    value = np.array([evaluate(data, form, np.array([t])).value[0] for t in grid])
    logs = -value - 0.5 * ((grid - centre) / spread) ** 2
    density = np.exp(logs - logs.max())
    density /= density.sum()
    points, weights = cloud(data, form, grid[[np.argmax(logs)]], centre, spread)
    mean, found = density @ grid, weights @ points[:, 0]
    deviation = np.sqrt(density @ (grid - mean) ** 2)
    assert abs(found - mean) < 0.1 * deviation
    assert abs(np.sqrt(weights @ (points[:, 0] - found) ** 2) - deviation) < 0.15 * deviation


def test_many_rows_leave_little_open():
    data, form = curve(400, ConstantKernel(1.0, "fixed") * RBF(0.7, "fixed") + WhiteKernel(0.2))
    mode = np.log([0.16])
    points, weights = cloud(data, form, mode, mode, 2.0)
    assert np.sqrt(weights @ (points[:, 0] - mode) ** 2) < 0.15


def test_points_keep_within_the_bounds():
    data, form = curve(6, RBF(0.7, (0.5, 1.0)) + WhiteKernel(0.2, (0.1, 0.3)))
    points, weights = cloud(data, form, form.start, form.start, 2.0)
    assert (points >= form.lower).all() and (points <= form.upper).all()
    np.testing.assert_allclose(weights.sum(), 1.0)


@pytest.mark.parametrize("d", [1, 4, 10])
def test_spaced_normals_are_standard(d):
    drawn = spaced_normals(1024, d)
    np.testing.assert_allclose(drawn.mean(axis=0), 0.0, atol=0.05)
    np.testing.assert_allclose(np.cov(drawn.T).reshape(d, d), np.eye(d), atol=0.1)


def test_averaging_makes_own_hyper_parameters_less_sure_of_themselves():
    task = make_multi_fidelity("park", 11)
    model = FGPR(common=False).fit(task.federation)
    k = task.federation.names.index(task.site)
    assert model.own_[k]
    site = task.federation.take([k])
    guess = model._conditioned(site, model._result.site_theta[k][None], np.ones(1))
    at_mode = guess.log_density(task.X_test, task.y_test).mean()
    where = np.full(len(task.X_test), task.site)
    assert model.log_predictive_density(task.X_test, task.y_test, where).mean() > at_mode
