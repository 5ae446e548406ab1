"""The mathematics of Gaussian mixtures and mixtures of regressions behind one set of words.

What differs between the two families and among the kinds of covariance is decided here, so that
client functions and server programs are written once for all.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import gaussian_mixture_starts as gaussian_starts
from fedkin.models import regression_mixture as regression
from fedkin.models import regression_mixture_starts as regression_starts
from fedkin.models.latent_classes import EMPTY_COMPONENT, best_restart, climb
from fedkin.protocol import Settings

# A local fit ends when a row's mean log likelihood gains less than this.
LOCAL_TOL = 1e-6


class Family:
    """The mathematics of one family behind one set of words; no `scale` is None."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.regression = settings["family"] == "regression"
        self.kind = settings["covariance_type"]
        self.n_intercepts = int(self.regression and bool(settings["fit_intercept"]))

    def prepare(self, clients):
        """Rows in blocks."""
        if self.regression:
            return regression.prepare(clients, self.settings["fit_intercept"])
        return gaussian.prepare(clients)

    def parameters(self, weights, components, scale):
        """The family's own parameters."""
        if self.regression:
            return regression.Parameters(weights, components, scale)
        return gaussian.Parameters(weights, components, scale)

    def alone(self, rows, keys, own_scale=False):
        """Every site's own fit: weights (m, R), components (m, R, p), scale (m, ...) or None.

        `own_scale` keeps a site's own tied covariance; where sites share one it is left out.
        """
        chosen = self.settings
        common = {"n_restarts": chosen["n_restarts"], "max_iter": chosen["local_max_iter"]}
        if self.regression:
            found = regression_starts.local_em(
                rows, chosen["n_components"], keys, sigma=chosen["sigma"], **common
            ).parameters
            return found.weights, found.coef, found.sigma
        init = chosen["local_start"]
        kind = "tied" if init == "ward" and self.kind == "identity" else self.kind
        found = gaussian_starts.local_em(
            rows, chosen["n_components"], keys, init=init, covariance_type=kind, **common
        ).parameters
        left_out = self.kind == "identity" or (self.kind == "tied" and not own_scale)
        return found.weights, found.means, None if left_out else found.covariance

    def best_of(self, rows, weights, components, scale):
        """Every site's own EM from several starts (m, S, ...) to the end; the likeliest, (m, ...).

        A scale common to all is where each site's own begins; its end is left out again.
        """
        given = self.parameters(weights, components, scale)
        step: Any = gaussian.em_step
        if self.regression:
            step = partial(regression.em_step, learn_sigma=self.settings["sigma"] is None)
        ended = climb(rows, given, step, self.settings["local_max_iter"], LOCAL_TOL)
        return tuple(best_restart(ended).parameters)

    def expect(self, rows, weights, components, scale):
        """The E-step."""
        model = regression if self.regression else gaussian
        return model.expect(
            rows, self.parameters(weights, components, scale), self.settings["clip"]
        )

    def maximise(self, found, components):
        """The full M-step."""
        if self.regression:
            return regression.maximise_coef(found, components)
        return gaussian.maximise_means(found, components)

    def climb(self, found, components, step):
        """The gradient step."""
        model = regression if self.regression else gaussian
        return model.gradient_step(found, components, step)

    def longest_step(self, found):
        """Twice this and a gradient step diverges, (m, R)."""
        if self.regression:
            return regression.largest_step(found)
        share = found.pulls / np.maximum(found.n_rows, 1.0)[:, None]
        return 1.0 / np.maximum(share, np.finfo(float).tiny)

    def weights(self, found, current):
        """The weights' M-step."""
        model = regression if self.regression else gaussian
        return model.maximise_weights(found, current)

    def scale(self, rows, found, components, current):
        """The site's own scale given its components; a common covariance is not its own."""
        if self.regression:
            if self.settings["sigma"] is not None or self.settings["shared_noise"]:
                return current
            return regression.maximise_sigma(found, components, regression.smallest_noise(rows))
        return current if self.kind == "tied" else self.own_scale(rows, found, components, current)

    def own_scale(self, rows, found, components, current):
        """The scale of a site that shares none."""
        if self.regression:
            if self.settings["sigma"] is not None:
                return current
            return regression.maximise_sigma(found, components, regression.smallest_noise(rows))
        if current is None or self.kind == "identity":
            return current
        scatter = gaussian.within_scatter(rows, found, components, self.kind)
        floor = gaussian.smallest_variance(rows)
        return gaussian.covariance_of(scatter, found.n_rows, floor, self.kind, rows.n_columns)

    def first_scale(self, rows, noise):
        """The scale of a site that has none yet: given or found noise, or its rows' own spread."""
        if self.regression:
            given = self.settings["sigma"] or (noise[0] if noise.size else None)
            spread = np.sqrt(rows.squares[:, -1] / np.maximum(rows.sizes, 1))
            return np.full(rows.n_clients, given) if given else np.where(spread > 0, spread, 1.0)
        if self.kind in ("identity", "tied"):
            return None
        spread = np.maximum(rows.squares / np.maximum(rows.sizes, 1)[:, None], 1e-12)
        return spread if self.kind == "diag" else spread.mean(axis=1)

    def variances(self, found, scale):
        """Sampling variance of a coordinate of each component, (m, R); infinite if empty."""
        if self.regression:
            return regression.sampling_variance(found, scale)
        if scale is None:
            spread = np.ones(len(found.counts))
        elif self.kind == "tied":
            # In the metric of the common covariance a coordinate has variance one.
            spread = np.ones(len(found.counts))
        else:
            spread = scale.reshape(len(scale), -1).mean(axis=1)
        with np.errstate(divide="ignore"):
            return np.where(found.pulls > EMPTY_COMPONENT, spread[:, None] / found.pulls, np.inf)

    def sums(self, found):
        """What a pooled M-step needs, (m, R, q)."""
        if self.regression:
            return found.packed
        return np.concatenate([found.sums, found.pulls[..., None]], axis=-1)

    def pooled(self, sums, current):
        """Components (R, p) from sums over sites."""
        if self.regression:
            fitted = regression.least_squares(sums).coef
            return np.where(sums[..., -1:] > EMPTY_COMPONENT, fitted, current)
        counts = sums[..., -1:]
        alive = counts > EMPTY_COMPONENT
        return np.where(alive, sums[..., :-1] / np.where(alive, counts, 1.0), current)
