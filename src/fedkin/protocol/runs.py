"""What a run leaves behind: its result, who was missing and why, what travelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np

from fedkin.arrays import Array, Arrays
from fedkin.frames import Finding
from fedkin.protocol.gate import Fault, Reason
from fedkin.protocol.messages import Ask, Memory, Replies, Roster
from fedkin.tables import Table


@dataclass(frozen=True)
class About:
    """What a result has to know to speak of itself: names of sites and columns, and settings."""

    sites: Array
    features: Sequence[str]
    settings: Any
    left: Mapping[str, int]
    """Bytes that left the sites, by field."""


@dataclass(frozen=True, eq=False)
class Result(Mapping[str, Array]):
    """What a server program returns: named arrays that know their tables and their account.

    Subclasses are dataclasses of arrays; a field that is None is not there. As a mapping it holds
    the arrays by name, which is how it is kept and how it travels.
    """

    for_all: ClassVar[tuple[str, ...]] = ()
    """Arrays that every site gets when the run has ended: the shared model."""
    for_one: ClassVar[tuple[str, ...]] = ()
    """Arrays with the sites as first axis, of which each site gets its own row."""

    def for_site(self, k: int) -> dict[str, Array]:
        """What the k-th site gets when the run has ended; never another site's row."""
        shared = {f"shared.{name}": self[name] for name in self.for_all if name in self}
        own = {name: np.asarray(self[name][k]) for name in self.for_one if name in self}
        return shared | {f"own.{name}": array for name, array in own.items()}

    def seen_by(self, k: int) -> Self:
        """The result as the k-th site may have it to predict with: of no other site anything."""
        raise NotImplementedError(f"{type(self).__name__} has no part for a site to predict with")

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and not isinstance(value, np.ndarray):
                object.__setattr__(self, one.name, np.asarray(value))

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """The result that was kept as `dict(result)`."""
        return cls(**arrays)

    def __getitem__(self, name: str) -> Array:
        value = getattr(self, name, None) if name in self.__dataclass_fields__ else None
        if value is None:
            raise KeyError(name)
        found: Array = value
        return found

    def __iter__(self) -> Iterator[str]:
        return (one.name for one in fields(self) if getattr(self, one.name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def shared_by(self, n_clients: int) -> Self:
        """The result of one client that held everybody's rows, as everybody's."""
        return self

    # ------------------------------------------------------------ in words

    def title(self, about: About) -> str:
        """The fit in half a line."""
        return f"{len(about.sites)} sites"

    def tables(self, about: About) -> dict[str, Table]:
        """The fit in tables."""
        return {}

    def account(self, about: About) -> list[str]:
        """What left the sites, in sentences."""
        return []

    def remarks(self, about: About) -> list[str]:
        """What a reader of the tables should know besides."""
        return []


@dataclass(frozen=True)
class Refusal:
    """A missing contribution: in which round, of which site, and why."""

    round: int
    site: str
    fault: Fault

    @property
    def reason(self) -> Reason:
        """Why it is missing."""
        return self.fault.reason

    @property
    def field(self) -> str:
        """In which field the fault lies; empty if in none."""
        return self.fault.field

    def __str__(self) -> str:
        return f"round {self.round}, site {self.site!r}: {self.fault}"

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        return {"round": self.round, "site": self.site, **self.fault.to_json()}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Refusal:
        """The inverse of `to_json`."""
        place = str(told.get("field", ""))
        return cls(int(told["round"]), str(told["site"]), Fault.from_json(told, (place,)))


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

    def add(self, other: Traffic) -> None:
        """Add what another run sent."""
        self.rounds += other.rounds
        self.messages_down += other.messages_down
        self.messages_up += other.messages_up
        self.refused += other.refused
        for own, theirs in (
            (self.bytes_down_by_field, other.bytes_down_by_field),
            (self.bytes_up_by_field, other.bytes_up_by_field),
        ):
            for name, size in theirs.items():
                own[name] = own.get(name, 0) + size

    def sentence(self) -> str:
        """What travelled, in a sentence."""
        return (
            f"{self.rounds} round{'s' * (self.rounds != 1)}, {self.messages_up} replies, "
            f"{self.bytes_up:,} bytes left the sites, {self.bytes_down:,} came to them; "
            f"{self.refused} missing."
        )

    def table(self) -> Table:
        """Bytes by field."""
        names = list(dict.fromkeys([*self.bytes_up_by_field, *self.bytes_down_by_field]))
        up = [self.bytes_up_by_field.get(name, 0) for name in names]
        down = [self.bytes_down_by_field.get(name, 0) for name in names]
        return Table({"field": names, "bytes up": up, "bytes down": down}, "What travelled")


@dataclass(frozen=True)
class Run:
    """What an engine hands back.

    `memories` are the clients' private states; only an engine that holds the data itself (in one
    process) can give them, elsewhere it is None and they stay on the sites' disks.
    """

    result: Any
    roster: Roster
    traffic: Traffic
    refusals: tuple[Refusal, ...]
    dropped: tuple[str, ...] = ()
    memories: Memory = None
    left_out: Mapping[str, Fault] = field(default_factory=dict)
    """Sites of the roster that are no members of the result, and why: never heard, or given up."""
    would_withhold: Callable[[], Mapping[str, Fault]] | None = None
    """Tells which sites would withhold in a real federation under the default rules."""
    findings: tuple[Finding, ...] = ()
    """What checks said of the sites' tables before the first round, on real sites."""

    def missing(self) -> list[str]:
        """Whose replies are missing in which rounds and why, a sentence a site and fault."""
        rounds: dict[tuple[str, Fault], list[int]] = {}
        for refusal in self.refusals:
            rounds.setdefault((refusal.site, refusal.fault), []).append(refusal.round)
        return [
            f"site {site!r}{' was left out' if site in self.left_out else ''}: {fault} ("
            + (f"round {which[0]}" if len(which) == 1 else f"{len(which)} rounds from {which[0]}")
            + ")"
            for (site, fault), which in rounds.items()
        ]

    def shared_by(self, names: tuple[str, ...]) -> Run:
        """The run of one client that held everybody's rows, as the run of all of them."""
        m, roster = len(names), replace(self.roster, names=names)
        memories = self.memories and {n: np.repeat(a, m, axis=0) for n, a in self.memories.items()}
        return replace(self, result=self.result.shared_by(m), roster=roster, memories=memories)
