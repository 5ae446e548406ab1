"""A site's curve around the common one given its rows: prediction, samples, predictive density.

A `CommonSiteCurve` holds the site's rows and must stay where they are; what it has of others are
the weights of the common curve. Parameters come as a cloud with weights, so predictions are
mixtures of normal distributions. A site of more than `max_points` rows is predicted from the rows
nearest to each point, or from a random subset.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.spatial import KDTree
from scipy.special import logsumexp

from fedkin.arrays import Floats
from fedkin.federation import Federation
from fedkin.models.common_curve import Weights, updated
from fedkin.models.common_form import CommonForm, parameters
from fedkin.models.common_posterior import left_out, site_from_nearest, site_joint, site_posterior
from fedkin.models.common_sums import pack, sums
from fedkin.models.gaussian_process import LOG_2PI, cholesky
from fedkin.models.gp_posterior import NEIGHBOURS, POINT_BLOCK
from fedkin.models.inducing import Points, points_at

# Standard deviation of the common mean's coefficients, in units of the targets': vague.
VAGUE = 10.0
# How the RBF's smoothness, which is infinite, travels.
RBF_TRAVELS = 0.0
# Variances are kept above this share of the noise: below it is rounding.
LEAST_VARIANCE = 1e-9


class Units(NamedTuple):
    """One frame for all sites: centre and spread of features (2, d), location, scale of targets."""

    frame: Floats
    target: Floats

    def rows(self, X: Floats) -> Floats:
        """Features in the frame."""
        return (X - self.frame[0]) / self.frame[1]

    def targets(self, y: Floats) -> Floats:
        """Targets in the frame."""
        standard: Floats = (y - self.target[0]) / self.target[1]
        return standard


class Shared(NamedTuple):
    """The common curve as all sites know it: a cloud of S parameters `theta` (S, p).

    With their weights (S,) and, under each, the weights of the F features: `mean` (S, F) and
    `covariance` (S, F, F). `smoothness` (2,) is that of the common curve and of departures.
    """

    units: Units
    places: Floats
    smoothness: Floats
    theta: Floats
    weights: Floats
    mean: Floats
    covariance: Floats

    @property
    def form(self) -> CommonForm:
        """Of the parameters."""
        return form_of(self.smoothness, self.places.shape[1])

    def each(self) -> list[tuple[Floats, Points, Weights]]:
        """Parameters, points and weights of every member of the cloud."""
        return [
            (theta, points_at(self.form, theta, self.places), Weights(mean, covariance))
            for theta, mean, covariance in zip(self.theta, self.mean, self.covariance)
        ]

    def knowing(self, X: Floats, y: Floats) -> Shared:
        """The common curve when the rows of a further site are known, too."""
        form = self.form
        rows = pack(_one_site(self.units.rows(X), self.units.targets(y)))
        known = [
            updated(form, theta, weights, sums(rows, 1, form, theta, points, slopes=False))
            for theta, points, weights in self.each()
        ]
        mean, covariance = map(np.array, zip(*known))
        return self._replace(mean=mean, covariance=covariance)


def form_of(smoothness: Floats, n_features: int) -> CommonForm:
    """The form with these smoothnesses, as they travel."""
    common, own = (np.inf if nu == RBF_TRAVELS else float(nu) for nu in smoothness)
    return CommonForm(n_features, common=common, own=own, mean="linear", vague=VAGUE)


def left_out_density(shared: Shared, X: Floats, y: Floats) -> Floats:
    """Log density (n,) of each of a site's targets given all other rows; its rows are known."""
    own = shared.units.rows(X), shared.units.targets(y)
    found = [left_out(shared.form, theta, *rest, own) for theta, *rest in shared.each()]
    mean, variance = map(np.array, zip(*found))
    logs = _log_normal(own[1], mean, variance) - np.log(shared.units.target[1])
    density: Floats = logsumexp(logs, axis=0, b=shared.weights[:, None])
    return density


def _one_site(X: Floats, y: Floats) -> Federation:
    return Federation(X, np.array([0, len(X)]), ("site",), y)


def _log_normal(y: Floats, mean: Floats, variance: Floats) -> Floats:
    logs: Floats = -0.5 * (LOG_2PI + np.log(variance) + (y - mean) ** 2 / variance)
    return logs


@dataclass(frozen=True)
class CommonSiteCurve:
    """One site's rows with the common curve; without rows it is a new site."""

    shared: Shared
    X: Floats
    y: Floats
    max_points: int = 500
    large: str = "neighbours"

    @cached_property
    def _own(self) -> tuple[Floats, Floats]:
        """Rows and targets in the frame, of a large site a random subset."""
        own = self.shared.units.rows(self.X), self.shared.units.targets(self.y)
        if len(self.X) <= self.max_points:
            return own
        chosen = np.random.default_rng(len(self.X)).permutation(len(self.X))[: self.max_points]
        return own[0][chosen], own[1][chosen]

    @cached_property
    def _each(self) -> list[tuple[Floats, Points, Weights]]:
        return self.shared.each()

    def moments(self, X: Floats) -> tuple[Floats, Floats]:
        """Means and variances of new targets under every member of the cloud, (S, n)."""
        rows, (location, scale) = self.shared.units.rows(X), self.shared.units.target
        by_nearest = len(self.X) > self.max_points and self.large == "neighbours"
        found = []
        for theta, points, known in self._each:
            if by_nearest:
                mean, variance = self._by_nearest(theta, points, known, rows)
            else:
                form = self.shared.form
                mean, variance = site_posterior(form, theta, points, known, self._own, rows)
            noise = parameters(self.shared.form, theta).noise
            found.append((mean, np.maximum(variance, LEAST_VARIANCE * noise) + noise))
        mean, variance = map(np.array, zip(*found))
        return location + scale * mean, scale**2 * variance

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of new targets."""
        mean, variance = self.moments(X)
        centre = self.shared.weights @ mean
        return centre, np.sqrt(self.shared.weights @ (variance + (mean - centre) ** 2))

    def log_density(self, X: Floats, y: Floats) -> Floats:
        """Log predictive density of every target by itself."""
        logs = _log_normal(y, *self.moments(X))
        density: Floats = logsumexp(logs, axis=0, b=self.shared.weights[:, None])
        return density

    def sample(self, X: Floats, n_samples: int, rng: np.random.Generator) -> Floats:
        """Joint samples of the curve with noise, (n, n_samples)."""
        counts = rng.multinomial(n_samples, self.shared.weights)
        rows, (location, scale) = self.shared.units.rows(X), self.shared.units.target
        drawn = []
        for (theta, points, known), count in zip(self._each, counts):
            if count:
                form = self.shared.form
                mean, spread = site_joint(form, theta, points, known, self._own, rows)
                root, _ = cholesky(spread + parameters(form, theta).noise * np.eye(len(X)))
                drawn.append(mean[:, None] + root @ rng.normal(size=(len(X), count)))
        return np.asarray(location + scale * np.concatenate(drawn, axis=1))

    def _by_nearest(
        self, theta: Floats, points: Points, known: Weights, rows: Floats
    ) -> tuple[Floats, Floats]:
        form = self.shared.form
        lengths = parameters(form, theta).own_lengths
        own = self.shared.units.rows(self.X), self.shared.units.targets(self.y)
        n_near = min(NEIGHBOURS, len(self.X))
        near = KDTree(own[0] / lengths).query(rows / lengths, k=[*range(1, n_near + 1)])[1]
        mean, variance = np.empty(len(rows)), np.empty(len(rows))
        for begin in range(0, len(rows), POINT_BLOCK):
            block = slice(begin, begin + POINT_BLOCK)
            nearest = own[0][near[block]], own[1][near[block]]
            mean[block], variance[block] = site_from_nearest(
                form, theta, points, known, nearest, rows[block]
            )
        return mean, variance
