"""FMLR with noise, proportions and sizes that are not known or not equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reproduction.fmlr_radius import SUCCESS
from reproduction.study import Claim, Results, Size, Study, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Case(NamedTuple):
    """What is unknown: rows a site, what the fit is told, true proportions."""

    rows: int | str
    told: Mapping[str, Any]
    weights: tuple[float, ...] | None = None


UNEQUAL = (0.6, 0.3, 0.1)
NOISE, EQUAL = {"sigma": 1.0}, {"weights": "uniform"}
CASES = {
    "noise": Case(10, EQUAL),
    "weights": Case(10, NOISE, UNEQUAL),
    "equal": Case(10, NOISE | EQUAL, UNEQUAL),
    "weights-2": Case(2, NOISE, UNEQUAL),
    "equal-2": Case(2, NOISE | EQUAL, UNEQUAL),
    "geometric": Case("geometric", {}),
    "log-normal": Case("log-normal", {}),
}
LABELS = {
    "noise": "noise learnt",
    "weights": "weights .6 .3 .1 learnt",
    "equal": "... taken as equal",
    "weights-2": "weights learnt, n = 2",
    "equal-2": "... taken as equal, n = 2",
    "geometric": "sizes geometric, all learnt",
    "log-normal": "sizes log-normal, all learnt",
}
SAID = "taken as known"
MEASURES = ("success", "ratio", "sigma_error", "weights_error", "iterations")


def rows_of_sites(rows: int | str, m: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers of rows: the same everywhere, or drawn."""
    if rows == "geometric":
        return rng.geometric(0.1, size=m)
    if rows == "log-normal":
        return np.clip(np.rint(rng.lognormal(np.log(10), 1.5, size=m)), 1, 1000).astype(int)
    return np.full(m, rows)


def one(seed: int, case: str) -> list[dict[str, Any]]:
    """Fit with some of noise and proportions unknown, from near the truth."""
    from fedkin import FMLR
    from fedkin.datasets import make_regression_groups
    from fedkin.datasets.fmlr import PAPER_COEF

    rows, told, weights = CASES[case]
    sizes = rows_of_sites(rows, 500, np.random.default_rng([47, seed]))
    drawn = make_regression_groups(
        500, sizes, PAPER_COEF[3], weights=weights, random_state=[46, seed]
    )
    start = drawn.nearby(drawn.separation() / 5, seed)
    model = FMLR(3, init=start, fit_intercept=False, **told).fit(drawn.federation)
    error, known = drawn.error(model.coef_), drawn.error(drawn.known_labels_coef())
    realised = np.bincount(drawn.labels, minlength=3) / 500
    row = {"success": error <= SUCCESS * known, "ratio": error / known}
    row |= {"iterations": model.n_iter_}
    if "sigma" not in told:
        row["sigma_error"] = abs(model.sigma_ - 1)
    if "weights" not in told:
        row["weights_error"] = np.abs(model.weights_ - realised).max()
    return [row]


def draw(results: Results) -> Figure:
    """Error over that with labels known, and iterations, for every case."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    names = results.distinct("case")
    panels = figure.subplots(1, 2, sharey=True)
    shown = {"ratio": "error over labels known", "iterations": "iterations"}
    for panel, (measure, words) in zip(panels, shown.items()):
        found = [results.estimate(measure, case=name) for name in names]
        panel.errorbar(
            [e.mean for e in found], range(len(names)), xerr=[2 * e.se for e in found], fmt="o"
        )
        panel.set_yticks(range(len(names)), [LABELS[name] for name in names])
        panel.set_xlabel(words)
        panel.grid(alpha=0.3)
    figure.axes[0].axvline(1, color="k", lw=1, ls=":")
    figure.axes[0].invert_yaxis()
    figure.axes[1].set_xlim(left=0)
    return figure


def claims(results: Results) -> list[Claim]:
    """The error beside that with labels known, and everything else, for every case."""
    found = []
    for name in results.distinct("case"):
        case, label, run = CASES[name], LABELS[name], results.where(case=name)
        same = (
            "yes" if "sigma" in case.told else "noise starts at what the start leaves unexplained"
        )
        found.append(Claim(f"{label}: error over labels known", SAID, run.estimate("ratio"), same))
        others = [run.estimate(measure) for measure in MEASURES if measure != "ratio"]
        told = " / ".join(f"{e.mean:.2g}" if e.n else "-" for e in others)
        entry = f"{label}: success / error of noise / of weights / iterations"
        found.append(Claim(entry, SAID, told, same))
    return found


STUDIES = (
    Study(
        name="fmlr-nuisance",
        paper="fedkin",
        shows="Algorithm 1",
        title="FMLR: noise, proportions and sizes that are not known or not equal",
        protocol="The error over that with labels known where noise, proportions or sizes are "
        "learnt or wrong, which the paper takes as known. Truth of Figure 1, m = 500, n = 10 "
        "unless said, EM started at a fifth of the least separation. Sizes: geometric with mean "
        "10, or log-normal with median 10 and spread 1.5 of the logarithm, cut to 1-1000. Error of "
        "the weights: from the shares of sites that were drawn.",
        one=one,
        figure=draw,
        claims=claims,
        by=("case",),
        measures=MEASURES,
        full=Size(cells(case=tuple(CASES)), 200),
        quick=Size(cells(case=tuple(CASES)), 20),
        toy=Size(cells(case=tuple(CASES)), 3),
    ),
)
