"""Weakly informative priors of a Gaussian process in units of its data, as a penalty.

On logarithms theta of lengths and variances, minus the log density up to constants:

- a length is log-normal around the spread of its feature times the root of their number, within a
  factor of 20 either way in 95 % of cases;
- where the slopes of sites' departures vanish is normal around the centre of the features, with
  two of their spreads;
- by what departures and noise grow, in logarithms per spread of the feature, is normal around
  none: from the beginning of curves to their end, three or four spreads, within a factor of 30
  either way in 95 % of cases; and so is a feature's haste, the logarithm of its pace;
- a standard deviation is half-normal in units of the target's: noise of one, curves of three, since
  a long trend has more variance than its piece within the data;
- the noise's is taken as density of its logarithm, which falls towards zero: a few rows on a
  smooth line cannot say that there is no noise (Chung et al. 2013). Curves may vanish.

The parts of a common curve and of sites' departures from it are averaged over, not picked
(`common_cloud.py`): their standard deviations are half-Cauchy, of which most may be next to nothing
and some as large as they like, all taken as densities of logarithms. A mode at zero would leave
the average nothing to go over.

A parameter of logarithm -inf is absent and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Standard deviation of the logarithm of a length.
LENGTH_WIDTH = 1.5
# Standard deviation of the pivot of departures, in spreads of the features.
PIVOT_WIDTH = 2.0
# Of the logarithm by which departures and noise, or the pace, grow in one spread of the feature.
GROWTH_WIDTH = 0.5
# Units of the half-normal standard deviations, in target's standard deviations.
NOISE_UNIT = 1.0
CURVE_UNIT = 3.0
# Of the half-Cauchy ones: half of the parts are smaller.
PART_UNIT = 0.3


class Priors(NamedTuple):
    """One entry a parameter, (p,) each.

    `centre` and `width` of a normal logarithm (width inf: none); `unit` of a half-normal standard
    deviation (inf: none), which is half-Cauchy where `long_tailed`; `avoids_zero` is 1 where the
    density is that of the logarithm.
    """

    centre: Floats
    width: Floats
    unit: Floats
    avoids_zero: Floats
    long_tailed: Bools


def weak_priors(names: Sequence[str], target_spread: float, feature_spread: Floats) -> Priors:
    """For parameters named as kernels and common curves name them.

    Lengths come once for all features or feature by feature, in order.
    """
    is_length, is_noise, is_pivot, is_growth, is_haste = (
        np.array([word in name for name in names], dtype=bool)
        for word in ("length", "noise", "pivot", "growth", "haste")
    )
    centre = np.zeros(len(names))
    centre[is_length] = np.log(_lengths(int(is_length.sum()), np.atleast_1d(feature_spread)))
    unit = np.where(is_noise, NOISE_UNIT, CURVE_UNIT) * target_spread
    width = np.select(
        [is_length, is_pivot, is_growth | is_haste],
        [LENGTH_WIDTH, PIVOT_WIDTH, GROWTH_WIDTH],
        np.inf,
    )
    return Priors(
        centre,
        width,
        np.where(np.isfinite(width), np.inf, unit),
        is_noise.astype(np.float64),
        np.zeros(len(names), dtype=bool),
    )


def common_priors(names: Sequence[str], n_features: int) -> Priors:
    """For parameters of a common curve and of departures from it, in one frame for all sites."""
    weak = weak_priors(names, 1.0, np.ones(n_features))
    is_variance = np.array(["variance" in name for name in names], dtype=bool)
    is_part = is_variance & np.array(["noise" not in name for name in names], dtype=bool)
    return weak._replace(
        unit=np.where(is_part, PART_UNIT, weak.unit),
        avoids_zero=is_variance.astype(np.float64),
        long_tailed=is_part,
    )


def _lengths(n_lengths: int, spread: Floats) -> Floats:
    """Typical lengths, repeated over curves; one for all features is that of their mean square."""
    d = len(spread)
    if n_lengths % d:
        return np.full(n_lengths, float(np.sqrt((spread**2).sum())))
    return np.tile(spread * np.sqrt(d), n_lengths // d)


def penalty(priors: Priors, theta: Floats) -> tuple[Floats, Floats]:
    """Minus log density (...) of parameters (..., p) and its gradient."""
    there = np.isfinite(theta)
    theta = np.where(there, theta, 0.0)
    away = (theta - priors.centre) / priors.width
    ratio = np.exp(theta) / priors.unit**2
    spread = np.where(priors.long_tailed, np.log1p(ratio), 0.5 * ratio)
    by_spread = np.where(priors.long_tailed, ratio / (1.0 + ratio), 0.5 * ratio)
    value = 0.5 * (away**2 - priors.avoids_zero * theta) + spread
    gradient = away / priors.width - 0.5 * priors.avoids_zero + by_spread
    return np.where(there, value, 0.0).sum(axis=-1), np.where(there, gradient, 0.0)
