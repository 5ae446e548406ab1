"""Nobody joins, and everybody is one: the two ways that every joining is compared with.

Plain models with an honest spread, as a careful person fits them without any federation: ridge
regression averaged over the strength of the ridge, and softmax regression with a ridge chosen by
rows left out. Each either at every site by itself or once for all rows.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics
from fedkin.models.ridge_evidence import fit_ridges

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
        self._fits = fit_ridges(statistics, self.fit_intercept)
        self._places = {name: k for k, name in enumerate(federation.names)}
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
