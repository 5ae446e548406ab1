"""How a mixed model in rounds begins: scales of the columns, the fit without effects, a start."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedkin.algorithms.mixed_model_data import Coordinates
from fedkin.algorithms.mixed_model_settings import MixedModelSettings
from fedkin.arrays import Floats, Indices
from fedkin.models.least_squares import RANK_TOLERANCE
from fedkin.models.linear_mixed import LEAST_RESIDUAL, LOG_2PI, Method
from fedkin.models.linear_mixed_fit import too_few_rows
from fedkin.models.linear_mixed_scales import TAKES_PART, fixed_coordinates, random_coordinates
from fedkin.models.linear_mixed_shared import Answers, information_of
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


class Without(NamedTuple):
    """The model without effects: -2 log likelihood, and whose rows it is of."""

    criterion: float
    clients: Indices


@dataclass
class Budget:
    """Rounds that are left; the last is for the sites to settle."""

    left: int

    def ask(self, *arguments: Any, **more: Any) -> Server:
        """Ask once."""
        self.left -= 1
        replies = yield Ask(*arguments, **more)
        return replies


# ------------------------------------------------------------------ scales


def open_rounds(roster: Roster, settings: MixedModelSettings, budget: Budget) -> Server:
    """Columns of mean square one from the sites' sums; correlations are not known yet."""
    wanted = ("target",) if settings.family != "binomial" else ()
    replies = yield from budget.ask("moments", fields=wanted, note="scales of the columns")
    n_rows = float(replies.total("rows"))
    gram = mean_products(
        replies.total("sums") / n_rows, replies.total("squares") / n_rows, settings.fit_intercept
    )
    random = settings.random_for(replies["rows"], len(gram))
    if settings.n_quadrature > 1 and len(random) > 1:
        raise ValueError(
            f"n_quadrature={settings.n_quadrature} needs one random effect, not {len(random)}; use "
            "n_quadrature=1 (Laplace) or make one column random"
        )
    fixed = fixed_coordinates(gram)
    covariance = settings.covariance_for(replies["rows"], len(random))
    spread, blocks = random_coordinates(gram, random, covariance, settings.fit_intercept)
    offset, scale = np.zeros(len(gram)), 1.0
    if settings.gaussian:
        mean, square = replies.total("target") / n_rows
        if settings.fit_intercept:
            offset[-1], square = mean, square - mean**2
        scale = float(np.sqrt(square)) if square > 0 else 1.0
    places = places_of(shape_of(covariance, spread.shape[1], blocks))
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


def square_of(packed: Floats) -> Floats:
    """A symmetric matrix from its upper triangle."""
    return information_of(Answers(np.zeros(0), np.zeros(0), packed, np.zeros(0)))


# ------------------------------------------------------------------ starts


def gaussian_start(opened: Opened, settings: MixedModelSettings, budget: Budget) -> Server:
    """The best of some sizes of the effects, with noise that leaves the target its variance."""
    at, shape = opened.at, opened.at.shape
    k, r = at.basis.shape[1], shape.size
    tried = []
    for size in GAUSSIAN_STARTS:
        noise = -0.5 * np.log1p(r * size**2)
        tried.append(np.concatenate([np.zeros(k), shape.start(size), [noise]]))
    points = np.array([np.zeros(len(tried[0])), *tried])
    replies = yield from budget.ask("slopes", at.message(points), fields=INFORMATION, note="start")
    best = 1 + int(np.argmin(replies.total("value")[1:]))
    information = replies.total("information")
    opened, turn = _decorrelated(opened, square_of(information[best]))
    start = np.concatenate([np.zeros(opened.at.basis.shape[1]), points[best, k:]])
    products = turn.T @ square_of(information[0]) @ turn
    target = -0.5 * turn.T @ replies.total("slope")[0, :k]
    # There the value is n log 2 pi + y'y, and its slope in the log of the noise 2 n - 2 y'y.
    value, in_noise = float(replies.total("value")[0]), float(replies.total("slope")[0, -1])
    n_rows = (value + 0.5 * in_noise) / (LOG_2PI + 1.0)
    square = value - n_rows * LOG_2PI
    plain = _least_squares(products, target, square, n_rows, settings.method)
    if np.count_nonzero(opened.rows > 0) == 1:
        # One site cannot tell how far sites differ: no difference is taken.
        start = np.concatenate([plain.coef, np.zeros(shape.n_parameters), [plain.log_noise]])
    criterion = plain.criterion + in_units(opened, settings, n_rows)
    return opened, start, Without(criterion, replies.clients)


class LeastSquares(NamedTuple):
    """One regression: -2 log (restricted) likelihood, coefficients (k,), log of the noise."""

    criterion: float
    coef: Floats
    log_noise: float


def _least_squares(
    products: Floats, target: Floats, square: float, n_rows: float, method: Method
) -> LeastSquares:
    """The regression of all rows, from X'X, X'y, y'y and n."""
    if round(n_rows) <= len(products):
        raise ValueError(too_few_rows(n_rows, len(products)))
    coef = np.asarray(np.linalg.solve(products, target), dtype=np.float64)
    residual = max(square - float(target @ coef), LEAST_RESIDUAL * square)
    restricted = method == "reml"
    k = n_rows - restricted * len(products)
    volume = float(np.linalg.slogdet(products)[1])
    log_variance = float(np.log(residual / k))
    criterion = k * (1.0 + LOG_2PI + log_variance) + restricted * volume
    return LeastSquares(criterion, coef, 0.5 * log_variance)


def count_start(opened: Opened, settings: MixedModelSettings, budget: Budget) -> Server:
    """The regression without effects, and the best of some sizes of the effects."""
    opened, coef, loglik, clients = yield from _without_effects(opened, settings, budget)
    shape = opened.at.shape
    points = np.array([np.concatenate([coef, shape.start(size)]) for size in COUNT_STARTS])
    replies = yield from budget.ask("slopes", opened.at.message(points), note="start")
    start = points[int(np.argmin(replies.total("value")))]
    return opened, start, Without(-2.0 * loglik, clients)


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
        slope, information = replies.total("slope"), square_of(replies.total("information"))
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
    return opened, coef, max(level, before), replies.clients


def _constant(opened: Opened, settings: MixedModelSettings) -> Floats:
    """Coefficients that predict the mean count for every row; zero without an intercept."""
    wanted = np.zeros(len(opened.at.basis))
    if settings.fit_intercept:
        wanted[-1] = opened.level
    return np.asarray(np.linalg.pinv(opened.at.basis) @ wanted)


def in_units(opened: Opened, settings: MixedModelSettings, n_rows: float) -> float:
    """What -2 log likelihood of a normal target changes by with the units."""
    restricted = settings.method == "reml"
    k = n_rows - restricted * opened.at.basis.shape[1]
    return 2.0 * k * float(np.log(opened.at.scale)) + restricted * opened.log_volume
