"""Columns of words and dates as numbers, by rules that are the same at the fit and ever after.

* Numbers and yes/no stay what they are.
* A column of words (text, pandas or polars categories) becomes a column of 0 and 1 for each of its
  levels but the first, called "colour=red"; levels are in alphabetical order, or in that of the
  categories. A missing word is a level of its own, "(missing)".
* A date becomes days since 1 January 1970.
* Missing numbers stop a fit, by site and column, unless rows that have them are dropped.
* A column with more than fifty different words is a name, not a category, and is refused; so is one
  of many numbers with some words among them, or of dates that are text or have words among them, as
  they would become levels. Whatever is refused is told all at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from fedkin.arrays import Array, Floats
from fedkin.frames import FederationError, Finding
from fedkin.names import listed

MOST_LEVELS = 50
# Of so many different numbers beside a few words, the words are gaps or slips and not levels.
MANY_NUMBERS = 10
MISSING = "(missing)"
NO_WORD = {"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"}
# Dates as files may have them: 2026-01-31 and 31.01.2026, with or without a time of day.
DATE = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)(?!\d)"
    r"|(?P<days>\d{1,2})\.(?P<months>\d{1,2})\.(?P<years>\d{4})(?!\d)"
)
# What numbers and dates are written with, in any country: 1'234.50, 1.234,5 %, 31/1/2026, 12:30.
DIGITS_AND_MARKS = re.compile(r"^[-+$€£%°\d.,:/'’\s]*\d[-+$€£%°\d.,:/'’\s]*$")
MILLISECONDS_A_DAY = 86_400_000.0


@dataclass(frozen=True)
class Column:
    """One column of a table: a number, a date, or words with these levels."""

    name: str
    kind: str = "number"
    levels: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of numbers it becomes."""
        if self.kind != "levels":
            return (self.name,)
        shown = self.levels[1:] or self.levels
        return tuple(f"{self.name}={level}" for level in shown)


def _offence(error: ValueError) -> Finding:
    """What cannot be used: the fact and the remedy of the complaint."""
    fact, _, remedy = str(error).partition("; ")
    return Finding("error", None, fact, remedy)


@dataclass(frozen=True)
class Encoding:
    """How a table becomes numbers: learnt at the fit, the same for all tables after it."""

    columns: tuple[Column, ...]
    classes: tuple[str, ...] = ()
    """Words of the target, which became 0, 1, ...; empty if it has numbers."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of numbers."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def plain(self) -> bool:
        """Whether all columns are numbers as they are."""
        return all(column.kind == "number" for column in self.columns) and not self.classes

    @classmethod
    def learn(cls, table: Any, features: Sequence[str], classes: tuple[str, ...] = ()) -> Encoding:
        """Learn from a table (narwhals); what cannot be used is told, all of it at once."""
        columns, offenders = [], []
        for name in features:
            try:
                columns.append(_column(table[name], name))
            except ValueError as error:
                offenders.append(_offence(error))
        if offenders:
            raise FederationError(offenders)
        return cls(tuple(columns), classes)

    def matrix(self, table: Any) -> Floats:
        """The table as numbers (n, d); unknown levels are told, all of them at once."""
        parts, offenders = [], []
        for column in self.columns:
            if column.name not in table.columns:
                offenders.append(
                    Finding(
                        "error",
                        None,
                        f"there is no column {column.name!r}, which the model was fitted with",
                        f"the columns are {', '.join(table.columns)}",
                    )
                )
                continue
            try:
                parts.append(column_numbers(table[column.name], column))
            except ValueError as error:
                offenders.append(_offence(error))
        if offenders:
            raise FederationError(offenders)
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(table), 0))

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        columns = [{"name": c.name, "kind": c.kind, "levels": list(c.levels)} for c in self.columns]
        return {"columns": columns, "classes": list(self.classes)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Encoding:
        """The inverse of `to_json`."""
        columns = [Column(c["name"], c["kind"], tuple(c["levels"])) for c in told["columns"]]
        return cls(tuple(columns), tuple(told["classes"]))


def classes_of(column: Any, name: str) -> tuple[str, ...]:
    """The words of a target in order; empty if it holds numbers."""
    if _kind(column, name) != "levels":
        return ()
    _no_words_among_numbers(column, f"target {name!r}")
    levels, n_rows = _levels(column)
    if len(levels) > MOST_LEVELS:
        raise ValueError(
            f"target {name!r} holds {len(levels)} different words in {n_rows} rows, such as "
            f"{listed(levels, 2)}: too many for classes; take another target"
        )
    return tuple(level for level in levels if level != MISSING)


def target_column(column: Any, name: str, classes: Sequence[str] = ()) -> Floats:
    """A target as numbers; words become 0, 1, ... by their place among the classes."""
    if classes:
        return _codes(column, name, classes, missing=np.nan)
    if _kind(column, name) == "levels":
        words = sorted(set(words_of(column).tolist()))
        raise ValueError(
            f"target {name!r} holds words ({listed(words, 3)}), not numbers; take a method for "
            "classes (ODCL with loss='logistic', MixedModel with family='multinomial'), or encode "
            "it"
        )
    return column_numbers(column, Column(name, _kind(column, name)))[:, 0]


# ------------------------------------------------------------------ one column


def _kind(column: Any, name: str) -> str:
    import narwhals.stable.v1 as nw

    dtype = column.dtype
    if dtype.is_numeric() or dtype == nw.Boolean or column.null_count() == len(column):
        return "number"
    if dtype in (nw.Date, nw.Datetime):
        return "date"
    if dtype in (nw.String, nw.Categorical, nw.Enum) or _holds_words(column):
        return "levels"
    kind = str(dtype).lower()
    raise ValueError(f"column {name!r} holds {kind}; turn it into numbers or leave it out")


def _holds_words(column: Any) -> bool:
    """Columns of Python objects: words, and nothing else but gaps."""
    import narwhals.stable.v1 as nw

    if column.dtype != nw.Object:
        return False
    return all(isinstance(value, str) or value is None or value != value for value in column)


def _column(column: Any, name: str) -> Column:
    kind = _kind(column, name)
    if kind != "levels":
        return Column(name, kind)
    _no_words_among_numbers(column, f"column {name!r}")
    _no_dates_as_words(column, f"column {name!r}")
    levels, n_rows = _levels(column)
    if len(levels) > MOST_LEVELS:
        raise ValueError(
            f"column {name!r} holds {len(levels)} different words in {n_rows} rows, such as "
            f"{listed(levels, 2)}: {_what_it_may_be(levels)}"
        )
    return Column(name, "levels", tuple(levels))


def _levels(column: Any) -> tuple[list[str], int]:
    """Levels of a column of words in their order, and its number of rows."""
    words = words_of(column)
    met = set(words.tolist())
    levels = [level for level in _categories(column) if level in met] or sorted(met - {MISSING})
    return levels + [MISSING] * (MISSING in met and MISSING not in levels), len(words)


def _no_words_among_numbers(column: Any, what: str) -> None:
    """Complain of a column of numbers in which a few words stand, such as "not known"."""
    if _categories(column):
        return
    words = words_of(column)
    met = set(words.tolist()) - {MISSING}
    strange = sorted(word for word in met if not _is_number(word))
    if not strange or len(met) - len(strange) <= max(MANY_NUMBERS, len(strange)):
        return
    raise ValueError(f"{what} holds numbers, but {_where(strange, words)}")


def _where(strange: Sequence[str], words: Array) -> str:
    """Words that should not be there, where they are, and what to do about them."""
    first = next(k for k, word in enumerate(words) if word in strange)
    n_rows = sum(word in strange for word in words.tolist())
    return (
        f"{listed(strange, 3)} in {n_rows} of {len(words)} rows (row {first + 1} first); correct "
        f"{'it' if n_rows == 1 else 'them'}, or leave the cell empty if it is missing"
    )


def _no_dates_as_words(column: Any, what: str) -> None:
    """Complain of dates that are no dates yet: as levels, every day would be a kind of its own."""
    if _categories(column):
        return
    words = words_of(column)
    met = set(words.tolist()) - {MISSING}
    strange = sorted(word for word in met if not _is_date(word))
    if len(met) <= 2 * len(strange):
        return
    if strange:
        raise ValueError(f"{what} holds dates, but {_where(strange, words)}")
    raise ValueError(
        f"{what} holds dates as text, such as {listed(sorted(met), 2)}; turn them into dates "
        "(pandas.to_datetime); in a file, spell all of them in one way"
    )


def _is_date(word: str) -> bool:
    found = DATE.match(word)
    if not found:
        return False
    year, month, day = (int(found[k] or found[f"{k}s"]) for k in ("year", "month", "day"))
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _what_it_may_be(levels: Sequence[str]) -> str:
    """What a column of very many words is, as far as they tell, and what to do about it."""
    told = [level for level in levels if level != MISSING]
    if all(DIGITS_AND_MARKS.match(level) for level in told):
        return (
            "numbers or dates in a spelling that is not known here; write 1234.5 or 2026-01-31, or "
            "leave it out (features=..., --features or --drop)"
        )
    return "names, not a category; leave it out (features=..., --features or --drop)"


def _categories(column: Any) -> list[str]:
    import narwhals.stable.v1 as nw

    if column.dtype not in (nw.Categorical, nw.Enum):
        return []
    return [str(level) for level in column.cat.get_categories().to_list()]


def words_of(column: Any) -> Array:
    """Words of every row; a missing one is MISSING."""
    values = column.to_list()
    gap = [value is None or value != value or str(value).strip() in NO_WORD for value in values]
    return np.array([MISSING if no else str(v).strip() for v, no in zip(values, gap)], dtype=object)


def _codes(column: Any, name: str, levels: Sequence[str], missing: float | None = None) -> Floats:
    words = words_of(column)
    place: dict[str, float] = {level: float(k) for k, level in enumerate(levels)}
    if missing is not None:
        place.setdefault(MISSING, missing)
    strange = sorted({word for word in words.tolist() if word not in place})
    if strange:
        raise ValueError(
            f"column {name!r} has {listed(strange, 5)}, the fit had {listed(list(levels), 5)}; "
            "leave these rows out, or fit again with them"
        )
    return np.array([place[word] for word in words], dtype=np.float64)


def column_numbers(column: Any, like: Column) -> Floats:
    """A column as numbers (n, features)."""
    import narwhals.stable.v1 as nw

    if like.kind == "levels":
        codes = _codes(column, like.name, like.levels)
        first = 1 if len(like.levels) > 1 else 0
        return (codes[:, None] == np.arange(first, len(like.levels))).astype(np.float64)
    found = _kind(column, like.name)
    if found != like.kind and column.null_count() < len(column):
        have = {"number": "numbers", "date": "dates", "levels": "words"}
        raise ValueError(
            f"column {like.name!r} holds {have[found]}, the fit had {have[like.kind]}; mend it "
            "(for numbers with commas: --decimal)"
        )
    if like.kind == "date":
        stamps = column.to_numpy().astype("datetime64[ms]")
        days = stamps.astype(np.float64) / MILLISECONDS_A_DAY
        return np.where(np.isnat(stamps), np.nan, days)[:, None]
    if column.null_count() == len(column):
        return np.full((len(column), 1), np.nan)
    numbers: Floats = column.cast(nw.Float64).to_numpy().astype(np.float64)
    return numbers[:, None]
