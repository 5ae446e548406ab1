"""FMLR, Figures 1 to 6: error of the estimated regressions against the number of sites.

The six figures vary one thing each (rows a site, components, dimension, signal to noise, largest
separation) and have one shape: m sites, each following one of K regressions, EM started at a fifth
of the least separation. `fmlr_plans.py` says what each of them varies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.fmlr_plans import PLANS, Curve, Plan, labels_known_constant, truth
from reproduction.study import Check, Claim, Estimate, Promise, Results, Size, Study, span

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def one(seed: int, figure: int, setting: float, n: int, m: int) -> list[dict[str, Any]]:
    """Error after EM and with the labels known, and iterations, for one draw."""
    from fedkin import FMLR
    from fedkin.datasets import make_regression_groups

    coef = truth(figure, setting)
    drawn = make_regression_groups(
        m,
        n,
        coef,
        labels="balanced" if figure == 2 else "random",
        random_state=[figure, m, n, seed],
    )
    # FMLR's tolerance is relative to the longest regression; the protocol's is absolute.
    tol = 1e-6 / np.linalg.norm(coef, axis=1).max()
    start = drawn.nearby(drawn.separation() / 5, seed)
    model = FMLR(len(coef), init=start, sigma=1.0, weights="uniform", fit_intercept=False, tol=tol)
    model.fit(drawn.federation)
    error = drawn.error(model.coef_)
    return [
        {
            "error": error,
            "known_labels": drawn.error(drawn.known_labels_coef()),
            "iterations": model.n_iter_,
            "scaled_error": error * np.sqrt(m * n),
        }
    ]


PROTOCOL = (
    "Standard normal features, noise 1, labels {labels}, EM with known noise and equal weights "
    "started at a fifth of the least separation in a random direction, stopped when no regression "
    "moves by 1e-6 (the confirming step counts); the error is the largest distance of a regression "
    "from its truth. The paper states neither n{also} nor the stopping rule: n = {n} is ours."
)
SAME = "as far as stated"
# Ticks too close to their neighbours on a logarithmic axis.
UNLABELLED = (1500, 2000, 18)
THREE = "rate in m / error over labels known / iterations"


def draw(results: Results, plan: Plan) -> Figure:
    """Error (left) and iterations (right) against m, five curves at most in a panel."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    rows = [plan.curves[i : i + 5] for i in range(0, len(plan.curves), 5)]
    figure = Figure(figsize=(9, 3.4 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), 2, squeeze=False)
    for (left, right), curves in zip(grid, rows):
        for curve, marker in zip(curves, "osd^v"):
            found = curve.of(results)
            m, error = found.curve("m", "error")
            left.plot(m, error, marker + "-", ms=5, label=curve.label)
            left.plot(m, found.curve("m", "known_labels")[1], "k:", lw=1, zorder=3)
            right.plot(*found.curve("m", "iterations"), marker + "-", ms=5)
        left.plot([], [], "k:", lw=1, label="labels known")
        left.set(yscale="log", ylabel="largest error of a regression")
        left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        left.yaxis.set_major_formatter("{x:g}")
        left.legend(fontsize=8)
        right.set(ylabel="EM iterations", ylim=(0, 1.15 * right.get_ylim()[1]))
        for panel in (left, right):
            panel.set(xscale="log", xlabel="sites m")
            panel.set_xticks(m, [f"{x:g}" if x not in UNLABELLED else "" for x in m])
            panel.minorticks_off()
            panel.grid(alpha=0.3)
    return figure


def slope(results: Results) -> float:
    """Slope of log error on log m; -1/2 is the parametric rate."""
    m, error = results.curve("m", "error")
    return float(np.polyfit(np.log(m), np.log(error), 1)[0]) if len(m) > 1 else np.nan


def claims(results: Results, figure: int) -> list[Claim]:
    """Each curve: errors at three numbers of sites, their constant, rate and iterations."""
    plan = PLANS[figure]
    found = []
    for curve in plan.curves:
        found += _of_curve(curve.of(results), curve, plan, truth(figure, curve.setting))
    return found


def _of_curve(rows: Results, curve: Curve, plan: Plan, coef: np.ndarray) -> list[Claim]:
    limit = labels_known_constant(*coef.shape)
    run = rows.distinct("m")
    found = [
        (f"error at m = {m}", "no number printed", rows.estimate("error", m=m))
        for m in plan.shown
        if m in run
    ]
    entry = f"error * sqrt(mn), mean over m (labels known, many sites: {limit:.2f})"
    found.append((entry, "bounded (Theorem 4.3)", rows.estimate("scaled_error")))
    text = " / ".join((f"{slope(rows):.3f}", *_spans(rows)))
    return [
        *(Claim(f"{curve.label}: {entry}", paper, ours, SAME) for entry, paper, ours in found),
        Claim(f"{curve.label}: {THREE}", "-1/2 / - / O(1)", text, SAME),
    ]


def _spans(rows: Results) -> tuple[str, str]:
    """Error over that with labels known, and iterations, least and most over numbers of sites."""
    run = rows.distinct("m")
    ratios = np.array([over_known(rows.where(m=m)).mean for m in run])
    iterations = np.array([rows.estimate("iterations", m=m).mean for m in run])
    return span(ratios, 3), span(iterations, 1)


def over_known(rows: Results) -> Estimate:
    """Mean error over mean error with labels known; its standard error by the delta method."""
    error, known = rows.column("error"), rows.column("known_labels")
    ratio = float(error.mean() / known.mean())
    n = len(error)
    rest = (error - ratio * known) / known.mean()
    return Estimate(ratio, float(rest.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan, n)


# ------------------------------------------------------------------ what the paper says

# Words of the paper without a number: what we take them to mean.
SEVERAL, CONVERGED = 10, 1.05


def checks(results: Results, figure: int) -> list[Check]:
    """The figure's finding; by the paper's words, at the largest number of sites."""
    curves = [curve for curve in PLANS[figure].curves if curve.of(results).rows]
    last = max(results.distinct("m"))

    def at_last(measure: str) -> list[float]:
        return [curve.of(results).estimate(measure, m=last).mean for curve in curves]

    errors, steps = at_last("error"), at_last("iterations")
    ratios = [over_known(curve.of(results).where(m=last)).mean for curve in curves]
    told = "; ".join(
        f"{curve.label}: {error:.3g}, {step:.1f}"
        for curve, error, step in zip(curves, errors, steps)
    )
    told = f"error and iterations at m = {last}: {told}"
    arrived = max(steps) <= SEVERAL and max(ratios) <= CONVERGED
    rising = [a < b for a, b in pairwise(errors)]
    if figure in (1, 2):
        least = "" if figure == 1 else " from m = K on, fewer sites than the theory asks for"
        says = f"EM comes to the truth within several iterations{least}"
        return [Check(says, arrived, f"{told}; over labels known {max(ratios):.3f} at most")]
    if figure == 3:
        return [
            Check("more components need more iterations", steps[0] < steps[-1], told),
        ]
    if figure == 4:
        return [Check("the error grows with the dimension", all(rising), told)]
    if figure == 5:
        falls = [a > b for a, b in pairwise(errors)]
        strong = [r for c, r in zip(curves, ratios) if c.setting >= 1]
        return [
            Check("the error falls as the signal grows", all(falls), told),
            Check(
                "it converges below the theory's signal-to-noise ratio, too",
                max(strong) <= CONVERGED,
                f"over labels known {max(strong):.3f} at most from SNR 1.73 on, "
                f"{max(ratios):.3f} at SNR 0.87",
            ),
        ]
    pairs = [(step, error) for c, step, error in zip(curves, steps, errors) if c.n == 10]
    fewer = [a[0] > b[0] for a, b in pairwise(pairs)]
    less = [a[1] > b[1] for a, b in pairwise(pairs)]
    return [
        Check(
            "a larger largest separation need not mean fewer iterations or less error",
            not (all(fewer) or all(less)),
            told,
        )
    ]


WHY = {5: "once labels are found the error is that of known labels, and falls no more"}

# ------------------------------------------------------------------ promises

# Error over that with labels known by rows a site, slope of log error on log m, iterations.
RATIOS = {5: (0.99, 1.01), 10: (0.999, 1.001), 20: (0.999, 1.001), 50: (0.999, 1.001)}
SLOPE, ITERATIONS = (-0.54, -0.46), 3.0


def promises(results: Results, figure: int) -> list[Promise]:
    """From near the truth EM is as good as known labels, after two or three steps."""
    found = []
    for n, (least, most) in RATIOS.items() if figure == 1 else ():
        rows = results.where(setting=n)
        run = rows.distinct("m")
        ratios = [over_known(rows.where(m=m)).mean for m in run] or [np.nan]
        steps = [rows.estimate("iterations", m=m).mean for m in run] or [np.nan]
        for which in (min, max):
            what = f"n = {n}: error over that of known labels, {which.__name__}imum over m"
            found.append(Promise(what, float(which(ratios)), least, most))
        if n >= 10:
            what = f"n = {n}: mean iterations, most over m"
            found.append(Promise(what, max(steps), most=ITERATIONS))
        found.append(Promise(f"n = {n}: slope of log error on log m", slope(rows), *SLOPE))
    return found


def _study(figure: int) -> Study:
    plan = PLANS[figure]

    def grid(clients: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {"figure": figure, "setting": curve.setting, "n": curve.n, "m": m}
            for curve in plan.curves
            for m in clients
        ]

    return Study(
        name=f"fmlr-figure-{figure}",
        paper="FMLR",
        shows=f"Figure {figure}",
        title=plan.title,
        protocol=PROTOCOL.format(
            labels="dealt out in turn" if figure == 2 else "uniform, redrawn until all are there",
            also=", the separations" if figure == 6 else "",
            n=", ".join(str(n) for n in dict.fromkeys(curve.n for curve in plan.curves)),
        ),
        one=one,
        figure=partial(draw, plan=plan),
        claims=partial(claims, figure=figure),
        checks=partial(checks, figure=figure),
        promises=partial(promises, figure=figure),
        why=WHY.get(figure, ""),
        by=("setting", "n", "m"),
        measures=("error", "known_labels", "iterations", "scaled_error"),
        full=Size(grid(plan.sites), 100),
        quick=Size(grid(plan.sites), 20),
        toy=Size(grid(plan.sites[:4:3]), 2),
    )


STUDIES = tuple(_study(figure) for figure in PLANS)
