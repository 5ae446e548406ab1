"""The server's half of a mixed model in rounds: values and slopes of the sites' own likelihoods.

1. Scales of the columns, so that nothing hangs on units.
2. A start: for counts the regression without effects by Newton's method (Fisher scoring), for a
   normal target nothing; several sizes of the effects at once.
3. Newton's method on the sums (`newton_rounds`).
4. Sites learn their own effects. These leave only with share="statistics".
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np

from fedkin.algorithms.mixed_model_settings import MixedModelSettings
from fedkin.algorithms.mixed_model_start import (
    INFORMATION,
    Budget,
    Opened,
    Server,
    count_start,
    gaussian_start,
    in_units,
    open_rounds,
)
from fedkin.algorithms.newton_rounds import End, Looked, minimise_by_newton
from fedkin.arrays import Floats
from fedkin.models.least_squares import upper_triangle
from fedkin.models.linear_mixed_shared import Answers, criterion_of, information_of
from fedkin.models.smooth_search import positive_inverse
from fedkin.protocol import Ask, Replies, Roster

EFFECTS = ("effects", "given", "by_coef")


class Fitted(NamedTuple):
    """A fit in rounds, in the columns worked with."""

    opened: Opened
    end: End
    settled: Replies
    information: Answers | None
    without_effects: float | None
    """-2 log likelihood of the model without effects, where the same sites were heard."""
    log_weights: float
    """Of all rows, summed; for a normal target."""


def fit_in_rounds(roster: Roster, settings: MixedModelSettings) -> Server:
    """The whole search; at most `settings.max_rounds` rounds, or what a fit takes at the least."""
    budget = Budget(settings.max_rounds)
    opened = yield from open_rounds(roster, settings, budget)
    begin = gaussian_start if settings.gaussian else count_start
    opened, start, without = yield from begin(opened, settings, budget)
    look = _looker(opened, settings, budget)
    end = yield from minimise_by_newton(look, start, settings.tol, budget.left - 1)
    fields: tuple[str, ...] = INFORMATION if settings.gaussian else ()
    fields += EFFECTS if settings.share == "statistics" else ()
    weighted = settings.gaussian and settings.weighted
    fields += ("log_weights",) if weighted else ()
    settled = yield from budget.ask(
        "settle", opened.at.message(end.point[None]), fields=fields, note="sites learn their part"
    )
    told = _information(settled) if settings.gaussian else None
    comparable = np.array_equal(without.clients, settled.clients)
    logs = float(settled.total("log_weights")) if weighted else 0.0
    criterion = without.criterion - logs if comparable else None
    return Fitted(opened, end, settled, told, criterion, logs)


# ------------------------------------------------------------------ the search


def _looker(opened: Opened, settings: MixedModelSettings, budget: Budget) -> Any:
    """Sums of values and slopes at points."""
    restricted = settings.gaussian and settings.method == "reml"

    def look(points: Floats) -> Generator[Ask, Replies, Looked]:
        fields = INFORMATION if restricted else ()
        replies = yield from budget.ask(
            "slopes", opened.at.message(points), fields=fields, note="Newton's method"
        )
        values, slopes = replies.total("value"), replies.total("slope")
        if restricted:
            parts = [replies.total(name) for name in INFORMATION]
            found = [
                criterion_of(Answers(*some), point, "reml")
                for *some, point in zip(values, slopes, *parts, points)
            ]
            values = np.array([value for value, _ in found])
            slopes = np.array([slope for _, slope in found])
        return Looked(values, slopes, frozenset(map(int, replies.clients)))

    return look


def _information(settled: Replies) -> Answers:
    """Sums about the coefficients' information at the end."""
    return Answers(np.zeros(0), np.zeros(0), *(settled.total(name) for name in INFORMATION))


# ------------------------------------------------------------------ in the units of the columns


class Inference(NamedTuple):
    """Coefficients' covariance (d, d), their degrees (d,), uncertainty of the other numbers."""

    covariance: Floats
    degrees: Floats
    uncertainty: Floats


def inference(fitted: Fitted) -> Inference:
    """What the curvature at the end says."""
    basis, curvature = fitted.opened.at.basis, fitted.end.curvature
    k = basis.shape[1]
    if fitted.information is None:
        inverse = 2.0 * positive_inverse(curvature)
        covariance = basis @ inverse[:k, :k] @ basis.T
        return Inference(covariance, np.full(len(basis), np.inf), inverse[k:, k:])
    across = curvature[k:, :k]
    left = curvature[k:, k:] - across @ positive_inverse(curvature[:k, :k]) @ across.T
    uncertainty = 2.0 * positive_inverse(0.5 * (left + left.T))
    inverse = np.asarray(np.linalg.inv(information_of(fitted.information)))
    variance = (float(np.exp(fitted.end.point[-1])) * fitted.opened.at.scale) ** 2
    degrees = _satterthwaite(basis, inverse, fitted.information, uncertainty)
    return Inference(variance * basis @ inverse @ basis.T, degrees, uncertainty)


def _satterthwaite(
    basis: Floats, inverse: Floats, information: Answers, uncertainty: Floats
) -> Floats:
    """2 v^2 / var(v) for the variance v of every coefficient, (d,)."""
    pulled = basis @ inverse
    variance = np.einsum("dk,dk->d", pulled, basis)
    upper = upper_triangle(len(inverse))
    twice = np.where(upper[0] == upper[1], 1.0, 2.0)
    moved = -(pulled[:, upper[0]] * pulled[:, upper[1]] * twice) @ information.information_slope.T
    gradient = np.concatenate([moved, 2.0 * variance[:, None]], axis=1)
    spread = np.einsum("ki,ij,kj->k", gradient, uncertainty, gradient)
    return np.asarray(2.0 * variance**2 / np.maximum(spread, np.finfo(float).tiny))


def log_likelihood(fitted: Fitted, settings: MixedModelSettings) -> float:
    """In the units of the target and the columns."""
    value = fitted.end.value
    if settings.gaussian:
        value += in_units(fitted.opened, settings, float(fitted.settled.total("rows")))
        value -= fitted.log_weights
    return -0.5 * value
