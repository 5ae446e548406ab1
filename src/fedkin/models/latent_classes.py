"""What all mixtures share: posterior classes of rows, weights, and EM for many clients at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy.special import chdtr, chdtrc

from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.models.row_blocks import RowBlocks
from fedkin.ties import RELATIVE, first_best

P = TypeVar("P", bound="tuple[Any, ...]")

# Smallest weight whose logarithm is taken: keeps a dead component finite and dead.
SMALLEST_WEIGHT = 1e-300
# Log joint density of a row with a class that its label rules out, relative to the others'.
RULED_OUT = -1e30
# exp() is 6 to 40 times slower where its result underflows, below -708. Probabilities of 1e-217 in
# place of zero change no sum, and products with them do not underflow either.
LOWEST_EXPONENT = -500.0
# A component with less than this total of responsibility keeps its old parameters.
EMPTY_COMPONENT = 1e-8
# EM works on the unfinished clients alone once this share of the block has finished.
COMPACT_SHARE = 0.25


class Climb(NamedTuple):
    """Where EM ended: `parameters`, their `loglik` and `converged` (m, ...), and `n_iter` (m,)."""

    parameters: Any
    loglik: Floats
    converged: Bools
    n_iter: Indices


def after_client(array: Array, n_axes: int) -> Array:
    """An array (m, ...) with `n_axes` axes of length one put in after the client's."""
    return array.reshape(len(array), *([1] * n_axes), *array.shape[1:])


def log_weights(weights: Floats) -> Floats:
    """Logarithms that stay finite where a weight is zero."""
    return np.log(np.maximum(weights, SMALLEST_WEIGHT))


def to_posterior(joint: Floats) -> Floats:
    """Turn log joint densities (S, R, ...) into class probabilities in place; return their log sum.

    Classes on a leading axis: every pass runs over long contiguous memory.
    """
    top = joint.max(axis=1)
    joint -= top[:, None]
    np.maximum(joint, LOWEST_EXPONENT, out=joint)
    np.exp(joint, out=joint)
    total = joint.sum(axis=1)
    joint *= (1.0 / total)[:, None]
    np.log(total, out=total)
    total += top
    return total


def rule_out(joint: Floats, labels: Indices | None) -> None:
    """Rows of a known class belong to no other; `joint` (S, R, k, width), in place."""
    if labels is None or not (labels >= 0).any():
        return
    other = np.arange(joint.shape[1])[:, None, None] != labels
    joint += np.where(other & (labels >= 0), RULED_OUT, 0.0)


def clip_factors(posterior: Floats | float, length: Floats, clip: float) -> Floats:
    """Factors that bound posterior * length, a row's pull on a component, by `clip`."""
    pull = posterior * length
    return clip / np.maximum(pull, clip)


def clipped_share(clip: float | Floats, n_features: int) -> Any:
    """What clipping at this length leaves of a normal row's expected square, in (0, 1].

    E min(|z|^2, clip^2) / d for z standard normal in d dimensions: dividing by it makes clipped
    squares right on average for rows that are as they should be.
    """
    square = np.square(clip)
    return chdtr(n_features + 2.0, square) + square * chdtrc(float(n_features), square) / n_features


def mixture_weights(counts: Floats, current: Floats) -> Floats:
    """Shares of the classes (m, ..., R); a client without rows keeps its current ones."""
    total = counts.sum(axis=-1, keepdims=True)
    return np.where(total > 0, counts / np.where(total > 0, total, 1.0), current)


def best_restart(ended: Climb) -> Climb:
    """The likeliest of the restarts (m, S, ...) of every client, (m, ...)."""
    best, who = first_best(ended.loglik, axis=1, floor=RELATIVE), np.arange(len(ended.loglik))
    kind: Any = type(ended.parameters)
    parameters = kind(*(None if a is None else a[who, best] for a in ended.parameters))
    return Climb(parameters, ended.loglik[who, best], ended.converged[who, best], ended.n_iter)


def climb(
    rows: RowBlocks,
    start: P,
    step: Callable[[RowBlocks, P], tuple[P, Floats]],
    max_iter: int,
    tol: float,
) -> Climb:
    """EM until a row's mean log likelihood gains less than `tol`, every client at its own pace.

    `step` gives the next parameters and the log likelihood (m, ...) of the current ones. A client
    stops when all its restarts have; what others do does not change when. Arrays in `start` have
    the client as first axis.
    """
    kind: Any = type(start)
    final = kind(*(None if a is None else a.copy() for a in start))
    n_iter = np.zeros(rows.n_clients, dtype=np.intp)
    active, current, last = np.arange(rows.n_clients), start, None
    loglik, converged = np.empty(0), np.empty(0, dtype=bool)
    for iteration in range(1, max_iter + 1):
        following, reached = step(rows, current)
        if last is None:
            loglik, converged = np.empty_like(reached), np.zeros(reached.shape, dtype=bool)
            last = np.full_like(reached, -np.inf)
        room = after_client(tol * rows.sizes, reached.ndim - 1)
        settled = (reached - last <= room) | (room == 0)
        stop = settled.reshape(len(settled), -1).all(axis=1) | (iteration == max_iter)
        ended = np.flatnonzero(stop & (n_iter[active] == 0))
        for whole, part in zip((*final, loglik, converged), (*current, reached, settled)):
            if whole is not None:
                whole[active[ended]] = part[ended]
        n_iter[active[ended]] = iteration
        left = np.flatnonzero(n_iter[active] == 0)
        if not len(left):
            break
        current, last = following, reached
        if len(left) <= (1 - COMPACT_SHARE) * len(active):
            rows, active, last = rows.take(left), active[left], last[left]
            current = kind(*(None if a is None else a[left] for a in current))
    return Climb(final, loglik, converged, n_iter)
