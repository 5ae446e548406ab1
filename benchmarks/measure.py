"""How time is taken: works take turns, medians count, and the machine's own limits beside them.

With one thread seconds are CPU seconds, which other people's jobs hardly change; with more they are
wall seconds, since only those show what a second core is good for.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.table import Row, text

# Libraries of linear algebra read these when they are loaded, so they are set from outside.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# A work of more seconds than this is slow and gets fewer turns.
SLOW = 1.0
# Beyond this once is enough.
VERY_SLOW = 20.0


class Effort(NamedTuple):
    """How much to measure: turns of a work, turns of a slow one, least seconds of a timing."""

    name: str
    turns: int
    slow_turns: int
    least: float


EFFORTS = {
    "full": Effort("full", 11, 3, 0.05),
    "quick": Effort("quick", 5, 1, 0.02),
    "toy": Effort("toy", 1, 1, 0.0),
}


def threads() -> int:
    """Threads that linear algebra may use in this process."""
    return int(os.environ.get(THREAD_VARIABLES[0], os.cpu_count() or 1))


def clock() -> float:
    """Seconds: of CPU with one thread, else of the wall."""
    return time.process_time() if threads() == 1 else time.perf_counter()


@dataclass(frozen=True)
class Timing:
    """Median seconds of a call, the number of timings behind it, and what the call returned."""

    seconds: float
    turns: int
    result: Any


def race(works: Mapping[str, Callable[[], Any]], effort: Effort) -> dict[str, Timing]:
    """Median times of works that take turns, so that a slow minute slows them all.

    A short work is called again and again until a timing lasts `effort.least`, as rounds of a fit
    follow one another; a slow one gets fewer turns, a very slow one its first.
    """
    results, calls, turns, spent = {}, {}, {}, {}
    for name, work in works.items():
        results[name], first = _timed(work)
        # A first call may pay for imports, caches and compiling; of a very slow one that is little.
        very_slow = first > VERY_SLOW
        second = first if very_slow else _timed(work)[1]
        slow = second > SLOW
        calls[name] = 1 if slow else math.ceil(max(effort.least, 1e-9) / second)
        turns[name] = (1 if very_slow else _slow_turns(effort)) if slow else effort.turns
        spent[name] = [second] if slow else []
    for _ in range(effort.turns):
        for name, work in works.items():
            if len(spent[name]) < turns[name]:
                spent[name].append(_timed(work, calls[name])[1])
    return {
        name: Timing(float(np.median(found)), len(found), results[name])
        for name, found in spent.items()
    }


def _timed(work: Callable[[], Any], calls: int = 1) -> tuple[Any, float]:
    """What the last of some calls returned, and seconds a call."""
    begin = clock()
    for _ in range(calls):
        result = work()
    return result, max((clock() - begin) / calls, 1e-9)


def _slow_turns(effort: Effort) -> int:
    # Slow peers mostly use one thread whatever they are given; with more once is enough.
    return effort.slow_turns if threads() == 1 else 1


# ------------------------------------------------------------------ the machine's own limits


class Roofline(NamedTuple):
    """Measured here and now with this process's threads: rates a second."""

    flops: float
    bytes: float
    exps: float

    def seconds(self, flops: float = 0.0, bytes: float = 0.0, exps: float = 0.0) -> float:
        """The least time for that much arithmetic and that much memory read once."""
        return max(flops / self.flops + exps / self.exps, bytes / self.bytes)


@cache
def roofline(size: int = 1024, megabytes: int = 256) -> Roofline:
    """Best of several: a large matrix product, a sum over memory, exponentials in cache."""
    rng = np.random.default_rng(0)
    square = rng.normal(size=(size, size))
    memory = np.ones((threads(), megabytes * 2**17 // threads()))
    cached = rng.normal(size=(threads(), 2**14))
    out = np.empty_like(cached)
    with ThreadPoolExecutor(threads()) as pool:

        def everywhere(work):
            return lambda: list(pool.map(work, range(threads())))

        def exponentials(i):
            for _ in range(50):
                np.exp(cached[i], out=out[i])

        product = _best(lambda: square @ square)
        read = _best(everywhere(lambda i: memory[i].sum()))
        exps = _best(everywhere(exponentials))
    return Roofline(2 * size**3 / product, memory.nbytes / read, 50 * cached.size / exps)


def _best(work: Callable[[], Any], turns: int = 7) -> float:
    found = []
    for _ in range(turns):
        begin = clock()
        work()
        found.append(clock() - begin)
    return min(found)


# ------------------------------------------------------------------ a part by itself


def alone(rows: Callable[[Effort], Iterable[Row]], arguments: list[str] | None = None) -> None:
    """Command line of a part: print its rows, or write them for `run`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--effort", choices=EFFORTS, default="full")
    parser.add_argument("--json", type=Path, help="write rows and rates here, print none")
    options = parser.parse_args(arguments)
    found = []
    for row in rows(EFFORTS[options.effort]):
        found.append(replace(row, threads=threads()))
        print(f"  {row.work}, {row.peer or 'no peer'}", file=sys.stderr, flush=True)
    if options.json is None:
        print(text(found))
    else:
        written = {"rows": [asdict(row) for row in found], "roofline": roofline()._asdict()}
        options.json.write_text(json.dumps(written))
