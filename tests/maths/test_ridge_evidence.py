"""A site's own regression against Bayes by brute force."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln, logsumexp

from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics
from fedkin.models.ridge_evidence import SIZES, fit_ridges


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
