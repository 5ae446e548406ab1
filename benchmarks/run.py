"""Every part in fresh processes with one and with two threads; one table, one page, one CSV.

    python -m benchmarks.run [--quick] [--threads 1 2] [--only PART ...] [--out DIR]

Writes results.md, results.csv, scaling.csv and scaling.png to the folder of this file; `--quick` to
its folder `quick`, so that a quick look does not replace the last full run. On a busy machine
`--threads 1` is honest (CPU seconds); two threads wait for cores, and the table then shows that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from benchmarks import machine, scaling
from benchmarks.measure import THREAD_VARIABLES, Roofline
from benchmarks.table import Row, markdown, summary, text, write_csv
from fedkin.clustering.contraction import ANCHORS, LINKAGE_POINTS

HERE = Path(__file__).parent
PARTS = (
    "engine",
    "fmlr",
    "mixed_model",
    "mixture_rounds",
    "mixture_fit",
    "odcl",
    "convex_clustering",
    "gaussian_process",
    "matern_curves",
)
THREADS = (1, 2)
# A part that takes longer than this hangs.
MOST_SECONDS = 3600
HOW = """\
Made by `{command}` in {minutes:.0f} minutes. Each part ran in fresh processes, one for each number
of threads; works that are compared took turns, and medians are shown (works above twenty seconds
ran once, with two threads works above one second did). Seconds are CPU seconds with one thread and
wall seconds with two. *Ratio*: the peer's time over ours. *Standing*: ahead or behind by more than
10 %, or level; a peer that does less work than ours, or more, has a note that says so. *Bound*: the
least time this machine needs for the work, from rates measured in the same process (*roofline*:
arithmetic at the rate of a large matrix product, or the bytes read once), or LAPACK's factor and
inverse alone. *Distance*: our time over the bound. *Difference*: the largest difference between the
peer's result and ours. *Promised*: what is claimed against that peer, and may fail. Load of the
machine at the start (0 is idle): {load:.1f}. Date: {date}.
"""


def start(module: str, n_threads: int, arguments: Sequence[str]) -> None:
    """Run a module of this package in a process of its own with that many threads."""
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(n_threads))}
    print(f"{module}, {n_threads} thread{'s' * (n_threads > 1)}", file=sys.stderr, flush=True)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", f"benchmarks.{module}", *arguments],
        env=environment,
        cwd=HERE.parent,
        check=True,
        timeout=MOST_SECONDS,
    )


def gather(
    parts: Sequence[str], threads: Sequence[int], effort: str
) -> tuple[list[Row], dict[int, Roofline]]:
    """Rows of all parts, a work's thread counts one below the other, and the best rates seen."""
    rows: list[Row] = []
    rates: dict[int, list[Roofline]] = {n: [] for n in threads}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        for part in parts:
            found: list[Row] = []
            for n in threads:
                start(part, n, ["--effort", effort, "--json", str(path)])
                written = json.loads(path.read_text())
                found += [Row.from_dict(row) for row in written["rows"]]
                rates[n].append(Roofline(**written["roofline"]))
            rows += in_order(found)
    return rows, {n: Roofline(*map(max, zip(*found))) for n, found in rates.items()}


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Rows of the same work and peer side by side, otherwise as they came."""
    first: dict[tuple[str, str], int] = {}
    for row in rows:
        first.setdefault((row.work, row.peer), len(first))
    return sorted(rows, key=lambda row: (first[row.work, row.peer], row.threads))


SCALING_NOTE = (
    "Exponents are fitted over the larger half of the sizes, at least four of them. Convex "
    "clustering proposes merges from a tree of all points while its distances fit in memory "
    f"({LINKAGE_POINTS:,} points), then from a tree of a sample of {ANCHORS:,}, which is faster: "
    "the curve drops there. FMLR's whole fits also tell the likelihood of a mixed model beside "
    "theirs, which is most of their time."
)


def page(rows: Sequence[Row], rates: dict[int, Roofline], curves: str, how: str) -> str:
    """results.md."""
    facts = [f"- {name}: {value}" for name, value in machine.properties().items()]
    facts += [
        f"- rates, {n} thread{'s' * (n > 1)}: {r.flops / 1e9:.1f} GFlop/s, "
        f"{r.bytes / 1e9:.1f} GB/s, {1e9 / r.exps:.2f} ns an exponential"
        for n, r in rates.items()
    ]
    parts = ["# Benchmarks, the last run", how, "## Machine", "\n".join(facts)]
    parts += ["## Against the strongest peer of each work", summary(rows)]
    parts += ["## Table", markdown(rows)]
    if curves:
        parts += ["## Scaling, one thread", "![scaling](scaling.png)", curves]
        parts += [SCALING_NOTE]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer repeats")
    parser.add_argument(
        "--threads", nargs="+", type=int, default=THREADS, help="more than one wants idle cores"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts, no scaling")
    parser.add_argument("--out", type=Path, help="folder of what is written")
    options = parser.parse_args(arguments)
    effort = "quick" if options.quick else "full"
    out = (options.out or (HERE / "quick" if options.quick else HERE)).resolve()
    out.mkdir(parents=True, exist_ok=True)
    begin, load = time.monotonic(), machine.load()
    rows, rates = gather(options.only or PARTS, options.threads, effort)

    def write(curves: str) -> None:
        minutes = (time.monotonic() - begin) / 60
        how = HOW.format(command=_command(options), minutes=minutes, load=load, date=date.today())
        (out / "results.md").write_text(page(rows, rates, curves, how))

    print(text(rows), flush=True)
    write_csv(rows, out / "results.csv")
    write("")  # what is measured so far, should the rest be cut short
    if not options.only:
        start("scaling", 1, ["--effort", effort, "--out", str(out)])
        write(scaling.markdown(scaling.read_csv(out / "scaling.csv")))
    print(f"\nwritten: {out / 'results.md'}, {out / 'results.csv'}")


def _command(options: argparse.Namespace) -> str:
    """What was typed, but for the folder."""
    words = ["--quick"] if options.quick else []
    if tuple(options.threads) != THREADS:
        words += ["--threads", *map(str, options.threads)]
    if options.only:
        words += ["--only", *options.only]
    return " ".join(["python -m benchmarks.run", *words])


if __name__ == "__main__":
    main()
