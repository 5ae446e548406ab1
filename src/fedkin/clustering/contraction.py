"""Groups of points as super-points, and the groups that their diameter alone proves fused.

A set of total size S and diameter at most penalty * S is one cluster of (12): rule (*) of `fusion`
with margin 1, which needs no solve. In a complete-linkage tree heights are diameters, so every
subtree is tested at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedkin.arrays import Bools, Floats
from fedkin.clustering import tolerances
from fedkin.clustering.pairs import largest_norm, squared_distances
from fedkin.clustering.points import Labels, Points, group_sums, in_order_of_appearance

# Complete linkage keeps two triangles of distances: 288 MB for this many points.
LINKAGE_POINTS = 6000
# With more points the tree is built on this many of them.
ANCHORS = 2000
# Rows of a distance matrix are taken in blocks of this many entries (32 MB).
ENTRIES_PER_BLOCK = 1 << 22


@dataclass(frozen=True)
class Groups:
    """A contraction of m points to n super-points."""

    labels: Labels  # (m,)
    means: Points  # (n, d)
    sizes: Floats  # (n,)

    @classmethod
    def of_points(cls, points: Points) -> Groups:
        """Every point its own group."""
        m = len(points)
        return cls(np.arange(m), points, np.ones(m))

    @cached_property
    def tree(self) -> Floats:
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
        sizes = np.bincount(super_labels, self.sizes, minlength=n).astype(np.float64)
        means = group_sums(self.sizes[:, None] * self.means, super_labels, n) / sizes[:, None]
        return Groups(super_labels[self.labels], means, sizes)

    def __len__(self) -> int:
        return len(self.sizes)


def merge_small_diameters(groups: Groups, penalty: float) -> Groups:
    """Contract every complete-linkage subtree of diameter <= penalty * size, until none is left."""
    while len(groups) > 1:
        if len(groups) <= LINKAGE_POINTS:
            joined = _subtrees_that_fuse(groups.tree, groups.sizes, penalty)
        else:
            joined = _anchored_subtrees_that_fuse(groups.means, groups.sizes, penalty)
        if np.unique(joined).size == len(groups):
            break
        groups = groups.merge(joined)
    return groups


def diameter(points: Points) -> float:
    """Largest distance between two points (m, d), in blocks of rows."""
    rows, largest = max(1, ENTRIES_PER_BLOCK // len(points)), 0.0
    points = points - points.mean(axis=0)
    scale = largest_norm(points)
    for start in range(0, len(points), rows):
        block = squared_distances(points[start : start + rows], points[start:], scale)
        largest = max(largest, float(block.max()))
    return float(np.sqrt(largest))


def _subtrees_that_fuse(tree: Floats, sizes: Floats, penalty: float) -> Labels:
    """Labels (n,) that join the maximal subtrees with diameter <= penalty * size."""
    reach = penalty * _subtree_sizes(tree, sizes) * (1.0 + tolerances.DISTANCE_ROUNDING)
    return _leaves_below(tree, tree[:, 2] <= reach)


def _anchored_subtrees_that_fuse(means: Points, sizes: Floats, penalty: float) -> Labels:
    """Labels (n,) that join such subtrees of many points, most hanging on a sample's leaves.

    The sample only proposes sets; each is accepted on the diameter of all its points.
    """
    from scipy.cluster.hierarchy import linkage
    from sklearn.metrics import pairwise_distances_argmin

    anchors = np.random.default_rng(0).choice(len(means), ANCHORS, replace=False)
    nearest = pairwise_distances_argmin(means, means[anchors])
    tree = linkage(means[anchors], "complete")
    hanging = np.bincount(nearest, sizes, minlength=anchors.size).astype(np.float64)
    reach = penalty * _subtree_sizes(tree, hanging) * (1.0 + tolerances.DISTANCE_ROUNDING)
    fits, accepted = tree[:, 2] <= reach, np.zeros(len(tree), dtype=bool)
    while True:
        owner = _leaves_below(tree, fits)[nearest]
        proposed = np.unique(owner[owner >= anchors.size]) - anchors.size
        if accepted[proposed].all():
            break
        for k in proposed[~accepted[proposed]]:
            accepted[k] = fits[k] = diameter(means[owner == anchors.size + k]) <= reach[k]
    # Points that merely hang on the same anchor are not together.
    alone = owner < anchors.size
    return np.where(alone, -1 - np.arange(len(means)), owner)


def _subtree_sizes(tree: Floats, sizes: Floats) -> Floats:
    """Total size below each inner node of a linkage tree, (n - 1,)."""
    n = sizes.size
    total = np.concatenate([sizes, np.zeros(n - 1)])
    for k, (left, right) in enumerate(tree[:, :2].astype(np.intp)):
        total[n + k] = total[left] + total[right]
    return total[n:]


def _leaves_below(tree: Floats, chosen: Bools) -> Labels:
    """For each leaf its highest chosen ancestor, numbered n + row of the tree, or itself, (n,)."""
    n = len(tree) + 1
    owner = np.arange(2 * n - 1)
    for k in range(n - 2, -1, -1):
        node = n + k
        if chosen[k] or owner[node] != node:
            owner[tree[k, :2].astype(np.intp)] = owner[node]
    return owner[:n]
