"""Fit of the mixed model with noise of every site's own, its effects and its predictions.

Maximum likelihood is a search over (beta, A, s^2, a) on sums of the clients' values and slopes. For
"reml" the criterion gets log|H|, H the information about beta (beta is integrated out by Laplace,
which is exact where the noise is common): its slope in the variance parameters is taken by
differences at the point found, added as a linear term, and the search repeated until nothing moves.
The number `a` keeps its maximum likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.linear_mixed import Method, Prepared, target_products
from fedkin.models.linear_mixed_fit import LinearMixedFit, is_singular
from fedkin.models.linear_mixed_fit import fit as fit_common
from fedkin.models.linear_mixed_inference import differences
from fedkin.models.linear_mixed_scales import prepare, products_of, worked_columns
from fedkin.models.random_covariance import Covariance, Shape
from fedkin.models.site_noise import (
    Nodes,
    NoiseData,
    Parameters,
    Terms,
    evaluate,
    integrate,
    terms,
)
from fedkin.models.smooth_search import minimise

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

# Searches with a renewed slope of log|H|; each brings the end about ten times nearer.
MOST_REPEATS = 6
SETTLED = 1e-5
# Ranges of log s^2 (the target has variance one) and of log a. With the largest a the sites' noises
# differ by one in a thousand, which is none.
LEAST_LOGS = np.array([-30.0, -1.0])
MOST_LOGS = np.array([5.0, 14.0])
# Degrees of freedom a client's own residuals need to speak for the spread of the noises.
LEAST_DEGREES = 2.0


@dataclass(frozen=True, eq=False)
class SiteNoiseFit:
    """A fitted model; names as in `LinearMixedFit`."""

    coef: Floats
    coef_covariance: Floats
    random: Indices
    random_covariance: Floats
    typical_variance: float
    """s^2: one over the mean precision of the sites."""
    shape: float
    """a; infinite where all sites have one noise."""
    variances: Floats
    """Posterior mean of every client's noise variance, (m,); its prior mean where a <= 1."""
    effects: Floats
    effect_covariances: Floats
    """Error covariances with beta's uncertainty, (m, q, q)."""
    loglik: float
    """Log likelihood (for "reml" less log|H| / 2 and with its constant)."""
    gradient: float
    method: Method
    singular: bool
    collinear: tuple[int, ...]
    n_evaluations: int
    data: NoiseData
    parameters: Parameters
    factor_shape: Shape
    point: Floats
    """All parameters as the search has them."""

    @property
    def client_coef(self) -> Floats:
        """Every client's own coefficients, (m, d)."""
        out = np.tile(self.coef, (len(self.effects), 1))
        out[:, self.random] += self.effects
        return out


class Posterior(NamedTuple):
    """What is known of a client's effects at every node, in the units of `prepared`."""

    nodes: Nodes
    means: Floats
    """(q, K, m)."""
    covariances: Floats
    """Given t and beta, (q, q, K, m)."""
    by_coef: Floats
    """How the posterior mean of the effects moves against beta, (q, p, m)."""


def fit(
    statistics: Floats,
    random: Indices,
    method: Method = "reml",
    covariance: Covariance = "full",
    fit_intercept: bool = True,
    weights: Floats | None = None,
) -> SiteNoiseFit:
    """Fit to packed statistics (., m), clients last."""
    common = fit_common(statistics, random, method, covariance, fit_intercept, weights)
    data = noise_data(statistics, common.prepared)
    start = _start(common, data)
    search = _Search(data, common.shape)
    found = search.run(start, np.zeros(len(start)))
    if method == "reml":
        found = search.restricted(found)
    return _finished(search, found, method)


def fit_at(
    point: Floats,
    statistics: Floats,
    random: Indices,
    method: Method,
    covariance: Covariance,
    fit_intercept: bool,
    weights: Floats | None = None,
) -> SiteNoiseFit:
    """The fit whose search ended at `point`, made again."""
    prepared, shape = prepare(statistics, random, covariance, fit_intercept, weights)
    search = _Search(noise_data(statistics, prepared), shape)
    return _finished(search, point, method)


def extended(fit: SiteNoiseFit, statistics: Floats) -> SiteNoiseFit:
    """The fit with further clients (., k) that had no part in it: noise and effects given it."""
    prepared = fit.data.prepared
    weights = np.zeros(statistics.shape[1])
    alone = replace(
        prepared,
        products=products_of(prepared, statistics),
        n_rows=statistics[-1],
        weights=weights,
    )
    own = noise_data(statistics, alone)
    both = NoiseData(
        replace(
            prepared,
            products=np.concatenate([prepared.products, alone.products], axis=2),
            n_rows=np.concatenate([prepared.n_rows, alone.n_rows]),
            weights=np.concatenate([prepared.weights, weights]),
        ),
        np.concatenate([fit.data.squares, own.squares], axis=2),
    )
    known = posterior(both, fit.parameters)
    back = np.linalg.pinv(prepared.basis)
    inverse = back @ fit.coef_covariance @ back.T / prepared.scale**2
    means, covariances = _effects(known, inverse, prepared)
    expected = (known.nodes.weight * known.nodes.t).sum(axis=0) * prepared.scale**2
    return replace(
        fit, data=both, effects=means, effect_covariances=covariances, variances=expected
    )


def noise_data(statistics: Floats, prepared: Prepared) -> NoiseData:
    """Every client's own sums in the columns of `prepared`."""
    columns = worked_columns(prepared)[:, : prepared.rank + 1]
    raw = target_products(statistics, np.arange(len(columns)))
    turned = np.tensordot(columns.T, raw, 1)
    return NoiseData(prepared, np.ascontiguousarray(np.matmul(columns.T, turned)))


class _Search:
    """The criterion as a function of (beta, A's numbers, log s^2, log a)."""

    def __init__(self, data: NoiseData, shape: Shape) -> None:
        self.data, self.shape = data, shape
        self.n_evaluations, self.gradient = 0, np.inf

    def parameters(self, point: Floats) -> Parameters:
        p = self.data.prepared.rank
        log_variance, log_shape = np.clip(point[-2:], LEAST_LOGS, MOST_LOGS)
        factor = self.shape.factor(point[p:-2])
        return Parameters(point[:p], factor, float(log_variance), float(log_shape))

    def objective(self, point: Floats, tilt: Floats) -> tuple[float, Floats]:
        found = evaluate(self.data, self.shape, self.parameters(point))
        weights = self.data.prepared.weights
        value = -2.0 * float(weights @ found.loglik) + float(tilt @ point)
        slope = -2.0 * weights @ found.slope + tilt
        slope[-2:][(point[-2:] <= LEAST_LOGS) | (point[-2:] >= MOST_LOGS)] = 0.0
        return value, slope

    def run(self, start: Floats, tilt: Floats) -> Floats:
        found = minimise(lambda point: self.objective(point, tilt), start)
        self.n_evaluations += found.n_evaluations
        self.gradient = found.gradient
        return found.point

    def restricted(self, found: Floats) -> Floats:
        """From maximum likelihood to that with beta integrated out, as far as it gets better."""
        best, gradient = self.restricted_value(found), self.gradient
        for _ in range(MOST_REPEATS):
            tilt = np.zeros(len(found))
            tilt[self.data.prepared.rank : -1] = self.information_slope(found)
            moved = self.run(found, tilt)
            value = self.restricted_value(moved)
            if not value < best:
                self.gradient = gradient
                break
            change = float(np.abs(moved - found)[:-1].max())
            found, best, gradient = moved, value, self.gradient
            if change <= SETTLED:
                break
        return found

    def restricted_value(self, point: Floats) -> float:
        """-2 log likelihood plus log|H|; infinite where H is no information."""
        sign, volume = np.linalg.slogdet(self.information(point))
        value = self.objective(point, np.zeros(len(point)))[0]
        return value + float(volume) if sign > 0 and np.isfinite(value) else np.inf

    def information(self, point: Floats) -> Floats:
        """H (p, p): minus second derivatives of the log likelihood in beta, by Louis' identity."""
        at = self.parameters(point)
        client = terms(self.data, at)
        nodes = integrate(client, at.log_variance, at.log_shape)
        return coef_information(self.data, client, nodes, at)

    def information_slope(self, point: Floats) -> Floats:
        """Slope of log|H| in A's numbers and log s^2, beta going along to its best."""
        p = self.data.prepared.rank

        def log_volume(numbers: Floats) -> Floats:
            moved = np.concatenate([point[:p], numbers, point[-1:]])
            found = evaluate(self.data, self.shape, self.parameters(moved))
            pull = self.data.prepared.weights @ found.slope[:, :p]
            moved[:p] += np.linalg.solve(self.information(moved), pull)
            self.n_evaluations += 1
            return np.array([np.linalg.slogdet(self.information(moved))[1]])

        return differences(log_volume, point[p:-1])[0] if p else np.zeros(len(point) - 1)


def coef_information(data: NoiseData, client: Terms, nodes: Nodes, at: Parameters) -> Floats:
    """E[X' Sigma^-1 X] - Var[X' Sigma^-1 (y - X beta)] over the noise, summed over clients."""
    p = data.prepared.rank
    weights = data.prepared.weights
    toward = np.append(-at.coef, 1.0)
    own = np.einsum("rsm,s->rm", data.squares[:p], toward)
    turned = np.einsum("ij,jkm->ikm", at.factor, client.rotation)
    through = np.einsum("irm,ikm->rkm", data.prepared.products[:, :p], turned)
    precision = (nodes.weight / nodes.t).sum(axis=0)
    out = np.einsum("rsm,m->rs", data.squares[:p, :p], weights * precision)
    scores = own[:, None, :] / nodes.t
    for k, value in enumerate(client.values):
        inverse = 1.0 / (nodes.t * (nodes.t + value))
        share = weights * (nodes.weight * inverse).sum(axis=0)
        out -= np.einsum("rm,sm,m->rs", through[:, k], through[:, k], share)
        scores = scores - through[:, k, None, :] * (inverse * client.pulled[k])
    centred = scores - (nodes.weight * scores).sum(axis=1)[:, None, :]
    out -= np.einsum("rkm,skm,km,m->rs", centred, centred, nodes.weight, weights, optimize=True)
    return np.asarray(0.5 * (out + out.T))


def _start(common: LinearMixedFit, data: NoiseData) -> Floats:
    """The common fit, and the spread of the clients' own residual variances."""
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma

    variance = (common.sigma / common.prepared.scale) ** 2
    away = (common.coef - common.prepared.offset) / common.prepared.scale
    coef = np.linalg.pinv(common.prepared.basis) @ away
    at = Parameters(
        coef, common.shape.factor(common.theta) * np.sqrt(variance), float(np.log(variance)), 0.0
    )
    client = terms(data, at)
    degrees = client.n_rows - (client.values > 0).sum(axis=0)
    use = (degrees >= LEAST_DEGREES) & (client.left > 0) & (data.prepared.weights > 0)
    if use.sum() < 3:
        return np.concatenate([coef, np.sqrt(variance) * common.theta, [np.log(variance), 3.0]])
    logs = np.log(client.left[use] / degrees[use]) - digamma(degrees[use] / 2)
    logs = logs + np.log(degrees[use] / 2)
    extra = float(np.var(logs, ddof=1) - polygamma(1, degrees[use] / 2).mean())
    ends = (-1.0, 6.0)
    trigamma = [float(polygamma(1, np.exp(end))) for end in ends]
    if extra <= trigamma[1]:
        log_shape = ends[1]
    elif extra >= trigamma[0]:
        log_shape = ends[0]
    else:
        log_shape = float(brentq(lambda x: float(polygamma(1, np.exp(x))) - extra, *ends))
    # E log t = log(a s^2) - digamma(a).
    log_variance = float(logs.mean()) - log_shape + float(digamma(np.exp(log_shape)))
    return np.concatenate([coef, np.sqrt(variance) * common.theta, [log_variance, log_shape]])


def _finished(search: _Search, point: Floats, method: Method) -> SiteNoiseFit:
    data, at = search.data, search.parameters(point)
    prepared = data.prepared
    information = search.information(point)
    inverse = np.asarray(np.linalg.inv(information))
    loglik = float(prepared.weights @ evaluate(data, search.shape, at).loglik)
    loglik -= prepared.total_rows * float(np.log(prepared.scale))
    if method == "reml":
        volume = float(np.linalg.slogdet(information)[1]) + prepared.log_volume
        volume -= 2.0 * prepared.rank * float(np.log(prepared.scale))
        loglik -= 0.5 * (volume - prepared.rank * float(np.log(2 * np.pi)))
    own = prepared.scale * prepared.spread @ at.factor
    known = posterior(data, at)
    means, covariances = _effects(known, inverse, prepared)
    a = float(np.exp(at.log_shape))
    expected = (known.nodes.weight * known.nodes.t).sum(axis=0) * prepared.scale**2
    return SiteNoiseFit(
        coef=prepared.offset + prepared.scale * prepared.basis @ at.coef,
        coef_covariance=prepared.scale**2 * prepared.basis @ inverse @ prepared.basis.T,
        random=prepared.random,
        random_covariance=own @ own.T,
        typical_variance=float(np.exp(at.log_variance)) * prepared.scale**2,
        shape=a if at.log_shape < MOST_LOGS[1] else np.inf,
        variances=expected,
        effects=means,
        effect_covariances=covariances,
        loglik=loglik,
        gradient=search.gradient,
        method=method,
        singular=is_singular(at.factor / float(np.exp(0.5 * at.log_variance))),
        collinear=prepared.collinear,
        n_evaluations=search.n_evaluations,
        data=data,
        parameters=at,
        factor_shape=search.shape,
        point=point,
    )


def posterior(data: NoiseData, at: Parameters) -> Posterior:
    """Every client's noise and effects, given beta and the variance parameters."""
    p = data.prepared.rank
    client = terms(data, at)
    nodes = integrate(client, at.log_variance, at.log_shape)
    turned = np.einsum("ij,jkm->ikm", at.factor, client.rotation)
    inverse = 1.0 / (nodes.t[None] + client.values[:, None, :])
    means = np.einsum("ikm,knm->inm", turned, inverse * client.pulled[:, None, :])
    covariances = np.einsum("ikm,knm,jkm->ijnm", turned, nodes.t * inverse, turned, optimize=True)
    average = (nodes.weight * inverse).sum(axis=1)
    through = np.einsum("ikm,irm->krm", turned, data.prepared.products[:, :p])
    by_coef = np.einsum("ikm,km,krm->irm", turned, average, through)
    return Posterior(nodes, means, covariances, by_coef)


def _effects(known: Posterior, inverse: Floats, prepared: Prepared) -> tuple[Floats, Floats]:
    """Means (m, q) and error covariances (m, q, q) of the effects, in the columns' units."""
    outside = prepared.scale * prepared.spread
    mean = np.einsum("nm,inm->im", known.nodes.weight, known.means)
    inside = np.einsum("nm,ijnm->ijm", known.nodes.weight, known.covariances)
    away = known.means - mean[:, None, :]
    inside += np.einsum("nm,inm,jnm->ijm", known.nodes.weight, away, away)
    inside += np.einsum("irm,rs,jsm->ijm", known.by_coef, inverse, known.by_coef, optimize=True)
    means = np.einsum("ji,im->mj", outside, mean)
    return means, np.einsum("ai,ijm,bj->mab", outside, inside, outside, optimize=True)
