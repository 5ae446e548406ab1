"""Predictive distributions where sites have noise of their own: mixtures of normals over it.

Given a site's noise variance a new outcome is normal; what is known of that variance (its posterior
at a site with rows, the inverse gamma itself at a new one) mixes them. Tails are heavier than a
normal's as long as a site's noise is uncertain, and log scores and intervals are exact for it.

The variance parameters are estimates too: `intervals` widens by Student's t with Satterthwaite's
degrees of freedom of the predictive variance, which matters where there are ten sites.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.linear_mixed_inference import differences
from fedkin.models.linear_mixed_prediction import LEAST_DEGREES
from fedkin.models.site_noise import NoiseData, Parameters, evaluate, integrate, terms
from fedkin.models.site_noise_fit import SiteNoiseFit, posterior
from fedkin.models.site_noise_search import coef_information
from fedkin.models.smooth_search import positive_inverse, second_derivatives

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

N_BISECTIONS = 60


class Mixture(NamedTuple):
    """Of every row: weights, means and variances of K normals, (n, K) each."""

    weights: Floats
    means: Floats
    variances: Floats

    def mean(self) -> Floats:
        """(n,)."""
        return np.asarray((self.weights * self.means).sum(axis=1))

    def variance(self) -> Floats:
        """Within and between the normals, (n,)."""
        away = self.means - self.mean()[:, None]
        return np.asarray((self.weights * (self.variances + away**2)).sum(axis=1))

    def log_density(self, y: Floats) -> Floats:
        """Log predictive density of outcomes y (n,)."""
        from scipy.special import logsumexp

        square = (y[:, None] - self.means) ** 2 / self.variances
        logs = -0.5 * (square + np.log(2 * np.pi * self.variances))
        return np.asarray(logsumexp(logs, b=self.weights, axis=1))

    def quantile(self, level: float) -> Floats:
        """The outcome below which `level` of the probability lies, (n,)."""
        from scipy.special import ndtr

        spread = np.sqrt(self.variances)
        reach = 40.0 * spread.max(axis=1)
        low, high = self.means.min(axis=1) - reach, self.means.max(axis=1) + reach
        for _ in range(N_BISECTIONS):
            middle = 0.5 * (low + high)
            below = (self.weights * ndtr((middle[:, None] - self.means) / spread)).sum(axis=1)
            low, high = np.where(below < level, middle, low), np.where(below < level, high, middle)
        return np.asarray(0.5 * (low + high))


def predict(fit: SiteNoiseFit, X: Floats, clients: Indices) -> Mixture:
    """Predictive distributions of rows X (n, d), intercept included, of `clients`: -1 for new."""
    return _predict(fit, X, clients, fit.parameters)


def parameter_covariance(fit: SiteNoiseFit) -> Floats:
    """Asymptotic covariance of (beta, A's numbers, log s^2, log a) as worked with."""
    shape, p = fit.factor_shape, len(fit.parameters.coef)
    weights = fit.data.prepared.weights

    def objective(point: Floats) -> tuple[float, Floats]:
        found = evaluate(fit.data, shape, _parameters(fit, point[:p], point[p:]))
        return -float(weights @ found.loglik), -weights @ found.slope

    point = np.concatenate([fit.parameters.coef, _numbers(fit)])
    return positive_inverse(second_derivatives(objective, point), least=1e-6)


def coefficient_degrees(fit: SiteNoiseFit, uncertainty: Floats | None = None) -> Floats:
    """Satterthwaite's degrees of freedom of every coefficient, (d,)."""
    uncertainty = parameter_covariance(fit) if uncertainty is None else uncertainty
    p = len(fit.parameters.coef)
    basis = fit.data.prepared.basis

    def log_variance(numbers: Floats) -> Floats:
        at = _parameters(fit, fit.parameters.coef, numbers)
        client = terms(fit.data, at)
        nodes = integrate(client, at.log_variance, at.log_shape)
        inverse = np.linalg.inv(coef_information(fit.data, client, nodes, at))
        return np.log(np.einsum("dp,pr,dr->d", basis, inverse, basis))

    slope = differences(log_variance, _numbers(fit))
    spread = np.einsum("ki,ij,kj->k", slope, uncertainty[p:, p:], slope)
    return np.maximum(2.0 / np.maximum(spread, np.finfo(float).tiny), LEAST_DEGREES)


def intervals(
    fit: SiteNoiseFit,
    X: Floats,
    clients: Indices,
    level: float = 0.95,
    uncertainty: Floats | None = None,
) -> Floats:
    """Intervals for new outcomes, (n, 2); `uncertainty` is `parameter_covariance(fit)`."""
    from scipy.stats import norm, t

    uncertainty = parameter_covariance(fit) if uncertainty is None else uncertainty
    p = len(fit.parameters.coef)

    def log_variance(numbers: Floats) -> Floats:
        at = _parameters(fit, fit.parameters.coef, numbers)
        return np.log(_predict(fit, X, clients, at).variance())

    # log a is left out: the mixture over t_i is what it does.
    slope = differences(log_variance, _numbers(fit))[:, :-1]
    spread = np.einsum("ki,ij,kj->k", slope, uncertainty[p:-1, p:-1], slope)
    degrees = np.maximum(2.0 / np.maximum(spread, np.finfo(float).tiny), LEAST_DEGREES)
    tail = 0.5 + level / 2
    wider = t.ppf(tail, degrees) / norm.ppf(tail)
    found = predict(fit, X, clients)
    centre = found.mean()
    ends = np.stack([found.quantile(1.0 - tail), found.quantile(tail)], axis=1)
    return np.asarray(centre[:, None] + wider[:, None] * (ends - centre[:, None]))


def _numbers(fit: SiteNoiseFit) -> Floats:
    at = fit.parameters
    theta = np.zeros(fit.factor_shape.n_parameters)
    theta[fit.factor_shape.owner] = at.factor[fit.factor_shape.rows, fit.factor_shape.columns]
    return np.concatenate([theta, [at.log_variance, at.log_shape]])


def _parameters(fit: SiteNoiseFit, coef: Floats, numbers: Floats) -> Parameters:
    factor = fit.factor_shape.factor(numbers[:-2])
    return Parameters(coef, factor, float(numbers[-2]), float(numbers[-1]))


def _predict(fit: SiteNoiseFit, X: Floats, clients: Indices, at: Parameters) -> Mixture:
    asked, place = np.unique(clients, return_inverse=True)
    known = posterior(_with_new(fit.data, asked), at)
    prepared = fit.data.prepared
    Z, inside = X[:, fit.random] @ prepared.spread, X @ prepared.basis
    means = np.einsum("ni,ikn->nk", Z, known.means[:, :, place])
    own = np.einsum("ni,ijkn,nj->nk", Z, known.covariances[..., place], Z, optimize=True)
    moved = inside - np.einsum("ni,irn->nr", Z, known.by_coef[..., place])
    back = np.linalg.pinv(prepared.basis)
    inverse = back @ fit.coef_covariance @ back.T / prepared.scale**2
    of_coef = np.einsum("nr,rs,ns->n", moved, inverse, moved)
    variances = known.nodes.t[:, place].T + own + of_coef[:, None]
    return Mixture(
        known.nodes.weight[:, place].T,
        (X @ fit.coef)[:, None] + prepared.scale * means,
        prepared.scale**2 * variances,
    )


def _with_new(data: NoiseData, asked: Indices) -> NoiseData:
    """The sums of the clients asked for; a new one (-1) is a client without rows."""
    out = data.of_clients(np.maximum(asked, 0))
    empty = asked < 0
    out.prepared.products[:, :, empty] = 0.0
    out.prepared.n_rows[empty] = 0.0
    out.squares[:, :, empty] = 0.0
    return out
