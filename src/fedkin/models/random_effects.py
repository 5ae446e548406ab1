"""Regressions whose coefficients are drawn from one normal law: each client's best guess.

    y_i = X_i u_i + noise,   u_i ~ N(0, V),   noise ~ N(0, sigma^2)

V and sigma are learnt from all clients by EM on packed statistics. A client with fewer rows than
coefficients gets a sensible estimate along the directions in which clients differ, where its own
least-norm fit shrinks all directions alike.
"""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Floats
from fedkin.models.least_squares import unpack

N_ITERATIONS = 60
# Of the mean variance, added to V: directions in which no client differs keep it invertible.
LEAST_SHARE = 1e-9
FIRST_NOISE = 0.1  # of the mean square of the target


def shared_prior_fits(statistics: Floats, n_iterations: int = N_ITERATIONS) -> Floats:
    """Posterior means (m, d) of the clients' coefficients, from statistics (m, q)."""
    gram, cross, square, n_rows = unpack(statistics)
    total, d = max(float(n_rows.sum()), 1.0), cross.shape[1]
    lengths = np.maximum(np.einsum("mdd->d", gram), np.finfo(float).tiny)
    variance = max(float(square.sum()), np.finfo(float).tiny) / total
    prior = np.diag(variance * total / (d * lengths))
    noise = FIRST_NOISE * variance
    identity = np.eye(d)
    for _ in range(n_iterations):
        # (V^-1 + G / s)^-1 = (I + V G / s)^-1 V: V itself is never inverted.
        posterior = np.linalg.solve(identity + prior @ gram / noise, prior)
        means = np.einsum("mij,mj->mi", posterior, cross) / noise
        prior = (posterior.sum(axis=0) + means.T @ means) / len(means)
        prior = 0.5 * (prior + prior.T) + LEAST_SHARE * np.trace(prior) / d * identity
        residual = square - 2.0 * np.einsum("md,md->m", cross, means)
        residual += np.einsum("mi,mij,mj->m", means, gram, means)
        residual += np.einsum("mij,mji->m", gram, posterior)
        noise = max(float(residual.sum()) / total, 1e-12 * variance)
    return means
