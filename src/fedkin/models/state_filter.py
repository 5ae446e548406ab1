"""The recursions of a Kalman filter and its adjoint over lanes.

Arrays have the lane as last axis: states (s, columns, W), covariances (s, s, W). Variances are in
units of the curve's. A reading sees the first entry of the state with noise; m, P are the state
predicted before it, v = y - m_0, S = P_00 + noise, gain = P_0 / S.

Adjoint (de Jong; Koopman and Shephard 1992). Seen from a predicted state, all later readings are
one normal vector, so with r and N known the derivatives of their log density are

    by m: r,     by P: (r r' - N) / 2,

and both run backwards: over a gap r <- A' r, N <- A' N A; over a reading, with e = v / S - gain' r
and D = 1 / S + gain' N gain, r_0 <- r_0 + e and N <- N - h u' - u h' + h h' D, u = N gain, h the
first unit vector. e is the reading's entry of inv(K) y and D its diagonal entry of inv(K).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.matern_states import Gaps, innovation_scale
from fedkin.models.state_lanes import Lanes

Floats = NDArray[np.float64]


class Walk(NamedTuple):
    """Lanes and what an evaluation adds: gaps, columns (T, c, W), noise (T or 1, W)."""

    lanes: Lanes
    smoothness: float
    gaps: Gaps
    columns: Floats
    noise: Floats

    def noise_at(self, step: int) -> Floats:
        """Noise of the readings at a step, all lanes."""
        return self.noise[step if len(self.noise) > 1 else 0]


class States(NamedTuple):
    """Means and covariances with the lane, or the client, as last axis."""

    mean: Floats
    covariance: Floats


class Predictions(NamedTuple):
    """Predicted states (T + 1, ...), what readings add to them (T, c, W) and their variances."""

    mean: Floats
    covariance: Floats
    innovation: Floats
    variance: Floats


# ------------------------------------------------------------------ one step


def advance(coefficients: Floats, block: Floats) -> Floats:
    """A times a block (s, ..., W)."""
    moved = coefficients[0] * block
    for k in range(1, len(block)):
        moved[:-k] += coefficients[k] * block[k:]
    return moved


def retreat(coefficients: Floats, block: Floats) -> Floats:
    """A' times a block (s, ..., W)."""
    moved = coefficients[0] * block
    for k in range(1, len(block)):
        moved[k:] += coefficients[k] * block[:-k]
    return moved


def both_sides(
    step: Callable[[Floats, Floats], Floats], coefficients: Floats, matrix: Floats
) -> Floats:
    """A P A' or A' N A for a symmetric matrix."""
    return step(coefficients, step(coefficients, matrix).swapaxes(0, 1))


def hankel(integrals: Floats) -> Floats:
    """View (s, s, W) of integrals (2s - 1, W) with entry i + j at i, j."""
    s = (len(integrals) + 1) // 2
    down, across = integrals.strides
    return np.lib.stride_tricks.as_strided(
        integrals, (s, s, integrals.shape[1]), (down, down, across), writeable=False
    )


def condition(covariance: Floats, variance: Floats, noise: Floats, gain: Floats) -> Floats:
    """Covariance after a reading; the first row and column without cancellation."""
    after = covariance - gain[:, None] * covariance[0]
    after[0] = covariance[0] * (noise / variance)
    after[:, 0] = after[0]
    return after


# ------------------------------------------------------------------ the walks


def walk_forwards(walk: Walk, starts: States) -> Predictions:
    """Predicted states at every reading and what the readings add."""
    n_steps, c, width = walk.columns.shape
    s = walk.gaps.coefficients.shape[1]
    scale = innovation_scale(walk.smoothness)[:, :, None]
    means, covariances = np.zeros((n_steps + 1, s, c, width)), np.zeros((n_steps + 1, s, s, width))
    innovations, variances = np.zeros((n_steps, c, width)), np.ones((n_steps, width))
    means[0], covariances[0] = starts
    for t, a in enumerate(walk.lanes.n_active):
        mean, covariance = means[t, ..., :a], covariances[t, ..., :a]
        noise = walk.noise_at(t)[:a]
        variance = np.add(covariance[0, 0], noise, out=variances[t, :a])
        surprise = np.subtract(walk.columns[t, :, :a], mean[0], out=innovations[t, :, :a])
        gain = covariance[:, 0] / variance
        coefficients = walk.gaps.coefficients[t, :, :a]
        after = both_sides(advance, coefficients, condition(covariance, variance, noise, gain))
        after += scale * hankel(walk.gaps.integrals[t, :, :a])
        covariances[t + 1, ..., :a] = after
        means[t + 1, ..., :a] = advance(coefficients, mean + gain[:, None] * surprise)
    return Predictions(means, covariances, innovations, variances)


class Sums(NamedTuple):
    """Per lane: sum of e^2 over columns and readings, of D, and the slope by log rate, (W,)."""

    squares: Floats
    precisions: Floats
    slope: Floats


def walk_backwards(walk: Walk, seen: Predictions, ends: States) -> Sums:
    """What the gradient needs, from the adjoints."""
    width = walk.columns.shape[2]
    r, N = ends.mean.copy(), ends.covariance.copy()
    sums = Sums(*np.zeros((3, width)))
    power = innovation_scale(walk.smoothness)[-1, -1]
    for t in range(len(walk.columns) - 1, -1, -1):
        a = walk.lanes.n_active[t]
        by_gap = _slope(
            seen.mean[t + 1, ..., :a],
            seen.covariance[t + 1, ..., :a],
            r[..., :a],
            N[..., :a],
            power,
        )
        sums.slope[:a] += walk.gaps.x[t, :a] * by_gap
        coefficients = walk.gaps.coefficients[t, :, :a]
        r[..., :a] = retreat(coefficients, r[..., :a])
        N[..., :a] = both_sides(retreat, coefficients, N[..., :a])
        error, precision = reverse(seen, t, r[..., :a], N[..., :a])
        sums.squares[:a] += (error * error).sum(axis=0)
        sums.precisions[:a] += precision
    return sums


def walk_smoothly(walk: Walk, seen: Predictions, ends: States) -> tuple[Floats, Floats]:
    """Curve given all readings at every place: fits (T, c, W) and variances (T, W)."""
    r, N = ends.mean.copy(), ends.covariance.copy()
    fitted, variance = np.zeros_like(seen.innovation), np.zeros_like(seen.variance)
    for t in range(len(walk.columns) - 1, -1, -1):
        a = walk.lanes.n_active[t]
        coefficients = walk.gaps.coefficients[t, :, :a]
        r[..., :a] = retreat(coefficients, r[..., :a])
        N[..., :a] = both_sides(retreat, coefficients, N[..., :a])
        reverse(seen, t, r[..., :a], N[..., :a])
        first = seen.covariance[t, 0, :, :a]
        fitted[t, :, :a] = seen.mean[t, 0, :, :a] + (first[:, None] * r[..., :a]).sum(axis=0)
        explained = (first * (N[..., :a] * first).sum(axis=1)).sum(axis=0)
        variance[t, :a] = first[0] - explained
    return fitted, variance


def reverse(seen: Predictions, step: int, r: Floats, N: Floats) -> tuple[Floats, Floats]:
    """Adjoints before a reading from those after it, in place; returns its e (c, a) and D (a,)."""
    a = r.shape[-1]
    variance = seen.variance[step, :a]
    gain = seen.covariance[step, :, 0, :a] / variance
    error = seen.innovation[step, :, :a] / variance - (gain[:, None] * r).sum(axis=0)
    through = (N * gain).sum(axis=1)
    precision = 1.0 / variance + (gain * through).sum(axis=0)
    r[0] += error
    N[0] -= through
    N[:, 0] -= through
    N[0, 0] += precision
    return error, precision


def _slope(mean: Floats, covariance: Floats, r: Floats, N: Floats, power: float) -> Floats:
    """Derivative of the log density of all later readings by the gap before them, (a,)."""
    by_covariance = r[:, None, 0] * r[None, :, 0]
    for c in range(1, r.shape[1]):
        by_covariance += r[:, None, c] * r[None, :, c]
    by_covariance -= N
    slope = 0.5 * power * by_covariance[-1, -1]
    slope -= (r * mean).sum(axis=(0, 1)) + (by_covariance * covariance).sum(axis=(0, 1))
    slope += (r[:-1] * mean[1:]).sum(axis=(0, 1))
    slope += (by_covariance[:-1] * covariance[1:]).sum(axis=(0, 1))
    return slope
