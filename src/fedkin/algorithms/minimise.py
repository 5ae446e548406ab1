"""Minimisers as server programs: an evaluation is an Ask.

An optimiser that wants to call a function becomes a program by replay: it is run on the
evaluations that are known, stops at the first point that is not, that point is asked for, and it
is run again. It is deterministic, so it comes by the same way each time; a few dozen evaluations
of a few parameters cost less than one message.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from fedkin.arrays import Floats
from fedkin.protocol import Ask, Replies

# L-BFGS by replay: it keeps about all corrections, because problems here are small, and ends
# itself only when the gradient is small; the bound on evaluations is ours.
LBFGS = {"ftol": 0.0, "maxcor": 20, "maxiter": 10_000, "maxfun": 10_000}
# A search is begun again this often when other sites answer; then it goes on without one.
MOST_RESTARTS = 5
# A line search that finds nothing better has come to the rounding of the values when so many of
# the last ones agree to this, and no entry of the gradient is larger than that.
STALLED_EVALUATIONS = 5
STALLED_VALUES = 1e-6
STALLED_GRADIENT = 1e-2
# Length of L-BFGS's first step in log-parameters. Five lengths from .3 to 1.5 were compared on 40
# simulated federations: 15 to 16 evaluations on average with each, the worst case is least here.
FIRST_STEP = 0.5
# Damped steps: the longest one in log-parameters, at first and at most.
LONGEST_STEP = 1.0
# Where gradients are of changing sites, steps shrink like this power of the round.
DECAY = 0.75


class Seen(NamedTuple):
    """One evaluation: value, gradient, and who contributed (as bytes, to compare)."""

    value: float
    gradient: Floats
    responders: bytes


class Minimum(NamedTuple):
    """The end of a search."""

    point: Floats
    value: float
    converged: bool
    path: Floats
    """Points asked for, (evaluations, p)."""
    values: Floats


Evaluate = Callable[[Floats], Generator[Ask, Replies, Seen]]
Search = Generator[Ask, Replies, Minimum]


class _NotKnown(Exception):
    def __init__(self, point: Floats) -> None:
        self.point = point


class _Log:
    """Every evaluation of a search, in the order asked."""

    def __init__(self, lower: Floats, upper: Floats) -> None:
        self.lower, self.upper = lower, upper
        self.points: list[Floats] = []
        self.seen: list[Seen] = []

    def add(self, point: Floats, seen: Seen) -> None:
        self.points.append(point)
        self.seen.append(seen)

    def size(self, index: int) -> float:
        """Largest entry of the gradient, not counting what pushes against a bound."""
        point = self.points[index]
        downhill = np.clip(point - self.seen[index].gradient, self.lower, self.upper)
        return float(np.abs(downhill - point).max(initial=0.0))

    def told(self, index: int) -> bool:
        """Whether anybody had anything to say."""
        return bool(np.isfinite(self.seen[index].value))

    def stalled(self) -> bool:
        """Whether the search ended because values cannot be told apart any more."""
        values = [seen.value for seen in self.seen[-STALLED_EVALUATIONS:]]
        close = len(values) == STALLED_EVALUATIONS and np.ptp(values) <= STALLED_VALUES
        return bool(close and self.size(-1) <= STALLED_GRADIENT)

    def end(self, index: int, tol: float) -> Minimum:
        seen = self.seen[index]
        return Minimum(
            self.points[index],
            seen.value,
            self.size(index) <= tol,
            np.array(self.points),
            np.array([one.value for one in self.seen]),
        )


def minimise_by_replay(
    evaluate: Evaluate,
    start: Floats,
    lower: Floats,
    upper: Floats,
    tol: float,
    max_evaluations: int,
) -> Search:
    """SciPy's L-BFGS-B; stops when no entry of the projected gradient exceeds `tol`.

    If other sites answer than before, the search begins again at the best point; if that keeps
    happening it goes on with damped steps.
    """
    log = _Log(lower, upper)
    begin, restarts, ended = np.clip(start, lower, upper), 0, False
    known: dict[bytes, Seen] = {}
    while len(log.points) < max_evaluations:
        missing = _replay(known, begin, lower, upper, tol)
        if missing is None:
            ended = log.stalled()
            break
        seen = yield from evaluate(missing)
        if known and seen.responders != next(iter(known.values())).responders:
            # Values of other sites cannot be compared; the new point is the first of its kind.
            lowest = min(known, key=lambda key: known[key].value)
            begin, known, restarts = np.frombuffer(lowest).copy(), {}, restarts + 1
        if restarts > MOST_RESTARTS:
            rest = max_evaluations - len(log.points)
            return (yield from minimise_damped(evaluate, begin, lower, upper, tol, rest))
        log.add(missing, seen)
        known[missing.tobytes()] = seen
        if log.size(-1) <= tol:
            return log.end(len(log.points) - 1, tol)
    last = log.seen[-1].responders
    same = [i for i, seen in enumerate(log.seen) if seen.responders == last]
    best = log.end(min(same, key=lambda i: log.seen[i].value), tol)
    return best._replace(converged=best.converged or ended)


def _replay(
    known: dict[bytes, Seen], begin: Floats, lower: Floats, upper: Floats, tol: float
) -> Floats | None:
    """The first point L-BFGS wants that is not known; None when it has come to its end."""
    # Within bounds L-BFGS-B's first step is the gradient itself, so its length is set by scaling.
    first = known.get(begin.tobytes())
    length = tol if first is None else max(float(np.linalg.norm(first.gradient)), tol)
    scale = FIRST_STEP / length

    def look_up(point: Floats) -> tuple[float, Floats]:
        key = point.tobytes()
        if key not in known:
            raise _NotKnown(point.copy())
        return scale * known[key].value, scale * known[key].gradient

    bounds, options = np.stack([lower, upper], axis=1), {**LBFGS, "gtol": tol * scale}
    try:
        minimize(look_up, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    except _NotKnown as missing:
        return missing.point
    return None


def minimise_damped(
    evaluate: Evaluate,
    start: Floats,
    lower: Floats,
    upper: Floats,
    tol: float,
    max_evaluations: int,
    decay: bool = False,
) -> Search:
    """Quasi-Newton steps of bounded length on gradients alone: there need be no objective.

    A step that makes the gradient much larger halves the longest step and is taken back. With
    `decay`, for gradients of changing sites, steps shrink and nothing is taken back. A value that
    is not a number means that nobody had anything to say: the search waits for others.
    """
    log = _Log(lower, upper)
    point, radius = np.clip(start, lower, upper), LONGEST_STEP
    inverse = np.eye(len(point))
    seen = yield from evaluate(point)
    log.add(point, seen)
    for number in range(1, max_evaluations):
        if log.size(-1) <= tol and (log.told(-1) or not decay):
            break
        free = _free(point, seen.gradient, lower, upper)
        step = -(inverse * np.outer(free, free)) @ seen.gradient
        longest = radius * number**-DECAY if decay else radius
        step *= min(1.0, longest / max(float(np.linalg.norm(step)), 1e-300))
        new = np.clip(point + step, lower, upper)
        there = yield from evaluate(new)
        log.add(new, there)
        worse = np.linalg.norm(there.gradient * free) > 2.0 * np.linalg.norm(seen.gradient * free)
        inverse = _updated(inverse, new - point, there.gradient - seen.gradient)
        if worse and not decay:
            radius *= 0.5
            continue
        radius = min(radius * 1.5, LONGEST_STEP)
        point, seen = new, there
    every = range(len(log.points))
    if decay:
        return log.end(max((i for i in every if log.told(i)), default=-1), tol)
    return log.end(min(every, key=log.size), tol)


def _free(point: Floats, gradient: Floats, lower: Floats, upper: Floats) -> Floats:
    """1 where a step downhill stays within the bounds, else 0."""
    stuck = ((point <= lower) & (gradient > 0)) | ((point >= upper) & (gradient < 0))
    return np.where(stuck, 0.0, 1.0)


def _updated(inverse: Floats, step: Floats, change: Floats) -> Floats:
    """The BFGS update of an inverse Hessian; left alone where the curvature is not positive."""
    curvature = float(step @ change)
    if curvature <= 1e-10 * float(np.linalg.norm(step) * np.linalg.norm(change)):
        return inverse
    if np.array_equal(inverse, np.eye(len(step))):
        inverse = inverse * curvature / float(change @ change)
    left = np.eye(len(step)) - np.outer(step, change) / curvature
    updated: Floats = left @ inverse @ left.T + np.outer(step, step) / curvature
    return updated
