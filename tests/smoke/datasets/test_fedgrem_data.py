"""Generators and attacks of the FedGrEM experiments."""

import numpy as np
import pytest

from fedkin import datasets
from fedkin.datasets import fedgrem
from fedkin.federation import Federation


def rows_of(clients, k):
    return slice(clients.offsets[k], clients.offsets[k + 1])


# -------------------------------------------------------------------- generators


def test_centres_are_the_papers_and_lie_apart_as_it_says():
    apart = np.linalg.norm(fedgrem.CENTERS[:, None] - fedgrem.CENTERS, axis=-1)
    least = apart[np.triu_indices(5, 1)].min()
    assert least == pytest.approx(fedgrem.SEPARATION)
    assert 2 / least == pytest.approx(0.3592, abs=5e-5)


@pytest.mark.parametrize("h", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("make", [fedgrem.make_gaussian_mixtures, fedgrem.make_regression_mixtures])
def test_components_lie_at_the_given_distance_from_their_centres(make, h):
    made = make(heterogeneity=h, random_state=3)
    good = ~made.outlier
    away = np.linalg.norm(made.components[good] - made.centers, axis=-1)
    np.testing.assert_allclose(away, h, atol=1e-12)
    assert np.isnan(made.components[made.outlier]).all()
    assert np.isnan(made.weights[made.outlier]).all()
    np.testing.assert_allclose(made.weights[good].sum(axis=1), 1.0)
    assert made.clients.n_clients == 10 and made.outlier.sum() == 1 and made.outlier[9]
    assert (made.labels[made.outlier[made.clients.owner]] == -1).all()


@pytest.mark.parametrize(
    ("variant", "mean", "variance"), [("text", 2.0, 3.0), ("script", 2.5, 4.0)]
)
def test_gaussian_rows_follow_their_component_or_the_outlier(variant, mean, variance):
    made = fedgrem.make_gaussian_mixtures(4, 20_000, 0.5, 1, variant, random_state=1)
    for k in range(3):
        X, label = made.clients.client(k)[0], made.labels[rows_of(made.clients, k)]
        share = np.bincount(label, minlength=5) / len(label)
        np.testing.assert_allclose(share, made.weights[k], atol=4 * np.sqrt(0.25 / 20_000))
        noise = X - made.components[k, label]
        assert np.abs(noise.mean(axis=0)).max() < 4 / np.sqrt(20_000)
        np.testing.assert_allclose(np.cov(noise.T), np.eye(10), atol=0.05)
    outlier = made.clients.client(3)[0]
    np.testing.assert_allclose(outlier.mean(axis=0), mean, atol=4 * np.sqrt(variance / 20_000))
    np.testing.assert_allclose(np.cov(outlier.T), variance * np.eye(10), atol=0.05 * variance)


@pytest.mark.parametrize(("variant", "coef", "n"), [("text", 3.0, 150), ("script", -3.0, 200)])
def test_regression_targets_follow_their_component_or_the_outlier(variant, coef, n):
    assert (fedgrem.make_regression_mixtures(variant=variant).clients.sizes == n).all()
    made = fedgrem.make_regression_mixtures(3, 5_000, 1.0, 1, variant, random_state=1)
    for k in range(3):
        X, y = made.clients.client(k)
        label = made.labels[rows_of(made.clients, k)]
        own = np.full(X.shape, coef) if k == 2 else made.components[k, label]
        noise = y - (X * own).sum(axis=1)
        assert noise.std() == pytest.approx(1.0, abs=0.04)
        assert abs(noise.mean()) < 4 / np.sqrt(5_000)


def test_other_sizes_are_ragged_and_as_separated():
    made = fedgrem.make_gaussian_mixtures(3, [5, 0, 12], 0.3, 0, n_components=7, n_features=4)
    np.testing.assert_array_equal(made.clients.sizes, [5, 0, 12])
    assert made.components.shape == (3, 7, 4) and not made.outlier.any()
    apart = np.linalg.norm(made.centers[:, None] - made.centers, axis=-1)
    assert apart[np.triu_indices(7, 1)].min() == pytest.approx(fedgrem.SEPARATION)


def test_outliers_can_stand_first_and_cannot_outnumber_sites():
    made = fedgrem.make_gaussian_mixtures(n_outliers=2, outliers_first=True)
    np.testing.assert_array_equal(np.flatnonzero(made.outlier), [0, 1])
    assert made.clients.client(0)[0].mean() == pytest.approx(2.0, abs=0.3)
    with pytest.raises(ValueError, match="n_outliers"):
        fedgrem.make_gaussian_mixtures(n_clients=3, n_outliers=4)


def test_same_seed_same_data_and_other_seed_other_data():
    one, same = (fedgrem.make_gaussian_mixtures(random_state=7) for _ in range(2))
    np.testing.assert_array_equal(one.clients.X, same.clients.X)
    assert not np.allclose(one.clients.X, fedgrem.make_gaussian_mixtures(random_state=8).clients.X)


def test_more_than_ten_sites_keep_truth_and_rows_together():
    made = fedgrem.make_gaussian_mixtures(12, 30, 0.0, 0)
    noise = made.clients.X - made.components[made.clients.owner, made.labels]
    assert (noise**2).sum(axis=1).mean() == pytest.approx(10, abs=1.0)


# -------------------------------------------------------------------- attacks on data


@pytest.fixture
def clean():
    return fedgrem.make_gaussian_mixtures(10, 40, 0.5, 0).clients


BAD = np.array([2, 7, 8])
SPOILERS = {
    **fedgrem.DATA_ATTACKS,
    "permuted": fedgrem.permuted_features,
    "shuffled": fedgrem.shuffled_values,
}


def test_attacks_are_at_hand_where_the_generators_are():
    used = [*fedgrem.DATA_ATTACKS.values(), *fedgrem.MESSAGE_ATTACKS.values()]
    names = {getattr(attack, "func", attack).__name__ for attack in used}
    names |= {"permuted_features", "shuffled_values", "contaminated_rows"}
    for name in [*names, "DATA_ATTACKS", "MESSAGE_ATTACKS"]:
        assert name in datasets.__all__
        assert getattr(datasets, name) is getattr(fedgrem, name)


@pytest.mark.parametrize("name", SPOILERS)
def test_attacks_on_data_touch_bad_sites_only_and_leave_the_original(name, clean):
    before = clean.X.copy()
    spoilt = SPOILERS[name](clean, BAD, 0)
    bad = np.isin(clean.owner, BAD)
    np.testing.assert_array_equal(clean.X, before)
    np.testing.assert_array_equal(spoilt.X[~bad], clean.X[~bad])
    assert (spoilt.X[bad] != clean.X[bad]).any(axis=1).mean() > 0.9
    assert spoilt.names == clean.names and (spoilt.sizes == clean.sizes).all()


@pytest.mark.parametrize("name", SPOILERS)
def test_a_bad_site_is_spoilt_alike_whoever_else_is_there(name, clean):
    spoilt = SPOILERS[name](clean, BAD, 5)
    alone = SPOILERS[name](clean.take(np.array([7])), [0], 5)
    np.testing.assert_array_equal(alone.X, spoilt.client(7)[0])


def test_colluding_sites_shift_by_one_vector_of_the_given_length(clean):
    for name, length in (("collude, data shifted by 2", 2), ("collude, data shifted by 1", 1)):
        moved = fedgrem.DATA_ATTACKS[name](clean, BAD, 0).X - clean.X
        moved = moved[np.isin(clean.owner, BAD)]
        np.testing.assert_allclose(np.linalg.norm(moved, axis=1), length)
        np.testing.assert_allclose(moved, np.broadcast_to(moved[0], moved.shape), atol=1e-12)


def test_far_point_huge_and_outlier_data_look_as_they_should(clean):
    bad = np.isin(clean.owner, BAD)
    far = fedgrem.far_point_data(clean, BAD).X[bad]
    assert (far == far[0]).all() and np.linalg.norm(far[0]) == pytest.approx(20)
    each = fedgrem.far_point_data(clean, BAD, one_each=True)
    points = np.array([each.X[clean.owner == k][0] for k in BAD])
    assert all((each.X[clean.owner == k] == point).all() for k, point in zip(BAD, points))
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 20)
    assert len(np.unique(points, axis=0)) == len(BAD)
    assert fedgrem.huge_data(clean, BAD).X[bad].std() == pytest.approx(1e6, rel=0.1)
    outlier = fedgrem.outlier_data(clean, BAD, variant="script").X[bad]
    assert outlier.mean() == pytest.approx(2.5, abs=0.25)
    assert outlier.var() == pytest.approx(4.0, rel=0.15)


def test_attacks_on_regressions_reach_the_target():
    made = fedgrem.make_regression_mixtures(4, 500, n_outliers=0).clients
    spoilt = fedgrem.outlier_data(made, [1])
    X, y = spoilt.client(1)
    np.testing.assert_array_equal(spoilt.X, made.X)
    assert (y - 3.0 * X.sum(axis=1)).std() == pytest.approx(1.0, abs=0.15)
    np.testing.assert_array_equal(spoilt.client(0)[1], made.client(0)[1])
    assert np.abs(fedgrem.huge_data(made, [1]).client(1)[1]).max() > 1e6


def test_permuted_features_reorder_columns_and_nothing_else(clean):
    spoilt = fedgrem.permuted_features(clean, BAD)
    orders = []
    for k in BAD:
        X, own = spoilt.client(k)[0], clean.client(k)[0]
        order = [int(np.flatnonzero((own == X[:, [j]]).all(axis=0))[0]) for j in range(10)]
        assert sorted(order) == list(range(10))
        orders.append(tuple(order))
    assert len(set(orders)) == 3, "every bad site has an order of its own"


def test_shuffled_values_keep_marginals_within_the_site(clean):
    spoilt = fedgrem.shuffled_values(clean, BAD)
    for k in BAD:
        X, own = spoilt.client(k)[0], clean.client(k)[0]
        np.testing.assert_array_equal(np.sort(X, axis=0), np.sort(own, axis=0))
        assert not (own == X).all(axis=1).any()


def test_contaminated_rows_move_about_the_given_share(clean):
    spoilt = fedgrem.contaminated_rows(clean, 0.1)
    moved = (spoilt.X != clean.X).any(axis=1)
    assert moved.mean() == pytest.approx(0.1, abs=4 * np.sqrt(0.09 / len(moved)))
    np.testing.assert_allclose(np.linalg.norm(spoilt.X[moved], axis=1), 20)
    assert not (fedgrem.contaminated_rows(clean, 0.0).X != clean.X).any()


# -------------------------------------------------------------------- attacks on messages


@pytest.mark.parametrize("name", fedgrem.MESSAGE_ATTACKS)
def test_attacks_on_messages_touch_bad_sites_only_and_leave_the_original(name):
    replies = np.random.default_rng(0).normal(size=(10, 5, 3))
    before = replies.copy()
    altered = fedgrem.MESSAGE_ATTACKS[name](replies, BAD, 0)
    good = np.setdiff1d(np.arange(10), BAD)
    np.testing.assert_array_equal(replies, before)
    np.testing.assert_array_equal(altered[good], replies[good])
    assert (altered[BAD] != replies[BAD]).all()


def test_messages_are_shifted_raised_or_made_nan():
    replies = np.zeros((4, 2, 3))
    shifted = fedgrem.shifted_messages(replies, [0, 3])
    np.testing.assert_allclose(np.linalg.norm(shifted[[0, 3]], axis=-1), 3.0)
    np.testing.assert_array_equal(shifted[0], shifted[3])
    assert (fedgrem.huge_messages(replies, [1])[1] == 1e6).all()
    assert np.isnan(fedgrem.missing_messages(replies, [2])[2]).all()


def test_an_empty_bad_site_is_left_alone():
    clients = Federation.from_clients([np.empty((0, 2)), np.ones((3, 2))])
    for spoil in SPOILERS.values():
        assert spoil(clients, [0], 0).sizes.tolist() == [0, 3]
