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
from numpy.typing import ArrayLike

from fedkin.arrays import Bools, Floats
from fedkin.shrinkage.huber import (
    huber_location,
    lengths_of,
    masked_median,
    squares_of,
    weighted_sum,
)
from fedkin.shrinkage.outlier import outlier_score
from fedkin.shrinkage.spread import (
    belonging,
    center_and_spread,
    refined,
    total_variance,
    unusualness,
)

#: Stands in for penalty 0, whose limit is the geometric median: the radii end at SMALLEST_RADIUS.
VANISHING_PENALTY = 1e-100


__all__ = [
    "AdaptivelyShrunk",
    "Shrunk",
    "shrink_adaptively",
    "shrink_to_center",
    "unusualness",
]


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
    estimates: ArrayLike,
    variances: ArrayLike,
    *,
    start: ArrayLike | None = None,
    n_looks: int = 1,
) -> AdaptivelyShrunk:
    """Pull each site to the robust centre as far as its own sampling variance warrants.

    Model, for each component: est_k ~ N(theta_k, s_k I), theta_k ~ N(c, v I), except for odd sites.

    - c is Huber's location with weights 1/(v + s_k) and radius sqrt(d) + 1 in standardised units
      (an honest site is about sqrt(d) away, give or take 1/sqrt(2)).
    - v solves median_k |est_k - c|^2 / (v + s_k) = d, floored at 0. Since the ratio is at most d
      exactly if |est_k - c|^2/d - s_k <= v, the solution is v = median_k(|est_k - c|^2/d - s_k).
      For d = 1 the median of chi-squared, 0.455, takes its place (`spread.typical_distance`).
      Both are then refined by weighted means over the sites that belong (see `spread.refined`).
    - The new estimate is est_k + belonging_k s_k/(v + s_k) (c - est_k): the posterior mean for a
      site that belongs (see `spread.belonging`), its own estimate for one that does not.

    Parameters
    ----------
    estimates : (m, R, d)
    variances : (m, R) or (m,)
        s_k in [0, inf]. Infinity says that the site knows nothing about the component (no rows):
        it is ignored and given the centre; its estimate may be anything, NaN included. Variances
        are believed: a site that understates its own pulls harder when v is near 0.
    start : (R, d), optional
        First guess of the centre; default: coordinatewise median.
    n_looks : int
        At how many components of a site one looks: with more of them an honest one is by chance
        farther from the others, and less than one of all is to be called odd.
    """
    points, noise, single = _by_component(estimates, variances, "variances")
    if single:
        raise ValueError("estimates must have shape (sites, components, features)")
    known = np.isfinite(noise)
    points = _known_points(points, known)
    first = _as_centers(start, points) if start is not None else _median_or_common(points, known)
    center, between, n_iter = center_and_spread(points, noise, known, first)
    center, between = refined(points, noise, known, center, between, n_looks)
    total = total_variance(points, noise, known, center, between)
    offsets = center[:, None] - points
    distances = np.where(known, squares_of(offsets) / total, 0.0)
    n_known = n_looks * known.sum(axis=1, keepdims=True)
    belongs = np.where(known, belonging(distances, points.shape[2], n_known), 1.0)
    with np.errstate(invalid="ignore"):
        pull = np.where(known, belongs * (noise / total), 1.0)
    moved = np.where(known[..., None], points + pull[..., None] * offsets, center[:, None])
    return AdaptivelyShrunk(
        estimates=np.moveaxis(moved, 0, 1),
        center=center,
        between_variance=between,
        belonging=belongs.T,
        outlier_score=outlier_score(distances, known, points.shape[2]),
        n_iter=n_iter,
    )


def _radii(sizes: Floats, penalty: float) -> Floats:
    """penalty / sqrt(n_k) (R, m); a site without rows reaches any centre."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sizes > 0, penalty / np.sqrt(sizes), np.inf)


def _alternating_center(points: Floats, weights: Floats, radii: Floats, passes: int) -> Floats:
    """The paper's alternation, written nu_k = c + gap_k.

    Given c, gap_k is est_k - c shortened by the radius; given the gaps, c is the weighted mean of
    est_k - gap_k. Pass 1 has gaps 0.
    """
    if passes < 1:
        raise ValueError(f"passes must be at least 1, got {passes}")
    shares = weights / weights.sum(axis=1, keepdims=True)
    center = weighted_sum(shares, points)
    for _ in range(passes - 1):
        gaps = _move_towards(center, points, radii) - center[:, None]
        center = weighted_sum(shares, points - gaps)
    return center


def _move_towards(center: Floats, points: Floats, radii: Floats) -> Floats:
    """Points (R, m, d) moved towards their centre by their radius, onto it if they are as near."""
    offsets = points - center[:, None]
    distances = lengths_of(offsets)
    apart = distances > radii
    share = np.divide(radii, distances, out=np.ones_like(radii), where=apart)
    return np.where(apart[..., None], points - share[..., None] * offsets, center[:, None])


# --- medians, sums and shapes --------------------------------------------------------------------


def _median_or_common(points: Floats, known: Bools) -> Floats:
    """Coordinatewise median (R, d); where nothing is known the points already agree."""
    return masked_median(points, known | ~known.any(axis=1, keepdims=True))


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
