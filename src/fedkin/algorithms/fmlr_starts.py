"""Where federated EM may begin when nobody knows the coefficients.

- `clustered_fits`: every client's ridge fit, clustered (optionally inside the eigenspace that
  the pair moments span). Needs the statistics at the server.
- `in_eigenspace`: random points of that eigenspace. Needs a sum over clients only.
- `random_groups`: least squares in groups drawn by lot; EM breaks the near-symmetry. Needs sums.
"""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Floats
from fedkin.clustering import kmeans
from fedkin.federation import Federation
from fedkin.models.least_squares import n_coefficients, solve

# Enough clients to place K centres; beyond it, k-means of a million fits buys nothing.
MOST_CLUSTERED = 5000
# One row's worth of ridge makes a fit exist for any n >= 1 and fades as n grows.
RIDGE_ROWS = 1.0


def pair_moments(clients: Federation, fit_intercept: bool) -> Floats:
    """Upper triangle of (s s' - sum y^2 x x') / (n (n - 1)), s = X'y; zero where n < 2, (m, u).

    Products of different rows only, so its mean estimates coef coef' without bias when features
    are standardised and independent.
    """
    assert clients.y is not None
    X = clients.X
    if fit_intercept:
        X = np.concatenate([X, np.ones((len(X), 1))], axis=1)
    products = X * clients.y[:, None]
    upper = np.triu_indices(X.shape[1])
    moments = np.zeros((clients.n_clients, len(upper[0])))
    for bucket in clients.buckets():
        block = bucket.pack(products)
        total = block.sum(axis=-1)
        pairs = total[:, :, None] * total[:, None, :] - block @ block.transpose(0, 2, 1)
        n = bucket.sizes[:, None].astype(float)
        scale = np.where(n > 1, 1.0 / np.maximum(n * (n - 1), 1), 0.0)
        moments[bucket.clients] = pairs[:, upper[0], upper[1]] * scale
    return moments


def eigenspace(moments: Floats, n_components: int) -> tuple[Floats, Floats]:
    """Leading eigenvectors (d, k) and eigenvalues (k,) of packed moments, k <= n_components."""
    size = int(np.sqrt(2 * len(moments) + 0.25) - 0.5 + 1e-9)
    upper = np.triu_indices(size)
    matrix = np.zeros((size, size))
    matrix[upper] = moments
    matrix = matrix + np.triu(matrix, 1).T
    values, vectors = np.linalg.eigh(matrix)
    kept = slice(None, -1 - min(n_components, size), -1)
    return vectors[:, kept], np.maximum(values[kept], 0.0)


def in_eigenspace(
    moments: Floats, n_components: int, n_restarts: int, rng: np.random.Generator
) -> Floats:
    """Random coefficients (R, K, d) with the second moments of the sites' coefficients."""
    vectors, values = eigenspace(moments, n_components)
    drawn = rng.normal(size=(n_restarts, n_components, len(values)))
    coef: Floats = (drawn * np.sqrt(values)) @ vectors.T
    return coef


def random_groups(
    statistics: Floats, n_components: int, n_restarts: int, rng: np.random.Generator
) -> Floats:
    """Least squares in groups drawn by lot, (R, K, d), from statistics (q, m)."""
    drawn = rng.integers(0, n_components, size=(n_restarts, statistics.shape[1]))
    sums = np.stack([(drawn == k).astype(float) @ statistics.T for k in range(n_components)], 1)
    return solve(sums)[0]


def clustered_fits(
    statistics: Floats,
    n_components: int,
    n_restarts: int,
    rng: np.random.Generator,
    moments: Floats | None = None,
) -> Floats:
    """Centres of the clients' ridge fits, one k-means++ start per restart, (R, K, d)."""
    if n_restarts == 0:
        return np.empty((0, n_components, n_coefficients(len(statistics))))
    filled = np.flatnonzero(statistics[-1] > 0)
    if len(filled) > MOST_CLUSTERED:
        filled = rng.choice(filled, MOST_CLUSTERED, replace=False)
    fits, _ = solve(statistics[:, filled].T, ridge=RIDGE_ROWS)
    # Compare fits by what they predict: in units of each column's root mean square.
    size = fits.shape[1] + 1
    squares = statistics[np.flatnonzero(np.equal(*np.triu_indices(size)))].sum(axis=1)[:-1]
    units = np.sqrt(squares / statistics[-1].sum())
    units = np.where(units > 0, units, 1.0)
    points = fits * units
    if moments is not None:
        vectors, _ = eigenspace(moments, n_components)
        points = (fits @ vectors @ vectors.T) * units
    seeds = rng.integers(0, 2**31 - 1, size=n_restarts)
    centers = [kmeans(points, n_components, int(seed), n_starts=1).centers for seed in seeds]
    return np.array(centers) / units
