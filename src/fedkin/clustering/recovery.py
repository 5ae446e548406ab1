"""When convex clustering is bound to find a given partition: the interval (13) of Lemma 1.

    max_k max_{i,j in V_k} |a_i - a_j| / |V_k|  <=  penalty
                              <  min_{k != l} |mu_k - mu_l| / (2 m - |V_k| - |V_l|)

Footnote 3 of the paper prints a simpler interval whose lower end lacks a factor 2 (see the proof of
Lemma 1); only (13) is used here. The interval depends on the partition: for the clusters that a
penalty produced it can be checked afterwards, for the true clusters only an oracle can compute it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedkin.clustering.contraction import diameter
from fedkin.clustering.points import Labels, Points, check_labels, check_points, group_means
from fedkin.ties import RELATIVE


class Interval(NamedTuple):
    """Penalties lower <= penalty < upper; empty when lower >= upper."""

    lower: float
    upper: float

    def holds(self, penalty: float) -> bool:
        """Whether a penalty lies in the interval; within rounding of an end it is that end."""
        reached = self.lower * (1.0 - RELATIVE) <= penalty
        return bool(reached and penalty < self.upper * (1.0 - RELATIVE))


def recovery_interval(points: ArrayLike, labels: ArrayLike) -> Interval:
    """Interval (13) of a partition, labels (m,), of points (m, d); no upper end for one cluster."""
    array = check_points(points)
    checked = check_labels(labels, len(array))
    return Interval(_widest(array, checked), _closest(array, checked))


def oracle_penalty(
    points: ArrayLike, true_labels: ArrayLike, random_state: int | np.random.Generator | None = None
) -> float:
    """The penalty of the paper's "exact" variant: an ORACLE, it needs the true clusters.

    Drawn uniformly from (13) when the interval is not empty, else its upper end (appendix D.1).
    """
    lower, upper = recovery_interval(points, true_labels)
    if lower < upper < np.inf:
        return float(np.random.default_rng(random_state).uniform(lower, upper))
    return lower if np.isinf(upper) else upper


def _widest(points: Points, labels: Labels) -> float:
    """Left end of (13): the largest diameter / size over the clusters."""
    sizes = np.bincount(labels)
    by_cluster = np.split(points[np.argsort(labels, kind="stable")], np.cumsum(sizes)[:-1])
    return max(diameter(members) / len(members) for members in by_cluster)


def _closest(points: Points, labels: Labels) -> float:
    """Right end of (13): the least distance of two centres / (2 m - their sizes)."""
    from scipy.spatial.distance import cdist

    sizes = np.bincount(labels)
    means = group_means(points, labels, sizes.size)
    least = np.inf
    rows = max(1, (1 << 22) // sizes.size)
    for start in range(0, sizes.size, rows):
        block = slice(start, start + rows)
        others = 2 * labels.size - sizes[block, None] - sizes[None, :]
        ratio = cdist(means[block], means) / np.maximum(others, 1)
        ratio[np.arange(len(ratio)), np.arange(start, start + len(ratio))] = np.inf
        least = min(least, float(ratio.min()))
    return least
