"""Real data that come with the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Turbofan:
    """NASA C-MAPSS FD001, 100 engines run to failure: one row per engine and cycle.

    `values` (20631, 24) has the columns `columns`; `engine` and `cycle` count from 1.
    """

    engine: NDArray[np.intp]
    cycle: NDArray[np.float64]
    values: NDArray[np.float64]
    columns: tuple[str, ...]

    def column(self, name: str) -> NDArray[np.float64]:
        """One setting or sensor, for example "sensor_7"."""
        if name == "cycle":
            return self.cycle
        if name not in self.columns:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(self.columns)}")
        return self.values[:, self.columns.index(name)]


def load_turbofan() -> Turbofan:
    """The training part of FD001 (Saxena and Goebel 2008, public domain)."""
    place = files("fedkin.datasets") / "data" / "cmapss_fd001.npz"
    with as_file(place) as path, np.load(path, allow_pickle=False) as stored:
        rows, columns = stored["train"], tuple(map(str, stored["columns"]))
    return Turbofan(rows[:, 0].astype(np.intp), rows[:, 1], rows[:, 2:], columns[2:])
