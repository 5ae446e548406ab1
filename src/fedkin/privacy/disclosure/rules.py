"""The rules and their defaults; what a site's rows must be like for a reply to leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from fedkin.arrays import Arrays
from fedkin.privacy.disclosure.look import Look
from fedkin.protocol import Fault, Reason, Schema
from fedkin.protocol.messages import Reveals


@dataclass(frozen=True)
class DisclosureRules:
    """What a site demands before a reply leaves it; names with `nfilter` are DataSHIELD's.

    nfilter_subset : least rows that differ behind a reply, and by which two runs may differ
    nfilter_tab : least rows in a cell of a 0/1 or coded column, and in a cell of two of them
    nfilter_glm : most parameters per row
    leverage : most that one row may make up of a direction; at 1 it can be read off
    misfit : how many times as far from where a question says they are its rows may be
    questions : most questions of one run
    questions_per_step : most questions of one run to one step
    differencing : whether runs are compared with what left in earlier ones, and groups of rows with
        what left earlier in the run
    """

    nfilter_subset: int = 10
    nfilter_tab: int = 3
    nfilter_glm: float = 0.33
    leverage: float = 0.9
    misfit: float = 3.0
    questions: int = 1000
    questions_per_step: int = 500
    differencing: bool = True

    def __post_init__(self) -> None:
        for name in ("nfilter_subset", "nfilter_tab", "questions", "questions_per_step"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 0:
                raise ValueError(f"{name} must be a whole number from 0 on")
        for name in ("nfilter_glm", "leverage", "misfit"):
            if not float(getattr(self, name)) > 0:
                raise ValueError(f"{name} must be above 0")
        if not isinstance(self.differencing, bool):
            raise ValueError("differencing must be true or false")

    @classmethod
    def from_mapping(cls, told: Mapping[str, Any]) -> Self:
        """Rules by name, as a site's policy gives them; an unknown name is an error."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(told) - set(known))
        if unknown:
            raise ValueError(
                f"there is no disclosure rule {', '.join(unknown)}; there are {', '.join(known)}"
            )
        return cls(**told)


DEFAULT_RULES = DisclosureRules()


def judge(rules: DisclosureRules, look: Look, schema: Schema, arrays: Arrays) -> Fault | None:
    """The rule that withholds a reply with these arrays (the client first), if there is one."""
    for name, field in schema.items():
        fault = _judged(rules, look, name, field.reveals, _numbers(arrays, name))
        if fault is not None:
            return fault
    return None


def in_words(rules: DisclosureRules, fault: Fault, look: Look) -> str:
    """What a rule saw and what it asks for, in numbers that only the site may read."""
    rows = f"{look.n_distinct:.3g} rows that differ"
    seen = {
        Reason.FEW_ROWS: (rows, "nfilter_subset"),
        Reason.CELL: (
            f"{min(look.smallest_cell, look.smallest_pair):.3g} rows in a cell",
            "nfilter_tab",
        ),
        Reason.PARAMETERS: (rows, "nfilter_glm"),
        Reason.LEVERAGE: (f"a row makes up {look.leverage:.2f} of a direction", "leverage"),
        Reason.DIFFERENCE: ("an earlier run differs by fewer rows", "nfilter_subset"),
        Reason.MISFIT: ("rows are further from there", "misfit"),
    }
    if fault.reason not in seen:
        return ""
    what, rule = seen[fault.reason]
    return f"{what}; our rule {rule} is {getattr(rules, rule):g}"


def _numbers(arrays: Arrays, name: str) -> int:
    array = arrays.get(name)
    return 0 if array is None or not len(array) else array.size // len(array)


def _judged(
    rules: DisclosureRules, look: Look, name: str, reveals: Reveals, n_numbers: int
) -> Fault | None:
    if reveals == "nothing":
        return None
    if look.n_distinct < rules.nfilter_subset:
        return Fault(Reason.FEW_ROWS, name)
    if reveals == "count":
        return None
    if look.smallest_cell < rules.nfilter_tab:
        return Fault(Reason.CELL, name)
    if reveals == "sums":
        return None
    n_parameters = max(look.n_features + 1, n_numbers if reveals == "model" else 0)
    if n_parameters > rules.nfilter_glm * look.n_distinct:
        return Fault(Reason.PARAMETERS, name)
    if reveals == "products" and look.smallest_pair < rules.nfilter_tab:
        return Fault(Reason.CELL, name)
    if look.leverage > rules.leverage:
        return Fault(Reason.LEVERAGE, name)
    return None
