"""The rules at work in one run of one site."""

from __future__ import annotations

import json
import logging
from functools import cached_property
from pathlib import Path
from typing import Any

from fedkin.arrays import Arrays
from fedkin.durable import write_bytes
from fedkin.federation import Federation
from fedkin.privacy.disclosure.history import Released
from fedkin.privacy.disclosure.look import Look, examine, examine_all
from fedkin.privacy.disclosure.rules import DEFAULT_RULES, DisclosureRules, judge
from fedkin.protocol import Fault, Reason, Schema

logger = logging.getLogger("fedkin.site")

# Characters of a question's digest that tell it from others.
_SHORT = 16


class Foresight:
    """Which sites would withhold under the default rules, looked at when somebody asks.

    Holds the rows until then, and never travels with them.
    """

    def __init__(self, clients: Federation, schema: Schema) -> None:
        self._clients: Federation | None = clients
        self._schema = schema
        self._found: dict[str, Fault] = {}

    def found(self) -> dict[str, Fault]:
        """Sites by the rule that would withhold them."""
        clients, self._clients = self._clients, None
        if clients is not None:
            looks = zip(clients.names, examine_all(clients))
            judged = {name: judge(DEFAULT_RULES, look, self._schema, {}) for name, look in looks}
            self._found = {name: fault for name, fault in judged.items() if fault is not None}
        return self._found

    def __getstate__(self) -> dict[str, Any]:
        return {"_clients": None, "_schema": {}, "_found": self.found()}


class Guard:
    """Says of every reply whether it may leave, and counts the questions of a run."""

    def __init__(
        self,
        rules: DisclosureRules,
        clients: Federation,
        folder: Path | None = None,
        released: Released | None = None,
    ) -> None:
        self.rules, self.clients, self.released = rules, clients, released
        self._kept = False
        self._told: set[Fault] = set()
        self._count_file = None if folder is None else folder / "questions.json"
        self._asked = self._kept_questions()

    @cached_property
    def look(self) -> Look:
        """What the site's rows would give away."""
        return examine(self.clients.X, self.clients.y)

    @cached_property
    def _differs_by(self) -> int:
        return self.look.n_rows if self.released is None else self.released.closest(self.clients)

    def question(self, step: str, digest: str) -> Fault | None:
        """Count a question before anything is computed; the same one once more counts once."""
        asked = self._asked.setdefault(step, [])
        short = digest[:_SHORT]
        if short in asked:
            return None
        total = 1 + sum(map(len, self._asked.values()))
        if total > self.rules.questions or len(asked) >= self.rules.questions_per_step:
            logger.warning("question %d of the run, step %s: over the budget", total, step)
            return Fault(Reason.BUDGET)
        asked.append(short)
        if self._count_file is not None:
            write_bytes(self._count_file, json.dumps(self._asked).encode(), sync=False)
        return None

    def reply(self, schema: Schema, arrays: Arrays) -> Fault | None:
        """Whether a reply may leave: None, or the rule that withholds it."""
        fault = judge(self.rules, self.look, schema, arrays)
        if fault is None and self.rules.differencing and self._reveals(schema):
            fault = self._differenced()
        if fault is not None and fault not in self._told:
            self._told.add(fault)
            logger.warning("withheld: %s (%s)", fault, self.look)
        return fault

    def _reveals(self, schema: Schema) -> bool:
        return any(field.reveals not in ("nothing", "count") for field in schema.values())

    def _differenced(self) -> Fault | None:
        if self.released is None:
            return None
        if self._differs_by < self.rules.nfilter_subset:
            return Fault(Reason.DIFFERENCE)
        if not self._kept:
            self.released.keep(self.clients)
            self._kept = True
        return None

    def _kept_questions(self) -> dict[str, list[str]]:
        try:
            if self._count_file is not None and self._count_file.exists():
                return {
                    str(k): list(v) for k, v in json.loads(self._count_file.read_text()).items()
                }
        except (ValueError, AttributeError, TypeError):
            logger.warning("%s is damaged; questions are counted anew", self._count_file)
        return {}
