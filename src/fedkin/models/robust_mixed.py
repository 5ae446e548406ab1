"""A linear mixed model that odd sites (wrong units, flipped signs, wild) neither lead nor widen.

Every site is judged as a whole, from its packed statistics, on two counts:

* its noise: how far the logarithm of its own residual variance lies above the sites' median, in
  units of what sampling and the sites' own spread (median absolute deviation) explain. Where the
  sites' noises do spread, a site's statistics are divided by its own noise (drawn to the median as
  far as that spread says), so that noisy sites count for less from the start;
* its coefficients: the distance d' C^-1 d of X'(y - X beta) from zero, C its covariance under the
  model with the site's own noise; the median over the sites sets the scale, so that a model that
  is a little wrong for everybody does not make everybody odd.

The fit starts from the half of the sites that lie nearest to a median of the sites' own fits and
keeps the better half anew until it stays the same (concentration steps, as in the trimmed
likelihood of Neykov and Mueller 2003). From there sites get weights by their p-values: one for all
that chance explains, zero for what it does not, and the likelihood is weighted by them. Sites
without weight still get their own effects.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.least_squares import RANK_TOLERANCE
from fedkin.models.linear_mixed import Method, target_products
from fedkin.models.linear_mixed_fit import LinearMixedFit, fit
from fedkin.models.linear_mixed_scales import fixed_coordinates, typical_gram
from fedkin.models.random_covariance import Covariance

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

# P-values at which a site begins to lose its weight, and has lost it.
DOUBTFUL, IMPOSSIBLE = 1e-2, 1e-4
# A site with less weight is called odd.
ODD = 0.5
# Share of the sites in the core, and steps until it stays the same.
CORE = 0.5
MOST_CORE_STEPS = 10
MOST_WEIGHT_STEPS = 10
SETTLED = 1e-3
# A normal sample's median absolute deviation is its standard deviation over this.
MAD = 1.4826
# How many rows' worth of the median noise a site's own is mixed with to judge its coefficients.
NOISE_ROWS = 4.0
# A larger shape of the noises' law is one noise for all.
MOST_SHAPE = 100.0
# Steps of the median of the sites' own fits.
MEDIAN_STEPS = 50


class RobustFit(NamedTuple):
    """The weighted fit, and how every client was judged, (m,) each."""

    fit: LinearMixedFit
    weights: Floats
    odd: NDArray[np.bool_]
    coefficient_p: Floats
    noise_p: Floats
    noise_ratio: Floats
    """Every client's noise variance over `fit.sigma` squared, as the fit took it."""


class NoiseScores(NamedTuple):
    """Own noise variances drawn to the median, (m,); over the median; and p-values."""

    variance: Floats
    ratio: Floats
    p_values: Floats


class OwnFits(NamedTuple):
    """What a client's rows say by themselves, in orthonormal fixed columns.

    With X'X = U diag(`values`) U': `vectors` U (m, p, p); `target` U' X'y (m, p); `left` residual
    sum of squares (m,) with `degrees` (m,) degrees of freedom.
    """

    values: Floats
    vectors: Floats
    target: Floats
    rank: Floats
    left: Floats
    degrees: Floats


def robust_fit(
    statistics: Floats,
    random: Indices,
    method: Method = "reml",
    covariance: Covariance = "full",
    fit_intercept: bool = True,
) -> RobustFit:
    """Fit to packed statistics (., m) with odd clients weighed down."""
    basis = fixed_coordinates(typical_gram(statistics, np.ones(statistics.shape[1]))).basis
    own = own_fits(statistics, basis)
    noise = noise_scores(own)
    noise_p = noise.p_values
    shared = statistics / noise.ratio
    shared[-1] = statistics[-1]

    def fitted(weights: Floats) -> tuple[LinearMixedFit, Floats]:
        found = fit(shared, random, method, covariance, fit_intercept, weights)
        return found, coefficient_scores(own, basis, found, noise.variance)

    core = _core(own, noise)
    for _ in range(MOST_CORE_STEPS):
        found, p_values = fitted(core)
        better = _best_half(np.minimum(p_values, noise_p), core > 0)
        if np.array_equal(better, core):
            break
        core = better
    weights = _weights(np.minimum(p_values, noise_p))
    for _ in range(MOST_WEIGHT_STEPS):
        found, p_values = fitted(weights)
        renewed = _weights(np.minimum(p_values, noise_p))
        change = float(np.abs(renewed - weights).max(initial=0.0))
        weights = 0.5 * (weights + renewed) if change < 1.0 else renewed
        if change <= SETTLED:
            break
    return RobustFit(found, weights, weights < ODD, p_values, noise_p, noise.ratio)


# ------------------------------------------------------------------ sites by themselves


def own_fits(statistics: Floats, basis: Floats) -> OwnFits:
    """Eigendecompositions of every client's X'X and what its rows leave unexplained."""
    d = len(basis)
    raw = target_products(statistics, np.arange(d + 1))
    gram = np.moveaxis(np.matmul(basis.T, np.tensordot(basis.T, raw[:d, :d], 1)), -1, 0)
    target = (basis.T @ raw[:d, d]).T
    values, vectors = np.linalg.eigh(gram)
    kept = values > RANK_TOLERANCE * np.maximum(values[:, -1:], 1e-300)
    turned = np.einsum("mij,mi->mj", vectors, target)
    explained = np.where(kept, turned**2 / np.where(kept, values, 1.0), 0.0)
    rank = kept.sum(axis=1).astype(float)
    square = raw[d, d]
    degrees = np.maximum(statistics[-1] - rank, 0.0)
    # Below this a residual is rounding of the sums.
    left = np.where(degrees > 0, np.maximum(square - explained.sum(axis=1), 1e-14 * square), 0.0)
    return OwnFits(np.where(kept, values, 0.0), vectors, turned, rank, left, degrees)


def noise_scores(own: OwnFits) -> NoiseScores:
    """Every client's own noise, and how surprising it is beside the others'."""
    from scipy.special import digamma, ndtr, polygamma

    use = (own.degrees > 0) & (own.left > 0)
    if not use.any():
        return NoiseScores(*(np.ones(len(use)) for _ in range(3)))
    degrees = np.where(use, own.degrees, 1.0)
    shift = digamma(degrees / 2) - np.log(degrees / 2)
    logs = np.where(use, np.log(np.where(use, own.left, 1.0) / degrees) - shift, 0.0)
    sampling = polygamma(1, degrees / 2)
    centre = _weighted_median(logs[use], 1.0 / sampling[use])
    away = logs - centre
    size = _weighted_median((away**2)[use], 1.0 / sampling[use]) * MAD**2
    extra = max(size - _weighted_median(sampling[use], 1.0 / sampling[use]), 0.0)
    p_values = np.where(use, ndtr(-away / np.sqrt(sampling + extra)), 1.0)
    typical = np.exp(centre)
    # An inverse gamma whose logarithm has variance `extra` has about this shape.
    shape = min(1.0 / max(extra, 1e-12) + 0.5, MOST_SHAPE)
    variance = (own.left + 2.0 * shape * typical) / (own.degrees + 2.0 * shape)
    steadied = (own.left + NOISE_ROWS * typical) / (own.degrees + NOISE_ROWS)
    ratio = np.where(shape < MOST_SHAPE, variance / typical, 1.0)
    return NoiseScores(np.maximum(steadied, variance), ratio, p_values)


def coefficient_scores(own: OwnFits, basis: Floats, found: LinearMixedFit, noise: Floats) -> Floats:
    """P-values of every client's distance from the population under the fit, (m,)."""
    from scipy.stats import chi2

    back = np.linalg.pinv(basis)
    coef = back @ found.coef
    own_part = back[:, found.random]
    spread = own_part @ found.random_covariance @ own_part.T
    root = np.sqrt(own.values)
    safe = np.where(root > 0, root, 1.0)
    turned = np.einsum("mij,i->mj", own.vectors, coef)
    away = np.where(root > 0, own.target / safe, 0.0) - root * turned
    inner = own.vectors.transpose(0, 2, 1) @ spread @ own.vectors
    matrix = inner * root[:, :, None] * root[:, None, :]
    matrix[:, np.arange(len(coef)), np.arange(len(coef))] += noise[:, None]
    distance = np.einsum("mi,mi->m", away, np.linalg.solve(matrix, away[..., None])[..., 0])
    use = own.rank > 0
    degrees = np.where(use, own.rank, 1.0)
    ratio = distance / chi2.ppf(0.5, degrees)
    scale = max(float(np.median(ratio[use])), 1e-300) if use.any() else 1.0
    return np.where(use, chi2.sf(distance / scale, degrees), 1.0)


# ------------------------------------------------------------------ weights


def _weights(p_values: Floats) -> Floats:
    """One above DOUBTFUL, zero below IMPOSSIBLE, in between by the logarithm of the p-value."""
    logs = np.log(np.maximum(p_values, 1e-300))
    share = (logs - np.log(IMPOSSIBLE)) / (np.log(DOUBTFUL) - np.log(IMPOSSIBLE))
    return np.clip(share, 0.0, 1.0)


def _best_half(p_values: Floats, before: NDArray[np.bool_]) -> Floats:
    """Weight one for the least surprising share of the clients; ties stay as they were."""
    count = max(int(np.ceil(CORE * len(p_values))), 1)
    order = np.lexsort((~before, -p_values))
    out = np.zeros(len(p_values))
    out[order[:count]] = 1.0
    return out


def _core(own: OwnFits, noise: NoiseScores) -> Floats:
    """The clients nearest to the middle of all by their own fits.

    The middle is the geometric median of pulled fits: each least-squares fit drawn to the middle
    as far as its rows leave it undetermined, so that clients with few rows can take part.
    """
    pull = float(np.median(noise.variance))
    fine = noise.p_values > IMPOSSIBLE
    middle = np.zeros(own.values.shape[1])
    fits = np.zeros_like(own.target)
    for _ in range(MEDIAN_STEPS):
        turned = np.einsum("mij,i->mj", own.vectors, middle)
        steady = pull / np.maximum(own.values.sum(axis=1, keepdims=True), 1e-300) + 1e-12
        inside = (own.target + steady * turned) / (own.values + steady)
        fits = np.einsum("mij,mj->mi", own.vectors, inside)
        length = np.sqrt(((fits - middle) ** 2).sum(axis=1)) + 1e-9 * (1 + np.abs(middle).max())
        weight = np.where(fine, 1.0 / length, 0.0)
        moved = weight @ fits / max(weight.sum(), 1e-300)
        settled = np.abs(moved - middle).max(initial=0.0) <= 1e-6 * np.abs(moved).max(initial=1.0)
        middle = moved
        if settled:
            break
    distance = np.sqrt(((fits - middle) ** 2).sum(axis=1))
    score = np.where(fine, 1.0 / (1.0 + distance), 0.0)
    return _best_half(score, np.ones(len(score), dtype=bool))


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values, kind="stable")
    running = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(running, 0.5 * running[-1])])
