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


@dataclass(frozen=True)
class Table(Mapping[str, Any]):
    """Columns of equal length; `table["site"]` is a column, `len(table.rows())` its height."""

    columns: Mapping[str, Any]
    title: str = ""

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def rows(self) -> list[tuple[Any, ...]]:
        """The table row by row."""
        return list(zip(*(_plain(column) for column in self.columns.values())))

    def records(self) -> list[dict[str, Any]]:
        """The rows as dictionaries, fit for JSON."""
        return [dict(zip(self.columns, row)) for row in self.rows()]

    def to_arrow(self) -> Any:
        """A pyarrow table."""
        import pyarrow

        return pyarrow.table({name: _plain(column) for name, column in self.columns.items()})

    def to_pandas(self) -> Any:
        """A pandas data frame (pandas must be installed)."""
        return self.to_arrow().to_pandas()

    def __str__(self) -> str:
        from rich.console import Console

        written = io.StringIO()
        Console(file=written, width=120).print(self)
        return written.getvalue().rstrip() + "\n"

    def __rich__(self) -> Any:
        from rich import box
        from rich.table import Table as Printed

        printed = Printed(title=self.title or None, box=box.SIMPLE_HEAD, title_justify="left")
        for name, column in self.columns.items():
            numeric = np.asarray(column).dtype.kind in "iuf"
            printed.add_column(name, justify="right" if numeric else "left")
        rows = self.rows()
        for row in rows[:SHOWN_ROWS]:
            printed.add_row(*(_text(value) for value in row))
        if len(rows) > SHOWN_ROWS:
            printed.caption = f"... and {len(rows) - SHOWN_ROWS:,} more rows"
        return printed

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_text(v))}</td>" for v in row) + "</tr>"
            for row in self.rows()
        )
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True)
class Summary:
    """Several tables about one fit, and notes in plain words. `summary["sites"]` is a table."""

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


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
