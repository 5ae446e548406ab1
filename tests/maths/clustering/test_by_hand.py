"""Small sets of points whose answer is known."""

import numpy as np
import pytest

from fedkin.clustering import clusterpath, convex_clustering, gradient_clustering, penalty_range
from fedkin.clustering.choice import _log_share
from fedkin.clustering.polished import polish
from fedkin.clustering.spectral import _core_means


def test_core_means_leave_out_who_stands_between():
    points = np.array([[0.0], [0.2], [4.9], [10.0], [10.4]])
    found = _core_means(points, points, np.array([[0.0], [10.0]]))
    np.testing.assert_allclose(found, [[0.1], [10.2]])


def test_groups_of_three_are_kept_and_groups_of_two_join_them():
    points = np.array([0.0, 0.1, 0.2, 5.0, 5.1, 5.2, 6.0, 6.1])[:, None]
    labels = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    np.testing.assert_array_equal(polish(points, labels, 3), [0, 0, 0, 1, 1, 1, 1, 1])


def test_corners_of_a_simplex_are_apart_or_one_and_neither_is_an_answer():
    chosen = clusterpath(np.eye(5))
    assert set(chosen.path.n_clusters) == {1, 5}
    assert chosen.n_clusters == 1 and chosen.rule.startswith("none eligible")


def test_two_clusters_are_judged_along_one_axis_alone():
    """-1 and 1 along it, with a spread of .1: nothing across it counts."""
    rng = np.random.default_rng(0)
    along = np.repeat([-1.0, 1.0], 20) + 0.1 * rng.normal(size=40)
    across = rng.normal(size=40)
    across -= across.mean()
    across -= (
        (across @ (along - along.mean()))
        / ((along - along.mean()) ** 2).sum()
        * (along - along.mean())
    )
    shares = [
        _log_share(np.column_stack([along, width * across]), 2, np.random.default_rng(1))
        for width in (0.0, 0.3)
    ]
    halves = along.reshape(2, 20)
    expected = np.log(halves.var(axis=1).mean() / along.var())
    np.testing.assert_allclose(shares, expected, rtol=1e-9)


@pytest.mark.parametrize("threshold", [0.5, 1.5, np.inf])
def test_the_cost_is_the_sum_of_hubers_function(threshold):
    points = np.array([0.0, 1.0, 2.0, 50.0, 51.0, 52.0])[:, None]
    found = gradient_clustering(points, 2, 0, "huber", threshold)
    away = np.abs(points - found.centers[found.labels])[:, 0]
    square, linear = away**2 / 2, threshold * away - min(threshold, 1e9) ** 2 / 2
    assert found.cost == pytest.approx(np.where(away <= threshold, square, linear).sum())
    assert sorted(found.centers[:, 0]) == pytest.approx([1.0, 51.0], abs=1e-6)


@pytest.mark.parametrize("n_points", [2, 3, 10])
def test_evenly_spaced_points_are_apart_at_the_lower_end_and_one_at_the_upper(n_points):
    """Neighbours on a line fuse early: two of them at half their distance."""
    points = np.arange(float(n_points))[:, None]
    lowest, highest = penalty_range(points)
    assert len(np.unique(convex_clustering(points, lowest).labels)) == n_points
    assert len(np.unique(convex_clustering(points, highest).labels)) == 1
