"""A fitted mixture in use: groups, outcomes and densities of rows at known and unseen sites."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import DensityMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from fedkin.estimators.base import FederatedEstimator
from fedkin.federation import Federation
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import regression_mixture as regression
from fedkin.models.latent_classes import to_posterior
from fedkin.ties import RELATIVE, first_best

# EM for the weights of a site whose components are given: passes, and when weights stand still.
WEIGHT_PASSES = 200
WEIGHT_TOL = 1e-8


class FittedMixture(DensityMixin, FederatedEstimator):
    """What can be done with components, weights and scale once they are there."""

    def predict(self, X, groups=None):
        """Groups of rows (Gaussian mixtures), or their expected outcome (regressions).

        A site of the fit gets its own components and weights. Any other site, and groups=None after
        a fit to several sites, gets the population's components, with weights from `adapt`, else
        from these rows (Gaussian mixtures) or the sites' average (regressions: without y rows do
        not tell).
        """
        check_is_fitted(self)
        if self.family == "gaussian":
            probability = self.predict_proba(X, groups=groups)
            return first_best(probability, axis=1, floor=RELATIVE)
        clients, place = self._clients(X, None, groups)
        # A Federation may bring the very outcomes that are to be predicted.
        return self._expected(replace(clients, y=None))[place]

    def predict_proba(self, X, y=None, groups=None):
        """Probability of each group for each row, (n, R).

        For regressions y is needed to tell the groups of rows; without it the rows of a site all
        have the site's weights (with FedGMM, what x tells of them).
        """
        check_is_fitted(self)
        clients, place = self._clients(X, y, groups)
        if self.family == "regression" and clients.y is None:
            return self._prior(clients)[place]
        joint = self._log_joint(clients)[place]
        flat = np.ascontiguousarray(joint.T)[None]
        to_posterior(flat)
        return np.ascontiguousarray(flat[0].T)

    def score_samples(self, X, y=None, groups=None):
        """Log density of each row (of its y given x, for regressions), (n,)."""
        check_is_fitted(self)
        clients, place = self._clients(X, y, groups)
        if self.family == "regression" and clients.y is None:
            raise ValueError("score_samples of a mixture of regressions needs y")
        joint = self._log_joint(clients)[place]
        top = joint.max(axis=1)
        return top + np.log(np.exp(joint - top[:, None]).sum(axis=1))

    def score(self, X, y=None, groups=None):
        """Mean log density of the rows; for regressions, R squared of `predict`."""
        if self.family == "regression":
            predicted = self.predict(X, groups)
            return r2_score(self._outcome_to_score(X, y, groups), predicted)
        return float(self.score_samples(X, groups=groups).mean())

    def adapt(self, X, y=None, groups=None):
        """Learn the weights of sites not in the fit from their own rows; what is shared stays.

        `groups` names the site of each row, or one site for all of them. Regressions need y.
        """
        check_is_fitted(self)
        if groups is None and not isinstance(X, Federation):
            raise ValueError("adapt needs the name of the site: adapt(X, groups='new-site')")
        clients, _ = self._clients(X, y, groups)
        if self.family == "regression" and clients.y is None:
            raise ValueError("adapt needs the outcome y of the new sites' rows")
        for name in clients.names:
            if name in self._position and self._heard[self._position[name]]:
                raise ValueError(f"site {name!r} was in the fit and has weights of its own")
            self._adapted.pop(name, None)
        self._adapted.update(zip(clients.names, self._weights_of(clients)))
        return self

    def _clients(self, X, y, groups) -> tuple[Federation, np.ndarray]:
        """Rows as a federation, and where in it each row of X stands."""
        if isinstance(X, Federation):
            return self._with_columns_of_the_fit(X), np.arange(len(X.X))
        rows, sites = self._rows_and_sites(X, groups)
        if groups is None and len(self.client_names_) > 1:
            # Of no site: one that was not in the fit.
            nobody = "_" * (1 + max(len(name) for name in self.client_names_))
            sites = np.full(len(rows), nobody, dtype=object)
        if y is not None:
            y = np.asarray(y, dtype=np.float64)
            if y.shape != (len(rows),):
                raise ValueError(f"y has shape {y.shape}; X has {len(rows)} rows")
        clients = Federation.from_groups(rows, sites, y)
        position = {name: k for k, name in enumerate(clients.names)}
        owner = np.array([position[str(name)] for name in sites])
        place = np.empty(len(rows), dtype=np.intp)
        place[np.argsort(owner, kind="stable")] = np.arange(len(rows))
        return clients, place

    def _parameters(self, clients: Federation) -> tuple[np.ndarray, np.ndarray, Any]:
        """Weights (k, R), components (k, R, p) and scale of these sites."""
        if self._centers is None:
            raise ValueError("the components stayed at the sites; there is nothing to use here")
        known = self._known(clients)
        here = known >= 0
        components = np.tile(self._centers, (len(known), 1, 1))
        components[here] = self._components[known[here]]
        scale = self._scale(known)
        even = np.full(self.n_components, 1.0 / self.n_components)
        fitted = getattr(self, "weights_", None)
        weights, learn = self._own_or_average(clients, known, fitted, even)
        if learn.any() and (self.family == "gaussian" or clients.y is not None):
            self._learn_weights(clients, weights, components, scale, learn)
        return weights, components, scale

    def _known(self, clients: Federation) -> np.ndarray:
        """Positions of these sites in the fit, (k,); -1 for one that was not heard in it."""
        known = np.array([self._position.get(name, -1) for name in clients.names])
        known[(known >= 0) & ~self._heard[known]] = -1
        return known

    def _own_or_average(
        self, clients: Federation, known: np.ndarray, fitted: np.ndarray | None, even: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Weights (k, ...) from the fit or `adapt`, else the average; and who has none of its own.

        `fitted` (m, ...) are the sites' weights; None, when they stayed there, gives `even` ones.
        """
        here = known >= 0
        weights = np.repeat(even[None], len(known), axis=0)
        learn = np.ones(len(known), dtype=bool)
        if fitted is not None:
            weights[:] = fitted[self._heard].mean(axis=0)
            weights[here] = fitted[known[here]]
            learn = ~here
        for k, name in enumerate(clients.names):
            if name in self._adapted:
                weights[k], learn[k] = self._adapted[name], False
        return weights, learn

    def _weights_of(self, clients: Federation) -> np.ndarray:
        """What `adapt` learns of a site, (k, ...)."""
        return self._parameters(clients)[0]

    def _prior(self, clients: Federation) -> np.ndarray:
        """Probability of each group for each row before its y is seen, (n, R)."""
        return self._weights_of(clients)[clients.owner]

    def _expected(self, clients: Federation) -> np.ndarray:
        """Expected outcome of each row of a mixture of regressions, (n,)."""
        weights, components, _ = self._parameters(clients)
        mixed = np.einsum("mr,mrp->mp", weights, components)[clients.owner]
        d = clients.n_features
        expected = np.einsum("nd,nd->n", clients.X, mixed[:, :d])
        return expected + mixed[:, d:].sum(axis=1)

    def _scale(self, known: np.ndarray) -> Any:
        if self.family == "gaussian" and self._covariance_type() == "identity":
            return None
        name = "sigma_" if self.family == "regression" else "covariance_"
        scale = getattr(self, name, None)
        if scale is None:
            raise ValueError(
                "the sites' own variances stayed with them; fit with covariance_type='tied' or "
                "'identity' to use the fit elsewhere"
            )
        if self.family == "gaussian" and self.covariance_type == "tied" and scale.ndim == 2:
            return scale[None]
        typical = np.median(scale[self._heard], axis=0)
        own = np.broadcast_to(typical, (len(known), *scale.shape[1:])).copy()
        own[known >= 0] = scale[known[known >= 0]]
        return own

    def _learn_weights(self, clients, weights, components, scale, learn) -> None:
        """Weights of sites (`learn`) that have none here, from their own rows; in place."""
        model: Any = regression if self.family == "regression" else gaussian
        intercept = (self.fit_intercept,) if self.family == "regression" else ()
        rows = model.prepare(clients, *intercept)
        for _ in range(WEIGHT_PASSES):
            found = model.expect(rows, model.Parameters(weights, components, scale))
            new = np.where(learn[:, None], model.maximise_weights(found, weights), weights)
            moved = np.abs(new - weights).max()
            weights[:] = new
            if moved <= WEIGHT_TOL:
                break

    def _log_joint(self, clients: Federation) -> np.ndarray:
        parameters = self._parameters(clients)
        if self.family == "regression":
            return regression.log_joint(
                clients, regression.Parameters(*parameters), self.fit_intercept
            )
        return gaussian.log_joint(clients, gaussian.Parameters(*parameters))

    def _covariance_type(self) -> str:
        return getattr(self, "covariance_type", "identity")
