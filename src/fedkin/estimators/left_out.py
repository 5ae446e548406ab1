"""Rows left out at sites that hold their own, for curves and mixtures: fits without a fold, scores.

For ways of joining that take rounds of their own. A site cuts its rows into folds, by its name and
its number of rows alone. For every fold the rounds of the ordinary algorithm are gone through once
more, as if the rows of the fold were not there: once for every way that is compared. At last each
site scores the rows of every fold by the fits without it: only sums of scores travel, and of
products of two ways' scores.

| word | meaning |
|---|---|
| way | an estimator with its algorithm, settings and seed: sites alone, or joined |
| fold | the part of a site's rows that a fit does not see |
| score | 0 log density, 1 negative squared error (where a target is predicted) |

The steps of an algorithm are here under its name, `fgpr.likelihood` say, and send what they always
send. A question says besides which way, which fold and which round of that fit it belongs to. What
sites remember is kept for every way and fold. Random numbers are those of a fit of its own, so that
results are those of one process that leaves out the same rows. Scores are taken by the estimators
themselves; that is why this file is in their room. Linear ways that sums of products by fold have
fitted already (`held_out`) may be scored beside them, at the same rows.

A way is out if everybody's own rules keep back what it asks, or most sites are not heard in it; the
others go on, unless all are needed.

Replies without each of the folds give what each of the folds holds: every fold of a site has to
obey its rules as if it were all there is, of groups inside the site, too (`protocol.CUT`). A site
lets its rows out cut in one way only, and steps that a policy must trust are to be trusted by their
name here (`left_out.fgpr.slopes`).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from fedkin.algorithms import algorithm as find_algorithm
from fedkin.algorithms import held_out
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
from fedkin.settings import Flag, Settings, Whole, one_of, setting

# Estimators whose ways are all rounds of the protocol, and the algorithms behind them.
SERVED = ("FGPR", "FedGrEM", "FedEM", "FedGMM", "TGMM")
INNER = ("fgpr", "fedgrem", "fedem", "fedgmm", "tgmm", "local_em")
# What may be a way: these, and sites alone. Of the last algorithm nothing but likelihoods leaves.
WAYS = one_of(*SERVED, "LocalEM", "LocalGP")
STAYS = "local_em"
# Parameters that are no part of what is fitted, and the one that is the server's business alone.
_NOT_SENT, _START = ("engine", "random_state"), "init"
TOO_FEW = "no site has enough rows in every fold; ask for fewer folds"
# A way is out if fewer than this share of the sites is heard in it, of those heard in another.
HEARD = 0.5
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


class Ways(Text):
    """A list of [estimator, parameters, seed] as JSON."""

    def accept(self, name: str, value: Any) -> Any:
        """The words, if they name estimators that can be asked."""
        told = json.loads(super().accept(name, value))
        if not isinstance(told, list) or not told:
            raise ValueError(f"{name} must be a list of at least one [estimator, parameters, seed]")
        for one in told:
            if not isinstance(one, list) or len(one) != 3 or not isinstance(one[1], dict):
                raise ValueError(f"{name} must hold [estimator, parameters, seed], not {one!r}")
            WAYS.accept("estimator", one[0])
            Whole(0).accept("seed", one[2])
        return value


class LeftOutSettings(Settings):
    """Which ways (their starts apart), which folds; linear ways that are scored beside them."""

    ways: str = setting('[["LocalGP", {}, 0], ["FGPR", {}, 0]]', Ways(), at_site=True)
    starts: str = setting("[]", Text())
    folds: int = setting(5, Whole(2), at_site=True)
    fold_seed: int = setting(0, Whole(0), at_site=True)
    all_needed: bool = setting(True, Flag())
    coef: Any = setting(None)
    quadratic: Any = setting(None)
    pooled: Any = setting(None)
    spread: Any = setting(None)

    @property
    def linear(self) -> bool:
        """Whether there are linear ways besides."""
        return self.coef is not None


# ------------------------------------------------------------------ what is fitted


@dataclass(frozen=True)
class Way:
    """An estimator that is not fitted, with its settings and its seed."""

    estimator: Any
    settings: Any
    seed: int

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

    def __init__(self, settings: LeftOutSettings, starts: str = "[]") -> None:
        told, begin = json.loads(settings.ways), json.loads(starts)
        begin = begin or [{} for _ in told]
        self.ways = tuple(
            _way(name, {**parameters, **start}, seed)
            for (name, parameters, seed), start in zip(told, begin, strict=True)
        )
        kinds = {kind(way.estimator) for way in self.ways}
        if len(kinds) > 1:
            raise ValueError(f"ways that are compared must all be of {' or of '.join(kinds)}")
        self.metrics = ("log", "rmse") if "number" in kinds else ("log",)


def _way(name: str, parameters: Mapping[str, Any], seed: int) -> Way:
    family = getattr(import_module(ESTIMATORS[name]), name)
    estimator = family(**{key: decode(value) for key, value in parameters.items()})
    settings = estimator._settings_for(estimator._chosen_settings(), None)
    if getattr(settings, "fraction", 1.0) != 1.0:
        raise ValueError("left-out rows are asked of all sites in every round: fraction=1")
    return Way(estimator, settings, seed)


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

    @cached_property
    def for_lines(self) -> Any:
        """The settings by which linear ways were fitted to the same folds."""
        chosen = {"folds": self.settings.folds, "fold_seed": self.settings.fold_seed}
        return held_out.HeldOutSettings.from_mapping(chosen)

    @cached_property
    def sums(self) -> Floats:
        """Sums of products of every client's folds, (m, F, q)."""
        return np.asarray(held_out.prepare(self.clients, self.for_lines)["sums"])

    def without(self, k: int) -> Federation:
        """The rows that a fit without the k-th fold sees."""
        return rows_where(self.clients, self.fold != k)

    def prepared(self, way: int, k: int) -> tuple[Federation, Any]:
        """These rows and the algorithm's own cache of them."""
        self.check(way)
        if not 0 <= k < self.settings.folds:
            raise ValueError(f"there is no way {way} without a fold {k}")
        if (way, k) not in self._prepared:
            rows, chosen = self.without(k), self.plan.ways[way]
            cache = chosen.algorithm.prepare(rows, chosen.settings.for_sites())
            self._prepared[way, k] = rows, cache
        return self._prepared[way, k]

    def check(self, way: int) -> None:
        """Complain about a way that the settings do not name."""
        if not 0 <= way < len(self.plan.ways):
            raise ValueError(f"there is no way {way}")


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
    ring = KeyRing(clients.names, chosen.seed).at(number)
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


def scores(clients, cache, settings, common, personal, memory, keys, linear=False):
    """Scores of left-out rows by every way, summed by fold; what fits remembered is let go.

    The linear ways, if there are such, come first.
    """
    ways, n_scores = [int(way) for way in common["ways"]], len(cache.plan.metrics)
    for way in ways:
        cache.check(way)
    if len(set(ways)) < len(ways):
        raise ValueError("a way is named twice")
    n_lines = held_out.n_joined(personal) + 2 if linear else 0
    m, n_ways = len(clients), n_lines + len(ways)
    totals = np.zeros((m, settings.folds, n_scores, n_ways))
    products = np.zeros((m, settings.folds, n_scores, n_ways, n_ways))
    rows = np.zeros((m, settings.folds))
    singled = np.zeros((m, settings.folds), dtype=bool)
    for k in range(settings.folds):
        test, train = rows_where(clients, cache.fold == k), cache.without(k)
        each = np.zeros((n_scores, n_ways, len(test.X)))
        if linear:
            given = cache.sums, k, cache.for_lines, common, personal
            each[:, :n_lines] = held_out.scores_of_rows(test, *given)
            singled[:, k] = held_out.singles_out(each[0, :n_lines], test)
        # Folds of fewer rows never leave.
        for i in np.flatnonzero((test.sizes > 0) & (cache.fewest >= LEAST_FOLD_ROWS)):
            told = [_told(common, personal, i, place, k) for place in range(len(ways))]
            # Who was not heard at the end of a fit has nothing to predict with.
            if not all(np.isfinite(one["site_loglik"]).all() for one in told):
                continue
            own = each[:, :, test.offsets[i] : test.offsets[i + 1]]
            if ways:
                site, kept = (_as_seen(part.take([i]), n_scores) for part in (test, train))
                chosen = [cache.plan.ways[way] for way in ways]
                memories = [_of_client(_recalled(memory, way, k), i) for way in ways]
                fits = list(zip(chosen, told, memories))
                own[:, n_lines:] = _scores_of_rows(fits, cache.plan.metrics, site, kept)
            rows[i, k] = own.shape[2]
            totals[i, k] = own.sum(axis=2)
            products[i, k] = np.einsum("san,sbn->sab", own, own)
    reply = {"totals": totals, "products": products, "rows": rows}
    told_of = partial(held_out.one_row_where, singled, cache.parts, clients.owner)
    return TracedReply(reply, lambda: dict.fromkeys(reply, told_of()), cache.fewest), {}


def _scores_of_rows(fits, metrics, site, kept):
    """Every score of every row of one site by every way, (S, W, n)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = [way.fitted(arrays, kept, memory) for way, arrays, memory in fits]
        found = [model._row_scores(model, site, kept) for model in models]
    return np.array([[each[metric] for each in found] for metric in metrics])


def _as_seen(clients, n_scores):
    """Rows that are modelled themselves have no target, whatever else the site's table holds."""
    return clients if n_scores > 1 else replace(clients, y=None)


def _of_client(memory, i):
    return None if memory is None else {name: array[i : i + 1] for name, array in memory.items()}


def _told(common, personal, i, place, k):
    """What the server says of a fit to one client: what is shared, and its own part."""
    return {**_read(common["shared"][place, k]), **_read(personal["own"][i, place, k])}


# ------------------------------------------------------------------ files in arrays


def _written(files: Any) -> Array:
    """Arrays of each of several files (of any shape) as bytes, (..., B)."""
    content = [sealed(arrays) for arrays in files.ravel()]
    made = np.zeros((len(content), _LENGTH + max(map(len, content), default=0)), dtype=np.uint8)
    for row, one in zip(made, content):
        whole = len(one).to_bytes(_LENGTH, "little") + one
        row[: len(whole)] = np.frombuffer(whole, dtype=np.uint8)
    return made.reshape(*files.shape, made.shape[1])


def _read(row: Array) -> dict[str, Array]:
    content = np.asarray(row, dtype=np.uint8).tobytes()
    length = int.from_bytes(content[:_LENGTH], "little")
    return arrays_in(content[_LENGTH : _LENGTH + length], True, LARGEST_MESSAGE)


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: LeftOutSettings) -> Program:
    """Fit every way without each of the folds, then ask for the scores of all folds at once."""
    plan, m = Plan(settings, settings.starts), len(roster)
    found: dict[int, list[Result]] = {}
    spans, n_rounds = np.zeros((len(plan.ways), 2), dtype=int), 0
    for number in range(len(plan.ways)):
        made, n_asked = yield from _fits(plan, number, roster, settings)
        spans[number] = n_rounds, n_rounds + n_asked
        n_rounds += n_asked
        if made is not None:
            found[number] = made
    ways = _heard_widely(found) if not settings.all_needed else list(found)
    if not ways and not settings.linear:
        nothing = np.zeros((m, settings.folds))
        return HeldOutResult(heard=np.arange(0), ways=np.array(ways), spans=spans, rows=nothing)
    replies = yield _about_scores([found[way] for way in ways], ways, m, settings)
    told = {n: over_roster(replies[n], replies.clients, m, 0.0) for n in replies}
    total, scored = told["rows"].sum(), np.array(ways, dtype=int)
    return HeldOutResult(heard=replies.clients, total=total, ways=scored, spans=spans, **told)


def _about_scores(
    fits: Sequence[Sequence[Result]], ways: Sequence[int], m: int, settings: LeftOutSettings
) -> Ask:
    """The question how well left-out rows are foretold; every site gets its own part of fits."""
    shared = np.empty((len(fits), settings.folds), dtype=object)
    own = np.empty((m, *shared.shape), dtype=object)
    for place in np.ndindex(shared.shape):
        result = fits[place[0]][place[1]]
        shared[place] = {name: result[name] for name in result.for_all if name in result}
        for i in range(m):
            seen = result.seen_by(i)
            own[(i, *place)] = {name: seen[name] for name in seen if name not in shared[place]}
    common = {"ways": np.array(ways, dtype=float), "shared": _written(shared)}
    personal = {"own": _written(own)}
    if not settings.linear:
        return Ask("scores", common, personal, note="scores")
    common |= {name: np.asarray(getattr(settings, name)) for name in held_out.OF_ALL}
    personal |= {name: np.asarray(getattr(settings, name)) for name in held_out.MODELS}
    return Ask("scores_beside_lines", common, personal, note="scores")


def _heard_widely(found: Mapping[int, Sequence[Result]]) -> list[int]:
    """The ways in whose fits not many fewer sites were heard than in another's."""
    heard = {
        way: int(np.all([np.isfinite(one["site_loglik"]) for one in fits], axis=0).sum())
        for way, fits in found.items()
    }
    return [way for way in found if heard[way] >= HEARD * max(heard.values())]


def _fits(
    plan: Plan, number: int, roster: Roster, settings: LeftOutSettings
) -> Generator[Ask, Replies, tuple[list[Result] | None, int]]:
    """The fits of a way without each fold, None if sites keep them back; how many questions."""
    way, made, n_asked = plan.ways[number], [], 0
    own = Roster(roster.names, way.seed)
    for k in range(settings.folds):
        result, asked = yield from _fit(way, number, k, own, settings.all_needed)
        n_asked += asked
        if result is None:
            return None, n_asked
        made.append(result)
    return made, n_asked


def _fit(
    way: Way, number: int, k: int, roster: Roster, needed: bool
) -> Generator[Ask, Replies, tuple[Result | None, int]]:
    """The algorithm's own program, with every question marked."""
    inner, name = way.algorithm.program(roster, way.settings), way.algorithm.name
    asked = 0
    try:
        ask = next(inner)
        while True:
            asked += 1
            marks = dict(zip(MARKS, map(np.array, (number, k, asked))))
            note = f"fold {k + 1}, {type(way.estimator).__name__}: {ask.note}"
            step, common = f"{name}.{ask.step}", {**ask.common, **marks}
            put = replace(ask, step=step, common=common, note=note)
            replies = yield replace(put, needed=ask.needed and needed)
            if ask.needed and not len(replies.clients):
                return None, asked
            ask = inner.send(replies)
    except StopIteration as end:
        return end.value, asked
    finally:
        inner.close()


def joined_by(settings: LeftOutSettings) -> tuple[str, ...]:
    """The methods whose rounds sites are asked: who has not allowed them has not allowed this."""
    names = dict.fromkeys(way.algorithm.name for way in Plan(settings).ways)
    return tuple(name for name in names if name != STAYS)


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
                # Every fold of every way asks what a fit asks.
                most=None,
            )
    return found


_BYTES = "as the bytes of a file"
_SCORES = _declared({"totals": TOTALS, "products": PRODUCTS, "rows": ROWS})
_SHARED = {
    "ways": Field(("V",), "the ways that are scored"),
    "shared": Field(("V", "F", "b"), f"what each fit shares, {_BYTES}"),
}
_OWN = {"own": Field(("V", "F", "c"), f"the site's own part of it, {_BYTES}")}

LEFT_OUT = Algorithm(
    name="left_out",
    steps={
        **_steps(),
        "scores": Step(scores, _SCORES, _SHARED, _OWN, cuts=True, most=1),
        "scores_beside_lines": Step(
            partial(scores, linear=True),
            _SCORES,
            {**_SHARED, **held_out.OF_ALL},
            {**_OWN, **held_out.MODELS},
            cuts=True,
            most=1,
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
    """The settings that describe an estimator: sites alone, and joined by it."""
    both = estimator._ways()
    return settings_of([both[ALONE], both[JOINING]], [_seed(estimator)] * 2, folds, fold_seed)


def settings_of(
    ways: Sequence[Any], seeds: Sequence[int], folds: int, fold_seed: int, **others: Any
) -> LeftOutSettings:
    """The settings that describe several estimators."""
    told, starts = [], []
    for way, seed in zip(ways, seeds, strict=True):
        parameters = {
            name: encode(value, name)
            for name, value in way.get_params(deep=False).items()
            if name not in _NOT_SENT
        }
        starts.append({_START: parameters.pop(_START)} if _START in parameters else {})
        told.append([type(way).__name__, parameters, seed])
    return LeftOutSettings(
        ways=json.dumps(told, allow_nan=False, sort_keys=True),
        starts=json.dumps(starts, allow_nan=False),
        folds=folds,
        fold_seed=fold_seed,
        **others,
    )


def _seed(estimator: Any) -> int:
    """The seed with which the estimator's own fit would run."""
    return int(check_random_state(estimator.random_state).randint(2**31 - 1))


def scores_left_out(estimator: Any, folds: int, fold_seed: int) -> HeldOut:
    """What left-out rows say, asked of the sites that the estimator's engine reaches."""
    if estimator._weighted(None):
        raise ValueError("left-out rows are scored without weights of rows")
    settings = settings_for(estimator, folds, fold_seed)
    return _summed(_asked(estimator.engine, settings), settings, (ALONE, JOINING))


@dataclass(frozen=True)
class Compared:
    """What left-out rows say of several ways, and why some could not be fitted, by name."""

    held: HeldOut
    kept_back: Mapping[str, str]
    run: Run


def compare_left_out(
    engine: Any,
    ways: Mapping[str, Any],
    folds: int,
    fold_seed: int,
    lines: tuple[Sequence[str], Mapping[str, Floats]] = ((), {}),
) -> Compared:
    """What left-out rows say of several ways at once, by name, asked of the sites of an engine.

    `lines` are names of linear ways and what `held_out` tells sites of them: they are scored too.
    """
    seeds = [_seed(way) for way in ways.values()]
    names, models = lines
    settings = settings_of(list(ways.values()), seeds, folds, fold_seed, all_needed=False, **models)
    run = _asked(engine, settings)
    fitted = [list(ways)[k] for k in run.result.ways]
    why = {
        name: _why(run, *run.result.spans[k]) for k, name in enumerate(ways) if name not in fitted
    }
    if not fitted and not names:
        told = "; ".join(f"{name!r}: {reason}" for name, reason in why.items())
        raise ValueError(f"sites keep back what every way asks for ({told})")
    return Compared(_summed(run, settings, (*names, *fitted)), why, run)


def _asked(engine: Any, settings: LeftOutSettings) -> Run:
    """The run; rows that are too few for the folds are told with their remedy."""
    try:
        run: Run = engine.run(LEFT_OUT, settings, None, Plan(settings).ways[0].seed)
    except QuorumLost as lost:
        if {refusal.reason for refusal in lost.refusals} == {Reason.FEW_ROWS}:
            raise ValueError(TOO_FEW) from lost
        raise
    few = {refusal.reason for refusal in run.refusals} == {Reason.FEW_ROWS}
    if not run.result.rows.any() and (few or len(run.result.ways)):
        raise ValueError(TOO_FEW)
    return run


def _summed(run: Run, settings: LeftOutSettings, ways: tuple[str, ...]) -> HeldOut:
    rows, metrics = run.result.rows, Plan(settings).metrics
    return summed(run.result, ways, run.roster.names, rows.sum(axis=1), metrics)


def _why(run: Run, begin: int, end: int) -> str:
    """What kept a way from being fitted, in the rounds after `begin` up to `end`."""
    reasons = {str(r.fault.reason): None for r in run.refusals if begin < r.round <= end}
    return "; ".join(reasons) or "too few sites took part"
