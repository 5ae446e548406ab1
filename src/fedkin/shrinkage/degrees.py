"""How far covariances are bent to another one: degrees of freedom, by marginal likelihood.

Rows of a group at a site are normal with a covariance that is inverse Wishart about a `covariance`
in common: many degrees of freedom say that sites hardly differ. `best_degrees` finds them from the
scatter of sites. `share_of_target` asks the same of a single covariance that is not known for
certain, beside what it would be if there were no more to say.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, softmax

from fedkin.arrays import Floats, Indices
from fedkin.models.packed_matrices import packed
from fedkin.models.small_matrices import (
    Tridiagonal,
    inverse_roots,
    log_determinants,
    tridiagonal,
)
from fedkin.shrinkage.borrowed import FEW, block

# Degrees beyond the least that has a mean: from hardly any borrowing to no differences to speak of.
# Neighbours differ by a fifth, which changes a site's covariance by a few per cent at most.
DEGREES = np.geomspace(1.0, 1e5, 64)
# How they are tried: so far apart first, then by halves about the best.
WIDE_STEP, HALVES = 8, (4, 2, 1)
# A single covariance is bent by a prior of at most d + 2 degrees beyond the least (3 for single
# variances), and of shares of these down to next to nothing: a target may be a million times as
# wide in a direction (sites far apart), and rows near a plane would else be told off it.
PULLS = np.geomspace(1e-12, 1.0, 25)


def best_degrees(
    scatter: Floats, rows: Floats, covariances: Floats, kind: str, before: Floats | None = None
) -> Floats:
    """Degrees of freedom beyond the least (R,), the likeliest of a grid, from scatter (m, R, q).

    In coordinates in which the common covariance is the identity, scatter with two diagonals, all
    degrees are tried at the cost of one. Every eighth of them first, then closer and closer about
    the best: the likelihood has one top. Where those of the round `before` (R,) are likelier than
    their neighbours it is these.
    """
    order, times = block(kind, covariances.shape[-1])
    form, n_rows, some = in_units_of(scatter, covariances, kind), rows * times, rows > FEW

    def loglik(places: Indices) -> Floats:
        each = _loglik(form, n_rows, order, DEGREES[places])
        return np.asarray(np.where(some, each, 0.0).sum(axis=0))

    if before is not None and (at := _still_best(loglik, before)) is not None:
        return DEGREES[at]
    best = np.zeros(scatter.shape[1], dtype=np.intp)
    reached = loglik(best)
    tried = [np.full_like(best, place) for place in range(WIDE_STEP, len(DEGREES), WIDE_STEP)]
    for step in (0, *HALVES):
        for places in tried if not step else (best - step, best + step):
            inside = np.clip(places, 0, len(DEGREES) - 1)
            found = loglik(inside)
            better = found > reached
            best, reached = np.where(better, inside, best), np.where(better, found, reached)
    return DEGREES[best]


def share_of_target(covariance: Floats, told: float, target: Floats, kind: str) -> float:
    """How far a covariance (d, d), known from `told` rows, is bent to a target.

    The share on average over `PULLS`, by their likelihood: the likeliest would jump. All of it
    where nothing is told.
    """
    if told <= FEW:
        return 1.0
    order, times = block(kind, len(target))
    form = in_units_of(packed(told * covariance, kind)[None, None], target[None], kind)
    form = Tridiagonal(*(np.repeat(part, len(PULLS), axis=-1) for part in form))
    beyond, n_rows = PULLS * (order + 2.0), np.full((1, len(PULLS)), told * times)
    belief = softmax(_loglik(form, n_rows, order, beyond)[0])
    return float(belief @ (beyond / (beyond + told * times)))


def _loglik(form: Tridiagonal, n_rows: Floats, order: int, beyond: Floats) -> Floats:
    """Log likelihood (m, R) of scatter given degrees beyond the least, (R,), without a constant."""
    whole, n_blocks = beyond + order + 1.0, len(form.main)
    gain = log_multigamma((whole + n_rows) / 2, order) - log_multigamma(whole / 2, order)
    if order == 1:
        gain = gain * n_blocks
    level = 0.5 * whole * n_blocks * np.log(beyond)
    spread = 0.5 * (whole + n_rows) * log_determinants(form, beyond)
    return np.asarray(gain + level - spread)


def _still_best(loglik: Callable[[Indices], Floats], before: Floats) -> Indices | None:
    """Places on the grid of degrees that all are likelier than their neighbours; else None."""
    at = np.searchsorted(DEGREES, before)
    if not np.array_equal(DEGREES[np.minimum(at, len(DEGREES) - 1)], before):
        return None
    reached = loglik(at)
    lower, higher = np.maximum(at - 1, 0), np.minimum(at + 1, len(DEGREES) - 1)
    # The first of equals, as in the search.
    top = ((loglik(lower) < reached) | (at == lower)) & (loglik(higher) <= reached)
    return at if top.all() else None


def in_units_of(scatter: Floats, covariances: Floats, kind: str) -> Tridiagonal:
    """Scatter (m, R, q) where the common covariance (R, d, d) is the identity.

    One number a column for "diag", their sum for "spherical".
    """
    if kind not in ("diag", "spherical"):
        return tridiagonal(scatter, inverse_roots(covariances))
    variances = np.einsum("rii->ri", covariances)
    if kind == "spherical":
        variances = variances.mean(axis=1, keepdims=True)
    ratio = (scatter / variances).transpose(2, 0, 1)
    return Tridiagonal(ratio, np.empty((0, *ratio.shape[1:])))


def log_multigamma(values: Floats | float, order: int) -> Floats:
    """Logarithm of the multivariate gamma function, without its constant.

    Gamma functions at steps of one half: two of them, the others by Gamma(x + 1) = x Gamma(x).
    """
    values = np.asarray(values)
    total: Floats = np.zeros(values.shape)
    for last in range(max(order - 2, 0), order):
        n_steps, lowest = last // 2, values - 0.5 * last
        total += (n_steps + 1) * gammaln(lowest)
        for step in range(n_steps):
            total += (n_steps - step) * np.log(lowest + step)
    return total
