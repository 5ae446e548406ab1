"""How odd a site is."""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Bools, Floats


def outlier_score(distances: Floats, known: Bools, n_features: int) -> Floats:
    """Score (m,) of a site over its components: its summed distance as a standard normal quantile.

    Under the model the sum is chi-squared; Wilson and Hilferty's cube root makes it normal and
    stays finite at any distance. A site that knows nothing scores 0.
    """
    freedom = known.sum(axis=0) * n_features
    some = np.maximum(freedom, 1)
    width = 2.0 / (9.0 * some)
    score = (np.cbrt(distances.sum(axis=0) / some) - (1 - width)) / np.sqrt(width)
    return np.where(freedom > 0, score, 0.0)
