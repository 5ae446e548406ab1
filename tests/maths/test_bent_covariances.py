"""Covariances that few rows tell of: how far they are bent, and that sites lose nothing by it."""

import warnings

import numpy as np
import pytest
from scipy.special import multigammaln
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedkin import FedGrEM
from fedkin.shrinkage import in_common
from fedkin.shrinkage.borrowed import FEW
from fedkin.shrinkage.degrees import PULLS, share_of_target

N_CLASSES, D = 4, 8


def places(seed=0, m=30, apart=0.5, wide=1.0):
    """Centres of classes, places of sites' own, and a root of the rows' covariance."""
    rng = np.random.default_rng(seed)
    root = 0.5 * rng.normal(size=(D, D)) / np.sqrt(D) + np.eye(D)
    centers = 1.2 * rng.normal(size=(N_CLASSES, D)) @ root.T
    own = centers + wide * apart * rng.normal(size=(m, N_CLASSES, D)) @ root.T
    return own, root, rng


def rows_of(own, root, rng, n):
    """`n` rows of every site."""
    site = np.repeat(np.arange(len(own)), n)
    y = rng.integers(0, N_CLASSES, len(site))
    return own[site, y] + rng.normal(size=(len(site), D)) @ root.T, y, site


def loss(share, y):
    return float(-np.log(np.maximum(share[np.arange(len(y)), y], 1e-12)).mean())


# --- the share ------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [3, 12, 60])
@pytest.mark.parametrize("kind", ["full", "diag"])
def test_the_share_is_that_of_degrees_averaged_by_their_likelihood(told, kind):
    rng = np.random.default_rng(told)
    target = np.diag([1.0, 2.0, 0.5])
    Z = rng.normal(size=(told, 3)) * [1.2, 1.0, 1.1]
    scatter = Z.T @ Z

    def loglik(beyond):
        blocks = [scatter] if kind == "full" else [scatter[j : j + 1, j : j + 1] for j in range(3)]
        priors = [target] if kind == "full" else [target[j : j + 1, j : j + 1] for j in range(3)]
        total = 0.0
        for own, prior in zip(blocks, priors):
            d = len(own)
            nu = beyond + d + 1
            total += nu / 2 * np.linalg.slogdet(beyond * prior)[1] - multigammaln(nu / 2, d)
            total += multigammaln((nu + told) / 2, d)
            total -= (nu + told) / 2 * np.linalg.slogdet(beyond * prior + own)[1]
        return total

    tried = PULLS * ((3 if kind == "full" else 1) + 2.0)
    each = np.array([loglik(beyond) for beyond in tried])
    weight = np.exp(each - each.max()) / np.exp(each - each.max()).sum()
    wanted = weight @ (tried / (tried + told))
    assert share_of_target(scatter / told, told, target, kind) == pytest.approx(wanted, rel=1e-9)


def test_many_rows_stay_as_they_are_and_none_take_the_target():
    rng = np.random.default_rng(0)
    root = np.tril(rng.normal(size=(5, 5))) + 2 * np.eye(5)
    covariance, target = root @ root.T, np.diag(np.diag(root @ root.T))
    kept, none = (in_common.pulled(covariance, told, target, "full") for told in (1e7, FEW))
    np.testing.assert_allclose(kept, covariance, atol=1e-5)
    np.testing.assert_allclose(none, target, atol=1e-4)


def test_rows_near_a_plane_are_not_told_off_it():
    """A hundred rows of sizes that go together: the least direction is what tells the classes."""
    rng = np.random.default_rng(1)
    size = rng.normal(size=(100, 1))
    X = size + 0.02 * rng.normal(size=(100, 5))
    covariance = np.cov(X.T)
    bent = in_common.pulled(covariance, 100.0, np.diag(np.diag(covariance)), "full")
    least = np.linalg.eigvalsh(bent)[0] / np.linalg.eigvalsh(covariance)[0]
    assert least < 1.5


@pytest.mark.parametrize("wide", [1e3, 1e6, 1e9])
def test_a_target_that_is_far_too_wide_in_a_direction_is_nearly_left_alone(wide):
    """Of a hundred rows in five columns: however wide, the likelihood leaves two fifths of it."""
    rng = np.random.default_rng(2)
    Z = rng.normal(size=(100, 5))
    covariance, target = Z.T @ Z / 100, np.diag([wide, 1.0, 1.0, 1.0, 1.0])
    bent = in_common.pulled(covariance, 100.0, target, "full")
    assert 1.0 <= bent[0, 0] / covariance[0, 0] < 1.5
    np.testing.assert_allclose(bent[1:, 1:], covariance[1:, 1:], atol=0.01)


def test_one_number_for_all_columns_is_bent_as_one_column_of_as_many_rows():
    each, told = np.array([1.0, 1.6, 0.7]), np.array([4.0, 6.0, 9.0])
    matrices = each[:, None, None] * np.eye(3)
    shares = [
        in_common._share_of_average(matrices, told, np.eye(3), "spherical"),
        in_common._share_of_average(each[:, None, None], 3.0 * told, np.eye(1), "diag"),
    ]
    np.testing.assert_allclose(*shares, rtol=1e-12)


@pytest.mark.parametrize("seed", range(4, 7))
def test_directions_that_no_two_rows_of_a_site_tell_of_do_not_vanish(seed):
    """Few sites have two rows of a group: inside sites most directions have no scatter."""
    own, root, rng = places(seed)
    X, y, site = rows_of(own, root, rng, 2)
    model = FedGrEM(N_CLASSES, covariance_type="tied", random_state=0).fit(X, y, groups=site)
    found = np.linalg.eigvals(np.linalg.solve(root @ root.T, model.covariance_)).real
    assert found.min() > 0.2 and found.max() < 3.0
    assert np.einsum("rii->r", model._result.between).max() < np.trace(root @ root.T)


# --- fits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "tied"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_sites_with_few_labelled_rows_are_foretold_no_worse_than_by_all_rows_together(kind, n):
    ours, pooled = [], []
    for seed in range(8):
        own, root, rng = places(seed)
        X, y, site = rows_of(own, root, rng, n)
        asked, right, where = rows_of(own, root, rng, 40)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = FedGrEM(N_CLASSES, covariance_type=kind, random_state=0).fit(X, y, groups=site)
        ours.append(loss(model.predict_proba(asked, groups=where), right))
        lda = LinearDiscriminantAnalysis().fit(X, y)
        pooled.append(loss(lda.predict_proba(asked), right))
    assert np.mean(ours) < np.mean(pooled)


@pytest.mark.parametrize(
    "kind, share",
    [
        *((kind, share) for kind in ("full", "tied", "diag", "spherical") for share in (1.0, 0.3)),
        *((kind, 0.0) for kind in ("full", "diag", "spherical")),
    ],
)
def test_sites_a_thousand_times_as_far_apart_as_rows_leave_covariances_alone(kind, share):
    rng = np.random.default_rng(0)
    site, move = np.repeat(np.arange(10), 40), 1e3 * rng.normal(size=(10, 5))
    y = rng.integers(0, 2, len(site))
    X = 4.0 * y[:, None] + move[site] + rng.normal(size=(len(site), 5))
    labels = np.where(rng.random(len(site)) < share, y, -1) if share else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FedGrEM(2, covariance_type=kind, random_state=0).fit(X, labels, groups=site)
    sizes = np.einsum("rii->r", model._result.covariances) / 5
    # Without labels the two groups, whose centres are 4 apart, may be taken for one.
    assert (sizes < (1.5 if share else 1.5 + 4.0)).all() and (sizes > 0.6).all()


def test_one_odd_site_far_away_costs_the_others_nothing():
    rng = np.random.default_rng(0)
    site = np.repeat(np.arange(4), 30)
    y = rng.integers(0, 2, len(site))
    X = rng.normal(size=(len(site), 4))
    X[:, 0] += 3.0 * y
    found = []
    for away in (0.0, 1e4):
        moved = X + away * np.outer(site == 0, [1.0, 0.0, 0.0, 0.0])
        model = FedGrEM(2, covariance_type="tied", random_state=0).fit(moved, y, groups=site)
        honest = site > 0
        found.append(loss(model.predict_proba(moved[honest], groups=site[honest]), y[honest]))
    assert found[1] < 1.2 * found[0]


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_where_one_site_is_far_away_sites_do_not_come_to_differ_in_all(share, seed):
    """Common covariances that grow make sites look unlike them, and tell less of what is common."""
    rng = np.random.default_rng(seed)
    site = np.repeat(np.arange(4), 30)
    y = rng.integers(0, 2, len(site))
    X = rng.normal(size=(len(site), 4))
    X[:, 0] += 3.0 * y + 100.0 * (site == 0)
    labels = np.where(rng.random(len(y)) < share, y, -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FedGrEM(2, covariance_type="full", random_state=0).fit(X, labels, groups=site)
    assert model.group_covariance_[:, 0, 0].max() < 3.0
    assert model.degrees_.min() > 10.0


def test_sites_that_are_far_apart_do_not_widen_what_is_inside_them():
    own, root, rng = places(m=30, wide=40.0)
    X, y, site = rows_of(own, root, rng, 12)
    model = FedGrEM(N_CLASSES, covariance_type="tied", random_state=0).fit(X, y, groups=site)
    asked, right, where = rows_of(own, root, rng, 40)
    share = model.predict_proba(asked, groups=where)
    known = np.array(
        [[((site == k) & (y == c)).any() for c in range(N_CLASSES)] for k in range(30)]
    )
    seen = known.all(axis=1)[where]
    best = np.stack(
        [
            multivariate_normal(np.zeros(D), root @ root.T).logpdf(asked - own[where, c])
            for c in range(N_CLASSES)
        ],
        axis=1,
    )
    assert np.mean(share.argmax(axis=1)[seen] == right[seen]) > 0.97
    assert np.mean(best.argmax(axis=1)[seen] == right[seen]) > 0.97
    ratio = np.linalg.eigvals(np.linalg.solve(root @ root.T, model.covariance_)).real
    assert ratio.max() < 3.0
