import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage

from fedkin.clustering import (
    convex_clustering,
    nearest_neighbor_weights,
    penalty_range,
    recovery_interval,
)
from fedkin.clustering.contraction import Groups, merge_small_diameters
from fedkin.clustering.fusion import prove_fused


def random_problem(seed, largest=20):
    rng = np.random.default_rng([11, seed])
    m, d = rng.integers(6, largest), rng.integers(1, 4)
    centers = 3.0 * rng.normal(size=(rng.integers(1, 5), d))
    points = centers[rng.integers(len(centers), size=m)] + 0.5 * rng.normal(size=(m, d))
    highest = penalty_range(points)[1]
    return points, float(np.exp(rng.uniform(np.log(highest / 50), np.log(highest))))


def objective(points, centers, penalty):
    first, second = np.triu_indices(len(points), 1)
    lengths = np.linalg.norm(centers[first] - centers[second], axis=1)
    return 0.5 * ((points - centers) ** 2).sum() + penalty * lengths.sum()


# Arithmetic that can be checked by hand


def test_two_points_move_towards_each_other_by_the_penalty():
    found = convex_clustering([[0.0], [1.0]], 0.2)
    np.testing.assert_allclose(found.centers[:, 0], [0.2, 0.8], atol=1e-12)
    assert found.labels.tolist() == [0, 1]


def test_two_points_fuse_at_half_their_distance():
    assert convex_clustering([[0.0], [1.0]], 0.5 - 1e-4).labels.tolist() == [0, 1]
    fused = convex_clustering([[0.0], [1.0]], 0.5 + 1e-4)
    assert fused.labels.tolist() == [0, 0]
    np.testing.assert_allclose(fused.centers, 0.5, atol=1e-12)


def test_three_points_on_a_line_by_hand():
    # The outer points are pulled by two others, the middle one is pulled equally from both sides.
    found = convex_clustering([0.0, 1.0, 2.0], 0.1)
    np.testing.assert_allclose(found.centers[:, 0], [0.2, 1.0, 1.8], atol=1e-12)


def test_on_a_line_centers_are_those_of_isotonic_regression():
    # In d = 1 the order fixes the pulls: u is the isotonic fit of a_i + penalty (m + 1 - 2 i).
    isotonic = pytest.importorskip("sklearn.isotonic").isotonic_regression
    points = np.sort(np.random.default_rng(5).normal(size=60))
    for penalty in (0.001, 0.01, 0.02, 0.04):
        shifted = points + penalty * (61 - 2 * np.arange(1, 61))
        found = convex_clustering(points, penalty)
        np.testing.assert_allclose(found.centers[:, 0], isotonic(shifted), atol=1e-6)
        assert found.certified


def test_zero_penalty_leaves_points_and_infinite_penalty_joins_all():
    points = np.random.default_rng(0).normal(size=(7, 2))
    apart = convex_clustering(points, 0.0)
    np.testing.assert_allclose(apart.centers, points, atol=1e-14)
    assert apart.labels.tolist() == list(range(7))
    joined = convex_clustering(points, np.inf)
    np.testing.assert_allclose(joined.centers, np.tile(points.mean(axis=0), (7, 1)))
    assert set(joined.labels) == {0}


def test_one_point_is_its_own_center():
    found = convex_clustering([[3.0, 4.0]], 1.0)
    assert found.centers.tolist() == [[3.0, 4.0]]
    assert found.labels.tolist() == [0]
    assert found.gap == 0.0


def test_duplicates_share_a_label_at_every_penalty():
    points = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 0.0], [5.0, 0.0], [0.0, 9.0]])
    for penalty in (0.0, 1e-6, 0.1):
        assert convex_clustering(points, penalty).labels.tolist() == [0, 1, 0, 1, 2]
    assert set(convex_clustering(np.ones((4, 2)), 0.3).labels) == {0}


# Oracles


@pytest.mark.parametrize("seed", range(12))
def test_centers_and_partition_equal_cvxpy(seed, cvxpy_centers, same_partition):
    points, penalty = random_problem(seed)
    expected = cvxpy_centers(points, penalty)
    found = convex_clustering(points, penalty)
    np.testing.assert_allclose(found.centers, expected, atol=1e-4)
    cut = 1e-4 * penalty_range(points)[1] * len(points)
    assert same_partition(found.labels, fcluster(linkage(expected, "single"), cut, "distance"))


@pytest.mark.parametrize("seed", range(8))
def test_neighbour_weights_equal_cvxpy(seed, cvxpy_centers, same_partition):
    points, penalty = random_problem(seed)
    weights = nearest_neighbor_weights(points, 4)
    expected = cvxpy_centers(points, 4 * penalty, weights.toarray())
    found = convex_clustering(points, 4 * penalty, weights)
    np.testing.assert_allclose(found.centers, expected, atol=1e-4)
    assert found.gap <= 1e-7
    cut = 1e-4 * penalty_range(points)[1] * len(points)
    assert same_partition(found.labels, fcluster(linkage(expected, "single"), cut, "distance"))


def test_unit_weights_on_all_pairs_equal_uniform_weights(same_partition):
    points, penalty = random_problem(3)
    uniform = convex_clustering(points, penalty)
    weighted = convex_clustering(points, penalty, 1.0 - np.eye(len(points)))
    np.testing.assert_allclose(weighted.centers, uniform.centers, atol=1e-5)
    assert same_partition(weighted.labels, uniform.labels)


# Certificates


def hard_problem(seed, m=60):
    rng = np.random.default_rng([23, seed])
    d = int(rng.choice([1, 2, 5, 20]))
    centers = 2.0 * rng.normal(size=(rng.integers(1, 8), d))
    points = centers[rng.integers(len(centers), size=m)] + 0.5 * rng.normal(size=(m, d))
    if seed % 4 == 3:
        points = rng.standard_t(2, size=(m, d))
    if seed % 5 == 4:
        points = np.round(points, 1)
    return points, float(penalty_range(points)[1] * rng.uniform(0.05, 1.0))


def test_every_solve_has_a_small_gap_and_certified_groups():
    for seed in range(60):
        found = convex_clustering(*hard_problem(seed))
        assert found.gap <= 1e-7
        assert found.certified


def test_the_gap_bounds_the_distance_to_a_better_solution():
    # Any other point of the space must have an objective above the dual bound.
    points, penalty = hard_problem(1)
    found = convex_clustering(points, penalty)
    reached = objective(points, found.centers, penalty)
    bound = reached * (1.0 - found.gap)
    rng = np.random.default_rng(0)
    for scale in (1e-6, 1e-3, 1e-1):
        other = found.centers + scale * rng.normal(size=points.shape)
        assert objective(points, other, penalty) >= bound


def test_labels_say_exactly_which_centers_are_equal(same_partition):
    for seed in range(10):
        found = convex_clustering(*hard_problem(seed))
        distinct = np.unique(found.centers, axis=0, return_inverse=True)[1].ravel()
        assert same_partition(found.labels, distinct)


def test_a_set_is_not_proved_fused_below_its_fusion_and_is_above_it():
    # Equilateral triangle of side 1: all fuse at once, at the diameter test's bound 1 / 3.
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
    groups = Groups.of_points(points)
    everyone = np.arange(3)
    assert not prove_fused(groups, everyone, 0.33, points, 0.01)
    assert len(merge_small_diameters(groups, 0.33)) == 3
    assert len(merge_small_diameters(groups, 0.34)) == 1


def test_a_certificate_finds_fusions_that_the_diameter_misses():
    # A unit square fuses at 1 / (2 + sqrt 2) = 0.2929: a corner, sqrt(1/2) from the middle, is
    # pulled by 1 along its diagonal and by sqrt(1/2) by each neighbour.
    # The diameter test needs 0.3536.
    square = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]) - 0.5
    groups, corners = Groups.of_points(square), np.arange(4)
    assert len(merge_small_diameters(groups, 0.2930)) == 4
    assert not prove_fused(groups, corners, 0.2928, 0.01 * square, 0.05)
    assert [p.tolist() for p in prove_fused(groups, corners, 0.2930, 0.01 * square, 0.05)] == [
        [0, 1, 2, 3]
    ]
    assert convex_clustering(square, 0.2928).labels.tolist() == [0, 1, 2, 3]
    assert convex_clustering(square, 0.2930).labels.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("seed", "m", "d", "fusion"), [(0, 11, 4, 0.231368244), (2, 6, 3, 0.357233856)]
)
def test_penalties_next_to_a_fusion_are_certified(seed, m, d, fusion):
    """The penalty of the last fusion was found by bisection of convex_clustering's own answers."""
    rng = np.random.default_rng([7, seed])
    rng.integers(5, 12), rng.integers(2, 6)
    points = rng.normal(size=(m, d))
    for share in (1e-2, 1e-3, 1e-4, 1e-5):
        below = convex_clustering(points, fusion * (1.0 - share))
        above = convex_clustering(points, fusion * (1.0 + share))
        assert below.certified and below.labels.max() > 0
        assert above.certified and above.labels.max() == 0


def test_two_points_just_short_of_their_fusion_are_proved_apart():
    # A pair 2e-9 from its fusion, far from two others: no solve tells its centers apart.
    points = np.array([[0.0, 0.0], [1.0, 0.0], [50.0, 0.0], [0.0, 60.0]])
    found = convex_clustering(points, 0.5 * (1.0 - 1e-9))
    assert found.certified and found.labels.tolist() == [0, 1, 2, 3]
    assert convex_clustering(points, 0.5 * (1.0 + 1e-9)).labels.tolist() == [0, 0, 1, 2]


def test_many_points_take_the_anchored_tree_and_the_blocked_sums(monkeypatch, blobs):
    points, labels = blobs(0, sizes=(40, 50, 60), d=4)
    penalty = 1.01 * recovery_interval(points, labels).lower
    small = 0.02 * penalty
    expected, apart = convex_clustering(points, penalty), convex_clustering(points, small)
    monkeypatch.setattr("fedkin.clustering.contraction.LINKAGE_POINTS", 30)
    monkeypatch.setattr("fedkin.clustering.contraction.ANCHORS", 20)
    monkeypatch.setattr("fedkin.clustering.pairs.KEPT_POINTS", 10)
    monkeypatch.setattr("fedkin.clustering.pairs.PAIRS_PER_BLOCK", 1000)
    again, blocked = convex_clustering(points, penalty), convex_clustering(points, small)
    np.testing.assert_array_equal(again.labels, expected.labels)
    np.testing.assert_allclose(blocked.centers, apart.centers, atol=1e-6)
    np.testing.assert_array_equal(blocked.labels, apart.labels)


# Recovery


def test_every_penalty_inside_the_interval_recovers_the_clusters(same_partition):
    tried = 0
    for seed in range(40):
        rng = np.random.default_rng([31, seed])
        sizes = rng.integers(2, 10, size=rng.integers(2, 6))
        labels = np.repeat(np.arange(sizes.size), sizes)
        d = rng.integers(1, 6)
        points = 20.0 * rng.normal(size=(sizes.size, d))[labels]
        points += 0.1 * rng.normal(size=points.shape)
        lower, upper = recovery_interval(points, labels)
        for share in (0.0, 0.5, 0.999):
            if lower < upper:
                penalty = lower + share * (upper - lower)
                assert same_partition(convex_clustering(points, penalty).labels, labels)
                tried += 1
    assert tried > 60


# Equivariance


def test_order_translation_and_scale_are_irrelevant(same_partition):
    points, penalty = hard_problem(2)
    found = convex_clustering(points, penalty)
    order = np.random.default_rng(1).permutation(len(points))
    permuted = convex_clustering(points[order], penalty)
    np.testing.assert_allclose(permuted.centers, found.centers[order], atol=1e-5)
    assert same_partition(permuted.labels, found.labels[order])
    moved = convex_clustering(points + 1e3, penalty)
    np.testing.assert_allclose(moved.centers, found.centers + 1e3, atol=1e-5)
    scaled = convex_clustering(1e-4 * points, 1e-4 * penalty)
    np.testing.assert_allclose(scaled.centers, 1e-4 * found.centers, atol=1e-9)
    assert same_partition(moved.labels, found.labels)
    assert same_partition(scaled.labels, found.labels)


@pytest.mark.parametrize("scale", [1e-150, 1e150])
@pytest.mark.parametrize("weighted", [False, True])
def test_points_of_any_size_are_clustered_as_they_are_at_size_one(scale, weighted):
    points, penalty = random_problem(3)
    weights = nearest_neighbor_weights(points, 4) if weighted else None
    found = convex_clustering(points, penalty, weights)
    scaled = convex_clustering(scale * points, scale * penalty, weights)
    np.testing.assert_array_equal(scaled.labels, found.labels)
    np.testing.assert_allclose(scaled.centers / scale, found.centers, atol=1e-9)
    assert scaled.certified


def test_points_that_lie_on_their_only_neighbours_stay_where_they_are():
    points = np.repeat(np.random.default_rng(0).normal(size=(5, 3)), 6, axis=0)
    found = convex_clustering(points, 0.01, nearest_neighbor_weights(points, 3))
    assert found.certified and found.gap <= 1e-7
    assert found.labels.tolist() == np.repeat(np.arange(5), 6).tolist()
    np.testing.assert_allclose(found.centers, points, atol=1e-12)


def test_a_penalty_beyond_all_pulls_joins_what_edges_connect():
    points = np.array([[0.0], [1.0], [2.0], [10.0], [13.0]])
    weights = np.zeros((5, 5))
    for i, j in ((0, 1), (1, 2), (3, 4)):
        weights[i, j] = weights[j, i] = 1.0
    found = convex_clustering(points, 1e9, weights)
    assert found.labels.tolist() == [0, 0, 0, 1, 1] and found.n_iter == 0
    np.testing.assert_allclose(found.centers[:, 0], [1, 1, 1, 11.5, 11.5])
    # The chain fuses at 1 (each end pulls with its distance from the mean), the pair at 1.5.
    assert convex_clustering(points, 1.01, weights).labels.tolist() == [0, 0, 0, 1, 2]
    assert convex_clustering(points, 0.99, weights).labels.max() == 4


def test_centers_keep_the_mean_of_the_points():
    points, penalty = hard_problem(6)
    found = convex_clustering(points, penalty)
    np.testing.assert_allclose(found.centers.mean(axis=0), points.mean(axis=0), atol=1e-9)


# Arguments


@pytest.mark.parametrize("penalty", [-1.0, np.nan])
def test_a_bad_penalty_is_refused(penalty):
    with pytest.raises(ValueError, match="penalty must be a number >= 0"):
        convex_clustering([[0.0], [1.0]], penalty)


def test_missing_values_are_refused_with_their_row():
    with pytest.raises(ValueError, match=r"1 of 2 rows \(first: row 1\)"):
        convex_clustering([[0.0], [np.nan]], 1.0)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((3, 3)), "shape"),
        (np.array([[0.0, 1.0], [2.0, 0.0]]), "symmetric"),
        (np.array([[0.0, -1.0], [-1.0, 0.0]]), "not negative"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        convex_clustering([[0.0], [1.0]], 1.0, weights)


def test_neighbour_weights_are_symmetric_and_sparse():
    points = np.random.default_rng(0).normal(size=(50, 2))
    weights = nearest_neighbor_weights(points, 3)
    assert abs(weights - weights.T).max() == 0
    per_point = np.diff(weights.indptr)
    assert per_point.min() >= 3 and per_point.sum() <= 2 * 50 * 3
    assert weights.diagonal().sum() == 0
