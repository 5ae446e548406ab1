"""One model from the models of a group: plain, weighted, by precision, or the geometric median."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedkin.shrinkage import shrink_to_center

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]


def members(labels: Labels, n_groups: int) -> Floats:
    """Indicators (K, m); a label outside 0..K-1 belongs to no group."""
    return (labels == np.arange(n_groups)[:, None]).astype(np.float64)


def weighted_means(models: Floats, labels: Labels, n_groups: int, weights: Floats) -> Floats:
    """Means (K, d) of models (m, d) with weights (m,); NaN for a group without weight."""
    share = members(labels, n_groups) * weights
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((share @ models) / share.sum(axis=1, keepdims=True))


def precision_means(
    models: Floats, labels: Labels, n_groups: int, covariances: Floats, rows: Floats
) -> Floats:
    """(sum P_i)^-1 sum P_i theta_i with P_i the inverse of a client's covariance (m, d, d).

    A client that withholds its covariance (zeros) has no say beside others that give theirs: its
    rows determine its model badly or not at all, and a weight by rows (m,) would let it in for far
    more than it knows. Where a whole group withholds, rows are all there is to weigh by.
    """
    known = np.einsum("mdd->m", covariances) > 0
    precisions = np.zeros_like(covariances)
    precisions[known] = np.linalg.inv(covariances[known])
    pulled = np.einsum("mij,mj->mi", precisions, models)
    means = weighted_means(models, labels, n_groups, rows)
    for k in np.unique(labels[known & (labels >= 0)]):
        inside = known & (labels == k)
        total = precisions[inside].sum(axis=0)
        means[k] = np.linalg.solve(total, pulled[inside].sum(axis=0))
    return means


def geometric_medians(models: Floats, labels: Labels, n_groups: int) -> Floats:
    """Points (K, d) of the least total distance to their group's models; NaN without any."""
    medians = np.full((n_groups, models.shape[1]), np.nan)
    for k in range(n_groups):
        inside = models[labels == k]
        if len(inside):
            medians[k] = shrink_to_center(inside, np.ones(len(inside)), 0.0).center
    return medians
