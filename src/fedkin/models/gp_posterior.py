"""A site's own Gaussian process given its rows: prediction, samples, predictive density.

A `SiteCurve` holds the site's rows and must stay where they are. It may carry several priors with
weights (a mixture); predictions are then mixtures of normal distributions. Sites with more than
`max_points` rows are predicted exactly where the kernel can be walked along a line
(`state_space.py`), else from the nearest rows of each point (a Vecchia approximation) or from a
random subset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from fedkin.arrays import Floats, Indices
from fedkin.models.gaussian_process import LOG_2PI, cholesky, correlation, squared_distances
from fedkin.models.gp_rows import basis_at
from fedkin.models.gp_walks import can_be_walked
from fedkin.models.kernels import Form, from_spec
from fedkin.models.state_posterior import posterior
from fedkin.models.state_space import Readings, readings

# Rows that a point of a large site is predicted from.
NEIGHBOURS = 100
# Points handled at once: their neighbours' covariances take a few megabytes.
POINT_BLOCK = 64
# Variances are kept above this share of the prior's: below it is rounding.
LEAST_VARIANCE = 1e-14


def covariance(form: Form, theta: Floats, A: Floats, B: Floats) -> Floats:
    """Covariance of the signal between rows A and rows B (no noise)."""
    if form.fast is None:
        kernel = from_spec(form.spec).clone_with_theta(theta)
        return np.asarray(kernel(A, B))
    full = form.fast.fill(theta)
    lengths = np.exp(full[1:-1])
    square = cdist(A / lengths, B / lengths, "sqeuclidean")
    return correlation(form.fast.smoothness, square, np.exp(full[:1]))[0]


def own_covariance(form: Form, theta: Floats, X: Floats) -> Floats:
    """Covariance of new targets at rows X, noise on the diagonal."""
    if form.fast is None:
        kernel = from_spec(form.spec).clone_with_theta(theta)
        return np.asarray(kernel(X))
    noise = np.exp(form.fast.fill(theta)[-1])
    return covariance(form, theta, X, X) + noise * np.eye(len(X))


def prior_variance(form: Form, theta: Floats, X: Floats) -> Floats:
    """Variance of a new target at every row, noise included."""
    if form.fast is None:
        return np.asarray(from_spec(form.spec).clone_with_theta(theta).diag(X))
    full = form.fast.fill(theta)
    return np.full(len(X), np.exp(full[0]) + np.exp(full[-1]))


@dataclass(frozen=True)
class SiteCurve:
    """One site's rows with the priors it uses: `theta` (P, p) with `weights` (P,).

    `location` and `scale` turn standardised targets into the site's; for a mean function `frame`
    (2, d) is centre and spread of its features and `size` that of its standardised targets.
    """

    form: Form
    theta: Floats
    weights: Floats
    X: Floats
    y: Floats
    location: float
    scale: float
    mean: str = "zero"
    frame: Floats = field(default_factory=lambda: np.zeros((2, 0)))
    size: float = 1.0
    max_points: int = 500
    large: str = "neighbours"
    between: float = 0.0
    """Variance of sites' locations, for a site whose own is not known."""

    @property
    def approximate(self) -> bool:
        """Whether the site is too large for the exact posterior."""
        return len(self.X) > self.max_points

    @cached_property
    def target(self) -> Floats:
        """Standardised targets."""
        return (self.y - self.location) / self.scale

    def moments(self, X: Floats) -> tuple[Floats, Floats]:
        """Means and variances of new targets under each prior, (P, n), in the site's units."""
        mean, variance = map(np.array, zip(*(self._standard(theta, X) for theta in self.theta)))
        variance = self.scale**2 * variance + self.between
        return self.location + self.scale * mean, variance

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of new targets."""
        mean, variance = self.moments(X)
        centre = self.weights @ mean
        spread = self.weights @ (variance + (mean - centre) ** 2)
        return centre, np.sqrt(spread)

    def log_density(self, X: Floats, y: Floats) -> Floats:
        """Log predictive density of every target by itself."""
        mean, variance = self.moments(X)
        logs = -0.5 * (LOG_2PI + np.log(variance) + (y - mean) ** 2 / variance)
        density: Floats = logsumexp(logs, axis=0, b=self.weights[:, None])
        return density

    def joint_log_density(self, X: Floats, y: Floats) -> float:
        """Log density of all targets together, of a site without rows."""
        logs = []
        for theta in self.theta:
            covariance = self.scale**2 * self._own(theta, X) + self.between
            root, _ = cholesky(covariance)
            half = solve_triangular(root, y - self.location, lower=True)
            log_det = 2.0 * np.log(np.diagonal(root)).sum()
            logs.append(-0.5 * (half @ half + log_det + len(y) * LOG_2PI))
        return float(logsumexp(logs, b=self.weights))

    def sample(self, X: Floats, n_samples: int, rng: np.random.Generator) -> Floats:
        """Joint samples of the curve with noise, (n, n_samples)."""
        counts = rng.multinomial(n_samples, self.weights)
        drawn = [
            self._draw(theta, X, count, rng) for theta, count in zip(self.theta, counts) if count
        ]
        level = np.sqrt(self.between) * rng.normal(size=n_samples)
        return self.location + level + self.scale * np.concatenate(drawn, axis=1)

    def left_out(self) -> tuple[Floats, Floats]:
        """Expected value and log density (kept,) of each target kept given the others.

        In the site's units; the standardisation is taken as known.
        """
        X, y = self._kept
        means, logs = [], []
        for theta in self.theta:
            inverse = np.linalg.inv(self._own(theta, X))
            precision = np.maximum(np.diagonal(inverse), np.finfo(float).tiny)
            away = (inverse @ y) / precision
            means.append(y - away)
            logs.append(-0.5 * (LOG_2PI - np.log(precision) + precision * away**2))
        density: Floats = logsumexp(np.array(logs), axis=0, b=self.weights[:, None])
        mean = self.location + self.scale * (self.weights @ np.array(means))
        return mean, density - np.log(self.scale)

    # ------------------------------------------------------------ one prior, standardised

    def _basis(self, X: Floats) -> Floats:
        if self.mean == "zero":
            return np.zeros((len(X), 0))
        return basis_at(X, self.frame[0], self.frame[1], self.mean, self.size)

    def _cross(self, theta: Floats, A: Floats, B: Floats) -> Floats:
        return covariance(self.form, theta, A, B) + self._basis(A) @ self._basis(B).T

    def _own(self, theta: Floats, X: Floats) -> Floats:
        basis = self._basis(X)
        return own_covariance(self.form, theta, X) + basis @ basis.T

    def _prior(self, theta: Floats, X: Floats) -> Floats:
        return prior_variance(self.form, theta, X) + (self._basis(X) ** 2).sum(axis=1)

    @cached_property
    def _kept(self) -> tuple[Floats, Floats]:
        """Rows and standardised targets that the exact formula uses."""
        if not self.approximate:
            return self.X, self.target
        chosen = np.random.default_rng(len(self.X)).permutation(len(self.X))[: self.max_points]
        return self.X[chosen], self.target[chosen]

    def _standard(self, theta: Floats, X: Floats) -> tuple[Floats, Floats]:
        prior = self._prior(theta, X)
        if len(self.X) == 0:
            return np.zeros(len(X)), prior
        if self.approximate and can_be_walked(self.form, X.shape[1]):
            mean, variance = self._by_walking(theta, X)
        elif self.approximate and self.large == "neighbours":
            mean, variance = self._by_neighbours(theta, X, prior)
        else:
            mean, explained = self._from_kept(theta, X)
            variance = prior - (explained**2).sum(axis=0)
        return mean, np.maximum(variance, LEAST_VARIANCE * prior)

    def _from_kept(self, theta: Floats, X: Floats) -> tuple[Floats, Floats]:
        """Means (n,) given the rows kept, and the root of the covariance they explain (kept, n)."""
        weights, factor = self._factor(theta)
        cross = self._cross(theta, X, self._kept[0])
        explained = solve_triangular(factor, cross.T, lower=True, check_finite=False)
        return cross @ weights, explained

    @cached_property
    def _factors(self) -> dict[bytes, tuple[Floats, Floats]]:
        return {}

    def _factor(self, theta: Floats) -> tuple[Floats, Floats]:
        """inv(K) y and the factor of K; made once per prior."""
        key = theta.tobytes()
        if key not in self._factors:
            X, y = self._kept
            factor, _ = cholesky(self._own(theta, X))
            half = solve_triangular(factor, y, lower=True)
            weights = solve_triangular(factor, half, lower=True, trans="T")
            self._factors[key] = weights, factor
        return self._factors[key]

    def _draw(self, theta: Floats, X: Floats, count: int, rng: np.random.Generator) -> Floats:
        spread, mean = self._own(theta, X), np.zeros(len(X))
        if len(self.X):
            mean, explained = self._from_kept(theta, X)
            spread = spread - explained.T @ explained
        root, _ = cholesky(spread)
        return mean[:, None] + root @ rng.normal(size=(len(X), count))

    # ------------------------------------------------------------ large sites

    @cached_property
    def _readings(self) -> Readings:
        ends = np.array([0, len(self.X)])
        return readings(self.X[:, 0], self.target, ends, self._basis(self.X))

    def _by_walking(self, theta: Floats, X: Floats) -> tuple[Floats, Floats]:
        """Exactly, along the line."""
        assert self.form.fast is not None
        full = self.form.fast.fill(theta)
        mean, variance = posterior(
            self._readings,
            self.form.fast.smoothness,
            full,
            X[:, 0],
            np.array([0, len(X)]),
            self._basis(X),
        )
        return mean, variance + np.exp(full[-1])

    def _by_neighbours(self, theta: Floats, X: Floats, prior: Floats) -> tuple[Floats, Floats]:
        """Every point from the rows nearest to it in units of the length scales."""
        lengths = np.ones(X.shape[1])
        if self.form.fast is not None:
            lengths = lengths * np.exp(self.form.fast.fill(theta)[1:-1])
        n_near = min(NEIGHBOURS, len(self.X))
        near = KDTree(self.X / lengths).query(X / lengths, k=[*range(1, n_near + 1)])[1]
        mean, variance = np.empty(len(X)), np.empty(len(X))
        for begin in range(0, len(X), POINT_BLOCK):
            block = slice(begin, begin + POINT_BLOCK)
            mean[block], variance[block] = self._local(theta, X[block], near[block], prior[block])
        return mean, variance

    def _local(
        self, theta: Floats, X: Floats, near: Indices, prior: Floats
    ) -> tuple[Floats, Floats]:
        """Kriging from a few rows for each point (t, rows), batched over points."""
        inside, cross = self._local_covariances(theta, X, near)
        y = self.target[near]
        solved = np.linalg.solve(inside, np.stack([cross, y], axis=2))
        mean = np.einsum("tn,tn->t", cross, solved[:, :, 1])
        return mean, prior - np.einsum("tn,tn->t", cross, solved[:, :, 0])

    def _local_covariances(self, theta: Floats, X: Floats, near: Indices) -> tuple[Floats, Floats]:
        if self.form.fast is None:
            inside = np.array([self._own(theta, self.X[rows]) for rows in near])
            cross = [self._cross(theta, x[None], self.X[rows])[0] for x, rows in zip(X, near)]
            return inside, np.array(cross)
        full = self.form.fast.fill(theta)
        joint = np.concatenate([self.X[near], X[:, None]], axis=1)
        Z = ((joint - X[:, None]) / np.exp(full[1:-1])).transpose(0, 2, 1)
        basis = self._basis(joint.reshape(-1, X.shape[1])).reshape(*joint.shape[:2], -1)
        scale = np.exp(full[:1]).repeat(len(X))
        whole, _ = correlation(self.form.fast.smoothness, squared_distances(Z), scale)
        whole = whole + basis @ basis.transpose(0, 2, 1)
        inside = whole[:, :-1, :-1] + np.exp(full[-1]) * np.eye(near.shape[1])
        return inside, whole[:, :-1, -1]
