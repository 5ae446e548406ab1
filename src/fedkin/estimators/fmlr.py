"""The face of FMLR-EM: every site follows one of K linear regressions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.fmlr import FMLR as ALGORITHM
from fedkin.estimators.base import (
    FederatedEstimator,
    check_choice,
    check_count,
    check_fraction,
    listed,
)
from fedkin.federation import Federation
from fedkin.inference import odd_by_likelihood
from fedkin.models.grouped_regression import (
    Noise,
    Parameters,
    noise_density,
    responsibilities,
)
from fedkin.models.least_squares import packed_statistics
from fedkin.names import canonical_name
from fedkin.tables import Summary, Table
from fedkin.ties import RELATIVE, first_best

# The label of sites that no regression explains (robust=True).
NOISE_LABEL = -1
# Noise below this share of the outcome's scale is lost in the rounding of packed statistics.
ROUNDING_SHARE = 1e-5
# What left a site, in words.
ACCOUNT = {
    "statistics": "Each site sent its sums of products of features and outcome once.",
    "sums": "Each site sent its sums of products weighted by its group probabilities in every "
    "round. Labels were not sent, but can be inferred from one site's sums.",
}


class OddSitesWarning(UserWarning):
    """Some sites fit none of the groups and may have distorted all of them."""


class ImplausibleSitesWarning(UserWarning):
    """Some sites sent numbers that no rows can give and were left out."""


class FMLR(RegressorMixin, FederatedEstimator):
    """Federated mixture of linear regressions over sites.

    Parameters
    ----------
    n_components : int or None
        Number of regressions K; None chooses it by BIC among 1..`max_components` and keeps the
        curve in `choice_`.
    share : "statistics" or "sums"
        What leaves a site. "statistics": its sums of products once, everything else happens at
        the server (one round). "sums": the same sums weighted by its group probabilities in every
        round; its label is not sent, but whoever sees one site's weighted sums can infer it.
    init : "auto", "ridge", "spectral", "random", or array (K, d) or (K, d + 1)
        Where EM starts: "ridge" clusters the sites' ridge fits, "spectral" does so in the
        eigenspace of pair moments, "random" draws groups by lot; "auto" is half "ridge", half
        "random" with `share="statistics"`, and "random" with `share="sums"`. An array holds
        coefficients, with the intercept last if it has one more column than X.
    sigma, weights : None (learnt), or a number and "uniform" (the paper's mode)
    robust : bool
        Adds a group for sites that follow no regression (label -1). It protects against odd
        data, not against lies: a site that sends numbers which no rows can give is left out with
        or without it (`implausible_sites_`), but one that makes up numbers which rows could give,
        or with `share="sums"` its group probabilities and likelihood, is believed.
    n_restarts, max_components, fit_intercept, max_rounds, tol, fraction, random_state
        `fraction` of the sites is asked in each round (`share="sums"` only: with "statistics"
        there is one round); the last reply of a site stands while it is not asked.
    engine : an engine, None for all sites in this process.

    Attributes
    ----------
    coef_ (K, d), intercept_ (K,), sigma_, weights_ (K,), noise_weight_, identified_ (K,),
    responsibilities_ (m, K), labels_ (m,), n_components_, loglik_, bic_, choice_, odd_sites_,
    implausible_sites_, client_names_, converged_, n_iter_, n_rounds_, history_, traffic_, refusals_

    A site that was not heard (empty, refused, late) or left out as implausible has the
    population's probabilities. Likelihoods are scaled to all rows if sites missed a round.
    """

    _private = (
        "_position",
        "_groups",
        "_adapted",
        "_parameters",
        "_noise",
        "_site_loglik",
        "_site_rows",
    )

    def __init__(
        self,
        n_components=None,
        *,
        share="statistics",
        init="auto",
        n_restarts=10,
        max_components=8,
        sigma=None,
        weights=None,
        robust=False,
        fit_intercept=True,
        max_rounds=500,
        tol=1e-6,
        fraction=1.0,
        random_state=None,
        engine=None,
    ):
        self.n_components = n_components
        self.share = share
        self.init = init
        self.n_restarts = n_restarts
        self.max_components = max_components
        self.sigma = sigma
        self.weights = weights
        self.robust = robust
        self.fit_intercept = fit_intercept
        self.max_rounds = max_rounds
        self.tol = tol
        self.fraction = fraction
        self.random_state = random_state
        self.engine = engine

    def fit(self, X=None, y=None, groups=None):
        """Fit to sites: rows X with outcome y and a site name per row, or a Federation."""
        self._check_parameters()
        self._forget()
        federation = self._federation(X, y, groups)
        if federation is not None:
            self._check_data(federation)
        outcome = self._run(ALGORITHM, self._settings(), federation)
        self._read(outcome)
        if len(self.odd_sites_) and not self.robust and federation is not None:
            self.odd_sites_ = self._odd_sites_without_distortion(federation)
        self._warn(federation)
        return self

    # ------------------------------------------------------------ before

    def _check_parameters(self) -> None:
        check_choice("share", self.share, ("statistics", "sums"))
        check_choice("weights", self.weights, (None, "uniform"))
        if isinstance(self.init, str):
            words = ("auto", "ridge", "spectral", "random")
            check_choice("init", self.init, words)
            if self.share == "sums" and self.init == "ridge":
                raise ValueError(
                    "init='ridge' needs every site's own fit; with share='sums' use 'random', "
                    "'spectral' or an array"
                )
        for name in ("n_components", "max_components", "n_restarts", "max_rounds"):
            if name != "n_components" or self.n_components is not None:
                check_count(name, getattr(self, name))
        if self.sigma is not None and not self.sigma > 0:
            raise ValueError(f"sigma must be positive, not {self.sigma}")
        check_fraction(self.fraction)
        if self.fraction < 1 and self.share == "statistics":
            raise ValueError(
                "fraction is for share='sums'; with share='statistics' there is one round, in "
                "which every site is asked"
            )

    def _check_data(self, federation: Federation) -> None:
        if federation.y is None:
            raise ValueError("FMLR needs an outcome y: requires y to be passed, but it is None")
        n_sites = int((federation.sizes > 0).sum())
        wanted = self.n_components or 1
        if not isinstance(self.init, str) and self.n_components is None:
            raise ValueError("init given as an array needs n_components")
        if wanted > n_sites:
            raise ValueError(
                f"n_components={wanted} needs at least as many sites with rows; there are {n_sites}"
            )

    def _settings(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in ALGORITHM.defaults}
        if not isinstance(self.init, str):
            settings["init"] = np.array(self.init, dtype=np.float64, ndmin=2)
        return settings

    # ------------------------------------------------------------ after

    def _read(self, outcome) -> None:
        """Fitted attributes from the program's named arrays."""
        result = outcome.result
        coef, weights = result["coef"], result["weights"]
        self.n_components_ = len(coef)
        self.coef_ = coef[:, :-1] if self.fit_intercept else coef
        self.intercept_ = coef[:, -1] if self.fit_intercept else np.zeros(len(coef))
        self.n_features_in_ = self.coef_.shape[1]
        self.sigma_ = float(result["sigma"])
        regular = float(weights[: len(coef)].sum())
        # If every site is odd, nothing is known of the proportions.
        self.weights_ = (
            weights[: len(coef)] / regular if regular else np.full(len(coef), 1 / len(coef))
        )
        self.noise_weight_ = 1.0 - regular
        self.identified_ = result["identified"]
        self.loglik_ = float(result["loglik"])
        self.converged_ = bool(result["converged"])
        self.history_ = {"loglik": result["history_loglik"]}
        self.n_iter_ = len(result["history_loglik"])
        columns = ("n_components", "loglik", "bic")
        self.choice_ = Table(dict(zip(columns, result["curve"].T)), "Number of components")
        self.bic_ = float(result["curve"][:, 2].min())
        self._parameters = Parameters(coef[None], np.array([self.sigma_]), weights[None])
        packed = result["noise"]
        self._noise = Noise(packed[:-1], float(packed[-1])) if len(packed) else None
        self._site_loglik, self._site_rows = result["site_loglik"], result["site_rows"]
        self._adapted: dict[str, np.ndarray] = {}
        share = result.get("responsibilities")
        if share is None and outcome.memories is not None:
            share = np.tile(weights, (len(outcome.roster), 1))
            heard = np.isfinite(self._site_loglik)
            share[heard] = outcome.memories["responsibilities"][heard]
        if share is not None:
            self._groups = share
            self.responsibilities_ = _without_noise(share, self.weights_)
            self.labels_ = _labels(share, len(coef))
        self.implausible_sites_ = self.client_names_[result["implausible"]]
        self.odd_sites_ = self._odd_sites()

    def _odd_sites(self) -> np.ndarray:
        if self._noise is not None and hasattr(self, "labels_"):
            return self.client_names_[self.labels_ == NOISE_LABEL]
        odd = odd_by_likelihood(self._site_loglik, self._site_rows, self.sigma_)
        return self.client_names_[odd]

    def _odd_sites_without_distortion(self, federation: Federation) -> np.ndarray:
        """Odd sites bend the regressions towards themselves: name them from a fit they cannot."""
        straight = clone(self).set_params(robust=True, n_components=self.n_components_)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fit in question gives its own
            named = straight.fit(federation).odd_sites_
        return named if len(named) else self.odd_sites_

    def _warn(self, federation: Federation | None) -> None:
        if not self.converged_:
            warnings.warn(
                f"EM did not settle within max_rounds={self.max_rounds}; raise it or tol",
                ConvergenceWarning,
                stacklevel=3,
            )
        m = len(self.client_names_)
        if len(self.implausible_sites_):
            warnings.warn(
                f"{len(self.implausible_sites_)} of {m} sites sent numbers that no rows can give "
                f"and were left out: {listed(self.implausible_sites_)}. Look at these sites.",
                ImplausibleSitesWarning,
                stacklevel=3,
            )
        if not self.robust and len(self.odd_sites_):
            warnings.warn(
                f"{len(self.odd_sites_)} of {m} sites fit none of the groups and may have "
                f"distorted all of them: {listed(self.odd_sites_)}. Look at these sites, or fit "
                "with robust=True, which sets such sites apart.",
                OddSitesWarning,
                stacklevel=3,
            )
        if federation is not None and federation.off_centre:
            columns = [federation.feature_names[j] for j in federation.off_centre]
            warnings.warn(
                f"the spread of column {listed(columns)} is so small beside its mean that its "
                "effect is lost in rounding; centre it before fitting",
                RuntimeWarning,
                stacklevel=3,
            )
        if federation is not None and federation.y is not None and self.sigma is None:
            size = float(np.sqrt(np.median(np.square(federation.y))))
            if 0 < self.sigma_ < ROUNDING_SHARE * size:
                warnings.warn(
                    f"the noise ({self.sigma_:.2g}) is too small beside the outcome ({size:.2g}) "
                    "to be told from rounding; centre y before fitting",
                    RuntimeWarning,
                    stacklevel=3,
                )

    # ------------------------------------------------------------ use

    def predict(self, X, groups=None):
        """Expected outcome of each row given what is known of its site.

        A site of the fit, or one given to `adapt`, gets its own mixture of the regressions; any
        other site, or groups=None after a fit to several sites, the population's. `groups` names
        the site of each row, or one site for all of them.
        """
        check_is_fitted(self)
        rows, sites = self._rows_and_sites(X, groups)
        distinct, codes = np.unique(sites, return_inverse=True)
        share = np.array([self._share(name) for name in distinct])
        mixed, offset = share @ self.coef_, share @ self.intercept_
        return np.einsum("nd,nd->n", rows, mixed[codes]) + offset[codes]

    def adapt(self, X, y=None, groups=None):
        """Learn the groups of sites not in the fit from their own rows; shared parts stay.

        `groups` names the site of each row, or one site for all of them.
        """
        check_is_fitted(self)
        if isinstance(X, Federation):
            clients = self._with_columns_of_the_fit(X)
        elif groups is None:
            raise ValueError("adapt needs the name of the site: adapt(X, y, groups='new-site')")
        else:
            rows, sites = self._rows_and_sites(X, groups)
            clients = Federation.from_groups(rows, sites, y)
        if clients.y is None:
            raise ValueError("adapt needs the outcome y of the new sites' rows")
        statistics = packed_statistics(clients, self.fit_intercept)
        outside = None if self._noise is None else noise_density(statistics, self._noise)
        share, _ = responsibilities(statistics, self._parameters, outside)
        self._adapted.update(zip(clients.names, _without_noise(share[0].T, self.weights_)))
        return self

    def responsibilities(self, site) -> np.ndarray:
        """Probabilities of one site's groups, (K,)."""
        check_is_fitted(self)
        return self._share(canonical_name(site))

    def score(self, X, y=None, groups=None, sample_weight=None):
        """Coefficient of determination of `predict`; a Federation has its own y."""
        predicted = self.predict(X, groups)
        outcome = self._outcome_to_score(X, y, groups)
        return r2_score(outcome, predicted, sample_weight=sample_weight)

    def _share(self, name: str) -> np.ndarray:
        if name in self._adapted:
            return self._adapted[name]
        known = self._position.get(name)
        if known is None or not hasattr(self, "responsibilities_"):
            return self.weights_
        return self.responsibilities_[known]

    def summary(self) -> Summary:
        """Components, sites and account as tables; prints as text, shows as HTML."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        components = {"component": np.arange(self.n_components_), "weight": self.weights_}
        if hasattr(self, "labels_"):
            counts = np.bincount(self.labels_[self.labels_ >= 0], minlength=self.n_components_)
            components["sites"] = counts
        components["identified"] = self.identified_
        if self.fit_intercept:
            components["intercept"] = self.intercept_
        for name, coef in zip(map(str, names), self.coef_.T):
            # A feature called "weight" must not hide the weights.
            components[f"coef[{name}]" if name in components else name] = coef
        sites = {"site": self.client_names_, "rows": self._site_rows}
        if hasattr(self, "labels_"):
            sites["group"] = self.labels_
            sites["probability"] = self._groups.max(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            sites["log likelihood per row"] = self._site_loglik / self._site_rows
        sites["odd"] = np.isin(self.client_names_, self.odd_sites_)
        tables = {
            "components": Table(components, "Regressions"),
            "sites": Table(sites, "Sites"),
            "choice": self.choice_,
            "traffic": self._traffic_table(),
        }
        title = (
            f"FMLR: {len(self.client_names_)} sites, {self.n_components_} regressions, "
            f"noise {self.sigma_:.4g}, log likelihood {self.loglik_:.6g}"
        )
        return Summary(title, tables, self._notes())

    def _notes(self) -> list[str]:
        notes = [self._travelled(), ACCOUNT[self.share]]
        if self.n_components is None and len(self.choice_["bic"]) == self.n_components_ > 1:
            notes.append(
                f"BIC still falls at {self.n_components_} regressions, the most that were tried "
                "(max_components): sites may differ by degrees rather than by kind."
            )
        if not self.identified_.all():
            which = ", ".join(map(str, np.flatnonzero(~self.identified_)))
            notes.append(f"Unidentified, because no site belongs to it: component {which}.")
        return notes


def _without_noise(share: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Probabilities of the K regressions given that it is one of them, (m, K)."""
    regular = share[:, : len(weights)]
    total = regular.sum(axis=1, keepdims=True)
    return np.where(total > 1e-12, regular / np.where(total > 0, total, 1.0), weights)


def _labels(share: np.ndarray, n_components: int) -> np.ndarray:
    best = first_best(share, axis=1, floor=RELATIVE)
    return np.where(best < n_components, best, NOISE_LABEL)
