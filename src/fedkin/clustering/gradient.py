"""Gradient clustering: assign points to centres, move every centre one gradient step, repeat.

    cost(x, labels) = sum_i f(|a_i - x_label(i)|),   f(t) = t^2 / 2          (squared)
                                                     f(t) = t^2 / 2, t <= h; h t - h^2 / 2 (huber)

A centre moves by `step` times the mean gradient of its own points. Both costs have curvature at
most one, so no step <= 1 raises the cost; step 1 with the squared cost is Lloyd's step.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedkin.arrays import Floats
from fedkin.clustering import tolerances
from fedkin.clustering.kmeans import N_STARTS, Clustering, RandomState, kmeans, seed_of
from fedkin.clustering.points import Labels, Points, check_n_clusters, check_points, group_sums
from fedkin.ties import first_least

STEP = 0.5  # the distance to a cluster's best centre halves each round
MAX_ROUNDS = 500


def gradient_clustering(
    points: ArrayLike,
    n_clusters: int,
    random_state: RandomState = None,
    cost: Literal["squared", "huber"] = "squared",
    huber_threshold: float | None = None,
    step: float = STEP,
    n_starts: int = N_STARTS,
) -> Clustering:
    """Cluster points (m, d) by gradient steps from the best of several k-means++ starts.

    `huber_threshold` is the distance beyond which a point pulls with constant force; by default the
    median distance of a point to its K-means centre.
    """
    array = check_points(points)
    check_n_clusters(n_clusters, len(array))
    if cost not in ("squared", "huber"):
        raise ValueError(f"cost must be 'squared' or 'huber'; got {cost!r}")
    if not 0.0 < step <= 1.0:
        raise ValueError(f"step must lie in (0, 1]; got {step}")
    generator = np.random.default_rng(seed_of(random_state))
    threshold = np.inf if cost == "squared" else huber_threshold
    if threshold is None:
        fitted = kmeans(array, n_clusters, generator)
        threshold = float(np.median(_distances(array, fitted.centers, fitted.labels)))
    starts = (_starting_centers(array, n_clusters, generator) for _ in range(n_starts))
    runs = [_descend(array, start, threshold, step) for start in starts]
    return runs[first_least([run.cost for run in runs])]


def _descend(points: Points, centers: Points, threshold: float, step: float) -> Clustering:
    """Rounds of assignment and gradient steps until no centre moves."""
    from sklearn.metrics import pairwise_distances_argmin

    still = tolerances.STILL * float(np.sqrt(((points - points.mean(axis=0)) ** 2).mean()))
    for _ in range(MAX_ROUNDS):
        labels = pairwise_distances_argmin(points, centers)
        move = step * _mean_gradient(points, centers, labels, threshold)
        centers = centers - move
        if np.abs(move).max() <= still:
            break
    labels = pairwise_distances_argmin(points, centers)
    return Clustering(labels, centers, _cost(_distances(points, centers, labels), threshold))


def _mean_gradient(points: Points, centers: Points, labels: Labels, threshold: float) -> Floats:
    """Mean over each centre's points of the gradient of f, (K, d); zero without points."""
    distance = _distances(points, centers, labels)
    shorten = np.divide(threshold, distance, out=np.ones_like(distance), where=distance > threshold)
    gradients = shorten[:, None] * (centers[labels] - points)
    counts = np.bincount(labels, minlength=len(centers))
    return group_sums(gradients, labels, len(centers)) / np.maximum(counts, 1)[:, None]


def _cost(distance: Floats, threshold: float) -> float:
    inside = np.minimum(distance, threshold)
    return float(np.sum(inside * (distance - 0.5 * inside)))


def _distances(points: Points, centers: Points, labels: Labels) -> Floats:
    return np.asarray(np.sqrt(((points - centers[labels]) ** 2).sum(axis=1)))


def _starting_centers(points: Points, n_clusters: int, generator: np.random.Generator) -> Points:
    from sklearn.cluster import kmeans_plusplus

    return np.asarray(kmeans_plusplus(points, n_clusters, random_state=seed_of(generator))[0])
