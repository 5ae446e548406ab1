"""Matern-1/2, 3/2 and 5/2 curves as states that step from reading to reading.

With s = smoothness + 1/2 and rate = sqrt(2 smoothness) / length, a Matern curve f solves
(d/dt + rate)^s f = white noise. Its state z_j = (1 + (d/dt) / rate)^j f, j < s, has the value of
the curve in front, no units but those of the curve, and over a gap of x = rate * dt

    transition  A_ij = exp(-x) x^(j - i) / (j - i)!  for j >= i,      innovation covariance
    Q_ij = q (int_0^x u^k exp(-2u) du) / ((s - 1 - i)! (s - 1 - j)!),  k = 2s - 2 - i - j.

Q(infinity) is the stationary covariance, whatever the length scale. Q(x) is not computed as a
difference of that: for close readings nothing would be left of it. With generator
G = d/dx log A = shift - 1 a predicted mean and covariance change with the gap by

    dm = G m,    dP = G P + P G' + q e e',   e the last unit vector.
"""

from __future__ import annotations

from math import factorial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SMOOTHNESS = (0.5, 1.5, 2.5)
# Below this the incomplete gamma function is a power series, above it a difference without loss.
SERIES_BELOW = 1.0
# Terms of that series: 1 / (5 6 ... 18) is below rounding.
SERIES_TERMS = 15


class Gaps(NamedTuple):
    """Steps over gaps: x (T, W), coefficients of the transition (T, s, W), integrals (T, K, W).

    The integrals stand in the order that `innovation` needs.
    """

    x: Floats
    coefficients: Floats
    integrals: Floats


def n_states(smoothness: float) -> int:
    """Length of the state."""
    return int(smoothness + 0.5)


def rate_of(smoothness: float, length: Floats) -> Floats:
    """Rate of decay of a curve of that length scale."""
    rate: Floats = np.sqrt(2.0 * smoothness) / length
    return rate


def noise_power(smoothness: float) -> float:
    """q: power of the white noise that gives the curve unit variance."""
    s = n_states(smoothness)
    return factorial(s - 1) ** 2 * 2.0 ** (2 * s - 1) / factorial(2 * s - 2)


def innovation_scale(smoothness: float) -> Floats:
    """What the integrals are multiplied by in Q, (s, s)."""
    s = n_states(smoothness)
    inverse = np.array([1.0 / factorial(s - 1 - i) for i in range(s)])
    return noise_power(smoothness) * np.outer(inverse, inverse)


def stationary(smoothness: float) -> Floats:
    """Covariance of the state of a curve of unit variance, (s, s)."""
    s = n_states(smoothness)
    whole = np.array([factorial(k) / 2.0 ** (k + 1) for k in range(2 * s - 1)])
    place = 2 * s - 2 - np.add.outer(np.arange(s), np.arange(s))
    return innovation_scale(smoothness) * whole[place]


def gaps_of(smoothness: float, x: Floats) -> Gaps:
    """Everything of a gap that the recursions need, for x (T, W)."""
    s = n_states(smoothness)
    coefficients = np.empty((len(x), s, x.shape[1]))
    coefficients[:, 0] = np.exp(-x)
    for k in range(1, s):
        coefficients[:, k] = coefficients[:, k - 1] * x / k
    integrals = np.stack(_integrals(2 * s - 2, x), axis=1)
    return Gaps(x, coefficients, integrals)


def _integrals(highest: int, x: Floats) -> list[Floats]:
    """int_0^x u^k exp(-2u) du for k = highest, ..., 0: only positive terms are added."""
    y = 2.0 * x
    poisson = [np.exp(-y)]
    for k in range(1, highest + 1):
        poisson.append(poisson[-1] * y / k)
    share = _beyond(poisson, y)
    found = []
    for k in range(highest, -1, -1):
        found.append(share * (factorial(k) / 2.0 ** (k + 1)))
        share = share + poisson[k]
    return found


def _beyond(poisson: list[Floats], y: Floats) -> Floats:
    """Probability that a Poisson count of mean y exceeds those listed."""
    small = np.minimum(y, SERIES_BELOW)
    n = len(poisson)
    series = np.ones_like(y)
    for k in range(n + SERIES_TERMS, n, -1):
        series *= small / k
        series += 1.0
    near = poisson[-1] * small / n * series
    return np.where(y < SERIES_BELOW, near, 1.0 - sum(poisson))
