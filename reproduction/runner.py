"""Runs studies: replications in parallel, each kept as it comes, tables and figures at the end.

A unit of work is one replication of one cell. Its rows are kept in a file of their own under a
name made from what determines them (study, settings, seed, the code `keys.py` speaks of), so a run
that was cut short goes on where it stopped and a larger size begins with what a smaller one did.
Units of all studies share one pool, so no core waits for the last unit of a study.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedkin
from reproduction import keys
from reproduction.book import write_study
from reproduction.study import Cell, Results, Row, Study

CELLS = ".cells"


class StudyFailed(RuntimeError):
    """Some replications raised; everything else was run and kept."""


@dataclass(frozen=True)
class Unit:
    """One replication of one cell."""

    study: Study
    cell: Cell
    seed: int

    def key(self) -> str:
        """The file name: a digest of everything that determines the rows."""
        code = keys.code(self.study.one)
        told = json.dumps([self.study.name, dict(self.cell), self.seed, code])
        return hashlib.sha256(told.encode()).hexdigest()[:24] + ".json"


def units(study: Study, size: str) -> list[Unit]:
    """All replications of a study, cell by cell."""
    wanted = study.size(size)
    return [Unit(study, cell, seed) for cell in wanted.cells for seed in range(wanted.replications)]


def run(
    studies: Sequence[Study],
    out: Path,
    size: str = "full",
    jobs: int = 1,
    backend: str = "loky",
    address: str | None = None,
    fresh: bool = False,
    progress: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Run studies and write `out/studies/NAME.{csv,png,md,json}` for each.

    What is on disk is used again unless `fresh`. Studies whose data are not here are left out and
    said so. `StudyFailed` names the replications that raised, after all others were run.
    """
    folder = out / "studies"
    studies = [study for study in studies if _has_its_data(study, say)]
    waiting: dict[str, int] = {}
    todo: list[tuple[Unit, Path]] = []
    for study in studies:
        paths = [(u, folder / CELLS / study.name / u.key()) for u in units(study, size)]
        missing = [(u, path) for u, path in paths if fresh or not path.is_file()]
        waiting[study.name] = len(missing)
        todo += missing
    by_name = {study.name: study for study in studies}
    for name in [name for name, count in waiting.items() if not count]:
        _finish(by_name[name], folder, size, say)
    failed: list[str] = []
    broken: set[str] = set()
    with _bar(progress, len(todo)) as advance, _pool(backend, address):
        for index, rows, seconds, error in _in_parallel([u for u, _ in todo], jobs):
            unit, path = todo[index]
            advance(unit.study.name)
            if error is None:
                _keep(path, {"rows": rows, "seconds": seconds})
            else:
                broken.add(unit.study.name)
                failed.append(f"{unit.study.name} {dict(unit.cell)} seed {unit.seed}: {error}")
            waiting[unit.study.name] -= 1
            if not waiting[unit.study.name] and unit.study.name not in broken:
                _finish(unit.study, folder, size, say)
    if failed:
        raise StudyFailed(f"{len(failed)} replications failed:\n  " + "\n  ".join(failed[:20]))


def results(study: Study, size: str, jobs: int = 1) -> Results:
    """The measurements of a study without writing anything; for tests and notebooks."""
    every = units(study, size)
    found: list[list[Row]] = [[] for _ in every]
    for index, rows, _, error in _in_parallel(every, jobs):
        if error is not None:
            raise StudyFailed(f"{study.name}: {error}")
        found[index] = rows
    return Results([row for rows in found for row in rows])


def environment() -> dict[str, Any]:
    """What the figures may depend on: versions and the machine's properties, no names."""
    import os

    import scipy
    import sklearn

    return {
        "fedkin": fedkin.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
    }


def _finish(study: Study, folder: Path, size: str, say: Callable[[str], None]) -> None:
    """Gather the replications in order and write the study's files."""
    rows: list[Row] = []
    seconds = 0.0
    for unit in units(study, size):
        kept = json.loads((folder / CELLS / study.name / unit.key()).read_text(encoding="utf-8"))
        rows += kept["rows"]
        seconds += kept["seconds"]
    facts = {
        "size": size,
        "replications": study.size(size).replications,
        "cells": len(study.size(size).cells),
        "core_seconds": round(seconds, 1),
        "code": keys.code(study.one),
        "environment": environment(),
    }
    write_study(study, Results(rows), folder, facts)
    say(f"{study.name}: {folder / study.name}.md ({seconds:.0f} core seconds)")


def _has_its_data(study: Study, say: Callable[[str], None]) -> bool:
    from fedkin.datasets import DataMissing

    try:
        for load in study.needs:
            load()
    except (DataMissing, ImportError) as error:
        say(f"{study.name} is left out: {error}")
        return False
    return True


Outcome = tuple[int, list[Row], float, str | None]


def _in_parallel(todo: Sequence[Unit], jobs: int) -> Iterator[Outcome]:
    from joblib import Parallel, delayed

    calls = (delayed(_one)(i, u.study.one, dict(u.cell), u.seed) for i, u in enumerate(todo))
    yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(calls)


def _one(index: int, one: Callable[..., Sequence[Row]], cell: Row, seed: int) -> Outcome:
    """Run one replication; its rows get the cell's settings and the seed in front."""
    start = time.process_time()
    rows: list[Row] = []
    error = None
    try:
        with warnings.catch_warnings():
            # Thousands of replications: what matters about a fit is in its measurements.
            warnings.simplefilter("ignore")
            found = one(seed, **cell)
        head = {**cell, "seed": seed}
        rows = [{**head, **{name: _plain(value) for name, value in row.items()}} for row in found]
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return index, rows, time.process_time() - start, error


def _keep(path: Path, content: dict[str, Any]) -> None:
    """Write atomically: a run may be cut short at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(path)


@contextmanager
def _pool(backend: str, address: str | None) -> Iterator[None]:
    """Where joblib sends the work: this machine's processes, or a Dask cluster."""
    from joblib import parallel_config

    if backend != "dask":
        with parallel_config(backend=backend):
            yield
        return
    from dask.distributed import Client

    with Client(address) as client, parallel_config(backend="dask", client=client):
        yield


@contextmanager
def _bar(wanted: bool | None, total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, nothing in a pipe; `wanted` overrides."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield lambda name: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("studies", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)


def _plain(value: Any) -> Any:
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    return value.item() if isinstance(value, np.generic) else value
