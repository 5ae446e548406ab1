"""Co-kriging against finite differences, the recursion that defines it, and its own starts."""

import numpy as np
import pytest

from fedkin.models import cokriging
from fedkin.models.cokriging import CoKriged, _likelihood, _model, fit_cokriging


def three_levels(seed=0, n=(9, 7, 5)):
    rng = np.random.default_rng(seed)
    level = np.repeat([0, 1, 2], n)
    X = rng.uniform(size=(len(level), 2))
    y = np.sin(5 * X[:, 0]) * (1.0 + level) + 0.3 * level * X[:, 1] + 0.1 * rng.normal(size=len(X))
    return X, y, level


def test_the_gradient_equals_finite_differences():
    X, y, level = three_levels()
    point = np.concatenate([np.random.default_rng(1).normal(-0.5, 0.3, size=12), [0.7, -1.3]])
    gradient, step = _likelihood(_model(X, y, level, point))[1], 1e-5
    for found, unit in zip(gradient, step * np.eye(len(point)), strict=True):
        up, down = (_likelihood(_model(X, y, level, point + s * unit))[0] for s in (1, -1))
        assert found == pytest.approx((up - down) / (2 * step), rel=1e-6, abs=1e-7)


def test_the_covariance_is_that_of_levels_built_on_one_another():
    """Level t = rho_t * level t - 1 + a process of its own, at two places: by linear algebra."""
    places = np.array([[0.1], [0.6]])
    theta = np.log([[2.0, 0.5, 0.1], [0.7, 0.3, 0.1], [0.4, 0.9, 0.1]])
    rho = np.array([1.5, -0.8])
    own = [
        np.exp(s) * np.exp(-0.5 * ((places - places.T) / np.exp(length)) ** 2)
        for s, length, _ in theta
    ]
    # Levels as combinations of the three processes.
    combine = np.array([[1, 0, 0], [rho[0], 1, 0], [rho[0] * rho[1], rho[1], 1]])
    expected = sum(np.kron(np.outer(combine[:, t], combine[:, t]), own[t]) for t in range(3))
    X, level = np.tile(places, (3, 1)), np.repeat([0, 1, 2], 2)
    model = CoKriged(X, np.zeros(6), level, theta, rho)
    np.testing.assert_allclose(model.covariance(X, level, X, level), expected, rtol=1e-12)


def test_the_best_of_the_starts_is_taken(monkeypatch):
    X, y, level = three_levels()
    ends = []
    for start in cokriging.STARTS:
        with monkeypatch.context() as patched:
            patched.setattr(cokriging, "STARTS", (start,))
            ends.append(fit_cokriging(X, y, level).values.min())
    fitted = fit_cokriging(X, y, level)
    assert fitted.converged and fitted.values.min() == pytest.approx(min(ends), rel=1e-8)


def test_the_fit_is_a_peak():
    X, y, level = three_levels(2)
    fitted = fit_cokriging(X, y, level)
    point = np.concatenate([fitted.theta.ravel(), fitted.rho])
    there = _likelihood(fitted)[0]
    moved = point + 0.05 * np.random.default_rng(0).normal(size=(50, len(point)))
    assert all(_likelihood(_model(X, y, level, other))[0] > there - 1e-6 for other in moved)
