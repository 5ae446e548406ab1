"""One-shot clustering of sites (ODCL) against the same three steps written with scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.measure import Effort, alone, race, roofline
from benchmarks.table import Row
from fedkin import ODCL
from fedkin.federation import Federation

# Sites, rows a site, features, clusters.
SIZES = {"full": (1000, 100, 20, 10), "quick": (1000, 100, 20, 10), "toy": (12, 30, 2, 2)}


def federation(m, n, d, k) -> Federation:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(m * n, d))
    coef = 3.0 * rng.normal(size=(k, d))[np.repeat(np.arange(m) % k, n)]
    y = np.einsum("nd,nd->n", X, coef) + rng.normal(size=m * n)
    return Federation.from_groups(X, np.repeat(np.arange(m), n), y)


def by_sklearn(data: Federation, k: int):
    """Least squares at every site, then `clustered`."""
    from sklearn.linear_model import LinearRegression

    sites = map(data.client, range(data.n_clients))
    return clustered([LinearRegression(fit_intercept=False).fit(X, y).coef_ for X, y in sites], k)


def by_loop(data: Federation, k: int):
    """The same with normal equations, site by site."""
    sites = map(data.client, range(data.n_clients))
    return clustered([np.linalg.solve(X.T @ X, X.T @ y) for X, y in sites], k)


def by_batch(data: Federation, k: int):
    """The same with the normal equations of all sites at once; they have equally many rows."""
    m, d = data.n_clients, data.n_features
    X, y = data.X.reshape(m, -1, d), data.y.reshape(m, -1, 1)
    turned = X.transpose(0, 2, 1)
    return clustered(np.linalg.solve(turned @ X, turned @ y)[..., 0], k)


def clustered(fits, k: int):
    """k-means of the coefficients; every site's cluster mean."""
    from sklearn.cluster import KMeans

    coef = np.array(fits)
    labels = KMeans(k, n_init=10, tol=0.0, random_state=0).fit(coef).labels_
    return np.array([coef[labels == label].mean(axis=0) for label in range(k)])[labels]


def rows(effort: Effort) -> Iterator[Row]:
    m, n, d, k = SIZES[effort.name]
    data = federation(m, n, d, k)

    def ours():
        made = {"n_clusters": k, "clustering": "kmeans", "fit_intercept": False}
        return ODCL(**made, aggregate="mean", send="model", random_state=0).fit(data)

    peers = {
        "scikit-learn LinearRegression, KMeans": lambda: by_sklearn(data, k),
        "careful loop over sites, KMeans": lambda: by_loop(data, k),
        "normal equations of all sites at once, KMeans": lambda: by_batch(data, k),
    }
    found = race({"ours": ours, **peers}, effort)
    mine = found.pop("ours")
    for name, peer in found.items():
        yield Row(
            f"ODCL fit, {m:,} x {n}, d={d}, K={k}",
            mine.seconds,
            name,
            peer.seconds,
            bound="roofline",
            bound_time=roofline().seconds(
                flops=(d + 1.0) ** 2 * m * n, bytes=8.0 * m * n * (d + 1)
            ),
            difference=float(np.abs(mine.result.coef_ - peer.result).max()),
            turns=mine.turns,
            peer_turns=peer.turns,
            note="All take the best of ten k-means starts; bound: sums of products of all rows.",
        )


if __name__ == "__main__":
    alone(rows)
