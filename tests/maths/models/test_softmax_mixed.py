"""Softmax regressions pulled towards a common one, against brute force and scikit-learn."""

import numpy as np
import pytest
import softmax_oracle
from sklearn.linear_model import LogisticRegression
from softmax_oracle import SoftmaxPrior

from fedkin.federation import Federation
from fedkin.models.softmax_left_out import (
    N_FOLDS,
    common_without,
    fold_of,
    loss_from_common,
    loss_from_middle,
    loss_of_new_clients,
    loss_without_departures,
    others_say,
    own_departures,
)
from fedkin.models.softmax_mixed import (
    LabelledRows,
    find_modes,
    probabilities,
    second_derivatives,
)
from fedkin.models.softmax_variances import shared_by, variance_pattern

BLOCK = np.array([0, 0, 1])
ALIKE = SoftmaxPrior(np.full((3, 2), -20.0), BLOCK)


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


def folds_by_fitting_again(data, prior, ridge, origin):
    """Loss of every fold of every client by fits without it."""
    total = 0.0
    names = np.array(data.names)[data.owner]
    for k in range(len(data)):
        own = np.flatnonzero(data.owner == k)
        for f in range(N_FOLDS):
            out = own[fold_of(len(own)) == f]
            keep = np.setdiff1d(np.arange(len(data.X)), out)
            less = Federation.from_groups(data.X[keep], names[keep], data.y[keep])
            rows = LabelledRows.of(less, 3, True)
            found = softmax_oracle.fit_at(rows, prior if origin == "middle" else ALIKE, ridge).state
            U = found.departures[k]
            if origin == "common":
                block = next(b for b in rows.blocks if k in b.clients)
                start = np.zeros((len(block.clients), 3, 3))
                modes = find_modes(block, found.coef, prior.precision(), start)
                U = modes[list(block.clients).index(k)]
            share = probabilities(design(data.X[out]) @ (found.coef + U).T)
            total -= np.log(share[np.arange(len(out)), data.y[out].astype(int)]).sum()
    return total


def loss_left_out(block, coef, precision, information, origin):
    """Sum over the clients of a block, and the departures with all rows."""
    start = np.zeros((len(block.clients), 3, 3))
    if origin == "none":
        return loss_without_departures(block, common_without(block, coef, information)).sum(), start
    own, inverse = own_departures(block, coef, precision, start)
    if origin == "common":
        moved = common_without(block, coef, information)
        return loss_from_common(block, moved, precision, own).sum(), own
    return loss_from_middle(block, coef, precision, own, inverse, information).sum(), own


def information_about_common(rows, coef, precision, ridge, origin):
    """Of all clients."""
    total = np.diag(ridge.ravel())
    for block in rows.blocks:
        start = np.zeros((len(block.clients), 3, 3))
        if origin == "middle":
            _, inverse = own_departures(block, coef, precision, start)
            K = np.diag(precision.ravel())
            total = total + (K - K @ inverse @ K).sum(axis=0)
        else:
            share = probabilities(block.X @ coef.T)
            total = total + second_derivatives(block, share).sum(axis=0)
    return total


# The common model moves by one step of Newton's method; from the middle own rows are exact.
@pytest.mark.parametrize("origin, exact", [("none", 0.02), ("common", 0.02), ("middle", 2e-3)])
def test_rows_left_out_lose_what_fits_without_them_lose(origin, exact):
    data = labelled(8, sizes=(40, 30, 50), spread=0.7)
    prior, ridge = SoftmaxPrior(np.log([[0.5, 1.0]] * 3), BLOCK), np.full((3, 3), 0.5)
    rows = LabelledRows.of(data, 3, True)
    state = softmax_oracle.fit_at(rows, prior if origin == "middle" else ALIKE, ridge).state
    precision = prior.precision()
    information = information_about_common(rows, state.coef, precision, ridge, origin)
    found, inside = 0.0, 0.0
    for block in rows.blocks:
        loss, own = loss_left_out(block, state.coef, precision, information, origin)
        share = probabilities(block.X @ (state.coef + own).transpose(0, 2, 1))
        logs = np.log((share * block.labels).sum(axis=-1) + (block.present == 0))
        found, inside = found + loss, inside - (logs * block.present).sum()
    expected = folds_by_fitting_again(data, prior, ridge, origin)
    assert found == pytest.approx(expected, rel=exact)
    # The loss on the rows fitted to is far from it.
    assert inside < 0.95 * expected


def test_new_clients_lose_what_fits_without_them_lose():
    data = labelled(10, sizes=(15, 30, 25) * 4, spread=0.5)
    ridge, rows = np.full((3, 3), 0.5), LabelledRows.of(data, 3, True)
    coef = softmax_oracle.fit_at(rows, ALIKE, ridge).state.coef
    information = information_about_common(rows, coef, None, ridge, "none")
    found = np.zeros(len(data))
    for block in rows.blocks:
        found[block.clients] = loss_of_new_clients(block, coef, information)
    expected = np.zeros(len(data))
    for k in range(len(data)):
        others = data.take(np.setdiff1d(np.arange(len(data)), [k]))
        apart = softmax_oracle.fit_at(LabelledRows.of(others, 3, True), ALIKE, ridge).state.coef
        X, y = data.client(k)
        share = probabilities(design(X) @ apart.T)
        expected[k] = -np.log(share[np.arange(len(y)), y.astype(int)]).sum()
    np.testing.assert_allclose(found, expected, rtol=0.03)


def test_what_others_say_of_a_client_is_a_fit_without_it():
    """Its rows, with what the others say, give what all rows together give."""
    data = labelled(9, sizes=(40, 30, 50), spread=0.7)
    prior, ridge = SoftmaxPrior(np.log([[0.5, 1.0]] * 3), BLOCK), np.full((3, 3), 0.5)
    rows, precision = LabelledRows.of(data, 3, True), prior.precision()
    state = softmax_oracle.fit_at(rows, prior, ridge).state
    information = information_about_common(rows, state.coef, precision, ridge, "middle")
    others = data.take([1, 2])
    apart = softmax_oracle.fit_at(LabelledRows.of(others, 3, True), prior, ridge).state
    block = next(b for b in rows.blocks if 0 in b.clients)
    own, inverse = own_departures(block, state.coef, precision, state.departures[block.clients])
    centre, hold = others_say(state.coef, precision, own, inverse, information)
    again = centre + find_modes(block, centre, hold, np.zeros_like(own))
    np.testing.assert_allclose(again, state.coef + own, atol=2e-3)
    first = list(block.clients).index(0)
    closer = np.abs(centre[first] - apart.coef).max() / np.abs(state.coef - apart.coef).max()
    assert closer < 0.3
    assert np.linalg.eigvalsh(hold).min() > 0 and (hold[first].diagonal() < precision.max()).all()


def test_a_client_that_had_no_part_in_the_information_takes_nothing_from_it():
    data = labelled(9, sizes=(40, 30, 50), spread=0.7)
    precision = SoftmaxPrior(np.log([[0.5, 1.0]] * 3), BLOCK).precision()
    block = LabelledRows.of(data, 3, True).blocks[0]
    coef = np.zeros((3, 3))
    own, inverse = own_departures(block, coef, precision, np.zeros((len(block.clients), 3, 3)))
    little = 1e-3 * np.eye(9)
    _, hold = others_say(coef, precision, own, inverse, little)
    expected = np.linalg.inv(np.linalg.inv(little) + np.diag(1.0 / precision.ravel()))
    np.testing.assert_allclose(hold, np.tile(expected, (len(own), 1, 1)), rtol=1e-9)


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
