"""The paper's choice of the penalty: the clusterpath procedure of appendix C with D.2's constants.

Bracket the penalties between K = m and K = 1 by growing and shrinking a first guess, solve at
equidistant penalties between, and take the number of clusters seen most often.

Errata and our reading: rules 2(a) and 2(b) are printed as the same sentence; (a) must mean "among
the penalties whose partition satisfies (13)". K = 1 and K = m are ends of the bracket, not answers,
and are left out. D.2 exchanges the names of the two ends and cites (6) for (13). Ties go to the
smaller penalty. Where points coincide, m is the number of distinct points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedkin.arrays import Indices
from fedkin.clustering.convex import convex_clustering
from fedkin.clustering.path import ConvexClusteringPath, convex_clustering_path, penalty_range
from fedkin.clustering.points import Labels, Points, check_points

FIRST_PENALTY = 0.1
FACTOR = 1.25
N_EQUIDISTANT = 10


@dataclass(frozen=True)
class ChosenPenalty:
    """One partition picked from a path."""

    penalty: float
    labels: Labels  # (m,)
    n_clusters: int
    rule: str  # which rule decided
    path: ConvexClusteringPath


def clusterpath(
    points: ArrayLike,
    rule: Literal["auto", "a", "b"] = "auto",
    first_penalty: float = FIRST_PENALTY,
    factor: float = FACTOR,
    n_penalties: int = N_EQUIDISTANT,
    skip_trivial: bool = True,
    max_clusters: int | None = None,
) -> ChosenPenalty:
    """Choose a penalty and partition of points (m, d) by appendix C.

    `rule`: "a" looks only at partitions that satisfy (13), "b" at all; "auto" is the paper's: (a)
    if any partition satisfies (13), else (b). `skip_trivial=False` lets K = 1 and K = m compete.
    Partitions of more than `max_clusters` do not compete; None leaves the number open.
    """
    if rule not in ("auto", "a", "b"):
        raise ValueError(f"rule must be 'auto', 'a' or 'b'; got {rule!r}")
    if not (0 < first_penalty < np.inf and 1 < factor < np.inf):
        raise ValueError(
            "first_penalty must be positive and factor above 1: they bracket the penalties; got "
            f"{first_penalty} and {factor}"
        )
    array = check_points(points)
    n_distinct = len(np.unique(array, axis=0))
    lowest, highest = _bracket(array, n_distinct, first_penalty, factor)
    path = convex_clustering_path(array, np.linspace(lowest, highest, n_penalties))
    eligible = np.ones(path.penalties.size, dtype=bool)
    if skip_trivial:
        eligible = (path.n_clusters > 1) & (path.n_clusters < n_distinct)
    if max_clusters is not None:
        eligible &= path.n_clusters <= max_clusters
    verified = eligible & path.recovered
    decided = rule if rule != "auto" else ("a" if verified.any() else "b")
    candidates = np.flatnonzero(verified if decided == "a" else eligible)
    chosen = _most_frequent(path.n_clusters, candidates)
    return ChosenPenalty(
        penalty=float(path.penalties[chosen]),
        labels=path.labels[chosen],
        n_clusters=int(path.n_clusters[chosen]),
        rule=decided if candidates.size else "none eligible: the largest penalty",
        path=path,
    )


def _bracket(
    points: Points, n_distinct: int, first_penalty: float, factor: float
) -> tuple[float, float]:
    """Grow the guess until K = 1, shrink it until no two distinct points are fused.

    What is sure without a solve (`penalty_range`) ends both.
    """
    if n_distinct == 1:
        return first_penalty, first_penalty
    apart, fused = penalty_range(points)
    lowest = highest = first_penalty
    while highest < fused and _count(points, highest) > 1:
        highest *= factor
    while lowest > apart and _count(points, lowest) < n_distinct:
        lowest /= factor
    return lowest, highest


def _count(points: Points, penalty: float) -> int:
    return int(convex_clustering(points, penalty).labels.max()) + 1


def _most_frequent(n_clusters: Indices, candidates: Indices) -> int:
    """Index of the first candidate whose number of clusters is the most frequent among them."""
    if candidates.size == 0:
        return n_clusters.size - 1
    _, first, counts = np.unique(n_clusters[candidates], return_index=True, return_counts=True)
    return int(candidates[first[counts == counts.max()].min()])
