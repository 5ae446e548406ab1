"""The mixed model as a scikit-learn estimator: sites differ by degrees."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from fedkin.algorithms.mixed_model import MIXED_MODEL
from fedkin.algorithms.mixed_model_data import check_counts, not_whole
from fedkin.algorithms.mixed_model_settings import CLASSES, COUNTS
from fedkin.algorithms.softmax_mixed import SOFTMAX_MIXED
from fedkin.engines import InProcess
from fedkin.engines.kept import KeptReplies
from fedkin.estimators.base import FederatedEstimator
from fedkin.estimators.formulas import design_from, design_of, kept_design
from fedkin.estimators.mixed_classes import encoded, settings_of
from fedkin.estimators.mixed_columns import by_formula, columns_of, position, positions
from fedkin.estimators.mixed_read import ReadMixedModel
from fedkin.federation import Federation


class MixedModel(ReadMixedModel):
    """Mixed model over sites: common coefficients, and how far each site departs from them.

    Every site has coefficients of its own around common ones. How far sites differ is estimated,
    and each site's own coefficients are pulled towards the common ones exactly as far as its own
    rows leave them uncertain. A normal target takes one round, and the fit is that of all rows in
    one place, to rounding; counts take a dozen rounds.

    Parameters
    ----------
    random : {"all", "intercept"} or list of columns
        Columns whose coefficients differ between sites. "all": every column and the intercept (for
        counts with fewer than two rows a departure at a site only the intercept, unless
        `covariance` is named); "intercept": the level only; a list (names or positions): these
        slopes and the intercept, without the intercept if "-intercept" is in the list.
    family : {"gaussian", "binomial", "multinomial", "poisson"}
        Of the target: normal; successes (0/1, or counts among `trials`), with the logit as link;
        classes with labels of any kind; counts, with the logarithm as link. With "multinomial" a
        softmax regression of each site is pulled towards the common one, as far as rows left out
        say, with variances of every class.
    method : {"reml", "ml"}
        Restricted or plain maximum likelihood; for counts it is always plain.
    covariance : {"auto", "full", "diagonal", "isotropic"}
        Of the sites' departures. "full": any. "diagonal": uncorrelated. "isotropic": one variance
        for all slopes (in units of the columns' spread) and one for the level, for many columns.
        "auto": "full" where there are at least as many sites as numbers in it, and rows beyond
        those that the departures take (or ten sites a number), and for counts five rows a
        departure at a site; else "isotropic". Classes have no correlations: "isotropic" ("auto",
        "full") is one variance for every class and block of columns, the standardised features and
        the intercept; "diagonal" is one for every class and column.
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
        Whether odd sites (wrong units, poisoned, wild) are kept from leading and widening the fit,
        also where 30 % of them lie (study `liars`).
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
        Likelihood ratio test of "sites do not differ" (where each has its own noise: in nothing
        else), corrected for the boundary; its p-value is a bound where `exact` is false. None for
        classes, and where other sites were heard without effects than at the end.
    classes_ : array of shape (C,)
        Labels, with family="multinomial"; `coef_`, `site_coef_` and `effects_` then have an axis of
        classes before that of columns (effects those of standardised columns), and what rests on
        standard errors is not there.
    random_variances_ : array of shape (C, 2) or (C, d + 1)
        Variances of departures, of standardised columns, with family="multinomial": of every class
        for features and for the intercept; with covariance="diagonal" for every column. Means over
        the sets of variances whose models are averaged.
    left_out_loss_ : float
        Mean log loss of rows left out by the best set of variances, with family="multinomial".
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
    _takes_weights = True
    _fixed: ClassVar = {"weighted": False}
    _private = (*FederatedEstimator._private, "_facts", "_place", "_design")

    @classmethod
    def _parameters(cls) -> dict[str, Any]:
        """A formula besides the settings: it is read here, sites get columns."""
        settings = super()._parameters()
        last = {name: settings.pop(name) for name in ("random_state", "engine")}
        return {**settings, "formula": None, **last}

    def fit(self, X=None, y=None, groups=None, sample_weight=None):
        """Fit to one table with sites named in `groups`, a Federation, or the engine's sites.

        Parameters
        ----------
        X : rows, a table (with a formula), or a Federation
        y : target of each row; not with a Federation or a formula
        groups : site of each row; not with a Federation or a formula
        sample_weight : weight of each row, one for all, or None
            A row of weight w has noise of variance sigma^2 / w, as lme4's `weights`; with counts
            and classes it counts as w equal rows. Rows of weight zero are left out. A Federation
            brings its own (`Federation.with_weights`).
        """
        return self._fit_to(X, y, groups, sample_weight)

    def _federation(self, X, y, groups):
        self._design = None
        if self.family == CLASSES:
            X, y, classes = encoded(X, y, groups)
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
            settings = by_formula(settings, self._design)
        names = columns_of(federation, self.engine)
        beside = {
            word: position(word, getattr(settings, word), names) for word in ("trials", "offset")
        }
        out = [column for column in beside.values() if column is not None]
        random = settings.random
        if isinstance(random, tuple):
            random = positions(random, names)
            random = tuple(c if isinstance(c, str) else c - sum(j < c for j in out) for c in random)
        weighted = self._weighted(federation)
        return settings.replace(random=random, weighted=weighted, **beside)

    def _check_data(self, federation, settings):
        super()._check_data(federation, settings)
        if settings.family in COUNTS:
            check_counts(federation, settings)
            self._warn_of(not_whole(federation, settings))

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
