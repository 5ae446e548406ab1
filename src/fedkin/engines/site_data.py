"""A site's own table, checked against what the run asks for; what is wrong is one safe word.

The story of a failure stays in the site's log; what travels is a `Fault`: a reason from the list
and, at most, the name of a column that the run itself named.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.durable import DAMAGE, Locked
from fedkin.federation import Federation
from fedkin.frames import FederationError, numeric_column, read_frame
from fedkin.protocol import Fault, Reason

logger = logging.getLogger("fedkin.site")

_FULL = (errno.ENOSPC, errno.EDQUOT)


class CannotTakePart(RuntimeError):
    """The site cannot take part; `fault` is what may be said about it elsewhere."""

    def __init__(self, fault: Fault, story: str) -> None:
        super().__init__(f"{fault}: {story}")
        self.fault = fault


def fault_of(error: BaseException) -> Fault:
    """The safe word for whatever went wrong at a site."""
    if isinstance(error, CannotTakePart):
        return error.fault
    if isinstance(error, OSError) and error.errno in _FULL:
        return Fault(Reason.DISK)
    if isinstance(error, Locked):
        return Fault(Reason.LOCKED)
    return Fault(Reason.ERROR)


def site_data(
    name: str, path: str | Path, target: str | None = None, features: Sequence[str] | None = None
) -> Federation:
    """The columns that the run names, in its order, from the site's own file.

    Other columns are not looked at. Without `features` the file must have no names of columns:
    sites must mean the same by the j-th column.
    """
    path = Path(path)
    if path.suffix == ".npz":
        X, y = _from_npz(path)
        if features is not None:
            raise CannotTakePart(
                Fault(Reason.COLUMN, next(iter(features), "")),
                f"{path} has no names of columns, the run names {', '.join(features)}",
            )
    else:
        X, y = _from_table(path, target, features)
    client = X if y is None else (X, y)
    try:
        clients = Federation.from_clients({name: client}, target or "y")
    except FederationError as error:
        raise CannotTakePart(Fault(Reason.VALUES), str(error)) from error
    except ValueError as error:
        raise CannotTakePart(Fault(Reason.NUMBER), str(error)) from error
    if features is None:
        return clients
    return replace(clients, feature_names=tuple(features))


def _from_npz(path: Path) -> tuple[Any, Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["X"], arrays.get("y")
    except DAMAGE as error:
        raise CannotTakePart(Fault(Reason.DATA), f"{path}: {error}") from error


def _from_table(
    path: Path, target: str | None, features: Sequence[str] | None
) -> tuple[Any, np.ndarray | None]:
    import narwhals.stable.v1 as nw

    try:
        table = nw.from_native(read_frame(path), eager_only=True)
    except Exception as error:  # pyarrow has a tree of its own errors
        raise CannotTakePart(Fault(Reason.DATA), f"{path}: {error}") from error
    if features is None:
        raise CannotTakePart(
            Fault(Reason.COLUMN), f"the run names no features, but the columns of {path} have names"
        )
    wanted = [*features, *([target] if target else [])]
    missing = [column for column in wanted if column not in table.columns]
    if missing:
        raise CannotTakePart(
            Fault(Reason.COLUMN, missing[0]),
            f"{path} has no column {', '.join(missing)}; its columns are "
            f"{', '.join(table.columns)}",
        )
    columns = {}
    for column in wanted:
        try:
            columns[column] = numeric_column(table[column], column)
        except ValueError as error:
            raise CannotTakePart(Fault(Reason.NUMBER, column), f"{path}: {error}") from error
    X = np.stack([columns[c] for c in features], axis=1) if features else np.empty((len(table), 0))
    return X, columns[target] if target else None
