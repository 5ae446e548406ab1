"""What sites say of how rows scatter, before it is believed.

Sums of squares and products have no negative eigenvalue. A site that sends others does not tell of
rows: it is left out where sites are told of their own (`sound`). And however far its rows scatter,
one site alone does not say how far those of all do (`say`): beyond `MOST_TIMES` the variance at a
typical site it counts the less, and less in all, the more it claims. Its own values are its own
affair.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.arrays import Bools, Floats
from fedkin.models.packed_matrices import places_of_triangle, products, unpacked
from fedkin.models.small_matrices import without_negative
from fedkin.shrinkage.borrowed import FEW

# So many times the variance of a column at a typical site, and a group counts less.
MOST_TIMES = 30.0
# A negative eigenvalue up to this share of the site's largest sum of squares is rounding.
ROUNDING = 1e-8


class Sound(NamedTuple):
    """Counts (m, R), means (m, R, d) and scatter (m, R, q); `implausible` sites (m,) have none."""

    counts: Floats
    means: Floats
    scatter: Floats
    implausible: Bools


def sound(counts: Floats, means: Floats, scatter: Floats, kind: str, units: Floats | None) -> Sound:
    """Moments without those of sites whose scatter no rows can have; `units` of columns (d,).

    What rounding has left negative is lifted to zero, so that no covariance made of it is.
    """
    m, d = len(counts), means.shape[-1]
    if kind == "identity" or not scatter.size:
        return Sound(counts, means, scatter, np.zeros(m, dtype=bool))
    by = np.ones(d) if units is None else units
    if kind in ("full", "tied"):
        size = (diagonal_of(scatter, d) / np.square(by)).sum(axis=-1)
        least, scatter = _lifted(scatter, by)
    else:
        each = scatter / (np.square(by) if kind == "diag" else np.mean(np.square(by)))
        least, size = each.min(axis=-1), np.abs(each).sum(axis=-1)
        scatter = np.maximum(scatter, 0.0)
    largest = np.abs(size).max(axis=1, initial=1.0)
    implausible = least.min(axis=1, initial=0.0) < -ROUNDING * largest
    if implausible.any():
        counts = np.where(implausible[:, None], 0.0, counts)
        scatter = np.where(implausible[:, None, None], 0.0, scatter)
    return Sound(counts, means, scatter, implausible)


def _lifted(scatter: Floats, units: Floats) -> tuple[Floats, Floats]:
    """The least eigenvalue in units where it is negative (m, R), and scatter without these."""
    d, least = len(units), np.zeros(scatter.shape[:2])
    wrong = ~without_negative(scatter, units)
    if not wrong.any():
        return least, scatter
    diagonal = np.diag(places_of_triangle(d))
    whole = unpacked(scatter[wrong], d, "full") / np.outer(units, units)
    values = np.linalg.eigvalsh(whole)[:, 0]
    least[wrong] = np.minimum(values, 0.0)
    scatter = np.array(scatter)
    scatter[..., diagonal] -= least[..., None] * np.square(units)
    return least, scatter


def say(counts: Floats, scatter: Floats, kind: str, units: Floats) -> Floats:
    """How far groups of sites (m, R) have a say in how rows scatter, in [0, 1].

    A group that is wide at the median site that has it may be so. None where a product is larger
    than the largest square, or a square negative: what is left is bounded by its squares.
    """
    d, some = len(units), counts > FEW
    if kind == "identity" or not scatter.size:
        return np.ones(counts.shape)
    if kind == "spherical":
        each = times = scatter / (d * np.mean(np.square(units)))
    else:
        each = scatter / products(units, units, kind)
        times = each if kind == "diag" else diagonal_of(each, d)
    slack = ROUNDING * (1.0 + np.abs(times).max(axis=(1, 2)))[:, None, None]
    allowed = (times >= -slack).all(axis=-1)
    if kind in ("full", "tied"):
        largest = times.max(axis=-1) + slack[..., 0]
        allowed &= (each.max(axis=-1) <= largest) & (each.min(axis=-1) >= -largest)
    times = np.where(some[..., None], times / np.maximum(counts, FEW)[..., None], np.nan)
    usual = np.ones(times.shape[1:])
    for r in np.flatnonzero(some.any(axis=0)):
        own = times[some[:, r], r]
        middle = (len(own) - 1) // 2
        usual[r] = np.maximum(np.partition(own, middle, axis=0)[middle], 1.0)
    far = np.where(some, (np.where(some[..., None], times, 0.0) / usual).max(axis=-1), 0.0)
    return np.where(allowed, np.square(MOST_TIMES / np.maximum(far, MOST_TIMES)), 0.0)


def diagonal_of(scatter: Floats, d: int) -> Floats:
    """The diagonals (..., d) of packed full matrices."""
    return np.asarray(scatter[..., np.diag(places_of_triangle(d))])
