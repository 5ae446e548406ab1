"""Sets of variances that a mixed model of classes tries: a grid, and steps around the best."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.arrays import Bools, Floats
from fedkin.ties import first_least

# The first sets of log variances: of B without departures; then of features' departures and of B.
# Intercepts' departures go with features'.
TOGETHER_LOGS = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
FEATURE_LOGS = (-5.0, -3.0, -1.2, 0.6)
COMMON_LOGS = (-0.5, 1.6)
# Of departures from the common model; then so far to both sides of the best of these, with each of
# three common models.
FROM_COMMON = tuple(np.linspace(-6.0, 3.0, 7))
ASIDE = (-3.0, -1.5, 0.0, 1.5, 3.0)
INTERCEPT_BEYOND = float(np.log(1.0 / 0.3))
# Later sets go so far on the way to what departures say of single classes.
ON_THE_WAY = (0.5, 1.0)
N_SETS = len(TOGETHER_LOGS) + len(FEATURE_LOGS) * len(COMMON_LOGS)
# Variances that are all the least stand for no departures.
LEAST_LOG, MOST_LOG = -10.0, 5.0
# A parabola's vertex counts up to this share of the points' span beyond them.
BEYOND = 0.25


class Sets(NamedTuple):
    """Sets of log variances: of departures (G, C, d), and of B (G,)."""

    departures: Floats
    common: Floats


class Centre(NamedTuple):
    """Log variances (C, d) and of B to look around, and how single classes should move (C, d)."""

    departures: Floats
    common: float
    pattern: Floats


class Axis(NamedTuple):
    """A way in which log variances can move, (C, d) and of B, and the steps tried along it."""

    departures: Floats
    common: float
    steps: tuple[float, float]


class Around(NamedTuple):
    """Sets around a centre: itself first, then the steps along every axis."""

    centre: Centre
    axes: list[Axis]
    sets: Sets

    def lowest(self, loss: Floats) -> tuple[Floats, float]:
        """Log variances where parabolas through the losses along the axes have their vertex."""
        departures, common = self.centre.departures, self.centre.common
        first = len(loss) - 2 * len(self.axes)
        for k, axis in enumerate(self.axes):
            own = loss[first + 2 * k : first + 2 * k + 2]
            move = vertex(np.array([0.0, *axis.steps]), np.array([loss[0], *own]))
            departures = departures + move * axis.departures
            common = common + move * axis.common
        return np.clip(departures, LEAST_LOG, MOST_LOG), float(np.clip(common, LEAST_LOG, MOST_LOG))


def vertex(at: Floats, loss: Floats) -> float:
    """Where a parabola through three points is lowest, not far beyond them."""
    bend, slope, _ = np.polyfit(at, loss, 2)
    if bend <= 0.0:
        return float(at[first_least(loss)])
    room = BEYOND * (at.max() - at.min())
    least = at.min() - room if at.min() < 0 else 0.0
    return float(np.clip(-0.5 * slope / bend, least, at.max() + room))


def first_sets(n_classes: int, is_level: Bools) -> Sets:
    """Some without departures, and a grid in which classes have equal variances."""
    none = [(LEAST_LOG, LEAST_LOG, c) for c in TOGETHER_LOGS]
    grid = [(f, f + INTERCEPT_BEYOND, c) for f in FEATURE_LOGS for c in COMMON_LOGS]
    return equal_sets(np.array([*none, *grid]), n_classes, is_level)


def equal_sets(levels: Floats, n_classes: int, is_level: Bools) -> Sets:
    """Sets in which classes are equal: log variances of features, intercepts, B (G, 3)."""
    by_column = np.where(is_level, levels[:, 1:2], levels[:, :1])
    return Sets(np.repeat(by_column[:, None, :], n_classes, axis=1), levels[:, 2])


def sets_aside(departures: Floats, common: float) -> Sets:
    """Sets with larger and smaller departures from a common model and the next ones."""
    step = TOGETHER_LOGS[1] - TOGETHER_LOGS[0]
    moves = [(aside, beside * step) for beside in (-1.0, 0.0, 1.0) for aside in ASIDE]
    logs = np.stack([departures + aside for aside, _ in moves])
    return Sets(
        np.clip(logs, LEAST_LOG, MOST_LOG), common + np.array([beside for _, beside in moves])
    )


def sets_around(centre: Centre, size: float, is_level: Bools, together: bool) -> Around:
    """Sets at the centre, `size` to both sides of it in each of the three, and by classes.

    `together`: B is the common model and stays, so that its variance does.
    """
    none = np.zeros(centre.departures.shape)
    axes = [Axis(none + ~is_level, 0.0, (size, -size)), Axis(centre.pattern, 0.0, ON_THE_WAY)]
    if not together:
        axes.append(Axis(none, 1.0, (size, -size)))
    if is_level.any():
        axes.append(Axis(none + is_level, 0.0, (size, -size)))
    moves = [(axes[0], 0.0)] + [(axis, step) for axis in axes for step in axis.steps]
    departures = np.stack([centre.departures + step * axis.departures for axis, step in moves])
    common = np.array([centre.common + step * axis.common for axis, step in moves])
    sets = Sets(*(np.clip(logs, LEAST_LOG, MOST_LOG) for logs in (departures, common)))
    return Around(centre, axes, sets)
