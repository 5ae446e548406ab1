"""The rules at work in one run of one site."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.arrays import Array, Arrays, Bools, Floats
from fedkin.durable import write_bytes
from fedkin.federation import Federation
from fedkin.models.folds import rows_where
from fedkin.privacy.disclosure.history import Released
from fedkin.privacy.disclosure.look import Look, Table, examine_all
from fedkin.privacy.disclosure.parts import Parts
from fedkin.privacy.disclosure.rules import DEFAULT_RULES, DisclosureRules, in_words, judge
from fedkin.protocol import CUT, MISFIT, Fault, Field, Reason, Schema

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
        self._cut_kept = False
        self._told: set[Fault] = set()
        self.why: dict[Fault, str] = {}
        """What rules saw that withheld something, for the site alone."""
        self._count_file = None if folder is None else folder / "questions.json"
        self._asked = self._kept_questions()

    @cached_property
    def _table(self) -> Table:
        return Table(self.clients.X, self.clients.y)

    @cached_property
    def look(self) -> Look:
        """What the site's rows would give away."""
        return self._table.look(self.clients.weights)

    @cached_property
    def _parts_left(self) -> Parts | None:
        """What left by parts of the rows in this run."""
        folder = None if self._count_file is None else self._count_file.parent / "parts"
        return Parts(folder, self.rules.nfilter_subset) if self.rules.differencing else None

    @cached_property
    def _differs_by(self) -> int:
        return self.look.n_rows if self.released is None else self.released.closest(self.clients)

    def question(self, step: str, digest: str, most: int | None = None) -> Fault | None:
        """Count a question before anything is computed; the same one once more counts once.

        `most` is what a program puts to the step, where that is known.
        """
        asked = self._asked.setdefault(step, [])
        short = digest[:_SHORT]
        if short in asked:
            return None
        total = 1 + sum(map(len, self._asked.values()))
        budget = self.rules.questions_per_step if most is None else most
        if total > self.rules.questions or len(asked) >= min(budget, self.rules.questions_per_step):
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
        if fault is not None:
            self._tell(fault, self.look)
        return fault

    def release(
        self,
        schema: Schema,
        arrays: Arrays,
        behind: Mapping[str, Floats] | None = None,
        sent: Arrays | None = None,
        cuts: bool = False,
    ) -> tuple[Arrays, Fault | None]:
        """A reply (the client first) as it may leave, or the rule that withholds it.

        `behind` says how much every row counts in the entries of a field: parts of the rows obey
        the rules that all rows do. `sent` are the arrays that came with the question.
        """
        fault = self.reply(schema, arrays)
        if fault is not None or not behind:
            return arrays, fault
        cut = behind.get(CUT)
        if cut is not None:
            fault = self._judged(schema, arrays, np.ones(len(cut)), cut) or self._cut_differs(cut)
        if fault is None:
            arrays, fault = self._parts(schema, arrays, behind, sent or {})
        compared = cuts and self.rules.differencing and self.released is not None
        if fault is None and compared:
            fault = self._another_cut(next(iter(behind.values())) if cut is None else cut)
        return arrays, fault

    def _parts(
        self, schema: Schema, arrays: Arrays, behind: Mapping[str, Floats], sent: Arrays
    ) -> tuple[Arrays, Fault | None]:
        """Every entry judged by the rows behind it; those with too few are empty, if they can.

        Where rows are cut, what an entry has of every part is judged besides.
        """
        kept, cut = dict(arrays), behind.get(CUT)
        far = self._far(schema, behind)
        if far.all():
            self._tell(Fault(Reason.MISFIT), self.look)
            return arrays, Fault(Reason.MISFIT)
        alike: dict[int, list[str]] = {}
        for name in [name for name in schema if name in behind]:
            alike.setdefault(id(behind[name]), []).append(name)
        for names in alike.values():
            weights, fields = behind[names[0]], {name: schema[name] for name in names}
            if weights.ndim == 1:
                fault = self._judged(fields, kept, weights, cut)
                if fault is not None:
                    return arrays, fault
                continue
            for lead in np.ndindex(weights.shape[1:-1]):
                optional = all(field.empty is not None for field in fields.values())
                bad, fault = self._few(fields, kept, weights, lead, cut)
                if far.ndim and far[lead]:
                    # Where one group is cut too sharply, its neighbours are, too.
                    bad = list(range(weights.shape[-1]))
                if fault is not None and not optional:
                    return arrays, fault
                for name, r in itertools.product(names, range(weights.shape[-1])):
                    part, now, first = (*lead, r), kept[name], arrays[name]
                    if r in bad:
                        kept[name] = _with(now, first, part, _empty(fields[name], part, sent))
                    elif self._parts_left is not None:
                        rows, value = weights[(slice(None), *part)], now[(0, *part)]
                        was = self._parts_left.as_it_was(name, rows, value) if optional else None
                        if was is not None:
                            kept[name] = _with(now, first, part, was)
                        else:
                            self._parts_left.leaves(name, rows, value)
        if self._parts_left is not None:
            self._parts_left.write()
        return kept, None

    def _far(self, schema: Schema, behind: Mapping[str, Floats]) -> Bools:
        """Which of several starts in a question put rows where they are not.

        One that does spoils them all where entries cannot be empty.
        """
        times = behind.get(MISFIT, np.zeros(1))
        # Parameters so large that nobody can say how far are too far.
        far: Bools = np.asarray(~(times.max(axis=0, initial=0.0) <= self.rules.misfit))
        optional = all(field.empty is not None for name, field in schema.items() if name in behind)
        return far if optional else np.asarray(far.any())

    def _judged(
        self, fields: Schema, entries: Arrays, rows: Floats, cut: Floats | None = None
    ) -> Fault | None:
        """The rule that withholds entries in which rows count so much; none if no row does.

        With a cut (N, F), also by what of these rows is in each of its parts.
        """
        for weights in [rows] if cut is None else [rows, *(rows * part for part in cut.T)]:
            look = self._table.look(weights)
            fault = judge(self.rules, look, fields, entries) if look.n_rows else None
            if fault is not None:
                self._tell(fault, look)
                return fault
        return None

    def _few(
        self,
        fields: Schema,
        arrays: Arrays,
        weights: Floats,
        lead: tuple[int, ...],
        cut: Floats | None,
    ) -> tuple[list[int], Fault | None]:
        """Parts that must not leave, and why.

        What is left out can be found from the others where the whole is known: so many parts stay
        that together they obey the rules.
        """
        place: Any = (slice(None), *lead)
        own = weights[place]
        entries = {name: arrays[name][place][:, 0] for name in fields}
        faults = {r: self._judged(fields, entries, own[:, r], cut) for r in range(own.shape[1])}
        bad = {r for r, fault in faults.items() if fault is not None}
        if not bad:
            return [], None
        reason = faults[min(bad)]
        for r in np.argsort(own.sum(axis=0)):
            if self._judged(fields, entries, own[:, sorted(bad)].sum(axis=1), cut) is None:
                break
            bad.add(int(r))
        return sorted(bad), reason

    def _cut_differs(self, cut: Floats) -> Fault | None:
        """A fault if the rows without a part are too near to those of an earlier run.

        The tables of one cut differ from each other by its parts, which are judged as they are.
        """
        if self.released is None or not self.rules.differencing or self._cut_kept:
            return None
        tables = [rows_where(self.clients, part == 0) for part in cut.T]
        nearest = self.released.closest_of(tables, besides=self.clients)
        if nearest < self.rules.nfilter_subset:
            fault = Fault(Reason.DIFFERENCE)
            self._tell(fault, self.look)
            return fault
        for table in tables:
            self.released.keep(table)
        self._cut_kept = True
        return None

    def _another_cut(self, parts: Floats) -> Fault | None:
        """A fault if the rows have left cut into other parts; what fields are asked is no part."""
        assert self.released is not None
        if self.released.another_cut(self.clients, parts):
            fault = Fault(Reason.CUT)
            self._tell(fault, self.look)
            return fault
        return None

    def _tell(self, fault: Fault, look: Look) -> None:
        """Which rule withholds what, for the site's own ledger, and once in a run for its log."""
        self.why[fault] = in_words(self.rules, fault, look)
        if fault not in self._told:
            self._told.add(fault)
            logger.warning("withheld: %s (%s)", fault, look)

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


def _empty(field: Field, part: tuple[int, ...], sent: Arrays) -> Any:
    """What stands for an entry with too few rows behind it."""
    return sent[field.empty][part] if isinstance(field.empty, str) else field.empty


def _with(now: Array, first: Array, part: tuple[int, ...], value: Any) -> Array:
    """A field with another value of one of its entries; `first` is not touched."""
    place: Any = (slice(None), *part)
    if np.array_equal(now[place][0], value):
        return now
    made = now.copy() if now is first else now
    made[place] = value
    return made
