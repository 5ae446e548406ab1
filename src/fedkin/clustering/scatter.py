"""Is the scatter inside clusters no more than the points' own sampling errors explain?

With precision P_i, the inverse of a point's sampling covariance, and the precision-weighted centre
c_k of its cluster, sum_i (a_i - c_k)' P_i (a_i - c_k) is chi-square with (m - K) d degrees of freedom
when the points of a cluster estimate one and the same vector.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.clustering.points import Labels, Points

Array = NDArray[np.float64]


def usable_covariances(covariances: ArrayLike | None, shape: tuple[int, ...]) -> bool:
    """Whether every point has a positive definite covariance (m, d, d) or diagonal (m, d)."""
    if covariances is None:
        return False
    array = np.asarray(covariances, dtype=np.float64)
    m, d = shape
    if array.shape not in ((m, d), (m, d, d)):
        raise ValueError(f"covariances must have shape {(m, d)} or {(m, d, d)}; got {array.shape}")
    if not np.isfinite(array).all():
        return False
    if array.ndim == 2:
        return bool((array > 0).all())
    try:
        np.linalg.cholesky(array)
    except np.linalg.LinAlgError:
        return False
    return True


def whiten(points: Points, covariances: Array) -> Points:
    """Points (m, d) in coordinates where the mean sampling covariance is the identity."""
    if covariances.ndim == 2:
        return points / np.sqrt(covariances.mean(axis=0))
    factor = np.linalg.cholesky(covariances.mean(axis=0))
    return np.linalg.solve(factor, points.T).T


def explained_scatter(points: Points, labels: Labels, covariances: Array, level: float) -> float:
    """Within scatter of a partition over its chi-square quantile; at most 1 when explained.

    0 when there are as many clusters as points: nothing is left to explain.
    """
    from scipy.stats import chi2

    n_clusters = np.unique(labels).size
    freedom = (len(points) - n_clusters) * points.shape[1]
    if freedom == 0:
        return 0.0
    full = covariances if covariances.ndim == 3 else _diagonals(covariances)
    precisions = np.linalg.inv(full)
    scatter = sum(_scatter(points[labels == k], precisions[labels == k]) for k in np.unique(labels))
    return float(scatter / chi2.ppf(level, freedom))


def _scatter(points: Points, precisions: Array) -> float:
    """Least sum_i (a_i - c)' P_i (a_i - c) over c."""
    pulled = np.einsum("ijk,ik->j", precisions, points)
    center = np.linalg.solve(precisions.sum(axis=0), pulled)
    residual = points - center
    return float(np.einsum("ij,ijk,ik->", residual, precisions, residual))


def _diagonals(variances: Array) -> Array:
    return variances[:, :, None] * np.eye(variances.shape[1])
