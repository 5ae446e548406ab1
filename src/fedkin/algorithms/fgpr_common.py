"""FGPR's common curve: site curve = common curve + level + slope + departure + noise.

The model is that of `models/common_form.py`. The common curve is carried by its values at a few
points on a grid, so that sites tell of it by sums over their rows (`models/common_curve.py`):

1. Searches for the parameters, one for each smoothness that departures may have, side by side: an
   evaluation of all of them is one round, value and slopes at every site. From the best of them
   others with the common mean without slopes, along a line with a spline as common curve (which is
   right at the ends of a curve, rows can hardly say), and in a plane with bent features.
2. Those not far behind by the bound with weak priors on the parameters; if the points carry too
   little of the curve, there are more of them and the searches go on.
3. What all rows leave open of kind and parameters: two rounds, many parameters in each.
4. Every site compares: how well are its rows predicted, each from all others and all of them from
   the other sites, with the common curve and without? It tells four sums.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np

from fedkin.algorithms.fgpr_common_search import (
    Extent,
    Problem,
    side_by_side,
    told,
)
from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.algorithms.minimise import Minimum
from fedkin.arrays import Bools, Floats
from fedkin.models.common_cloud import (
    CLOSED_VOLUME,
    Cloud,
    cloud_around,
    curvature,
    neighbours,
    open_parameters,
    weights_of_clouds,
)
from fedkin.models.common_curve import negative_bound_value, weights
from fedkin.models.common_form import SPLINE, start_of
from fedkin.models.common_site import RBF_TRAVELS, Shared, Units
from fedkin.models.gaussian_process import LOG_2PI
from fedkin.models.gp_priors import penalty
from fedkin.models.kernels import form_of as kernel_form
from fedkin.protocol import Ask, Field, Replies, over_roster
from fedkin.ties import RELATIVE, first_least

Server = Generator[Ask, Replies, Any]

# Smoothness that departures may have: RBF, Matern-5/2 and 3/2.
OWN_SMOOTHNESS = (RBF_TRAVELS, 2.5, 1.5)
# That of the common curve: along a line, where it is continued, Matern-5/2, as an RBF would be sure
# how it goes on (and 3/2 needs more points); else the RBF, which fewest points carry.
COMMON_SMOOTHNESS = {1: 2.5}
# Points that carry the common curve: along a line, in a plane, in more dimensions; at first and
# when these carry too little.
POINTS = (20, 50, 80)
MORE_POINTS = (50, 100, 120)
# Bound lost per row by what the points do not carry, from which on there are more of them.
MOST_MISSED = 1e-4
# From which on the summary says so. It is no reason against the curve: on Hartmann's function .11
# were lost and the error was a third of the best rival's.
MUCH_MISSED = 1e-2

# Kinds whose penalised bound is lower than the best by more than this do not count.
FAR_BEHIND = 5.0
# Parameters in all clouds together, and the least around one mode.
CLOUD_SIZE = 64
LEAST_CLOUD = 24
# By so many standard errors rows left out must speak against the common curve.
AGAINST = 2.0

# ------------------------------------------------------------------ what leaves a client

GRAM = Field(
    ("k", "slopes", "half"),
    "sums of products of the rows' features of the common curve and their target, with the "
    "site's departure integrated out, and their slopes by the parameters; half of each matrix",
    reveals="products",
)
LOG_DET = Field(("k", "slopes"), "log determinant of the site's departures, and its slopes")
MISSED = Field(("k", "slopes"), "what the points do not carry at the site's rows, and its slopes")
LEFT_OUT = Field(
    (2, 2),
    "log density of the site's rows, each left out and all of them left out: without and with the "
    "common curve",
)

WAY = Field((), "1 if the site clearly does better alone, -1 with the common curve", bound=1.0)

PARAMETERS = Field(
    ("k", "p"),
    "log variances and lengths of common curve and departures, pivot and growth of these, haste",
)
KINDS = Field(("k", 3), "smoothness of common curve and departures, 0 is the RBF; common slopes")
PLACES = Field(("points", "d"), "points on a grid that carry the common curve")
FRAME = Field((2, "d"), "centre and spread of the features of all sites")
UNITS = Field((2,), "location and scale of the target of all sites")
CLOUD = Field(("s", "p"), "log variances and lengths, pivots, growth and haste, a cloud of them")
CLOUD_WEIGHTS = Field(("s",), "weights of the cloud")
CLOUD_KINDS = Field(("s", 3), "smoothness of curve and departures, 0 is the RBF; common slopes")
MEAN = Field(("s", "f"), "the common curve: expected weights of its features")
COVARIANCE = Field(("s", "f", "f"), "their covariance")
PRIOR = Field((1, "q"), "shared log hyper-parameters without a common curve")
LIMIT = Field(("q",), "bound of the log hyper-parameters without a common curve")
TARGET = Field((4,), "location, scale, variance between sites, variance of a typical target")


class CommonFit(NamedTuple):
    """The common curve, who is behind it (m,), and how the search for it ended."""

    shared: Shared
    heard: Bools
    bound: float
    missed: float
    converged: bool
    tried: Floats
    """Kind, whether features bend, and negative penalised bound per row, (tried, 5)."""


def extent_of(replies: Replies) -> Extent | None:
    """From what sites described; None if no two rows of a site differ in their target."""
    mean, deviation = replies["moments"].T
    known = (replies["spread"] > 0).all(axis=1) & (replies["rows"] > 0) & (deviation > 0)
    if not known.any():
        return None
    share = replies["rows"][known] / replies["rows"][known].sum()
    target = _pooled(share, mean[known, None], deviation[known, None])
    frame = _pooled(share, replies["centre"][known], replies["spread"][known])
    units = Units(frame, target[:, 0])
    low, high = (units.rows(replies[name][known]) for name in ("low", "high"))
    rise, run = (
        float(np.sqrt((share @ spread[known] ** 2 / whole**2).mean()))
        for spread, whole in ((deviation[:, None], target[1]), (replies["spread"], frame[1]))
    )
    return Extent(units, low.min(axis=0), high.max(axis=0), min(rise / run, 1.0))


def _pooled(share: Floats, mean: Floats, spread: Floats) -> Floats:
    """Mean and standard deviation (2, d) of all rows from those of sites (m, d)."""
    centre = share @ mean
    return np.stack([centre, np.sqrt(share @ (spread**2 + (mean - centre) ** 2))])


# ------------------------------------------------------------------ the search


def find_common(extent: Extent, n_clients: int, settings: FgprSettings) -> Server:
    """The common curve of all sites with what is left open of it; None if all keep it back.

    Whether there is one is a question unless `common=True` asks for it.
    """
    place = min(len(extent.low), len(POINTS)) - 1
    n_points = settings.n_points or POINTS[place]
    first, *own = [Problem(kind, extent, n_points) for kind in _kinds(settings, extent)]
    problems = [first]
    needed = settings.common is True
    start = start_of(first.form, 1.0)
    ends = yield from side_by_side(problems, [start], settings, n_clients, needed)
    if not ends:
        return None
    ends += yield from side_by_side(own, [ends[0].point] * len(own), settings, n_clients)
    problems += own
    best = _best(ends)
    kinds = _other_kinds(problems[best].kind, len(extent.low))
    others = [Problem(kind, extent, n_points, bends) for kind, bends in kinds]
    ends += yield from side_by_side(others, [ends[best].point] * len(others), settings, n_clients)
    problems += others
    tried = np.array([(*p.kind, p.bends, e.value) for p, e in zip(problems, ends)])
    enough = bool(settings.n_points) or max(p.missed for p in problems) <= MOST_MISSED
    problems, ends = _not_far_behind(problems, ends, not enough)
    if not enough:
        problems = [Problem(p.kind, extent, MORE_POINTS[place], p.bends) for p in problems]
        starts = [end.point for end in ends]
        ends = yield from side_by_side(problems, starts, settings, n_clients)
        problems, ends = _not_far_behind(problems, ends)
    best = _best(ends)
    fit: CommonFit = yield from _left_open(problems, ends, tried, n_clients)
    missed, converged = problems[best].missed, all(end.converged for end in ends)
    cost, _ = penalty(problems[best].priors, ends[best].point)
    bound = float(cost) - ends[best].value * problems[best].n_rows
    return fit._replace(bound=bound, missed=missed, converged=converged, tried=tried)


def _best(ends: list[Minimum]) -> int:
    return int(first_least([end.value for end in ends], floor=RELATIVE))


def _not_far_behind(
    problems: list[Problem], ends: list[Minimum], more_points: bool = False
) -> tuple[list[Problem], list[Minimum]]:
    """Those whose penalised bound is not far below the best, or with more points might not be."""
    values = np.array([end.value for end in ends])
    hoped = values - [p.missed for p in problems] if more_points else values
    near = hoped <= values.min() + FAR_BEHIND / problems[0].n_rows
    kept = np.flatnonzero(near)
    return [problems[k] for k in kept], [ends[k] for k in kept]


def _other_kinds(best: Floats, n_features: int) -> list[tuple[Floats, bool]]:
    """Kinds that differ from the best one, and whether features bend: a level mean; along a line a
    spline as common curve; in a plane bent features."""
    others = [(best * [1.0, 1.0, 0.0], False)]
    if n_features == 1:
        others.append((np.array([SPLINE, *best[1:]]), False))
    if n_features == 2:
        others.append((best, True))
    return others


def _kinds(settings: FgprSettings, extent: Extent) -> Floats:
    """Smoothness of departures that is tried: that of the kernel given, or several."""
    own: tuple[float, ...] = OWN_SMOOTHNESS
    if settings.kernel is not None:
        fast = kernel_form(settings.kernel, len(extent.low)).fast
        assert fast is not None
        own = (RBF_TRAVELS if np.isinf(fast.smoothness) else fast.smoothness,)
    common = COMMON_SMOOTHNESS.get(len(extent.low), RBF_TRAVELS)
    return np.array([(common, nu, extent.steep) for nu in own])


# ------------------------------------------------------------------ what is left open


def _left_open(
    problems: list[Problem], modes: list[Minimum], tried: Floats, n_clients: int
) -> Server:
    """The common curve under clouds of parameters around the modes, and who is behind it."""
    clouds = yield from _clouds(problems, [mode.point for mode in modes], n_clients)
    wanted = [(p, theta) for p, cloud in zip(problems, clouds) for theta in cloud.points]
    found, clients = yield from told("totals", wanted, "what is left open", n_clients)
    penalised = [
        negative_bound_value(p.form, theta, sums) + float(penalty(p.priors, theta)[0])
        for (p, theta), sums in zip(wanted, found)
    ]
    evidence = [_evidence(*each, tried) for each in zip(problems, modes, clouds)]
    share = weights_of_clouds(clouds, np.array(penalised), np.array(evidence))
    kept = np.flatnonzero(share)
    known = [weights(wanted[k][0].form, wanted[k][1], found[k]) for k in kept]
    shared = Shared(
        problems[0].extent.units,
        problems[0].places,
        np.array([wanted[k][0].kind for k in kept]),
        np.array([wanted[k][1] for k in kept]),
        share[kept],
        np.array([one.mean for one in known]),
        np.array([one.covariance for one in known]),
    )
    heard = over_roster(np.ones(len(clients), bool), clients, n_clients, False)
    return CommonFit(shared, heard, np.nan, np.nan, True, np.zeros((0, 5)))


def _evidence(problem: Problem, mode: Minimum, cloud: Cloud, tried: Floats) -> float:
    """Log evidence of a kind by Laplace's approximation, up to what is the same for all kinds.

    Kinds of the same common curve share its weight. Of a parameter that a kind does not have, the
    whole weight of its prior is left.
    """
    n_free, lacks = cloud.draws.shape[1], ~problem.has
    closed = (int(problem.has.sum()) - n_free) * CLOSED_VOLUME
    unspent = float((np.log(problem.priors.width[lacks]) + 0.5 * LOG_2PI).sum())
    common = problem.kind[0], problem.kind[2], problem.bends
    alike = (tried[:, [0, 2, 3]] == common).all(axis=1).sum()
    prior = unspent - float(np.log(alike))
    return cloud.log_volume + closed + prior - mode.value * problem.n_rows


def _clouds(problems: list[Problem], modes: list[Floats], n_clients: int) -> Server:
    """Parameters around the mode of every kind, in one round."""
    free = [open_parameters(mode, p.lower, p.upper) for p, mode in zip(problems, modes)]
    around = [neighbours(mode, open_) for mode, open_ in zip(modes, free)]
    wanted = [(p, theta) for p, points in zip(problems, around) for theta in points]
    gradients: list[Floats] = []
    if wanted:
        found, _ = yield from told("slopes", wanted, "curvature", n_clients)
        gradients = [p.at(theta, sums)[1] for (p, theta), sums in zip(wanted, found)]
    n_points = max(LEAST_CLOUD, CLOUD_SIZE // len(problems))
    clouds, begin = [], 0
    for problem, mode, open_ in zip(problems, modes, free):
        if not len(open_):
            clouds.append(Cloud(mode[None], np.zeros((1, 0))))
            continue
        bend = curvature(np.array(gradients[begin : begin + 2 * len(open_)]), open_)
        begin += 2 * len(open_)
        limits = problem.lower, problem.upper
        clouds.append(cloud_around(mode, open_, bend, *limits, n_points))
    return clouds


def compare(shared: Shared, prior: Floats, target: Floats, limits: dict[str, Floats]) -> Ask:
    """The question which model suits each site; `limits` are those of hyper-parameters."""
    common = {
        "places": shared.places,
        "frame": shared.units.frame,
        "units": shared.units.target,
        "kinds": shared.kinds,
        "theta": shared.theta,
        "weights": shared.weights,
        "mean": shared.mean,
        "covariance": shared.covariance,
        "prior": prior,
        "target": target,
        **limits,
    }
    return Ask("compare", common, note="sites compare")


def chosen(left_out: Floats, way: Floats, settings: FgprSettings) -> Bools:
    """Which sites use the common curve (m + 1,); the last entry is that of sites not seen.

    Sites follow the common curve unless rows left out, each by itself, speak against it, and those
    not seen unless whole sites left out do. Where `personalise="choose"`, a site goes the way that
    is clearly better for it.
    """
    gain, as_new = (left_out[:, :, 1] - left_out[:, :, 0]).T
    use = np.full(len(gain) + 1, not _speaks_against(gain))
    if settings.personalise == "choose":
        use[:-1] = np.where(way == 0, use[:-1], way < 0)
    use[-1] = not _speaks_against(as_new)
    return use


def _speaks_against(gain: Floats) -> bool:
    """Whether the sites' gains are negative by more than twice their standard error."""
    spread = float(np.std(gain, ddof=1)) if len(gain) > 1 else 0.0
    return float(gain.sum()) < -AGAINST * spread * float(np.sqrt(len(gain)))
