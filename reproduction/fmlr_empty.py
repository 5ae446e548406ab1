"""FMLR, Figure 2 with labels as Algorithm 1 draws them: components that nobody follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.study import Check, Claim, Results, Size, Study, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SITES = (3, 6, 9, 12, 15, 18, 21)
ROWS = 100


def one(seed: int, m: int) -> list[dict[str, Any]]:
    """Labels as the paper's Algorithm 1 draws them; is a component without sites, and named?"""
    from fedkin import FMLR
    from fedkin.datasets import make_regression_groups
    from fedkin.datasets.fmlr import PAPER_COEF

    labels = np.random.default_rng([48, m, seed]).integers(3, size=m)
    drawn = make_regression_groups(
        m, ROWS, PAPER_COEF[3], labels=labels, random_state=[44, m, seed]
    )
    start = drawn.nearby(drawn.separation() / 5, seed)
    model = FMLR(3, init=start, sigma=1.0, weights="uniform", fit_intercept=False)
    error = drawn.error(model.fit(drawn.federation).coef_)
    there = np.isin(np.arange(3), labels)
    row = {"empty": not there.all(), "error": error, "named": np.all(model.identified_ == there)}
    return [row | ({"error_if_all_there": error} if there.all() else {})]


def empty_share(m: int) -> float:
    """Probability that one of three components has none of m sites."""
    return 3 * (2 / 3) ** m - 3 * (1 / 3) ** m


def draw(results: Results) -> Figure:
    """Share of draws with an empty component, and what it does to the mean error."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    m, share = results.curve("m", "empty")
    left.plot(m, share, "o", label="measured")
    left.plot(m, [empty_share(int(x)) for x in m], "k:", label="exact")
    left.set(ylabel="draws with an empty component", ylim=(0, 1))
    right.plot(m, results.curve("m", "error")[1], "o-", label="all draws")
    right.plot(m, results.curve("m", "error_if_all_there")[1], "s-", label="no component empty")
    right.set(ylabel="largest error of a regression", ylim=(0, None))
    for panel in (left, right):
        panel.set_xlabel("sites m")
        panel.set_xticks(m)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    return figure


def claims(results: Results) -> list[Claim]:
    """Share of draws with an empty component and mean error; is the component named?"""
    found = [
        Claim(
            "empty components reported as not identified",
            "treatment not said",
            results.estimate("named"),
            "labels as in the paper's Algorithm 1",
        )
    ]
    for m in results.distinct("m"):
        entries = (
            ("empty", "draws with an empty component", f"exactly {empty_share(m):.3f}"),
            ("error", "mean error over all draws", "not printed"),
            ("error_if_all_there", "mean error, no component empty", "not printed"),
        )
        found += [
            Claim(f"m = {m}: {entry}", paper, results.estimate(name, m=m), "yes")
            for name, entry, paper in entries
        ]
    sites, errors = results.curve("m", "error_if_all_there")
    constant = np.mean(errors * np.sqrt(ROWS * sites))
    rate = np.polyfit(np.log(sites), np.log(errors), 1)[0]
    found.append(
        Claim(
            "no component empty: error * sqrt(mn), mean over m / rate in m (equal shares: 4.71)",
            "- / -1/2",
            f"{constant:.2f} / {rate:.3f}",
            "yes",
        )
    )
    return found


def checks(results: Results) -> list[Check]:
    """Figure 2 converges from m = K on; with labels as drawn it cannot."""
    few = min(results.distinct("m"))
    share, error = (results.estimate(name, m=few) for name in ("empty", "error"))
    there = results.estimate("error_if_all_there", m=few)
    return [
        Check(
            "Figure 2 converges from m = 3 on, with labels drawn at random",
            bool(error.mean <= 2 * there.mean),
            f"at m = {few} a component has no site in {share.mean:.0%} of draws; mean error "
            f"{error.mean:.2f}, {there.mean:.2f} where all have one",
        )
    ]


STUDIES = (
    Study(
        name="fmlr-empty-component",
        paper="FMLR",
        shows="Figure 2 with uniform labels",
        title="components without sites",
        protocol="Figure 2 at n = 100 with labels drawn as the paper's Algorithm 1 says and no "
        "draw repeated. A component without sites keeps the vector it started from, a fifth of the "
        "least separation (1.34) away. In the paper's column the exact probability.",
        one=one,
        figure=draw,
        claims=claims,
        checks=checks,
        why="how the paper treats components without sites is not said",
        by=("m",),
        measures=("empty", "error", "error_if_all_there", "named"),
        full=Size(cells(m=SITES), 1000),
        quick=Size(cells(m=SITES), 200),
        toy=Size(cells(m=(3, 21)), 20),
    ),
)
