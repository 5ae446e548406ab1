"""Shifts that all groups of a site have in common: closed forms beside joint normal laws."""

import numpy as np
import pytest
from scipy.stats import wishart

from fedkin import FedGrEM
from fedkin.models.packed_matrices import packed
from fedkin.shrinkage import borrowed, site_shifts

D, R, M = 2, 3, 5


@pytest.fixture(scope="module")
def common():
    rng = np.random.default_rng(0)
    return borrowed.Common(
        centers=rng.normal(size=(R, D)),
        between=wishart(4, 0.1 * np.eye(D)).rvs(R, random_state=1),
        covariances=wishart(6, 0.3 * np.eye(D)).rvs(R, random_state=2),
        degrees=np.full(R, 30.0),
        concentration=np.ones(R),
        # So many that nobody is odd.
        n_estimates=np.array(1e9),
        known=np.full(R, np.inf),
        shift=wishart(3, np.eye(D)).rvs(random_state=3),
    )


@pytest.fixture(scope="module")
def told(common):
    """Rows of groups, some of none, and their means."""
    rng = np.random.default_rng(4)
    counts = rng.integers(1, 6, size=(M, R)).astype(float)
    counts[0, 1] = counts[2, 0] = counts[2, 2] = 0.0
    return counts, common.centers + rng.normal(size=(M, R, D))


def law_of_means(common, counts):
    """Covariances of all means of a site, true and observed, (Rd, Rd); those without rows wide."""
    true = np.kron(np.ones((R, R)), common.shift)
    noise = np.zeros_like(true)
    for r in range(R):
        part = slice(r * D, (r + 1) * D)
        true[part, part] += common.between[r]
        noise[part, part] = common.covariances[r] / max(counts[r], 1e-9)
    return true, true + noise


def test_a_site_s_means_are_those_of_the_joint_law(common, told):
    counts, means = told
    scatter = np.zeros((M, R, len(packed(np.eye(D), "full"))))
    own = borrowed.posterior(counts, means, scatter, common, "full", False)
    doubt = own.doubt
    for k in range(M):
        true, seen = law_of_means(common, counts[k])
        gain = true @ np.linalg.inv(seen)
        wanted = common.centers.ravel() + gain @ (means[k] - common.centers).ravel()
        np.testing.assert_allclose(own.means[k].ravel(), wanted, atol=1e-6)
        left, lever = true - gain @ true, np.diag(gain).reshape(R, D)
        for r in range(R):
            part = slice(r * D, (r + 1) * D)
            np.testing.assert_allclose(doubt[k, r], left[part, part], atol=1e-6)
            np.testing.assert_allclose(counts[k, r] - own.rows[k, r], lever[r].mean(), atol=1e-6)
            alone = (means[k, r] - common.centers[r]), seen[part, part]
            distance = alone[0] @ np.linalg.solve(alone[1], alone[0]) if counts[k, r] else 0.0
            assert own.distances[k, r] == pytest.approx(distance, abs=1e-9)


def test_centres_are_those_of_generalised_least_squares(common, told):
    counts, means = told
    axes, _, spread = borrowed.axes_of(common)
    known = counts > 0
    total = spread + 1.0 / np.where(known, counts, 1.0)[..., None]
    precision = site_shifts.precisions(axes, known[..., None] / total)
    away = np.where(known[..., None], means - common.centers, 0.0)
    move, certain = site_shifts.move_of_centers(precision, away, common.shift)
    curvature, slope = np.zeros((R * D, R * D)), np.zeros(R * D)
    for k in range(M):
        seen = np.repeat(known[k], D)
        inverse = np.linalg.inv(law_of_means(common, counts[k])[1][np.ix_(seen, seen)])
        curvature[np.ix_(seen, seen)] += inverse
        slope[seen] += inverse @ away[k].ravel()[seen]
    np.testing.assert_allclose(move.ravel(), np.linalg.solve(curvature, slope), atol=1e-9)
    np.testing.assert_allclose(certain, curvature, atol=1e-9)


@pytest.mark.parametrize("apart", [0.0, 0.3, 50.0])
def test_centres_are_pulled_to_their_mean_as_by_james_and_stein(apart):
    """Centres known alike: squares about their mean over degrees of freedom, less one error."""
    rng = np.random.default_rng(9)
    n_groups, d, error = 4, 6, 0.25
    unit = wishart(9, np.eye(d)).rvs(random_state=10)
    root = np.linalg.cholesky(unit)
    white = np.hypot(apart, 0.5) * rng.normal(size=(n_groups, d))
    centers = white @ root.T
    precision = np.kron(np.eye(n_groups), np.linalg.inv(unit) / error)
    found = site_shifts.pulled_together(centers, precision, unit)
    mean = centers.mean(axis=0)
    white = np.linalg.solve(root, (centers - mean).T)
    level = max(np.square(white).sum() / ((n_groups - 1) * d) - error, 1e-3 * error)
    wanted = mean + level / (level + error) * (centers - mean)
    np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-8)
    alone = site_shifts.pulled_together(centers[:1], precision[:d, :d], unit)
    np.testing.assert_array_equal(alone, centers[:1])


def test_classes_that_chance_tells_apart_are_said_not_to_be():
    """Labels by lot: what is foretold is hardly more than how frequent they are."""
    losses = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        site, label = np.repeat(np.arange(6), 30), rng.integers(0, 2, 180)
        X = rng.normal(size=(6, 8))[site] + rng.normal(size=(180, 8))
        learnt = np.tile(np.arange(30) < 10, 6)
        found = FedGrEM(2, covariance_type="tied", random_state=0)
        found.fit(X[learnt], label[learnt], groups=site[learnt])
        said = found.predict_proba(X[~learnt], groups=site[~learnt])
        losses.append(-np.log(said[np.arange(120), label[~learnt]]).mean())
    assert np.mean(losses) < np.log(2) + 0.05


def alike(m, n_groups, d, scale=1.0):
    """Precisions of means that are all known alike."""
    return np.tile(np.eye(d) / scale, (m, n_groups, 1, 1))


def test_the_spread_of_shifts_is_found_beside_what_is_the_groups_own():
    """EM at its fixed point, with as many sites as it takes."""
    rng = np.random.default_rng(5)
    shift, m = np.array([[2.0, 0.6], [0.6, 0.4]]), 4000
    moved = rng.multivariate_normal(np.zeros(2), shift, m)
    away = moved[:, None] + 1.5 * rng.normal(size=(m, 3, 2))
    precision, unit = alike(m, 3, 2, 1.5**2), np.eye(2)
    spread = site_shifts.level_of_shifts(precision, away, unit) * unit
    for _ in range(100):
        level = site_shifts.level_of_shifts(precision, away, unit, spread)
        found = site_shifts.expected(precision, away, spread)
        spread = site_shifts.spread_of_shifts(found, np.ones(m), level, unit)
    np.testing.assert_allclose(spread, shift, atol=0.12)
    assert level == pytest.approx(1.2, abs=0.06)


def test_groups_that_do_not_go_together_have_no_shift():
    """Two groups that are moved in opposite ways; one group a site says nothing of shifts."""
    rng = np.random.default_rng(6)
    one, precision = rng.normal(size=(50, 1, 2)), alike(50, 2, 2)
    opposite = np.concatenate([one, -one], axis=1)
    for spread in (None, np.eye(2)):
        assert site_shifts.level_of_shifts(precision, opposite, np.eye(2), spread) == 0.0
        precision[:, 1] = 0.0
        same = np.concatenate([one, one], axis=1)
        assert site_shifts.level_of_shifts(precision, same, np.eye(2), spread) == 0.0
        precision[:, 1] = np.eye(2)


def test_the_level_of_shifts_is_right_on_average_with_few_sites_of_unlike_groups():
    """Means of four sites about centres that are their own averages; the third group is wide."""
    rng, n_draws = np.random.default_rng(7), 3000
    unit = np.diag([1.0, 4.0, 2.0])
    precision = np.tile([np.eye(3), np.diag([4.0, 1.0, 0.1]), 0.1 * np.eye(3)], (4, 1, 1, 1))
    wide = np.sqrt(np.linalg.inv(precision[0]).diagonal(axis1=1, axis2=2))
    levels = np.empty(n_draws)
    for k in range(n_draws):
        away = 3.0 * np.sqrt(np.diag(unit)) * rng.normal(size=(4, 1, 3))
        away = away + wide * rng.normal(size=(4, 3, 3))
        away = away - away.mean(axis=0)
        levels[k] = site_shifts.level_of_shifts(precision, away, unit, 9.0 * unit)
    assert levels.mean() == pytest.approx(9.0, abs=4 * levels.std() / np.sqrt(n_draws))


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "identity"])
def test_a_class_that_a_site_has_not_seen_is_where_the_shift_puts_it(kind):
    """Two classes, sites far apart; every second site has learnt of one class alone."""
    rng = np.random.default_rng(8)
    n_sites, n_rows = 12, 12
    site, label = np.repeat(np.arange(n_sites), n_rows), np.tile([0, 1], n_sites * n_rows // 2)
    label = np.where(site % 2 == 0, (site // 2) % 2, label)
    place = 4.0 * rng.normal(size=(n_sites, 1, 3)) + np.array([[0.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    X = place[site, label] + rng.normal(size=(len(site), 3))
    found = FedGrEM(2, covariance_type=kind, random_state=0).fit(X, label, groups=site)
    unseen = found.lacking_
    assert unseen.sum() == n_sites / 2
    order = [int(name) for name in found.client_names_]
    away = np.linalg.norm(found.means_ - place[order], axis=-1)
    assert away[unseen].max() < 1.0 < np.linalg.norm(found.centers_ - place, axis=-1).mean()
    # Sites that come later are foretold to be as far apart; adapted, they are where they are.
    new = place[0] + np.array([5.0, -5.0, 5.0])
    found.adapt(new[:1] + rng.normal(size=(12, 3)), np.zeros(12), groups="new")
    asked = new[[0, 1]] + 0.5 * np.array([[-1.0, 0, 0], [1.0, 0, 0]])
    usual = found.predict_proba(asked, groups="new")
    assert usual[0, 0] > 0.9 and usual[1, 1] > 0.3


@pytest.mark.parametrize("largest", [1e3, 1e6])
def test_one_large_site_does_not_blow_up_the_level(largest):
    """Of a few small sites and one that has nearly all rows, the level stays that of the shifts."""
    rng, unit = np.random.default_rng(0), np.eye(2)
    n = np.append(largest, np.full(20, 20.0))
    shift = 0.5 * rng.normal(size=(len(n), 1, 2))
    away = shift + rng.normal(size=(len(n), 2, 2)) / np.sqrt(n)[:, None, None]
    precision = unit * n[:, None, None, None] * np.ones((len(n), 2, 1, 1))
    for spread in (None, 0.25 * unit):
        assert 0.05 < site_shifts.level_of_shifts(precision, away, unit, spread) < 0.75
