"""Coordinates for the linear mixed model in which units do not matter, and the way back.

Fixed columns are turned into orthonormal ones (over all rows together); directions the rows do not
determine are left out, which is the least-norm solution in columns of unit length. Random columns
get root mean square one; a full covariance may be looked for in any mixture of them, so there they
are made orthonormal too. The target loses its ordinary least-squares fit before anything is
compared: what is left has no large mean to lose digits to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.least_squares import RANK_TOLERANCE, n_coefficients, upper_triangle
from fedkin.models.linear_mixed import Prepared, target_products, total_products
from fedkin.models.random_covariance import Covariance, Shape, shape_of

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

# A client whose columns are longer than this many times the median's counts for less in the scales.
MANY_TIMES = 10.0
# Weight of a column in a linear dependence below which it takes no part in it.
TAKES_PART = 1e-6


class Fixed(NamedTuple):
    """Coordinates of the fixed columns: X basis is orthonormal."""

    basis: Floats
    log_volume: float
    collinear: tuple[int, ...]


def prepare(
    statistics: Floats,
    random: Indices,
    covariance: Covariance = "full",
    fit_intercept: bool = True,
    weights: Floats | None = None,
) -> tuple[Prepared, Shape]:
    """Packed statistics (., m) in good coordinates, and the shape of the factor there.

    `random` are the columns with random effects; the intercept, if there is one, is the last
    column. `weights` (m,) multiply the clients' log likelihoods.
    """
    weights = np.ones(statistics.shape[1]) if weights is None else weights
    random = np.asarray(random, dtype=np.intp)
    gram = total_products(statistics, weights)
    n_rows = float(statistics[-1] @ weights)
    fixed = fixed_coordinates(gram[:-1, :-1])
    offset = fixed.basis @ (fixed.basis.T @ gram[:-1, -1])
    left = float(gram[-1, -1] - offset @ gram[:-1, -1])
    scale = float(np.sqrt(left / n_rows)) if left > 0 else 1.0
    # "isotropic" means the columns standardised over all rows; else scales are a matter of search.
    pooled = covariance == "isotropic"
    own = gram[:-1, :-1] / n_rows if pooled else typical_gram(statistics, weights)
    spread, blocks = random_coordinates(own, random, covariance, fit_intercept)
    columns = columns_of(fixed.basis, offset, scale, random, spread)
    without = columns[:, : fixed.basis.shape[1] + 1]
    total = without.T @ gram @ without
    products = _products(statistics, random, spread, columns)
    shape = shape_of(covariance, spread.shape[1], blocks)
    prepared = Prepared(
        products,
        0.5 * (total + total.T),
        np.asarray(statistics[-1], dtype=float),
        weights,
        random,
        fixed.basis,
        spread,
        offset,
        scale,
        fixed.log_volume,
        fixed.collinear,
    )
    return prepared, shape


def fixed_coordinates(gram: Floats) -> Fixed:
    """Orthonormal columns for X'X (d, d); which of X's columns depend on each other."""
    diagonal = np.diag(gram)
    length = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, vectors = np.linalg.eigh(gram / np.outer(length, length))
    kept = values > RANK_TOLERANCE
    basis = vectors[:, kept] / np.sqrt(values[kept]) / length[:, None]
    part = np.abs(vectors[:, ~kept]).max(axis=1, initial=0.0) > TAKES_PART
    own = independent_columns(gram / np.outer(length, length), int(kept.sum()))
    log_volume = float(np.linalg.slogdet(gram[np.ix_(own, own)])[1]) if len(own) else 0.0
    return Fixed(basis, log_volume, tuple(map(int, np.flatnonzero(part))))


def independent_columns(gram: Floats, rank: int) -> Indices:
    """The first `rank` columns that do not depend on columns before them (as R chooses them).

    Where rounding leaves more of them, those with the largest pivots are taken.
    """
    left = gram.copy()
    pivots = np.zeros(len(gram))
    for j in range(len(gram)):
        pivots[j] = left[j, j]
        if pivots[j] > RANK_TOLERANCE:
            left -= np.outer(left[:, j], left[j]) / pivots[j]
    return np.sort(np.argsort(-pivots, kind="stable")[:rank])


def typical_gram(statistics: Floats, weights: Floats) -> Floats:
    """Mean of x x' over rows (d, d), in which clients in other units do not outvote the rest.

    A client whose mean squares are many times the median client's counts for less.
    """
    d = n_coefficients(len(statistics))
    upper = upper_triangle(d + 1)
    diagonal = np.flatnonzero((upper[0] == upper[1]) & (upper[0] < d))
    size = statistics[diagonal] / np.maximum(statistics[-1], 1.0)
    typical = np.array([np.median(row[row > 0]) if (row > 0).any() else 1.0 for row in size])
    share = (size / typical[:, None]).max(axis=0, initial=0.0)
    counted = weights * np.minimum(1.0, MANY_TIMES / np.maximum(share, 1.0))
    total = total_products(statistics, counted)[:-1, :-1]
    return total / max(float(statistics[-1] @ counted), np.finfo(float).tiny)


def random_coordinates(
    gram: Floats, random: Indices, covariance: Covariance, fit_intercept: bool
) -> tuple[Floats, Indices]:
    """`spread` (q, r): X[:, random] spread are the columns worked with; and blocks (r,).

    Columns that depend on each other have r < q. With "diagonal" the model says that the columns'
    own effects are uncorrelated: they are scaled and not mixed. "isotropic" is one variance for
    all features, and one for the intercept, after standardising.
    """
    blocks = np.zeros(len(random), dtype=np.intp)
    if covariance == "full":
        spread = fixed_coordinates(gram[np.ix_(random, random)]).basis
        return spread, blocks[: spread.shape[1]]
    square = np.diag(gram)[random]
    size = np.sqrt(np.where(square > 0, square, 1.0))
    if covariance == "diagonal" or not fit_intercept:
        return np.diag(1.0 / size), blocks
    intercept = len(gram) - 1
    mean = gram[intercept, random]
    level = np.flatnonzero(random == intercept)
    variance = square - mean**2
    # A column that does not vary is its own scale.
    size = np.sqrt(np.where(variance > RANK_TOLERANCE * square, variance, size**2))
    spread = np.diag(1.0 / size)
    if len(level):
        # Features' effects turn about their mean, not about zero, where the level is free.
        spread[level[0]] = -mean / size
        spread[level[0], level[0]] = 1.0
        blocks[level] = 1
    return spread, blocks


def worked_columns(prepared: Prepared) -> Floats:
    """(X, y) times this are the fixed columns, the target and the random columns worked with."""
    return columns_of(
        prepared.basis, prepared.offset, prepared.scale, prepared.random, prepared.spread
    )


def products_of(prepared: Prepared, statistics: Floats) -> Floats:
    """Z'(X, y, Z) of further clients in the same coordinates, (q, p + 1 + q, k)."""
    return _products(statistics, prepared.random, prepared.spread, worked_columns(prepared))


def columns_of(
    basis: Floats, offset: Floats, scale: float, random: Indices, spread: Floats
) -> Floats:
    """(X, y) columns = (fixed columns, target, random columns) worked with, (d + 1, p + 1 + q)."""
    d, p = basis.shape
    out = np.zeros((d + 1, p + 1 + spread.shape[1]))
    out[:d, :p] = basis
    out[:d, p], out[d, p] = -offset / scale, 1.0 / scale
    out[random, p + 1 :] = spread
    return out


def _products(statistics: Floats, random: Indices, spread: Floats, columns: Floats) -> Floats:
    """Z'(X, y, Z) of every client in the columns worked with, (q, p + 1 + q, m)."""
    raw = target_products(statistics, random)
    q, d1, m = raw.shape
    mixed = (spread.T @ raw.reshape(q, d1 * m)).reshape(spread.shape[1], d1, m)
    return np.ascontiguousarray(np.matmul(columns.T, mixed))
