"""How many clusters ODCL finds among sites whose sums it knows, up to every site alone.

1. The smallest number whose scatter the sites' own sampling errors explain (chi-square, n - rank
   degrees of freedom each) is the answer if it predicts as well as any other number.
2. If none explains it, or another number predicts better, it is the smallest number that predicts
   as well as the best: with every site alone among the candidates.

What a number predicts is judged by `Evidence.errors`. Sites that cannot carry a model of their own
take no part in finding clusters; they join the one whose model makes their rows likeliest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedkin import clustering
from fedkin.algorithms.odcl_evidence import Evidence
from fedkin.algorithms.odcl_groups import CLUSTERINGS, Grouping, least_residuals
from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.clustering.choice import LEVEL
from fedkin.clustering.points import in_order_of_appearance
from fedkin.ties import RELATIVE, first_least

if TYPE_CHECKING:
    from fedkin.algorithms.odcl_settings import OdclSettings

# A smaller number of clusters is taken if its squared errors are within this share of the best's.
AS_GOOD = 0.02
# Models are points worth clustering if so large a share of the sites determines one.
ENOUGH_MODELS = 0.5
# Rows a coefficient of the median site from which on models are points worth clustering.
ROWS_PER_COEFFICIENT = 2.0


class Candidate(NamedTuple):
    """A partition (m,) and what there is to say of it."""

    labels: Indices
    bic: float
    error: float


def group_by_evidence(
    evidence: Evidence, settings: OdclSettings, rng: np.random.Generator
) -> Grouping:
    """Cluster sites as the settings say; choose the number of clusters if it is open."""
    seed = int(rng.integers(2**31 - 1))
    finder = _Finder(evidence, settings, seed)
    if settings.n_clusters is not None:
        return Grouping(in_order_of_appearance(finder.labels(settings.n_clusters)), {})
    numbers, found = finder.candidates()
    chosen, method = _choice(numbers, found, len(evidence.statistics))
    labels = found[chosen].labels
    if settings.clustering != "kmeans" and 1 < numbers[chosen] < len(labels):
        labels = finder.labels(int(numbers[chosen]), settings.clustering)
    total = float(evidence.n_rows.sum())
    return Grouping(
        in_order_of_appearance(labels),
        {
            "choice_candidates": numbers,
            "choice_curve": np.array([each.error / total for each in found]),
            "choice_bic": np.array([each.bic for each in found]),
            "choice_method": np.array(method),
        },
    )


def _choice(numbers: Indices, found: list[Candidate], n_sites: int) -> tuple[int, str]:
    """Which candidate is taken, and by which rule."""
    kinds = np.array([each.bic for each in found])
    kinds[(numbers == n_sites) & (numbers > 1)] = np.inf
    best = int(first_least(kinds, floor=RELATIVE))
    rivals = sorted({0, best, len(found) - 1})
    errors = np.array([found[k].error for k in rivals])
    good = [k for k, error in zip(rivals, errors) if error <= (1.0 + AS_GOOD) * errors.min()]
    return (best, "bic") if best in good else (good[0], "prediction")


class _Finder:
    """Partitions of any number of clusters; the same one whenever it is asked for a number."""

    def __init__(self, evidence: Evidence, settings: OdclSettings, seed: int) -> None:
        self.evidence, self.settings, self.seed = evidence, settings, seed
        self.n_sites = len(evidence.statistics)
        self.by_models = self._points_are_models()
        if self.by_models:
            self.fit = np.flatnonzero(evidence.full_models)
            self.points = evidence.plain_fits[0][self.fit] @ evidence.metric()
        else:
            self.fit = np.flatnonzero(evidence.known)
            self.points = np.zeros((len(self.fit), 0))

    def _points_are_models(self) -> bool:
        settings, evidence = self.settings, self.evidence
        if settings.space != "auto":
            return settings.space == "models"
        usable = evidence.full_models
        rows = evidence.n_rows[evidence.known]
        enough = usable.sum() >= max(ENOUGH_MODELS * len(rows), 2)
        several = np.median(rows) >= ROWS_PER_COEFFICIENT * evidence.n_coefficients
        return bool(enough and several)

    @property
    def most(self) -> int:
        """Largest number to try before every site stays alone."""
        wanted = self.settings.max_clusters
        largest = int(np.ceil(2.0 * np.sqrt(self.n_sites))) if wanted is None else wanted
        distinct = len(np.unique(self.points, axis=0)) if self.by_models else len(self.fit)
        return max(1, min(largest, distinct, self.n_sites))

    def candidates(self) -> tuple[Indices, list[Candidate]]:
        """Numbers of clusters and the partition of each, every site alone at the end."""
        numbers = list(range(1, self.most + 1))
        partitions = [self.labels(k) for k in numbers]
        allowed = self.settings.max_clusters
        if numbers[-1] < self.n_sites and (allowed is None or allowed >= self.n_sites):
            numbers.append(self.n_sites)
            partitions.append(np.arange(self.n_sites))
        found = [
            Candidate(p, self._bic(p), float(self.evidence.errors(p).sum()))
            for p in partitions
        ]
        return np.array(numbers, dtype=np.intp), found

    def _bic(self, labels: Indices) -> float:
        return self.evidence.kinds_bic(labels) if self.evidence.tells_noise else self.evidence.profile_bic(labels)

    def labels(self, n_clusters: int, method: str = "kmeans") -> Indices:
        """A partition (m,) of all sites with so many clusters, as far as they can be told."""
        if n_clusters >= self.n_sites:
            return np.arange(self.n_sites)
        if n_clusters == 1:
            return np.zeros(self.n_sites, dtype=np.intp)
        rng = np.random.default_rng([self.seed, n_clusters])
        if self.by_models:
            own = self._clustered(min(n_clusters, self._n_distinct), method, rng)
        else:
            own = least_residuals(
                self.evidence.weighted[self.fit], n_clusters, self.settings, rng
            )[0]
        return joined(self.evidence, self.fit, own)

    @property
    def _n_distinct(self) -> int:
        return len(np.unique(self.points, axis=0))

    def _clustered(self, n_clusters: int, method: str, rng: np.random.Generator) -> Indices:
        run, options = CLUSTERINGS[method]
        return np.asarray(run(self.points, n_clusters, rng, **options).labels)


def joined(evidence: Evidence, sites: Indices, labels: Indices) -> Indices:
    """Labels of all sites (m,) from those of some: the others join where they are likeliest.

    The likelihood of a site's rows under a cluster's model counts with the cluster's share of the
    sites; a site that sent no sums is taken to have the usual design around the model it sent.
    """
    _, labels = np.unique(labels, return_inverse=True)
    out = np.full(len(evidence.statistics), -1, dtype=np.intp)
    out[sites] = labels
    others = np.flatnonzero(out < 0)
    if not len(others):
        return out
    count = np.bincount(labels)
    models = evidence.shared_models(out, len(count))
    residual = evidence.residuals(models)[others] / evidence.noise[others, None]
    out[others] = first_least(residual - 2.0 * np.log(count), axis=1)
    return out
