"""A real site's half of any engine: answer, remember, keep the ledger.

Memory lives on the site's own disk. A step's new memory is written, tagged with its round, before
the reply leaves; it counts once a later question acknowledges that reply, and is thrown away if
the question acknowledges another. So a lost reply equals "this client skipped the round", and a
repeated question gets the same answer. The memory before the one that counts is kept, so that a
site can go back one round: for a server that lost its last record, or to compute a damaged memory
again from the question that led to it.
"""

from __future__ import annotations

import json
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedkin
from fedkin.arrays import Array, Arrays
from fedkin.durable import (
    DAMAGE,
    load_arrays,
    move,
    open_private,
    own_salt,
    private_folder,
    save_arrays,
    write_bytes,
)
from fedkin.engines.journal import data_fingerprint, digest, encode
from fedkin.engines.site_data import CannotTakePart, fault_of
from fedkin.engines.site_report import MODEL_FILE, REPORT_FILE, site_report
from fedkin.federation import Federation
from fedkin.privacy.disclosure import DisclosureRules, Guard, Released
from fedkin.privacy.ledger import DRY_RUN, Ledger
from fedkin.privacy.policy import SitePolicy
from fedkin.protocol import Algorithm, Answer, Ask, Fault, Memory, Reason, Schema
from fedkin.randomness import KeyRing
from fedkin.settings import Settings

logger = logging.getLogger("fedkin.site")

_TAG = "__round__"
MODEL_NAME = re.compile(r"(shared|own)\.[a-z_]{1,60}")
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
# Names in a site's folder that are no runs.
_TAKEN = ("ledger", "lock", "salt", "released", "approved")
# A site whose process died so often in one run, without an answer between, steps aside.
MOST_DEATHS = 3


class SiteMemory:
    """Committed, earlier and offered memory of one run, each a sealed file, whole or not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = private_folder(folder)
        self.committed = folder / "committed.npz"
        self.earlier = folder / "earlier.npz"
        self.offered = folder / "offered.npz"
        # What the memory that counts holds, once it was read.
        self._read: dict[str, Array] | None = None

    def acknowledge(self, number: int) -> Fault | None:
        """Keep what was offered with round `number`; anything else that was offered is void.

        A fault if the memory that counts then belongs to another round than the server thinks.
        """
        self._read = None
        offered = _load(self.offered) if number > 0 else None
        if offered is not None and _tag(offered) == number:
            if self.committed.exists():
                move(self.committed, self.earlier)
            move(self.offered, self.committed)
            self._read = offered
            return None
        self.offered.unlink(missing_ok=True)
        if number == 0:
            return self._start_again()
        mine = _load(self.committed)
        if _tag(mine) == number:
            self._read = mine
            return None
        if _tag(_load(self.earlier)) == number:
            # The server, or a damaged file here, is a round behind.
            move(self.earlier, self.committed)
            return None
        if mine is None:
            logger.error(
                "the memory of round %d in %s is lost or damaged; the server may repeat its "
                "question, else restore the folder from a backup or leave this run",
                number,
                self.folder,
            )
            return Fault(Reason.DAMAGED)
        return Fault(Reason.MEMORY)

    def _start_again(self) -> Fault | None:
        """The server knows of no reply of ours: right for who never sent one that counted."""
        if _load(self.committed) is None:
            return None
        if _load(self.earlier) is None:
            move(self.committed, self.committed.with_suffix(".undone"))
            return None
        return Fault(Reason.MEMORY)

    def read(self) -> Memory:
        """The memory that counts, None if there is none."""
        stored = _load(self.committed) if self._read is None else self._read
        if stored is None:
            return None
        return {name: array for name, array in stored.items() if name != _TAG} or None

    def offer(self, number: int, memory: Memory) -> None:
        """Write down the memory that goes with the reply of round `number`, if only its tag."""
        save_arrays(self.offered, {**(memory or {}), _TAG: np.array(number)})


def site_memory(state: str | Path, run: str) -> Memory:
    """What a site remembers of a finished run, for the site itself: its group, its weights."""
    return SiteMemory(Path(state) / check_run_name(run)).read()


def site_model(state: str | Path, run: str) -> dict[str, Array]:
    """A site's model of a finished run: `shared.*`, `own.*` and `memory.*`, for the site itself."""
    return load_arrays(Path(state) / check_run_name(run) / MODEL_FILE, seal=True)


def _is_model(name: str, array: Any) -> bool:
    """Whether the server sent what a model is made of: named numbers."""
    numbers = isinstance(array, np.ndarray) and array.dtype.kind in "fiub"
    return numbers and bool(MODEL_NAME.fullmatch(name))


def check_run_name(run: str) -> str:
    """A run's name is also a folder's: plain letters, digits, '_', '.' and '-' only."""
    if not RUN_NAME.fullmatch(run) or run in _TAKEN:
        raise ValueError(f"{run!r} cannot be the name of a run")
    return run


def _tag(stored: Arrays | None) -> int | None:
    return None if stored is None else int(stored[_TAG])


def _load(path: Path) -> dict[str, Array] | None:
    """What a file of memory holds; a damaged one is set aside and counts as not there."""
    if not path.exists():
        return None
    try:
        stored = load_arrays(path, seal=True)
        if stored[_TAG].shape == ():
            return stored
    except DAMAGE:
        logger.exception("%s is damaged and set aside", path)
    os.replace(path, path.with_suffix(".damaged"))
    return None


@dataclass(frozen=True)
class Departure:
    """What leaves the site: arrays, or the one word about why they do not."""

    arrays: Arrays
    fault: Fault | None = None


class Deaths:
    """How often the site's process died at work on a run, without an answer between."""

    def __init__(self, folder: Path) -> None:
        self.count_file, self.busy_file = folder / "deaths", folder / "busy"
        private_folder(folder)

    def begin(self) -> int:
        """A process opens the run: how often one died here before it."""
        count = self._count()
        if self.busy_file.exists():
            count += 1
            write_bytes(self.count_file, str(count).encode())
        self.idle()
        return count

    def busy(self) -> None:
        """From now on an end of the process is a death."""
        open_private(self.busy_file, "wb").close()

    def idle(self) -> None:
        """From now on it is not."""
        self.busy_file.unlink(missing_ok=True)

    def answered(self) -> None:
        """Work was done: whatever ended the process before does not always do so."""
        self.idle()
        self.count_file.unlink(missing_ok=True)

    def _count(self) -> int:
        try:
            return int(self.count_file.read_text())
        except (OSError, ValueError):
            return 0


class SiteHalf:
    """One client, its data and its memory, answering the questions of one run.

    `settings` are those that sites get to see (`Settings.at_site`, `Settings.for_sites`).
    `disclosure` are the rules by which replies are withheld; None withholds by `least_rows` only.
    `policy` is the site's own, its disclosure rules included.
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
        disclosure: DisclosureRules | None = None,
        policy: SitePolicy | None = None,
    ) -> None:
        if clients.n_clients != 1:
            raise ValueError(f"a site holds one client, not {clients.n_clients}")
        self.algorithm, self.clients, self.run = algorithm, clients, run
        self.settings, self.seed = settings, seed
        self.least_rows = least_rows
        folder = private_folder(Path(state) / check_run_name(run))
        self._same_run(folder, Path(state), seed)
        self.policy = policy or SitePolicy(disclosure=disclosure)
        disclosure = self.policy.disclosure
        self.guard: Guard | None = None
        if disclosure is not None:
            # Of a dry run nothing leaves: there is nothing to remember of it.
            dry, salt = self.policy.dry_run, own_salt(Path(state))
            released = Released(Path(state) / "released", salt, keeps=not dry)
            self.guard = Guard(disclosure, clients, None if dry else folder, released)
        self.deaths = Deaths(folder)
        self.cache = algorithm.prepare(clients, settings)
        self.ring = KeyRing(clients.names, seed)
        self.memory = SiteMemory(folder)
        self.ledger = Ledger(Path(state) / "ledger")
        # The latest round that was asked, and the one whose memory was found damaged.
        self._latest = 0
        self._damaged_at = 0

    def _same_run(self, folder: Path, state: Path, seed: int) -> None:
        """Keep what the run is about, or see that it is still the same: data, columns, settings."""
        about = {
            "algorithm": self.algorithm.name,
            "settings": encode(self.settings.to_mapping()),
            "features": list(self.clients.feature_names),
            "seed": int(seed),
            "version": fedkin.__version__,
            "data": data_fingerprint(self.clients, own_salt(state)),
        }
        about = json.loads(json.dumps(about))
        path = folder / "run.json"
        if not path.exists():
            write_bytes(path, json.dumps(about, indent=1).encode())
            return
        try:
            kept: dict[str, Any] = dict(json.loads(path.read_text()))
        except ValueError:
            raise CannotTakePart(
                Fault(Reason.DAMAGED), f"{path} is damaged: restore it or leave this run"
            ) from None
        different = [name for name in about if kept.get(name) != about[name]]
        if different:
            raise CannotTakePart(
                Fault(Reason.CHANGED, different[0]),
                f"{', '.join(different)} changed since run {self.run!r} began ({path})",
            )

    def answer(self, number: int, ask: Ask, acknowledged: int) -> Departure:
        """Answer one question; whatever goes wrong leaves as a word, its story stays here."""
        if number < self._latest and not self._goes_back(number, acknowledged):
            # An old question that was waiting behind a newer one: nobody waits for its answer.
            return Departure({}, Fault(Reason.LATE))
        self._latest = number
        try:
            return self._answer(number, ask, acknowledged)
        except Exception as error:
            logger.exception("round %d, step %s", number, ask.step)
            self.deaths.idle()
            return Departure({}, fault_of(error))

    def _goes_back(self, number: int, acknowledged: int) -> bool:
        """Whether the server repeats the question that led to a memory which was damaged here."""
        return self._damaged_at == number and acknowledged < number

    def _answer(self, number: int, ask: Ask, acknowledged: int) -> Departure:
        fault = self.memory.acknowledge(acknowledged)
        if fault is not None:
            self._damaged_at = acknowledged
            return Departure({}, fault)
        self._damaged_at = 0
        schema = self.algorithm.step(ask.step).replies(ask.fields)
        refused = self.policy.refuses_question(self.algorithm.name, ask.step, tuple(schema), number)
        if refused is not None:
            logger.warning("round %d: %s", number, refused)
            return self._withheld(number, ask, Fault(Reason.POLICY), refused)
        if self.guard is not None:
            step = self.algorithm.step(ask.step)
            if step.trusts and not self.policy.trusts(self.algorithm.name, ask.step):
                return self._withheld(number, ask, Fault(Reason.TRUST))
            fault = self.guard.question(ask.step, digest(ask), step.most)
            if fault is not None:
                return self._withheld(number, ask, fault)
        self.deaths.busy()
        answer = self.algorithm.answer(
            ask,
            self.clients,
            self.cache,
            self.settings,
            self.memory.read(),
            self.ring.at(number),
            least_rows=self.least_rows,
        )
        fault, arrays = answer.faults.get(0), answer.arrays
        if fault is None and self.guard is not None:
            arrays, fault = self._released(ask, schema, answer)
        if self.policy.dry_run:
            return self._dry_run(number, ask, arrays, fault)
        if fault is not None:
            why = {} if self.guard is None else self.guard.why
            return self._withheld(number, ask, fault, why.get(fault, ""))
        self.memory.offer(number, answer.memory)
        self.ledger.record(self.run, number, ask.step, self.clients.names, arrays)
        self.deaths.answered()
        return Departure(arrays)

    def _released(self, ask: Ask, schema: Schema, answer: Answer) -> tuple[Arrays, Fault | None]:
        """The reply as the rules let it out, or the rule that does not."""
        assert self.guard is not None
        behind = None if answer.behind is None else answer.behind()
        sent = {**ask.common, **{name: array[0] for name, array in ask.personal.items()}}
        cuts = self.algorithm.step(ask.step).cuts
        return self.guard.release(schema, answer.arrays, behind, sent, cuts)

    def _dry_run(self, number: int, ask: Ask, arrays: Arrays, fault: Fault | None) -> Departure:
        """What would leave is written down beside the ledger; nothing leaves."""
        would = Ledger(self.ledger.folder / DRY_RUN)
        about = (self.run, number, ask.step, self.clients.names)
        if fault is None:
            would.record(*about, arrays)
        else:
            would.record(*about, {}, fault.reason)
        told = f"{', '.join(arrays)} would leave" if fault is None else f"would not leave: {fault}"
        story = f"dry run: {told}"
        logger.warning("round %d: %s (%s)", number, story, would.folder)
        return self._withheld(number, ask, Fault(Reason.POLICY), story)

    def _withheld(self, number: int, ask: Ask, fault: Fault, story: str = "") -> Departure:
        """Nothing leaves, by rule; which one is on record."""
        self.ledger.record(self.run, number, ask.step, self.clients.names, {}, fault.reason, story)
        self.deaths.answered()
        return Departure({}, fault)

    def finish(self, acknowledged: int, model: Arrays | None = None) -> Fault | None:
        """The run is over: what went with the last accepted reply counts, and the model is kept.

        The site's model is the shared part and its own row of the result, as the server sent
        them, and the memory that never left. A fault if that memory is damaged or lost.
        """
        fault = self.memory.acknowledge(acknowledged)
        if fault is not None:
            self._damaged_at = acknowledged
            logger.error("run %s has ended, but what was learnt is lost: %s", self.run, fault)
        arrays = {name: array for name, array in (model or {}).items() if _is_model(name, array)}
        own = {f"memory.{name}": array[0] for name, array in (self.memory.read() or {}).items()}
        save_arrays(self.memory.folder / MODEL_FILE, {**arrays, **own})
        method, state = self.algorithm.name, self.memory.folder.parent
        columns = self.clients.feature_names
        report = site_report(self.run, method, {**arrays, **own}, self.ledger, state, columns)
        write_bytes(self.memory.folder / REPORT_FILE, report.encode())
        return fault
