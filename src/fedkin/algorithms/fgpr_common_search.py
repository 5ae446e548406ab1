"""Searches for the parameters of FGPR's common curve: several kinds side by side in one round.

A kind is the smoothness of common curve and departures and the steepness of the common mean, as it
travels (`models/common_site.py`); `fgpr_common.py` says which are tried.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.algorithms.minimise import Minimum, Seen, minimise_by_replay
from fedkin.arrays import Floats, Indices
from fedkin.models.common_curve import negative_bound, share_missed
from fedkin.models.common_form import SPLINE
from fedkin.models.common_site import Units, form_of
from fedkin.models.common_sums import Sums, sent, together, wholes
from fedkin.models.gp_priors import common_priors, penalty
from fedkin.models.inducing import grid
from fedkin.protocol import Ask, Replies

# Bounds of variances, in those of all targets, of lengths, in spreads of the features, of the pivot
# of departures, in spreads from the centre, and of growth and haste, in logarithms per spread.
VARIANCE_BOUNDS = (1e-8, 1e2)
LENGTH_BOUNDS = (0.05, 100.0)
PIVOT_BOUNDS = (-10.0, 10.0)
GROWTH_BOUNDS = (-3.0, 3.0)
HASTE_BOUNDS = (-3.0, 3.0)
# The search counts these in this unit, as rows tell them more sharply than logarithms.
SHARPER_UNIT = 0.2
SHARPER = {"pivot": PIVOT_BOUNDS, "growth": GROWTH_BOUNDS, "haste": HASTE_BOUNDS}
# Numbers that all sites together send in one round (256 MB); what is more is asked for in parts.
MOST_NUMBERS = 1 << 25


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
    """Penalised bound per row of one kind, at points on a grid; features may bend, or not."""

    def __init__(self, kind: Floats, extent: Extent, n_points: int, bends: bool = False) -> None:
        d = len(extent.low)
        self.kind, self.extent, self.bends = kind, extent, bends
        self.places = grid(extent.low, extent.high, n_points)
        self.form = form_of(kind, self.places)
        self.priors = common_priors(self.form.names, d)
        bounds = np.array([_bounds_of(name) for name in self.form.names])
        self.lower, self.upper = bounds.T.copy()
        sharper = np.array([name in SHARPER for name in self.form.names])
        self.unit = np.where(sharper, SHARPER_UNIT, 1.0)
        self.has = np.array([bends or name != "haste" for name in self.form.names])
        if self.form.common == SPLINE:
            self.has[1] = False
        self.lower[~self.has] = self.upper[~self.has] = self.priors.centre[~self.has]
        self.n_rows, self.missed = 1.0, 0.0

    @property
    def width(self) -> int:
        """Columns of the matrices that sites send: features of the curve, and the target."""
        return len(self.places) + self.form.n_mean + 1

    def search(self, start: Floats, settings: FgprSettings) -> Generator[Any, Any, Minimum]:
        """The program that finds the best parameters from some."""
        limits = self.lower / self.unit, self.upper / self.unit
        end: Minimum = yield from minimise_by_replay(
            self.evaluate, start / self.unit, *limits, settings.tol, settings.max_rounds
        )
        return end._replace(point=end.point * self.unit, path=end.path * self.unit)

    def evaluate(self, point: Floats) -> Generator[Any, Any, Seen]:
        """What the sites' sums say at a point in the search's units, which is asked for."""
        sums: Sums
        theta = point * self.unit
        sums, who = yield theta
        value, gradient = self.at(theta, sums)
        self.n_rows = max(float(sums.rows.sum()), 1.0)
        self.missed = share_missed(self.form, theta, sums)
        return Seen(value / self.n_rows, self.unit * gradient / self.n_rows, who)

    def at(self, theta: Floats, sums: Sums) -> tuple[float, Floats]:
        """Penalised negative bound and its gradient."""
        value, gradient = negative_bound(self.form, theta, sums)
        more, slope = penalty(self.priors, theta)
        return value + float(more), gradient + slope


def _bounds_of(name: str) -> Floats:
    """Of a parameter, as `full` holds it."""
    if name in SHARPER:
        return np.array(SHARPER[name])
    return np.log(LENGTH_BOUNDS if "length" in name else VARIANCE_BOUNDS)


Told = tuple[list[Sums], Indices]


def told(
    step: str, wanted: list[tuple[Problem, Floats]], note: str, n_clients: int, needed: bool = True
) -> Generator[Ask, Replies, Told]:
    """Sums over sites at several parameters of several kinds, on the same points; and who told.

    In one round, or in as many as keep what comes back below `MOST_NUMBERS`: by parameters and, if
    one of these is too much, by sites. All parts are about the same sites: who was not heard in one
    of them is left out of all. Nobody is heard if what is not `needed` is kept back by everybody.
    """
    each = _numbers(wanted[0][0], step == "slopes")
    at_once = max(1, MOST_NUMBERS // (n_clients * each))
    parts = [wanted[begin : begin + at_once] for begin in range(0, len(wanted), at_once)]
    who: Indices | None = None
    while True:
        found: list[Sums] = []
        heard: list[Indices] = []
        for part in parts:
            sums, clients = yield from _of_blocks(step, part, note, who, n_clients, needed)
            found, heard = found + sums, [*heard, clients]
        if all(np.array_equal(clients, heard[0]) for clients in heard):
            return found, heard[0]
        who = reduce(np.intersect1d, heard)


def _numbers(problem: Problem, slopes: bool) -> int:
    """How many numbers a site sends of one parameter."""
    width = problem.width
    return (1 + len(sent(problem.form)) * slopes) * width * (width + 1) // 2


def _of_blocks(
    step: str,
    wanted: list[tuple[Problem, Floats]],
    note: str,
    who: Indices | None,
    n_clients: int,
    needed: bool,
) -> Generator[Ask, Replies, Told]:
    """Sums at some parameters, and who told: all sites at once, or one block of them after another.

    `who` are the sites to ask; None asks all.
    """
    at_once = max(1, MOST_NUMBERS // (len(wanted) * _numbers(wanted[0][0], step == "slopes")))
    blocks: list[Indices | None] = [who]
    if at_once < n_clients:
        sites = np.arange(n_clients) if who is None else who
        blocks = list(np.split(sites, np.arange(at_once, len(sites), at_once)))
    found: list[Sums] = []
    heard: list[Indices] = []
    for block in blocks:
        replies = yield _ask(step, wanted, note, block, needed)
        if not len(replies.clients):
            continue
        sums = _sums_of(replies)
        found = [_added(*pair) for pair in zip(found, sums)] if found else sums
        heard.append(replies.clients)
    whole = [sums._replace(gram=wholes(sums.gram, wanted[0][0].width)) for sums in found]
    return whole, np.concatenate([np.empty(0, dtype=np.intp), *heard])


def _ask(
    step: str,
    wanted: list[tuple[Problem, Floats]],
    note: str,
    who: Indices | None,
    needed: bool,
) -> Ask:
    first = wanted[0][0]
    common = {
        "theta": np.array([theta for _, theta in wanted]),
        "kinds": np.array([problem.kind for problem, _ in wanted]),
        "places": first.places,
        "frame": first.extent.units.frame,
        "units": first.extent.units.target,
    }
    return Ask(step, common, who=who, note=note, needed=needed)


def _sums_of(replies: Replies) -> list[Sums]:
    """The sums, added over sites, at each of the parameters asked for; as they travel."""
    gram, log_det, missed = (replies[name] for name in ("gram", "log_det", "missed"))
    return [
        together(Sums(gram[:, k], log_det[:, k], missed[:, k], replies["rows"]))
        for k in range(gram.shape[1])
    ]


def _added(one: Sums, other: Sums) -> Sums:
    return Sums(*(a + b for a, b in zip(one, other)))


def side_by_side(
    problems: list[Problem],
    starts: list[Floats],
    settings: FgprSettings,
    n_clients: int,
    needed: bool = True,
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
        found, heard = yield from told("slopes", pairs, "common curve", n_clients, needed)
        if not len(heard):
            return []
        for k, sums in zip(active, found):
            try:
                wanted[k] = searches[k].send((sums, heard.tobytes()))
            except StopIteration as stop:
                ends[k] = stop.value
                del wanted[k]
    return [end for end in ends if end is not None]
