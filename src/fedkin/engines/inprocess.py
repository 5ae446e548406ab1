"""All sites in one process: one batched call serves everybody.

`block_size` cuts the federation into fixed blocks (None: one block). Absent clients are computed
with their block and then left out, so "lost reply" and "skipped the round" are the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedkin.arrays import Arrays, Indices
from fedkin.durable import DAMAGE, load_arrays, sealed, write_bytes
from fedkin.engines.driver import Rules, drive
from fedkin.engines.journal import Journal, Record, data_fingerprint, decode, digest
from fedkin.engines.observers import Observer
from fedkin.federation import Federation
from fedkin.privacy.disclosure import DEFAULT_RULES, Foresight, Guard
from fedkin.privacy.ledger import Ledger
from fedkin.protocol import (
    Algorithm,
    Answer,
    Ask,
    DrawnSeed,
    Fault,
    Memory,
    ProtocolError,
    Reason,
    Roster,
    Run,
)
from fedkin.protocol.gate import WITHHELD, Batch, Faults, merged
from fedkin.randomness import KeyRing
from fedkin.settings import Settings

# Numbers up to which rows are kept for a look at what would be withheld: 8 MB.
MOST_LOOKED_AT = 1_000_000
# Before the names of memories in their file.
_MEMORY = "memory."
Absent = Callable[[int, Sequence[str]], Collection[str]]


@dataclass(frozen=True)
class InProcess:
    """The engine that holds all sites in one process; estimators take it by default.

    Parameters
    ----------
    block_size : int or None
        Sites served by one batched call; None serves all at once.
    journal : path or None
        Folder to keep the run in, so that it can be resumed.
    ledger : path or None
        Folder for the sites' common ledger.
    absent : function or None
        (round, names asked) -> names that do not answer, to study sites that drop out.
    rules : Rules
        When a round counts.
    least_rows : int
        Replies with fewer rows behind an entry are withheld.
    progress : bool or None
        Whether to show a bar; None shows one on a terminal.
    disclosure : "report", "enforce" or None
        Nothing is withheld here, where all rows are anyway, but "report" says which sites a real
        federation would withhold under the default rules; "enforce" withholds them; None is silent.
    observers : sequence of Observer
        Who is told of every round, such as `fedkin.engines.tracking.MLflow` or `TensorBoard`.
    """

    block_size: int | None = None
    journal: str | Path | None = None
    ledger: str | Path | None = None
    absent: Absent | None = None
    rules: Rules = field(default_factory=Rules)
    least_rows: int = 0
    progress: bool | None = None
    disclosure: Literal["report", "enforce"] | None = "report"
    observers: Sequence[Observer] = ()

    def __post_init__(self) -> None:
        if self.disclosure not in ("report", "enforce", None):
            raise ValueError(
                f"disclosure must be 'report', 'enforce' or None, not {self.disclosure!r}"
            )

    def run(
        self,
        algorithm: Algorithm,
        settings: Settings,
        federation: Federation | None,
        seed: int = 0,
    ) -> Run:
        """Fit the federation; with a journal of the same run in the folder, go on from there."""
        if federation is None:
            raise ValueError("the in-process engine needs the data: fit(X, y, groups=...)")
        algorithm.check(settings)
        if self.journal is None:
            return self._drive(algorithm, settings, federation, int(seed), None)
        journal = self._book(Path(self.journal))
        if isinstance(seed, DrawnSeed) and journal.exists():
            seed = journal.configuration()["seed"]
        journal.open(
            {
                "algorithm": algorithm.name,
                "settings": settings.to_mapping(),
                "seed": int(seed),
                "names": list(federation.names),
                "features": list(federation.feature_names),
                "engine": "inprocess",
                "block_size": self.block_size,
            },
            {"rules": asdict(self.rules)},
            partial(data_fingerprint, federation),
        )
        try:
            return self._drive(algorithm, settings, federation, int(seed), journal)
        finally:
            journal.close()

    def _book(self, folder: Path) -> Journal:
        """The journal of a run."""
        return Journal(folder)

    def _drive(
        self,
        algorithm: Algorithm,
        settings: Settings,
        federation: Federation,
        seed: int,
        journal: Journal | None,
    ) -> Run:
        roster = Roster(federation.names, seed)
        link = _LocalLink(algorithm, settings, federation, self, KeyRing(roster.names, seed))
        if journal is not None:
            link.checkpoint = journal.folder / "memory.npz"
        run = drive(
            algorithm, settings, roster, link, self.rules, journal, self.progress, self.observers
        )
        if self.disclosure != "report":
            return run
        if federation.X.size > MOST_LOOKED_AT:
            return run
        sent = run.traffic.bytes_up_by_field
        steps = algorithm.steps.values()
        known = {name: f for step in steps for name, f in {**step.reply, **step.optional}.items()}
        schema = {name: field for name, field in known.items() if name in sent}
        return replace(run, would_withhold=Foresight(federation, schema).found)


def resume(
    folder: str | Path,
    algorithm: Algorithm,
    federation: Federation,
    engine: InProcess | None = None,
) -> Run:
    """Go on with the run kept in `folder`, from the first round that was not closed."""
    configuration = Journal(folder).configuration()
    if configuration["algorithm"] != algorithm.name:
        raise ProtocolError(f"{folder} holds a run of {configuration['algorithm']}")
    engine = replace(engine or InProcess(), journal=folder, block_size=configuration["block_size"])
    settings = algorithm.settings.from_mapping(decode(configuration["settings"]))
    return engine.run(algorithm, settings, federation, configuration["seed"])


def take_clients(cache: Any, who: Indices) -> Any:
    """The cache of some clients: rows of its arrays, or what its own `take` says."""
    if cache is None:
        return None
    if isinstance(cache, Mapping):
        return {name: array[who] for name, array in cache.items()}
    return cache.take(who)


class _LocalLink:
    """The way to clients that are in this process: a batched call for every block of them."""

    gated = True
    rewinds = True

    def __init__(
        self,
        algorithm: Algorithm,
        settings: Settings,
        federation: Federation,
        engine: InProcess,
        ring: KeyRing,
    ) -> None:
        self.algorithm = algorithm
        self.settings = settings.for_sites()
        self.federation = federation
        self.engine = engine
        self.ring = ring
        self.last_error: Exception | None = None
        self.ledger = None if engine.ledger is None else Ledger(engine.ledger)
        m = federation.n_clients
        size = engine.block_size or max(m, 1)
        self.blocks = [np.arange(begin, min(begin + size, m)) for begin in range(0, m, size)]
        whole = len(self.blocks) == 1
        self.data = [federation if whole else federation.take(block) for block in self.blocks]
        self.guards: list[Guard] | None = None
        if engine.disclosure == "enforce":
            alone = [federation.take(np.array([k])) for k in range(m)]
            self.guards = [Guard(DEFAULT_RULES, client) for client in alone]
        self.caches = [algorithm.prepare(data, self.settings) for data in self.data]
        # Every client's memory is a dictionary; clients with the same names in it are of a kind.
        self.memory: dict[str, Any] = {}
        self.kinds: list[tuple[str, ...]] = [()]
        self.kind = np.zeros(m, dtype=np.intp)
        self.all_alike = True
        self.pending: list[tuple[Indices, Memory]] = []
        # Where the memories are kept beside a journal, and rounds of it that they may cover.
        self.checkpoint: Path | None = None
        self._covered: int | None = None
        self._kept: dict[str, Any] = {}
        self._skipped: list[tuple[Ask, Record]] = []

    def exchange(self, number: int, ask: Ask, asked: Indices) -> tuple[Sequence[Batch], Faults]:
        self._compute_skipped()
        answers, faults = self._answers(number, ask, asked)
        if self.guards is not None:
            answers = [self._guarded(ask, answer, faults) for answer in answers]
        clean = [answer.clean for answer in answers if answer.clean is not None]
        self._write_down(number, ask, answers)
        if self.engine.absent is None:
            return clean, faults
        names = self.federation.names
        absent = set(self.engine.absent(number, [names[k] for k in asked]))
        away = np.array([k for k in asked if names[k] in absent], dtype=np.intp)
        if not len(away):
            return clean, faults
        faults.update(dict.fromkeys(map(int, away), Fault(Reason.ABSENT)))
        kept = [(clients, ~np.isin(clients, away), arrays) for clients, arrays in clean]
        return [
            (clients[here], {name: array[here] for name, array in arrays.items()})
            for clients, here, arrays in kept
            if here.any()
        ], faults

    def settle(self, number: int, accepted: Indices) -> None:
        """The memory a client returned replaces the one it had, if its reply was accepted."""
        m, touched = len(self.kind), set()
        for clients, memory in self.pending:
            if memory is None:
                continue
            code = self._kind_of(tuple(memory))
            if len(accepted) == len(clients) == m:
                self.memory, self.kind[:], self.all_alike = dict(memory), code, True
                continue
            used = np.isin(clients, accepted)
            for name, array in memory.items():
                if name not in touched:
                    self.memory[name] = self._own_copy(name, array)
                    touched.add(name)
                self.memory[name][clients[used]] = array[used]
            self.kind[clients[used]] = code
            self.all_alike = bool((self.kind == self.kind[0]).all())
        self.pending = []
        if self.checkpoint is not None:
            self._keep_memories(number)

    # ------------------------------------------------------------ memories beside a journal

    def _keep_memories(self, number: int) -> None:
        """The memories after a round, so that a resumed run need not compute it again."""
        assert self.checkpoint is not None
        facts = json.dumps({"round": number, "kinds": self.kinds}).encode()
        arrays = {_MEMORY + name: array for name, array in self.memory.items()}
        arrays |= {"kind": self.kind, "facts": np.frombuffer(facts, dtype=np.uint8)}
        write_bytes(self.checkpoint, sealed(arrays), sync=False)

    def _round_of_checkpoint(self) -> int:
        """Up to which round the kept memories reach; 0 if there are none that can be used."""
        if self._covered is None:
            try:
                assert self.checkpoint is not None
                kept = load_arrays(self.checkpoint, seal=True)
                self._covered = int(json.loads(kept["facts"].tobytes())["round"])
                self._kept = kept
            except (*DAMAGE, AssertionError):
                self._covered = 0
        return self._covered

    def _take_memories(self) -> None:
        kept = self._kept
        self.memory = {
            name.removeprefix(_MEMORY): a for name, a in kept.items() if name.startswith(_MEMORY)
        }
        self.kinds = [tuple(kind) for kind in json.loads(kept["facts"].tobytes())["kinds"]]
        self.kind = kept["kind"]
        self.all_alike = bool((self.kind == self.kind[0]).all())
        self._kept = {}

    def _compute_skipped(self) -> None:
        """The kept memories are of a round that the journal lost: compute what led there."""
        skipped, self._skipped = self._skipped, []
        for ask, record in skipped:
            self._compute_again(ask, record)

    def _by_kind(self, who: Indices) -> list[Indices]:
        kind = self.kind[who]
        return [who[kind == code] for code in np.unique(kind)]

    def _kind_of(self, names: tuple[str, ...]) -> int:
        if names not in self.kinds:
            self.kinds.append(names)
        return self.kinds.index(names)

    def _own_copy(self, name: str, array: Any) -> Any:
        """Room for every client, holding what is there; never an array a function still has."""
        fresh = np.zeros((len(self.kind), *array.shape[1:]), array.dtype)
        kept = self.memory.get(name)
        if kept is not None:
            if kept.shape != fresh.shape:
                raise ProtocolError(f"memory {name!r} has another shape at some clients")
            fresh[:] = kept
        return fresh

    def deliver(self, result: Any) -> None:
        """Everybody's model is where the result is."""

    def finish(self) -> Faults:
        """Nothing is left to acknowledge in one process."""
        self._compute_skipped()
        return {}

    def replay(self, ask: Ask, record: Record) -> None:
        """Take a round of the journal: from the kept memories, else by computing it again."""
        covered = self._round_of_checkpoint()
        if record.number > covered:
            self._compute_skipped()
            self._compute_again(ask, record)
        elif record.number == covered:
            self._skipped = []
            self._take_memories()
        else:
            self._skipped.append((ask, record))

    def _compute_again(self, ask: Ask, record: Record) -> None:
        """Compute a round again, to rebuild memories and to see that nothing has changed."""
        step = self.algorithm.step(ask.step)
        answers, faults = self._answers(record.number, ask, record.asked)
        clean = [answer.clean for answer in answers if answer.clean is not None]
        again = merged(step.replies(ask.fields), clean, step.dims(ask), faults)
        if again is None or not _holds(again.clients, again.arrays, record):
            raise ProtocolError(
                f"round {record.number} gives other numbers than the journal has; the data or the "
                "code changed since: start a new run folder"
            )
        self.settle(record.number, record.replies.clients)

    def memories(self) -> Memory:
        return self.memory if self.kind.any() else None

    # ------------------------------------------------------------ one round, block by block

    def _answers(self, number: int, ask: Ask, asked: Indices) -> tuple[list[Answer], Faults]:
        """Everybody's answers, block by block, and what is wrong with single clients'."""
        answers: list[Answer] = []
        faults: Faults = {}
        for b, block in enumerate(self.blocks):
            who = asked if len(self.blocks) == 1 else np.intersect1d(asked, block)
            # A function gets clients with memory of one kind, or clients without any.
            for part in [who] if self.all_alike else self._by_kind(who):
                if len(part):
                    self._call(number, ask, b, part, answers, faults)
        self.pending = [(answer.clients, answer.memory) for answer in answers]
        return answers, faults

    def _guarded(self, ask: Ask, answer: Answer, faults: Faults) -> Answer:
        """The answer without the clients whose own rules withhold it."""
        assert self.guards is not None
        if answer.clean is None:
            return answer
        clients, arrays = answer.clean
        step, asked = self.algorithm.step(ask.step), digest(ask)
        behind = self._behind(answer)
        found: Faults = {}
        released: dict[int, Arrays] = {}
        for i, k in enumerate(map(int, clients)):
            own: Arrays = {name: array[i : i + 1] for name, array in arrays.items()}
            sent = {**ask.common, **{name: array[k] for name, array in ask.personal.items()}}
            guard = self.guards[k]
            fault = Fault(Reason.TRUST) if step.trusts else None
            fault = fault or guard.question(ask.step, asked, step.most)
            if fault is None:
                own, fault = guard.release(
                    step.replies(ask.fields), own, behind.get(k), sent, step.cuts
                )
                released[k] = own
            if fault is not None:
                found[k] = fault
        faults.update(found)
        here = np.array([int(k) not in found for k in clients])
        out = [released[int(k)] for k in clients[here]]
        kept = {name: np.concatenate([own[name] for own in out]) for name in arrays if out}
        clean = (clients[here], kept) if here.any() else None
        left = {name: np.array(array) for name, array in answer.arrays.items()}
        place = np.searchsorted(answer.clients, clients[here])
        for name, array in kept.items():
            left[name][place] = array
        return replace(answer, arrays=left, clean=clean, faults={**answer.faults, **found})

    def _behind(self, answer: Answer) -> dict[int, Mapping[str, Any]]:
        """How much every row counts in the entries, by client."""
        if answer.behind is None:
            return {}
        whole, sizes = answer.behind(), self.federation.sizes[answer.clients]
        ends = np.cumsum(sizes)
        rows = {int(k): slice(e - n, e) for k, e, n in zip(answer.clients, ends, sizes)}
        return {k: _same_once(whole, own) for k, own in rows.items()}

    def _write_down(self, number: int, ask: Ask, answers: Sequence[Answer]) -> None:
        """The ledger of what leaves; a reply that the gate withholds for its few rows does not."""
        if self.ledger is None:
            return
        for answer in answers:
            held = {k for k, f in answer.faults.items() if f.reason in WITHHELD}
            leaves = np.array([int(k) not in held for k in answer.clients])
            sites = [self.federation.names[k] for k in answer.clients[leaves]]
            sent = {name: np.asarray(array) for name, array in answer.arrays.items()}
            if held:
                sent = {name: array[leaves] for name, array in sent.items()}
            if sites:
                self.ledger.record(self.algorithm.name, number, ask.step, sites, sent)

    def _call(
        self,
        number: int,
        ask: Ask,
        b: int,
        who: Indices,
        answers: list[Answer],
        faults: Faults,
    ) -> None:
        """Ask `who`; if the function fails, halve until the culprits stand alone."""
        try:
            answer = self._answer(number, ask, b, who)
        except ProtocolError:
            raise
        except Exception as error:
            self.last_error = error
            if len(who) == 1:
                faults[int(who[0])] = Fault(Reason.ERROR)
                return
            for half in np.array_split(who, 2):
                self._call(number, ask, b, half, answers, faults)
            return
        answers.append(answer)
        faults.update(answer.faults)

    def _answer(self, number: int, ask: Ask, b: int, who: Indices) -> Answer:
        block = self.blocks[b]
        local = None if len(who) == len(block) else who - block[0]
        clients = self.data[b] if local is None else self.data[b].take(local)
        cache = self.caches[b] if local is None else take_clients(self.caches[b], local)
        everyone = len(who) == len(self.kind)
        memory = None
        if self.kind[who[0]]:
            names = self.kinds[self.kind[who[0]]]
            memory = {n: self.memory[n] if everyone else self.memory[n][who] for n in names}
        if ask.personal and not everyone:
            ask = replace(ask, personal={n: array[who] for n, array in ask.personal.items()})
        keys = self.ring.at(number, None if everyone else who)
        least = self.engine.least_rows
        return self.algorithm.answer(ask, clients, cache, self.settings, memory, keys, who, least)


def _same_once(whole: Mapping[str, Any], rows: slice) -> dict[str, Any]:
    """Some rows of arrays; what is one array under two names stays one."""
    cut = {id(array): array[rows] for array in whole.values()}
    return {name: cut[id(array)] for name, array in whole.items()}


def _holds(clients: Indices, arrays: Arrays, record: Record) -> bool:
    """Whether recomputed replies contain the recorded ones to the last bit."""
    place = np.searchsorted(clients, record.replies.clients)
    if len(place) and (place[-1] >= len(clients)):
        return False
    if not np.array_equal(clients[place], record.replies.clients):
        return False
    return all(np.array_equal(arrays[n][place], a) for n, a in record.replies.items())
