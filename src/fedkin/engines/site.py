"""A real site's half of any engine: answer, remember, keep the ledger.

Memory lives on the site's own disk. A step's new memory is written, tagged with its round, before
the reply leaves; it counts once a later question acknowledges that reply, and is thrown away if
the question acknowledges another. So a lost reply equals "this client skipped the round", and a
repeated question gets the same answer.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedkin.arrays import Array, Arrays
from fedkin.durable import load_arrays, move, save_arrays
from fedkin.federation import Federation
from fedkin.privacy.ledger import Ledger
from fedkin.protocol import Algorithm, Ask, Fault, Memory, Reason
from fedkin.randomness import KeyRing
from fedkin.settings import Settings

logger = logging.getLogger("fedkin.site")

_TAG = "__round__"
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class SiteMemory:
    """Committed and offered memory of one run, each a file that exists whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.committed = folder / "committed.npz"
        self.offered = folder / "offered.npz"
        folder.mkdir(parents=True, exist_ok=True)

    def acknowledge(self, number: int) -> bool:
        """Keep what was offered with round `number`; anything else that was offered is void.

        False if the memory that counts then belongs to another round than the server thinks. A
        site without any (it missed the start, or lost its disk) joins afresh.
        """
        if _tag(self.offered) == number > 0:
            move(self.offered, self.committed)
        else:
            self.offered.unlink(missing_ok=True)
        mine = _tag(self.committed)
        if mine is None and number > 0:
            logger.warning("the memory of round %d is gone; the site joins afresh", number)
        return mine is None or mine == number

    def read(self) -> Memory:
        """The memory that counts, None if there is none."""
        stored = _load(self.committed)
        if stored is None:
            return None
        return {name: array for name, array in stored.items() if name != _TAG} or None

    def offer(self, number: int, memory: Memory) -> None:
        """Write down the memory that goes with the reply of round `number`, if only its tag."""
        save_arrays(self.offered, {**(memory or {}), _TAG: np.array(number)})


def site_memory(state: str | Path, run: str) -> Memory:
    """What a site remembers of a finished run, for the site itself: its group, its weights."""
    return SiteMemory(Path(state) / check_run_name(run)).read()


def check_run_name(run: str) -> str:
    """A run's name is also a folder's: plain letters, digits, '_', '.' and '-' only."""
    if not RUN_NAME.fullmatch(run) or run == "ledger":
        raise ValueError(f"{run!r} cannot be the name of a run")
    return run


def _tag(path: Path) -> int | None:
    stored = _load(path)
    return None if stored is None else int(stored[_TAG])


def _load(path: Path) -> dict[str, Array] | None:
    return load_arrays(path) if path.exists() else None


@dataclass(frozen=True)
class Departure:
    """What leaves the site: arrays, or the one word about why they do not."""

    arrays: Arrays
    fault: Fault | None = None


class SiteHalf:
    """One client, its data and its memory, answering the questions of one run.

    `settings` are those that sites get to see (`Settings.at_site`, `Settings.for_sites`).
    """

    def __init__(
        self,
        algorithm: Algorithm,
        settings: Settings,
        clients: Federation,
        seed: int,
        run: str,
        state: str | Path,
        least_rows: int = 0,
    ) -> None:
        if clients.n_clients != 1:
            raise ValueError(f"a site holds one client, not {clients.n_clients}")
        self.algorithm, self.clients, self.run = algorithm, clients, run
        self.settings = settings
        self.least_rows = least_rows
        self.cache = algorithm.prepare(clients, settings)
        self.ring = KeyRing(clients.names, seed)
        self.memory = SiteMemory(Path(state) / check_run_name(run))
        self.ledger = Ledger(Path(state) / "ledger")
        self._latest = 0

    def answer(self, number: int, ask: Ask, acknowledged: int) -> Departure:
        """Answer one question; whatever goes wrong leaves as a word, its story stays here."""
        if number < self._latest:
            # An old question that was waiting behind a newer one: nobody waits for its answer.
            return Departure({}, Fault(Reason.LATE))
        self._latest = number
        try:
            return self._answer(number, ask, acknowledged)
        except Exception:
            logger.exception("round %d, step %s", number, ask.step)
            return Departure({}, Fault(Reason.ERROR))

    def _answer(self, number: int, ask: Ask, acknowledged: int) -> Departure:
        if not self.memory.acknowledge(acknowledged):
            return Departure({}, Fault(Reason.MEMORY))
        answer = self.algorithm.answer(
            ask,
            self.clients,
            self.cache,
            self.settings,
            self.memory.read(),
            self.ring.at(number),
            least_rows=self.least_rows,
        )
        names, fault = self.clients.names, answer.faults.get(0)
        if fault is not None:
            self.ledger.record(self.run, number, ask.step, names, {}, withheld=fault.reason)
            return Departure({}, fault)
        self.memory.offer(number, answer.memory)
        self.ledger.record(self.run, number, ask.step, names, answer.arrays)
        return Departure(answer.arrays)

    def finish(self, acknowledged: int) -> None:
        """The run is over: what went with the last accepted reply counts."""
        self.memory.acknowledge(acknowledged)
