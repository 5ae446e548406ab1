"""What ODCL's server knows of its sites, and how it groups them; knows no messages.

`Sites` gathers what was heard; `group_sites` says who is of a kind and who is set aside;
`Sites.average` makes a model of each group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedkin.algorithms import aggregate
from fedkin.algorithms.clustered_result import NO_CLUSTER
from fedkin.algorithms.odcl_groups import (
    FAR,
    Grouping,
    group_models,
    group_predictions,
    pooled_models,
    stand_alone,
)
from fedkin.arrays import Bools, Floats, Indices
from fedkin.models.least_squares import MOST_ROWS, POSSIBLE_SLACK, possible, upper_triangle
from fedkin.models.local_loss import SquaredLoss
from fedkin.protocol import LastReplies, Replies

if TYPE_CHECKING:
    from fedkin.algorithms.odcl_settings import OdclSettings

# The chi-square rule needs a variance of the F law: more than 4 degrees of freedom.
LEAST_FREEDOM = 5
# Models are points worth clustering from this many rows a coefficient on.
ROWS_PER_COEFFICIENT = 2.0


class Sites:
    """What the server knows of every site; zeros for those not heard yet.

    Attributes
    ----------
    models : the sites' own models, (m, d)
    rows : their numbers of rows, (m,); NaN if they were not asked for
    implausible : who has sent numbers that no rows can give, (m,)
    """

    def __init__(self, n_sites: int, settings: OdclSettings) -> None:
        self.settings, self.n_sites = settings, n_sites
        self.implausible = np.zeros(n_sites, dtype=bool)
        self.models = np.zeros((n_sites, 0))
        self.rows = np.full(n_sites, np.nan)
        self._last = LastReplies(n_sites)

    @property
    def heard(self) -> Bools:
        """Who has sent what rows can give, (m,)."""
        return self._last.heard

    @property
    def all_heard(self) -> bool:
        """Whether there is nobody left to wait for."""
        return bool((self.heard | self.implausible).all())

    def hear(self, replies: Replies) -> None:
        """Note what came; a site speaks the same each time it is asked.

        Numbers that no rows can give cost their site its part: it counts as not heard.
        """
        fine = _plausible(replies, self.settings.fit_intercept)
        self.implausible[replies.clients[~fine]] = True
        about_fit = {name: array[fine] for name, array in replies.items() if name != "choice"}
        self._last.put(replies.clients[fine], about_fit)
        if not self.heard.any():
            raise ValueError("no site sent numbers that rows can give; look at the sites' data")
        if self.sent_statistics:
            local = self.local()
            self.models, self.rows = local.fit(), local.sizes
        else:
            self.models = self._last["model"]
            if "rows" in self._last:
                self.rows = self._last["rows"]

    @property
    def sent_statistics(self) -> bool:
        """Whether sites send sums of products rather than their models."""
        return "statistics" in self._last

    def local(self) -> SquaredLoss:
        """The sites behind their statistics."""
        settings = self.settings
        return SquaredLoss(settings.fit_intercept, settings.alpha or 0.0, self._last["statistics"])

    def covariances(self) -> Floats | None:
        """Sampling covariances (m, d, d), zero where withheld; None if none were asked for."""
        d = self.models.shape[1]
        if self.sent_statistics:
            covariances = self.local().covariances(self.models)
            covariances[self.rows < d + LEAST_FREEDOM] = 0.0
            return covariances
        if "covariance" not in self._last or self._last["covariance"].shape[1] == 0:
            return None
        return unpacked(self._last["covariance"], d)

    def without_covariance(self) -> Bools:
        """Heard sites whose covariance was wanted, but is not to be had, (m,)."""
        if "covariance" in self._last:
            return self.heard & ~self._last["covariance"].any(axis=1)
        covariances = self.covariances() if self.settings.aggregate == "precision" else None
        if covariances is None:
            return np.zeros(self.n_sites, dtype=bool)
        return self.heard & (np.einsum("mdd->m", covariances) == 0)

    def average(self, labels: Indices, n_clusters: int) -> Floats:
        """The model of every cluster (K, d); NaN for one without sites."""
        how, models = self.settings.aggregate, self.models
        if how == "statistics":
            share = aggregate.members(labels, n_clusters)
            pooled = pooled_models(self._last["statistics"], share, self.settings)
            return np.where(share.sum(axis=1)[:, None] > 0, pooled, np.nan)
        if how == "median":
            return aggregate.geometric_medians(models, labels, n_clusters)
        covariances = self.covariances() if how == "precision" else None
        if covariances is not None:
            return aggregate.precision_means(models, labels, n_clusters, covariances, self.rows)
        weights = np.ones(self.n_sites) if how == "mean" else self.rows
        return aggregate.weighted_means(models, labels, n_clusters, weights)


def _plausible(replies: Replies, fit_intercept: bool) -> Bools:
    """Whether rows can have given what each client sent, (m,)."""
    if "statistics" in replies:
        return possible(np.ascontiguousarray(replies["statistics"].T), fit_intercept)
    fine: Bools = np.ones(len(replies.clients), dtype=bool)
    if "rows" in replies:
        fine &= (replies["rows"] >= 1) & (replies["rows"] <= MOST_ROWS)
    if "covariance" in replies and replies["covariance"].shape[1]:
        full = unpacked(replies["covariance"], replies["model"].shape[1])
        diagonal = np.einsum("mdd->md", full)
        unit = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        least = np.linalg.eigvalsh(full / unit[:, :, None] / unit[:, None, :])[:, 0]
        fine &= (diagonal >= 0).all(axis=1) & (least >= -POSSIBLE_SLACK)
    return fine


def unpacked(packed: Floats, d: int) -> Floats:
    """Symmetric matrices (m, d, d) from their upper triangles (m, u)."""
    full = np.zeros((len(packed), d, d))
    upper = upper_triangle(d)
    full[:, upper[0], upper[1]] = full[:, upper[1], upper[0]] = packed
    return full


# ------------------------------------------------------------------ who is of a kind


def group_sites(sites: Sites, truth: Indices | None, rng: np.random.Generator) -> Grouping:
    """Labels of all sites (m,), NO_CLUSTER for those not heard or set aside, and the evidence.

    `truth` (m,) are the true clusters, where they are known.
    """
    heard = np.flatnonzero(sites.heard)
    if sites.settings.given_clusters is not None:
        return _over_all(sites, heard, Grouping(_given_clusters(sites, truth)[heard], {}))
    if _by_predictions(sites):
        kept, grouping = _group_by_predictions(sites, heard, rng)
    else:
        kept, grouping = _group_by_models(sites, heard, truth, rng)
    return _over_all(sites, kept, grouping)


def _over_all(sites: Sites, clients: Indices, grouping: Grouping) -> Grouping:
    """The grouping of some clients as one of all; a cluster of which nobody is left is none."""
    labels = np.full(sites.n_sites, NO_CLUSTER, dtype=np.intp)
    labels[clients] = np.unique(grouping.labels, return_inverse=True)[1]
    return grouping._replace(labels=labels)


def _given_clusters(sites: Sites, truth: Indices | None) -> Indices:
    if sites.settings.given_clusters == "own":
        return np.arange(sites.n_sites)
    if sites.settings.given_clusters == "one" or truth is None:
        return np.zeros(sites.n_sites, dtype=np.intp)
    return truth


def _group_by_models(
    sites: Sites, heard: Indices, truth: Indices | None, rng: np.random.Generator
) -> tuple[Indices, Grouping]:
    """Who was not set aside, and their grouping as the settings say."""
    covariances, kept = sites.covariances(), heard
    if sites.settings.robust:
        spread = None if covariances is None else np.sqrt(np.einsum("mdd->m", covariances[heard]))
        kept = heard[~stand_alone(sites.models[heard], spread)]
    models, freedom = sites.models[kept], None
    if covariances is not None:
        covariances, freedom = covariances[kept], sites.rows[kept] - models.shape[1]
    truth = None if truth is None else truth[kept]
    return kept, group_models(models, covariances, freedom, truth, sites.settings, rng)


def _by_predictions(sites: Sites) -> bool:
    settings = sites.settings
    if settings.space != "auto":
        return settings.space == "predictions"
    if not sites.sent_statistics or settings.clustering == "convex":
        return False
    n_rows = np.median(sites.rows[sites.heard])
    return bool(n_rows < ROWS_PER_COEFFICIENT * sites.models.shape[1])


def _group_by_predictions(
    sites: Sites, heard: Indices, rng: np.random.Generator
) -> tuple[Indices, Grouping]:
    """Who was not set aside, and their grouping by what shared models predict of them."""
    settings, local = sites.settings, sites.local().take(heard)
    grouping = group_predictions(local.statistics, settings, rng)
    if not settings.robust:
        return heard, grouping
    # Here the cluster's own loss is the distance, and a squared one.
    share = aggregate.members(grouping.labels, int(grouping.labels.max()) + 1)
    losses = local.losses(pooled_models(local.statistics, share, settings)).min(axis=1)
    alone = losses > FAR**2 * np.median(losses)
    if not alone.any():
        return heard, grouping
    return heard[~alone], group_predictions(local.statistics[~alone], settings, rng)
