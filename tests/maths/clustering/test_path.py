import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, is_valid_linkage

from fedkin.clustering import (
    clusterpath,
    convex_clustering,
    convex_clustering_path,
    oracle_penalty,
    penalty_range,
    polished_silhouette,
    recovery_interval,
)


def cloud(seed, m=40, d=2):
    rng = np.random.default_rng([41, seed])
    return 2.0 * rng.normal(size=(4, d))[rng.integers(4, size=m)] + 0.4 * rng.normal(size=(m, d))


def nested(path):
    return all(
        np.unique(fine * fine.size + coarse).size == np.unique(fine).size
        for fine, coarse in zip(path.labels, path.labels[1:], strict=False)
    )


# Path


@pytest.mark.parametrize("seed", range(5))
def test_partitions_are_nested_from_all_apart_to_one(seed):
    path = convex_clustering_path(cloud(seed), n_penalties=15)
    assert nested(path)
    assert path.n_clusters[0] == 40 and path.n_clusters[-1] == 1
    assert path.certified.all() and path.gaps.max() <= 1e-7


def test_the_path_equals_direct_solves(same_partition):
    points = cloud(7)
    path = convex_clustering_path(points, n_penalties=12)
    for penalty, labels, centers in zip(path.penalties, path.labels, path.centers, strict=True):
        direct = convex_clustering(points, penalty)
        assert same_partition(direct.labels, labels)
        np.testing.assert_allclose(direct.centers, centers, atol=1e-4)


def test_the_linkage_matrix_cuts_back_into_the_path(same_partition):
    path = convex_clustering_path(cloud(1), n_penalties=12)
    tree = path.linkage()
    assert is_valid_linkage(tree)
    for penalty, labels in zip(path.penalties, path.labels, strict=True):
        assert same_partition(fcluster(tree, penalty, "distance"), labels)


def test_the_order_of_given_penalties_is_irrelevant():
    points = cloud(2, m=12)
    path = convex_clustering_path(points, [0.2, 0.01, 0.1])
    assert path.penalties.tolist() == [0.01, 0.1, 0.2]


def test_a_path_of_one_point_or_of_equal_points_is_one_cluster():
    for points in ([[1.0, 2.0]], np.ones((5, 2))):
        path = convex_clustering_path(points)
        assert path.n_clusters.tolist() == [1]


def test_penalty_range_brackets_the_path():
    points = cloud(3)
    lowest, highest = penalty_range(points)
    assert convex_clustering(points, lowest).labels.max() + 1 == len(points)
    assert convex_clustering(points, highest).labels.max() == 0


@pytest.mark.parametrize("penalties", [[], [[0.1]], [-1.0], [np.nan]])
def test_bad_penalties_are_refused(penalties):
    with pytest.raises(ValueError, match="penalt"):
        convex_clustering_path([[0.0], [1.0]], penalties)


# Interval (13)


def test_the_interval_by_hand():
    # Clusters {0, 1} and {10}: 1 / 2 <= penalty < (10 - 1/2) / (6 - 2 - 1).
    lower, upper = recovery_interval([0.0, 1.0, 10.0], [5, 5, 9])
    assert lower == pytest.approx(0.5)
    assert upper == pytest.approx(9.5 / 3.0)


def test_one_cluster_has_no_upper_end_and_singletons_no_lower_end():
    points = [0.0, 1.0, 3.0]
    assert recovery_interval(points, [0, 0, 0]) == (pytest.approx(1.0), np.inf)
    assert recovery_interval(points, [0, 1, 2]) == (0.0, pytest.approx(0.25))


def test_recovered_says_whether_the_interval_holds(blobs):
    points, _ = blobs(0)
    path = convex_clustering_path(points, n_penalties=40)
    expected = [
        recovery_interval(points, found).holds(penalty)
        for penalty, found in zip(path.penalties, path.labels, strict=True)
    ]
    assert path.recovered.tolist() == expected
    assert path.recovered[path.n_clusters == 3].any()


def test_the_oracle_draws_inside_the_interval_or_takes_its_upper_end(blobs):
    points, labels = blobs(0)
    lower, upper = recovery_interval(points, labels)
    assert lower < oracle_penalty(points, labels, 1) < upper
    noisy, labels = blobs(0, noise=5.0)
    assert oracle_penalty(noisy, labels) == recovery_interval(noisy, labels).upper


def test_labels_of_the_wrong_length_are_refused():
    with pytest.raises(ValueError, match="labels must have shape"):
        recovery_interval([0.0, 1.0], [0])


# Rules for the penalty


def test_clusterpath_finds_clear_clusters_by_either_rule(blobs, same_partition):
    points, labels = blobs(1, sizes=(10, 10, 10), distance=4.0)
    for rule in ("auto", "a", "b"):
        chosen = clusterpath(points, rule=rule, n_penalties=30)
        assert same_partition(chosen.labels, labels)
        assert chosen.rule == ("b" if rule == "b" else "a")


def test_clusterpath_brackets_as_in_appendix_d2(blobs):
    points, _ = blobs(1, sizes=(10, 10, 10), distance=4.0)
    path = clusterpath(points).path
    assert path.penalties.size == 10
    assert path.n_clusters[0] == 30 and path.n_clusters[-1] == 1
    # The ends are powers of 1.25 away from the first guess 0.1, the smallest that do.
    for end in (path.penalties[0], path.penalties[-1]):
        power = np.log(end / 0.1) / np.log(1.25)
        assert power == pytest.approx(round(power), abs=1e-9)
    np.testing.assert_allclose(np.diff(path.penalties, 2), 0.0, atol=1e-12)


def test_clusterpath_takes_the_smaller_penalty_of_a_tie_and_survives_no_candidates():
    chosen = clusterpath([0.0, 1.0])  # only K = 1 and K = m exist
    assert chosen.n_clusters == 1 and "none eligible" in chosen.rule
    assert clusterpath(np.ones((3, 2))).n_clusters == 1


@pytest.mark.parametrize("bracket", [{"first_penalty": 0.0}, {"factor": 1.0}])
def test_a_bracket_that_never_grows_is_refused(bracket):
    with pytest.raises(ValueError, match="first_penalty must be positive and factor above 1"):
        clusterpath([0.0, 1.0, 5.0], **bracket)


def test_clusterpath_refuses_an_unknown_rule():
    with pytest.raises(ValueError, match="rule must be"):
        clusterpath([0.0, 1.0], rule="c")


def test_the_polished_silhouette_finds_clusters_with_stragglers(same_partition):
    rng = np.random.default_rng(3)
    # Models of appendix D.2 as a hundred rows a site estimate them, with heavier tails.
    labels = np.repeat(np.arange(4), 10)
    models = rng.uniform(size=(4, 20)) + np.array([[0.0], [1.0], [-1.0], [-2.0]])
    points = models[labels] + 0.2 * rng.standard_t(5, size=(40, 20))
    chosen = polished_silhouette(points)
    assert same_partition(chosen.labels, labels)
    assert chosen.n_clusters == 4
    assert chosen.curve.shape == chosen.path.penalties.shape == (30,)
    assert chosen.curve[np.flatnonzero(chosen.path.penalties == chosen.penalty)[0]] == np.nanmax(
        chosen.curve
    )


def test_the_polished_silhouette_of_equal_points_is_one_cluster():
    assert polished_silhouette(np.ones((4, 2))).n_clusters == 1


def test_no_more_clusters_are_chosen_than_allowed(same_partition):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 8)
    corners = np.array([[0.0, 0.0], [3.0, 0.0], [10.0, 0.0], [13.0, 0.0]])
    points = corners[labels] + 0.05 * rng.normal(size=(32, 2))
    free, bounded = polished_silhouette(points), polished_silhouette(points, max_clusters=2)
    assert free.n_clusters == 4 and same_partition(free.labels, labels)
    assert same_partition(bounded.labels, labels // 2)
    np.testing.assert_array_equal(bounded.curve, free.curve)
    assert polished_silhouette(points, max_clusters=1).n_clusters == 1
