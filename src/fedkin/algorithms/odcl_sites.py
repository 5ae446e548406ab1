"""What ODCL's server knows of its sites, and how it groups them; knows no messages.

`Sites` gathers what was heard; `group_sites` says who is of a kind and who is set aside;
`Sites.average` makes a model of each group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedkin.algorithms import aggregate
from fedkin.algorithms.clustered_result import NO_CLUSTER
from fedkin.algorithms.odcl_choice import group_by_evidence, joined, points_are_models
from fedkin.algorithms.odcl_evidence import LEAST_FREEDOM, Evidence, sums_of
from fedkin.algorithms.odcl_groups import (
    FAR,
    Grouping,
    group_models,
    pooled_models,
    stand_alone,
)
from fedkin.arrays import Bools, Floats, Indices
from fedkin.models.least_squares import MOST_ROWS, POSSIBLE_SLACK, possible, upper_triangle
from fedkin.models.local_loss import SquaredLoss
from fedkin.protocol import LastReplies, Replies

if TYPE_CHECKING:
    from fedkin.algorithms.odcl_settings import OdclSettings


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
        """Whether sites send sums of products; there are none of too many coefficients."""
        return "statistics" in self._last and self._last["statistics"].shape[1] > 0

    def local(self) -> SquaredLoss:
        """The sites behind their statistics."""
        alpha, statistics = self.settings.alpha, self._last["statistics"]
        given = 0.0 if alpha is None or isinstance(alpha, str) else alpha
        local = SquaredLoss(self.settings.fit_intercept, given, statistics)
        if alpha is None and self.settings.given_clusters == "own":
            return local.with_chosen_strengths(few_rows_only=True)
        return local.with_chosen_strengths() if isinstance(alpha, str) else local

    def evidence(self) -> Evidence | None:
        """What sums of the sites tell; None where they sent too little."""
        settings = self.settings
        if self.sent_statistics:
            return Evidence(self._last["statistics"], settings.fit_intercept, settings.alpha)
        covariances = self.covariances()
        if covariances is None or not covariances.any():
            return None
        # With an intercept and no penalty a covariance and the rows give the sums themselves.
        plain = settings.loss == "squared" and settings.alpha in (None, 0.0) and settings.exact
        whole = plain and settings.fit_intercept
        known = np.where(self.heard, self.rows, 0.0)
        sums = sums_of(self.models, covariances, known, not whole)
        return Evidence(sums, settings.fit_intercept, settings.alpha, not whole, self.models)

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
        if self.settings.averaging == "precision" and not self.sent_statistics:
            return self.heard
        return np.zeros(self.n_sites, dtype=bool)

    def average(self, labels: Indices, n_clusters: int) -> Floats:
        """The model of every cluster (K, d); NaN for one without sites."""
        how, models = self.settings.averaging, self.models
        if self.settings.given_clusters == "own":
            return aggregate.weighted_means(models, labels, n_clusters, np.ones(self.n_sites))
        if how == "statistics":
            share = aggregate.members(labels, n_clusters)
            pooled = pooled_models(self._last["statistics"], share, self.settings)
            return np.where(share.sum(axis=1)[:, None] > 0, pooled, np.nan)
        if how == "median":
            return aggregate.geometric_medians(models, labels, n_clusters)
        weights = np.ones(self.n_sites) if how == "mean" else self.rows
        if self.settings.robust:
            weights = aggregate.capped(weights)
        means = aggregate.weighted_means(models, labels, n_clusters, weights)
        evidence = self.evidence() if how == "precision" else None
        if evidence is None:
            return means
        # A cluster of sites that sent no sums is weighted by rows.
        precise = evidence.shared_models(labels, n_clusters)
        return np.where(np.isfinite(precise), precise, means)

    def population(self, labels: Indices) -> Floats | None:
        """One model for all sites with a cluster by what they know (d,); None if not asked."""
        evidence = self.evidence() if self.settings.averaging == "precision" else None
        if evidence is None or not (labels >= 0).any():
            return None
        return evidence.take(np.flatnonzero(labels >= 0)).population


def _plausible(replies: Replies, fit_intercept: bool) -> Bools:
    """Whether rows can have given what each client sent, (m,)."""
    fine: Bools = np.ones(len(replies.clients), dtype=bool)
    if "statistics" in replies and replies["statistics"].shape[1]:
        sums = np.ascontiguousarray(replies["statistics"].T)
        fine &= possible(sums, False)
        if fit_intercept:
            # Rows may have weights, at all sites or at none: else their sum is their number.
            counted = np.abs(sums[-4] - sums[-1]) <= POSSIBLE_SLACK * np.abs(sums[-1])
            fine &= counted | (2 * counted.sum() <= len(counted))
        if "rows" in replies:
            gap = np.abs(replies["rows"] - sums[-1])
            fine &= gap <= POSSIBLE_SLACK * np.abs(sums[-1])
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
    evidence = sites.evidence()
    if evidence is None:
        kept, grouping = _group_by_models(sites, heard, truth, rng)
    else:
        kept, grouping = _group_by_sums(sites, evidence.take(heard), heard, truth, rng)
    return _over_all(sites, kept, grouping)


def _over_all(sites: Sites, clients: Indices, grouping: Grouping) -> Grouping:
    """The grouping of some clients as one of all; a cluster of which nobody is left is none."""
    labels = np.full(sites.n_sites, NO_CLUSTER, dtype=np.intp)
    labels[clients] = np.unique(grouping.labels, return_inverse=True)[1]
    marks = dict(grouping.evidence)
    if "joined" in marks:
        everyone = np.zeros(sites.n_sites, dtype=bool)
        everyone[clients] = marks["joined"]
        marks["joined"] = everyone
    return Grouping(labels, marks)


def _given_clusters(sites: Sites, truth: Indices | None) -> Indices:
    if sites.settings.given_clusters == "own":
        return np.arange(sites.n_sites)
    if sites.settings.given_clusters == "one" or truth is None:
        return np.zeros(sites.n_sites, dtype=np.intp)
    return truth


def _group_by_models(
    sites: Sites, heard: Indices, truth: Indices | None, rng: np.random.Generator
) -> tuple[Indices, Grouping]:
    """Who was not set aside, and their grouping by nothing but models."""
    kept = heard
    if sites.settings.robust:
        kept = heard[~stand_alone(sites.models[heard])]
    truth = None if truth is None else truth[kept]
    return kept, group_models(sites.models[kept], None, None, truth, sites.settings, rng)


def _group_by_sums(
    sites: Sites,
    evidence: Evidence,
    heard: Indices,
    truth: Indices | None,
    rng: np.random.Generator,
) -> tuple[Indices, Grouping]:
    """Who was not set aside, and their grouping by sums; `evidence` is that of `heard`."""
    settings = sites.settings
    if settings.robust:
        kept = np.flatnonzero(~_stands_alone(evidence, settings, rng))
        evidence, heard = evidence.take(kept), heard[kept]
    if settings.clustering != "convex":
        return heard, group_by_evidence(evidence, settings, rng)
    able = np.flatnonzero(evidence.full_models)
    if len(able) < 2:
        able = np.arange(len(heard))
    models = sites.models[heard[able]]
    freedom = evidence.n_rows[able] - models.shape[1]
    truth = None if truth is None else truth[heard[able]]
    covariances = evidence.covariances()[able]
    grouping = group_models(models, covariances, freedom, truth, settings, rng)
    return heard, _everybody(evidence, able, grouping)


def _everybody(evidence: Evidence, able: Indices, grouping: Grouping) -> Grouping:
    """A grouping of some sites as one of all: the others join where they are likeliest."""
    others = np.ones(len(evidence.statistics), dtype=bool)
    others[able] = False
    labels = joined(evidence, able, grouping.labels)
    return Grouping(labels, {**grouping.evidence, "joined": others})


def _stands_alone(evidence: Evidence, settings: OdclSettings, rng: np.random.Generator) -> Bools:
    """Sites far from every neighbour, (m,); who has no model of its own cannot be far."""
    if not points_are_models(evidence, settings) and settings.clustering != "convex":
        # Here the cluster's own loss is the distance, and a squared one.
        labels = group_by_evidence(evidence, settings, rng).labels
        share = aggregate.members(labels, int(labels.max()) + 1)
        residual = evidence.residuals(pooled_models(evidence.statistics, share, settings))
        losses = residual.min(axis=1) / np.maximum(evidence.n_rows, 1.0)
        return np.asarray(losses > FAR**2 * np.median(losses))
    alone = np.zeros(len(evidence.statistics), dtype=bool)
    able = np.flatnonzero(evidence.full_models)
    if len(able):
        spread = np.sqrt(np.einsum("mdd->m", evidence.covariances()[able]))
        alone[able] = stand_alone(evidence.plain_fits[0][able], spread)
    return alone
