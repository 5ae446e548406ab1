"""How many clusters ODCL finds among sites whose sums it knows, up to every site alone.

1. How many kinds of sites there are says BIC, of a mixture in which a site's kind is summed over.
2. Those kinds, one model for all, and every site alone are compared by the errors to be expected at
   further rows (`Evidence.errors`). The kinds are the answer unless another of the three is better;
   then it is the one with fewer clusters among those that are as good as the best. As good is a
   difference within 2 %; and, for fewer clusters than the best has, one that sites do not tell,
   within its standard error over sites (Breiman, Friedman, Olshen, Stone 1984).

Sites that cannot carry a model of their own take no part in finding clusters; they join the one
whose model makes their rows likeliest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedkin.algorithms.better_off import as_good, beside_others
from fedkin.algorithms.odcl_evidence import Evidence
from fedkin.algorithms.odcl_groups import CLUSTERINGS, Grouping, least_residuals
from fedkin.algorithms.odcl_rivals import kinds_bic
from fedkin.arrays import Bools, Floats, Indices
from fedkin.clustering.points import in_order_of_appearance
from fedkin.ties import RELATIVE, first_least

if TYPE_CHECKING:
    from fedkin.algorithms.odcl_settings import OdclSettings

# Models are points worth clustering if so large a share of the sites determines one.
ENOUGH_MODELS = 0.5
# Rows a coefficient of the median site from which on models are points worth clustering.
ROWS_PER_COEFFICIENT = 2.0


class Candidate(NamedTuple):
    """A partition (m,), its BIC, and squared errors to be expected at sites that judge, (k,)."""

    labels: Indices
    bic: float
    errors: Floats

    @property
    def error(self) -> float:
        """Squared errors of all sites that judge."""
        return float(self.errors.sum())


def group_by_evidence(
    evidence: Evidence, settings: OdclSettings, rng: np.random.Generator
) -> Grouping:
    """Cluster sites as the settings say; choose the number of clusters if it is open."""
    if len(evidence.statistics) == 1:
        return Grouping(np.zeros(1, dtype=np.intp), {})
    seed = int(rng.integers(2**31 - 1))
    finder = _Finder(evidence, settings, seed)
    if settings.n_clusters is not None:
        labels = finder.labels(settings.n_clusters, settings.clustering)
        return Grouping(in_order_of_appearance(labels), {"joined": finder.joined(labels)})
    numbers, found = finder.candidates()
    chosen, method = _choice(numbers, found, len(evidence.statistics))
    labels = found[chosen].labels
    if settings.clustering != "kmeans" and 1 < numbers[chosen] < len(labels):
        labels = finder.labels(int(numbers[chosen]), settings.clustering)
    return Grouping(
        in_order_of_appearance(labels),
        {
            "choice_candidates": numbers,
            "choice_curve": np.array([each.bic for each in found]),
            "choice_errors": np.array([each.error for each in found]) / finder.rows_judged,
            "choice_bic": np.array([kinds_bic(evidence, each.labels) for each in found]),
            "choice_method": np.array(method),
            "joined": finder.joined(labels),
        },
    )


def _choice(numbers: Indices, found: list[Candidate], n_sites: int) -> tuple[int, str]:
    """Which candidate is taken, and by which rule."""
    kinds = np.array([each.bic for each in found])
    kinds[(numbers == n_sites) & (numbers > 1)] = np.inf
    best = int(first_least(kinds, floor=RELATIVE))
    rivals = sorted({0, best, len(found) - 1})
    least = rivals[int(first_least(np.array([found[k].error for k in rivals]), floor=RELATIVE))]
    good = [k for k in rivals if as_good(found[k].errors, found[least].errors, k < least)]
    return (best, "bic") if best in good else (good[0], "prediction")


def expected_beside(evidence: Evidence, labels: Indices) -> Floats:
    """Errors to be expected of clusters (m,), of one model and of all alone, (3,): `better_off`."""
    _, labels = np.unique(labels, return_inverse=True)
    return beside_others(evidence, evidence.errors(labels))


def points_are_models(evidence: Evidence, settings: OdclSettings) -> bool:
    """Whether sites' own models are clustered; else what shared models predict of them."""
    if settings.space != "auto" or evidence.as_sent:
        return settings.space != "predictions"
    rows, usable = evidence.n_rows[evidence.known], evidence.full_models
    enough = usable.sum() >= max(ENOUGH_MODELS * len(rows), 2)
    return bool(enough and np.median(rows) >= ROWS_PER_COEFFICIENT * evidence.n_coefficients)


class _Finder:
    """Partitions of any number of clusters; the same one whenever it is asked for a number."""

    def __init__(self, evidence: Evidence, settings: OdclSettings, seed: int) -> None:
        self.evidence, self.settings, self.seed = evidence, settings, seed
        self.n_sites = len(evidence.statistics)
        self.by_models = points_are_models(evidence, settings)
        if self.by_models:
            usable = evidence.full_models
            self.fit = np.flatnonzero(usable if usable.any() else evidence.known)
            self.points = evidence.plain_fits[0][self.fit] @ evidence.metric(self.fit)
        else:
            self.fit = np.flatnonzero(evidence.known)
            self.points = np.zeros((len(self.fit), 0))

    @property
    def most(self) -> int:
        """Largest number to try before every site stays alone."""
        wanted = self.settings.max_clusters
        largest = int(np.ceil(2.0 * np.sqrt(self.n_sites))) if wanted is None else wanted
        distinct = len(np.unique(self.points, axis=0)) if self.by_models else len(self.fit)
        return max(1, min(largest, distinct, self.n_sites))

    @property
    def judges(self) -> Bools:
        """Whose errors count, (m,): a site of two rows does not say whether others stay alone."""
        able = self.evidence.can_stay_alone
        return able if able.any() else self.evidence.known

    @property
    def rows_judged(self) -> float:
        """Rows behind the errors."""
        return float(self.evidence.n_rows[self.judges].sum())

    def candidates(self) -> tuple[Indices, list[Candidate]]:
        """Numbers of clusters and the partition of each, every site alone at the end."""
        numbers = list(range(1, self.most + 1))
        partitions = [self.labels(k) for k in numbers]
        allowed = self.settings.max_clusters
        if numbers[-1] < self.n_sites and (allowed is None or allowed >= self.n_sites):
            numbers.append(self.n_sites)
            partitions.append(np.arange(self.n_sites))
        judges = self.judges
        found = [Candidate(p, self._bic(p), self.evidence.errors(p)[judges]) for p in partitions]
        return np.array(numbers, dtype=np.intp), found

    def _bic(self, labels: Indices) -> float:
        own_noise = self.evidence.tells_noise
        return self.evidence.kinds_bic(labels) if own_noise else self.evidence.profile_bic(labels)

    def joined(self, labels: Indices) -> Bools:
        """Who had no part in finding the clusters, (m,); with one for all there was none."""
        if labels.max() == 0:
            return np.zeros(len(labels), dtype=bool)
        if labels.max() + 1 == self.n_sites:
            return ~self.evidence.can_stay_alone
        took_part = np.zeros(self.n_sites, dtype=bool)
        took_part[self.fit] = True
        return ~took_part

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
            own = least_residuals(self.evidence.weighted[self.fit], n_clusters, self.settings, rng)[
                0
            ]
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
