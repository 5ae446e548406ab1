"""Exact REML and ML of the linear mixed model from packed statistics: fit and effects.

The criterion and the arithmetic are in `linear_mixed`, the coordinates in `linear_mixed_scales`;
results here are in the units of the columns and the target.

Where a variance belongs at zero the search ends there by itself (its slope vanishes), and the fit
is called singular; whether that is a minimum is checked by the slope in V: no direction that is
missing in V may lower the criterion, else the search goes on from a step in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.linear_mixed import (
    Method,
    Prepared,
    criterion,
    eliminate,
    evaluate,
    profile,
    remainder,
)
from fedkin.models.linear_mixed_scales import prepare
from fedkin.models.random_covariance import SINGULAR, Covariance, Shape
from fedkin.models.small_matrices import backward, solve
from fedkin.models.smooth_search import Found, minimise

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

# Relative standard deviations to start from.
STARTS = (0.1, 0.3, 1.0, 3.0, 10.0)
# A search that ended where V lacks a direction is begun again at most this often.
MOST_RESTARTS = 3
# Relative standard deviation with which a missing direction is tried.
TRIED = 0.1
# How steeply (in the criterion, which counts in units of one) a missing direction must fall.
FALLS = 1e-6


class Effects(NamedTuple):
    """What is known of every client's effects u."""

    means: Floats
    """Best linear unbiased predictions, (m, q)."""
    given_coef: Floats
    """Error covariance if beta were known, (m, q, q)."""
    total: Floats
    """Error covariance with beta's uncertainty, (m, q, q)."""
    with_coef: Floats
    """Covariance of the effects' error with beta's error, (m, q, d)."""


@dataclass(frozen=True, eq=False)
class LinearMixedFit:
    """A fitted linear mixed model; d columns, q of them (`random`) with effects at m clients."""

    coef: Floats
    coef_covariance: Floats
    random: Indices
    random_covariance: Floats
    sigma: float
    effects: Effects
    criterion: float
    """-2 log (restricted) likelihood at its end."""
    gradient: float
    """Largest slope of the criterion at the end, in standardised coordinates."""
    n_rows: float
    rank: int
    n_covariance: int
    """Free numbers of the random effects' covariance."""
    method: Method
    singular: bool
    """Whether V lacks a direction: some combination of effects has no variance."""
    collinear: tuple[int, ...]
    """Columns that depend on each other; their coefficients are the least-norm ones."""
    n_evaluations: int
    theta: Floats
    prepared: Prepared
    shape: Shape

    @property
    def loglik(self) -> float:
        """Log likelihood, restricted if the method is."""
        return -0.5 * self.criterion

    @property
    def n_parameters(self) -> int:
        """Coefficients, covariance and noise."""
        return self.rank + self.n_covariance + 1

    @property
    def client_coef(self) -> Floats:
        """Every client's own coefficients, (m, d)."""
        out = np.tile(self.coef, (len(self.effects.means), 1))
        out[:, self.random] += self.effects.means
        return out


def fit(
    statistics: Floats,
    random: Indices,
    method: Method = "reml",
    covariance: Covariance = "full",
    fit_intercept: bool = True,
    weights: Floats | None = None,
) -> LinearMixedFit:
    """Fit to packed statistics (., m), clients last, as `packed_statistics` gives them."""
    prepared, shape = prepare(statistics, random, covariance, fit_intercept, weights)
    if prepared.total_rows <= prepared.rank:
        raise ValueError(too_few_rows(prepared.total_rows, prepared.rank))
    if np.count_nonzero(prepared.n_rows * prepared.weights) <= 1:
        return finished(prepared, shape, method, _of_one_client(prepared, shape, method))
    found = search(prepared, shape, method)
    return finished(prepared, shape, method, found)


def too_few_rows(n_rows: float, rank: int) -> str:
    """What is wrong where no row is left for the noise."""
    return (
        f"n_samples={n_rows:g} rows in all cannot tell {rank} coefficients and the noise; give "
        "more rows or fewer columns"
    )


def _of_one_client(prepared: Prepared, shape: Shape, method: Method) -> Found:
    """One client cannot tell how far clients differ (REML is flat): no difference is taken."""
    none = np.zeros(shape.n_parameters)
    value, slope = criterion(prepared, shape, method, none)
    return Found(none, value, float(np.abs(slope).max(initial=0.0)), 1)


def search(prepared: Prepared, shape: Shape, method: Method, start: Floats | None = None) -> Found:
    """The free numbers of L with the least criterion."""

    def objective(theta: Floats) -> tuple[float, Floats]:
        return criterion(prepared, shape, method, theta)

    found = minimise(objective, _start(prepared, shape, method) if start is None else start)
    spent = found.n_evaluations
    for _ in range(MOST_RESTARTS):
        again = _missing_direction(prepared, shape, method, found.point)
        if again is None:
            break
        other = minimise(objective, again)
        spent += other.n_evaluations
        if other.value >= found.value:
            break
        found = other
    return found._replace(n_evaluations=spent)


def _start(prepared: Prepared, shape: Shape, method: Method) -> Floats:
    """The best of a few multiples of the identity."""

    def value(size: float) -> float:
        sums = evaluate(prepared, shape.factor(shape.start(size)), slopes=False)
        return profile(prepared, sums, method).value

    return shape.start(min(STARTS, key=value))


def finished(prepared: Prepared, shape: Shape, method: Method, found: Found) -> LinearMixedFit:
    """Everything in the units of the columns and the target."""
    factor = shape.factor(found.point)
    sums = evaluate(prepared, factor, slopes=False)
    best = profile(prepared, sums, method)
    variance = best.variance * prepared.scale**2
    own = prepared.spread @ factor
    coef_covariance = variance * prepared.basis @ best.inverse @ prepared.basis.T
    return LinearMixedFit(
        coef=prepared.offset + prepared.scale * prepared.basis @ best.coef,
        coef_covariance=coef_covariance,
        random=prepared.random,
        random_covariance=variance * own @ own.T,
        sigma=float(np.sqrt(variance)),
        effects=predicted_effects(prepared, factor, best.coef, best.inverse, variance),
        criterion=best.value,
        gradient=found.gradient,
        n_rows=prepared.total_rows,
        rank=prepared.rank,
        n_covariance=shape.n_parameters,
        method=method,
        singular=is_singular(factor),
        collinear=prepared.collinear,
        n_evaluations=found.n_evaluations,
        theta=found.point,
        prepared=prepared,
        shape=shape,
    )


def is_singular(factor: Floats) -> bool:
    """Whether a direction of the effects has (almost) no variance beside the noise."""
    return bool(np.linalg.svd(factor, compute_uv=False).min(initial=np.inf) < SINGULAR)


def predicted_effects(
    prepared: Prepared, factor: Floats, coef: Floats, inverse: Floats, variance: float
) -> Effects:
    """Effects and their errors, given beta (in `prepared`'s coordinates) and s^2."""
    p, q = prepared.rank, len(factor)
    m = prepared.products.shape[2]
    outside = prepared.spread @ factor
    root, half = eliminate(prepared.products, factor)
    solved = backward(root, half)
    toward = np.append(-coef, 1.0) * prepared.scale
    means = np.einsum("jk,krm,r->mj", outside, solved[:, : p + 1], toward)
    identity = np.broadcast_to(np.eye(q)[:, :, None], (q, q, m))
    own = solve(root, identity)
    given = variance * np.einsum("ij,jkm,lk->mil", outside, own, outside)
    pulled = np.einsum("jk,krm->mjr", outside, solved[:, :p])
    moved = pulled @ inverse
    total = given + variance * moved @ pulled.transpose(0, 2, 1)
    return Effects(means, given, total, -variance * moved @ prepared.basis.T)


# ------------------------------------------------------------------ ends at the boundary


def covariance_slope(prepared: Prepared, factor: Floats, method: Method) -> Floats:
    """Slope of the criterion in the relative covariance V = L L' itself, (q, q).

    At a minimum it has no negative direction within what V lacks.
    """
    found = profile(prepared, evaluate(prepared, factor, slopes=False), method)
    toward = np.append(-found.coef, 1.0)
    pull = np.outer(toward, toward) / found.variance
    if method == "reml":
        pull[:-1, :-1] += found.inverse
    p1 = prepared.rank + 1
    own, gram = prepared.products[:, :p1], prepared.products[:, p1:]
    solved = backward(*eliminate(prepared.products, factor))
    left = remainder(own, gram, solved[:, :p1], factor)
    curve = remainder(gram, gram, solved[:, p1:], factor)
    weight = prepared.weights
    out = np.einsum("ijm,m->ij", curve, weight)
    out -= np.einsum("irm,rs,jsm,m->ij", left, pull, left, weight, optimize=True)
    return np.asarray(0.5 * (out + out.T))


def _missing_direction(
    prepared: Prepared, shape: Shape, method: Method, theta: Floats
) -> Floats | None:
    """Where to go on if V lacks a direction that would lower the criterion; None if it has all."""
    factor = shape.factor(theta)
    if not is_singular(factor):
        return None
    slope = covariance_slope(prepared, factor, method)
    if (shape.rows == shape.columns).all():
        falls = np.bincount(shape.owner, np.diag(slope)) < -FALLS
        moved = np.where(falls & (np.abs(theta) < SINGULAR), TRIED, theta)
        return moved if (moved != theta).any() else None
    vectors, sizes, _ = np.linalg.svd(factor)
    lacking = vectors[:, sizes < SINGULAR]
    values, inside = np.linalg.eigh(lacking.T @ slope @ lacking)
    if values[0] >= -FALLS:
        return None
    direction = lacking @ inside[:, 0]
    return shape.nearest(factor @ factor.T + TRIED**2 * np.outer(direction, direction))
