"""Minimum of a smooth function of a few numbers, down to a slope that is zero but for rounding.

SciPy's BFGS goes downhill until values cannot be told apart; from there quasi-Newton steps on the
slope alone go on, which rounding of the values does not stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Objective = Callable[[Floats], tuple[float, Floats]]

MOST_STEPS = 3000
# Slope at which going downhill hands over: a line search still sees values of 1e5 change.
DOWNHILL = 1e-2
MOST_REFINEMENTS = 40
# Step for slopes' differences: the third derivative's share and rounding's are both about 1e-8.
DIFFERENCE = 1e-4
# Above this many numbers a matrix of second derivatives by differences takes too long.
MOST_BY_DIFFERENCES = 60


class Found(NamedTuple):
    """Where a search ended: largest entry of the slope `gradient`, evaluations spent."""

    point: Floats
    value: float
    gradient: float
    n_evaluations: int


class Remembered:
    """An objective that is asked once at a point; `count` points so far."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._known: dict[bytes, tuple[float, Floats]] = {}

    @property
    def count(self) -> int:
        """How many points were asked for."""
        return len(self._known)

    def __call__(self, point: Floats) -> tuple[float, Floats]:
        """Value and slope at a point."""
        key = np.asarray(point, dtype=float).tobytes()
        if key not in self._known:
            self._known[key] = self._objective(point)
        return self._known[key]


def minimise(
    objective: Objective, start: Floats, tol: float = 1e-7, inverse: Floats | None = None
) -> Found:
    """A local minimum near `start`; `inverse` (p, p) guesses the inverse of the curvature."""
    from scipy.optimize import minimize

    asked = objective if isinstance(objective, Remembered) else Remembered(objective)
    before = asked.count
    first = asked(start)[0]
    if not len(start):
        return Found(start, first, 0.0, asked.count - before)

    def shifted(point: Floats) -> tuple[float, Floats]:
        value, gradient = asked(point)
        return value - first, gradient

    point, gradient = start, np.inf
    inverse = np.eye(len(start)) if inverse is None else inverse
    for hand_over in (DOWNHILL, DOWNHILL**2, tol):
        options = {"gtol": hand_over, "maxiter": MOST_STEPS, "hess_inv0": _positive(inverse)}
        with np.errstate(all="ignore"):  # line searches try points far out
            ended = minimize(shifted, point, jac=True, method="BFGS", options=options)
        inverse = _positive(ended.hess_inv)
        point, gradient = refine(asked, ended.x, inverse, tol)
        if gradient <= tol:
            break
    return Found(point, asked(point)[0], gradient, asked.count - before)


def refine(
    objective: Objective, start: Floats, inverse: Floats, tol: float
) -> tuple[Floats, float]:
    """Quasi-Newton steps that make the slope smaller; the point and the slope's largest entry."""
    point, slope = start, objective(start)[1]
    fresh = False
    for _ in range(MOST_REFINEMENTS):
        size = float(np.abs(slope).max())
        if size <= tol:
            break
        step = -inverse @ slope
        new_slope = objective(point + step)[1]
        better = float(np.abs(new_slope).max()) < size
        inverse = updated(inverse, step, new_slope - slope)
        if better:
            point, slope = point + step, new_slope
        elif fresh or len(point) > MOST_BY_DIFFERENCES:
            break
        else:
            inverse, fresh = positive_inverse(second_derivatives(objective, point)), True
    return point, float(np.abs(slope).max())


def updated(inverse: Floats, step: Floats, change: Floats) -> Floats:
    """The BFGS update of an inverse Hessian; left alone where the curvature is not positive."""
    curvature = float(step @ change)
    if curvature <= 1e-12 * float(np.linalg.norm(step) * np.linalg.norm(change)):
        return inverse
    left = np.eye(len(step)) - np.outer(step, change) / curvature
    return np.asarray(left @ inverse @ left.T + np.outer(step, step) / curvature)


def second_derivatives(objective: Objective, point: Floats) -> Floats:
    """The matrix of second derivatives, by central differences of the slope, (p, p)."""
    rows = []
    for k in range(len(point)):
        move = np.zeros(len(point))
        move[k] = DIFFERENCE * max(1.0, abs(float(point[k])))
        ahead, behind = objective(point + move)[1], objective(point - move)[1]
        rows.append((ahead - behind) / (2.0 * move[k]))
    out = np.array(rows).reshape(len(point), len(point))
    return 0.5 * (out + out.T)


def _positive(matrix: Floats, least: float = 1e-12) -> Floats:
    """The nearest matrix without small or negative eigenvalues; the identity if it is none."""
    if not np.isfinite(matrix).all():
        return np.eye(len(matrix))
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    raised = np.maximum(values, least * max(float(values[-1]), 1e-300))
    out = (vectors * raised) @ vectors.T
    return np.asarray(0.5 * (out + out.T))


def positive_inverse(matrix: Floats, least: float = 1e-10) -> Floats:
    """The inverse with eigenvalues made positive; directions without curvature are left out."""
    values, vectors = np.linalg.eigh(matrix)
    size = np.abs(values)
    kept = size > least * max(float(size.max(initial=0.0)), 1e-300)
    return np.asarray((vectors * np.where(kept, 1.0 / np.where(kept, size, 1.0), 0.0)) @ vectors.T)
