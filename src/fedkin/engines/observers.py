"""Who looks on while a run goes: told when it begins, after every round, and when it ends.

Observers see counts, bytes and what the server computed; no reply of a site, and no site's name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.protocol import Ask, Run, Traffic

logger = logging.getLogger("fedkin")

_HISTORY = "history_"


@dataclass(frozen=True)
class Beginning:
    """What is known of a run before its first round."""

    algorithm: str
    settings: Mapping[str, Any]
    n_sites: int
    seed: int


@dataclass(frozen=True)
class Round:
    """One closed round; a resumed run tells those of its journal again."""

    number: int
    step: str
    note: str
    asked: int
    answered: int
    missing: int
    bytes_up: int
    bytes_down: int

    def numbers(self) -> dict[str, int]:
        """What can be drawn over the rounds, by name."""
        return {
            "sites_asked": self.asked,
            "sites_answered": self.answered,
            "replies_missing": self.missing,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }


class Observer:
    """Looks on; a subclass says what it does at which moment."""

    def begin(self, beginning: Beginning) -> None:
        """A run begins."""

    def round(self, seen: Round) -> None:
        """A round was closed."""

    def end(self, run: Run) -> None:
        """The run has its result."""

    def fail(self, error: BaseException) -> None:
        """The run broke off."""


class Audience:
    """All observers of one run; one that fails is named and not told any more."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._here = list(observers)
        self._before = (0, 0, 0, 0)

    @contextmanager
    def watching(self, beginning: Beginning) -> Iterator[None]:
        """Tell that a run begins, and if it breaks off."""
        self._tell(lambda observer: observer.begin(beginning))
        try:
            yield
        except BaseException as error:
            broken = error
            self._tell(lambda observer: observer.fail(broken))
            raise

    def round(self, ask: Ask, n_asked: int, traffic: Traffic) -> None:
        """Tell of a round that was just counted."""
        if not self._here:
            return
        now = (traffic.messages_up, traffic.refused, traffic.bytes_up, traffic.bytes_down)
        grown = [new - old for new, old in zip(now, self._before)]
        self._before = now
        seen = Round(traffic.rounds, ask.step, ask.note, n_asked, *grown)
        self._tell(lambda observer: observer.round(seen))

    def end(self, run: Run) -> None:
        """Tell of the result."""
        self._tell(lambda observer: observer.end(run))

    def _tell(self, what: Callable[[Observer], None]) -> None:
        for observer in list(self._here):
            try:
                what(observer)
            except Exception as error:  # whoever looks on must not cost the run
                self._here.remove(observer)
                name = type(observer).__name__
                logger.warning("%s failed and is not told any more: %s", name, error)


def final_numbers(run: Run) -> dict[str, float]:
    """Single numbers of a result, and rounds and bytes, by name."""
    single = {name: array for name, array in run.result.items() if np.ndim(array) == 0}
    numbers = {name: float(a) for name, a in single.items() if np.asarray(a).dtype.kind in "fiub"}
    traffic = {"rounds": run.traffic.rounds, "total_bytes_up": run.traffic.bytes_up}
    found = {**numbers, **{name: float(n) for name, n in traffic.items()}}
    return {name: value for name, value in found.items() if np.isfinite(value)}


def histories(run: Run) -> dict[str, list[float]]:
    """The search of the server step by step, as far as a result keeps it, by name."""
    found = {n.removeprefix(_HISTORY): a for n, a in run.result.items() if n.startswith(_HISTORY)}
    lines = {name: np.asarray(a, dtype=float) for name, a in found.items() if np.ndim(a) == 1}
    return {name: line[np.isfinite(line)].tolist() for name, line in lines.items()}
