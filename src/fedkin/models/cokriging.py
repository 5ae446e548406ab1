"""Autoregressive co-kriging of several fidelities (Kennedy and O'Hagan 2000).

Level t is rho_t times level t - 1 plus a Gaussian process of its own. All rows together are then
one Gaussian process with covariance

    sum_t (c_t c_t') * k_t + noise by level,   c_t[i] = product of rho over levels t+1 .. level(i),

and 0 below level t. It needs the rows of all levels in one place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from fedkin.arrays import Floats, Indices
from fedkin.models.gaussian_process import cholesky, likelihood

# Bounds of the log-parameters; those of lengths are about the widest feature's spread.
LOG_BOUNDS = {"scale": (-9.0, 9.0), "length": (-4.0, 6.0), "noise": (-18.0, 2.0)}
RHO_BOUND = 5.0
MOST_STEPS = 500


@dataclass(frozen=True)
class CoKriged:
    """Rows X (N, d) of T levels with standardised targets y, and the parameters.

    `theta` holds for each level log scale, d log lengths, log noise; `rho` (T - 1,).
    `values` are the negative log likelihoods per row that the search saw.
    """

    X: Floats
    y: Floats
    level: Indices
    theta: Floats
    rho: Floats
    values: Floats = field(default_factory=lambda: np.zeros(0))
    converged: bool = True

    def reach(self, level: Indices, t: int) -> Floats:
        """c_t for rows of these levels."""
        factors = np.concatenate([np.ones(t + 1), np.cumprod(self.rho[t:])])
        return np.where(level >= t, factors[np.minimum(level, len(factors) - 1)], 0.0)

    def covariance(self, A: Floats, level_a: Indices, B: Floats, level_b: Indices) -> Floats:
        """Covariance of the curves between rows of any levels, without noise."""
        total = np.zeros((len(A), len(B)))
        for t, parameters in enumerate(self.theta):
            reach = np.outer(self.reach(level_a, t), self.reach(level_b, t))
            total += reach * _signal(parameters, A, B)
        return total

    def predict(self, X: Floats, level: int) -> tuple[Floats, Floats]:
        """Mean and variance of a new target at one level."""
        at = np.full(len(X), level)
        own = self.covariance(self.X, self.level, self.X, self.level)
        factor, _ = cholesky(own + np.diag(np.exp(self.theta[self.level, -1])))
        cross = self.covariance(X, at, self.X, self.level)
        half = solve_triangular(factor, np.column_stack([cross.T, self.y]), lower=True)
        prior = sum(
            self.reach(at, t) ** 2 * np.exp(parameters[0])
            for t, parameters in enumerate(self.theta)
        )
        variance = prior + np.exp(self.theta[level, -1]) - (half[:, :-1] ** 2).sum(axis=0)
        return half[:, :-1].T @ half[:, -1], np.maximum(variance, 1e-14)


def _signal(parameters: Floats, A: Floats, B: Floats) -> Floats:
    """Covariance of one level's own process between rows."""
    lengths = np.exp(parameters[1:-1])
    square = cdist(A / lengths, B / lengths, "sqeuclidean")
    signal: Floats = np.exp(parameters[0] - 0.5 * square)
    return signal


def fit_cokriging(X: Floats, y: Floats, level: Indices) -> CoKriged:
    """Maximum likelihood of all levels jointly, by L-BFGS with analytic gradient."""
    n_levels, d = int(level.max()) + 1, X.shape[1]
    length = np.log(np.maximum(X.std(axis=0), 1e-12) * np.sqrt(d))
    start = np.tile(np.concatenate([[0.0], length, [np.log(1e-3)]]), (n_levels, 1))
    start[1:, 0] = np.log(0.1)
    bounds = np.array([LOG_BOUNDS["scale"], *[LOG_BOUNDS["length"]] * d, LOG_BOUNDS["noise"]])
    bounds[1:-1] += np.log(np.exp(length).max())
    rho_bounds = np.tile([-RHO_BOUND, RHO_BOUND], (n_levels - 1, 1))
    bounds = np.concatenate([np.tile(bounds, (n_levels, 1)), rho_bounds])
    first = np.concatenate([start.ravel(), np.ones(n_levels - 1)])
    values: list[float] = []

    def objective(point: Floats) -> tuple[float, Floats]:
        model = _model(X, y, level, point, n_levels)
        value, gradient = _likelihood(model)
        values.append(value / len(y))
        return value / len(y), gradient / len(y)

    options = {"maxiter": MOST_STEPS}
    end = minimize(objective, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    model = _model(X, y, level, end.x, n_levels)
    return replace(model, values=np.array(values), converged=bool(end.success))


def _model(X: Floats, y: Floats, level: Indices, point: Floats, n_levels: int) -> CoKriged:
    cut = n_levels * (X.shape[1] + 2)
    return CoKriged(X, y, level, point[:cut].reshape(n_levels, -1), point[cut:])


def _likelihood(model: CoKriged) -> tuple[float, Floats]:
    """Negative log likelihood and its gradient in (theta, rho)."""
    X, level, n_levels = model.X, model.level, len(model.theta)
    reach = [model.reach(level, t) for t in range(n_levels)]
    signals = [_signal(parameters, X, X) for parameters in model.theta]
    noise = np.exp(model.theta[level, -1])
    covariance = sum(np.outer(c, c) * s for c, s in zip(reach, signals)) + np.diag(noise)
    value, weight, _ = likelihood(np.asarray(covariance), model.y)
    gradient = np.zeros_like(model.theta)
    by_rho = np.zeros(n_levels - 1)
    for t, parameters in enumerate(model.theta):
        inner = weight * signals[t]
        outer = inner * np.outer(reach[t], reach[t])
        Z = X / np.exp(parameters[1:-1])
        gradient[t, 0] = 0.5 * outer.sum()
        gradient[t, 1:-1] = outer.sum(axis=0) @ Z**2 - np.einsum("nd,nd->d", Z, outer @ Z)
        gradient[t, -1] = 0.5 * (np.diagonal(weight) * noise)[level == t].sum()
        for s in range(t, n_levels - 1):
            # d c_t / d rho_s is c_t without that factor, on the levels above s.
            without = CoKriged(X, model.y, level, model.theta, _without(model.rho, s))
            slope = np.where(level > s, without.reach(level, t), 0.0)
            by_rho[s] += reach[t] @ inner @ slope
    return value, np.concatenate([gradient.ravel(), by_rho])


def _without(rho: Floats, s: int) -> Floats:
    changed = rho.copy()
    changed[s] = 1.0
    return changed
