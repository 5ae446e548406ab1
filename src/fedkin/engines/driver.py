"""The loop every engine shares: run the server program, carry its Asks, keep the books.

An engine supplies a `Link` that reaches the clients. Everything that must be the same on all
engines happens here: who is drawn, what is refused, the quorum, who counts as silent, the
journal and its replay, and the account of what travelled.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Protocol

import numpy as np

from fedkin.arrays import Bools, Indices
from fedkin.engines.journal import Journal, Record, digest
from fedkin.engines.observers import Audience, Beginning, Observer
from fedkin.names import listed
from fedkin.protocol import (
    Algorithm,
    Ask,
    Memory,
    ProtocolError,
    QuorumLost,
    Reason,
    Refusal,
    Replies,
    Roster,
    Run,
    Step,
    Traffic,
    inspect,
)
from fedkin.protocol.gate import (
    LOSSES,
    TOO_MUCH,
    WITHHELD,
    Batch,
    Fault,
    Faults,
    compared,
    merged,
)
from fedkin.settings import Settings

logger = logging.getLogger("fedkin")

# Separates the server's draws of clients from every other use of the seed.
_DRAW_STREAM = 0xD2A3
# Losses that time may mend without anybody's help.
_PASSING = frozenset({Reason.LATE, Reason.LOCKED})


@dataclass(frozen=True)
class Rules:
    """When a round counts and when a site is given up.

    `quorum` is the share of asked sites that must answer acceptably. A site that is silent, or
    says that it cannot take part, in `max_misses` rounds running is not asked again. With
    `on_loss="wait"` such a site stops the run instead (an engine that can resubmit does so, and the
    result has the same bits as an unbroken run); "continue" goes on with the quorum. Whoever was
    left out is named in the run.
    """

    quorum: float = 0.5
    max_misses: int = 3
    on_loss: Literal["continue", "wait"] = "continue"

    def __post_init__(self) -> None:
        if not 0 < self.quorum <= 1:
            raise ValueError(f"quorum must be a share above 0 and up to 1, not {self.quorum}")
        if self.max_misses < 1:
            raise ValueError(f"max_misses must be at least 1, not {self.max_misses}")


class SiteLost(RuntimeError):
    """A site fell silent or failed, and the rules say not to go on without it."""

    def __init__(self, faults: Mapping[str, Fault]) -> None:
        self.faults = dict(faults)
        self.passing = all(fault.reason in _PASSING for fault in faults.values())
        told = "; ".join(f"site {site!r}: {fault}" for site, fault in faults.items())
        super().__init__(f"{told}. The run waits for {'it' if len(faults) == 1 else 'them'}")


class Link(Protocol):
    """What an engine supplies: the way to its clients and back."""

    gated: bool
    """Whether replies have passed the gate in this very process."""
    rewinds: bool
    """Whether clients can go back to any earlier round."""
    last_error: Exception | None

    def exchange(self, number: int, ask: Ask, asked: Indices) -> tuple[Sequence[Batch], Faults]:
        """Put a question to the asked clients; what came back, and who failed and why."""

    def settle(self, number: int, accepted: Indices) -> None:
        """These clients' replies were used: their new memory counts."""

    def replay(self, ask: Ask, record: Record) -> None:
        """Bring the link to where it was after a round that the journal has."""

    def deliver(self, result: Any) -> None:
        """What the program returned; sites get their models of it when the run has ended."""

    def finish(self) -> Faults:
        """The run has ended: what the clients offered last counts. Who did not hear it, and why."""

    def memories(self) -> Memory:
        """The clients' memories, where the engine may see them."""


@dataclass
class _Books:
    """The account of a run so far: who is still asked, who missed what, what travelled."""

    live: Indices
    heard: Bools
    misses: dict[int, int] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    refusals: list[Refusal] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)

    @classmethod
    def new(cls, n_clients: int) -> _Books:
        """The account before the first round."""
        return cls(np.arange(n_clients), np.zeros(n_clients, dtype=bool))

    def left_out(self, roster: Roster) -> dict[str, Fault]:
        """Who is no member of the result, and the last word about why."""
        last = {refusal.site: refusal.fault for refusal in self.refusals}
        out = {k for k in range(len(roster)) if not self.heard[k]} | set(self.dropped)
        names = [roster.names[k] for k in sorted(out)]
        return {name: last[name] for name in names if name in last}

    def close(self, ask: Ask, record: Record, roster: Roster) -> None:
        """Count a round, whether it was just asked or comes from the journal."""
        n_refused = len(record.refusals)
        self.heard[record.replies.clients] = True
        if n_refused or self.misses:
            lost = {r.site for r in record.refusals if r.reason in LOSSES}
            for k in map(int, record.asked):
                missed = roster.names[k] in lost
                self.misses[k] = self.misses.get(k, 0) + 1 if missed else 0
            self.refusals.extend(record.refusals)
        if record.dropped:
            self.dropped.extend(record.dropped)
            self.live = np.setdiff1d(self.live, record.dropped)
        self.traffic.count(ask, len(record.asked), record.replies, n_refused)


def drive(
    algorithm: Algorithm,
    settings: Settings,
    roster: Roster,
    link: Link,
    rules: Rules | None = None,
    journal: Journal | None = None,
    progress: bool | None = None,
    observers: Sequence[Observer] = (),
) -> Run:
    """Run the server program to its end; observers are told of every round."""
    algorithm.check(settings)
    audience = Audience(observers)
    names = roster.names
    beginning = Beginning(algorithm.name, settings.to_mapping(), len(roster), roster.seed)
    with audience.watching(beginning):
        books = _Books.new(len(roster))
        result = _converse(
            algorithm, settings, roster, link, rules or Rules(), journal, progress, books, audience
        )
        link.deliver(result)
        _end(link, roster, rules or Rules())
        if journal is not None:
            journal.finish(result)
    run = Run(
        result,
        roster,
        books.traffic,
        tuple(books.refusals),
        tuple(names[k] for k in books.dropped),
        link.memories(),
        books.left_out(roster),
    )
    audience.end(run)
    return run


def _end(link: Link, roster: Roster, rules: Rules) -> None:
    """Tell everybody; a run that waits has not ended before every site has its model."""
    faults = {roster.names[k]: fault for k, fault in sorted(link.finish().items())}
    if faults and rules.on_loss == "wait":
        raise SiteLost(faults) from link.last_error
    for site, fault in faults.items():
        logger.warning("site %r has no model of the run: %s; resume it to tell it", site, fault)


def _converse(
    algorithm: Algorithm,
    settings: Settings,
    roster: Roster,
    link: Link,
    rules: Rules,
    journal: Journal | None,
    progress: bool | None,
    books: _Books,
    audience: Audience,
) -> Any:
    """Ask and answer until the program returns its result."""
    program = algorithm.program(roster, settings)
    bar = _progress_bar(progress, algorithm.name)
    number = 0
    try:
        ask = next(program)
        while True:
            number += 1
            record = _round(algorithm, number, ask, roster, link, rules, journal, books)
            books.close(ask, record, roster)
            audience.round(ask, len(record.asked), books.traffic)
            if bar is not None:
                bar.update(bar.task_ids[0], advance=1, note=ask.note)
            ask = program.send(record.replies)
    except StopIteration as end:
        return end.value
    finally:
        program.close()
        if bar is not None:
            bar.stop()


def _round(
    algorithm: Algorithm,
    number: int,
    ask: Ask,
    roster: Roster,
    link: Link,
    rules: Rules,
    journal: Journal | None,
    books: _Books,
) -> Record:
    """One Ask, from the journal if it was closed there, else from the clients."""
    step = algorithm.step(ask.step)
    asked = _draw(ask, books.live, roster.seed, number)
    fingerprint = digest(ask) if journal is not None else ""
    past = journal.read(number) if journal is not None else None
    if past is not None:
        if past.digest != fingerprint or not np.array_equal(past.asked, asked):
            raise ProtocolError(
                f"round {number} of the journal was asked by another program; the code or the "
                "data changed since: start a new run folder"
            )
        link.replay(ask, past)
        return past
    if journal is not None:
        journal.discard_from(number, link.rewinds)
    record = _ask_clients(step, number, ask, asked, fingerprint, roster, link, rules, books)
    if journal is not None:
        journal.append(record)
    link.settle(number, record.replies.clients)
    return record


def _ask_clients(
    step: Step,
    number: int,
    ask: Ask,
    asked: Indices,
    fingerprint: str,
    roster: Roster,
    link: Link,
    rules: Rules,
    books: _Books,
) -> Record:
    schema = step.replies(ask.fields)
    batches, failed = link.exchange(number, ask, asked)
    if link.gated:
        faults: Faults = {}
        # One batch has nobody to agree with on open symbols.
        dims = step.dims(ask) if len(batches) > 1 else {}
        replies = merged(schema, batches, dims, faults)
    else:
        replies, faults = inspect(schema, batches, step.dims(ask))
    if replies is not None:
        replies, far = compared(schema, replies)
        faults.update(far)
    faults.update(failed)
    refusals = tuple(Refusal(number, roster.names[k], faults[k]) for k in sorted(faults))
    dropped = _given_up(faults, rules, books, roster, link.last_error) if faults else ()
    n_answered = 0 if replies is None else len(replies.clients)
    # A site that withholds by its own rule has answered: it is not missing.
    n_withheld = sum(fault.reason in WITHHELD for fault in faults.values())
    if replies is None and not ask.needed:
        replies = Replies(np.empty(0, dtype=np.intp), {})
    if replies is None or (ask.needed and n_answered < rules.quorum * (len(asked) - n_withheld)):
        _no_quorum(number, n_answered, len(asked), rules, refusals, link.last_error)
    return Record(number, fingerprint, asked, replies, refusals, dropped)


def _draw(ask: Ask, live: Indices, seed: int, number: int) -> Indices:
    """The clients to ask: those still in, narrowed by `who`, a random share of them."""
    asked = live if ask.who is None else np.intersect1d(ask.who, live)
    if ask.fraction >= 1.0:
        return asked
    n_drawn = max(1, round(ask.fraction * len(asked)))
    rng = np.random.default_rng([seed, number, _DRAW_STREAM])
    return np.sort(rng.choice(asked, size=n_drawn, replace=False))


def _no_quorum(
    number: int,
    n_answered: int,
    n_asked: int,
    rules: Rules,
    refusals: Sequence[Refusal],
    error: Exception | None,
) -> NoReturn:
    by_fault: dict[Fault, list[str]] = {}
    for refusal in refusals:
        by_fault.setdefault(refusal.fault, []).append(refusal.site)
    missing = "; ".join(
        f"site {first!r}: {fault}" + (f" (also {listed(others, 5)})" if others else "")
        for fault, (first, *others) in list(by_fault.items())[:5]
    )
    remedy = "Mend these sites or lower the quorum."
    if refusals and all(refusal.reason in WITHHELD for refusal in refusals):
        less = {refusal.reason for refusal in refusals} <= TOO_MUCH
        remedy = "Nothing is broken: their own rules keep it back. "
        remedy += "Ask for less (fewer columns, fewer groups), or agree" if less else "Agree"
        remedy += " on other rules with the sites."
    lost = QuorumLost(
        f"round {number}: {n_answered} of {n_asked} asked sites gave a usable answer, the quorum "
        f"is {rules.quorum:g}. {missing}. {remedy}"
    )
    lost.refusals = tuple(refusals)
    raise lost from error


def _given_up(
    faults: Faults, rules: Rules, books: _Books, roster: Roster, error: Exception | None
) -> tuple[int, ...]:
    """Positions of the sites that have now been lost for too many rounds running."""
    lost = {k: faults[k] for k in sorted(faults) if faults[k].reason in LOSSES}
    if lost and rules.on_loss == "wait":
        raise SiteLost({roster.names[k]: fault for k, fault in lost.items()}) from error
    given_up = tuple(k for k in lost if books.misses.get(k, 0) + 1 >= rules.max_misses)
    for k in given_up:
        logger.warning(
            "site %r gave no answer in %d rounds running and is not asked again: %s",
            roster.names[k],
            rules.max_misses,
            lost[k],
        )
    return given_up


def _progress_bar(wanted: bool | None, name: str) -> Any:
    """A bar on a terminal, nothing in a pipe; `wanted` overrides."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        return None
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description} round {task.completed}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(name, total=None, note="")
    bar.start()
    return bar
