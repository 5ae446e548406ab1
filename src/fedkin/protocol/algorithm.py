"""An algorithm: settings, client functions with their schemas, one server program."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedkin.arrays import Arrays, Indices
from fedkin.federation import Federation
from fedkin.protocol.gate import Faults, bind, cleaned
from fedkin.protocol.messages import (
    Ask,
    Behind,
    Memory,
    ProtocolError,
    Replies,
    Roster,
    Schema,
    TracedReply,
)
from fedkin.protocol.runs import Result
from fedkin.randomness import Keys
from fedkin.settings import NoSettings, Settings

ClientFunction = Callable[..., tuple[Arrays, Memory]]
Program = Generator[Ask, Replies, Result]


@dataclass(frozen=True)
class Step:
    """A client function with the schemas of what comes in and what goes out.

    `reply` always leaves; of `optional` what an Ask names in `fields`. A function with optional
    fields is told by the keyword `fields` which of them are wanted.
    """

    function: ClientFunction
    reply: Schema
    common: Schema = field(default_factory=dict)
    personal: Schema = field(default_factory=dict)
    optional: Schema = field(default_factory=dict)
    cuts: bool = False
    """Whether the reply is about parts of the rows that are chosen by their places alone. A second
    cut of the same rows adds equations to the first, and enough of them give every row."""
    trusts: bool = False
    """Whether a server that chooses its question on purpose reads single rows from one reply. Sites
    with disclosure rules answer only if their policy names the step (`allow.trusted`)."""
    most: int | None = None
    """How many questions a program puts to the step in one run; sites with disclosure rules answer
    no more. None: as many as their budget allows."""

    def replies(self, fields: tuple[str, ...]) -> Schema:
        """The schema of a reply that holds these optional fields, too."""
        if not fields:
            return self.reply
        unknown = [name for name in fields if name not in self.optional]
        if unknown:
            raise ProtocolError(f"the step has no optional field {', '.join(unknown)}")
        return {**self.reply, **{name: self.optional[name] for name in fields}}

    def dims(self, ask: Ask) -> dict[str, int]:
        """What the shapes of an Ask's arrays say the symbols are."""
        return bind(self.personal, ask.personal, bind(self.common, ask.common, {}), lead=1)


@dataclass(frozen=True)
class Answer:
    """What came of a question to some clients (positions `clients`).

    `arrays` and `memory` have all of the clients as first axis. `faults` tells of those whose reply
    must not be used or sent; `clean` holds the others', None if there are none. `behind` says how
    much every row counts in the entries, where that is not the same for all.
    """

    clients: Indices
    arrays: Arrays
    memory: Memory
    clean: tuple[Indices, Arrays] | None
    faults: Faults
    behind: Behind | None = None


def _nothing(clients: Federation, settings: Any) -> Any:
    return None


def _of_nothing_else(settings: Any) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Algorithm:
    """An algorithm, written once for every engine."""

    name: str
    steps: Mapping[str, Step]
    program: Callable[[Roster, Any], Program]
    settings: type[Settings] = NoSettings
    result: type[Result] = Result
    prepare: Callable[[Federation, Any], Any] = _nothing
    made_of: Callable[[Any], tuple[str, ...]] = _of_nothing_else
    """Other methods that a run with such settings goes through; a site's policy is about them, too.
    """

    def step(self, name: str) -> Step:
        """The client step of that name."""
        if name not in self.steps:
            raise ProtocolError(f"{self.name} has no client step {name!r}")
        return self.steps[name]

    def check(self, settings: Any) -> None:
        """Complain about what are not this algorithm's settings."""
        if not isinstance(settings, self.settings):
            raise TypeError(
                f"{self.name} takes {self.settings.__name__}, not {type(settings).__name__}"
            )

    def answer(
        self,
        ask: Ask,
        clients: Federation,
        cache: Any,
        settings: Settings,
        memory: Memory,
        keys: Keys,
        who: Indices | None = None,
        least_rows: int = 0,
    ) -> Answer:
        """Bind the question, call the client function, and let its reply through the gate.

        `who` are the clients' positions in the roster. The arrays of `ask.personal` hold these
        clients' rows only.
        """
        step = self.step(ask.step)
        schema, dims = step.replies(ask.fields), step.dims(ask)
        wanted = {"fields": ask.fields} if step.optional else {}
        arrays, new = step.function(
            clients, cache, settings, ask.common, ask.personal, memory, keys, **wanted
        )
        if not isinstance(arrays, Mapping):
            raise ProtocolError(f"the function of step {ask.step!r} must return (reply, memory)")
        who = np.arange(len(clients)) if who is None else who
        faults: Faults = {}
        behind, rows = None, clients.sizes
        if isinstance(arrays, TracedReply):
            behind, rows = arrays.behind, rows if arrays.fewest is None else arrays.fewest
        clean = cleaned(schema, (who, arrays), dims, faults, rows, least_rows)
        return Answer(who, arrays, new, clean, faults, behind)
