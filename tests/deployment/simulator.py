"""A deterministic simulator: the real driver and site halves, with faults drawn from one integer.

Sites answer, fall silent, lose replies, hear questions twice, die before, within and after a step,
or have a full disk; the server dies between rounds and within its writes; one file may be damaged.
The disk keeps what was synced; what was not may be lost or torn by a crash. Every schedule ends: it
has so many faults and no more. A schedule is a number, and the same number is the same schedule.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

from fedkin import durable
from fedkin.engines import Journal, Rules, drive, site
from fedkin.engines.driver import SiteLost
from fedkin.engines.link import SiteLink
from fedkin.engines.site import SiteHalf
from fedkin.protocol import Fault, QuorumLost, Reason, Roster, Run
from tests.conformance.cases import CASES, ragged_federation

CASE = next(case for case in CASES if case.name == "consensus_lasso")
DATA = ragged_federation(3)
SETTINGS = CASE.chosen(max_rounds=6, tol=0.0)
SEED = 3
MOST_RESUBMISSIONS = 60
FATES = ("silent", "lost", "twice", "die before", "die after")


class Crash(BaseException):
    """The power is gone: nothing catches it but whoever starts the process again."""


@dataclass
class Schedule:
    """What goes wrong and when, all from one integer."""

    number: int
    faults: int = 0
    rng: np.random.Generator = field(init=False)
    told: list[str] = field(default_factory=list)
    damages: int = 1

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.number)
        self.faults = int(self.rng.integers(0, 9))
        self.disk_rate = float(self.rng.choice([0.0, 0.01, 0.05]))
        self.fate_rate = float(self.rng.choice([0.0, 0.05, 0.2]))
        self.damage_rate = float(self.rng.choice([0.0, 0.1]))

    def happens(self, rate: float, what: str) -> bool:
        """Whether a fault happens here; each is written down."""
        if self.faults <= 0 or self.rng.random() >= rate:
            return False
        self.faults -= 1
        self.told.append(what)
        return True


class Disk:
    """Writes that a crash may cut short, and the unsynced ones that it may lose or tear."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.unsynced: dict[Path, bytes | None] = {}
        self._write, self._move = durable.write_bytes, durable.move

    def write(self, path: Path, content: bytes, sync: bool = True, rights: int = 0o600) -> None:
        if self.schedule.happens(self.schedule.disk_rate, f"crash at write of {path.name}"):
            cut = int(self.schedule.rng.integers(0, len(content) + 1))
            path.with_name(path.name + ".part").write_bytes(content[:cut])
            raise Crash(str(path))
        if self.schedule.happens(self.schedule.disk_rate / 2, f"disk full at {path.name}"):
            raise OSError(errno.ENOSPC, "no space left")
        if not sync:
            self.unsynced.setdefault(path, path.read_bytes() if path.exists() else None)
        self._write(path, content, sync, rights)
        if self.schedule.happens(self.schedule.disk_rate, f"crash after write of {path.name}"):
            raise Crash(str(path))

    def move(self, source: Path, target: Path) -> None:
        if self.schedule.happens(self.schedule.disk_rate, f"crash before move to {target.name}"):
            raise Crash(str(target))
        self._move(source, target)
        if self.schedule.happens(self.schedule.disk_rate, f"crash after move to {target.name}"):
            raise Crash(str(target))

    def lose(self, folder: Path) -> None:
        """A crash: unsynced writes below a folder are kept, undone or torn, each by lot."""
        for path in [path for path in self.unsynced if folder in path.parents]:
            before = self.unsynced.pop(path)
            what = self.schedule.rng.integers(0, 3)
            if what == 1:
                path.unlink(missing_ok=True)
                if before is not None:
                    path.write_bytes(before)
            elif what == 2 and path.exists():
                content = path.read_bytes()
                path.write_bytes(content[: int(self.schedule.rng.integers(0, len(content) + 1))])

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Everything that durable writes goes over this disk."""
        with (
            mock.patch.object(durable, "write_bytes", self.write),
            mock.patch.object(durable, "move", self.move),
            mock.patch.object(site, "write_bytes", self.write),
            mock.patch.object(site, "move", self.move),
            mock.patch("fedkin.engines.journal.write_bytes", self.write),
        ):
            yield


class SimLink(SiteLink):
    """The way to three site halves over which a schedule rules."""

    def __init__(self, folder: Path, schedule: Schedule, disk: Disk) -> None:
        super().__init__(Roster(DATA.names, SEED))
        self.folder, self.schedule, self.disk = folder, schedule, disk
        self.halves: dict[int, SiteHalf] = {}

    def half(self, k: int) -> SiteHalf:
        if k not in self.halves:
            clients, state = DATA.take(np.array([k])), self.folder / DATA.names[k]
            own = SETTINGS.for_sites()
            self.halves[k] = SiteHalf(CASE.algorithm, own, clients, SEED, "run", state)
        return self.halves[k]

    def put(self, questions):
        batches, failed = [], {}
        for k, question in questions.items():
            try:
                leaves = self._ask(k, question)
            except Crash:
                self._die(k)
                leaves = None
            except OSError as error:  # a site that cannot even be opened
                assert error.errno == errno.ENOSPC
                leaves = None
            if leaves is None:
                failed[k] = Fault(Reason.LATE)
            elif leaves.fault is not None:
                failed[k] = leaves.fault
            else:
                batches.append((np.array([k]), leaves.arrays))
        if self.schedule.happens(self.schedule.fate_rate / 4, "server dies"):
            raise Crash("server")
        return batches, failed

    def _ask(self, k, question):
        schedule, name = self.schedule, DATA.names[k]
        fate = ""
        if schedule.happens(schedule.fate_rate, "fate"):
            fate = str(schedule.rng.choice(FATES))
            schedule.told[-1] = f"round {question.number}, {name}: {fate}"
        if fate == "silent":
            return None
        if fate == "die before":
            self._die(k)
        self._damage(k)
        half = self.half(k)
        leaves = half.answer(question.number, question.ask, question.acknowledged)
        if fate == "twice":
            leaves = half.answer(question.number, question.ask, question.acknowledged)
        if fate == "die after":
            self._die(k)
        return None if fate == "lost" else leaves

    def _damage(self, k):
        """One flipped byte in one file of a site's memory, once in a schedule."""
        files = sorted((self.folder / DATA.names[k] / "run").glob("*ed.npz"))
        schedule = self.schedule
        if not files or not schedule.damages or schedule.rng.random() >= schedule.damage_rate:
            return
        schedule.damages -= 1
        path = files[int(schedule.rng.integers(len(files)))]
        content = bytearray(path.read_bytes())
        content[int(schedule.rng.integers(len(content)))] ^= 1 << int(schedule.rng.integers(8))
        path.write_bytes(content)
        schedule.told.append(f"{DATA.names[k]}: {path.name} damaged")
        self.halves.pop(k, None)

    def _die(self, k):
        self.halves.pop(k, None)
        self.disk.lose(self.folder / DATA.names[k])

    def end(self, ends):
        failed = {}
        for k, end in ends.items():
            try:
                fault = self._tell_end(k, end)
            except Crash:
                self._die(k)
                fault = Fault(Reason.LATE)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                fault = Fault(Reason.DISK)
            if fault is not None:
                failed[k] = fault
        if self.schedule.happens(self.schedule.fate_rate / 4, "server dies at the end"):
            raise Crash("server")
        return failed

    def _tell_end(self, k, end):
        schedule, name = self.schedule, DATA.names[k]
        fate = ""
        if schedule.happens(schedule.fate_rate, "fate"):
            fate = str(schedule.rng.choice(FATES))
            schedule.told[-1] = f"end, {name}: {fate}"
        if fate == "die before":
            self._die(k)
        if fate in ("silent", "die before"):
            return Fault(Reason.LATE)
        self._damage(k)
        half = self.half(k)
        fault = half.finish(end.acknowledged, end.model)
        if fate == "twice":
            fault = half.finish(end.acknowledged, end.model)
        if fate == "die after":
            self._die(k)
        return Fault(Reason.LATE) if fate in ("lost", "die after") else fault


def simulate(number: int, folder: Path, on_loss: str = "wait") -> tuple[Run, Schedule]:
    """One schedule to its end: the run, and what went wrong on the way."""
    schedule = Schedule(number)
    disk = Disk(schedule)
    rules = Rules(on_loss=on_loss, quorum=0.3)
    with disk.in_use():
        for _ in range(MOST_RESUBMISSIONS):
            link = SimLink(folder / "sites", schedule, disk)
            journal = Journal(folder / "run")
            try:
                journal.open({"algorithm": CASE.name, "seed": SEED}, {})
                run = drive(CASE.algorithm, SETTINGS, link.roster, link, rules, journal, False)
                return run, schedule
            except (SiteLost, QuorumLost, Crash):
                disk.lose(folder / "run")
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
            finally:
                journal.close()
    raise AssertionError(f"schedule {number} did not end: {schedule.told}")


def clear(folder: Path) -> None:
    """Remove what a schedule left."""
    shutil.rmtree(folder, ignore_errors=True)
