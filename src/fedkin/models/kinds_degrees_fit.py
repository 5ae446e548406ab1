"""Fits of kinds and degrees: where to begin, and the way down to a slope of zero.

Beginnings are clusters of what one mixed model says of every client's departure, and coefficients
that the caller has (of a mixture without departures). A few steps of EM, cheap and blind to small
differences, choose among them; a quasi-Newton search ends what EM began. Where there are many
clients both look at a part of them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.models import linear_mixed_fit
from fedkin.models.kinds_degrees import (
    LEAST_LOGS,
    CommonNoise,
    Likelihood,
    Objective,
    OwnNoise,
    OwnNoiseAndDegrees,
    away_from,
    mixed,
    noise_shape,
    without_effects,
)
from fedkin.models.last_answers import LastAnswers
from fedkin.models.least_squares import RANK_TOLERANCE, residual_coefficients, solve, unpack
from fedkin.models.linear_mixed import Prepared, eliminate
from fedkin.models.linear_mixed_scales import prepare
from fedkin.models.random_covariance import Covariance, Shape, carried_covariance
from fedkin.models.site_noise import NoiseData
from fedkin.models.site_noise_fit import noise_data
from fedkin.models.small_matrices import backward, forward
from fedkin.models.smooth_search import (
    MOST_BY_DIFFERENCES,
    minimise,
    positive_inverse,
    second_derivatives,
)
from fedkin.ties import RELATIVE, first_best

# Steps of EM by which beginnings are compared.
N_STEPS = 15
# Clients looked at while beginnings are compared, and while a costly search is far from its end.
MOST_AT_FIRST = 2000
# Slope of -2 log likelihood at which a fit that is only compared, and one that is kept, may end.
COMPARED, KEPT = 1e-3, 1e-6
# A full covariance has so many numbers for a client, at most; else it is one variance for slopes.
MOST_NUMBERS_A_CLIENT = 0.5
# A client's own noise counts as if so many rows had shown the median client's.
PRIOR_ROWS = 2.0
# A kind with less than this share of all clients says nothing of its coefficients.
LEAST_SHARE = 1e-8


Cluster = Callable[[Floats, int], Iterable[Indices]]


class Way(NamedTuple):
    """Whether clients depart from their kind, and whether each has a noise of its own."""

    degrees: bool
    own_noise: bool


class Clients(NamedTuple):
    """Clients in good coordinates; `ratio` (m,) is about how noisy each is beside the others."""

    data: NoiseData
    shape: Shape
    ratio: Floats

    @property
    def prepared(self) -> Prepared:
        """Coordinates."""
        return self.data.prepared

    def inside(self, coef: Floats) -> Floats:
        """Coefficients (..., d) in the coordinates worked in, (..., p)."""
        away = (coef - self.prepared.offset) / self.prepared.scale
        return np.asarray(away @ np.linalg.pinv(self.prepared.basis).T)

    def outside(self, coef: Floats) -> Floats:
        """The inverse: (..., p) to (..., d)."""
        return self.prepared.offset + self.prepared.scale * coef @ self.prepared.basis.T

    def some(self, who: Indices) -> Clients:
        """Some of the clients, in the same coordinates."""
        return Clients(self.data.of_clients(who), self.shape, self.ratio[who])


@dataclass(frozen=True, eq=False)
class KindsFit:
    """A fit of K kinds; names and units as in `LinearMixedFit`."""

    way: Way
    coef: Floats
    weights: Floats
    random_covariance: Floats
    sigma: float
    noise_shape: float
    """a of the clients' noise variances; infinite where all have one."""
    loglik: float
    n_covariance: int
    gradient: float
    numbers: Floats
    """Of spread and noise, as the search has them."""
    history: Floats
    """Log likelihood of the best point so far, evaluation by evaluation."""

    @property
    def mean_coef(self) -> Floats:
        """Coefficients of a client of which nothing is known, (d,)."""
        weights = self.weights[: len(self.coef)]
        return np.asarray(weights @ self.coef / max(float(weights.sum()), 1e-300))

    @property
    def n_noise(self) -> int:
        """Free numbers of the noise."""
        return 1 + self.way.own_noise


def clients_of(
    statistics: Floats, covariance: Covariance | None = None, fit_intercept: bool = True
) -> Clients:
    """Packed statistics (., m) in good coordinates; every column may depart."""
    size = len(unpack(statistics[:, 0])[1])
    if covariance is None:
        covariance = usual_covariance(size, statistics[-1])
    prepared, shape = prepare(statistics, np.arange(size), covariance, fit_intercept)
    return Clients(noise_data(statistics, prepared), shape, noise_ratio(statistics))


def usual_covariance(size: int, n_rows: Floats) -> Covariance:
    """ "full" where clients of `n_rows` (m,) tell all covariances, else "isotropic"."""
    few = size * (size + 1) / 2 <= MOST_NUMBERS_A_CLIENT * len(n_rows)
    return carried_covariance(n_rows, size) if few else "isotropic"


def noise_ratio(statistics: Floats) -> Floats:
    """About every client's noise variance over the median's, (m,), from its own residuals."""
    coef, rank = solve(statistics.T)
    square = np.einsum("mq,qm->m", residual_coefficients(coef), statistics)
    square = np.maximum(square, RANK_TOLERANCE * statistics[-2])
    degrees = np.maximum(statistics[-1] - rank, 0.0)
    known = degrees > 0
    if not known.any():
        return np.ones(len(degrees))
    middle = float(np.median(square[known] / degrees[known])) or 1.0
    with np.errstate(invalid="ignore"):
        shrunk = (square / middle * known + PRIOR_ROWS) / (degrees + PRIOR_ROWS)
    return np.asarray(np.where(known, shrunk, 1.0))


# ------------------------------------------------------------------ fit


def likelihood_of(clients: Clients, way: Way) -> Likelihood:
    """What the mixture is of."""
    if not way.degrees:
        return OwnNoise(clients.data)
    made = OwnNoiseAndDegrees if way.own_noise else CommonNoise
    return made(clients.data, clients.shape)


class Start(NamedTuple):
    """Coefficients (K, p), numbers of `CommonNoise` (L's and log s), weights (G,)."""

    coef: Floats
    numbers: Floats
    weights: Floats


def fit(
    clients: Clients,
    way: Way,
    n_kinds: int,
    given: Iterable[Floats] = (),
    cluster: Cluster | None = None,
    outside: Floats | None = None,
) -> KindsFit:
    """K kinds from the best of several beginnings; `given` are coefficients (K, d) to begin from.

    `cluster(points, K)` yields labels of points in several ways. `outside` (m,) is the log density
    of every client in the group that no kind explains.
    """
    if outside is not None:
        # Densities are those of the target as worked with.
        outside = outside + clients.prepared.n_rows * np.log(clients.prepared.scale)
    part = _some_of(clients)
    few = clients.some(part)
    few_outside = None if outside is None else outside[part]
    inside = [clients.inside(coef) for coef in given]
    start = _best_start(few, way, n_kinds, inside, few_outside, cluster)
    first = Objective(likelihood_of(few, way), n_kinds, few_outside)
    point = first.point(start.coef, _numbers(start, few, way), start.weights)
    whole = Objective(likelihood_of(clients, way), n_kinds, outside)
    if len(part) == len(clients.ratio):
        return _searched(clients, way, whole, point, COMPARED)
    point = minimise(first, point, COMPARED, first.inverse(point)).point
    return _searched(clients, way, whole, point, COMPARED, first)


def _some_of(clients: Clients) -> Indices:
    """The clients that are looked at first."""
    m = len(clients.ratio)
    if m <= MOST_AT_FIRST:
        return np.arange(m)
    return np.sort(np.random.default_rng(m).choice(m, MOST_AT_FIRST, replace=False))


def refined(clients: Clients, fit: KindsFit, outside: Floats | None = None) -> KindsFit:
    """The same fit with its slope down to what rounding leaves."""
    if outside is not None:
        outside = outside + clients.prepared.n_rows * np.log(clients.prepared.scale)
    whole = Objective(likelihood_of(clients, fit.way), len(fit.coef), outside)
    point = whole.point(clients.inside(fit.coef), fit.numbers, fit.weights)
    part = _some_of(clients)
    if len(part) == len(clients.ratio):
        again = _searched(clients, fit.way, whole, point, KEPT)
    else:
        few = likelihood_of(clients.some(part), fit.way)
        first = Objective(few, len(fit.coef), None if outside is None else outside[part])
        again = _searched(clients, fit.way, whole, point, KEPT, first)
    return replace(again, history=np.concatenate([fit.history, again.history]))


def _searched(
    clients: Clients,
    way: Way,
    whole: Objective,
    start: Floats,
    tol: float,
    first: Objective | None = None,
) -> KindsFit:
    """The fit at the end of a search, in the units of columns and target.

    `first` is of some of many clients, whose curvature is about that of all; `tol` is the slope
    for so many of them.
    """
    prepared, likelihood = clients.prepared, whole.likelihood
    values: list[float] = []

    def objective(point: Floats) -> tuple[float, Floats]:
        value, slope = whole(point)
        values.append(value)
        return value, slope

    inverse = whole.inverse(start)
    if first is not None and len(start) <= MOST_BY_DIFFERENCES:
        times = len(clients.ratio) / first.likelihood.data.squares.shape[2]
        inverse = positive_inverse(second_derivatives(first, start)) / times
        tol *= times
    found = minimise(objective, start, tol, inverse)
    coef, numbers, log_weights = whole.parts(found.point)
    volume = prepared.total_rows * float(np.log(prepared.scale))
    own = prepared.scale * prepared.spread @ likelihood.spread(numbers)
    return KindsFit(
        way=way,
        coef=clients.outside(coef),
        weights=np.exp(log_weights),
        random_covariance=own @ own.T,
        sigma=prepared.scale * float(np.sqrt(likelihood.variance(numbers))),
        noise_shape=noise_shape(numbers) if way.own_noise else np.inf,
        loglik=-0.5 * found.value - volume,
        n_covariance=clients.shape.n_parameters if way.degrees else 0,
        gradient=found.gradient,
        numbers=numbers,
        history=-0.5 * np.minimum.accumulate(values) - volume,
    )


# ------------------------------------------------------------------ beginnings


def _best_start(
    clients: Clients,
    way: Way,
    n_kinds: int,
    given: Sequence[Floats],
    outside: Floats | None,
    cluster: Cluster | None,
) -> Start:
    """The beginning that a few steps of EM take furthest."""
    if way.own_noise:
        clients = _in_units_of_noise(clients)
        if outside is not None:
            outside = outside + 0.5 * clients.prepared.n_rows * np.log(clients.ratio)
    base = _one_mixed_model(clients)
    starts = [*given, *_clusters(clients, base, n_kinds, cluster)]
    ended = [_improved(clients, way, coef, base, outside) for coef in starts]
    values = np.array([value for _, value in ended])
    return ended[int(first_best(values, floor=RELATIVE))][0]


def _in_units_of_noise(clients: Clients) -> Clients:
    """Sums of every client as if its noise were the typical one."""
    prepared = clients.prepared
    scaled = NoiseData(
        replace(prepared, products=prepared.products / clients.ratio),
        clients.data.squares / clients.ratio,
    )
    total = scaled.squares.sum(axis=2)
    return Clients(
        NoiseData(replace(scaled.prepared, total=total), scaled.squares),
        clients.shape,
        clients.ratio,
    )


# The same clients are asked for other numbers of kinds.
MIXED_MODELS = LastAnswers[Start]()


def _one_mixed_model(clients: Clients) -> Start:
    """Numbers of the mixed model of one kind."""
    prepared = clients.prepared
    shape = clients.shape
    numbers = np.array([shape.size, prepared.log_volume])
    sums = [clients.data.squares, prepared.products, prepared.n_rows]
    asked = [*sums, shape.rows, shape.columns, shape.owner, numbers]
    return MIXED_MODELS.of(asked, "ml", lambda: _searched_for_one(clients))


def _searched_for_one(clients: Clients) -> Start:
    prepared = replace(
        clients.prepared,
        weights=np.ones(clients.data.squares.shape[2]),
        total=clients.data.squares.sum(axis=2),
    )
    found = minimise(
        lambda theta: linear_mixed_fit.criterion(prepared, clients.shape, "ml", theta),
        clients.shape.start(0.5),
        COMPARED,
        np.eye(clients.shape.n_parameters) / (4.0 * len(prepared.n_rows)),
    )
    factor = clients.shape.factor(found.point)
    best = linear_mixed_fit.profile(
        prepared, linear_mixed_fit.evaluate(prepared, factor, slopes=False), "ml"
    )
    numbers = np.append(found.point, 0.5 * np.log(best.variance))
    return Start(best.coef[None], numbers, np.ones(1))


def _clusters(
    clients: Clients, base: Start, n_kinds: int, cluster: Cluster | None
) -> Iterable[Floats]:
    """Coefficients (K, p) of clusters of the clients' departures, by one mixed model's lights."""
    if n_kinds == 1:
        yield base.coef
        return
    if cluster is None:
        return
    for labels in cluster(_departures(clients, base), n_kinds):
        share = (labels == np.arange(n_kinds)[:, None]).astype(np.float64)
        yield _least_squares(clients.data.squares, share, np.repeat(base.coef, n_kinds, axis=0))


def _departures(clients: Clients, base: Start) -> Floats:
    """Every client's departure in units of its spread, with uncertain ones near zero, (m, q)."""
    prepared, p1 = clients.prepared, clients.prepared.rank + 1
    factor = clients.shape.factor(base.numbers[:-1])
    solved = backward(*eliminate(prepared.products, factor))
    return np.asarray(np.einsum("jrm,r->mj", solved[:, :p1], away_from(base.coef)[0]))


def _least_squares(squares: Floats, share: Floats, current: Floats) -> Floats:
    """Coefficients (K, p) from (X, y)'(X, y) (p + 1, p + 1, m) and weights (K, m)."""
    total = np.einsum("rsm,km->krs", squares, share)
    out = np.array(current)
    for k, gram in enumerate(total):
        if share[k].sum() > LEAST_SHARE:
            out[k] = np.linalg.lstsq(gram[:-1, :-1], gram[:-1, -1], rcond=RANK_TOLERANCE)[0]
    return out


def _improved(
    clients: Clients, way: Way, coef: Floats, base: Start, outside: Floats | None
) -> tuple[Start, float]:
    """A beginning after a few steps of EM, and its log likelihood in units of the noise."""
    n_groups = len(coef) + (outside is not None)
    at = Start(coef, base.numbers.copy(), np.full(n_groups, 1.0 / n_groups))
    if not way.degrees:
        at.numbers[:-1] = 0.0
    value = -np.inf
    for _ in range(N_STEPS):
        at, value = _step(clients, at, outside)
    return at, value


def _step(clients: Clients, at: Start, outside: Floats | None) -> tuple[Start, float]:
    """One step of EM: kinds, then coefficients and noise, then the spread of departures."""
    prepared, p1 = clients.prepared, clients.prepared.rank + 1
    factor, shape = clients.shape.factor(at.numbers[:-1]), clients.shape
    variance, n_kinds = float(np.exp(2.0 * at.numbers[-1])), len(at.coef)
    root, half = eliminate(prepared.products, factor)
    inverse = without_effects(clients.data, half)
    logdet = 2.0 * np.log(np.einsum("jjm->jm", root)).sum(axis=0)

    def squares(coef: Floats) -> Floats:
        toward = away_from(coef)
        return np.maximum(np.einsum("kr,rsm,ks->km", toward, inverse, toward, optimize=True), 0.0)

    n = prepared.n_rows
    loglik = -0.5 * (n * np.log(2 * np.pi * variance) + logdet + squares(at.coef) / variance)
    groups = loglik if outside is None else np.vstack([loglik, outside])
    share, value = mixed(groups, np.log(np.maximum(at.weights, 1e-300)))
    regular = share[:n_kinds]
    coef = _least_squares(inverse, regular, at.coef)
    rows = max(float((regular * n).sum()), 1.0)
    least = LEAST_LOGS[0]
    log_variance = max(np.log(max(float((regular * squares(coef)).sum()) / rows, 1e-300)), least)
    theta = at.numbers[:-1]
    if theta.any():
        solved = backward(root, half)
        seen = np.einsum("jrm,kr->kjm", solved[:, :p1], away_from(coef))
        weight = regular.sum(axis=0)
        identity = np.broadcast_to(np.eye(len(factor))[:, :, None], root.shape)
        posterior = backward(root, forward(root, identity))
        moments = np.einsum("kim,kjm,km->ij", seen, seen, regular) / np.exp(log_variance)
        moments += np.einsum("ijm,m->ij", posterior, weight)
        moments /= max(float(weight.sum()), LEAST_SHARE)
        theta = shape.nearest(factor @ moments @ factor.T)
    numbers = np.append(theta, 0.5 * log_variance)
    return Start(coef, numbers, share.mean(axis=1)), float(value.sum())


def _numbers(start: Start, clients: Clients, way: Way) -> Floats:
    """Numbers of spread and noise as the way's likelihood has them."""
    if not way.own_noise:
        return start.numbers
    log_variance = 2.0 * start.numbers[-1]
    # E[1 / t] is one over s^2; the ratios are about t.
    log_variance -= float(np.log(np.mean(1.0 / clients.ratio)))
    spread = float(np.var(np.log(clients.ratio)))
    log_shape = float(np.clip(-np.log(max(spread, 1e-3)), -1.0, 5.0))
    theta = start.numbers[:-1] * np.exp(start.numbers[-1]) if way.degrees else np.zeros(0)
    return np.concatenate([theta, [log_variance, log_shape]])
