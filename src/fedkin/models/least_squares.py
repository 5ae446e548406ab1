"""Linear regression through packed sufficient statistics.

With z = (x, y) a client's sum of squared residuals is a linear function of the upper triangle of
its Gram matrix Z'Z. Packed beside the number of rows it is one vector of q numbers,

    statistics = (triu(Z'Z), n),   q = (d + 1)(d + 2) / 2 + 1,

and everything regression needs from a client, whatever its n, is a matrix product with it.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from fedkin.arrays import Bools, Floats, Indices
from fedkin.federation import Federation
from fedkin.models.weighted_rows import weighted

# Eigenvalues of a Gram matrix scaled to unit diagonal below this count as zero: a direction the
# data do not determine. Rounding in the sums alone gives about 1e-15 times d.
RANK_TOLERANCE = 1e-11
# A Gram matrix scaled to unit diagonal whose inverse has a smaller trace is far from singular.
SURELY_REGULAR = 1e4
# No site has more rows than this; a number beyond it is a lie or an accident.
MOST_ROWS = 1e12
# How far, relative to the columns' lengths, rounding may bend statistics that rows did give.
POSSIBLE_SLACK = 1e-6
# Lengths below this square are in the range where floats lose digits.
SMALLEST_SQUARE = 1e-200
# Above so many coefficients elimination in NumPy, all clients at once, is slower than LAPACK.
MOST_ELIMINATED = 32
# Clients looked at together; their Gram matrices stay in cache.
POSSIBLE_BLOCK = 2048
# Numbers of rows put side by side at once, which stay in cache, too.
STACKED_ELEMENTS = 1 << 17


@cache
def upper_triangle(size: int) -> tuple[Indices, Indices]:
    """Rows and columns of the upper triangle, row by row."""
    return np.triu_indices(size)


def n_statistics(n_coefficients: int) -> int:
    """Length q of the packed vector for d coefficients (intercept included)."""
    return (n_coefficients + 1) * (n_coefficients + 2) // 2 + 1


def n_coefficients(n_statistics: int) -> int:
    """The inverse of `n_statistics`."""
    return int(np.sqrt(2 * n_statistics - 1.75) - 1.5 + 1e-9)


def packed_statistics(clients: Federation, fit_intercept: bool) -> Floats:
    """Statistics of every client, feature-major (q, m); empty clients are zero.

    Rows with weights are scaled by their roots first (`weighted_rows`), the 1 of the intercept too.
    """
    assert clients.y is not None
    rows, target, level = clients.X, clients.y, None
    if clients.weights is not None:
        rows, target, _ = weighted(rows, target, clients.weights)
        level = np.sqrt(clients.weights)
    d, size = clients.n_features, clients.n_features + fit_intercept + 1
    upper = upper_triangle(size)
    packed = np.zeros((len(upper[0]) + 1, clients.n_clients))
    packed[-1] = clients.sizes
    for bucket in clients.buckets(elements=STACKED_ELEMENTS):
        # Features are taken as they stand; a copy beside 1 and y would cost as much as the sums.
        X, y = bucket.stack(rows), bucket.stack(target)[:, None]
        ones = bucket.present if level is None else bucket.stack(level)
        beside = np.concatenate([ones[:, None], y], axis=1) if fit_intercept else y
        gram = np.empty((len(X), size, size))
        gram[:, :d, :d] = X.mT @ X
        gram[:, :d, d:] = (beside @ X).mT
        gram[:, d:, d:] = beside @ beside.mT
        packed[:-1, bucket.clients] = gram[:, upper[0], upper[1]].T
    return packed


def residual_coefficients(coef: Floats) -> Floats:
    """Vectors c with c . statistics = sum of squared residuals, (..., d) -> (..., q)."""
    signed = np.concatenate([-coef, np.ones((*coef.shape[:-1], 1))], axis=-1)
    upper = upper_triangle(signed.shape[-1])
    twice = np.where(upper[0] == upper[1], 1.0, 2.0)
    products = twice * signed[..., upper[0]] * signed[..., upper[1]]
    return np.concatenate([products, np.zeros((*coef.shape[:-1], 1))], axis=-1)


def unpack(statistics: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """X'X (..., d, d), X'y (..., d), y'y (...) and n (...) from packed statistics (..., q)."""
    size = n_coefficients(statistics.shape[-1]) + 1
    upper = upper_triangle(size)
    gram = np.zeros((*statistics.shape[:-1], size, size))
    gram[..., upper[0], upper[1]] = statistics[..., :-1]
    gram[..., upper[1], upper[0]] = statistics[..., :-1]
    return gram[..., :-1, :-1], gram[..., :-1, -1], gram[..., -1, -1], statistics[..., -1]


def possible(statistics: Floats, fit_intercept: bool) -> Bools:
    """Whether rows can have given the packed statistics (q, m), (m,).

    They have a number of rows, and a Gram matrix without negative eigenvalues (which holds the
    inequality of Cauchy and Schwarz for every pair of columns). With `fit_intercept` the last
    column's square is the number of rows; rows with weights are to be looked at without it.
    """
    blocks = range(0, statistics.shape[1], POSSIBLE_BLOCK)
    found = [_possible(statistics[:, b : b + POSSIBLE_BLOCK], fit_intercept) for b in blocks]
    return np.concatenate([np.zeros(0, dtype=bool), *found])


def _possible(statistics: Floats, fit_intercept: bool) -> Bools:
    size = n_coefficients(len(statistics)) + 1
    upper, n = upper_triangle(size), statistics[-1]
    on_diagonal = np.flatnonzero(upper[0] == upper[1])
    diagonal = statistics[on_diagonal]
    fine: Bools = (n >= 1) & (n <= MOST_ROWS) & (diagonal >= 0).all(axis=0)
    if fit_intercept:
        fine &= np.abs(diagonal[-2] - n) <= POSSIBLE_SLACK * n
    # Columns of length one; from here on the upper triangle, row by row, holds all there is.
    length = np.sqrt(np.maximum(diagonal, SMALLEST_SQUARE))
    scaled = statistics[:-1] / length[upper[0]]
    scaled /= length[upper[1]]
    fine &= (scaled.max(axis=0) <= 1 + POSSIBLE_SLACK) & (scaled.min(axis=0) >= -1 - POSSIBLE_SLACK)
    scaled[:, ~fine] = 0.0
    scaled[on_diagonal] += POSSIBLE_SLACK
    # Elimination, one row after another for all clients: no pivot may be negative.
    for row in _eliminated(np.split(scaled, on_diagonal[1:]), size):
        fine &= row[0] > 0
    return fine


def solve(statistics: Floats, ridge: float = 0.0) -> tuple[Floats, Floats]:
    """Least squares (..., d) and the rank of the design (...).

    The least-norm solution where the data do not determine one, in units in which every column
    has the same length, so that rescaling a column changes nothing. `ridge` adds that many rows'
    worth of unit columns.
    """
    gram, cross, _, n_rows = unpack(statistics)
    scaled, scale = _unit_diagonal(gram)
    if ridge:
        share = ridge / np.maximum(n_rows, 1.0)
        scaled = scaled + share[..., None, None] * np.eye(gram.shape[-1])
    values, vectors = np.linalg.eigh(scaled)
    kept = values > RANK_TOLERANCE
    inverse = np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0)
    projected = np.einsum("...ij,...i->...j", vectors, cross / scale)
    return np.einsum("...ij,...j->...i", vectors, inverse * projected) / scale, kept.sum(-1)


def solve_many(statistics: Floats) -> tuple[Floats, Floats]:
    """`solve` for many clients (m, q): by elimination, several times faster, where that is safe."""
    d = n_coefficients(statistics.shape[-1])
    if d > MOST_ELIMINATED:
        return _solve_by_inverse(statistics)
    coef, sure = _solve_by_elimination(statistics)
    rank = np.full(len(coef), float(d))
    if not sure.all():
        coef[~sure], rank[~sure] = _solve_by_inverse(statistics[~sure])
    return coef, rank


def _solve_by_elimination(statistics: Floats) -> tuple[Floats, Bools]:
    """Least squares (m, d), step by step for all clients, and where they can be relied on, (m,).

    That is where the determinant is far from zero: a matrix with unit diagonal has no eigenvalue
    below its determinant / e.
    """
    d = n_coefficients(statistics.shape[-1])
    upper = upper_triangle(d + 1)
    scaled = statistics.T[:-1].copy(order="C")
    on_diagonal = np.flatnonzero(upper[0] == upper[1])
    diagonal = scaled[on_diagonal]
    length = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    length[-1] = 1.0
    scaled /= length[upper[0]]
    scaled /= length[upper[1]]
    rows = _eliminated(np.split(scaled, on_diagonal[1:]), d)
    determinant = np.ones(len(statistics))
    coef = np.empty((d, len(statistics)))
    for i in reversed(range(d)):
        pivot = rows[i][0]
        determinant *= pivot
        coef[i] = rows[i][-1] / np.where(pivot > 0, pivot, np.inf)
        for j in range(i):
            rows[j][-1] -= rows[j][i - j] * coef[i]
    coef /= length[:-1]
    return np.ascontiguousarray(coef.T), determinant > math.e / SURELY_REGULAR


def _eliminated(rows: list[Floats], n_steps: int) -> list[Floats]:
    """Rows of upper triangles, row i of shape (size - i, m), after Gauss's steps, in place.

    Without pivoting, which symmetric matrices without negative eigenvalues do not need; a row whose
    pivot is not positive changes nothing.
    """
    for i, row in enumerate(rows[:n_steps]):
        share = row / np.where(row[0] > 0, row[0], np.inf)
        for j in range(i + 1, min(len(rows), n_steps)):
            rows[j] -= row[j - i] * share[j - i :]
    return rows


def _solve_by_inverse(statistics: Floats) -> tuple[Floats, Floats]:
    """`solve` for many clients, by inverse matrices where the trace shows that these are safe.

    The trace of an inverse is at least the reciprocal of the smallest eigenvalue.
    """
    gram, cross, _, _ = unpack(statistics)
    scaled, scale = _unit_diagonal(gram)
    try:
        inverse = np.linalg.inv(scaled)
    except np.linalg.LinAlgError:  # one of them is singular to the last digit
        return solve(statistics)
    trace = np.trace(inverse, axis1=-2, axis2=-1)
    coef = (inverse @ (cross / scale)[..., None])[..., 0] / scale
    rank = np.full(len(coef), float(coef.shape[-1]))
    unsure = ~((trace > 0) & (trace < SURELY_REGULAR))
    coef[unsure], rank[unsure] = solve(statistics[unsure])
    return coef, rank


def _unit_diagonal(gram: Floats) -> tuple[Floats, Floats]:
    """Gram matrices (..., d, d) of columns of length one, and the lengths (..., d)."""
    diagonal = np.diagonal(gram, axis1=-2, axis2=-1)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    return gram / (scale[..., :, None] * scale[..., None, :]), scale


def penalised(statistics: Floats, alpha: float | Floats, fit_intercept: bool) -> Floats:
    """Statistics (..., q) whose least squares minimises |y - X b|^2 / 2n + alpha / 2 |b|^2.

    The intercept, the last coefficient if there is one, is not penalised. `alpha` may be an array
    (..., p) with a strength for every client and feature.
    """
    if isinstance(alpha, float | int) and alpha == 0.0:
        return statistics
    upper = upper_triangle(n_coefficients(statistics.shape[-1]) + 1)
    n_penalised = n_coefficients(statistics.shape[-1]) - fit_intercept
    diagonal = np.flatnonzero(upper[0] == upper[1])[:n_penalised]
    out = np.array(statistics)
    out[..., diagonal] += alpha * statistics[..., -1:]
    return out


def sampling_covariances(
    statistics: Floats, coef: Floats, alpha: float | Floats, fit_intercept: bool
) -> Floats:
    """Covariance (m, d, d) of every client's own fit (m, d); zero where its rows do not give one.

    The noise is the client's own residual variance with n - d degrees of freedom.
    """
    _, _, square, n_rows = unpack(statistics)
    n_coef = coef.shape[-1]
    residual = np.einsum("mq,mq->m", residual_coefficients(coef), statistics)
    # Below this the residual is rounding of the sums.
    residual = np.maximum(residual, 1e-14 * square)
    gram = unpack(penalised(statistics, alpha, fit_intercept))[0]
    scale = np.sqrt(np.einsum("mdd->md", gram))
    usable = (n_rows > n_coef) & (scale > 0).all(axis=1) & (residual > 0)
    out = np.zeros((len(coef), n_coef, n_coef))
    if usable.any():
        unit = scale[usable, :, None] * scale[usable, None, :]
        values, vectors = np.linalg.eigh(gram[usable] / unit)
        full = values[:, 0] > RANK_TOLERANCE
        inverse = (vectors / np.maximum(values, RANK_TOLERANCE)[:, None, :]) @ vectors.mT
        noise = residual[usable] / (n_rows[usable] - n_coef)
        out[usable] = np.where(full, noise, 0.0)[:, None, None] * inverse / unit
    return out


def least_norm(statistics: Floats) -> Floats:
    """The shortest of all least-squares solutions (..., d), in the units of the columns.

    For comparing clients whose rows do not determine a model: `solve` gives a column with few and
    small entries a large coefficient, this gives it a small one.
    """
    gram, cross, _, _ = unpack(statistics)
    values, vectors = np.linalg.eigh(gram)
    kept = values > RANK_TOLERANCE * values[..., -1:]
    inverse = np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0)
    projected = np.einsum("...ij,...i->...j", vectors, cross)
    return np.asarray(np.einsum("...ij,...j->...i", vectors, inverse * projected))
