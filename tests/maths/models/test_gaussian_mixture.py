"""Gaussian mixtures batched over ragged clients: against brute force, scikit-learn, invariants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from fedkin.federation import Federation
from fedkin.models import gaussian_mixture as gm
from fedkin.models import gaussian_mixture_starts as starts
from fedkin.models import row_blocks
from fedkin.models.latent_classes import best_restart, climb, mixture_weights
from fedkin.randomness import KeyRing
from fedkin.ties import RELATIVE

KINDS = ("identity", "spherical", "diag", "tied")
# Empty, one row, fewer rows than components, a constant column, duplicated rows, equal rows, far.
SIZES = (0, 1, 3, 40, 41, 60, 12, 25, 150)
FAR = 7


def ragged(seed=0, d=3):
    rng = np.random.default_rng(seed)
    tables = [3.0 * rng.normal(size=(n, d)) for n in SIZES]
    tables[3][:, 1] = 2.0
    tables[4] = np.repeat(tables[4][:21], 2, axis=0)[:41]
    tables[6][:] = tables[6][0]
    tables[FAR] += 1e6
    return Federation.from_clients(tables)


def parameters(kind, m=9, R=4, d=3, seed=1, centre=None, lead=()):
    rng = np.random.default_rng(seed)
    means = 2.0 * rng.normal(size=(m, *lead, R, d))
    if centre is not None:
        means += centre.reshape(m, *([1] * len(lead)), 1, d)
    root = rng.normal(size=(m, *lead, d, d))
    covariance = {
        "identity": None,
        "spherical": rng.uniform(0.5, 2.0, size=(m, *lead)),
        "diag": rng.uniform(0.5, 2.0, size=(m, *lead, d)),
        "tied": root @ root.swapaxes(-1, -2) + np.eye(d),
    }[kind]
    return gm.Parameters(rng.dirichlet(np.ones(R), size=(m, *lead)), means, covariance)


def near(clients, kind, **more):
    centre = np.array([X.mean(axis=0) if len(X) else np.zeros(3) for X, _ in each(clients)])
    return parameters(kind, centre=centre, **more)


def each(clients):
    return [clients.client(k) for k in range(clients.n_clients)]


def local_em(
    rows, n_components, keys, n_restarts=10, init="kmeans++", kind="identity", max_iter=200
):
    """EM of every client from its own starts; the likeliest end."""
    if init == "ward":
        first = starts.ward_start(rows, n_components, kind)
    else:
        first = starts.kmeans_start(rows, n_components, n_restarts, keys, kind)
    return best_restart(climb(rows, first, gm.em_step, max_iter, 1e-6))


def dense(covariance, k, d):
    if covariance is None:
        return np.eye(d)
    own = covariance[k if len(covariance) > 1 else 0]
    return own * np.eye(d) if own.ndim == 0 else np.diag(own) if own.ndim == 1 else own


def brute_force(X, weights, means, covariance):
    """Log joint densities (n, R), one row and component at a time."""
    joint = np.empty((len(X), len(weights)))
    for i, x in enumerate(X):
        for r, mean in enumerate(means):
            joint[i, r] = np.log(weights[r]) + multivariate_normal(mean, covariance).logpdf(x)
    return joint


def assert_same(one, other, tol=1e-12):
    for name, a, b in zip(one._fields, one, other):
        if a is not None:
            scale = max(1.0, np.abs(b).max(initial=0.0))
            np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=tol, err_msg=name)


def of(found, who):
    return gm.Statistics(*(None if a is None else a[who] for a in found))


# -------------------------------------------------------------------- oracles


@pytest.mark.parametrize("kind", KINDS)
def test_e_step_equals_brute_force_row_by_row(kind):
    clients = ragged()
    given_ = near(clients, kind)
    found = gm.expect(gm.prepare(clients), given_)
    joint = gm.log_joint(gm.prepare(clients), given_)
    for k, (X, _) in enumerate(each(clients)):
        expected = brute_force(
            X, given_.weights[k], given_.means[k], dense(given_.covariance, k, 3)
        )
        posterior = np.exp(expected - logsumexp(expected, axis=1, keepdims=True))
        rows = slice(clients.offsets[k], clients.offsets[k + 1])
        # Rows at 1e6 are themselves known to 1e-10 only.
        tol = 1e-8 if k == FAR else 1e-11
        np.testing.assert_allclose(joint[rows], expected, rtol=1e-12, atol=tol)
        np.testing.assert_allclose(found.counts[k], posterior.sum(axis=0), atol=tol)
        np.testing.assert_allclose(found.sums[k], posterior.T @ X, rtol=tol, atol=1e-11)
        loglik = logsumexp(expected, axis=1).sum()
        np.testing.assert_allclose(found.loglik[k], loglik, rtol=1e-12, atol=tol)
    assert found.loglik[0] == 0 and (found.counts[0] == 0).all()


def sklearn_mixture(weights, means, covariance, kind):
    """A GaussianMixture that holds these parameters, one covariance for all components."""
    from sklearn.mixture import GaussianMixture

    R, d = means.shape
    inverse = np.linalg.inv(covariance)
    precisions = {
        "spherical": np.full(R, inverse[0, 0]),
        "diag": np.tile(np.diag(inverse), (R, 1)),
        "tied": inverse,
        "full": np.tile(inverse, (R, 1, 1)),
    }[kind]
    made = GaussianMixture(
        R,
        covariance_type=kind,
        weights_init=weights,
        means_init=means,
        precisions_init=precisions,
        reg_covar=0.0,
        max_iter=1,
    )
    made._initialize(np.zeros((1, d)), np.full((1, R), 1.0 / R))
    return made


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        ("identity", "spherical"),
        ("spherical", "spherical"),
        ("diag", "diag"),
        ("tied", "tied"),
        ("tied", "full"),
    ],
)
def test_responsibilities_and_scores_equal_scikit_learn(kind, theirs):
    clients = ragged()
    given_ = parameters(kind)
    joint = gm.log_joint(gm.prepare(clients), given_)
    score = logsumexp(joint, axis=1)
    for k in (3, 4, 5, 8):
        X, rows = clients.client(k)[0], slice(clients.offsets[k], clients.offsets[k + 1])
        oracle = sklearn_mixture(
            given_.weights[k], given_.means[k], dense(given_.covariance, k, 3), theirs
        )
        np.testing.assert_allclose(score[rows], oracle.score_samples(X), atol=1e-10)
        share = np.exp(joint[rows] - score[rows, None])
        np.testing.assert_allclose(share, oracle.predict_proba(X), atol=1e-10)


def test_one_em_step_with_a_tied_covariance_equals_scikit_learn():
    clients = ragged()
    given_ = parameters("tied")
    new, loglik = gm.em_step(gm.prepare(clients), given_)
    for k in (5, 8):
        X = clients.client(k)[0]
        oracle = sklearn_mixture(given_.weights[k], given_.means[k], given_.covariance[k], "tied")
        mean_loglik, log_share = oracle._e_step(X)
        oracle._m_step(X, log_share)
        np.testing.assert_allclose(loglik[k], mean_loglik * len(X), rtol=1e-12)
        np.testing.assert_allclose(new.weights[k], oracle.weights_, atol=1e-12)
        np.testing.assert_allclose(new.means[k], oracle.means_, atol=1e-11)
        np.testing.assert_allclose(new.covariance[k], oracle.covariances_, atol=1e-11)


@pytest.mark.parametrize("kind", ["spherical", "diag"])
def test_one_em_step_pools_the_variances_scikit_learn_gives_per_component(kind):
    clients = ragged()
    given_ = parameters(kind)
    new, _ = gm.em_step(gm.prepare(clients), given_)
    for k in (5, 8):
        X = clients.client(k)[0]
        oracle = sklearn_mixture(
            given_.weights[k], given_.means[k], dense(given_.covariance, k, 3), kind
        )
        oracle._m_step(X, oracle._e_step(X)[1])
        np.testing.assert_allclose(new.weights[k], oracle.weights_, atol=1e-12)
        np.testing.assert_allclose(new.means[k], oracle.means_, atol=1e-11)
        pooled = np.tensordot(oracle.weights_, oracle.covariances_, axes=1)
        np.testing.assert_allclose(new.covariance[k], pooled, atol=1e-11)


def test_scatter_added_over_sites_gives_the_covariance_of_all_rows():
    clients = ragged()
    chosen = clients.take(np.array([3, 4, 5, 8]))
    rows, given_ = gm.prepare(chosen), parameters("tied", m=4)
    common = given_._replace(covariance=given_.covariance[:1])
    found = gm.expect(rows, common)
    means = gm.maximise(found.packed, common.means)
    scatter = gm.within_scatter(rows, found, means, "tied").sum(axis=0)
    joint = gm.log_joint(gm.prepare(chosen), common)
    share = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    expected = np.zeros((3, 3))
    for i, x in enumerate(chosen.X):
        for r in range(4):
            away = x - means[chosen.owner[i], r]
            expected += share[i, r] * np.outer(away, away)
    np.testing.assert_allclose(scatter, expected, rtol=1e-11)
    diagonal = gm.within_scatter(rows, found, means, "diag").sum(axis=0)
    np.testing.assert_allclose(diagonal, np.diag(expected), rtol=1e-11)
    number = gm.within_scatter(rows, found, means, "spherical").sum()
    np.testing.assert_allclose(number, np.trace(expected), rtol=1e-11)


def test_scatter_about_means_that_are_not_the_m_step():
    clients = ragged().take(np.array([5]))
    rows, given_ = gm.prepare(clients), parameters("tied", m=1)
    found = gm.expect(rows, given_)
    joint = gm.log_joint(gm.prepare(clients), given_)
    share = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    away = clients.X[:, None] - given_.means[0]
    expected = np.einsum("nr,nri,nrj->ij", share, away, away)
    for kind, part in (
        ("tied", expected),
        ("diag", np.diag(expected)),
        ("spherical", np.trace(expected)),
    ):
        scatter = gm.within_scatter(rows, found, given_.means, kind)[0]
        np.testing.assert_allclose(scatter, part, rtol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_equals_finite_differences_of_q(kind):
    clients = ragged().take(np.array([5]))
    given_ = parameters(kind, m=1)
    X, found = clients.client(0)[0], gm.expect(gm.prepare(clients), given_)
    covariance = dense(given_.covariance, 0, 3)
    joint = brute_force(X, given_.weights[0], given_.means[0], covariance)
    share = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))

    def q(means):
        return (share * brute_force(X, given_.weights[0], means, covariance)).sum() / len(X)

    direction = gm.ascent_direction(found, given_.means)
    gradient = gm.times_precision(given_, direction)[0]
    for r in range(4):
        for j in range(3):
            bump = np.zeros((4, 3))
            bump[r, j] = 1e-4
            slope = (q(given_.means[0] + bump) - q(given_.means[0] - bump)) / 2e-4
            assert gradient[r, j] == pytest.approx(slope, abs=1e-7)


def test_clipping_bounds_the_pull_of_every_row():
    clients = ragged().take(np.array([5, 8]))
    for kind in KINDS:
        given_, clip = parameters(kind, m=2), 0.7
        found = gm.expect(gm.prepare(clients), given_, clip=clip)
        plain = gm.expect(gm.prepare(clients), given_)
        np.testing.assert_allclose(found.counts, plain.counts, rtol=1e-12)
        np.testing.assert_allclose(found.loglik, plain.loglik, rtol=1e-12)
        for k in range(2):
            X, covariance = clients.client(k)[0], dense(given_.covariance, k, 3)
            joint = brute_force(X, given_.weights[k], given_.means[k], covariance)
            share = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
            pull = np.zeros((4, 3))
            for i, x in enumerate(X):
                for r in range(4):
                    away = x - given_.means[k, r]
                    length = share[i, r] * np.sqrt(away @ np.linalg.solve(covariance, away))
                    pull[r] += share[i, r] * away * min(1.0, clip / length)
            got = found.sums[k] - found.pulls[k][:, None] * given_.means[k]
            np.testing.assert_allclose(got, pull, atol=1e-10)


def test_a_clip_no_row_reaches_changes_nothing():
    clients = ragged()
    given_ = near(clients, "diag")
    rows = gm.prepare(clients)
    held, plain = gm.expect(rows, given_, clip=1e9), gm.expect(rows, given_)
    assert_same(held._replace(clipped=None), plain)
    for kind in ("spherical", "diag", "tied"):
        np.testing.assert_allclose(
            gm.within_scatter(rows, held, given_.means, kind),
            gm.within_scatter(rows, plain, given_.means, kind),
            atol=1e-9,
        )


# -------------------------------------------------------------------- steps


def test_gradient_step_of_one_over_the_new_weight_is_the_full_m_step():
    clients = ragged()
    given_ = parameters("diag")
    found = gm.expect(gm.prepare(clients), given_)
    weights = mixture_weights(found.counts, given_.weights)
    alive = found.counts > 1e-3
    step = np.where(alive, 1.0 / np.where(alive, weights, 1.0), 0.0)
    moved = given_.means + step[..., None] * gm.ascent_direction(found, given_.means)
    full = gm.maximise(found.packed, given_.means)
    # The far client (at 1e6) has means near zero here: compare in units of its own distance.
    scale = np.maximum(1.0, np.abs(full).max(axis=(1, 2), keepdims=True))
    np.testing.assert_allclose((moved / scale)[alive], (full / scale)[alive], atol=1e-11)


def test_a_component_without_rows_keeps_its_mean_and_loses_its_weight():
    clients = Federation.from_clients([np.zeros((4, 2))])
    given_ = gm.Parameters(np.full((1, 2), 0.5), np.array([[[0.0, 0.0], [1e3, 0.0]]]))
    new, _ = gm.em_step(gm.prepare(clients), given_)
    np.testing.assert_array_equal(new.means[0], [[0, 0], [1e3, 0]])
    assert new.weights[0, 0] == 1.0 and new.weights[0, 1] < 1e-200
    again, loglik = gm.em_step(gm.prepare(clients), new)
    assert np.isfinite(loglik).all() and np.isfinite(again.means).all()


@pytest.mark.parametrize("kind", KINDS)
def test_log_likelihood_of_local_em_never_falls(kind):
    clients = ragged()
    rows = gm.prepare(clients)
    current = starts.kmeans_start(rows, 4, 3, KeyRing(clients.names, 0).at(0), kind)
    path = []
    for _ in range(40):
        current, loglik = gm.em_step(rows, current)
        path.append(loglik)
    path = np.array(path)
    gains = np.diff(path, axis=0)
    assert (gains >= -1e-11 * (1 + np.abs(path[1:]))).all()
    assert gains[:, -1].sum() > 1.0, "the test must see EM climb"


# -------------------------------------------------------------------- invariants


@pytest.mark.parametrize("kind", KINDS)
def test_one_block_equals_many_blocks_and_one_client_at_a_time(kind, monkeypatch):
    clients = ragged()
    given_ = near(clients, kind)
    whole = gm.expect(gm.prepare(clients), given_)
    monkeypatch.setattr(row_blocks, "CHUNK_ELEMENTS", 97)
    assert_same(gm.expect(gm.prepare(clients), given_), whole)
    for k in range(clients.n_clients):
        who = np.array([k])
        own = gm.Parameters(*(None if a is None else a[who] for a in given_))
        alone = gm.expect(gm.prepare(clients.take(who)), own)
        assert_same(alone, of(whole, who))


@pytest.mark.parametrize("kind", KINDS)
def test_taking_clients_from_the_cache_equals_preparing_them(kind):
    clients = ragged()
    who = np.array([8, 0, 3, 6])
    given_ = near(clients, kind)
    own = gm.Parameters(*(None if a is None else a[who] for a in given_))
    taken = gm.expect(gm.prepare(clients).take(who), own)
    assert_same(taken, gm.expect(gm.prepare(clients.take(who)), own))
    assert_same(taken, of(gm.expect(gm.prepare(clients), given_), who))


def test_padding_has_no_influence():
    clients = Federation.from_clients([np.ones((4, 2)), np.full((5, 2), 3.0)])
    rows = gm.prepare(clients)
    assert len(rows.blocks) == 1, "the test needs both clients in one padded block"
    block = rows.blocks[0].data
    assert block.shape == (2, 3, 5) and (block[0, :, 4] == 0).all()
    given_ = parameters("spherical", m=2, d=2)
    before = gm.expect(rows, given_)
    np.testing.assert_allclose(before.counts.sum(axis=1), [4, 5], rtol=1e-14)
    alone = gm.expect(
        gm.prepare(clients.take(np.array([0]))), gm.Parameters(*(a[:1] for a in given_))
    )
    np.testing.assert_allclose(before.loglik[0], alone.loglik[0], rtol=1e-14)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=7).filter(any),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10**6),
)
def test_client_order_is_irrelevant_and_counts_add_up(sizes, kind, seed):
    rng = np.random.default_rng(seed)
    clients = Federation.from_clients([rng.normal(size=(n, 2)) * 3 for n in sizes])
    given_ = parameters(kind, m=len(sizes), R=3, d=2, seed=seed)
    found = gm.expect(gm.prepare(clients), given_)
    np.testing.assert_allclose(found.counts.sum(axis=1), sizes, atol=1e-10)
    totals = [X.sum(axis=0) for X, _ in each(clients)]
    np.testing.assert_allclose(found.sums.sum(axis=1), totals, atol=1e-9)
    who = rng.permutation(len(sizes))
    moved = gm.Parameters(*(None if a is None else a[who] for a in given_))
    other = gm.expect(gm.prepare(clients.take(who)), moved)
    assert_same(other, of(found, who))


@pytest.mark.parametrize("kind", KINDS)
def test_restarts_side_by_side_equal_restarts_one_by_one(kind):
    clients = ragged()
    given_ = near(clients, kind, lead=(3,))
    rows = gm.prepare(clients)
    together, loglik = gm.em_step(rows, given_)
    clipped = gm.expect(rows, given_, clip=0.5)
    for s in range(3):
        own = gm.Parameters(*(None if a is None else a[:, s] for a in given_))
        alone, own_loglik = gm.em_step(rows, own)
        assert_same(gm.Parameters(*(None if a is None else a[:, s] for a in together)), alone)
        np.testing.assert_allclose(loglik[:, s], own_loglik, rtol=1e-12)
        np.testing.assert_allclose(
            clipped.pulls[:, s], gm.expect(rows, own, clip=0.5).pulls, atol=1e-11
        )


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_common_to_all_clients_need_one_row(kind):
    clients = ragged()
    own = parameters(kind)
    one = gm.Parameters(*(None if a is None else a[:1] for a in own))
    many = gm.Parameters(
        *(None if a is None else np.repeat(a[:1], len(SIZES), axis=0) for a in own)
    )
    assert_same(gm.expect(gm.prepare(clients), one), gm.expect(gm.prepare(clients), many))


def test_moving_all_rows_far_away_moves_only_the_means():
    clients = ragged().take(np.array([5, 8]))
    far = Federation.from_clients([X + 2.0**20 for X, _ in each(clients)])
    given_ = parameters("tied", m=2)
    moved = given_._replace(means=given_.means + 2.0**20)
    one, loglik = gm.em_step(gm.prepare(clients), given_)
    other, far_loglik = gm.em_step(gm.prepare(far), moved)
    # 2^20 leaves 33 of 53 bits for the rows themselves.
    np.testing.assert_allclose(far_loglik, loglik, rtol=1e-8)
    np.testing.assert_allclose(other.means - 2.0**20, one.means, atol=1e-8)
    np.testing.assert_allclose(other.covariance, one.covariance, atol=1e-7)


def test_far_components_cost_no_accuracy_and_no_overflow():
    clients = Federation.from_clients([np.array([[0.0], [1e8]])])
    given_ = gm.Parameters(np.full((1, 2), 0.5), np.array([[[0.0], [1e8]]]))
    new, loglik = gm.em_step(gm.prepare(clients), given_)
    np.testing.assert_allclose(new.means[0, :, 0], [0.0, 1e8], atol=1e-6)
    np.testing.assert_allclose(new.weights[0], [0.5, 0.5])
    assert np.isfinite(loglik).all()


# -------------------------------------------------------------------- mini-batches


def test_a_batch_holds_so_many_different_rows_of_every_client():
    clients = ragged()
    rows = gm.prepare(clients)
    batch = rows.batch(KeyRing(clients.names, 3).at(1), 10)
    np.testing.assert_array_equal(batch.sizes, np.minimum(SIZES, 10))
    for block in batch.blocks:
        for data, k in zip(block.data, block.clients):
            drawn = data[:-1, data[-1] == 1].T + batch.centre[k]
            own = clients.client(k)[0]
            assert len(drawn) == min(SIZES[k], 10)
            apart = np.abs(drawn[:, None] - own[None]).max(axis=-1)
            assert (apart.min(axis=1) < 1e-9).all()
            if k in (3, 5, 8):
                assert len(np.unique(apart.argmin(axis=1))) == 10
    found = gm.expect(batch, near(clients, "identity"))
    np.testing.assert_allclose(found.counts.sum(axis=1), np.minimum(SIZES, 10))


def test_padding_is_never_drawn_into_a_batch():
    clients = Federation.from_clients([np.ones((n, 2)) for n in (8, 9, 10)])
    rows, ring = gm.prepare(clients), KeyRing(clients.names, 0)
    assert len(rows.blocks) == 1
    for t in range(30):
        block = rows.batch(ring.at(t), 7).blocks[0]
        assert block.data.shape == (3, 3, 7) and (block.data[:, -1] == 1).all()


def test_which_rows_are_drawn_depends_on_the_name_and_the_ask_alone():
    clients = ragged()
    ring = KeyRing(clients.names, 3)
    given_ = near(clients, "identity")
    drawn = gm.expect(gm.prepare(clients).batch(ring.at(1), 10), given_)
    again = gm.expect(gm.prepare(clients).batch(ring.at(2), 10), given_)
    assert np.abs(drawn.sums[8] - again.sums[8]).max() > 1e-3
    who = np.array([8, 3])
    own = gm.Parameters(given_.weights[who], given_.means[who])
    some = gm.prepare(clients.take(who)).batch(ring.at(1, who), 10)
    assert_same(gm.expect(some, own), of(drawn, who))


def test_batches_average_to_all_rows():
    rng = np.random.default_rng(0)
    clients = Federation.from_clients([rng.normal(size=(30, 2)), rng.normal(size=(20, 2))])
    rows, ring = gm.prepare(clients), KeyRing(clients.names, 0)
    given_ = parameters("identity", m=2, R=2, d=2)
    drawn = np.array([gm.expect(rows.batch(ring.at(t), 5), given_).counts / 5 for t in range(2000)])
    expected = gm.expect(rows, given_).counts / clients.sizes[:, None]
    error = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - expected) < 4 * error).all()


# -------------------------------------------------------------------- local starts


def separated(seed=0, sizes=(80, 120, 100), d=4, R=3):
    rng = np.random.default_rng(seed)
    centers = 8.0 * rng.normal(size=(R, d))
    labels = [rng.permutation(np.arange(n) % R) for n in sizes]
    return (
        Federation.from_clients([centers[z] + rng.normal(size=(len(z), d)) for z in labels]),
        labels,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("init", ["kmeans++", "ward"])
def test_local_em_finds_separated_groups(kind, init):
    clients, labels = separated()
    keys = KeyRing(clients.names, 0).at(0)
    found = local_em(gm.prepare(clients), 3, keys, init=init, kind=kind)
    assert found.converged.all()
    for k, (X, _) in enumerate(each(clients)):
        own = np.array([X[labels[k] == r].mean(axis=0) for r in range(3)])
        apart = np.linalg.norm(own[:, None] - found.parameters.means[k], axis=-1)
        assert (np.sort(apart.argmin(axis=1)) == np.arange(3)).all()
        assert apart.min(axis=1).max() < 1e-3
    joint = gm.log_joint(gm.prepare(clients), found.parameters)
    total = np.bincount(clients.owner, logsumexp(joint, axis=1))
    np.testing.assert_allclose(found.loglik, total, rtol=1e-10)


def test_ward_start_is_the_m_step_of_separated_groups():
    clients, labels = separated()
    start = gm.Parameters(*(a[:, 0] for a in starts.ward_start(gm.prepare(clients), 3, "tied")))
    for k, (X, _) in enumerate(each(clients)):
        own = np.array([X[labels[k] == r].mean(axis=0) for r in range(3)])
        place = np.linalg.norm(own[:, None] - start.means[k], axis=-1).argmin(axis=1)
        np.testing.assert_allclose(start.means[k, place], own, atol=1e-12)
        share = np.bincount(labels[k]) / len(X)
        np.testing.assert_allclose(start.weights[k, place], share, atol=1e-12)
        away = X - own[labels[k]]
        np.testing.assert_allclose(start.covariance[k], away.T @ away / len(X), atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("init", ["kmeans++", "ward"])
def test_local_em_of_a_client_ignores_who_else_is_there(kind, init):
    clients = ragged()
    ring = KeyRing(clients.names, 5)
    keywords = {"n_restarts": 3, "init": init, "kind": kind, "max_iter": 30}
    whole = local_em(gm.prepare(clients), 4, ring.at(0), **keywords)
    for a in whole.parameters:
        assert a is None or np.isfinite(a).all()
    assert np.isfinite(whole.loglik).all()
    for k in range(clients.n_clients):
        who = np.array([k])
        rows = gm.prepare(clients.take(who))
        alone = local_em(rows, 4, ring.at(0, who), **keywords)
        assert alone.n_iter[0] == whole.n_iter[k]
        assert_same(
            alone.parameters,
            gm.Parameters(*(None if a is None else a[who] for a in whole.parameters)),
            tol=1e-11,
        )


def test_more_restarts_are_never_less_likely():
    clients = ragged()
    rows, keys = gm.prepare(clients), KeyRing(clients.names, 0).at(0)
    start = starts.kmeans_start(rows, 4, 8, keys)
    reached = climb(rows, start, gm.em_step, 200, 1e-6).loglik
    best = local_em(rows, 4, keys, n_restarts=8)
    # Restarts that agree to RELATIVE are equally likely, and the first of them is kept.
    np.testing.assert_allclose(best.loglik, reached.max(axis=1), rtol=RELATIVE)
    assert (reached == best.loglik[:, None]).any(axis=1).all()
    assert (reached.max(axis=1) > reached.min(axis=1) + 0.5).any()


def test_seeds_are_rows_of_the_client_and_differ_while_rows_do():
    clients = ragged()
    start = starts.kmeans_start(gm.prepare(clients), 4, 5, KeyRing(clients.names, 1).at(0))
    for k, (X, _) in enumerate(each(clients)):
        for seeds in start.means[k]:
            if len(X) == 0:
                assert (seeds == 0).all()
                continue
            apart = np.abs(seeds[:, None] - X[None]).max(axis=-1)
            assert apart.min(axis=1).max() < 1e-9 * max(1.0, np.abs(X).max())
            distinct = len(np.unique(X, axis=0))
            assert len(np.unique(apart.argmin(axis=1))) >= min(4, distinct)


def test_once_all_distinct_rows_are_seeds_the_first_row_is_repeated():
    rows = 1e3 * np.random.default_rng(0).normal(size=(5, 37))
    clients = Federation.from_clients([np.tile(rows, (9, 1))])
    found = starts.kmeans_start(gm.prepare(clients), 9, 20, KeyRing(clients.names, 0).at(0))
    for seeds in found.means[0]:
        apart = np.abs(seeds[:, None] - rows).max(axis=-1)
        assert apart.min(axis=1).max() < 1e-9
        nearest = apart.argmin(axis=1)
        assert sorted(nearest[:5]) == [0, 1, 2, 3, 4] and (nearest[5:] == 0).all()


def test_rows_equal_but_for_rounding_count_as_equal():
    clients = Federation.from_clients([np.array([[0.1 + 0.2], [0.3], [0.3], [0.1 + 0.2]])])
    assert np.ptp(clients.X) > 0
    rows = gm.prepare(clients)
    assert gm.smallest_variance(rows)[0] == gm.SMALLEST_VARIANCE_SHARE
    for kind in KINDS[1:]:
        found = local_em(rows, 2, KeyRing(clients.names, 0).at(0), 2, "kmeans++", kind)
        np.testing.assert_allclose(np.ravel(found.parameters.covariance), 1e-6)


def test_fewer_rows_than_components_leave_finite_parameters():
    clients = Federation.from_clients([np.array([[1.0, 2.0]]), np.array([[0.0, 0.0], [5.0, 5.0]])])
    for init in ("kmeans++", "ward"):
        for kind in KINDS:
            found = local_em(gm.prepare(clients), 4, KeyRing(clients.names, 0).at(0), 2, init, kind)
            mean = (found.parameters.weights[..., None] * found.parameters.means).sum(axis=1)
            np.testing.assert_allclose(mean, [[1.0, 2.0], [2.5, 2.5]], atol=1e-9)
            np.testing.assert_allclose(found.parameters.weights.sum(axis=1), 1.0)
