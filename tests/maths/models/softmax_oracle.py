"""Fit of the softmax mixed model at given variances: the common B and every client's departure.

(B, U_1, ..., U_m) maximise the joint log density: rows, departures N(0, v), and a normal prior of
B itself (`ridge`), which keeps B finite where classes are separable. Newton's steps are taken for
all of them at once: with H_i the second derivatives of client i's loss, K = diag(1 / v) and
a_i = (H_i + K)^-1 (loss slope + K U_i),

    (sum_i S_i + ridge) dB = sum_i K (U_i - a_i) - ridge B,     S_i = K - K (H_i + K)^-1 K,
    dU_i = -a_i - dB + (H_i + K)^-1 K dB,

so that a round needs two sums from the clients, and B goes back to them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.softmax_mixed import (
    LabelledBlock,
    LabelledRows,
    heights,
    probabilities,
    second_derivatives,
)

Floats = NDArray[np.float64]

MOST_ROUNDS = 40
MOST_HALVINGS = 20
# Largest step of B in standardised units at which the rounds end.
AT_REST = 1e-3


class SoftmaxPrior(NamedTuple):
    """Log variances (C, blocks) and the block of every column (d,)."""

    log_variance: Floats
    block: NDArray[np.intp]

    def precision(self) -> Floats:
        """K (C, d)."""
        return np.asarray(np.exp(-self.log_variance)[:, self.block])


class SoftmaxState(NamedTuple):
    """B (C, d) and departures U (m, C, d)."""

    coef: Floats
    departures: Floats


class SoftmaxFitted(NamedTuple):
    """The maximum, the rounds it took, and whether it came to rest."""

    state: SoftmaxState
    rounds: int
    at_rest: bool


class _Sums(NamedTuple):
    """What one round brings: S (C d, C d), the pull on B (C d,), and the clients' own parts."""

    information: Floats
    pull: Floats
    own_step: Floats
    by_coef: tuple[Floats, ...]


def fit_at(
    rows: LabelledRows, prior: SoftmaxPrior, ridge: Floats, start: SoftmaxState | None = None
) -> SoftmaxFitted:
    """Maximise over B and all departures; `ridge` (C, d) are the precisions of B."""
    state = empty(rows) if start is None else start
    level = _height(rows, prior, ridge, state)
    for number in range(1, MOST_ROUNDS + 1):
        sums = _round(rows, prior, state)
        matrix = sums.information + np.diag(ridge.ravel())
        pull = sums.pull - (ridge * state.coef).ravel()
        step = np.asarray(np.linalg.solve(matrix, pull)).reshape(state.coef.shape)
        moves = -sums.own_step
        for block, back in zip(rows.blocks, sums.by_coef):
            moves[block.clients] += (back @ step.ravel()).reshape(-1, *step.shape) - step
        state, level = _halved(rows, prior, ridge, state, SoftmaxState(step, moves), level)
        if np.abs(step).max() <= AT_REST and np.abs(moves).max(initial=0.0) <= 10 * AT_REST:
            return SoftmaxFitted(state, number, True)
    return SoftmaxFitted(state, MOST_ROUNDS, False)


def empty(rows: LabelledRows) -> SoftmaxState:
    """Nothing known."""
    shape = (rows.n_classes, rows.n_columns)
    return SoftmaxState(np.zeros(shape), np.zeros((rows.n_clients, *shape)))


# ------------------------------------------------------------------ one round


def _round(rows: LabelledRows, prior: SoftmaxPrior, state: SoftmaxState) -> _Sums:
    precision = prior.precision()
    flat = precision.ravel()
    pull, own_step = np.zeros(precision.size), state.departures.copy()
    inverses, backs = [], []
    for block in rows.blocks:
        inverse = _inverse(block, precision, state)
        own = state.departures[block.clients]
        share = probabilities(block.X @ (state.coef + own).transpose(0, 2, 1))
        slope = ((share - block.labels) * block.present[..., None]).transpose(0, 2, 1) @ block.X
        slope = (slope + precision * own).reshape(len(own), -1, 1)
        step = (inverse @ slope).reshape(own.shape)
        own_step[block.clients] = step
        pull += (precision * (own - step)).sum(axis=0).ravel()
        inverses.append(inverse)
        backs.append(inverse * flat)
    return _Sums(_information(precision, inverses), pull, own_step, tuple(backs))


def _inverse(block: LabelledBlock, precision: Floats, state: SoftmaxState) -> Floats:
    """(H + K)^-1 of every client of a block, (k, C d, C d)."""
    own = state.coef + state.departures[block.clients]
    matrix = second_derivatives(block, probabilities(block.X @ own.transpose(0, 2, 1)))
    place = np.arange(precision.size)
    matrix[:, place, place] += precision.ravel()
    return np.asarray(np.linalg.inv(matrix))


def _information(precision: Floats, inverses: list[Floats]) -> Floats:
    """sum_i K - K (H_i + K)^-1 K."""
    flat = precision.ravel()
    out = np.zeros((len(flat), len(flat)))
    for inverse in inverses:
        out -= inverse.sum(axis=0) * np.outer(flat, flat)
        out += len(inverse) * np.diag(flat)
    return 0.5 * (out + out.T)


def _height(rows: LabelledRows, prior: SoftmaxPrior, ridge: Floats, state: SoftmaxState) -> float:
    """Minus the joint log density, without constants."""
    precision = prior.precision()
    total = 0.5 * float((ridge * state.coef**2).sum())
    for block in rows.blocks:
        own = state.departures[block.clients]
        total += float(heights(block, state.coef, precision, own).sum())
    return total


def _halved(
    rows: LabelledRows,
    prior: SoftmaxPrior,
    ridge: Floats,
    state: SoftmaxState,
    move: SoftmaxState,
    level: float,
) -> tuple[SoftmaxState, float]:
    """The longest of the halved steps that does not lead uphill."""
    length = 1.0
    for _ in range(MOST_HALVINGS):
        tried = SoftmaxState(
            state.coef + length * move.coef, state.departures + length * move.departures
        )
        height = _height(rows, prior, ridge, tried)
        if height <= level + 1e-10 * abs(level):
            return tried, height
        length *= 0.5
    return state, level
