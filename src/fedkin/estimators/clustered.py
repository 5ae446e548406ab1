"""What ODCL and its rivals share: sites with a cluster each, and a linear model per cluster."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from fedkin.estimators.base import (
    FederatedEstimator,
    as_numbers,
    brings_its_own,
    check_choice,
    is_number,
    listed,
)
from fedkin.estimators.fmlr import ImplausibleSitesWarning
from fedkin.federation import Federation
from fedkin.models.local_loss import local_loss
from fedkin.names import canonical_name
from fedkin.tables import Summary, Table
from fedkin.ties import first_least

# Coefficients shown in a summary; more are for `cluster_coef_`.
SHOWN_FEATURES = 8
ASIDE_LABEL = -1
SHARED_PARAMETERS = """
    loss : "squared" or "logistic"
        Squared loss has a factor 1/2. Logistic needs two classes, the same at every site; words do,
        too, unless a Federation, which holds numbers, is fitted.
    alpha : None or float
        Strength of alpha / 2 |coef|^2 added to a site's mean loss; the intercept is left out. None
        is 0 for the squared loss and 1e-5 for the logistic one, which needs some.
    fit_intercept, random_state
    engine : an engine, None for all sites in this process.
"""


def _is_logistic(estimator: Any) -> bool:
    if estimator.loss != "logistic":
        raise AttributeError("probabilities need loss='logistic'")
    return True


class ClusteredEstimator(FederatedEstimator):
    """Common ground: fit through an algorithm, read its result, predict, adapt, sum up."""

    _private: tuple[str, ...] = (
        "_position",
        "_population",
        "_site_rows",
        "_models",
        "_adapted",
        "_message",
    )

    def __sklearn_tags__(self):
        """A regressor or a classifier, as the loss says."""
        from sklearn.utils import ClassifierTags, RegressorTags

        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        if self.loss == "logistic":
            tags.estimator_type = "classifier"
            tags.classifier_tags = ClassifierTags(multi_class=False)
        else:
            tags.estimator_type = "regressor"
            tags.regressor_tags = RegressorTags()
        return tags

    # ------------------------------------------------------------ before

    def _data(self, X: Any, y: Any, groups: Any) -> Federation | None:
        """The federation with the outcome as the loss wants it."""
        check_choice("loss", self.loss, ("squared", "logistic"))
        if self.alpha is not None and not (is_number(self.alpha) and self.alpha >= 0):
            raise ValueError(f"alpha must be None or a number of at least 0, not {self.alpha!r}")
        self._forget()
        if self.loss == "logistic" and y is not None and not isinstance(X, Federation):
            y = self._coded(y)
        federation = self._federation(X, y, groups)
        if federation is None:
            self.classes_ = np.array([0.0, 1.0])
            return None
        if federation.y is None:
            name = type(self).__name__
            raise ValueError(f"{name} needs an outcome y: requires y to be passed, but it is None")
        if self.loss == "logistic":
            codes = federation.y
            if not hasattr(self, "classes_"):
                self._learn_classes(codes)
                codes = self._codes(codes)
            federation = replace(federation, y=2.0 * codes - 1.0)
        return federation

    def _coded(self, y: Any) -> np.ndarray:
        """A target of any two values, words too, as 0 and 1; `classes_` keeps the values."""
        values = column_or_1d(y, warn=True)
        if not np.isfinite(as_numbers(values)).all():
            return as_numbers(values)  # Federation's checks name the site
        self._learn_classes(values)
        return self._codes(values)

    def _learn_classes(self, values: np.ndarray) -> None:
        check_classification_targets(values)
        classes = np.unique(values)
        if len(classes) > 2:
            raise ValueError(
                "Only binary classification is supported: logistic loss needs two classes; the "
                f"outcome has {len(classes)} values"
            )
        if len(classes) < 2:
            raise ValueError("logistic loss needs two classes; the outcome has one class only")
        self.classes_ = classes

    def _codes(self, values: np.ndarray) -> np.ndarray:
        """0 and 1 for the two classes of the fit, NaN for none; any other value is refused."""
        numbers = as_numbers(values)
        if not np.isfinite(numbers).all():
            return numbers  # Federation's checks name the site
        known = np.isin(values, self.classes_)
        if not known.all():
            raise ValueError(
                f"the outcome has the value {values[~known].tolist()[0]!r}; the classes of the fit "
                f"are {self.classes_.tolist()}"
            )
        return (values == self.classes_[1]).astype(np.float64)

    def _in_roster_order(self, labels: Any, federation: Federation | None, name: str) -> Any:
        """Given labels as codes over the sites in the order of `client_names_`.

        Given by name and with the data elsewhere, they stay so: the server program has the roster.
        """
        if isinstance(labels, Mapping):
            codes = np.unique(list(labels.values()), return_inverse=True)[1].tolist()
            given = {canonical_name(site): code for site, code in zip(labels, codes)}
            if federation is None:
                return given
            missing = [site for site in federation.names if site not in given]
            if missing:
                raise ValueError(f"{name} lacks site {missing[0]!r}")
            labels = [given[site] for site in federation.names]
        codes = np.unique(np.asarray(labels), return_inverse=True)[1].reshape(-1)
        if federation is not None and len(codes) != federation.n_clients:
            raise ValueError(
                f"{name} has {len(codes)} entries; there are {federation.n_clients} sites"
            )
        return codes

    # ------------------------------------------------------------ after

    def _read(self, result: Mapping[str, np.ndarray]) -> None:
        """Fitted attributes from the program's named arrays."""
        models = result["cluster_models"]
        self.labels_ = result["labels"].astype(np.intp)
        self.n_clusters_ = len(models)
        self.cluster_coef_, self.cluster_intercept_ = self._split(models)
        self.n_features_in_ = self.cluster_coef_.shape[1]
        counts = np.bincount(self.labels_[self.labels_ >= 0], minlength=len(models))
        self._population = np.average(models, axis=0, weights=counts) if counts.any() else models[0]
        heard = result["heard"]
        personal = np.where(heard[:, None], result["models"], self._population)
        self.coef_, self.intercept_ = self._split(personal)
        if "local_models" in result:
            self.local_coef_, self.local_intercept_ = self._split(result["local_models"])
        self.odd_sites_ = self.client_names_[result["aside"]]
        implausible = result.get("implausible", np.zeros(len(heard), dtype=bool))
        self.implausible_sites_ = self.client_names_[implausible]
        if len(self.implausible_sites_):
            named = ", ".join(repr(name) for name in self.implausible_sites_[:10])
            warnings.warn(
                f"left out, because no rows can give the numbers they sent: {named}; look at "
                "these sites",
                ImplausibleSitesWarning,
                stacklevel=3,
            )
        self.converged_ = bool(result.get("converged", True))
        self.history_ = {"changes": result["history_changes"]}
        self.n_iter_ = max(1, len(result["history_changes"]))
        self._site_rows = result["site_rows"]
        self._models = models
        self._adapted: dict[str, int] = {}
        self.choice_ = None
        if "choice_curve" in result:
            columns = {"n_clusters": result["choice_candidates"], "curve": result["choice_curve"]}
            self.choice_ = Table(columns, f"Number of clusters ({result['choice_method']})")
            self.choice_method_ = str(result["choice_method"])
        self.penalty_ = float(result["penalty"]) if "penalty" in result else None
        self.path_ = None
        if "path_penalties" in result:
            self.path_ = {
                name.removeprefix("path_"): result[name]
                for name in result
                if name.startswith("path_")
            }

    def _split(self, models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercepts."""
        if self.fit_intercept:
            return models[:, :-1], models[:, -1]
        return models, np.zeros(len(models))

    # ------------------------------------------------------------ use

    def _scores(self, X: Any, groups: Any) -> np.ndarray:
        check_is_fitted(self)
        rows, sites = self._rows_and_sites(X, groups)
        distinct, codes = np.unique(sites, return_inverse=True)
        models = np.array([self._model(name) for name in distinct])
        coef, intercept = self._split(models)
        return np.einsum("nd,nd->n", rows, coef[codes]) + intercept[codes]

    def _model(self, name: str) -> np.ndarray:
        if name in self._adapted:
            return self._models[self._adapted[name]]
        known = self._position.get(name)
        if known is None:
            return self._population
        own = self.coef_[known]
        return np.append(own, self.intercept_[known]) if self.fit_intercept else own

    def predict(self, X, groups=None):
        """Outcome, or class, of each row by the model of its site.

        A site of the fit has its cluster's model, or its own if it was set aside; a site given to
        `adapt` the cluster that fits it best; any other site the mean over all clustered sites.
        """
        scores = self._scores(X, groups)
        return self.classes_[(scores > 0).astype(int)] if self.loss == "logistic" else scores

    @available_if(_is_logistic)
    def decision_function(self, X, groups=None):
        """Log odds of the second class, (n,)."""
        return self._scores(X, groups)

    @available_if(_is_logistic)
    def predict_proba(self, X, groups=None):
        """Probabilities of both classes, (n, 2)."""
        from scipy.special import expit

        scores = self._scores(X, groups)
        return np.stack([expit(-scores), expit(scores)], axis=1)

    def adapt(self, X, y=None, groups=None):
        """Assign sites not in the fit to the cluster whose model has the least loss on their rows.

        `groups` names the site of each row, or one site for all of them. A site of the fit keeps
        its cluster, and may be given here only if it has none: not heard, or set aside.
        What is shared stays as it is. `adapted_` says which site went where.
        """
        check_is_fitted(self)
        if isinstance(X, Federation):
            brings_its_own(y, groups)
            clients = self._with_columns_of_the_fit(X)
        elif groups is None:
            raise ValueError("adapt needs the name of the site: adapt(X, y, groups='new-site')")
        else:
            rows, sites = self._rows_and_sites(X, groups)
            if self.loss == "logistic" and y is not None:
                y = self._codes(column_or_1d(y))
            clients = Federation.from_groups(rows, sites, y)
        if clients.y is None:
            raise ValueError("adapt needs the outcome y of the new sites' rows")
        for name in clients.names:
            known = self._position.get(name)
            if known is not None and self.labels_[known] >= 0:
                raise ValueError(
                    f"site {name!r} was in the fit and has cluster {self.labels_[known]}; adapt is "
                    "for new sites: give it another name, or fit again with these rows"
                )
        if self.loss == "logistic" and isinstance(X, Federation):
            clients = replace(clients, y=self._codes(clients.y))
        local = local_loss(clients, self.loss, self.fit_intercept, self.alpha)
        choice = first_least(local.losses(self._models), axis=1)
        self._adapted.update(zip(clients.names, map(int, choice)))
        return self

    @property
    def adapted_(self) -> dict[str, int]:
        """The clusters of the sites that were given to `adapt`."""
        return dict(self._adapted)

    def score(self, X, y=None, groups=None, sample_weight=None):
        """Coefficient of determination, or accuracy, of `predict`; a Federation has its own y."""
        measure = accuracy_score if self.loss == "logistic" else r2_score
        predicted = self.predict(X, groups)
        outcome = self._outcome_to_score(X, y, groups)
        return measure(outcome, predicted, sample_weight=sample_weight)

    # ------------------------------------------------------------ in words

    def summary(self) -> Summary:
        """Clusters, sites and account as tables; prints as text, shows as HTML."""
        check_is_fitted(self)
        named = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        counts = np.bincount(self.labels_[self.labels_ >= 0], minlength=self.n_clusters_)
        clusters: dict[str, Any] = {"cluster": np.arange(self.n_clusters_), "sites": counts}
        if self.fit_intercept:
            clusters["intercept"] = self.cluster_intercept_
        shown = list(named)[:SHOWN_FEATURES]
        clusters |= {str(name): self.cluster_coef_[:, j] for j, name in enumerate(shown)}
        sites: dict[str, Any] = {"site": self.client_names_, "cluster": self.labels_}
        if np.isfinite(self._site_rows).any():
            sites["rows"] = self._site_rows
        if hasattr(self, "local_coef_"):
            sites["distance to cluster"] = np.linalg.norm(self.local_coef_ - self.coef_, axis=1)
        sites["set aside"] = np.isin(self.client_names_, self.odd_sites_)
        tables = {"clusters": Table(clusters, "Clusters"), "sites": Table(sites, "Sites")}
        if self.choice_ is not None:
            tables["choice"] = self.choice_
        tables["traffic"] = self._traffic_table()
        title = (
            f"{type(self).__name__}: {len(self.client_names_)} sites, {self.n_clusters_} clusters, "
            f"{self.loss} loss"
        )
        return Summary(title, tables, self._notes())

    def _notes(self) -> list[str]:
        notes = [self._travelled(), *self._account()]
        if self.n_features_in_ > SHOWN_FEATURES:
            notes.append(f"{self.n_features_in_ - SHOWN_FEATURES} more coefficients: cluster_coef_")
        if len(self.odd_sites_):
            odd = listed(self.odd_sites_)
            notes.append(f"Set aside, far from every neighbour, with their own model: {odd}.")
        return notes

    def _account(self) -> list[str]:
        """What left a site, in words."""
        return []
