"""A penalty without knowing the truth: the path's partition that is best after one polish.

Along the path (geometric penalties), drop groups of fewer than three points, run Lloyd's steps from
the means of the rest, and keep the partition of the largest silhouette. Stragglers that convex
clustering leaves alone until late no longer hide the groups, and no grid of equal steps decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedkin.arrays import Floats, Indices
from fedkin.clustering.kmeans import lloyd
from fedkin.clustering.path import ConvexClusteringPath, convex_clustering_path, penalty_range
from fedkin.clustering.points import Labels, Points, check_points, group_means, silhouette
from fedkin.ties import RELATIVE, first_best

N_GEOMETRIC = 30
SMALLEST_GROUP = 3  # two points can meet by chance; three are a group


@dataclass(frozen=True)
class PolishedPath:
    """The chosen partition, and the whole curve it was chosen from."""

    penalty: float
    labels: Labels  # (m,), after the polish
    n_clusters: int
    curve: Floats  # (n_penalties,), silhouette after the polish; NaN without two groups
    n_polished: Indices  # (n_penalties,), clusters after the polish
    path: ConvexClusteringPath


def polished_silhouette(
    points: ArrayLike,
    n_penalties: int = N_GEOMETRIC,
    smallest_group: int = SMALLEST_GROUP,
    max_clusters: int | None = None,
) -> PolishedPath:
    """Choose penalty and partition of points (m, d) by the polished silhouette.

    Silhouettes need two clusters, so this rule answers 1 only when no penalty shows two groups.
    `max_clusters` bounds the choice, not the curve; None leaves it open.
    """
    array = check_points(points)
    path = convex_clustering_path(array, _penalties(array, n_penalties))
    polished = [polish(array, labels, smallest_group) for labels in path.labels]
    curve = np.array([silhouette(array, labels) for labels in polished])
    counts = np.array([labels.max() + 1 for labels in polished])
    allowed = curve if max_clusters is None else np.where(counts <= max_clusters, curve, np.nan)
    # The largest penalty fuses all.
    best = int(first_best(allowed, floor=RELATIVE))
    best = best if np.isfinite(allowed).any() else len(polished) - 1
    return PolishedPath(
        penalty=float(path.penalties[best]),
        labels=polished[best],
        n_clusters=int(counts[best]),
        curve=curve,
        n_polished=counts,
        path=path,
    )


def _penalties(points: Points, n_penalties: int) -> Floats:
    """Geometric from twice the least distance / m to the diameter / m."""
    apart, fused = penalty_range(points)
    return np.geomspace(min(8.0 * apart, fused), fused, n_penalties) if fused else np.zeros(1)


def polish(points: Points, labels: Labels, smallest_group: int) -> Labels:
    """Lloyd's steps from the means of the groups that are large enough, (m,)."""
    sizes = np.bincount(labels)
    kept = group_means(points, labels, sizes.size)[sizes >= smallest_group]
    if len(kept) < 2:
        return np.zeros(len(points), dtype=np.intp)
    return np.unique(lloyd(points, kept).labels, return_inverse=True)[1]
