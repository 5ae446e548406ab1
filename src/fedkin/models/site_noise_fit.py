"""Fit of the mixed model with noise of every site's own, and its effects.

The likelihood is in `site_noise`, the search for its maximum in `site_noise_search`; results here
are in the units of the columns and the target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.linear_mixed import Method, Prepared, target_products
from fedkin.models.linear_mixed_fit import fit as fit_common
from fedkin.models.linear_mixed_fit import is_singular
from fedkin.models.linear_mixed_scales import prepare, products_of, worked_columns
from fedkin.models.random_covariance import Covariance, Shape
from fedkin.models.site_noise import Nodes, NoiseData, Parameters, integrate, terms
from fedkin.models.site_noise_search import MOST_LOGS, NoiseSearch, start_of

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


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
    search = NoiseSearch(data, common.shape)
    found = search.best(start_of(common, data), method)
    return _finished(search, found, method)


def without_effects(fit: SiteNoiseFit) -> float:
    """-2 log (restricted) likelihood of the model in which sites differ in their noise only."""
    none = np.zeros(0, dtype=np.intp)
    search = NoiseSearch(fit.data, Shape(fit.factor_shape.size, none, none, none))
    p = fit.data.prepared.rank
    start = np.concatenate([np.zeros(p), [0.0], fit.point[-1:]])
    return -2.0 * search.log_likelihood(search.best(start, fit.method), fit.method)


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
    search = NoiseSearch(noise_data(statistics, prepared), shape)
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


def _finished(search: NoiseSearch, point: Floats, method: Method) -> SiteNoiseFit:
    data, at = search.data, search.parameters(point)
    prepared = data.prepared
    inverse = np.asarray(np.linalg.inv(search.information(point)))
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
        loglik=search.log_likelihood(point, method),
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
