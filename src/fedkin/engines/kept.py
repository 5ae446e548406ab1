"""Another method on what sites have sent already: the journal of a finished run answers.

Fit for algorithms that ask once for a field which an earlier run has in its journal, such as the
statistics of FMLR. No site hears of it; the replies pass the same gate as on every engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.arrays import Indices
from fedkin.engines.driver import Rules, drive
from fedkin.engines.journal import Journal, Record, decode
from fedkin.federation import Federation
from fedkin.protocol import Algorithm, Ask, Fault, Memory, ProtocolError, Reason, Roster, Run
from fedkin.protocol.gate import Batch, Faults
from fedkin.settings import Settings

# Rounds of a journal in which a field is looked for.
MOST_ROUNDS_READ = 10


@dataclass(frozen=True)
class KeptReplies:
    """The engine that answers from a round of a journal: who sent what, with which settings."""

    folder: str
    names: tuple[str, ...]
    settings: dict[str, Any]
    record: Record
    features: tuple[str, ...] | None = None
    rules: Rules = field(default_factory=Rules)

    @classmethod
    def read(
        cls, folder: str | Path, wanted: str, features: Sequence[str] | None = None
    ) -> KeptReplies:
        """The first round in which sites sent the field `wanted`; columns may be given names."""
        journal = Journal(folder)
        try:
            told = journal.configuration()
        except ProtocolError as error:
            raise ValueError(str(error)) from None
        for number in range(1, MOST_ROUNDS_READ + 1):
            record = journal.read(number)
            if record is None:
                break
            if wanted in record.replies:
                columns = None if features is None else tuple(map(str, features))
                settings = decode(told["settings"])
                return cls(str(folder), tuple(told["names"]), settings, record, columns)
        raise ValueError(
            f"in the run of {told['algorithm']} in {folder} sites sent no {wanted}; fit with "
            "share='statistics' and a journal first"
        )

    def run(
        self, algorithm: Algorithm, settings: Settings, federation: Federation | None, seed: int = 0
    ) -> Run:
        """Run the server program on what the journal says."""
        if federation is not None:
            raise ValueError("the journal holds the sites' answers; fit() takes no data here")
        for name, value in settings.for_sites().to_mapping().items():
            if name in self.settings and self.settings[name] != value:
                raise ValueError(
                    f"sites answered with {name}={self.settings[name]!r} in {self.folder}, not "
                    f"{value!r}; use the same"
                )
        roster = Roster(self.names, seed)
        return drive(algorithm, settings, roster, _KeptLink(algorithm, self.record), self.rules)


class _KeptLink:
    """Answers the first question; who did not answer then does not answer now."""

    gated = False
    rewinds = False
    last_error: Exception | None = None

    def __init__(self, algorithm: Algorithm, record: Record) -> None:
        self.algorithm, self.record = algorithm, record

    def exchange(self, number: int, ask: Ask, asked: Indices) -> tuple[Sequence[Batch], Faults]:
        kept = self.record.replies
        wanted = self.algorithm.step(ask.step).replies(ask.fields)
        if number > 1 or any(name not in kept for name in wanted):
            raise ProtocolError("a journal answers one question, and only what was asked then")
        refused: Faults = dict.fromkeys(
            map(int, np.setdiff1d(asked, kept.clients)), Fault(Reason.ABSENT)
        )
        return [(kept.clients, {name: kept[name] for name in wanted})], refused

    def settle(self, number: int, accepted: Indices) -> None:
        """Sites keep nothing: nobody was asked."""

    def replay(self, ask: Ask, record: Record) -> None:
        """A refit keeps no journal of its own."""

    def deliver(self, result: Any) -> None:
        """Everybody's model is where the result is."""

    def finish(self) -> Faults:
        """Nobody waits for an end."""
        return {}

    def memories(self) -> Memory:
        return None
