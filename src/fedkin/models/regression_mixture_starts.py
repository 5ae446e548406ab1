"""Where a client's mixture of regressions may begin, found at the client alone.

Two kinds of start, in turn, because they fail on different data:

- every row in a group drawn by lot: all groups look alike and the noise is large, so EM goes from
  coarse to fine and often ends at the same place;
- as many rows as coefficients for each group, drawn by lot: the groups differ, and one start in
  many has rows of one kind in each.

What is drawn is keyed by the client's name.
"""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.models.least_squares import n_statistics, solve
from fedkin.models.regression_mixture import (
    Parameters,
    Statistics,
    maximise_sigma,
    residual_vectors,
    row_products,
    smallest_noise,
)
from fedkin.models.row_blocks import Block, RowBlocks
from fedkin.randomness import Keys

# Rows' worth of ridge behind groups of all rows, and behind groups of few: enough to bound the
# coefficients where a few rows hardly determine them.
RIDGE = 1.0
SMALL_RIDGE = 0.01


def random_start(
    rows: RowBlocks, n_components: int, n_restarts: int, keys: Keys, sigma: float | None = None
) -> Parameters:
    """Least squares in groups of rows, restarts (m, S, ...) of both kinds in turn; equal weights.

    Noise, unless given, is what is left of the rows after their own (of few rows: the best) fit.
    """
    m, size = rows.n_clients, rows.n_columns
    packed = np.zeros((m, n_restarts, n_components, n_statistics(size - 1)))
    for block in rows.blocks:
        label = _groups(block, n_components, n_restarts, size - 1, keys)
        for chunk in block.chunks(packed.shape[-1]):
            products = row_products(chunk.data).transpose(0, 2, 1)
            drawn = label[chunk.members, chunk.rows].transpose(0, 2, 1)
            for r in range(n_components):
                packed[chunk.clients, :, r] += (drawn == r).astype(float) @ products
    coef = np.empty((*packed.shape[:-1], size - 1))
    coef[:, ::2] = solve(packed[:, ::2], ridge=RIDGE)[0]
    coef[:, 1::2] = solve(packed[:, 1::2], ridge=SMALL_RIDGE)[0]
    weights = np.full(packed.shape[:-1], 1.0 / n_components)
    if sigma is not None:
        return Parameters(weights, coef, np.full((m, n_restarts), sigma))
    n_rows, nothing = rows.sizes.astype(float), np.zeros((m, n_restarts))
    statistics = Statistics(packed[..., -1], packed, nothing, n_rows)
    noise = maximise_sigma(statistics, coef, smallest_noise(rows))
    noise[:, 1::2] = _best_noise(rows, coef[:, 1::2])
    return Parameters(weights, coef, noise)


def _groups(block: Block, n_components: int, n_restarts: int, n_coef: int, keys: Keys) -> Indices:
    """The group of every row for every restart, (k, width, S); `n_components` means none."""
    width = block.data.shape[-1]
    chance = keys.take(block.clients).uniform(width, n_restarts)
    label = (chance * n_components).astype(np.intp)
    absent = np.arange(width) >= block.sizes[:, None]
    few = np.where(absent[..., None], 2.0, chance[..., 1::2])
    rank = few.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    each = np.clip(block.sizes // n_components, 1, n_coef)[:, None, None]
    label[..., 1::2] = np.minimum(rank // each, n_components)
    return label


def _best_noise(rows: RowBlocks, coef: Floats) -> Floats:
    """Root mean square of every row's least residual, (m, S)."""
    m, n_restarts, n_components, size = coef.shape
    squares = np.zeros((m, n_restarts))
    if not n_restarts:
        return squares
    signed = residual_vectors(coef.reshape(m, -1, size))
    for chunk in rows.chunks(n_restarts * n_components):
        who = chunk.clients
        residual = (signed[who] @ chunk.data).reshape(len(who), n_restarts, n_components, -1)
        squares[who] += np.square(residual).min(axis=2).sum(axis=-1)
    mean = squares / np.maximum(rows.sizes, 1)[:, None]
    return np.sqrt(np.maximum(mean, smallest_noise(rows)[:, None]))
