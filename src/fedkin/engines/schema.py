"""What a job says of its columns: type, levels, unit; every site checks it before round one.

    [schema.age]
    type = "number"          # or "whole", for whole numbers
    unit = "years"

    [schema.sex]
    levels = ["f", "m"]      # words: a column of 0 and 1 for each level but the first

    [schema.stage]
    levels = [1, 2, 3]       # numbers stay one column, which holds these alone

Units do not stand in a table: a site declares its own (`fedkin site run --units units.toml`), and
one that has declared none, or another, cannot take part. A complaint names the column and the kind
of problem, never a value: which level was met stays in the site's log.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.arrays import Floats
from fedkin.frames import numeric_column
from fedkin.levels import MISSING, Column, column_numbers, words_of
from fedkin.protocol import Fault, Reason

TYPES = ("number", "whole")
# Levels that are numbers are codes of a few groups. A longer list is one of values: that a site has
# one which is not on it tells of single rows, and lists without one value each find them all.
MOST_CODES = 20
KEYS = ("type", "levels", "unit")


@dataclass(frozen=True)
class ColumnRule:
    """What a job says of one column."""

    name: str
    type: str = "number"
    levels: tuple[Any, ...] = ()
    unit: str | None = None

    @classmethod
    def from_mapping(cls, name: str, told: Any) -> ColumnRule:
        """The rule by keys; an unknown key is an error."""
        if not isinstance(told, Mapping):
            raise ValueError(f"schema.{name} must be a section")
        unknown = [key for key in told if key not in KEYS]
        if unknown:
            raise ValueError(
                f"schema.{name} has no key {unknown[0]!r}; there are {', '.join(KEYS)}"
            )
        kind, levels, unit = told.get("type", "number"), told.get("levels", ()), told.get("unit")
        if kind not in TYPES:
            raise ValueError(f"schema.{name}: type must be one of {', '.join(TYPES)}, not {kind!r}")
        if unit is not None and not (isinstance(unit, str) and unit):
            raise ValueError(f"schema.{name}: unit must be a word")
        if "levels" in told:
            _check_levels(name, levels)
            if "type" in told or unit is not None:
                raise ValueError(f"schema.{name}: levels have no type and no unit")
        return cls(name, kind, tuple(levels), unit)

    def to_mapping(self) -> dict[str, Any]:
        """As it travels."""
        if self.levels:
            return {"levels": list(self.levels)}
        return {"type": self.type} | ({} if self.unit is None else {"unit": self.unit})

    @property
    def words(self) -> bool:
        """Whether the column holds words."""
        return bool(self.levels) and isinstance(self.levels[0], str)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of numbers it becomes."""
        return Column(self.name, "levels", self.levels).features if self.words else (self.name,)

    def numbers(self, column: Any) -> Floats:
        """The column as numbers (n, .); `ColumnFault` if it is not what the job says."""
        if self.words:
            return self._coded(column)
        try:
            found = numeric_column(column, self.name)
        except ValueError as error:
            raise ColumnFault(Fault(Reason.NUMBER, self.name), str(error)) from error
        if not np.isfinite(found).all():
            n = int((~np.isfinite(found)).sum())
            raise ColumnFault(
                Fault(Reason.VALUES, self.name),
                f"column {self.name!r} has {n} missing or infinite values",
            )
        if self.type == "whole" and (found != np.round(found)).any():
            raise ColumnFault(
                Fault(Reason.WHOLE, self.name), f"column {self.name!r} holds broken numbers"
            )
        if self.levels and not np.isin(found, self.levels).all():
            strange = np.setdiff1d(found, self.levels)[:5].tolist()
            raise ColumnFault(Fault(Reason.LEVEL, self.name), self._strange(strange))
        return found[:, None]

    def _coded(self, column: Any) -> Floats:
        met = set(words_of(column).tolist())
        if MISSING in met and MISSING not in self.levels:
            raise ColumnFault(
                Fault(Reason.VALUES, self.name), f"column {self.name!r} has missing values"
            )
        strange = sorted(met - set(self.levels))
        if strange:
            raise ColumnFault(Fault(Reason.LEVEL, self.name), self._strange(strange[:5]))
        return column_numbers(column, Column(self.name, "levels", self.levels))

    def _strange(self, met: Iterable[Any]) -> str:
        listed = ", ".join(map(str, met))
        return (
            f"column {self.name!r} holds {listed}; the job lists {', '.join(map(str, self.levels))}"
        )


class ColumnFault(ValueError):
    """A column is not what the job says: the word that may travel, and the story that may not."""

    def __init__(self, fault: Fault, story: str) -> None:
        super().__init__(story)
        self.fault = fault


@dataclass(frozen=True)
class JobSchema:
    """What a job says of its columns, by name; of others it asks for numbers."""

    rules: Mapping[str, ColumnRule]

    @classmethod
    def from_mapping(cls, told: Any) -> JobSchema:
        """The schema of a job file, or as it travelled."""
        if not isinstance(told, Mapping):
            raise ValueError("schema must be sections of columns: [schema.age]")
        return cls({name: ColumnRule.from_mapping(name, rule) for name, rule in told.items()})

    def to_mapping(self) -> dict[str, Any]:
        """As it travels."""
        return {name: rule.to_mapping() for name, rule in self.rules.items()}

    def rule(self, name: str) -> ColumnRule:
        """What holds for a column."""
        return self.rules.get(name) or ColumnRule(name)

    def features(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Names of the columns of numbers that these columns become."""
        return tuple(name for column in columns for name in self.rule(column).features)

    def other_units(self, units: Mapping[str, str]) -> list[tuple[Fault, str]]:
        """Columns for which a site has declared another unit, or none."""
        found = []
        for name, rule in self.rules.items():
            if rule.unit is not None and units.get(name) != rule.unit:
                told = f"the job has {name!r} in {rule.unit}, this site declares {units.get(name)}"
                found.append((Fault(Reason.UNIT, name), told))
        return found


def _check_levels(name: str, levels: Any) -> None:
    words = isinstance(levels, list) and all(isinstance(level, str) for level in levels)
    numbers = isinstance(levels, list) and all(
        isinstance(level, int | float) and not isinstance(level, bool) for level in levels
    )
    if not levels or not (words or numbers) or len(set(levels)) < len(levels):
        raise ValueError(f"schema.{name}: levels must be different words, or different numbers")
    if numbers and len(levels) > MOST_CODES:
        raise ValueError(
            f"schema.{name}: {len(levels)} numbers as levels, {MOST_CODES} at most; a column with "
            "more is a number (type)"
        )


def read_units(path: str | Path) -> dict[str, str]:
    """A site's declared units by column, from a TOML file."""
    try:
        told = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not all(isinstance(unit, str) for unit in told.values()):
        raise ValueError(f'{path}: units are lines like age = "years"')
    return told
