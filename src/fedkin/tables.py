"""Small result tables: columns by name, printed for people, handed on as frames."""

from __future__ import annotations

import html
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Rows shown in print; a table of ten thousand sites is for a frame, not for eyes.
SHOWN_ROWS = 20
# Characters between columns in print; cells beyond this length may be wrapped.
COLUMN_GAP = 3
WRAPPED = 24
# Digits of a number in print.
FEWEST_DIGITS = 4
MOST_DIGITS = 10
# From which on numbers are read out with an exponent.
LARGE = 1e9
# Columns of which differences count, however large the numbers.
CRITERIA = {"bic", "aic", "loglik", "log likelihood"}


@dataclass(frozen=True)
class Table(Mapping[str, Any]):
    """Columns of equal length; `table["site"]` is a column, `len(table.rows())` its height."""

    columns: Mapping[str, Any]
    title: str = ""
    shown_rows: int = SHOWN_ROWS
    """Rows in print; all are in frames, records and HTML."""

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows as tuples."""
        return list(zip(*(_plain(column) for column in self.columns.values())))

    def records(self) -> list[dict[str, Any]]:
        """The rows as dictionaries, fit for JSON."""
        return [dict(zip(self.columns, row)) for row in self.rows()]

    def to_arrow(self) -> Any:
        """The table as a pyarrow table."""
        import pyarrow

        return pyarrow.table({name: _plain(column) for name, column in self.columns.items()})

    def to_pandas(self) -> Any:
        """The table as a pandas data frame (pandas must be installed)."""
        return self.to_arrow().to_pandas()

    def __str__(self) -> str:
        from rich.console import Console

        written = io.StringIO()
        Console(file=written, width=120).print(self)
        return written.getvalue().rstrip() + "\n"

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich import box
        from rich.table import Table as Printed

        rows = self.rows()
        digits = [digits_that_tell(column, name) for name, column in self.columns.items()]
        texts = [[_text(v, n) for v, n in zip(row, digits)] for row in rows[: self.shown_rows]]
        n_shown = self._fitting(texts, options.max_width)
        printed = Printed(title=self.title or None, box=box.SIMPLE_HEAD, title_justify="left")
        for name, column in list(self.columns.items())[:n_shown]:
            numeric = np.asarray(column).dtype.kind in "iuf"
            printed.add_column(name, justify="right" if numeric else "left")
        for text in texts:
            printed.add_row(*text[:n_shown])
        more = {"rows": len(rows) - len(texts), "columns": len(self) - n_shown}
        left_out = [f"{n:,} more {what}" for what, n in more.items() if n > 0]
        if left_out:
            printed.caption = f"... and {', '.join(left_out)}"
        yield printed

    def _fitting(self, texts: Sequence[Sequence[str]], width: int) -> int:
        """How many columns fit next to each other; titles and long words may be wrapped."""
        used = 2
        for k, name in enumerate(self.columns):
            title = max((len(part) for part in name.split()), default=0)
            cells = (min(len(text[k]), WRAPPED) for text in texts)
            used += max([title, *cells]) + COLUMN_GAP
            if used > width and k > 0:
                return k
        return len(self)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        digits = [digits_that_tell(column, name) for name, column in self.columns.items()]
        body = "".join(
            "<tr>"
            + "".join(f"<td>{html.escape(_text(v, n))}</td>" for v, n in zip(row, digits))
            + "</tr>"
            for row in self.rows()
        )
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True)
class Summary:
    """One fit in tables and notes in plain words; `summary["sites"]` is a table."""

    title: str
    tables: Mapping[str, Table]
    notes: Sequence[str] = ()

    def __getitem__(self, name: str) -> Table:
        return self.tables[name]

    def __str__(self) -> str:
        parts = [self.title, *(str(table) for table in self.tables.values()), *self.notes]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        tables = "".join(table._repr_html_() for table in self.tables.values())
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<h3>{html.escape(self.title)}</h3>{tables}{notes}"


def _plain(column: Any) -> list[Any]:
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


def digits_that_tell(column: Any, name: str = "") -> int:
    """Digits that a column of numbers needs so that its rows can be told apart: 4, or more.

    Four digits of the range of its values, which for numbers far from zero are more of their own;
    of criteria, whose differences count, two decimals.
    """
    values = np.asarray(column)
    if values.dtype.kind != "f":
        return FEWEST_DIGITS
    values = np.abs(values[np.isfinite(values)])
    reach = np.ptp(np.asarray(column)[np.isfinite(column)]) if len(values) else 0.0
    if not 0 < reach < np.inf:
        return FEWEST_DIGITS
    ratio = float(values.max() / reach)
    # Values that differ in the seventh digit differ by rounding.
    more = np.floor(np.log10(ratio)) if 10 < ratio < 1e6 else 0
    wanted = FEWEST_DIGITS + more
    if name.lower() in CRITERIA and values.max() >= 1:
        wanted = max(wanted, np.ceil(np.log10(values.max())) + 2)
    return int(np.clip(wanted, FEWEST_DIGITS, MOST_DIGITS))


def _text(value: Any, digits: int = 4) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return str(value)


def read_out(value: float, digits: int = 3) -> str:
    """A number as a sentence has it, with so many digits that count: 1,240 and not 1.24e+03."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e+" in text and abs(value) < LARGE else text
