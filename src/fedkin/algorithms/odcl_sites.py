"""What ODCL's server knows of its sites, and how it groups them; knows no messages.

`Sites` gathers what was heard; `group_sites` says who is of a kind and who is set aside;
`Sites.average` makes a model of each group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.algorithms import odcl_averages as averages
from fedkin.algorithms.odcl_groups import (
    FAR,
    Grouping,
    group_models,
    group_predictions,
    pooled_models,
    stand_alone,
)
from fedkin.models.least_squares import MOST_ROWS, POSSIBLE_SLACK, possible, upper_triangle
from fedkin.models.local_loss import DEFAULT_ALPHA, SquaredLoss
from fedkin.protocol import Replies, Settings

Floats = NDArray[np.float64]

# The chi-square rule needs a variance of the F law: more than 4 degrees of freedom.
LEAST_FREEDOM = 5
# Models are points worth clustering from this many rows a coefficient on.
ROWS_PER_COEFFICIENT = 2.0
ASIDE = -1


class Sites:
    """What the server knows of every site; NaN and zeros for those not heard yet."""

    def __init__(self, n_sites: int, settings: Settings) -> None:
        self.settings = settings
        self.n_sites = n_sites
        self.heard = np.zeros(n_sites, dtype=bool)
        self.implausible = np.zeros(n_sites, dtype=bool)
        self.known: dict[str, Floats] = {}

    def hear(self, replies: Replies) -> None:
        """Note what came; a site speaks the same each time it is asked.

        Numbers that no rows can give cost their site its part: it counts as not heard.
        """
        fine = _plausible(replies, self.settings["fit_intercept"])
        self.implausible[replies.clients[~fine]] = True
        clients = replies.clients[fine]
        for name, array in replies.items():
            if name == "choice":
                continue
            empty = np.zeros((self.n_sites, *array.shape[1:]))
            self.known.setdefault(name, empty)[clients] = array[fine]
        self.heard[clients] = True
        if not self.heard.any():
            raise ValueError("no site sent numbers that rows can give; look at the sites' data")
        if "statistics" in self.known:
            local = self.local()
            self.known["model"], self.known["rows"] = local.fit(), local.sizes

    def local(self) -> SquaredLoss:
        """The sites behind their statistics."""
        alpha = self.settings["alpha"] or DEFAULT_ALPHA["squared"]
        return SquaredLoss(self.known["statistics"], self.settings["fit_intercept"], alpha)

    @property
    def models(self) -> Floats:
        """Sites' own models (m, d)."""
        return self.known["model"]

    def covariances(self) -> Floats | None:
        """Sampling covariances (m, d, d), zero where withheld; None if none were asked for."""
        d = self.models.shape[1]
        if "statistics" in self.known:
            found = self.local().covariances(self.models)
            found[self.known["rows"] < d + LEAST_FREEDOM] = 0.0
            return found
        packed = self.known.get("covariance")
        if packed is None or packed.shape[1] == 0:
            return None
        return unpacked(packed, d)

    def without_covariance(self) -> NDArray[np.bool_]:
        """Heard sites whose covariance was wanted, but is not to be had, (m,)."""
        if "covariance" in self.known:
            return self.heard & ~self.known["covariance"].any(axis=1)
        found = self.covariances() if self.settings["aggregate"] == "precision" else None
        if found is None:
            return np.zeros(self.n_sites, dtype=bool)
        return self.heard & (np.einsum("mdd->m", found) == 0)

    def average(self, labels: NDArray[np.intp], n_clusters: int) -> Floats:
        """The model of every cluster (K, d); NaN for one without sites."""
        how, models = self.settings["aggregate"], self.models
        if how == "statistics":
            share = averages.members(labels, n_clusters)
            pooled = pooled_models(self.known["statistics"], share, self.settings)
            return np.where(share.sum(axis=1)[:, None] > 0, pooled, np.nan)
        if how == "median":
            return averages.geometric_medians(models, labels, n_clusters)
        covariances = self.covariances() if how == "precision" else None
        if covariances is not None:
            rows = self.known["rows"]
            return averages.precision_means(models, labels, n_clusters, covariances, rows)
        weights = np.ones(self.n_sites) if how == "mean" else self.known["rows"]
        return averages.weighted_means(models, labels, n_clusters, weights)


def _plausible(replies: Replies, fit_intercept: bool) -> NDArray[np.bool_]:
    """Whether rows can have given what each client sent, (m,)."""
    if "statistics" in replies:
        return possible(np.ascontiguousarray(replies["statistics"].T), fit_intercept)
    fine: NDArray[np.bool_] = np.ones(len(replies.clients), dtype=bool)
    if "rows" in replies:
        rows = replies["rows"]
        fine &= (rows >= 1) & (rows <= MOST_ROWS)
    if "covariance" in replies and replies["covariance"].shape[1]:
        full = unpacked(replies["covariance"], replies["model"].shape[1])
        diagonal = np.einsum("mdd->md", full)
        unit = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        scaled = full / unit[:, :, None] / unit[:, None, :]
        least = np.linalg.eigvalsh(scaled)[:, 0]
        fine &= (diagonal >= 0).all(axis=1) & (least >= -POSSIBLE_SLACK)
    return fine


def unpacked(packed: Floats, d: int) -> Floats:
    """Symmetric matrices (m, d, d) from their upper triangles (m, u)."""
    full = np.zeros((len(packed), d, d))
    upper = upper_triangle(d)
    full[:, upper[0], upper[1]] = full[:, upper[1], upper[0]] = packed
    return full


def group_sites(
    sites: Sites, settings: Settings, rng: np.random.Generator
) -> tuple[Grouping, NDArray[np.bool_]]:
    """Labels of the heard sites, and which of all sites were set aside."""
    heard, aside = sites.heard, np.zeros(sites.n_sites, dtype=bool)
    if settings["labels"] is not None:
        given = _given(settings["labels"], sites.n_sites)[heard]
        # A cluster of which nobody was heard is no cluster.
        return Grouping(np.unique(given, return_inverse=True)[1].astype(np.intp), {}), aside
    if _by_predictions(sites, settings):
        return _group_by_predictions(sites, settings, rng)
    models, covariances = sites.models[heard], sites.covariances()
    if covariances is not None:
        covariances = covariances[heard]
    alone = np.zeros(len(models), dtype=bool)
    if settings["robust"]:
        spread = None if covariances is None else np.sqrt(np.einsum("mdd->m", covariances))
        alone = stand_alone(models, spread)
    kept = ~alone
    freedom = None
    if covariances is not None:
        freedom = sites.known["rows"][heard][kept] - models.shape[1]
        covariances = covariances[kept]
    if settings["true_labels"] is not None:
        truth = np.asarray(settings["true_labels"])[heard][kept]
        settings = {**settings, "true_labels": truth}
    found = group_models(models[kept], covariances, freedom, settings, rng)
    return _with_aside(found, alone, heard, aside)


def by_roster(labels: Any, names: Sequence[str]) -> Any:
    """Known clusters given by site name as codes (m,) in the order of the roster; others as is."""
    if not isinstance(labels, Mapping):
        return labels
    missing = [name for name in names if name not in labels]
    if missing:
        raise ValueError(f"the known clusters lack site {missing[0]!r}; give it one")
    return np.unique([labels[name] for name in names], return_inverse=True)[1]


def _given(labels: Any, n_sites: int) -> NDArray[np.intp]:
    """Known clusters: an array over the roster, "one" for all, or "own" for each."""
    if isinstance(labels, str):
        return np.arange(n_sites) if labels == "own" else np.zeros(n_sites, dtype=np.intp)
    return np.asarray(labels, dtype=np.intp)


def _by_predictions(sites: Sites, settings: Settings) -> bool:
    if settings["space"] != "auto":
        return bool(settings["space"] == "predictions")
    if "statistics" not in sites.known or settings["clustering"] == "convex":
        return False
    rows = np.median(sites.known["rows"][sites.heard])
    return bool(rows < ROWS_PER_COEFFICIENT * sites.models.shape[1])


def _group_by_predictions(
    sites: Sites, settings: Settings, rng: np.random.Generator
) -> tuple[Grouping, NDArray[np.bool_]]:
    heard, aside = sites.heard, np.zeros(sites.n_sites, dtype=bool)
    alone: NDArray[np.bool_] = np.zeros(int(heard.sum()), dtype=bool)
    local = sites.local().take(np.flatnonzero(heard))
    found = group_predictions(local.statistics, settings, rng)
    if settings["robust"]:
        # Here the cluster's own loss is the distance, and a squared one.
        share = averages.members(found.labels, int(found.labels.max()) + 1)
        losses = local.losses(pooled_models(local.statistics, share, settings)).min(axis=1)
        alone = np.asarray(losses > FAR**2 * np.median(losses))
        if alone.any():
            found = group_predictions(local.statistics[~alone], settings, rng)
            return _with_aside(found, alone, heard, aside)
    return found, aside


def _with_aside(
    found: Grouping, alone: NDArray[np.bool_], heard: NDArray[np.bool_], aside: NDArray[np.bool_]
) -> tuple[Grouping, NDArray[np.bool_]]:
    labels = np.full(len(alone), ASIDE, dtype=np.intp)
    labels[~alone] = found.labels
    aside[np.flatnonzero(heard)[alone]] = True
    return found._replace(labels=labels), aside
