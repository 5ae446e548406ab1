"""FMLR, Figures 1 to 5: error of the estimated regressions against the number of sites.

The five figures vary one thing each (rows a site, components, dimension, signal to noise) and have
one shape: m sites, each following one of K regressions, EM started at a fifth of the separation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.studies.study import Claim, Results, Size, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS = (50, 200, 500, 1000, 1500, 2000, 2500)
FEW = (3, 6, 9, 12, 15, 18, 21)


def line(scale: float, d: int) -> np.ndarray:
    """The paper's usual truth: scale * ones, zero, -scale * ones."""
    return scale * np.outer([1.0, 0.0, -1.0], np.ones(d))


def truth(figure: int, setting: float) -> np.ndarray:
    """The regressions (K, d) of a figure at a value of what it varies."""
    if figure == 3:
        return _pair_or_six(int(setting))
    if figure == 4:
        return line({2: 5.0, 10: 2.0}[int(setting)], int(setting))
    if figure == 5:
        return line(setting, 3)
    return line(3.0, 5)


def _pair_or_six(n_components: int) -> np.ndarray:
    if n_components == 2:
        return 2.0 * np.outer([1.0, -1.0], np.ones(5))
    six = np.full((6, 5), 4.0)
    six[np.arange(1, 6), np.arange(5)] = -4.0
    return six


def one(seed: int, figure: int, setting: float, m: int, n: int) -> list[dict[str, Any]]:
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
    start = drawn.nearby(drawn.separation() / 5, seed)
    model = FMLR(len(coef), init=start, sigma=1.0, weights="uniform", fit_intercept=False, tol=1e-6)
    model.fit(drawn.federation)
    error, known = drawn.error(model.coef_), drawn.error(drawn.known_labels_coef())
    scaled = error * np.sqrt(m * n)
    return [
        {
            "error": error,
            "known_labels": known,
            "ratio": error / known,
            "iterations": model.n_iter_,
            "scaled_error": scaled,
        }
    ]


def draw(results: Results, varied: str) -> Figure:
    """Error against m for every value of what the figure varies, both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for setting in results.distinct("setting"):
        m, error = results.curve("m", "error", setting=setting)
        left.loglog(m, error, "o-", label=f"{varied} = {setting:g}")
        right.plot(*results.curve("m", "iterations", setting=setting), "o-")
        left.loglog(m, results.curve("m", "known_labels", setting=setting)[1], "k:", lw=0.8)
    left.set(xlabel="sites m", ylabel="largest error of a regression")
    right.set(xlabel="sites m", ylabel="EM iterations to 1e-6")
    left.legend()
    left.set_title("dotted: labels known", fontsize=9)
    return figure


def slope(results: Results, setting: float) -> float:
    """Slope of log error on log m; -1/2 is the parametric rate."""
    m, error = results.curve("m", "error", setting=setting)
    return float(np.polyfit(np.log(m), np.log(error), 1)[0])


# Errors that independent code measured (30 draws): figure, setting -> {m: error}.
NOTED: dict[tuple[int, float], dict[int, float]] = {
    (1, 5): {50: 0.3125, 500: 0.0986, 2500: 0.0405},
    (1, 10): {50: 0.2180, 500: 0.0670, 2500: 0.0292},
    (1, 20): {50: 0.1555, 500: 0.0456, 2500: 0.0205},
    (1, 50): {50: 0.0979, 500: 0.0288, 2500: 0.0140},
    (2, 100): {3: 0.288, 12: 0.137, 21: 0.106},
    (2, 1000): {3: 0.0887, 12: 0.0421, 21: 0.0338},
    (3, 2): {50: 0.1674, 500: 0.0504, 2500: 0.0237},
    (3, 6): {50: 0.4044, 500: 0.1063, 2500: 0.0469},
    (4, 2): {50: 0.1507, 500: 0.0461, 2500: 0.0209},
    (4, 10): {50: 0.3046, 500: 0.0902, 2500: 0.0410},
    (5, 0.5): {50: 0.2395, 500: 0.0697, 2500: 0.0293},
    (5, 1.0): {50: 0.1709, 500: 0.0533, 2500: 0.0248},
    (5, 4.0): {50: 0.1687, 500: 0.0530, 2500: 0.0242},
    (5, 8.0): {50: 0.1687, 500: 0.0530},
}

# Figure -> what it varies, its values with the rows a site has, and what the paper says of it.
VARIED: dict[int, tuple[str, list[tuple[float, int]]]] = {
    1: ("rows n", [(5, 5), (10, 10), (20, 20), (50, 50)]),
    2: ("rows n", [(100, 100), (500, 500), (1000, 1000)]),
    3: ("components K", [(2, 10), (6, 10)]),
    4: ("dimension d", [(2, 10), (10, 10)]),
    5: ("scale of the truth", [(0.5, 10), (1.0, 10), (4.0, 10), (8.0, 10)]),
}
SAID = {
    1: "error falls with m; few iterations at every n",
    2: "error falls with m though m is near K",
    3: "more components need more iterations",
    4: "error grows with the dimension",
    5: "error falls as the signal grows; converges below the theory's bound of about 10",
}
TITLES = {
    1: "few rows a site, many sites",
    2: "many rows a site, few sites",
    3: "number of components",
    4: "dimension",
    5: "signal to noise",
}
PROTOCOL = (
    "Standard normal features, noise 1, labels {labels}, EM with known noise and equal weights "
    "started at a fifth of the least separation in a random direction, stopped at 1e-6; the error "
    "is the largest distance of a regression from its truth. The paper states neither n nor the "
    "stopping rule: n = {n} are ours."
)


def _claims(figure: int, results: Results) -> list[Claim]:
    varied, values = VARIED[figure]
    found: list[Claim] = []
    for setting, n in values:
        m_values = sorted(results.where(setting=setting).distinct("m"))
        found += [
            Claim(
                f"{varied} = {setting:g}, m = {m}",
                "no number printed",
                results.estimate("error", setting=setting, m=m),
                "as far as stated",
                noted=NOTED.get((figure, setting), {}).get(m),
                noted_n=30,
            )
            for m in m_values
        ]
        rate = slope(results, setting) if len(m_values) > 1 else np.nan
        iterations = results.estimate("iterations", setting=setting)
        ratio = results.estimate("ratio", setting=setting)
        found.append(
            Claim(
                f"{varied} = {setting:g} (n = {n}), over all m",
                SAID[figure],
                f"slope {rate:.2f}, iterations {iterations.mean:.1f}, "
                f"error / labels known {ratio.mean:.3f}",
                "as far as stated",
            )
        )
    return found


def _study(figure: int) -> Study:
    varied, values = VARIED[figure]
    sites = FEW if figure == 2 else CLIENTS

    def grid(clients: tuple[int, ...]) -> list[dict[str, Any]]:
        return [
            {"figure": figure, "setting": setting, "n": n, "m": m}
            for setting, n in values
            for m in clients
        ]

    return Study(
        name=f"fmlr-figure-{figure}",
        paper="FMLR",
        shows=f"Figure {figure}",
        title=TITLES[figure],
        protocol=PROTOCOL.format(
            labels="dealt out in turn" if figure == 2 else "uniform, redrawn until all are there",
            n=", ".join(str(n) for n in dict.fromkeys(n for _, n in values)),
        ),
        one=one,
        figure=lambda results: draw(results, varied),
        claims=lambda results: _claims(figure, results),
        by=("setting", "n", "m"),
        measures=("error", "known_labels", "ratio", "iterations", "scaled_error"),
        full=Size(grid(sites), 30),
        quick=Size(grid(sites), 8),
        toy=Size(grid(sites[:4:3]), 2),
    )


STUDIES = tuple(_study(figure) for figure in VARIED)
