"""Fit of binomial and Poisson mixed models, effects, and predictions.

The search runs on sums of the clients' values and slopes alone (`generalised_mixed.marginal`), in
columns made orthonormal by their summed products, from the fit without effects: what a server can
do round by round. Standard errors come from second derivatives in all parameters together, as in
lme4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.generalised_mixed import Marginal, Modes, marginal
from fedkin.models.glm_rows import Family, GlmRows, curve
from fedkin.models.linear_mixed_fit import is_singular
from fedkin.models.linear_mixed_scales import fixed_coordinates, random_coordinates
from fedkin.models.random_covariance import Covariance, Shape, shape_of
from fedkin.models.small_matrices import solve
from fedkin.models.smooth_search import (
    Remembered,
    minimise,
    positive_inverse,
    second_derivatives,
)

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

# Rounds of the fit without effects, and the gain in log likelihood at which it is done.
MOST_ROUNDS = 25
SETTLED = 1e-8
# Standard deviations of the effects to start from, in units of the linear predictor.
STARTS = (0.3, 1.0)
N_RESPONSE_NODES = 32


@dataclass(frozen=True, eq=False)
class GeneralisedMixedFit:
    """A fitted model; names as in `LinearMixedFit`."""

    coef: Floats
    coef_covariance: Floats
    random: Indices
    random_covariance: Floats
    effects: Floats
    """Modes of the clients' effects, (m, q)."""
    effect_covariances: Floats
    """Of the effects given beta, by the curvature at the mode, (m, q, q)."""
    loglik: float
    gradient: float
    n_rows: int
    n_parameters: int
    n_rounds: int
    """Evaluations a server would have asked for, the fit without effects included."""
    singular: bool
    collinear: tuple[int, ...]
    family: Family
    n_quadrature: int
    by_coef: Floats
    """How the modes move against beta, (m, q, d)."""

    @property
    def client_coef(self) -> Floats:
        """Every client's own coefficients, (m, d)."""
        out = np.tile(self.coef, (len(self.effects), 1))
        out[:, self.random] += self.effects
        return out


class Scaled(NamedTuple):
    """Rows in good columns: X basis, X[:, random] spread."""

    rows: GlmRows
    basis: Floats
    spread: Floats
    shape: Shape
    collinear: tuple[int, ...]


def fit(
    rows: GlmRows,
    random: Indices,
    covariance: Covariance = "full",
    fit_intercept: bool = True,
    n_quadrature: int = 1,
    tol: float = 1e-6,
) -> GeneralisedMixedFit:
    """Maximum likelihood; `n_quadrature` points for one effect, 1 is Laplace.

    The search ends when no slope of -2 log likelihood (in standardised columns) exceeds `tol`.
    """
    scaled = in_good_columns(rows, random, covariance, fit_intercept)
    coef, information, rounds = without_effects(scaled.rows)
    p, shape = len(coef), scaled.shape
    start_modes: list[Floats | None] = [None]

    def objective(point: Floats) -> tuple[float, Floats]:
        found = marginal(scaled.rows, shape, point[:p], point[p:], n_quadrature, start_modes[0])
        start_modes[0] = found.modes.b
        return -2.0 * float(found.loglik.sum()), -2.0 * found.slope.sum(axis=0)

    asked = Remembered(objective)
    tried = [np.concatenate([coef, shape.start(size)]) for size in STARTS]
    start = min(tried, key=lambda point: asked(point)[0])
    inverse = np.diag(np.full(len(start), 1.0 / (4.0 * max(scaled.rows.n_clients, 1))))
    inverse[:p, :p] = 0.5 * positive_inverse(information)
    found = minimise(asked, start, tol, inverse)
    rounds += asked.count
    curvature = 0.5 * second_derivatives(objective, found.point)
    at_end = marginal(scaled.rows, shape, found.point[:p], found.point[p:], n_quadrature)
    return _finished(
        scaled,
        random,
        found.point,
        positive_inverse(curvature)[:p, :p],
        at_end,
        n_quadrature,
        found.gradient,
        rounds,
    )


def in_good_columns(
    rows: GlmRows, random: Indices, covariance: Covariance, fit_intercept: bool
) -> Scaled:
    """Fixed columns orthonormal but for sqrt(N), random ones of mean square one."""
    n = max(len(rows.y), 1)
    gram = rows.X @ rows.X.T
    fixed = fixed_coordinates(gram)
    basis = np.sqrt(n) * fixed.basis
    spread, blocks = random_coordinates(gram / n, random, covariance, fit_intercept)
    shape = shape_of(covariance, spread.shape[1], blocks)
    inside = replace(rows, X=basis.T @ rows.X, Z=spread.T @ rows.X[random])
    return Scaled(inside, basis, spread, shape, fixed.collinear)


def without_effects(rows: GlmRows) -> tuple[Floats, Floats, int]:
    """The generalised linear model of all rows: coefficients, information, rounds taken."""
    coef = np.zeros(len(rows.X))
    before, information = -np.inf, np.eye(len(coef))
    rounds = 0
    step = np.zeros(len(coef))
    for _ in range(MOST_ROUNDS):
        found = curve(rows, coef @ rows.X + rows.offset)
        rounds += 1
        level = float(found.loglik.sum())
        if level < before - SETTLED:
            step *= 0.5
            coef = coef - step
            continue
        information = (rows.X * found.weight) @ rows.X.T
        if level < before + SETTLED:
            break
        before = level
        step = positive_inverse(information) @ (rows.X @ (rows.y - found.mean))
        coef = coef + step
    return coef, information, rounds


def _finished(
    scaled: Scaled,
    random: Indices,
    point: Floats,
    inverse: Floats,
    at_end: Marginal,
    n_quadrature: int,
    gradient: float,
    rounds: int,
) -> GeneralisedMixedFit:
    p = scaled.basis.shape[1]
    factor = scaled.shape.factor(point[p:])
    outside = scaled.spread @ factor
    effects = np.einsum("ij,jm->mi", outside, at_end.modes.b)
    q, m = at_end.modes.b.shape
    identity = np.broadcast_to(np.eye(q)[:, :, None], (q, q, m))
    own = solve(at_end.modes.root, identity)
    covariances = np.einsum("ai,ijm,bj->mab", outside, own, outside, optimize=True)
    moved = _moved(scaled, factor, at_end.modes)
    by_coef = np.einsum("ij,jrm->mir", outside, moved) @ np.linalg.pinv(scaled.basis)
    return GeneralisedMixedFit(
        coef=scaled.basis @ point[:p],
        coef_covariance=scaled.basis @ inverse @ scaled.basis.T,
        random=np.asarray(random),
        random_covariance=outside @ outside.T,
        effects=effects,
        effect_covariances=covariances,
        loglik=float(at_end.loglik.sum()),
        gradient=gradient,
        n_rows=len(scaled.rows.y),
        n_parameters=len(point),
        n_rounds=rounds,
        singular=is_singular(factor),
        collinear=scaled.collinear,
        family=scaled.rows.family,
        n_quadrature=n_quadrature,
        by_coef=by_coef,
    )


def _moved(scaled: Scaled, factor: Floats, found: Modes) -> Floats:
    """H^-1 L'Z W X of every client: the modes go this way when beta goes the other, (q, p, m)."""
    rows, own = scaled.rows, factor.T @ scaled.rows.Z
    weight = curve(rows, found.eta).weight
    inner = np.stack([rows.sums(rows.X * (one * weight)) for one in own])
    return solve(found.root, inner)


# ------------------------------------------------------------------ predictions


class Prediction(NamedTuple):
    """Of every row: linear predictor, variance of its error, and the expected outcome per trial."""

    eta: Floats
    variance: Floats
    response: Floats


def predict(
    found: GeneralisedMixedFit, X: Floats, clients: Indices, offset: Floats | None = None
) -> Prediction:
    """Predict rows X (n, d), intercept included, of `clients` (n,): -1 for a new one.

    The response is averaged over what is not known of eta: at a new site over its effects too.
    """
    known = clients >= 0
    at = np.maximum(clients, 0)
    own = np.where(known[:, None], found.client_coef[at], found.coef)
    eta = np.einsum("nd,nd->n", X, own) + (0.0 if offset is None else offset)
    Z = X[:, found.random]
    moved = X - np.where(known[:, None], np.einsum("nq,nqd->nd", Z, found.by_coef[at]), 0.0)
    variance = np.einsum("nd,de,ne->n", moved, found.coef_covariance, moved)
    covariances = np.where(
        known[:, None, None], found.effect_covariances[at], found.random_covariance
    )
    variance = variance + np.einsum("nq,nqr,nr->n", Z, covariances, Z)
    return Prediction(eta, variance, expected_response(eta, variance, found.family))


def expected_response(eta: Floats, variance: Floats, family: Family) -> Floats:
    """Mean of the inverse link of a normal eta, (n,)."""
    if family == "poisson":
        return np.asarray(np.exp(eta + 0.5 * variance))
    from scipy.special import expit

    nodes, weights = np.polynomial.hermite_e.hermegauss(N_RESPONSE_NODES)
    spread = np.sqrt(np.maximum(variance, 0.0))
    at = expit(eta[:, None] + spread[:, None] * nodes)
    return np.asarray(at @ weights / weights.sum())


def response_spread(eta: Floats, variance: Floats, family: Family) -> Floats:
    """Standard deviation of the inverse link of a normal eta, (n,)."""
    mean = expected_response(eta, variance, family)
    if family == "poisson":
        return np.asarray(mean * np.sqrt(np.expm1(variance)))
    from scipy.special import expit

    nodes, weights = np.polynomial.hermite_e.hermegauss(N_RESPONSE_NODES)
    spread = np.sqrt(np.maximum(variance, 0.0))
    away = expit(eta[:, None] + spread[:, None] * nodes) - mean[:, None]
    return np.asarray(np.sqrt(away**2 @ weights / weights.sum()))
