"""What sites say of scatter: what no rows can have is not believed; no site has the only say."""

from dataclasses import replace

import numpy as np
import pytest
from tests.maths.test_sureness import N_CLASSES, fitted, known, people

from fedkin import FedGrEM
from fedkin.algorithms.mixtures.departures import Departure
from fedkin.algorithms.mixtures.fedgrem import FEDGREM
from fedkin.algorithms.mixtures.shared_start import SharedStart
from fedkin.estimators.fmlr import ImplausibleSitesWarning
from fedkin.models.component_errors import inverses
from fedkin.models.packed_matrices import packed, unpacked
from fedkin.models.small_matrices import without_negative
from fedkin.protocol import Replies, Roster, TracedReply
from fedkin.shrinkage import in_common
from fedkin.shrinkage.sound_scatter import MOST_TIMES, say, sound

D, R = 4, 2
LIAR = 5


def moments(m=6, n=9, kind="full", seed=0, units=1.0):
    """Counts, means and packed scatter of groups of n rows."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(m, R, n, D)) * units
    means = rows.mean(axis=2)
    away = rows - means[:, :, None]
    return np.full((m, R), float(n)), means, packed(np.einsum("mrni,mrnj->mrij", away, away), kind)


# --- what no rows can have ------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 9])
@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical", "identity"])
def test_what_rows_have_stays_as_it_is(kind, n):
    counts, means, scatter = moments(n=n, kind=kind)
    found = sound(counts, means, scatter, kind, None)
    assert not found.implausible.any()
    np.testing.assert_array_equal(found.counts, counts)
    np.testing.assert_allclose(found.scatter, scatter, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["full", "diag", "spherical"])
@pytest.mark.parametrize("times", [-1.0, -1e-3, -1e30])
def test_who_sends_negative_squares_is_left_out_and_nobody_else(kind, times):
    counts, means, scatter = moments(kind=kind)
    scatter[LIAR, 1] *= times
    found = sound(counts, means, scatter, kind, np.ones(D))
    np.testing.assert_array_equal(np.flatnonzero(found.implausible), [LIAR])
    assert not found.counts[LIAR].any() and not found.scatter[LIAR].any()
    np.testing.assert_array_equal(found.counts[:LIAR], counts[:LIAR])
    np.testing.assert_allclose(found.scatter[:LIAR], scatter[:LIAR], rtol=1e-9, atol=1e-9)


def test_products_larger_than_squares_allow_are_noticed():
    """Every square is right, every pair of columns may be: three of them together cannot be."""
    counts, means, scatter = moments(m=2)
    wrong = np.eye(D)
    wrong[:3, :3] = [[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]]
    scatter[1, 0] = packed(wrong, "full")
    assert sound(counts, means, scatter, "full", None).implausible.tolist() == [False, True]


def test_rounding_is_lifted_to_zero_and_not_held_against_a_site():
    counts, means, scatter = moments()
    plane = np.diag([1.0, 1.0, 1.0, 0.0])
    plane[3, 3] = -1e-10
    scatter[2, 1] = packed(plane, "full")
    found = sound(counts, means, scatter, "full", np.ones(D))
    assert not found.implausible.any()
    assert np.linalg.eigvalsh(unpacked(found.scatter, D, "full")).min() > -1e-13


def test_what_is_negative_does_not_hang_on_units():
    units = 10.0 ** np.array([6, -6, 0, 3])
    counts, means, scatter = moments(units=units)
    scatter[LIAR, 0] *= -1
    found = sound(counts, means, scatter, "full", units)
    np.testing.assert_array_equal(np.flatnonzero(found.implausible), [LIAR])


@pytest.mark.parametrize("m", [3, 200])
def test_negative_eigenvalues_are_found_one_by_one_and_all_at_once(m):
    rng = np.random.default_rng(m)
    matrices = rng.normal(size=(m, R, D, D))
    matrices = (
        matrices + matrices.swapaxes(-1, -2) + rng.choice([0.0, 4.0], (m, R, 1, 1)) * np.eye(D)
    )
    wanted = np.linalg.eigvalsh(matrices).min(axis=-1) > 0
    assert 0 < wanted.sum() < wanted.size
    units = np.array([1.0, 1e3, 1e-3, 5.0])
    found = without_negative(packed(matrices * np.outer(units, units), "full"), units)
    np.testing.assert_array_equal(found, wanted)
    assert without_negative(
        packed(np.stack([np.eye(D)[:, :1] * np.eye(D)[0]] * m)[:, None], "full"), units
    ).all()


# --- how much of a say ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_usual_sites_have_all_of_a_say_and_a_far_one_the_less_the_more_it_claims(kind):
    counts, _, scatter = moments(kind=kind)
    assert (say(counts, scatter, kind, np.ones(D)) == 1.0).all()
    claimed = []
    for times in (1e3, 1e6, 1e12):
        more = scatter.copy()
        more[LIAR] *= times
        heard = say(counts, more, kind, np.ones(D))
        assert (np.delete(heard, LIAR, axis=0) == 1.0).all()
        claimed.append((heard[LIAR, :, None] * more[LIAR]).max())
    assert claimed[0] > claimed[1] > claimed[2] and claimed[2] < 1e-6


def test_up_to_the_bound_nothing_is_taken_away():
    counts, scatter = np.full((3, 1), 10.0), np.zeros((3, 1, 10))
    scatter[..., 0] = 10.0 * np.array([[1.0], [1.0], [MOST_TIMES]])
    np.testing.assert_allclose(say(counts, scatter, "full", np.ones(D)), 1.0)
    scatter[2, 0, 0] *= 2
    assert say(counts, scatter, "full", np.ones(D))[2, 0] == pytest.approx(0.25)


def test_a_group_that_is_wide_at_most_sites_is_believed():
    counts, _, scatter = moments()
    scatter[:, 1] *= 1e4
    assert (say(counts, scatter, "full", np.ones(D)) == 1.0).all()
    counts[0, 1] = 0.0
    assert np.isfinite(say(counts, scatter, "full", np.ones(D))).all()


def test_scatter_of_a_group_without_rows_is_nothing():
    counts, means, scatter = moments()
    common = SharedStart(FEDGREM.settings(covariance_type="full"), Roster(("a",) * 6, 0))._at(
        np.zeros((R, D)), np.ones(D)
    )
    counts[LIAR] = 0.0
    wanted = in_common.learn(counts, means, scatter.copy(), common, "full", units=np.ones(D))
    scatter[LIAR] = 1e9 * scatter[LIAR]
    for units in (None, np.ones(D)):
        found = in_common.learn(counts, means, scatter, common, "full", units=units)
        np.testing.assert_allclose(found.covariances, wanted.covariances)
        own = in_common.learn_own(counts, means, scatter, common, "full", False, units=units)
        assert np.trace(own.covariances[0]) < 2 * D


@pytest.mark.parametrize("lie", ["square", "product"])
def test_what_is_larger_than_its_squares_allow_has_no_say(lie):
    """Where groups are searched for it is enough that squares bound what a site can say."""
    counts, _, scatter = moments()
    scatter[LIAR, 0, 0 if lie == "square" else 1] = -1e9
    wanted = np.ones((6, R))
    wanted[LIAR, 0] = 0.0
    np.testing.assert_array_equal(say(counts, scatter, "full", np.ones(D)), wanted)


# --- whole fits -----------------------------------------------------------------------------------


def lying(monkeypatch, change):
    """Every step's scatter of one site changed after it is made."""
    for name in ("own_moments", "shared_moments", "labelled"):
        step = FEDGREM.steps[name]

        def told(clients, *rest, step=step):
            reply, memory = step.function(clients, *rest)
            scatter = np.array(reply["scatter"])
            scatter[LIAR] = change(scatter[LIAR])
            return TracedReply({**reply, "scatter": scatter}, reply.behind), memory

        monkeypatch.setitem(FEDGREM.steps, name, replace(step, function=told))


@pytest.mark.parametrize("kind", ["full", "diag", "spherical"])
@pytest.mark.parametrize("share", [1.0, 0.3, 0.0])
@pytest.mark.parametrize(("times", "named"), [(-1.0, True), (-1e9, True), (1e9, False)])
def test_a_site_that_lies_of_its_scatter_costs_itself(monkeypatch, kind, share, times, named):
    X, y, site = people(m=12)
    labels = np.where(known(len(y), share), y, -1) if share else None
    others = site != LIAR
    model = FedGrEM(N_CLASSES, covariance_type=kind, random_state=0)
    without = model.fit(X[others], None if labels is None else labels[others], groups=site[others])
    wanted = without.score_samples(X[others], groups=site[others]).mean()
    lying(monkeypatch, lambda scatter: times * scatter)
    model = FedGrEM(N_CLASSES, covariance_type=kind, random_state=0)
    if named:
        with pytest.warns(ImplausibleSitesWarning, match=f"site '{LIAR}'.*no rows can"):
            model.fit(X, labels, groups=site)
        assert list(model.implausible_sites_) == [str(LIAR)]
        assert not model._result.kept_back[LIAR]
    else:
        model.fit(X, labels, groups=site)
        assert not len(model.implausible_sites_)
    assert model.score_samples(X[others], groups=site[others]).mean() > wanted - 0.06
    assert np.isfinite(model.score_samples(X, groups=site)).all()


def test_a_site_that_lied_once_has_the_population_s_groups():
    common = SharedStart(FEDGREM.settings(covariance_type="full"), Roster(("a",) * 6, 0))._at(
        np.zeros((R, D)), np.ones(D)
    )
    one = Departure(common, "full", False, 6, np.ones(D))
    counts, means, scatter = moments()
    told = {"rows": counts.sum(axis=1), "counts": counts, "means": means, "scatter": scatter}
    told = {name: array[:, None] for name, array in told.items()} | {"rows": told["rows"]}
    turned = np.ones(6)
    turned[LIAR] = -1.0
    lied = told | {"scatter": told["scatter"] * turned[:, None, None, None]}
    for arrays in (lied, told):
        one.advance(Replies(np.arange(6), arrays), 0)
        assert np.flatnonzero(one.implausible).tolist() == [LIAR]
        np.testing.assert_allclose(one.own.means[LIAR], one.common.centers)
        np.testing.assert_allclose(one.own.covariances[LIAR], one.common.covariances)


def test_equations_that_one_site_made_singular_are_solved_for_the_others():
    matrices = np.stack([2.0 * np.eye(3), np.diag([1.0, 0.0, 4.0])])
    found = inverses(matrices)
    np.testing.assert_allclose(found[0], 0.5 * np.eye(3))
    np.testing.assert_allclose(found[1], np.diag([1.0, 0.0, 0.25]))


def test_the_summary_says_where_nobody_judged_left_out_labels():
    X, y, site = people(m=6)
    one = FedGrEM(N_CLASSES, covariance_type="full", random_state=0)
    one.fit(X, np.where(site == 0, y, -1), groups=site)
    assert one.temperature_ == 1.0 and "often too sure" in str(one.summary())
    assert "often too sure" not in str(fitted((X, y, site), 0.3).summary())
