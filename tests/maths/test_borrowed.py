"""Groups with covariances of their own: borrowing by degrees, labels, sites without groups."""

import numpy as np
import pytest
from scipy.special import logsumexp, multigammaln
from scipy.stats import invwishart, multivariate_normal, multivariate_t, wishart
from tests.maths.test_fedgrem import errors, small

from fedkin import Federation, FedGrEM, PooledEM
from fedkin.algorithms.mixtures import departures
from fedkin.algorithms.mixtures.fedgrem import FEDGREM
from fedkin.algorithms.mixtures.shared_start import Shared, SharedStart
from fedkin.datasets import make_gaussian_mixtures
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import left_out_rows
from fedkin.models import shaped_mixture as shaped
from fedkin.models.packed_matrices import packed, unpacked
from fedkin.protocol import Replies, Roster
from fedkin.shrinkage import borrowed, degrees, in_common

# --- the E-step against densities of SciPy -------------------------------------------------------


@pytest.fixture(scope="module")
def ragged():
    rng = np.random.default_rng(0)
    tables = {f"s{k}": rng.normal(5.0, 2.0, size=(n, 3)) for k, n in enumerate((7, 12, 1, 30))}
    clients = Federation.from_clients(tables)
    weights = rng.dirichlet(np.ones(2), size=(4, 1))
    covariances = wishart(5, np.eye(3)).rvs(8, random_state=0).reshape(4, 1, 2, 3, 3)
    return clients, shaped.Groups(weights, rng.normal(5.0, 1.0, size=(4, 1, 2, 3)), covariances)


def test_moments_are_those_of_rows_weighted_by_hand(ragged):
    clients, groups = ragged
    found = shaped.expect(gaussian.prepare(clients), groups)
    for k in range(4):
        X = clients.client(k)[0]
        joint = np.stack(
            [
                np.log(groups.weights[k, 0, r])
                + multivariate_normal(groups.means[k, 0, r], groups.covariances[k, 0, r]).logpdf(X)
                for r in range(2)
            ],
            axis=-1,
        ).reshape(len(X), 2)
        share = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
        np.testing.assert_allclose(found.loglik[k, 0], logsumexp(joint, axis=1).sum())
        np.testing.assert_allclose(found.counts[k, 0], share.sum(axis=0))
        for r in range(2):
            mean = np.average(X, axis=0, weights=share[:, r])
            scatter = (share[:, r, None] * (X - mean)).T @ (X - mean)
            np.testing.assert_allclose(found.means[k, 0, r], mean)
            told = unpacked(found.scatter[k, 0, r], 3, "full")
            np.testing.assert_allclose(told, scatter, atol=1e-9)


def test_densities_of_uncertain_covariances_are_students(ragged):
    clients, groups = ragged
    freedom = np.full((4, 2), 7.0)
    found = shaped.log_joint(gaussian.prepare(clients), groups, freedom)
    k, r = 3, 1
    shape = groups.covariances[k, 0, r] * 5.0 / 7.0
    wanted = multivariate_t(groups.means[k, 0, r], shape, df=7).logpdf(clients.client(k)[0])
    own = clients.owner == k
    np.testing.assert_allclose(found[own, r] - np.log(groups.weights[k, 0, r]), wanted)


def test_rows_with_labels_count_for_their_group_alone(ragged):
    clients, groups = ragged
    rng = np.random.default_rng(1)
    label = rng.integers(0, 2, len(clients.X)).astype(float)
    told = Federation(clients.X, clients.offsets, clients.names, y=label)
    found = shaped.expect(gaussian.prepare(told, labelled=True), groups)
    wanted = shaped.labelled_moments(gaussian.prepare(told, labelled=True), 2)
    np.testing.assert_allclose(found.counts[:, 0], wanted.counts, atol=1e-9)
    np.testing.assert_allclose(found.scatter[:, 0], wanted.scatter, atol=1e-8)
    np.testing.assert_allclose(wanted.counts[3, 1], label[clients.owner == 3].sum())


def test_some_clients_keep_their_rows_and_labels(ragged):
    clients, groups = ragged
    label = np.arange(len(clients.X)) % 3 - 1.0
    told = Federation(clients.X, clients.offsets, clients.names, y=label)
    rows, who = gaussian.prepare(told, labelled=True), np.array([3, 1])
    some = shaped.expect(rows.take(who), shaped.Groups(*(part[who] for part in groups)))
    for part, whole in zip(some, shaped.expect(rows, groups)):
        np.testing.assert_allclose(part, whole[who], atol=1e-9)


# --- how much is borrowed ------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "d"), [("full", 4), ("diag", 4), ("spherical", 4)])
@pytest.mark.parametrize("beyond", [5.0, 40.0])
def test_degrees_of_freedom_are_found_from_scatter(kind, d, beyond):
    rng = np.random.default_rng(0)
    n_sites, rows = 400, 12
    if kind == "full":
        own = invwishart(beyond + d + 1, beyond * np.eye(d)).rvs(n_sites, random_state=1)
    else:
        width = 1 if kind == "spherical" else d
        level = beyond / rng.chisquare(beyond + 2, size=(n_sites, width))
        own = np.repeat(level, d // width, axis=1)[:, :, None] * np.eye(d)
    rooted = np.linalg.cholesky(own)
    z = rooted @ rng.normal(size=(n_sites, d, rows))
    scatter = packed(z @ z.swapaxes(-1, -2), kind)[:, None]
    counts = np.full((n_sites, 1), float(rows))
    found = degrees.best_degrees(scatter, counts, np.eye(d)[None], kind)[0]
    assert beyond / 1.6 < found < 1.6 * beyond


def test_sites_that_do_not_differ_have_the_covariance_of_all():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3)) @ np.diag([1.0, 2.0, 0.5])
    found = FedGrEM(1, covariance_type="full", random_state=0).fit(X, groups=np.arange(600) % 20)
    np.testing.assert_allclose(found.group_covariance_[0], np.cov(X.T), atol=0.15)
    assert np.abs(found.covariance_ - found.group_covariance_).max() < 0.3
    assert found.degrees_[0] > 100


def test_packing_keeps_what_a_kind_needs():
    matrices = wishart(6, np.eye(4)).rvs(3, random_state=0)
    for kind in ("full", "diag", "spherical"):
        back = unpacked(packed(matrices, kind), 4, kind)
        np.testing.assert_allclose(back, borrowed.shaped(matrices, kind))


# --- fits ----------------------------------------------------------------------------------------


def bent_sites(n_sites=12, n_rows=80, seed=0):
    """Three groups whose covariances differ by group and by site, and the truth."""
    rng = np.random.default_rng(seed)
    centers = np.array([[0.0, 0, 0, 0], [6.0, 0, 0, 0], [0.0, 6, 0, 0]])
    shapes = [np.diag([0.3, 1.0, 2.0, 0.5]), np.diag([1.0, 0.2, 0.2, 1.0]), np.eye(4)]
    tables, labels, means, covs = {}, [], [], []
    for k in range(n_sites):
        mean = centers + 0.3 * rng.normal(size=centers.shape)
        own = [invwishart(35, 30 * c).rvs(random_state=rng) for c in shapes]
        label = rng.choice(3, n_rows)
        noise = np.stack([np.linalg.cholesky(own[r]) @ rng.normal(size=4) for r in label])
        tables[f"s{k:02d}"] = mean[label] + noise
        labels.append(label)
        means.append(mean)
        covs.append(own)
    return Federation.from_clients(tables), np.concatenate(labels), np.array(means), np.array(covs)


@pytest.fixture(scope="module")
def bent():
    clients, labels, means, covs = bent_sites()
    fitted = FedGrEM(3, covariance_type="full", random_state=0).fit(clients)
    return clients, labels, means, covs, fitted


def test_covariances_that_differ_by_group_and_site_are_found_as_with_labels(bent):
    """Within a tenth of what the same fit reaches with all labels known."""
    clients, labels, means, covs, fitted = bent
    known = FedGrEM(3, covariance_type="full", random_state=0)
    known.fit(clients.X, labels, groups=np.array(clients.names)[clients.owner])
    floor, reached = (errors(m.means_, means).mean() for m in (known, fitted))
    assert reached < 1.1 * floor
    order = [np.linalg.norm(fitted.centers_ - c, axis=1).argmin() for c in known.centers_]
    away = np.linalg.norm(fitted.covariance_[:, order] - covs, axis=(2, 3)).mean()
    assert away < 1.1 * np.linalg.norm(known.covariance_ - covs, axis=(2, 3)).mean()


def test_borrowing_beats_all_rows_together_and_every_site_alone(bent):
    from sklearn.mixture import GaussianMixture

    clients, _, means, covs, fitted = bent
    rng = np.random.default_rng(9)
    test = {}
    for k, name in enumerate(clients.names):
        label = rng.choice(3, 60)
        noise = [np.linalg.cholesky(covs[k, r]) @ rng.normal(size=4) for r in label]
        test[name] = means[k][label] + np.stack(noise)
    rows = Federation.from_clients(test)
    pooled = GaussianMixture(3, n_init=3, random_state=0).fit(clients.X).score(rows.X)
    alone = []
    for k in range(len(clients.names)):
        own = GaussianMixture(3, n_init=3, random_state=0).fit(clients.client(k)[0])
        alone.append(own.score_samples(rows.client(k)[0]))
    assert fitted.score(rows) > max(pooled, np.concatenate(alone).mean()) + 0.02


@pytest.mark.parametrize("kind", ["full", "diag", "spherical"])
def test_a_spoilt_site_takes_no_group_over_and_ten_rows_collapse_nowhere(kind):
    sim = small(0.3, n_clients=12, n_rows=12)
    X, names = sim.clients.X.copy(), np.array(sim.clients.names)[sim.clients.owner]
    odd = names == sim.clients.names[0]
    X[odd] = 40.0 + 3.0 * np.random.default_rng(0).normal(size=(odd.sum(), 4))
    found = FedGrEM(3, covariance_type=kind, random_state=0).fit(X, groups=names)
    assert errors(found.means_[1:], sim.components[1:]).mean() < 0.6
    assert found.outlier_score_.argmax() == 0 and found.outlier_score_[0] > 4
    spread = found.covariance_[1:]
    if kind == "full":
        spread = np.linalg.eigvalsh(spread)
    assert spread.min() > 0.2


def test_a_group_that_a_site_lacks_has_the_common_values():
    sim = small(0.2, n_clients=8, n_rows=60)
    names = np.array(sim.clients.names)[sim.clients.owner]
    kept = ~((names == sim.clients.names[2]) & (sim.labels == 1))
    found = FedGrEM(3, covariance_type="full", random_state=0)
    found.fit(sim.clients.X[kept], groups=names[kept])
    group = np.linalg.norm(found.centers_ - sim.centers[1], axis=1).argmin()
    assert found.lacking_[2, group] and found.lacking_.sum() == 1
    np.testing.assert_allclose(found.means_[2, group], found.centers_[group], atol=1e-3)
    np.testing.assert_allclose(
        found.covariance_[2, group], found.group_covariance_[group], rtol=1e-4
    )
    assert "groups have no rows" in str(found.summary())


def test_a_site_that_comes_later_learns_means_and_covariances_too(bent):
    clients = bent[0]
    before = FedGrEM(3, covariance_type="full", random_state=0).fit(clients.take(np.arange(11)))
    own, _ = clients.client(11)
    as_any = before.score(own[40:], groups="new")
    adapted = before.adapt(own[:40], groups="new")
    assert adapted.score(own[40:], groups="new") > as_any
    with pytest.raises(ValueError, match="was in the fit"):
        adapted.adapt(own, groups="s03")


def test_the_number_of_groups_is_chosen():
    sim = small(0.3, n_clients=8, n_rows=80)
    for kind in ("identity", "spherical", "full"):
        found = FedGrEM(None, covariance_type=kind, random_state=0).fit(sim.clients)
        assert found.n_components_ == 3
        assert "3 groups" in str(found.summary())


@pytest.mark.parametrize("kind", ["full", "spherical"])
def test_numbers_of_groups_are_compared_on_the_same_sites(kind):
    """The odd site shows with six groups only; covariances of five are nearly one."""
    sim = make_gaussian_mixtures(heterogeneity=1.0, random_state=0)
    found = FedGrEM(None, covariance_type=kind, random_state=0, max_rounds=5).fit(sim.clients)
    assert found.n_components_ == 5


@pytest.mark.parametrize("kind", ["full", "diag", "spherical", "identity"])
def test_how_sure_groups_are_follows_from_what_sites_send(ragged, kind):
    """The likelihood of rows and groups is the likelihood less the entropy of memberships."""
    clients, groups = ragged
    covariances = np.tile(np.eye(3), (2, 1, 1))
    if kind != "identity":
        covariances = borrowed.shaped(groups.covariances[0, 0], kind)
    start = SharedStart(FEDGREM.settings(covariance_type=kind), Roster(clients.names, 0))
    even = start._at(groups.means[0, 0], np.ones(3))
    common = even._replace(covariances=covariances, concentration=np.array([2.0, 6.0]))
    rows = gaussian.prepare(clients)
    same = (np.array([0.25, 0.75]), common.centers, common.covariances)
    told = shaped.expect(rows, shaped.Groups(*(part[None, None] for part in same)), kind)
    joint = shaped.log_joint(rows, shaped.Groups(*(part[None, None] for part in same)))
    share = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    wanted = np.bincount(clients.owner, (share * joint).sum(axis=1))
    start.middle, start.inside = rows.centre, rows.squares.sum(axis=1)
    replies = Replies(
        np.arange(4),
        {
            "counts": told.counts,
            "means": told.means,
            "scatter": told.scatter,
        },
    )
    found = start._counted([Shared(common, 0.0, told.counts[:, 0])], replies)
    np.testing.assert_allclose(found.certain, wanted)
    np.testing.assert_allclose(found.rows, clients.sizes)


def test_covariances_count_as_far_as_they_are_their_own():
    rng = np.random.default_rng(0)
    counts, means = np.full((1, 3), 4000.0), np.zeros((1, 3, 4))

    def numbers(scales, kind):
        made = [wishart(4000, scale * np.eye(4)).rvs(random_state=rng) for scale in scales]
        scatter = packed(np.stack(made)[None], kind)
        return in_common.numbers_of_covariances(counts, means, scatter, means[0], kind)

    for kind, each in (("full", 10), ("diag", 4), ("spherical", 1)):
        assert each <= numbers((1.0, 1.0, 1.0), kind) < 1.3 * each
        assert 2.9 * each < numbers((0.1, 1.0, 10.0), kind) <= 3 * each
    assert numbers((0.1, 1.0, 10.0), "tied") == 10
    assert numbers((1.0, 1.0, 1.0), "identity") == 0


# --- labels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoilt", [False, True])
def test_labels_say_whether_groups_have_one_covariance(spoilt):
    """Groups about one place differ by covariance alone; false entries make covariances of no use.

    The rows themselves would have a covariance for every group in both.
    """
    rng = np.random.default_rng(5)
    label, names = np.tile([0, 1], 300), np.repeat(np.arange(10), 60)
    X = rng.normal(size=(600, 2)) * np.where(label, 1.0, 1.0 if spoilt else 4.0)[:, None]
    if spoilt:
        X[:, 0] += 3.0 * label
        X[rng.permutation(np.flatnonzero(label))[:12], 1] *= 40.0
    found = FedGrEM(2, covariance_type="full", random_state=0).fit(X, label, names)
    first, second = found.group_covariance_
    assert np.allclose(first, second) == spoilt
    assert np.allclose(found.covariance_, first) == spoilt


@pytest.fixture(scope="module")
def overlapping():
    """Classes that overlap, sites that differ: rows, labels, sites, and a mask to learn from."""
    rng = np.random.default_rng(3)
    words = np.array(["a", "b", "c"])
    X, y, names = [], [], []
    for k in range(15):
        mean = np.array([[0.0, 0, 0], [2.0, 1, 0], [0.0, 2, 2]]) + 0.7 * rng.normal(size=(3, 3))
        label = rng.choice(3, 60)
        X.append(mean[label] + rng.normal(size=(60, 3)) * np.array([0.6, 1.0, 1.4])[label, None])
        y.append(words[label])
        names.append(np.full(60, f"s{k:02d}"))
    train = np.tile(np.arange(60) < 25, 15)
    return np.concatenate(X), np.concatenate(y), np.concatenate(names), train


def test_labels_make_a_classifier_better_than_pooled_and_alone_ones(overlapping):
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis as Lda
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis as Qda
    from sklearn.metrics import log_loss

    X, y, names, train = overlapping
    found = FedGrEM(3, covariance_type="full", random_state=0).fit(X[train], y[train], names[train])
    assert list(found.classes_) == ["a", "b", "c"]
    ours = found.predict_proba(X[~train], groups=names[~train])
    error = np.mean(found.predict(X[~train], groups=names[~train]) != y[~train])
    assert found.score(X[~train], y[~train], names[~train]) == pytest.approx(1 - error)
    for rival in (Lda(), Qda()):
        theirs = rival.fit(X[train], y[train]).predict_proba(X[~train])
        assert log_loss(y[~train], ours) < log_loss(y[~train], theirs)
        alone = np.concatenate(
            [
                rival.fit(X[here], y[here]).predict(X[~train & (names == site)])
                for site in np.unique(names)
                for here in [train & (names == site)]
            ]
        )
        assert error < np.mean(alone != y[~train])


@pytest.mark.parametrize("unknown", [None, "number"])
def test_a_tenth_of_the_labels_names_the_groups(overlapping, unknown):
    X, y, names, train = overlapping
    some = np.random.default_rng(0).random(len(y)) < 0.1
    labels = np.where(some, y, None)
    if unknown == "number":
        labels = np.where(some, np.searchsorted(["a", "b", "c"], y), -1)
    found = FedGrEM(3, covariance_type="full", random_state=0).fit(
        X[train], labels[train], names[train]
    )
    answer = found.predict(X[~train], groups=names[~train])
    truth = y if unknown is None else np.searchsorted(["a", "b", "c"], y)
    assert np.mean(answer != truth[~train]) < 0.35


def test_labels_that_are_no_labels_are_refused():
    X, names = np.zeros((4, 2)), list("aabb")
    with pytest.raises(ValueError, match="not whole"):
        FedGrEM(2, covariance_type="full").fit(X, [0.5, 1.2, 3.3, 1.0], groups=names)


def test_the_target_of_a_federation_is_not_used_in_silence(overlapping):
    X, y, names, _ = overlapping
    codes = np.searchsorted(["a", "b", "c"], y).astype(float)
    clients = Federation.from_groups(X, names, y=codes)
    with pytest.warns(UserWarning, match=r"not used.*fit\(clients.X, clients.y, groups"):
        found = FedGrEM(3, covariance_type="full", random_state=0, max_rounds=2).fit(clients)
    assert not hasattr(found, "classes_")
    told = FedGrEM(3, covariance_type="full", random_state=0)
    told.fit(clients.X, clients.y, groups=clients.groups)
    np.testing.assert_array_equal(told.classes_, [0, 1, 2])
    assert told.score(clients) == told.score(X, codes, names) > 0.8
    new = Federation.from_groups(X[:30], np.full(30, "new"), y=7.0 + codes[:30])
    with pytest.warns(UserWarning, match="not used"):
        told.adapt(new)
    unlabelled = told.predict_proba(X, groups="new")
    told.adapt(X[:30], groups="new")
    np.testing.assert_array_equal(told.predict_proba(X, groups="new"), unlabelled)


# --- which start goes on -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "diag", "spherical", "identity"])
def test_rows_left_out_are_those_of_a_fit_without_them(kind):
    """One group, nothing common but what is given: closed forms against a posterior without it."""
    rng = np.random.default_rng(4)
    d, n = 3, 9
    X = rng.normal(size=(n, d)) * [1.0, 2.0, 0.5]
    common = borrowed.Common(
        centers=np.zeros((1, d)),
        between=1e6 * np.eye(d)[None],
        covariances=np.eye(d)[None],
        degrees=np.array([4.0]),
        concentration=np.array([1.0]),
        n_estimates=np.array(1.0),
        known=np.array([np.inf]),
    )

    def fitted(rows):
        mean = rows.mean(axis=0)
        scatter = (rows - mean).T @ (rows - mean)
        counts = np.full((1, 1), float(len(rows)))
        moments = counts, mean[None, None], packed(scatter, kind)[None, None]
        return borrowed.posterior(*moments, common, kind, False)

    def density(own, row):
        return multivariate_normal(own.means[0, 0], own.covariances[0, 0]).logpdf(row)

    own, whole = fitted(X), Federation.from_clients({"a": X})
    held = left_out_rows.Holding(
        counts=np.full((1, 1, 1), float(n)),
        taken=np.ones((1, 1, 1)),
        total=borrowed.told(own, common, kind)[:, None],
        usual=np.ones((1, 1, 1)),
        freedom=np.full((1, 1, 1), np.inf),
    )
    parts = own.weights[:, None], own.means[:, None], own.covariances[:, None]
    rows, groups = gaussian.prepare(whole), shaped.Groups(*parts)
    found, right = left_out_rows.left_out(rows, groups, held, kind)
    assert right[0, 0] == 0.0
    wanted = sum(density(fitted(np.delete(X, i, axis=0)), X[i]) for i in range(n))
    inside = sum(density(own, row) for row in X)
    assert found[0, 0] == pytest.approx(wanted, rel=0.03)
    assert abs(found[0, 0] - wanted) < 0.2 * abs(inside - wanted)


def test_groups_that_sites_share_are_preferred_to_kinds_of_sites():
    """Sites differ more than groups do: one mixture for all would make groups of kinds of sites."""
    rng = np.random.default_rng(0)
    tables, labels = {}, []
    for k in range(12):
        level = np.array([8.0 * (k % 2), 0.0, 0.0, 0.0])
        label = rng.choice(2, 60)
        step = np.where(label[:, None] == 1, [0.0, 4.5, 0.0, 0.0], 0.0)
        tables[f"s{k:02d}"] = level + step + rng.normal(size=(60, 4))
        labels.append(label)
    clients = Federation.from_clients(tables)
    found = FedGrEM(2, covariance_type="full", random_state=0).fit(clients)
    group = found.predict(clients)
    right = np.mean(group == np.concatenate(labels))
    assert max(right, 1 - right) > 0.95


@pytest.mark.parametrize("beyond", [1.5, 20.0, 3000.0])
def test_the_likeliest_degrees_of_the_whole_grid_are_found(beyond):
    """Beside the marginal likelihood, inverse Wishart covariances integrated out, at every one."""
    d, m, rng = 3, 40, np.random.default_rng(5)
    own = invwishart(beyond + d + 1, beyond * np.eye(d)).rvs(2 * m, random_state=rng)
    rows = rng.integers(2, 40, size=(m, 2)).astype(float)
    normal = [rng.multivariate_normal(np.zeros(d), c, int(n)) for c, n in zip(own, rows.ravel())]
    scatter = np.array([z.T @ z for z in normal]).reshape(m, 2, d, d)

    def loglik(degrees, r):
        nu = degrees + d + 1
        after = (nu + rows[:, r]) / 2
        volume = np.linalg.slogdet(degrees * np.eye(d) + scatter[:, r])[1]
        before = nu / 2 * d * np.log(degrees) - multigammaln(nu / 2, d)
        return (before + np.array([multigammaln(a, d) for a in after]) - after * volume).sum()

    told = packed(scatter, "full")
    found = degrees.best_degrees(told, rows, np.tile(np.eye(d), (2, 1, 1)), "full")
    for r in range(2):
        wanted = degrees.DEGREES[np.argmax([loglik(v, r) for v in degrees.DEGREES])]
        assert found[r] == wanted
    for before in (found, degrees.DEGREES[[0, -1]], np.array([7.0, 8.0])):
        again = degrees.best_degrees(told, rows, np.tile(np.eye(d), (2, 1, 1)), "full", before)
        np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("kind", ["full", "diag", "spherical"])
def test_groups_whose_rows_are_equal_do_not_collapse(kind):
    """No scatter within groups: variances stay, far below how far groups are apart."""
    place = np.array([[0.0, 1.0], [5.0, 2.0], [3.0, 9.0]])
    tables = [np.repeat(place + 0.1 * k, 3, axis=0) for k in range(6)]
    clients = Federation.from_clients(tables)
    model = FedGrEM(3, covariance_type=kind, random_state=0, max_rounds=300).fit(clients)
    spread = np.linalg.eigvalsh(model._result.covariances)
    assert np.isfinite(spread).all() and (spread > 1e-13).all() and (spread < 1e-3).all()
    assert model.predict(clients.X[:9], groups="1").reshape(3, 3).std(axis=1).max() == 0


# --- a start from all sites where their own do not go together -----------------------------------


def few_rows(seed, m=30, n=8, n_groups=6, d=6):
    """Rows of new sites, too: they tell how far what is shared is right."""
    rng = np.random.default_rng(seed)
    centers = 1.5 * rng.normal(size=(n_groups, d))
    owner, label = np.repeat(np.arange(m), 2 * n), rng.integers(0, n_groups, 2 * m * n)
    own = centers + 0.2 * rng.normal(size=(m, n_groups, d))
    X = own[owner, label] + rng.normal(size=(len(label), d))
    return X, owner, np.tile(np.arange(2 * n) < n, m)


def test_few_rows_a_site_start_from_one_mixture_of_all():
    """Own fits of eight rows in six groups cannot be matched; rows of all need no matching."""
    gained = []
    for seed in range(3):
        X, owner, train = few_rows(seed)
        asked, reached = {"X": X[~train], "groups": owner[~train]}, []
        for second in ("auto", False):
            model = FedGrEM(6, covariance_type="tied", second_start=second, random_state=0)
            model.fit(X[train], groups=owner[train])
            assert getattr(model._result, "shaped", False) == (second == "auto")
            assert model.covariance_.shape == (6, 6)
            reached.append(model.score_samples(**asked).mean())
        pooled = PooledEM(6, covariance_type="tied", random_state=0)
        pooled.fit(X[train], groups=owner[train])
        assert reached[0] > pooled.score_samples(**asked).mean() - 0.05
        gained.append(reached[0] - reached[1])
    assert min(gained) > 1.0


def test_clear_starts_are_not_given_up():
    """What leaves the sites is no more than before where their own groups go together."""
    sim = small(0.3)
    model = FedGrEM(3, random_state=0).fit(sim.clients)
    assert not getattr(model._result, "shaped", False)


def test_few_labels_of_many_columns_are_enough_for_a_start():
    """A dozen labelled rows in eleven columns leave directions without scatter."""
    wrong = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        m, n, d = 10, 20, 11
        root = np.eye(d) + rng.normal(size=(d, d)) / 3
        owner, y = np.repeat(np.arange(m), n), np.tile(np.arange(n) % 2, m)
        level = 0.5 * rng.normal(size=(m, d)) @ root.T
        X = level[owner] + (rng.normal(size=(m * n, d)) + 1.6 * y[:, None]) @ root.T
        told = np.where(np.arange(m * n) % 17 == seed, y, -1)
        model = FedGrEM(2, covariance_type="full", random_state=0).fit(X, told, groups=owner)
        wrong.append(1 - model.score(X, y, groups=owner))
    assert max(wrong) < 0.1


def test_labels_left_out_are_foretold_as_by_the_posterior_without_the_row():
    """Groups that no row changes: what is left is Bayes' rule with the weights of the others."""
    rng = np.random.default_rng(6)
    n, d = 12, 2
    X, label = rng.normal(size=(n, d)), np.arange(n) % 3 - 1.0
    clients = Federation(X, np.array([0, n]), ("a",), y=label)
    means, weights = np.array([[0.5, 0.0], [-0.5, 0.2]]), np.array([0.4, 0.6])
    same = np.tile(np.eye(d), (1, 1, 2, 1, 1))
    groups = shaped.Groups(weights[None, None], means[None, None], same)
    counts = np.array([7.0, 5.0])
    held = left_out_rows.Holding(
        counts[None, None],
        np.zeros((1, 1, 2)),
        np.full((1, 1, 2), np.inf),
        np.zeros((1, 1, 2)),
        np.full((1, 1, 2), np.inf),
    )
    rows = gaussian.prepare(clients, labelled=True)
    density, right = left_out_rows.left_out(rows, groups, held, "identity")
    log_p = np.stack([multivariate_normal(mean).logpdf(X) for mean in means], axis=1)
    wanted, of_all = 0.0, 0.0
    for i in range(n):
        share = np.exp(np.log(weights) + log_p[i])
        share = np.eye(2)[int(label[i])] if label[i] >= 0 else share / share.sum()
        joint = np.log((counts - share) / (n - 1)) + log_p[i]
        of_all += logsumexp(joint)
        wanted += joint[int(label[i])] - logsumexp(joint) if label[i] >= 0 else 0.0
    assert right[0, 0] == pytest.approx(wanted)
    assert density[0, 0] == pytest.approx(of_all + wanted)


@pytest.mark.parametrize("order", [1, 2, 3, 6, 7])
def test_multivariate_gamma_is_scipys(order):
    values = np.array([[3.1, 3.5], [40.0, 5e4]])
    constant = order * (order - 1) / 4 * np.log(np.pi)
    wanted = [[multigammaln(value, order) for value in row] for row in values]
    found = degrees.log_multigamma(values, order) + constant
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("by", ["loglik", "right"])
def test_starts_are_compared_to_a_tenth_of_the_spread_and_labels_as_they_are(by):
    """Readings at the end of a scale must not choose: rows are foretold with wider covariances."""
    rng, spread = np.random.default_rng(0), np.array([1.0, 20.0])
    start = SharedStart(FEDGREM.settings(covariance_type="full"), Roster(("a", "b", "c"), 0))
    made = [start._at(rng.normal(size=(2, 2)), np.ones(2)) for _ in range(2)]
    ways = [departures.Departure(one, "full", False, 3) for one in made]
    asked = departures.likeliest(ways, np.ones(3, dtype=bool), start.turns, spread, by)
    ask = next(asked)
    while ask.step == "own_moments":
        told = {
            "rows": np.full(3, 20.0),
            "counts": np.full((3, 2, 2), 10.0),
            "means": rng.normal(size=(3, 2, 2, 2)),
            "scatter": np.tile([9.0, 1.0, 9.0], (3, 2, 2, 1)),
            "loglik": np.zeros((3, 2)),
        }
        ask = asked.send(Replies(np.arange(3), told))
    nothing = np.stack([one.holding(np.zeros((2, 2)))["covariances"] for one in ways], axis=1)
    blur = np.diag([0.01, 4.0]) if by == "loglik" else np.zeros((2, 2))
    np.testing.assert_allclose(
        ask.personal["covariances"] - nothing, blur + 0 * nothing, atol=1e-12
    )
    with pytest.raises(StopIteration) as ended:
        asked.send(Replies(np.arange(3), {by: np.tile([0.0, 1.0], (3, 1))}))
    assert ended.value.value is ways[1]
