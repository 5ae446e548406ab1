"""The common curve and all departures by the covariance of all rows of all sites.

Exact and cubic in the total number of rows: for small totals in one process, and the oracle for
`common_curve.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.common_form import (
    SPLINE,
    CommonForm,
    curve,
    curve_moved,
    mean_columns,
    parameters,
)
from fedkin.models.gaussian_process import LOG_2PI
from fedkin.models.inducing import features, not_carried, points_at

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


class Rows(NamedTuple):
    """Rows of all sites: X (N, d), target (N,), and whose each is (N,); a spline's knots."""

    X: Floats
    y: Floats
    owner: Indices
    knots: Floats | None = None


def dense_value(form: CommonForm, full: Floats, rows: Rows) -> tuple[float, Floats]:
    """Negative log likelihood of all rows and its gradient by `full`."""
    K, slopes = _with_noise(form, full, rows)
    root = np.linalg.cholesky(K)
    inverse = np.linalg.inv(K)
    weights = inverse @ rows.y
    log_det = 2.0 * np.log(np.diagonal(root)).sum()
    value = 0.5 * (rows.y @ weights + log_det + len(rows.y) * LOG_2PI)
    change = inverse - np.outer(weights, weights)
    return value, 0.5 * np.einsum("ij,pij->p", change, slopes)


def dense_posterior(
    form: CommonForm, full: Floats, rows: Rows, X: Floats, owner: Indices
) -> tuple[Floats, Floats]:
    """Mean and covariance of curves at rows X of sites `owner`, no noise.

    The owner -1 asks for the common curve; a site that has no rows is a new one.
    """
    K, _ = _with_noise(form, full, rows)
    cross = _covariance(form, full, X, rows.X, owner, rows.owner, rows.knots)[0]
    own = _covariance(form, full, X, X, owner, owner, rows.knots)[0]
    solved = np.linalg.solve(K, np.column_stack([rows.y, cross.T]))
    return cross @ solved[:, 0], own - cross @ solved[:, 1:]


def _with_noise(form: CommonForm, full: Floats, rows: Rows) -> tuple[Floats, Floats]:
    """Covariance of the targets and its slopes (p, N, N)."""
    X, owner = rows.X, rows.owner
    K, slopes = _covariance(form, full, X, X, owner, owner, rows.knots)
    part = parameters(form, full)
    noise = np.diag(part.noise * part.swelling(X) ** 2)
    if form.n_growth:
        slopes[-1] += 2.0 * part.growing(X) * noise
    return K + noise, np.concatenate([slopes, noise[None]])


def _covariance(
    form: CommonForm,
    full: Floats,
    A: Floats,
    B: Floats,
    of_a: Indices,
    of_b: Indices,
    knots: Floats | None,
) -> tuple[Floats, Floats]:
    """Covariance of curves between rows A and rows B, and its slopes but that by noise."""
    part = parameters(form, full)
    same = ((of_a[:, None] == of_b) & (of_a[:, None] >= 0)).astype(np.float64)
    bent = part.bent(A), part.bent(B)
    shared, by_shared = curve(form.common, part.common_lengths, *bent)
    if knots is not None and form.common == SPLINE:
        shared = _spline(form, full, knots, A, B)
    own, by_own = curve(form.own, part.own_lengths, *bent)
    lean_a, lean_b = part.leaning(A), part.leaning(B)
    same = same * np.outer(part.swelling(A), part.swelling(B))
    pieces = [
        part.common * shared[None],
        part.common * by_shared,
        part.level * same[None],
        part.slope * (same * (lean_a @ lean_b.T))[None],
        part.own * (same * own)[None],
        part.own * same * by_own,
        -part.slope * same * np.array([a[:, None] + b for a, b in zip(lean_a.T, lean_b.T)]),
    ]
    mean = mean_columns(form, A) @ mean_columns(form, B).T
    departures = sum(pieces[k][0] for k in (2, 3, 4))
    growing = part.growing(A)[:, None] + part.growing(B)
    pieces += [(growing * departures)[None]] * form.n_growth
    if form.n_haste:
        moving = [*zip(bent, (part.bending(A), part.bending(B)))]
        shared_moved = part.common * curve_moved(form.common, part.common_lengths, *moving)
        own_moved = part.own * same * curve_moved(form.own, part.own_lengths, *moving)
        pieces.append(shared_moved + own_moved)
    return mean + pieces[0][0] + departures, np.concatenate(pieces)


def _spline(form: CommonForm, full: Floats, knots: Floats, A: Floats, B: Floats) -> Floats:
    """Covariance of a spline of variance one with these knots (M, 1)."""
    points = points_at(form, full, knots)
    a, b = (features(form, full, points, rows)[0][:, : len(knots)] for rows in (A, B))
    return a @ b.T + not_carried(form, full, points, A, B)
