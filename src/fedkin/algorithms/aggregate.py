"""Averages over sites: of all of them, also such that one site cannot move at will, or by group."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.shrinkage.median import geometric_median

Robust = Literal[False, "median", "trimmed"]

# "trimmed": a site this many times the median distance from the centre does not count. Sites that
# are alike lie within about three, so a clean federation is averaged in full.
FAR_FROM_CENTRE = 10.0
# No site counts for more than this many median ones, whatever number of rows it claims: with twice
# the weight, 30 % of the sites are still a minority.
MOST_WEIGHT = 2.0


# ------------------------------------------------------------------ all sites


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
    kept = distance <= FAR_FROM_CENTRE * max(float(np.median(distance)), 1e-300)
    return average(points[kept], weights[kept])


def capped(weights: Floats) -> Floats:
    """Weights of which none is far above the median of the positive ones."""
    used = weights > 0
    if not used.any():
        return weights
    return np.minimum(weights, MOST_WEIGHT * float(np.median(weights[used])))


def weighted_median(values: Floats, weights: Floats) -> float:
    """The value (m,) with half the weight on either side; between two, their mean."""
    low, high = (
        sign * np.quantile(sign * values, 0.5, weights=weights, method="inverted_cdf")
        for sign in (1.0, -1.0)
    )
    return 0.5 * float(low + high)


def _spread(points: Floats) -> Floats:
    """Median absolute deviation of every coordinate; 1 where half the sites agree."""
    spread = np.median(np.abs(points - np.median(points, axis=0)), axis=0)
    return np.where(spread > 0, spread, 1.0)


# ------------------------------------------------------------------ groups of sites


def members(labels: Indices, n_groups: int) -> Floats:
    """Indicators (..., K, m) of labels (..., m); one outside 0..K-1 belongs to no group."""
    return (labels[..., None, :] == np.arange(n_groups)[:, None]).astype(np.float64)


def weighted_means(models: Floats, labels: Indices, n_groups: int, weights: Floats) -> Floats:
    """Means (K, d) of models (m, d) with weights (m,); NaN for a group without weight."""
    share = members(labels, n_groups) * weights
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((share @ models) / share.sum(axis=1, keepdims=True))


def geometric_medians(models: Floats, labels: Indices, n_groups: int) -> Floats:
    """Points (K, d) of the least total distance to their group's models; NaN without any."""
    medians = np.full((n_groups, models.shape[1]), np.nan)
    for k in np.unique(labels[labels >= 0]):
        medians[k] = geometric_median(models[labels == k])
    return medians
