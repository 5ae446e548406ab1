"""The geometric median: the one of this library, as the limit of Huber's location."""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Floats
from fedkin.shrinkage.huber import huber_location

# Every point is farther away and pulls with its weight; the radii end at `huber.SMALLEST_RADIUS`.
VANISHING_RADIUS = 1e-100


def geometric_median(points: Floats, weights: Floats | None = None) -> Floats:
    """The point (d,) with the least weighted sum of distances to points (m, d)."""
    pulls = np.ones(len(points)) if weights is None else weights
    radii = np.full((1, len(points)), VANISHING_RADIUS)
    return huber_location(points[None], pulls[None], radii)[0][0]
