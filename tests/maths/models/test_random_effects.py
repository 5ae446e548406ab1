"""Regressions with one normal prior against maximum likelihood with dense matrices."""

import numpy as np
from scipy.optimize import minimize

from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics
from fedkin.models.random_effects import shared_prior_fits


def sites(seed=0, n_sites=30, n_rows=3):
    """One coefficient a site of variance 4, a few rows of noise one."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_sites, n_rows, 1))
    y = 2.0 * rng.normal(size=(n_sites, 1)) * X[..., 0] + rng.normal(size=(n_sites, n_rows))
    return X, y


def test_posterior_means_are_those_of_the_likeliest_prior_and_noise():
    X, y = sites()

    def covariances(logs):
        between, noise = np.exp(logs)
        return between * X @ X.transpose(0, 2, 1) + noise * np.eye(X.shape[1])

    def misfit(logs):
        whole = covariances(logs)
        squares = np.einsum("mi,mi->m", y, np.linalg.solve(whole, y[..., None])[..., 0])
        return (squares + np.linalg.slogdet(whole)[1]).sum()

    best = minimize(misfit, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-8}).x
    solved = np.linalg.solve(covariances(best), y[..., None])[..., 0]
    expected = np.exp(best[0]) * np.einsum("mnd,mn->md", X, solved)
    packed = packed_statistics(Federation.from_clients(list(zip(X, y))), False).T
    found = shared_prior_fits(np.ascontiguousarray(packed), n_iterations=2000)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
