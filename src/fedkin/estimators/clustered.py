"""What ODCL and its rivals share: sites with a cluster each, and a linear model per cluster."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from fedkin.algorithms.clustered_result import NO_CLUSTER, NO_NOISE, ClusteredResult
from fedkin.estimators.base import FederatedEstimator, as_numbers
from fedkin.estimators.fmlr import ImplausibleSitesWarning
from fedkin.federation import Federation
from fedkin.models.estimates import LEVEL, checked_level
from fedkin.models.kinds_prediction import LEAST_DEGREES, Mixture
from fedkin.models.local_loss import LocalLoss, SquaredLoss, local_loss
from fedkin.names import listed
from fedkin.tables import Table
from fedkin.ties import first_least

# Parts of the estimators' docstrings that all have in common, by the mark they stand for.
SHARED_WORDS = {
    "[shared parameters]": """
loss : {"squared", "logistic"}
    Squared loss has a factor 1/2. Logistic needs two classes, the same at every site; words do,
    too, unless a Federation, which holds numbers, is fitted.
alpha : float, "auto" or None
    Strength of ``alpha / 2 |coef|^2`` added to a site's mean loss; the intercept is left out. None
    is 0 for the squared loss and 1e-5 for the logistic one, which needs some. "auto" finds it for
    each site, with columns in units of their standard deviation there: by the squared error to be
    expected at further rows (S_p of Breiman and Freedman; where sites stay alone in `ODCL`, one
    for all by generalised cross-validation), or (logistic) by approximate leave-one-out.
""",
    "[average]": """
aggregate : {"auto", "mean", "size", "precision", "median"}
    How sites' models are averaged: "auto" and "precision" weigh them by what they know, the inverse
    of their models' sampling covariance; "size" by rows; "mean" is the paper's plain mean, in which
    a site of two rows has as much say as one of 600; "median" is the geometric median.
""",
    "[true labels]": """
true_labels : sequence or mapping
    A cluster per site, in the order of `client_names_` or by the site's name.
""",
    "[attributes]": """
Attributes
----------
labels_ : array of shape (m,)
    The cluster of each site; -1 for one that was not heard or was set aside.
n_clusters_ : int
    Number of clusters K.
cluster_coef_ : array of shape (K, d)
    Coefficients of each cluster's model.
cluster_intercept_ : array of shape (K,)
    Intercepts of the clusters' models.
cluster_coef_se_ : array of shape (K, d)
    Standard errors of these coefficients, where they are known: over the sites of a cluster, given
    who is in it; by the model in clusters of fewer than five sites. A penalty's pull is not in
    them.
cluster_intercept_se_ : array of shape (K,)
    Standard errors of the intercepts.
df_ : array of shape (K,)
    Degrees of freedom of these errors.
coef_ : array of shape (m, d)
    Coefficients of the model that each site uses: its cluster's; its own if it was set aside; the
    average over all sites that have a cluster if it was not heard.
intercept_ : array of shape (m,)
    Intercepts of these models.
local_coef_ : array of shape (m, d)
    Coefficients of the sites' own fits, where the server got to know them.
local_intercept_ : array of shape (m,)
    Intercepts of the sites' own fits, where the server got to know them.
odd_sites_ : array
    Sites that were set aside.
joined_sites_ : array
    Sites with too few rows for a model of their own, which joined the cluster whose model makes
    their rows likeliest (where every site stays alone, they have the average over all).
implausible_sites_ : array
    Sites that sent what no rows can give.
choice_ : Table or None
    By number of clusters: the curve by which it was chosen, the error to be expected at further
    rows (in noise variances), BIC; and BIC of one common model and of a mixed model.
choice_method_ : str
    The rule that chose it; there if `choice_` is.
path_ : dict or None
    The convex path: penalties, labels, n_clusters, recovered, linkage.
penalty_ : float or None
    The penalty of convex clustering.
classes_ : array of shape (2,)
    The classes (logistic loss only).
adapted_ : dict
    Clusters of the sites that were given to `adapt`; -1 for one that got a model of its own.
n_features_in_ : int
    Number of columns d.
converged_ : bool
    Whether nothing moved any more.
n_iter_ : int
    Rounds in which models moved, at least 1.
history_ : dict
    "changes": by round, how many labels changed (ODCL), or how far models moved (IFCA).
""",
    "[sites of two kinds]": """
>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> groups = np.repeat(["a", "b", "c", "d", "e", "f"], 30)
>>> X = rng.normal(size=(180, 2))
>>> slopes = np.where(np.arange(180)[:, None] < 90, [1.0, 2.0], [-1.0, 0.0])
>>> y = (X * slopes).sum(axis=1) + 0.1 * rng.normal(size=180)
""",
}


def _is_logistic(estimator: Any) -> bool:
    if estimator.loss != "logistic":
        raise AttributeError("probabilities need loss='logistic'")
    return True


class ClusteredEstimator(FederatedEstimator):
    """Common ground: classes as codes, the fitted clusters, predict, adapt."""

    _result: ClusteredResult

    def __init_subclass__(cls, **options: Any) -> None:
        text = inspect.cleandoc(cls.__doc__ or "")
        for mark, words in SHARED_WORDS.items():
            text = text.replace(mark, words.strip())
        cls.__doc__ = text
        super().__init_subclass__(**options)

    def __sklearn_tags__(self):
        """A regressor or a classifier, as the loss says."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        if self.loss == "logistic":
            tags.estimator_type = "classifier"
            tags.classifier_tags = ClassifierTags(multi_class=False)
        else:
            tags.estimator_type = "regressor"
            tags.regressor_tags = RegressorTags()
        return tags

    # ------------------------------------------------------------ classes

    def _federation(self, X: Any, y: Any, groups: Any) -> Federation | None:
        """The data of a fit, with the target as the loss wants it: -1 and 1 if logistic."""
        if self.loss != "logistic":
            return super()._federation(X, y, groups)
        if X is None:
            self.classes_ = np.array([0.0, 1.0])
        beside = y is not None and not isinstance(X, Federation)
        coded = self._learnt_codes(column_or_1d(y, warn=True)) if beside else y
        federation = super()._federation(X, coded, groups)
        if federation is None or federation.y is None:
            return federation
        codes = federation.y if beside else self._learnt_codes(federation.y)
        return replace(federation, y=2.0 * codes - 1.0)

    def _learnt_codes(self, values: np.ndarray) -> np.ndarray:
        """A target of any two values, words too, as 0 and 1; `classes_` keeps the values."""
        if np.isfinite(as_numbers(values)).all():
            try:
                check_classification_targets(values)
            except ValueError as error:  # in words that scikit-learn's own checks look for
                raise ValueError(f"{error} For numbers take loss='squared'.") from None
            self.classes_ = np.unique(values)
            if len(self.classes_) > 2:
                raise ValueError(
                    "Only binary classification is supported: logistic loss needs two classes; "
                    f"the target has {len(self.classes_)} values"
                )
            if len(self.classes_) < 2:
                raise ValueError("logistic loss needs two classes; the target has one class only")
        return self._codes(values)

    def _codes(self, values: np.ndarray) -> np.ndarray:
        """0 and 1 for the two classes of the fit, NaN for none; any other value is refused."""
        numbers = as_numbers(values)
        if not np.isfinite(numbers).all():
            return numbers  # Federation's checks name the site
        known = np.isin(values, self.classes_)
        if not known.all():
            raise ValueError(
                f"the target has the value {values[~known].tolist()[0]!r}; the classes of the fit "
                f"are {self.classes_.tolist()}"
            )
        return (values == self.classes_[1]).astype(np.float64)

    # ------------------------------------------------------------ after

    def _read(self, run) -> None:
        result = run.result
        self.labels_ = result.labels.astype(np.intp)
        self.n_clusters_ = result.n_clusters
        self.cluster_coef_, self.cluster_intercept_ = self._split(result.cluster_models)
        self.n_features_in_ = self.cluster_coef_.shape[1]
        self.coef_, self.intercept_ = self._split(result.usable_models)
        if result.cluster_errors is not None:
            self.cluster_coef_se_, self.cluster_intercept_se_ = self._split(result.cluster_errors)
            self.df_ = result.cluster_degrees
        if result.local_models is not None:
            self.local_coef_, self.local_intercept_ = self._split(result.local_models)
        self.odd_sites_ = self.client_names_[result.flagged(result.aside)]
        self.joined_sites_ = self.client_names_[result.flagged(result.joined)]
        self.implausible_sites_ = self.client_names_[result.flagged(result.implausible)]
        self.converged_ = bool(result.converged)
        self.history_ = {"changes": result.history_changes}
        self.n_iter_ = max(1, len(result.history_changes))
        self.choice_ = result.choice()
        if self.choice_ is not None:
            self.choice_method_ = str(result.choice_method)
        self.penalty_ = None if result.penalty is None else float(result.penalty)
        self.path_ = result.path()

    def _split(self, models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercepts."""
        if self.fit_intercept:
            return models[:, :-1], models[:, -1]
        return models, np.zeros(len(models))

    def _warn(self, federation: Federation | None) -> None:
        super()._warn(federation)
        if len(self.implausible_sites_):
            self._warning(
                "left out, because no rows can give the numbers they sent: "
                f"{listed(self.implausible_sites_)}; look at these sites",
                ImplausibleSitesWarning,
            )

    # ------------------------------------------------------------ use

    def _scores(self, X: Any, groups: Any) -> np.ndarray:
        check_is_fitted(self)
        rows, sites = self._rows_and_sites(X, groups)
        distinct, codes = np.unique(sites, return_inverse=True)
        coef, intercept = self._split(np.array([self._model(name) for name in distinct]))
        return np.einsum("nd,nd->n", rows, coef[codes]) + intercept[codes]

    def _model(self, name: str) -> np.ndarray:
        if name in self._adapted:
            return self._adapted[name][1]
        known = self._position.get(name)
        return self._result.population if known is None else self._result.usable_models[known]

    def predict(self, X, groups=None, return_std=False, level=None):
        """Target, or class, of each row by the model of its site.

        A site of the fit has its cluster's model, or its own if it was set aside; a site given to
        `adapt` what it got there; any other site the average over all clustered sites.

        Parameters
        ----------
        X : rows, or a Federation
        groups : site of each row, or one site for all of them
        return_std : bool
            Also the standard deviation of a new target: noise and what is not known of the model;
            at a site of which nothing is known, also which cluster it is of. Squared loss only.
        level : float or None
            Also the ends of intervals that hold a new target with this probability.

        Returns
        -------
        mean, or (mean, std), or (mean, intervals), or (mean, std, intervals)
            Arrays of shape (n,); intervals have shape (n, 2).
        """
        if not return_std and level is None:
            scores = self._scores(X, groups)
            return self.classes_[(scores > 0).astype(int)] if self.loss == "logistic" else scores
        if self.loss == "logistic":
            raise ValueError("classes have no spread; predict_proba gives probabilities")
        level = None if level is None else checked_level(level)
        mean = self._scores(X, groups)
        std, ends = np.empty(len(mean)), np.empty((len(mean), 2))
        for found, where in self._new_targets(X, groups):
            # Of a site of which nothing is known the mean is the average, not the mixture's.
            std[where] = np.sqrt(found.std() ** 2 + (found.mean() - mean[where]) ** 2)
            if level is not None:
                ends[where] = found.intervals(level)
        return (mean, *[std] * bool(return_std), *[ends] * (level is not None))

    def _new_targets(self, X: Any, groups: Any) -> Iterator[tuple[Mixture, np.ndarray]]:
        """Distributions of new targets site by site, with the places of their rows."""
        rows, sites = self._rows_and_sites(X, groups)
        design = np.concatenate([rows, np.ones((len(rows), int(self.fit_intercept)))], axis=1)
        distinct, codes = np.unique(sites.astype(str), return_inverse=True)
        for k, name in enumerate(distinct):
            where = np.flatnonzero(codes == k)
            yield self._around(str(name), design[where]), where

    def _around(self, name: str, design: np.ndarray) -> Mixture:
        """New targets of a site's rows: around its model, or around any cluster's."""
        result, known = self._result, self._position.get(name)
        label = NO_CLUSTER if known is None else int(result.labels[known])
        if name in self._adapted:
            label, model, *of_noise = self._adapted[name]
            if int(label) < 0:
                return self._around_own(design, model, *of_noise)
        elif known is not None and result.flagged(result.aside)[known]:
            noise = np.nan if result.site_noise is None else result.site_noise[known]
            return self._around_own(design, result.models[known], noise, result.site_rows[known])
        some, shares = [int(label)], np.ones(1)
        if int(label) < 0:
            some = list(np.flatnonzero(result.counts)) or [0]
            shares = np.maximum(result.counts[some], 1) / np.maximum(result.counts[some], 1).sum()
        parts = [np.stack(part, axis=1) for part in zip(*(result.around(design, k) for k in some))]
        return Mixture(np.tile(shares, (len(design), 1)), *parts)

    def _around_own(
        self, design: np.ndarray, model: np.ndarray, noise: float = np.nan, rows: float = 0.0
    ) -> Mixture:
        """New targets around a model of a site's own, with its error at the average row."""
        if self._result.cluster_noise is None:
            raise ValueError(NO_NOISE)
        d = len(model)
        typical = noise if np.isfinite(noise) else float(np.median(self._result.cluster_noise))
        scale = typical * (1.0 + d / max(float(rows), d))
        whole = np.ones((len(design), 1))
        spare = max(float(rows) - d, LEAST_DEGREES)
        return Mixture(whole, (design @ model)[:, None], scale * whole, spare * whole)

    @property
    def _tells_spread(self) -> bool:
        """Whether `predict` has standard deviations to tell."""
        return self.loss != "logistic" and self._result.tells_noise

    def conf_int(self, level=LEVEL) -> np.ndarray:
        """Ends of intervals of `cluster_coef_`, (K, d, 2), given who is in which cluster."""
        check_is_fitted(self)
        return self._result.estimates.intervals(level)[:, : self.n_features_in_]

    def estimates(self, level=LEVEL) -> Table:
        """Coefficients of all clusters with standard error, df, t, p and interval."""
        check_is_fitted(self)
        return self._result.estimates_table(self._about(), level)

    @available_if(_is_logistic)
    def decision_function(self, X, groups=None):
        """Log odds of the second class, (n,)."""
        return self._scores(X, groups)

    @available_if(_is_logistic)
    def predict_proba(self, X, groups=None):
        """Probabilities of both classes, (n, 2)."""
        scores = self._scores(X, groups)
        return np.stack([expit(-scores), expit(scores)], axis=1)

    def adapt(self, X, y=None, groups=None):
        """Assign sites not in the fit to the cluster whose model has the least loss on their rows.

        `groups` names the site of each row, or one site for all of them. A site of the fit keeps
        its cluster, and may be given here only if it has none: not heard, or set aside. Where no
        two sites share a cluster, a new site gets a model of its own, too, fitted to these rows.
        What is shared stays as it is. `adapted_` says which site went where.
        """
        check_is_fitted(self)
        logistic = self.loss == "logistic"
        if logistic and y is not None and not isinstance(X, Federation):
            y = self._codes(column_or_1d(y))
        clients = self._new_clients(X, y, groups)
        for name in clients.names:
            known = self._position.get(name)
            if known is not None and self.labels_[known] >= 0:
                raise ValueError(
                    f"site {name!r} was in the fit and has cluster {self.labels_[known]}; adapt is "
                    "for new sites: give it another name, or fit again with these rows"
                )
        if logistic and isinstance(X, Federation):
            clients = replace(clients, y=self._codes(clients.y))
        local = local_loss(clients, self.loss, self.fit_intercept, self.alpha)
        labels, models = self._for_new_sites(local)
        noise = np.full(len(models), np.nan)
        if isinstance(local, SquaredLoss):
            noise = local.residual_variances(models)
        learnt = zip(labels.tolist(), models, noise.tolist(), local.sizes.tolist())
        self._adapted.update(zip(clients.names, learnt))
        return self

    def _for_new_sites(self, local: LocalLoss) -> tuple[np.ndarray, np.ndarray]:
        """Cluster (k,) and model (k, d) of new sites; NO_CLUSTER with a model of its own."""
        shared = self._result.cluster_models
        labels = first_least(local.losses(shared), axis=1)
        return labels, shared[labels]

    @property
    def adapted_(self) -> dict[str, int]:
        """The clusters of the sites that were given to `adapt`; -1 where it has its own model."""
        return {name: int(label) for name, (label, *_) in self._adapted.items()}

    def score(self, X, y=None, groups=None, sample_weight=None):
        """Coefficient of determination, or accuracy, of `predict`; a Federation has its own y."""
        measure = accuracy_score if self.loss == "logistic" else r2_score
        predicted = self.predict(X, groups)
        target = self._target_to_score(X, y, groups)
        return measure(target, predicted, sample_weight=sample_weight)
