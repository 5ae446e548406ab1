"""Scores of rows that were left out, for several ways of fitting, summed by site.

Only such sums are ever needed, so they are all that a real site has to tell. In process rows are
left out fold by fold and every way is fitted to the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedkin.arrays import Bools, Floats
from fedkin.federation import Federation
from fedkin.inference.gains import Paired
from fedkin.models.folds import row_folds, rows_where, site_folds

# Metric whose scores are negative squared errors, shown as their root.
RMSE = "rmse"
# Not a score: it is kept by row, and never summed or sent.
RESIDUAL = "residual"


@dataclass(frozen=True)
class Scores:
    """Sums over left-out rows, of every way and repetition at every site.

    totals : (ways, repeats, m) of scores; products : (ways, ways, repeats, m) of pairs of scores
    """

    totals: Floats
    products: Floats


@dataclass(frozen=True)
class HeldOut:
    """What rows left out say of several ways.

    rows, trained : (repeats, m) rows left out, and rows the site kept then on average
    """

    ways: tuple[str, ...]
    names: tuple[str, ...]
    sizes: Floats
    rows: Floats
    trained: Floats
    metrics: Mapping[str, Scores]
    fits: int = 0
    by_row: Mapping[str, Floats] = field(default_factory=dict)
    """Scores (ways, N) of single rows, the mean over repetitions; in process only."""

    def means(self, metric: str) -> Floats:
        """Mean score of every way at every site, (ways, m), in the metric's own units."""
        rows = self.rows.sum(axis=0)
        total = self.metrics[metric].totals.sum(axis=1)
        mean = np.where(rows > 0, total / np.maximum(rows, 1.0), np.nan)
        if metric == RMSE:
            return np.sqrt(np.maximum(-mean, 0.0))
        return -mean if metric == "error" else mean

    def typical(self, metric: str) -> Floats:
        """Score of every way at a typical site, (ways,): the mean over sites, of RMSE the median.

        A line through two rows that lie side by side errs by any amount, and one such site would
        make a mean of errors.
        """
        means = self.means(metric)
        return np.nanmedian(means, axis=1) if metric == RMSE else np.nanmean(means, axis=1)

    def paired(self, metric: str, way: str, other: str) -> Paired:
        """Differences of two ways; those of RMSE by the difference of squares over the sum."""
        a, b = self.ways.index(way), self.ways.index(other)
        scores, unit = self.metrics[metric], np.ones(len(self.names))
        if metric == RMSE:
            both = self.means(RMSE)[[a, b]].sum(axis=0)
            unit = np.where(both > 0, 1.0 / np.where(both > 0, both, 1.0), 0.0)
        products = scores.products
        squares = products[a, a] - 2.0 * products[a, b] + products[b, b]
        return Paired(
            (scores.totals[a] - scores.totals[b]) * unit,
            np.maximum(squares, 0.0) * unit**2,
            self.rows,
            self.trained,
            self.sizes,
        )


class _Sums:
    """Sums that grow fold by fold."""

    def __init__(self, ways: Sequence[str], n_repeats: int, n_sites: int) -> None:
        self.ways, self.shape = tuple(ways), (n_repeats, n_sites)
        self.rows = np.zeros(self.shape)
        self.trained = np.zeros(self.shape)
        self.metrics: dict[str, Scores] = {}

    def add(
        self, repeat: int, test: Federation, kept: Floats, scores: Mapping[str, Floats]
    ) -> None:
        """Add scores (ways, n) by metric of the rows of one fold."""
        m = test.n_clients
        self.rows[repeat] += test.sizes
        self.trained[repeat] += test.sizes * kept
        for metric, each in scores.items():
            if metric == RESIDUAL:
                continue
            sums = self.metrics.setdefault(metric, self._empty())
            for a, own in enumerate(each):
                sums.totals[a, repeat] += np.bincount(test.owner, own, minlength=m)
                for b, other in enumerate(each):
                    product = np.bincount(test.owner, own * other, minlength=m)
                    sums.products[a, b, repeat] += product

    def _empty(self) -> Scores:
        n = len(self.ways)
        return Scores(np.zeros((n, *self.shape)), np.zeros((n, n, *self.shape)))

    def finished(self, federation: Federation, fits: int, by_row: Mapping[str, Floats]) -> HeldOut:
        """The sums as they stand."""
        trained = np.where(self.rows > 0, self.trained / np.maximum(self.rows, 1.0), 0.0)
        sizes = federation.sizes.astype(float)
        return HeldOut(
            self.ways, federation.names, sizes, self.rows, trained, self.metrics, fits, by_row
        )


def rows_left_out(
    estimator: Any,
    ways: Mapping[str, Any],
    federation: Federation,
    folds: Sequence[int],
    seed: int,
) -> HeldOut:
    """Leave out rows of every site, fold by fold, as often as `folds` has numbers of folds."""
    sums = _Sums(tuple(ways), len(folds), federation.n_clients)
    by_row: dict[str, Floats] = {}
    for repeat, n_folds in enumerate(folds):
        fold = row_folds(federation, n_folds, seed + repeat)
        for part in range(n_folds):
            out = fold == part
            scores = _scored(estimator, ways, federation, out, ~out)
            if scores is None:
                continue
            test, kept, found = scores
            sums.add(repeat, test, kept, found)
            for metric, each in found.items():
                whole = by_row.setdefault(metric, np.zeros((len(ways), len(federation.X))))
                whole[:, out] += each / len(folds)
    return sums.finished(federation, int(sum(folds)) * len(ways), by_row)


def sites_left_out(
    estimator: Any, ways: Mapping[str, Any], federation: Federation, n_folds: int, seed: int
) -> HeldOut:
    """Leave out whole sites: what a site that comes later may expect before it has any rows."""
    n_folds = min(n_folds, federation.n_clients)
    sums = _Sums(tuple(ways), 1, federation.n_clients)
    by_row: dict[str, Floats] = {}
    fold = site_folds(federation, n_folds, seed)
    for part in range(n_folds):
        out = (fold == part)[federation.owner]
        scores = _scored(estimator, ways, federation, out, ~out, without=fold == part)
        if scores is not None:
            test, _, found = scores
            sums.add(0, test, federation.sizes.astype(float), found)
            for metric, each in found.items():
                by_row.setdefault(metric, np.zeros((len(ways), len(federation.X))))[:, out] = each
    return sums.finished(federation, n_folds * len(ways), by_row)


def _scored(
    estimator: Any,
    ways: Mapping[str, Any],
    federation: Federation,
    out: Bools,
    kept: Bools,
    without: Bools | None = None,
) -> tuple[Federation, Floats, dict[str, Floats]] | None:
    """Fit every way to the rows kept and score those left out; None if none were left out."""
    if not out.any():
        return None
    test, train = rows_where(federation, out), rows_where(federation, kept)
    sizes = train.sizes.astype(float)
    if without is not None:
        train = train.take(np.flatnonzero(~without))
    found: dict[str, list[Floats]] = {}
    with warnings.catch_warnings():
        # What deserves a warning does so in a fit to all rows.
        warnings.simplefilter("ignore")
        for way in ways.values():
            fitted = getattr(way, "_fit_to_score", way.fit)(train)
            for metric, each in estimator._row_scores(fitted, test, train).items():
                found.setdefault(metric, []).append(each)
    return test, sizes, {metric: np.array(each) for metric, each in found.items()}
