"""Spectral K-means, Algorithm 2: K-means where the clusters are widest apart, then Lloyd's steps.

Where we differ from the paper: part I asks for a 10-approximation of K-means; K-means with greedy
starts and restarts takes its place. Part II is printed with the core test on projected points and
means of the original ones; a centre without core points keeps its place from part I.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedkin.clustering.kmeans import N_STARTS, Clustering, RandomState, kmeans, lloyd
from fedkin.clustering.points import Points, check_n_clusters, check_points

CORE_RATIO = (
    1.0 / 3.0
)  # part II: a core point is three times nearer to its centre than to any other


def spectral_kmeans(
    points: ArrayLike,
    n_clusters: int,
    random_state: RandomState = None,
    part_one_only: bool = False,
    n_starts: int = N_STARTS,
) -> Clustering:
    """Cluster points (m, d) by Algorithm 2; `part_one_only` stops after part I (Theorem 3).

    Part I alone gives the clusters of the projected points; centers are their original means.
    """
    array = check_points(points)
    check_n_clusters(n_clusters, len(array))
    projected = project(array, n_clusters)
    first = kmeans(projected, n_clusters, random_state, n_starts)
    if part_one_only:
        return _with_own_means(array, first)
    return lloyd(array, _core_means(array, projected, first.centers))


def project(points: Points, n_directions: int) -> Points:
    """Points (m, d) projected onto their leading right singular vectors, still (m, d)."""
    _, _, directions = np.linalg.svd(points, full_matrices=False)
    leading = directions[:n_directions]
    return np.asarray(points @ leading.T @ leading)


def _core_means(points: Points, projected: Points, centers: Points) -> Points:
    """Part II: the means of the points that are clearly one centre's, (K, d)."""
    from scipy.spatial.distance import cdist

    distance = cdist(projected, centers)  # (m, K)
    refined = centers.copy()
    for k in range(len(centers)):
        others = np.delete(distance, k, axis=1)
        core = (distance[:, k, None] <= CORE_RATIO * others).all(axis=1)
        if core.any():
            refined[k] = points[core].mean(axis=0)
    return refined


def _with_own_means(points: Points, clustering: Clustering) -> Clustering:
    """The partition with the means and the cost of the original points."""
    centers = clustering.centers.copy()
    for k in np.unique(clustering.labels):
        centers[k] = points[clustering.labels == k].mean(axis=0)
    cost = 0.5 * float(((points - centers[clustering.labels]) ** 2).sum())
    return Clustering(clustering.labels, centers, cost)
