"""What the faces of the mixtures inside sites share: reading a fit, using it, telling about it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from fedkin.estimators.base import FederatedEstimator, check_choice
from fedkin.estimators.mixture_account import account_of, listed, summary_of
from fedkin.federation import Federation
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import regression_mixture as regression
from fedkin.models.gaussian_mixture import COVARIANCE_TYPES
from fedkin.models.latent_classes import to_posterior
from fedkin.protocol import Algorithm, Outcome
from fedkin.tables import Summary

# EM for the weights of a site whose components are given: passes, and what counts as standing still.
WEIGHT_PASSES = 200
WEIGHT_TOL = 1e-8
class AmbiguousWarning(UserWarning):
    """Which group of a site corresponds to which of the others is not clear."""


class StepHalvedWarning(UserWarning):
    """A gradient step would have diverged and was shortened."""


class MixtureEstimator(DensityMixin, FederatedEstimator):
    """Common ground: parameters in `n_components`, `family`, ..., a run, attributes out.

    Subclasses say `_algorithm` and, where it is more than their parameters, `_settings`.
    """

    _algorithm: Algorithm

    def __sklearn_tags__(self):
        """A mixture of regressions is a regressor and needs y."""
        tags = super().__sklearn_tags__()
        if self.family == "regression":
            from sklearn.utils import RegressorTags

            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
            tags.target_tags.required = True
        return tags

    # ------------------------------------------------------------ before

    def fit(self, X=None, y=None, groups=None):
        """Fit to sites: rows X with a site name per row (and y for regressions), or a Federation.

        With `family="gaussian"` y is not used.
        """
        self._check_parameters()
        federation = self._federation(X, y if self.family == "regression" else None, groups)
        if federation is not None:
            self._check_data(federation)
        outcome = self._run(self._algorithm, self._settings(federation), federation)
        self._read(outcome)
        self._warn()
        return self

    def _check_parameters(self) -> None:
        check_choice("family", self.family, ("gaussian", "regression"))
        check_choice("covariance_type", self.covariance_type, COVARIANCE_TYPES)
        if isinstance(self.init, str):
            words = ["auto", "kmeans++", "ward"]
            if "federated" in self._starts():
                words.append("federated")
            check_choice("init", self.init, tuple(words))
            if self.init == "federated" and self.family == "gaussian":
                raise ValueError(
                    "init='federated' is for family='regression'; Gaussian mixtures start from "
                    "'kmeans++', 'ward' or an array"
                )
        if self.n_components < 1:
            raise ValueError(f"n_components must be at least 1, not {self.n_components}")
        if self.n_restarts < 1:
            raise ValueError(f"n_restarts must be at least 1, not {self.n_restarts}")
        sigma = getattr(self, "sigma", None)
        if sigma is not None and not sigma > 0:
            raise ValueError(f"sigma must be positive, not {sigma}")
        fraction = getattr(self, "fraction", 1.0)
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, not {fraction}")
        for name in ("local_steps", "batch_size", "max_rounds"):
            value = getattr(self, name, None)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        for name in ("clip", "step_constant"):
            value = getattr(self, name, None)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, not {value}")

    def _starts(self) -> tuple[str, ...]:
        return ("federated",)

    def _check_data(self, federation: Federation) -> None:
        if self.family == "regression" and federation.y is None:
            raise ValueError(
                f"{type(self).__name__}(family='regression') needs an outcome y: "
                "requires y to be passed, but it is None"
            )
        n_rows = int(federation.sizes.max(initial=0))
        if n_rows < self.n_components:
            raise ValueError(
                f"n_components={self.n_components} needs a site with at least as many rows; the "
                f"largest has n_samples={n_rows}"
            )
        if not isinstance(self.init, str):
            p = federation.n_features + bool(self.family == "regression" and self.fit_intercept)
            shared = (self.n_components, p)
            if np.shape(self.init) not in (shared, (federation.n_clients, *shared)):
                raise ValueError(
                    f"init has shape {np.shape(self.init)}; expected {shared} for all sites or "
                    f"{(federation.n_clients, *shared)}, with the intercept last"
                )

    def _settings(self, federation: Federation | None) -> dict[str, Any]:
        """The algorithm's settings from parameters of the same names."""
        defaults = self._algorithm.defaults
        settings = {n: getattr(self, n) for n in defaults if hasattr(self, n) and n != "init"}
        init: Any = self.init
        if isinstance(init, str):
            if init == "auto":
                init = self._usual_start()
            settings["local_start"] = "ward" if init == "ward" else "kmeans++"
            settings["init"] = "federated" if init == "federated" else "local"
        else:
            settings["init"] = np.asarray(init, dtype=np.float64)
        return {name: value for name, value in settings.items() if name in defaults}

    def _usual_start(self) -> str:
        return "federated" if self.family == "regression" else "kmeans++"

    # ------------------------------------------------------------ after

    def _read(self, outcome: Outcome) -> None:
        """Fitted attributes from the program's named arrays and, in process, sites' memories."""
        result, memories = outcome.result, outcome.memories or {}
        m = len(outcome.roster)
        self._components, centers = self._fitted_components(result, memories)
        self.n_components_ = self.n_components
        self.outlier_score_ = result.get("outlier_score", np.full(m, np.nan))
        self.ambiguous_ = result.get("ambiguous", np.zeros(m, dtype=bool))
        self.between_variance_ = result.get("between_variance")
        self.halvings_ = result.get("halvings", np.zeros(m))
        self.converged_ = bool(result["converged"])
        self.history_ = {n[8:]: a for n, a in result.items() if n.startswith("history_")}
        self.n_iter_ = len(next(iter(self.history_.values())))
        self._site_loglik, self._site_rows = result["site_loglik"], result["site_rows"]
        self._heard = self._site_rows > 0
        if "weights" in memories:
            known = self._heard & (memories["weights"].sum(axis=1) > 0)
            self.weights_ = np.full((m, self.n_components), np.nan)
            self.weights_[known] = memories["weights"][known]
            average = self.weights_[known].mean(axis=0)
            self.weights_[~known] = average
        self._read_components(centers)
        self._read_scale(result, memories, m)

    def _fitted_components(self, result, memories):
        """Components of every site (m, R, p), None if they stayed there; and the centres."""
        return result["components"], result["centers"]

    def _read_components(self, centers) -> None:
        p, intercept = centers.shape[-1], self.family == "regression" and self.fit_intercept
        d = p - bool(intercept)
        self.n_features_in_ = d
        self._centers, self.centers_ = centers, centers[:, :d]
        if self._components is None:
            return
        if self.family == "gaussian":
            self.means_ = self._components
            return
        self.coef_ = self._components[..., :d]
        zero = np.zeros(self._components.shape[:2])
        self.intercept_ = self._components[..., -1] if intercept else zero

    def _read_scale(self, result, memories, m: int) -> None:
        own = memories.get("scale")
        if own is not None:
            own = own.copy()
            own[~self._heard] = np.median(own[self._heard], axis=0)
        if self.family == "regression":
            noise = result.get("noise", np.empty(0))
            given = self.sigma if self.sigma is not None else (noise[0] if noise.size else None)
            own = np.full(m, float(given)) if given is not None else own
            if own is not None:
                self.sigma_ = own
            return
        common = result.get("covariance", np.empty(0))
        if self.covariance_type == "identity":
            self.covariance_ = None
        elif common.size:
            self.covariance_ = common
        elif own is not None:
            self.covariance_ = own

    def _warn(self) -> None:
        if not self.converged_:
            warnings.warn(
                f"{type(self).__name__} did not settle within max_rounds={self.max_rounds}; raise "
                "it or tol",
                ConvergenceWarning,
                stacklevel=3,
            )
        if self.ambiguous_.any():
            warnings.warn(
                f"at {listed(self.client_names_[self.ambiguous_])} another matching of groups "
                "fits about as well: groups there may not mean what they mean elsewhere "
                "(ambiguous_). Fewer components or init='ward' may help.",
                AmbiguousWarning,
                stacklevel=3,
            )
        if self.halvings_.any():
            warnings.warn(
                f"gradient steps would have diverged and were halved at "
                f"{listed(self.client_names_[self.halvings_ > 0])}; lower step_constant, or "
                "take step='em'",
                StepHalvedWarning,
                stacklevel=3,
            )

    # ------------------------------------------------------------ use

    def predict(self, X, groups=None):
        """Groups of rows (Gaussian mixtures), or their expected outcome (regressions).

        A site of the fit gets its own components and weights. Any other site, and groups=None after
        a fit to several sites, gets the population's components, with weights from its own rows
        (Gaussian mixtures) or the sites' average (regressions: without y rows do not tell).
        """
        check_is_fitted(self)
        if self.family == "gaussian":
            return self.predict_proba(X, groups=groups).argmax(axis=1)
        clients, place = self._clients(X, None, groups)
        weights, components, _ = self._parameters(clients)
        mixed = np.einsum("mr,mrp->mp", weights, components)[clients.owner]
        d = clients.n_features
        expected = np.einsum("nd,nd->n", clients.X, mixed[:, :d])
        return (expected + mixed[:, d:].sum(axis=1))[place]

    def predict_proba(self, X, y=None, groups=None):
        """Probability of each group for each row, (n, R).

        For regressions y is needed to tell the groups of rows; without it the rows of a site all
        have the site's weights.
        """
        check_is_fitted(self)
        clients, place = self._clients(X, y, groups)
        if self.family == "regression" and clients.y is None:
            return self._parameters(clients)[0][clients.owner][place]
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
            return r2_score(X.y if y is None else y, self.predict(X, groups))
        return float(self.score_samples(X, groups=groups).mean())

    def _clients(self, X, y, groups) -> tuple[Federation, np.ndarray]:
        """Rows as a federation, and where in it each row of X stands."""
        if isinstance(X, Federation):
            self._rows_and_sites(X, None)
            return X, np.arange(len(X.X))
        rows, sites = self._rows_and_sites(X, groups)
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
        known = np.array([self._position.get(name, -1) for name in clients.names])
        known[(known >= 0) & ~self._heard[known]] = -1
        components = np.tile(self._centers, (len(known), 1, 1))
        weights = np.full(components.shape[:2], 1.0 / self.n_components)
        here = known >= 0
        if self._components is not None:
            components[here] = self._components[known[here]]
        scale = self._scale(known)
        if hasattr(self, "weights_"):
            weights[:] = self.weights_[self._heard].mean(axis=0)
            weights[here] = self.weights_[known[here]]
        learn = ~here if hasattr(self, "weights_") else np.ones(len(known), dtype=bool)
        if learn.any() and (self.family == "gaussian" or clients.y is not None):
            self._learn_weights(clients, weights, components, scale, learn)
        return weights, components, scale

    def _scale(self, known: np.ndarray) -> Any:
        if self.family == "gaussian" and self.covariance_type == "identity":
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

    # ------------------------------------------------------------ account

    def summary(self) -> Summary:
        """Centres, sites and account as tables; prints as text, shows as HTML."""
        check_is_fitted(self)
        return summary_of(self)

    def _account(self) -> list[str]:
        """What left the sites, in words."""
        return account_of(self)
