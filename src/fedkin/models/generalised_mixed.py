"""Binomial and Poisson mixed models: every client's marginal log likelihood and its exact slope.

    eta = X beta + offset + Z L b,    b ~ N(0, I),    y | eta ~ binomial(trials, logit) or Poisson

A client integrates its own b. With g(b) = -log p(y | b) + |b|^2 / 2, mode b0 and H = g''(b0),

    Laplace:     loglik = -g(b0) - log|H| / 2
    quadrature:  loglik = log s + log sum_k c_k exp(-g(b0 + s x_k)),  s = H^(-1/2)   (one effect),

which is what `lme4::glmer` maximises with nAGQ = 1 and nAGQ = K. The slope is that of these very
numbers, the moving of the mode and of the nodes included (through the third derivative of log p),
so that a server's search on sums of values and slopes ends where its slope is zero.

Rows and families are in `glm_rows`; matrices of all clients are (q, q, m) with clients last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.glm_rows import GlmRows, curve
from fedkin.models.random_covariance import Shape
from fedkin.models.small_matrices import cholesky, solve

Floats = NDArray[np.float64]

MOST_STEPS = 60
MOST_HALVINGS = 30
# Newton's steps for the modes end when none is longer: the slope then is exact to twice the digits.
AT_REST = 1e-9
# Of the gain a linear model promises, for a step to be taken.
SUFFICIENT_SHARE = 1e-4


class Modes(NamedTuple):
    """Modes b (q, m), lower factors of H (q, q, m), eta (N,) there, and which came to rest (m,)."""

    b: Floats
    root: Floats
    eta: Floats
    at_rest: NDArray[np.bool_]


class Marginal(NamedTuple):
    """Log marginal likelihood (m,), its slope in (beta, L's numbers) (m, d + k), and the modes."""

    loglik: Floats
    slope: Floats
    modes: Modes


# ------------------------------------------------------------------ modes


def modes(rows: GlmRows, fixed: Floats, own: Floats, start: Floats | None = None) -> Modes:
    """Newton's method for every client's mode; `fixed` X beta + offset (N,), `own` L'Z (q, N)."""
    q = len(own)
    b = np.zeros((q, rows.n_clients)) if start is None else start.copy()
    at_rest = np.zeros(rows.n_clients, dtype=bool)
    for _ in range(MOST_STEPS):
        eta = fixed + np.einsum("qn,qn->n", own, b[:, rows.owner])
        found = curve(rows, eta)
        gradient = b - rows.sums(own * (rows.y - found.mean))
        root = cholesky(_hessian(rows, own, found.weight))
        step = -solve(root, gradient)
        length = np.abs(step).max(axis=0)
        at_rest = length <= AT_REST
        if at_rest.all():
            break
        b = b + _shortened(rows, fixed, own, b, step, gradient) * step
    eta = fixed + np.einsum("qn,qn->n", own, b[:, rows.owner])
    root = cholesky(_hessian(rows, own, curve(rows, eta).weight))
    return Modes(b, root, eta, at_rest)


def _hessian(rows: GlmRows, own: Floats, weight: Floats) -> Floats:
    """I + L'Z W Z'L of every client, (q, q, m)."""
    q = len(own)
    out = np.zeros((q, q, rows.n_clients))
    for i in range(q):
        weighted = own[i] * weight
        for j in range(i + 1):
            out[i, j] = out[j, i] = rows.sums(weighted * own[j])
        out[i, i] += 1.0
    return out


def _shortened(
    rows: GlmRows, fixed: Floats, own: Floats, b: Floats, step: Floats, gradient: Floats
) -> Floats:
    """Lengths (m,) at which every client's step lowers its own g."""

    def height(at: Floats) -> Floats:
        eta = fixed + np.einsum("qn,qn->n", own, at[:, rows.owner])
        return np.asarray(0.5 * (at**2).sum(axis=0) - rows.sums(curve(rows, eta).loglik))

    before = height(b)
    promised = SUFFICIENT_SHARE * (gradient * step).sum(axis=0)
    # Differences of heights carry rounding of this size; below it a step cannot be judged.
    rounding = 1e-12 * np.maximum(np.abs(before), 1.0)
    length = np.ones(rows.n_clients)
    for _ in range(MOST_HALVINGS):
        higher = height(b + length * step) > before + length * promised + rounding
        if not higher.any():
            break
        length = np.where(higher, 0.5 * length, length)
    return length


# ------------------------------------------------------------------ value and slope


def marginal(
    rows: GlmRows,
    shape: Shape,
    coef: Floats,
    theta: Floats,
    n_quadrature: int = 1,
    start: Floats | None = None,
) -> Marginal:
    """Every client's marginal log likelihood and slope; `n_quadrature` > 1 needs one effect."""
    factor, Z = shape.factor(theta), rows.Z
    if n_quadrature > 1 and len(factor) > 1:
        raise ValueError(
            f"quadrature with {n_quadrature} points needs one random effect, not {len(factor)}; "
            "use n_quadrature=1 (Laplace) or make one column random"
        )
    own = factor.T @ Z
    fixed = coef @ rows.X + rows.offset
    found = modes(rows, fixed, own, start)
    at_mode = curve(rows, found.eta)
    q = len(own)
    inner = solve(found.root[:, :, rows.owner], own)
    leverage = np.einsum("qn,qn->n", own, inner)
    bent = 0.5 * at_mode.bend * leverage
    average = _average(rows, fixed, own, found, n_quadrature)
    pull = average.kappa * rows.sums(own * bent) + average.gradient
    moved = solve(found.root, pull)
    through = at_mode.weight * np.einsum("qn,qn->n", own, moved[:, rows.owner])
    extra = through - average.kappa[rows.owner] * bent
    in_coef = rows.sums(rows.X * (average.residual + extra))
    left = rows.y - at_mode.mean
    b = found.b
    in_factor = np.empty((q, q, rows.n_clients))
    for i in range(q):
        plain, at_extra = rows.sums(Z[i] * left), rows.sums(Z[i] * extra)
        for j in range(q):
            curved = rows.sums(Z[i] * at_mode.weight * inner[j]) * average.kappa
            in_factor[i, j] = rows.sums(Z[i] * average.moment[j]) + at_extra * b[j]
            in_factor[i, j] -= plain * moved[j] + curved
    slope = np.concatenate([in_coef.T, shape.gather(np.moveaxis(in_factor, -1, 0))], axis=1)
    return Marginal(average.loglik + rows.constant, slope, found)


class _Average(NamedTuple):
    """Over the nodes: log likelihood (m,), E(y - mean) (N,), E(y - mean) b (q, N), and corrections.

    `kappa` (m,) is 1 - E g'(b_k) (b_k - b0) and `gradient` (q, m) is E g'(b_k); for Laplace, where
    the mode is the only node, they are 1 and 0.
    """

    loglik: Floats
    residual: Floats
    moment: Floats
    kappa: Floats
    gradient: Floats


def _average(
    rows: GlmRows, fixed: Floats, own: Floats, found: Modes, n_quadrature: int
) -> _Average:
    q = len(own)
    logdet = 2.0 * sum(np.log(found.root[j, j]) for j in range(q))
    if n_quadrature == 1:
        at = curve(rows, found.eta)
        height = rows.sums(at.loglik) - 0.5 * (found.b**2).sum(axis=0)
        residual = rows.y - at.mean
        moment = residual * found.b[:, rows.owner]
        none = np.zeros((q, rows.n_clients))
        return _Average(height - 0.5 * logdet, residual, moment, np.ones(rows.n_clients), none)
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_quadrature)
    spread = 1.0 / found.root[0, 0]
    points = found.b[0] + spread * nodes[:, None]
    constants = np.log(weights / np.sqrt(2 * np.pi)) + 0.5 * nodes**2
    heights, residuals = np.empty(points.shape), []
    for k, point in enumerate(points):
        at = curve(rows, fixed + own[0] * point[rows.owner])
        heights[k] = rows.sums(at.loglik) - 0.5 * point**2 + constants[k]
        residuals.append(rows.y - at.mean)
    largest = heights.max(axis=0)
    share = np.exp(heights - largest)
    total = share.sum(axis=0)
    share = share / total
    gradients = np.stack([p - rows.sums(own[0] * r) for p, r in zip(points, residuals)])
    kappa = 1.0 - (share * gradients * (spread * nodes[:, None])).sum(axis=0)
    residual = sum(s[rows.owner] * r for s, r in zip(share, residuals))
    moment = sum((s * p)[rows.owner] * r for s, p, r in zip(share, points, residuals))
    loglik = largest + np.log(total) - 0.5 * logdet
    mean_gradient = (share * gradients).sum(axis=0)
    return _Average(
        loglik, np.asarray(residual), np.asarray(moment)[None], kappa, mean_gradient[None]
    )
