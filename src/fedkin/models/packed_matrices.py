"""Symmetric matrices by kind of covariance: only the numbers that a kind has.

| kind | numbers of a (d, d) matrix |
|---|---|
| full, tied | upper triangle, row by row |
| diag | diagonal |
| spherical | trace |
| identity | none |
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedkin.arrays import Floats, Indices


def packed(matrices: Floats, kind: str) -> Floats:
    """What of symmetric matrices (..., d, d) a kind has, (..., q)."""
    d = matrices.shape[-1]
    if kind in ("full", "tied"):
        upper = np.triu_indices(d)
        return matrices[..., upper[0], upper[1]]
    diagonal = np.einsum("...ii->...i", matrices)
    if kind == "diag":
        return np.ascontiguousarray(diagonal)
    trace = diagonal.sum(axis=-1, keepdims=True)
    return trace if kind == "spherical" else trace[..., :0]


def unpacked(numbers: Floats, d: int, kind: str) -> Floats:
    """Matrices (..., d, d) from what a kind has of them."""
    if kind in ("full", "tied"):
        return np.asarray(np.take(numbers, places_of_triangle(d), axis=-1))
    matrices = np.zeros((*numbers.shape[:-1], d, d))
    if kind == "diag":
        matrices[..., range(d), range(d)] = numbers
    elif kind == "spherical":
        matrices[..., range(d), range(d)] = numbers / d
    return matrices


def products(left: Floats, right: Floats, kind: str) -> Floats:
    """Vectors (..., d) times each other, packed, (..., q): where left' right is symmetric."""
    d = right.shape[-1]
    found = np.empty((*right.shape[:-1], n_numbers(kind, d)))
    if kind in ("full", "tied"):
        for i, some in rows_of_triangle(d):
            np.multiply(left[..., i : i + 1], right[..., i:], out=found[..., some])
    elif kind == "diag":
        np.multiply(left, right, out=found)
    elif kind == "spherical":
        np.einsum("...d,...d->...", left, right, out=found[..., 0])
    return found


def products_of_rows(columns: Floats, kind: str, found: Floats) -> None:
    """Rows that stand one beside the other (k, d, width) times themselves, into (k, q, width)."""
    d = columns.shape[1]
    if kind in ("full", "tied"):
        for i, some in rows_of_triangle(d):
            np.multiply(columns[:, i : i + 1], columns[:, i:], out=found[:, some])
    elif kind == "diag":
        np.square(columns, out=found)
    elif kind == "spherical":
        np.einsum("kdn,kdn->kn", columns, columns, out=found[:, 0])


def places_of_triangle(d: int) -> Indices:
    """Where the numbers of a matrix (d, d) stand among those of its upper triangle."""
    upper, places = np.triu_indices(d), np.empty((d, d), dtype=np.intp)
    places[upper] = places.T[upper] = np.arange(len(upper[0]))
    return places


def rows_of_triangle(d: int) -> Iterator[tuple[int, slice]]:
    """The rows of an upper triangle, and where their numbers stand."""
    first = 0
    for i in range(d):
        yield i, slice(first, first + d - i)
        first += d - i


def n_numbers(kind: str, d: int) -> int:
    """How many numbers a kind has of a (d, d) matrix."""
    return {"identity": 0, "spherical": 1, "diag": d}.get(kind, d * (d + 1) // 2)
