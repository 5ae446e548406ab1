"""The face of FGPR: a Gaussian-process prior shared by all sites, a posterior at each."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.fgpr import FGPR as ALGORITHM
from fedkin.algorithms.fgpr_mixture import expectation
from fedkin.algorithms.fgpr_sites import PERSONAL_SPREAD
from fedkin.estimators.base import check_choice, check_count, check_fraction, check_positive
from fedkin.estimators.curves import Curve, CurveEstimator
from fedkin.estimators.fgpr_account import summary_of
from fedkin.estimators.shared_prior import load_prior, save_prior
from fedkin.federation import Federation
from fedkin.models.gaussian_process import evaluate
from fedkin.models.gp_posterior import SiteCurve
from fedkin.models.gp_rows import input_frame, outcome_size, prepare, standardisation
from fedkin.models.gp_uncertainty import cloud
from fedkin.models.kernels import default_spec, form_of, from_spec, to_spec, with_theta
from fedkin.tables import Summary, Table
from fedkin.ties import RELATIVE, first_best

OPTIMIZERS = ("exact", "sgd", "adam-restarted")
PERSONALISE = ("choose", "posterior", "map")


class WrongTargetWarning(UserWarning):
    """The chosen optimiser does not aim at the optimum of the likelihood."""


class FGPR(CurveEstimator):
    """Federated Gaussian-process regression.

    Parameters
    ----------
    kernel : a scikit-learn kernel, or None for ARD RBF times scale plus noise
        Its values are the start. Travels as words and numbers (`fedkin.models.kernels`).
    optimizer : "exact", "sgd" or "adam-restarted"
        "exact" runs L-BFGS on the summed likelihood, one round per evaluation; "sgd" is the
        paper's local steps and averaging; "adam-restarted" is what the paper's scripts do and
        ends at the wrong point (kept to compare).
    personalise : "choose", "posterior" or "map"
        Whether a site predicts with hyper-parameters of its own: where they win by BIC, never,
        or always but pulled to the shared ones. They stay at the site. Predictions average over
        what the site's rows leave open of them; `site_kernels_` holds the most probable ones.
    n_priors : int or None
        Number of priors in a mixture over sites; None chooses it by BIC up to `max_priors`.
    normalize_y : True, "mean" or False
        Standardise each site's outcome by its own mean and standard deviation; by its mean only,
        so that the scale is shared (better for sites of few rows in the same units); or not.
    mean : "zero", "constant" or "linear"
        Mean function of each site's standardised outcome, with a vague prior ("zero": none).
    max_points : int
        Larger sites are trained on random pieces of this size and predicted from the nearest
        rows (`large_sites="neighbours"`) or a random subset ("subset").
    init : "auto" or array (p,) or (k, p) of log hyper-parameters in the kernel's order
        A start for each of k priors, such as `theta_` of another fit; priors beyond these are
        found beside them.
    local_steps, batch_size, learning_rate, schedule, gradient_scaling
        For local steps; schedule "cosine", "inverse-sqrt" (learning rate near 1), "inverse"
        (near 10) or "constant"; scaling "rows" or "theory" (the scale's gradient over 3 log M).
    robust : False, "trimmed" or "median"
        How sites' gradients per row are averaged; "trimmed" leaves out sites far from the rest;
        "median" withstands more liars but aims elsewhere (a quarter off at 8 rows a site). With
        both, the population's location and scale are medians over sites.
    max_rounds, tol, fraction, random_state, engine
        `tol` is the largest entry of the gradient per row. With `fraction` below 1 the exact
        optimiser takes damped steps; "sgd" is then the better choice.

    Attributes
    ----------
    kernel_ (of the largest prior), kernels_, theta_ (P, p), weights_ (P,), n_priors_,
    site_kernels_ {site: kernel}, own_ (m,), responsibilities_ (m, P), labels_ (m,), jitter_ (m,),
    log_marginal_likelihood_, choice_, client_names_, converged_, n_rounds_, history_, traffic_

    A site that was not in the fit gets the prior around the population's mean, or, after `adapt`,
    the shared priors given its own rows.
    """

    _plots: tuple[str, ...] = ("bands", "samples", "convergence", "calibration")
    _private: tuple[str, ...] = (
        "_position",
        "_form",
        "_shared",
        "_outcome",
        "_site_loglik",
        "_site_rows",
        "_site_theta",
        "_curves",
        "_data",
        "_memories",
    )

    def __init__(
        self,
        kernel=None,
        *,
        optimizer="exact",
        personalise="choose",
        n_priors=1,
        max_priors=4,
        normalize_y=True,
        mean="constant",
        max_points=500,
        large_sites="neighbours",
        init="auto",
        local_steps=5,
        batch_size=32,
        learning_rate=1.0,
        schedule="cosine",
        gradient_scaling="rows",
        robust=False,
        max_rounds=100,
        tol=1e-5,
        fraction=1.0,
        random_state=None,
        engine=None,
    ):
        self.kernel = kernel
        self.optimizer = optimizer
        self.personalise = personalise
        self.n_priors = n_priors
        self.max_priors = max_priors
        self.normalize_y = normalize_y
        self.mean = mean
        self.max_points = max_points
        self.large_sites = large_sites
        self.init = init
        self.local_steps = local_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.gradient_scaling = gradient_scaling
        self.robust = robust
        self.max_rounds = max_rounds
        self.tol = tol
        self.fraction = fraction
        self.random_state = random_state
        self.engine = engine

    def fit(self, X=None, y=None, groups=None):
        """Fit to sites: rows X with outcome y and a site name per row, or a Federation."""
        self._forget()
        self._check_parameters()
        federation = self._federation(X, y, groups)
        self._check_data(federation)
        outcome = self._run(ALGORITHM, self._settings(), federation)
        self._read(outcome, federation)
        self._warn()
        return self

    # ------------------------------------------------------------ before

    def _check_parameters(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("personalise", self.personalise, PERSONALISE)
        check_choice("normalize_y", self.normalize_y, (True, "mean", False))
        check_choice("mean", self.mean, ("zero", "constant", "linear"))
        check_choice("large_sites", self.large_sites, ("neighbours", "subset"))
        check_choice("schedule", self.schedule, ("cosine", "inverse-sqrt", "inverse", "constant"))
        check_choice("gradient_scaling", self.gradient_scaling, ("rows", "theory"))
        check_choice("robust", self.robust, (False, "trimmed", "median"))
        for name in ("max_priors", "max_points", "local_steps", "batch_size", "max_rounds"):
            check_count(name, getattr(self, name))
        for name in ("learning_rate", "tol"):
            check_positive(name, getattr(self, name))
        check_fraction(self.fraction)
        if self.n_priors is not None:
            check_count("n_priors", self.n_priors)
        plain = self.optimizer == "exact" and self.robust is False and self.fraction == 1
        if self.n_priors != 1 and not plain:
            raise ValueError(
                "several priors need optimizer='exact', robust=False and fraction=1: sites are "
                "told apart by their exact likelihoods"
            )

    def _check_data(self, federation: Federation | None) -> None:
        if federation is not None and federation.y is None:
            raise ValueError(
                f"{type(self).__name__} needs an outcome y: requires y to be passed, but it is None"
            )

    def _settings(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in ALGORITHM.defaults}
        settings["kernel"] = None if self.kernel is None else to_spec(self.kernel)
        if not isinstance(self.init, str):
            settings["init"] = np.asarray(self.init, dtype=np.float64)
        return settings

    # ------------------------------------------------------------ after

    def _read(self, outcome, federation: Federation | None) -> None:
        """Fitted attributes from the program's named arrays."""
        result = self._shared = outcome.result
        self.n_features_in_ = len(result["spread"])
        self._outcome = result["outcome"]
        spec = default_spec(result["spread"], float(self._outcome[3]))
        if self.kernel is not None:
            spec = to_spec(self.kernel)
        self._form = form_of(spec, self.n_features_in_)
        self.theta_, self.weights_ = result["theta"], result["weights"]
        self.n_priors_ = len(self.weights_)
        self.kernels_ = [self._kernel(theta) for theta in self.theta_]
        self.kernel_ = self.kernels_[0]
        self._site_loglik, self._site_rows = result["site_loglik"], result["site_rows"]
        self.own_ = result["site_own"] > 0
        self.log_marginal_likelihood_ = float(np.nansum(self._site_loglik))
        self.converged_ = bool(result["converged"])
        self.history_ = {"theta": result["history_theta"], "value": result["history_value"]}
        columns = ("n_priors", "loglik", "bic")
        self.choice_ = Table(dict(zip(columns, result["curve"].T)), "Number of priors")
        self._curves: dict[str, SiteCurve] = {}
        self._data = federation
        self._memories = outcome.memories if federation is not None else None
        if self._memories is not None:
            self._read_memories(self._memories)

    def _read_memories(self, memories: dict[str, np.ndarray]) -> None:
        """What sites keep to themselves; there only when all sites are in this process."""
        heard = np.isfinite(self._site_loglik)
        share = np.where(heard[:, None], memories["responsibilities"], self.weights_)
        self.responsibilities_ = share
        self.labels_ = first_best(share, axis=1, floor=RELATIVE)
        self.jitter_ = memories["jitter"]
        self._site_theta = np.where(heard[:, None], memories["theta"], self.theta_[0])
        self.site_kernels_ = {
            str(name): self._kernel(theta)
            for name, theta in zip(self.client_names_, self._site_theta)
        }

    def _kernel(self, theta: np.ndarray) -> Any:
        return from_spec(with_theta(self._form.spec, theta))

    def _warn(self) -> None:
        if self._settings()["optimizer"] == "adam-restarted":
            warnings.warn(
                "Adam begun anew in every round settles where the signs of the sites' gradients "
                "balance, not where the likelihood is largest; use optimizer='exact' or 'sgd'",
                WrongTargetWarning,
                stacklevel=3,
            )
        if not self.converged_:
            warnings.warn(
                f"the prior did not settle within max_rounds={self.max_rounds}; raise it or tol",
                ConvergenceWarning,
                stacklevel=3,
            )

    # ------------------------------------------------------------ sites

    def _curve(self, name: str) -> Curve:
        if name not in self._curves:
            k = self._position.get(name)
            if k is None or self._memories is None or self._data is None:
                return self._prior_curve()
            site, theta, weights = self._data.take([k]), self.theta_, self.responsibilities_[k]
            if self.own_[k]:
                theta, weights = self._own_priors(site, k)
            self._curves[name] = self._conditioned(site, theta, weights)
        return self._curves[name]

    def _own_priors(self, site: Federation, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Hyper-parameters of a site's own with weights: what its rows leave open of them."""
        data = prepare(site, self.normalize_y, self.mean, self.max_points)
        centre, spread = self.theta_[self.labels_[k]], PERSONAL_SPREAD[self.personalise]
        return cloud(data, self._form, self._site_theta[k], centre, spread)

    def _prior_curve(self) -> SiteCurve:
        """What is known of a site without rows."""
        location, scale, between, _ = map(float, self._outcome)
        d = self.n_features_in_
        return SiteCurve(
            self._form,
            self.theta_,
            self.weights_,
            np.zeros((0, d)),
            np.zeros(0),
            location,
            scale,
            frame=np.stack([np.zeros(d), np.ones(d)]),
            between=between,
        )

    def _conditioned(
        self, site: Federation, theta: np.ndarray, weights: np.ndarray, normalize_y: Any = None
    ) -> SiteCurve:
        """The curve of one site given its rows, standardised as in the fit unless told."""
        X, y = site.client(0)
        if not len(X) or y is None:
            return self._prior_curve()
        normalize_y = self.normalize_y if normalize_y is None else normalize_y
        location, scale, varies = standardisation(site, normalize_y, self.mean)
        least = 0.0
        if not varies[0]:
            location, scale = self._outcome[:1], self._outcome[1:2]
            # What the site's outcomes do not tell of their size, the population's do.
            least = float(np.sqrt(self._outcome[3]))
        centre, spread = input_frame(site)
        size = max(float(outcome_size(site, (y - location) / scale)[0]), least)
        return SiteCurve(
            self._form,
            theta,
            weights,
            X,
            y,
            float(location[0]),
            float(scale[0]),
            self.mean,
            np.concatenate([centre, spread]),
            size,
            self.max_points,
            self.large_sites,
        )

    def adapt(self, X, y=None, groups=None):
        """Condition on the rows of sites not in the fit; shared parts stay as they are."""
        check_is_fitted(self)
        clients = self._new_rows(X, y, groups)
        data = prepare(clients, self.normalize_y, self.mean, self.max_points)
        value = [evaluate(data, self._form, theta).value for theta in self.theta_]
        _, share = expectation(np.stack(value, axis=1), np.log(self.weights_))
        for k, name in enumerate(clients.names):
            self._curves[name] = self._conditioned(clients.take([k]), self.theta_, share[k])
        return self

    # ------------------------------------------------------------ account

    def summary(self) -> Summary:
        """Priors, sites and account as tables; prints as text, shows as HTML."""
        check_is_fitted(self)
        return summary_of(self)

    def save_shared(self, path):
        """Write the priors to an npz file, without a row of any site; returns the place."""
        check_is_fitted(self)
        return save_prior(self, path)

    @classmethod
    def load_shared(cls, path):
        """The model of `save_shared`: knows no site until `adapt` is given its rows."""
        return load_prior(cls, path)
