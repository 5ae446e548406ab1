"""A fitted mixture in use: groups, targets and densities of rows at known and unseen sites."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import logsumexp, softmax
from sklearn.base import DensityMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.mixtures.settings import MixtureSettings
from fedkin.estimators.base import FederatedEstimator
from fedkin.federation import Federation
from fedkin.models.estimates import checked_level
from fedkin.models.kinds_prediction import Mixture
from fedkin.models.latent_classes import mixture_weights
from fedkin.ties import RELATIVE, first_best

# EM for the weights of a site whose components are given: passes, and when weights stand still.
WEIGHT_PASSES = 200
WEIGHT_TOL = 1e-8


class FittedMixture(DensityMixin, FederatedEstimator):
    """What can be done with components, weights and scale once they are there."""

    _used: MixtureSettings
    _private = (*FederatedEstimator._private, "_family")

    def predict(self, X, groups=None, return_std=False, level=None):
        """Groups of rows (Gaussian mixtures), or their expected target (regressions).

        A site of the fit gets its own components and weights. Any other site, and groups=None after
        a fit to several sites, gets the population's components, with weights from `adapt`, else
        from these rows (Gaussian mixtures) or the sites' average (regressions: without y rows do
        not tell). For regressions `return_std` adds the standard deviation of a new target, and
        `level` the ends of intervals, (n, 2), that hold one with this probability: which group it
        is of, noise and, after a fit with standard errors, what is not known of coefficients.
        """
        check_is_fitted(self)
        if not self._uses_target():
            if return_std or level is not None:
                raise ValueError("groups have no spread; predict_proba gives probabilities")
            probability = self.predict_proba(X, groups=groups)
            return first_best(probability, axis=1, floor=RELATIVE)
        clients, place = self._clients(X, None, groups)
        # A Federation may bring the very targets that are to be predicted.
        clients = replace(clients, y=None)
        mean = self._expected(clients)[place]
        if not return_std and level is None:
            return mean
        level = None if level is None else checked_level(level)
        found = self._new_targets(clients)
        std = [found.std()[place]] if return_std else []
        ends = [found.intervals(level)[place]] if level is not None else []
        return (mean, *std, *ends)

    @property
    def _stays_at_sites(self) -> bool:
        """Whether sites kept to themselves what their rows are foretold with."""
        result = getattr(self, "_result", None)
        if result is None:
            return False
        needs_none = self._used.covariance_type == "identity" and not self._uses_target()
        return result.centers is None or (result.scale is None and not needs_none)

    @property
    def _tells_spread(self) -> bool:
        """Whether `predict` has standard deviations to tell."""
        return self._uses_target() and self._result.scale is not None

    def predict_proba(self, X, y=None, groups=None):
        """Probability of each group for each row, (n, R).

        For regressions y is needed to tell the groups of rows; without it the rows of a site all
        have the site's weights (with FedGMM, what x tells of them).
        """
        check_is_fitted(self)
        clients, place = self._clients(X, y, groups)
        if self._uses_target() and clients.y is None:
            return self._prior(clients)[place]
        return self._class_shares(clients)[place]

    def score_samples(self, X, y=None, groups=None):
        """Log density of each row (of its y given x, for regressions), (n,)."""
        check_is_fitted(self)
        clients, place = self._clients(X, y, groups)
        if self._uses_target() and clients.y is None:
            raise ValueError("score_samples of a mixture of regressions needs y")
        return logsumexp(self._log_joint(clients)[place], axis=1)

    def score(self, X, y=None, groups=None):
        """Mean log density of the rows; for regressions, R squared of `predict`."""
        if self._uses_target():
            predicted = self.predict(X, groups)
            return r2_score(self._target_to_score(X, y, groups), predicted)
        return float(self.score_samples(X, groups=groups).mean())

    def adapt(self, X, y=None, groups=None):
        """Learn the weights of sites not in the fit from their own rows; what is shared stays.

        `groups` names the site of each row, or one site for all of them. Regressions need y.
        """
        clients = self._new_clients(X, y, groups, needs_target=self._uses_target())
        for name, place in zip(clients.names, self._places(clients)):
            if place >= 0:
                raise ValueError(f"site {name!r} was in the fit and has weights of its own")
            self._adapted.pop(name, None)
        self._adapted.update(zip(clients.names, self._weights_of(clients)))
        return self

    # ------------------------------------------------------------ what holds at a site

    def _places(self, clients: Federation) -> np.ndarray:
        """Positions of these sites in the fit, (k,); -1 for one that was not heard in it."""
        places = np.array([self._position.get(name, -1) for name in clients.names])
        return np.where(self._result.heard[places], places, -1)

    def _own_or(self, typical: Any, fitted: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Arrays (k, ...) of the sites of the fit (m, ...), `typical` for the others."""
        own = np.repeat(np.asarray(typical)[None], len(places), axis=0)
        own[places >= 0] = fitted[places[places >= 0]]
        return own

    def _at(self, clients: Federation) -> tuple[np.ndarray, np.ndarray, Any]:
        """Weights (k, R), components (k, R, p) and scale of these sites."""
        result, places = self._result, self._places(clients)
        if result.centers is None:
            raise ValueError("the components stayed at the sites; there is nothing to use here")
        components = self._own_or(result.centers, result.components, places)
        scale = self._scale(places)
        even = np.full(self.n_components_, 1.0 / self.n_components_)
        weights, learn = self._own_or_average(clients, places, result.weights, even)
        if learn.any() and (not self._uses_target() or clients.y is not None):
            weights = self._learnt_weights(clients, (weights, components, scale), learn)
        return weights, components, scale

    def _own_or_average(
        self, clients: Federation, places: np.ndarray, fitted: np.ndarray | None, even: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Weights (k, ...) from the fit or `adapt`, else the average; and who has none of its own.

        `fitted` (m, ...) are the sites' weights; None, when they stayed there, gives `even` ones.
        """
        if fitted is None:
            weights, learn = np.repeat(even[None], len(places), axis=0), places > -2
        else:
            average = self._result.average_of(fitted, self._used)
            weights, learn = self._own_or(average, fitted, places), places < 0
        for k, name in enumerate(clients.names):
            if name in self._adapted:
                weights[k], learn[k] = self._adapted[name], False
        return weights, learn

    def _weights_of(self, clients: Federation) -> np.ndarray:
        """What `adapt` learns of a site, (k, ...)."""
        return self._at(clients)[0]

    def _scale(self, places: np.ndarray) -> Any:
        """Scale of the sites; of those not in the fit, the median site's."""
        scale = self._result.scale
        if scale is None:
            if self._used.covariance_type == "identity" and not self._uses_target():
                return None
            raise ValueError(
                "the sites' own variances stayed with them; fit with covariance_type='tied' or "
                "'identity' to use the fit elsewhere"
            )
        if self._used.covariance_type == "tied" and scale.ndim == 2:
            return scale[None]
        return self._own_or(np.median(scale[self._result.heard], axis=0), scale, places)

    def _learnt_weights(self, clients: Federation, fit: Any, learn: np.ndarray) -> np.ndarray:
        """Weights with those of sites (`learn`) that have none here, from their own rows."""
        weights, components, scale = fit
        rows = self._family.prepare(clients)
        for _ in range(WEIGHT_PASSES):
            statistics = self._family.expect(rows, (weights, components, scale))
            new = np.where(learn[:, None], mixture_weights(statistics.counts, weights), weights)
            moved, weights = np.abs(new - weights).max(), new
            if moved <= WEIGHT_TOL:
                break
        return weights

    # ------------------------------------------------------------ what holds for a row

    def _prior(self, clients: Federation) -> np.ndarray:
        """Probability of each group for each row before its y is seen, (n, R)."""
        return self._weights_of(clients)[clients.owner]

    def _expected(self, clients: Federation) -> np.ndarray:
        """Expected target of each row of a mixture of regressions, (n,)."""
        weights, components, _ = self._at(clients)
        mixed = np.einsum("mr,mrp->mp", weights, components)[clients.owner]
        d = clients.n_features
        expected = np.einsum("nd,nd->n", clients.X, mixed[:, :d])
        return expected + mixed[:, d:].sum(axis=1)

    def _new_targets(self, clients: Federation) -> Mixture:
        """Distributions of new targets of a mixture of regressions: a part for every group."""
        places = self._places(clients)
        noise = np.asarray(self._scale(places))[clients.owner, None] ** 2
        means = self._lines(clients)
        scales = noise + self._coefficient_variances(clients, places)
        normal = np.full(means.shape, np.inf)
        return Mixture(self._prior(clients), means, np.broadcast_to(scales, means.shape), normal)

    def _lines(self, clients: Federation) -> np.ndarray:
        """Expected target of each row if it is of a group, (n, R)."""
        d, components = clients.n_features, self._at(clients)[1][clients.owner]
        lines = np.einsum("nd,nrd->nr", clients.X, components[..., :d])
        return lines + components[..., d:].sum(axis=-1)

    def _coefficient_variances(self, clients: Federation, places: np.ndarray) -> np.ndarray:
        """What is not known of the lines, (n, R) or less; nothing where the fit does not tell."""
        return np.zeros((1, 1))

    def _log_joint(self, clients: Federation) -> np.ndarray:
        """log(weight * density) of each row and group, (n, R)."""
        return self._family.log_joint(self._family.prepare(clients), self._at(clients))

    def _class_shares(self, clients: Federation) -> np.ndarray:
        """Probability of each group for each row, (n, R)."""
        return softmax(self._log_joint(clients), axis=1)
