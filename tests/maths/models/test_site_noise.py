"""Noise of every site's own, integrated out, against brute-force quadrature."""

import numpy as np
import pytest
from mixed_oracles import federation, simulated, with_intercept
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import gammaln
from scipy.stats import invgamma, multivariate_normal, norm
from scipy.stats import t as student

from fedkin.models import (
    linear_mixed_fit,
    site_noise,
    site_noise_fit,
    site_noise_prediction,
    site_noise_search,
)
from fedkin.models.least_squares import packed_statistics
from fedkin.models.linear_mixed_scales import prepare


def statistics_of(X, y, groups):
    return packed_statistics(federation(X[:, :-1], y, groups), True)


def noisy_sites(seed, n_clients=40, shape=2.0, least=4, most=12, spread=0.7):
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(n_clients), rng.integers(least, most, n_clients))
    X = with_intercept(rng.normal(size=(len(codes), 1)) + 0.5)
    variances = 1 / rng.gamma(shape, 1 / shape, size=n_clients)
    u = spread * rng.normal(size=(n_clients, 2))
    noise = np.sqrt(variances[codes]) * rng.normal(size=len(codes))
    y = X @ [1.0, 2.0] + (X * u[codes]).sum(axis=1) + noise
    return X, y, np.array([f"s{k:03d}" for k in codes]), variances


def by_quadrature(y, X, Z, beta, V, shape, variance):
    """log of the integral over log t, by scipy."""
    left = y - X @ beta
    centre = np.log(variance)

    def integrand(x):
        covariance = Z @ V @ Z.T + np.exp(x) * np.eye(len(y))
        logs = multivariate_normal.logpdf(left, np.zeros(len(y)), covariance)
        return np.exp(logs + invgamma.logpdf(np.exp(x), shape, scale=shape * variance) + x)

    points = centre + np.array([-3.0, -1.0, 0.0, 1.0, 3.0, 6.0])
    ends, options = (centre - 12, centre + 30), {"epsabs": 0, "epsrel": 1e-11, "limit": 500}
    return np.log(quad(integrand, *ends, points=points, **options)[0])


@pytest.mark.parametrize("log_shape", [0.0, 1.0, 4.0])
def test_the_marginal_likelihood_is_that_of_brute_force(log_shape):
    X, y, groups = simulated(3, n_clients=7, d=1, least=1, most=9)
    prepared, shape = prepare(statistics_of(X, y, groups), np.array([1, 0]))
    data = site_noise_fit.noise_data(statistics_of(X, y, groups), prepared)
    at = site_noise.Parameters(
        np.array([0.2, -0.1]), shape.factor(np.array([0.8, 0.3, 0.5])), -0.3, log_shape
    )
    found = site_noise.evaluate(data, shape, at)
    beta = prepared.offset + prepared.scale * prepared.basis @ at.coef
    own = prepared.scale * prepared.spread @ at.factor
    for k, name in enumerate(federation(X[:, :-1], y, groups).names):
        rows = groups == name
        expected = by_quadrature(
            *(y[rows], X[rows], X[rows][:, [1, 0]], beta, own @ own.T),
            *(np.exp(log_shape), np.exp(-0.3) * prepared.scale**2),
        )
        in_units = found.loglik[k] - rows.sum() * np.log(prepared.scale)
        assert in_units == pytest.approx(expected, abs=1e-7)


def test_a_client_without_rows_has_likelihood_one():
    X, y, groups = simulated(4)
    statistics = statistics_of(X, y, groups)
    empty = np.concatenate([statistics, np.zeros((len(statistics), 1))], axis=1)
    prepared, shape = prepare(empty, np.array([2]))
    at = site_noise.Parameters(np.zeros(3), np.array([[0.5]]), 0.0, 1.0)
    found = site_noise.evaluate(site_noise_fit.noise_data(empty, prepared), shape, at)
    assert found.loglik[-1] == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(found.slope[-1], 0.0, atol=1e-8)


@pytest.mark.parametrize("covariance", ["full", "diagonal", "isotropic"])
def test_the_slope_is_that_of_the_likelihood(covariance):
    X, y, groups, _ = noisy_sites(5, 12)
    prepared, shape = prepare(statistics_of(X, y, groups), np.array([1, 0]), covariance)
    data = site_noise_fit.noise_data(statistics_of(X, y, groups), prepared)
    rng = np.random.default_rng(6)
    at = np.concatenate([0.2 * rng.normal(size=2), rng.normal(size=shape.n_parameters), [-0.5, 1]])

    def evaluated(numbers):
        parameters = site_noise.Parameters(
            numbers[:2], shape.factor(numbers[2:-2]), numbers[-2], numbers[-1]
        )
        return site_noise.evaluate(data, shape, parameters)

    slope = evaluated(at).slope
    for k in range(len(at)):
        step = 1e-5 * np.eye(len(at))[k]
        expected = (evaluated(at + step).loglik - evaluated(at - step).loglik) / 2e-5
        np.testing.assert_allclose(slope[:, k], expected, rtol=1e-5, atol=1e-6)


def test_the_information_about_the_coefficients_is_minus_the_second_derivative():
    X, y, groups, _ = noisy_sites(7, 12)
    found = site_noise_fit.fit(statistics_of(X, y, groups), np.array([1, 0]), "ml")
    at, data, shape = found.parameters, found.data, found.factor_shape
    client = site_noise.terms(data, at)
    nodes = site_noise.integrate(client, at.log_variance, at.log_shape)
    information = site_noise_search.coef_information(data, client, nodes, at)
    for k in range(2):
        step = 1e-5 * np.eye(2)[k]
        ahead = site_noise.evaluate(data, shape, at._replace(coef=at.coef + step)).slope
        behind = site_noise.evaluate(data, shape, at._replace(coef=at.coef - step)).slope
        curve = -(ahead - behind).sum(axis=0)[:2] / 2e-5
        np.testing.assert_allclose(information[k], curve, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["reml", "ml"])
def test_sites_of_one_noise_get_the_common_fit(method):
    X, y, groups, _ = noisy_sites(8, 30, shape=1e6)
    own = site_noise_fit.fit(statistics_of(X, y, groups), np.array([1, 0]), method)
    common = linear_mixed_fit.fit(statistics_of(X, y, groups), np.array([1, 0]), method)
    assert own.loglik >= common.loglik - 1e-4
    if own.shape == np.inf:
        assert own.loglik == pytest.approx(common.loglik, abs=1e-4)
        np.testing.assert_allclose(own.coef, common.coef, rtol=1e-4)
        np.testing.assert_allclose(own.random_covariance, common.random_covariance, rtol=1e-3)
        assert own.typical_variance == pytest.approx(common.sigma**2, rel=1e-4)


def test_the_law_of_the_noises_is_found():
    X, y, groups, variances = noisy_sites(9, 2000, shape=2.0)
    found = site_noise_fit.fit(statistics_of(X, y, groups), np.array([1, 0]), "ml")
    assert found.gradient < 1e-6
    assert found.shape == pytest.approx(2.0, rel=0.15)
    assert found.typical_variance == pytest.approx(1.0, rel=0.1)
    np.testing.assert_allclose(found.random_covariance, 0.49 * np.eye(2), atol=0.06)
    # Nearer to the truth than what a site's residuals say alone.
    client = site_noise.terms(found.data, found.parameters)
    alone = client.left / np.maximum(client.n_rows - 2, 1) * found.data.prepared.scale**2
    own, raw = (np.log(guess / variances) for guess in (found.variances, alone))
    assert np.mean(own**2) < 0.7 * np.mean(raw**2)


def test_units_change_nothing():
    X, y, groups, _ = noisy_sites(10, 20)
    plain = site_noise_fit.fit(statistics_of(X, y, groups), np.array([1, 0]))
    units = np.array([1e3, 1.0])
    other = site_noise_fit.fit(statistics_of(X * units, 10 * y, groups), np.array([1, 0]))
    np.testing.assert_allclose(other.coef, 10 * plain.coef / units, rtol=1e-4)
    assert other.typical_variance == pytest.approx(100 * plain.typical_variance, rel=1e-4)
    assert other.shape == pytest.approx(plain.shape, rel=1e-3)
    shift = -(len(y) - 2) * np.log(10.0) - np.log(1e3)
    assert other.loglik == pytest.approx(plain.loglik + shift, abs=1e-3)


def test_predictions_are_the_integrals_they_stand_for():
    """Given the parameters, a known site's density is p(y, new) / p(y); a new one's is p(new)."""
    X, y, groups, _ = noisy_sites(11, 15)
    found = site_noise_fit.fit(statistics_of(X, y, groups), np.array([1, 0]), "ml")
    sure = site_noise_fit.fit(statistics_of(X, y, groups), np.array([1, 0]), "ml")
    object.__setattr__(sure, "coef_covariance", np.zeros((2, 2)))
    row, outcome = np.array([[0.3, 1.0]]), 2.5
    V, law = found.random_covariance, (found.shape, found.typical_variance)
    rows = groups == federation(X[:, :-1], y, groups).names[4]
    both = np.concatenate([X[rows], row]), np.append(y[rows], outcome)
    before = by_quadrature(y[rows], X[rows], X[rows][:, [1, 0]], found.coef, V, *law)
    after = by_quadrature(both[1], both[0], both[0][:, [1, 0]], found.coef, V, *law)
    got = site_noise_prediction.predict(sure, row, np.array([4])).log_density(np.array([outcome]))
    assert got[0] == pytest.approx(after - before, abs=1e-6)
    alone = by_quadrature(np.array([outcome]), row, row[:, [1, 0]], found.coef, V, *law)
    got = site_noise_prediction.predict(sure, row, np.array([-1])).log_density(np.array([outcome]))
    assert got[0] == pytest.approx(alone, abs=1e-6)


def test_quantiles_hold_their_share():
    X, y, groups, _ = noisy_sites(12, 15)
    found = site_noise_fit.fit(statistics_of(X, y, groups), np.array([1, 0]))
    mixture = site_noise_prediction.predict(found, X[:3], np.array([0, 3, -1]))
    ends = mixture.quantile(0.9)
    below = (mixture.weights * norm.cdf(ends[:, None], mixture.means, mixture.variances**0.5)).sum(
        1
    )
    np.testing.assert_allclose(below, 0.9, atol=1e-9)
    np.testing.assert_allclose(mixture.mean()[:2], (X[:2] * found.client_coef[[0, 3]]).sum(axis=1))


def test_noise_that_differs_fourfold_is_covered_and_scores_gain():
    rng = np.random.default_rng(13)
    known, new, gain, hits = [], [], [], []
    for _ in range(16):
        sizes = rng.integers(8, 31, 25)
        codes = np.repeat(np.arange(25), sizes)
        within = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        X = with_intercept(rng.normal(size=(len(codes), 1)))
        spread = np.exp(rng.uniform(np.log(0.5), np.log(2.0), size=25))
        u = 0.8 * rng.normal(size=(25, 2))
        y = X @ [1.0, 2.0] + (X * u[codes]).sum(axis=1)
        y += spread[codes] * rng.normal(size=len(codes))
        asked = within >= sizes[codes] - 3
        train = (codes < 20) & ~asked
        statistics = statistics_of(X[train], y[train], np.array([f"{k:03d}" for k in codes[train]]))
        who = np.where(codes[asked] < 20, codes[asked], -1)
        found = site_noise_fit.fit(statistics, np.array([1, 0]))
        uncertainty = site_noise_prediction.parameter_covariance(found)
        ends = site_noise_prediction.intervals(found, X[asked], who, uncertainty=uncertainty)
        inside = (ends[:, 0] < y[asked]) & (ends[:, 1] > y[asked])
        known.append(inside[who >= 0].mean())
        new.append(inside[who < 0].mean())
        own = site_noise_prediction.predict(found, X[asked], who).log_density(y[asked])
        common = linear_mixed_fit.fit(statistics, np.array([1, 0]))
        mean = (X[asked] * common.client_coef[np.maximum(who, 0)]).sum(axis=1)
        plain = norm.logpdf(y[asked], mean, common.sigma)
        gain.append((own - plain)[who >= 0].mean())
        half = student.ppf(0.975, site_noise_prediction.coefficient_degrees(found, uncertainty))
        error = half * np.sqrt(np.diag(found.coef_covariance))
        hits.append(np.abs(found.coef - [1.0, 2.0]) < error)
    assert 0.93 < np.mean(known) < 0.97
    assert 0.90 < np.mean(new) < 0.99
    assert np.mean(gain) > 0.05
    assert 0.88 < np.mean(hits) <= 1.0


def test_sites_whose_rows_lie_on_a_line_do_not_outvote_the_others():
    """Interpolated scores: two of twenty sites without any noise at all."""
    X, y, groups, _ = noisy_sites(14, 20, shape=3.0, least=20, most=30)
    names = federation(X[:, :-1], y, groups).names
    for name in names[:2]:
        own = groups == name
        y[own] = X[own] @ np.linalg.lstsq(X[own], y[own], rcond=None)[0]
    for method in ("ml", "reml"):
        found = site_noise_fit.fit(statistics_of(X, y, groups), np.array([1, 0]), method)
        error = np.sqrt(np.diag(found.coef_covariance))
        assert (np.abs(found.coef - [1.0, 2.0]) < 4 * error).all()
        assert np.isfinite(found.loglik) and found.gradient < 1e-4
        alone = [np.linalg.lstsq(X[groups == n], y[groups == n], rcond=None)[0] for n in names]
        np.testing.assert_allclose(found.client_coef[:2], alone[:2], atol=1e-2)


def test_without_effects_sites_are_multivariate_t():
    """With V = 0 the integral over a site's noise has a closed form; its best value by scipy."""
    X, y, groups, _ = noisy_sites(8, 15, spread=0.4)
    found = site_noise_fit.fit(statistics_of(X, y, groups), np.array([1, 0]), "ml")

    def criterion(numbers):
        left, (logs, log_shape) = y - X @ numbers[:2], numbers[2:]
        a, s2 = np.exp(log_shape), np.exp(logs)
        squares = np.array([(left[groups == name] ** 2).sum() for name in np.unique(groups)])
        n = np.array([(groups == name).sum() for name in np.unique(groups)])
        logs_of = gammaln(a + n / 2) - gammaln(a) - n / 2 * np.log(2 * np.pi * a * s2)
        return -2 * (logs_of - (a + n / 2) * np.log1p(squares / (2 * a * s2))).sum()

    start = np.array([1.0, 2.0, 0.0, 1.0])
    best = minimize(
        criterion,
        start,
        method="Nelder-Mead",
        options={"maxiter": 4000, "xatol": 1e-7, "fatol": 1e-9},
    )
    assert site_noise_fit.without_effects(found) == pytest.approx(best.fun, abs=1e-5)
    assert best.fun > -2 * found.loglik
