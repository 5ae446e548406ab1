"""FMLR, Figures 1 to 6: what each varies, its true regressions, and what the paper says of it.

The paper prints no numbers, and not n; for Figure 6 not the separations either: those are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reproduction.study import Results

CLIENTS = (50, 200, 500, 1000, 1500, 2000, 2500)


class Curve(NamedTuple):
    """One curve of a figure: the value of what it varies and rows a site."""

    setting: float
    n: int
    label: str

    def of(self, results: Results) -> Results:
        """The rows of this curve."""
        return results.where(setting=self.setting, n=self.n)


class Plan(NamedTuple):
    """A figure: its curves, numbers of sites, those whose errors the page shows."""

    title: str
    curves: Sequence[Curve]
    sites: tuple[int, ...] = CLIENTS
    shown: tuple[int, ...] = (50, 500, 2500)


# ------------------------------------------------------------------ truths


def line(scale: float, d: int) -> np.ndarray:
    """The paper's usual truth: scale * ones, zero, -scale * ones."""
    return scale * np.outer([1.0, 0.0, -1.0], np.ones(d))


def truth(figure: int, setting: float) -> np.ndarray:
    """The regressions (K, d) of a figure at a value of what it varies."""
    from fedkin.datasets.fmlr import PAPER_COEF

    if figure == 3:
        return PAPER_COEF[int(setting)]
    if figure == 4:
        return line({2: 5.0, 10: 2.0}[int(setting)], int(setting))
    if figure == 5:
        return line(setting, 3)
    if figure == 6:
        return _spread(setting)
    return line(3.0, 5)


def _spread(last: float) -> np.ndarray:
    """3 * ones, zero, -last * ones; for 0 three at equal distances. Least separation 3 sqrt(5)."""
    if not last:
        return 3.0 * np.sqrt(2.5) * np.eye(3, 5)
    return np.outer([3.0, 0.0, -last], np.ones(5))


def labels_known_constant(n_components: int, d: int) -> float:
    """What error * sqrt(mn) tends to with labels known: sqrt(K) E[largest of K chi_d], noise 1."""
    from scipy.integrate import quad
    from scipy.stats import chi

    largest, _ = quad(lambda x: 1 - chi.cdf(x, d) ** n_components, 0, np.inf)
    return float(np.sqrt(n_components) * largest)


# ------------------------------------------------------------------ the figures

PLANS = {
    1: Plan("few rows a site, many sites", [Curve(n, n, f"n = {n}") for n in (5, 10, 20, 50)]),
    2: Plan(
        "many rows a site, few sites",
        [Curve(n, n, f"n = {n}") for n in (100, 500, 1000)],
        sites=(3, 6, 9, 12, 15, 18, 21),
        shown=(3, 12, 21),
    ),
    3: Plan("number of components", [Curve(k, 10, f"K = {k}") for k in (2, 6)]),
    4: Plan("dimension", [Curve(d, 10, f"d = {d}") for d in (2, 10)]),
    5: Plan(
        "signal to noise",
        [
            Curve(0.5, 10, "SNR = 0.87"),
            Curve(1, 10, "SNR = 1.73"),
            Curve(4, 10, "SNR = 6.93"),
            Curve(8, 10, "SNR = 13.9"),
        ],
    ),
    6: Plan(
        "largest separation",
        [
            Curve(last, n, f"Δmax = {most}, n = {n}")
            for n in (10, 2)
            for last, most in ((0, 6.7), (3, 13.4), (6, 20.1), (12, 33.5), (24, 60.4))
        ],
    ),
}
