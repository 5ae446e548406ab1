"""The silhouette of a partition, with its edge cases decided."""

from __future__ import annotations

import numpy as np

from fedkin.clustering.points import Labels, Points


def silhouette(points: Points, labels: Labels) -> float:
    """Mean silhouette of points (m, d); NaN unless there are 2 to m - 1 clusters."""
    n_clusters = np.unique(labels).size
    if not 2 <= n_clusters <= len(points) - 1:
        return float("nan")
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(points, labels))
