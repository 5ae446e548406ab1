"""The mixed model as a scikit-learn estimator: sites differ by degrees."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.mixed_model import MIXED_MODEL, WITHOUT_LEVEL
from fedkin.algorithms.mixed_model_result import LEVEL, MixedFacts, extended, term_names
from fedkin.engines.kept import KeptReplies
from fedkin.estimators.base import FederatedEstimator
from fedkin.estimators.fmlr import ImplausibleSitesWarning
from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics
from fedkin.models.linear_mixed_prediction import Prediction, intervals, predict
from fedkin.names import listed
from fedkin.tables import Table

# A slope of the criterion (which counts in units of one) above this is no end of a search.
CONVERGED = 1e-4
# The place of a site that is not in the fit.
NEW_SITE = -1


class MixedModel(RegressorMixin, FederatedEstimator):
    """Linear mixed model over sites: common coefficients, and how far each site departs from them.

    Every site has coefficients of its own around common ones. How far sites differ is estimated,
    and each site's own coefficients are pulled towards the common ones exactly as far as its own
    rows leave them uncertain. One round; the fit is that of all rows in one place, to rounding.

    Parameters
    ----------
    random : {"all", "intercept"} or list of columns
        Columns whose coefficients differ between sites. "all": every column and the intercept;
        "intercept": the level only; a list (names or positions): these slopes and the intercept,
        without the intercept if "-intercept" is in the list.
    method : {"reml", "ml"}
        Restricted or plain maximum likelihood.
    covariance : {"full", "diagonal", "isotropic"}
        Of the sites' departures: any; uncorrelated; or one variance for all slopes (in units of
        the columns' spread) and one for the level, for many columns.
    fit_intercept : bool
        Whether there is an intercept.
    random_state : int, RandomState or None
        Nothing here is left to chance; other estimators have it, too.
    engine : engine or None
        Who reaches the sites; None holds all of them in this process.

    Attributes
    ----------
    coef_ : array of shape (d,)
        Common coefficients.
    intercept_ : float
        Common intercept.
    coef_se_ : array of shape (d,)
        Standard errors of the common coefficients.
    intercept_se_ : float
        Standard error of the common intercept.
    df_ : array of shape (d,)
        Satterthwaite's degrees of freedom of the common coefficients.
    effects_ : array of shape (m, q)
        How far each site departs, in the columns `random_columns_`.
    effects_se_ : array of shape (m, q)
        Standard errors of the departures.
    random_columns_ : list of str
        Names of the columns that differ between sites, the intercept as "(intercept)".
    site_coef_ : array of shape (m, d)
        Each site's own coefficients.
    site_intercept_ : array of shape (m,)
        Each site's own intercept.
    random_covariance_ : array of shape (q, q)
        Covariance of the departures.
    sigma_ : float
        Noise within sites, a standard deviation.
    icc_ : float
        Share of the variance that lies between sites, for an average row.
    loglik_ : float
        Log likelihood, restricted with `method="reml"`.
    aic_, bic_ : float
        Information criteria on that likelihood, as lme4 has them.
    difference_test_ : SiteTest
        Likelihood ratio test of "sites do not differ", corrected for the boundary.
    singular_ : bool
        Whether some combination of departures has no variance.
    collinear_ : list of str
        Columns that depend on each other.
    implausible_sites_ : array
        Sites that sent what no rows can give.
    client_names_ : array of shape (m,)
        Names of the sites.
    n_rounds_ : int
        Rounds of communication: one.
    traffic_ : Traffic
        What travelled.
    refusals_ : tuple of Refusal
        Which contributions are missing, and why.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import MixedModel
    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat([f"site-{k}" for k in range(30)], 20)
    >>> slope = 2.0 + np.repeat(rng.normal(size=30), 20)
    >>> x = rng.normal(size=600)
    >>> y = 1.0 + slope * x + 0.5 * rng.normal(size=600)
    >>> model = MixedModel().fit(x[:, None], y, groups=groups)
    >>> bool(abs(model.coef_[0] - 2.0) < 3 * model.coef_se_[0])
    True
    >>> model.site_coef_.shape
    (30, 1)
    """

    _algorithm = MIXED_MODEL
    _private = (*FederatedEstimator._private, "_facts", "_fit", "_place")

    def _settings_for(self, settings, federation):
        """Columns of `random` by position: names do not travel."""
        if not isinstance(settings.random, tuple):
            return settings
        names = _columns_of(federation, self.engine)
        return settings.replace(random=_positions(settings.random, names))

    @classmethod
    def from_journal(cls, folder, *, feature_names=None, **parameters):
        """Fit to what sites sent in an earlier run, of FMLR or of a mixed model; none is asked.

        Parameters
        ----------
        folder : path
            Journal of a fit with share="statistics": `InProcess(journal=folder)`.
        feature_names : list of str or None
            Names of the columns, which a journal does not keep.
        **parameters
            Of the mixed model; `fit_intercept` is that of the run.
        """
        engine = KeptReplies.read(folder, "statistics", feature_names)
        own = {"fit_intercept": engine.settings["fit_intercept"], **parameters}
        return cls(**own, engine=engine).fit()

    # ------------------------------------------------------------ after

    def _read(self, run) -> None:
        result = run.result
        facts = self._facts = MixedFacts(result, self._used)
        self._fit = facts.fit
        d = len(result.coef) - self.fit_intercept
        error = np.sqrt(np.diag(result.coef_covariance))
        self.n_features_in_ = d
        if isinstance(self.engine, KeptReplies) and self.engine.features is not None:
            self.feature_names_in_ = np.array(self.engine.features, dtype=object)
        self.coef_, self.coef_se_, self.df_ = result.coef[:d], error[:d], facts.degrees[:d]
        self.intercept_ = float(result.coef[d:].sum())
        self.intercept_se_ = float(error[d:].sum())
        self.effects_ = result.effects
        self.effects_se_ = np.sqrt(np.einsum("mqq->mq", result.effects_covariance))
        self.random_columns_ = term_names(self._features(), result.random)
        own = np.tile(result.coef, (len(self.effects_), 1))
        own[:, result.random] += self.effects_
        self.site_coef_, self.site_intercept_ = own[:, :d], own[:, d:].sum(axis=1)
        self.random_covariance_ = result.random_covariance
        self.sigma_ = float(result.sigma)
        self.icc_, self.loglik_ = facts.icc, float(result.loglik)
        self.aic_, self.bic_ = facts.aic, facts.bic
        self.singular_ = self._fit.singular
        self.collinear_ = term_names(self._features(), np.array(self._fit.collinear, dtype=int))
        self.implausible_sites_ = self.client_names_[result.implausible]
        self.converged_ = bool(result.gradient <= CONVERGED)
        self.history_: dict[str, Any] = {}
        place = {int(k): i for i, k in enumerate(result.heard)}
        self._place = {name: place.get(k, NEW_SITE) for name, k in self._position.items()}

    def _warn(self, federation: Federation | None) -> None:
        if not self.converged_:
            self._warning(
                f"the likelihood's slope is {self._result.gradient:.2g} where the search ended; "
                "estimates may be off; look for columns of very different size",
                ConvergenceWarning,
            )
        if len(self.implausible_sites_):
            self._warning(
                f"{len(self.implausible_sites_)} of {len(self.client_names_)} sites sent numbers "
                f"that no rows can give and were left out: {listed(self.implausible_sites_)}. Look "
                "at these sites.",
                ImplausibleSitesWarning,
            )
        if self.collinear_:
            self._warning(
                f"columns depend on each other: {listed(self.collinear_)}; their coefficients are "
                "the shortest of all that fit equally well. Drop one of them to read them singly"
            )

    @property
    def difference_test_(self):
        """Likelihood ratio test of "sites do not differ", corrected for the boundary."""
        check_is_fitted(self)
        return self._facts.difference

    # ------------------------------------------------------------ use

    def predict(self, X, groups=None, return_std=False, level=None):
        """Expected target of each row, with what is known of its site.

        A site of the fit, or one given to `adapt`, has its own coefficients; any other site, or
        groups=None after a fit to several sites, the common ones.

        Parameters
        ----------
        X : rows, or a Federation
        groups : site of each row, or one site for all of them
        return_std : bool
            Also the standard deviation of a new target: noise, uncertainty of the common
            coefficients and of the site's departure (at an unknown site: the whole spread of
            departures).
        level : float or None
            Also the ends of intervals that hold a new target with this probability.

        Returns
        -------
        mean, or (mean, std), or (mean, intervals), or (mean, std, intervals)
            Arrays of shape (n,); intervals have shape (n, 2).
        """
        check_is_fitted(self)
        rows, sites = self._rows_and_sites(X, groups)
        design = np.concatenate([rows, np.ones((len(rows), int(self.fit_intercept)))], axis=1)
        clients = self._places(sites)
        if not return_std and level is None:
            own = np.concatenate([self._fit.client_coef, self._fit.coef[None]])
            return np.einsum("nd,nd->n", design, own[clients])
        predicted = predict(self._fit, design, clients, self._facts.uncertainty)
        return _parts(predicted, return_std, level)

    def _places(self, sites: np.ndarray) -> np.ndarray:
        """The place of every row's site in the fit; -1 for a new one."""
        distinct, codes = np.unique(sites.astype(str), return_inverse=True)
        return np.array([self._place.get(name, NEW_SITE) for name in distinct])[codes]

    def adapt(self, X, y=None, groups=None):
        """Learn how far sites that were not in the fit depart; what is common stays."""
        clients = self._new_clients(X, y, groups)
        known = len(self._fit.effects.means)
        statistics = packed_statistics(clients, self.fit_intercept)
        self._fit = extended(self._fit, statistics)
        self._place |= {name: known + k for k, name in enumerate(clients.names)}
        return self

    def score(self, X, y=None, groups=None, sample_weight=None):
        """Coefficient of determination of `predict`; a Federation has its own y."""
        predicted = self.predict(X, groups)
        target = self._target_to_score(X, y, groups)
        return r2_score(target, predicted, sample_weight=sample_weight)

    def conf_int(self, level=LEVEL) -> np.ndarray:
        """Ends of intervals of `coef_`, (d, 2), by Student's t with Satterthwaite's degrees."""
        check_is_fitted(self)
        return self._facts.intervals(level)[: self.n_features_in_]

    def fixed_effects(self, level=LEVEL) -> Table:
        """Common coefficients with standard error, degrees of freedom, t, p and interval."""
        check_is_fitted(self)
        return self._facts.fixed(self._features(), level)

    def variance_components(self, level=LEVEL, intervals="wald") -> Table:
        """Standard deviations and correlations of the departures, and the noise.

        `intervals` are by Wald's formula (quick) or "profile" (by the likelihood).
        """
        check_is_fitted(self)
        return self._facts.variances(self._features(), level, intervals)


def _columns_of(federation: Federation | None, engine: Any) -> tuple[str, ...]:
    """Names of the columns of a fit."""
    if federation is not None:
        return federation.feature_names
    return tuple(getattr(engine, "features", None) or ())


def _positions(columns: tuple[Any, ...], names: tuple[str, ...]) -> tuple[Any, ...]:
    """Columns by position; a name that is not there is told."""
    places = {name: j for j, name in enumerate(names)}
    unknown = [c for c in columns if isinstance(c, str) and c not in (*places, WITHOUT_LEVEL)]
    if unknown:
        raise ValueError(f"random names {listed(unknown)}; the columns are {listed(names)}")
    return tuple(places.get(c, c) if isinstance(c, str) else c for c in columns)


def _parts(predicted: Prediction, return_std: bool, level: float | None) -> tuple[Any, ...]:
    parts = [predicted.mean]
    if return_std:
        parts.append(np.sqrt(predicted.variance))
    if level is not None:
        parts.append(intervals(predicted, level))
    return tuple(parts)
