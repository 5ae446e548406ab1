"""K-means: scikit-learn's, with greedy k-means++ and restarts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Clusters:
    """`labels` (m,), `centers` (K, d) and the cost the method minimises."""

    labels: NDArray[np.intp]
    centers: NDArray[np.float64]
    cost: float


def kmeans(
    points: ArrayLike,
    n_clusters: int,
    random_state: int | np.random.RandomState | None = None,
    n_init: int = 10,
) -> Clusters:
    """Least within-cluster sum of squares over `n_init` greedy k-means++ starts."""
    from sklearn.cluster import KMeans

    fitted = KMeans(n_clusters, n_init=n_init, random_state=random_state).fit(points)
    return Clusters(fitted.labels_.astype(np.intp), fitted.cluster_centers_, float(fitted.inertia_))
