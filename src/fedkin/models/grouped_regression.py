"""Every client belongs to one of K linear regressions: E-step and M-step on packed statistics.

The log density of a client under a component is linear in its packed statistics, so the E-step
and the M-step are one thin matrix product each, done block by block in one pass over memory. A
leading axis R holds restarts that run side by side. The last of the G = K + 1 groups may be a
fixed noise group that takes clients no regression explains.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.least_squares import residual_coefficients, solve

Floats = NDArray[np.float64]

# Clients per block: log densities, responsibilities and statistics of a block stay in cache.
CLIENT_BLOCK = 2048
# Noise below this share of the mean square of y is rounding error of the packed statistics.
SMALLEST_NOISE_SHARE = 1e-13
# A component with less than this total of responsibility keeps its old coefficients.
EMPTY_COMPONENT = 1e-8
# A component with less than half a client in expectation is reported as unidentified.
IDENTIFIED_CLIENTS = 0.5


class Parameters(NamedTuple):
    """`coef` (R, K, d), `sigma` (R,), `weights` (R, G)."""

    coef: Floats
    sigma: Floats
    weights: Floats


class Noise(NamedTuple):
    """The noise group: y ~ N(x'coef, variance), fixed. `coef` (d,) is zero but for an intercept."""

    coef: Floats
    variance: float


class Totals(NamedTuple):
    """What the M-step needs of all clients: `sums` (R, G, q), `counts` (R, G), `loglik` (R,)."""

    sums: Floats
    counts: Floats
    loglik: Floats


def density_coefficients(parameters: Parameters, noise: Noise | None) -> Floats:
    """Vectors a with a . statistics = log density of a client given its group, (R, G, q)."""
    coef, variance = parameters.coef, parameters.sigma[:, None] ** 2
    quadratic = residual_coefficients(coef)
    if noise is not None:
        null = residual_coefficients(noise.coef)
        quadratic = np.concatenate([quadratic, np.tile(null, (len(coef), 1, 1))], axis=1)
        fixed = np.full((len(coef), 1), noise.variance)
        variance = np.concatenate([np.tile(variance, (1, coef.shape[1])), fixed], axis=1)
    density = quadratic * (-0.5 / variance)[..., None]
    density[..., -1] = -0.5 * np.log(2 * np.pi * variance)
    return density


def log_weights(parameters: Parameters) -> Floats:
    """Log mixing proportions, -inf where a group has died out."""
    with np.errstate(divide="ignore"):
        return np.log(parameters.weights)


def responsibilities(
    statistics: Floats, density: Floats, log_weight: Floats
) -> tuple[Floats, Floats]:
    """Posterior group probabilities (R, G, b) and log likelihoods (R, b) of b clients."""
    n_restarts, n_groups, q = density.shape
    joint = density.reshape(-1, q) @ statistics
    joint = joint.reshape(n_restarts, n_groups, -1)
    joint += log_weight[..., None]
    top = joint.max(axis=1)
    joint -= top[:, None]
    np.exp(joint, out=joint)
    total = joint.sum(axis=1)
    joint /= total[:, None]
    return joint, top + np.log(total)


def expect(statistics: Floats, parameters: Parameters, noise: Noise | None) -> Totals:
    """The E-step of all clients, statistics (q, m), summed."""
    density, log_weight = density_coefficients(parameters, noise), log_weights(parameters)
    n_restarts, n_groups, q = density.shape
    sums = np.zeros((n_restarts * n_groups, q))
    counts = np.zeros((n_restarts, n_groups))
    loglik = np.zeros(n_restarts)
    for begin in range(0, statistics.shape[1], CLIENT_BLOCK):
        block = statistics[:, begin : begin + CLIENT_BLOCK]
        share, logs = responsibilities(block, density, log_weight)
        sums += share.reshape(n_restarts * n_groups, -1) @ block.T
        counts += share.sum(axis=-1)
        loglik += logs.sum(axis=-1)
    return Totals(sums.reshape(n_restarts, n_groups, q), counts, loglik)


def best_residuals(statistics: Floats, coef: Floats) -> Floats:
    """Mean squared residual of clients with rows under their best component, (R, m)."""
    filled = statistics[:, statistics[-1] > 0]
    squares = residual_coefficients(coef) @ filled
    best: Floats = np.maximum(squares.min(axis=1), 0.0) / filled[-1]
    return best


def maximise(
    totals: Totals, current: Parameters, learn_sigma: bool, learn_weights: bool
) -> Parameters:
    """The M-step (Proposition 3.3, extended by noise and proportions)."""
    n_components = current.coef.shape[1]
    sums = totals.sums[:, :n_components]
    alive = totals.counts[:, :n_components] > EMPTY_COMPONENT
    coef = np.where(alive[..., None], solve(sums)[0], current.coef)
    sigma, weights = current.sigma, current.weights
    if learn_sigma:
        squares = (residual_coefficients(coef) * sums).sum(axis=(1, 2))
        rows = np.maximum(sums[..., -1].sum(axis=1), EMPTY_COMPONENT)
        floor = SMALLEST_NOISE_SHARE * np.maximum(sums[..., -2].sum(axis=1) / rows, 1e-300)
        sigma = np.sqrt(np.maximum(squares / rows, floor))
    if learn_weights:
        weights = totals.counts / totals.counts.sum(axis=1, keepdims=True)
    return Parameters(coef, sigma, weights)


def largest_change(new: Parameters, old: Parameters) -> Floats:
    """Relative change per restart, (R,), of coefficients (by the longest), noise, proportions."""
    length = np.linalg.norm(new.coef, axis=-1).max(axis=1)
    moved = np.linalg.norm(new.coef - old.coef, axis=-1).max(axis=1)
    coef = moved / np.where(length > 0, length, 1.0)
    sigma = np.abs(new.sigma - old.sigma) / new.sigma
    weights = np.abs(new.weights - old.weights).max(axis=1)
    largest: Floats = np.max([coef, sigma, weights], axis=0)
    return largest
