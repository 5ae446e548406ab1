"""K-means, equation (15): Lloyd's steps from greedy k-means++ starts, the best of several.

Where we differ from the paper: its Algorithm 3 takes one plain k-means++ start, which misses the
ten clusters of its section 5 in about one run in eight; greedy starts and restarts do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedkin.clustering import tolerances
from fedkin.clustering.points import Labels, Points, check_n_clusters, check_points
from fedkin.ties import first_least

RandomState = int | np.random.Generator | None

N_STARTS = 10


@dataclass(frozen=True)
class Clustering:
    """A partition of m points into K clusters."""

    labels: Labels  # (m,)
    centers: Points  # (K, d)
    cost: float  # (15): 1/2 sum_i |a_i - center of i|^2, or the cost the method minimises


def kmeans(
    points: ArrayLike, n_clusters: int, random_state: RandomState = None, n_starts: int = N_STARTS
) -> Clustering:
    """Cluster points (m, d) into n_clusters by (15)."""
    array = check_points(points)
    check_n_clusters(n_clusters, len(array))
    return _fit(array, n_clusters, random_state, "k-means++", n_starts)


def lloyd(points: ArrayLike, centers: ArrayLike) -> Clustering:
    """Lloyd's steps from given centers (K, d) until the clusters stop changing."""
    array, start = check_points(points), check_points(centers)
    check_n_clusters(len(start), len(array))
    return _fit(array, len(start), 0, start, 1)


def seed_of(random_state: RandomState) -> int | None:
    """A scikit-learn seed: None stays None, a generator gives its next number."""
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    return random_state


def _fit(
    points: Points, n_clusters: int, random_state: RandomState, init: str | Points, n_starts: int
) -> Clustering:
    import warnings

    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_random_state

    # One generator for all starts, one after the other, as scikit-learn itself would use it.
    chance = check_random_state(seed_of(random_state))
    with warnings.catch_warnings():
        # Fewer distinct points than clusters: some clusters stay empty, which is no fault.
        warnings.simplefilter("ignore", ConvergenceWarning)
        runs = [
            KMeans(n_clusters, init=init, n_init=1, random_state=chance, tol=0.0).fit(points)
            for _ in range(n_starts)
        ]
    rounding = tolerances.COST_ROUNDING * float(np.square(points - points.mean(axis=0)).sum())
    fitted = runs[first_least([run.inertia_ for run in runs], floor=rounding)]
    labels = fitted.labels_.astype(np.intp)
    return Clustering(labels, fitted.cluster_centers_, 0.5 * float(fitted.inertia_))
