"""What a study is: settings, one replication, a figure, and claims beside the paper's.

A study file holds one `Study` (or a few of one shape) and the small functions it names:

- `one(seed, **cell)` runs one replication of one cell and returns its measurements: a list of
  dictionaries of numbers and short words. It is a module-level function, draws everything from
  `seed`, and shares data among the methods it compares.
- `figure(results)` draws what the paper drew, so that a reader can lay the two side by side.
- `claims(results)` lists the entries of the paper's table or figure: what the paper says, what we
  found, whether the protocol is the same, and why they differ.

Cells say only what varies; what is fixed stands in `one` and in `protocol`, which people read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedkin.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = Mapping[str, Any]
Row = dict[str, Any]

UNEXPLAINED = "**far from what was noted, and not explained**"
# A distance that replications alone give less often than this is not put down to chance.
RARE = 0.0027


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
            return _short(self.mean)
        if self.se == 0:
            return f"{_short(self.mean)} ± 0"
        digits = max(0, 1 - math.floor(math.log10(self.se)))
        if digits > 7:
            return f"{self.mean:.3g} ± {self.se:.2g}"
        return f"{self.mean:.{digits}f} ± {self.se:.{digits}f}"


@dataclass(frozen=True)
class Results:
    """Measurements of a study, one dictionary a row, with the cell's settings and the seed."""

    rows: Sequence[Row]

    def where(self, **values: Any) -> Results:
        """The rows whose columns have these values."""
        return Results(
            [row for row in self.rows if all(row.get(k) == v for k, v in values.items())]
        )

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

    `noted` is what independent code measured under the same protocol, if anybody did, as the mean
    of `noted_n` replications (None: a number without sampling error of its own), or in words where
    it is no single number; `noted_sd` is their standard deviation, if it was noted. `why` says why
    ours is not the paper's; `apart` why it is not what was noted, and is printed where they are
    more than two standard errors apart.
    """

    entry: str
    paper: str
    ours: Estimate | str
    same: str
    why: str = ""
    noted: float | str | None = None
    noted_n: int | None = None
    apart: str = ""
    noted_sd: float | None = None

    @property
    def distance(self) -> float | None:
        """Standard errors between ours and what was noted; None if they cannot be compared.

        The noted mean's own error is from the noted spread, or else from ours, which is that of
        the same protocol.
        """
        if self.noted is None or isinstance(self.noted, str):
            return None
        if isinstance(self.ours, str) or self.ours.n < 2:
            return None
        mean, se, n = self.ours
        spread = se * math.sqrt(n) if self.noted_sd is None else self.noted_sd
        both = math.hypot(se, spread / math.sqrt(self.noted_n) if self.noted_n else 0.0)
        apart = abs(mean - self.noted)
        return apart / both if both > 0 else (math.inf if apart > 0 else 0.0)

    def cells(self) -> list[str]:
        """The claim as a row of the page: entry, paper, ours, noted, same protocol, why."""
        distance = self.distance
        noted = _short(self.noted) if isinstance(self.noted, (int, float)) else self.noted or ""
        reasons = [self.why]
        if distance is not None and distance > 2:
            noted += f" ({distance:.1f} se)"
            reasons.append(self.apart or self._chance(distance))
        return [self.entry, self.paper, str(self.ours), noted, self.same, _joined(reasons)]

    def _chance(self, distance: float) -> str:
        """How often a standard error from so few replications gives such a distance."""
        from scipy.stats import t

        assert isinstance(self.ours, Estimate)
        chance = 2 * float(t.sf(distance, self.ours.n - 1))
        if chance < RARE:
            return UNEXPLAINED
        return f"by chance 1 time in {1 / chance:.0f} over {self.ours.n} replications"


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
    claims: Callable[[Results], Sequence[Claim]]
    by: Sequence[str]
    measures: Sequence[str]
    full: Size
    quick: Size
    toy: Size
    needs: Sequence[Callable[[], Any]] = ()
    """Loaders of data that are not shipped; where one finds nothing the study is left out."""

    def size(self, word: str) -> Size:
        """The size by its word: full, quick or toy."""
        return {"full": self.full, "quick": self.quick, "toy": self.toy}[word]

    def table(self, results: Results) -> Table:
        """The study's own table: means and standard errors."""
        return results.table(self.by, self.measures, f"{self.paper} {self.shows}: {self.title}")


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


def _joined(reasons: Sequence[str]) -> str:
    return "; ".join(reason for reason in reasons if reason)


def _given(value: Any) -> bool:
    return value is not None and value != ""


def _number(value: Any) -> float:
    return float(value) if _given(value) else math.nan


def _short(value: float) -> str:
    """Three significant digits, without an exponent where people would write none."""
    if not math.isfinite(value) or value == 0:
        return f"{value:.3g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    if 0 <= digits <= 6:
        return f"{value:.{digits}f}"
    return f"{value:.3g}" if digits > 6 else f"{value:.0f}"
