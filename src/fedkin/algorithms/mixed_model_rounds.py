"""The server's half of a mixed model in rounds: values and slopes of the sites' own likelihoods.

1. Scales of the columns, so that nothing hangs on units.
2. A start: for counts the regression without effects by Newton's method (Fisher scoring), for a
   normal target nothing; several sizes of the effects at once.
3. Newton's method on the sums (`newton_rounds`).
4. Sites learn their own effects. These leave only with share="statistics".
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedkin.algorithms.mixed_model_settings import MixedModelSettings
from fedkin.algorithms.mixed_model_sites import Coordinates
from fedkin.algorithms.newton_rounds import End, Looked, minimise_by_newton
from fedkin.arrays import Floats, Indices
from fedkin.models.least_squares import RANK_TOLERANCE, upper_triangle
from fedkin.models.linear_mixed_scales import (
    TAKES_PART,
    fixed_coordinates,
    random_coordinates,
)
from fedkin.models.linear_mixed_shared import Answers, criterion_of, information_of
from fedkin.models.random_covariance import Shape, shape_of
from fedkin.models.smooth_search import positive_inverse
from fedkin.protocol import Ask, Replies, Roster, over_roster

# Sizes of the effects to start from, in units of the noise or of the linear predictor.
GAUSSIAN_STARTS = (0.1, 0.3, 1.0, 3.0, 10.0)
COUNT_STARTS = (0.1, 0.3, 1.0, 3.0)
# The fit without effects has ended when the log likelihood gains less; the next gain is its square.
SETTLED = 1e-3
# Without a single event the mean count is taken for this over all.
LEAST_COUNT = 0.5
# The fit without effects changes no coefficient of a standardised column by more at once.
LONGEST_STEP = 3.0
# Of all rounds, the share that the fit without effects may take.
PLAIN_SHARE = 0.4
INFORMATION = ("information", "information_slope")
EFFECTS = ("effects", "given", "by_coef")

Server = Generator[Ask, Replies, Any]


class Opened(NamedTuple):
    """What the first round tells: coordinates, log|X'X| they stand for, rows of every site."""

    at: Coordinates
    log_volume: float
    collinear: tuple[int, ...]
    rows: Floats
    lengths: Floats
    """Root mean squares of the columns, (d,)."""
    centre: Floats
    """Their means, (d,)."""
    level: float
    """Logarithm of the mean count, where the target is one."""


class Fitted(NamedTuple):
    """A fit in rounds, in the columns worked with."""

    opened: Opened
    end: End
    settled: Replies
    information: Answers | None
    without_effects: float | None
    """-2 log likelihood of the model without effects."""


@dataclass
class Budget:
    """Rounds that are left; the last is for the sites to settle."""

    left: int

    def ask(self, *arguments: Any, **more: Any) -> Server:
        """Ask once."""
        self.left -= 1
        replies = yield Ask(*arguments, **more)
        return replies


def fit_in_rounds(roster: Roster, settings: MixedModelSettings) -> Server:
    """The whole search; at most `settings.max_rounds` rounds, or what a fit takes at the least."""
    budget = Budget(settings.max_rounds)
    opened = yield from _open(roster, settings, budget)
    begin = _gaussian_start if settings.gaussian else _count_start
    opened, start, without = yield from begin(opened, settings, budget)
    look = _looker(opened, settings, budget)
    end = yield from minimise_by_newton(look, start, settings.tol, budget.left - 1)
    fields: tuple[str, ...] = INFORMATION if settings.gaussian else ()
    fields += EFFECTS if settings.share == "statistics" else ()
    settled = yield from budget.ask(
        "settle", opened.at.message(end.point[None]), fields=fields, note="sites learn their part"
    )
    told = _information(settled) if settings.gaussian else None
    return Fitted(opened, end, settled, told, without)


# ------------------------------------------------------------------ scales


def _open(roster: Roster, settings: MixedModelSettings, budget: Budget) -> Server:
    """Columns of mean square one from the sites' sums; correlations are not known yet."""
    wanted = ("target",) if settings.family != "binomial" else ()
    replies = yield from budget.ask("moments", fields=wanted, note="scales of the columns")
    n_rows = float(replies.total("rows"))
    gram = mean_products(
        replies.total("sums") / n_rows, replies.total("squares") / n_rows, settings.fit_intercept
    )
    random = settings.random_columns(len(gram))
    if settings.n_quadrature > 1 and len(random) > 1:
        raise ValueError(
            f"n_quadrature={settings.n_quadrature} needs one random effect, not {len(random)}; use "
            "n_quadrature=1 (Laplace) or make one column random"
        )
    fixed = fixed_coordinates(gram)
    spread, blocks = random_coordinates(gram, random, settings.covariance, settings.fit_intercept)
    offset, scale = np.zeros(len(gram)), 1.0
    if settings.gaussian:
        mean, square = replies.total("target") / n_rows
        if settings.fit_intercept:
            offset[-1], square = mean, square - mean**2
        scale = float(np.sqrt(square)) if square > 0 else 1.0
    places = places_of(shape_of(settings.covariance, spread.shape[1], blocks))
    at = Coordinates(fixed.basis, offset, scale, random, spread, places)
    rows = over_roster(replies["rows"], replies.clients, len(roster))
    centre = np.append(replies.total("sums") / n_rows, np.ones(int(settings.fit_intercept)))
    level = 0.0
    if settings.family == "poisson":
        count, expected = replies.total("target")
        level = float(np.log(max(count, LEAST_COUNT) / expected))
    lengths = np.sqrt(np.diag(gram))
    return Opened(at, fixed.log_volume, fixed.collinear, rows, lengths, centre, level)


def mean_products(mean: Floats, square: Floats, fit_intercept: bool) -> Floats:
    """Mean of x x' (d, d) with the intercept last, as if columns were uncorrelated."""
    if not fit_intercept:
        return np.diag(square)
    # A spread below rounding of the sums is none.
    spread = np.where(square - mean**2 > 1e-12 * square, square - mean**2, 0.0)
    centre = np.append(mean, 1.0)
    return np.outer(centre, centre) + np.diag(np.append(spread, 0.0))


def places_of(shape: Shape) -> Indices:
    """Which free number of a factor stands where; -1 is zero."""
    places = np.full((shape.size, shape.size), -1)
    places[shape.rows, shape.columns] = shape.owner
    return places


def _decorrelated(opened: Opened, information: Floats) -> tuple[Opened, Floats]:
    """Columns in which the information (k, k) is a multiple of one; and the old ones from them.

    Directions without information are left out; their columns depend on each other.
    """
    values, vectors = np.linalg.eigh(information)
    kept = values > RANK_TOLERANCE * values.max(initial=0.0)
    turn = vectors[:, kept] / np.sqrt(values[kept] / values[kept].mean())
    nothing = opened.at.basis @ vectors[:, ~kept] * opened.lengths[:, None]
    part = np.abs(nothing).max(axis=1, initial=0.0) > TAKES_PART
    collinear = tuple(sorted({*opened.collinear, *map(int, np.flatnonzero(part))}))
    volume = opened.log_volume - 2.0 * float(np.log(np.linalg.svd(turn)[1]).sum())
    at = opened.at._replace(basis=opened.at.basis @ turn)
    return opened._replace(at=at, log_volume=volume, collinear=collinear), turn


def _square(packed: Floats) -> Floats:
    """A symmetric matrix from its upper triangle."""
    return information_of(Answers(np.zeros(0), np.zeros(0), packed, np.zeros(0)))


# ------------------------------------------------------------------ starts


def _gaussian_start(opened: Opened, settings: MixedModelSettings, budget: Budget) -> Server:
    """The best of some sizes of the effects, with noise that leaves the target its variance."""
    at, shape = opened.at, opened.at.shape
    k, r = at.basis.shape[1], shape.size
    tried = []
    for size in GAUSSIAN_STARTS:
        noise = -0.5 * np.log1p(r * size**2)
        tried.append(np.concatenate([np.zeros(k), shape.start(size), [noise]]))
    points = np.array(tried)
    replies = yield from budget.ask("slopes", at.message(points), fields=INFORMATION, note="start")
    best = int(np.argmin(replies.total("value")))
    opened, _ = _decorrelated(opened, _square(replies.total("information")[best]))
    start = np.concatenate([np.zeros(opened.at.basis.shape[1]), points[best, k:]])
    return opened, start, None


def _count_start(opened: Opened, settings: MixedModelSettings, budget: Budget) -> Server:
    """The regression without effects, and the best of some sizes of the effects."""
    opened, coef, loglik = yield from _without_effects(opened, settings, budget)
    shape = opened.at.shape
    points = np.array([np.concatenate([coef, shape.start(size)]) for size in COUNT_STARTS])
    replies = yield from budget.ask("slopes", opened.at.message(points), note="start")
    return opened, points[int(np.argmin(replies.total("value")))], -2.0 * loglik


def _without_effects(opened: Opened, settings: MixedModelSettings, budget: Budget) -> Server:
    """Fisher scoring; the first round also tells which columns depend on each other."""
    coef = _constant(opened, settings)
    step, before, clients = np.zeros(len(coef)), -np.inf, None
    for number in range(max(2, int(PLAIN_SHARE * settings.max_rounds))):
        message = opened.at.message(coef[None])
        replies = yield from budget.ask("plain", message, note="without effects")
        level = float(replies.total("value"))
        comparable = clients is not None and np.array_equal(clients, replies.clients)
        if comparable and not level >= before - SETTLED:
            step = 0.5 * step
            coef = coef - step
            continue
        slope, information = replies.total("slope"), _square(replies.total("information"))
        if number == 0:
            opened, turn = _decorrelated(opened, information)
            slope, information = turn.T @ slope, turn.T @ information @ turn
            coef = np.linalg.pinv(turn) @ coef
        if comparable and level < before + SETTLED:
            break
        before, clients = level, replies.clients
        step = positive_inverse(information) @ slope
        step = step / max(1.0, float(np.abs(step).max(initial=0.0)) / LONGEST_STEP)
        coef = coef + step
    return opened, coef, max(level, before)


def _constant(opened: Opened, settings: MixedModelSettings) -> Floats:
    """Coefficients that predict the mean count for every row; zero without an intercept."""
    wanted = np.zeros(len(opened.at.basis))
    if settings.fit_intercept:
        wanted[-1] = opened.level
    return np.asarray(np.linalg.pinv(opened.at.basis) @ wanted)


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
    value, opened = fitted.end.value, fitted.opened
    if settings.gaussian:
        n_rows = float(fitted.settled.total("rows"))
        restricted = settings.method == "reml"
        k = n_rows - restricted * opened.at.basis.shape[1]
        value += 2.0 * k * float(np.log(opened.at.scale)) + restricted * opened.log_volume
    return -0.5 * value
