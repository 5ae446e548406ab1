"""Kinds and degrees in one model: a mixture of mixed models, from packed statistics.

    y_i = X_i (beta_k + u_i) + noise  if client i is of kind k,   P(kind k) = weight k,
    u_i ~ N(0, V) on the columns with random effects,   noise ~ N(0, s^2), or N(0, t_i)

V = 0 is a mixture of regressions (`grouped_regression`), one kind is a mixed model. Given V and
s^2 a client's density under kind k is the mixed model's, so a client's log likelihood is

    log sum_k weight_k exp(loglik_ik),

and its slope is the mean of the kinds' slopes under the client's responsibilities (Fisher's
identity). What an elimination costs is paid once for all kinds: Sigma_i does not depend on beta.

Four ways to have noise and departures share the mixture: `CommonNoise` (departures, one noise),
`OwnNoise` (no departures, t_i ~ IG(a, a s^2) integrated in closed form), `OwnNoiseAndDegrees`
(both, by quadrature as in `site_noise`). The fourth, neither, is `grouped_regression`. All work in
the coordinates of `linear_mixed_scales`, with clients last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from fedkin.arrays import Floats
from fedkin.models import site_noise
from fedkin.models.linear_mixed import LOG_2PI, eliminate, remainder
from fedkin.models.random_covariance import Shape
from fedkin.models.site_noise import NoiseData
from fedkin.models.site_noise import Parameters as NoiseParameters
from fedkin.models.small_matrices import backward

# Ranges of log s^2 and of log a, those of `site_noise_search`: beyond, numbers are rounding, or the
# noise is one for all, or a new client's could be anything.
LEAST_LOGS = np.array([-30.0, -1.0])
MOST_LOGS = np.array([5.0, 14.0])
# Where own noises are looked for before they are fitted: log s^2 beside the common one, and log a.
GAIN_LOGS, GAIN_SHAPES = np.linspace(-7.0, 1.0, 33), np.linspace(-2.0, 6.0, 17)

Slopes = Callable[[Floats], tuple[Floats, Floats]]


class Evaluated(NamedTuple):
    """Log likelihood of every client under every kind, (K, m), and how it slopes.

    `slopes(share)` are the slopes of sum_ik share_ik loglik_ik in the coefficients (K, p) and in
    the numbers of spread and noise; `scores()` are every client's slopes in them, (K, p, m).
    """

    loglik: Floats
    slopes: Slopes
    scores: Callable[[], Floats]


class Likelihood(Protocol):
    """Clients' likelihoods at given coefficients (K, p) and numbers of spread and noise."""

    data: NoiseData
    n_numbers: int

    def evaluate(self, coef: Floats, numbers: Floats) -> Evaluated:
        """At one point."""

    def spread(self, numbers: Floats) -> Floats:
        """The absolute factor A of V = A A', (q, q)."""

    def variance(self, numbers: Floats) -> float:
        """The noise variance s^2."""

    def curvature(self, numbers: Floats) -> Floats:
        """About how strongly -2 log likelihood bends in every number."""


class CommonNoise:
    """Departures and one noise for all clients; numbers are those of the relative L and log s."""

    def __init__(self, data: NoiseData, shape: Shape) -> None:
        self.data, self.shape = data, shape
        self.n_numbers = shape.n_parameters + 1

    def evaluate(self, coef: Floats, numbers: Floats) -> Evaluated:
        """As `linear_mixed_shared.answers`, for all kinds at once."""
        prepared, p1 = self.data.prepared, self.data.prepared.rank + 1
        factor, variance = self.shape.factor(numbers[:-1]), self.variance(numbers)
        gram = prepared.products[:, p1:]
        root, half = eliminate(prepared.products, factor)
        toward = away_from(coef)
        pulled = _turned(toward, without_effects(self.data, half))
        square = np.maximum(np.einsum("kr,krm->km", toward, pulled), 0.0)
        logdet = 2.0 * np.log(np.einsum("jjm->jm", root)).sum(axis=0)
        level = prepared.n_rows * (LOG_2PI + np.log(variance)) + logdet
        loglik = -0.5 * (level + square / variance)

        def slopes(share: Floats) -> tuple[Floats, Floats]:
            solved = backward(root, half)
            left = remainder(prepared.products[:, :p1], gram, solved[:, :p1], factor)
            pull, seen = _turned(toward, left), _turned(toward, solved[:, :p1])
            in_factor = np.einsum("kim,kjm,km->ij", pull, seen, share, optimize=True) / variance
            in_factor -= np.einsum("jim,m->ij", solved[:, p1:], share.sum(axis=0))
            in_coef = np.einsum("krm,km->kr", pulled[:, :-1], share) / variance
            in_noise = float((share * (square / variance - prepared.n_rows)).sum())
            if not LEAST_LOGS[0] < 2.0 * numbers[-1] < MOST_LOGS[0]:
                in_noise = 0.0
            return in_coef, np.append(self.shape.gather(in_factor), in_noise)

        return Evaluated(loglik, slopes, lambda: pulled[:, :-1] / variance)

    def spread(self, numbers: Floats) -> Floats:
        """A = s L."""
        return np.sqrt(self.variance(numbers)) * self.shape.factor(numbers[:-1])

    def variance(self, numbers: Floats) -> float:
        """s^2."""
        low, high = LEAST_LOGS[0], MOST_LOGS[0]
        return float(np.exp(np.clip(2.0 * numbers[-1], low, high)))

    def curvature(self, numbers: Floats) -> Floats:
        """Of L's numbers by the clients, of log s by the rows."""
        m, n = self.data.squares.shape[2], self.data.prepared.total_rows
        return np.append(np.full(self.n_numbers - 1, 4.0 * m), 4.0 * n)


class OwnNoise:
    """No departures, noise of its own for every client; numbers are log s^2 and log a.

    With Q = |y - X beta|^2 the integral over t ~ IG(a, a s^2) is a multivariate t:

        Gamma(a + n/2) / Gamma(a) (a s^2)^a (2 pi)^(-n/2) (a s^2 + Q/2)^(-a - n/2).
    """

    n_numbers = 2

    def __init__(self, data: NoiseData) -> None:
        self.data = data

    def evaluate(self, coef: Floats, numbers: Floats) -> Evaluated:
        """In closed form."""
        from scipy.special import digamma, gammaln

        log_variance, log_shape = np.clip(numbers, LEAST_LOGS, MOST_LOGS)
        a, n = np.exp(log_shape), self.data.prepared.n_rows
        prior = a * np.exp(log_variance)
        toward = away_from(coef)
        pulled = _turned(toward, self.data.squares)
        least = site_noise.LEAST_NOISE * n
        square = np.maximum(np.einsum("kr,krm->km", toward, pulled), least)
        rate, power = prior + 0.5 * square, a + 0.5 * n
        # Written as a difference: with a large the two parts are large and nearly equal.
        loglik = -0.5 * n * (LOG_2PI + np.log(rate)) - a * np.log1p(0.5 * square / prior)
        loglik += gammaln(power) - gammaln(a)

        def slopes(share: Floats) -> tuple[Floats, Floats]:
            precision = power / rate
            in_coef = np.einsum("krm,km->kr", pulled[:, :-1], share * precision)
            in_variance = float((share * (a - prior * precision)).sum())
            log_t = np.log(rate) - digamma(power)
            in_shape = np.log(prior) - digamma(a) - log_t + 1.0 - prior / a * precision
            in_logs = np.array([in_variance, a * float((share * in_shape).sum())])
            return in_coef, _within_range(in_logs, numbers)

        return Evaluated(loglik, slopes, lambda: pulled[:, :-1] * (power / rate)[:, None])

    def spread(self, numbers: Floats) -> Floats:
        """None."""
        q = len(self.data.prepared.products)
        return np.zeros((q, q))

    def variance(self, numbers: Floats) -> float:
        """One over the mean precision."""
        return float(np.exp(np.clip(numbers[0], LEAST_LOGS[0], MOST_LOGS[0])))

    def curvature(self, numbers: Floats) -> Floats:
        """By the clients."""
        return np.full(2, 2.0 * self.data.squares.shape[2])


class OwnNoiseAndDegrees:
    """Departures, and noise of its own for every client; numbers of A, log s^2, log a."""

    def __init__(self, data: NoiseData, shape: Shape) -> None:
        self.data, self.shape = data, shape
        self.n_numbers = shape.n_parameters + 2

    def parameters(self, coef: Floats, numbers: Floats) -> NoiseParameters:
        """Of one kind, as `site_noise` has them."""
        logs = np.clip(numbers[-2:], LEAST_LOGS, MOST_LOGS)
        return NoiseParameters(coef, self.shape.factor(numbers[:-2]), *map(float, logs))

    def evaluate(self, coef: Floats, numbers: Floats) -> Evaluated:
        """Kind after kind; each is one pass over all clients."""
        found = [
            site_noise.evaluate(self.data, self.shape, self.parameters(one, numbers))
            for one in coef
        ]
        p = coef.shape[1]

        def slopes(share: Floats) -> tuple[Floats, Floats]:
            each = np.array([part @ one.slope for part, one in zip(share, found)])
            return each[:, :p], _within_range(each[:, p:].sum(axis=0), numbers)

        def scores() -> Floats:
            return np.array([one.slope[:, :p].T for one in found])

        return Evaluated(np.array([one.loglik for one in found]), slopes, scores)

    def spread(self, numbers: Floats) -> Floats:
        """A."""
        return self.shape.factor(numbers[:-2])

    def variance(self, numbers: Floats) -> float:
        """One over the mean precision."""
        return float(np.exp(np.clip(numbers[-2], LEAST_LOGS[0], MOST_LOGS[0])))

    def curvature(self, numbers: Floats) -> Floats:
        """By the clients; A's numbers in units of the noise."""
        m = self.data.squares.shape[2]
        of_spread = np.full(self.n_numbers - 2, 4.0 * m / self.variance(numbers))
        return np.append(of_spread, [2.0 * m, 2.0 * m])


def noise_shape(numbers: Floats) -> float:
    """a of the clients' noise variances."""
    return float(np.exp(np.clip(numbers[-1], LEAST_LOGS[1], MOST_LOGS[1])))


def _within_range(slope: Floats, numbers: Floats) -> Floats:
    """Slopes with those of log s^2 and log a, the last two, zero where these are cut."""
    logs = numbers[-2:]
    inside = (logs > LEAST_LOGS) & (logs < MOST_LOGS)
    return np.append(slope[:-2], np.where(inside, slope[-2:], 0.0))


def without_effects(data: NoiseData, half: Floats) -> Floats:
    """(X, y)' Sigma^-1 (X, y) of every client, (p + 1, p + 1, m), from C^-1 L' Z'(X, y, Z)."""
    own = half[:, : data.prepared.rank + 1]
    return np.asarray(data.squares - np.einsum("jrm,jsm->rsm", own, own))


def away_from(coef: Floats) -> Floats:
    """(-beta, 1): (X, y) times it are the residuals, (K, p + 1)."""
    return np.concatenate([-coef, np.ones((len(coef), 1))], axis=1)


def _turned(toward: Floats, columns: Floats) -> Floats:
    """Products of columns (., p + 1, m) with every kind's residual direction, (K, ., m)."""
    return np.asarray(np.matmul(toward, columns).transpose(1, 0, 2))


def noise_gain(square: Floats, n_rows: Floats) -> float:
    """About what noises of their own add to the log likelihood of clients' squared residuals.

    The best of a grid of (s^2, a) beside the best common variance.
    """
    from scipy.special import gammaln

    total = max(float(n_rows.sum()), 1.0)
    variance = max(float(square.sum()) / total, np.finfo(float).tiny)
    common = -0.5 * total * (1.0 + np.log(variance))
    best = -np.inf
    for a in np.exp(GAIN_SHAPES):
        prior = a * variance * np.exp(GAIN_LOGS)[:, None]
        power = a + 0.5 * n_rows
        logs = a * np.log(prior) - power * np.log(prior + 0.5 * square) + gammaln(power)
        best = max(best, float(logs.sum(axis=1).max()) - len(n_rows) * float(gammaln(a)))
    return best - common


# ------------------------------------------------------------------ the mixture


class Mixed(NamedTuple):
    """Responsibilities (G, m) and log likelihoods (m,) of clients."""

    share: Floats
    loglik: Floats


def mixed(loglik: Floats, log_weights: Floats) -> Mixed:
    """From the log likelihoods (G, m) under every group and the groups' log weights (G,)."""
    joint = loglik + log_weights[:, None]
    top = joint.max(axis=0)
    joint = np.exp(joint - top)
    total = joint.sum(axis=0)
    return Mixed(joint / total, top + np.log(total))


class Objective:
    """-2 log likelihood of all clients and its slope at a point (coefs, numbers, logits).

    The last of the logits, zero, is not among the numbers. `outside` (m,) is the log density of
    every client in the group of those that no kind explains.
    """

    def __init__(self, likelihood: Likelihood, n_kinds: int, outside: Floats | None = None) -> None:
        self.likelihood, self.n_kinds, self.outside = likelihood, n_kinds, outside
        self.n_groups = n_kinds + (outside is not None)
        self.p = likelihood.data.prepared.rank

    def parts(self, point: Floats) -> tuple[Floats, Floats, Floats]:
        """Coefficients (K, p), numbers, and log weights (G,)."""
        n_coef, n_free = self.n_kinds * self.p, self.n_groups - 1
        logits = np.append(point[len(point) - n_free :], 0.0)
        logits = logits - logits.max()
        log_weights = logits - np.log(np.exp(logits).sum())
        coef = point[:n_coef].reshape(self.n_kinds, self.p)
        return coef, point[n_coef : len(point) - n_free], log_weights

    def point(self, coef: Floats, numbers: Floats, weights: Floats) -> Floats:
        """The inverse of `parts`."""
        logs = np.log(np.maximum(weights, 1e-12))
        return np.concatenate([coef.ravel(), numbers, logs[:-1] - logs[-1]])

    def groups(self, loglik: Floats) -> Floats:
        """Log likelihoods (G, m), those outside of all kinds last."""
        return loglik if self.outside is None else np.vstack([loglik, self.outside])

    def __call__(self, point: Floats) -> tuple[float, Floats]:
        """Value and slope."""
        coef, numbers, log_weights = self.parts(point)
        found = self.likelihood.evaluate(coef, numbers)
        share, loglik = mixed(self.groups(found.loglik), log_weights)
        in_coef, in_numbers = found.slopes(share[: self.n_kinds])
        in_weights = share.sum(axis=1) - share.shape[1] * np.exp(log_weights)
        slope = np.concatenate([in_coef.ravel(), in_numbers, in_weights[:-1]])
        return -2.0 * float(loglik.sum()), -2.0 * slope

    def inverse(self, point: Floats) -> Floats:
        """A first guess of the inverse curvature, diagonal."""
        _, numbers, log_weights = self.parts(point)
        weights = np.exp(log_weights)
        variance = self.likelihood.variance(numbers)
        of_coef = np.repeat(variance / (2.0 * np.maximum(weights[: self.n_kinds], 0.05)), self.p)
        m = self.likelihood.data.squares.shape[2]
        of_weights = 1.0 / (2.0 * m * np.maximum(weights * (1.0 - weights), 0.05))
        of_numbers = 1.0 / self.likelihood.curvature(numbers)
        return np.diag(np.concatenate([of_coef, of_numbers, of_weights[:-1]]))
