"""The gate every message passes: declared names, types, shapes, bounds, and rows behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from fedkin.arrays import Arrays, Bools, Indices
from fedkin.protocol.messages import Dims, Field, ProtocolError, Replies, Schema

# So many sites must have sent something other than zero before any of them is compared with others.
LEAST_COMPARED = 4
# Longest name of a field that a foreign message may make us repeat.
LONGEST_NAME = 80


class Reason(StrEnum):
    """Why a client's contribution is missing from a round.

    These are the only words about a failure that travel.
    """

    UNDECLARED = "a field that is not declared"
    MISSING = "a declared field is missing"
    DTYPE = "wrong type of numbers"
    SHAPE = "wrong shape"
    NOT_FINITE = "not a finite number"
    BOUND = "a value over the bound"
    RANGE = "a value that cannot be"
    SCALE = "a value far beyond those of the other sites"
    FEW_ROWS = "too few rows behind an entry; it takes more of them, or fewer groups or folds"
    CELL = "withheld by the site's rule: too few rows in a cell; merge levels or drop the column"
    PARAMETERS = "withheld by the site's rule: too many parameters for its rows; use fewer columns"
    LEVERAGE = "withheld by the site's rule: one row stands out; drop or coarsen a column"
    DIFFERENCE = "withheld by the site's rule: too few rows differ from those of an earlier run"
    CUT = (
        "withheld by the site's rule: its rows have left cut into other parts; keep folds and seed"
    )
    BUDGET = "withheld by the site's rule: more questions than it answers"
    TRUST = (
        "withheld by the site's rule: the question could single rows out; its policy has to name "
        "the step (allow.trusted), or a job does without it (FGPR: common=False)"
    )
    MISFIT = (
        "withheld by the site's rule: its rows are far from where the question says they are; "
        "bring columns to one scale (Standardizer), or let a fit learn spreads (covariance_type)"
    )
    POLICY = "not allowed by the site's policy"
    ERROR = "the client function failed"
    LATE = "no answer in time"
    ABSENT = "did not take part"
    MEMORY = "the site's memory belongs to another round"
    DAMAGED = "the site's memory is lost or damaged"
    COLUMN = "a column is missing"
    NUMBER = "a column does not hold numbers"
    VALUES = "missing or infinite values in a column"
    WHOLE = "a column does not hold whole numbers"
    LEVEL = "a level that the job does not list"
    UNIT = "another unit than the job's, or none declared"
    DATA = "the data file is missing or cannot be read"
    DISK = "the site's disk is full"
    LOCKED = "another process works in the site's folder"
    CHANGED = "not what it was when the run began"
    VERSION = "another version of fedkin"
    DIED = "the site's process died again and again"


# A site that says one of these cannot take part now: it is lost to the run, not just refused.
LOSSES = frozenset(
    {
        Reason.ERROR,
        Reason.LATE,
        Reason.MEMORY,
        Reason.DAMAGED,
        Reason.COLUMN,
        Reason.NUMBER,
        Reason.VALUES,
        Reason.WHOLE,
        Reason.LEVEL,
        Reason.UNIT,
        Reason.DATA,
        Reason.DISK,
        Reason.LOCKED,
        Reason.CHANGED,
        Reason.VERSION,
        Reason.DIED,
    }
)
# What a site does by its own rules: it has answered, and is not missing.
WITHHELD = frozenset(
    {
        Reason.FEW_ROWS,
        Reason.CELL,
        Reason.PARAMETERS,
        Reason.LEVERAGE,
        Reason.DIFFERENCE,
        Reason.CUT,
        Reason.BUDGET,
        Reason.TRUST,
        Reason.MISFIT,
        Reason.POLICY,
    }
)


# Where less of it would leave.
TOO_MUCH = frozenset({Reason.FEW_ROWS, Reason.CELL, Reason.PARAMETERS, Reason.LEVERAGE})


@dataclass(frozen=True)
class Fault:
    """What is wrong with a client's contribution, and in which field."""

    reason: Reason
    field: str = ""

    def __str__(self) -> str:
        what, stop, remedy = str(self.reason).partition(";")
        return f"{what} in {self.field!r}{stop}{remedy}" if self.field else str(self.reason)

    def to_json(self) -> dict[str, str]:
        """Two words, as they travel and are kept."""
        return {"reason": self.reason.name, "field": self.field}

    @classmethod
    def from_json(cls, told: Any, known: Sequence[str] = ()) -> Fault:
        """The fault that somebody tells of, whoever it is: a strange word is a fault itself.

        A place is repeated if it could be a field, or is one of the `known` names of columns.
        """
        word = told.get("reason") if isinstance(told, Mapping) else None
        if not isinstance(word, str) or word not in Reason.__members__:
            return cls(Reason.UNDECLARED)
        name = told.get("field", "")
        sayable = isinstance(name, str) and (name in known or name.isidentifier())
        return cls(Reason[word], name[:LONGEST_NAME] if sayable else "")


# Some clients (positions in the roster) and their arrays, with these clients as first axis.
Batch = tuple[Indices, Arrays]
Faults = dict[int, Fault]
_Meaning = tuple[tuple[str, int], ...]


def bind(schema: Schema, arrays: Arrays, dims: Dims, lead: int = 0) -> dict[str, int]:
    """`dims` with the symbols that the shapes of `arrays` (after `lead` axes) settle."""
    bound = dict(dims)
    for name, declared in schema.items():
        if name not in arrays:
            raise ProtocolError(f"the Ask lacks the declared array {name!r}")
        shape = np.shape(arrays[name])[lead:]
        if len(shape) != len(declared.shape):
            raise ProtocolError(f"{name!r} has shape {shape}, declared {declared.shape}")
        for symbol, size in zip(declared.shape, shape):
            wanted = symbol if isinstance(symbol, int) else bound.setdefault(symbol, size)
            if wanted != size:
                raise ProtocolError(f"{name!r} has shape {shape}, declared {declared.shape}")
    if len(arrays) > len(schema):
        extra = sorted(set(arrays) - set(schema))
        raise ProtocolError(f"the Ask carries undeclared arrays: {', '.join(extra)}")
    return bound


def inspect(schema: Schema, batches: Sequence[Batch], dims: Dims) -> tuple[Replies | None, Faults]:
    """The acceptable replies of a round, and what is wrong with each of the others.

    Symbols that the Ask left open are settled by what most clients sent.
    """
    faults: Faults = {}
    kept = [cleaned(schema, batch, dims, faults) for batch in batches]
    return merged(schema, [batch for batch in kept if batch is not None], dims, faults), faults


def cleaned(
    schema: Schema,
    batch: Batch,
    dims: Dims,
    faults: Faults,
    rows: Indices | None = None,
    least_rows: int = 0,
) -> Batch | None:
    """The clients of one batch whose arrays are as declared; the others go into `faults`.

    `rows` (of each client of the batch) is known at the sites only; the rule on rows behind an
    entry acts there, and a site's own `least_rows` may be stricter than the declared one.
    """
    clients, arrays = batch
    fault, _ = _form(schema, arrays, dims, len(clients))
    if fault is not None:
        faults.update(dict.fromkeys(map(int, clients), fault))
        return None
    good: Bools | None = None
    for name, declared in schema.items():
        array = arrays[name]
        # One pass each when all is well: NaN and infinity fail these comparisons.
        if array.size and not (array.max() <= declared.bound and array.min() >= declared.lowest):
            good = _and(good, _within_bounds(name, declared, batch, faults))
        if rows is not None:
            few = rows < max(declared.least_rows, least_rows)
            if few.any():
                good = _and(good, ~few)
                fault = Fault(Reason.FEW_ROWS, name)
                faults.update(dict.fromkeys(map(int, clients[few]), fault))
    if good is None:
        return batch if len(clients) else None
    if not good.any():
        return None
    return clients[good], {name: arrays[name][good] for name in schema}


def merged(schema: Schema, batches: Sequence[Batch], dims: Dims, faults: Faults) -> Replies | None:
    """Clean batches as one, in roster order; who means something else by open symbols is out."""
    if len(batches) > 1:
        batches = _majority(schema, batches, dims, faults)
    if not batches:
        return None
    if len(batches) == 1:
        return Replies(*batches[0])
    clients = np.concatenate([clients for clients, _ in batches])
    order = np.argsort(clients)
    arrays = {name: np.concatenate([arrays[name] for _, arrays in batches]) for name in schema}
    return Replies(clients[order], {name: array[order] for name, array in arrays.items()})


def compared(schema: Schema, replies: Replies) -> tuple[Replies | None, Faults]:
    """The replies of a round without those whose values are far beyond the other sites' (`reach`).

    What is usual is the median over sites of their largest values that are not zero.
    """
    faults: Faults = {}
    for name, declared in schema.items():
        if declared.reach is None or len(replies.clients) < LEAST_COMPARED:
            continue
        array = replies[name]
        largest = np.abs(array).reshape(len(array), -1).max(axis=1, initial=0.0)
        some = largest[largest > 0]
        if len(some) < LEAST_COMPARED:
            continue
        far = largest > declared.reach * np.median(some)
        faults.update(dict.fromkeys(map(int, replies.clients[far]), Fault(Reason.SCALE, name)))
    if not faults:
        return replies, faults
    here = np.array([int(k) not in faults for k in replies.clients])
    if not here.any():
        return None, faults
    arrays = {name: replies[name][here] for name in replies}
    return Replies(replies.clients[here], arrays), faults


def _form(
    schema: Schema, arrays: Arrays, dims: Dims, n_clients: int
) -> tuple[Fault | None, _Meaning]:
    """What is wrong with names, types and shapes; else the symbols this batch would settle."""
    opened: dict[str, int] = {}
    for name, declared in schema.items():
        array = arrays.get(name)
        if array is None:
            return Fault(Reason.MISSING, name), ()
        if not isinstance(array, np.ndarray) or array.dtype != declared.dtype:
            return Fault(Reason.DTYPE, name), ()
        shape = array.shape[1:]
        if array.shape[:1] != (n_clients,) or len(shape) != len(declared.shape):
            return Fault(Reason.SHAPE, name), ()
        for symbol, size in zip(declared.shape, shape):
            if isinstance(symbol, int):
                expected = symbol
            elif symbol in dims:
                expected = dims[symbol]
            else:
                expected = opened.setdefault(symbol, size)
            if expected != size:
                return Fault(Reason.SHAPE, name), ()
    if len(arrays) > len(schema):
        return Fault(Reason.UNDECLARED), ()
    return None, tuple(sorted(opened.items()))


def _majority(
    schema: Schema, batches: Sequence[Batch], dims: Dims, faults: Faults
) -> Sequence[Batch]:
    """The batches that agree with what most clients mean by the open symbols."""
    meanings = [_form(schema, arrays, dims, len(clients))[1] for clients, arrays in batches]
    if all(meaning == meanings[0] for meaning in meanings):
        return batches
    votes: Counter[_Meaning] = Counter()
    for (clients, _), meaning in zip(batches, meanings):
        votes[meaning] += len(clients)
    winner = votes.most_common(1)[0][0]
    for (clients, _), meaning in zip(batches, meanings):
        if meaning != winner:
            faults.update(dict.fromkeys(map(int, clients), Fault(Reason.SHAPE)))
    return [batch for batch, meaning in zip(batches, meanings) if meaning == winner]


def _within_bounds(name: str, declared: Field, batch: Batch, faults: Faults) -> Bools:
    """Which clients' numbers are finite and within the bound, (k,)."""
    clients, arrays = batch
    numbers = arrays[name].reshape(len(clients), -1)
    finite: Bools = np.asarray(np.isfinite(numbers).all(axis=1))
    held = np.abs(np.where(np.isfinite(numbers), numbers, 0.0))
    within: Bools = np.asarray((held <= declared.bound).all(axis=1))
    possible: Bools = np.asarray((numbers >= declared.lowest).all(axis=1)) | ~within
    wrong = {
        Reason.RANGE: finite & within & ~possible,
        Reason.BOUND: finite & ~within,
        Reason.NOT_FINITE: ~finite,
    }
    for reason, whose in wrong.items():
        faults.update(dict.fromkeys(map(int, clients[whose]), Fault(reason, name)))
    fine: Bools = finite & within & possible
    return fine


def _and(good: Bools | None, also: Bools) -> Bools:
    return also if good is None else np.logical_and(good, also)
