"""The mixed model as a scikit-learn estimator: sites differ by degrees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.mixed_model import MIXED_MODEL
from fedkin.algorithms.mixed_model_facts import Rows
from fedkin.algorithms.mixed_model_result import (
    CONVERGED,
    LEVEL,
    coefficient_intervals,
    fixed_table,
    term_names,
    variance_table,
)
from fedkin.algorithms.mixed_model_settings import (
    CLASSES,
    COUNTS,
    WITHOUT_LEVEL,
    MixedModelSettings,
)
from fedkin.algorithms.mixed_model_sites import check_counts
from fedkin.algorithms.softmax_mixed import SOFTMAX_MIXED
from fedkin.engines import InProcess
from fedkin.engines.kept import KeptReplies
from fedkin.estimators.base import FederatedEstimator
from fedkin.estimators.fmlr import ImplausibleSitesWarning, OddSitesWarning
from fedkin.estimators.formulas import Design, design_from, design_of, kept_design
from fedkin.estimators.mixed_classes import (
    ClassesFacts,
    codes_of,
    encoded,
    settings_of,
    with_memories,
)
from fedkin.federation import Federation
from fedkin.names import listed
from fedkin.protocol.runs import About
from fedkin.tables import Table

# The place of a site that is not in the fit.
NEW_SITE = -1


def _has_probabilities(estimator: Any) -> bool:
    return estimator.family in ("binomial", CLASSES)


def _has_errors(estimator: Any) -> bool:
    return bool(estimator.family != CLASSES)


class MixedModel(RegressorMixin, FederatedEstimator):
    """Mixed model over sites: common coefficients, and how far each site departs from them.

    Every site has coefficients of its own around common ones. How far sites differ is estimated,
    and each site's own coefficients are pulled towards the common ones exactly as far as its own
    rows leave them uncertain. A normal target takes one round, and the fit is that of all rows in
    one place, to rounding; counts take a dozen rounds.

    Parameters
    ----------
    random : {"all", "intercept"} or list of columns
        Columns whose coefficients differ between sites. "all": every column and the intercept;
        "intercept": the level only; a list (names or positions): these slopes and the intercept,
        without the intercept if "-intercept" is in the list.
    family : {"gaussian", "binomial", "multinomial", "poisson"}
        Of the target: normal; successes (0/1, or counts among `trials`), with the logit as link;
        classes with labels of any kind; counts, with the logarithm as link. With "multinomial" a
        softmax regression of each site is pulled towards the common one, as far as rows left out
        say, with one variance for all standardised features and one for intercepts.
    method : {"reml", "ml"}
        Restricted or plain maximum likelihood; for counts it is always plain.
    covariance : {"full", "diagonal", "isotropic"}
        Of the sites' departures: any; uncorrelated; or one variance for all slopes (in units of
        the columns' spread) and one for the level, for many columns.
    site_noise : {"common", "own"}
        One noise for all sites, or one for each, drawn from a common inverse gamma: for sites that
        do not measure equally well.
    share : {"statistics", "gradients"}
        What leaves a site. "statistics": sums of products of features and target, once; for counts
        values and slopes of its log likelihood in rounds, and at the end its departure.
        "gradients": values and slopes only; what a site's departure is, it keeps.
    fit_intercept : bool
        Whether there is an intercept.
    robust : bool
        Whether odd sites (wrong units, poisoned, wild) are kept from leading and widening the fit.
    trials : column or None
        Column of X (name or position) with the number of trials of each row; the target then counts
        successes. For family="binomial".
    offset : column or None
        Column of X (name or position) that is added to the linear predictor as it is.
    n_quadrature : int
        Points of the adaptive quadrature over a site's departure; 1 is Laplace's method. More need
        `random` to be one column. For counts.
    max_rounds : int
        The most rounds, where there are several.
    tol : float
        The search in rounds ends when no slope of -2 log likelihood, in standardised columns, is
        larger.
    formula : str or None
        Such as "y ~ age * sex + (age | site)": the target, the common columns, and in brackets the
        columns that differ between sites and the column with the sites' names. `fit` then takes one
        table. It decides `random` and `fit_intercept`; "||" makes departures uncorrelated.
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
        Noise within sites, a standard deviation (a typical site's, where each has its own); none
        for counts.
    site_sigma_ : array of shape (m,)
        Noise of every site.
    odd_sites_ : array
        Sites that a robust fit kept from counting.
    icc_ : float
        Share of the variance that lies between sites, for an average row; for counts on the scale
        of the link.
    loglik_ : float
        Log likelihood, restricted with `method="reml"`.
    aic_, bic_ : float
        Information criteria on that likelihood, as lme4 has them.
    difference_test_ : SiteTest or None
        Likelihood ratio test of "sites do not differ", corrected for the boundary; None where each
        site has its own noise, or with share="gradients".
    classes_ : array of shape (C,)
        Labels, with family="multinomial"; `coef_`, `site_coef_` and `effects_` then have an axis of
        classes before that of columns (effects those of standardised columns), and what rests on
        standard errors is not there.
    random_variances_ : array of shape (2,)
        Of departures of standardised features and of intercepts, with family="multinomial".
    left_out_loss_ : float
        Mean log loss of rows left out, with family="multinomial".
    singular_ : bool
        Whether some combination of departures has no variance.
    collinear_ : list of str
        Columns that depend on each other.
    implausible_sites_ : array
        Sites that sent what no rows can give.
    client_names_ : array of shape (m,)
        Names of the sites.
    n_rounds_ : int
        Rounds of communication.
    history_ : dict
        -2 log likelihood after every step of a search in rounds.
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
    _used: MixedModelSettings
    _facts: Any
    intercept_: Any
    _private = (*FederatedEstimator._private, "_facts", "_place", "_design")

    @classmethod
    def _parameters(cls) -> dict[str, Any]:
        """A formula besides the settings: it is read here, sites get columns."""
        settings = super()._parameters()
        last = {name: settings.pop(name) for name in ("random_state", "engine")}
        return {**settings, "formula": None, **last}

    def _federation(self, X, y, groups):
        self._design = None
        if self.family == CLASSES:
            X, y, classes = encoded(X, y)
            if len(classes):
                self.classes_ = classes
        if self.formula is None:
            return super()._federation(X, y, groups)
        if self.family == CLASSES:
            raise ValueError("family='multinomial' takes no formula; give X, y and groups")
        if X is None or y is not None or groups is not None:
            raise ValueError("with a formula, fit takes one table that has target and sites")
        beside = [name for name in (self.trials, self.offset) if name is not None]
        self._design, federation = design_of(self.formula, X, beside)
        self.n_features_in_ = federation.n_features
        self.feature_names_in_ = np.array(federation.feature_names, dtype=object)
        return federation

    def _settings_for(self, settings, federation):
        """Columns by position: names do not travel."""
        if self._design is not None:
            settings = _by_formula(settings, self._design)
        names = _columns_of(federation, self.engine)
        beside = {
            word: _position(word, getattr(settings, word), names) for word in ("trials", "offset")
        }
        out = [column for column in beside.values() if column is not None]
        random = settings.random
        if isinstance(random, tuple):
            random = _positions(random, names)
            random = tuple(c if isinstance(c, str) else c - sum(j < c for j in out) for c in random)
        return settings.replace(random=random, **beside)

    def _check_data(self, federation, settings):
        super()._check_data(federation, settings)
        if settings.family in COUNTS:
            check_counts(federation, settings)

    def _run_with(self, settings, federation):
        if self.family != CLASSES:
            return super()._run_with(settings, federation)
        engine = self.engine or InProcess()
        return engine.run(SOFTMAX_MIXED, settings_of(settings), federation)

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

    _adapts_by_rows = True

    def _kept_words(self):
        return {"design": None if self._design is None else kept_design(self._design)}

    def _take_words(self, words):
        kept = words["design"]
        self._design = None if kept is None else design_from(self.formula, kept)

    def _rows_and_sites(self, X, groups):
        if self._design is None or isinstance(X, np.ndarray):
            return super()._rows_and_sites(X, groups)
        rows = self._design.rows(X)
        sites = self._design.sites(X) if groups is None else None
        return rows, self._site_of_each(len(rows), groups) if sites is None else sites

    def _clients(self, X, y, groups):
        if self._design is None or isinstance(X, np.ndarray):
            return super()._clients(X, y, groups)
        target = self._design.targets(X) if y is None else np.asarray(y, dtype=np.float64)
        rows, sites = self._rows_and_sites(X, groups)
        return Federation.of_known_sites(rows, sites, target)

    # ------------------------------------------------------------ after

    def _read_classes(self, run) -> None:
        """Fitted attributes where the target is a class."""
        result = self._result = with_memories(run.result, run.memories)
        facts = self._facts = ClassesFacts(result, settings_of(self._used))
        if not hasattr(self, "classes_"):
            self.classes_ = np.arange(len(result.coef))
        self.n_features_in_ = len(result.mean)
        self.coef_, self.intercept_ = facts.in_units(result.coef)
        own = facts.in_units(result.coef + result.departures)
        self.site_coef_, self.site_intercept_ = own
        self.effects_ = result.departures
        self.random_columns_ = term_names(self._terms(), np.arange(result.coef.shape[1]))
        self.random_variances_ = result.variances[:2]
        self.left_out_loss_ = float(result.loss)
        self.implausible_sites_ = self.odd_sites_ = self.client_names_[:0]
        self.collinear_: list[str] = []
        self.converged_ = bool(result.converged)
        self.history_ = {"tried": result.tried}

    def _remember_places(self, heard) -> None:
        place = {int(k): i for i, k in enumerate(heard)}
        self._place = {name: place.get(k, NEW_SITE) for name, k in self._position.items()}

    def _read(self, run) -> None:
        if self.family == CLASSES:
            self._read_classes(run)
            self._remember_places(self._result.heard)
            return
        result = self._result = run.result.with_memories(run.memories)
        facts = self._facts = result.facts(self._used)
        d = len(result.coef) - self._used.fit_intercept
        error = np.sqrt(np.diag(result.coef_covariance))
        self.n_features_in_ = d + len(self._used.beside)
        if isinstance(self.engine, KeptReplies) and self.engine.features is not None:
            self.feature_names_in_ = np.array(self.engine.features, dtype=object)
        self.coef_, self.coef_se_, self.df_ = result.coef[:d], error[:d], facts.degrees[:d]
        self.intercept_ = float(result.coef[d:].sum())
        self.intercept_se_ = float(error[d:].sum())
        self._read_sites(result, d)
        self.random_covariance_ = result.random_covariance
        self.icc_, self.loglik_ = facts.icc, float(result.loglik)
        self.aic_, self.bic_ = facts.aic, facts.bic
        self.singular_ = facts.singular
        self.collinear_ = term_names(self._terms(), np.array(facts.collinear, dtype=int))
        self.converged_ = bool(result.gradient <= max(CONVERGED, self.tol))
        history = result.history_criterion
        self.history_ = {} if history is None else {"criterion": history}
        self._remember_places(result.heard)

    def _read_sites(self, result, d) -> None:
        """What is known of every site."""
        self.effects_ = result.effects
        self.effects_se_ = np.sqrt(np.einsum("mqq->mq", result.effects_covariance))
        self.random_columns_ = term_names(self._terms(), result.random)
        own = np.tile(result.coef, (len(self.effects_), 1))
        own[:, result.random] += self.effects_
        self.site_coef_, self.site_intercept_ = own[:, :d], own[:, d:].sum(axis=1)
        self.implausible_sites_ = self.client_names_[result.implausible]
        self.odd_sites_ = self.client_names_[result.odd]
        if result.sigma is not None:
            self.sigma_ = float(result.sigma)
            one = np.full(len(self.effects_), self.sigma_)
            self.site_sigma_ = one if result.site_sigma is None else result.site_sigma

    def _terms(self) -> list[str]:
        """Names of the columns that have coefficients."""
        return [name for j, name in enumerate(self._features()) if j not in self._used.beside]

    def _about(self) -> About:
        left = self.traffic_.bytes_up_by_field
        return About(self.client_names_, self._terms(), self._used, left)

    def _warn(self, federation: Federation | None) -> None:
        if not self.converged_ and self.family == CLASSES:
            super()._warn(federation)
        elif not self.converged_:
            self._warning(
                f"the likelihood's slope is {self._result.gradient:.2g} where the search ended "
                f"(max_rounds={self.max_rounds}); estimates may be off; allow more rounds, or look "
                "for columns of very different size",
                ConvergenceWarning,
            )
        if len(self.implausible_sites_):
            self._warning(
                f"{len(self.implausible_sites_)} of {len(self.client_names_)} sites sent numbers "
                f"that no rows can give and were left out: {listed(self.implausible_sites_)}. Look "
                "at these sites.",
                ImplausibleSitesWarning,
            )
        if len(self.odd_sites_):
            self._warning(
                f"{len(self.odd_sites_)} of {len(self.client_names_)} sites do not go with the "
                f"others and did not count: {listed(self.odd_sites_)}. Look at these sites.",
                OddSitesWarning,
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
        if self.family == CLASSES:
            return None
        return self._facts.difference

    # ------------------------------------------------------------ use

    def predict(self, X, groups=None, return_std=False, level=None):
        """Expected target of each row, with what is known of its site.

        A site of the fit, or one given to `adapt`, has its own coefficients; any other site, or
        groups=None after a fit to several sites, the common ones. With family="binomial" it is the
        probability of success, averaged over what is not known of the site.

        Parameters
        ----------
        X : rows, or a Federation
        groups : site of each row, or one site for all of them
        return_std : bool
            Also the standard deviation of a new target: noise, uncertainty of the common
            coefficients and of the site's departure (at an unknown site: the whole spread of
            departures). For counts, that of the expected target.
        level : float or None
            Also the ends of intervals that hold a new target (for counts the expected one) with
            this probability.

        Returns
        -------
        mean, or (mean, std), or (mean, intervals), or (mean, std, intervals)
            Arrays of shape (n,); intervals have shape (n, 2).
        """
        check_is_fitted(self)
        if self.family == CLASSES:
            if return_std or level is not None:
                raise ValueError("classes have no spread; predict_proba gives probabilities")
            return self.classes_[self.predict_proba(X, groups).argmax(axis=1)]
        rows = self._rows(X, groups)
        if not return_std and level is None:
            return self._facts.means(rows)
        mean, std, ends = self._facts.predict(rows, level)
        return (mean, *[std] * bool(return_std), *[ends] * (level is not None))

    @available_if(_has_probabilities)
    def predict_proba(self, X, groups=None):
        """Probabilities of `classes_`, (n, C); with family="binomial" of failure and success."""
        check_is_fitted(self)
        if self.family == CLASSES:
            rows = self._rows(X, groups)
            d = self.n_features_in_
            return self._facts.probabilities(rows.design[:, :d], rows.places)
        success = self.predict(X, groups)
        return np.stack([1.0 - success, success], axis=1)

    def _rows(self, X, groups) -> Rows:
        """Rows to predict with the places of their sites."""
        rows, sites = self._rows_and_sites(X, groups)
        used = self._used
        kept = [j for j in range(rows.shape[1]) if j not in used.beside]
        design = np.concatenate([rows[:, kept], np.ones((len(rows), int(used.fit_intercept)))], 1)
        offset = np.zeros(len(rows)) if used.offset is None else rows[:, used.offset]
        return Rows(design, self._places(sites), offset)

    def _places(self, sites: np.ndarray) -> np.ndarray:
        """The place of every row's site in the fit; -1 for a new one."""
        distinct, codes = np.unique(sites.astype(str), return_inverse=True)
        return np.array([self._place.get(name, NEW_SITE) for name in distinct])[codes]

    def adapt(self, X, y=None, groups=None):
        """Learn how far sites that were not in the fit depart; what is common stays."""
        check_is_fitted(self)
        if self.family == CLASSES:
            if isinstance(X, Federation):
                X = replace(X, y=None if X.y is None else codes_of(X.y, self.classes_))
            y = None if y is None else codes_of(y, self.classes_)
        clients = self._new_clients(X, y, groups)
        if self.family == CLASSES:
            known = self._facts.n_places
            self._facts.extend(clients)
            self._place |= {name: known + k for k, name in enumerate(clients.names)}
            return self
        if not self._used.gaussian:
            check_counts(clients, self._used)
        known = self._facts.n_places
        self._facts = self._facts.extended(clients)
        self._place |= {name: known + k for k, name in enumerate(clients.names)}
        return self

    def score(self, X, y=None, groups=None, sample_weight=None):
        """Coefficient of determination of `predict`, or the share of right classes.

        A Federation has its own y.
        """
        predicted = self.predict(X, groups)
        if self._design is not None and y is None:
            y = self._design.targets(X)
        target = self._target_to_score(X, y, groups)
        if self.family == CLASSES:
            return accuracy_score(target, predicted, sample_weight=sample_weight)
        return r2_score(target, predicted, sample_weight=sample_weight)

    @available_if(_has_errors)
    def conf_int(self, level=LEVEL) -> np.ndarray:
        """Ends of intervals of `coef_`, (d, 2), by Student's t with Satterthwaite's degrees."""
        check_is_fitted(self)
        return coefficient_intervals(self._result, self._facts, level)[: len(self.coef_)]

    @available_if(_has_errors)
    def fixed_effects(self, level=LEVEL) -> Table:
        """Common coefficients with standard error, degrees of freedom, t, p and interval."""
        check_is_fitted(self)
        return fixed_table(self._result, self._facts, self._terms(), level)

    @available_if(_has_errors)
    def variance_components(self, level=LEVEL, intervals="wald") -> Table:
        """Standard deviations and correlations of the departures, and the noise.

        `intervals` are by Wald's formula (quick) or "profile" (by the likelihood).
        """
        check_is_fitted(self)
        return variance_table(self._result, self._facts, self._about(), level, intervals)


def _by_formula(settings: MixedModelSettings, design: Design) -> MixedModelSettings:
    """Settings with what the formula says of them."""
    random: Any = design.random if design.random_level else (*design.random, WITHOUT_LEVEL)
    if not design.random:
        random = "intercept"
    covariance = "diagonal" if design.parsed.uncorrelated else settings.covariance
    return settings.replace(random=random, covariance=covariance, fit_intercept=design.intercept)


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


def _position(word: str, column: Any, names: tuple[str, ...]) -> int | None:
    """The place of the column of trials or offset."""
    if isinstance(column, str) and column not in names:
        raise ValueError(f"{word} names {column!r}; the columns are {listed(names)}")
    if isinstance(column, str):
        return names.index(column)
    if column is not None and names and not 0 <= column < len(names):
        raise ValueError(f"{word}={column}, but there are {len(names)} columns")
    return None if column is None else int(column)
