"""Logistic regression of many clients at once: the exact minimiser.

A client's loss is the mean over its rows of log(1 + exp(-y (x'theta + b))), y = -1 or 1, plus
a penalty. Newton's steps run for all clients of a block side by side, each with its own step
length. With fewer rows than coefficients the minimiser lies in the span of the rows, so a client of
40 images with 3072 pixels is solved in 40 coordinates.

Blocks (see `models.row_blocks`): design (k, d, width), target -1 or 1 (k, width), which is 0 where
`present` (k, width) is; `present` is 1, or what the row counts (its weight).
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from fedkin.arrays import Array, Bools, Floats

MAX_NEWTON_STEPS = 100
# Newton's decrement (twice the loss still to gain) at which a client is done; losses are below 1.
DECREMENT_TOLERANCE = 1e-22
SUFFICIENT_SHARE = 1e-4  # of the gain a linear model promises, for a step to be taken
MOST_HALVINGS = 40


def signed(y: Array) -> Floats:
    """A target of two values as -1 and 1."""
    return np.where(y > 0, 1.0, -1.0)


def slopes(score: Floats, y: Floats) -> Floats:
    """Derivatives of rows' losses in their scores; y is -1 or 1, or 0 where there is no row."""
    return np.asarray(-y * expit(-y * score))


def minimise(
    X: Floats, y: Floats, present: Floats, penalties: Floats, fit_intercept: bool
) -> tuple[Floats, Bools]:
    """Every client's own minimiser (k, d), and whether its steps came to rest (k,).

    `penalties` are (d,), or (k, d) if every client has its own.
    """
    basis, X, strength = _row_space(X, penalties, fit_intercept)
    coef, settled = _newton(X, y, present, strength)
    return (coef if basis is None else _from_row_space(basis, coef)), settled


def _row_space(
    X: Floats, strength: Floats, fit_intercept: bool
) -> tuple[Floats | None, Floats, Floats]:
    """The design in orthonormal coordinates of the rows' span, where that has fewer of them.

    All penalised coefficients must share one strength: rotating them then leaves the penalty as it
    is. The intercept's column keeps its place. Returns (basis or None, design, strength).
    """
    n_features = strength.shape[-1] - fit_intercept
    if X.shape[-1] >= n_features or strength.ndim > 1:
        return None, X, strength
    basis, triangle = np.linalg.qr(X[:, :n_features])
    fewer = np.concatenate([triangle, X[:, n_features:]], axis=1)
    width = triangle.shape[1]
    return basis, fewer, np.concatenate([strength[:1].repeat(width), strength[n_features:]])


def _from_row_space(basis: Floats, coef: Floats) -> Floats:
    width = basis.shape[-1]
    features = np.einsum("kdw,kw->kd", basis, coef[:, :width])
    return np.concatenate([features, coef[:, width:]], axis=1)


def _newton(X: Floats, y: Floats, present: Floats, strength: Floats) -> tuple[Floats, Bools]:
    """Newton's method with halved steps for all clients of a block, (k, p) and (k,)."""
    coef = np.zeros(X.shape[:2])
    moving = np.arange(len(X))
    for _ in range(MAX_NEWTON_STEPS):
        if not len(moving):
            break
        part = (X[moving], y[moving], present[moving]) if len(moving) < len(X) else (X, y, present)
        own = strength if strength.ndim == 1 else strength[moving]
        coef[moving], gain = _newton_step(*part, own, coef[moving])
        moving = moving[gain > DECREMENT_TOLERANCE]
    return coef, ~np.isin(np.arange(len(X)), moving)


def _newton_step(
    X: Floats, y: Floats, present: Floats, strength: Floats, coef: Floats
) -> tuple[Floats, Floats]:
    """One safeguarded step; and the decrement before it, zero where no step lowers the loss."""
    n_rows = present.sum(axis=1, keepdims=True)
    score = np.einsum("kdn,kd->kn", X, coef)
    share = expit(score)
    gradient = strength * coef + (X @ (slopes(score, y) * present / n_rows)[..., None])[..., 0]
    weight = share * (1.0 - share) * present / n_rows
    hessian = (X * weight[:, None, :]) @ X.transpose(0, 2, 1)
    places = np.arange(strength.shape[-1])
    hessian[:, places, places] += strength
    direction = -np.linalg.solve(hessian, gradient[..., None])[..., 0]
    decrement = -np.einsum("kd,kd->k", gradient, direction)
    along = np.einsum("kdn,kd->kn", X, direction)

    def value(step: Floats) -> Floats:
        margins = y * (score + step[:, None] * along)
        loss = (np.logaddexp(0.0, -margins) * present).sum(axis=1) / n_rows[:, 0]
        return np.asarray(loss + 0.5 * (strength * (coef + step[:, None] * direction) ** 2).sum(1))

    start, step = value(np.zeros(len(coef))), np.ones(len(coef))
    # Differences of losses carry rounding of this size; below it a step cannot be judged.
    rounding = 4 * np.finfo(float).eps * np.maximum(start, 1.0)
    for _ in range(MOST_HALVINGS):
        short = value(step) > start - SUFFICIENT_SHARE * step * decrement + rounding
        if not short.any():
            break
        step = np.where(short, step / 2, step)
    else:
        step = np.where(short, 0.0, step)
    return coef + step[:, None] * direction, np.where(step > 0, decrement, 0.0)
