"""Softmax regressions pulled towards a common one, against brute force and scikit-learn."""

import numpy as np
import pytest
import softmax_oracle
from sklearn.linear_model import LogisticRegression
from softmax_oracle import SoftmaxPrior

from fedkin.federation import Federation
from fedkin.models.softmax_left_out import N_FOLDS, fold_of, left_out_loss, own_departures
from fedkin.models.softmax_mixed import (
    LabelledRows,
    find_modes,
    probabilities,
    second_derivatives,
)
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


# ------------------------------------------------------------------ the fit at given variances


def test_no_departures_is_scikit_learns_softmax():
    data = labelled(5, sizes=(30, 50, 20), spread=0.0)
    rows = LabelledRows.of(data, 3, True)
    prior = SoftmaxPrior(np.full((3, 2), -20.0), BLOCK)
    ridge = np.full((3, 3), 0.5)
    ridge[:, -1] = 1e-8
    found = softmax_oracle.fit_at(rows, prior, ridge)
    peer = LogisticRegression(C=2.0, tol=1e-10, max_iter=1000).fit(data.X, data.y)
    share = probabilities(design(data.X) @ found.state.coef.T)
    np.testing.assert_allclose(share, peer.predict_proba(data.X), atol=1e-4)
    np.testing.assert_allclose(found.state.departures, 0.0, atol=1e-6)


def test_the_fit_is_where_all_slopes_vanish():
    data = labelled(6, sizes=(20, 30, 5, 0, 12))
    rows = LabelledRows.of(data, 3, True)
    prior, ridge = SoftmaxPrior(np.log([[0.5, 1.0]] * 3), BLOCK), np.full((3, 3), 0.3)
    found = softmax_oracle.fit_at(rows, prior, ridge)
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
    one = softmax_oracle.fit_at(LabelledRows.of(data, 3, True), prior, ridge)
    turned = data.take([3, 1, 0, 2])
    two = softmax_oracle.fit_at(LabelledRows.of(turned, 3, True), prior, ridge)
    np.testing.assert_allclose(one.state.coef, two.state.coef, atol=1e-8)
    np.testing.assert_allclose(one.state.departures[[3, 1, 0, 2]], two.state.departures, atol=1e-8)


def folds_by_fitting_again(data, prior, ridge, together):
    """Loss of every fold of every client by fits without it."""
    total, alike = 0.0, SoftmaxPrior(np.full((3, 2), -20.0), BLOCK)
    names = np.array(data.names)[data.owner]
    for k in range(len(data)):
        own = np.flatnonzero(data.owner == k)
        for f in range(N_FOLDS):
            out = own[fold_of(len(own)) == f]
            keep = np.setdiff1d(np.arange(len(data.X)), out)
            less = Federation.from_groups(data.X[keep], names[keep], data.y[keep])
            rows = LabelledRows.of(less, 3, True)
            found = softmax_oracle.fit_at(rows, alike if together else prior, ridge).state
            U = found.departures[k]
            if together:
                block = next(b for b in rows.blocks if k in b.clients)
                start = np.zeros((len(block.clients), 3, 3))
                modes = find_modes(block, found.coef, prior.precision(), start)
                U = modes[list(block.clients).index(k)]
            share = probabilities(design(data.X[out]) @ (found.coef + U).T)
            total -= np.log(share[np.arange(len(out)), data.y[out].astype(int)]).sum()
    return total


@pytest.mark.parametrize("together", [False, True])
def test_rows_left_out_lose_what_fits_without_them_lose(together):
    data = labelled(8, sizes=(40, 30, 50), spread=0.7)
    prior, ridge = SoftmaxPrior(np.log([[0.5, 1.0]] * 3), BLOCK), np.full((3, 3), 0.5)
    alike = SoftmaxPrior(np.full((3, 2), -20.0), BLOCK)
    rows = LabelledRows.of(data, 3, True)
    state = softmax_oracle.fit_at(rows, alike if together else prior, ridge).state
    precision = prior.precision()
    information = np.diag(ridge.ravel())
    parts = []
    for block in rows.blocks:
        start = np.zeros((len(block.clients), 3, 3))
        own, inverse = own_departures(block, state.coef, precision, start)
        parts.append((block, own, inverse))
        K = np.diag(precision.ravel())
        if together:
            share = probabilities(block.X @ state.coef.T)
            information = information + second_derivatives(block, share).sum(axis=0)
        else:
            information = information + (K - K @ inverse @ K).sum(axis=0)
    found = sum(
        left_out_loss(block, state.coef, precision, own, inverse, information, together).sum()
        for block, own, inverse in parts
    )
    expected = folds_by_fitting_again(data, prior, ridge, together)
    assert found == pytest.approx(expected, rel=0.02)
    inside = 0.0
    for k in range(3):
        X, y = data.client(k)
        block, own, _ = next(part for part in parts if k in part[0].clients)
        U = own[list(block.clients).index(k)]
        share = probabilities(design(X) @ (state.coef + U).T)
        inside -= np.log(share[np.arange(len(y)), y.astype(int)]).sum()
    # The loss on the rows fitted to is far from it.
    assert inside < 0.9 * expected


def test_folds_are_even_and_in_step_with_no_pattern():
    for n in (5, 20, 41, 300):
        sizes = np.bincount(fold_of(n), minlength=N_FOLDS)
        assert sizes.max() - sizes.min() <= 2
    for period in (2, 3, 5, 6, 10):
        for first in range(period):
            assert len(set(fold_of(300)[first::period])) == N_FOLDS


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


def test_a_row_of_weight_two_is_two_rows():
    data = labelled(12, sizes=(20, 15), spread=0.5)
    twice = data.with_weights(np.where(np.arange(35) == 3, 2.0, 1.0))
    prior, ridge = SoftmaxPrior(np.log([[0.5, 1.0]] * 3), BLOCK), np.full((3, 3), 0.5)
    state = softmax_oracle.fit_at(LabelledRows.of(twice, 3, True), prior, ridge).state
    names = np.array(data.names)[data.owner]
    again = np.append(np.arange(35), 3)
    copied = Federation.from_groups(data.X[again], names[again], data.y[again])
    other = softmax_oracle.fit_at(LabelledRows.of(copied, 3, True), prior, ridge).state
    np.testing.assert_allclose(state.coef, other.coef, atol=1e-3)
    np.testing.assert_allclose(state.departures, other.departures, atol=1e-3)
