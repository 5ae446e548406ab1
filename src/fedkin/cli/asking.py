"""Tables in: the options that all commands share, and the federation they lead to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

Data = Annotated[
    Path, typer.Argument(help="CSV, TSV or Parquet file (.gz too), one row per observation.")
]
Client = Annotated[str, typer.Option("--client", "--site", help="Column with the site's name.")]
Target = Annotated[str | None, typer.Option("--target", help="Column with the target.")]
Features = Annotated[
    str | None, typer.Option("--features", help="Columns to use, comma separated; default all.")
]
Drop = Annotated[str | None, typer.Option("--drop", help="Columns to leave out, comma separated.")]
Sep = Annotated[
    str | None, typer.Option("--sep", help="What separates columns; told from the file.")
]
Decimal = Annotated[
    str | None, typer.Option("--decimal", help="Decimal point or comma; told from the file.")
]
FileEncoding = Annotated[
    str | None, typer.Option("--encoding", help="Encoding of text; told from the file.")
]
Missing = Annotated[
    str, typer.Option("--missing", help="Rows that lack a number: error, or drop them.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 on warnings, too.")]


@dataclass(frozen=True)
class TableOptions:
    """Which file, how it is written, and which columns are what."""

    data: Path
    client: str = "site"
    target: str | None = None
    features: str | None = None
    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    missing: str = "error"
    drop: str | None = None

    def frame(self) -> Any:
        """The file as a table."""
        from fedkin.frames import read_frame

        return read_frame(self.data, self.sep, self.decimal, self.encoding)

    def columns(self, frame: Any) -> list[str] | None:
        """The columns that were chosen, without those to leave out; None for all."""
        chosen, dropped = _named(self.features), self.dropped
        unknown = [name for name in dropped if name not in frame.column_names]
        if unknown:
            raise ValueError(
                f"--drop: there is no column {unknown[0]!r}; the columns are "
                f"{', '.join(frame.column_names)}"
            )
        both = [name for name in dropped if name in (*chosen, self.client, self.target)]
        if both:
            raise ValueError(f"--drop leaves out column {both[0]!r}, which is asked for, too")
        if not chosen and not dropped:
            return None
        taken = {self.client, self.target, *dropped}
        return chosen or [name for name in frame.column_names if name not in taken]

    @property
    def dropped(self) -> list[str]:
        """Names of the columns to leave out."""
        return _named(self.drop)

    def federation(self, classes: bool = False, target_used: bool = True) -> Any:
        """The table as a federation; without a target if none is used."""
        from fedkin.federation import Federation

        frame = self.frame()
        columns = self.columns(frame)
        if columns is None and self.target is not None and not target_used:
            columns = [n for n in frame.column_names if n not in (self.client, self.target)]
        check_rows(frame, self.data)
        return Federation.from_frame(
            frame,
            self.client,
            self.target if target_used else None,
            columns,
            missing=self.missing,  # type: ignore[arg-type]
            classes=classes,
        )


def check_rows(frame: Any, path: Path) -> None:
    """Complain about a table without rows."""
    if not frame.num_rows:
        raise ValueError(f"{path}: the file has a header but no rows")


def _named(names: str | None) -> list[str]:
    """Names between commas."""
    return [name.strip() for name in (names or "").split(",") if name.strip()]
