"""What the full-size runs share: rows to a CSV file beside the scripts, verdicts, both cores."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

HERE = Path(__file__).parent


def write(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """NAME.csv with the columns of all rows; what a row lacks stays empty."""
    columns = dict.fromkeys(column for row in rows for column in row)
    with open(HERE / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)


def verdict(text: str, holds: bool) -> None:
    """A line that says whether a promise holds."""
    print(("holds   " if holds else "FAILS   ") + text, flush=True)


def parallel(function: Callable[..., Any], tasks: Iterable[Sequence[Any]]) -> list[Any]:
    """The function of every task, two at a time."""
    return list(Parallel(n_jobs=2)(delayed(function)(*task) for task in tasks))


def quietly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call without warnings: what matters is measured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)
