"""Huber's location problem in d dimensions, solved to rounding error for many problems at once.

    minimise over c   sum_k weight_k h_k(|point_k - c|),   h_k(t) = t^2/2     if t <= radius_k,
                                                    radius_k t - radius_k^2/2  otherwise.

Semismooth Newton with safeguards; the objective is compared without cancellation, so that points
at 1e6 or radii of 1e-12 cost neither accuracy nor many steps.
"""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Bools, Floats

#: Forces on the centre balance when their sum is this small against the sum of their lengths:
#: a few thousand rounding errors, far below what the objective can feel (it is flat there).
BALANCE = 1e-12
#: A step this small against the centre is lost in its rounding.
RESOLUTION = 4 * float(np.finfo(float).eps)
#: Radii are not taken below this fraction of the typical distance: smaller ones change the
#: objective by less than this fraction.
SMALLEST_RADIUS = 1e-12
#: Share of the majorising curvature mixed into Newton's: bounds the step if the curvature vanishes.
RIDGE = 1e-10
#: Newton needs 2 to 5 steps, tiny radii up to 20.
MAX_STEPS = 500


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
        finished |= lengths_of(step) <= RESOLUTION * lengths_of(center[active])
        center[active] += np.where(finished[:, None], 0.0, step)
        active = active[~finished]
    return origin + center, n_iter


def _not_negligible(radii: Floats, offsets: Floats, counted: Bools) -> Floats:
    """Radii (R, m), stretched in proportion where they are too small; see SMALLEST_RADIUS."""
    ratios = lengths_of(offsets) / radii
    typical = np.nan_to_num(masked_median(ratios, counted & (ratios > 0)))
    return radii * np.maximum(1.0, SMALLEST_RADIUS * typical)[:, None]


def _step(offsets: Floats, weights: Floats, radii: Floats) -> tuple[Floats, Bools]:
    """Next step of the centre (R, d), and whether no step is needed or possible (R,)."""
    distances = lengths_of(offsets)
    outside = distances > radii
    pulls = weights * np.divide(radii, distances, out=np.ones_like(radii), where=outside)
    total = pulls.sum(axis=1)
    force = weighted_sum(pulls, offsets)
    lengths = (pulls * distances).sum(axis=1)
    balanced = lengths_of(force) <= BALANCE * lengths
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
    moved = lengths_of(offsets - step[:, None])
    squares_change = squares_of(step)[:, None] - 2 * _inner(offsets, step)
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
    held = radii[each][:, None] * others / np.maximum(lengths_of(others), reach)[:, None]
    step: Floats = held + offsets[each]
    return step


# --- medians and sums ----------------------------------------------------------------------------


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


def squares_of(vectors: Floats) -> Floats:
    """Squared lengths of vectors (..., d)."""
    squares: Floats = np.einsum("...d,...d->...", vectors, vectors)
    return squares


def lengths_of(vectors: Floats) -> Floats:
    """Lengths of vectors (..., d)."""
    return np.sqrt(squares_of(vectors))


def _inner(offsets: Floats, step: Floats) -> Floats:
    """Inner products (R, m) of offsets (R, m, d) with one step (R, d)."""
    products: Floats = np.matmul(offsets, step[..., None])
    return products[..., 0]


def weighted_sum(weights: Floats, points: Floats) -> Floats:
    """Sum over k of weight_k point_k, (R, d)."""
    sums: Floats = np.matmul(weights[:, None], points)
    return sums[:, 0]
