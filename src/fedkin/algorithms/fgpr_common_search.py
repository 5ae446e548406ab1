"""Searches for the parameters of FGPR's common curve: several kinds side by side in one round.

A kind is the smoothness of common curve and departures and the steepness of the common mean, as it
travels (`models/common_site.py`); `fgpr_common.py` says which are tried.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import numpy as np

from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.algorithms.minimise import Minimum, Seen, minimise_by_replay
from fedkin.arrays import Floats
from fedkin.models.common_curve import negative_bound, share_missed
from fedkin.models.common_form import SPLINE
from fedkin.models.common_site import Units, form_of
from fedkin.models.common_sums import Sums, together, wholes
from fedkin.models.gp_priors import penalty, weak_priors
from fedkin.models.inducing import grid
from fedkin.protocol import Ask, Replies

# Bounds of variances, in those of all targets, of lengths, in spreads of the features, and of
# the pivot of departures, in spreads from the centre; of growth and bend, in logarithms per spread.
VARIANCE_BOUNDS = (1e-8, 1e2)
LENGTH_BOUNDS = (0.05, 100.0)
PIVOT_BOUNDS = (-10.0, 10.0)
GROWTH_BOUNDS = (-3.0, 3.0)
BEND_BOUNDS = (-1.5, 1.5)
PLAIN_BOUNDS = {"pivot": PIVOT_BOUNDS, "growth": GROWTH_BOUNDS, "bend": BEND_BOUNDS}
# The search counts all three in this unit, as rows tell them more sharply than logarithms.
SHARPER_UNIT = 0.2


class Extent(NamedTuple):
    """One frame for all sites, the box of their features in it, (d,) each, and a steepness.

    `steep` is the target's spread within sites over that of their features, in the frame: slopes of
    the common mean are of this size or less.
    """

    units: Units
    low: Floats
    high: Floats
    steep: float = 1.0


class Problem:
    """Penalised bound per row of one kind, at points on a grid."""

    def __init__(self, kind: Floats, extent: Extent, n_points: int) -> None:
        d = len(extent.low)
        self.kind, self.extent = kind, extent
        self.places = grid(extent.low, extent.high, n_points)
        self.form = form_of(kind, self.places)
        self.priors = weak_priors(self.form.names, 1.0, np.ones(d))
        bounds = np.array([_bounds_of(name) for name in self.form.names])
        self.lower, self.upper = bounds.T.copy()
        sharper = np.array([name in PLAIN_BOUNDS for name in self.form.names])
        self.unit = np.where(sharper, SHARPER_UNIT, 1.0)
        self.has = np.ones(len(self.form.names), dtype=bool)
        if self.form.common == SPLINE:
            self.has[1] = False
            self.lower[1] = self.upper[1] = self.priors.centre[1]
        self.n_rows, self.missed = 1.0, 0.0

    def search(self, start: Floats, settings: FgprSettings) -> Generator[Any, Any, Minimum]:
        """The program that finds the best parameters from some."""
        limits = self.lower / self.unit, self.upper / self.unit
        end: Minimum = yield from minimise_by_replay(
            self.evaluate, start / self.unit, *limits, settings.tol, settings.max_rounds
        )
        return end._replace(point=end.point * self.unit, path=end.path * self.unit)

    def evaluate(self, point: Floats) -> Generator[Any, Any, Seen]:
        """What the sites' sums say at a point in the search's units, which is asked for."""
        told: Sums
        theta = point * self.unit
        told, who = yield theta
        value, gradient = self.at(theta, told)
        self.n_rows = max(float(told.rows.sum()), 1.0)
        self.missed = share_missed(self.form, theta, told)
        return Seen(value / self.n_rows, self.unit * gradient / self.n_rows, who)

    def at(self, theta: Floats, told: Sums) -> tuple[float, Floats]:
        """Penalised negative bound and its gradient."""
        value, gradient = negative_bound(self.form, theta, told)
        more, slope = penalty(self.priors, theta)
        return value + float(more), gradient + slope


def _bounds_of(name: str) -> Floats:
    """Of a parameter, as `full` holds it."""
    if name in PLAIN_BOUNDS:
        return np.array(PLAIN_BOUNDS[name])
    return np.log(LENGTH_BOUNDS if "length" in name else VARIANCE_BOUNDS)


def ask(step: str, wanted: list[tuple[Problem, Floats]], note: str, needed: bool = True) -> Ask:
    """For sums at several parameters of several kinds, on the same points."""
    first = wanted[0][0]
    common = {
        "theta": np.array([theta for _, theta in wanted]),
        "kinds": np.array([problem.kind for problem, _ in wanted]),
        "places": first.places,
        "frame": first.extent.units.frame,
        "units": first.extent.units.target,
    }
    return Ask(step, common, note=note, needed=needed)


def side_by_side(
    problems: list[Problem], starts: list[Floats], settings: FgprSettings, needed: bool = True
) -> Generator[Ask, Replies, list[Minimum]]:
    """Several searches at once: what they want to know next is one round.

    None of them ends if what is not `needed` is kept back by everybody.
    """
    searches: list[Any] = [p.search(start, settings) for p, start in zip(problems, starts)]
    ends: list[Minimum | None] = [None] * len(searches)
    wanted = {k: next(search) for k, search in enumerate(searches)}
    while wanted:
        active = list(wanted)
        pairs = [(problems[k], wanted[k]) for k in active]
        replies = yield ask("slopes", pairs, "common curve", needed)
        if not len(replies.clients):
            return []
        told = list(sums_of(replies, problems[0]))
        for k, sums in zip(active, told):
            try:
                wanted[k] = searches[k].send((sums, replies.clients.tobytes()))
            except StopIteration as stop:
                ends[k] = stop.value
                del wanted[k]
    return [end for end in ends if end is not None]


def sums_of(replies: Replies, problem: Problem) -> Iterator[Sums]:
    """One after another the sums, added over sites, at each of the parameters asked for."""
    width = len(problem.places) + problem.form.n_mean + 1
    for k in range(replies["gram"].shape[1]):
        gram, log_det, missed = (replies[name][:, k] for name in ("gram", "log_det", "missed"))
        total = together(Sums(gram, log_det, missed, replies["rows"]))
        yield total._replace(gram=wholes(total.gram, width))
