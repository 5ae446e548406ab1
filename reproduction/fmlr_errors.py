"""FMLR, Figures 1 to 6: error of the estimated regressions against the number of sites.

The six figures vary one thing each (rows a site, components, dimension, signal to noise, largest
separation) and have one shape: m sites, each following one of K regressions, EM started at a fifth
of the least separation. `fmlr_plans.py` says what each of them varies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.fmlr_plans import PLANS, Curve, Plan, Ranges, labels_known_constant, truth
from reproduction.study import UNEXPLAINED, Claim, Estimate, Results, Size, Study, span

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
    """The figure's finding, then each curve: errors, their constant, rate and iterations."""
    plan = PLANS[figure]
    last = max(results.distinct("m"))
    finding = [
        f"{curve.label}: {curve.of(results).estimate('error', m=last).mean:.3g}, "
        f"{curve.of(results).estimate('iterations').mean:.1f}"
        for curve in plan.curves
    ]
    entry = f"error at m = {last}, mean iterations"
    found = [Claim(entry, plan.said, "; ".join(finding), SAME, plan.why)]
    for curve in plan.curves:
        found += _of_curve(curve.of(results), curve, plan, truth(figure, curve.setting))
    return found


def _of_curve(rows: Results, curve: Curve, plan: Plan, coef: np.ndarray) -> list[Claim]:
    limit = labels_known_constant(*coef.shape)
    run = rows.distinct("m")
    noted = [("error", *pair) for pair in zip_longest(plan.noted_at, curve.errors)]
    noted += [("iterations", *pair) for pair in zip(plan.noted_at, curve.iterations)]
    numbers = [
        (f"{name} at m = {m}", "no number printed", rows.estimate(name, m=m), value)
        for name, m, value in noted
        if m in run
    ]
    if curve.constant is not None:
        entry = f"error * sqrt(mn), mean over m (labels known, many sites: {limit:.2f})"
        known = ("bounded (Theorem 4.3)", rows.estimate("scaled_error"), curve.constant)
        numbers.append((entry, *known))
    shown = [m for m in run if not plan.noted_only or m in plan.noted_at]
    ratios = [over_known(rows.where(m=m)) for m in shown]
    iterations = [rows.estimate("iterations", m=m) for m in shown]
    three, why = THREE, ""
    if plan.noted_only:
        three += f" (the last two at m = {', '.join(map(str, shown))})"
    if curve.ranges is not None:
        why = _beyond((ratios, iterations), curve.ranges, plan.noted_n)
    spans = [
        span(np.array([e.mean for e in found]), digits)
        for found, digits in ((ratios, 3), (iterations, 1))
    ]
    text = " / ".join((f"{slope(rows):.3f}", *spans))
    return [
        *(
            Claim(f"{curve.label}: {entry}", paper, ours, SAME, noted=noted, noted_n=plan.noted_n)
            for entry, paper, ours, noted in numbers
        ),
        Claim(f"{curve.label}: {three}", "-1/2 / - / O(1)", text, SAME, why, curve.words),
    ]


def over_known(rows: Results) -> Estimate:
    """Mean error over mean error with labels known; its standard error by the delta method."""
    error, known = rows.column("error"), rows.column("known_labels")
    ratio = float(error.mean() / known.mean())
    n = len(error)
    rest = (error - ratio * known) / known.mean()
    return Estimate(ratio, float(rest.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan, n)


def _beyond(
    found: tuple[Sequence[Estimate], Sequence[Estimate]], ranges: Ranges, noted_n: int
) -> str:
    """How far outside the noted ranges ours lie, in standard errors of both."""
    farthest = 0.0
    for estimates, (low, high) in zip(found, ranges):
        for mean, se, n in estimates:
            outside, both = max(low - mean, mean - high), se * math.sqrt(1 + n / noted_n)
            if outside > 0 and both > 0:
                farthest = max(farthest, outside / both)
    if not farthest:
        return ""
    told = f"at most {farthest:.1f} standard errors outside what was noted"
    if farthest > 2:
        return f"{told}: {UNEXPLAINED}"
    return f"{told}: few sites make both vary, and {noted_n} draws were noted"


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
        figure=lambda results: draw(results, plan),
        claims=lambda results: claims(results, figure),
        by=("setting", "n", "m"),
        measures=("error", "known_labels", "iterations", "scaled_error"),
        full=Size(grid(plan.sites), 100),
        quick=Size(grid(plan.sites), 20),
        toy=Size(grid(plan.sites[:4:3]), 2),
    )


STUDIES = tuple(_study(figure) for figure in PLANS)
