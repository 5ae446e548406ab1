"""Gaussian processes in JAX: compiled, batched over sites, differentiated automatically.

Kernel: scale times RBF plus noise.
"""

from __future__ import annotations

import os

from benchmarks.measure import threads

if threads() == 1:
    # Read when JAX is loaded; otherwise it takes all cores whatever the others are given.
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    )

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")


@jax.jit
@jax.value_and_grad
def _negative_loglik(theta, squares, y):
    scale, length, noise = jnp.exp(theta)
    n = y.shape[-1]
    K = scale * jnp.exp(-0.5 * squares / length**2) + noise * jnp.eye(n)
    factor = jnp.linalg.cholesky(K)
    half = jax.scipy.linalg.solve_triangular(factor, y[..., None], lower=True)
    logs = jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)).sum()
    return 0.5 * (half**2).sum() + logs + 0.5 * y.size * jnp.log(2 * jnp.pi)


class Evaluation:
    """Data X (m, n, 1) and y (m, n) of sites of one size."""

    def __init__(self, X, y):
        self.squares, self.y = jnp.asarray((X - X.transpose(0, 2, 1)) ** 2), jnp.asarray(y)

    def __call__(self, theta):
        """Summed negative log likelihood, and its gradient (3,) in the log-parameters."""
        value, gradient = _negative_loglik(jnp.asarray(theta), self.squares, self.y)
        return float(value), np.asarray(gradient)
