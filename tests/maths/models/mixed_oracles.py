"""Slow and certain: mixed models by dense covariance matrices, for the tests beside this file."""

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from fedkin.federation import Federation


def federation(X, y, groups):
    return Federation.from_groups(np.asarray(X, dtype=float), groups, np.asarray(y, dtype=float))


def with_intercept(X):
    return np.concatenate([X, np.ones((len(X), 1))], axis=1)


def marginal_covariance(Z, groups, random_covariance, noise):
    """Z V Z' + noise over all rows, zero between sites; `noise` a number or one per row."""
    same = np.asarray(groups)[:, None] == np.asarray(groups)[None, :]
    return np.where(same, Z @ random_covariance @ Z.T, 0.0) + noise * np.eye(len(Z))


def dense_deviance(X, y, groups, random, random_covariance, variance, method):
    """-2 log (restricted) likelihood with beta at its best; and beta and its covariance."""
    sigma = marginal_covariance(X[:, random], groups, random_covariance, variance)
    factor = cho_factor(sigma, lower=True)
    information = X.T @ cho_solve(factor, X)
    beta = np.linalg.solve(information, X.T @ cho_solve(factor, y))
    left = y - X @ beta
    n, p = X.shape
    value = 2 * np.log(np.diag(factor[0])).sum() + left @ cho_solve(factor, left)
    value += (n - p * (method == "reml")) * np.log(2 * np.pi)
    if method == "reml":
        value += np.linalg.slogdet(information)[1]
    return value, beta, np.linalg.inv(information)


def dense_effects(X, y, groups, random, random_covariance, variance):
    """Every site's predicted effects, and their error covariances given beta and with it."""
    names = list(dict.fromkeys(groups))
    sigma = marginal_covariance(X[:, random], groups, random_covariance, variance)
    inverse = np.linalg.inv(sigma)
    covariance = np.linalg.inv(X.T @ inverse @ X)
    left = y - X @ covariance @ X.T @ inverse @ y
    means, given, total = [], [], []
    for name in names:
        own = np.asarray(groups) == name
        pull = np.zeros((len(random), len(y)))
        pull[:, own] = random_covariance @ X[own][:, random].T
        means.append(pull @ inverse @ left)
        given.append(random_covariance - pull @ inverse @ pull.T)
        by_beta = pull @ inverse @ X
        total.append(given[-1] + by_beta @ covariance @ by_beta.T)
    return np.array(means), np.array(given), np.array(total)


def simulated(seed=0, n_clients=12, d=2, least=3, most=9, effect=0.8, noise=0.7, random=None):
    """Ragged sites with random effects: (X with intercept last, y, groups)."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(least, most, n_clients)
    groups = np.repeat([f"site-{k:03d}" for k in range(n_clients)], sizes)
    X = with_intercept(rng.normal(size=(len(groups), d)) + 0.5)
    columns = np.arange(d + 1) if random is None else np.asarray(random)
    u = effect * rng.normal(size=(n_clients, len(columns)))
    y = X @ np.linspace(-1.0, 2.0, d + 1) + noise * rng.normal(size=len(X))
    y += (X[:, columns] * np.repeat(u, sizes, axis=0)).sum(axis=1)
    return X, y, groups
