"""Factors and solutions of many small positive definite systems at once, clients last.

A loop over the q columns; every step is one pass over all clients, so 1e5 systems of two equations
take milliseconds and no client is visited by itself. `inverse_roots` and `tridiagonal` take clients
first and turn them in pieces that stay in cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.packed_matrices import places_of_triangle, unpacked
from fedkin.models.row_blocks import CHUNK_ELEMENTS

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Fewer matrices, and those of more columns, are done one by one by LAPACK, which is faster there.
LEAST_MATRICES, MOST_COLUMNS = 128, 30
# Beside the trace a negative eigenvalue is rounding up to this share.
NEXT_TO_NOTHING = 1e-12
# So many pivots are multiplied before a logarithm is taken.
MULTIPLIED = 4


def cholesky(matrices: Floats) -> Floats:
    """Lower factors C (q, q, m) with C C' = `matrices` (q, q, m)."""
    q = len(matrices)
    root = np.zeros_like(matrices)
    for j in range(q):
        pivot = matrices[j, j] - np.einsum("k...,k...->...", root[j, :j], root[j, :j])
        root[j, j] = np.sqrt(pivot)
        for i in range(j + 1, q):
            below = matrices[i, j] - np.einsum("k...,k...->...", root[i, :j], root[j, :j])
            root[i, j] = below / root[j, j]
    return root


def forward(root: Floats, right: Floats) -> Floats:
    """C^-1 `right`, (q, ..., m)."""
    out = np.array(right)
    for j in range(len(root)):
        for i in range(j):
            out[j] -= root[j, i] * out[i]
        out[j] /= root[j, j]
    return out


def backward(root: Floats, right: Floats) -> Floats:
    """C'^-1 `right`, (q, ..., m)."""
    out = np.array(right)
    for j in range(len(root) - 1, -1, -1):
        for i in range(j + 1, len(root)):
            out[j] -= root[i, j] * out[i]
        out[j] /= root[j, j]
    return out


def solve(root: Floats, right: Floats) -> Floats:
    """(C C')^-1 `right`, (q, ..., m)."""
    return backward(root, forward(root, right))


# ------------------------------------------------------------------ clients first


def inverse_roots(covariances: Floats) -> Floats:
    """Lower triangular W (..., d, d) with W covariance W' = identity."""
    d = covariances.shape[-1]
    if _one_by_one(covariances.size // max(d * d, 1), d):
        return np.linalg.inv(np.linalg.cholesky(covariances))
    each = covariances.reshape(-1, d, d)
    roots = np.empty_like(each)
    for some in _pieces(len(each), d):
        roots[some] = _inverse_root(_clients_last(each[some])).transpose(2, 0, 1)
    return roots.reshape(covariances.shape)


def _inverse_root(matrices: Floats) -> Floats:
    """The same, clients last, (d, d, n)."""
    root, inverse = np.zeros_like(matrices), np.zeros_like(matrices)
    for j in range(len(matrices)):
        column = matrices[j:, j] - np.einsum("ikn,kn->in", root[j:, :j], root[j, :j])
        if not (column[0] > 0).all():
            raise np.linalg.LinAlgError("a matrix is not positive definite")
        root[j:, j] = column / np.sqrt(column[0])
    for i in range(len(matrices)):
        inverse[i, i] = 1.0 / root[i, i]
        inverse[i, :i] = np.einsum("kn,kjn->jn", root[i, :i], inverse[:i, :i])
        inverse[i, :i] *= -inverse[i, i]
    return inverse


class Tridiagonal(NamedTuple):
    """Symmetric matrices turned so that two diagonals are left.

    `main` (d, m, R); `squares` of the numbers beside it (d - 1, m, R), none where these are zero.
    """

    main: Floats
    squares: Floats


def tridiagonal(scatter: Floats, roots: Floats) -> Tridiagonal:
    """Matrices W scatter W' of packed scatter (m, R, q) and W (R, d, d), by Householder.

    Determinants of what is added to their diagonal follow at the cost of one pass each, as from
    eigenvalues, which cost more to find.
    """
    (m, n_groups), d = scatter.shape[:2], roots.shape[-1]
    if _one_by_one(m * n_groups, d):
        turned = roots @ unpacked(scatter, d, "full") @ roots.swapaxes(-1, -2)
        values = np.asarray(np.linalg.eigvalsh(turned)).transpose(2, 0, 1)
        return Tridiagonal(values, np.empty((0, m, n_groups)))
    main, squares = np.empty((d, m, n_groups)), np.empty((d - 1, m, n_groups))
    for r, some in itertools.product(range(n_groups), _pieces(m, d)):
        half = roots[r] @ _unpacked_last(scatter[some, r], d)
        main[:, some, r], squares[:, some, r] = _reflected(roots[r] @ half.transpose(1, 0, 2))
    return Tridiagonal(main, squares)


def _reflected(left: Floats) -> tuple[Floats, Floats]:
    """Main diagonals (d, n) and squares beside them (d - 1, n) of matrices (d, d, n)."""
    d = len(left)
    squares = np.zeros((d - 1, *left.shape[2:]))
    for k in range(d - 2):
        vector = left[k + 1 :, k].copy()
        squares[k] = np.einsum("in,in->n", vector, vector)
        vector[0] += np.copysign(np.sqrt(squares[k]), vector[0])
        length = np.einsum("in,in->n", vector, vector)
        twice = 2.0 / np.where(length > 0, length, 1.0)
        rest = left[k + 1 :, k + 1 :]
        turned = np.einsum("ijn,jn->in", rest, vector) * twice
        turned -= 0.5 * twice * np.einsum("in,in->n", turned, vector) * vector
        rest -= vector[:, None] * turned
        rest -= turned[:, None] * vector
    if d > 1:
        squares[d - 2] = np.square(left[d - 1, d - 2])
    return np.einsum("iin->in", left).copy(), squares


def log_determinants(form: Tridiagonal, level: Floats) -> Floats:
    """Log determinants (m, R) of `level` (R,) times the identity + matrices without negative ones.

    That is, of which no eigenvalue is negative: then no pivot is below the level.
    """
    total, product = np.zeros(form.main.shape[1:]), np.ones(form.main.shape[1:])
    pivot = product
    for i, main in enumerate(form.main):
        beside = form.squares[i - 1] / pivot if i and len(form.squares) else 0.0
        pivot = np.maximum(main + level - beside, level)
        product *= pivot
        if i % MULTIPLIED == MULTIPLIED - 1 or i == len(form.main) - 1:
            total += np.log(product)
            product[:] = 1.0
    return total


def without_negative(matrices: Floats, units: Floats) -> Bools:
    """Whether packed matrices (m, R, q) in units (d,) have no negative eigenvalue, (m, R).

    But for rounding beside the trace: with next to nothing on their diagonal all pivots are
    positive.
    """
    (m, n_groups), d = matrices.shape[:2], len(units)
    if _one_by_one(m * n_groups, d):
        whole = unpacked(matrices, d, "full") / np.outer(units, units)
        level = NEXT_TO_NOTHING * np.abs(np.einsum("mrii->mr", whole)) + np.finfo(float).tiny
        try:
            np.linalg.cholesky(whole + level[..., None, None] * np.eye(d))
        except np.linalg.LinAlgError:
            return np.asarray(np.linalg.eigvalsh(whole)[..., 0] > -level)
        return np.ones((m, n_groups), dtype=bool)
    form = tridiagonal(matrices, np.broadcast_to(np.diag(1.0 / units), (n_groups, d, d)))
    level = NEXT_TO_NOTHING * np.abs(form.main.sum(axis=0)) + np.finfo(float).tiny
    fine, pivot = np.ones((m, n_groups), dtype=bool), np.ones((m, n_groups))
    for i, main in enumerate(form.main):
        pivot = main + level - (form.squares[i - 1] / pivot if i else 0.0)
        fine &= pivot > 0
        pivot = np.where(fine, pivot, 1.0)
    return fine


def traces(covariances: Floats, directions: Floats, lengths: Floats) -> Floats:
    """Traces (m, R) of C^-1 B diag(l) B' for packed C (m, R, q), B (R, d, d) and l (m, R, d)."""
    m, n_groups, d = lengths.shape
    if _one_by_one(m * n_groups, d):
        turned = inverse_roots(unpacked(covariances, d, "full")) @ directions
        return np.asarray(np.einsum("mrij,mrij,mrj->mr", turned, turned, lengths))
    found = np.empty((m, n_groups))
    for r, some in itertools.product(range(n_groups), _pieces(m, d)):
        turned = directions[r].T @ _inverse_root(_unpacked_last(covariances[some, r], d))
        squares = np.einsum("ijn,ijn->nj", turned, turned)
        found[some, r] = np.einsum("nj,nj->n", squares, lengths[some, r])
    return found


def _one_by_one(n_matrices: int, d: int) -> bool:
    return d > MOST_COLUMNS or n_matrices < LEAST_MATRICES


def _pieces(n_matrices: int, d: int) -> Iterator[slice]:
    """So many matrices at a time that they stay in cache."""
    step = max(1, CHUNK_ELEMENTS // (d * d))
    for begin in range(0, n_matrices, step):
        yield slice(begin, begin + step)


def _clients_last(matrices: Floats) -> Floats:
    return np.ascontiguousarray(matrices.transpose(1, 2, 0))


def _unpacked_last(numbers: Floats, d: int) -> Floats:
    """Matrices (d, d, n) from their upper triangles (n, q)."""
    return np.ascontiguousarray(numbers.T)[places_of_triangle(d)]
