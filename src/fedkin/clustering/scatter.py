"""Is the scatter inside clusters no more than the points' own sampling errors explain?

With precision P_i, the inverse of a point's sampling covariance, and the precision-weighted centre
c_k of its cluster, Q = sum_i (a_i - c_k)' P_i (a_i - c_k) is chi-square with (m - K) d degrees of
freedom when the points of a cluster estimate one and the same vector.

Covariances that were themselves estimated, with nu_i degrees of freedom (rows less parameters),
turn a point's share of Q from chi-square into d F(d, nu_i), which is larger and wider: left aside,
fifty rows for twenty parameters already make one cluster look like two. Q is then compared with the
scaled chi-square that has the mean and variance of the sum of those F laws.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedkin.arrays import Floats
from fedkin.clustering.points import Labels, Points

FREEDOM_OF_A_VARIANCE = 4.0  # an F law has a variance only above it


def usable_covariances(
    covariances: ArrayLike | None, degrees_of_freedom: ArrayLike | None, shape: tuple[int, ...]
) -> bool:
    """Whether every point has a positive definite covariance (m, d, d) or diagonal (m, d)."""
    if covariances is None:
        return False
    array, (m, d) = np.asarray(covariances, dtype=np.float64), shape
    if array.shape not in ((m, d), (m, d, d)):
        raise ValueError(f"covariances must have shape {(m, d)} or {(m, d, d)}; got {array.shape}")
    if degrees_of_freedom is not None:
        freedom = np.asarray(degrees_of_freedom, dtype=np.float64)
        if freedom.shape not in ((), (m,)):
            raise ValueError(f"degrees_of_freedom must have shape ({m},); got {freedom.shape}")
        if not (freedom > FREEDOM_OF_A_VARIANCE).all():
            return False
    if not np.isfinite(array).all():
        return False
    if array.ndim == 2:
        return bool((array > 0).all())
    try:
        np.linalg.cholesky(array)
    except np.linalg.LinAlgError:
        return False
    return True


def whiten(points: Points, covariances: Floats) -> Points:
    """Points (m, d) in coordinates where the mean sampling covariance is the identity."""
    if covariances.ndim == 2:
        return np.asarray(points / np.sqrt(covariances.mean(axis=0)))
    factor = np.linalg.cholesky(covariances.mean(axis=0))
    return np.asarray(np.linalg.solve(factor, points.T).T, dtype=np.float64)


def explained_scatter(
    points: Points,
    labels: Labels,
    covariances: Floats,
    degrees_of_freedom: ArrayLike | None,
    level: float,
) -> float:
    """Within scatter Q of a partition over its quantile; at most 1 when explained.

    0 when there are as many clusters as points: nothing is left to explain.
    """
    from scipy.stats import chi2

    m, d = points.shape
    clusters = np.unique(labels)
    share = (m - clusters.size) / m  # of the points' freedom, left by the centres
    if share == 0.0:
        return 0.0
    full = covariances if covariances.ndim == 3 else _diagonals(covariances)
    precisions = np.linalg.inv(full)
    scatter = sum(_scatter(points[labels == k], precisions[labels == k]) for k in clusters)
    mean, variance = (share * moment for moment in _moments(m, d, degrees_of_freedom))
    scale, freedom = 0.5 * variance / mean, 2.0 * mean**2 / variance
    return float(scatter / (scale * chi2.ppf(level, freedom)))


def _moments(m: int, d: int, degrees_of_freedom: ArrayLike | None) -> tuple[float, float]:
    """Mean and variance of sum_i d F(d, nu_i); of a chi-square where covariances are known."""
    if degrees_of_freedom is None:
        return float(m * d), 2.0 * m * d
    nu = np.broadcast_to(np.asarray(degrees_of_freedom, dtype=np.float64), (m,))
    mean = d * nu / (nu - 2.0)
    variance = 2.0 * d * nu**2 * (d + nu - 2.0) / ((nu - 2.0) ** 2 * (nu - 4.0))
    return float(mean.sum()), float(variance.sum())


def _scatter(points: Points, precisions: Floats) -> float:
    """Least sum_i (a_i - c)' P_i (a_i - c) over c."""
    pulled = np.einsum("ijk,ik->j", precisions, points)
    center = np.linalg.solve(precisions.sum(axis=0), pulled)
    residual = points - center
    return float(np.einsum("ij,ijk,ik->", residual, precisions, residual))


def _diagonals(variances: Floats) -> Floats:
    return np.asarray(variances[:, :, None] * np.eye(variances.shape[1]))
