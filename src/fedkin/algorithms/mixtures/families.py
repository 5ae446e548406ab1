"""What differs between Gaussian mixtures and mixtures of regressions, behind one protocol.

Client functions and server programs are written once, in these words. m sites have weights (m, R),
components (m, R, p) and a scale (m, ...), which is None where the covariance is the identity.
`statistics` are what an E-step leaves of the sites' rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from scipy.special import softmax

from fedkin.algorithms.mixtures.settings import MixtureSettings
from fedkin.arrays import Arrays, Floats
from fedkin.federation import Federation
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import gaussian_mixture_starts as gaussian_starts
from fedkin.models import regression_mixture as regression
from fedkin.models import regression_mixture_starts as regression_starts
from fedkin.models import shaped_mixture as shaped
from fedkin.models.latent_classes import best_restart, climb, to_posterior
from fedkin.models.misfit import of_groups
from fedkin.models.mixture_information import gaussian_rows, regression_rows
from fedkin.models.row_blocks import RowBlocks
from fedkin.randomness import Keys

# A site's own fit ends when a row's mean log likelihood gains less than this.
LOCAL_TOL = 1e-6
# The least variance of a column where a fit begins.
LEAST_SPREAD = 1e-12

# Weights, components and scale of the sites.
Fit = tuple[Floats, Floats, Any]


class Family(Protocol):
    """A kind of mixture: its E-step, M-step, scale and start."""

    model: Any  # the functions of the family, by the same names
    settings: MixtureSettings
    em_step: Callable[..., Any]  # one EM step of every site, with a scale of its own
    keeps_scale: bool  # a site that has fitted alone goes on with the scale it found
    common_scale: bool  # a scale is one for all sites
    sent_for_scale: tuple[str, ...]  # what sites send so that the server can learn it

    def expect(self, rows: RowBlocks, fit: Fit) -> Any:
        """The E-step."""
        return self.model.expect(rows, self.model.Parameters(*fit), self.settings.clip)

    def log_joint(self, rows: RowBlocks, fit: Fit) -> Floats:
        """log(weight * density) of every row under every component, (n, R)."""
        return self.model.log_joint(rows, self.model.Parameters(*fit))

    def shares(self, rows: RowBlocks, fit: Fit) -> Floats:
        """How much every row belongs to every component, (n, R), as an E-step has it."""
        joint: Floats = self.log_joint(rows, fit).T[None].copy()
        to_posterior(joint)
        return joint[0].T

    def misfit(self, rows: RowBlocks, fit: Fit, shares: Floats) -> Floats:
        """How many times as far as their spread says rows are from components, (N,).

        Rows whose labels are known are where these say, not where a question does.
        """
        shares = shares * rows.unlabelled[:, None]
        return of_groups(partial(self.away, rows, fit), shares, rows.sizes)

    def gradient_step(self, statistics: Any, components: Floats, length: Floats) -> Floats:
        """Components moved up the likelihood by steps of some length (m, R)."""
        return components + length[..., None] * self.model.ascent_direction(statistics, components)

    def scale(self, rows: RowBlocks, statistics: Any, components: Floats, current: Any) -> Any:
        """The site's scale given its components; one that sites share is not its own."""
        if self.common_scale:
            return current
        return self.own_scale(rows, statistics, components, current)

    def alone(self, rows: RowBlocks, keys: Keys, start: str) -> Fit:
        """Every site's own fit."""
        weights, components, scale = self.likeliest(rows, self.starts(rows, keys, start))
        return weights, components, scale if self.keeps_scale else None

    def likeliest(self, rows: RowBlocks, starts: Fit) -> Fit:
        """Every site's own EM from several starts (m, S, ...); its likeliest end, (m, ...)."""
        given, most = self.model.Parameters(*starts), self.settings.local_max_iter
        return tuple(best_restart(climb(rows, given, self.em_step, most, LOCAL_TOL)).parameters)

    def noise(self, statistics: Any, fit: Fit) -> Floats:
        """Sampling variances of components (m, R), in the metric of a scale that sites share."""
        own: Floats = self.model.sampling_variance(statistics, fit[2] if self.keeps_scale else None)
        return own

    # ------------------------------------------------------------ what is particular

    def prepare(self, clients: Federation) -> RowBlocks:
        """The rows, laid out for batched products."""

    def starts(self, rows: RowBlocks, keys: Keys, start: str) -> Fit:
        """Where every site's own fit begins, (m, S, ...)."""

    def away(self, rows: RowBlocks, fit: Fit, r: int) -> Floats:
        """Rows about their client's r-th component in units of its spread, (N, ...)."""

    def own_scale(self, rows: RowBlocks, statistics: Any, components: Floats, current: Any) -> Any:
        """The scale of a site that shares none."""

    def first_scale(self, rows: RowBlocks, noise: Floats) -> Any:
        """The scale of a site that has none yet: given or known noise, or its rows' own spread."""

    def scale_in_use(self, own: Any, common: Arrays) -> Any:
        """The scale that all sites share, where they do and it is known; else the site's own."""


class GaussianFamily(Family):
    """Rows are normal about means; the scale is a covariance that the groups of a site share."""

    model = gaussian
    em_step = staticmethod(gaussian.em_step)

    def __init__(self, settings: MixtureSettings) -> None:
        self.settings, self.kind = settings, settings.covariance_type
        self.common_scale = self.kind == "tied" and settings.shares_scale
        self.keeps_scale = self.kind != "identity" and not self.common_scale
        self.sent_for_scale = ("scatter",) if self.common_scale else ()

    def prepare(self, clients):
        """Rows about their site's mean, labels aside."""
        return gaussian.prepare(clients)

    def starts(self, rows, keys, start):
        """Greedy k-means++ seeds, or Ward's clusters; groups with labels begin at their means."""
        n_components, n_restarts = self.settings.n_components, self.settings.n_restarts
        if start == "ward":
            kind = "tied" if self.kind == "identity" else self.kind
            found = gaussian_starts.ward_start(rows, n_components, kind)
        else:
            found = gaussian_starts.kmeans_start(rows, n_components, n_restarts, keys, self.kind)
        if not self.settings.labels:
            return found
        told = shaped.labelled_moments(rows, n_components, "identity")
        return gaussian_starts.at_known_groups(found, told.counts, told.means)

    def own_scale(self, rows, statistics, components, current):
        """The covariance of the rows about the means of their groups."""
        if current is None or self.kind == "identity":
            return current
        return gaussian.maximise_covariance(rows, statistics, components, self.kind)

    def first_scale(self, rows, noise):
        """The spread of all rows, in the shape of the covariance."""
        if not self.keeps_scale:
            return None
        if self.kind == "tied":
            return gaussian.covariance_of(rows, rows.scatter, "tied")
        spread = np.maximum(rows.squares / np.maximum(rows.sizes, 1)[:, None], LEAST_SPREAD)
        return spread if self.kind == "diag" else spread.mean(axis=1)

    def away(self, rows, fit, r):
        """Rows about the mean of a group."""
        parameters = gaussian.Parameters(*fit)
        spread = gaussian.matrices(parameters)[:, None, None]
        shape = (len(spread), *fit[1].shape[1:], fit[1].shape[-1])
        spread = np.broadcast_to(spread, (shape[0], 1, *shape[1:]))
        return shaped.away(rows, shaped.Groups(fit[0][:, None], fit[1][:, None], spread), 0, r)

    def informations(self, clients, rows, fit):
        """Every site's rows for slope and curvature, and its weights, site by site."""
        weights, means, covariance = fit
        share = softmax(self.log_joint(rows, fit), axis=1)
        d = clients.n_features
        for k in range(len(clients)):
            own = slice(clients.offsets[k], clients.offsets[k + 1])
            precision = np.eye(d)
            if covariance is not None:
                spread = covariance[k % len(covariance)]
                square = spread if spread.ndim == 2 else spread * np.eye(d)
                precision = np.linalg.inv(square)
            found = gaussian_rows(clients.X[own], share[own], means[k], precision)
            yield found, weights[k]

    def scale_in_use(self, own, common):
        """A common covariance, if one was sent."""
        return common["covariance"][None] if common["covariance"].size else own


class RegressionFamily(Family):
    """A row's target is linear in x; the scale is the noise, a standard deviation."""

    model = regression
    keeps_scale = True

    def __init__(self, settings: MixtureSettings) -> None:
        self.settings, self.common_scale = settings, settings.shares_scale
        self.em_step = partial(regression.em_step, learn_sigma=settings.sigma is None)
        learnt = self.common_scale and settings.sigma is None
        self.sent_for_scale = ("residual",) if learnt else ()

    def prepare(self, clients):
        """Features, an intercept if there is one, and target."""
        return regression.prepare(clients, self.settings.fit_intercept)

    def starts(self, rows, keys, start):
        """Least squares in groups of rows drawn by lot."""
        chosen = self.settings
        return regression_starts.random_start(
            rows, chosen.n_components, chosen.n_restarts, keys, chosen.sigma
        )

    def own_scale(self, rows, statistics, components, current):
        """The root mean square of the residuals, unless the noise is given."""
        if self.settings.sigma is not None:
            return current
        return regression.maximise_sigma(statistics, components, regression.smallest_noise(rows))

    def first_scale(self, rows, noise):
        """Given or known noise, else the root mean square of the target."""
        known = self.settings.sigma or (noise[0] if noise.size else None)
        size = np.sqrt(rows.squares[:, -1] / np.maximum(rows.sizes, 1))
        return np.full(rows.n_clients, known) if known else np.where(size > 0, size, 1.0)

    def away(self, rows, fit, r):
        """Residuals about a regression."""
        return regression.away(rows, regression.Parameters(*fit), 0, r)

    def informations(self, clients, rows, fit):
        """Every site's rows for slope and curvature, and its weights, site by site."""
        weights, coef, sigma = fit
        share = softmax(self.log_joint(rows, fit), axis=1)
        ones = np.ones((len(clients.X), int(self.settings.has_intercept)))
        design = np.concatenate([clients.X, ones], axis=1)
        for k in range(len(clients)):
            own = slice(clients.offsets[k], clients.offsets[k + 1])
            some = design[own], clients.y[own], share[own]
            yield regression_rows(*some, coef[k], float(sigma[k])), weights[k]

    def scale_in_use(self, own, common):
        """A common noise, if one was sent."""
        shared = self.common_scale and common["noise"].size
        return np.full_like(own, common["noise"][0]) if shared else own


class ShapedFamily(GaussianFamily):
    """Rows are normal about means with a covariance for every group of a site."""

    def log_joint(self, rows, fit):
        """log(weight * density) of every row under every group, (n, R)."""
        *groups, freedom = fit
        return shaped.log_joint(rows, shaped.Groups(*(part[:, None] for part in groups)), freedom)


def family_of(settings: MixtureSettings) -> Family:
    """The family that the settings name."""
    if getattr(settings, "shaped", False):
        return ShapedFamily(settings)
    known: dict[str, Any] = {"gaussian": GaussianFamily, "regression": RegressionFamily}
    family: Family = known[settings.family](settings)
    return family


def prepare(clients: Federation, settings: MixtureSettings) -> RowBlocks:
    """The sites' rows, laid out for batched products, with their labels if these are known."""
    if settings.labels:
        return gaussian.prepare(clients, labelled=True)
    return family_of(settings).prepare(clients)
