"""FMLR, Figures 1 to 6: what each varies, its true regressions, and what was measured elsewhere.

The paper prints no numbers. The noted ones come from code written independently of this library,
which chose the same n and, for Figure 6, the same separations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reproduction.study import Results

CLIENTS = (50, 200, 500, 1000, 1500, 2000, 2500)

Ranges = tuple[tuple[float, float], tuple[float, float]]


class Curve(NamedTuple):
    """One curve of a figure: the value of what it varies, rows a site, and what was noted."""

    setting: float
    n: int
    label: str
    errors: Sequence[float] = ()  # at the three numbers of sites of the plan
    constant: float | None = None  # mean over m of error * sqrt(mn)
    words: str | None = None  # rate in m / error over labels known / iterations
    iterations: Sequence[float] = ()  # at the three numbers of sites of the plan
    ranges: Ranges | None = None  # of error over labels known and of iterations, at all three

    def of(self, results: Results) -> Results:
        """The rows of this curve."""
        return results.where(setting=self.setting, n=self.n)


class Plan(NamedTuple):
    """A figure: what the paper says of it, its curves, runs behind each noted mean."""

    title: str
    said: str
    curves: Sequence[Curve]
    sites: tuple[int, ...] = CLIENTS
    noted_at: tuple[int, ...] = (50, 500, 2500)
    noted_n: int = 30
    noted_only: bool = False  # nothing was noted at other numbers of sites
    why: str = ""


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

# Noted for every largest separation alike: with ten rows a site all labels are found.
SPREAD_ERRORS = (0.2106, 0.0669, 0.0302)
TEN_ROWS = "- / 1.000 / 2.0-2.8"
TWO_ROWS = "- / 1.014-1.029 / 6-12, all Δmax together"
TWO_RANGES = ((1.014, 1.029), (6.0, 12.2))

PLANS = {
    1: Plan(
        "few rows a site, many sites",
        "converges to the truth after several iterations",
        [
            Curve(5, 5, "n = 5", (0.3125, 0.0986, 0.0405), 4.75, "-.517 / .996-1.001 / 3.3-4.2"),
            Curve(10, 10, "n = 10", (0.2180, 0.0670, 0.0292), 4.69, "-.517 / 1.000 / 2.1-2.7"),
            Curve(20, 20, "n = 20", (0.1555, 0.0456, 0.0205), 4.71, "-.511 / 1.000 / 2.0"),
            Curve(50, 50, "n = 50", (0.0979, 0.0288, 0.0140), 4.79, "-.501 / 1.000 / 2.0"),
        ],
    ),
    2: Plan(
        "many rows a site, few sites",
        "converges after several iterations from m = K on, where the theory asks for sqrt(n)",
        [
            Curve(100, 100, "n = 100", (0.288, 0.137, 0.106), 4.94, "-.503 / 1.000 / 2.0"),
            Curve(500, 500, "n = 500"),
            Curve(1000, 1000, "n = 1000", (0.0887, 0.0421, 0.0338), 4.76, "-.503 / 1.000 / 2.0"),
        ],
        sites=(3, 6, 9, 12, 15, 18, 21),
        noted_at=(3, 12, 21),
    ),
    3: Plan(
        "number of components",
        "more components need more iterations (least separation about 8.5: it is 8.94 and 8.00)",
        [
            Curve(2, 10, "K = 2", (0.1674, 0.0504, 0.0237), 3.68, "-.504 / 1.000 / 2.0-2.1"),
            Curve(6, 10, "K = 6", (0.4044, 0.1063, 0.0469), 7.77, "-.539 / 1.000-1.001 / 2.0-2.5"),
        ],
    ),
    4: Plan(
        "dimension",
        "error grows with the dimension (SNR about 6.5: it is 7.07 and 6.32)",
        [
            Curve(2, 10, "d = 2", (0.1507, 0.0461, 0.0209), 3.31, "-.515 / 1.000 / 2.1-2.6"),
            Curve(10, 10, "d = 10", (0.3046, 0.0902, 0.0410), 6.57, "-.505 / 1.000 / 2.1-2.6"),
        ],
    ),
    5: Plan(
        "signal to noise",
        "error falls as the SNR grows; converges below the theory's bound, given as about 10",
        [
            Curve(
                0.5, 10, "SNR = 0.87", (0.2395, 0.0697, 0.0293), 4.71, "-.537 / 1.16-1.42 / 24-31"
            ),
            Curve(
                1, 10, "SNR = 1.73", (0.1709, 0.0533, 0.0248), 3.81, "-.499 / 1.006-1.059 / 6.9-8.2"
            ),
            Curve(4, 10, "SNR = 6.93", (0.1687, 0.0530, 0.0242), 3.71, "-.501 / 1.000 / 2.0-2.4"),
            Curve(8, 10, "SNR = 13.9", (0.1687, 0.0530), 3.69, "-.507 / 1.000 / 2.0"),
        ],
        why="once labels are found the noise alone counts",
    ),
    6: Plan(
        "largest separation",
        "a larger one need not mean faster convergence or less error, sometimes more",
        [
            Curve(0, 10, "Δmax = 6.7, n = 10", SPREAD_ERRORS, words=TEN_ROWS),
            Curve(3, 10, "Δmax = 13.4, n = 10", SPREAD_ERRORS, words=TEN_ROWS),
            Curve(6, 10, "Δmax = 20.1, n = 10", SPREAD_ERRORS, words=TEN_ROWS),
            Curve(12, 10, "Δmax = 33.5, n = 10", SPREAD_ERRORS, words=TEN_ROWS),
            Curve(24, 10, "Δmax = 60.4, n = 10", SPREAD_ERRORS, words=TEN_ROWS),
            Curve(0, 2, "Δmax = 6.7, n = 2", words=TWO_ROWS, ranges=TWO_RANGES),
            Curve(
                3,
                2,
                "Δmax = 13.4, n = 2",
                words=TWO_ROWS,
                iterations=(12.2, 8.1, 7.5),
                ranges=TWO_RANGES,
            ),
            Curve(6, 2, "Δmax = 20.1, n = 2", words=TWO_ROWS, ranges=TWO_RANGES),
            Curve(12, 2, "Δmax = 33.5, n = 2", words=TWO_ROWS, ranges=TWO_RANGES),
            Curve(
                24,
                2,
                "Δmax = 60.4, n = 2",
                words=TWO_ROWS,
                iterations=(9.4, 7.2, 6.3),
                ranges=TWO_RANGES,
            ),
        ],
        noted_n=20,
        noted_only=True,
        why="ten rows a site find all labels and only the noise counts; with two rows a larger one "
        "helps a little",
    ),
}
