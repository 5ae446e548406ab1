"""Which points are certainly one cluster of (12): a certificate, and the search for it.

A set C of super-points (means abar_p, sizes s_p, S = sum of sizes in C) is fused at a penalty if
there are antisymmetric z_pq, |z_pq| <= 1, with sum_q s_q z_pq = (abar_p - abar_C) / penalty: points
outside pull every member alike, so they drop out (Chiquet, Gutierrez, Rigaill 2017). Every cluster
of the solution has such z. Replacing C by one super-point is then exact, here and at larger
penalties.

The search for z is a convex clustering problem itself. Let v solve it on C alone at (1 - margin)
times the penalty, smoothed or not, with pulls z. Adding (v_p - v_q) / (penalty S) to (1 - margin)
z_pq makes the balance exact, which proves:

    C is fused if   max_pq |v_p - v_q| + (solver's residual) <= margin * penalty * S.        (*)
"""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.clustering import tolerances
from fedkin.clustering.contraction import Groups, diameter
from fedkin.clustering.newton import SmoothProblem, SmoothSolution, minimise
from fedkin.clustering.pairs import CompletePairs, close_pairs
from fedkin.clustering.points import Labels, Points, group_sums


def prove_fused(
    groups: Groups,
    members: Indices,
    penalty: float,
    positions: Points,
    smoothing: float,
) -> list[Indices]:
    """Subsets of `members` (indices of groups) that (*) proves fused.

    `positions` (n, d) are a solution for all groups at the given smoothing: where to start.
    """
    if members.size < 2:
        return []
    sizes, total = groups.sizes[members], groups.sizes[members].sum()
    means = groups.means[members] - sizes @ groups.means[members] / total
    if diameter(means) <= penalty * total:
        return [members]
    if members.size == 2:
        return []  # for two, that test is exact
    # |abar_p - abar_C| <= penalty S is necessary: members twice that apart are not one cluster.
    parts = connected(means, np.full(members.size, penalty * total))
    if parts.max() > 0:
        return _prove_parts(groups, members, parts, penalty, positions, smoothing)
    start, coarse = positions[members] - sizes @ positions[members] / total, smoothing
    for margin in tolerances.MARGINS:
        reach = margin * penalty * total
        finer = min(tolerances.SMOOTHING_SHARE * reach, smoothing)
        tolerance = _gap_for_residual(tolerances.RESIDUAL_SHARE * reach, means, sizes)
        solution = _follow(means, sizes, (1.0 - margin) * penalty, start, coarse, finer, tolerance)
        start, smoothing = solution.positions, finer
        residual = solution.gradient / sizes[:, None]
        slackness = 2.0 * float(np.sqrt((residual**2).sum(axis=1).max()))
        width = diameter(start)
        if width + slackness <= reach:
            return [members]
        if width > tolerances.HOPELESS * reach:
            break
        # A nearer penalty may fuse what is apart here: the smoothing must begin at that distance.
        coarse = max(width, finer)
    # The set is not fused as a whole: whatever is, lies together in its solution.
    parts = connected(start, np.full(members.size, 0.5 * reach))
    if parts.max() == 0:
        return []
    positions = positions.copy()
    positions[members] = start
    return _prove_parts(groups, members, parts, penalty, positions, smoothing)


def _prove_parts(
    groups: Groups,
    members: Indices,
    parts: Labels,
    penalty: float,
    positions: Points,
    smoothing: float,
) -> list[Indices]:
    return [
        proof
        for part in range(parts.max() + 1)
        for proof in prove_fused(groups, members[parts == part], penalty, positions, smoothing)
    ]


def _follow(
    means: Points,
    sizes: Floats,
    penalty: float,
    start: Points,
    smoothing: float,
    finer: float,
    tolerance: float,
) -> SmoothSolution:
    """Solve at a finer smoothing, starting from a solution at a coarser one, step by step."""
    while True:
        following = max(tolerances.SMOOTHING_STEP * smoothing, finer)
        start = pull_together(start, sizes, smoothing, following)
        smoothing = following
        problem = all_pairs_problem(means, sizes, penalty, smoothing)
        last = smoothing == finer
        # A passing solution must be known to its own smoothing, or the next one starts astray.
        passing = min(_gap_for_residual(smoothing, means, sizes), tolerances.PASSING_TOLERANCE)
        solution = minimise(problem, start, tolerance if last else max(tolerance, passing))
        if last:
            return solution
        start = solution.positions


def pull_together(positions: Points, sizes: Floats, smoothing: float, finer: float) -> Points:
    """Where positions (n, d) solved at one smoothing will lie at a finer one.

    Fused points are apart only by smoothing times their pull, and the pulls stay: every component
    within the smoothing shrinks in proportion. An infinite smoothing says that nothing is known.
    """
    if np.isinf(smoothing):
        return positions
    parts = connected(positions, np.full(sizes.size, 0.5 * smoothing))
    n = parts.max() + 1
    totals = np.bincount(parts, sizes, minlength=n)[:, None]
    centers = (group_sums(sizes[:, None] * positions, parts, n) / totals)[parts]
    shrunk = centers + (finer / smoothing) * (positions - centers)
    return np.where(np.bincount(parts)[parts][:, None] > 1, shrunk, positions)


def all_pairs_problem(
    means: Points, sizes: Floats, penalty: float, smoothing: float
) -> SmoothProblem:
    """The smoothed problem in which every two super-points are coupled."""
    return SmoothProblem(means, sizes, penalty, lambda v: CompletePairs(v, sizes, smoothing))


def connected(positions: Points, radius: Floats) -> Labels:
    """Components of the graph that joins positions (n, d) closer than radius_p + radius_q, (n,).

    Numbered in the order of their first points.
    """
    rows, columns = close_pairs(positions, radius)
    first = np.arange(len(positions))
    while True:
        least = first.copy()
        np.minimum.at(least, rows, first[columns])
        np.minimum.at(least, columns, first[rows])
        # Whoever heard of a smaller number takes what that one has heard of.
        least = least[least]
        if np.array_equal(least, first):
            return np.unique(first, return_inverse=True)[1]
        first = least


def _gap_for_residual(residual: float, means: Points, sizes: Floats) -> float:
    """Relative tolerance at which no super-point's residual exceeds the given length."""
    spread = 0.5 * float(sizes @ (means**2).sum(axis=1))
    return 0.5 * sizes.min() * residual**2 / spread if spread > 0 else 1.0
