"""Tables as people have them (arrays, data frames, files) turned into float matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fedkin.arrays import Floats, Indices

# How many findings an error message spells out.
SHOWN_FINDINGS = 5


@dataclass(frozen=True)
class Finding:
    """Something about a site's data that stops a fit ("error") or deserves a look ("warning")."""

    level: Literal["error", "warning"]
    site: str | None
    fact: str
    remedy: str
    code: str = ""
    """Which check it is, such as FK003; `fedkin.inference.checks` has them."""

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
) -> Iterator[Finding]:
    """An error for every site and column with missing or infinite values.

    `columns` are pairs: what the column is called in the message, and its values.
    """
    sizes = np.bincount(owner, minlength=len(names))
    for test, word, remedy in (
        (np.isnan, "missing", f"drop or impute them {when} (NaN)"),
        (np.isinf, "infinite", f"correct them or drop these rows {when}"),
    ):
        for column, values in columns:
            counts = np.bincount(owner[test(values)], minlength=len(names))
            for k in np.flatnonzero(counts).tolist():
                fact = f"{column} has {counts[k]} of {sizes[k]} values {word}"
                yield Finding("error", names[k], fact, remedy)


def read_frame(path: str | Path) -> Any:
    """A CSV or Parquet file as a pyarrow table."""
    path = Path(path)
    if path.suffix.lower() not in READERS:
        raise ValueError(f"{path}: expected a file ending in {' or '.join(READERS)}")
    if not path.exists():
        raise ValueError(f"{path}: there is no such file")
    return READERS[path.suffix.lower()](path)


def _read_csv(path: Path) -> Any:
    from pyarrow import csv

    return csv.read_csv(path)


def _read_parquet(path: Path) -> Any:
    from pyarrow import parquet

    return parquet.read_table(path)


READERS = {".csv": _read_csv, ".parquet": _read_parquet}


def read_site(path: Path, target: str | None) -> tuple[Any, Floats | None]:
    """One site's features and target from its own file."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["X"], arrays.get("y")
    import narwhals.stable.v1 as nw

    table = nw.from_native(read_frame(path), eager_only=True)
    if target is None:
        return nw.to_native(table), None
    if target not in table.columns:
        raise ValueError(f"{path}: there is no column {target!r}")
    return nw.to_native(table.drop(target)), numeric_column(table[target], target)


def numeric_column(column: Any, name: str) -> Floats:
    """A column as floats with NaN for missing; text is refused by name."""
    import narwhals.stable.v1 as nw

    if not (column.dtype.is_numeric() or column.dtype == nw.Boolean):
        kind = str(column.dtype).lower()
        raise ValueError(f"column {name!r} holds {kind}, not numbers; encode or drop it")
    values: Floats = column.cast(nw.Float64).to_numpy().astype(np.float64)
    return values


def numeric_table(X: Any) -> tuple[Floats, tuple[str, ...]]:
    """A table as a float matrix with feature names (x0, x1, ... when it has none)."""
    if hasattr(X, "columns") or hasattr(X, "column_names"):
        import narwhals.stable.v1 as nw

        table = nw.from_native(X, eager_only=True)
        names = tuple(str(c) for c in table.columns)
        columns = [numeric_column(table[c], c) for c in table.columns]
        return np.stack(columns, axis=1) if columns else np.empty((len(table), 0)), names
    try:
        matrix = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("X holds values that are not numbers; encode or drop them") from None
    if matrix.ndim != 2:
        raise ValueError(f"X must have rows and columns; its shape is {matrix.shape}")
    return matrix, plain_names(matrix.shape[1])


def plain_names(n_features: int) -> tuple[str, ...]:
    """The names of columns that came without any: x0, x1, ..."""
    return tuple(f"x{j}" for j in range(n_features))


def target_vector(y: ArrayLike, n_rows: int) -> Floats:
    """The target y as one float per row."""
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
