"""The server's half of ODCL that knows no messages: which sites are of a kind, which stand alone.

`group_models` clusters the sites' models; `least_residuals` clusters sites by what a shared model
predicts of them, from their packed statistics, which also works with fewer rows than coefficients;
`stand_alone` names sites far from every neighbour. The number of clusters of sites whose sums are
known is chosen in `odcl_choice`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedkin import clustering
from fedkin.algorithms.aggregate import members
from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.clustering.choice import LEVEL
from fedkin.clustering.points import in_order_of_appearance
from fedkin.clustering.polished import SMALLEST_GROUP, PolishedPath, polish
from fedkin.clustering.scatter import explained_scatter, usable_covariances, whiten
from fedkin.models.least_squares import penalised, residual_coefficients, solve
from fedkin.models.random_effects import shared_prior_fits
from fedkin.models.ridge_choice import choose_ridge
from fedkin.ties import RELATIVE, first_best, first_least

if TYPE_CHECKING:
    from fedkin.algorithms.odcl_settings import OdclSettings

# A site stands alone if its third neighbour is this many times farther than is usual: fewer than
# three neighbours are no group (two sites can be wrong in the same way).
NEIGHBOUR = 3
FAR = 3.0
# Of the models' size: copies of one site are at no distance at all, below this nobody is far.
COPIES_APART = 1e-9
# Starts of the clustering by predictions, side by side; and when their steps must have settled.
N_PREDICTION_STARTS = 20
# Products in one step of all starts; with more sites there are fewer starts.
MOST_PREDICTION_WORK = 1e8
MAX_PREDICTION_STEPS = 100

CLUSTERINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "kmeans": (clustering.kmeans, {}),
    "spectral": (clustering.spectral_kmeans, {}),
    "spectral_part_one": (clustering.spectral_kmeans, {"part_one_only": True}),
    "gradient": (clustering.gradient_clustering, {}),
    "huber": (clustering.gradient_clustering, {"cost": "huber"}),
}


class Grouping(NamedTuple):
    """Labels (m,) and the evidence, as named arrays."""

    labels: Indices
    evidence: dict[str, Array]


def stand_alone(models: Floats, spread: Floats | None = None) -> Bools:
    """Sites whose third-nearest neighbour is over FAR times farther than the median site's, (m,).

    `spread` (m,): the standard deviation of each site's model; a small site may stand farther out.
    """
    from scipy.spatial.distance import cdist

    if len(models) <= NEIGHBOUR:
        return np.zeros(len(models), dtype=bool)
    distance = np.partition(cdist(models, models), NEIGHBOUR, axis=1)[:, NEIGHBOUR]
    tangible = distance > COPIES_APART * np.abs(models).max()
    if spread is not None and (spread > 0).all():
        distance = distance / np.sqrt(spread**2 + np.median(spread) ** 2)
    return np.asarray(tangible & (distance > FAR * np.median(distance)))


def group_models(
    models: Floats,
    covariances: Floats | None,
    freedom: Floats | None,
    truth: Indices | None,
    settings: OdclSettings,
    rng: np.random.Generator,
) -> Grouping:
    """Cluster models (m, d) as the settings say; choose the number of clusters if it is open."""
    method, wanted = settings.clustering, settings.n_clusters
    if len(models) == 1 or wanted == 1:
        return Grouping(np.zeros(len(models), dtype=np.intp), {})
    usable = covariances is not None and usable_covariances(covariances, freedom, models.shape)
    if method == "convex":
        known = (covariances, freedom) if usable else None
        return _convex(models, known, truth, settings, rng)
    evidence: dict[str, Array] = {}
    if wanted is None:
        most = settings.max_clusters
        chosen = clustering.choose_n_clusters(models, "auto", most, covariances, rng, freedom)
        evidence = _choice(chosen.candidates, chosen.curve, chosen.method)
        if method == "kmeans" or chosen.n_clusters == 1:
            return Grouping(in_order_of_appearance(chosen.labels), evidence)
        wanted = chosen.n_clusters
    run, options = CLUSTERINGS[method]
    n_distinct = len(np.unique(models, axis=0))
    points = whiten(models, covariances) if covariances is not None and usable else models
    labels = run(points, min(wanted, n_distinct), rng, **options).labels
    return Grouping(in_order_of_appearance(labels), evidence)


def _choice(candidates: Indices, curve: Floats, method: str) -> dict[str, Array]:
    """How the number of clusters was chosen, as it is kept in the result."""
    return {
        "choice_candidates": candidates,
        "choice_curve": curve,
        "choice_method": np.array(method),
    }


def _convex(
    models: Floats,
    known: tuple[Any, ...] | None,
    truth: Indices | None,
    settings: OdclSettings,
    rng: np.random.Generator,
) -> Grouping:
    """Convex clustering at a penalty that is given, searched for, or (an oracle) from (13).

    `known`: covariances of the models and the freedom behind them, if they are usable.
    """
    penalty, wanted, most = settings.penalty, settings.n_clusters, settings.max_clusters
    if penalty == "interval" and truth is not None:
        penalty = clustering.oracle_penalty(models, truth, rng)
    if not isinstance(penalty, str):
        near = settings.n_neighbors
        weights = None if near is None else clustering.nearest_neighbor_weights(models, near)
        labels = clustering.convex_clustering(models, penalty, weights).labels
        return Grouping(in_order_of_appearance(labels), {"penalty": np.array(penalty)})
    if penalty == "clusterpath":
        chosen: Any = clustering.clusterpath(models, max_clusters=most)
        labels, evidence = chosen.labels, {"penalty": np.array(chosen.penalty)}
    else:
        chosen = clustering.polished_silhouette(models, max_clusters=most)
        labels, evidence = _polished(models, chosen, wanted)
        if wanted is None and known is not None and _one_explains(models, *known):
            labels = np.zeros(len(models), dtype=np.intp)
    path = chosen.path
    evidence |= {
        "path_penalties": path.penalties,
        "path_labels": path.labels,
        "path_n_clusters": path.n_clusters,
        "path_recovered": path.recovered,
        "path_linkage": path.linkage(),
    }
    return Grouping(in_order_of_appearance(labels), evidence)


def _polished(
    models: Floats, chosen: PolishedPath, wanted: int | None
) -> tuple[Indices, dict[str, Array]]:
    """The partition with the best silhouette, among those with as many clusters as wanted."""
    evidence = _choice(chosen.n_polished, chosen.curve, "path")
    if wanted is None or wanted == chosen.n_clusters:
        return chosen.labels, {**evidence, "penalty": np.array(chosen.penalty)}
    fitting = np.flatnonzero(chosen.n_polished == wanted)
    if not len(fitting):
        seen = ", ".join(map(str, np.unique(chosen.n_polished)))
        raise ValueError(
            f"no penalty of the convex path gives {wanted} clusters (it gives {seen}); use "
            "clustering='kmeans' for a number you know"
        )
    best = fitting[first_best(chosen.curve[fitting], floor=RELATIVE)]
    labels = polish(models, chosen.path.labels[best], SMALLEST_GROUP)
    return labels, {**evidence, "penalty": np.array(chosen.path.penalties[best])}


def _one_explains(models: Floats, covariances: Floats, freedom: Floats | None) -> bool:
    """Whether the sites' own sampling errors explain all their scatter."""
    alone = np.zeros(len(models), dtype=np.intp)
    return explained_scatter(models, alone, covariances, freedom, LEVEL) <= 1.0


# ------------------------------------------------------------------ in the space of predictions


def pooled_models(statistics: Floats, share: Floats, settings: OdclSettings) -> Floats:
    """Least squares (..., K, d) of the statistics (m, q) added with shares (..., K, m)."""
    total = share @ statistics
    strength: float | Floats = 0.0
    if isinstance(settings.alpha, str):
        chosen = choose_ridge(total.reshape(-1, total.shape[-1]), settings.fit_intercept)
        n_features = chosen.strengths.shape[1] - settings.fit_intercept
        strength = chosen.strengths[:, :n_features].reshape(*total.shape[:-1], n_features)
    elif settings.alpha is not None:
        strength = settings.alpha
    return solve(penalised(total, strength, settings.fit_intercept))[0]


def least_residuals(
    statistics: Floats, n_clusters: int, settings: OdclSettings, rng: np.random.Generator
) -> tuple[Indices, float]:
    """Lloyd's steps in the space of predictions from many starts side by side; the best end."""
    n_starts = int(MOST_PREDICTION_WORK / (n_clusters * statistics.size))
    n_starts = min(max(n_starts, 2), N_PREDICTION_STARTS)
    models = _first_guesses(statistics, n_clusters, rng, n_starts)
    labels = np.full((len(models), len(statistics)), -1)
    for _ in range(MAX_PREDICTION_STEPS):
        residual = residual_coefficients(models) @ statistics.T
        new = first_least(residual, axis=1)
        if np.array_equal(new, labels):
            break
        labels = new
        share = members(labels, n_clusters)
        refilled = pooled_models(statistics, share, settings)
        empty = share.sum(axis=-1) == 0
        models = np.where(empty[..., None], models, refilled)
    totals = residual.min(axis=1).sum(axis=1)
    best = int(first_least(totals))
    return labels[best].astype(np.intp), float(totals[best])


def _first_guesses(
    statistics: Floats, n_clusters: int, rng: np.random.Generator, n_starts: int
) -> Floats:
    """Models (starts, K, d): half K-means of the sites' fits, half drawn one site after another.

    The fits share one prior (`models.random_effects`): ridge fits of few rows are all too short and
    start K-means in the wrong place. A start of the second kind draws each next site with
    probability proportional to what the models so far leave unexplained of it.
    """
    own = shared_prior_fits(statistics)
    seeds = rng.integers(0, 2**31 - 1, size=n_starts // 2)
    n_distinct = min(n_clusters, len(np.unique(own, axis=0)))
    starts = []
    for seed in seeds:
        centers = clustering.kmeans(own, n_distinct, int(seed), 1).centers
        starts.append(centers[np.arange(n_clusters) % n_distinct])
    between = np.maximum(residual_coefficients(own) @ statistics.T, 0.0)
    for _ in range(n_starts - len(starts)):
        chosen = [int(rng.integers(len(own)))]
        for _ in range(n_clusters - 1):
            left = between[chosen].min(axis=0)
            chance = left / left.sum() if left.sum() > 0 else np.full(len(own), 1 / len(own))
            chosen.append(int(rng.choice(len(own), p=chance)))
        starts.append(own[chosen])
    return np.array(starts)
