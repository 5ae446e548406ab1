"""Parameters and covariances of a common curve with sites' own departures from it.

    target of site i at x = common(x) + level_i + slope_i' x + own_i(x) + noise,

    cov = common variance k(x, x'; common lengths) + vague^2 (1 + x'x) of the common mean
          + [same site] (level + slope x'x + own variance k(x, x'; own lengths))
          + [same row] noise.

Features are in one frame for all sites: centred and of unit spread, so that a slope and a vague
mean mean the same in every direction. `full` holds logarithms of variances and lengths in the
order of `names`; a part that is absent has the logarithm -inf and a gradient of 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.gaussian_process import correlation

Floats = NDArray[np.float64]

ABSENT = -np.inf
# Shares of the target's variance that the parts start from.
START = {"common": 0.5, "level": 0.2, "slope": 0.1, "own": 0.1, "noise": 0.1}


class CommonForm(NamedTuple):
    """Number of features, smoothness of the two curves (inf is the RBF), and the common mean.

    `mean` is "zero", "constant" or "linear"; `vague` is the prior standard deviation of its
    coefficients, which are common to all sites, `steep` that of its slopes if it is another.
    """

    n_features: int
    common: float = np.inf
    own: float = np.inf
    mean: str = "zero"
    vague: float = 0.0
    steep: float | None = None

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
            "noise variance",
        )

    @property
    def n_mean(self) -> int:
        """Columns of the common mean."""
        return {"zero": 0, "constant": 1, "linear": 1 + self.n_features}[self.mean]


class Parameters(NamedTuple):
    """What `full` means: variances and lengths."""

    common: float
    common_lengths: Floats
    level: float
    slope: float
    own: float
    own_lengths: Floats
    noise: float


def parameters(form: CommonForm, full: Floats) -> Parameters:
    """Variances and lengths from their logarithms."""
    d, values = form.n_features, np.exp(full)
    level, slope, own = values[d + 1 : d + 4]
    lengths = values[d + 4 : -1]
    return Parameters(values[0], values[1 : d + 1], level, slope, own, lengths, values[-1])


def start_of(form: CommonForm, variance: float, without: tuple[str, ...] = ()) -> Floats:
    """Starting `full` for targets of that variance; parts named in `without` are absent."""
    share = {name: 0.0 if name in without else part for name, part in START.items()}
    lengths = np.full(form.n_features, np.sqrt(form.n_features))
    with np.errstate(divide="ignore"):
        common, level, slope, own, noise = np.log([variance * part for part in share.values()])
    length = np.log(lengths)
    return np.concatenate([[common], length, [level, slope, own], length, [noise]])


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
    apart = np.array([_squared(A[..., j] / s, B[..., j] / s) for j, s in enumerate(lengths)])
    square = apart.sum(axis=0)
    value, slope = correlation(smoothness, square, np.ones(1))
    return value, (value if slope is None else slope) * apart


def _squared(a: Floats, b: Floats) -> Floats:
    squared: Floats = (a[..., :, None] - b[..., None, :]) ** 2
    return squared
