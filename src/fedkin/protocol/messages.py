"""What travels: questions, replies, and the declared form of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fedkin.arrays import Array, Arrays, Floats, Indices

Memory = dict[str, Array] | None
Reveals = Literal["nothing", "count", "sums", "products", "model", "fit"]
"""What a field tells of a client's rows.

nothing: no row went into it; count: their number; sums: sums of single columns or their squares;
products: sums of products of columns, which are two-way tables where columns are coded; model:
parameters fitted to the rows; fit: any other function of them all (likelihoods, slopes).
"""
Dims = Mapping[str, int]
Behind = Callable[[], Mapping[str, Floats]]
"""Tells how much every row counts in the entries of a field, by its name, (N, ...).

N are the rows of all clients that were asked; further axes are the first ones of the field.
"""
CUT = "__cut__"
"""Stands beside the fields in what a `Behind` tells, where a reply is about all parts of a cut but
one: the parts (N, F) into which the rows are cut. Replies without each of the parts give what each
of them holds, so that every part has to obey a site's rules by itself."""

MISFIT = "__misfit__"
"""Likewise, where the parameters of a question say where rows are: how many times as far from there
they are as these say, (N, ...), the same for all rows of a client. What a fit asks has about one.
"""

DEFAULT_BOUND = 1e100
# No message is larger, in bytes: what says that it is, is not read.
LARGEST_MESSAGE = 1 << 28


class QuorumLost(RuntimeError):
    """Too few sites answered a round; `refusals` says what came instead of the answers."""

    refusals: tuple[Any, ...] = ()


class ProtocolError(RuntimeError):
    """A server program or client function broke the contract."""


class DrawnSeed(int):
    """A seed that nobody chose: a run that is there already keeps its own."""


@dataclass(frozen=True)
class Field:
    """One named array of a message; `shape` is without the client axis, in symbols or numbers."""

    shape: tuple[str | int, ...]
    meaning: str
    dtype: str = "float64"
    bound: float = DEFAULT_BOUND
    least_rows: int = 1
    """A client with fewer rows behind each entry does not send the reply at all."""
    reach: float | None = None
    """How many times the median site's largest value there may be: the data's own scale bounds what
    a site can say, without a round to agree on it. None where sites may differ without limit, or
    where a program looks at the values itself."""
    least: float | None = None
    """The least value there can be: 0 for what has no sign, 1 for what is counted from one."""
    reveals: Reveals = "fit"
    """What can be learnt from it about rows, which decides the disclosure rules that apply."""
    empty: float | str | None = None
    """What stands for an entry with too few rows behind it at a site with rules: a number, or the
    array of this name that came with the question. None: then the whole reply is withheld."""

    @property
    def lowest(self) -> float:
        """The least value that passes the gate."""
        return -self.bound if self.least is None else self.least


Schema = Mapping[str, Field]


@dataclass(frozen=True)
class Ask:
    """One round: every asked client runs `step`.

    `common` goes to all; `personal` has the roster as first axis and each client gets its row.
    `fields` names which of the step's optional fields shall come back besides the others.
    `who` (positions in the roster) narrows who is asked, `fraction` draws that share of them.
    `note` is what a progress bar shows. What is not `needed` asks for no quorum: the program goes
    on with the replies there are, if need be with those of nobody.
    """

    step: str
    common: Arrays = field(default_factory=dict)
    personal: Arrays = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    who: Indices | None = None
    fraction: float = 1.0
    note: str = ""
    needed: bool = True


class TracedReply(dict[str, Array]):
    """A reply whose function knows how much every row counts in its entries.

    Sums over parts of the rows (folds, groups) are about those rows, and are judged by them.
    `fewest` (clients,) says how many rows the smallest part has, where a schema's `least_rows` is
    about parts; None: it is about all rows of a client.
    """

    def __init__(self, arrays: Arrays, behind: Behind, fewest: Indices | None = None) -> None:
        super().__init__(arrays)
        self.behind, self.fewest = behind, fewest


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

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Where each client stands, by its name; made when it is first asked for."""
        return dict(zip(self.names, range(len(self.names))))


def over_roster(
    values: Array, clients: Indices, n_clients: int, missing: float | Array = np.nan
) -> Array:
    """Values of some clients as an array of all, (n_clients, ...); the others have `missing`."""
    values = np.asarray(values)
    dtype = np.result_type(values, np.asarray(missing))
    everyone = np.empty((n_clients, *values.shape[1:]), dtype)
    everyone[:] = missing
    everyone[clients] = values
    return everyone
