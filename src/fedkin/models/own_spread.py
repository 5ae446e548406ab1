"""How far a site's departures and noise may have swollen where it has no rows, along a line.

All sites swell in one proportion, s(x) of `common_form.py`; no site does so exactly, and beyond its
last row nobody has seen how it goes on. The logarithm of a site's own factor is a random walk that
is zero at its rows: free beyond them, pinned at both ends between two. In one spread of the feature
it gets as far as the growth of all sites may a priori. A site without rows is any site: as all of
them between the edges of their rows.

Rows hardly tell this factor, so it is in no fit. It widens what is predicted as a mixture of
narrower and wider spreads, which has longer tails: Gauss and Hermite's of three.
"""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Floats
from fedkin.models.gp_priors import GROWTH_WIDTH

# Factors a standard normal number stands for, and their shares; the first is none.
FACTORS = np.sqrt(3.0) * np.array([0.0, 1.0, -1.0])
SHARES = np.array([4.0, 1.0, 1.0]) / 6.0


def swollen(places: Floats, x: Floats) -> Floats:
    """Three variances (3, n) of departures and noise at x (n,), in those that s alone gives.

    `places` (k,) are those of the site's rows in the same frame.
    """
    factor: Floats = np.exp(2.0 * np.outer(FACTORS, GROWTH_WIDTH * np.sqrt(away(places, x))))
    return factor


def away(places: Floats, x: Floats) -> Floats:
    """Variance (n,) at x (n,) of a walk that is zero at the places (k,)."""
    known = np.concatenate([[-np.inf], np.sort(places), [np.inf]])
    above = np.clip(np.searchsorted(known, x), 1, len(known) - 1)
    below, up = x - known[above - 1], known[above] - x
    near, far = np.minimum(below, up), np.maximum(below, up)
    pinned: Floats = near / (1.0 + near / np.maximum(far, np.finfo(float).tiny))
    return pinned
