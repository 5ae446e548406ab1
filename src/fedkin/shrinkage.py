"""Pull the sites' estimates towards a robust centre.

Two rules, both batched over components and free of loops over sites.

`shrink_to_center` is the central update of FedGrEM (Tian, Weng, Feng 2024, Algorithm 1), solved
exactly. With a site's radius delta_k = penalty / sqrt(n_k) and the site parameters eliminated,
the problem is Huber's location problem in d dimensions,

    minimise over c   sum_k n_k h_k(|est_k - c|),   h_k(t) = t^2/2           if t <= delta_k,
                                                             delta_k t - delta_k^2/2  otherwise,

and the site moves towards the centre by at most its radius.

`shrink_adaptively` needs no penalty: it estimates how much the sites really differ.

| letter | here | meaning |
|---|---|---|
| k = 1..m | first axis | site |
| r = 1..R | second axis (first inside this file) | component |
| lambda | `penalty` | strength of the pull |
| nu_k, nu bar | `estimates`, `center` of the result | site parameters, shared parameter |
| s_k | `variances` | sampling variance of one coordinate of a site's estimate |
| v | `between_variance` | variance of one coordinate between the sites' true parameters |

Where we differ from the paper
- The central update is minimised to rounding error. Two passes of the alternation, which is what
  the authors' script runs, leave part of an outlier's pull in the centre, because a pass moves the
  centre by at most one radius; `solver="alternating"` keeps it for reproduction.
- Sites may have different sizes, also zero.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: Forces on the centre balance when their sum is this small against the sum of their lengths:
#: a few thousand rounding errors, far below what the objective can feel (it is flat there).
BALANCE = 1e-12
#: A step this small against the centre is lost in its rounding.
RESOLUTION = 4 * float(np.finfo(float).eps)
#: Radii are not taken below this fraction of the typical distance: smaller ones change the
#: objective by less than this fraction.
SMALLEST_RADIUS = 1e-12
#: Stands in for penalty 0, whose limit is the geometric median: the radii end at SMALLEST_RADIUS.
VANISHING_PENALTY = 1e-100
#: Share of the majorising curvature mixed into Newton's: bounds the step if the curvature vanishes.
RIDGE = 1e-10
#: Newton needs 2 to 5 steps, tiny radii up to 20.
MAX_STEPS = 500
#: exp() of more would overflow; a site with so much evidence against it stands alone anyway.
LARGEST_EXPONENT = 700.0
#: The between-site variance is found to this fraction of the typical variance of a site, so that
#: other block sizes or a warm start change results by less than 1e-9.
SPREAD_TOLERANCE = 1e-11
#: Evaluations of the between-site variance: 4 to 8 are usual, bisection alone would need 40.
MAX_SPREAD_STEPS = 100
#: Passes of the refinement of the between-site variance; more change it by a few per cent.
REFINEMENTS = 5


class Shrunk(NamedTuple):
    """Result of `shrink_to_center`."""

    estimates: Floats  #: (m, R, d) or (m, d), the sites' new parameters
    center: Floats  #: (R, d) or (d,), the shared parameter
    n_iter: int  #: steps of the solver, the largest over components


class AdaptivelyShrunk(NamedTuple):
    """Result of `shrink_adaptively`."""

    estimates: Floats  #: (m, R, d), the sites' new parameters
    center: Floats  #: (R, d), robust location of the sites' parameters
    between_variance: Floats  #: (R,), variance per coordinate between sites
    belonging: Floats  #: (m, R), 1: the site follows the model of its fellows, 0: it stands alone
    outlier_score: Floats  #: (m,), about standard normal for an honest site, large for an odd one
    n_iter: int  #: evaluations of the between-site variance, the largest over components


def shrink_to_center(
    estimates: ArrayLike,
    sizes: ArrayLike,
    penalty: float,
    *,
    start: ArrayLike | None = None,
    solver: Literal["exact", "alternating"] = "exact",
    passes: int = 2,
) -> Shrunk:
    """Minimise sum_k [ n_k/2 |nu_k - est_k|^2 + sqrt(n_k) penalty |nu_k - center| ].

    Parameters
    ----------
    estimates : (m, d) or (m, R, d)
        The sites' own estimates; each of the R components is a problem of its own.
    sizes : (m,) or (m, R)
        Sample sizes n_k >= 0. A site of size 0 does not pull and is given the centre, the limit of
        n_k -> 0; its estimate may be anything, NaN included. If all sizes of a component are 0 its
        sites count alike.
    penalty : float in [0, inf]
        0: estimates stay as they are; the centre is then the limit of small penalties, the
        geometric median with weights sqrt(n_k). Infinity: everybody gets the weighted mean.
    start : (d,) or (R, d), optional
        Where to begin, for instance the last round's centre; default: coordinatewise median. The
        minimum does not depend on it. The minimiser may, but only where it is not unique, such as
        two equal sites farther apart than their radii reach: the default then takes the middle.
    solver : {"exact", "alternating"}
        "alternating" makes `passes` sweeps of the paper's alternation from the weighted mean.
    """
    points, given_sizes, single = _by_component(estimates, sizes, "sizes")
    if not penalty >= 0:
        raise ValueError(f"penalty must be in [0, inf], got {penalty}")
    weights = _equal_if_all_zero(given_sizes, points)
    points = _known_points(points, weights > 0)
    radii = _radii(given_sizes, penalty)
    if solver == "alternating":
        center, n_iter = _alternating_center(points, weights, radii, passes), passes
    elif solver == "exact":
        first = None if start is None else _as_centers(start, points)
        positive = radii if penalty > 0 else _radii(weights, VANISHING_PENALTY)
        center, n_iter = huber_location(points, weights, positive, first)
    else:
        raise ValueError(f"solver must be 'exact' or 'alternating', got {solver!r}")
    moved = np.moveaxis(_move_towards(center, points, radii), 0, 1)
    return Shrunk(moved[:, 0], center[0], n_iter) if single else Shrunk(moved, center, n_iter)


def shrink_adaptively(
    estimates: ArrayLike, variances: ArrayLike, *, start: ArrayLike | None = None
) -> AdaptivelyShrunk:
    """Pull each site to the robust centre as far as its own sampling variance warrants.

    Model, for each component: est_k ~ N(theta_k, s_k I), theta_k ~ N(c, v I), except for odd sites.

    - c is Huber's location with weights 1/(v + s_k) and radius sqrt(d) + 1 in standardised units
      (an honest site is about sqrt(d) away, give or take 1/sqrt(2)).
    - v solves median_k |est_k - c|^2 / (v + s_k) = d, floored at 0. Since the ratio is at most d
      exactly if |est_k - c|^2/d - s_k <= v, the solution is v = median_k(|est_k - c|^2/d - s_k).
      For d = 1 the median of chi-squared, 0.455, takes the place of d (see `_typical_distance`).
      Both are then refined by weighted means over the sites that belong (see `_refined`).
    - The new estimate is est_k + belonging_k s_k/(v + s_k) (c - est_k): the posterior mean for a
      site that belongs (see `belonging`), its own estimate for one that does not.

    Parameters
    ----------
    estimates : (m, R, d)
    variances : (m, R) or (m,)
        s_k in [0, inf]. Infinity says that the site knows nothing about the component (no rows):
        it is ignored and given the centre; its estimate may be anything, NaN included. Variances
        are believed: a site that understates its own pulls harder when v is near 0.
    start : (R, d), optional
        First guess of the centre; default: coordinatewise median.
    """
    points, noise, single = _by_component(estimates, variances, "variances")
    if single:
        raise ValueError("estimates must have shape (sites, components, features)")
    known = np.isfinite(noise)
    points = _known_points(points, known)
    first = _as_centers(start, points) if start is not None else _median_or_common(points, known)
    center, between, n_iter = _center_and_spread(points, noise, known, first)
    center, between = _refined(points, noise, known, center, between)
    total = _total_variance(points, noise, known, center, between)
    offsets = center[:, None] - points
    distances = np.where(known, _squares(offsets) / total, 0.0)
    n_known = known.sum(axis=1, keepdims=True)
    belongs = np.where(known, belonging(distances, points.shape[2], n_known), 1.0)
    with np.errstate(invalid="ignore"):
        pull = np.where(known, belongs * (noise / total), 1.0)
    moved = np.where(known[..., None], points + pull[..., None] * offsets, center[:, None])
    return AdaptivelyShrunk(
        estimates=np.moveaxis(moved, 0, 1),
        center=center,
        between_variance=between,
        belonging=belongs.T,
        outlier_score=_outlier_score(distances, known, points.shape[2]),
        n_iter=n_iter,
    )


def _radii(sizes: Floats, penalty: float) -> Floats:
    """penalty / sqrt(n_k) (R, m); a site without rows reaches any centre."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sizes > 0, penalty / np.sqrt(sizes), np.inf)


# --- Huber's location problem --------------------------------------------------------------------


def huber_location(
    points: Floats, weights: Floats, radii: Floats, start: Floats | None = None
) -> tuple[Floats, int]:
    """Minimise sum_k weight_k h_k(|point_k - c|) for R problems at once; see the module docstring.

    Semismooth Newton. Each step must lower the objective; where it does not, the best of a few
    safeguards is taken, among them the reweighted mean (IRLS), which always lowers it. The problem
    is solved in coordinates centred at the median, so an offset of the data costs no accuracy.

    Parameters
    ----------
    points : (R, m, d); weights : (R, m), not all 0 in a problem; radii : (R, m), positive
    start : (R, d), optional; default: coordinatewise median of the points with positive weight

    Returns
    -------
    center : (R, d)
    n_iter : steps, the largest over problems
    """
    counted = weights > 0
    origin = masked_median(points, counted)
    points = np.where(counted[..., None], points - origin[:, None], 0.0)
    radii = np.where(counted, radii, 1.0)
    weights = weights / weights.max(axis=1, keepdims=True)
    center = np.zeros_like(origin) if start is None else start - origin
    radii = _not_negligible(radii, points - center[:, None], counted)
    active = np.arange(len(points))
    n_iter = 0
    while len(active) and n_iter < MAX_STEPS:
        n_iter += 1
        offsets = points[active] - center[active, None]
        step, finished = _step(offsets, weights[active], radii[active])
        finished |= _lengths(step) <= RESOLUTION * _lengths(center[active])
        center[active] += np.where(finished[:, None], 0.0, step)
        active = active[~finished]
    return origin + center, n_iter


def _not_negligible(radii: Floats, offsets: Floats, counted: Bools) -> Floats:
    """Radii (R, m), stretched in proportion where they are too small; see SMALLEST_RADIUS."""
    ratios = _lengths(offsets) / radii
    typical = np.nan_to_num(masked_median(ratios, counted & (ratios > 0)))
    return radii * np.maximum(1.0, SMALLEST_RADIUS * typical)[:, None]


def _step(offsets: Floats, weights: Floats, radii: Floats) -> tuple[Floats, Bools]:
    """Next step of the centre (R, d), and whether no step is needed or possible (R,)."""
    distances = _lengths(offsets)
    outside = distances > radii
    pulls = weights * np.divide(radii, distances, out=np.ones_like(radii), where=outside)
    total = pulls.sum(axis=1)
    force = _weighted_sum(pulls, offsets)
    lengths = (pulls * distances).sum(axis=1)
    balanced = _lengths(force) <= BALANCE * lengths
    if balanced.all():
        return np.zeros_like(force), balanced
    newton = _newton_step(offsets, distances, pulls * outside, total, force)
    change = _objective_change(offsets, distances, newton, weights, radii)
    if np.all(balanced | (change < 0)):
        return newton, balanced
    reweighted_mean = force / total[:, None]
    rest = _rest_near_a_point(offsets, distances, weights, radii, pulls, force)
    best = newton
    for candidate in (newton / 4, newton / 16, reweighted_mean, rest):
        its_change = _objective_change(offsets, distances, candidate, weights, radii)
        better = its_change < change
        best = np.where(better[:, None], candidate, best)
        change = np.where(better, its_change, change)
    return best, balanced | (change >= 0)


def _newton_step(
    offsets: Floats, distances: Floats, outer_pulls: Floats, total: Floats, force: Floats
) -> Floats:
    """Solve H step = force with H = sum_k pull_k (I - [outside] u_k u_k'), u_k unit offsets."""
    directions = offsets / np.where(distances > 0, distances, 1.0)[..., None]
    curvature = -np.matmul((directions * outer_pulls[..., None]).transpose(0, 2, 1), directions)
    diagonal = np.arange(offsets.shape[2])
    curvature[:, diagonal, diagonal] += (1 + RIDGE) * total[:, None]
    step: Floats = np.linalg.solve(curvature, force[..., None])
    return step[..., 0]


def _objective_change(
    offsets: Floats, distances: Floats, step: Floats, weights: Floats, radii: Floats
) -> Floats:
    """Objective at center + step minus objective at center (R,), without cancellation.

    The change of a distance is computed from the change of its square, so that a point at 1e6
    does not drown the differences of the points nearby; h changes by the integral of min(t, radius)
    over t, split at the radius.
    """
    moved = _lengths(offsets - step[:, None])
    squares_change = _squares(step)[:, None] - 2 * _inner(offsets, step)
    longer = squares_change / np.maximum(moved + distances, np.finfo(float).tiny)
    before, after = np.minimum(distances, radii), np.minimum(moved, radii)
    beyond = np.maximum(distances, moved) > radii
    inner_change = np.where(beyond, after - before, longer)
    outer_change = np.zeros_like(radii)
    np.multiply(radii, longer - inner_change, out=outer_change, where=beyond)
    change: Floats = (weights * (inner_change * (before + after) / 2 + outer_change)).sum(axis=1)
    return change


def _rest_near_a_point(
    offsets: Floats,
    distances: Floats,
    weights: Floats,
    radii: Floats,
    pulls: Floats,
    force: Floats,
) -> Floats:
    """Step (R, d) to where the nearest point ahead would hold the centre against all others.

    Where radii are small the solution often lies within the radius of a point, and the way there is
    too flat for Newton and too slow for the reweighted mean. Ahead: the way the force points.
    """
    ahead = (weights > 0) & (_inner(offsets, force) > 0)
    nearest = np.where(ahead, distances, np.inf).argmin(axis=1)
    each = np.arange(len(offsets)), nearest
    others = force - pulls[each][:, None] * offsets[each]
    reach = radii[each] * weights[each]
    held = radii[each][:, None] * others / np.maximum(_lengths(others), reach)[:, None]
    step: Floats = held + offsets[each]
    return step


def _alternating_center(points: Floats, weights: Floats, radii: Floats, passes: int) -> Floats:
    """The paper's alternation, written nu_k = c + gap_k.

    Given c, gap_k is est_k - c shortened by the radius; given the gaps, c is the weighted mean of
    est_k - gap_k. Pass 1 has gaps 0.
    """
    if passes < 1:
        raise ValueError(f"passes must be at least 1, got {passes}")
    shares = weights / weights.sum(axis=1, keepdims=True)
    center = _weighted_sum(shares, points)
    for _ in range(passes - 1):
        gaps = _move_towards(center, points, radii) - center[:, None]
        center = _weighted_sum(shares, points - gaps)
    return center


def _move_towards(center: Floats, points: Floats, radii: Floats) -> Floats:
    """Points (R, m, d) moved towards their centre by their radius, onto it if they are as near."""
    offsets = points - center[:, None]
    distances = _lengths(offsets)
    apart = distances > radii
    share = np.divide(radii, distances, out=np.ones_like(radii), where=apart)
    return np.where(apart[..., None], points - share[..., None] * offsets, center[:, None])


# --- the adaptive rule ---------------------------------------------------------------------------


def _center_and_spread(
    points: Floats, noise: Floats, known: Bools, center: Floats
) -> tuple[Floats, Floats, int]:
    """Centre (R, d) and between-site variance (R,) that satisfy both equations together.

    The centre is a function c(v); the variance is a root of f(v) = T(v) - v, with T(v) the variance
    found around c(v). T(0) >= 0, so the root is bracketed from below at once; see `_next_variance`.
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
        total = _total_variance(*block, center[open_], search.value[open_])
        weights = np.where(known[open_], 1.0 / total, 0.0)
        radii = (np.sqrt(n_features) + 1.0) * np.sqrt(total)
        center[open_], _ = huber_location(points[open_], weights, radii, center[open_])
        between[open_] = search.value[open_]
        found = _spread(*block, center[open_])
        width = search.update(open_, found)
        tolerance = SPREAD_TOLERANCE * scale[open_]
        open_ = open_[(np.abs(found - between[open_]) > tolerance) & (width > tolerance)]
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

    def update(self, which: NDArray[np.intp], found: Floats) -> Floats:
        """Take T(value) for the searches `which`, choose their next value, return their widths."""
        value, residual = self.value[which], found - self.value[which]
        low = np.where(residual > 0, value, self.low[which])
        high = np.where(residual < 0, value, self.high[which])
        before, last = self.last_value[which], self.last_residual[which]
        with np.errstate(invalid="ignore", divide="ignore"):
            secant = value - residual * (value - before) / (residual - last)
            inside = (secant > low) & (secant < high)
        chosen = np.where(inside, secant, found)
        slow = np.abs(residual) > np.abs(last) / 2
        bisect = np.isfinite(high) & (slow | (chosen < low) | (chosen >= high))
        chosen[bisect] = (low[bisect] + high[bisect]) / 2
        self.value[which], self.low[which], self.high[which] = chosen, low, high
        self.last_value[which], self.last_residual[which] = value, residual
        return high - low


def _spread(points: Floats, noise: Floats, known: Bools, center: Floats) -> Floats:
    """Between-site variance (R,) around a centre: median_k(|est_k - c|^2/d - s_k), at least 0."""
    typical = _typical_distance(points.shape[2])
    excess = _squares(points - center[:, None]) / typical - np.where(known, noise, 0.0)
    return np.maximum(0.0, np.nan_to_num(masked_median(excess, known)))


def _refined(
    points: Floats, noise: Floats, known: Bools, center: Floats, between: Floats
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
        total = _total_variance(points, noise, known, center, between)
        squares = np.where(known, _squares(points - center[:, None]), 0.0)
        distances = squares / total
        belongs = np.where(known, belonging(distances, n_features, n_known), 0.0)
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


def _typical_distance(n_features: int) -> float:
    """What the median standardised squared distance is set to: d, its mean under the model.

    The median of chi-squared is a little smaller (9.3 for d = 10), so v comes out a little small,
    which pays when sites agree and costs nothing measurable when they differ, from d = 2 on. For
    d = 1 the median is less than half the mean: v would be halved and sites pulled too far (errors
    10 % above no pulling at all when v is 8 times s_k, 10 sites), so there the median is used.
    """
    return float(n_features) if n_features > 1 else float(chdtri(1.0, 0.5))


def _total_variance(
    points: Floats, noise: Floats, known: Bools, center: Floats, between: Floats
) -> Floats:
    """v + s_k (R, m), kept positive where both are 0; 1 for a site that knows nothing."""
    total = np.where(known, between[:, None] + np.where(known, noise, 0.0), 1.0)
    spread = _squares(points - center[:, None]).max(axis=1) / points.shape[2]
    floor = np.maximum(SMALLEST_RADIUS**2 * spread, np.finfo(float).tiny)
    floored: Floats = np.maximum(total, floor[:, None])
    return floored


def belonging(distances: Floats, n_features: int, n_sites: ArrayLike) -> Floats:
    """How far a site follows the model of its fellows (R, m), in [0, 1], smooth and decreasing.

    `distances` are |est_k - c|^2 / (v + s_k), about chi-squared with d degrees of freedom. The
    rival explanation is a site whose offset has a larger variance, x times the model's;
    x = distance/d fits best and has likelihood ratio exp(d/2 (x - 1 - log x)). The prior odds of
    the model are m^2 : 1, so that less than one of m honest sites is expected to be odd; the
    posterior probability is scaled to be 1 for a site no farther than typical. With d = 10 and 10
    sites it is 0.97, 0.53 and 0.03 at distances 20, 30 and 40 (chi-squared tails 3e-2, 9e-4, 2e-5).
    """
    excess = np.maximum(distances / n_features, 1.0)
    evidence = n_features / 2 * (excess - 1 - np.log(excess))
    prior_odds = np.square(np.asarray(n_sites, dtype=float))
    against = np.exp(np.minimum(evidence, LARGEST_EXPONENT))
    probability: Floats = (prior_odds + 1) / (prior_odds + against)
    return probability


def _outlier_score(distances: Floats, known: Bools, n_features: int) -> Floats:
    """Score (m,) of a site over its components: its summed distance as a standard normal quantile.

    Under the model the sum is chi-squared; Wilson and Hilferty's cube root makes it normal and
    stays finite at any distance. A site that knows nothing scores 0.
    """
    freedom = known.sum(axis=0) * n_features
    some = np.maximum(freedom, 1)
    width = 2.0 / (9.0 * some)
    score = (np.cbrt(distances.sum(axis=0) / some) - (1 - width)) / np.sqrt(width)
    return np.where(freedom > 0, score, 0.0)


# --- medians, sums and shapes --------------------------------------------------------------------


def masked_median(values: Floats, known: Bools) -> Floats:
    """Median over axis 1 of values (R, m) or (R, m, d) where known (R, m); NaN if nothing is."""
    if known.all() and known.shape[1]:
        return np.median(values, axis=1)
    shown = known if values.ndim == 2 else known[..., None]
    ordered = np.sort(np.where(shown, values, np.inf), axis=1)
    count = known.sum(axis=1)
    rows = np.arange(len(values))
    below, above = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, known.shape[1] - 1)
    middle = (ordered[rows, below] + ordered[rows, above]) / 2
    return np.where(count[:, None] > 0 if values.ndim == 3 else count > 0, middle, np.nan)


def _median_or_common(points: Floats, known: Bools) -> Floats:
    """Coordinatewise median (R, d); where nothing is known the points already agree."""
    return masked_median(points, known | ~known.any(axis=1, keepdims=True))


def _squares(vectors: Floats) -> Floats:
    squares: Floats = np.einsum("...d,...d->...", vectors, vectors)
    return squares


def _lengths(vectors: Floats) -> Floats:
    return np.sqrt(_squares(vectors))


def _inner(offsets: Floats, step: Floats) -> Floats:
    """Inner products (R, m) of offsets (R, m, d) with one step (R, d)."""
    products: Floats = np.matmul(offsets, step[..., None])
    return products[..., 0]


def _weighted_sum(weights: Floats, points: Floats) -> Floats:
    """Sum over k of weight_k point_k, (R, d)."""
    sums: Floats = np.matmul(weights[:, None], points)
    return sums[:, 0]


def _by_component(
    estimates: ArrayLike, per_site: ArrayLike, name: str
) -> tuple[Floats, Floats, bool]:
    """Estimates as (R, m, d), the site numbers as (R, m), and whether R was left out."""
    points = np.asarray(estimates, dtype=float)
    numbers = np.asarray(per_site, dtype=float)
    single = points.ndim == 2
    points = points[:, None] if single else points
    if points.ndim != 3 or len(points) == 0:
        raise ValueError(
            "estimates must have shape (sites, features) or (sites, components, features) "
            f"with at least one site, got {np.shape(estimates)}"
        )
    numbers = numbers[:, None] if numbers.ndim == 1 else numbers
    if numbers.shape not in {(len(points), 1), points.shape[:2]}:
        raise ValueError(
            f"{name} must have one entry per site, or per site and component; "
            f"got {np.shape(per_site)} for estimates {np.shape(estimates)}"
        )
    if np.isnan(numbers).any() or (numbers < 0).any():
        site = int(np.argmax((~(numbers >= 0)).any(axis=1)))
        raise ValueError(f"{name} must be at least 0; site {site} has {numbers[site]}")
    numbers = np.broadcast_to(numbers, points.shape[:2])
    return np.ascontiguousarray(points.swapaxes(0, 1)), np.ascontiguousarray(numbers.T), single


def _known_points(points: Floats, known: Bools) -> Floats:
    """Points with the unknown ones replaced by the median of the others; they carry no weight."""
    finite: Bools = np.all(np.isfinite(points), axis=2)
    if (known & ~finite).any():
        component, site = np.argwhere(known & ~finite)[0]
        raise ValueError(
            f"site {site}, component {component}: the estimate {points[component, site]} is not "
            "finite; leave the site out or give it size 0 (infinite variance)"
        )
    lost = ~finite.any(axis=1)
    if lost.any():
        component = int(np.argmax(lost))
        raise ValueError(f"component {component}: no site has a finite estimate")
    if known.all():
        return points
    trusted = np.where(known.any(axis=1, keepdims=True), known, finite)
    center = masked_median(np.where(trusted[..., None], points, 0.0), trusted)
    return np.where(known[..., None], points, center[:, None])


def _equal_if_all_zero(sizes: Floats, points: Floats) -> Floats:
    """Sizes (R, m) as weights; sites with finite estimates count alike where nobody has rows."""
    if np.isinf(sizes).any():
        raise ValueError("sizes must be finite")
    finite = np.isfinite(points).all(axis=2).astype(float)
    return np.where(sizes.any(axis=1, keepdims=True), sizes, finite)


def _as_centers(start: ArrayLike, points: Floats) -> Floats:
    """A first centre as a fresh array (R, d)."""
    centers = np.array(start, dtype=float).reshape(-1, points.shape[2])
    if len(centers) != len(points) or not np.isfinite(centers).all():
        raise ValueError(f"start must be finite with one row per component, got {np.shape(start)}")
    return centers
