"""Rows (x, y) from a mixture of x and, independently given the client, a mixture of regressions.

FedGMM's model (Wu et al. 2023): x comes from one of M normal components, y from one of R
regressions, and a client has a weight for every pair,

    p_k(x, y) = sum_{a, r} weights_k[a, r] N(x; center_a, covariance_a) N(y; x' coef_r, sigma^2).

A site at a time: its rows in, sums out. p coefficients: d, and the intercept last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax, logsumexp

from fedkin.arrays import Floats
from fedkin.models.latent_classes import EMPTY_COMPONENT, log_weights


class Shared(NamedTuple):
    """`centers` (M, d), `covariances` (M, d, d), `coef` (R, p), `sigma`."""

    centers: Floats
    covariances: Floats
    coef: Floats
    sigma: float


class Sums(NamedTuple):
    """A site's half of an M-step; adding them over sites is the M-step of all rows.

    `pairs` (M, R): responsibilities added up. `moments` (M, 1 + d + d d): weights, weighted x and
    x x'. `packed` (R, q): weighted products of (x, [1], y) as in `least_squares`. `loglik`.
    """

    pairs: Floats
    moments: Floats
    packed: Floats
    loglik: float


def log_density(X: Floats, shared: Shared) -> Floats:
    """Log densities of rows under the components of x, (n, M)."""
    roots = np.linalg.cholesky(shared.covariances)
    about = X[:, None] - shared.centers
    solved = np.linalg.solve(roots, about.transpose(1, 2, 0))
    length = np.einsum("adn,adn->na", solved, solved)
    halves = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
    return -0.5 * (length + X.shape[1] * np.log(2 * np.pi)) - halves


def away(X: Floats, shared: Shared, a: int) -> Floats:
    """Rows about the centre of a component of x, its covariance made the identity, (n, d)."""
    root = np.linalg.cholesky(shared.covariances[a])
    return np.linalg.solve(root, (X - shared.centers[a]).T).T


def away_from_regression(X: Floats, y: Floats, shared: Shared, r: int) -> Floats:
    """Residuals about a regression in units of the noise, (n, 1)."""
    d = X.shape[1]
    level = shared.coef[r, d:].sum()
    return ((y - X @ shared.coef[r, :d] - level) / shared.sigma)[:, None]


def log_shares(X: Floats, weights: Floats, shared: Shared) -> Floats:
    """Log probability of every regression given x alone, (n, R).

    `weights` (M, R), or (n, M, R) for rows of several clients.
    """
    joint = logsumexp(log_density(X, shared)[:, :, None] + log_weights(weights), axis=1)
    return log_softmax(joint, axis=1)


def log_inputs(X: Floats, weights: Floats, shared: Shared) -> Floats:
    """Log density of x alone, (n,); `weights` as in `log_shares`."""
    inputs = np.asarray(weights).sum(axis=-1)
    return np.asarray(logsumexp(log_density(X, shared) + log_weights(inputs), axis=1))


def expect(X: Floats, y: Floats, weights: Floats, shared: Shared, fit_intercept: bool) -> Sums:
    """The E-step of one site."""
    rows, share, total = _shares(X, y, weights, shared, fit_intercept)
    return Sums(
        share.sum(axis=0),
        share.sum(axis=2).T @ moment_rows(X),
        share.sum(axis=1).T @ _products(rows),
        float(total.sum()),
    )


def shares(
    X: Floats, y: Floats, weights: Floats, shared: Shared, fit_intercept: bool
) -> tuple[Floats, Floats]:
    """How much every row belongs to every component of x (n, M) and regression (n, R)."""
    _, share, _ = _shares(X, y, weights, shared, fit_intercept)
    return share.sum(axis=2), share.sum(axis=1)


def _shares(
    X: Floats, y: Floats, weights: Floats, shared: Shared, fit_intercept: bool
) -> tuple[Floats, Floats, Floats]:
    """Rows (x, [1], y), their probability of every pair (n, M, R), and log density (n,)."""
    rows = np.concatenate([X, np.ones((len(X), int(fit_intercept))), y[:, None]], axis=1)
    residual = (y[:, None] - rows[:, :-1] @ shared.coef.T) / shared.sigma
    of_y = -0.5 * (residual**2 + np.log(2 * np.pi)) - np.log(shared.sigma)
    joint = log_density(X, shared)[:, :, None] + of_y[:, None] + log_weights(weights)
    total = logsumexp(joint.reshape(len(X), weights.size), axis=1)
    return rows, np.exp(joint - total[:, None, None]), total


def moment_rows(X: Floats) -> Floats:
    """1, x and the products of x of every row, (n, 1 + d + d d)."""
    products = (X[:, :, None] * X[:, None]).reshape(len(X), X.shape[1] ** 2)
    return np.concatenate([np.ones((len(X), 1)), X, products], axis=1)


def _products(rows: Floats) -> Floats:
    """Products of all columns of rows (x, [1], y), packed, and 1, (n, q)."""
    left, right = np.triu_indices(rows.shape[1])
    return np.concatenate([rows[:, left] * rows[:, right], np.ones((len(rows), 1))], axis=1)


def maximise_x(moments: Floats, current: Shared, smallest: float) -> tuple[Floats, Floats]:
    """Centres and covariances of x from sums over sites; no eigenvalue below `smallest`."""
    d = current.centers.shape[1]
    counts = moments[:, 0]
    alive = counts > EMPTY_COMPONENT
    safe = np.where(alive, counts, 1.0)[:, None]
    centers = np.where(alive[:, None], moments[:, 1 : 1 + d] / safe, current.centers)
    second = (moments[:, 1 + d :] / safe).reshape(-1, d, d)
    covariances = second - centers[:, :, None] * centers[:, None]
    covariances = np.where(alive[:, None, None], covariances, current.covariances)
    values, vectors = np.linalg.eigh(covariances)
    values = np.maximum(values, smallest)
    return centers, (vectors * values[:, None, :]) @ vectors.swapaxes(1, 2)
