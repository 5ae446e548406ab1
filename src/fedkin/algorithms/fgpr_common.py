"""FGPR's common curve: site curve = common curve + level + slope + departure + noise.

The model is that of `models/common_form.py`. The common curve is carried by its values at a few
points on a grid, so that sites tell of it by sums over their rows (`models/common_curve.py`):

1. Searches for the parameters, one for each smoothness that departures may have, side by side: an
   evaluation of all of them is one round, value and slopes at every site.
2. The best of them by the bound with weak priors on the parameters; if the points carry too little
   of the curve, there are more of them and the search goes on.
3. What all rows leave open of the parameters: two rounds, many parameters in each.
4. Every site compares: how well is each of its rows predicted from all others, with the common
   curve and without? It tells two sums.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import numpy as np

from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.algorithms.minimise import Minimum, Seen, minimise_by_replay
from fedkin.arrays import Bools, Floats
from fedkin.models.common_cloud import (
    cloud_around,
    cloud_weights,
    curvature,
    neighbours,
    open_parameters,
)
from fedkin.models.common_curve import negative_bound, negative_bound_value, share_missed, weights
from fedkin.models.common_form import CommonForm, start_of
from fedkin.models.common_site import RBF_TRAVELS, Shared, Units, form_of
from fedkin.models.common_sums import Sums, wholes
from fedkin.models.gp_priors import penalty, weak_priors
from fedkin.models.inducing import grid
from fedkin.models.kernels import form_of as kernel_form
from fedkin.protocol import Ask, Field, Replies, over_roster
from fedkin.ties import RELATIVE, first_least

Server = Generator[Ask, Replies, Any]

# Smoothness that departures may have: RBF, Matern-5/2 and 3/2.
OWN_SMOOTHNESS = (RBF_TRAVELS, 2.5, 1.5)
# Bounds of variances, in those of all targets, and of lengths, in spreads of the features.
VARIANCE_BOUNDS = (1e-8, 1e2)
LENGTH_BOUNDS = (0.05, 100.0)
# Points that carry the common curve: along a line, in a plane, in more dimensions; at first and
# when these carry too little.
POINTS = (20, 50, 80)
MORE_POINTS = (50, 100, 120)
# Bound lost per row by what the points do not carry, from which on there are more of them.
MOST_MISSED = 1e-3

# ------------------------------------------------------------------ what leaves a client

GRAM = Field(
    ("k", "slopes", "half"),
    "sums of products of the rows' features of the common curve and their target, with the "
    "site's departure integrated out, and their slopes by the parameters; half of each matrix",
)
LOG_DET = Field(("k", "slopes"), "log determinant of the site's departures, and its slopes")
MISSED = Field(("k", "slopes"), "what the points do not carry at the site's rows, and its slopes")
LEFT_OUT = Field((2,), "log density of the site's rows, each left out: without, with common curve")

PARAMETERS = Field(("k", "p"), "log variances and lengths of common curve and departures")
SMOOTHNESS = Field(("k", 2), "smoothness of common curve and departures, 0 is the RBF")
PLACES = Field(("points", "d"), "points on a grid that carry the common curve")
FRAME = Field((2, "d"), "centre and spread of the features of all sites")
UNITS = Field((2,), "location and scale of the target of all sites")
CLOUD = Field(("s", "p"), "log variances and lengths, a cloud of them")
CLOUD_WEIGHTS = Field(("s",), "weights of the cloud")
ONE_SMOOTHNESS = Field((2,), "smoothness of common curve and departures, 0 is the RBF")
MEAN = Field(("s", "f"), "the common curve: expected weights of its features")
COVARIANCE = Field(("s", "f", "f"), "their covariance")
PRIOR = Field((1, "q"), "shared log hyper-parameters without a common curve")
TARGET = Field((4,), "location, scale, variance between sites, variance of a typical target")


class Extent(NamedTuple):
    """One frame for all sites, and the box of their features in it, (d,) each."""

    units: Units
    low: Floats
    high: Floats


class CommonFit(NamedTuple):
    """The common curve, who is behind it (m,), and how the search for it ended."""

    shared: Shared
    heard: Bools
    bound: float
    missed: float
    converged: bool
    tried: Floats
    """Smoothness of departures and penalised bound of each that was tried."""


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
    return Extent(units, low.min(axis=0), high.max(axis=0))


def _pooled(share: Floats, mean: Floats, spread: Floats) -> Floats:
    """Mean and standard deviation (2, d) of all rows from those of sites (m, d)."""
    centre = share @ mean
    return np.stack([centre, np.sqrt(share @ (spread**2 + (mean - centre) ** 2))])


# ------------------------------------------------------------------ the search


def find_common(extent: Extent, n_clients: int, settings: FgprSettings) -> Server:
    """The common curve of all sites with what is left open of it."""
    d = len(extent.low)
    place = min(d, len(POINTS)) - 1
    n_points = settings.n_points or POINTS[place]
    problems = [
        _Problem(np.array([RBF_TRAVELS, own]), extent, n_points) for own in _smoothness(settings, d)
    ]
    starts = [start_of(problem.form, 1.0) for problem in problems]
    ends = yield from _side_by_side(problems, starts, settings)
    best = int(first_least([end.value for end in ends], floor=RELATIVE))
    problem, end = problems[best], ends[best]
    if not settings.n_points and problem.missed > MOST_MISSED:
        problem = _Problem(problem.smoothness, extent, MORE_POINTS[place])
        (end,) = yield from _side_by_side([problem], [end.point], settings)
    tried = np.array([(p.smoothness[1], e.value) for p, e in zip(problems, ends)])
    shared, heard, bound, missed = yield from _left_open(problem, end.point, n_clients)
    return CommonFit(shared, heard, bound, missed, end.converged, tried)


def _smoothness(settings: FgprSettings, n_features: int) -> tuple[float, ...]:
    """Of departures: that of the kernel given, or those to choose among."""
    if settings.kernel is None:
        return OWN_SMOOTHNESS
    fast = kernel_form(settings.kernel, n_features).fast
    assert fast is not None
    return (RBF_TRAVELS if np.isinf(fast.smoothness) else fast.smoothness,)


class _Problem:
    """Penalised bound per row of one smoothness, at points on a grid."""

    def __init__(self, smoothness: Floats, extent: Extent, n_points: int) -> None:
        d = len(extent.low)
        self.smoothness, self.extent = smoothness, extent
        self.form = form_of(smoothness, d)
        self.places = grid(extent.low, extent.high, n_points)
        self.priors = weak_priors(self.form.names, 1.0, np.ones(d))
        is_length = np.array(["length" in name for name in self.form.names])
        bounds = np.where(is_length[:, None], np.log(LENGTH_BOUNDS), np.log(VARIANCE_BOUNDS))
        self.lower, self.upper = bounds.T
        self.n_rows, self.missed = 1.0, 0.0

    def evaluate(self, theta: Floats) -> Generator[Any, Any, Seen]:
        """What the sites' sums say at a point, which is asked for."""
        told: Sums
        told, who = yield theta
        value, gradient = self.at(theta, told)
        self.n_rows = max(float(told.rows.sum()), 1.0)
        self.missed = share_missed(self.form, theta, told)
        return Seen(value / self.n_rows, gradient / self.n_rows, who)

    def at(self, theta: Floats, told: Sums) -> tuple[float, Floats]:
        """Penalised negative bound and its gradient."""
        value, gradient = negative_bound(self.form, theta, told)
        more, slope = penalty(self.priors, theta)
        return value + float(more), gradient + slope

    def ask(self, theta: Floats, step: str, note: str) -> Ask:
        """For sums at several parameters (k, p)."""
        return ask(step, theta, np.tile(self.smoothness, (len(theta), 1)), self, note)


def ask(step: str, theta: Floats, smoothness: Floats, problem: _Problem, note: str) -> Ask:
    """For sums at several parameters (k, p) with their smoothness (k, 2)."""
    common = {
        "theta": theta,
        "smoothness": smoothness,
        "places": problem.places,
        "frame": problem.extent.units.frame,
        "units": problem.extent.units.target,
    }
    return Ask(step, common, note=note)


def _side_by_side(
    problems: list[_Problem], starts: list[Floats], settings: FgprSettings
) -> Generator[Ask, Replies, list[Minimum]]:
    """Several searches at once: what they want to know next is one round."""
    searches: list[Any] = [
        minimise_by_replay(p.evaluate, start, p.lower, p.upper, settings.tol, settings.max_rounds)
        for p, start in zip(problems, starts)
    ]
    ends: list[Minimum | None] = [None] * len(searches)
    wanted = {k: next(search) for k, search in enumerate(searches)}
    while wanted:
        active = list(wanted)
        theta = np.array([wanted[k] for k in active])
        smoothness = np.array([problems[k].smoothness for k in active])
        replies = yield ask("slopes", theta, smoothness, problems[0], "common curve")
        told = list(_sums_of(replies, problems[0]))
        for k, sums in zip(active, told):
            try:
                wanted[k] = searches[k].send((sums, replies.clients.tobytes()))
            except StopIteration as stop:
                ends[k] = stop.value
                del wanted[k]
    return [end for end in ends if end is not None]


def _sums_of(replies: Replies, problem: _Problem) -> Iterator[Sums]:
    """One after another, the sums at each of the parameters that were asked for."""
    width = len(problem.places) + problem.form.n_mean + 1
    for k in range(replies["gram"].shape[1]):
        gram = wholes(replies["gram"][:, k], width)
        yield Sums(gram, replies["log_det"][:, k], replies["missed"][:, k], replies["rows"])


# ------------------------------------------------------------------ what is left open


def _left_open(problem: _Problem, mode: Floats, n_clients: int) -> Server:
    """The common curve under a cloud of parameters, who is behind it, bound and share missed."""
    form, limits = problem.form, (problem.lower, problem.upper)
    free = open_parameters(mode, *limits)
    points, draws = mode[None], None
    if len(free):
        around = neighbours(mode, free)
        replies = yield problem.ask(around, "slopes", "curvature")
        told = _sums_of(replies, problem)
        gradients = np.array([problem.at(*pair)[1] for pair in zip(around, told)])
        cloud = cloud_around(mode, free, curvature(gradients, free), *limits)
        points, draws = np.concatenate([mode[None], cloud.points]), cloud
    replies = yield problem.ask(points, "totals", "what is left open")
    told = list(_sums_of(replies, problem))
    values = np.array([negative_bound_value(form, *pair) for pair in zip(points, told)])
    values += penalty(problem.priors, points)[0]
    share = np.ones(1)
    if draws is not None:
        share = np.append(0.0, cloud_weights(draws, values[1:]))
    kept = np.flatnonzero(share)
    known = [weights(form, points[k], told[k]) for k in kept]
    shared = Shared(
        problem.extent.units,
        problem.places,
        problem.smoothness,
        points[kept],
        share[kept],
        np.array([one.mean for one in known]),
        np.array([one.covariance for one in known]),
    )
    heard = over_roster(np.ones(len(replies.clients), bool), replies.clients, n_clients, False)
    missed = share_missed(form, mode, told[0])
    return shared, heard, -float(negative_bound_value(form, mode, told[0])), missed


def compare(shared: Shared, prior: Floats, target: Floats) -> Ask:
    """The question which model suits each site."""
    common = {
        "places": shared.places,
        "frame": shared.units.frame,
        "units": shared.units.target,
        "smoothness": shared.smoothness,
        "theta": shared.theta,
        "weights": shared.weights,
        "mean": shared.mean,
        "covariance": shared.covariance,
        "prior": prior,
        "target": target,
    }
    return Ask("compare", common, note="sites compare")


def chosen(left_out: Floats, rows: Floats, n_parameters: int, settings: FgprSettings) -> Bools:
    """Which sites use the common curve (m + 1,); the last entry is that of sites not seen.

    All sites follow what is better for all rows together; where `personalise="choose"`, a site goes
    its own way if that gains what BIC asks for.
    """
    gain = np.nan_to_num(left_out[:, 1] - left_out[:, 0])
    for_all = settings.common is True or float(gain.sum()) > 0.0
    use = np.full(len(gain) + 1, for_all)
    if settings.common == "choose" and settings.personalise == "choose":
        needed = 0.5 * n_parameters * np.log(np.maximum(rows, 1.0)) + n_parameters
        clear = (np.abs(gain) > needed) & (rows > 0)
        use[:-1] = np.where(clear, gain > 0, for_all)
    return use
