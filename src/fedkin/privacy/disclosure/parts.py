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

from fedkin.arrays import Array, Floats
from fedkin.durable import DAMAGE, load_arrays, private_folder, sealed, write_bytes
from fedkin.privacy.disclosure.look import effective_rows

# Most weights of rows that are kept of one field; the oldest parts are forgotten beyond.
MOST_KEPT = 2**22
_ROWS, _VALUES = ".rows", ".values"


class Parts:
    """What left of one run by parts of the rows, in a folder of the site's own or in memory."""

    def __init__(self, folder: Path | None, least: int) -> None:
        self.folder, self.least = folder, least
        self._left: dict[str, list[tuple[Floats, Array]]] = {}
        self._new: dict[str, list[tuple[Floats, Array]]] = {}
        self._files = sorted(folder.glob("*.npz")) if folder is not None else []
        for path in self._files:
            self._read(path)

    def as_it_was(self, field: str, rows: Floats, value: Array) -> Array | None:
        """The first value that left of a part which differs by too few rows; None if none did.

        A part that has left just so is asked for once more, and nothing is new in it.
        """
        left = [(kept, was) for kept, was in self._of(field) if was.shape == value.shape]
        if not left:
            return None
        apart = np.abs(np.stack([kept for kept, _ in left]) - rows)
        squares = np.square(apart).sum(axis=1)
        if not squares.all():
            return None
        near = effective_rows(apart.sum(axis=1), squares) < self.least
        return left[int(np.argmax(near))][1] if near.any() else None

    def leaves(self, field: str, rows: Floats, value: Array) -> None:
        """Keep a part that leaves; never one that left as another was."""
        if not any(np.array_equal(rows, kept) for kept, _ in self._of(field)):
            self._new.setdefault(field, []).append((rows.copy(), np.array(value)))

    def write(self) -> None:
        """What is new goes to the site's disk, before the reply leaves."""
        if not self._new:
            return
        if self.folder is not None:
            path = private_folder(self.folder) / f"{len(self._files) + 1:06d}.npz"
            write_bytes(path, sealed(_as_arrays(self._new)), sync=False)
            self._files.append(path)
        for field, parts in self._new.items():
            self._keep(field, parts)
        self._new = {}

    def _of(self, field: str) -> list[tuple[Floats, Array]]:
        return self._left.get(field, []) + self._new.get(field, [])

    def _keep(self, field: str, parts: list[tuple[Floats, Array]]) -> None:
        own = self._left.setdefault(field, [])
        own += parts
        most = max(1, MOST_KEPT // max(1, len(parts[0][0])))
        del own[:-most]

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
                self._keep(field, list(zip(arrays[name], arrays[field + _VALUES])))


def _as_arrays(new: Mapping[str, list[tuple[Floats, Array]]]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for field, parts in new.items():
        rows, values = zip(*parts)
        found[field + _ROWS], found[field + _VALUES] = np.stack(rows), np.stack(values)
    return found
