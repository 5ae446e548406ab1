"""Softmax regressions pulled towards a common one, against brute force and scikit-learn."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from fedkin.federation import Federation
from fedkin.models import softmax_mixed_fit
from fedkin.models.generalised_mixed import marginal as two_class_marginal
from fedkin.models.glm_rows import GlmRows
from fedkin.models.random_covariance import shape_of
from fedkin.models.softmax_mixed import (
    LabelledRows,
    SoftmaxPrior,
    find_modes,
    marginal,
    probabilities,
)
from fedkin.models.softmax_mixed_fit import left_out
from fedkin.models.softmax_variances import shared_by, variance_pattern

BLOCK = np.array([0, 0, 1])


def labelled(seed=0, sizes=(4, 7, 1, 12), n_classes=3, spread=1.0):
    rng = np.random.default_rng(seed)
    coef = rng.normal(size=(n_classes, 3))
    clients = []
    for n in sizes:
        X = rng.normal(size=(n, 2))
        own = coef + spread * rng.normal(size=coef.shape)
        share = probabilities(np.column_stack([X, np.ones(n)]) @ own.T)
        clients.append((X, (rng.random((n, 1)) > share.cumsum(axis=1)).sum(axis=1).astype(float)))
    return Federation.from_clients(clients)


def design(X):
    return np.column_stack([X, np.ones(len(X))])


# ------------------------------------------------------------------ Laplace and its slope


def test_laplace_is_mode_and_curvature():
    data = labelled()
    rng = np.random.default_rng(1)
    coef, logs = rng.normal(size=(3, 3)), 0.5 * rng.normal(size=(3, 2))
    prior = SoftmaxPrior(logs, BLOCK)
    found = marginal(LabelledRows.of(data, 3, True), coef, prior)
    precision = prior.precision()
    for k in (0, 1, 2):
        X, y = data.client(k)

        def height(flat, X=X, y=y):
            U = flat.reshape(3, 3)
            share = probabilities(design(X) @ (coef + U).T)
            logs = np.log(share[np.arange(len(y)), y.astype(int)]).sum()
            return 0.5 * (precision * U**2).sum() - logs

        best = minimize(height, np.zeros(9), method="BFGS", options={"gtol": 1e-9})
        step, curvature = 1e-4 * np.eye(9), np.empty((9, 9))
        for i in range(9):
            for j in range(9):
                corners = [
                    a * b * height(best.x + a * step[i] + b * step[j])
                    for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1))
                ]
                curvature[i, j] = sum(corners) / 4e-8
        expected = -best.fun + 0.5 * np.log(precision).sum()
        expected -= 0.5 * np.linalg.slogdet(curvature)[1]
        assert found.loglik[k] == pytest.approx(expected, abs=1e-4)
        np.testing.assert_allclose(found.modes[k].ravel(), best.x, atol=1e-5)


def test_the_slope_is_that_of_the_value():
    rows = LabelledRows.of(labelled(), 3, True)
    rng = np.random.default_rng(2)
    at = np.concatenate([rng.normal(size=9), 0.5 * rng.normal(size=6)])

    def evaluated(numbers):
        prior = SoftmaxPrior(numbers[9:].reshape(3, 2), BLOCK)
        return marginal(rows, numbers[:9].reshape(3, 3), prior)

    found = evaluated(at)
    slope = np.concatenate(
        [found.coef_slope.reshape(4, -1), found.variance_slope.reshape(4, -1)], axis=1
    )
    for k in range(len(at)):
        step = 1e-5 * np.eye(len(at))[k]
        expected = (evaluated(at + step).loglik - evaluated(at - step).loglik) / 2e-5
        np.testing.assert_allclose(slope[:, k], expected, atol=1e-6)


def test_two_classes_are_the_binomial_mixed_model():
    """The difference of two classes' departures has twice their variance."""
    data = labelled(3, n_classes=2, sizes=(5, 9, 3))
    variance, rng = 0.7, np.random.default_rng(4)
    coef = rng.normal(size=(2, 3))
    prior = SoftmaxPrior(np.full((2, 2), np.log(variance)), BLOCK)
    found = marginal(LabelledRows.of(data, 2, True), coef, prior)
    rows = GlmRows.of(design(data.X), data.y, data.offsets, np.arange(3), "binomial")
    theta = np.full(3, np.sqrt(2 * variance))
    expected = two_class_marginal(rows, shape_of("diagonal", 3), coef[1] - coef[0], theta)
    np.testing.assert_allclose(found.loglik, expected.loglik, atol=1e-9)
    np.testing.assert_allclose(found.coef_slope[:, 1], expected.slope[:, :3], atol=1e-8)
    np.testing.assert_allclose(found.coef_slope[:, 0], -expected.slope[:, :3], atol=1e-8)


# ------------------------------------------------------------------ the fit at given variances


def test_no_departures_is_scikit_learns_softmax():
    data = labelled(5, sizes=(30, 50, 20), spread=0.0)
    rows = LabelledRows.of(data, 3, True)
    prior = SoftmaxPrior(np.full((3, 2), -20.0), BLOCK)
    ridge = np.full((3, 3), 0.5)
    ridge[:, -1] = 1e-8
    found = softmax_mixed_fit.fit_at(rows, prior, ridge)
    peer = LogisticRegression(C=2.0, tol=1e-10, max_iter=1000).fit(data.X, data.y)
    share = probabilities(design(data.X) @ found.state.coef.T)
    np.testing.assert_allclose(share, peer.predict_proba(data.X), atol=1e-4)
    np.testing.assert_allclose(found.state.departures, 0.0, atol=1e-6)


def test_the_fit_is_where_all_slopes_vanish():
    data = labelled(6, sizes=(20, 30, 5, 0, 12))
    rows = LabelledRows.of(data, 3, True)
    prior, ridge = SoftmaxPrior(np.log([[0.5, 1.0]] * 3), BLOCK), np.full((3, 3), 0.3)
    found = softmax_mixed_fit.fit_at(rows, prior, ridge)
    assert found.at_rest
    total = ridge * found.state.coef
    for k in range(5):
        X, y = data.client(k)
        U = found.state.departures[k]
        share = probabilities(design(X) @ (found.state.coef + U).T)
        slope = (share - np.eye(3)[y.astype(int)]).T @ design(X)
        np.testing.assert_allclose(slope + prior.precision() * U, 0.0, atol=1e-3)
        total = total + slope
    np.testing.assert_allclose(total, 0.0, atol=1e-3)
    np.testing.assert_allclose(found.state.departures[3], 0.0, atol=1e-6)


def test_client_order_is_irrelevant():
    data = labelled(7, sizes=(20, 30, 5, 12))
    prior, ridge = SoftmaxPrior(np.log([[0.5, 1.0]] * 3), BLOCK), np.full((3, 3), 0.3)
    one = softmax_mixed_fit.fit_at(LabelledRows.of(data, 3, True), prior, ridge)
    turned = data.take([3, 1, 0, 2])
    two = softmax_mixed_fit.fit_at(LabelledRows.of(turned, 3, True), prior, ridge)
    np.testing.assert_allclose(one.state.coef, two.state.coef, atol=1e-8)
    np.testing.assert_allclose(one.state.departures[[3, 1, 0, 2]], two.state.departures, atol=1e-8)


def test_rows_left_out_lose_what_a_fit_without_them_loses():
    data = labelled(8, sizes=(40, 30, 50), spread=0.5)
    prior, ridge = SoftmaxPrior(np.log([[0.5, 1.0]] * 3), BLOCK), np.full((3, 3), 0.5)
    rows = LabelledRows.of(data, 3, True)
    state = softmax_mixed_fit.fit_at(rows, prior, ridge).state
    judged = softmax_mixed_fit.judged(rows, prior, ridge, state)
    losses, inside = [], []
    for r in range(len(data.X)):
        keep = np.arange(len(data.X)) != r
        names = np.array(data.names)[data.owner]
        less = Federation.from_groups(data.X[keep], names[keep], data.y[keep])
        found = softmax_mixed_fit.fit_at(LabelledRows.of(less, 3, True), prior, ridge).state
        k = int(data.owner[r])
        for at, kept in ((found, losses), (state, inside)):
            share = probabilities(design(data.X[r : r + 1]) @ (at.coef + at.departures[k]).T)
            kept.append(-np.log(share[0, int(data.y[r])]))
    # The loss on the rows fitted to is far from it.
    assert judged.loss == pytest.approx(np.mean(losses), rel=0.03)
    assert np.mean(inside) < 0.9 * np.mean(losses)


def test_the_evidence_is_that_of_dense_matrices():
    data = labelled(9, sizes=(6, 9, 4))
    prior, ridge = SoftmaxPrior(np.log([[0.5, 1.0]] * 3), BLOCK), np.full((3, 3), 0.4)
    rows = LabelledRows.of(data, 3, True)
    state = softmax_mixed_fit.fit_at(rows, prior, ridge).state
    K = np.diag(prior.precision().ravel())
    joint = np.zeros((36, 36))
    joint[:9, :9] = np.diag(ridge.ravel())
    height = 0.5 * (ridge * state.coef**2).sum()
    for k in range(3):
        X, y = design(data.client(k)[0]), data.client(k)[1].astype(int)
        U = state.departures[k]
        share = probabilities(X @ (state.coef + U).T)
        height += 0.5 * (prior.precision() * U**2).sum()
        height -= np.log(share[np.arange(len(y)), y]).sum()
        H = np.zeros((9, 9))
        for x, p in zip(X, share):
            H += np.kron(np.diag(p) - np.outer(p, p), np.outer(x, x))
        own = slice(9 + 9 * k, 18 + 9 * k)
        joint[:9, :9] += H
        joint[:9, own] = joint[own, :9] = H
        joint[own, own] = H + K
    expected = -height - 0.5 * np.linalg.slogdet(joint)[1]
    expected += 0.5 * np.log(ridge).sum() + 1.5 * np.log(prior.precision()).sum()
    found = softmax_mixed_fit.judged(rows, prior, ridge, state).evidence
    assert found == pytest.approx(expected, abs=1e-4)


# ------------------------------------------------------------------ variances of single classes


def test_variances_of_classes_are_found_where_departures_are_known():
    """Departures known to the last digit: the estimate is their mean square, around its level."""
    rng = np.random.default_rng(10)
    truth = np.array([0.1, 1.0, 3.0])
    own = rng.normal(size=(4000, 3, 5)) * np.sqrt(truth)[:, None]
    logs, block = np.zeros((3, 5)), shared_by("isotropic", 4, True)
    found = variance_pattern(
        (own**2).sum(axis=0), np.full((3, 5), 4000.0), logs, block, np.arange(5) == 4
    )
    expected = np.log(truth) - np.log(truth).mean()
    np.testing.assert_allclose(found[:, 0], expected, atol=0.05)
    np.testing.assert_allclose(found[:, 4], expected, atol=0.1)
    np.testing.assert_array_equal(found[:, :4], found[:, :1].repeat(4, axis=1))
    again = variance_pattern(
        (own**2).sum(axis=0), np.full((3, 5), 4000.0), logs + found, block, np.arange(5) == 4
    )
    np.testing.assert_allclose(again, 0.0, atol=0.01)


def test_variances_of_columns_move_singly_with_a_diagonal_covariance():
    truth = np.array([[0.1, 1.0, 2.0], [3.0, 0.5, 1.0]])
    block = shared_by("diagonal", 2, True)
    found = variance_pattern(
        1e6 * truth, np.full((2, 3), 1e6), np.zeros((2, 3)), block, np.arange(3) == 2
    )
    features = np.log(truth[:, :2])
    np.testing.assert_allclose(found[:, :2], features - features.mean(), atol=1e-4)


def test_scatter_that_chance_explains_moves_no_variance():
    """With variances of one and two departures' worth of knowledge, nothing is believed."""
    rng = np.random.default_rng(11)
    moved = []
    for _ in range(200):
        squares = rng.chisquare(8.0, size=(6, 1))
        block = shared_by("isotropic", 1, False)
        told = variance_pattern(
            squares, np.full((6, 1), 8.0), np.zeros((6, 1)), block, np.zeros(1, dtype=bool)
        )
        moved.append(np.abs(told).max() / np.abs(np.log(squares) - np.log(squares).mean()).max())
    assert np.mean(np.array(moved) == 0.0) > 0.4 and np.mean(moved) < 0.35
    nothing = variance_pattern(
        np.ones((3, 2)), np.zeros((3, 2)), np.zeros((3, 2)), np.zeros(2, int), np.zeros(2, bool)
    )
    np.testing.assert_array_equal(nothing, 0.0)


def test_a_row_of_weight_two_left_out_is_two_rows_left_out():
    """Both copies go: the loss of a doubled row is that of a fit without either."""
    data = labelled(12, sizes=(20, 15), spread=0.5)
    twice = data.with_weights(np.where(np.arange(35) == 3, 2.0, 1.0))
    prior, ridge = SoftmaxPrior(np.log([[0.5, 1.0]] * 3), BLOCK), np.full((3, 3), 0.5)
    rows = LabelledRows.of(twice, 3, True)
    state = softmax_mixed_fit.fit_at(rows, prior, ridge).state
    names = np.array(data.names)[data.owner]
    again = np.append(np.arange(35), 3)
    copied = Federation.from_groups(data.X[again], names[again], data.y[again])
    other = softmax_mixed_fit.fit_at(LabelledRows.of(copied, 3, True), prior, ridge).state
    np.testing.assert_allclose(state.coef, other.coef, atol=1e-3)
    np.testing.assert_allclose(state.departures, other.departures, atol=1e-3)
    block = rows.blocks[int(np.argmax([0 in block.clients for block in rows.blocks]))]
    k = int(np.argmax(block.clients == 0))
    precision = prior.precision()
    inverse = softmax_mixed_fit._inverse(block, precision, state)
    # The common part hardly moves with one row; the site's own uncertainty alone is used here.
    share = left_out(block, state.coef + state.departures[block.clients], inverse)[k, 3]
    alone = data.take([0])
    kept = np.arange(20) != 3
    less = Federation.from_groups(alone.X[kept], np.full(19, "a"), alone.y[kept])
    only = LabelledRows.of(less, 3, True).blocks[0]
    own = find_modes(only, state.coef, precision, np.zeros((1, 3, 3)))[0]
    exact = probabilities(design(alone.X[3:4]) @ (state.coef + own).T)[0]
    np.testing.assert_allclose(share, exact, atol=0.03)
    plain = probabilities(design(alone.X[3:4]) @ (state.coef + state.departures[0]).T)[0]
    assert np.abs(share - exact).max() < 0.3 * np.abs(plain - exact).max()
