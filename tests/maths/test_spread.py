"""The variance between sites against the truth of many sites and against maximum likelihood."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from fedkin.shrinkage import shrink_adaptively
from fedkin.shrinkage.spread import center_and_spread

BETWEEN = 1.0


@pytest.mark.parametrize(("n_features", "share"), [(1, 1.0), (10, 0.93)])
def test_the_median_of_very_many_sites_gives_the_variance_between_them(n_features, share):
    """One feature: exactly. Ten: the median of chi-squared is 7 % below its mean."""
    rng = np.random.default_rng(0)
    noise = np.full((1, 40_000), 0.1)
    points = np.sqrt(BETWEEN + 0.1) * rng.normal(size=(1, 40_000, n_features))
    known = np.ones(noise.shape, dtype=bool)
    found = center_and_spread(points, noise, known, np.zeros((1, n_features)))[1][0]
    assert found == pytest.approx(share * (BETWEEN + 0.1) - 0.1, rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_the_refined_variance_is_the_likeliest_where_sites_know_very_unequal_amounts(seed):
    rng = np.random.default_rng(seed)
    noise = 10.0 ** rng.uniform(-2, 2, size=150)
    points = np.sqrt(BETWEEN + noise)[:, None] * rng.normal(size=(150, 20))
    found = shrink_adaptively(points[:, None], noise).between_variance[0]
    squares = (points**2).sum(axis=1)

    def misfit(log_between):
        total = np.exp(log_between) + noise
        return (squares / total + 20 * np.log(total)).sum()

    likeliest = np.exp(minimize_scalar(misfit, bounds=(-3, 3), method="bounded").x)
    assert found == pytest.approx(likeliest, rel=0.04)


@pytest.mark.parametrize("seed", [0, 2, 4])
def test_sites_that_hardly_know_anything_have_no_say_in_the_variance(seed):
    """Forty sites with a thousand times the variance beside sixty that know theirs well."""
    rng = np.random.default_rng(seed)
    noise = np.repeat([0.01, 1000.0], [60, 40])
    points = np.sqrt(BETWEEN + noise)[:, None, None] * rng.normal(size=(100, 1, 3))
    known = shrink_adaptively(points[:60], noise[:60]).between_variance
    everybody = shrink_adaptively(points, noise).between_variance
    np.testing.assert_allclose(everybody, known, rtol=0.01)
