"""The table of algorithms. A row here puts an algorithm through the whole battery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.algorithms import algorithm
from fedkin.datasets.fgpr import prior_spec
from fedkin.federation import Federation
from fedkin.models.kernels import from_spec
from fedkin.protocol import Algorithm


@dataclass(frozen=True)
class Case:
    """An algorithm, a small federation it should cope with, and what to expect of it.

    settled : settings under which clients that missed early rounds do not change the end
    pooled : settings and an oracle (X, y) -> {name: array}: what identical clients must give
    """

    name: str
    settings: Mapping[str, Any]
    pooled_settings: Mapping[str, Any]
    pooled: Callable[[np.ndarray, np.ndarray], dict[str, np.ndarray]]
    shared: tuple[str, ...]

    @property
    def algorithm(self) -> Algorithm:
        return algorithm(self.name)

    def __str__(self) -> str:
        return self.name


def ragged_federation(n_clients: int = 7, seed: int = 0) -> Federation:
    """Ragged clients of two kinds; names sort differently as text and as numbers."""
    rng = np.random.default_rng(seed)
    coef = np.array([[2.0, -1.0, 0.5], [-2.0, 1.0, 3.0]])
    clients = {}
    for k in range(n_clients):
        n = int(rng.integers(4, 15))
        X = rng.normal(size=(n, 3))
        clients[f"site-{k + 5}"] = (X, X @ coef[k % 2] + 0.5 * rng.normal(size=n))
    return Federation.from_clients(clients)


def _least_squares(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    coef = np.linalg.lstsq(X, y, rcond=None)[0]
    return {"coef": coef[None], "sigma": np.sqrt(np.mean((y - X @ coef) ** 2))}


def _lasso(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    from sklearn.linear_model import Lasso

    model = Lasso(alpha=5.0 / len(y), fit_intercept=False, tol=1e-13, max_iter=100_000)
    return {"coef": model.fit(X, y).coef_}


def _within_two_groups(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Of identical clients, so that the rows of one tell the groups of all."""
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(X)
    rows = scaler.transform(np.unique(X, axis=0))
    scores = PCA().fit_transform(rows)
    scores /= np.sqrt(scores.std(axis=0))
    labels = AgglomerativeClustering(2, linkage="ward").fit_predict(scores)
    about = np.concatenate([rows[labels == g] - rows[labels == g].mean(axis=0) for g in (0, 1)])
    covariance = about.T @ about / (len(rows) - 2)
    return {"mean": scaler.mean_, "scale": scaler.scale_, "covariance": covariance}


def _gaussian_process(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Copies of one site have that site's optimum, so repeated rows count once."""
    from scipy.optimize import minimize
    from sklearn.gaussian_process import GaussianProcessRegressor

    first = np.sort(np.unique(X, axis=0, return_index=True)[1])
    start = from_spec(prior_spec(3.0, 5.0, 1.0))
    oracle = GaussianProcessRegressor(start, alpha=0.0, optimizer=None).fit(X[first], y[first])

    def objective(theta):
        value, gradient = oracle.log_marginal_likelihood(theta, eval_gradient=True)
        return -value / len(first), -gradient / len(first)

    options = {"ftol": 0.0, "gtol": 1e-10}
    bounds = start.bounds
    found = minimize(objective, start.theta, jac=True, bounds=bounds, options=options)
    return {"theta": found.x[None]}


def _residual(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    design = np.column_stack([np.ones(len(X)), X])
    coef = np.linalg.lstsq(design, y, rcond=None)[0]
    return {"noise": np.sqrt(np.mean((y - design @ coef) ** 2))}


_PRIOR = {
    "kernel": prior_spec(3.0, 5.0, 1.0),
    "normalize_y": False,
    "mean": "zero",
    "tol": 1e-10,
}
_LINE = {
    "model": "polynomial",
    "degree": 1,
    "normalize_y": False,
    "local_steps": 1,
    "learning_rate": 1.0,
    "tol": 1e-11,
    # With other sites missing in every round it never settles; the journal test does that.
    "max_rounds": 150,
}

CASES = (
    Case(
        "fmlr",
        {"share": "sums", "n_components": 2, "fit_intercept": False, "n_restarts": 3},
        {"share": "sums", "n_components": 1, "fit_intercept": False},
        _least_squares,
        ("coef", "sigma", "weights"),
    ),
    Case(
        "standardizer",
        {"whiten": True, "n_groups": 2},
        {"whiten": True, "n_groups": 2},
        _within_two_groups,
        ("mean", "scale", "covariance", "whitening"),
    ),
    Case(
        "consensus_lasso",
        {"alpha": 5.0, "tol": 1e-11},
        {"alpha": 5.0, "tol": 1e-12, "max_rounds": 5000},
        _lasso,
        ("coef",),
    ),
    Case("fgpr", _PRIOR, _PRIOR, _gaussian_process, ("theta",)),
    Case("fedavg", _LINE, _LINE, _residual, ("theta",)),
)
