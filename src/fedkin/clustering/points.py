"""What every function of this room expects of its points; sums, means, silhouette of partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.arrays import Floats, Indices

Points = Floats  # (m, d)
Labels = Indices  # (m,)


def check_points(points: ArrayLike) -> Points:
    """Points as a finite float array of shape (m, d) with m >= 1, or a ValueError that says why.

    A one-dimensional array is read as m points on a line, shape (m, 1).
    """
    array = np.ascontiguousarray(points, dtype=np.float64)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] == 0:
        raise ValueError(f"points must have shape (m, d) with m >= 1 and d >= 1; got {array.shape}")
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if bad.size:
        raise ValueError(
            f"points has missing or infinite values in {bad.size} of {array.shape[0]} rows "
            f"(first: row {bad[0]}); drop or replace these rows before clustering"
        )
    return array


def check_n_clusters(n_clusters: int, n_points: int) -> int:
    """The number of clusters as an int between 1 and the number of points."""
    if not 1 <= n_clusters <= n_points:
        raise ValueError(
            f"n_clusters must lie between 1 and the number of points {n_points}; got {n_clusters}"
        )
    return int(n_clusters)


def check_labels(labels: ArrayLike, n_points: int) -> Labels:
    """Any labelling of the points, shape (m,), as integers 0..K-1 in order of first appearance."""
    array = np.asarray(labels)
    if array.shape != (n_points,):
        raise ValueError(f"labels must have shape ({n_points},); got {array.shape}")
    return in_order_of_appearance(array)


def in_order_of_appearance(labels: NDArray[Any]) -> Labels:
    """The partition, shape (m,), numbered 0, 1, ... as its groups first appear."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(first.size, dtype=np.intp)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[inverse]


def group_sums(values: Floats, labels: Labels, n_groups: int) -> Points:
    """Sum of the rows of each group, shape (n_groups, d)."""
    from scipy.sparse import csr_array

    m = labels.size
    membership = csr_array((np.ones(m), labels, np.arange(m + 1)), shape=(m, n_groups))
    return np.asarray(membership.T @ values)


def group_means(points: Points, labels: Labels, n_groups: int) -> Points:
    """Mean of the points of each group, shape (n_groups, d); every group must be non-empty."""
    sizes = np.bincount(labels, minlength=n_groups)
    return group_sums(points, labels, n_groups) / sizes[:, None]


def centred(points: Points) -> tuple[Points, Points, float]:
    """Points less their mean, in units of a power of two near their spread; mean and unit.

    Solvers work with squares and cubes of distances: in these units none overflows. A power of two
    changes no digit.
    """
    mean = points.mean(axis=0)
    about = points - mean
    largest = float(np.abs(about).max(initial=0.0))
    unit = float(2.0 ** np.floor(np.log2(largest))) if largest > 0 else 1.0
    return about / unit, mean, unit


def silhouette(points: Points, labels: Labels) -> float:
    """Mean silhouette of points (m, d); NaN unless there are 2 to m - 1 clusters."""
    n_clusters = np.unique(labels).size
    if not 2 <= n_clusters <= len(points) - 1:
        return float("nan")
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(points, labels))
