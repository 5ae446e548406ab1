"""Which points are certainly one cluster of (12): certificates, and contraction of what they prove.

A set C of super-points (means abar_p, sizes s_p, S = sum of sizes in C) is fused at a penalty if and
only if there are antisymmetric z_pq, |z_pq| <= 1, with sum_q s_q z_pq = (abar_p - abar_C) / penalty:
points outside pull every member alike, so they drop out (Chiquet, Gutierrez, Rigaill 2017). Replacing
C by one super-point is then exact, at this penalty and at every larger one.

The search for z is a convex clustering problem itself. Let v solve it on C alone at (1 - margin) times
the penalty, smoothed or not, with pulls z. Adding (v_p - v_q) / (penalty S) to (1 - margin) z_pq makes
the balance exact, which proves:

    C is fused if   max_pq |v_p - v_q| + (solver's residual) <= margin * penalty * S.        (*)

With margin 1 no solve is needed (v = abar): a set of diameter at most penalty * S is fused. That test
costs nothing on the subtrees of a complete-linkage tree, whose heights are diameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedkin.clustering.newton import SmoothProblem, SmoothSolution, minimise
from fedkin.clustering.pairs import CompletePairs, close_pairs, squared_distances
from fedkin.clustering.points import Labels, Points, group_sums, in_order_of_appearance

Array = NDArray[np.float64]

# Complete linkage keeps two triangles of distances: 256 MB for this many points.
LINKAGE_POINTS = 6000
# A penalty within this share of a fusion is not told apart from it.
MARGINS = (1e-3, 1e-6)
# A fused set of some hundred points is about ten smoothings wide: this share of the margin in (*)
# leaves room for ten times that.
SMOOTHING_SHARE = 0.003
# A set this many times too wide for (*) is not tried with a smaller margin.
HOPELESS = 30.0
ROUNDING = 1e-12


@dataclass(frozen=True)
class Groups:
    """A contraction of m points to n super-points."""

    labels: Labels  # (m,)
    means: Points  # (n, d)
    sizes: Array  # (n,)

    @classmethod
    def of_points(cls, points: Points) -> Groups:
        """Every point its own group."""
        m = len(points)
        return cls(np.arange(m), points, np.ones(m))

    @cached_property
    def tree(self) -> Array:
        """Complete-linkage tree of the means; its heights are diameters."""
        from scipy.cluster.hierarchy import linkage

        return np.asarray(linkage(self.means, "complete"))

    @cached_property
    def neighbour_distance(self) -> float:
        """Median distance of a mean to the nearest other mean."""
        from scipy.spatial import cKDTree

        return float(np.median(cKDTree(self.means).query(self.means, k=2)[0][:, 1]))

    def merge(self, super_labels: Labels) -> Groups:
        """Join super-points that share a label, (n,)."""
        super_labels = in_order_of_appearance(super_labels)
        n = int(super_labels.max()) + 1
        sizes = np.bincount(super_labels, self.sizes, minlength=n)
        means = group_sums(self.sizes[:, None] * self.means, super_labels, n) / sizes[:, None]
        return Groups(super_labels[self.labels], means, sizes)

    def __len__(self) -> int:
        return len(self.sizes)


def merge_small_diameters(groups: Groups, penalty: float) -> Groups:
    """Contract every complete-linkage subtree of diameter <= penalty * size, until none is left."""
    while len(groups) > 1:
        found = (
            _subtrees_that_fuse(groups.tree, groups.sizes, penalty)
            if len(groups) <= LINKAGE_POINTS
            else _anchored_subtrees_that_fuse(groups.means, groups.sizes, penalty)
        )
        if np.unique(found).size == len(groups):
            break
        groups = groups.merge(found)
    return groups


def prove_fused(
    groups: Groups,
    members: NDArray[np.intp],
    penalty: float,
    positions: Points,
    smoothing: float,
) -> list[NDArray[np.intp]]:
    """Subsets of `members` (indices of groups) that (*) proves fused.

    `positions` (n, d) are a solution for all groups at the given smoothing: where to start.
    """
    if members.size < 2:
        return []
    sizes, total = groups.sizes[members], groups.sizes[members].sum()
    means = groups.means[members] - sizes @ groups.means[members] / total
    start = positions[members] - sizes @ positions[members] / total
    for margin in MARGINS:
        reach = margin * penalty * total
        finer = min(SMOOTHING_SHARE * reach, smoothing)
        tolerance = _gap_for_residual(0.1 * reach, means, sizes)
        solution = _follow(
            means, sizes, (1.0 - margin) * penalty, start, smoothing, finer, tolerance
        )
        start, smoothing = solution.positions, finer
        residual = solution.gradient / sizes[:, None]
        slackness = 2.0 * float(np.sqrt((residual**2).sum(axis=1).max()))
        width = diameter(start)
        if width + slackness <= reach:
            return [members]
        if width > HOPELESS * reach:
            break
    # The set is not fused as a whole: whatever is, lies together in its solution.
    parts = connected(start, np.full(members.size, 0.5 * reach))
    if parts.max() == 0:
        return []
    positions = positions.copy()
    positions[members] = start
    return [
        proof
        for part in np.flatnonzero(np.bincount(parts) > 1)
        for proof in prove_fused(groups, members[parts == part], penalty, positions, smoothing)
    ]


def _follow(
    means: Points,
    sizes: Array,
    penalty: float,
    start: Points,
    smoothing: float,
    finer: float,
    tolerance: float,
) -> SmoothSolution:
    """Solve at a finer smoothing, starting from a solution at a coarser one, in factors of ten."""
    while True:
        following = max(0.1 * smoothing, finer)
        start = pull_together(start, sizes, smoothing, following)
        smoothing = following
        problem = all_pairs_problem(means, sizes, penalty, smoothing)
        last = smoothing == finer
        solution = minimise(problem, start, tolerance if last else max(tolerance, 1e-6))
        if last:
            return solution
        start = solution.positions


def pull_together(positions: Points, sizes: Array, smoothing: float, finer: float) -> Points:
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
    means: Points, sizes: Array, penalty: float, smoothing: float
) -> SmoothProblem:
    """The smoothed problem in which every two super-points are coupled."""
    return SmoothProblem(means, sizes, penalty, lambda v: CompletePairs(v, sizes, smoothing))


def connected(positions: Points, radius: Array) -> Labels:
    """Components of the graph that joins positions (n, d) closer than radius_p + radius_q, (n,)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rows, columns = close_pairs(positions, radius)
    n = len(positions)
    graph = coo_array((np.ones(rows.size), (rows, columns)), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1])


def diameter(points: Points) -> float:
    """Largest distance between two points (m, d), in blocks of rows."""
    rows = max(1, (1 << 22) // len(points))
    largest = 0.0
    scale = float(np.abs(points).max(initial=0.0))
    for start in range(0, len(points), rows):
        block = squared_distances(points[start : start + rows], points[start:], scale)
        largest = max(largest, float(block.max()))
    return float(np.sqrt(largest))


def _gap_for_residual(residual: float, means: Points, sizes: Array) -> float:
    """Relative tolerance at which no super-point's residual exceeds the given length."""
    spread = 0.5 * float(sizes @ (means**2).sum(axis=1))
    return 0.5 * sizes.min() * residual**2 / spread if spread > 0 else 1.0


def _subtrees_that_fuse(tree: Array, sizes: Array, penalty: float) -> Labels:
    """Labels (n,) that join the maximal subtrees with diameter <= penalty * size."""
    fits = tree[:, 2] <= penalty * _subtree_sizes(tree, sizes) * (1.0 + ROUNDING)
    return _leaves_below(tree, fits)


def _anchored_subtrees_that_fuse(means: Points, sizes: Array, penalty: float) -> Labels:
    """The same for many points: the tree is built on a sample and the rest hang on its leaves.

    The sample only proposes sets; each is accepted on the diameter of all its points.
    """
    from scipy.cluster.hierarchy import linkage

    anchors = np.random.default_rng(0).choice(len(means), LINKAGE_POINTS // 3, replace=False)
    nearest = nearest_rows(means, means[anchors])
    tree = linkage(means[anchors], "complete")
    hanging = np.bincount(nearest, sizes, minlength=anchors.size)
    reach = penalty * _subtree_sizes(tree, hanging) * (1.0 + ROUNDING)
    fits = tree[:, 2] <= reach
    while True:
        owner = _leaves_below(tree, fits)[nearest]
        proposed = np.unique(owner[owner >= anchors.size]) - anchors.size
        wide = [k for k in proposed if diameter(means[owner == anchors.size + k]) > reach[k]]
        if not wide:
            break
        fits[wide] = False
    # Points that merely hang on the same anchor are not together.
    alone = owner < anchors.size
    return np.where(alone, -1 - np.arange(len(means)), owner)


def nearest_rows(points: Points, rows: Points) -> Labels:
    """Index of the nearest row for each point, (m,), in blocks."""
    block = max(1, (1 << 22) // len(rows))
    half_squares = 0.5 * np.einsum("ij,ij->i", rows, rows)
    return np.concatenate(
        [
            np.argmin(half_squares - points[start : start + block] @ rows.T, axis=1)
            for start in range(0, len(points), block)
        ]
    )


def _subtree_sizes(tree: Array, sizes: Array) -> Array:
    """Total size below each inner node of a linkage tree, (n - 1,)."""
    n = sizes.size
    total = np.concatenate([sizes, np.zeros(n - 1)])
    for k, (left, right) in enumerate(tree[:, :2].astype(np.intp)):
        total[n + k] = total[left] + total[right]
    return total[n:]


def _leaves_below(tree: Array, chosen: NDArray[np.bool_]) -> Labels:
    """For each leaf its highest chosen ancestor, numbered n + row of the tree, or itself, (n,)."""
    n = len(tree) + 1
    owner = np.arange(2 * n - 1)
    for k in range(n - 2, -1, -1):
        node = n + k
        if chosen[k] or owner[node] != node:
            owner[tree[k, :2].astype(np.intp)] = owner[node]
    return owner[:n]
