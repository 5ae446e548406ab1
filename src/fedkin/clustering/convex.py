"""Convex clustering, equation (12), solved to a certified duality gap with certified clusters.

    minimise over u_1..u_m   1/2 sum_i |a_i - u_i|^2 + penalty * sum_{i<j} |u_i - u_j|

Contract what the diameter test proves fused; solve the smoothed problem on what remains; prove
nearby super-points fused, or let a smaller smoothing and a smaller gap prove them apart; repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.clustering.fusion import Groups, all_pairs_problem, connected, merge_small_diameters, prove_fused, pull_together
from fedkin.clustering.newton import SmoothSolution, minimise
from fedkin.clustering.pairs import CompletePairs
from fedkin.clustering.points import (
    Labels,
    Points,
    check_points,
    group_sums,
    in_order_of_appearance,
)

Array = NDArray[np.float64]

RELATIVE_GAP = 1e-9  # asked of the gradient's part; the promise on the whole gap is 1e-7
FIRST_SMOOTHING = 0.1  # share of the median nearest-neighbour distance
LAST_SMOOTHING = 1e-9  # share of the points' spread: below it distances are rounding
SMOOTHING_FACTOR = 10.0
# Gap at which two super-points are told apart is the square of their distance: tighten twice as fast.
GAP_FACTOR = 1e-2
LAST_RELATIVE_GAP = 1e-15


@dataclass(frozen=True)
class ConvexClustering:
    """The solution of (12) at one penalty."""

    centers: Points  # (m, d), row i is u_i
    labels: Labels  # (m,), equal where the u_i are equal
    gap: float  # (objective - dual value) / objective, an upper bound of the relative error
    n_iter: int  # Newton steps on the whole set of super-points
    certified: bool  # every joined pair is proved joined, every other pair proved apart


@dataclass(frozen=True)
class Fused:
    """Groups, their positions and the gap at one penalty: what the path hands on."""

    groups: Groups
    positions: Points  # (n, d)
    gap: float
    n_iter: int
    certified: bool


def solve_fused(points: Points, groups: Groups, start: Points, penalty: float) -> Fused:
    """Solve (12) for centred points (m, d), given groups known to be fused and a start (n, d)."""
    spread = float(np.sqrt((points**2).sum() / len(points)))
    levels = _levels(spread)
    smoothing, tolerance = next(levels)
    first, n_iter = True, 0
    while True:
        groups, start = _contract(groups, start, merge_small_diameters(groups, penalty))
        if len(groups) == 1:
            return Fused(groups, groups.means, 0.0, n_iter, True)
        within = 0.5 * float(((points - groups.means[groups.labels]) ** 2).sum())
        if first:
            smoothing = FIRST_SMOOTHING * _typical_neighbour_distance(groups.means)
            problem = all_pairs_problem(groups.means, groups.sizes, penalty, smoothing)
            solution = minimise(problem, start, RELATIVE_GAP, within, stop_at_kink=True)
            if solution.met_kink:
                first = False
                smoothing, tolerance = next(levels)
        if not first:
            problem = all_pairs_problem(groups.means, groups.sizes, penalty, smoothing)
            solution = minimise(problem, start, tolerance, within)
        n_iter += solution.n_iter
        start = solution.positions
        relative_gap = solution.gap / (solution.objective + within)
        near = _not_told_apart(solution, groups, smoothing)
        if near.max() + 1 == len(groups) and relative_gap < 1e-8:
            return Fused(groups, start, relative_gap, n_iter, True)
        merged = _merge_proved(groups, near, penalty, start, smoothing)
        if VERBOSE: print('   eps %.1e tol %.0e n %d near %d merged %d it %d kink %s'%(smoothing/spread, tolerance, len(groups), near.max()+1, len(merged), solution.n_iter, solution.met_kink), [int(x) for x in np.sort(np.bincount(near))[::-1][:5]])
        if len(merged) < len(groups):
            groups, start = _contract(groups, start, merged)
            first=False
            continue
        previous = smoothing
        while smoothing >= previous or first:
            first=False
            try:
                smoothing, tolerance = next(levels)
            except StopIteration:
                return Fused(groups, start, relative_gap, n_iter, False)
        start = pull_together(start, groups.sizes, previous, smoothing)

VERBOSE=False
def _levels(spread):
    for k in range(1,11):
        yield 10.0**-k*spread, max(10.0**(-2*k-2), 1e-16)

def _typical_neighbour_distance(means: Points) -> float:
    """Median distance to the nearest other super-point."""
    from scipy.spatial import cKDTree

    return float(np.median(cKDTree(means).query(means, k=2)[0][:, 1]))


def _not_told_apart(solution: SmoothSolution, groups: Groups, smoothing: float) -> Labels:
    """Components of super-points whose distance is smoothed or within the error of the positions.

    The objective is strongly convex: sum_p s_p |v_p - v*_p|^2 <= 2 gap, so |v_p - v*_p| is at most
    sqrt(2 gap / s_p).
    """
    radius = np.maximum(np.sqrt(2.0 * solution.gap / groups.sizes), 0.5 * smoothing)
    return connected(solution.positions, radius)


def _merge_proved(groups: Groups, near: Labels, penalty: float, positions: Points, smoothing: float) -> Groups:
    """Contract the parts of each component that are proved fused."""
    labels = np.arange(len(groups))
    for component in np.flatnonzero(np.bincount(near) > 1):
        for fused in prove_fused(groups, np.flatnonzero(near == component), penalty, positions, smoothing):
            labels[fused] = fused[0]
    return groups.merge(labels)


def _contract(groups: Groups, positions: Points, merged: Groups) -> tuple[Groups, Points]:
    """The merged groups with positions averaged by size, (n, d)."""
    if len(merged) == len(groups):
        return groups, positions
    owner = np.empty(len(groups), dtype=np.intp)
    owner[groups.labels] = merged.labels
    weighted = group_sums(groups.sizes[:, None] * positions, owner, len(merged))
    return merged, weighted / merged.sizes[:, None]


def convex_clustering(
    points: ArrayLike, penalty: float, weights: Any | None = None
) -> ConvexClustering:
    """Cluster points (m, d) by (12) at one penalty >= 0 (infinity: one cluster)."""
    array = check_points(points)
    if not penalty >= 0:
        raise ValueError(f"penalty must be a number >= 0; got {penalty}")
    mean = array.mean(axis=0)
    centred = array - mean
    groups = Groups.of_points(centred)
    if np.isinf(penalty):
        groups = groups.merge(np.zeros(len(array), dtype=np.intp))
    fused = solve_fused(centred, groups, groups.means, penalty)
    labels = in_order_of_appearance(fused.groups.labels)
    return ConvexClustering(
        fused.positions[fused.groups.labels] + mean, labels, fused.gap, fused.n_iter, fused.certified
    )
