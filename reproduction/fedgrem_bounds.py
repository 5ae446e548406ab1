"""FedGrEM's error bound against what happens: the terms of Corollary A.12 in simulations.

The corollary holds up to a constant that is not given. With that constant set to one, its terms say
which source of error should matter; beside them stands the error that FedGrEM makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.study import Check, Claim, Results, Size, Study, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

R, D, K = 5, 10, 10
# Failure probability of the bound.
DELTA = 0.05
TERMS = ("aggregation", "confidence", "weights", "heterogeneity", "outliers")


def terms(n: int, h: float, n_outliers: int, bound: float, share: float) -> dict[str, float]:
    """The terms of Corollary A.12 with constant one; the iterative term is taken as vanished.

    `bound` (M) is the largest length of a component, `share` (c_w) the least weight times R.
    """
    lead = R**2 / share * bound**3
    honest, logs = K - n_outliers, np.log(R / share)
    single = lead * np.sqrt(D / n)
    return {
        "aggregation": lead * np.sqrt(D / (n * honest)),
        "confidence": R / share * bound * np.sqrt(np.log(R * K / DELTA) / n),
        "weights": R**2 / share * bound * (bound**2 + logs) / np.sqrt(n),
        "heterogeneity": min(h, single),
        "outliers": n_outliers / K * single,
    }


def rate(n: int, h: float, n_outliers: int) -> float:
    """Remark A.13: the same with M and c_w taken as constants, and R^2 left out."""
    root = np.sqrt(D / n)
    honest = K - n_outliers
    return float(root / np.sqrt(honest) + n**-0.5 + min(h, root) + n_outliers / K * root)


def one(seed: int, n: int, h: float, n_outliers: int) -> list[dict[str, Any]]:
    """The bound's terms for one draw, and the errors of FedGrEM and of staying alone on it."""
    from fedkin import FedGrEM, LocalEM
    from fedkin.datasets import make_gaussian_mixtures
    from reproduction.mixture_protocol import errors

    sim = make_gaussian_mixtures(
        n_rows=n, heterogeneity=h, n_outliers=n_outliers, random_state=seed
    )
    good = ~sim.outlier
    bound = float(np.linalg.norm(sim.components[good], axis=-1).max())
    share = float(R * sim.weights[good].min())
    made = terms(n, h, n_outliers, bound, share)
    paper = FedGrEM(5, shrinkage="paper", max_rounds=1000, random_state=seed).fit(sim.clients)
    alone = LocalEM(5, random_state=seed).fit(sim.clients)
    measured = errors(paper.means_, paper.weights_, sim)
    worst = max(measured["theta_max"], measured["w_joint"])
    return [
        {
            **made,
            "bound": sum(made.values()),
            "rate": rate(n, h, n_outliers),
            "measured": worst,
            "alone": errors(alone.means_, alone.weights_, sim)["theta_max"],
            "bound / measured": sum(made.values()) / worst,
            "M": bound,
            "c_w": share,
        }
    ]


def draw(results: Results) -> Figure:
    """Bound, its terms, the bare rate and the measured error against n and against h."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    some_h = 0.5 if 0.5 in results.distinct("h") else results.distinct("h")[0]
    looks: tuple[tuple[str, dict[str, Any]], ...] = (
        ("n", {"h": some_h, "n_outliers": 1}),
        ("h", {"n": 150, "n_outliers": 1}),
    )
    for axes, (x, where) in zip(panels, looks):
        for name in TERMS:
            values, term = results.curve(x, name, **where)
            axes.plot(values, np.where(term > 0, term, np.nan), "--", lw=0.9, label=f"term: {name}")
        axes.plot(*results.curve(x, "bound", **where), "k-", label="bound, constant 1")
        axes.plot(*results.curve(x, "rate", **where), "b-", label="rate alone (M, c_w, R dropped)")
        axes.plot(*results.curve(x, "measured", **where), "ro-", label="measured, FedGrEM")
        axes.plot(*results.curve(x, "alone", **where), "g^-", ms=4, label="measured, alone")
        axes.set(xlabel="rows a site" if x == "n" else "heterogeneity h", yscale="log")
        fixed = ", ".join(f"{k} = {v:g}" for k, v in where.items() if k != "n_outliers")
        axes.set_title(f"{fixed}, one outlier site", fontsize=9)
    panels[0].set(ylabel="largest error", xscale="log")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


def claims(results: Results) -> list[Claim]:
    """Bound beside measured error for every setting, and how both move with n."""
    found = []
    settings = dict.fromkeys((r["n"], r["h"], r["n_outliers"]) for r in results.rows)
    for n, h, n_outliers in settings:
        where = {"n": n, "h": h, "n_outliers": n_outliers}
        parts = ", ".join(f"{name} {results.estimate(name, **where).mean:.3g}" for name in TERMS)
        bound, measured = (results.estimate(m, **where) for m in ("bound", "measured"))
        found.append(
            Claim(
                f"Corollary A.12, n = {n}, h = {h:g}, outlier sites: {n_outliers}",
                f"{bound.mean:.0f} with constant 1 ({parts})",
                measured,
                "constant not given; the last iterate stands for T = infinity",
                f"{bound.mean / measured.mean:.0f} times the measured; "
                f"the rate without M, c_w and R: {rate(n, h, n_outliers):.2f}",
            )
        )
    return found


# A slope above -1/2 by less than this counts as the rate.
NEAR = 0.1


def checks(results: Results) -> list[Check]:
    """The bound above the error, and how both fall with n where h = 0."""
    ratio = results.column("bound / measured")
    above = Check(
        "the error is at most a constant (not given; here 1) times the sum of five terms",
        bool(ratio.min() > 1),
        f"the sum is {ratio.min():.0f} to {ratio.max():.0f} times the error",
    )
    where = {"h": 0.0, "n_outliers": 1}
    n, error = results.curve("n", "measured", **where)
    if len(n) < 2:
        return [above]
    middle = [np.median(results.where(n=k, **where).column("measured")) for k in n]
    slope, robust = (float(np.polyfit(np.log(n), np.log(e), 1)[0]) for e in (error, middle))
    return [
        above,
        Check(
            "at h = 0 it falls at least like n^(-1/2)",
            robust <= NEAR - 0.5,
            f"slope of log error on log n {slope:.2f}, of medians over replications {robust:.2f} "
            f"(n = {n[0]:.0f} to {n[-1]:.0f}; at most {NEAR - 0.5:g})",
        ),
    ]


SETTINGS = [
    *cells(n=(75, 150, 300, 600, 1200), h=(0.0, 0.5), n_outliers=(1,)),
    *cells(n=(150,), h=(0.25, 1.0, 2.0), n_outliers=(1,)),
    *cells(n=(150,), h=(0.5,), n_outliers=(0, 3)),
]

STUDIES = (
    Study(
        name="fedgrem-bounds",
        paper="FedGrEM",
        shows="Corollary A.12",
        title="the bound against what happens",
        protocol=(
            "Gaussian mixtures of Figure 3; M is the largest length of a true component, c_w five "
            "times the least true weight, delta = .05, every constant one, the iterative term "
            "taken as vanished. Measured: FedGrEM with the paper's penalty, exact central update; "
            "the largest error of components and weights at honest sites."
        ),
        one=one,
        figure=draw,
        claims=claims,
        checks=checks,
        by=("n", "h", "n_outliers"),
        measures=("bound", *TERMS, "rate", "measured", "alone", "bound / measured"),
        full=Size(SETTINGS, 30),
        quick=Size(SETTINGS, 3),
        toy=Size(cells(n=(150, 600), h=(0.0,), n_outliers=(1,)), 1),
    ),
)
