"""How far sites are pulled towards the common softmax regression: chosen by rows left out.

Three variances are looked for: of the departures' features, of the departures' intercepts, and of
the common coefficients themselves. Each set is fitted and judged by its leave-one-out loss
(`softmax_mixed_fit.judged`), or by its evidence; a compass search on the log scale takes fewer than
thirty. One variance serves all classes: the evidence, free to give every class its own, sent single
classes to zero on UCI HAR without any gain on new rows (`fit_at` takes any).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.federation import Federation
from fedkin.models.softmax_mixed import LabelledRows, SoftmaxPrior, probabilities
from fedkin.models.softmax_mixed_fit import Judgement, SoftmaxState, fit_at, judged

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
By = Literal["loo", "evidence"]

# Where the search begins: variances of features' departures, intercepts' departures, and B.
START = (0.3, 1.0, 3.0)
# Steps of the search, factors of three down to one of 1.3; and the range of every variance.
FIRST_STEP, LAST_STEP = float(np.log(3.0)), 0.3
LEAST_LOG, MOST_LOG = -10.0, 5.0
MOST_FITS = 40
# Relative gain for which a step is taken: no drifting along what rows do not tell.
WORTH = 1e-3
# Precision of the intercepts of B: they are where the shares of the classes put them.
FREE = 1e-2


class Standard(NamedTuple):
    """Columns worked with: (x - mean) / spread."""

    mean: Floats
    spread: Floats


@dataclass(frozen=True, eq=False)
class SoftmaxChoice:
    """The chosen fit for C classes and d columns (intercept last, if there is one)."""

    coef: Floats
    """B (C, d), of standardised columns: what sites depart from."""
    population: Floats
    """The one model for all rows (C, d), for a site nothing is known of.

    Averaged over sites a softmax is flatter than its middle B is sharp: on people left out of UCI
    HAR the loss was .23 with this and .28 with B.
    """
    departures: Floats
    """U (m, C, d)."""
    variances: Floats
    """Of the features' departures, the intercepts' departures, and B, (3,)."""
    judgement: Judgement
    n_fits: int
    n_rounds: int
    standard: Standard
    fit_intercept: bool

    def scores(self, X: Floats, clients: Indices) -> Floats:
        """Linear predictors (n, C) of rows X of `clients` (n,): -1 for a new one."""
        table = (X - self.standard.mean) / self.standard.spread
        if self.fit_intercept:
            table = np.concatenate([table, np.ones((len(table), 1))], axis=1)
        own = np.where(
            clients[:, None, None] >= 0,
            self.coef + self.departures[np.maximum(clients, 0)],
            self.population,
        )
        return np.asarray(np.einsum("nd,ncd->nc", table, own))

    def probabilities(self, X: Floats, clients: Indices) -> Floats:
        """Class probabilities (n, C)."""
        return probabilities(self.scores(X, clients))


def choose(
    clients: Federation, n_classes: int, fit_intercept: bool = True, by: By = "loo"
) -> SoftmaxChoice:
    """Fit to a federation whose target holds labels 0, ..., C - 1."""
    standard = standard_of(clients)
    scaled = (clients.X - standard.mean) / standard.spread
    inside = Federation(scaled, clients.offsets, clients.names, clients.y)
    rows = LabelledRows.of(inside, n_classes, fit_intercept)
    search = _Compass(rows, fit_intercept, by)
    point = search.run(np.log(np.array(START)))
    state, judgement = search.known[point.tobytes()]
    together, ridge = at_variances(rows, np.array([LEAST_LOG, LEAST_LOG, 0.0]), fit_intercept)
    pooled = fit_at(rows, together, ridge)
    search.rounds += pooled.rounds
    return SoftmaxChoice(
        state.coef,
        pooled.state.coef,
        state.departures,
        np.exp(point),
        judgement,
        len(search.known),
        search.rounds,
        standard,
        fit_intercept,
    )


def standard_of(clients: Federation) -> Standard:
    """Pooled mean and standard deviation of the features; one where a column does not vary."""
    if not len(clients.X):
        return Standard(np.zeros(clients.n_features), np.ones(clients.n_features))
    mean, spread = clients.X.mean(axis=0), clients.X.std(axis=0)
    return Standard(mean, np.where(spread > 1e-12 * (np.abs(mean) + 1.0), spread, 1.0))


def at_variances(
    rows: LabelledRows, logs: Floats, fit_intercept: bool
) -> tuple[SoftmaxPrior, Floats]:
    """Prior of the departures and precisions of B from three log variances."""
    shape = (rows.n_classes, rows.n_columns)
    block = np.zeros(rows.n_columns, dtype=np.intp)
    ridge = np.full(shape, np.exp(-logs[2]))
    if fit_intercept:
        block[-1], ridge[:, -1] = 1, FREE
    return SoftmaxPrior(np.tile(logs[:2], (rows.n_classes, 1)), block), ridge


class _Compass:
    """A search along the coordinates with steps that shrink; every point is fitted once."""

    def __init__(self, rows: LabelledRows, fit_intercept: bool, by: By) -> None:
        self.rows, self.fit_intercept, self.by = rows, fit_intercept, by
        self.known: dict[bytes, tuple[SoftmaxState, Judgement]] = {}
        self.rounds = 0

    def value(self, point: Floats, start: SoftmaxState | None) -> float:
        key = point.tobytes()
        if key not in self.known:
            prior, ridge = at_variances(self.rows, point, self.fit_intercept)
            found = fit_at(self.rows, prior, ridge, start)
            self.rounds += found.rounds + 1
            verdict = judged(self.rows, prior, ridge, found.state)
            self.known[key] = found.state, verdict
        verdict = self.known[key][1]
        return verdict.loss if self.by == "loo" else -verdict.evidence

    def run(self, point: Floats) -> Floats:
        best = self.value(point, None)
        step = FIRST_STEP
        directions = [np.eye(3)[k] * sign for k in (0, 2, 1) for sign in (1.0, -1.0)]
        while step >= LAST_STEP and len(self.known) < MOST_FITS:
            before = best
            skip = None
            for direction in directions:
                if skip is not None and np.array_equal(direction, -skip):
                    continue
                tried = np.clip(point + step * direction, LEAST_LOG, MOST_LOG)
                level = self.value(tried, self.known[point.tobytes()][0])
                if level < best - WORTH * abs(best):
                    point, best, skip = tried, level, direction
            if best >= before:
                step *= 0.5
        return point
