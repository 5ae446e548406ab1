"""What a study is: settings, one replication, a figure, and what is judged by its rows.

A study file holds one `Study` (or a few of one shape) and the small functions it names:

- `one(seed, **cell)` runs one replication of one cell and returns its measurements: a list of
  dictionaries of numbers and short words. It is a module-level function, draws everything from
  `seed`, and shares data among the methods it compares.
- `figure(results)` draws what the paper drew, so that a reader can lay the two side by side.
- `claims(results)` lists the entries of the paper's table or figure: what the paper says, what we
  found, whether the protocol is the same, and why they differ where that was tested.
- `checks(results)` lists what the paper says in words, and whether our rows agree.
- `promises(results)` lists what this library promises of its own methods: numbers with bounds.
  `python -m reproduction accept` fails when one is broken.
- `known(results)` says what a reader of the summary should know besides.

Cells say only what varies; what is fixed stands in `one` and in `protocol`, which people read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedkin.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = Mapping[str, Any]
Row = dict[str, Any]

# A number that a paper prints, alone or with its spread: "9.62 (1.03)", "0.98 ± 0.003".
PRINTED = re.compile(r"(-?\d+(?:\.\d+)?)(?: ?[(±].*)?$")


@dataclass(frozen=True)
class Size:
    """Which cells are run and how often each."""

    cells: Sequence[Cell]
    replications: int


class Estimate(NamedTuple):
    """A mean over replications, its standard error and their number."""

    mean: float
    se: float
    n: int

    def __str__(self) -> str:
        if not self.n:
            return "not run"
        if not math.isfinite(self.mean):
            return "no number"
        if self.n < 2 or not math.isfinite(self.se):
            return short(self.mean)
        if self.se == 0:
            return f"{short(self.mean)} ± 0"
        digits = max(0, 1 - math.floor(math.log10(self.se)))
        if digits > 7:
            return f"{self.mean:.3g} ± {self.se:.2g}"
        return f"{self.mean:.{digits}f} ± {self.se:.{digits}f}"


@dataclass(frozen=True)
class Results:
    """Measurements of a study, one dictionary a row, with the cell's settings and the seed."""

    rows: Sequence[Row]
    _found: dict[tuple[str, ...], dict[tuple[Any, ...], list[Row]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def where(self, **values: Any) -> Results:
        """The rows whose columns have these values; rows are sorted by these columns once."""
        names = tuple(values)
        if names not in self._found:
            sorted_: dict[tuple[Any, ...], list[Row]] = {}
            for row in self.rows:
                sorted_.setdefault(tuple(row.get(name) for name in names), []).append(row)
            self._found[names] = sorted_
        return Results(self._found[names].get(tuple(values.values()), []))

    def distinct(self, column: str) -> list[Any]:
        """Values of a column in order of appearance; rows without it are passed over."""
        return list(dict.fromkeys(row[column] for row in self.rows if _given(row.get(column))))

    def column(self, name: str) -> np.ndarray:
        """A column as numbers; missing values are NaN."""
        return np.array([_number(row.get(name)) for row in self.rows])

    def estimate(self, measure: str, **where: Any) -> Estimate:
        """Mean and standard error over replications; rows of one replication are averaged first.

        Cells are replications of one another only if `where` leaves nothing else to vary.
        """
        by_seed: dict[Any, list[float]] = {}
        for row in self.where(**where).rows:
            if _given(row.get(measure)):
                by_seed.setdefault(row["seed"], []).append(_number(row[measure]))
        means = [float(np.mean(values)) for values in by_seed.values()]
        n = len(means)
        se = float(np.std(means, ddof=1) / math.sqrt(n)) if n > 1 else math.nan
        return Estimate(float(np.mean(means)) if n else math.nan, se, n)

    def curve(self, x: str, measure: str, **where: Any) -> tuple[np.ndarray, np.ndarray]:
        """Means of `measure` against the values of `x`, sorted."""
        values = sorted(self.where(**where).distinct(x))
        means = [self.estimate(measure, **{**where, x: value}).mean for value in values]
        return np.array(values, float), np.array(means)

    def table(self, by: Sequence[str], measures: Sequence[str], title: str = "") -> Table:
        """Means and standard errors of `measures` for every combination of `by` that was run."""
        keys = list(dict.fromkeys(tuple(row.get(name) for name in by) for row in self.rows))
        columns: dict[str, list[Any]] = {
            name: [key[i] for key in keys] for i, name in enumerate(by)
        }
        for measure in measures:
            columns[measure] = [str(self.estimate(measure, **dict(zip(by, key)))) for key in keys]
        return Table(columns, title)


@dataclass(frozen=True)
class Claim:
    """One entry of a paper beside ours.

    `second` is ours once more, computed another way (the study's `second` says which). `why` says
    why ours is not the paper's, where something was tested that tells; nothing is an answer, too.
    What is not `compared` does not count for the largest distance (seconds on another machine).
    """

    entry: str
    paper: str
    ours: Estimate | str
    same: str
    why: str = ""
    second: Estimate | str | None = None
    compared: bool = True

    @property
    def printed(self) -> float | None:
        """The number in the paper, if it prints one for this entry."""
        found = PRINTED.match(self.paper)
        return float(found[1]) if found else None

    @property
    def distance(self) -> float | None:
        """How far ours is from the printed number, as a share of it; None without both."""
        if isinstance(self.ours, str) or not self.ours.n or not self.printed:
            return None
        return self.ours.mean / self.printed - 1.0


@dataclass(frozen=True)
class Check:
    """What a paper says in words, and whether our rows agree; None if they cannot tell."""

    says: str
    holds: bool | None
    found: str

    @property
    def verdict(self) -> str:
        """One word."""
        return {True: "yes", False: "no", None: "cannot tell"}[self.holds]


# Sums of the same rows in another order differ by less than this share.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Promise:
    """A number of ours and the bounds it has to keep; a number that is missing breaks them.

    `withdrawn` says why it is no promise any more; it is shown with its number, and not judged.
    """

    what: str
    value: float
    least: float = -math.inf
    most: float = math.inf
    withdrawn: str = ""

    @property
    def holds(self) -> bool:
        """Whether the number is within its bounds, but for the rounding of sums."""
        slack = ROUNDING * abs(self.value)
        return self.least - slack <= self.value <= self.most + slack

    @property
    def verdict(self) -> str:
        """One word."""
        if self.withdrawn:
            return "withdrawn"
        return "holds" if self.holds else "FAILS" if math.isfinite(self.value) else "not run"

    @property
    def bounds(self) -> str:
        """The bounds in words."""
        low, high = (f"{value:.6g}" for value in (self.least, self.most))
        if math.isinf(self.least):
            return f"at most {high}"
        if math.isinf(self.most):
            return f"at least {low}"
        return low if low == high else f"{low} to {high}"

    @property
    def shown(self) -> str:
        """The number as people read it."""
        return f"{self.value:.4g}" if math.isfinite(self.value) else "not run"


def _nothing(results: Results, *others: Results) -> Sequence[Any]:
    return ()


@dataclass(frozen=True)
class Study:
    """A table or figure of a paper as something that can be run again."""

    name: str
    paper: str
    shows: str
    title: str
    protocol: str
    one: Callable[..., Sequence[Row]]
    figure: Callable[[Results], Figure]
    by: Sequence[str]
    measures: Sequence[str]
    full: Size
    quick: Size
    toy: Size
    claims: Callable[..., Sequence[Claim]] = _nothing
    checks: Callable[..., Sequence[Check]] = _nothing
    promises: Callable[..., Sequence[Promise]] = _nothing
    known: Callable[..., Sequence[str]] = _nothing
    why: str = ""
    """Why it differs from the paper, for the summary: what was tested, or that we do not know."""
    second: str = ""
    """Head of the second column of ours, where claims have one."""
    beside: Sequence[str] = ()
    """Studies whose rows claims, checks, promises and `known` take besides its own, in order."""
    needs: Sequence[Callable[[], Any]] = ()
    """Loaders of data that are not shipped; where one finds nothing the study is left out."""

    def size(self, word: str) -> Size:
        """The size by its word: full, quick or toy."""
        return {"full": self.full, "quick": self.quick, "toy": self.toy}[word]

    def table(self, results: Results) -> Table:
        """The study's own table: means and standard errors."""
        return results.table(self.by, self.measures, f"{self.paper} {self.shows}: {self.title}")


def agreed(verdicts: Iterable[bool]) -> bool | None:
    """The verdict of all readings of what a paper does not state; None if they disagree."""
    found = set(verdicts)
    return found.pop() if len(found) == 1 else None


def cells(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """Every combination of the values, the last axis fastest."""
    grid: list[dict[str, Any]] = [{}]
    for name, values in axes.items():
        grid = [{**cell, name: value} for cell in grid for value in values]
    return grid


def span(values: np.ndarray, digits: int) -> str:
    """The lowest and the highest of some numbers, for a claim: "2.0-2.8", or one if they agree."""
    low, high = (f"{value:.{digits}f}" for value in (np.min(values), np.max(values)))
    return low if low == high else f"{low}-{high}"


def _given(value: Any) -> bool:
    return value is not None and value != ""


def _number(value: Any) -> float:
    return float(value) if _given(value) else math.nan


def short(value: float) -> str:
    """Three significant digits, without an exponent where people would write none."""
    if not math.isfinite(value) or value == 0:
        return f"{value:.3g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    if 0 <= digits <= 6:
        return f"{value:.{digits}f}"
    return f"{value:.3g}" if digits > 6 else f"{value:.0f}"
