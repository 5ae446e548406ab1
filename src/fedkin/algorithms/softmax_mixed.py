"""Softmax regressions of sites, each pulled towards the common one as far as rows left out say.

    P(label = c | x) = softmax(x'(B + U_i))_c,    U_i ~ N(0, v) by blocks, columns standardised

Given the variances (of departures of features, of departures of intercepts, and of B) the fit is
Newton's method in B: a site finds its own U_i at a B, and sends the height, its slope and its
second derivatives, U_i having gone along. Many sets of variances are fitted side by side, so that
looking for the best of them costs a few rounds and not a fit each. They are judged by the loss of
rows left out, which every site tells without fitting again (`models.softmax_mixed_fit`); sets then
move towards the better ones. One set has no departures: the common model, for sites nothing is
known of.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedkin.arrays import Array, Arrays, Floats, Indices
from fedkin.federation import Federation
from fedkin.models.least_squares import upper_triangle
from fedkin.models.softmax_choice import FREE, LEAST_LOG, MOST_LOG, START
from fedkin.models.softmax_mixed import (
    LabelledBlock,
    LabelledRows,
    SoftmaxPrior,
    find_modes,
    heights,
    probabilities,
    second_derivatives,
)
from fedkin.models.softmax_mixed_fit import LEAST_PROBABILITY, left_out
from fedkin.protocol import (
    Algorithm,
    Ask,
    Field,
    Program,
    Replies,
    Result,
    Roster,
    Step,
    over_roster,
)
from fedkin.protocol.runs import About
from fedkin.settings import Flag, Number, Settings, Whole, one_of, setting
from fedkin.tables import Table

# The first sets of log variances: of features' departures, and of B; intercepts' go with features'.
FEATURE_LOGS = (-5.0, -3.0, -1.2, 0.6)
COMMON_LOGS = (-0.5, 1.6)
INTERCEPT_BEYOND = float(np.log(START[1] / START[0]))
# Later sets lie so far to both sides of the best one in each of the three.
STEPS = (1.0, 0.5)
# Variances with which sites do not depart at all, for the common model.
TOGETHER = (LEAST_LOG, LEAST_LOG, 0.0)
# Relative gain in loss for which more departing is believed.
WORTH = 1e-3
MOST_ROUNDS_A_STAGE = 12
# When a site that was heard before is silent at the end, it is waited for so many rounds.
MOST_WAITS = 3
SHORTENED = 0.25
SURELY_HIGHER = 1e-10


class SoftmaxMixedSettings(Settings):
    """What can be set."""

    fit_intercept: bool = setting(True, Flag(), at_site=True)
    share: str = setting("statistics", one_of("statistics", "gradients"))
    max_rounds: int = setting(60, Whole())
    tol: float = setting(1e-4, Number(above=0.0))


# ------------------------------------------------------------------ client functions


class _Told(NamedTuple):
    """What a site is told: B of every set (G, C, d), log variances (G, 3), standardising."""

    coef: Floats
    logs: Floats
    mean: Floats
    spread: Floats

    def rows(self, clients: Federation, settings: Any) -> LabelledRows:
        return labelled_rows(clients, self.mean, self.spread, self.coef.shape[1], settings)

    def prior(self, g: int, settings: Any) -> SoftmaxPrior:
        return prior_of(self.logs[g], self.coef.shape[1:], settings.fit_intercept)


def labelled_rows(
    clients: Federation, mean: Floats, spread: Floats, n_classes: int, settings: Any
) -> LabelledRows:
    """Rows in standardised columns."""
    scaled = Federation((clients.X - mean) / spread, clients.offsets, clients.names, clients.y)
    return LabelledRows.of(scaled, n_classes, settings.fit_intercept)


def prior_of(logs: Floats, shape: tuple[int, ...], fit_intercept: bool) -> SoftmaxPrior:
    """Of the departures."""
    block = np.zeros(shape[1], dtype=np.intp)
    if fit_intercept:
        block[-1] = 1
    return SoftmaxPrior(np.tile(logs[:2], (shape[0], 1)), block)


def prepare(clients: Federation, settings: Any) -> Arrays:
    """Nothing to prepare; labels must be numbers of classes."""
    if clients.y is None:
        raise ValueError("a mixed model needs a target y at every site")
    if (clients.y < 0).any() or (clients.y != np.round(clients.y)).any():
        raise ValueError("labels must be numbers of classes: 0, 1, 2, ...")
    return {}


def _moments(clients, cache, settings, common, personal, memory, keys):
    owner, m = clients.owner, len(clients)

    def sums(values):
        return np.stack([np.bincount(owner, column, minlength=m) for column in values.T], axis=1)

    last = np.zeros(m)
    np.maximum.at(last, owner, clients.y)
    return {
        "sums": sums(clients.X),
        "squares": sums(clients.X**2),
        "rows": clients.sizes.astype(np.float64),
        "classes": last + 1.0,
    }, memory


def _heights(clients, cache, settings, common, personal, memory, keys):
    """Height, slope and second derivatives in B of every set, with the site's U gone along."""
    told = _Told(**common)
    rows = told.rows(clients, settings)
    n_sets, size = len(told.coef), told.coef[0].size
    upper = upper_triangle(size)
    height, pull = np.zeros((len(clients), n_sets)), np.zeros((len(clients), n_sets, size))
    information = np.zeros((len(clients), n_sets, len(upper[0])))
    for g, coef in enumerate(told.coef):
        precision = told.prior(g, settings).precision()
        flat = precision.ravel()
        for block in rows.blocks:
            own = find_modes(block, coef, precision, np.zeros((len(block.clients), *coef.shape)))
            inverse = _inverse(block, precision, coef + own)
            height[block.clients, g] = heights(block, coef, precision, own)
            pull[block.clients, g] = (precision * own).reshape(len(own), -1)
            curve = np.diag(flat) - inverse * np.outer(flat, flat)
            information[block.clients, g] = curve[:, upper[0], upper[1]]
    return {"height": height, "pull": pull, "information": information}, memory


def _inverse(block: LabelledBlock, precision: Floats, own: Floats) -> Floats:
    """(H + K)^-1 of every client of a block, (k, C d, C d)."""
    matrix = second_derivatives(block, probabilities(block.X @ own.transpose(0, 2, 1)))
    place = np.arange(precision.size)
    matrix[:, place, place] += precision.ravel()
    return np.asarray(np.linalg.inv(matrix))


def _judge(clients, cache, settings, common, personal, memory, keys):
    """Loss of rows left out, for every set."""
    halves = common["half"]
    told = _Told(**{name: common[name] for name in _Told._fields})
    rows = told.rows(clients, settings)
    loss = np.zeros((len(clients), len(told.coef)))
    for g, coef in enumerate(told.coef):
        precision = told.prior(g, settings).precision()
        for block in rows.blocks:
            own = find_modes(block, coef, precision, np.zeros((len(block.clients), *coef.shape)))
            inverse = _inverse(block, precision, coef + own)
            through = (inverse * precision.ravel()) @ halves[g]
            share = left_out(block, coef + own, inverse + through @ through.transpose(0, 2, 1))
            kept = np.maximum((share * block.labels).sum(axis=-1), LEAST_PROBABILITY)
            loss[block.clients, g] = -(np.log(kept) * block.present).sum(axis=1)
    return {"loss": loss}, memory


def _settle(clients, cache, settings, common, personal, memory, keys, fields):
    """The site learns and keeps its departure; it leaves only if it is asked for."""
    own = departures(clients, settings, _Told(**common))
    reply = {"rows": clients.sizes.astype(np.float64)}
    if fields:
        reply["departures"] = own
    return reply, {"departures": own, "known": np.ones(len(clients))}


def departures(clients: Federation, settings: Any, told: _Told) -> Floats:
    """U of every client at the first set, (m, C, d)."""
    coef, out = told.coef[0], np.zeros((len(clients), *told.coef[0].shape))
    precision = told.prior(0, settings).precision()
    for block in told.rows(clients, settings).blocks:
        start = np.zeros((len(block.clients), *coef.shape))
        out[block.clients] = find_modes(block, coef, precision, start)
    return out


# ------------------------------------------------------------------ server program

Server = Generator[Ask, Replies, Any]


@dataclass
class _Stage:
    """Sets of variances fitted side by side."""

    logs: Floats
    coef: Floats
    height: Floats
    information: Floats
    converged: bool = False


class _Judged(NamedTuple):
    """The best set so far: log variances, B, mean loss of rows left out."""

    logs: Floats
    coef: Floats
    loss: float


@dataclass
class _Fit:
    """A fit in progress."""

    settings: SoftmaxMixedSettings
    mean: Floats
    spread: Floats
    rows: Floats
    n_classes: int
    left: int
    converged: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.n_classes, len(self.mean) + int(self.settings.fit_intercept)

    def message(self, logs: Floats, coef: Floats) -> Arrays:
        return {"coef": coef, "logs": logs, "mean": self.mean, "spread": self.spread}

    def ridge(self, logs: Floats) -> Floats:
        """Precisions of B for every set, (G, C d)."""
        out = np.empty((len(logs), *self.shape))
        out[:] = np.exp(-logs[:, 2])[:, None, None]
        if self.settings.fit_intercept:
            out[..., -1] = FREE
        return out.reshape(len(logs), -1)

    def look(self, logs: Floats, coef: Floats) -> Server:
        """Heights (G,), slopes (G, C d) and curvature (G, C d, C d) at B of every set."""
        self.left -= 1
        replies = yield Ask("heights", self.message(logs, coef), note="sets of variances")
        ridge, flat = self.ridge(logs), coef.reshape(len(coef), -1)
        height = replies.total("height") + 0.5 * (ridge * flat**2).sum(axis=1)
        # At its U a site's slope of the loss is -K U.
        slope = -replies.total("pull") + ridge * flat
        size = flat.shape[1]
        upper = upper_triangle(size)
        curve = np.zeros((len(coef), size, size))
        curve[:, upper[0], upper[1]] = curve[:, upper[1], upper[0]] = replies.total("information")
        curve[:, np.arange(size), np.arange(size)] += ridge
        return height, slope, curve, frozenset(map(int, replies.clients))

    def stage(self, logs: Floats, start: Floats) -> Server:
        """Newton's method for all sets until no B moves."""
        coef, base, step = start, start, np.zeros_like(start)
        kept: tuple[Floats, Floats, frozenset[int]] | None = None
        heard: frozenset[int] = frozenset()
        waits = 0
        for _ in range(max(1, min(MOST_ROUNDS_A_STAGE, self.left - 2))):
            height, slope, curve, clients = yield from self.look(logs, coef)
            up = np.zeros(len(logs), dtype=bool)
            if kept is not None and kept[2] == clients:
                up = height > kept[0] + SURELY_HIGHER * np.abs(kept[0])
            fresh = np.linalg.solve(curve, -slope[..., None])[..., 0].reshape(coef.shape)
            step = np.where(up[:, None, None], SHORTENED * step, fresh)
            base = np.where(up[:, None, None], base, coef)
            before = height if kept is None else np.where(up, kept[0], height)
            shape = curve if kept is None else np.where(up[:, None, None], kept[1], curve)
            kept = before, shape, clients
            heard |= clients
            at_rest = bool(np.abs(step).max() <= self.settings.tol)
            waits += at_rest
            if at_rest and (clients == heard or waits > MOST_WAITS):
                return _Stage(logs, base + step, kept[0], kept[1], True)
            coef = base + step
        assert kept is not None
        return _Stage(logs, base, kept[0], kept[1])

    def judge(self, stage: _Stage) -> Server:
        """Mean loss of rows left out, (G,)."""
        self.left -= 1
        self.converged &= stage.converged
        half = np.linalg.cholesky(np.linalg.inv(stage.information))
        message = {**self.message(stage.logs, stage.coef), "half": half}
        replies = yield Ask("judge", message, note="rows left out")
        n_rows = max(float(self.rows[replies.clients].sum()), 1.0)
        return replies.total("loss") / n_rows


def program(roster: Roster, settings: SoftmaxMixedSettings) -> Program:
    """Scales, sets of variances side by side, sets nearer to the best, and the end."""
    fit = yield from _open(roster, settings)
    first = np.array(
        [TOGETHER, *((f, f + INTERCEPT_BEYOND, c) for f in FEATURE_LOGS for c in COMMON_LOGS)]
    )
    stage = yield from fit.stage(first, np.zeros((len(first), *fit.shape)))
    loss = yield from fit.judge(stage)
    population = stage.coef[0]
    best = _better(None, stage, loss)
    tried = list(zip(stage.logs, loss))
    for size in STEPS:
        if fit.left < 5:
            break
        moves = np.concatenate([size * np.eye(3), -size * np.eye(3)])
        logs = np.clip(best.logs + moves, LEAST_LOG, MOST_LOG)
        stage = yield from fit.stage(logs, np.tile(best.coef, (len(logs), 1, 1)))
        loss = yield from fit.judge(stage)
        tried += list(zip(stage.logs, loss))
        best = _better(best, stage, loss)
    wanted = ("departures",) if settings.share == "statistics" else ()
    told = fit.message(best.logs[None], best.coef[None])
    settled = yield Ask("settle", told, fields=wanted, note="sites learn their part")
    return SoftmaxMixedResult.of(fit, best, population, settled, tried, len(roster))


def _open(roster: Roster, settings: SoftmaxMixedSettings) -> Server:
    replies = yield Ask("moments", note="scales of the columns")
    n_rows = float(replies.total("rows"))
    mean = replies.total("sums") / n_rows
    spread = np.sqrt(np.maximum(replies.total("squares") / n_rows - mean**2, 0.0))
    spread = np.where(spread > 1e-7 * (np.abs(mean) + 1e-300), spread, 1.0)
    if not settings.fit_intercept:
        mean = np.zeros_like(mean)
    rows = np.nan_to_num(over_roster(replies["rows"], replies.clients, len(roster)))
    n_classes = max(int(replies["classes"].max()), 2)
    return _Fit(settings, mean, spread, rows, n_classes, settings.max_rounds - 1)


def _better(best: _Judged | None, stage: _Stage, loss: Floats) -> _Judged:
    """The set of least loss, if that is worth a change."""
    k = int(np.argmin(loss))
    if best is not None and loss[k] >= best.loss - WORTH * best.loss:
        return best
    return _Judged(stage.logs[k], stage.coef[k], float(loss[k]))


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftmaxMixedResult(Result):
    """B (C, d) of standardised columns (intercept last), departures (m, C, d), variances (3,).

    `population` (C, d) is the one model for all rows; `loss` is the mean log loss of rows left out.
    """

    for_all = ("population", "variances", "mean", "spread")
    for_one = ("departures", "site_rows")

    coef: Floats
    population: Floats
    departures: Floats
    variances: Floats
    mean: Floats
    spread: Floats
    loss: Array
    heard: Indices
    site_rows: Floats
    converged: Array
    tried: Floats
    """Sets of log variances and their losses, (sets, 4)."""

    @classmethod
    def of(
        cls,
        fit: _Fit,
        best: _Judged,
        population: Floats,
        settled: Replies,
        tried: list[tuple[Floats, float]],
        m: int,
    ) -> SoftmaxMixedResult:
        """At the end of a fit to m sites."""
        sent = "departures" in settled
        own = settled["departures"] if sent else np.zeros((0, *fit.shape))
        heard = settled.clients if sent else settled.clients[:0]
        rows = fit.rows.copy()
        rows[settled.clients] = settled["rows"]
        return cls(
            coef=best.coef,
            population=population,
            departures=over_roster(own, heard, m, missing=0.0),
            variances=np.exp(best.logs),
            mean=fit.mean,
            spread=fit.spread,
            loss=np.array(best.loss),
            heard=heard,
            site_rows=rows,
            converged=np.array(fit.converged),
            tried=np.array([[*logs, loss] for logs, loss in tried]),
        )

    def told(self) -> _Told:
        """What sites were told last."""
        return _Told(self.coef[None], np.log(self.variances)[None], self.mean, self.spread)

    def title(self, about: About) -> str:
        """The fit in half a line."""
        return (
            f"{len(about.sites)} sites, {np.nansum(self.site_rows):,.0f} rows, {len(self.coef)} "
            f"classes; log loss of rows left out {self.loss:.3f}"
        )

    def tables(self, about: About) -> dict[str, Table]:
        """Variances, and how far every site departs."""
        size = np.sqrt((self.departures**2).mean(axis=(1, 2)))
        names = ["features", "intercepts", "common coefficients"]
        return {
            "variances": Table(
                {"of": names, "standard deviation": np.sqrt(self.variances)},
                "How far coefficients of standardised columns lie apart",
            ),
            "sites": Table(
                {"site": about.sites, "rows": self.site_rows, "departs": size},
                "Sites: how far they depart",
            ),
        }

    def account(self, about: About) -> list[str]:
        """What left the sites."""
        own = ", and at the end its own departure." if "departures" in about.left else "."
        return [
            "Each site sent heights, slopes and second derivatives of its penalised likelihood, "
            "and the loss of its rows left out" + own
        ]


# ------------------------------------------------------------------ what travels

_SETS = {
    "coef": Field(("sets", "c", "d"), "common coefficients of every set"),
    "logs": Field(("sets", 3), "log variances of every set"),
    "mean": Field(("f",), "of every column"),
    "spread": Field(("f",), "of every column"),
}
_ROWS = Field((), "number of rows", least=0.0, reveals="count")

SOFTMAX_MIXED = Algorithm(
    name="softmax_mixed",
    settings=SoftmaxMixedSettings,
    prepare=prepare,
    program=program,
    result=SoftmaxMixedResult,
    steps={
        "moments": Step(
            _moments,
            {
                "sums": Field(("f",), "sum of every column", reveals="sums"),
                "squares": Field(("f",), "sum of squares of every column", reveals="sums"),
                "rows": _ROWS,
                "classes": Field((), "number of the last class at the site, and one"),
            },
        ),
        "heights": Step(
            _heights,
            {
                "height": Field(("sets",), "loss of the site's rows with its departure's penalty"),
                "pull": Field(("sets", "p"), "its slope in the common coefficients"),
                "information": Field(("sets", "u"), "its second derivatives", reveals="products"),
            },
            _SETS,
        ),
        "judge": Step(
            _judge,
            {
                "loss": Field(("sets",), "log loss of the site's rows, each left out"),
            },
            {**_SETS, "half": Field(("sets", "p", "p"), "uncertainty of the common coefficients")},
        ),
        "settle": Step(
            _settle,
            {"rows": _ROWS},
            _SETS,
            optional={"departures": Field(("c", "d"), "the site's departure", reveals="model")},
        ),
    },
)
