from itertools import product

import numpy as np
import pytest

from fedkin.clustering import gradient_clustering, kmeans, lloyd, spectral_kmeans
from fedkin.clustering.spectral import project

METHODS = {
    "kmeans": kmeans,
    "spectral": spectral_kmeans,
    "spectral, part I": lambda *a, **k: spectral_kmeans(*a, part_one_only=True, **k),
    "gradient": gradient_clustering,
    "gradient, Huber": lambda *a, **k: gradient_clustering(*a, cost="huber", **k),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


def brute_force_cost(points, n_clusters):
    """Least (15) over all labellings."""
    best = np.inf
    for labels in product(range(n_clusters), repeat=len(points)):
        chosen = np.array(labels)
        groups = [points[chosen == k] for k in range(n_clusters) if (chosen == k).any()]
        best = min(best, sum(0.5 * ((g - g.mean(axis=0)) ** 2).sum() for g in groups))
    return best


@every_method
def test_clear_clusters_are_found(method, blobs, same_partition):
    points, labels = blobs(0)
    found = method(points, 3, random_state=0)
    assert same_partition(found.labels, labels)
    means = np.array([points[found.labels == k].mean(axis=0) for k in range(3)])
    np.testing.assert_allclose(found.centers, means, atol=0.05)


@pytest.mark.parametrize(("n_points", "n_clusters"), [(60, 4), (9000, 4)])
def test_kmeans_is_the_best_of_scikit_learns_runs(n_points, n_clusters, same_partition):
    """Few points, where all starts run side by side, and many; no clear clusters."""
    from sklearn.cluster import KMeans
    from sklearn.utils import check_random_state

    points = np.random.default_rng(0).normal(size=(n_points, 3)) + 5.0
    chance = check_random_state(7)
    runs = [
        KMeans(n_clusters, n_init=1, random_state=chance, tol=0.0).fit(points) for _ in range(3)
    ]
    best = min(runs, key=lambda run: run.inertia_)
    found = kmeans(points, n_clusters, 7, n_starts=3)
    assert same_partition(found.labels, best.labels_)
    means = np.array([points[found.labels == k].mean(axis=0) for k in range(n_clusters)])
    np.testing.assert_allclose(found.centers, means, atol=1e-9)
    assert found.cost == pytest.approx(0.5 * best.inertia_)


def test_a_cluster_that_loses_its_points_is_filled_again():
    points = np.array([[0.0], [0.1], [10.0], [10.1], [20.0], [20.1]])
    found = lloyd(points, [[0.05], [1e3], [15.0]])
    assert sorted(np.bincount(found.labels)) == [2, 2, 2]
    assert found.cost == pytest.approx(3 * 0.05**2)


@every_method
def test_order_of_points_is_irrelevant(method, blobs, same_partition):
    points, _ = blobs(1)
    order = np.random.default_rng(0).permutation(len(points))
    found, permuted = method(points, 3, random_state=0), method(points[order], 3, random_state=0)
    assert same_partition(found.labels[order], permuted.labels)
    assert permuted.cost == pytest.approx(found.cost, rel=1e-6)


@every_method
def test_scaling_scales_centers_and_squares_cost(method, blobs, same_partition):
    points, _ = blobs(2)
    found, scaled = method(points, 3, random_state=0), method(100 * points, 3, random_state=0)
    assert same_partition(found.labels, scaled.labels)
    assert scaled.cost == pytest.approx(1e4 * found.cost, rel=1e-6)


@pytest.mark.parametrize("name", ["kmeans", "gradient", "gradient, Huber"])
def test_translation_moves_the_centers_only(name, blobs):
    points, _ = blobs(2)
    found = METHODS[name](points, 3, random_state=0)
    moved = METHODS[name](points + 7.0, 3, random_state=0)
    np.testing.assert_allclose(
        np.sort(moved.centers, axis=0), np.sort(found.centers + 7.0, axis=0), atol=1e-6
    )


@every_method
@pytest.mark.parametrize(("n_points", "n_clusters"), [(1, 1), (2, 1), (2, 2), (4, 4)])
def test_few_points_on_a_line(method, n_points, n_clusters):
    points = np.arange(float(n_points)) ** 2
    found = method(points, n_clusters, random_state=0)
    assert np.unique(found.labels).size == n_clusters
    if n_clusters == n_points:
        assert found.cost == pytest.approx(0.0, abs=1e-12)


@every_method
def test_more_clusters_than_distinct_points_is_no_error(method):
    points = np.array([[0.0], [0.0], [1.0], [1.0]])
    assert method(points, 3, random_state=0).cost == pytest.approx(0.0, abs=1e-12)


@every_method
def test_bad_arguments_are_refused(method):
    with pytest.raises(ValueError, match="missing or infinite"):
        method([[0.0], [np.nan]], 1)
    with pytest.raises(ValueError, match="n_clusters must lie between 1 and"):
        method([[0.0], [1.0]], 3)
    with pytest.raises(ValueError, match="points must have shape"):
        method(np.zeros((0, 2)), 1)


@pytest.mark.parametrize("seed", range(5))
def test_kmeans_reaches_the_global_optimum_of_small_problems(seed):
    points = np.random.default_rng(seed).normal(size=(7, 2))
    assert kmeans(points, 3, random_state=0).cost == pytest.approx(brute_force_cost(points, 3))


def test_kmeans_cost_is_half_of_scikit_learns_inertia():
    cluster = pytest.importorskip("sklearn.cluster")
    points = np.random.default_rng(0).normal(size=(60, 3))
    inertia = cluster.KMeans(4, n_init=10, random_state=3).fit(points).inertia_
    assert kmeans(points, 4, random_state=3).cost == pytest.approx(0.5 * inertia, rel=1e-3)


def test_lloyd_from_its_own_centers_changes_nothing(blobs):
    points, _ = blobs(0)
    found = kmeans(points, 3, random_state=0)
    again = lloyd(points, found.centers)
    np.testing.assert_array_equal(again.labels, found.labels)
    np.testing.assert_allclose(again.centers, found.centers)


def test_projection_keeps_what_lies_in_the_leading_directions():
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(20, 2)) @ rng.normal(size=(2, 6))
    np.testing.assert_allclose(project(flat, 2), flat, atol=1e-12)
    assert np.linalg.matrix_rank(project(rng.normal(size=(20, 6)), 3)) == 3


def test_spectral_clusters_find_small_differences_hidden_in_noise(same_partition):
    # 200 noisy directions hide the one in which the clusters differ; the projection finds it.
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 60)
    points = rng.normal(size=(120, 200))
    points[:, 0] += 12.0 * (labels - 0.5)
    assert same_partition(spectral_kmeans(points, 2, random_state=0).labels, labels)


def test_the_full_gradient_step_with_squared_cost_ends_where_lloyd_ends():
    points = np.random.default_rng(1).normal(size=(50, 2))
    found = gradient_clustering(points, 4, random_state=0, step=1.0)
    again = lloyd(points, found.centers)
    np.testing.assert_allclose(again.centers, found.centers, atol=1e-6)


def test_a_huber_center_is_where_bounded_pulls_balance():
    # Four points at 0 and one at 10, threshold 1: 4 x = 1.
    points = [0.0, 0.0, 0.0, 0.0, 10.0]
    found = gradient_clustering(points, 1, random_state=0, cost="huber", huber_threshold=1.0)
    assert found.centers[0, 0] == pytest.approx(0.25, abs=1e-6)
    squared = gradient_clustering(points, 1, random_state=0)
    assert squared.centers[0, 0] == pytest.approx(2.0, abs=1e-6)


def test_huber_with_a_huge_threshold_is_the_squared_cost(blobs):
    points, _ = blobs(4)
    huber = gradient_clustering(points, 3, random_state=0, cost="huber", huber_threshold=1e9)
    squared = gradient_clustering(points, 3, random_state=0)
    assert huber.cost == pytest.approx(squared.cost)


def test_gradient_clustering_refuses_unknown_costs_and_steps():
    with pytest.raises(ValueError, match="cost must be"):
        gradient_clustering([[0.0], [1.0]], 1, cost="absolute")
    with pytest.raises(ValueError, match="step must lie"):
        gradient_clustering([[0.0], [1.0]], 1, step=1.5)
