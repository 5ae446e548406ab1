"""The way to real sites that is the same whatever carries it: acknowledgements and mending.

A site acknowledges nothing by itself: every question says which of the site's replies was the last
that counted. A site that says its memory of that reply is damaged is asked once more the question
which led to it; it goes back a round, computes the same bits, and then answers the present one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedkin.arrays import Array, Indices
from fedkin.engines.journal import Record
from fedkin.protocol import Ask, Memory, Reason, Result, Roster
from fedkin.protocol.gate import Batch, Faults

_REPEATED = (Reason.MEMORY, Reason.DAMAGED)


@dataclass(frozen=True)
class Question:
    """What one site is asked: the round, the Ask with this site's rows, what is acknowledged."""

    number: int
    ask: Ask
    acknowledged: int


@dataclass(frozen=True)
class End:
    """What one site hears when the run is over: which reply was its last, and its model."""

    acknowledged: int
    model: dict[str, Array]


class SiteLink(ABC):
    """Asks sites that keep their own memory; a subclass says how (`put`, `end`)."""

    gated = False
    rewinds = False
    last_error: Exception | None = None

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.acknowledged = dict.fromkeys(range(len(roster)), 0)
        self.result: Result | None = None
        self._asked = Ask("")
        self._counted: dict[int, Question] = {}

    @abstractmethod
    def put(self, questions: Mapping[int, Question]) -> tuple[Sequence[Batch], Faults]:
        """Put everyone's question, by position; what came back, and who failed and why."""

    def exchange(self, number: int, ask: Ask, asked: Indices) -> tuple[Sequence[Batch], Faults]:
        """Ask everybody; who lost a memory is helped to it and asked again."""
        self._asked = ask
        questions = {k: self._question(number, ask, k) for k in map(int, asked)}
        batches, faults = self.put(questions)
        lost = [k for k, fault in faults.items() if fault.reason in _REPEATED]
        repeated = {k: self._counted[k] for k in lost if k in self._counted}
        if not repeated:
            return batches, faults
        _, still = self.put(repeated)
        again = {k: questions[k] for k in repeated if k not in still}
        if not again:
            return batches, faults
        more, failed = self.put(again)
        kept = {k: fault for k, fault in faults.items() if k not in again}
        return [*batches, *more], {**kept, **failed}

    @abstractmethod
    def end(self, ends: Mapping[int, End]) -> Faults:
        """Tell these sites that the run is over; who did not hear it or failed, and why."""

    def finish(self) -> Faults:
        """Tell everybody who was heard; who lost the last memory is helped to it and told again."""
        ends = {k: End(n, self.for_site(k)) for k, n in self.acknowledged.items() if n > 0}
        faults = self.end(ends)
        lost = [k for k, fault in faults.items() if fault.reason in _REPEATED]
        repeated = {k: self._counted[k] for k in lost if k in self._counted}
        if not repeated:
            return faults
        _, still = self.put(repeated)
        again = [k for k in repeated if k not in still]
        kept = {k: fault for k, fault in faults.items() if k not in again}
        return {**kept, **self.end({k: ends[k] for k in again})}

    def settle(self, number: int, accepted: Indices) -> None:
        """These sites' replies were used; they hear of it with their next question."""
        for k in map(int, accepted):
            self._counted[k] = self._question(number, self._asked, k)
            self.acknowledged[k] = number

    def replay(self, ask: Ask, record: Record) -> None:
        """Sites know their rounds; what they are told to acknowledge follows from the journal."""
        self._asked = ask
        self.settle(record.number, record.replies.clients)

    def deliver(self, result: Any) -> None:
        """Keep what every site gets when it hears that the run has ended."""
        self.result = result if isinstance(result, Result) else None

    def for_site(self, k: int) -> dict[str, Array]:
        """The model of one site."""
        return {} if self.result is None else self.result.for_site(k)

    def memories(self) -> Memory:
        """They stay where they are."""
        return None

    def _question(self, number: int, ask: Ask, k: int) -> Question:
        personal = {name: array[k : k + 1] for name, array in ask.personal.items()}
        return Question(number, replace(ask, personal=personal), self.acknowledged[k])
