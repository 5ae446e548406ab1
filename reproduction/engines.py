"""Engines of one process for studies: sites that lie, and a server that is watched.

Both stand where any engine stands, `FedGrEM(engine=...)`, and change the algorithm they are given
before it runs: nothing of an algorithm's settings or results is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedkin import InProcess

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Lying:
    """All sites in this process, some of which alter what they send.

    `change` is given the field of everybody's reply (m, ...) and who lies, and returns it altered;
    replies without the field go unaltered.
    """

    sites: Collection[str]
    field: str
    change: Callable[[np.ndarray, Sequence[int]], np.ndarray]

    def run(self, algorithm: Any, *rest: Any) -> Any:
        """Run with liars in every step."""
        steps = {name: self._spoilt(step) for name, step in algorithm.steps.items()}
        return InProcess(progress=False).run(replace(algorithm, steps=steps), *rest)

    def _spoilt(self, step: Any) -> Any:
        def function(clients: Any, *rest: Any, **more: Any) -> Any:
            reply, memory = step.function(clients, *rest, **more)
            who = [k for k, name in enumerate(clients.names) if name in self.sites]
            if self.field in reply:
                reply = {**reply, self.field: self.change(reply[self.field], who)}
            return reply, memory

        return replace(step, function=function)


class Enough(Exception):
    """What a watcher raises to end a run: it has seen what it wanted."""


@dataclass(frozen=True)
class Watched:
    """All sites in this process; `see` is shown every reply and the question that follows it."""

    see: Callable[[Any, Any], None]

    def run(self, algorithm: Any, *rest: Any) -> Any:
        """Run with the server watched."""

        def program(*given: Any) -> Any:
            inner = algorithm.program(*given)
            ask = next(inner)
            while True:
                replies = yield ask
                try:
                    ask = inner.send(replies)
                except StopIteration as end:
                    return end.value
                self.see(replies, ask)

        return InProcess(progress=False).run(replace(algorithm, program=program), *rest)
