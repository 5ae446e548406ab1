"""Profile likelihood intervals of variance components (standard deviations, correlations, noise).

A component is held at a value, everything else goes to its best, and the interval ends where
-2 log likelihood has risen by the chi-square quantile. The components are made entries of the
absolute factor A = s L: with the column in question first, A[0, 0] is its standard deviation, and
the second row of A, written as r (c, sqrt(1 - c^2)), holds the correlation c of the first two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.linear_mixed import Prepared
from fedkin.models.linear_mixed_fit import LinearMixedFit
from fedkin.models.linear_mixed_inference import Intervals, deviance, numbers_of
from fedkin.models.random_covariance import Shape, lower_factor, shape_of
from fedkin.models.smooth_search import minimise

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

# First step away from an estimate, as a share of it.
FIRST_STEP = 0.1
# An upper end is looked for up to this many first steps.
FARTHEST = 1e4
# Of the first step, for an end.
PRECISION = 1e-6
MOST_DOUBLINGS = 20


class Place(NamedTuple):
    """Coordinates in which a component is an entry: sums, shape, absolute factor, log s."""

    prepared: Prepared
    shape: Shape
    entries: Floats
    log_noise: float


def profile_intervals(fit: LinearMixedFit, level: float = 0.95) -> Intervals:
    """Intervals of every variance component by the likelihood the fit was made by.

    Not a number where the columns do not tell a component apart (they depend on each other). With
    an "isotropic" covariance the intercept's component is the level at the features' mean.
    """
    from scipy.stats import chi2

    rise = float(chi2.ppf(level, 1))
    q = len(fit.random)
    diagonal = bool((fit.shape.rows == fit.shape.columns).all())
    pairs = [] if diagonal else [(j, k) for j in range(q) for k in range(j)]
    sigma = np.array(_noise_ends(fit, rise))
    if not diagonal and fit.prepared.spread.shape[0] != fit.prepared.spread.shape[1]:
        return Intervals(np.full((q, 2), np.nan), np.full((len(pairs), 2), np.nan), sigma)
    if diagonal:
        ends = [_entry_ends(fit, _as_it_is(fit), k, rise) for k in range(fit.shape.n_parameters)]
        spread = np.array(ends)[fit.shape.owner] * np.diag(fit.prepared.spread)[:, None]
        spread *= fit.prepared.scale
        return Intervals(spread, np.zeros((0, 2)), sigma)
    first = [_entry_ends(fit, _first(fit, [j]), 0, rise) for j in range(q)]
    spread = np.array(first) * _spread_of_entry(fit)[:, None] * fit.prepared.scale
    correlation = [_correlation_ends(fit, _first(fit, [j, k]), rise) for j, k in pairs]
    return Intervals(spread, np.array(correlation).reshape(-1, 2), sigma)


# ------------------------------------------------------------------ coordinates


def _as_it_is(fit: LinearMixedFit) -> Place:
    numbers = numbers_of(fit)
    return Place(fit.prepared, fit.shape, np.exp(numbers[-1]) * fit.theta, float(numbers[-1]))


def _spread_of_entry(fit: LinearMixedFit) -> Floats:
    """Standard deviation of every column's effect for a standard deviation of one, (q,)."""
    return np.sqrt(np.diag(fit.prepared.spread @ fit.prepared.spread.T))


def _first(fit: LinearMixedFit, columns: list[int]) -> Place:
    """The columns themselves, scaled but not mixed, with `columns` first."""
    q = len(fit.random)
    order = [*columns, *(j for j in range(q) if j not in columns)]
    lengths = _spread_of_entry(fit)
    spread = np.diag(lengths)[:, order]
    turn = np.linalg.solve(fit.prepared.spread, spread)
    p1 = fit.prepared.rank + 1
    raw = np.tensordot(turn.T, fit.prepared.products, 1)
    gram = np.matmul(turn.T, raw[:, p1:])
    products = np.ascontiguousarray(np.concatenate([raw[:, :p1], gram], axis=1))
    prepared = replace(fit.prepared, products=products, spread=spread)
    shape = shape_of("full", q)
    covariance = fit.random_covariance[np.ix_(order, order)]
    scale = lengths[order] * fit.prepared.scale
    absolute = lower_factor(covariance / np.outer(scale, scale))
    numbers = numbers_of(fit)
    return Place(prepared, shape, absolute[shape.rows, shape.columns], float(numbers[-1]))


def _absolute(
    place: Place, method: str, entries: Floats, log_noise: float
) -> tuple[float, Floats, float]:
    """-2 log likelihood, its slope in the absolute entries, and in log s with these held."""
    noise = np.exp(log_noise)
    theta = entries / noise
    numbers = np.append(theta, log_noise)
    value, slope = deviance(place.prepared, place.shape, method, numbers)  # type: ignore[arg-type]
    return value, slope[:-1] / noise, float(slope[-1] - theta @ slope[:-1])


# ------------------------------------------------------------------ ends


def _entry_ends(fit: LinearMixedFit, place: Place, entry: int, rise: float) -> tuple[float, float]:
    """Ends for one absolute entry, which is a standard deviation and so not negative."""
    others = np.arange(len(place.entries)) != entry

    def best(value: float, start: Floats) -> tuple[float, Floats]:
        def objective(free: Floats) -> tuple[float, Floats]:
            entries = np.empty(len(others))
            entries[others], entries[entry] = free[:-1], value
            level, slope, in_noise = _absolute(place, fit.method, entries, float(free[-1]))
            return level, np.append(slope[others], in_noise)

        found = minimise(objective, start, tol=1e-5)
        return found.value, found.point

    start = np.append(place.entries[others], place.log_noise)
    estimate = abs(float(place.entries[entry]))
    unit = FIRST_STEP * max(estimate, FIRST_STEP * float(np.exp(place.log_noise)))
    return _ends(best, estimate, start, fit.criterion + rise, (0.0, FARTHEST * unit), unit)


def _noise_ends(fit: LinearMixedFit, rise: float) -> tuple[float, float]:
    """Ends for the noise s."""

    def best(value: float, start: Floats) -> tuple[float, Floats]:
        log_noise = np.log(max(value, 1e-300))

        def objective(theta: Floats) -> tuple[float, Floats]:
            numbers = np.append(theta, log_noise)
            level, slope = deviance(fit.prepared, fit.shape, fit.method, numbers)
            return level, slope[:-1]

        found = minimise(objective, start, tol=1e-5)
        return found.value, found.point

    estimate = fit.sigma / fit.prepared.scale
    bounds = estimate / FARTHEST, FARTHEST * estimate
    unit = FIRST_STEP * estimate
    ends = _ends(best, estimate, fit.theta, fit.criterion + rise, bounds, unit)
    return ends[0] * fit.prepared.scale, ends[1] * fit.prepared.scale


def _correlation_ends(fit: LinearMixedFit, place: Place, rise: float) -> tuple[float, float]:
    """Ends for the correlation of the first two columns."""
    # Entries row by row: (0,0), (1,0), (1,1), ...: the second row is `length` (c, sqrt(1 - c^2)).
    length = float(np.hypot(place.entries[1], place.entries[2]))

    def best(value: float, start: Floats) -> tuple[float, Floats]:
        direction = np.array([value, np.sqrt(max(1.0 - value**2, 0.0))])

        def objective(free: Floats) -> tuple[float, Floats]:
            entries = np.concatenate([free[:1], free[1] * direction, free[2:-1]])
            level, slope, in_noise = _absolute(place, fit.method, entries, float(free[-1]))
            own = np.concatenate([slope[:1], [slope[1:3] @ direction], slope[3:], [in_noise]])
            return level, own

        found = minimise(objective, start, tol=1e-5)
        return found.value, found.point

    start = np.concatenate([place.entries[:1], [length], place.entries[3:], [place.log_noise]])
    estimate = float(place.entries[1]) / length if length > 0 else 0.0
    return _ends(best, estimate, start, fit.criterion + rise, (-1.0, 1.0), FIRST_STEP)


def _ends(
    best: Callable[[float, Floats], tuple[float, Floats]],
    estimate: float,
    start: Floats,
    height: float,
    bounds: tuple[float, float],
    unit: float,
) -> tuple[float, float]:
    """Where the profile reaches `height` on either side of the estimate, or the bound."""
    ends = [_one_end(best, estimate, start, height, bound, unit) for bound in bounds]
    return ends[0], ends[1]


def _one_end(
    best: Callable[[float, Floats], tuple[float, Floats]],
    estimate: float,
    start: Floats,
    height: float,
    bound: float,
    unit: float,
) -> float:
    """One end; steps away from the estimate double until the profile is above the height."""
    from scipy.optimize import brentq

    known = {estimate: start}

    def above(value: float) -> float:
        near = known[min(known, key=lambda other: abs(other - value))]
        level, known[value] = best(value, near)
        return level - height

    step, sign = unit, 1.0 if bound > estimate else -1.0
    inside = estimate
    for _ in range(MOST_DOUBLINGS):
        outside = estimate + sign * min(step, abs(bound - estimate))
        if above(outside) >= 0.0:
            found = brentq(above, inside, outside, xtol=PRECISION * unit, rtol=1e-12, maxiter=60)
            return float(found)
        if outside == bound:
            break
        inside, step = outside, 2.0 * step
    return bound
