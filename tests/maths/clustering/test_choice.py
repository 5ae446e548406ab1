import numpy as np
import pytest
from scipy.stats import chi2

from fedkin.clustering import choose_n_clusters, silhouette
from fedkin.clustering.scatter import explained_scatter

METHODS = ["auto", "gap", "silhouette", "elbow", "path"]


@pytest.mark.parametrize("method", METHODS)
def test_clear_clusters_are_counted(method, blobs, same_partition):
    points, labels = blobs(0, sizes=(10, 10, 10, 10))
    chosen = choose_n_clusters(points, method, max_clusters=6)
    assert chosen.n_clusters == 4
    assert same_partition(chosen.labels, labels)
    assert chosen.curve.shape == chosen.candidates.shape
    assert chosen.curve.size > 0


@pytest.mark.parametrize("law", ["normal", "uniform"])
def test_the_default_answers_one_on_homogeneous_points(law):
    answers = []
    for seed in range(10):
        draw = getattr(np.random.default_rng([5, seed]), law)
        answers.append(choose_n_clusters(draw(size=(40, 5)), max_clusters=6).n_clusters)
    assert answers.count(1) >= 9


@pytest.mark.parametrize("apart", [0.0, 6.0])
def test_two_clusters_in_many_dimensions_show_along_one_axis(apart):
    """Their distance is a third of what the other 399 axes add to every point's own."""
    for seed in range(3):
        points = np.random.default_rng([7, seed]).normal(size=(60, 400))
        points[::2, 0] += apart
        chosen = choose_n_clusters(points, max_clusters=4)
        assert chosen.method == "gap"
        assert chosen.n_clusters == (2 if apart else 1)


def noisy_estimates(seed, n_clusters, m=40, d=4):
    """Points that estimate cluster centres with known, unequal, correlated errors."""
    rng = np.random.default_rng([6, seed])
    labels = np.arange(m) % n_clusters
    factors = rng.normal(size=(m, d, d)) + 2.0 * np.eye(d)
    covariances = np.einsum("ijk,ilk->ijl", factors, factors)
    errors = np.einsum("ijk,ik->ij", factors, rng.normal(size=(m, d)))
    return 40.0 * rng.normal(size=(n_clusters, d))[labels] + errors, covariances


@pytest.mark.parametrize("n_clusters", [1, 3])
def test_the_chi_square_rule_counts_clusters_from_covariances(n_clusters):
    right = 0
    for seed in range(10):
        points, covariances = noisy_estimates(seed, n_clusters)
        chosen = choose_n_clusters(points, max_clusters=6, covariances=covariances)
        assert chosen.method == "chi2"
        right += chosen.n_clusters == n_clusters
    assert right >= 9


def test_estimated_covariances_need_their_degrees_of_freedom():
    # Regressions of 30 rows on 10 columns, all with the same coefficients.
    rng = np.random.default_rng(0)
    points, covariances = [], []
    for _ in range(60):
        x, noise = rng.normal(size=(30, 10)), rng.normal(size=30)
        estimate = np.linalg.lstsq(x, noise, rcond=None)[0]
        variance = ((noise - x @ estimate) ** 2).sum() / 20
        points.append(estimate)
        covariances.append(variance * np.linalg.inv(x.T @ x))
    told = choose_n_clusters(points, covariances=covariances, degrees_of_freedom=20)
    taken_as_known = choose_n_clusters(points, "chi2", covariances=covariances)
    assert told.method == "chi2" and told.n_clusters == 1
    assert taken_as_known.curve[0] > told.curve[0]


def test_scatter_by_hand_and_diagonals_equal_full_matrices():
    # Points 0 and 2 with variance 1: centre 1, scatter 2, one degree of freedom.
    points, labels = np.array([[0.0], [2.0]]), np.array([0, 0])
    ratio = explained_scatter(points, labels, np.ones((2, 1)), None, 0.9)
    assert ratio == pytest.approx(2.0 / chi2.ppf(0.9, 1))
    full = explained_scatter(points, labels, np.ones((2, 1, 1)), None, 0.9)
    assert full == pytest.approx(ratio)
    assert explained_scatter(points, np.array([0, 1]), np.ones((2, 1)), None, 0.9) == 0.0


def test_very_many_degrees_of_freedom_are_known_covariances():
    points, covariances = noisy_estimates(0, 1)
    labels = np.zeros(len(points), dtype=np.intp)
    known = explained_scatter(points, labels, covariances, None, 0.999)
    nearly = explained_scatter(points, labels, covariances, 1e9, 0.999)
    assert nearly == pytest.approx(known, rel=1e-6)


def test_withheld_or_singular_covariances_fall_back_to_the_gap_test(blobs):
    points, _ = blobs(0, sizes=(10, 10))
    m, d = points.shape
    withheld = np.full((m, d), 0.01)
    withheld[3] = np.nan
    for covariances in (None, withheld, np.zeros((m, d, d))):
        chosen = choose_n_clusters(points, max_clusters=4, covariances=covariances)
        assert chosen.method == "gap" and chosen.n_clusters == 2
    few = choose_n_clusters(
        points, max_clusters=4, covariances=np.full((m, d), 0.01), degrees_of_freedom=2
    )
    assert few.method == "gap"
    with pytest.raises(ValueError, match="positive definite"):
        choose_n_clusters(points, "chi2", covariances=withheld)


def test_the_same_seed_gives_the_same_answer(blobs):
    points, _ = blobs(3, noise=3.0)
    first, second = choose_n_clusters(points), choose_n_clusters(points)
    np.testing.assert_array_equal(first.curve, second.curve)
    assert first.score == second.score


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("points", [[[1.0]], [[0.0], [1.0]], np.ones((5, 2))])
def test_too_few_distinct_points_are_one_cluster_or_two(method, points):
    chosen = choose_n_clusters(points, method)
    assert 1 <= chosen.n_clusters <= len(np.unique(points, axis=0))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="method must be one of"):
        choose_n_clusters([[0.0], [1.0]], "bic")
    with pytest.raises(ValueError, match="max_clusters must be at least 1"):
        choose_n_clusters([[0.0], [1.0]], max_clusters=0)
    with pytest.raises(ValueError, match="covariances must have shape"):
        choose_n_clusters([[0.0], [1.0]], covariances=np.ones((3, 1)))
    with pytest.raises(ValueError, match="missing or infinite"):
        choose_n_clusters([[0.0], [np.inf]])


def test_silhouette_equals_scikit_learn_and_is_nan_without_two_clusters(blobs):
    metrics = pytest.importorskip("sklearn.metrics")
    points, labels = blobs(0)
    assert silhouette(points, labels) == pytest.approx(metrics.silhouette_score(points, labels))
    assert np.isnan(silhouette(points, np.zeros(len(points), dtype=np.intp)))


@pytest.mark.parametrize("method", METHODS)
def test_no_method_chooses_more_than_the_largest_number(method):
    rng = np.random.default_rng(0)
    corners = np.array([[0.0, 0.0], [3.0, 0.0], [10.0, 0.0], [13.0, 0.0]])
    points = np.repeat(corners, 8, axis=0) + 0.05 * rng.normal(size=(32, 2))
    assert choose_n_clusters(points, method, 2).n_clusters == 2


@pytest.mark.parametrize("n_points", [60, 150])
def test_evenly_spaced_points_are_one_cluster(n_points):
    """They fall into halves better than normal points do, yet no better than uniform ones."""
    points = np.linspace(0.0, 1.0, n_points)[:, None]
    chosen = choose_n_clusters(points, "gap", max_clusters=4)
    assert chosen.n_clusters == 1 and chosen.score < 1.0
