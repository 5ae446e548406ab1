"""Convex clustering, equation (12), solved to a certified duality gap with certified clusters.

    minimise over u_1..u_m   1/2 sum_i |a_i - u_i|^2 + penalty * sum_{i<j} |u_i - u_j|

Contract what the diameter test proves fused; solve the smoothed problem on what remains; prove
super-points that lie together fused, or let a finer smoothing and a smaller gap prove them apart.

Where we differ from the paper: it leaves the solver and the tolerance for "equal" u_i open, and the
number of clusters near a fusion depends on them. Here two points share a label only if a dual
certificate proves u_i = u_j (see `fusion`), and `certified` says that all other pairs were proved
different, so no tolerance decides. Short of a fusion the u_i can close in on each other with the
square of the remaining penalty; a penalty within about a millionth of such a fusion may come back
uncertified: points are then not joined, and the gap still holds. With weights see `graph`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedkin.clustering import tolerances
from fedkin.clustering.contraction import Groups, merge_small_diameters
from fedkin.clustering.fusion import all_pairs_problem, connected, prove_fused, pull_together
from fedkin.clustering.newton import minimise
from fedkin.clustering.points import (
    Labels,
    Points,
    centred,
    check_points,
    group_sums,
    in_order_of_appearance,
)
from fedkin.threads import one_thread


@dataclass(frozen=True)
class ConvexClustering:
    """The solution of (12) at one penalty."""

    centers: Points  # (m, d), row i is u_i
    labels: Labels  # (m,), equal exactly where the u_i are equal
    gap: float  # (objective - dual value) / objective, an upper bound of the relative error
    n_iter: int  # Newton steps on the whole problem
    # Every joined pair is proved joined and every other pair proved apart. With weights: the gap of
    # the exactly fused centers was met, which is all that is proved there.
    certified: bool


class Fused(NamedTuple):
    """The solution in terms of its groups: what the path hands on from penalty to penalty."""

    groups: Groups
    positions: Points  # (n, d)
    gap: float
    n_iter: int
    certified: bool


class Level(NamedTuple):
    """One smoothing and the accuracy asked at it; a hopeful level is left at the first kink."""

    smoothing: float
    tolerance: float
    hopeful: bool = False


def convex_clustering(
    points: ArrayLike, penalty: float, weights: Any | None = None
) -> ConvexClustering:
    """Cluster points (m, d) by (12) at one penalty >= 0; an infinite penalty joins everything.

    `weights`: None for the uniform weights of (12), else a symmetric (m, m) array or SciPy sparse
    matrix of w_ij >= 0 (Remark 23), for example `nearest_neighbor_weights(points)`.
    """
    array = check_points(points)
    penalty = check_penalty(penalty)
    if weights is not None:
        from fedkin.clustering.graph import solve_on_graph

        return ConvexClustering(*solve_on_graph(array, penalty, weights))
    about, mean, unit = centred(array)
    groups = Groups.of_points(about)
    with one_thread():
        fused = solve_fused(about, groups, groups.means, penalty / unit)
    return ConvexClustering(
        centers=unit * fused.positions[fused.groups.labels] + mean,
        labels=in_order_of_appearance(fused.groups.labels),
        gap=fused.gap,
        n_iter=fused.n_iter,
        certified=fused.certified,
    )


def check_penalty(penalty: float) -> float:
    """A penalty as a float >= 0, infinity allowed."""
    if not penalty >= 0:
        raise ValueError(f"penalty must be a number >= 0 (or infinity); got {penalty}")
    return float(penalty)


def solve_fused(points: Points, groups: Groups, start: Points, penalty: float) -> Fused:
    """Solve (12) for centred points (m, d), given groups known to be fused and a start (n, d)."""
    if np.isinf(penalty):
        groups = groups.merge(np.zeros(len(groups), dtype=np.intp))
        return Fused(groups, groups.means, 0.0, 0, True)
    groups, start = _contract(groups, start, merge_small_diameters(groups, penalty))
    if penalty == 0.0:
        return Fused(groups, groups.means, 0.0, 0, True)
    n_iter, gap = 0, np.inf
    last = Level(np.inf, np.inf)
    for level in _levels(points, groups):
        if level.smoothing >= last.smoothing:
            continue
        tolerance = min(level.tolerance, max(1e-2 * last.tolerance, tolerances.LEAST_TOLERANCE))
        start = pull_together(start, groups.sizes, last.smoothing, level.smoothing)
        while True:
            if len(groups) == 1:
                return Fused(groups, groups.means, 0.0, n_iter, True)
            within = 0.5 * float(((points - groups.means[groups.labels]) ** 2).sum())
            problem = all_pairs_problem(groups.means, groups.sizes, penalty, level.smoothing)
            solution = minimise(problem, start, tolerance, within, stop_at_kink=level.hopeful)
            n_iter += solution.n_iter
            if level.hopeful and solution.met_kink:
                break
            start, gap = solution.positions, solution.gap / (solution.objective + within)
            if gap <= tolerances.PROMISED_GAP and _all_apart(
                start, groups, penalty, solution.gap, level.smoothing
            ):
                return Fused(groups, start, gap, n_iter, True)
            merged = _merge_proved(groups, start, penalty, level.smoothing)
            if len(merged) == len(groups):
                last = level._replace(tolerance=tolerance)
                break
            merged = merge_small_diameters(merged, penalty)
            groups, start = _contract(groups, start, merged)
    return Fused(groups, start, gap, n_iter, False)


def _levels(points: Points, groups: Groups) -> Iterator[Level]:
    """First a smoothing that nothing notices unless points fuse, then ever finer ones."""
    spread = float(np.sqrt((points**2).sum() / len(points)))
    if len(groups) > 1:
        smoothing = tolerances.FIRST_SMOOTHING * groups.neighbour_distance
        yield Level(smoothing, tolerances.HOPEFUL_TOLERANCE, hopeful=True)
    for k in range(1, tolerances.N_LEVELS + 1):
        yield Level(spread * 10.0**-k, max(10.0 ** (-2 * k - 2), tolerances.LEAST_TOLERANCE))


def _all_apart(
    positions: Points, groups: Groups, penalty: float, gap: float, smoothing: float
) -> bool:
    """Whether every two super-points are proved different.

    The objective is strongly convex: sum_p s_p |v_p - v*_p|^2 <= 2 gap, so |v_p - v*_p| is at most
    sqrt(2 gap / s_p). Two that this leaves undecided, apart from all others, are a cluster only if
    the diameter test says so: for two it is exact.
    """
    radius = np.maximum(np.sqrt(2.0 * gap / groups.sizes), 0.5 * smoothing)
    component = connected(positions, radius)
    counts = np.bincount(component)
    if counts.max() > 2:
        return False
    undecided = np.flatnonzero(counts[component] == 2)
    first, second = undecided[np.argsort(component[undecided], kind="stable")].reshape(-1, 2).T
    apart = np.sqrt(((groups.means[first] - groups.means[second]) ** 2).sum(axis=1))
    reach = penalty * (groups.sizes[first] + groups.sizes[second])
    return bool((apart > reach * (1.0 + tolerances.DISTANCE_ROUNDING)).all())


def _merge_proved(groups: Groups, positions: Points, penalty: float, smoothing: float) -> Groups:
    """Contract what is proved fused among super-points that may lie together."""
    near = connected(positions, np.full(len(groups), 0.5 * tolerances.JOINED_WITHIN * smoothing))
    labels = np.arange(len(groups))
    for component in np.flatnonzero(np.bincount(near) > 1):
        members = np.flatnonzero(near == component)
        for fused in prove_fused(groups, members, penalty, positions, smoothing):
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
