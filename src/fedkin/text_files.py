"""How a text file of the world is written: its encoding, what separates columns, decimal commas.

What can be told from the file is told from it; where it cannot, the message names the option that
helps. Files ending in .gz are read as they are.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEPARATORS = (",", ";", "\t", "|")
# Bytes and lines that are looked at to see how a file is written.
LOOKED_AT = 1 << 26
SNIFFED_LINES = 200
WITH_COMMA = re.compile(r"^\s*[-+]?\d+,\d+\s*$")
WITH_POINT = re.compile(r"^\s*[-+]?\d*\.\d+\s*$")
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True)
class Dialect:
    """How a text file is written."""

    sep: str = ","
    decimal: str = "."
    encoding: str = "utf-8"


def dialect_of(
    path: Path, sep: str | None = None, decimal: str | None = None, encoding: str | None = None
) -> Dialect:
    """How this file is written; what is given counts, the rest is told from the file."""
    raw = _beginning(path)
    if not raw.strip():
        raise ValueError(f"{path}: the file is empty")
    encoding = encoding or _encoding(raw)
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(raw)
    except (LookupError, UnicodeError) as error:
        raise ValueError(
            f"{path}: cannot be read as {encoding} ({error}); name its encoding (--encoding), such "
            "as utf-8, utf-16 or cp1252"
        ) from None
    lines = [line for line in text.splitlines() if line.strip()][:SNIFFED_LINES]
    sep = {"tab": "\t", "\\t": "\t"}.get(sep or "", sep) or _separator(lines)
    if len(sep) != 1:
        raise ValueError(f"columns are separated by one character (--sep), not by {sep!r}")
    decimal = decimal or _decimal(lines, sep)
    if decimal not in (".", ",") or decimal == sep:
        raise ValueError(f"numbers have a point or a comma (--decimal), other than {sep!r}")
    return Dialect(sep, decimal, encoding)


def read_text_table(path: Path, dialect: Dialect) -> Any:
    """The file as a pyarrow table."""
    import pyarrow

    try:
        table = _parsed(path, dialect)
    except pyarrow.ArrowInvalid as error:
        told = _where_it_fails(path, dialect) or str(error)
        told = told.removeprefix("CSV parse error: ").replace("Row #", "line ")
        raise ValueError(f"{path}: {told}; see --sep, --decimal and --encoding") from None
    names = [name.lstrip("\ufeff").strip() for name in table.column_names]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{path}: column {twice[0]!r} is there twice; rename one of them")
    return table.rename_columns(names)


def _parsed(path: Path, dialect: Dialect, at_once: bool = True) -> Any:
    """What pyarrow makes of the file; dates with points are days first, as wherever points are."""
    from pyarrow import csv as arrow

    return arrow.read_csv(
        path,
        arrow.ReadOptions(encoding=dialect.encoding, use_threads=at_once),
        arrow.ParseOptions(delimiter=dialect.sep),
        arrow.ConvertOptions(
            decimal_point=dialect.decimal,
            timestamp_parsers=[arrow.ISO8601, "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S"],
        ),
    )


def _where_it_fails(path: Path, dialect: Dialect) -> str | None:
    """The complaint with the number of the line, which only a reader of line after line knows."""
    import pyarrow

    try:
        _parsed(path, dialect, at_once=False)
    except pyarrow.ArrowInvalid as error:
        return str(error)
    return None


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        packed = path.suffix.lower() == ".gz"
        opened: Any = gzip.GzipFile(fileobj=file) if packed else file
        try:
            begun: bytes = opened.read(LOOKED_AT)
        except (EOFError, OSError) as error:
            raise ValueError(f"{path}: cannot be read: {error}") from None
    return begun


def _encoding(raw: bytes) -> str:
    """By the mark at the beginning, by zeros between letters, or by what the bytes can be."""
    for mark, name in MARKS:
        if raw.startswith(mark):
            return name
    head = raw[:1000]
    if head[1::2].count(0) > len(head) / 4:
        return "utf-16-le"
    if head[0::2].count(0) > len(head) / 4:
        return "utf-16-be"
    for name in ("utf-8", "cp1252"):
        try:
            codecs.getincrementaldecoder(name)().decode(raw)
        except UnicodeError:
            continue
        return name
    return "latin-1"


def _fields(lines: list[str], sep: str) -> list[list[str]]:
    return list(csv.reader(lines, delimiter=sep))


def _separator(lines: list[str]) -> str:
    """What cuts header and lines into equally many fields; of several, what gives the most."""
    found = []
    for sep in SEPARATORS:
        counts = [len(row) for row in _fields(lines, sep)]
        agree = counts.count(counts[0]) / len(counts)
        if counts[0] > 1 and agree > 0.9:
            found.append((counts[0], sep))
    return max(found, key=lambda pair: pair[0])[1] if found else ","


def _decimal(lines: list[str], sep: str) -> str:
    """A comma if numbers have commas and none has a point."""
    if sep == ",":
        return "."
    cells = [cell for row in _fields(lines[1:], sep) for cell in row]
    commas = any(WITH_COMMA.match(cell) for cell in cells)
    return "," if commas and not any(WITH_POINT.match(cell) for cell in cells) else "."
