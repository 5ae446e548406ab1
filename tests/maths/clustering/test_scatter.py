"""What sampling errors explain, against laws of SciPy and against rows drawn by it."""

import numpy as np
import pytest
from scipy.stats import chi2, f

from fedkin.clustering.scatter import _moments, explained_scatter

LEVEL = 0.9


def test_moments_are_those_of_a_sum_of_f_laws():
    freedom = np.array([5.0, 9.0, 30.0])
    mean, variance = f(4, freedom).stats("mv")
    found = _moments(3, 4, freedom)
    np.testing.assert_allclose(found, [4 * mean.sum(), 16 * variance.sum()])


@pytest.mark.parametrize("n_clusters", [1, 2, 5])
def test_known_covariances_make_it_a_quantile_of_chi_square(n_clusters):
    """(m - K) d degrees of freedom: every centre is fitted to its points."""
    rng = np.random.default_rng(0)
    points, labels = rng.normal(size=(20, 3)), np.arange(20) % n_clusters
    centers = np.array([points[labels == k].mean(axis=0) for k in range(n_clusters)])
    scatter = ((points - centers[labels]) ** 2).sum()
    found = explained_scatter(points, labels, np.ones((20, 3)), None, LEVEL)
    assert found == pytest.approx(scatter / chi2.ppf(LEVEL, 3 * (20 - n_clusters)))


def test_points_with_estimated_covariances_are_explained_as_often_as_the_level_says():
    """2,000 sets of 40 points, each with a variance of its own from 8 degrees of freedom."""
    rng, labels, explained = np.random.default_rng(1), np.zeros(40, dtype=np.intp), 0
    for _ in range(2000):
        points = rng.normal(size=(40, 1))
        variances = rng.chisquare(8, size=(40, 1)) / 8
        explained += explained_scatter(points, labels, variances, 8.0, LEVEL) <= 1.0
    assert abs(explained / 2000 - LEVEL) < 0.035
