"""The server's half of a mixed model of classes: sets of variances fitted and judged in rounds."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedkin.algorithms.softmax_mixed_result import SoftmaxMixedResult
from fedkin.algorithms.softmax_mixed_sets import (
    FROM_COMMON,
    LEAST_LOG,
    Centre,
    Sets,
    equal_sets,
)
from fedkin.arrays import Arrays, Bools, Floats, Indices
from fedkin.models.least_squares import upper_triangle
from fedkin.models.softmax_variances import shared_by, variance_pattern
from fedkin.protocol import Ask, Replies, Roster, over_roster
from fedkin.ties import first_least

# Precision of the intercepts of B: they are where the shares of the classes put them.
FREE = 1e-2
# Relative gain in loss for which more departing is believed.
WORTH = 1e-3
# Sets that lose so many nats more on all rows left out count by a factor e less: a row that is far
# off loses as much.
NATS = 10.0
# What is left of a set's weight is counted from here, the best one's being 1.
LEAST_WEIGHT = 0.05
# Sets whose logarithms differ by no more are the same set but for rounding.
THE_SAME = 1e-6
MOST_ROUNDS_A_STAGE = 12
# When a site that was heard before is silent at the end, it is waited for so many rounds.
MOST_WAITS = 3
SHORTENED = 0.25
SURELY_HIGHER = 1e-10

Server = Generator[Ask, Replies, Any]


class Stage(NamedTuple):
    """Sets fitted side by side: B (G, C, d), its information (G, C d, C d), and who is at rest."""

    sets: Sets
    coef: Floats
    information: Floats
    converged: Bools
    together: bool = False
    """Whether B is the common model, which was fitted without departures."""

    def only(self, which: Any) -> Stage:
        """Some of the sets."""
        sets = Sets(*(part[which] for part in self.sets))
        parts = (self.coef[which], self.information[which], self.converged[which])
        return Stage(sets, *parts, self.together)

    def distinct(self) -> tuple[Indices, Indices]:
        """The first of all sets that are the same, and where each of the sets is among those."""
        logs = self.sets.departures.reshape(len(self.coef), -1)
        logs = np.column_stack([logs, self.sets.common])
        alike = np.abs(logs[:, None] - logs).max(axis=2) <= THE_SAME
        first, place = np.unique(alike.argmax(axis=1), return_inverse=True)
        return first, place


class Verdict(NamedTuple):
    """Of every set: mean loss of rows left out (G,), and sums over sites about departures.

    `apart` (G,) is the mean loss of sites that are left out, where sites do not depart.
    """

    loss: Floats
    apart: Floats
    departed: Floats
    determined: Floats

    def only(self, which: Any) -> Verdict:
        """On some of the sets."""
        return Verdict(*(part[which] for part in self))


class Best(NamedTuple):
    """The best set so far: log variances (C, d) and of B, B, its loss, its departures."""

    departures: Floats
    common: float
    coef: Floats
    loss: float
    departed: Floats
    determined: Floats

    @property
    def departs(self) -> bool:
        """Whether sites depart at all."""
        return bool((self.departures > LEAST_LOG).any())

    def pattern(self, block: Indices, is_level: Bools) -> Floats:
        """How the departures found would have single classes move, (C, d)."""
        return variance_pattern(self.departed, self.determined, self.departures, block, is_level)


def opened(roster: Roster, settings: Any) -> Server:
    """The first round: scales of the columns, rows and classes."""
    replies = yield Ask("moments", note="scales of the columns")
    n_rows = float(replies.total("rows"))
    mean = replies.total("sums") / n_rows
    spread = np.sqrt(np.maximum(replies.total("squares") / n_rows - mean**2, 0.0))
    spread = np.where(spread > 1e-7 * (np.abs(mean) + 1e-300), spread, 1.0)
    if not settings.fit_intercept:
        mean = np.zeros_like(mean)
    rows = np.nan_to_num(over_roster(replies["rows"], replies.clients, len(roster)))
    n_classes = max(int(replies["classes"].max()), 2)
    return Fit(settings, mean, spread, rows, n_classes, settings.max_rounds - 1)


def better(best: Best | None, stage: Stage, verdict: Verdict) -> Best:
    """The set of least loss, if that is worth a change."""
    k = int(first_least(verdict.loss))
    if best is not None and verdict.loss[k] >= best.loss - WORTH * best.loss:
        return best
    return Best(
        stage.sets.departures[k],
        float(stage.sets.common[k]),
        stage.coef[k],
        float(verdict.loss[k]),
        verdict.departed[k],
        verdict.determined[k],
    )


class Mean(NamedTuple):
    """Sets with their weights (G,), whose models are averaged: log variances, B, and of B."""

    weights: Floats
    departures: Floats
    coef: Floats
    common: Floats
    converged: Bools

    @classmethod
    def of(cls, judged: list[tuple[Stage, Verdict]], n_rows: float) -> Mean:
        """Of all sets that were judged, by the loss of the rows left out."""
        stages = [stage for stage, _ in judged]
        loss = np.concatenate([verdict.loss for _, verdict in judged])
        weights = np.exp((loss.min() - loss) * n_rows / NATS) - LEAST_WEIGHT
        some = weights > 0.0
        parts = (
            [stage.sets.departures for stage in stages],
            [stage.coef for stage in stages],
            [stage.sets.common for stage in stages],
            [stage.converged for stage in stages],
        )
        kept = [np.concatenate(part)[some] for part in parts]
        return cls(weights[some] / weights[some].sum(), *kept)

    def over(self, values: Floats) -> Floats:
        """The mean of what sets have, (G, ...)."""
        return np.asarray(np.tensordot(self.weights, values, axes=1))


def as_they_are(commons: Stage, sets: Sets) -> Stage:
    """Sets with the B of those common models whose variances are nearest."""
    away = np.abs(sets.common[:, None] - commons.sets.common)
    which = first_least(away, axis=1)
    near = commons.only(which)
    return Stage(Sets(sets.departures, near.sets.common), *near[1:4], together=True)


def for_new_sites(commons: Stage, verdict: Verdict, n_sites: int) -> Floats:
    """B (C, d) of the common model that sites left out lose the least by."""
    return np.asarray(commons.coef[first_least(verdict.apart if n_sites > 1 else verdict.loss)])


@dataclass
class Fit:
    """A fit in progress; `left` rounds are left, `tried` is what was judged."""

    settings: Any
    mean: Floats
    spread: Floats
    rows: Floats
    n_classes: int
    left: int
    counted: float = 0.0
    tried: list[Floats] = field(default_factory=list)

    def within_reach(self, best: Best, other: Best) -> bool:
        """Whether a set like `best` may count beside another one."""
        return self.counted * (best.loss - other.loss) < -NATS * np.log(LEAST_WEIGHT)

    @property
    def shape(self) -> tuple[int, int]:
        """Of B."""
        return self.n_classes, len(self.mean) + int(self.settings.fit_intercept)

    @property
    def block(self) -> Indices:
        """Which columns share a variance."""
        settings = self.settings
        return shared_by(settings.covariance, len(self.mean), settings.fit_intercept)

    @property
    def is_level(self) -> Bools:
        """Which column is the intercept."""
        return np.arange(self.shape[1]) >= len(self.mean)

    # -------------------------------------------------------------- sets of variances

    def centre(self, best: Best, at: tuple[Floats, float] | None = None) -> Centre:
        """The best set, or a better guess `at`, to look around."""
        pattern = best.pattern(self.block, self.is_level)
        return Centre(*(at or (best.departures, best.common)), pattern)

    def from_common(self, commons: Stage, log_variance: float) -> Stage:
        """Sets of departures from a common model as it is; no B has to be found."""
        levels = [(f, f, log_variance) for f in FROM_COMMON]
        return as_they_are(commons, equal_sets(np.array(levels), self.n_classes, self.is_level))

    def message(self, logs: Floats, coef: Floats) -> Arrays:
        """What sites are told of sets."""
        return {"coef": coef, "logs": logs, "mean": self.mean, "spread": self.spread}

    def ridge(self, common: Floats) -> Floats:
        """Precisions of B for every set, (G, C d)."""
        out = np.empty((len(common), *self.shape))
        out[:] = np.exp(-common)[:, None, None]
        if self.settings.fit_intercept:
            out[..., -1] = FREE
        return out.reshape(len(common), -1)

    # -------------------------------------------------------------- rounds

    def look(self, sets: Sets, coef: Floats) -> Server:
        """Heights (G,), slopes (G, C d) and curvature (G, C d, C d) at B of every set."""
        self.left -= 1
        replies = yield Ask("look", self.message(sets.departures, coef), note="sets of variances")
        ridge, flat = self.ridge(sets.common), coef.reshape(len(coef), -1)
        height = replies.total("height") + 0.5 * (ridge * flat**2).sum(axis=1)
        # At its U a site's slope of the loss is -K U.
        slope = -replies.total("pull") + ridge * flat
        size = flat.shape[1]
        upper = upper_triangle(size)
        curve = np.zeros((len(coef), size, size))
        curve[:, upper[0], upper[1]] = curve[:, upper[1], upper[0]] = replies.total("information")
        curve[:, np.arange(size), np.arange(size)] += ridge
        return height, slope, curve, frozenset(map(int, replies.clients))

    def stage(self, sets: Sets, start: Floats) -> Server:
        """Newton's method for all sets until no B moves."""
        coef, base, step = start, start, np.zeros_like(start)
        kept: tuple[Floats, Floats, frozenset[int]] | None = None
        heard: frozenset[int] = frozenset()
        waits = 0
        for _ in range(max(1, min(MOST_ROUNDS_A_STAGE, self.left - 2))):
            height, slope, curve, clients = yield from self.look(sets, coef)
            up = np.zeros(len(height), dtype=bool)
            if kept is not None and kept[2] == clients:
                up = height > kept[0] + SURELY_HIGHER * np.abs(kept[0])
            fresh = np.linalg.solve(curve, -slope[..., None])[..., 0].reshape(coef.shape)
            step = np.where(up[:, None, None], SHORTENED * step, fresh)
            base = np.where(up[:, None, None], base, coef)
            before = height if kept is None else np.where(up, kept[0], height)
            shape = curve if kept is None else np.where(up[:, None, None], kept[1], curve)
            kept = before, shape, clients
            heard |= clients
            at_rest = np.abs(step).max(axis=(1, 2)) <= self.settings.tol
            waits += bool(at_rest.all())
            coef = base + step
            if at_rest.all() and (clients == heard or waits > MOST_WAITS):
                break
        assert kept is not None
        return Stage(sets, np.where(at_rest[:, None, None], coef, base), kept[1], at_rest)

    def judge(self, stage: Stage) -> Server:
        """What rows left out lose, and what departures say of variances."""
        self.left -= 1
        first, place = stage.distinct()
        distinct = stage.only(first)
        message = {
            **self.message(distinct.sets.departures, distinct.coef),
            "information": distinct.information,
            "together": np.array(float(stage.together)),
        }
        replies = yield Ask("judge", message, note="rows left out")
        self.counted = max(float(replies.total("counted")), 1e-300)
        loss, apart = (replies.total(name) / self.counted for name in ("loss", "apart"))
        verdict = Verdict(loss, apart, replies.total("departed"), replies.total("determined"))
        self._remember(distinct.sets, loss)
        return verdict.only(place)

    def _remember(self, sets: Sets, loss: Floats) -> None:
        level = sets.departures[..., self.is_level].sum(axis=-1).mean(axis=1)
        features = sets.departures[..., ~self.is_level].mean(axis=(1, 2))
        self.tried += list(np.stack([features, level, sets.common, loss], axis=1))

    # -------------------------------------------------------------- the end

    def result(self, mean: Mean, loss: float, population: Floats, settled: Replies, m: int) -> Any:
        """At the end of a fit to m sites."""
        sent = "departures" in settled
        own = settled["departures"] if sent else np.zeros((0, *self.shape))
        heard = settled.clients if sent else settled.clients[:0]
        rows = self.rows.copy()
        rows[settled.clients] = settled["rows"]
        return SoftmaxMixedResult(
            coef=mean.over(mean.coef),
            population=population,
            departures=over_roster(own, heard, m, missing=0.0),
            variances=mean.over(np.exp(mean.departures)),
            block=self.block,
            common_variance=mean.over(np.exp(mean.common)),
            set_weights=mean.weights,
            set_coef=mean.coef,
            set_logs=mean.departures,
            mean=self.mean,
            spread=self.spread,
            loss=np.array(loss),
            heard=heard,
            site_rows=rows,
            converged=np.array(mean.converged.all()),
            tried=np.array(self.tried),
        )
