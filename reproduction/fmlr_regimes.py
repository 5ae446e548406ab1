"""FMLR, Theorem 4.3 and Corollary 4.4: error and EM steps against m at fixed n.

The theorem has three regimes, m below sqrt(n), between sqrt(n) and exp(n), and above; the study
crosses both borders. They are orders, with unstated constants: the figure marks the bare terms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.fmlr_contraction import TRUTHS, em_step
from reproduction.study import Check, Claim, Results, Size, Study, span

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIGNALS = (6.71, 1.73)
ROWS = (4, 8, 100, 400)
SITES = (3, 6, 9, 12, 21, 30, 60, 120, 300, 600, 1200, 3000, 6000, 12000, 30000)
# Rows a component has at least (its least squares need some) and rows of all sites at most.
LEAST_ROWS, MOST_ROWS = 16, 300_000
MOST_STEPS = 300
TOLERANCE = 1e-9
# EM has arrived when its error is within this factor of where it ends.
ARRIVED = 1.1


def one(seed: int, snr: float, n: int, m: int) -> list[dict[str, Any]]:
    """EM step by step: errors after one step and at the end, and the step that arrives."""
    from fedkin.datasets import make_regression_groups
    from fedkin.models.least_squares import packed_statistics

    drawn = make_regression_groups(
        m, n, TRUTHS[snr], labels="balanced", random_state=[43, n, m, seed]
    )
    statistics = [packed_statistics(drawn.federation, fit_intercept=False)]
    coef = drawn.nearby(drawn.separation() / 5, seed)
    errors = []
    for _ in range(MOST_STEPS):
        before, coef = coef, em_step(statistics, coef[None])[0]
        errors.append(drawn.error(coef))
        if np.abs(coef - before).max() <= TOLERANCE:
            break
    known = drawn.error(drawn.known_labels_coef())
    steps = 1 + int(np.argmax(np.array(errors) <= ARRIVED * errors[-1]))
    return [{"error": errors[-1], "one_step": errors[0], "known_labels": known, "steps": steps}]


def regime(n: int, m: int) -> str:
    """Which case of the theorem m sites with n rows belong to, constants taken as 1."""
    if m < np.sqrt(n):
        return "m < sqrt(n)"
    return "sqrt(n) <= m <= exp(n)" if np.log(m) <= n else "m > exp(n)"


def draw(results: Results) -> Figure:
    """Error (left) and steps (right) against m; a row for each SNR, a colour for each n."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    grid = figure.subplots(len(SIGNALS), 2, sharex=True)
    for (left, right), snr in zip(grid, SIGNALS):
        for i, (n, marker) in enumerate(zip(ROWS, "osd^")):
            found = results.where(snr=snr, n=n)
            m, error = found.curve("m", "error")
            style = {"color": f"C{i}", "ms": 4}
            left.plot(m, error, marker + "-", label=f"n = {n}", **style)
            left.plot(m, found.curve("m", "one_step")[1], marker + "--", mfc="w", lw=1, **style)
            left.plot(m, found.curve("m", "known_labels")[1], "k:", lw=1, zorder=3)
            right.plot(m, found.curve("m", "steps")[1], marker + "-", **style)
            _mark_borders((left, right), n, f"C{i}")
        left.plot([], [], "k--", marker="o", mfc="w", ms=4, lw=1, label="after one step")
        left.plot([], [], "k:", lw=1, label="labels known")
        left.set(xscale="log", yscale="log", ylabel="largest error of a regression")
        left.set(xlim=(1.7, 4e4), title=f"SNR = {snr:g}")
        right.set(
            ylabel="EM steps to within 10 % of the end", title="solid: sqrt(n), dotted: exp(n)"
        )
        right.set_ylim(0, 1.15 * right.get_ylim()[1])
        left.legend(fontsize=8, loc="upper right")
        for panel in (left, right):
            panel.set_xlabel("sites m")
            panel.grid(alpha=0.3)
    return figure


def _mark_borders(panels: tuple[Any, Any], n: int, color: str) -> None:
    for panel in panels:
        panel.axvline(np.sqrt(n), color=color, lw=1.2, alpha=0.6)
        if np.exp(n) < max(SITES):
            panel.axvline(np.exp(n), color=color, lw=1.5, ls=":", alpha=0.8)


SAID = {
    "m < sqrt(n)": "extra sqrt(1/(m sqrt(n))); steps grow like log(1/error)",
    "sqrt(n) <= m <= exp(n)": "sqrt(1/(mn)) (σ + Δmax/sqrt(n)); O(1) steps",
    "m > exp(n)": "sqrt(1/(mn)) (σ + Δmax exp(-n)); steps grow like log(1/error)/n",
}
ONE_STEP = (
    "Theorem 4.3 leaves out what Theorem C.1 has: the start's distance times the contraction; no "
    "number of sites removes it"
)


def claims(results: Results) -> list[Claim]:
    """Constants, one step and steps in every regime that was run."""
    found = []
    for snr in SIGNALS:
        for n in ROWS:
            run = results.where(snr=snr, n=n)
            sites = run.distinct("m")
            for word, paper in SAID.items():
                inside = [m for m in sites if regime(n, m) == word]
                if inside:
                    found.append(_of_regime(run, snr, n, word, inside, paper))
    return found


def _of_regime(run: Results, snr: float, n: int, word: str, sites: list[int], paper: str) -> Claim:
    error, known, one_step, steps = (
        np.array([run.estimate(name, m=m).mean for m in sites])
        for name in ("error", "known_labels", "one_step", "steps")
    )
    behind = one_step / error
    constant = error * np.sqrt(n * np.array(sites))
    text = (
        f"error * sqrt(mn) {span(constant, 1)}, over labels known {span(error / known, 2)}; "
        f"after one step {span(behind, 2)} times that; steps {span(steps, 1)}"
    )
    why = ONE_STEP if behind.max() > 2 else ""
    if word == "m < sqrt(n)" and behind.max() < ARRIVED:
        why = "no such term shows: one step is as good as knowing the labels"
    entry = f"SNR {snr:g}, n = {n}, {word} (m = {min(sites)}-{max(sites)})"
    return Claim(entry, paper, text, "constants of the borders taken as 1", why)


# Words of the theorem without a number: what we take them to mean.
BOUNDED, FEW_STEPS = 2.0, 10.0


def checks(results: Results) -> list[Check]:
    """The three regimes at the larger signal: the constant, the extra term, the steps."""
    run = results.where(snr=max(SIGNALS))

    def means(name: str, word: str) -> np.ndarray:
        pairs = dict.fromkeys((row["n"], row["m"]) for row in run.rows)
        inside = [(n, m) for n, m in pairs if regime(n, m) == word]
        return np.array([run.estimate(name, n=n, m=m).mean for n, m in inside])

    few, middle, many = SAID
    over = {word: means("error", word) / means("known_labels", word) for word in SAID}
    steps, late = means("steps", middle), means("steps", many)
    found = []
    if len(over[few]):
        found.append(
            Check(
                "below sqrt(n) sites the error is at most that of labels known and an extra term",
                bool(over[few].max() <= BOUNDED),
                f"error over that with labels known {span(over[few], 3)}: the term does not show",
            )
        )
    if len(steps):
        found.append(
            Check(
                "between sqrt(n) and exp(n) sites the error is of the order of labels known, after "
                "O(1) steps",
                bool(over[middle].max() <= BOUNDED and steps.max() <= FEW_STEPS),
                f"error over that with labels known {span(over[middle], 2)}, steps "
                f"{span(steps, 1)}",
            )
        )
    if len(late):
        found.append(
            Check(
                "above exp(n) sites steps grow like log(1/error)/n",
                None,
                f"steps {span(late, 1)}, over labels known {span(over[many], 2)}: too few to see "
                "a logarithm",
            )
        )
    return found


def _cells(sites: tuple[int, ...], rows: tuple[int, ...] = ROWS) -> list[dict[str, Any]]:
    return [
        {"snr": snr, "n": n, "m": m}
        for snr in SIGNALS
        for n in rows
        for m in sites
        if 3 * LEAST_ROWS <= m * n <= MOST_ROWS
    ]


STUDIES = (
    Study(
        name="fmlr-regimes",
        paper="FMLR",
        shows="Theorem 4.3, Corollary 4.4",
        title="error and EM steps below sqrt(n), up to exp(n), and above",
        protocol="K = 3 regressions on a line (d = 5 at SNR 6.71, d = 3 at SNR 1.73), noise 1 and "
        "equal weights known, labels dealt out in turn, EM started at a fifth of the least "
        "separation and run until nothing moves by 1e-9. Steps: until the error is within 10 % of "
        "where it ends. n = 4 and 8 cross exp(n), n = 100 and 400 cross sqrt(n).",
        one=one,
        figure=draw,
        claims=claims,
        checks=checks,
        by=("snr", "n", "m"),
        measures=("error", "one_step", "known_labels", "steps"),
        full=Size(_cells(SITES), 100),
        quick=Size(_cells(SITES), 10),
        toy=Size(_cells((6, 12, 300, 3000), (4, 100)), 2),
    ),
)
