"""FMLR-EM as a scikit-learn estimator: every site follows one of K linear regressions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin, clone
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.fmlr import FMLR as ALGORITHM
from fedkin.algorithms.fmlr import FmlrSettings
from fedkin.algorithms.fmlr_known import DepartingSites, PlainSites, Site, known_sites
from fedkin.algorithms.fmlr_result import NOISE_LABEL, FmlrResult
from fedkin.engines import InProcess
from fedkin.estimators.base import FederatedEstimator
from fedkin.federation import Federation
from fedkin.inference import odd_by_likelihood, odd_by_misfit
from fedkin.models.estimates import LEVEL, checked_level
from fedkin.models.least_squares import packed_statistics
from fedkin.names import canonical_name, listed
from fedkin.tables import Summary, Table

# Noise below this share of the target's scale is lost in the rounding of packed statistics.
ROUNDING_SHARE = 1e-5


class OddSitesWarning(UserWarning):
    """Some sites fit none of the groups and may have distorted all of them."""


class ImplausibleSitesWarning(UserWarning):
    """Some sites sent numbers that no rows can give and were left out."""


class FMLR(RegressorMixin, FederatedEstimator):
    """Federated mixture of linear regressions over sites.

    Every site follows one of K linear regressions; which one, and the regressions themselves, are
    found together by EM. Sites may depart from their regression by degrees, and each may have a
    noise of its own; BIC decides whether they do. FMLR as printed is `degrees=False,
    site_noise="common"`.

    Parameters
    ----------
    n_components : int or None
        Number of regressions K; None chooses it by BIC among 1..`max_components` and keeps the
        curve in `choice_`.
    share : {"statistics", "sums"}
        What leaves a site. "statistics": its sums of products once, everything else happens at
        the server (one round). "sums": the same sums weighted by its group probabilities in every
        round; its label is not sent, but whoever sees one site's weighted sums can infer it.
    init : {"auto", "ridge", "spectral", "random"} or array of shape (K, d) or (K, d + 1)
        Where EM starts: "ridge" clusters the sites' ridge fits, "spectral" does so in the
        eigenspace of pair moments, "random" draws groups by lot; "auto" is half "ridge", half
        "random" with `share="statistics"`, and "random" with `share="sums"`. An array holds
        coefficients, with the intercept last if it has one more column than X.
    n_restarts : int
        Starts that run side by side; the likeliest end counts.
    max_components : int
        The most regressions that are tried when `n_components` is None.
    sigma : float or None
        Noise of the regressions, a standard deviation; None learns it.
    weights : {None, "uniform"}
        Proportions of the regressions among sites; None learns them.
    robust : bool
        Adds a group for sites that follow no regression (label -1). A site that sends numbers
        which no rows can give, or with `share="sums"` groups and likelihoods that its own sums
        do not give, is left out with or without it (`implausible_sites_`). One that makes up
        numbers which rows could give is believed: with K given, a third of the sites that agree
        on such numbers take the place of a kind; with K open they become one of their own.
    max_rounds : int
        The most EM steps.
    tol : float
        EM ends when nothing moves by more than this, relative to its size.
    fraction : float
        Share of the sites that is asked in each round (`share="sums"` only: with "statistics"
        there is one round); the last reply of a site stands while it is not asked.
    degrees : {"choose", True, False}
        Whether sites depart from their kind's regression by random effects on all columns: a
        mixture of mixed models, of which one kind is `MixedModel` (by maximum likelihood). "choose"
        takes what has the least BIC over the number of kinds, with and without; it stays without
        where sites do not send statistics, and where `sigma`, `weights` or a start are given. Where
        sites or rows are too few to tell departures from noise, there are none.
    covariance : {"auto", "full", "diagonal", "isotropic"}
        Of the departures, as `MixedModel` has it. "auto" is "full" where there are at least two
        sites for each of its numbers, else "isotropic".
    site_noise : {"choose", "common", "own"}
        One noise for all sites, or one for each from a common inverse gamma, for sites that do not
        measure equally well; "choose" decides by BIC, where `degrees` could.

    Attributes
    ----------
    coef_ : array of shape (K, d)
        Coefficients of each regression, those with the most sites first.
    intercept_ : array of shape (K,)
        Intercepts.
    coef_se_ : array of shape (K, d)
        Standard errors of the coefficients: a sandwich over sites with what it costs not to know
        who belongs where; by the model alone where fewer than five sites tell of a regression.
    intercept_se_ : array of shape (K,)
        Standard errors of the intercepts.
    df_ : array of shape (K,)
        Degrees of freedom of these errors.
    sigma_ : float
        Noise, a standard deviation (a typical site's, where each has its own).
    site_sigma_ : array of shape (m,)
        Noise of every site.
    degrees_ : bool
        Whether sites depart from their kind.
    site_noise_ : str
        "common" or "own".
    effects_ : array of shape (m, q)
        How far each site departs from its kind, in the columns `random_columns_`; zero without
        departures.
    random_columns_ : list of str
        Names of the columns in which sites may depart, the intercept as "(intercept)".
    random_covariance_ : array of shape (q, q)
        Covariance of the departures; zero without.
    site_coef_ : array of shape (m, d)
        Each site's own coefficients: of its kinds, by their probabilities, and its departure.
    site_intercept_ : array of shape (m,)
        Each site's own intercept.
    weights_ : array of shape (K,)
        Proportions of the regressions among sites.
    noise_weight_ : float
        Proportion of sites that follow none (`robust`).
    identified_ : array of shape (K,)
        Whether any site belongs to the regression.
    responsibilities_ : array of shape (m, K)
        Probability of each regression at each site. A site that was not heard (empty, refused,
        late) or left out as implausible has the population's.
    labels_ : array of shape (m,)
        The likeliest regression of each site.
    n_components_ : int
        Number of regressions.
    loglik_ : float
        Log likelihood; scaled to all rows if sites missed a round.
    bic_ : float
        Bayesian information criterion.
    choice_ : Table
        Likelihood and BIC of every number of regressions that was tried, with and without
        departures and own noise; one common model and the mixed model stand beside them, whether
        they were `considered` or not.
    odd_sites_ : array
        Sites that fit none of the regressions.
    implausible_sites_ : array
        Sites that sent what no rows can give.
    client_names_ : array of shape (m,)
        Names of the sites, in the order of all arrays.
    converged_ : bool
        Whether EM settled.
    n_iter_ : int
        EM steps of the restart that won.
    history_ : dict
        "loglik": log likelihood by EM step.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import FMLR
    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat([f"site-{k}" for k in range(12)], 20)
    >>> X = rng.normal(size=(240, 2))
    >>> slopes = np.where(np.repeat(np.arange(12), 20)[:, None] < 8, [1.0, 2.0], [-1.0, 0.0])
    >>> y = (X * slopes).sum(axis=1) + 0.1 * rng.normal(size=240)
    >>> model = FMLR(random_state=0).fit(X, y, groups=groups)
    >>> model.n_components_
    2
    >>> model.coef_.round(1) + 0.0
    array([[ 1.,  2.],
           [-1.,  0.]])
    """

    _algorithm = ALGORITHM
    _adapts_by_rows = True
    _fixed: ClassVar[Mapping[str, Any]] = {"weighted": False}
    _takes_weights = True
    _private = (*FederatedEstimator._private, "_known")
    _used: FmlrSettings
    _known: PlainSites | DepartingSites

    def fit(self, X=None, y=None, groups=None, sample_weight=None):
        """Fit to sites: rows X with target y and a site name per row, or a Federation.

        Without data, the engine reaches sites that hold their own. `sample_weight` (a number for
        each row) are precision weights, as lme4 and scikit-learn have them: a row of weight w has
        noise of variance sigma^2 / w. Weights of 2 are not rows given twice: coefficients agree,
        what is said of the noise does not.
        """
        return self._fit_to(X, y, groups, sample_weight)

    def _settings_for(self, settings, federation):
        """Sites send what weights leave out of the likelihood where there are any."""
        return settings.replace(weighted=self._weighted(federation))

    def _check_data(self, federation: Federation, settings) -> None:
        super()._check_data(federation, settings)
        n_sites, wanted = int((federation.sizes > 0).sum()), settings.n_components or 1
        if wanted > n_sites:
            raise ValueError(
                f"n_components={wanted} needs at least as many sites with rows; there are {n_sites}"
            )

    # ------------------------------------------------------------ after

    def _read(self, run) -> None:
        result = self._result = run.result.with_memories(run.memories)
        coef, K = result.coef, result.n_components
        self.n_components_ = K
        self.coef_ = coef[:, :-1] if self.fit_intercept else coef
        self.intercept_ = coef[:, -1] if self.fit_intercept else np.zeros(K)
        self.n_features_in_ = self.coef_.shape[1]
        if result.coef_sandwich is not None:
            errors, d = result.estimates.errors, self.n_features_in_
            self.coef_se_ = errors[:, :d]
            self.intercept_se_ = errors[:, d] if self.fit_intercept else np.zeros(K)
            self.df_ = result.coef_degrees
        self.sigma_ = float(result.sigma)
        self.weights_ = result.regular_weights
        self.noise_weight_ = 1.0 - float(result.weights[:K].sum())
        self.identified_ = result.identified
        self.loglik_ = float(result.loglik)
        self.converged_ = bool(result.converged)
        self.history_ = {"loglik": result.history_loglik}
        self.n_iter_ = len(result.history_loglik)
        self.choice_ = result.choice()
        self.bic_ = float(result.bic)
        self.degrees_ = result.degrees
        self.site_noise_ = "own" if result.own_noise else "common"
        self._known = known_sites(result, self._used)
        if result.responsibilities is not None:
            self.responsibilities_ = result.regular_share(result.responsibilities)
            self.labels_ = result.labels
            self._read_sites(result)
        self.implausible_sites_ = self.client_names_[result.implausible]
        self.odd_sites_ = self._odd_sites(result)

    def _read_sites(self, result: FmlrResult) -> None:
        """What is known of every site."""
        assert result.site_coef is not None
        d, own = self.n_features_in_, result.site_coef
        self.random_columns_ = [*self._features(), "(intercept)"][: result.coef.shape[1]]
        self.random_covariance_ = result.random_covariance
        self.effects_, self.site_sigma_ = result.effects, result.site_sigma
        self.site_coef_, self.site_intercept_ = own[:, :d], own[:, d:].sum(axis=1)

    def _odd_sites(self, result: FmlrResult) -> np.ndarray:
        if len(result.noise) and result.labels is not None:
            return self.client_names_[result.labels == NOISE_LABEL]
        if isinstance(self._known, DepartingSites) and result.heard is not None:
            odd = odd_by_misfit(self._known.misfit(), result.own_noise)
            return self.client_names_[result.heard[odd]]
        odd = odd_by_likelihood(result.site_loglik, result.site_rows, self.sigma_)
        return self.client_names_[odd]

    def _odd_sites_without_distortion(self, federation: Federation) -> np.ndarray:
        """Odd sites bend the regressions towards themselves: name them from a fit they cannot."""
        straight = clone(self).set_params(
            robust=True, n_components=self.n_components_, engine=_without_books(self.engine)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fit in question gives its own
            named = straight.fit(federation).odd_sites_
        return named if len(named) else self.odd_sites_

    def _warn(self, federation: Federation | None) -> None:
        super()._warn(federation)
        m = len(self.client_names_)
        if len(self.implausible_sites_):
            self._warning(
                f"{len(self.implausible_sites_)} of {m} sites sent numbers that no rows can give "
                f"and were left out: {listed(self.implausible_sites_)}. Look at these sites.",
                ImplausibleSitesWarning,
            )
        if not self.robust and len(self.odd_sites_):
            if federation is not None:
                self.odd_sites_ = self._odd_sites_without_distortion(federation)
            self._warning(
                f"{len(self.odd_sites_)} of {m} sites fit none of the groups and may have "
                f"distorted all of them: {listed(self.odd_sites_)}. Look at these sites, or fit "
                "with robust=True, which sets such sites apart.",
                OddSitesWarning,
            )
        if federation is not None:
            self._warn_of_rounding(federation)

    def _warn_of_rounding(self, federation: Federation) -> None:
        self._warn_off_centre(federation)
        size = self._size_that_drowns_the_noise(federation.y)
        if size is not None:
            self._warning(
                f"the noise ({self.sigma_:.2g}) is too small beside the target ({size:.2g}) "
                "to be told from rounding; centre y before fitting",
                RuntimeWarning,
            )

    def _size_that_drowns_the_noise(self, y: np.ndarray | None) -> float | None:
        """The typical size of the target, if learnt noise is lost beside it."""
        if y is None or not y.size or self.sigma is not None or not self.sigma_ > 0:
            return None
        if self.sigma_ >= ROUNDING_SHARE * max(y.max(), -y.min()):
            return None  # the largest is quickly found, and no median is larger
        size = float(np.sqrt(np.median(np.square(y))))
        return size if self.sigma_ < ROUNDING_SHARE * size else None

    # ------------------------------------------------------------ use

    def predict(self, X, groups=None, return_std=False, level=None):
        """Expected target of each row given what is known of its site.

        A site of the fit, or one given to `adapt`, gets its own mixture of the regressions and its
        own departure; any other site, or groups=None after a fit to several sites, the
        population's.

        Parameters
        ----------
        X : rows, or a Federation
        groups : site of each row, or one site for all of them
        return_std : bool
            Also the standard deviation of a new target: noise, which regression the site follows,
            its departure, and the uncertainty of coefficients.
        level : float or None
            Also the ends of intervals that hold a new target with this probability.

        Returns
        -------
        mean, or (mean, std), or (mean, intervals), or (mean, std, intervals)
            Arrays of shape (n,); intervals have shape (n, 2).
        """
        check_is_fitted(self)
        rows, sites = self._rows_and_sites(X, groups)
        if self.fit_intercept:
            rows = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
        distinct, codes = np.unique(sites.astype(str), return_inverse=True)
        asked = [self._site(name) for name in distinct]
        if not return_std and level is None:
            own = np.array([site.coef for site in asked]).reshape(len(asked), rows.shape[1])
            return np.einsum("nd,nd->n", rows, own[codes])
        level = None if level is None else checked_level(level)
        found = self._known.predict(rows, asked, codes)
        std = [found.std()] if return_std else []
        ends = [found.intervals(level)] if level is not None else []
        return (found.mean(), *std, *ends)

    def conf_int(self, level=LEVEL) -> np.ndarray:
        """Ends of intervals of `coef_`, (K, d, 2), by Student's t with `df_` degrees."""
        check_is_fitted(self)
        return self._result.estimates.intervals(level)[:, : self.n_features_in_]

    def estimates(self, level=LEVEL) -> Table:
        """Coefficients of all regressions with standard error, df, t, p and interval."""
        check_is_fitted(self)
        return self._result.estimates_table(self._about(), level)

    def adapt(self, X, y=None, groups=None):
        """Learn groups and departures of sites not in the fit from their own rows; the rest stays.

        `groups` names the site of each row, or one site for all of them.
        """
        clients = self._new_clients(X, y, groups)
        sites = self._known.learn(packed_statistics(clients, self.fit_intercept))
        self._adapted.update(zip(clients.names, sites))
        return self

    def responsibilities(self, site) -> np.ndarray:
        """Probabilities of one site's groups, (K,)."""
        check_is_fitted(self)
        return self._site(canonical_name(site)).share

    def score(self, X, y=None, groups=None, sample_weight=None):
        """Coefficient of determination of `predict`; a Federation has its own y."""
        predicted = self.predict(X, groups)
        target = self._target_to_score(X, y, groups)
        return r2_score(target, predicted, sample_weight=sample_weight)

    def _site(self, name: str) -> Site:
        """What is known of a site: one of the fit, adapted to, or any."""
        if name in self._adapted:
            return self._adapted[name]
        known = self._position.get(name)
        if known is not None and self._result.responsibilities is None:
            self._warning(
                f"the group of site {name!r} stayed at the site (share='sums'): the answer is the "
                "population's; ask the site, or adapt(X, y, groups) with its rows"
            )
            return self._known.anybody
        if known is None:
            return self._known.anybody
        return self._known.of_fit(known)

    def summary(self) -> Summary:
        """Regressions, sites and account as tables; prints as text, shows as HTML."""
        summary = super().summary()
        odd = np.isin(summary["sites"]["site"], self.odd_sites_)
        sites = Table({**summary["sites"], "odd": odd}, summary["sites"].title)
        return Summary(summary.title, {**summary.tables, "sites": sites}, summary.notes)


def _without_books(engine: Any) -> Any:
    """The engine without journal and ledger: a look at data that are here is no run of its own."""
    return replace(engine, journal=None, ledger=None) if isinstance(engine, InProcess) else engine
