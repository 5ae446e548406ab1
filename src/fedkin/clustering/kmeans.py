"""K-means, equation (15): Lloyd's steps from greedy k-means++ starts, the best of several.

Where we differ from the paper: its Algorithm 3 takes one plain k-means++ start, which misses the
ten clusters of its section 5 in about one run in eight; greedy starts and restarts do not.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedkin.arrays import Floats, Indices
from fedkin.clustering import tolerances
from fedkin.clustering.points import Labels, Points, check_n_clusters, check_points
from fedkin.ties import first_least

RandomState = int | np.random.Generator | None

N_STARTS = 10
# Lloyd's steps end by themselves; this is for clusters that rounding keeps moving.
MAX_STEPS = 300
# Up to so many distances of points from centers all starts run side by side, which is several times
# faster; with more, scikit-learn's compiled steps are, one start after another.
FEW_DISTANCES = 1 << 15


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
    return _fit(array, n_clusters, random_state, None, n_starts)


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
    points: Points, n_clusters: int, random_state: RandomState, start: Points | None, n_starts: int
) -> Clustering:
    """The best of several runs; of one from `start` (K, d) if it is given."""
    from sklearn.utils import check_random_state

    mean = points.mean(axis=0)
    centred = points - mean
    if start is None:
        chance = check_random_state(seed_of(random_state))
        indices = _greedy_starts(centred, n_clusters, chance, n_starts)
        starts = centred[indices]
    else:
        starts = (start - mean)[None]
    # Points are taken centred, where distances keep the most digits.
    small = len(points) * n_clusters <= FEW_DISTANCES
    runs = _side_by_side(centred, starts) if small else [_by_sklearn(centred, s) for s in starts]
    rounding = tolerances.COST_ROUNDING * float(np.square(centred).sum())
    best = runs[first_least([run.cost for run in runs], floor=0.5 * rounding)]
    return Clustering(best.labels, best.centers + mean, best.cost)


def _greedy_starts(
    centred: Points, n_clusters: int, chance: np.random.RandomState, n_starts: int
) -> Indices:
    """Indices (R, K) of points to start from, by greedy k-means++.

    Each next point is the best of a few, drawn with probability proportional to their squared
    distance from those chosen so far. Every start draws as many numbers as scikit-learn's would.
    """
    n_points, n_trials = len(centred), 2 + int(np.log(n_clusters))
    draws = chance.random_sample((n_starts, 1 + (n_clusters - 1) * n_trials))
    squares = np.einsum("md,md->m", centred, centred)
    share = np.full(n_points, 1.0 / n_points).cumsum()
    chosen = np.empty((n_starts, n_clusters), dtype=np.intp)
    chosen[:, 0] = np.searchsorted(share / share[-1], draws[:, 0], side="right")
    for start, numbers in zip(chosen, draws[:, 1:].reshape(n_starts, n_clusters - 1, n_trials)):
        nearest = _squared_distances(centred, squares, start[:1])[0]
        for k, drawn in enumerate(numbers, 1):
            along = nearest.cumsum()
            tried = np.minimum(along.searchsorted(drawn * nearest.sum()), n_points - 1)
            closer = np.minimum(nearest, _squared_distances(centred, squares, tried))
            best = closer.sum(axis=1).argmin()
            start[k], nearest = tried[best], closer[best]
    return chosen


def _squared_distances(centred: Points, squares: Floats, chosen: Indices) -> Floats:
    """Squared distances (k, m) of chosen points from all."""
    found = (-2.0 * centred[chosen]) @ centred.T
    found += squares[chosen, None]
    found += squares
    return np.maximum(found, 0.0, out=found)


def _side_by_side(centred: Points, starts: Points) -> list[Clustering]:
    """Lloyd's steps from every start (R, K, d), side by side, until all clusters stand still.

    A run in which a cluster loses all its points is left to scikit-learn, which refills it.
    """
    n_starts, n_clusters, d = starts.shape
    centers, labels = starts.copy(), np.full((n_starts, len(centred)), -1, dtype=np.intp)
    moving, emptied = np.arange(n_starts), np.zeros(n_starts, dtype=bool)
    for _ in range(MAX_STEPS):
        new = _nearest(centred, centers[moving])
        still = (new == labels[moving]).all(axis=1)
        labels[moving] = new
        member = new[:, None, :] == np.arange(n_clusters)[:, None]
        counts = member.sum(axis=2, dtype=np.float64)
        emptied[moving] = (counts == 0).any(axis=1)
        sums = member.reshape(-1, len(centred)).astype(np.float64) @ centred
        centers[moving] = sums.reshape(-1, n_clusters, d) / np.maximum(counts, 1.0)[..., None]
        moving = moving[~(still | emptied[moving])]
        if not len(moving):
            break
    settled = zip(starts, emptied, labels, centers)
    return [
        _by_sklearn(centred, start) if empty else _clustering(centred, who, where)
        for start, empty, who, where in settled
    ]


def _nearest(centred: Points, centers: Points) -> Labels:
    """The nearest of the centers (R, K, d) to every point, (R, m)."""
    score = centers.reshape(-1, centers.shape[-1]) @ centred.T
    score = score.reshape(*centers.shape[:-1], -1)
    score -= 0.5 * np.einsum("rkd,rkd->rk", centers, centers)[..., None]
    return score.argmax(axis=1)


def _clustering(centred: Points, labels: Labels, centers: Points) -> Clustering:
    apart = centred - centers[labels]
    return Clustering(labels, centers, 0.5 * float(np.einsum("md,md->", apart, apart)))


def _by_sklearn(centred: Points, start: Points) -> Clustering:
    """A run of scikit-learn, which moves a cluster without points to the point worst off."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Fewer distinct points than clusters: some clusters stay empty, which is no fault.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = KMeans(len(start), init=start, n_init=1, tol=0.0).fit(centred)
    labels = fitted.labels_.astype(np.intp)
    return Clustering(labels, fitted.cluster_centers_, 0.5 * float(fitted.inertia_))
