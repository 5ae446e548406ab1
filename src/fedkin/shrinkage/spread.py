"""How much sites differ, and around which centre: the two robust equations of the adaptive rule.

Points (R, m, d) are the sites' estimates of R components, noise (R, m) their sampling variances;
see `fedkin.shrinkage` for the model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri

from fedkin.arrays import Bools, Floats, Indices
from fedkin.shrinkage.huber import SMALLEST_RADIUS, huber_location, masked_median, squares_of

#: exp() of more would overflow; a site with so much evidence against it stands alone anyway.
LARGEST_EXPONENT = 700.0
#: The between-site variance is found to this fraction of the typical variance of a site, so that
#: other block sizes or a warm start change results by less than 1e-9.
SPREAD_TOLERANCE = 1e-11
#: Evaluations of the between-site variance: 4 to 8 are usual, bisection alone would need 40.
MAX_SPREAD_STEPS = 100
#: Passes of the refinement of the between-site variance; more change it by a few per cent.
REFINEMENTS = 5


def center_and_spread(
    points: Floats, noise: Floats, known: Bools, center: Floats
) -> tuple[Floats, Floats, int]:
    """Centre (R, d) and between-site variance (R,) that satisfy both equations together.

    The centre is a function c(v); the variance is a root of f(v) = T(v) - v, with T(v) the variance
    found around c(v). T(0) >= 0, so the root is bracketed from below at once; see `_Search`.
    """
    n_features = points.shape[2]
    between = _spread(points, noise, known, center)
    scale = between + np.nan_to_num(masked_median(np.where(known, noise, 0.0), known))
    search = _Search(between.copy())
    open_ = np.flatnonzero(known.any(axis=1))
    n_iter = 0
    while len(open_) and n_iter < MAX_SPREAD_STEPS:
        n_iter += 1
        block = points[open_], noise[open_], known[open_]
        total = total_variance(*block, center[open_], search.value[open_])
        weights = np.where(known[open_], 1.0 / total, 0.0)
        radii = (np.sqrt(n_features) + 1.0) * np.sqrt(total)
        center[open_], _ = huber_location(points[open_], weights, radii, center[open_])
        between[open_] = search.value[open_]
        reached = _spread(*block, center[open_])
        width = search.update(open_, reached)
        tolerance = SPREAD_TOLERANCE * scale[open_]
        open_ = open_[(np.abs(reached - between[open_]) > tolerance) & (width > tolerance)]
    return center, between, n_iter


class _Search:
    """Roots of T(v) - v for R functions at once: secant steps kept inside a shrinking bracket.

    T hardly depends on v, so v <- T(v) is the first step and the secant needs few more. A step that
    leaves the bracket, or follows one that did not halve the residual, is replaced by bisection, so
    the search also ends where T jumps.
    """

    def __init__(self, value: Floats):
        self.value = value
        self.low = np.zeros_like(value)
        self.high = np.full_like(value, np.inf)
        self.last_value = np.full_like(value, np.nan)
        self.last_residual = np.full_like(value, np.inf)

    def update(self, which: Indices, reached: Floats) -> Floats:
        """Take T(value) for the searches `which`, choose their next value, return their widths."""
        value, residual = self.value[which], reached - self.value[which]
        low = np.where(residual > 0, value, self.low[which])
        high = np.where(residual < 0, value, self.high[which])
        before, last = self.last_value[which], self.last_residual[which]
        with np.errstate(invalid="ignore", divide="ignore"):
            secant = value - residual * (value - before) / (residual - last)
            inside = (secant > low) & (secant < high)
        chosen = np.where(inside, secant, reached)
        slow = np.abs(residual) > np.abs(last) / 2
        bisect = np.isfinite(high) & (slow | (chosen < low) | (chosen >= high))
        chosen[bisect] = (low[bisect] + high[bisect]) / 2
        self.value[which], self.low[which], self.high[which] = chosen, low, high
        self.last_value[which], self.last_residual[which] = value, residual
        return high - low


def _spread(points: Floats, noise: Floats, known: Bools, center: Floats) -> Floats:
    """Between-site variance (R,) around a centre: median_k(|est_k - c|^2/d - s_k), at least 0."""
    typical = typical_distance(points.shape[2])
    excess = squares_of(points - center[:, None]) / typical - np.where(known, noise, 0.0)
    return np.maximum(0.0, np.nan_to_num(masked_median(excess, known)))


def refined(
    points: Floats,
    noise: Floats,
    known: Bools,
    center: Floats,
    between: Floats,
    n_looks: int = 1,
) -> tuple[Floats, Floats]:
    """Centre (R, d) and between-site variance (R,) of the sites that belong, from first guesses.

    A median of few sites is a noisy guess of v, and a third of the sites far away inflates it and
    with it the radius within which they pull. The centre becomes the mean with Huber's weights
    times belonging; v the mean excess of squared distances, sites weighing belonging_k/(v + s_k)^2,
    the inverse variance of their squared distance.
    """
    n_features = points.shape[2]
    own = np.where(known, noise, 0.0)
    n_known = known.sum(axis=1, keepdims=True)
    for _ in range(REFINEMENTS):
        total = total_variance(points, noise, known, center, between)
        squares = np.where(known, squares_of(points - center[:, None]), 0.0)
        distances = squares / total
        belongs = np.where(known, belonging(distances, n_features, n_looks * n_known), 0.0)
        pull = np.minimum(1.0, (np.sqrt(n_features) + 1.0) / np.sqrt(np.maximum(distances, 1.0)))
        # In units of the least total variance, so that no square overflows or vanishes.
        least = np.where(known, total, np.inf).min(axis=1, keepdims=True)
        precision = np.where(known, np.where(n_known > 0, least, 1.0) / total, 0.0)
        excess = squares / n_features - own
        between = np.maximum(_weighted(belongs * precision**2, excess, between), 0.0)
        # Offsets of sites that do not belong may be huge; they must not cost the others digits.
        offsets = np.where((belongs > 0)[..., None], points - center[:, None], 0.0)
        weights = (belongs * pull * precision)[..., None]
        center = center + _weighted(weights, offsets, np.zeros_like(center))
    return center, between


def _weighted(weights: Floats, values: Floats, otherwise: Floats) -> Floats:
    """Weighted means over sites (axis 1); `otherwise` where there is no weight."""
    total = weights.sum(axis=1)
    mean = (weights * values).sum(axis=1) / np.where(total > 0, total, 1.0)
    chosen: Floats = np.where(total > 0, mean, otherwise)
    return chosen


def typical_distance(n_features: int) -> float:
    """What the median standardised squared distance is set to: d, its mean under the model.

    The median of chi-squared is a little smaller (9.3 for d = 10), so v comes out a little small,
    which pays when sites agree and costs nothing measurable when they differ, from d = 2 on. For
    d = 1 the median is less than half the mean: v would be halved and sites pulled too far (errors
    10 % above no pulling at all when v is 8 times s_k, 10 sites), so there the median is used.
    """
    return float(n_features) if n_features > 1 else float(chdtri(1.0, 0.5))


def total_variance(
    points: Floats, noise: Floats, known: Bools, center: Floats, between: Floats
) -> Floats:
    """v + s_k (R, m), kept positive where both are 0; 1 for a site that knows nothing."""
    total = np.where(known, between[:, None] + np.where(known, noise, 0.0), 1.0)
    spread = squares_of(points - center[:, None]).max(axis=1) / points.shape[2]
    floor = np.maximum(SMALLEST_RADIUS**2 * spread, np.finfo(float).tiny)
    floored: Floats = np.maximum(total, floor[:, None])
    return floored


def belonging(distances: Floats, n_features: int, n_estimates: ArrayLike) -> Floats:
    """How far a site follows the model of its fellows (R, m), in [0, 1], smooth and decreasing.

    `distances` are |est_k - c|^2 / (v + s_k), about chi-squared with d degrees of freedom. The
    rival explanation is a site whose offset has a larger variance, x times the model's;
    x = distance/d fits best and has likelihood ratio exp(d/2 (x - 1 - log x)). The prior odds of
    the model are N^2 : 1 for N estimates (sites times components), so that less than one of N
    honest ones is expected to be odd; the posterior probability is scaled to be 1 for one no
    farther than typical. With d = 10 and 50 estimates it is 0.999, 0.97 and 0.44 at distances 20,
    30 and 40 (chi-squared tails 3e-2, 9e-4, 2e-5).
    """
    excess = np.maximum(distances / n_features, 1.0)
    evidence = n_features / 2 * (excess - 1 - np.log(excess))
    prior_odds = np.square(np.asarray(n_estimates, dtype=float))
    against = np.exp(np.minimum(evidence, LARGEST_EXPONENT))
    probability: Floats = (prior_odds + 1) / (prior_odds + against)
    return probability


def unusualness(away: Floats, noise: Floats, between: Floats, n_estimates: ArrayLike) -> Floats:
    """Minus log probability (m, R) of how far components (m, R, d) lie from the common centre.

    Relative to a component at the centre that is known exactly: what the rows of a site say of a
    component with sampling variance s, N(c, (v + s) I) says of its place; the ratio to N(., s I),
    which is the rows' own, integrates the component out. An odd site is rare (1 : N^2, see
    `belonging`) and its components may be anywhere. One that no row tells of is not unusual.
    """
    n_features = away.shape[-1]
    known = np.isfinite(noise)
    own = np.where(known, noise, 1.0)
    total = np.maximum(between + own, np.finfo(float).tiny)
    distances = (away**2).sum(axis=-1) / total
    excess = np.maximum(distances / n_features, 1.0)
    usual = -0.5 * distances
    anywhere = -0.5 * n_features * (1.0 + np.log(excess)) - 2.0 * np.log(
        np.maximum(n_estimates, 1.0)
    )
    spread_out = 0.5 * n_features * np.log(total / np.maximum(own, np.finfo(float).tiny))
    cost: Floats = np.where(known, spread_out - np.logaddexp(usual, anywhere), 0.0)
    return cost
