"""Which of several is best, and in which order they come, where rounding must not decide.

Restarts that end at the same place have the same likelihood but for its last digits, and processors
differ in these. Values that agree to `RELATIVE` therefore count as equal, and of equal ones the
first comes first: every processor then picks the same model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Sums over a million rows are exact to about 1e-12 of their size; what restarts that end at
# different places differ by is larger by many orders of magnitude.
RELATIVE = 1e-9


def first_best(
    values: ArrayLike, axis: int = -1, floor: Any = 0.0, relative: float = RELATIVE
) -> NDArray[np.intp]:
    """Index of the first among the largest values along an axis; NaN is never best.

    Values tie with the largest if they are within `relative` of its size, or within `floor`: what
    rounding does to values that may be near zero themselves, of the values' shape without the axis.
    Where all are NaN it is 0.
    """
    array = np.moveaxis(np.asarray(values, dtype=np.float64), axis, -1)
    top = np.fmax.reduce(array, axis=-1)
    return _first(array >= (top - _room(top, floor, relative))[..., None])


def first_least(
    values: ArrayLike, axis: int = -1, floor: Any = 0.0, relative: float = RELATIVE
) -> NDArray[np.intp]:
    """Index of the first among the smallest values along an axis, as `first_best`."""
    array = np.moveaxis(np.asarray(values, dtype=np.float64), axis, -1)
    least = np.fmin.reduce(array, axis=-1)
    return _first(array <= (least + _room(least, floor, relative))[..., None])


def _room(extreme: NDArray[np.float64], floor: Any, relative: float) -> NDArray[np.float64]:
    """How far from the extreme a value still ties with it; infinities tie with each other only."""
    return np.where(np.isfinite(extreme), np.maximum(relative * np.abs(extreme), floor), 0.0)


def _first(ties: NDArray[np.bool_]) -> NDArray[np.intp]:
    first: NDArray[np.intp] = ties.argmax(axis=-1)
    return first


def tied_ranks(
    values: ArrayLike, floor: float = 0.0, relative: float = RELATIVE
) -> NDArray[np.intp]:
    """Ranks of finite values (n,) from the smallest; neighbours that tie have the same one.

    A stable sort of the ranks leaves what ties in the order in which it came.
    """
    array = np.asarray(values, dtype=np.float64)
    order = np.argsort(array, kind="stable")
    ordered = array[order]
    size = np.maximum(np.abs(ordered[1:]), np.abs(ordered[:-1]))
    apart = np.diff(ordered) > np.maximum(relative * size, floor)
    ranks = np.zeros(len(array), dtype=np.intp)
    ranks[order[1:]] = np.cumsum(apart)
    return ranks


def tied_order(
    values: ArrayLike, floor: float = 0.0, relative: float = RELATIVE
) -> NDArray[np.intp]:
    """Indices of finite values (n,) from the smallest to the largest; of equal ones the first."""
    return np.argsort(tied_ranks(values, floor, relative), kind="stable")
