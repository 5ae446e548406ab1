"""Real data that come with the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files

import numpy as np
from numpy.typing import NDArray

from fedkin.arrays import Array, Floats, Indices
from fedkin.federation import Federation


@dataclass(frozen=True)
class Turbofan:
    """NASA C-MAPSS FD001, 100 engines run to failure: one row per engine and cycle.

    `values` (20631, 24) has the columns `columns`; `engine` and `cycle` count from 1.
    """

    engine: Indices
    cycle: Floats
    values: Floats
    columns: tuple[str, ...]

    def column(self, name: str) -> Floats:
        """One setting or sensor, for example "sensor_7"."""
        if name == "cycle":
            return self.cycle
        if name not in self.columns:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(self.columns)}")
        return self.values[:, self.columns.index(name)]


@dataclass(frozen=True)
class PenDigits:
    """10,992 digits written with a pen on a tablet by 44 people, about 250 each.

    The 16 features `X` (10992, 16) are coordinates: eight points x1, y1, ..., x8, y8 spaced evenly
    along the stroke, each axis stretched to 0 ... 100. (The FedGrEM paper calls them pressure
    levels; they are not.) `digit` is what was written, `writer` who wrote it, from 1; `sample` the
    running number among that writer's digits, from 1. Writers 1 to 30 are the training file of the
    original, 31 to 44 its test file.
    """

    X: Floats
    digit: Indices
    writer: Indices
    sample: Indices

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the coordinates."""
        return tuple(f"{axis}{point}" for point in range(1, 9) for axis in "xy")

    @property
    def writer_names(self) -> NDArray[np.str_]:
        """The site name of every row, "writer-1" to "writer-44"."""
        return np.array([f"writer-{k}" for k in self.writer])

    def federation(self, labelled: bool = False) -> Federation:
        """Every writer a site; with `labelled`, the digit is the target y."""
        digit = self.digit.astype(np.float64) if labelled else None
        return Federation.from_groups(self.X, self.writer_names, digit, self.columns, "digit")


def load_turbofan() -> Turbofan:
    """The training part of FD001 (Saxena and Goebel 2008, public domain)."""
    stored = _shipped("cmapss_fd001.npz")
    rows, columns = stored["train"], tuple(map(str, stored["columns"]))
    return Turbofan(rows[:, 0].astype(np.intp), rows[:, 1], rows[:, 2:], columns[2:])


def load_pendigits() -> PenDigits:
    """Pen digits with their writers (Alpaydin and Alimoglu 1998, CC BY 4.0).

    The 16 features are coordinates of eight points along the stroke; see `PenDigits`.
    """
    stored = _shipped("pendigits.npz")
    digit, writer, sample = (stored[n].astype(np.intp) for n in ("y", "writer", "sample_no"))
    return PenDigits(stored["X"].astype(np.float64), digit, writer, sample)


def _shipped(name: str) -> dict[str, Array]:
    place = files("fedkin.datasets") / "data" / name
    with as_file(place) as path, np.load(path, allow_pickle=False) as stored:
        return dict(stored)
