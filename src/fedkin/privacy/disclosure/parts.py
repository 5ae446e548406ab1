"""Parts of the rows that have left in one run, so that two of them do not differ by a patient.

Sums over a group of thirty rows and over the same group without one of them differ by that one. A
site keeps how much every row counted in every part that left, and what left: a part that would
differ from it by too few rows leaves as it was. Near its end an honest fit gets the same answer
twice and has settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedkin.arrays import Array, Floats, Indices
from fedkin.durable import DAMAGE, load_arrays, private_folder, sealed, write_bytes
from fedkin.privacy.disclosure.look import effective_rows

# Most weights of rows that are kept of one field; the oldest parts are forgotten beyond.
MOST_KEPT = 2**22
_ROWS, _VALUES = ".rows", ".values"
# Share of squared lengths that products lose at most in rounding.
ROUNDING = 1e-9


class Series:
    """Parts of one field in the order in which they left: weights of rows (K, N), and values."""

    def __init__(self, n_rows: int) -> None:
        self._room, self._lengths = np.empty((1, n_rows)), np.empty(1)
        self.values: list[Array] = []
        self.largest = 0.0
        """No row has counted more in any part."""

    @property
    def rows(self) -> Floats:
        """How much every row counted in every part."""
        return self._room[: len(self.values)]

    def append(self, rows: Floats, value: Array) -> None:
        """One more part."""
        k = len(self.values)
        if k == len(self._room):
            self._room = np.concatenate([self._room, np.empty_like(self._room)])
            self._lengths = np.concatenate([self._lengths, np.empty_like(self._lengths)])
        self._room[k], self._lengths[k] = rows, rows @ rows
        self.values.append(value)
        self.largest = max(self.largest, float(rows.max(initial=0.0)))

    def forget_all_but(self, most: int) -> None:
        """The oldest parts go."""
        k = len(self.values)
        if k > most:
            self._room, self._lengths = self._room[k - most : k], self._lengths[k - most : k]
            self.values = self.values[k - most :]

    def within(self, square: float, rows: Floats) -> Indices:
        """Parts whose weights are no further from these than so, squared; some more by rounding."""
        k = len(self.values)
        lengths = self._lengths[:k] + rows @ rows
        found: Indices = np.flatnonzero(
            lengths - 2.0 * (self.rows @ rows) <= square + ROUNDING * lengths
        )
        return found


class Parts:
    """What left of one run by parts of the rows, in a folder of the site's own or in memory."""

    def __init__(self, folder: Path | None, least: int) -> None:
        self.folder, self.least = folder, least
        self._left: dict[str, Series] = {}
        self._new: dict[str, list[tuple[Floats, Array]]] = {}
        self._files = sorted(folder.glob("*.npz")) if folder is not None else []
        for path in self._files:
            self._read(path)

    def as_it_was(self, field: str, rows: Floats, value: Array) -> Array | None:
        """The first value that left of a part which differs by too few rows; None if none did.

        A part that has left just so is asked for once more, and nothing is new in it.
        """
        left = self._left.get(field)
        if left is None:
            return None
        # No row's weight differs by more than this, so that sums of differences are at least their
        # squares over it: a part that is far in squares differs by enough rows.
        most = max(left.largest, float(rows.max(initial=0.0)))
        near = left.within((self.least + 1.0) * most**2, rows)
        near = near[[left.values[k].shape == value.shape for k in near]]
        if not len(near):
            return None
        apart = np.abs(left.rows[near] - rows)
        squares = np.square(apart).sum(axis=1)
        if not squares.all():
            return None
        few = effective_rows(apart.sum(axis=1), squares) < self.least
        return left.values[int(near[np.argmax(few)])] if few.any() else None

    def leaves(self, field: str, rows: Floats, value: Array) -> None:
        """Keep a part that leaves; never one that left as another was."""
        left = self._left.setdefault(field, Series(len(rows)))
        if any(np.array_equal(rows, left.rows[k]) for k in left.within(0.0, rows)):
            return
        rows, value = rows.copy(), np.array(value)
        left.append(rows, value)
        self._new.setdefault(field, []).append((rows, value))

    def write(self) -> None:
        """What is new goes to the site's disk, before the reply leaves."""
        if not self._new:
            return
        if self.folder is not None:
            path = private_folder(self.folder) / f"{len(self._files) + 1:06d}.npz"
            write_bytes(path, sealed(_as_arrays(self._new)), sync=False)
            self._files.append(path)
        for field, parts in self._new.items():
            self._left[field].forget_all_but(max(1, MOST_KEPT // max(1, len(parts[0][0]))))
        self._new = {}

    def _read(self, path: Path) -> None:
        try:
            arrays = load_arrays(path, seal=True)
        except DAMAGE as error:
            raise OSError(
                f"{path} is damaged: without it nobody can tell by how many rows a part differs "
                "from one that left; restore it from a backup, or leave this run"
            ) from error
        for name in arrays:
            if name.endswith(_ROWS):
                field = name.removesuffix(_ROWS)
                left = self._left.setdefault(field, Series(arrays[name].shape[1]))
                for rows, value in zip(arrays[name], arrays[field + _VALUES]):
                    left.append(rows, value)
                left.forget_all_but(max(1, MOST_KEPT // max(1, arrays[name].shape[1])))


def _as_arrays(new: Mapping[str, list[tuple[Floats, Array]]]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for field, parts in new.items():
        rows, values = zip(*parts)
        found[field + _ROWS], found[field + _VALUES] = np.stack(rows), np.stack(values)
    return found
