"""Is a site odd, or poisoned? Every site beside the others, and what is shared without it."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedkin.arrays import Array, Bools, Floats
from fedkin.federation import Federation
from fedkin.inference.at_sites import sums_at_sites
from fedkin.inference.oddness import Verdicts, adjusted, judge
from fedkin.models.site_evidence import (
    SiteEvidence,
    inverse,
    scores_at_centres,
    weight_of,
)
from fedkin.names import canonical_name, listed
from fedkin.tables import Table

# Fewer sites than this can differ, but none of them is the odd one.
LEAST_SITES = 3
APART, LOUD, QUIET = "apart", "noisier", "quieter"
WORDS = {APART: "lies apart from the others", LOUD: "is noisier", QUIET: "is less noisy"}
METHODS = {"holm": "Holm", "bh": "Benjamini and Hochberg"}
# Sites named in a sentence.
MOST_NAMED = 10
TINY = 1e-300


@dataclass(frozen=True)
class OddSites:
    """Which sites do not go with the others; prints as a sentence and a table.

    Attributes
    ----------
    method : str
        The estimator.
    level : float
        Of false alarms: sites whose adjusted p-value is no larger are odd.
    adjust : {"holm", "bh"}
        What the level is about: any false alarm among all sites, or their share among those found.
    evidence : SiteEvidence
        What every site says by itself.
    verdicts : Verdicts
        How unlikely that is.
    """

    method: str
    level: float
    adjust: str
    evidence: SiteEvidence
    verdicts: Verdicts
    _model: Any = field(repr=False, default=None)
    _data: Federation | None = field(repr=False, default=None)

    # ------------------------------------------------------------ numbers

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites."""
        return self.evidence.names

    @property
    def score(self) -> Floats:
        """How odd each site is, (m,): standard normal for one that is like the others."""
        return self.verdicts.score

    @property
    def pvalue(self) -> Floats:
        """Chance of a site as unlike the others as this one, if it is like them, (m,)."""
        return self.verdicts.pvalue

    @cached_property
    def adjusted(self) -> Floats:
        """p-values that allow for the number of sites, (m,)."""
        return adjusted(self.verdicts.log_p, self.adjust)

    @property
    def odd(self) -> Bools:
        """Whether each site is odd at the level, (m,)."""
        return np.asarray(np.nan_to_num(self.adjusted, nan=1.0) <= self.level)

    @property
    def names(self) -> list[str]:
        """Names of the odd sites."""
        return [name for name, odd in zip(self.sites, self.odd) if odd]

    @property
    def why(self) -> Array:
        """What is least usual of each site: "apart", "noisier" or "quieter", (m,)."""
        where, noise = (
            np.nan_to_num(part, nan=0.0) for part in (self.verdicts.where, self.verdicts.noise)
        )
        words = np.where(self.verdicts.quieter, QUIET, LOUD)
        return np.where(noise < where, words, APART).astype(object)

    @cached_property
    def influence(self) -> Floats:
        """How far what is shared moves without each site, in its standard errors, (m,).

        One step: spread, noise and everybody's kind stay as they are. A length over all numbers of
        the site's kind, divided by the root of their count.
        """
        steps, q = self._steps(), self.evidence.n_parameters
        length = np.einsum("mi,mij,mj->m", steps, self._totals(self._weights)[self._kind], steps)
        known = np.isfinite(self.verdicts.log_p)
        return np.where(known, np.sqrt(np.maximum(length, 0.0) / q), np.nan)

    # ------------------------------------------------------------ what is shared

    @property
    def _kind(self) -> Array:
        return np.maximum(self.verdicts.nearest, 0)

    @cached_property
    def _pull(self) -> tuple[Floats, Floats]:
        """Scores (m, q) and curvatures (m, q, q) of the sites where what is shared stands."""
        if self.evidence.pull is not None:
            return self.evidence.pull
        return scores_at_centres(self._weights, self.evidence.estimates, self._kind)

    @cached_property
    def _weights(self) -> Floats:
        """What every site counts in what is shared, (m, q, q)."""
        evidence, spread = self.evidence, self.verdicts.distances.spread
        information = self.verdicts.information
        if evidence.squares is not None and not evidence.own_noise:
            some = self.evidence.rows > 0
            own = np.einsum("mqq->m", evidence.information[some])
            scale = np.median(np.einsum("mqq->m", information[some]) / np.maximum(own, TINY))
            information = evidence.information * (scale if some.any() else 1.0)
        if not evidence.by_degrees:
            spread = np.zeros_like(spread)
        weights = weight_of(information, spread)
        if evidence.says is not None:
            root = np.sqrt(evidence.says)
            return weights * root[:, :, None] * root[:, None]
        heard = ~self.odd if evidence.bounded else np.ones(len(weights), dtype=bool)
        return np.where(heard[:, None, None], weights, 0.0)

    def _totals(self, weights: Floats) -> Floats:
        """Sums over the sites of every kind, (K, q, q)."""
        kinds = np.arange(int(self._kind.max(initial=0)) + 1)
        return np.einsum("km,mij->kij", (self._kind == kinds[:, None]) * 1.0, weights)

    def _steps(self) -> Floats:
        """What is shared less what is shared without each site, (m, q)."""
        scores, curvatures = self._pull
        left = inverse(self._totals(curvatures)[self._kind] - curvatures)
        return np.asarray(np.einsum("mij,mj->mi", left, scores))

    # ------------------------------------------------------------ fits without sites

    def drop(self, *sites: Any) -> Any:
        """The estimator fitted without these sites; without any given, without the odd ones."""
        gone = {self._known_name(site) for site in sites} if sites else set(self.names)
        return self._without(gone, fixed=False)

    def _without(self, gone: Collection[str], fixed: bool) -> Any:
        """A fit without sites; `fixed`: with the number of groups of the fit to all."""
        data = self._rows()
        kept = np.flatnonzero([name not in gone for name in data.names])
        if not len(kept):
            raise ValueError("no site would be left")
        return _quietly(self._model._for_sites(kept, fixed), data.take(kept))

    def leave_one_out(self, sites: Sequence[Any] | None = None) -> Table:
        """How far what is shared moves without each site: by one step, and fitted anew.

        `sites` are those to look at; None takes all of them, a fit each.
        """
        names = self.sites if sites is None else [self._known_name(site) for site in sites]
        place = {name: k for k, name in enumerate(self.sites)}
        where = [place[name] for name in names]
        moved = [
            self._moved(self._without({name}, fixed=True)._shared_estimate(like=self._model))
            for name in names
        ]
        columns = {
            "site": list(names),
            "one step": self.influence[where],
            "fitted anew": np.array(moved),
            "adjusted p": self.adjusted[where],
        }
        return Table(columns, "What is shared without each site (in its standard errors)")

    def _moved(self, without: Floats) -> float:
        """Length of the difference between what is shared and what is shared without somebody."""
        from scipy.optimize import linear_sum_assignment

        shared, totals = self._model._shared_estimate(), self._totals(self._weights)
        metric = totals.sum(axis=0)
        off = shared[:, None] - without[None]
        apart = np.einsum("abi,ij,abj->ab", off, metric, off)
        rows, columns = linear_sum_assignment(apart)
        totals = totals if len(totals) == len(shared) else np.tile(metric, (len(shared), 1, 1))
        moved = off[rows, columns]
        length = np.einsum("ki,kij,kj->", moved, self._in_order(shared, totals)[rows], moved)
        return float(np.sqrt(max(length, 0.0) / self.evidence.n_parameters))

    def _in_order(self, shared: Floats, totals: Floats) -> Floats:
        """Information by the fit's kinds: kinds here are numbered as those with several sites."""
        if len(totals) == 1:
            return totals
        labels, kind = self.evidence.labels, self._kind
        found = np.zeros((len(shared), *totals.shape[1:]))
        for k in range(len(shared)):
            who = labels == k
            common = np.bincount(kind[who]).argmax() if who.any() else 0
            found[k] = totals[common]
        return found

    def _known_name(self, site: Any) -> str:
        name = canonical_name(site)
        if name not in self.sites:
            raise ValueError(f"there is no site {name!r}; there are {listed(self.sites)}")
        return name

    def _rows(self) -> Federation:
        if self._data is None:
            raise ValueError(
                "the rows are at the sites: run the fit again without the site in the roster"
            )
        return self._data

    # ------------------------------------------------------------ in words

    @property
    def sentence(self) -> str:
        """The answer, to be read out."""
        m, known = len(self.sites), int(np.isfinite(self.adjusted).sum())
        if known < LEAST_SITES:
            return f"With {known} of {m} sites to compare, none can be called odd."
        if not self.odd.any():
            least = int(np.nanargmin(self.verdicts.log_p))
            chance = self.adjusted[least]
            return (
                f"No site is odd at the {self.level:.0%} level: the least usual of {known}, "
                f"{self.sites[least]!r}, is what chance gives (adjusted p = {chance:.2g})."
            )
        order = np.argsort(np.where(self.odd, -self.score, np.inf), kind="stable")
        shown = order[: min(int(self.odd.sum()), MOST_NAMED)]
        told = "; ".join(f"{self.sites[k]!r} {WORDS[str(self.why[k])]}" for k in shown)
        more = int(self.odd.sum()) - len(shown)
        told += f"; and {more} more" if more else ""
        first = shown[0]
        verb = "site is" if self.odd.sum() == 1 else "sites are"
        return (
            f"{int(self.odd.sum())} of {m} {verb} odd at the {self.level:.0%} level "
            f"({METHODS[self.adjust]}): {told}. Without {self.sites[first]!r} what is shared moves "
            f"by {self.influence[first]:.2g} standard errors."
        )

    def table(self) -> Table:
        """A row for every site, the oddest first."""
        order = np.argsort(-np.nan_to_num(self.score, nan=-np.inf), kind="stable")
        telling = np.nan_to_num(self.pvalue, nan=1.0) <= self.level
        columns = {
            "site": np.array(self.sites, dtype=object),
            "rows": self.evidence.rows,
            "score": self.score,
            "p": self.pvalue,
            "adjusted p": self.adjusted,
            "odd": self.odd,
            "why": np.where(telling, self.why, ""),
            "influence": self.influence,
        }
        return Table({name: np.asarray(c)[order] for name, c in columns.items()}, "Sites")

    def __str__(self) -> str:
        return f"{self.sentence}\n{self.table()}"

    def plot(self, ax: Any = None) -> Any:
        """Scores of the sites, with the line beyond which they are odd; returns the axes."""
        from fedkin.inference.pictures import scores_by_site

        known = np.isfinite(self.score)
        names = [name for name, here in zip(self.sites, known) if here]
        return scores_by_site(names, self.score[known], self.odd[known], self.threshold, ax)

    @property
    def threshold(self) -> float:
        """The score beyond which the oddest site is odd."""
        from scipy.special import ndtri

        known = max(int(np.isfinite(self.adjusted).sum()), 1)
        return float(-ndtri(self.level / known))


def odd_sites(
    estimator: Any,
    X: Any = None,
    y: Any = None,
    groups: Any = None,
    *,
    level: float = 0.05,
    adjust: str = "holm",
) -> OddSites:
    """Which sites do not go with the others, by what an estimator shares.

    Every site is compared with the others of its kind, itself left out: where its own estimates lie
    beside theirs, given how far sites of a kind are apart, and how noisy it is. Odd sites are set
    aside while the others are looked at, so that they hide neither themselves nor each other.

    Parameters
    ----------
    estimator : estimator
        Any way of joining that shares something: `MixedModel`, `FMLR`, `ODCL`, `IFCA`, `FedGrEM`
        and its rivals, `FGPR`. It is cloned and fitted; itself it stays as it is.
    X, y, groups : rows, targets and the site of each row; or X a Federation
        Without data the estimator's engine asks sites for sums of products (linear models).
    level : float
        Of false alarms.
    adjust : {"holm", "bh"}
        Holm: a clean federation has an odd site with probability `level`. Benjamini and Hochberg:
        of the sites called odd a share of `level` is not.

    Returns
    -------
    OddSites
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level}")
    if adjust not in METHODS:
        raise ValueError(f"adjust must be 'holm' or 'bh', not {adjust!r}")
    from sklearn.base import clone

    if X is None:
        model, evidence, data = *_at_sites(estimator), None
    else:
        data = as_federation(X, y, groups)
        model = _quietly(clone(estimator).set_params(engine=None), data)
        evidence = model._site_evidence(data)
    found = judge(_enough(evidence), level, adjust)
    return OddSites(type(estimator).__name__, level, adjust, evidence, found, model, data)


def _at_sites(estimator: Any) -> tuple[Any, SiteEvidence]:
    """A model and what sites say, through the engine."""
    if estimator.engine is None:
        raise ValueError("odd_sites needs data: odd_sites(estimator, X, y, groups)")
    from sklearn.base import clone

    names, sums = sums_at_sites(estimator)
    model = _quietly(clone(estimator), None)
    return model, model._evidence_of_sums(names, sums)


def _enough(evidence: SiteEvidence) -> SiteEvidence:
    """The evidence, without anybody's where there are too few sites to compare."""
    if (evidence.rows > 0).sum() >= LEAST_SITES:
        return evidence
    nothing = np.zeros_like(evidence.information)
    return evidence._replace(information=nothing, squares=None, degrees=None)


def _quietly(unfitted: Any, data: Federation | None) -> Any:
    """Fitted; what deserves a warning does so elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return unfitted.fit(data)


def as_federation(X: Any, y: Any, groups: Any) -> Federation:
    """The data with whatever target there is; words as numbers."""
    if isinstance(X, Federation):
        if y is not None or groups is not None:
            raise ValueError("a Federation brings its own target and sites; leave y and groups out")
        return X
    if groups is None:
        raise ValueError("sites are compared: groups must name the site of each row")
    target = None if y is None else np.asarray(y)
    if target is not None and target.dtype.kind not in "fiub":
        target = np.unique(target, return_inverse=True)[1].astype(float)
    return Federation.from_groups(X, groups, target)
