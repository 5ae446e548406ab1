"""Rows left out at sites that hold their own, for curves and mixtures: fits without a fold, scores.

For ways of joining that take rounds of their own. A site cuts its rows into folds, by its name and
its number of rows alone. For every fold the rounds of the ordinary algorithm are gone through once
more, as if the rows of the fold were not there: sites joined, and every site alone. At last each
site scores the rows of every fold by the fits without it: only sums of scores travel.

| word | meaning |
|---|---|
| way | 0 alone, 1 joining; each is an estimator with its algorithm and settings |
| fold | the part of a site's rows that a fit does not see |
| score | 0 log density, 1 negative squared error (where a target is predicted) |

The steps of an algorithm are here under its name, `fgpr.likelihood` say, and send what they always
send. A question says besides which way, which fold and which round of that fit it belongs to. What
sites remember is kept for every way and fold. Random numbers are those of a fit of its own, so that
results are those of one process that leaves out the same rows. Scores are taken by the estimators
themselves; that is why this file is in their room.

Replies without each of the folds give what each of the folds holds: every fold of a site has to
obey its rules as if it were all there is, of groups inside the site, too (`protocol.CUT`). A site
lets its rows out cut in one way only, and steps that a policy must trust are to be trusted by their
name here (`left_out.fgpr.slopes`).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from fedkin.algorithms import algorithm as find_algorithm
from fedkin.algorithms.held_out import LEAST_FOLD_ROWS, PRODUCTS, ROWS, TOTALS, HeldOutResult
from fedkin.arrays import Array, Arrays, Floats
from fedkin.durable import arrays_in, sealed
from fedkin.estimators.ways import ALONE, JOINING, kind
from fedkin.federation import Federation
from fedkin.inference.at_sites import summed
from fedkin.inference.held_out import HeldOut
from fedkin.keeping import decode, encode
from fedkin.models.folds import row_folds, rows_where
from fedkin.protocol import (
    CUT,
    LARGEST_MESSAGE,
    Algorithm,
    Ask,
    Field,
    Memory,
    Program,
    QuorumLost,
    Reason,
    Replies,
    Result,
    Roster,
    Run,
    Schema,
    Step,
    TracedReply,
    Traffic,
    over_roster,
)
from fedkin.randomness import KeyRing
from fedkin.registry import ESTIMATORS
from fedkin.settings import Settings, Whole, one_of, setting

# Estimators whose ways are all rounds of the protocol, and the algorithms behind them.
SERVED = ("FGPR", "FedGrEM", "FedEM", "FedGMM", "TGMM")
INNER = ("fgpr", "fedgrem", "fedem", "fedgmm", "tgmm", "local_em")
# Parameters that are no part of what is fitted, and the one that is the server's business alone.
_NOT_SENT, _START = ("engine", "random_state"), "init"
TOO_FEW = "no site has enough rows in every fold; ask for fewer folds"
# Groups of clients in one process whose folds are kept at hand.
MOST_TAKEN = 4
# Before a file in an array of bytes: how long it is.
_LENGTH = 8


class Text:
    """Words, as they are."""

    def accept(self, name: str, value: Any) -> Any:
        """The words."""
        if not isinstance(value, str):
            raise ValueError(f"{name} must be text, not {value!r}")
        return value


class LeftOutSettings(Settings):
    """Which estimator with which parameters (JSON, its start apart), which folds, which seed."""

    estimator: str = setting("FGPR", one_of(*SERVED), at_site=True)
    parameters: str = setting("{}", Text(), at_site=True)
    start: str = setting("{}", Text())
    folds: int = setting(5, Whole(2), at_site=True)
    fold_seed: int = setting(0, Whole(0), at_site=True)
    seed: int = setting(0, Whole(0), at_site=True)


# ------------------------------------------------------------------ what is fitted


@dataclass(frozen=True)
class Way:
    """An estimator that is not fitted, with its settings."""

    estimator: Any
    settings: Any

    @property
    def algorithm(self) -> Algorithm:
        """Whose rounds it is fitted by."""
        found: Algorithm = self.estimator._algorithm
        return found

    def fitted(self, arrays: Arrays, rows: Federation, memory: Memory) -> Any:
        """The estimator at one site, given what the server told it and what it remembers."""
        model = clone(self.estimator)
        result = self.algorithm.result.from_arrays(arrays)
        model._take_rows(rows)
        model._keep(Run(result, Roster(rows.names), Traffic(), (), memories=memory), self.settings)
        return model


class Plan:
    """The ways that are compared, as the settings describe them."""

    def __init__(self, settings: LeftOutSettings, start: str = "{}") -> None:
        family = getattr(import_module(ESTIMATORS[settings.estimator]), settings.estimator)
        told = {**json.loads(settings.parameters), **json.loads(start)}
        self.estimator = family(**{name: decode(value) for name, value in told.items()})
        both = self.estimator._ways()
        self.ways = tuple(_way(both[name]) for name in (ALONE, JOINING))
        self.metrics = ("log", "rmse") if kind(self.estimator) == "number" else ("log",)


def _way(estimator: Any) -> Way:
    settings = estimator._settings_for(estimator._chosen_settings(), None)
    if getattr(settings, "fraction", 1.0) != 1.0:
        raise ValueError("at real sites benefit asks all sites in every round: fraction=1")
    return Way(estimator, settings)


# ------------------------------------------------------------------ what leaves a client

MARKS = {
    "left_out_way": Field((), "the way that is fitted"),
    "left_out_fold": Field((), "the fold that is left out"),
    "left_out_round": Field((), "the round of this fit"),
}


def _declared(schema: Schema) -> Schema:
    """The same fields, of sites with enough rows in every fold."""
    return {
        name: replace(field, least_rows=max(field.least_rows, LEAST_FOLD_ROWS))
        for name, field in schema.items()
    }


# ------------------------------------------------------------------ client functions


class Folds:
    """The clients' rows cut into folds, and what fits without one of them are prepared with."""

    def __init__(self, clients: Federation, settings: LeftOutSettings) -> None:
        self.clients, self.settings = clients, settings
        self.fold = row_folds(clients, settings.folds, settings.fold_seed)
        self._prepared: dict[tuple[int, int], Any] = {}
        self._taken: dict[bytes, Folds] = {}

    def take(self, who: Array) -> Folds:
        """Those of some clients; the same ones are asked again and again."""
        key = np.asarray(who).tobytes()
        if key not in self._taken:
            if len(self._taken) >= MOST_TAKEN:
                self._taken.clear()
            self._taken[key] = Folds(self.clients.take(who), self.settings)
        return self._taken[key]

    @cached_property
    def plan(self) -> Plan:
        """What is fitted."""
        return Plan(self.settings)

    @cached_property
    def parts(self) -> Floats:
        """Which row is in which fold, (N, F)."""
        return (self.fold[:, None] == np.arange(self.settings.folds)).astype(float)

    @cached_property
    def fewest(self) -> Array:
        """Rows of every client's smallest fold, (m,)."""
        m, n_folds = self.clients.n_clients, self.settings.folds
        places = self.clients.owner * n_folds + self.fold
        counts = np.bincount(places[self.fold >= 0], minlength=m * n_folds)
        return np.asarray(counts.reshape(m, n_folds).min(axis=1))

    def without(self, k: int) -> Federation:
        """The rows that a fit without the k-th fold sees."""
        return rows_where(self.clients, self.fold != k)

    def prepared(self, way: int, k: int) -> tuple[Federation, Any]:
        """These rows and the algorithm's own cache of them."""
        if not (0 <= way < len(self.plan.ways) and 0 <= k < self.settings.folds):
            raise ValueError(f"there is no way {way} without a fold {k}")
        if (way, k) not in self._prepared:
            rows, chosen = self.without(k), self.plan.ways[way]
            cache = chosen.algorithm.prepare(rows, chosen.settings.for_sites())
            self._prepared[way, k] = rows, cache
        return self._prepared[way, k]


def fit_without(
    clients, cache, settings, common, personal, memory, keys, inner="", step="", **wanted
):
    """A step of an algorithm on the rows outside of a fold."""
    way, k, number = (int(common[name]) for name in MARKS)
    rows, own_cache = cache.prepared(way, k)
    chosen = cache.plan.ways[way]
    if chosen.algorithm.name != inner:
        raise ValueError(f"way {way} is not fitted by {inner}")
    own = _recalled(memory, way, k)
    told = {name: array for name, array in common.items() if name not in MARKS}
    ring = KeyRing(clients.names, settings.seed).at(number)
    reply, new = chosen.algorithm.step(step).function(
        rows, own_cache, chosen.settings.for_sites(), told, personal, own, ring, **wanted
    )
    behind = partial(rows_behind, cache, reply, cache.fold != k)
    return TracedReply(reply, behind, cache.fewest), _kept(memory, way, k, new)


def rows_behind(cache, reply, kept):
    """The folds, and how much every row counts where the step itself knows; none of the fold."""
    told = reply.behind() if isinstance(reply, TracedReply) else {}
    whole = {}
    for weights in {id(w): w for w in told.values()}.values():
        whole[id(weights)] = np.zeros((len(kept), *weights.shape[1:]))
        whole[id(weights)][kept] = weights
    return {**{name: whole[id(weights)] for name, weights in told.items()}, CUT: cache.parts}


def _prefix(way: int, k: int) -> str:
    return f"{way}.{k}."


def _recalled(memory, way, k):
    """What clients remember of one fit; None if nothing."""
    begins = _prefix(way, k)
    return {n[len(begins) :]: a for n, a in (memory or {}).items() if n.startswith(begins)} or None


def _kept(memory, way, k, new):
    """The memory of all fits with that of one of them."""
    if new is None:
        return memory
    begins = _prefix(way, k)
    others = {n: a for n, a in (memory or {}).items() if not n.startswith(begins)}
    return {**others, **{begins + name: array for name, array in new.items()}}


def scores(clients, cache, settings, common, personal, memory, keys):
    """Scores of left-out rows by every way, summed by fold; what fits remembered is let go."""
    m, n_ways, n_scores = len(clients), len(cache.plan.ways), len(cache.plan.metrics)
    totals = np.zeros((m, settings.folds, n_scores, n_ways))
    products = np.zeros((m, settings.folds, n_scores, n_ways, n_ways))
    rows = np.zeros((m, settings.folds))
    for k in range(settings.folds):
        test, train = rows_where(clients, cache.fold == k), cache.without(k)
        for i in np.flatnonzero(test.sizes):
            told = [_told(common, personal, i, way, k) for way in range(n_ways)]
            # Who was not heard at the end of a fit has nothing to predict with.
            if not all(np.isfinite(one["site_loglik"]).all() for one in told):
                continue
            site, kept = (_as_seen(part.take([i]), n_scores) for part in (test, train))
            memories = [_of_client(_recalled(memory, way, k), i) for way in range(n_ways)]
            each = _scores_of_rows(cache.plan, told, memories, site, kept)
            rows[i, k] = len(site.X)
            totals[i, k] = each.sum(axis=2)
            products[i, k] = np.einsum("san,sbn->sab", each, each)
    reply = {"totals": totals, "products": products, "rows": rows}
    return TracedReply(reply, lambda: dict.fromkeys(reply, cache.parts), cache.fewest), {}


def _scores_of_rows(plan, told, memories, site, kept):
    """Every score of every row of one site by every way, (S, W, n)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = zip(plan.ways, told, memories)
        models = [way.fitted(arrays, kept, memory) for way, arrays, memory in parts]
        found = [plan.estimator._row_scores(model, site, kept) for model in models]
    return np.array([[each[metric] for each in found] for metric in plan.metrics])


def _as_seen(clients, n_scores):
    """Rows that are modelled themselves have no target, whatever else the site's table holds."""
    return clients if n_scores > 1 else replace(clients, y=None)


def _of_client(memory, i):
    return None if memory is None else {name: array[i : i + 1] for name, array in memory.items()}


def _told(common, personal, i, way, k):
    """What the server says of a fit to one client: what is shared, and its own part."""
    return {**_read(common["shared"][way, k]), **_read(personal["own"][i, way, k])}


# ------------------------------------------------------------------ files in arrays


def _written(files: Any) -> Array:
    """Arrays of each of several files (of any shape) as bytes, (..., B)."""
    content = [sealed(arrays) for arrays in files.ravel()]
    made = np.zeros((len(content), _LENGTH + max(map(len, content))), dtype=np.uint8)
    for row, one in zip(made, content):
        whole = len(one).to_bytes(_LENGTH, "little") + one
        row[: len(whole)] = np.frombuffer(whole, dtype=np.uint8)
    return made.reshape(*files.shape, -1)


def _read(row: Array) -> dict[str, Array]:
    content = np.asarray(row, dtype=np.uint8).tobytes()
    length = int.from_bytes(content[:_LENGTH], "little")
    return arrays_in(content[_LENGTH : _LENGTH + length], True, LARGEST_MESSAGE)


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: LeftOutSettings) -> Program:
    """Fit every way without each of the folds, then ask for the scores of all folds at once."""
    m, plan = len(roster), Plan(settings, settings.start)
    fits = np.empty((len(plan.ways), settings.folds), dtype=object)
    for way, k in np.ndindex(fits.shape):
        fits[way, k] = yield from _fit(plan.ways[way], way, k, Roster(roster.names, settings.seed))
    shared, own = np.empty_like(fits), np.empty((m, *fits.shape), dtype=object)
    for place, result in np.ndenumerate(fits):
        shared[place] = {name: result[name] for name in result.for_all if name in result}
        for i in range(m):
            seen = result.seen_by(i)
            own[(i, *place)] = {name: seen[name] for name in seen if name not in shared[place]}
    ask = Ask("scores", {"shared": _written(shared)}, {"own": _written(own)}, note="scores")
    replies = yield ask
    told = {n: over_roster(replies[n], replies.clients, m, 0.0) for n in replies}
    return HeldOutResult(heard=replies.clients, total=told["rows"].sum(), **told)


def _fit(way: Way, number: int, k: int, roster: Roster) -> Generator[Ask, Replies, Result]:
    """The algorithm's own program, with every question marked."""
    inner, name = way.algorithm.program(roster, way.settings), way.algorithm.name
    try:
        ask, asked = next(inner), 0
        while True:
            asked += 1
            marks = dict(zip(MARKS, map(np.array, (number, k, asked))))
            note = f"fold {k + 1}, {(ALONE, JOINING)[number]}: {ask.note}"
            step, common = f"{name}.{ask.step}", {**ask.common, **marks}
            ask = inner.send((yield replace(ask, step=step, common=common, note=note)))
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        inner.close()


def joined_by(settings: LeftOutSettings) -> tuple[str, ...]:
    """The method whose rounds sites are asked: who has not allowed it has not allowed this."""
    return (Plan(settings).ways[1].algorithm.name,)


def _steps() -> dict[str, Step]:
    """The steps of all algorithms that are served, under their names."""
    found = {}
    for inner in map(find_algorithm, INNER):
        for name, step in inner.steps.items():
            found[f"{inner.name}.{name}"] = replace(
                step,
                function=partial(fit_without, inner=inner.name, step=name),
                reply=_declared(step.reply),
                optional=_declared(step.optional),
                common={**step.common, **MARKS},
                cuts=True,
            )
    return found


_BYTES = "as the bytes of a file"
LEFT_OUT = Algorithm(
    name="left_out",
    steps={
        **_steps(),
        "scores": Step(
            scores,
            _declared({"totals": TOTALS, "products": PRODUCTS, "rows": ROWS}),
            common={"shared": Field(("W", "F", "b"), f"what each fit shares, {_BYTES}")},
            personal={"own": Field(("W", "F", "c"), f"the site's own part of it, {_BYTES}")},
            cuts=True,
        ),
    },
    program=program,
    settings=LeftOutSettings,
    result=HeldOutResult,
    prepare=Folds,
    made_of=joined_by,
)


# ------------------------------------------------------------------ what a person asks


def is_served(estimator: Any) -> bool:
    """Whether real sites can be asked in this way."""
    return type(estimator).__name__ in SERVED


def settings_for(estimator: Any, folds: int, fold_seed: int) -> LeftOutSettings:
    """The settings that describe an estimator."""
    told = {
        name: encode(value, name)
        for name, value in estimator.get_params(deep=False).items()
        if name not in _NOT_SENT
    }
    start = {_START: told.pop(_START)} if _START in told else {}
    seed = int(check_random_state(estimator.random_state).randint(2**31 - 1))
    return LeftOutSettings(
        estimator=type(estimator).__name__,
        parameters=json.dumps(told, allow_nan=False, sort_keys=True),
        start=json.dumps(start, allow_nan=False),
        folds=folds,
        fold_seed=fold_seed,
        seed=seed,
    )


def scores_left_out(estimator: Any, folds: int, fold_seed: int) -> HeldOut:
    """What left-out rows say, asked of the sites that the estimator's engine reaches."""
    if estimator._weighted(None):
        raise ValueError("left-out rows are scored without weights of rows")
    settings = settings_for(estimator, folds, fold_seed)
    metrics = Plan(settings, settings.start).metrics
    try:
        run = estimator.engine.run(LEFT_OUT, settings, None, settings.seed)
    except QuorumLost as lost:
        if {refusal.reason for refusal in lost.refusals} == {Reason.FEW_ROWS}:
            raise ValueError(TOO_FEW) from lost
        raise
    rows = run.result.rows
    if not rows.any():
        raise ValueError(TOO_FEW)
    return summed(run.result, (ALONE, JOINING), run.roster.names, rows.sum(axis=1), metrics)
