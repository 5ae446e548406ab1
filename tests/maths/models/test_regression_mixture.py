"""Mixtures of regressions batched over ragged clients: against brute force, NumPy, invariants."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm

from fedkin.federation import Federation
from fedkin.models import regression_mixture as rm
from fedkin.models import regression_mixture_starts as starts
from fedkin.models import row_blocks
from fedkin.models.latent_classes import best_restart, climb
from fedkin.models.least_squares import packed_statistics, unpack
from fedkin.randomness import KeyRing

# Empty, one row, fewer rows than components, a constant column, duplicated rows, a doubled column.
SIZES = (0, 1, 3, 40, 41, 60, 150)
INTERCEPT = pytest.mark.parametrize("intercept", [False, True])


def ragged(seed=0, d=3):
    rng = np.random.default_rng(seed)
    sites = []
    for n in SIZES:
        X = rng.normal(size=(n, d))
        sites.append([X, X @ rng.normal(size=d) + 2.0 * rng.normal(size=n) + 1.0])
    sites[3][0][:, 1] = 2.0
    sites[4] = [np.repeat(a[:21], 2, axis=0)[:41] for a in sites[4]]
    sites[5][0][:, 2] = sites[5][0][:, 0]
    return Federation.from_clients([tuple(site) for site in sites])


def parameters(p, m=7, R=4, seed=1, lead=()):
    rng = np.random.default_rng(seed)
    return rm.Parameters(
        rng.dirichlet(np.ones(R), size=(m, *lead)),
        2.0 * rng.normal(size=(m, *lead, R, p)),
        rng.uniform(0.5, 2.0, size=(m, *lead)),
    )


def local_em(rows, n_components, keys, n_restarts=10, sigma=None, max_iter=200):
    """EM of every client from random starts; the likeliest end."""
    first = starts.random_start(rows, n_components, n_restarts, keys, sigma)
    step = partial(rm.em_step, learn_sigma=sigma is None)
    return best_restart(climb(rows, first, step, max_iter, 1e-6))


def designs(clients, intercept):
    for k in range(clients.n_clients):
        X, y = clients.client(k)
        yield (np.column_stack([X, np.ones(len(X))]) if intercept else X), y


def brute_force(X, y, weights, coef, sigma):
    """Log joint densities (n, R), one row and component at a time."""
    joint = np.empty((len(X), len(weights)))
    for i in range(len(X)):
        for r in range(len(weights)):
            joint[i, r] = np.log(weights[r]) + norm.logpdf(y[i], X[i] @ coef[r], sigma)
    return joint


def posterior(joint):
    return np.exp(joint - logsumexp(joint, axis=1, keepdims=True))


def assert_same(one, other, tol=1e-12):
    for name, a, b in zip(one._fields, one, other):
        if a is None or b is None:
            assert a is b
            continue
        scale = max(1.0, np.abs(b).max(initial=0.0))
        np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=tol, err_msg=name)


def of(kind, given_, who):
    return kind(*(None if a is None else a[who] for a in given_))


# -------------------------------------------------------------------- oracles


@INTERCEPT
def test_e_step_equals_brute_force_row_by_row(intercept):
    clients, given_ = ragged(), parameters(3 + intercept)
    found = rm.expect(rm.prepare(clients, intercept), given_)
    joint = rm.log_joint(rm.prepare(clients, intercept), given_)
    gram, cross, square, pulls = unpack(found.packed)
    for k, (X, y) in enumerate(designs(clients, intercept)):
        expected = brute_force(X, y, given_.weights[k], given_.coef[k], given_.sigma[k])
        share = posterior(expected)
        rows = slice(clients.offsets[k], clients.offsets[k + 1])
        np.testing.assert_allclose(joint[rows], expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found.counts[k], share.sum(axis=0), atol=1e-12)
        np.testing.assert_allclose(pulls[k], share.sum(axis=0), atol=1e-12)
        loglik = logsumexp(expected, axis=1).sum()
        np.testing.assert_allclose(found.loglik[k], loglik, rtol=1e-12, atol=1e-12)
        for r in range(4):
            w = share[:, r]
            np.testing.assert_allclose(gram[k, r], X.T @ (w[:, None] * X), atol=1e-11)
            np.testing.assert_allclose(cross[k, r], X.T @ (w * y), atol=1e-11)
            np.testing.assert_allclose(square[k, r], w @ y**2, atol=1e-11)


@INTERCEPT
def test_m_step_equals_weighted_least_squares_by_numpy(intercept):
    clients, given_ = ragged(), parameters(3 + intercept)
    rows = rm.prepare(clients, intercept)
    found = rm.expect(rows, given_)
    fit = rm.least_squares(found.packed)
    new, _ = rm.em_step(rows, given_)
    n_determined = 0
    for k, (X, y) in enumerate(designs(clients, intercept)):
        if k < 2:
            continue
        share = posterior(brute_force(X, y, given_.weights[k], given_.coef[k], given_.sigma[k]))
        left = 0.0
        for r in range(4):
            root = np.sqrt(share[:, r])[:, None]
            units = np.sqrt(np.maximum(((root * X) ** 2).sum(axis=0), 1e-300))
            design = root * X / units
            coef = np.linalg.lstsq(design, root[:, 0] * y, rcond=1e-9)[0] / units
            squares = share[:, r] @ (y - X @ coef) ** 2
            left += squares
            np.testing.assert_allclose(fit.squares[k, r], squares, atol=1e-9)
            if np.linalg.eigvalsh(design.T @ design).min() > 1e-8:
                n_determined += 1
                np.testing.assert_allclose(fit.coef[k, r], coef, rtol=1e-7, atol=1e-9)
                inverse = np.linalg.inv(X.T @ (share[:, [r]] * X))
                np.testing.assert_allclose(fit.variance[k, r], np.diag(inverse).mean(), rtol=1e-7)
            # What is fitted is determined even where coefficients are not; a Gram matrix does not
            # see shares below RANK_TOLERANCE = 1e-11, their roots are 3e-6.
            fitted = root * X @ fit.coef[k, r][:, None]
            np.testing.assert_allclose(fitted, root * X @ coef[:, None], atol=1e-4)
        if len(X) > 10:
            np.testing.assert_allclose(new.sigma[k], np.sqrt(left / len(X)), rtol=1e-10)
            np.testing.assert_allclose(new.weights[k], share.mean(axis=0), atol=1e-12)
            np.testing.assert_array_equal(new.coef[k], fit.coef[k])
    assert n_determined >= 8


def test_one_component_is_ordinary_least_squares():
    clients = ragged()
    alone = rm.Parameters(np.ones((7, 1)), np.zeros((7, 1, 4)), np.ones(7))
    found = rm.expect(rm.prepare(clients, True), alone)
    np.testing.assert_allclose(found.packed[:, 0], packed_statistics(clients, True).T, atol=1e-11)


def test_coefficients_the_rows_do_not_determine_are_marked_and_of_least_norm():
    clients = ragged()
    alone = rm.Parameters(np.ones((7, 1)), np.zeros((7, 1, 3)), np.ones(7))
    fit = rm.least_squares(rm.expect(rm.prepare(clients), alone).packed)
    np.testing.assert_array_equal(np.isinf(fit.variance[:, 0]), [1, 1, 0, 0, 0, 1, 0])
    assert fit.coef[5, 0, 2] == pytest.approx(fit.coef[5, 0, 0], rel=1e-9)
    assert np.isfinite(fit.coef).all()


def test_rescaling_a_column_rescales_its_coefficient():
    clients = ragged().take(np.array([6]))
    units = np.array([1e6, 1.0, 1e-6])
    scaled = Federation.from_clients([(clients.X * units, clients.y)])
    alone = rm.Parameters(np.ones((1, 1)), np.zeros((1, 1, 3)), np.ones(1))
    coef = rm.least_squares(rm.expect(rm.prepare(clients), alone).packed).coef
    other = rm.least_squares(rm.expect(rm.prepare(scaled), alone).packed).coef
    np.testing.assert_allclose(other * units, coef, rtol=1e-10)


@INTERCEPT
def test_gradient_equals_finite_differences_of_q(intercept):
    clients = ragged().take(np.array([6]))
    given_ = parameters(3 + intercept, m=1)
    found = rm.expect(rm.prepare(clients, intercept), given_)
    X, y = next(designs(clients, intercept))
    weights, sigma = given_.weights[0], given_.sigma[0]
    share = posterior(brute_force(X, y, weights, given_.coef[0], sigma))

    def q(coef):
        return (share * norm.logpdf(y[:, None], X @ coef.T, sigma)).sum() / len(X)

    gradient = rm.ascent_direction(found, given_.coef)[0] / sigma**2
    for r in range(4):
        for j in range(3 + intercept):
            bump = np.zeros_like(given_.coef[0])
            bump[r, j] = 1e-4
            slope = (q(given_.coef[0] + bump) - q(given_.coef[0] - bump)) / 2e-4
            assert gradient[r, j] == pytest.approx(slope, abs=1e-7)


def test_clipping_bounds_the_pull_of_every_row():
    clients = ragged().take(np.array([4, 6]))
    given_, clip = parameters(3, m=2), 0.4
    rows = rm.prepare(clients)
    found, plain = rm.expect(rows, given_, clip=clip), rm.expect(rows, given_)
    np.testing.assert_allclose(found.counts, plain.counts, rtol=1e-12)
    np.testing.assert_allclose(found.loglik, plain.loglik, rtol=1e-12)
    assert (found.packed[..., -1] < plain.packed[..., -1] - 0.1).all()
    direction = rm.ascent_direction(found, given_.coef)
    for k, (X, y) in enumerate(designs(clients, False)):
        sigma = given_.sigma[k]
        share = posterior(brute_force(X, y, given_.weights[k], given_.coef[k], sigma))
        for r in range(4):
            pull = (share[:, r] * (y - X @ given_.coef[k, r]))[:, None] * X
            length = np.linalg.norm(pull, axis=1) / sigma
            expected = (pull * np.minimum(1.0, clip / length)[:, None]).mean(axis=0)
            np.testing.assert_allclose(direction[k, r], expected, atol=1e-12)
    held = rm.expect(rows, given_, clip=1e9)
    assert_same(held._replace(squares=None), plain)
    np.testing.assert_allclose(held.squares, rm.residual_squares(plain, given_.coef), rtol=1e-9)


# -------------------------------------------------------------------- steps


def test_gradient_step_within_the_longest_step_climbs_and_beyond_twice_it_falls():
    clients = ragged().take(np.array([6]))
    alone = rm.Parameters(np.ones((1, 1)), np.full((1, 1, 3), 5.0), np.ones(1))
    rows = rm.prepare(clients)
    step = rm.longest_step(rm.expect(rows, alone))

    def after(times, n_steps=60):
        current = alone
        for _ in range(n_steps):
            found = rm.expect(rows, current)
            direction = rm.ascent_direction(found, current.coef)
            current = current._replace(coef=current.coef + times * step[..., None] * direction)
        return float(rm.expect(rows, current).loglik[0])

    before = float(rm.expect(rows, alone).loglik[0])
    best = float(rm.expect(rows, rm.em_step(rows, alone, learn_sigma=False)[0]).loglik[0])
    assert before < after(1.0) <= best + 1e-9
    assert after(1.0) == pytest.approx(best, abs=1e-6)
    assert after(2.2) < before


@INTERCEPT
@pytest.mark.parametrize("sigma", [None, 1.0])
def test_log_likelihood_of_local_em_never_falls(intercept, sigma):
    clients = ragged()
    rows = rm.prepare(clients, intercept)
    current = starts.random_start(rows, 3, 4, KeyRing(clients.names, 0).at(0), sigma)
    path = []
    for _ in range(40):
        current, loglik = rm.em_step(rows, current, learn_sigma=sigma is None)
        path.append(loglik)
    path = np.array(path)
    gains = np.diff(path, axis=0)
    assert (gains >= -1e-11 * (1 + np.abs(path[1:]))).all()
    assert gains[:, -1].sum() > 1.0, "the test must see EM climb"


def test_known_noise_stays_and_learnt_noise_is_found():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 2))
    label = rng.integers(0, 2, 4000)
    y = (X * np.array([[4.0, 0.0], [-4.0, 1.0]])[label]).sum(axis=1) + 0.5 * rng.normal(size=4000)
    clients = Federation.from_clients([(X, y)])
    rows, keys = rm.prepare(clients), KeyRing(clients.names, 0).at(0)
    learnt = local_em(rows, 2, keys).parameters
    assert learnt.sigma[0] == pytest.approx(0.5, abs=0.02)
    assert (local_em(rows, 2, keys, sigma=0.7).parameters.sigma == 0.7).all()
    order = np.argsort(-learnt.coef[0, :, 0])
    np.testing.assert_allclose(learnt.coef[0, order], [[4, 0], [-4, 1]], atol=0.06)
    np.testing.assert_allclose(learnt.weights[0], 0.5, atol=0.03)


def test_sampling_variance_is_that_of_repeated_draws():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(50, 3)) * [1.0, 2.0, 0.5]
    noise, coef = 1.7, np.array([1.0, -1.0, 2.0])
    fits = []
    alone = rm.Parameters(np.ones((1, 1)), np.zeros((1, 1, 3)), np.full(1, noise))
    for _ in range(1500):
        clients = Federation.from_clients([(X, X @ coef + noise * rng.normal(size=50))])
        found = rm.expect(rm.prepare(clients), alone)
        fits.append(rm.maximise(found.packed, alone.coef)[0, 0])
    seen = np.var(fits, axis=0).mean()
    # A variance from 1500 draws is known to sqrt(2 / 1500) = 3.7 %; three standard errors.
    assert rm.sampling_variance(found, alone.sigma)[0, 0] == pytest.approx(seen, rel=0.11)


# -------------------------------------------------------------------- invariants


@INTERCEPT
def test_one_block_equals_many_blocks_and_one_client_at_a_time(intercept, monkeypatch):
    clients, given_ = ragged(), parameters(3 + intercept)
    whole = rm.expect(rm.prepare(clients, intercept), given_)
    monkeypatch.setattr(row_blocks, "CHUNK_ELEMENTS", 211)
    assert_same(rm.expect(rm.prepare(clients, intercept), given_), whole)
    for k in range(clients.n_clients):
        who = np.array([k])
        alone = rm.expect(rm.prepare(clients.take(who), intercept), of(rm.Parameters, given_, who))
        assert_same(alone, of(rm.Statistics, whole, who))


def test_taking_clients_from_the_cache_equals_preparing_them():
    clients, given_, who = ragged(), parameters(3), np.array([6, 0, 3])
    own = of(rm.Parameters, given_, who)
    taken = rm.expect(rm.prepare(clients).take(who), own)
    assert_same(taken, rm.expect(rm.prepare(clients.take(who)), own))


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=7).filter(any),
    intercept=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_client_order_is_irrelevant_and_statistics_add_up(sizes, intercept, seed):
    rng = np.random.default_rng(seed)
    clients = Federation.from_clients(
        [(rng.normal(size=(n, 2)), rng.normal(size=n)) for n in sizes]
    )
    given_ = parameters(2 + intercept, m=len(sizes), R=3, seed=seed)
    found = rm.expect(rm.prepare(clients, intercept), given_)
    np.testing.assert_allclose(found.counts.sum(axis=1), sizes, atol=1e-11)
    total = packed_statistics(clients, intercept).T
    np.testing.assert_allclose(found.packed.sum(axis=1), total, atol=1e-10)
    who = rng.permutation(len(sizes))
    other = rm.expect(rm.prepare(clients.take(who), intercept), of(rm.Parameters, given_, who))
    assert_same(other, of(rm.Statistics, found, who))


def test_restarts_side_by_side_equal_restarts_one_by_one():
    clients, given_ = ragged(), parameters(4, lead=(3,))
    rows = rm.prepare(clients, True)
    together = rm.expect(rows, given_, clip=0.5)
    new, loglik = rm.em_step(rows, given_)
    for s in range(3):
        own = rm.Parameters(*(a[:, s] for a in given_))
        alone = rm.expect(rows, own, clip=0.5)
        np.testing.assert_allclose(together.packed[:, s], alone.packed, atol=1e-11)
        np.testing.assert_allclose(together.counts[:, s], alone.counts, atol=1e-12)
        own_new, own_loglik = rm.em_step(rows, own)
        np.testing.assert_allclose(loglik[:, s], own_loglik, rtol=1e-12)
        np.testing.assert_allclose(new.sigma[:, s], own_new.sigma, rtol=1e-9)


def test_coefficients_common_to_all_clients_need_one_row():
    clients, own = ragged(), parameters(3, lead=(2,))
    common = own._replace(coef=own.coef[:1], sigma=own.sigma[:1])
    many = own._replace(
        coef=np.repeat(own.coef[:1], 7, axis=0), sigma=np.repeat(own.sigma[:1], 7, axis=0)
    )
    assert_same(rm.expect(rm.prepare(clients), common), rm.expect(rm.prepare(clients), many))


def test_a_batch_of_rows_keeps_x_and_y_together():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    clients = Federation.from_clients([(X, X @ [1.0, 2.0])])
    batch = rm.prepare(clients).batch(KeyRing(clients.names, 0).at(0), 7)
    alone = rm.Parameters(np.ones((1, 1)), np.zeros((1, 1, 2)), np.ones(1))
    found = rm.expect(batch, alone)
    assert found.packed[0, 0, -1] == 7
    np.testing.assert_allclose(rm.least_squares(found.packed).coef[0, 0], [1, 2], atol=1e-12)


@INTERCEPT
@pytest.mark.parametrize("sigma", [None, 1.0])
def test_local_em_of_a_client_ignores_who_else_is_there(intercept, sigma):
    clients = ragged()
    ring = KeyRing(clients.names, 5)
    keywords = {"n_restarts": 3, "sigma": sigma, "max_iter": 15}
    whole = local_em(rm.prepare(clients, intercept), 2, ring.at(0), **keywords)
    assert all(np.isfinite(a).all() for a in whole.parameters)
    assert np.isfinite(whole.loglik).all()
    for k in range(clients.n_clients):
        who = np.array([k])
        rows = rm.prepare(clients.take(who), intercept)
        alone = local_em(rows, 2, ring.at(0, who), **keywords)
        np.testing.assert_allclose(alone.loglik[0], whole.loglik[k], rtol=1e-11)
        assert_same(alone.parameters, of(rm.Parameters, whole.parameters, who), tol=1e-10)


def test_a_federation_without_target_is_told_so():
    with pytest.raises(ValueError, match="target"):
        rm.prepare(Federation.from_clients([np.zeros((3, 2))]))


@pytest.mark.parametrize("seed", range(8))
def test_local_em_finds_two_regressions_in_a_few_dozen_rows(seed):
    """At least as likely as EM from the truth; groups of all rows alone end elsewhere (seed 0)."""
    rng = np.random.default_rng(seed)
    coef = np.array([[2.0, -1.0, 0.5], [-2.0, 1.0, 3.0]])
    group = np.arange(45) % 2
    X = np.array([[3.0, 0.0, -3.0], [-3.0, 1.0, 3.0]])[group] + rng.normal(size=(45, 3))
    y = (X * coef[group]).sum(axis=1) + 0.5 * rng.normal(size=45)
    rows = rm.prepare(Federation.from_clients([(X, y)]))
    found = local_em(rows, 2, KeyRing(("site-1",), seed).at(0))
    near = rm.Parameters(np.full((1, 2), 0.5), coef[None], np.array([0.5]))
    for _ in range(100):
        near, loglik = rm.em_step(rows, near)
    assert found.loglik[0] > loglik[0] - 0.1
