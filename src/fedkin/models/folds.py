"""Folds: which rows of a site, or which sites, are left out together.

Inside a site a row's fold depends on the seed, the site's name and its number of rows alone, so a
site that holds its own rows finds the same folds as one process that holds everybody's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedkin.arrays import Bools, Indices
from fedkin.federation import Federation
from fedkin.randomness import name_keys, row_uniforms, uniforms

# Keeps the draws of folds apart from those of `Federation.split`.
_STREAM = 0xF01D
# Rows of a site that are always kept for training.
LEAST_KEPT = 1


def row_folds(federation: Federation, n_folds: int, seed: int = 0) -> Indices:
    """The fold of every row, (N,); folds of a site differ by at most one row.

    Which fold is the fuller one differs from site to site. -1 for the row of a site that has no
    other: it is never left out.
    """
    keys = name_keys(federation.names, seed)
    within = np.arange(len(federation.X)) - federation.offsets[:-1][federation.owner]
    draw = row_uniforms(keys[federation.owner], within.astype(np.uint64), _STREAM)
    order = np.lexsort((draw, federation.owner))
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = within
    first = (uniforms(keys, 1, stream=_STREAM)[:, 0] * n_folds).astype(np.intp)
    found: Indices = (rank + first[federation.owner]) % n_folds
    found[(federation.sizes <= LEAST_KEPT)[federation.owner]] = -1
    return found


def site_folds(federation: Federation, n_folds: int, seed: int = 0) -> Indices:
    """The fold of every site, (m,), of nearly equal sizes."""
    return name_folds(federation.names, n_folds, seed)


def name_folds(names: tuple[str, ...], n_folds: int, seed: int = 0) -> Indices:
    """The same by the sites' names alone."""
    draw = uniforms(name_keys(names, seed), 1, stream=_STREAM)[:, 0]
    found = np.empty(len(names), dtype=np.intp)
    found[np.argsort(draw)] = np.arange(len(names)) % n_folds
    return found


def rows_where(federation: Federation, kept: Bools) -> Federation:
    """The federation of the rows that are kept; every site stays, if without rows."""
    sizes = np.bincount(federation.owner[kept], minlength=federation.n_clients)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)
    return replace(
        federation,
        X=np.ascontiguousarray(federation.X[kept]),
        y=None if federation.y is None else federation.y[kept],
        offsets=offsets,
        rows=federation.rows[kept] if len(federation.rows) else federation.rows,
        weights=None if federation.weights is None else federation.weights[kept],
        of_table=0,
    )
