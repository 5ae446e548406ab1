"""The contract: what an algorithm is, what it may ask, and what may leave a client.

An algorithm is a table of batched client functions and one server program. A client function is

    reply, memory = function(clients, cache, settings, common, personal, memory, keys)

with the client as first axis of every array in `personal`, `memory` and `reply`; `memory` is
None for clients that have none yet. The server program is a generator that yields an `Ask`, is
sent `Replies`, and returns a dictionary of named arrays. It never sees an engine.

Messages are dictionaries of NumPy arrays with a declared schema. `inspect` is the gate every
reply passes, at the site before it leaves and at the server before the program sees it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.federation import Federation
from fedkin.randomness import Keys

Array = NDArray[Any]
Indices = NDArray[np.intp]
Arrays = Mapping[str, Array]
Settings = Mapping[str, Any]
Memory = dict[str, Array] | None
Dims = Mapping[str, int]

DEFAULT_BOUND = 1e100


@dataclass(frozen=True)
class Field:
    """One named array of a message; `shape` is without the client axis, in symbols or numbers."""

    shape: tuple[str | int, ...]
    meaning: str
    dtype: str = "float64"
    bound: float = DEFAULT_BOUND
    least_rows: int = 1
    """A client with fewer rows behind each entry does not send the reply at all."""


Schema = Mapping[str, Field]
ClientFunction = Callable[
    [Federation, Any, Settings, Arrays, Arrays, Memory, Keys], tuple[Mapping[str, Array], Memory]
]


@dataclass(frozen=True)
class Step:
    """A client function with the schemas of what comes in and what goes out."""

    function: ClientFunction
    reply: Schema
    common: Schema = field(default_factory=dict)
    personal: Schema = field(default_factory=dict)


@dataclass(frozen=True)
class Ask:
    """One round: every asked client runs `step`.

    `common` goes to all; `personal` has the roster as first axis and each client gets its row.
    `who` (positions in the roster) narrows who is asked, `fraction` draws that share of them.
    `note` is what a progress bar shows.
    """

    step: str
    common: Arrays = field(default_factory=dict)
    personal: Arrays = field(default_factory=dict)
    who: Indices | None = None
    fraction: float = 1.0
    note: str = ""


@dataclass(frozen=True)
class Replies(Mapping[str, Array]):
    """What came back: arrays with the answering clients as first axis, in roster order."""

    clients: Indices
    arrays: Arrays

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def total(self, name: str) -> Array:
        """The sum over the clients that answered."""
        summed: Array = self.arrays[name].sum(axis=0)
        return summed


@dataclass(frozen=True)
class Roster:
    """Who takes part, fixed at submission, in canonical order; and the seed of the run."""

    names: tuple[str, ...]
    seed: int = 0

    def __len__(self) -> int:
        return len(self.names)


Result = dict[str, Array]
Program = Generator[Ask, Replies, Result]


def _nothing(clients: Federation, settings: Settings) -> Any:
    return None


@dataclass(frozen=True)
class Algorithm:
    """An algorithm, written once for every engine.

    `defaults` holds every setting there is; `client_settings` names those that client functions
    read, and nothing else of the settings is sent to a site.
    """

    name: str
    steps: Mapping[str, Step]
    program: Callable[[Roster, Settings], Program]
    prepare: Callable[[Federation, Settings], Any] = _nothing
    defaults: Settings = field(default_factory=dict)
    client_settings: tuple[str, ...] = ()

    def completed(self, settings: Settings) -> Settings:
        """The settings with defaults filled in; an unknown name is an error."""
        unknown = sorted(set(settings) - set(self.defaults))
        if unknown:
            raise ValueError(f"{self.name} has no setting {', '.join(unknown)}")
        return {**self.defaults, **settings}

    def settings_for_clients(self, settings: Settings) -> Settings:
        """The part of the settings a site gets to see."""
        return {name: settings[name] for name in self.client_settings}


class Reason(StrEnum):
    """Why a client's contribution is missing from a round; the only words about a failure that
    travel."""

    UNDECLARED = "a field that is not declared"
    MISSING = "a declared field is missing"
    DTYPE = "wrong type of numbers"
    SHAPE = "wrong shape"
    NOT_FINITE = "not a finite number"
    BOUND = "a value over the bound"
    FEW_ROWS = "too few rows behind an entry"
    ERROR = "the client function failed"
    LATE = "no answer in time"
    ABSENT = "did not take part"
    MEMORY = "the site's memory belongs to another round"


@dataclass(frozen=True)
class Refusal:
    """A missing contribution: in which round, of which site, in which field, and why."""

    round: int
    site: str
    reason: Reason
    field: str = ""

    def __str__(self) -> str:
        where = f" in {self.field!r}" if self.field else ""
        return f"round {self.round}, site {self.site!r}: {self.reason}{where}"


class QuorumLost(RuntimeError):
    """Too few sites answered a round."""


class ProtocolError(RuntimeError):
    """A server program or client function broke the contract."""


Fault = tuple[Reason, str]
Block = tuple[Indices, Arrays]


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


def inspect(
    schema: Schema,
    blocks: Sequence[Block],
    dims: Dims,
    sizes: Indices | None = None,
    least_rows: int = 0,
) -> tuple[Replies | None, dict[int, Fault]]:
    """The gate: the acceptable replies of a round, and what is wrong with each of the others.

    Symbols that the Ask left open are settled by what most clients sent. `sizes` (rows per
    client of the roster) is known at the sites only; the rows-behind-an-entry rule acts there,
    and a site's own `least_rows` may be stricter than the declared one.
    """
    faults: dict[int, Fault] = {}
    kept: list[Block] = []
    meanings: list[tuple[tuple[str, int], ...]] = []
    for clients, arrays in blocks:
        fault, opened = _form_fault(schema, arrays, dims, len(clients))
        if fault is None:
            kept.append((clients, arrays))
            meanings.append(opened)
        else:
            faults.update(dict.fromkeys(map(int, clients), fault))
    if any(meaning != meanings[0] for meaning in meanings):
        kept = _majority(kept, meanings, faults)
    checked = (_values(schema, block, faults, sizes, least_rows) for block in kept)
    clean = [block for block in checked if block is not None]
    if not clean:
        return None, faults
    return (Replies(*clean[0]) if len(clean) == 1 else _merged(schema, clean)), faults


def _form_fault(
    schema: Schema, arrays: Arrays, dims: Dims, n_clients: int
) -> tuple[Fault | None, tuple[tuple[str, int], ...]]:
    """What is wrong with names, types and shapes; else the symbols this block would settle."""
    opened: dict[str, int] = {}
    for name, declared in schema.items():
        array = arrays.get(name)
        if array is None:
            return (Reason.MISSING, name), ()
        if not isinstance(array, np.ndarray) or array.dtype != declared.dtype:
            return (Reason.DTYPE, name), ()
        shape = array.shape[1:]
        if array.shape[:1] != (n_clients,) or len(shape) != len(declared.shape):
            return (Reason.SHAPE, name), ()
        for symbol, size in zip(declared.shape, shape):
            if isinstance(symbol, int):
                expected = symbol
            elif symbol in dims:
                expected = dims[symbol]
            else:
                expected = opened.setdefault(symbol, size)
            if expected != size:
                return (Reason.SHAPE, name), ()
    if len(arrays) > len(schema):
        return (Reason.UNDECLARED, ""), ()
    return None, tuple(sorted(opened.items()))


def _majority(
    blocks: list[Block],
    meanings: list[tuple[tuple[str, int], ...]],
    faults: dict[int, Fault],
) -> list[Block]:
    """The blocks that agree with what most clients mean by the open symbols."""
    votes: Counter[tuple[tuple[str, int], ...]] = Counter()
    for (clients, _), meaning in zip(blocks, meanings):
        votes[meaning] += len(clients)
    winner = votes.most_common(1)[0][0]
    for (clients, _), meaning in zip(blocks, meanings):
        if meaning != winner:
            faults.update(dict.fromkeys(map(int, clients), (Reason.SHAPE, "")))
    return [block for block, meaning in zip(blocks, meanings) if meaning == winner]


def _values(
    schema: Schema,
    block: Block,
    faults: dict[int, Fault],
    sizes: Indices | None,
    least_rows: int,
) -> Block | None:
    """The part of a block whose numbers are finite, within bounds and of enough rows."""
    clients, arrays = block
    good: NDArray[np.bool_] | None = None
    for name, declared in schema.items():
        array = arrays[name]
        # One pass each when all is well: NaN and infinity fail these comparisons.
        if array.size and not (array.max() <= declared.bound and array.min() >= -declared.bound):
            good = _mark_values(name, declared, block, faults, good)
        if sizes is not None:
            few = sizes[clients] < max(declared.least_rows, least_rows)
            if few.any():
                good = ~few if good is None else good & ~few
                faults.update(dict.fromkeys(map(int, clients[few]), (Reason.FEW_ROWS, name)))
    if good is None:
        return block if len(clients) else None
    if not good.any():
        return None
    return clients[good], {name: arrays[name][good] for name in schema}


def _mark_values(
    name: str,
    declared: Field,
    block: Block,
    faults: dict[int, Fault],
    good: NDArray[np.bool_] | None,
) -> NDArray[np.bool_]:
    clients, arrays = block
    rows = arrays[name].reshape(len(clients), -1)
    finite = np.isfinite(rows).all(axis=1)
    within = (np.abs(np.where(np.isfinite(rows), rows, 0.0)) <= declared.bound).all(axis=1)
    faults.update(dict.fromkeys(map(int, clients[finite & ~within]), (Reason.BOUND, name)))
    faults.update(dict.fromkeys(map(int, clients[~finite]), (Reason.NOT_FINITE, name)))
    fine = np.logical_and(finite, within)
    return fine if good is None else np.logical_and(fine, good)


def _merged(schema: Schema, blocks: Sequence[Block]) -> Replies:
    clients = np.concatenate([clients for clients, _ in blocks])
    order = np.argsort(clients)
    arrays = {
        name: np.concatenate([arrays[name] for _, arrays in blocks])[order] for name in schema
    }
    return Replies(clients[order], arrays)


@dataclass
class Traffic:
    """What travelled: rounds, messages, and bytes by field in both directions."""

    rounds: int = 0
    messages_down: int = 0
    messages_up: int = 0
    bytes_down_by_field: dict[str, int] = field(default_factory=dict)
    bytes_up_by_field: dict[str, int] = field(default_factory=dict)
    refused: int = 0

    @property
    def bytes_down(self) -> int:
        """Bytes of arrays sent to the sites."""
        return sum(self.bytes_down_by_field.values())

    @property
    def bytes_up(self) -> int:
        """Bytes of arrays that left the sites and were accepted."""
        return sum(self.bytes_up_by_field.values())

    def count(self, ask: Ask, n_asked: int, replies: Replies | None, n_refused: int) -> None:
        """Add one round."""
        self.rounds += 1
        self.messages_down += n_asked
        self.refused += n_refused
        down, up = self.bytes_down_by_field, self.bytes_up_by_field
        for name, array in ask.common.items():
            down[name] = down.get(name, 0) + array.nbytes * n_asked
        for name, array in ask.personal.items():
            down[name] = down.get(name, 0) + array.nbytes // len(array) * n_asked
        if replies is not None:
            self.messages_up += len(replies.clients)
            for name, array in replies.arrays.items():
                up[name] = up.get(name, 0) + array.nbytes


@dataclass(frozen=True)
class Outcome:
    """What an engine hands back after a run.

    `memories` are the clients' private states; only an engine that holds the data itself (in one
    process) can give them, elsewhere it is None and they stay on the sites' disks.
    """

    result: Result
    roster: Roster
    traffic: Traffic
    refusals: tuple[Refusal, ...]
    dropped: tuple[str, ...] = ()
    memories: Memory = None
