"""Logistic regression of many clients at once: exact minimiser, loss, gradient, curvature.

A client's loss is the mean over its rows of log(1 + exp(-y (x'theta + b))), y = -1 or 1, plus
alpha / 2 |theta|^2; the intercept b, the last coefficient if there is one, is not penalised.

Clients stand in `RowBlocks` with columns (y, x): the block's own last column, `present`, doubles as
the intercept's. Newton's steps run for all clients of a block side by side, each with its own step
length. With fewer rows than coefficients the minimiser lies in the span of the rows, so a client of
40 images with 3072 pixels is solved in 40 coordinates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.federation import Federation
from fedkin.models.row_blocks import Block, RowBlocks

Floats = NDArray[np.float64]

# The least penalty on any coefficient: separable rows, or rows of one class, have their minimiser
# at infinity; this holds it where the loss is about 1e-9.
LEAST_PENALTY = 1e-10
MAX_STEPS = 100
# Newton's decrement (twice the loss still to gain) at which a client is done; losses are below 1.
TOLERANCE = 1e-22
SUFFICIENT_SHARE = 1e-4  # of the gain a linear model promises, for a step to be taken
MOST_HALVINGS = 40


class Solution(NamedTuple):
    """Coefficients (m, d), intercept last; and which clients' steps came to rest (m,)."""

    coef: Floats
    converged: NDArray[np.bool_]


def labelled_rows(clients: Federation) -> RowBlocks:
    """The rows of a federation with outcome 0/1 or -1/1, ready for the functions here."""
    if clients.y is None:
        raise ValueError("logistic loss needs a target y at every site")
    known = np.isin(clients.y, (-1.0, 0.0, 1.0))
    if not known.all():
        site = clients.names[int(clients.owner[np.flatnonzero(~known)[0]])]
        raise ValueError(
            f"site {site!r}: the target has the value {clients.y[~known][0]:g}; logistic loss "
            "needs 0 and 1, or -1 and 1: recode it before fitting"
        )
    signs = np.where(clients.y > 0, 1.0, -1.0)
    return RowBlocks.of(clients, np.concatenate([signs[:, None], clients.X], axis=1), False)


def penalties(n_features: int, fit_intercept: bool, alpha: float) -> Floats:
    """Strength of the penalty on every coefficient, (d,)."""
    strength = np.full(n_features + fit_intercept, max(alpha, LEAST_PENALTY))
    if fit_intercept:
        strength[-1] = LEAST_PENALTY
    return strength


def minimise(rows: RowBlocks, fit_intercept: bool, alpha: float) -> Solution:
    """Every client's penalised maximum likelihood; zero for a client without rows."""
    strength = penalties(rows.n_columns - 1, fit_intercept, alpha)
    coef = np.zeros((rows.n_clients, len(strength)))
    converged = np.ones(rows.n_clients, dtype=bool)
    for block in rows.blocks:
        X, y, present = _parts(block, fit_intercept)
        basis, X, kept = _row_space(X, strength, fit_intercept)
        found, converged[block.clients] = _newton(X, y, present, kept)
        coef[block.clients] = found if basis is None else _from_row_space(basis, found)
    return Solution(coef, converged)


def losses(rows: RowBlocks, coef: Floats, fit_intercept: bool) -> Floats:
    """Mean loss, without penalty, of every client under each model: coef (K, d) -> (m, K)."""
    out = np.zeros((rows.n_clients, len(coef)))
    for block in rows.blocks:
        X, y, present = _parts(block, fit_intercept)
        margins = y[:, None, :] * (coef @ X)
        total = np.einsum("kjn,kn->kj", np.logaddexp(0.0, -margins), present)
        out[block.clients] = total / block.sizes[:, None]
    return out


def gradients(rows: RowBlocks, coef: Floats, fit_intercept: bool, alpha: float) -> Floats:
    """Gradient of every client's own penalised loss at its own model: coef (m, d) -> (m, d)."""
    strength = penalties(rows.n_columns - 1, fit_intercept, alpha)
    out = strength * coef
    for block in rows.blocks:
        X, y, _ = _parts(block, fit_intercept)
        margins = y * np.einsum("kdn,kd->kn", X, coef[block.clients])
        pull = -y * sigmoid(-margins) / block.sizes[:, None]
        out[block.clients] += (X @ pull[..., None])[..., 0]
    return out


def curvatures(rows: RowBlocks, coef: Floats, fit_intercept: bool, alpha: float) -> Floats:
    """Second derivatives of every client's penalised loss at its own model, (m, d, d)."""
    strength = penalties(rows.n_columns - 1, fit_intercept, alpha)
    out = np.tile(np.diag(strength), (rows.n_clients, 1, 1))
    for block in rows.blocks:
        X, _, present = _parts(block, fit_intercept)
        share = sigmoid(np.einsum("kdn,kd->kn", X, coef[block.clients]))
        weight = share * (1.0 - share) * present / block.sizes[:, None]
        out[block.clients] += (X * weight[:, None, :]) @ X.transpose(0, 2, 1)
    return out


def sampling_covariances(
    rows: RowBlocks, coef: Floats, fit_intercept: bool, alpha: float
) -> Floats:
    """Inverse information of every client's estimate, (m, d, d); zero with no more rows than d."""
    n_coef = coef.shape[1]
    out = np.zeros((rows.n_clients, n_coef, n_coef))
    enough = np.flatnonzero(rows.sizes > n_coef)
    if len(enough):
        part = rows.take(enough)
        information = curvatures(part, coef[enough], fit_intercept, alpha)
        out[enough] = np.linalg.inv(information) / part.sizes[:, None, None]
    return out


# ------------------------------------------------------------------ one block


def _parts(block: Block, fit_intercept: bool) -> tuple[Floats, Floats, Floats]:
    """Design (k, d, width), outcome (k, width) and presence (k, width)."""
    data = block.data
    return data[:, 1:] if fit_intercept else data[:, 1:-1], data[:, 0], data[:, -1]


def _row_space(
    X: Floats, strength: Floats, fit_intercept: bool
) -> tuple[Floats | None, Floats, Floats]:
    """The design in orthonormal coordinates of the rows' span, where that has fewer of them.

    All penalised coefficients must share one strength: rotating them then leaves the penalty as it
    is. The intercept's column keeps its place. Returns (basis or None, design, strength).
    """
    n_features = len(strength) - fit_intercept
    if X.shape[-1] >= n_features:
        return None, X, strength
    basis, triangle = np.linalg.qr(X[:, :n_features])
    fewer = np.concatenate([triangle, X[:, n_features:]], axis=1)
    width = triangle.shape[1]
    return basis, fewer, np.concatenate([strength[:1].repeat(width), strength[n_features:]])


def _from_row_space(basis: Floats, coef: Floats) -> Floats:
    width = basis.shape[-1]
    features = np.einsum("kdw,kw->kd", basis, coef[:, :width])
    return np.concatenate([features, coef[:, width:]], axis=1)


def _newton(
    X: Floats, y: Floats, present: Floats, strength: Floats
) -> tuple[Floats, NDArray[np.bool_]]:
    """Newton's method with halved steps for all clients of a block, (k, p) and (k,)."""
    coef = np.zeros(X.shape[:2])
    moving = np.arange(len(X))
    for _ in range(MAX_STEPS):
        if not len(moving):
            break
        part = (X[moving], y[moving], present[moving]) if len(moving) < len(X) else (X, y, present)
        coef[moving], gain = _newton_step(*part, strength, coef[moving])
        moving = moving[gain > TOLERANCE]
    return coef, ~np.isin(np.arange(len(X)), moving)


def _newton_step(
    X: Floats, y: Floats, present: Floats, strength: Floats, coef: Floats
) -> tuple[Floats, Floats]:
    """One safeguarded step; and the decrement before it, zero where no step lowers the loss."""
    n_rows = present.sum(axis=1, keepdims=True)
    score = np.einsum("kdn,kd->kn", X, coef)
    share = sigmoid(score)
    gradient = strength * coef - (X @ (y * sigmoid(-y * score) / n_rows)[..., None])[..., 0]
    weight = share * (1.0 - share) * present / n_rows
    hessian = (X * weight[:, None, :]) @ X.transpose(0, 2, 1)
    hessian[:, np.arange(len(strength)), np.arange(len(strength))] += strength
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


def sigmoid(score: Floats) -> Floats:
    """1 / (1 + exp(-score)), without overflow."""
    from scipy.special import expit

    return np.asarray(expit(score))
