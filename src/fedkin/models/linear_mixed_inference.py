"""What a fitted linear mixed model says, with how much certainty.

Everything is a function of the variance parameters (the free numbers of L, and log s), whose
uncertainty is the inverse of the observed information: second derivatives of -2 log likelihood
with s not profiled out. From there, by derivatives:

* Satterthwaite's degrees of freedom: 2 v^2 / var(v) for v the variance of an estimate or of a
  prediction (Fai and Cornelius 1996; lmerTest does the same with numerical derivatives);
* Wald intervals of the standard deviations (on the log scale) and correlations (on Fisher's).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.linear_mixed import (
    Method,
    Prepared,
    Profile,
    evaluate,
    factor_slope,
    profile,
)
from fedkin.models.linear_mixed_fit import LinearMixedFit
from fedkin.models.random_covariance import SINGULAR, Shape, correlations
from fedkin.models.smooth_search import positive_inverse, second_derivatives

Floats = NDArray[np.float64]

# Step of derivatives by differences in the variance parameters, which are of size one.
DIFFERENCE = 1e-4
# Correlations this near one have no Wald interval.
NEARLY_ONE = 1e-6


class Components(NamedTuple):
    """Variance components: standard deviations (q,), correlations (pairs,), noise."""

    spread: Floats
    correlation: Floats
    sigma: float


class Intervals(NamedTuple):
    """Lower and upper ends, (., 2), in the order of `Components`."""

    spread: Floats
    correlation: Floats
    sigma: Floats


# ------------------------------------------------------------------ the variance parameters


def numbers_of(fit: LinearMixedFit) -> Floats:
    """Free numbers of L, and the logarithm of s in the units worked in."""
    return np.append(fit.theta, np.log(fit.sigma / fit.prepared.scale))


def deviance(
    prepared: Prepared, shape: Shape, method: Method, numbers: Floats
) -> tuple[float, Floats]:
    """-2 log likelihood with beta profiled out but not s, and its slope, (p + 1,)."""
    sums = evaluate(prepared, shape.factor(numbers[:-1]))
    best = profile(prepared, sums, method)
    k = prepared.total_rows - (prepared.rank if method == "reml" else 0)
    variance = float(np.exp(2.0 * numbers[-1]))
    share = best.variance / variance
    free = Profile(best.value, best.coef, variance, best.inverse)
    value = best.value + k * (share - 1.0 - np.log(share))
    slope = shape.gather(factor_slope(sums, free, method))
    return float(value), np.append(slope, 2.0 * k * (1.0 - share))


def numbers_covariance(fit: LinearMixedFit) -> Floats:
    """Asymptotic covariance of the variance parameters, twice the inverse curvature, (p+1, p+1)."""

    def objective(numbers: Floats) -> tuple[float, Floats]:
        return deviance(fit.prepared, fit.shape, fit.method, numbers)

    return 2.0 * positive_inverse(second_derivatives(objective, numbers_of(fit)))


# ------------------------------------------------------------------ coefficients


def satterthwaite(
    fit: LinearMixedFit, contrasts: Floats | None = None, uncertainty: Floats | None = None
) -> Floats:
    """Degrees of freedom of every coefficient, or of `contrasts` (k, d) of them, (k,)."""
    contrasts = np.eye(len(fit.coef)) if contrasts is None else np.atleast_2d(contrasts)
    uncertainty = numbers_covariance(fit) if uncertainty is None else uncertainty
    sums = evaluate(fit.prepared, fit.shape.factor(fit.theta))
    inverse = profile(fit.prepared, sums, fit.method).inverse
    inside = contrasts @ fit.prepared.basis
    pulled = inside @ inverse
    variance = np.einsum("kp,kp->k", pulled, inside)
    p = fit.prepared.rank
    own = sums.slope[:, :p, :, :p]
    slope = 2.0 * np.einsum("irjs,kr,ks->kij", own, pulled, pulled, optimize=True)
    gradient = np.concatenate([fit.shape.gather(slope), 2.0 * variance[:, None]], axis=1)
    spread = np.einsum("ki,ij,kj->k", gradient, uncertainty, gradient)
    return np.asarray(2.0 * variance**2 / np.maximum(spread, np.finfo(float).tiny))


def coefficient_intervals(fit: LinearMixedFit, level: float = 0.95) -> Floats:
    """Intervals of the coefficients by Student's t with Satterthwaite's degrees, (d, 2)."""
    from scipy.stats import t

    half = t.ppf(0.5 + level / 2, satterthwaite(fit)) * np.sqrt(np.diag(fit.coef_covariance))
    return np.stack([fit.coef - half, fit.coef + half], axis=1)


# ------------------------------------------------------------------ summaries


def aic(fit: LinearMixedFit) -> float:
    """Akaike's criterion, on the (restricted) likelihood the fit was made by, as lme4's."""
    return fit.criterion + 2.0 * fit.n_parameters


def bic(fit: LinearMixedFit) -> float:
    """Schwarz's criterion with the number of rows, as lme4's."""
    return fit.criterion + float(np.log(fit.n_rows)) * fit.n_parameters


def intraclass(fit: LinearMixedFit) -> float:
    """Share of the variance around the population that lies between clients, of an average row.

    With a random intercept alone it is the intraclass correlation.
    """
    prepared = fit.prepared
    gram = prepared.products[:, prepared.rank + 1 :] @ prepared.weights
    factor = fit.shape.factor(fit.theta)
    between = float(np.trace(factor.T @ gram @ factor)) / max(prepared.total_rows, 1.0)
    return between / (between + 1.0)


# ------------------------------------------------------------------ variance components


def components(prepared: Prepared, shape: Shape, numbers: Floats) -> Components:
    """Standard deviations, correlations and noise at given variance parameters."""
    sigma = float(np.exp(numbers[-1])) * prepared.scale
    own = sigma * prepared.spread @ shape.factor(numbers[:-1])
    covariance = own @ own.T
    below = np.tril_indices(len(covariance), -1)
    return Components(np.sqrt(np.diag(covariance)), correlations(covariance)[below], sigma)


def wald_intervals(
    fit: LinearMixedFit, level: float = 0.95, uncertainty: Floats | None = None
) -> Intervals:
    """Intervals of the variance components; not a number for what lies on the boundary."""
    uncertainty = numbers_covariance(fit) if uncertainty is None else uncertainty
    size = np.sqrt(np.diag(fit.prepared.spread @ fit.prepared.spread.T))

    def parts(numbers: Floats) -> Components:
        return components(fit.prepared, fit.shape, numbers)

    return wald_of(parts, numbers_of(fit), uncertainty, SINGULAR * size * fit.sigma, level)


def wald_of(
    parts: Callable[[Floats], Components],
    numbers: Floats,
    uncertainty: Floats,
    least: Floats,
    level: float,
) -> Intervals:
    """Wald intervals of components that are `parts` of numbers with that covariance.

    Standard deviations below `least` (q,) lie on the boundary.
    """
    from scipy.stats import norm

    half = norm.ppf(0.5 + level / 2)

    def transformed(at: Floats) -> Floats:
        found = parts(at)
        spread = np.maximum(found.spread, np.finfo(float).tiny)
        inside = np.clip(found.correlation, -1 + 1e-15, 1 - 1e-15)
        return np.concatenate([np.log(spread), np.arctanh(inside), [np.log(found.sigma)]])

    slope = differences(transformed, numbers)
    error = half * np.sqrt(np.einsum("ki,ij,kj->k", slope, uncertainty, slope))
    centre, found = transformed(numbers), parts(numbers)
    ends = np.stack([centre - error, centre + error], axis=1)
    q = len(found.spread)
    on_edge = np.concatenate(
        [found.spread < least, np.abs(found.correlation) > 1 - NEARLY_ONE, [False]]
    )
    ends[on_edge] = np.nan
    return Intervals(np.exp(ends[:q]), np.tanh(ends[q:-1]), np.exp(ends[-1]))


def differences(function: Callable[[Floats], Floats], at: Floats) -> Floats:
    """Derivatives of an array in every number, by central differences; numbers last."""
    columns = []
    for j in range(len(at)):
        move = np.zeros(len(at))
        move[j] = DIFFERENCE * max(1.0, abs(float(at[j])))
        columns.append((function(at + move) - function(at - move)) / (2.0 * move[j]))
    return np.stack(columns, axis=-1)
