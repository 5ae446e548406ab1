"""What the faces of the mixtures inside sites share: checks, a run, and reading what it found."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedkin.estimators.base import (
    check_choice,
    check_count,
    check_finite_start,
    check_fraction,
    check_number,
)
from fedkin.estimators.mixture_account import account_of, sites_listed, summary_of
from fedkin.estimators.mixture_use import FittedMixture
from fedkin.federation import Federation
from fedkin.models.gaussian_mixture import COVARIANCE_TYPES
from fedkin.protocol import Algorithm, Outcome
from fedkin.tables import Summary

# Parameters that, where an estimator has them, are whole numbers of at least one, are above zero,
# or are at least zero; None means that they are not used.
COUNTS = ("n_components", "n_restarts", "local_steps", "batch_size", "max_rounds")
POSITIVE = ("clip", "step_constant", "sigma")
NOT_NEGATIVE = ("threshold", "penalty_start", "penalty_decay", "penalty_constant", "source_weight")
ALIGNMENTS = ("auto", "exhaustive", "stepwise", "assignment")


class AmbiguousWarning(UserWarning):
    """Which group of a site corresponds to which of the others is not clear."""


class StepHalvedWarning(UserWarning):
    """A gradient step would have diverged and was shortened."""


@dataclass(eq=False, repr=False)
class MixtureEstimator(FittedMixture):
    """Common ground: parameters in `n_components`, `family`, ..., a run, attributes out.

    Subclasses say `_algorithm` and, where it is more than their parameters, `_settings`. Their
    parameters are the fields of a dataclass, so that what several have is written once.
    """

    _algorithm: ClassVar[Algorithm]
    _private = (
        "_position",
        "_components",
        "_centers",
        "_site_loglik",
        "_site_rows",
        "_heard",
        "_adapted",
    )

    n_components: Any = 2
    _: KW_ONLY
    family: Any = "gaussian"
    init: Any = "auto"
    n_restarts: Any = 10
    max_rounds: Any = 200
    tol: Any = 1e-4
    random_state: Any = None
    engine: Any = None

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
        self._forget()
        federation = self._federation(X, y if self.family == "regression" else None, groups)
        if federation is not None:
            self._check_data(federation)
        self._check_start(federation)
        outcome = self._run(self._algorithm, self._settings(federation), federation)
        self._read(outcome)
        self._warn()
        return self

    def _check_parameters(self) -> None:
        check_choice("family", self.family, ("gaussian", "regression"))
        check_choice("covariance_type", self._covariance_type(), COVARIANCE_TYPES)
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
            if self.init == "ward" and self.family == "regression":
                others = ", ".join(repr(word) for word in words if word not in ("auto", "ward"))
                raise ValueError(
                    "init='ward' is for family='gaussian': it clusters x and knows nothing of y; "
                    f"mixtures of regressions start from {others} or an array"
                )
        for name in COUNTS:
            if getattr(self, name, None) is not None:
                check_count(name, getattr(self, name))
        for name in POSITIVE:
            value = getattr(self, name, None)
            if value is not None and not check_number(name, value) > 0:
                raise ValueError(f"{name} must be positive, not {value}")
        for name in NOT_NEGATIVE:
            value = getattr(self, name, None)
            if value is not None and not check_number(name, value) >= 0:
                raise ValueError(f"{name} must not be negative, not {value}")
        check_fraction(getattr(self, "fraction", 1.0))
        if np.isnan(check_number("tol", self.tol)):
            raise ValueError("tol must be a number, not NaN; 0 or less never stops early")
        check_choice("align", getattr(self, "align", "auto"), ALIGNMENTS)

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

    def _check_start(self, federation: Federation | None) -> None:
        """Complain about given components that are of another shape or no numbers."""
        if isinstance(self.init, str):
            return
        shape = np.shape(self.init)
        if federation is not None:
            d, intercept = federation.n_features, self._has_intercept()
            shared = (self.n_components, d + intercept)
            lead, last = shape[:-1], shape[-1:]
            right = lead in (shared[:1], (federation.n_clients, *shared[:1]))
            if not right or last[0] not in (d, d + intercept):
                words = ", with the intercept last or left out for 0" if intercept else ""
                raise ValueError(
                    f"init has shape {shape}; expected {shared} for all sites or "
                    f"{(federation.n_clients, *shared)}{words}"
                )
        check_finite_start(self.init)

    def _has_intercept(self) -> bool:
        return bool(self.family == "regression" and self.fit_intercept)

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
            settings["init"] = self._given_start(federation)
        return {name: value for name, value in settings.items() if name in defaults}

    def _given_start(self, federation: Federation | None) -> np.ndarray:
        """Components of `init`; coefficients as fitted, without intercepts, get intercepts 0."""
        given = np.asarray(self.init, dtype=np.float64)
        if federation is None or given.shape[-1] > federation.n_features:
            return given
        zeros = np.zeros((*given.shape[:-1], int(self._has_intercept())))
        return np.concatenate([given, zeros], axis=-1)

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
        self._adapted: dict[str, np.ndarray] = {}
        if "weights" in memories:
            known = self._heard & (memories["weights"].sum(axis=1) > 0)
            self.weights_ = np.full((m, self.n_components), np.nan)
            self.weights_[known] = memories["weights"][known]
            average = self.weights_[known].mean(axis=0)
            self.weights_[~known] = average
        self._read_components(centers)
        self._read_scale(result, memories, m)

    def _fitted_components(self, result, memories):
        """Components of every site (m, R, p) and centres (R, p); None if they stayed there."""
        return result["components"], result["centers"]

    def _read_components(self, centers) -> None:
        self._centers = centers
        if centers is None:  # they stayed at the sites
            return
        intercept = self._has_intercept()
        d = centers.shape[-1] - intercept
        self.n_features_in_ = d
        self.centers_ = centers[:, :d]
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
        if self._covariance_type() == "identity":
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
            remedy = " or init='ward'" if self.family == "gaussian" else ""
            warnings.warn(
                f"at {sites_listed(self.client_names_[self.ambiguous_])} another matching of "
                "groups fits about as well: groups there may not mean what they mean elsewhere "
                f"(ambiguous_). Fewer components{remedy} may help.",
                AmbiguousWarning,
                stacklevel=3,
            )
        if self.halvings_.any():
            warnings.warn(
                f"gradient steps would have diverged and were halved at "
                f"{sites_listed(self.client_names_[self.halvings_ > 0])}; lower step_constant, or "
                "take step='em'",
                StepHalvedWarning,
                stacklevel=3,
            )

    # ------------------------------------------------------------ account

    def summary(self) -> Summary:
        """Centres, sites and account as tables; prints as text, shows as HTML."""
        check_is_fitted(self)
        return summary_of(self)

    def _account(self) -> list[str]:
        """What left the sites, in words."""
        return account_of(self)


@dataclass(eq=False, repr=False)
class JoiningEstimator(MixtureEstimator):
    """Common ground of those whose sites exchange components."""

    align: Any = "auto"
    fraction: Any = 1.0
