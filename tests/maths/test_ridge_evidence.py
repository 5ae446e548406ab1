"""A site's own regression against Bayes by brute force."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln, logsumexp

from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics
from fedkin.models.ridge_evidence import NOISE_SHARES, SIZES, fit_ridges, spread_within


def made(n=12, d=3, seed=0, constant=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * [1.0, 5.0, 0.1][:d] + 2.0
    if constant:
        X[:, 0] = 3.0
    return X, X @ np.array([1.0, -0.3, 2.0])[:d] + rng.normal(size=n)


def fitted(X, y, intercept=True):
    data = Federation.from_groups(X, np.zeros(len(y), int), y)
    return fit_ridges(packed_statistics(data, intercept).T, intercept)


def by_brute_force(X, y, x_new, y_new):
    """Mixture over prior sizes of Student's t, from the covariance of the targets themselves.

    With a flat prior on level and log noise, y is multivariate t; its density given the rows comes
    from densities of contrasts that remove the level.
    """
    n = len(y)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    z_new = (x_new - X.mean(axis=0)) / X.std(axis=0)
    both = np.vstack([Z, z_new])

    def log_marginal(rows, target, size):
        k = len(target)
        contrast = stats.ortho_group.rvs(k, random_state=1)
        contrast = np.linalg.qr(np.column_stack([np.ones(k), contrast[:, 1:]]))[0][:, 1:].T
        cov = contrast @ (np.eye(k) + size * rows @ rows.T) @ contrast.T
        away = contrast @ target
        quad = away @ np.linalg.solve(cov, away)
        a = (k - 1) / 2
        return (
            gammaln(a)
            - a * np.log(np.pi)
            - 0.5 * np.linalg.slogdet(cov)[1]
            - a * np.log(quad)
            - 0.5 * np.log(k)
        )

    evidence = np.array([log_marginal(Z, y, g) for g in SIZES])
    joint = np.array([log_marginal(both, np.append(y, y_new), g) for g in SIZES])
    return logsumexp(joint) - logsumexp(evidence), n


def test_the_predictive_density_is_that_of_bayes_rule():
    X, y = made()
    fits = fitted(X, y)
    for x_new, y_new in ((np.array([2.5, 1.0, 2.1]), 3.0), (np.array([0.0, 9.0, 2.0]), -4.0)):
        expected, _ = by_brute_force(X, y, x_new, y_new)
        found = fits.log_density(x_new[None], np.array([y_new]), np.zeros(1, int))
        assert found[0] == pytest.approx(expected, abs=1e-8)


def test_density_integrates_to_one_and_has_the_told_moments():
    X, y = made(n=8)
    fits = fitted(X, y)
    grid = np.linspace(-200, 200, 40_001)
    rows = np.repeat(X[:1], len(grid), axis=0)
    density = np.exp(fits.log_density(rows, grid, np.zeros(len(grid), int)))
    mean, std = fits.predict(X[:1], np.zeros(1, int))
    step = grid[1] - grid[0]
    assert density.sum() * step == pytest.approx(1.0, abs=1e-4)
    assert (density * grid).sum() * step == pytest.approx(mean[0], abs=1e-3)
    assert np.sqrt((density * (grid - mean[0]) ** 2).sum() * step) == pytest.approx(
        std[0], rel=0.01
    )


def test_many_rows_give_least_squares_and_units_do_not_matter():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4000, 2))
    y = X @ [3.0, -2.0] + 1.0 + 0.1 * rng.normal(size=4000)
    one = fitted(X, y)
    slopes, level = one.coefficients()
    exact = np.linalg.lstsq(np.column_stack([X, np.ones(4000)]), y, rcond=None)[0]
    np.testing.assert_allclose(np.append(slopes[0], level), exact, atol=1e-4)
    scaled = Federation.from_groups(X * [100.0, 1.0], np.zeros(4000, int), 7.0 * y)
    other = fit_ridges(packed_statistics(scaled, True).T, True).coefficients()[0][0]
    np.testing.assert_allclose(other, 7.0 * slopes[0] / [100.0, 1.0], rtol=1e-8)


def test_a_constant_column_or_a_lone_row_does_no_harm():
    X, y = made(constant=True)
    groups = np.array([0] * 11 + [1])
    fits = fit_ridges(packed_statistics(Federation.from_groups(X, groups, y), True).T, True)
    slopes, level = fits.coefficients()
    assert np.isfinite(slopes).all() and np.isfinite(level).all() and slopes[0, 0] == 0.0
    assert np.isfinite(fits.log_density(X, y, groups)).all()


def test_without_intercept_the_mean_at_zero_is_zero():
    X, y = made()
    fits = fitted(X, y, intercept=False)
    assert fits.predict(np.zeros((1, 3)), np.zeros(1, int))[0][0] == 0.0


# ------------------------------------------------------------------ noise that has a prior


def integrated_over_noise(X, y, x_new, y_new, spread):
    """Log density of a new target: sums over a fine grid of the noise and over sizes of slopes.

    The level is flat: it is integrated over by the normal law itself.
    """
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    both = np.vstack([Z, (x_new - X.mean(axis=0)) / X.std(axis=0)])
    log_noise = np.linspace(np.log(1e-8 * spread), np.log(1e4 * spread), 20_001)
    noise = np.exp(log_noise)
    # sigma^2 = (share * spread)^2 / chi-squared of one degree, as density of log sigma.
    prior = sum(
        share
        * stats.chi2.pdf((share * spread / noise) ** 2, 1)
        * 2.0
        * (share * spread / noise) ** 2
        for share in NOISE_SHARES
    )

    def log_marginal(rows, target, size):
        k = len(target)
        cov = np.eye(k) + size * rows @ rows.T
        ones = np.ones(k)
        precision = np.linalg.inv(cov)
        about = ones @ precision @ ones
        quad = target @ precision @ target - (ones @ precision @ target) ** 2 / about
        log_normal = -0.5 * (k - 1) * np.log(2 * np.pi * noise**2) - 0.5 * quad / noise**2
        log_normal -= 0.5 * (np.linalg.slogdet(cov)[1] + np.log(about))
        return logsumexp(log_normal + np.log(np.maximum(prior, 1e-300)))

    evidence = [log_marginal(Z, y, size) for size in SIZES]
    joint = [log_marginal(both, np.append(y, y_new), size) for size in SIZES]
    return logsumexp(joint) - logsumexp(evidence)


@pytest.mark.parametrize("n", [3, 12])
def test_with_a_prior_of_the_noise_the_density_is_that_of_bayes_rule(n):
    X, y = made(n=n)
    data = Federation.from_groups(X, np.zeros(n, int), y)
    fits = fit_ridges(packed_statistics(data, True).T, True, spread=2.0)
    for x_new, y_new in ((np.array([2.5, 1.0, 2.1]), 3.0), (np.array([0.0, 9.0, 2.0]), -4.0)):
        expected = integrated_over_noise(X, y, x_new, y_new, 2.0)
        found = fits.log_density(x_new[None], np.array([y_new]), np.zeros(1, int))
        assert found[0] == pytest.approx(expected, abs=1e-6)


def test_equal_targets_do_not_say_that_there_is_no_noise():
    X = np.array([[1.0], [2.0], [3.0], [4.0]])
    sums = packed_statistics(Federation.from_groups(X, [0, 0, 1, 1], [5.0, 5.0, 1.0, 3.0]), True).T
    here, spread = np.zeros(1, int), spread_within(sums, True)
    flat, known = (fit_ridges(sums, True, unit) for unit in (0.0, spread))
    off = np.array([5.0 + spread])
    surprise = [fits.log_density(X[:1], off, here)[0] for fits in (flat, known)]
    assert surprise[0] < -10 and surprise[1] > -5
    # A lone row has the spread of all about it.
    one = packed_statistics(Federation.from_groups(X[:1], [0], [5.0]), True).T
    density = fit_ridges(one, True, spread).log_density(X[:1], np.array([5.0 + spread]), here)[0]
    assert -4 < density < 0


def test_little_noise_is_still_seen():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(12, 1))
    y = 3.0 * X[:, 0] + 0.01 * rng.normal(size=12)
    sums = packed_statistics(Federation.from_groups(X, np.zeros(12, int), y), True).T
    std = fit_ridges(sums, True, spread_within(sums, True)).predict(X, np.zeros(12, int))[1]
    assert 0.005 < np.median(std) < 0.02


def test_the_spread_within_is_that_of_targets_about_their_sites_means():
    y = np.array([1.0, 3.0, 10.0, 14.0, 12.0, 7.0])
    groups = np.array([0, 0, 1, 1, 1, 2])
    X = np.arange(6.0)[:, None]
    sums = packed_statistics(Federation.from_groups(X, groups, y), True).T
    about = y - np.array([2.0, 2.0, 12.0, 12.0, 12.0, 7.0])
    assert spread_within(sums, True) == pytest.approx(np.sqrt((about**2).sum() / 3))
    without = packed_statistics(Federation.from_groups(X, groups, y), False).T
    assert spread_within(without, False) == pytest.approx(np.sqrt((y**2).mean()))
