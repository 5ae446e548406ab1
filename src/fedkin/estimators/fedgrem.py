"""The face of FedGrEM: hidden groups inside every site, found with everybody's help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedkin.algorithms.fedgrem import FEDGREM
from fedkin.estimators.base import check_choice
from fedkin.estimators.mixtures import JoiningEstimator


@dataclass(eq=False, repr=False)
class FedGrEM(JoiningEstimator):
    """Robust federated EM for Gaussian mixtures and mixtures of regressions inside sites.

    Every site has R groups of rows with its own weights and components (means or coefficients). A
    site's components are pulled to a robust centre of all sites', so that groups mean the same
    everywhere and sites with few rows borrow from the others; odd sites neither pull nor are
    pulled.

    Parameters
    ----------
    n_components : int
        Number of groups R.
    family : "gaussian" or "regression"
    covariance_type : "identity" (the paper), "spherical", "diag" (each site's own) or "tied" (one
        matrix for all sites); for Gaussian mixtures. Whatever it is, all groups share it:
        standardise or whiten first (`fedkin.Standardizer`).
    shrinkage : "adaptive" or "paper"
        "adaptive": each site is pulled as far as its own sampling variance warrants; nothing to
        tune, but sampling variances, hence sizes of groups, leave the site. "paper": Algorithm 1
        with a penalty that is the same for all; weights stay at the site.
    init : "auto", "kmeans++", "ward", "federated", or array (R, p) or (m, R, p)
        Where EM starts. "kmeans++": every site alone, the likeliest of `n_restarts`. "ward": every
        site alone from hierarchical clusters (Gaussian mixtures); slow from several thousand rows a
        site on, better on real data. "federated": shared coefficients from all sites with a spare
        component (regressions). "auto": "federated" for regressions, else "kmeans++". An array has
        the intercept last, or none: then intercepts start at 0.
    second_start : "auto" or bool
        After the local fits, every site fits once more from the centres of all and keeps the
        likelier fit: repairs sites whose own start went astray. "auto": with "adaptive".
    align : "auto" or a method of `fedkin.alignment.align`
    step : "auto", "em" or "gradient"
        A site's part of a round; "auto" is "em" for "adaptive", "gradient" for "paper".
    step_constant, penalty_start, penalty_decay, penalty_constant
        C_eta, lambda[0], kappa_0 and C of the paper's B.1 ("gradient" and "paper").
    solver : "exact" or "alternating"
        How the paper's central update is solved; "alternating" makes two sweeps, as its script.
    local_steps, batch_size, fraction
        Steps of a site between rounds; rows of a site per step; share of the sites asked a round.
    share_weights : bool
        Mixture weights are sent and pulled together like components (appendix D).
    clip : float or None
        Bounds how far one row may pull a component, in standard deviations.
    threshold : float or None
        Soft threshold of components, not of intercepts, for high dimension (appendix D).
    sigma : float or None
        Noise of the regressions; None learns one for all sites.
    fit_intercept, n_restarts, max_rounds, tol, random_state
    engine : an engine, None for all sites in this process.

    Attributes
    ----------
    means_ or coef_ (m, R, d), intercept_ (m, R), centers_ (R, d), covariance_ (None, (m,), (m, d)
    or (d, d)) or sigma_ (m,), weights_ (m, R), outlier_score_ (m,), ambiguous_ (m,),
    between_variance_ (R,), halvings_ (m,), client_names_, converged_, n_iter_, n_rounds_, history_,
    traffic_, refusals_

    weights_ and a site's own variances are there in process only; elsewhere they stay at the sites.
    A site that was not heard has the population's components and average weights.
    """

    _algorithm = FEDGREM

    covariance_type: Any = "identity"
    shrinkage: Any = "adaptive"
    second_start: Any = "auto"
    step: Any = "auto"
    step_constant: Any = 0.95
    local_steps: Any = 1
    batch_size: Any = None
    share_weights: Any = False
    clip: Any = None
    threshold: Any = None
    sigma: Any = None
    fit_intercept: Any = False
    solver: Any = "exact"
    penalty_start: Any = 1.0
    penalty_decay: Any = 0.1
    penalty_constant: Any = 2.0

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("shrinkage", self.shrinkage, ("adaptive", "paper"))
        check_choice("step", self.step, ("auto", "em", "gradient"))
        check_choice("second_start", self.second_start, ("auto", True, False))
        check_choice("solver", self.solver, ("exact", "alternating"))

    def _settings(self, federation) -> dict[str, Any]:
        settings = super()._settings(federation)
        if self.step == "auto":
            settings["step"] = "gradient" if self.shrinkage == "paper" else "em"
        if self.second_start == "auto":
            settings["second_start"] = self.shrinkage == "adaptive"
        return settings
