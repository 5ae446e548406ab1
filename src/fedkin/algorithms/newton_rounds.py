"""Newton's method as a server program: a round asks for sums of values and slopes at many points.

Rounds cost more than numbers. So a round asks at a point and at small steps to both sides of it in
every direction: the slopes' differences are the second derivatives, and half a dozen rounds lead
from a fair start to where no slope is left. A step that did not go down is shortened; where the
curvature is negative its sign is turned, so that saddles are left.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np

from fedkin.arrays import Floats
from fedkin.models.smooth_search import positive_inverse
from fedkin.protocol import Ask, Replies

# Step of the differences, in units of the parameters or of one.
DIFFERENCE = 1e-4
# A step may change a parameter by itself, or by this if it is smaller.
LONGEST_STEP = 1.0
SHORTENED = 0.25
# A value is larger than another if it is by this share.
SURELY_LARGER = 1e-9
# When a site that was heard before is silent at the end, it is waited for so many rounds.
MOST_WAITS = 3
# A place without slope where the value curves down more than this is left by a step so long; it may
# lie exactly between two minima, as no spread lies between a spread and its negative.
CURVES_DOWN, AWAY = 1e-2, 0.3
MOST_LEFT = 3


class Looked(NamedTuple):
    """Sums at k points: values (k,), slopes (k, p), and who contributed."""

    values: Floats
    slopes: Floats
    clients: frozenset[int]


class End(NamedTuple):
    """Where a search ended: point (p,), value, slope (p,), second derivatives (p, p)."""

    point: Floats
    value: float
    slope: Floats
    curvature: Floats
    converged: bool
    history: Floats


Look = Callable[[Floats], Generator[Ask, Replies, Looked]]
Search = Generator[Ask, Replies, End]


def minimise_by_newton(look: Look, start: Floats, tol: float, max_rounds: int) -> Search:
    """The minimum near `start`: no entry of the slope exceeds `tol`, with everybody heard."""
    point, base, step = start, start, np.zeros(len(start))
    heard: frozenset[int] = frozenset()
    found: Looked | None = None
    waits, left, history = 0, 0, []
    for _ in range(max(max_rounds, 1)):
        seen = yield from look(around(point))
        if found is not None and _went_up(found, seen):
            step = SHORTENED * step
            point = base + step
            continue
        found, base = seen, point
        history.append(float(seen.values[0]))
        heard |= seen.clients
        if np.abs(seen.slopes[0]).max(initial=0.0) <= tol:
            down = _downward(base, seen) if left < MOST_LEFT else None
            if down is not None:
                left += 1
                step = AWAY * down
                point = base + step
                continue
            if seen.clients == heard or waits == MOST_WAITS:
                break
            waits += 1
        step = newton_step(base, seen)
        point = base + step
    assert found is not None
    slope = found.slopes[0]
    converged = bool(np.abs(slope).max(initial=0.0) <= tol)
    curvature = second_derivatives(base, found)
    return End(base, history[-1], slope, curvature, converged, np.array(history))


def _downward(point: Floats, seen: Looked) -> Floats | None:
    """The direction (p,) in which the value curves down most, if it does; its largest entry > 0."""
    values, vectors = np.linalg.eigh(second_derivatives(point, seen))
    if not len(values) or values[0] >= -CURVES_DOWN:
        return None
    direction = vectors[:, 0]
    return direction * np.sign(direction[np.argmax(np.abs(direction))])


def _went_up(before: Looked, after: Looked) -> bool:
    """Whether the same sites have a larger sum now; sums of others cannot be compared."""
    if not np.isfinite(after.values[0]) or not np.isfinite(after.slopes).all():
        return True
    room = SURELY_LARGER * max(1.0, abs(float(before.values[0])))
    return before.clients == after.clients and bool(after.values[0] > before.values[0] + room)


def around(point: Floats) -> Floats:
    """The point, and a step ahead and behind in every direction, (1 + 2 p, p)."""
    moves = np.diag(_moves(point))
    return np.concatenate([point[None], point + moves, point - moves])


def _moves(point: Floats) -> Floats:
    return DIFFERENCE * np.maximum(1.0, np.abs(point))


def second_derivatives(point: Floats, seen: Looked) -> Floats:
    """From the slopes at the points `around` one, (p, p)."""
    p = len(point)
    ahead, behind = seen.slopes[1 : p + 1], seen.slopes[p + 1 :]
    out = (ahead - behind) / (2.0 * _moves(point))[:, None]
    return 0.5 * (out + out.T)


def newton_step(point: Floats, seen: Looked) -> Floats:
    """Downhill by the curvature, not further than parameters are large."""
    step = -positive_inverse(second_derivatives(point, seen)) @ seen.slopes[0]
    reach = np.maximum(LONGEST_STEP, np.abs(point))
    return step / max(1.0, float((np.abs(step) / reach).max(initial=0.0)))
