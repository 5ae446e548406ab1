"""How many clusters: rules that always show the curve they decided on.

| method       | curve over K                                       | can it answer 1?             |
|--------------|----------------------------------------------------|------------------------------|
| "chi2"       | within scatter / its chi-square quantile, 1..max,m | yes: one explains all        |
| "gap"        | silhouette, 2..max, and a test against one cluster | yes: the test is not passed  |
| "silhouette" | silhouette, 2..max                                 | no                           |
| "elbow"      | K-means cost, 1..max                               | yes, but the rule is fragile |
| "path"       | polished silhouette along the convex path          | where no two groups show     |

"auto" is "chi2" where every point comes with a usable sampling covariance, else "gap".

The chi-square rule asks for the smallest K whose scatter the points' own sampling errors explain;
it is the only one that knows how far apart points of one cluster should lie, and the only one that
can answer m: if no K up to max explains it, every point stays alone (with `max_clusters` given,
the K that comes nearest is taken). The gap test compares
the K-means cost at the silhouette's K with that of points drawn without clusters: once from a
normal law with the points' covariance, once uniformly from the box along their principal axes
(Tibshirani, Walther, Hastie 2001); both must be beaten. Costs are taken along the K - 1 leading
principal axes, the drawn points' own: K centres span no more, and the scatter along all others
(3000 coefficients of a model of images) hides two clusters that one axis shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.arrays import Floats, Indices
from fedkin.clustering import tolerances
from fedkin.clustering.kmeans import Clustering, RandomState, kmeans
from fedkin.clustering.points import Labels, Points, check_points, silhouette
from fedkin.clustering.polished import polished_silhouette
from fedkin.clustering.scatter import explained_scatter, usable_covariances, whiten
from fedkin.ties import RELATIVE, first_best, first_least

Method = Literal["auto", "chi2", "gap", "silhouette", "elbow", "path"]

LEVEL = 0.999  # of the chi-square quantile: one false alarm in a thousand homogeneous federations
ELBOW_DROP = 0.2  # the next cluster must take this share off the cost
N_REFERENCES = 20  # drawn per law; a score of 3 is then one false alarm in 270 (Student, 19 d.f.)
LEAST_SCORE = 3.0


@dataclass(frozen=True)
class NumberOfClusters:
    """The chosen number of clusters and the evidence."""

    n_clusters: int
    curve: Floats  # (n_candidates,), the criterion of the method
    candidates: NDArray[
        np.intp
    ]  # (n_candidates,), the K (for "path": after the polish) it belongs to
    labels: Labels  # (m,), the partition at the chosen number
    method: str  # the rule that decided
    score: float = np.nan  # "gap": deviations by which K clusters beat the references


def choose_n_clusters(
    points: ArrayLike,
    method: Method = "auto",
    max_clusters: int | None = None,
    covariances: ArrayLike | None = None,
    random_state: RandomState = 0,
    degrees_of_freedom: ArrayLike | None = None,
) -> NumberOfClusters:
    """Choose the number of clusters of points (m, d).

    `covariances`: each point's sampling covariance (m, d, d), or its diagonal (m, d). NaN marks a
    point that withholds it. `degrees_of_freedom` (m,) or one number: behind those covariances, when
    they are estimates; None when they are known. `max_clusters` is 2 sqrt(m) by default, and
    without bound for "path", whose clusters have three points or more.
    """
    array = check_points(points)
    generator = np.random.default_rng(random_state)
    largest = _largest(array, max_clusters)
    if method == "auto":
        usable = usable_covariances(covariances, degrees_of_freedom, array.shape)
        method = "chi2" if usable else "gap"
    if method == "chi2":
        if not usable_covariances(covariances, degrees_of_freedom, array.shape):
            raise ValueError(
                "method 'chi2' needs a positive definite sampling covariance (m, d, d) or diagonal "
                "(m, d) of every point, with more than 4 degrees of freedom if estimated; use "
                "method='gap' where points withhold theirs"
            )
        known = np.asarray(covariances, dtype=np.float64)
        bounded = max_clusters is not None
        return _by_scatter(array, largest, known, degrees_of_freedom, generator, bounded)
    if method == "path":
        return _by_path(array, max_clusters)
    if method not in RULES:
        known_rules = ["auto", "chi2", *RULES, "path"]
        raise ValueError(f"method must be one of {known_rules}; got {method!r}")
    return RULES[method](array, largest, generator)


def _largest(points: Points, max_clusters: int | None) -> int:
    """Largest K to try: at most one per distinct point."""
    if max_clusters is not None and max_clusters < 1:
        raise ValueError(f"max_clusters must be at least 1; got {max_clusters}")
    wanted = int(np.ceil(2.0 * np.sqrt(len(points)))) if max_clusters is None else max_clusters
    return min(wanted, len(np.unique(points, axis=0)))


def _partitions(
    points: Points, first: int, last: int, generator: np.random.Generator
) -> list[Clustering]:
    return [kmeans(points, k, generator) for k in range(first, last + 1)]


def _by_scatter(
    points: Points,
    largest: int,
    covariances: Floats,
    freedom: ArrayLike | None,
    generator: np.random.Generator,
    bounded: bool,
) -> NumberOfClusters:
    """Smallest K whose within scatter is below its chi-square quantile."""
    tried = _partitions(whiten(points, covariances), 1, largest, generator)
    curve = np.array(
        [explained_scatter(points, c.labels, covariances, freedom, LEVEL) for c in tried]
    )
    explained = np.flatnonzero(curve <= 1.0)
    candidates = np.arange(1, largest + 1)
    if explained.size:
        return _answer("chi2", candidates, curve, tried, int(explained[0]))
    if bounded:
        return _answer("chi2", candidates, curve, tried, int(first_least(curve)))
    m, alone = len(points), np.arange(len(points))
    return NumberOfClusters(m, np.append(curve, 0.0), np.append(candidates, m), alone, "chi2")


def _by_silhouette(
    points: Points, largest: int, generator: np.random.Generator
) -> NumberOfClusters:
    """The K of the largest silhouette, K >= 2."""
    last = min(largest, len(points) - 1)
    if last < 2:
        return _one_cluster("silhouette", points)
    tried = _partitions(points, 2, last, generator)
    curve = np.array([silhouette(points, c.labels) for c in tried])
    best = int(first_best(curve, floor=RELATIVE))
    return _answer("silhouette", np.arange(2, last + 1), curve, tried, best)


def _by_gap(points: Points, largest: int, generator: np.random.Generator) -> NumberOfClusters:
    """The silhouette's K, unless points without clusters would do nearly as well."""
    best = _by_silhouette(points, largest, generator)
    if best.n_clusters == 1:
        return _one_cluster("gap", points)
    score = min(
        _gap_score(points, best.n_clusters, draw, generator) for draw in (_normal, _uniform)
    )
    passed = score >= LEAST_SCORE
    labels = best.labels if passed else np.zeros(len(points), dtype=np.intp)
    chosen = best.n_clusters if passed else 1
    return NumberOfClusters(chosen, best.curve, best.candidates, labels, "gap", score)


def _by_elbow(points: Points, largest: int, generator: np.random.Generator) -> NumberOfClusters:
    """Smallest K whose successor takes less than ELBOW_DROP off the cost."""
    tried = _partitions(points, 1, largest, generator)
    cost = np.array([c.cost for c in tried])
    least = tolerances.COST_ROUNDING * cost[0] or 1.0
    drop = np.append(cost[:-1] - cost[1:], 0.0) / np.maximum(cost, least)
    chosen = int(np.flatnonzero(drop < ELBOW_DROP)[0])
    return _answer("elbow", np.arange(1, largest + 1), cost, tried, chosen)


def _by_path(points: Points, max_clusters: int | None) -> NumberOfClusters:
    """The polished silhouette's partition of the convex clustering path."""
    chosen = polished_silhouette(points, max_clusters=max_clusters)
    return NumberOfClusters(
        chosen.n_clusters, chosen.curve, chosen.n_polished, chosen.labels, "path"
    )


RULES: dict[str, Callable[[Points, int, np.random.Generator], NumberOfClusters]] = {
    "gap": _by_gap,
    "silhouette": _by_silhouette,
    "elbow": _by_elbow,
}


def _gap_score(
    points: Points,
    n_clusters: int,
    draw: Callable[[Points, np.random.Generator], Points],
    generator: np.random.Generator,
) -> float:
    """Deviations by which the log share of cost left by K clusters lies below the references'."""
    seen = _log_share(points, n_clusters, generator)
    drawn = [draw(points, generator) for _ in range(N_REFERENCES)]
    reference = np.array([_log_share(other, n_clusters, generator) for other in drawn])
    deviation = reference.std(ddof=1) * np.sqrt(1.0 + 1.0 / N_REFERENCES)
    return float((reference.mean() - seen) / deviation) if deviation > 0 else float("inf")


def _log_share(points: Points, n_clusters: int, generator: np.random.Generator) -> float:
    """log of the K-means cost over that of one cluster, along the K - 1 leading principal axes."""
    sides, lengths, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    along = (sides * lengths)[:, : n_clusters - 1]
    whole = 0.5 * float((along**2).sum())
    left = kmeans(along, n_clusters, generator).cost
    return float(np.log(max(left, np.finfo(float).tiny) / whole))


def _normal(points: Points, generator: np.random.Generator) -> Points:
    """Points (m, d) from a normal law with these points' mean and covariance."""
    centred = points - points.mean(axis=0)
    m = len(points)
    return np.asarray(generator.standard_normal((m, m)) @ centred / np.sqrt(m - 1))


def _uniform(points: Points, generator: np.random.Generator) -> Points:
    """Points (m, d) uniform in the box along these points' principal axes."""
    centred = points - points.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    along = centred @ axes.T
    drawn = generator.uniform(along.min(axis=0), along.max(axis=0), along.shape)
    return np.asarray(drawn @ axes)


def _answer(
    method: str,
    candidates: Indices,
    curve: Floats,
    tried: list[Clustering],
    chosen: int,
) -> NumberOfClusters:
    return NumberOfClusters(
        int(candidates[chosen]), curve, candidates, tried[chosen].labels, method
    )


def _one_cluster(method: str, points: Points) -> NumberOfClusters:
    """Too few distinct points for two clusters."""
    labels = np.zeros(len(points), dtype=np.intp)
    return NumberOfClusters(1, np.zeros(0), np.zeros(0, dtype=np.intp), labels, method)
