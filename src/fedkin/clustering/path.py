"""The whole convex clustering path: from every point apart to one cluster.

With uniform weights clusters never split as the penalty grows: a certificate that fuses a set at
one penalty, scaled down, fuses it at every larger one. So each penalty starts from the groups and
positions of the one before, and the partitions are nested by construction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedkin.arrays import Bools, Floats, Indices
from fedkin.clustering.contraction import Groups, diameter
from fedkin.clustering.convex import check_penalty, solve_fused
from fedkin.clustering.points import Labels, Points, centred, check_points, in_order_of_appearance
from fedkin.clustering.recovery import recovery_interval
from fedkin.threads import one_thread


@dataclass(frozen=True)
class ConvexClusteringPath:
    """Partitions along increasing penalties."""

    penalties: Floats  # (n_penalties,)
    labels: Labels  # (n_penalties, m)
    n_clusters: Indices  # (n_penalties,)
    recovered: Bools  # (n_penalties,): interval (13) of the partition holds
    centers: Floats  # (n_penalties, m, d): every u_i along the path
    gaps: Floats  # (n_penalties,), relative duality gaps
    certified: Bools  # (n_penalties,)

    def linkage(self) -> Floats:
        """The path as a SciPy linkage matrix (m - 1, 4), for `scipy.cluster.hierarchy.dendrogram`.

        The height of a merge is the first penalty at which it was seen. What never merged is joined
        at an infinite height.
        """
        m = self.labels.shape[1]
        node, size = np.arange(m), np.ones(2 * m - 1)
        rows: list[tuple[float, float, float, float]] = []
        stages = [*zip(self.penalties, self.labels, strict=True), (np.inf, np.zeros(m, np.intp))]
        for height, labels in stages:
            for label in range(labels.max() + 1):
                members = labels == label
                parts = np.unique(node[members])
                while parts.size > 1:
                    joined = m + len(rows)
                    size[joined] = size[parts[0]] + size[parts[1]]
                    rows.append((parts[0], parts[1], float(height), size[joined]))
                    parts = np.append(parts[2:], joined)
                node[members] = parts[0]
        return np.array(rows).reshape(-1, 4)


def convex_clustering_path(
    points: ArrayLike, penalties: ArrayLike | None = None, n_penalties: int = 30
) -> ConvexClusteringPath:
    """Solve (12) for points (m, d) at increasing penalties.

    By default `n_penalties` geometric steps over `penalty_range`.
    """
    array = check_points(points)
    grid = _default_penalties(array, n_penalties) if penalties is None else _sorted(penalties)
    about, mean, unit = centred(array)
    groups = Groups.of_points(about)
    positions = groups.means
    way = [(0.0, positions)]
    labels: list[Labels] = []
    centers, recovered, gaps, certified = [], [], [], []
    for penalty in grid / unit:
        with one_thread():
            fused = solve_fused(about, groups, _ahead(way, penalty), float(penalty))
        merged = len(fused.groups) < len(groups)
        if not labels or merged:
            interval = recovery_interval(about, fused.groups.labels)
        groups, positions = fused.groups, fused.positions
        way = [*way[-1:], (penalty, positions)] if not merged else [(penalty, positions)]
        labels.append(in_order_of_appearance(groups.labels))
        centers.append(unit * positions[groups.labels] + mean)
        gaps.append(fused.gap)
        certified.append(fused.certified)
        recovered.append(interval.holds(penalty))
    stacked = np.array(labels)
    return ConvexClusteringPath(
        penalties=grid,
        labels=stacked,
        n_clusters=stacked.max(axis=1) + 1,
        recovered=np.array(recovered),
        centers=np.array(centers),
        gaps=np.array(gaps),
        certified=np.array(certified),
    )


def _ahead(way: list[tuple[float, Points]], penalty: float) -> Points:
    """Where the line through the last two positions (n, d) is at the next penalty.

    Between fusions positions move smoothly, so a Newton step fewer is needed than from the last.
    """
    after, there = way[-1]
    before, here = way[0]
    if not before < after < penalty < np.inf:
        return there
    return there + (penalty - after) / (after - before) * (there - here)


def penalty_range(points: ArrayLike) -> tuple[float, float]:
    """Penalties at which all distinct points are surely apart, and all surely fused.

    Apart: (13) for singletons, penalty < min |a_i - a_j| / (2 m - 2); we take half of that.
    Fused: the diameter test, penalty >= max |a_i - a_j| / m.
    """
    from scipy.spatial import cKDTree

    array = check_points(points)
    distinct = np.unique(array, axis=0)
    if len(distinct) == 1:
        return 0.0, 0.0
    m = len(array)
    nearest = float(cKDTree(distinct).query(distinct, k=2)[0][:, 1].min())
    return nearest / (4.0 * m), diameter(array) / m


def _default_penalties(points: Points, n_penalties: int) -> Floats:
    if n_penalties < 1:
        raise ValueError(f"n_penalties must be at least 1; got {n_penalties}")
    lowest, highest = penalty_range(points)
    return np.geomspace(lowest, highest, n_penalties) if lowest > 0 else np.zeros(1)


def _sorted(penalties: ArrayLike) -> Floats:
    grid = np.atleast_1d(np.asarray(penalties, dtype=np.float64))
    if grid.ndim != 1 or grid.size == 0:
        raise ValueError(f"penalties must be a list of numbers; got shape {grid.shape}")
    return np.sort([check_penalty(value) for value in grid])
