"""Softmax regressions of many clients, each pulled towards the common one: departures at a B.

    P(label = c | x) = softmax(x'(B + U_i))_c,    U_i[c, j] ~ N(0, v[c, block of j])

B (C, d) is common; client i departs from it by U_i, with precisions K = diag(1 / v). At a B its U_i
is where its loss plus U'K U / 2 is least. All classes are treated alike: adding one vector to all
classes changes no probability, and the prior holds it at zero. Where rows are left out, every
client may have a B and a K of its own, and K need not be diagonal.

Clients of similar size stand side by side in padded blocks; a step of Newton's method is one
batched solve of C d equations a client, which for dozens of features and a few classes takes less
time than anything that would avoid it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkin.federation import Federation

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

MOST_STEPS = 60
MOST_HALVINGS = 30
# Newton's steps end when none is longer: the slope is exact to twice the digits.
AT_REST = 1e-7
# Doubles of one array of second derivatives worked on at once.
CHUNK_ELEMENTS = 1 << 23


@dataclass(frozen=True, eq=False)
class LabelledBlock:
    """Clients of similar size: X (k, n, d), one-hot labels (k, n, C), zero where no row is.

    `present` (k, n) says how often a row counts: its weight, and zero where there is none.
    """

    clients: Indices
    X: Floats
    labels: Floats
    present: Floats

    def take(self, who: Indices) -> LabelledBlock:
        """Some of the block's clients."""
        return LabelledBlock(self.clients[who], self.X[who], self.labels[who], self.present[who])


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows of m clients with labels 0, ..., C - 1, in padded blocks."""

    blocks: tuple[LabelledBlock, ...]
    n_clients: int
    n_columns: int
    n_classes: int

    @classmethod
    def of(cls, clients: Federation, n_classes: int, fit_intercept: bool) -> LabelledRows:
        """From a federation whose target holds the labels' numbers; the intercept comes last."""
        assert clients.y is not None
        ones = [np.ones((len(clients.X), 1))] if fit_intercept else []
        table = np.concatenate([clients.X, *ones], axis=1)
        hot = np.zeros((len(clients.y), n_classes))
        hot[np.arange(len(clients.y)), clients.y.astype(np.intp)] = 1.0
        often = np.ones(len(table)) if clients.weights is None else clients.weights
        size = n_classes * table.shape[1]
        most = max(1, CHUNK_ELEMENTS // size**2)
        blocks = []
        for bucket in clients.buckets():
            X, labels = bucket.stack(table), bucket.stack(hot)
            present = bucket.stack(often[:, None])[..., 0]
            for begin in range(0, len(bucket.clients), most):
                some = slice(begin, begin + most)
                blocks.append(
                    LabelledBlock(bucket.clients[some], X[some], labels[some], present[some])
                )
        return cls(tuple(blocks), clients.n_clients, table.shape[1], n_classes)


def probabilities(scores: Floats) -> Floats:
    """Softmax over the last axis."""
    away = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(away / away.sum(axis=-1, keepdims=True))


# ------------------------------------------------------------------ one block


def second_derivatives(block: LabelledBlock, share: Floats) -> Floats:
    """H (k, C d, C d) of the negative log likelihood at probabilities `share` (k, n, C)."""
    k, _, d = block.X.shape
    n_classes = share.shape[2]
    across = block.X.transpose(0, 2, 1)
    out = np.empty((k, n_classes, d, n_classes, d))
    for c in range(n_classes):
        for e in range(c + 1):
            weight = share[..., c] * (float(c == e) - share[..., e]) * block.present
            part = across @ (block.X * weight[..., None])
            out[:, c, :, e, :] = out[:, e, :, c, :] = part
    return out.reshape(k, n_classes * d, n_classes * d)


def heights(block: LabelledBlock, coef: Floats, precision: Floats, modes: Floats) -> Floats:
    """Negative log likelihood plus U'K U / 2 of every client, (k,)."""
    scores = block.X @ (coef + modes).transpose(0, 2, 1)
    largest = scores.max(axis=-1)
    logs = largest + np.log(np.exp(scores - largest[..., None]).sum(axis=-1))
    loss = ((logs - (scores * block.labels).sum(axis=-1)) * block.present).sum(axis=1)
    return np.asarray(loss + 0.5 * (_held(precision, modes) * modes).sum(axis=(1, 2)))


def slopes(block: LabelledBlock, share: Floats) -> Floats:
    """Slopes (k, C, d) of the negative log likelihood at probabilities `share` (k, n, C)."""
    away = (share - block.labels) * block.present[..., None]
    return np.asarray(away.transpose(0, 2, 1) @ block.X)


def find_modes(
    block: LabelledBlock,
    coef: Floats,
    precision: Floats,
    start: Floats,
    at_rest: float = AT_REST,
) -> Floats:
    """Newton's method with halved steps for every client's U, (k, C, d).

    B is `coef` (C, d), or every client's own (k, C, d); K is the diagonal `precision` (C, d), or
    every client's own matrix (k, C d, C d).
    """
    modes, moving = start.copy(), np.arange(len(start))
    for _ in range(MOST_STEPS):
        everyone = len(moving) == len(start)
        part = block if everyone else block.take(moving)
        common, hold = (a if a.ndim == 2 or everyone else a[moving] for a in (coef, precision))
        here = modes[moving]
        share = probabilities(part.X @ (common + here).transpose(0, 2, 1))
        pull = slopes(part, share) + _held(hold, here)
        matrix = with_precision(second_derivatives(part, share), hold)
        solved = np.asarray(np.linalg.solve(matrix, pull.reshape(len(here), -1, 1)))
        step = -solved.reshape(here.shape)
        modes[moving] = here + _lengths(part, common, hold, here, step)[:, None, None] * step
        moving = moving[np.abs(step).max(axis=(1, 2)) > at_rest]
        if not len(moving):
            break
    return modes


def with_precision(matrix: Floats, precision: Floats) -> Floats:
    """H + K, in the place of H (k, C d, C d)."""
    if precision.ndim == 3:
        matrix += precision
    else:
        place = np.arange(precision.size)
        matrix[:, place, place] += precision.ravel()
    return matrix


def _held(precision: Floats, modes: Floats) -> Floats:
    """K U of every client, (k, C, d)."""
    if precision.ndim == 2:
        return np.asarray(precision * modes)
    return np.asarray((precision @ modes.reshape(len(modes), -1, 1)).reshape(modes.shape))


def _lengths(
    block: LabelledBlock, coef: Floats, precision: Floats, modes: Floats, step: Floats
) -> Floats:
    """Lengths (k,) at which every client's step does not lead uphill."""
    before = heights(block, coef, precision, modes)
    rounding = 1e-12 * np.maximum(np.abs(before), 1.0)
    length = np.ones(len(modes))
    for _ in range(MOST_HALVINGS):
        after = heights(block, coef, precision, modes + length[:, None, None] * step)
        higher = after > before + rounding
        if not higher.any():
            break
        length = np.where(higher, 0.5 * length, length)
    return length
