"""Factors and solutions of many small positive definite systems at once, clients last.

A loop over the q columns; every step is one pass over all clients, so 1e5 systems of two equations
take milliseconds and no client is visited by itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
