"""Averages over sites that one site cannot move at will."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Robust = Literal[False, "median", "trimmed"]

# "trimmed": a site this many times the median distance from the centre does not count. Sites that
# are alike lie within about three, so a clean federation is averaged in full.
FAR = 10.0
# No site counts for more than this many median ones, whatever number of rows it claims.
MOST_WEIGHT = 3.0
MEDIAN_STEPS = 200
MEDIAN_TOLERANCE = 1e-12


def average(points: Floats, weights: Floats, robust: Robust = False) -> Floats:
    """Weighted mean of points (m, p), plain or robust; robust weights are capped."""
    used = weights > 0
    points, weights = points[used], weights[used]
    if robust is False:
        mean: Floats = weights @ points / weights.sum()
        return mean
    scale, weights = _spread(points), capped(weights)
    centre = geometric_median(points / scale, weights)
    if robust == "median":
        return centre * scale
    distance = np.linalg.norm(points / scale - centre, axis=1)
    kept = distance <= FAR * max(float(np.median(distance)), 1e-300)
    return average(points[kept], weights[kept])


def capped(weights: Floats) -> Floats:
    """Weights of which none is far above the median of the positive ones."""
    used = weights > 0
    if not used.any():
        return weights
    return np.minimum(weights, MOST_WEIGHT * float(np.median(weights[used])))


def weighted_median(values: Floats, weights: Floats) -> float:
    """The value (m,) with half the weight on either side; between two, their mean."""
    order = np.argsort(values, kind="stable")
    values, reached = values[order], np.cumsum(weights[order])
    half = 0.5 * reached[-1]
    low, high = (int(np.searchsorted(reached, half, side)) for side in ("left", "right"))
    return 0.5 * float(values[low] + values[min(high, len(values) - 1)])


def _spread(points: Floats) -> Floats:
    """Median absolute deviation of every coordinate; 1 where half the sites agree."""
    spread = np.median(np.abs(points - np.median(points, axis=0)), axis=0)
    return np.where(spread > 0, spread, 1.0)


def geometric_median(points: Floats, weights: Floats) -> Floats:
    """The point with the least weighted sum of distances (Vardi and Zhang's Weiszfeld step)."""
    centre: Floats = np.median(points, axis=0)
    for _ in range(MEDIAN_STEPS):
        difference = points - centre
        distance = np.linalg.norm(difference, axis=1)
        apart = distance > 0
        pull = weights[apart] / distance[apart]
        if not len(pull):
            break
        move = pull @ difference[apart]
        held = weights[~apart].sum()
        length = float(np.linalg.norm(move))
        if length <= held:
            break
        step = move / pull.sum() * (1.0 - held / length)
        centre = centre + step
        if np.linalg.norm(step) <= MEDIAN_TOLERANCE * (1.0 + np.linalg.norm(centre)):
            break
    return centre
