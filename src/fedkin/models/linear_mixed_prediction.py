"""Predictions of the linear mixed model: means, variances and their degrees of freedom.

A known client's row x is predicted by x'beta + z'u with the error of both and how they go together;
a new client's by x'beta, with the variance of the effects it may have. The variances are estimates
themselves, and intervals reckon with that in two ways. With ten sites the spread between sites is
known from nine degrees of freedom: `degrees` gives them (Satterthwaite's formula for the predictive
variance), for Student's t. And means move with the variances: how far counts twice (Prasad, Rao),
once for itself and once because the error at estimated variances is too small by as much.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.linear_mixed import evaluate, profile
from fedkin.models.linear_mixed_fit import LinearMixedFit, predicted_effects
from fedkin.models.linear_mixed_inference import differences, numbers_covariance, numbers_of

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

# A predictive variance with fewer degrees of freedom has no mean worth the name.
LEAST_DEGREES = 2.0


class Prediction(NamedTuple):
    """Of every row: mean, variance of the mean's error, variance of a new outcome, degrees.

    The two variances are those given the variances of the model; `moved` is the variance of the
    mean that comes with theirs.
    """

    mean: Floats
    error: Floats
    variance: Floats
    degrees: Floats
    moved: Floats


def predict(
    fit: LinearMixedFit, X: Floats, clients: Indices, uncertainty: Floats | None = None
) -> Prediction:
    """Predict rows X (n, d), intercept included, of `clients` (n,): -1 for a new one.

    `uncertainty` is `numbers_covariance(fit)`, for callers who predict often.
    """
    uncertainty = numbers_covariance(fit) if uncertainty is None else uncertainty
    known = np.unique(clients[clients >= 0])
    place = np.searchsorted(known, clients)

    def predicted(numbers: Floats) -> Floats:
        return np.stack(_predicted(fit, X, place, clients >= 0, known, numbers))

    numbers = numbers_of(fit)
    error = predicted(numbers)[1]
    of_mean, slope = differences(predicted, numbers)
    slope[:, -1] += 2.0 * fit.sigma**2
    spread, moved = (np.einsum("ki,ij,kj->k", a, uncertainty, a) for a in (slope, of_mean))
    variance = error + fit.sigma**2
    degrees = 2.0 * variance**2 / np.maximum(spread, np.finfo(float).tiny)
    own = np.where(clients[:, None] >= 0, fit.client_coef[np.maximum(clients, 0)], fit.coef)
    mean = np.einsum("nd,nd->n", X, own)
    return Prediction(mean, error, variance, np.maximum(degrees, LEAST_DEGREES), moved)


def intervals(found: Prediction, level: float = 0.95) -> Floats:
    """Intervals for new outcomes, (n, 2)."""
    from scipy.stats import t

    half = t.ppf(0.5 + level / 2, found.degrees) * np.sqrt(found.variance + 2.0 * found.moved)
    return np.stack([found.mean - half, found.mean + half], axis=1)


def _predicted(
    fit: LinearMixedFit,
    X: Floats,
    place: Indices,
    known: NDArray[np.bool_],
    who: Indices,
    numbers: Floats,
) -> tuple[Floats, Floats]:
    """Means of the rows and their error variances, at given variance parameters, (n,) each."""
    prepared = fit.prepared
    factor = fit.shape.factor(numbers[:-1])
    variance = float(np.exp(2.0 * numbers[-1])) * prepared.scale**2
    best = profile(prepared, evaluate(prepared, factor, slopes=False), fit.method)
    inside, Z = X @ prepared.basis, X[:, fit.random]
    of_coef = variance * np.einsum("np,pr,nr->n", inside, best.inverse, inside)
    own = Z @ (prepared.spread @ factor)
    error = of_coef + variance * np.einsum("nq,nq->n", own, own)
    mean = inside @ best.coef * prepared.scale
    if len(who):
        one = prepared.of_clients(who)
        effects = predicted_effects(one, factor, best.coef, best.inverse, variance)
        at = place[known]
        mine = np.einsum("nq,nqr,nr->n", Z[known], effects.total[at], Z[known])
        both = np.einsum("nq,nqd,nd->n", Z[known], effects.with_coef[at], X[known])
        error[known] = of_coef[known] + mine + 2.0 * both
        mean[known] += np.einsum("nq,nq->n", Z[known], effects.means[at])
    return np.asarray(mean), np.asarray(error)
