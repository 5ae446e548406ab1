"""Parameters and covariances of a common curve with sites' own departures from it.

    target of site i at x = common(x) + s(x) (level_i + slope_i' (x - pivot) + own_i(x) + noise),

    cov = common variance k(x, x'; common lengths) + vague^2 (1 + x'x) of the common mean
          + [same site] s(x) s(x') (level + slope (x - pivot)'(x' - pivot)
                                    + own variance k(x, x'; own lengths))
          + [same row] s(x)^2 noise,        s(x) = exp(growth x).

The pivot is where sites differ least: curves that begin together and fan out have it at their
beginning. Level and slope there are independent, which at any other place is a correlation: along a
line this is every covariance that a level and a slope can have.

What grows differs more, and is measured less exactly, as it gets larger: along a line departures
and noise swell by s, in one proportion. Beyond the edges of the rows s stays what it is there, as
nobody has seen it go on; how unsure that is, predictions say (`own_spread.py`). In more dimensions
s is 1.

What changes fast at one end of a feature and slowly at the other no stationary curve knows. In a
plane both curves may therefore see each feature bent, with its edges a and b where they are,

    a + (b - a) (exp(haste (x - a)) - 1) / (exp(haste (b - a)) - 1),

and straight on at the pace of the edge beyond. Along a line they see the feature itself: a pace
says more of the end of a curve than rows know. So they do in more dimensions, where a few points
carry a bent curve badly and the bound gives up what sites have in common.

Features are in one frame for all sites: centred and of unit spread, so that a slope and a vague
mean mean the same in every direction. `full` holds logarithms of variances and lengths, and pivot,
growth and haste as they are, in the order of `names`; a part that is absent has the logarithm -inf
and a gradient of 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import exprel

from fedkin.models.gaussian_process import correlation

Floats = NDArray[np.float64]

ABSENT = -np.inf
# "Smoothness" of a cubic spline, along a line only: the integral of a random walk from the centre
# both ways, with knots at the points that carry it and free beyond them (`inducing.not_carried`).
# It has no length, and goes on as straight as it ends with a growing spread.
SPLINE = -1.0
# Below this a slope of `exprel` is its series: the difference of equal numbers is rounding.
SERIES = 1e-3
# Shares of the target's variance that the parts start from.
START = {"common": 0.5, "level": 0.2, "slope": 0.1, "own": 0.1, "noise": 0.1}


class CommonForm(NamedTuple):
    """Number of features, smoothness of the two curves (inf is the RBF), and the common mean.

    The common curve may be a `SPLINE`.
    `mean` is "zero", "constant" or "linear"; `vague` is the prior standard deviation of its
    coefficients, which are common to all sites, `steep` that of its slopes if it is another.
    Departures and noise swell, and features make haste, between the `edges` of every feature,
    lowest and highest, and not beyond them.
    """

    n_features: int
    common: float = np.inf
    own: float = np.inf
    mean: str = "zero"
    vague: float = 0.0
    steep: float | None = None
    edges: tuple[tuple[float, ...], tuple[float, ...]] = ((-np.inf,), (np.inf,))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters in `full`."""
        d = self.n_features
        return (
            "common variance",
            *["common length"] * d,
            "level variance",
            "slope variance",
            "own variance",
            *["own length"] * d,
            *["pivot"] * d,
            *["growth"] * self.n_growth,
            *["haste"] * self.n_haste,
            "noise variance",
        )

    @property
    def n_growth(self) -> int:
        """One along a line, none in more dimensions."""
        return int(self.n_features == 1)

    @property
    def n_haste(self) -> int:
        """One a feature in a plane whose edges are known, else none."""
        return 2 * int(self.n_features == 2 and np.isfinite(self.edges).all())

    @property
    def n_mean(self) -> int:
        """Columns of the common mean."""
        return {"zero": 0, "constant": 1, "linear": 1 + self.n_features}[self.mean]


class Parameters(NamedTuple):
    """What `full` means: variances, lengths, where departures by slopes vanish, what swells and
    what makes haste."""

    common: float
    common_lengths: Floats
    level: float
    slope: float
    own: float
    own_lengths: Floats
    pivot: Floats
    growth: Floats
    haste: Floats
    noise: float
    edges: tuple[tuple[float, ...], tuple[float, ...]]

    def bent(self, X: Floats) -> Floats:
        """Rows X (..., d) as the curves see them."""
        if not self.haste.any():
            return X
        low, high = map(np.array, self.edges)
        whole, inside = high - low, np.clip(X, low, high) - low
        share, edge = exprel(self.haste * inside), exprel(self.haste * whole)
        seen: Floats = low + inside * share / edge
        return seen + np.exp(self.haste * inside) / edge * (X - low - inside)

    def bending(self, X: Floats) -> Floats:
        """Slopes (..., d) of these rows, each feature by its haste."""
        low, high = map(np.array, self.edges)
        whole, inside = high - low, np.clip(X, low, high) - low
        edge, by_edge = exprel(self.haste * whole), whole * _exprel_slope(self.haste * whole)
        share, pace = exprel(self.haste * inside), np.exp(self.haste * inside)
        by_share = inside * _exprel_slope(self.haste * inside)
        beyond, by_inside = X - low - inside, inside * (by_share - share * by_edge / edge)
        slopes: Floats = (by_inside + beyond * pace * (inside - by_edge / edge)) / edge
        return slopes

    def leaning(self, X: Floats) -> Floats:
        """What slopes multiply at rows X (..., d)."""
        return X - self.pivot

    def growing(self, X: Floats) -> Floats:
        """What growth multiplies at rows X (..., d) in the logarithm of `swelling`, (...)."""
        if not len(self.growth):
            return np.zeros(X.shape[:-1])
        return np.clip(X[..., 0], self.edges[0][0], self.edges[1][0])

    def swelling(self, X: Floats) -> Floats:
        """How large departures and noise at rows X (..., d) are in those at the centre, (...)."""
        grown: Floats = np.exp(self.growing(X) * self.growth.sum())
        return grown


def parameters(form: CommonForm, full: Floats) -> Parameters:
    """Variances and lengths from their logarithms, pivot, growth and haste."""
    d = form.n_features
    ends = np.cumsum([2 * d + 4, d, form.n_growth, form.n_haste])
    logs, pivot, growth, haste, log_noise = np.split(full, ends)
    values = np.exp(logs)
    return Parameters(
        common=values[0],
        common_lengths=values[1 : d + 1],
        level=values[d + 1],
        slope=values[d + 2],
        own=values[d + 3],
        own_lengths=values[d + 4 :],
        pivot=pivot,
        growth=growth,
        haste=haste,
        noise=float(np.exp(log_noise[0])),
        edges=form.edges,
    )


def start_of(form: CommonForm, variance: float, without: tuple[str, ...] = ()) -> Floats:
    """Starting `full` for targets of that variance; parts named in `without` are absent."""
    share = {name: 0.0 if name in without else part for name, part in START.items()}
    lengths = np.full(form.n_features, np.sqrt(form.n_features))
    with np.errstate(divide="ignore"):
        common, level, slope, own, noise = np.log([variance * part for part in share.values()])
    length, zeros = np.log(lengths), np.zeros(form.n_features + form.n_growth + form.n_haste)
    return np.concatenate([[common], length, [level, slope, own], length, zeros, [noise]])


def mean_columns(form: CommonForm, X: Floats) -> Floats:
    """Columns of the common mean times their prior standard deviation, (..., n, q)."""
    ones = np.full((*X.shape[:-1], 1), form.vague)
    if form.mean != "linear":
        return ones[..., : form.n_mean]
    steep = form.vague if form.steep is None else form.steep
    return np.concatenate([ones, steep * X], axis=-1)


def curve(smoothness: float, lengths: Floats, A: Floats, B: Floats) -> tuple[Floats, Floats]:
    """Correlation of rows A (..., a, d) and B (..., b, d), and its slopes by log lengths.

    Shapes (..., a, b) and (d, ..., a, b).
    """
    if smoothness == SPLINE:
        value = integrated_walk(A[..., 0], B[..., 0])
        return value, np.zeros((1, *value.shape))
    apart = np.array([_squared(A[..., j] / s, B[..., j] / s) for j, s in enumerate(lengths)])
    square = apart.sum(axis=0)
    value, slope = correlation(smoothness, square, np.ones(1))
    return value, (value if slope is None else slope) * apart


def curve_moved(
    smoothness: float, lengths: Floats, A: tuple[Floats, Floats], B: tuple[Floats, Floats]
) -> Floats:
    """Slopes (d, ..., a, b) of the correlation of rows when one of their features moves, of each.

    A and B are rows (..., a, d) and (..., b, d) with the slopes of their features.
    """
    apart, moved = (
        np.array([(a[..., :, None, j] - b[..., None, :, j]) / s for j, s in enumerate(lengths)])
        for a, b in zip(A, B)
    )
    value, slope = correlation(smoothness, np.square(apart).sum(axis=0), np.ones(1))
    slopes: Floats = -(value if slope is None else slope) * apart * moved
    return slopes


def integrated_walk(a: Floats, b: Floats) -> Floats:
    """Covariance (..., a, b) of integrals of random walks that start at 0 in both directions."""
    far, near = np.abs(a)[..., :, None], np.abs(b)[..., None, :]
    far, near = np.maximum(far, near), np.minimum(far, near)
    same_side = a[..., :, None] * b[..., None, :] > 0
    return np.where(same_side, near**2 * (3.0 * far - near) / 6.0, 0.0)


def _exprel_slope(x: Floats) -> Floats:
    """Derivative of (exp(x) - 1) / x."""
    small = np.abs(x) < SERIES
    safe = np.where(small, 1.0, x)
    slope: Floats = (np.exp(safe) - exprel(safe)) / safe
    return np.where(small, 0.5 + x / 3.0 + x**2 / 8.0 + x**3 / 30.0, slope)


def _squared(a: Floats, b: Floats) -> Floats:
    squared: Floats = (a[..., :, None] - b[..., None, :]) ** 2
    return squared
