"""Tables as people have them (arrays, data frames, files) turned into float matrices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fedkin.arrays import Floats, Indices
from fedkin.names import listed
from fedkin.text_files import dialect_of, read_text_table

# How many findings an error message spells out.
SHOWN_FINDINGS = 5
# Kinds of NumPy that become numbers in silence, and what they hold.
NO_NUMBERS = {"c": "complex numbers", "M": "dates", "m": "spans of time"}


@dataclass(frozen=True)
class Finding:
    """Something about a site's data that stops a fit ("error") or deserves a look ("warning")."""

    level: Literal["error", "warning"]
    site: str | None
    fact: str
    remedy: str
    code: str = ""
    """Which check it is, such as FK003; `fedkin.checks` has them."""
    columns: tuple[int, ...] = ()
    """Which columns it is about, the target after the features; none if it is about the table."""

    def __str__(self) -> str:
        where = f"site {self.site!r}: " if self.site is not None else ""
        return f"{where}{self.fact}; {self.remedy}"


class FederationError(ValueError):
    """The data cannot be used as they are; `findings` says which site, what, and what to do."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        shown = [str(finding) for finding in self.findings[:SHOWN_FINDINGS]]
        more = len(self.findings) - len(shown)
        super().__init__("\n".join(shown + ([f"... and {more} more"] if more else [])))


def value_errors(
    columns: Sequence[tuple[str, Floats]],
    owner: Indices,
    names: Sequence[str | None],
    when: str = "first",
    told_apart: int | None = None,
) -> Iterator[Finding]:
    """An error for every site and column with missing or infinite values.

    `columns` are pairs: what the column is called in the message, and its values. Where more sites
    than `told_apart` have the same fault, that is one error.
    """
    sizes = np.bincount(owner, minlength=len(names))
    for test, word, remedy, code in (
        (np.isnan, "missing", f"drop or impute them {when} (NaN)", "FK001"),
        (np.isinf, "infinite", f"correct them or drop these rows {when}", "FK002"),
    ):
        for column, values in columns:
            counts = np.bincount(owner[test(values)], minlength=len(names))
            if word == "missing" and len(names) > 1 and counts.sum() == len(values) > 0:
                fact = f"{column} has no value at all: {len(values)} of {len(values)} missing"
                yield Finding("error", None, fact, "leave it out", code)
                continue
            where = np.flatnonzero(counts).tolist()
            if told_apart is not None and len(where) > told_apart:
                shown = listed([str(names[k]) for k in where], 3)
                total = f"{counts.sum()} of {sizes[where].sum()} values {word}"
                fact = f"{column} has {total} at {len(where)} sites: {shown}"
                yield Finding("error", None, fact, remedy, code)
                continue
            for k in where:
                fact = f"{column} has {counts[k]} of {sizes[k]} values {word}"
                yield Finding("error", names[k], fact, remedy, code)


def read_frame(
    path: str | Path,
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
) -> Any:
    """A CSV, TSV or Parquet file as a pyarrow table; text files may end in .gz.

    What separates columns, decimal commas and the encoding are told from the file, unless given.
    """
    path = Path(path)
    kind = kind_of(path)
    if kind not in READERS:
        raise ValueError(f"{path}: expected a file ending in {', '.join(READERS)} (or .csv.gz)")
    if not path.exists():
        raise ValueError(f"{path}: there is no such file")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder, not a file")
    if kind == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path)
    return read_text_table(path, dialect_of(path, sep, decimal, encoding))


def kind_of(path: Path) -> str:
    """The ending that says what a file holds, in small letters and without .gz."""
    plain = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return plain.suffix.lower()


def site_name(path: Path) -> str:
    """The name of a file without its endings."""
    return path.with_suffix("").stem if path.suffix.lower() == ".gz" else path.stem


READERS = (".csv", ".tsv", ".txt", ".parquet")


def read_site(path: Path, target: str | None) -> tuple[Any, Floats | None]:
    """One site's features and target from its own file."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["X"], arrays.get("y")
    import narwhals.stable.v1 as nw

    table = nw.from_native(read_frame(path), eager_only=True)
    if not len(table):
        raise ValueError("the file has a header but no rows")
    if target is None:
        return nw.to_native(table), None
    if target not in table.columns:
        raise ValueError(f"{path}: there is no column {target!r}")
    return nw.to_native(table.drop(target)), numeric_column(table[target], target)


def numeric_column(column: Any, name: str) -> Floats:
    """A column as floats with NaN for missing; text is refused by name."""
    import narwhals.stable.v1 as nw

    if len(column) and column.null_count() == len(column):
        return np.full(len(column), np.nan)
    if not (column.dtype.is_numeric() or column.dtype == nw.Boolean):
        kind = str(column.dtype).lower()
        raise ValueError(f"column {name!r} holds {kind}, not numbers; encode or drop it")
    values: Floats = column.cast(nw.Float64).to_numpy().astype(np.float64)
    return values


def numeric_table(X: Any) -> tuple[Floats, tuple[str, ...]]:
    """A table as a float matrix with feature names (x0, x1, ... when it has none)."""
    if hasattr(X, "columns") or hasattr(X, "column_names"):
        import narwhals.stable.v1 as nw

        table = nw.from_native(with_text_names(X), eager_only=True)
        names = tuple(table.columns)
        columns, complaints = [], []
        for name in names:
            try:
                columns.append(numeric_column(table[name], name))
            except ValueError as error:
                complaints.append(str(error))
        if complaints:
            raise ValueError("\n".join(complaints))
        return np.stack(columns, axis=1) if columns else np.empty((len(table), 0)), names
    no_disguised_numbers(X, "X")
    try:
        matrix = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("X holds values that are not numbers; encode or drop them") from None
    if matrix.ndim != 2:
        raise ValueError(f"X must have rows and columns; its shape is {matrix.shape}")
    return matrix, plain_names(matrix.shape[1])


def chosen_columns(
    columns: Sequence[str], client: str, target: str | None, features: Sequence[str] | None
) -> list[str]:
    """Columns to use as features, after a look whether all that is named is there and apart."""
    roles = {client: "the column of sites (client=, --client)"}
    roles |= {} if target is None else {target: "the target (target=, --target)"}
    for column in [*roles, *(features or [])]:
        if column not in columns:
            meant = f"; name {roles[column]}" if column in roles else ""
            raise ValueError(
                f"there is no column {column!r}; the columns are {', '.join(columns)}{meant}"
            )
    if client == target:
        raise ValueError(f"column {client!r} names the sites; it cannot be the target, too")
    for column in features or []:
        if column in (client, target):
            role = "the target" if column == target else "the site's name"
            raise ValueError(f"column {column!r} is {role}; it cannot be a feature, too")
    if features and len(set(features)) < len(features):
        twice = next(c for c in features if list(features).count(c) > 1)
        raise ValueError(f"feature {twice!r} is named twice; name it once")
    chosen = list(features or [c for c in columns if c not in (client, target)])
    if not chosen:
        raise ValueError("no feature columns are left; give the table at least one")
    return chosen


def no_disguised_numbers(values: Any, what: str) -> None:
    """Complain about dates and complex numbers, which NumPy would turn into numbers unasked."""
    kind = np.asarray(values).dtype.kind
    if kind in NO_NUMBERS:
        remedy = "give real ones" if kind == "c" else "give numbers of a unit, such as days"
        raise ValueError(f"{what} holds {NO_NUMBERS[kind]}; {remedy}")


def named_apart(frame: Any) -> None:
    """Complain about columns of a table that have one name, as pandas and pyarrow allow."""
    names = getattr(frame, "column_names", None)
    counts = Counter(str(name) for name in (frame.columns if names is None else names))
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"several columns are called {listed(twice)}; rename or drop all but one")


def with_text_names(frame: Any) -> Any:
    """The table with column names that are text and apart; pandas may have numbers as names."""
    if not (hasattr(frame, "columns") or hasattr(frame, "column_names")):
        return frame
    named_apart(frame)
    names = getattr(frame, "columns", ())
    if not hasattr(frame, "set_axis") or all(isinstance(name, str) for name in names):
        return frame
    return frame.set_axis([str(name) for name in names], axis=1)


def plain_names(n_features: int) -> tuple[str, ...]:
    """The names of columns that came without any: x0, x1, ..."""
    return tuple(f"x{j}" for j in range(n_features))


def target_vector(y: ArrayLike, n_rows: int) -> Floats:
    """The target y as one float per row."""
    no_disguised_numbers(y, "y")
    try:
        target = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("y holds values that are not numbers; encode or drop them") from None
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    if target.shape != (n_rows,):
        raise ValueError(f"y must hold one number per row: {n_rows} rows, y has {target.shape}")
    return target


def same_columns(
    parts: Mapping[str, tuple[Floats, tuple[str, ...]]],
) -> tuple[tuple[str, ...], dict[str, Floats]]:
    """The columns of the first site, and every site's table with these; else an error by site."""
    reference = next(iter(parts))
    features = parts[reference][1]
    tables, findings = {}, []
    for name, (table, own) in parts.items():
        if own == features:
            tables[name] = table
        elif sorted(own) == sorted(features):
            tables[name] = table[:, [own.index(f) for f in features]]
        else:
            missing = sorted(set(features) - set(own))
            extra = sorted(set(own) - set(features))
            fact = f"columns differ from those of site {reference!r}:"
            fact += f" lacks {', '.join(missing)}" if missing else ""
            fact += f" has besides {', '.join(extra)}" if extra else ""
            findings.append(Finding("error", name, fact, "give every site the same columns"))
    if findings:
        raise FederationError(findings)
    return features, tables
