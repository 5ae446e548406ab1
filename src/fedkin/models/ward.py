"""Groups of one client's rows by Ward's criterion, found at the client alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

# Directions with less than this share of the largest singular value say nothing.
NULL_DIRECTION_SHARE = 1e-8


def ward_labels(points: Floats, n_clusters: int) -> Indices:
    """Clusters 0 ... of centred points (n, d) with unit columns, by Ward's criterion.

    Principal components are scaled half way to equal variance, as mclust does before it clusters.
    Local EM after it, scaled half way, not at all, all the way: largest error of 45 means in the
    design of B.1 (h = 0, 20 draws) 1.36, 1.45, 1.93; pen digits by writer 4.2, 4.8, 5.1 % wrong.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(points) <= n_clusters:
        return np.arange(len(points))
    left, singular, _ = np.linalg.svd(points, full_matrices=False)
    kept = singular > NULL_DIRECTION_SHARE * max(singular[0], np.finfo(float).tiny)
    if not kept.any():
        return np.zeros(len(points), dtype=np.intp)
    tree = linkage(left[:, kept] * np.sqrt(singular[kept]), method="ward")
    return fcluster(tree, n_clusters, criterion="maxclust").astype(np.intp) - 1
