"""What earlier runs were about, so that two of them do not differ by a patient.

For every table that a run drew on, the site keeps the salted hashes of each column's values,
sorted: enough to count by how many rows two tables differ, and of no use to anybody without the
site's salt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.durable import DAMAGE, load_arrays, private_folder, save_arrays, write_bytes
from fedkin.federation import Federation
from fedkin.privacy.disclosure.look import differing_rows

# What stands for weights of rows among the columns of a table; no column has such a name.
WEIGHTS = "__weights__"


def _rows(table: dict[str, Indices]) -> dict[str, Indices]:
    return {name: hashes for name, hashes in table.items() if name != WEIGHTS}


def _weights(table: dict[str, Indices]) -> Indices:
    return table.get(WEIGHTS, np.empty(0, dtype=np.uint64))


class Released:
    """Tables on which runs of this site have drawn, in a folder of the site's own.

    One that does not keep (`keeps`) looks only: for a dry run, of which nothing leaves.
    """

    def __init__(self, folder: Path, salt: bytes, keeps: bool = True) -> None:
        self.folder, self.salt, self.keeps = folder, salt, keeps

    def closest(self, clients: Federation) -> int:
        """The fewest rows by which these differ from a table of an earlier run.

        The number of rows if there was no other run, or one about just these rows with just these
        weights: it tells nothing that has not left already. The same rows with other weights, or
        with weights and without, differ by no row and by as little as the weight of one: 0.
        """
        return self._closest(self._with_weights(clients), self._others())

    def closest_of(self, tables: Sequence[Federation], besides: Federation) -> int:
        """The fewest rows by which one of several tables differs from one of an earlier run.

        They are cut from one table (`besides`): neither that nor each other are they compared with.
        """
        made = [self._with_weights(table) for table in tables]
        own = {self._name(table) for table in (self._with_weights(besides), *made)}
        others = self._others(own)
        return min((self._closest(table, others) for table in made), default=len(besides.X))

    def _closest(self, own: dict[str, Indices], others: Sequence[dict[str, Indices]]) -> int:
        n_rows = max(len(values) for values in own.values())
        found = [differing_rows(_rows(own), _rows(other)) for other in others]
        same = [other for other, rows in zip(others, found) if rows == 0]
        if any(np.array_equal(_weights(own), _weights(other)) for other in same):
            return n_rows
        return min(found, default=n_rows)

    def keep(self, clients: Federation) -> None:
        """A reply about these rows leaves."""
        if not self.keeps:
            return
        own = self._with_weights(clients)
        path = private_folder(self.folder) / f"{self._name(own)}.npz"
        if not path.exists():
            save_arrays(path, own)

    def another_cut(self, clients: Federation, parts: Floats) -> bool:
        """Whether these rows have left cut into other parts (N, F); if not, this way is kept.

        Sums over one cut's parts are a few equations about the rows, and who knows the places of
        rows needs as many cuts as it takes to solve for all of them.
        """
        own = np.ascontiguousarray(parts).tobytes()
        seen = hashlib.blake2b(own, key=self.salt[:64], digest_size=16).hexdigest()
        path = self.folder / f"{self._name(self._hashed(clients))}.cut"
        if path.exists():
            return path.read_text() != seen
        if self.keeps:
            private_folder(self.folder)
            write_bytes(path, seen.encode())
        return False

    def _name(self, own: dict[str, Indices]) -> str:
        seen = hashlib.sha256()
        for name in sorted(own):
            seen.update(name.encode() + own[name].tobytes())
        return seen.hexdigest()[:32]

    def _others(self, but: Collection[str] = ()) -> list[dict[str, Indices]]:
        """Tables of earlier runs, without those of some names."""
        found = []
        for path in sorted(self.folder.glob("*.npz")):
            if path.stem in but:
                continue
            try:
                found.append(load_arrays(path, seal=True))
            except DAMAGE as error:
                raise OSError(
                    f"{path} is damaged: without it nobody can tell by how many rows this run "
                    "differs from an earlier one; restore it from a backup, or remove it if no "
                    "earlier run matters"
                ) from error
        return found

    def _hashed(self, clients: Federation) -> dict[str, Indices]:
        columns = {name: clients.X[:, j] for j, name in enumerate(clients.feature_names)}
        if clients.y is not None:
            columns[clients.target_name or "y"] = clients.y
        return {name: self._hashes(name, values) for name, values in columns.items()}

    def _with_weights(self, clients: Federation) -> dict[str, Indices]:
        own = self._hashed(clients)
        if clients.weights is not None:
            own[WEIGHTS] = self._hashes(WEIGHTS, clients.weights)
        return own

    def _hashes(self, name: str, values: np.ndarray) -> Indices:
        """Salted hashes of a column's values, sorted, (n,)."""
        key = hashlib.blake2b(name.encode(), key=self.salt[:64], digest_size=32).digest()
        distinct, place = np.unique(values, return_inverse=True)
        made = [
            int.from_bytes(hashlib.blake2b(v.tobytes(), key=key, digest_size=8).digest(), "little")
            for v in distinct
        ]
        hashed = np.array(made, dtype=np.uint64)[place]
        return np.sort(hashed).astype(np.uint64)
