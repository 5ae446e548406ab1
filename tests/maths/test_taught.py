"""Classes told by labelled rows alone, beside all rows: which has how much say."""

import numpy as np
import pytest
from scipy.special import softmax
from tests.maths.test_sureness import by_all_rows, known, loss, people

from fedkin import Federation, FedGrEM
from fedkin.algorithms.mixtures import sureness
from fedkin.algorithms.mixtures.fedgrem import FEDGREM
from fedkin.algorithms.mixtures.foretold import SHARES, blended, surprise
from fedkin.algorithms.mixtures.result import MOSTLY
from fedkin.algorithms.mixtures.sureness import expected_share, likeliest_way, together
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import shaped_mixture as shaped
from fedkin.models.shaped_mixture import TEMPERATURES
from fedkin.protocol import MISFIT

N_CLASSES, D = 3, 3


def misled(seed, m=12, n=60):
    """Rows lie close together or wide apart, whatever their class: groups are of the one kind."""
    rng = np.random.default_rng(seed)
    site = np.repeat(np.arange(m), n)
    far, y = rng.integers(0, 2, (2, m * n))
    move = 0.2 * rng.normal(size=(m, D))[site]
    X = rng.normal(size=(m * n, D)) * np.where(far, 10.0, 1.0)[:, None]
    X[:, 0] = rng.normal(size=m * n) + 1.2 * y
    return X + move, y, site


def fitted(rows, share, n_classes=N_CLASSES, **options):
    X, y, site = rows
    model = FedGrEM(n_classes, random_state=0, **{"covariance_type": "full", **options})
    return model.fit(X, np.where(known(len(y), share), y, -1), groups=site)


# --- what a site tells ---------------------------------------------------------------------------


def test_probabilities_of_two_ways_are_blended_for_every_label():
    rng = np.random.default_rng(0)
    joints, owner = 3.0 * rng.normal(size=(2, 20, 4)), np.sort(rng.integers(0, 3, 20))
    labels = rng.integers(-1, 4, 20).astype(float)
    found = shaped.foretold_together(joints, SHARES, labels, owner, 4)
    for k, (place, share) in ((k, s) for k in range(4) for s in enumerate(SHARES)):
        wanted = 0.0
        for i in np.flatnonzero((owner == k) & (labels >= 0)):
            one, other = (softmax(joint[i])[int(labels[i])] for joint in joints)
            wanted += np.log((1 - share) * one + share * other)
        assert found[k, place] == pytest.approx(wanted, abs=1e-12)


def two_ways(m=3, n=30, seed=1):
    """A federation with some labels, and two ways of foretelling them."""
    X, y, site = people(m=m, n=n, seed=seed)
    y = np.where(known(len(y), 0.6), y, -1).astype(float)
    clients, rng = Federation.from_groups(X, site, y=y), np.random.default_rng(seed)
    centers = np.stack([X[y == r].mean(axis=0) for r in range(N_CLASSES)])
    several = (m, 2, N_CLASSES)
    without = {
        "centers": centers + 0.3 * rng.normal(size=(1, 2, N_CLASSES, D)) * np.ones((m, 1, 1, 1)),
        "between": np.tile(0.1 * np.eye(D), (*several, 1, 1)),
        "covariances": np.tile(np.eye(D), (*several, 1, 1)),
        "degrees": np.full(several, 50.0),
        "concentration": np.ones(several),
        "n_estimates": np.full((m, 2), 9.0),
        "known": np.full(several, 90.0),
        "shift": np.zeros((m, 2, D, D)),
        "alike": np.zeros((m, 2)),
        "part": np.arange(m) % 2.0,
        "own_weights": np.zeros(m),
    }
    settings = FEDGREM.settings(n_components=N_CLASSES, covariance_type="full", labels=True)
    return clients, gaussian.prepare(clients, True), settings, without


def test_all_of_one_way_and_none_are_what_each_foretells_alone():
    clients, data, settings, without = two_ways()
    at = np.array([[2, 0], [1, 4]])
    alone = surprise(clients, data, settings, {}, without, None, None)[0]["foretold"]
    both = without | {"temperatures": np.tile(TEMPERATURES[at], (3, 1, 1))}
    found = blended(clients, data, settings, {}, both, None, None)[0]["blended"]
    for b in range(2):
        for way, place in ((0, 0), (1, -1)):
            np.testing.assert_allclose(found[:, b, place], alone[:, b, way, at[b, way]])
    # Logarithms of blends lie above the line between.
    line = found[..., :1] + SHARES * (found[..., -1:] - found[..., :1])
    assert (found[..., 1:-1] > line[..., 1:-1]).all()


@pytest.mark.parametrize("sharp", [0, 1])
def test_what_is_blended_is_as_sharp_as_the_sharper_of_two(sharp):
    clients, data, settings, without = two_ways(n=90)
    for name in ("between", "covariances"):
        without[name][:, sharp] *= 1e-3
    each = surprise(clients, data, settings, {}, without, None, None)[0].behind()[MISFIT]
    assert (each[:, 1, sharp] > 5.0 * each[:, 1, 1 - sharp]).all()
    both = without | {"temperatures": np.ones((3, 2, 2))}
    found = blended(clients, data, settings, {}, both, None, None)[0].behind()[MISFIT]
    np.testing.assert_array_equal(found, each.max(axis=2))


# --- what the server makes of it -----------------------------------------------------------------


def test_the_share_is_the_one_expected_by_labels():
    assert expected_share(np.zeros(len(SHARES))) == 0.0
    assert expected_share(np.full(len(SHARES), -3.0)) == pytest.approx(0.5)
    assert expected_share(-1e3 * np.square(SHARES - 0.75)) == pytest.approx(0.75)
    assert 0.5 < expected_share(0.5 * SHARES) < 0.6


def test_the_way_that_foretells_labels_best_is_taken_by_sites_that_told_of_all():
    rng = np.random.default_rng(0)
    told = -20.0 - rng.random((8, 3, len(TEMPERATURES)))
    told[:, 1, 4] += 5.0
    labels = np.full(8, 12.0)
    assert likeliest_way(told, labels) == 1
    told[:4, 2] = 0.0
    assert likeliest_way(told, labels) == 1
    assert likeliest_way(np.zeros_like(told), labels) == 0


def test_one_site_that_lies_hardly_moves_the_share():
    each = -4.0 * np.square(SHARES - 0.25) * np.ones((15, 1))
    labels = np.full(15, 10.0)
    honest = expected_share(together(each, labels))
    for lie in (1e6, -1e6, 1e15, 1.0):
        for much in (1e6, 10.0):
            told = together(np.vstack([each, lie * SHARES]), np.append(labels, much))
            # By a step of the shares at most.
            assert abs(expected_share(told) - honest) < 0.25


def test_of_two_sites_one_that_lies_has_no_more_than_three_times_its_say():
    each = np.array([-0.4, -1.0])[:, None] * np.square(SHARES - 0.25)
    told = together(np.vstack([each[:1], 1e9 * SHARES]), np.full(2, 10.0))
    least = each[0].min() - each[0].max()
    assert told.min() >= 4.0 * least - 1e-12


def test_sites_that_may_not_tell_do_not_silence_those_that_do():
    each = -4.0 * np.square(SHARES - 0.25) * np.ones((3, 1))
    silent = np.zeros((9, len(SHARES)))
    labels = np.full(12, 10.0)
    np.testing.assert_allclose(
        together(np.vstack([silent, each]), labels), together(each, labels[:3])
    )


# --- fits ----------------------------------------------------------------------------------------


def test_what_labelled_rows_have_in_common_is_a_fit_of_these_alone(monkeypatch):
    monkeypatch.setattr(sureness, "ROUNDS", 200)
    X, y, site = people(n=60)
    model, some = fitted((X, y, site), 0.4, covariance_type="tied", tol=1e-8), known(len(y), 0.4)
    alone = FedGrEM(N_CLASSES, covariance_type="tied", random_state=0, tol=1e-8)
    alone.fit(X[some], y[some], groups=site[some])
    np.testing.assert_allclose(model._result.taught_centers, alone.centers_, atol=1e-4)
    np.testing.assert_allclose(
        model._result.taught_covariances[0], alone.group_covariance_[0], atol=1e-4
    )
    np.testing.assert_allclose(model._result.taught_means, alone.means_, atol=1e-3)


@pytest.mark.parametrize("sharp", [0.5, 1e-3, 0.0, -1.0])
def test_whoever_asks_may_not_sharpen_what_a_site_tells(sharp):
    clients, data, settings, without = two_ways()
    asked = (
        without | {"temperatures": np.full((3, 2, 2), temperature)} for temperature in (1.0, sharp)
    )
    plain, tried = (
        blended(clients, data, settings, {}, both, None, None)[0]["blended"] for both in asked
    )
    np.testing.assert_array_equal(plain, tried)


def test_probabilities_are_blended_by_the_share_of_labelled_rows():
    X, y, site = people(tails=2.5)
    model = fitted((X, y, site), 0.3)
    shares = model.labelled_share_, model.new_site_labelled_share_
    assert min(shares) > 0.0 and max(shares) < 1.0
    for groups, share in zip((site, site + 100), shares):
        found = model.predict_proba(X, groups=groups)
        each = []
        for one in (0.0, 1.0):
            model.labelled_share_ = model.new_site_labelled_share_ = one
            each.append(model.predict_proba(X, groups=groups))
        model.labelled_share_, model.new_site_labelled_share_ = shares
        np.testing.assert_allclose(found, (1 - share) * each[0] + share * each[1], atol=1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_where_groups_are_not_the_classes_labelled_rows_have_the_say(seed):
    model, (X, y, _) = fitted(misled(seed), 0.3, 2), misled(seed + 10)
    assert model.labelled_share_ > MOSTLY
    assert "not quite the classes" in str(model.summary())
    new = X, y, np.full(len(y), "elsewhere")
    ours = loss(model, *new)
    assert ours < loss(by_all_rows(model), *new) - 0.005


def test_where_groups_are_the_classes_few_labels_cost_nothing():
    """Rows without labels know the groups that a dozen labels cannot."""
    rows, new = people(n=60, seed=4), people(n=60, seed=4)
    model = fitted(rows, 0.03)
    ours = loss(model, *new)
    model.labelled_share_ = model.new_site_labelled_share_ = 1.0
    alone = loss(model, *new)
    all_rows = loss(by_all_rows(model), *new)
    assert all_rows < alone and ours < all_rows + 0.3 * (alone - all_rows)


def test_where_all_labels_are_known_or_a_class_has_none_there_is_one_way():
    X, y, site = people()
    assert fitted((X, y, site), 1.0)._result.taught_share is None
    model = FedGrEM(4, covariance_type="full", random_state=0)
    model.fit(X, np.where(known(len(y), 0.5), y, -1), groups=site)
    assert model._result.taught_share is None and model.labelled_share_ == 0.0


@pytest.mark.parametrize("options", [{}, {"covariance_type": "diag"}, {"share_weights": False}])
def test_new_sites_and_sites_without_labels_are_told_in_both_ways(options):
    X, y, site = people(n=60)
    labels = np.where((site < 4) | ~known(len(y), 0.5), -1, y)
    options = {"covariance_type": "full", **options}
    model = FedGrEM(N_CLASSES, random_state=0, **options).fit(X, labels, groups=site)
    model.labelled_share_ = model.new_site_labelled_share_ = 1.0
    old = site < 4
    assert np.mean(model.predict(X, groups=site)[old] == y[old]) > 0.6
    new = np.full(len(y), "new")
    before = model.predict_proba(X, groups=new)
    assert np.isfinite(before).all()
    model.adapt(X[site == 5], y[site == 5], groups=new[site == 5])
    after = model.predict_proba(X, groups=new)
    assert np.abs(after - before).max() > 0.01
