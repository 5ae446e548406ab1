"""FGPR, Figure 1: how the shared noise comes near the truth, round by round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.study import Claim, Results, Size, Study, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRUTH = {"length_scale": 0.2, "scale": 2.0, "noise": 0.5}
ROUNDS = 60
# Rounds at which the way is noted.
MARKS = (0, 1, 2, 3, 5, 8, 12, 18, 27, 40, 60)
LOCAL = {"optimizer": "sgd", "max_rounds": ROUNDS}
AUTHORS = "local Adam .01, restarted, 200 rounds (authors)"
METHODS: dict[str, dict[str, Any]] = {
    "exact": {},
    "local SGD, 10/t (paper)": {**LOCAL, "schedule": "inverse", "learning_rate": 10.0},
    "the same, theory's scaling": {
        **LOCAL,
        "schedule": "inverse",
        "learning_rate": 10.0,
        "gradient_scaling": "theory",
    },
    "local SGD, 1/t": {**LOCAL, "schedule": "inverse"},
    "local SGD, 1/sqrt t": {**LOCAL, "schedule": "inverse-sqrt"},
    "local SGD, cosine": LOCAL,
    "the same, 20 % of sites a round": {**LOCAL, "fraction": 0.2},
    "local Adam .1, restarted": {**LOCAL, "optimizer": "adam-restarted", "learning_rate": 0.1},
    AUTHORS: {
        "optimizer": "adam-restarted",
        "learning_rate": 0.01,
        "schedule": "constant",
        "max_rounds": 200,
    },
}
# Squared error of the noise and excess that independent code reached (3 draws), by kernel,
# number of sites and method.
NOTED: dict[tuple[str, int], dict[str, tuple[float, float | None]]] = {
    ("rbf", 100): {
        "exact": (0.0012, None),
        "local SGD, 10/t (paper)": (0.0013, 0.08e-3),
        "the same, theory's scaling": (0.0013, 0.11e-3),
        "local SGD, 1/t": (0.18, 74e-3),
        "local SGD, 1/sqrt t": (0.0014, 0.16e-3),
        "local SGD, cosine": (0.0016, 0.36e-3),
        "the same, 20 % of sites a round": (0.0016, 0.99e-3),
        "local Adam .1, restarted": (0.0016, 11.8e-3),
        AUTHORS: (0.047, 39.8e-3),
    },
    ("rbf", 20): {
        "exact": (0.0004, None),
        "local SGD, 10/t (paper)": (0.0005, 0.14e-3),
        "the same, theory's scaling": (0.0005, 0.10e-3),
        "local SGD, 1/t": (0.026, 37e-3),
        "local SGD, 1/sqrt t": (0.0004, 0.19e-3),
        "local SGD, cosine": (0.0005, 0.14e-3),
        "the same, 20 % of sites a round": (0.0013, 0.36e-3),
        "local Adam .1, restarted": (0.0007, 0.66e-3),
        AUTHORS: (0.0005, 0.66e-3),
    },
    ("matern32", 100): {
        "exact": (0.0011, None),
        "local SGD, 10/t (paper)": (0.0015, 0.05e-3),
        "local Adam .1, restarted": (0.0023, 9.0e-3),
    },
    ("matern32", 20): {
        "exact": (0.0004, None),
        "local SGD, 10/t (paper)": (0.0005, 0.18e-3),
        "local Adam .1, restarted": (0.0008, 0.25e-3),
    },
}
# Rounds the exact optimiser took.
NOTED_ROUNDS = {"rbf": "11-13"}
LONGER = "when the noted search stopped and how long its first step was is not said"
ROWS = {100: 8, 20: 100}
NAMES = {"rbf": "RBF", "matern32": "Matern-3/2"}


def one(seed: int, kernel: str, m: int) -> list[dict[str, Any]]:
    """Every optimiser on one draw: where it ends, and the noise on the way."""
    from fedkin.datasets import make_gaussian_sites
    from fedkin.datasets.fgpr import prior_spec
    from fedkin.estimators import FGPR
    from fedkin.models.gaussian_process import evaluate
    from fedkin.models.gp_rows import prepare
    from fedkin.models.kernels import form_of, from_spec

    n = ROWS[m]
    start = prior_spec(2.0, 2.0, 2.0, kernel)
    drawn = make_gaussian_sites(m, n, prior_spec(**TRUTH, kernel=kernel), random_state=[seed, m])
    data, form = prepare(drawn.federation, False), form_of(start, 1)
    plain = {"normalize_y": False, "mean": "zero", "personalise": "posterior"}
    rows: list[dict[str, Any]] = []
    optimum = np.nan
    for method, settings in METHODS.items():
        model = FGPR(from_spec(start), **plain, **settings, random_state=seed).fit(drawn.federation)
        value = float(evaluate(data, form, model.theta_[0]).value.sum()) / (m * n)
        if method == "exact":
            optimum = value
        way = np.exp(model.history_["theta"][:, 2])
        rows.append(
            {
                "method": method,
                "rounds": len(model.history_["value"]),
                "noise_error": float((np.exp(model.theta_[0, 2]) - TRUTH["noise"]) ** 2),
                "excess": value - optimum,
            }
        )
        rows += [
            {
                "method": method,
                "round": mark,
                "way": float((way[min(mark, len(way) - 1)] - TRUTH["noise"]) ** 2),
            }
            for mark in MARKS
        ]
    return rows


def draw(results: Results) -> Figure:
    """The paper's picture: dots at the rounds that were kept, for four optimisers."""
    from matplotlib.figure import Figure

    shown = ("local SGD, 10/t (paper)", "local SGD, cosine", "local Adam .1, restarted", "exact")
    sizes = sorted(results.distinct("m"))
    figure = Figure(figsize=(12, 2.9 * len(sizes)), layout="constrained")
    panels = figure.subplots(len(sizes), len(shown), sharex=True, sharey=True, squeeze=False)
    kernel = "matern32" if "matern32" in results.distinct("kernel") else "rbf"
    for row, m in zip(panels, sizes):
        for axes, method in zip(row, shown):
            found = results.where(kernel=kernel, m=m, method=method)
            for seed in found.distinct("seed"):
                x, way = found.curve("round", "way", seed=seed)
                run = x <= found.estimate("rounds", seed=seed).mean
                axes.plot(x, way, lw=0.4, color="C0", alpha=0.3)
                axes.plot(x[run], way[run], "o", ms=2.2, color="C0", alpha=0.4)
            rounds = sorted(found.distinct("round"))
            middle = [np.median(found.where(round=x).column("way")) for x in rounds]
            axes.plot(rounds, middle, "ks-", ms=3, lw=1.2)
            axes.set(yscale="log", ylim=(1e-7, 10))
            axes.set_title(f"{m} sites of {ROWS[m]} rows, {method}", fontsize=8)
        row[0].set_ylabel("(noise - truth)$^2$")
    for axes in panels[-1]:
        axes.set_xlabel("round")
    figure.suptitle(
        f"{NAMES[kernel]}; dots: independent draws at the rounds kept; black: their median",
        fontsize=9,
    )
    return figure


COUNTED = (
    "t counts local steps here, as in the paper; which count and which longest step the noted code "
    "had is not known (counting rounds: excess .10 at 100 sites, .002 at 20)"
)
APART = {
    "local SGD, 1/t": COUNTED,
    "local SGD, 1/sqrt t": "what t counts in the noted code is not known; here it counts rounds",
    "local SGD, 10/t (paper)": (
        "a few bad first steps at rate 10 decide; the longest step and the count of t of the "
        "noted code are not known, and 3 draws were noted"
    ),
    AUTHORS: "noted after 60 rounds, ours after 200",
    "local Adam .1, restarted": (
        "Adam begun anew settles where signs of gradients balance; how far that is from the "
        "optimum depends on the draw, and 3 draws were noted"
    ),
}
FEW_NOTED = (
    "the square of an error: it varies over draws by as much as itself, and 3 draws were noted"
)
NO_FIGURE = "picture only: falls, levels off"
SAME = "as far as stated"


def _claims(results: Results) -> list[Claim]:
    found = []
    for (kernel, m), noted in NOTED.items():
        for method in METHODS:
            where = {"kernel": kernel, "m": m, "method": method}
            if not results.where(**where).rows:
                continue
            error, excess = noted.get(method, (None, None))
            entry = f"{NAMES[kernel]}, {m} sites of {ROWS[m]} rows, {method}"
            pairs = (
                ("squared error of the noise", "noise_error", error),
                ("excess neg. log likelihood a row", "excess", excess),
            )
            for what, measure, value in pairs:
                if method == "exact" and measure == "excess":
                    continue
                fallback = FEW_NOTED if measure == "noise_error" else ""
                found.append(
                    Claim(
                        f"{entry}: {what}",
                        NO_FIGURE if measure == "noise_error" else "not reported",
                        results.estimate(measure, **where),
                        SAME + ("; noted after 60 rounds" if method == AUTHORS and value else ""),
                        noted=value,
                        noted_n=3,
                        apart=APART.get(method, fallback),
                    )
                )
        rounds = results.estimate("rounds", kernel=kernel, m=m, method="exact")
        if rounds.n:
            entry = f"{NAMES[kernel]}, {m} sites of {ROWS[m]} rows, exact: rounds to the optimum"
            why = LONGER if kernel in NOTED_ROUNDS else ""
            same = "gradient below 1e-5 a row"
            claim = Claim(entry, "no such method", rounds, same, why, NOTED_ROUNDS.get(kernel))
            found.append(claim)
    return found


STUDIES = (
    Study(
        name="fgpr-figure-1",
        paper="FGPR",
        shows="Figure 1",
        title="convergence of the shared noise",
        protocol=(
            "Every site draws a curve on [0, 1] from a Gaussian process of length scale .2, scale "
            "2, noise .5 (Example 1); all optimisers start at 2, 2, 2 and run 60 rounds (unless "
            "said) of 5 local steps (mini-batches of at most 32 rows), the exact one until its "
            "gradient is below 1e-5 a row. The excess is the negative log likelihood a row over "
            "that of the exact optimum. The paper shows Matern-3/2 with 800 rows in all at 8 a "
            "site; number of rounds, steps, rates and the other panels' sizes are not stated."
        ),
        one=one,
        figure=draw,
        claims=_claims,
        by=("kernel", "m", "method"),
        measures=("noise_error", "excess", "rounds"),
        full=Size(cells(kernel=["matern32", "rbf"], m=[100, 20]), 30),
        quick=Size(cells(kernel=["matern32", "rbf"], m=[100, 20]), 5),
        toy=Size(cells(kernel=["matern32"], m=[100]), 2),
    ),
)
