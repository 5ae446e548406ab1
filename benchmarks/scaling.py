"""How time grows with the federation: one picture of four panels, one table, fitted exponents.

    OMP_NUM_THREADS=1 python -m benchmarks.scaling [--effort quick] [--out DIR]

Writes scaling.csv and scaling.png. The exponent b of time = a * size^b is fitted by least squares
in logarithms over the larger half of the sizes (at least four), where fixed costs hardly show.
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import convex_clustering, fmlr, gaussian_process, mixture_rounds
from benchmarks.measure import EFFORTS, Effort, race
from fedkin import FGPR, FMLR, FedGrEM
from fedkin.clustering import convex_clustering as cluster
from fedkin.clustering import recovery_interval
from fedkin.clustering.contraction import LINKAGE_POINTS
from fedkin.models import gaussian_mixture
from fedkin.models.gaussian_process import evaluate
from fedkin.models.gp_rows import prepare
from fedkin.models.kernels import default_spec, form_of
from fedkin.models.least_squares import packed_statistics

# Sizes are 1, 2, 5 a decade between these, and those of MORE_SIZES.
RANGES = {
    "full": {
        "FMLR": (100, 200_000),
        "FedGrEM": (10, 10_000),
        "convex clustering": (100, 20_000),
        "FGPR": (10, 1_000),
    },
    "quick": {
        "FMLR": (100, 100_000),
        "FedGrEM": (10, 1_000),
        "convex clustering": (100, 5_000),
        "FGPR": (10, 200),
    },
    "toy": {
        "FMLR": (10, 20),
        "FedGrEM": (2, 5),
        "convex clustering": (20, 50),
        "FGPR": (2, 5),
    },
}
AXES = {
    "FMLR": "sites of 6 rows, K=3, d=5",
    "FedGrEM": "sites of ~50 rows, R=5, d=10",
    "convex clustering": "points, d=20",
    "FGPR": "sites of 32 rows",
}
# Beyond LINKAGE_POINTS points merges are proposed by a sample: another curve, which needs sizes.
MORE_SIZES = {"convex clustering": (7_000, 14_000)}
# Beyond this many points a penalty before any fusion needs all pairs at once: not a use of it.
MOST_UNFUSED = 2_000
# The default also tries departures from kinds, much more work: minutes beyond this many sites.
MOST_DEPARTURES = 20_000


@dataclass(frozen=True)
class Point:
    """Seconds of one work at one size; `rounds` of a fit, which chance changes with the size."""

    panel: str
    work: str
    size: int
    seconds: float
    turns: int
    rounds: int | None = None


def sizes_of(panel: str, low: int, high: int) -> list[int]:
    steps = {digit * 10**power for power in range(8) for digit in (1, 2, 5)}
    return sorted(n for n in steps | set(MORE_SIZES.get(panel, ())) if low <= n <= high)


def exponent(points: list[Point]) -> float:
    """b of time = a * size^b over the larger half of the sizes, at least four of them."""
    ordered = sorted(points, key=lambda point: point.size)
    kept = ordered[-max(4, (len(ordered) + 1) // 2) :]
    return float(
        np.polyfit(np.log([p.size for p in kept]), np.log([p.seconds for p in kept]), 1)[0]
    )


# ------------------------------------------------------------------ works


def fmlr_works(m: int) -> dict[str, Callable[[], Any]]:
    data = fmlr.federation(*fmlr.clients(m, 6))
    statistics = packed_statistics(data, False)
    as_printed = FMLR(fmlr.K, degrees=False, site_noise="common", random_state=0)
    works = {
        "EM round": lambda: fmlr.by_fedkin(statistics, fmlr.START),
        "whole fit, no departures": lambda: as_printed.fit(data),
    }
    if m <= MOST_DEPARTURES:
        works["whole fit, default"] = lambda: FMLR(fmlr.K, random_state=0).fit(data)
    return works


def fedgrem_works(m: int) -> dict[str, Callable[[], Any]]:
    data, parameters = mixture_rounds.federation(m, 50, True, 5, 10)
    rows = gaussian_mixture.prepare(data)
    return {
        "EM round": lambda: gaussian_mixture.em_step(rows, parameters),
        "whole fit": lambda: FedGrEM(5, random_state=0).fit(data),
    }


def convex_works(m: int) -> dict[str, Callable[[], Any]]:
    points, labels = convex_clustering.ten_clusters(m, noise=0.01)
    penalty = recovery_interval(points, labels).lower * 1.001
    how = "tree of all points" if m <= LINKAGE_POINTS else "tree of a sample"
    works = {f"penalty that recovers, {how}": lambda: cluster(points, penalty)}
    if m <= MOST_UNFUSED:
        works["penalty before any fusion"] = lambda: cluster(points, 0.1 / m)
    return works


def fgpr_works(m: int) -> dict[str, Callable[[], Any]]:
    data = gaussian_process.federation_of(m, 32)
    prepared, form = prepare(data, False), form_of(default_spec(np.ones(1)), 1)
    return {
        "likelihood and gradient": lambda: evaluate(prepared, form, gaussian_process.THETA),
        "whole fit, one prior": lambda: FGPR(personalise="posterior", common=False).fit(data),
    }


PANELS = {
    "FMLR": fmlr_works,
    "FedGrEM": fedgrem_works,
    "convex clustering": convex_works,
    "FGPR": fgpr_works,
}


def points(effort: Effort) -> Iterator[Point]:
    """All measurements, panel by panel."""
    for panel, works in PANELS.items():
        for size in sizes_of(panel, *RANGES[effort.name][panel]):
            print(f"  {panel}, {size:,}", file=sys.stderr, flush=True)
            for work, found in race(works(size), effort).items():
                rounds = getattr(found.result, "n_iter_", getattr(found.result, "n_rounds_", None))
                yield Point(panel, work, size, found.seconds, found.turns, rounds)


# ------------------------------------------------------------------ what is written


def by_curve(measured: list[Point]) -> dict[tuple[str, str], list[Point]]:
    """Points of each curve, in the order of first appearance."""
    curves: dict[tuple[str, str], list[Point]] = {}
    for point in measured:
        curves.setdefault((point.panel, point.work), []).append(point)
    return curves


def markdown(measured: list[Point]) -> str:
    """A line a curve: sizes, seconds at the largest, exponent."""
    lines = ["| method | work | sizes | at the largest | exponent |", "|---|---|---|---|---|"]
    for (panel, work), curve in by_curve(measured).items():
        span = f"{curve[0].size:,} to {curve[-1].size:,}"
        lines.append(
            f"| {panel} | {work} | {span} | {curve[-1].seconds:.3g} s | {exponent(curve):.2f} |"
        )
    return "\n".join(lines)


def write_csv(measured: list[Point], path: Path) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(measured[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(point) for point in measured)


def read_csv(path: Path) -> list[Point]:
    with open(path, newline="") as file:
        return [
            Point(
                row["panel"],
                row["work"],
                int(row["size"]),
                float(row["seconds"]),
                int(row["turns"]),
                int(row["rounds"]) if row["rounds"] else None,
            )
            for row in csv.DictReader(file)
        ]


def draw(measured: list[Point], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 8), layout="constrained")
    places = dict(zip(PANELS, axes.flat))
    for (panel, work), curve in by_curve(measured).items():
        size, seconds = [p.size for p in curve], [p.seconds for p in curve]
        label = f"{work}: exponent {exponent(curve):.2f}"
        places[panel].loglog(size, seconds, "o-", markersize=4, label=label)
    for panel, place in places.items():
        place.set(title=panel, xlabel=AXES[panel], ylabel="seconds, one thread")
        place.grid(True, which="major", alpha=0.3)
        place.set_ylim(place.get_ylim()[0] / 6, None)  # room for the legend
        place.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--effort", choices=EFFORTS, default="full")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measured = list(points(EFFORTS[options.effort]))
    options.out.mkdir(parents=True, exist_ok=True)
    write_csv(measured, options.out / "scaling.csv")
    draw(measured, options.out / "scaling.png")
    print(markdown(measured))


if __name__ == "__main__":
    main()
