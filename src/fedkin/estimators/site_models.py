"""Nobody joins, and everybody is one: the two ways that every joining is compared with.

Plain models with an honest spread, as a careful person fits them without any federation: ridge
regression averaged over the strength of the ridge, and softmax regression with a ridge chosen by
rows left out. Each either at every site by itself or once for all rows.

Whoever stays alone knows one thing that the own rows may not tell: how far such targets lie apart
at a site (`spread_within`). Two equal targets would else be taken for targets without noise, and
what joining gains over that would say nothing of joining.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics
from fedkin.models.ridge_evidence import fit_ridges, spread_within

# Strengths C of softmax regression that are tried, and the most folds by which one is chosen.
STRENGTHS = (0.01, 0.1, 1.0, 10.0)
CHOICE_FOLDS = 3


class PlainRegression(BaseEstimator):
    """Linear regression by ridges averaged over their strength, alone or one for all sites.

    Parameters
    ----------
    pooled : bool
        Whether all rows give one model; else every site has its own.
    fit_intercept : bool
        Whether models have an intercept.
    """

    def __init__(self, pooled=False, *, fit_intercept=True):
        self.pooled = pooled
        self.fit_intercept = fit_intercept

    def fit(self, federation: Federation):
        """Fit a federation; only sums of products of its rows are used."""
        statistics = packed_statistics(federation, self.fit_intercept).T
        if self.pooled:
            statistics = statistics.sum(axis=0, keepdims=True)
        return self._from_sums(statistics, federation.names)

    def _from_sums(self, statistics: np.ndarray, names: Any, spread: float | None = None):
        if spread is None:
            spread = 0.0 if self.pooled else spread_within(statistics, self.fit_intercept)
        self._statistics, self._spread = statistics, spread
        self._fits = fit_ridges(statistics, self.fit_intercept, spread)
        self._places = {name: k for k, name in enumerate(names)}
        return self

    def shared_part(self) -> Any:
        """Sums of all rows, if one model serves all; else the sites' names and targets' spread."""
        return self._statistics if self.pooled else [list(self._places), self._spread]

    def site_parts(self) -> dict[str, dict[str, np.ndarray]]:
        """Sums of every site's rows, by site, where each has its own model."""
        if self.pooled:
            return {}
        return {name: {"sums": self._statistics[k]} for name, k in self._places.items()}

    def restored(self, shared: Any, own: Any):
        """The fit again from `shared_part` and `site_parts`, of those sites that are here."""
        if self.pooled:
            return self._from_sums(np.asarray(shared), ())
        # Before sites knew a spread, their names were all that was kept.
        names, spread = shared if isinstance(shared[0], list) else (shared, 0.0)
        # The sums of a site that is not here are stand-ins: it is not asked.
        known = [name for name in names if name in own]
        if not known:
            self._places = {}
            return self
        sums = [own.get(name, own[known[0]])["sums"] for name in names]
        self._from_sums(np.stack(sums), names, spread)
        self._places = {name: k for name, k in self._places.items() if name in own}
        return self

    def predict(self, clients: Federation, return_std: bool = False) -> Any:
        """Expected target of every row; with its standard deviation if asked for.

        Where few rows leave none, that of the normal law with the same 95 % interval.
        """
        mean, std = self._fits.predict(clients.X, self._owner(clients))
        return (mean, std) if return_std else mean

    def log_predictive_density(self, clients: Federation) -> np.ndarray:
        """Log density of every target."""
        return self._fits.log_density(clients.X, np.asarray(clients.y), self._owner(clients))

    def _owner(self, clients: Federation) -> np.ndarray:
        if self.pooled:
            return np.zeros(len(clients.X), dtype=np.intp)
        places = np.array([self._places[name] for name in clients.names], dtype=np.intp)
        return places[clients.owner]


class PlainClasses(BaseEstimator):
    """Softmax regression with a chosen ridge, alone or one for all sites.

    Parameters
    ----------
    pooled : bool
        Whether all rows give one model; else every site has its own.
    """

    def __init__(self, pooled=False):
        self.pooled = pooled

    def fit(self, federation: Federation):
        """Fit a federation whose targets are classes."""
        self.classes_ = np.unique(np.asarray(federation.y))
        parts = federation.pooled() if self.pooled else federation
        rows = [parts.client(k) for k in range(parts.n_clients)]
        self._models = dict(zip(parts.names, (_chosen(X, np.asarray(y)) for X, y in rows)))
        # A class that a site has not seen may still come: as likely as one more row says.
        self._unseen = dict(zip(parts.names, 1.0 / (parts.sizes + 1.0)))
        return self

    def shared_part(self) -> Any:
        """The classes, and the model if one serves all."""
        return [self.classes_, self._kept() if self.pooled else {}]

    def site_parts(self) -> dict[str, dict[str, np.ndarray]]:
        """Every site's model in numbers, by site, where each has its own."""
        return {} if self.pooled else self._kept()

    def _kept(self) -> dict[str, dict[str, np.ndarray]]:
        return {
            name: {**_numbers_of(model), "unseen": np.array(self._unseen[name])}
            for name, model in self._models.items()
        }

    def restored(self, shared: Any, own: Any):
        """The fit again from `shared_part` and `site_parts`, of those sites that are here."""
        self.classes_, kept = shared[0], shared[1] if self.pooled else own
        self._models = {name: _from_numbers(arrays) for name, arrays in kept.items()}
        self._unseen = {name: float(arrays["unseen"]) for name, arrays in kept.items()}
        return self

    def predict_proba(self, clients: Federation) -> np.ndarray:
        """Probability of every class, (n, C)."""
        whole = clients.pooled() if self.pooled else clients
        found = np.zeros((len(clients.X), len(self.classes_)))
        for k, name in enumerate(whole.names):
            rows, model = whole.client(k)[0], self._models[name]
            if len(rows):
                place = np.searchsorted(self.classes_, model.classes_)
                block = np.zeros((len(rows), len(self.classes_)))
                block[:, place] = model.predict_proba(rows)
                share = self._unseen[name]
                block = (1.0 - share) * block + share / len(self.classes_)
                found[whole.offsets[k] : whole.offsets[k + 1]] = block
        return found

    def predict(self, clients: Federation) -> np.ndarray:
        """The likeliest class of every row."""
        return self.classes_[self.predict_proba(clients).argmax(axis=1)]


def _chosen(X: np.ndarray, y: np.ndarray) -> Any:
    """A softmax regression with a ridge chosen by rows left out, where there are enough."""
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    counts = np.unique(y, return_counts=True)[1]
    if len(counts) < 2:
        return DummyClassifier(strategy="prior").fit(X, y)
    folds = min(CHOICE_FOLDS, int(counts.min()))
    settings: dict[str, Any] = {"max_iter": 200}
    model: Any = LogisticRegression(C=STRENGTHS[1], **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if folds > 1:
            model = LogisticRegressionCV(Cs=STRENGTHS, cv=folds, scoring="neg_log_loss", **settings)
        return make_pipeline(StandardScaler(), model).fit(X, y)


def _numbers_of(model: Any) -> dict[str, np.ndarray]:
    """A fit of `_chosen` in numbers."""
    if not hasattr(model, "steps"):
        return {"classes": model.classes_}
    scaler, regression = model[0], model[-1]
    return {
        "classes": regression.classes_,
        "coef": regression.coef_,
        "intercept": regression.intercept_,
        "mean": scaler.mean_,
        "scale": scaler.scale_,
    }


def _from_numbers(arrays: Any) -> Any:
    """The inverse of `_numbers_of`: predicts as the fit did."""
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classes = arrays["classes"]
    if "coef" not in arrays:
        return DummyClassifier(strategy="prior").fit(np.zeros((len(classes), 1)), classes)
    scaler, regression = StandardScaler(), LogisticRegression(max_iter=200)
    scaler.mean_, scaler.scale_ = arrays["mean"], arrays["scale"]
    scaler.var_, scaler.n_features_in_ = arrays["scale"] ** 2, len(arrays["mean"])
    scaler.n_samples_seen_ = 1
    regression.classes_, regression.coef_ = classes, arrays["coef"]
    regression.intercept_, regression.n_features_in_ = arrays["intercept"], len(arrays["mean"])
    return make_pipeline(scaler, regression)
