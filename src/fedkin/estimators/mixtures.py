"""What the estimators of groups inside sites share: checks, attributes and warnings."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.algorithms.mixtures.families import family_of
from fedkin.algorithms.mixtures.settings import MixtureSettings
from fedkin.estimators.base import SHARED_WORDS
from fedkin.estimators.mixture_checks import findings_of_groups, findings_of_weights
from fedkin.estimators.mixture_use import FittedMixture
from fedkin.federation import Federation
from fedkin.names import sites_listed
from fedkin.protocol import Run


class AmbiguousWarning(UserWarning):
    """Which group of a site corresponds to which of the others is not clear."""


class StepHalvedWarning(UserWarning):
    """A gradient step would have diverged and was shortened."""


WORDS = SHARED_WORDS | {
    "n_components": """
n_components : int
    Number of groups R.
""",
    "n_restarts": """
n_restarts : int
    Starts that run side by side.
""",
    "align": """
align : {"auto", "exhaustive", "stepwise", "assignment"}
    How groups of sites are matched, see `fedkin.alignment.align`.
""",
    "local_steps": """
local_steps : int
    Steps of a site between rounds.
""",
    "batch_size": """
batch_size : int or None
    Rows of a site per step; None takes all.
""",
    "clip": """
clip : float or None
    Bounds how far one row may pull a component, in standard deviations.
""",
    "sigma": """
sigma : float or None
    Noise of the regressions; None learns one for all sites.
""",
    "random_state": """
random_state : int, RandomState or None
    Decides the starts, mini-batches and who is asked.
""",
    "tol": """
tol : float
    The fit ends when no component moves by more than this, relative to its size.
""",
    "family": """
family : {"gaussian", "regression"}
    Groups of rows x, or of rows with a linear regression of y on x each.
""",
    "covariance_type": """
covariance_type : {"identity", "spherical", "diag", "tied"}
    Covariance of Gaussian mixtures, shared by all groups; see `FedGrEM`.
""",
    "init": """
init : {"auto", "kmeans++", "ward"} or array of shape (R, p) or (m, R, p)
    Where EM starts; see `FedGrEM`. "auto" is "kmeans++".
""",
    "step": """
step : {"em", "gradient"}
    What a site does; "gradient" takes steps of `step_constant`.
""",
    "step_constant": """
step_constant : float
    Length of a gradient step (`step="gradient"`).
""",
}


class MixtureEstimator(FittedMixture):
    """Common ground of the estimators of groups inside sites."""

    _words = WORDS

    def __sklearn_tags__(self):
        """A mixture of regressions is a regressor and needs y."""
        tags = super().__sklearn_tags__()
        if self.family == "regression":
            from sklearn.utils import RegressorTags

            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
            tags.target_tags.required = True
        return tags

    # ------------------------------------------------------------ before

    def _uses_target(self) -> bool:
        return self.family == "regression"

    def _check_data(self, federation: Federation, settings: MixtureSettings) -> None:
        super()._check_data(federation, settings)
        n_rows, wanted = int(federation.sizes.max(initial=0)), settings.n_components
        if n_rows < wanted:
            raise ValueError(
                f"n_components={wanted} needs a site with at least as many rows; the largest has "
                f"n_samples={n_rows}"
            )
        if settings.given_start is not None:
            check_start(settings.given_start.shape, federation, settings)

    def _run_with(self, settings: Any, federation: Federation | None) -> Run:
        if federation is not None:
            settings = settings.with_intercepts(federation.n_features)
        return super()._run_with(settings, federation)

    # ------------------------------------------------------------ after

    def _read(self, run: Run) -> None:
        result = self._result = run.result.with_memories(run.memories, self._used)
        self._family = family_of(self._used)
        self.n_components_ = self._used.n_components
        self.outlier_score_, self.ambiguous_ = result.outlier_score, result.ambiguous
        self.between_variance_, self.halvings_ = result.between_variance, result.halvings
        self.converged_ = bool(result.converged)
        self.history_ = result.history
        self.n_iter_ = len(next(iter(self.history_.values())))
        if result.weights is not None:
            self.weights_ = result.weights
        if result.centers is not None:  # else they stayed at the sites
            self._read_components(result.components, result.centers)
        if self._uses_target() and result.scale is not None:
            self.sigma_ = result.scale
        elif result.scale is not None or self._used.covariance_type == "identity":
            self.covariance_ = result.scale

    def _read_components(self, components: np.ndarray, centers: np.ndarray) -> None:
        intercept = self._used.has_intercept
        self.n_features_in_ = d = centers.shape[-1] - intercept
        self.centers_ = centers[:, :d]
        if self._uses_target():
            self.coef_ = components[..., :d]
            self.intercept_ = components[..., d:].sum(axis=-1)
        else:
            self.means_ = components

    def _warn(self, federation: Federation | None) -> None:
        super()._warn(federation)
        self._warn_of_groups()
        if federation is not None:
            self._warn_of_rows(federation)

    def _warn_of_rows(self, federation: Federation) -> None:
        """What was wrong with rows or settings from the start, now that the result is there."""
        self._warn_of(findings_of_groups(federation, self._used))
        if self._uses_target():
            self._warn_off_centre(federation)
        if not self._shares_weights():
            self._warn_of(findings_of_weights(federation, self.n_components_))

    def _shares_weights(self) -> bool:
        """Whether weights of sites are pulled together."""
        told = getattr(self._used, "share_weights", False)
        return told is True or (told == "auto" and bool(getattr(self._result, "shaped", False)))

    def _warn_of_groups(self) -> None:
        if self.ambiguous_.any():
            remedy = "" if self._uses_target() else " or init='ward'"
            self._warning(
                f"at {sites_listed(self.client_names_[self.ambiguous_])} another matching of "
                "groups fits about as well: groups there may not mean what they mean elsewhere "
                f"(ambiguous_). Fewer components{remedy} may help.",
                AmbiguousWarning,
            )
        if self.halvings_.any():
            self._warning(
                f"gradient steps would have diverged and were halved at "
                f"{sites_listed(self.client_names_[self.halvings_ > 0])}; lower step_constant, or "
                "take step='em'",
                StepHalvedWarning,
            )


def check_start(shape: tuple[int, ...], federation: Federation, settings: MixtureSettings) -> None:
    """Complain about given components of another shape."""
    d, intercept = federation.n_features, settings.has_intercept
    shared = (settings.n_components, d + intercept)
    each = (federation.n_clients, *shared)
    if shape[:-1] not in (shared[:1], each[:2]) or shape[-1] not in (d, d + intercept):
        words = ", with the intercept last or left out for 0" if intercept else ""
        raise ValueError(
            f"init has shape {shape}; expected {shared} for all sites or {each}{words}"
        )
