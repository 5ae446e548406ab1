"""How far the departures of single classes, or columns, lie beyond those of all: empirical Bayes.

A departure U[c, j] ~ N(0, v[c, j]) of a site is known with variance s[c, j]; its rows speak for
1 - s / v of it. Summed over sites, and over the columns that share a variance, MacKay's estimate
(1992) is

    v = sum U^2 / sum (1 - s / v),

and its logarithm has variance about 2 / sum (1 - s / v). Few rows tell single variances badly: they
are drawn to their common level as far as their scatter is no more than that (the moment estimate
of DerSimonian and Laird 1986).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedkin.arrays import Bools, Floats, Indices

Covariance = Literal["full", "diagonal", "isotropic"]

# Of less than this many departures that rows determine nothing is said.
LEAST_DETERMINED = 1e-3


def shared_by(covariance: Covariance, n_features: int, fit_intercept: bool) -> Indices:
    """Which columns share a variance within a class, (d,): the block of every column.

    "diagonal" gives every column its own; else features share one, and the intercept, which comes
    last, has its own.
    """
    if covariance == "diagonal":
        return np.arange(n_features + int(fit_intercept))
    return np.array([0] * n_features + [1] * int(fit_intercept), dtype=np.intp)


def variance_pattern(
    squares: Floats, determined: Floats, logs: Floats, block: Indices, is_level: Bools
) -> Floats:
    """Changes of the log variances `logs` (C, d) that leave their common level as it is, (C, d).

    `squares` and `determined` (C, d) are the sums over sites. Features have one level, intercepts
    (`is_level` (d,)) another.
    """
    out = np.zeros(logs.shape)
    for columns in (np.flatnonzero(~is_level), np.flatnonzero(is_level)):
        blocks = np.unique(block[columns])
        if not len(blocks):
            continue
        own = [columns[block[columns] == b] for b in blocks]
        sums = np.stack([squares[:, some].sum(axis=1) for some in own], axis=1)
        weight = np.stack([determined[:, some].sum(axis=1) for some in own], axis=1)
        now = np.stack([logs[:, some[0]] for some in own], axis=1)
        moved = _drawn_together(sums, weight, now)
        for b, some in enumerate(own):
            out[:, some] = moved[:, b : b + 1]
    return out


def _drawn_together(squares: Floats, determined: Floats, logs: Floats) -> Floats:
    """Logarithms of the estimates over the present ones, around their mean, as far as believed."""
    known = (determined > LEAST_DETERMINED) & (squares > 0)
    if np.count_nonzero(known) < 2:
        return np.zeros(logs.shape)
    found = np.where(known, np.log(np.where(known, squares / np.maximum(determined, 1e-300), 1)), 0)
    weight = np.where(known, 0.5 * determined, 0.0)
    total = weight.sum()
    centre = float((weight * found).sum() / total)
    scatter = float((weight * (found - centre) ** 2).sum()) - (np.count_nonzero(known) - 1)
    between = max(scatter, 0.0) / float(total - (weight**2).sum() / total)
    wanted = centre + between * weight / (between * weight + 1.0) * (found - centre)
    level = float((weight * logs).sum() / total)
    return np.asarray(np.where(known, (wanted - centre) - (logs - level), 0.0))
