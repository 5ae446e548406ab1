"""A mixture of mixed models against dense normal densities, quadrature and the mixed model."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate
from scipy.special import logsumexp, ndtr, stdtr
from scipy.stats import invgamma, multivariate_normal, norm
from scipy.stats import t as student

from fedkin import Federation
from fedkin.models import kinds_degrees, linear_mixed_fit, site_noise_fit, site_noise_search
from fedkin.models.kinds_degrees import (
    CommonNoise,
    Objective,
    OwnNoise,
    OwnNoiseAndDegrees,
    noise_gain,
)
from fedkin.models.kinds_degrees_fit import (
    Way,
    clients_of,
    fit,
    likelihood_of,
    noise_ratio,
    refined,
    usual_covariance,
)
from fedkin.models.kinds_prediction import KindsPosterior, Mixture
from fedkin.models.least_squares import packed_statistics

DEGREES, OWN, BOTH = Way(True, False), Way(False, True), Way(True, True)
COEF = np.array([[1.0, -2.0, 0.5], [-1.0, 0.5, 2.0]])
SPREAD = np.array([[0.6, 0.0, 0.0], [0.2, 0.4, 0.0], [-0.1, 0.3, 0.5]])
WEIGHTS = np.array([0.3, 0.7])


def drawn(m=14, seed=0, noise=0.7, sizes=(1, 3, 6, 9)):
    """Sites of two kinds that depart, of few and of more rows."""
    rng = np.random.default_rng(seed)
    clients = []
    for k in range(m):
        X = rng.normal(size=(sizes[k % len(sizes)], 2)) + 1.0
        coef = COEF[k % 2] + SPREAD @ rng.normal(size=3)
        y = np.c_[X, np.ones(len(X))] @ coef + noise * rng.normal(size=len(X))
        clients.append((X, 10.0 * y))
    return Federation.from_clients(clients)


@pytest.fixture(scope="module")
def data():
    return drawn()


@pytest.fixture(scope="module")
def clients(data):
    return clients_of(packed_statistics(data, True), "full")


def numbers_of(clients, way, sigma=7.0, shape=2.0):
    """Numbers whose spread is 10 SPREAD and whose noise is sigma, in the coordinates worked in."""
    prepared = clients.prepared
    covariance = np.linalg.solve(prepared.spread, 10.0 * SPREAD) / prepared.scale
    covariance = covariance @ covariance.T
    log_variance = 2.0 * np.log(sigma / prepared.scale)
    if not way.degrees:
        return np.array([log_variance, np.log(shape)])
    if way.own_noise:
        return np.append(clients.shape.nearest(covariance), [log_variance, np.log(shape)])
    relative = covariance / np.exp(log_variance)
    return np.append(clients.shape.nearest(relative), 0.5 * log_variance)


def dense(data, way, sigma=7.0, shape=2.0):
    """Log densities (K, m) of every site's rows under both kinds, from the rows themselves."""
    out = np.zeros((2, len(data)))
    V = 100.0 * SPREAD @ SPREAD.T * way.degrees
    for i in range(len(data)):
        X, y = data.client(i)
        X = np.c_[X, np.ones(len(X))]
        for k in range(2):
            mean, within = X @ (10.0 * COEF[k]), X @ V @ X.T

            def density(t, mean=mean, within=within, y=y):
                cov = within + t * np.eye(len(y))
                return multivariate_normal(mean, cov, allow_singular=True).logpdf(y)

            if not way.own_noise:
                out[k, i] = density(sigma**2)
                continue
            law = invgamma(shape, scale=shape * sigma**2)
            grid = np.log(sigma**2) + np.linspace(-9.0, 12.0, 601)
            logs = [density(np.exp(x)) + law.logpdf(np.exp(x)) + x for x in grid]
            out[k, i] = np.log(integrate.simpson(np.exp(np.array(logs) - max(logs)), x=grid))
            out[k, i] += max(logs)
    return out


@pytest.mark.parametrize("way", [DEGREES, OWN, BOTH])
def test_likelihoods_are_those_of_the_rows_under_every_kind(data, clients, way):
    likelihood = likelihood_of(clients, way)
    found = likelihood.evaluate(clients.inside(10.0 * COEF), numbers_of(clients, way))
    volume = clients.prepared.n_rows * np.log(clients.prepared.scale)
    np.testing.assert_allclose(found.loglik - volume, dense(data, way), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("way", [DEGREES, OWN, BOTH])
@pytest.mark.parametrize("with_outside", [False, True])
def test_slopes_are_those_of_the_value(clients, way, with_outside):
    rng = np.random.default_rng(3)
    outside = rng.normal(-20, 5, size=len(clients.ratio)) if with_outside else None
    objective = Objective(likelihood_of(clients, way), 2, outside)
    weights = rng.dirichlet(np.ones(objective.n_groups))
    coef = clients.inside(10.0 * COEF) + rng.normal(size=(2, 3))
    point = objective.point(coef, numbers_of(clients, way) + 0.1, weights)
    _, slope = objective(point)
    for j, step in enumerate(1e-5 * np.eye(len(point))):
        numeric = (objective(point + step)[0] - objective(point - step)[0]) / 2e-5
        assert slope[j] == pytest.approx(numeric, rel=1e-4, abs=1e-4)


def test_a_mixture_is_the_sum_over_kinds(data, clients):
    objective = Objective(likelihood_of(clients, DEGREES), 2)
    point = objective.point(clients.inside(10.0 * COEF), numbers_of(clients, DEGREES), WEIGHTS)
    joint = dense(data, DEGREES) + np.log(WEIGHTS)[:, None]
    volume = clients.prepared.total_rows * np.log(clients.prepared.scale)
    expected = -2.0 * (logsumexp(joint, axis=0).sum() + volume)
    assert objective(point)[0] == pytest.approx(expected, rel=1e-9)


# ------------------------------------------------------------------ one kind is the mixed model


@pytest.mark.parametrize("covariance", ["full", "diagonal", "isotropic"])
def test_one_kind_with_departures_is_the_mixed_model(data, covariance):
    statistics = packed_statistics(data, True)
    clients = clients_of(statistics, covariance)
    found = refined(clients, fit(clients, DEGREES, 1))
    mixed = linear_mixed_fit.fit(statistics, np.arange(3), "ml", covariance)
    assert found.loglik == pytest.approx(mixed.loglik, abs=1e-6)
    np.testing.assert_allclose(found.coef[0], mixed.coef, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        found.random_covariance, mixed.random_covariance, rtol=1e-4, atol=1e-3
    )
    assert found.sigma == pytest.approx(mixed.sigma, rel=1e-5)


def test_one_kind_with_own_noise_is_the_mixed_model_with_own_noise(data):
    statistics = packed_statistics(data, True)
    clients = clients_of(statistics, "full")
    found = refined(clients, fit(clients, BOTH, 1))
    mixed = site_noise_fit.fit(statistics, np.arange(3), "ml")
    assert found.loglik == pytest.approx(mixed.loglik, abs=1e-4)


# ------------------------------------------------------------------ fits


@pytest.mark.parametrize("way", [DEGREES, OWN, BOTH])
def test_a_search_ends_where_no_step_is_up_and_above_its_start(way):
    statistics = packed_statistics(drawn(24, 5, sizes=(6, 12)), True)
    clients = clients_of(statistics, "diagonal")
    found = refined(clients, fit(clients, way, 2, [10.0 * COEF]))
    objective = Objective(likelihood_of(clients, way), 2)
    point = objective.point(clients.inside(found.coef), found.numbers, found.weights)
    assert np.abs(objective(point)[1]).max() < 1e-3
    start = objective.point(
        clients.inside(10.0 * COEF), clients_numbers(clients, way), np.array([0.5, 0.5])
    )
    assert objective(point)[0] < objective(start)[0]
    assert np.all(np.diff(found.history) >= -1e-9)


def clients_numbers(clients, way):
    noise = 2.0 * np.log(7.0 / clients.prepared.scale)
    if not way.degrees:
        return np.array([noise, 0.7])
    if way.own_noise:
        return np.append(clients.shape.start(0.3), [noise, 0.7])
    return np.append(clients.shape.start(0.3), 0.5 * noise)


def test_clients_beyond_those_looked_at_first_count_in_the_end(monkeypatch):
    statistics = packed_statistics(drawn(40, 7, sizes=(5, 8)), True)
    clients = clients_of(statistics, "diagonal")
    whole = refined(clients, fit(clients, DEGREES, 2, [10.0 * COEF]))
    monkeypatch.setattr("fedkin.models.kinds_degrees_fit.MOST_AT_FIRST", 20)
    part = refined(clients, fit(clients, DEGREES, 2, [10.0 * COEF]))
    assert part.loglik == pytest.approx(whole.loglik, abs=1e-6)


def test_a_full_covariance_needs_two_clients_for_a_number():
    assert usual_covariance(3, np.full(12, 9.0)) == "full"
    assert usual_covariance(3, np.full(11, 9.0)) == "isotropic"
    assert usual_covariance(20, np.full(42, 99.0)) == "isotropic"


def test_a_full_covariance_of_kinds_needs_what_a_mixed_models_does():
    assert usual_covariance(3, np.full(59, 3.0)) == "isotropic"
    assert usual_covariance(3, np.full(60, 3.0)) == "full"


def test_noise_ratios_follow_the_noises_of_sites():
    rng = np.random.default_rng(0)
    noise = np.array([0.1, 1.0, 10.0])[np.arange(30) % 3]
    X = rng.normal(size=(30, 40, 2))
    y = X.sum(axis=2) + noise[:, None] * rng.normal(size=(30, 40))
    ratio = noise_ratio(packed_statistics(Federation.from_clients(list(zip(X, y))), True))
    middle = np.array([np.median(ratio[k::3]) for k in range(3)])
    # Two rows' worth of the median's noise are mixed in.
    np.testing.assert_allclose(middle[1:] / middle[1], [1.0, 100.0], rtol=0.4)
    assert middle[0] < 0.1


def test_noises_of_their_own_gain_where_residuals_differ_and_not_where_they_do_not():
    rng = np.random.default_rng(1)
    n = np.full(60, 15.0)
    equal = 4.0 * rng.chisquare(n)
    assert 2.0 * noise_gain(equal, n) < np.log(n.sum())
    assert noise_gain(equal * np.exp(rng.uniform(-1, 1, 60)), n) > 10.0


# ------------------------------------------------------------------ sites


@pytest.fixture(scope="module")
def known(data, clients):
    return KindsPosterior(clients, refined(clients, fit(clients, DEGREES, 2, [10.0 * COEF])))


def test_departures_are_the_posterior_means_given_the_kind(data, known):
    found = known.of_kind(known.everybody.data, 1)
    spread = known.everybody.prepared.scale * known.everybody.prepared.spread
    fitted = known.fit
    for i in (1, 3, 6):
        X, y = data.client(i)
        X = np.c_[X, np.ones(len(X))]
        sigma = X @ fitted.random_covariance @ X.T + fitted.sigma**2 * np.eye(len(X))
        gain = fitted.random_covariance @ X.T @ np.linalg.inv(sigma)
        expected = gain @ (y - X @ fitted.coef[1])
        np.testing.assert_allclose(spread @ found.known.means[:, 0, i], expected, rtol=1e-6)
        left = fitted.random_covariance - gain @ X @ fitted.random_covariance
        given = spread @ found.known.covariances[:, :, 0, i] @ spread.T
        np.testing.assert_allclose(given, left, rtol=1e-6, atol=1e-6)


def test_a_new_client_may_be_of_any_kind_and_depart_as_far_as_any(known):
    empty = known.others(np.zeros((11, 1)))
    share, _ = known.groups(empty)
    np.testing.assert_allclose(share[:, 0], known.fit.weights, rtol=1e-9)
    x = np.array([[1.0, -1.0, 1.0]])
    mixture = known.predict(x, empty, np.zeros(1, int), share)
    assert mixture.means[0] == pytest.approx(x[0] @ known.fit.coef.T)
    m, K = len(known.everybody.ratio), 2
    between = float(x[0] @ known.fit.random_covariance @ x[0]) * m / (m - K)
    of_coef = np.einsum("d,kde,e->k", x[0], known.coef_covariance(), x[0])
    np.testing.assert_allclose(mixture.scales[0], between + of_coef + known.fit.sigma**2, rtol=1e-9)


def test_further_clients_are_seen_as_those_of_the_fit(data, known):
    again = known.others(packed_statistics(data.take([4, 9]), True))
    share, loglik = known.groups(again)
    np.testing.assert_allclose(share, known.share[:, [4, 9]], atol=1e-9)
    np.testing.assert_allclose(loglik, known.loglik[[4, 9]], rtol=1e-9)


@pytest.mark.parametrize("degrees", [np.inf, 5.0])
def test_quantiles_of_a_mixture_have_the_probability_below_them(degrees):
    parts = np.array([[0.2, 0.5, 0.3]]), np.array([[-3.0, 0.0, 8.0]]), np.array([[1.0, 4.0, 0.25]])
    mixture = Mixture(*parts, np.full((1, 3), degrees))
    for level in (0.025, 0.5, 0.9):
        away = (mixture.quantile(level)[:, None] - parts[1]) / np.sqrt(parts[2])
        below = ndtr(away) if np.isinf(degrees) else stdtr(degrees, away)
        assert (parts[0] * below).sum() == pytest.approx(level, abs=1e-9)
    law = norm if np.isinf(degrees) else student(degrees)
    within = parts[2] * law.var()
    mean = (parts[0] * parts[1]).sum()
    expected = (parts[0] * (within + (parts[1] - mean) ** 2)).sum()
    assert mixture.variance()[0] == pytest.approx(expected, rel=1e-9)


def test_a_spread_without_end_is_told_by_its_middle():
    heavy = Mixture(np.ones((1, 1)), np.zeros((1, 1)), np.ones((1, 1)), np.full((1, 1), 1.5))
    assert np.isinf(heavy.variance()[0])
    assert heavy.std()[0] == pytest.approx(student(1.5).ppf(0.5 + 0.6826894921370859 / 2))


def test_ways_have_their_likelihoods(clients):
    made = [type(likelihood_of(clients, way)) for way in (DEGREES, OWN, BOTH)]
    assert made == [CommonNoise, OwnNoise, OwnNoiseAndDegrees]
    assert kinds_degrees.MOST_LOGS[1] == site_noise_search.MOST_LOGS[1]
