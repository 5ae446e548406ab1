"""How sure the models of ODCL's clusters are, and how far a new target is from them.

From what the server has already: sums of products, covariances, or the sites' models alone. Errors
are sandwiches over the sites of a cluster (`models.sandwich`), given who is in it; in a cluster of
few sites they believe the model, as far as what was sent tells of one. A penalty's pull on
coefficients is not in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedkin.algorithms.odcl_evidence import NOISE_ROWS, Evidence
from fedkin.arrays import Bools, Floats, Indices
from fedkin.models.estimates import root_of
from fedkin.models.least_squares import residual_coefficients, unpack
from fedkin.models.sandwich import (
    LEAST_CLIENTS,
    Errors,
    Terms,
    effective,
    group_errors,
)

if TYPE_CHECKING:
    from fedkin.algorithms.odcl_sites import Sites

# Numbers of covariances that are kept; of more, only standard errors are.
MOST_COVARIANCES_KEPT = 1_000_000
# A site at the geometric median itself has no direction from it.
NOWHERE = 1e-12


class ClusterErrors(NamedTuple):
    """Of K models: standard errors (K, d), covariances (K, d, d) where there are not too many,
    degrees of freedom (K,), and whether sites told them (K,)."""

    errors: Floats
    covariance: Floats | None
    degrees: Floats
    by_sites: Bools


class NewTargets(NamedTuple):
    """Noise variances of clusters with degrees of freedom (K,), and of sites (m,); NaN: unknown."""

    cluster_noise: Floats
    degrees: Floats
    site_noise: Floats


def cluster_errors(sites: Sites, labels: Indices, models: Floats) -> ClusterErrors:
    """Errors of the clusters' models (K, d) as they were averaged."""
    how, settings = sites.settings.averaging, sites.settings
    evidence = sites.evidence()
    if settings.given_clusters == "own":
        return _kept(_of_own_models(sites, labels, models))
    if how == "median":
        return _kept(_of_medians(sites.models, labels, models))
    if evidence is not None and how in ("precision", "statistics"):
        noise = _noise(evidence, labels, models)[0]
        return _kept(_of_sums(evidence, labels, models, noise, how == "statistics"))
    weights = np.ones(len(labels)) if how == "mean" else np.nan_to_num(sites.rows, nan=1.0)
    return _of_means(sites, labels, models, weights)


def _kept(found: Errors) -> ClusterErrors:
    errors = root_of(np.einsum("kdd->kd", found.covariance))
    few = found.covariance.size <= MOST_COVARIANCES_KEPT
    return ClusterErrors(errors, found.covariance if few else None, *found[1:])


def _of_sums(
    evidence: Evidence, labels: Indices, models: Floats, noise: Floats, alike: bool
) -> Errors:
    """From sums of products; with rows that count `alike` at all sites of a cluster, or by noise.

    A site that is a cluster by itself has the penalty that was chosen for it.
    """
    K = len(models)
    own = np.maximum(labels, 0)
    each = noise[own] if alike else evidence.noise
    used = (labels >= 0) & evidence.known
    gram, cross, _, n_rows = unpack(evidence.statistics)
    penalties = evidence.strengths(labels, K) * n_rows[:, None]
    gram = (gram + penalties[:, :, None] * np.eye(models.shape[1])) / each[:, None, None]
    score = cross / each[:, None] - np.einsum("mij,mj->mi", gram, np.nan_to_num(models)[own])
    return group_errors(Terms(score, gram), np.where(used, labels, -1), K, n_rows)


def _of_own_models(sites: Sites, labels: Indices, models: Floats) -> Errors:
    """Every site a cluster by itself: its own sampling covariance."""
    (K, d), found = models.shape, sites.covariances()
    covariance = np.full((K, d, d), np.nan)
    degrees = np.ones(K)
    known = np.flatnonzero(labels >= 0)
    if found is not None:
        told = known[found[known].any(axis=(1, 2))]
        covariance[labels[told]] = found[told]
    degrees[labels[known]] = np.maximum(np.nan_to_num(sites.rows[known]) - d, 1.0)
    return Errors(covariance, degrees, np.zeros(K, dtype=bool))


def _of_means(sites: Sites, labels: Indices, models: Floats, weights: Floats) -> ClusterErrors:
    """Weighted means of models: nothing but models is needed where there are sites enough."""
    K, d = models.shape
    errors, degrees = np.full((K, d), np.nan), np.ones(K)
    by_sites = np.zeros(K, dtype=bool)
    covariance = np.full((K, d, d), np.nan) if K * d * d <= MOST_COVARIANCES_KEPT else None
    sampling = sites.covariances()
    for k in range(K):
        own = np.flatnonzero(labels == k)
        share = weights[own] / max(float(weights[own].sum()), 1e-300)
        count = float(effective(share)) if len(own) else 0.0
        by_sites[k] = count >= LEAST_CLIENTS
        if by_sites[k]:
            left = (share / (1.0 - share))[:, None] * (sites.models[own] - models[k])
            left *= np.sqrt((count - 1.0) / count)
            errors[k], degrees[k] = np.sqrt((left**2).sum(axis=0)), count - 1.0
            if covariance is not None:
                covariance[k] = left.T @ left
        elif len(own) and sampling is not None and sampling[own].any(axis=(1, 2)).all():
            found = np.einsum("m,mij->ij", share**2, sampling[own])
            errors[k] = root_of(np.diag(found))
            degrees[k] = max(float(np.nansum(sites.rows[own])) - d * len(own), 1.0)
            if covariance is not None:
                covariance[k] = found
    return ClusterErrors(errors, covariance, degrees, by_sites)


def _of_medians(points: Floats, labels: Indices, models: Floats) -> Errors:
    """Geometric medians: unit vectors to the sites add up to zero."""
    K = len(models)
    away = points - np.nan_to_num(models)[np.maximum(labels, 0)]
    length = np.linalg.norm(away, axis=1)
    some = length > NOWHERE * max(float(np.median(length)), 1e-300)
    length = np.where(some, length, 1.0)
    toward = np.where(some[:, None], away / length[:, None], 0.0)
    bend = (np.eye(points.shape[1]) - toward[:, :, None] * toward[:, None, :]) / length[
        :, None, None
    ]
    bend = np.where(some[:, None, None], bend, 0.0)
    found = group_errors(Terms(toward, bend), labels, K, np.zeros(len(labels)))
    # Of few sites nothing but directions is known: no model to believe.
    covariance = np.where(found.by_sites[:, None, None], found.covariance, np.nan)
    return found._replace(covariance=covariance)


# ------------------------------------------------------------------ new targets


def new_targets(sites: Sites, labels: Indices, models: Floats) -> NewTargets | None:
    """How far new targets are from the models; None where what was sent does not tell."""
    evidence = sites.evidence()
    if sites.settings.loss != "squared" or evidence is None or evidence.as_sent:
        return None
    own = np.where(evidence.known & sites.heard, evidence.noise, np.nan)
    return NewTargets(*_noise(evidence, labels, models), own)


def _noise(evidence: Evidence, labels: Indices, models: Floats) -> tuple[Floats, Floats]:
    """Noise variance around every cluster's model with its degrees of freedom, (K,) each.

    Drawn towards the usual noise as by a few rows. Rows that do not carry the model tell no noise:
    the spread of all targets stands in.
    """
    K, d = models.shape
    used = np.flatnonzero((labels >= 0) & evidence.known)
    toward = residual_coefficients(np.nan_to_num(models))[labels[used]]
    square = np.maximum(np.einsum("mq,mq->m", toward, evidence.statistics[used]), 0.0)
    squares = np.bincount(labels[used], square, minlength=K)
    rows = np.bincount(labels[used], evidence.n_rows[used], minlength=K)
    usual = float(np.median(evidence.noise[evidence.known])) if evidence.known.any() else 1.0
    spare = rows - d
    noise = (squares + NOISE_ROWS * usual) / (np.maximum(spare, 0.0) + NOISE_ROWS)
    if (spare < 1).any():
        noise = np.where(spare < 1, max(_spread(evidence), usual), noise)
    return noise, np.maximum(spare, 0.0) + NOISE_ROWS


def _spread(evidence: Evidence) -> float:
    """Variance of the target over all rows."""
    total = evidence.statistics.sum(axis=0)
    _, cross, square, n_rows = unpack(total)
    rows = max(float(n_rows), 1.0)
    mean = float(cross[-1]) / rows if evidence.fit_intercept else 0.0
    return max(float(square) / rows - mean**2, 0.0)
