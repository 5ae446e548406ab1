"""A site's own table, checked against what the run asks for; what is wrong is one safe word.

The story of a failure stays in the site's log; what travels is a `Fault`: a reason from the list
and, at most, the name of a column that the run itself named.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.durable import DAMAGE, Locked
from fedkin.engines.schema import ColumnFault, JobSchema
from fedkin.federation import Federation
from fedkin.frames import FederationError, read_frame
from fedkin.protocol import Fault, Reason

logger = logging.getLogger("fedkin.site")

_FULL = (errno.ENOSPC, errno.EDQUOT)


class CannotTakePart(RuntimeError):
    """The site cannot take part; `faults` are what may be said about it elsewhere."""

    def __init__(self, fault: Fault, story: str, others: Sequence[Fault] = ()) -> None:
        super().__init__(f"{fault}: {story}")
        self.fault, self.story = fault, story
        self.faults = (fault, *others)


def fault_of(error: BaseException) -> Fault:
    """The safe word for whatever went wrong at a site."""
    if isinstance(error, CannotTakePart):
        return error.fault
    if isinstance(error, OSError) and error.errno in _FULL:
        return Fault(Reason.DISK)
    if isinstance(error, Locked):
        return Fault(Reason.LOCKED)
    return Fault(Reason.ERROR)


def faults_of(error: BaseException) -> tuple[Fault, ...]:
    """All safe words for whatever went wrong, the first one first."""
    return error.faults if isinstance(error, CannotTakePart) else (fault_of(error),)


def site_data(
    name: str,
    path: str | Path,
    target: str | None = None,
    features: Sequence[str] | None = None,
    schema: JobSchema | None = None,
    units: Mapping[str, str] | None = None,
    weights: str | None = None,
) -> Federation:
    """The columns that the run names, in its order, from the site's own file.

    Other columns are not looked at. Without `features` the file must have no names of columns:
    sites must mean the same by the j-th column. `schema` is what the job says of its columns,
    `units` what the site declares of its own; all that is wrong is told at once. `weights` is the
    column (of an npz file: the array) that says how much every row counts.
    """
    schema = schema or JobSchema({})
    path = Path(path)
    if path.suffix == ".npz":
        X, y, counts = _from_npz(path, weights)
        named = [*(features or ()), *schema.rules]
        if features is not None or named:
            raise CannotTakePart(
                Fault(Reason.COLUMN, next(iter(named), "")),
                f"{path} has no names of columns, the run names {', '.join(named)}",
            )
    else:
        X, y, counts = _from_table(path, target, features, schema, units or {}, weights)
    client = X if y is None else (X, y)
    try:
        clients = Federation.from_clients({name: client}, target or "y")
        clients = clients if counts is None else clients.with_weights(counts)
    except FederationError as error:
        raise CannotTakePart(Fault(Reason.VALUES), str(error)) from error
    except ValueError as error:
        raise CannotTakePart(Fault(Reason.NUMBER), str(error)) from error
    if features is None:
        return clients
    return replace(clients, feature_names=schema.features(features))


def _from_npz(path: Path, weights: str | None) -> tuple[Any, Any, Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            X, y = arrays["X"], arrays.get("y")
            counts = None if weights is None else arrays.get(weights)
    except DAMAGE as error:
        raise CannotTakePart(Fault(Reason.DATA), f"{path}: {error}") from error
    if weights is not None and counts is None:
        raise CannotTakePart(Fault(Reason.COLUMN, weights), f"{path} has no {weights}")
    return X, y, counts


def _from_table(
    path: Path,
    target: str | None,
    features: Sequence[str] | None,
    schema: JobSchema,
    units: Mapping[str, str],
    weights: str | None,
) -> tuple[Any, np.ndarray | None, np.ndarray | None]:
    import narwhals.stable.v1 as nw

    try:
        table = nw.from_native(read_frame(path), eager_only=True)
    except Exception as error:  # pyarrow has a tree of its own errors
        raise CannotTakePart(Fault(Reason.DATA), f"{path}: {error}") from error
    if features is None:
        raise CannotTakePart(
            Fault(Reason.COLUMN), f"the run names no features, but the columns of {path} have names"
        )
    wanted = [*features, *([target] if target else []), *([weights] if weights else [])]
    missing = [c for c in dict.fromkeys([*wanted, *schema.rules]) if c not in table.columns]
    told = [(Fault(Reason.COLUMN, column), f"there is no column {column}") for column in missing]
    strange = [c for c in schema.rules if c not in wanted and c not in missing]
    told += [(Fault(Reason.COLUMN, c), f"{c!r} is no feature, and not our target") for c in strange]
    columns = {}
    for column in wanted:
        try:
            if column not in missing:
                columns[column] = schema.rule(column).numbers(table[column])
        except ColumnFault as error:
            told.append((error.fault, str(error)))
    if weights in columns and (columns[weights] < 0).any():
        told.append((Fault(Reason.RANGE, weights), f"column {weights!r} has negative weights"))
    told += schema.other_units(units)
    if told:
        story = "; ".join(words for _, words in told)
        names = f"its columns are {', '.join(table.columns)}"
        raise CannotTakePart(told[0][0], f"{path}: {story}; {names}", [f for f, _ in told[1:]])
    parts = [columns[column] for column in features]
    X = np.concatenate(parts, axis=1) if parts else np.empty((len(table), 0))
    y, counts = (columns[name][:, 0] if name else None for name in (target, weights))
    return X, y, counts
