"""Errors of groups inside sites: Louis' curvature by differentiation, shrinkage in closed form."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax
from tests.maths.models.test_sandwich import derivatives

from fedkin.models.component_errors import Told, component_errors, honest_between
from fedkin.models.mixture_information import (
    gaussian_rows,
    regression_rows,
    score_and_information,
)

R, D, N = 3, 2, 40


def case(family):
    """Log likelihood of one client by (components, logits), a point, and its rows at the point."""
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(N, D)) * 1.5, rng.normal(size=N)
    components, weights = rng.normal(size=(R, D)), np.array([0.5, 0.3, 0.2])
    precision, sigma = np.array([[1.5, 0.4], [0.4, 0.8]]), 0.8

    def log_joint(point):
        at, logits = point[: R * D].reshape(R, D), np.append(point[R * D :], 0.0)
        logs = logits - logsumexp(logits)
        if family == "gaussian":
            away = X[:, None] - at
            return logs - 0.5 * np.einsum("nri,ij,nrj->nr", away, precision, away)
        return logs - 0.5 * ((y[:, None] - X @ at.T) / sigma) ** 2

    point = np.append(components.ravel(), np.log(weights[:-1] / weights[-1]))
    share = softmax(log_joint(point), axis=1)
    rows = (
        gaussian_rows(X, share, components, precision)
        if family == "gaussian"
        else regression_rows(X, y, share, components, sigma)
    )
    return lambda at: logsumexp(log_joint(at), axis=1).sum(keepdims=True), point, rows, weights


@pytest.mark.parametrize("family", ["gaussian", "regression"])
def test_slope_and_curvature_are_the_likelihoods(family):
    loglik, point, rows, weights = case(family)
    gradient, bend = derivatives(loglik, point)
    information, cut = -bend[0], R * D
    slope, given = score_and_information(rows, None)
    assert np.allclose(slope.ravel(), gradient[0, :cut], rtol=1e-5, atol=1e-5)
    assert np.allclose(given, information[:cut, :cut], rtol=1e-4, atol=1e-3)
    cross = information[:cut, cut:]
    profiled = information[:cut, :cut] - cross @ np.linalg.solve(information[cut:, cut:], cross.T)
    assert np.allclose(score_and_information(rows, weights)[1], profiled, rtol=1e-4, atol=1e-3)


def shrunk(m=30, between=0.5, sampling=0.2, used=0.5, seed=0):
    """What sites with one number each tell, seen with a sampling variance and pulled by `used`."""
    rng = np.random.default_rng(seed)
    own = rng.normal(scale=np.sqrt(between + sampling), size=(m, 1))
    center = own.mean()
    kept = used / (used + sampling)
    theta = center + kept * (own - center)
    slopes = (own - theta) / sampling
    informations = np.full((m, 1, 1), 1 / sampling)
    told = Told(slopes, informations, np.ones((m, 1)), theta - center, np.ones(m, dtype=bool))
    return told, own[:, 0]


def test_the_centre_has_the_standard_error_of_a_mean():
    told, own = shrunk()
    found = component_errors(told, np.array([0.5]), np.eye(1), np.inf)
    assert found.by_sites.all() and found.center_degrees[0] == pytest.approx(29.0)
    assert found.center[0, 0] == pytest.approx(own.std(ddof=1) / np.sqrt(30), rel=1e-6)


def test_without_a_spread_a_site_is_as_sure_as_the_centre():
    told, _ = shrunk(between=0.0, used=1e-12)
    told = told._replace(slopes=0.5 * told.slopes)
    found = component_errors(told, np.zeros(1), np.eye(1), np.inf)
    assert np.allclose(found.sites[:, 0, 0], found.center[0, 0])
    assert np.allclose(found.site_degrees, found.center_degrees[0])


def test_the_spread_is_that_of_restricted_maximum_likelihood_whatever_was_used():
    told, own = shrunk(used=0.3)

    def criterion(log):
        total = np.exp(log[0]) + 0.2
        return 29 * np.log(total) + ((own - own.mean()) ** 2).sum() / total

    best = float(np.exp(minimize(criterion, [0.0]).x[0]))
    found, known = honest_between(told, np.array([0.3]), np.eye(1))
    assert found[0] == pytest.approx(best, rel=1e-4)
    assert known[0] == pytest.approx(0.5 * 30 / (best + 0.2) ** 2, rel=1e-6)


def test_a_sites_error_has_rows_pull_centre_and_spread():
    told, _ = shrunk(used=0.3)
    used, sampling = 0.3, 0.2
    honest, known = (part[0] for part in honest_between(told, np.array([used]), np.eye(1)))
    found = component_errors(told, np.array([used]), np.eye(1), np.inf)
    follow = sampling / (used + sampling)
    variance = (1 - follow) ** 2 * sampling + follow**2 * honest
    variance += follow**2 * found.center[0, 0] ** 2
    variance = variance + (follow * told.away[:, 0] / honest) ** 2 / known
    assert np.allclose(found.sites[:, 0, 0] ** 2, variance)
    assert np.allclose(found.covariance[:, 0, 0, 0], variance)


def test_an_odd_site_has_its_own_error_and_no_say():
    told, _ = shrunk()
    belongs = np.ones((30, 1))
    belongs[0] = 0.0
    told = told._replace(belongs=belongs, slopes=np.where(belongs > 0, told.slopes, 0.0))
    found = component_errors(told, np.array([0.5]), np.eye(1), np.inf)
    assert found.sites[0, 0, 0] == pytest.approx(np.sqrt(0.2))
    assert found.center_degrees[0] == pytest.approx(28.0)


def test_a_site_that_does_not_count_has_none():
    told, _ = shrunk()
    told = told._replace(used=np.arange(30) > 0)
    found = component_errors(told, np.array([0.5]), np.eye(1), np.inf)
    assert np.isnan(found.sites[0]).all() and np.isfinite(found.sites[1:]).all()


def test_noise_that_was_fitted_is_taken_for_larger():
    told, _ = shrunk()
    known = component_errors(told, np.array([0.5]), np.eye(1), np.inf)
    fitted = component_errors(told, np.array([0.5]), np.eye(1), 60.0)
    assert (fitted.sites > known.sites).all()
