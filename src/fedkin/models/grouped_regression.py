"""Every client belongs to one of K linear regressions: E-step and M-step on packed statistics.

The log density of a client under a component is linear in its packed statistics, so the E-step
and the M-step are one thin matrix product each, done block by block in one pass over memory. A
leading axis R holds restarts that run side by side. The last of the G = K + 1 groups may be a
fixed noise group that takes clients no regression explains: normal around the null model with a
variance that is at least `variance` and has a heavy (Pareto) tail, so that a client of any scale
is better explained there than by bending a regression.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedkin.arrays import Floats
from fedkin.models.least_squares import residual_coefficients, solve, unpack
from fedkin.models.sandwich import Errors, Kinds, kinds_errors

# Clients per block: log densities, responsibilities and statistics of a block stay in cache.
CLIENT_BLOCK = 2048
# Tail index of the noise group's variance: P(variance > c) falls like c ** (-1/2).
NOISE_TAIL = 1.0
# Noise below this share of the mean square of y is rounding error of the packed statistics.
SMALLEST_NOISE_SHARE = 1e-13
# A target that is zero everywhere leaves no scale; one over this is still a number to work with.
SMALLEST_VARIANCE = 1e-200
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
    """The noise group, fixed: `coef` (d,) is zero but for an intercept; least `variance`."""

    coef: Floats
    variance: float


class Totals(NamedTuple):
    """What the M-step needs of all clients: `sums` (R, G, q), `counts` (R, G), `loglik` (R,)."""

    sums: Floats
    counts: Floats
    loglik: Floats


def pack_noise(noise: Noise | None) -> Floats:
    """The noise group as one array that may travel."""
    return np.empty(0) if noise is None else np.append(noise.coef, noise.variance)


def unpack_noise(packed: Floats) -> Noise | None:
    """The inverse of `pack_noise`."""
    return Noise(packed[:-1], float(packed[-1])) if len(packed) else None


def density_coefficients(parameters: Parameters) -> Floats:
    """Vectors a with a . statistics = log density of a client in a component, (R, K, q)."""
    variance = parameters.sigma[:, None] ** 2
    density = residual_coefficients(parameters.coef) * (-0.5 / variance)[..., None]
    density[..., -1] = -0.5 * np.log(2 * np.pi * variance)
    return density


def noise_density(statistics: Floats, noise: Noise) -> Floats:
    """Log density of every client in the noise group, (m,).

    With t = 1 / variance, a = (n + tail) / 2 and Q the squared residuals of the null model it is

        (2 pi)^(-n/2) (tail/2) v^(tail/2)  integral_0^(1/v) t^(a-1) exp(-Q t / 2) dt,

    an incomplete gamma function, taken from whichever side is accurate.
    """
    from scipy.special import gammainc, gammaln, hyp1f1

    squares = np.maximum(residual_coefficients(noise.coef) @ statistics, 0.0)
    n, v = statistics[-1], noise.variance
    a, x = 0.5 * (n + NOISE_TAIL), squares / (2 * v)
    near = x <= a + 1
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        below = -x - np.log(a) + np.log(hyp1f1(1.0, a + 1, np.where(near, x, 0.0)))
        above = gammaln(a) + np.log(gammainc(a, x)) - a * np.log(x)
    integral = np.where(near, below, above) - a * np.log(v)
    density: Floats = integral - 0.5 * n * np.log(2 * np.pi)
    return density + np.log(0.5 * NOISE_TAIL) + 0.5 * NOISE_TAIL * np.log(v)


def log_weights(parameters: Parameters) -> Floats:
    """Log mixing proportions, -inf where a group has died out."""
    with np.errstate(divide="ignore"):
        return np.log(parameters.weights)


def responsibilities(
    statistics: Floats, parameters: Parameters, outside: Floats | None = None
) -> tuple[Floats, Floats]:
    """Posterior group probabilities (R, G, m) and log likelihoods (R, m) of m clients.

    `outside` (m,) is their `noise_density` if there is a noise group.
    """
    return _posterior(
        statistics, density_coefficients(parameters), log_weights(parameters), outside
    )


def _posterior(
    statistics: Floats, density: Floats, log_weight: Floats, outside: Floats | None
) -> tuple[Floats, Floats]:
    n_restarts, n_components, q = density.shape
    joint = (density.reshape(-1, q) @ statistics).reshape(n_restarts, n_components, -1)
    if outside is not None:
        row = np.broadcast_to(outside, (n_restarts, 1, len(outside)))
        joint = np.concatenate([joint, row], axis=1)
    joint += log_weight[..., None]
    top = joint.max(axis=1)
    joint -= top[:, None]
    np.exp(joint, out=joint)
    total = joint.sum(axis=1)
    joint /= total[:, None]
    return joint, top + np.log(total)


def expect(statistics: Floats, parameters: Parameters, outside: Floats | None = None) -> Totals:
    """The E-step of all clients, statistics (q, m), summed."""
    density, log_weight = density_coefficients(parameters), log_weights(parameters)
    n_restarts, n_groups, q = len(log_weight), log_weight.shape[1], len(statistics)
    sums = np.zeros((n_restarts * n_groups, q))
    counts = np.zeros((n_restarts, n_groups))
    loglik = np.zeros(n_restarts)
    for begin in range(0, statistics.shape[1], CLIENT_BLOCK):
        block = slice(begin, begin + CLIENT_BLOCK)
        share, logs = _posterior(
            statistics[:, block], density, log_weight, None if outside is None else outside[block]
        )
        sums += share.reshape(n_restarts * n_groups, -1) @ statistics[:, block].T
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
        floor = SMALLEST_NOISE_SHARE * sums[..., -2].sum(axis=1) / rows
        floor = np.maximum(floor, SMALLEST_VARIANCE)
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


# ------------------------------------------------------------------ how sure


def coefficient_errors(
    statistics: Floats,
    parameters: Parameters,
    outside: Floats | None = None,
    learnt_weights: bool = True,
) -> Errors:
    """Errors of the coefficients of one restart, over clients (q, m); the noise is taken as known.

    Who belongs to which regression is not: Louis' information has what that costs.
    """
    weights = parameters.weights[0] if learnt_weights else None
    d = parameters.coef.shape[-1]
    return kinds_errors(_kinds(statistics, parameters, outside), weights, spent=d)


def _kinds(statistics: Floats, parameters: Parameters, outside: Floats | None) -> Iterator[Kinds]:
    """Clients under every regression, block by block."""
    coef, variance = parameters.coef[0], float(parameters.sigma[0]) ** 2
    for begin in range(0, statistics.shape[1], CLIENT_BLOCK):
        some = statistics[:, begin : begin + CLIENT_BLOCK]
        noise = None if outside is None else outside[begin : begin + CLIENT_BLOCK]
        share, _ = responsibilities(some, parameters, noise)
        gram, cross, _, n_rows = unpack(np.ascontiguousarray(some.T))
        score = (cross[:, None] - np.einsum("mij,kj->mki", gram, coef)) / variance
        each = np.broadcast_to(gram[:, None] / variance, (*score.shape, gram.shape[-1]))
        yield Kinds(np.ascontiguousarray(share[0].T), score, each, n_rows, n_rows)
