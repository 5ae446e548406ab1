"""The face of the federated standardisation: a scikit-learn transformer."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedkin.algorithms.standardizer import STANDARDIZER
from fedkin.estimators.base import FederatedEstimator
from fedkin.federation import Federation
from fedkin.tables import Summary, Table

# What left a site, in words.
ACCOUNT = (
    "Each site sent its number of rows and, for every column, its mean, sum and sum of squares "
    "about a common shift; a site with one row thereby sent that row."
)
ACCOUNT_WHITEN = (
    "Each site also sent one matrix of sums of products about the means of its groups, and its "
    "number of rows less that of its groups. Groups stayed at the site."
)


class Standardizer(OneToOneFeatureMixin, TransformerMixin, FederatedEstimator):
    """Give every column mean 0 and scale 1 over the rows of all sites, without pooling them.

    Parameters
    ----------
    whiten : bool
        Also make the covariance within groups, pooled over sites, the identity. The whitening is
        symmetric, so every feature stays nearest to itself and keeps its name.
    n_groups : int or None
        Groups that each site finds among its own rows before whitening (Ward's criterion); None
        takes every site as one group.
    robust : bool
        Medians over sites in place of sums, and sites with an odd scatter are left out of the
        whitening: a minority of contaminated sites then does little harm.
    random_state : int, RandomState or None
        Decides which rows are grouped first at a site with thousands of rows; nothing else.
    engine : an engine, None for all sites in this process.

    Attributes
    ----------
    mean_ (d,), scale_ (d,), whitening_ (d, d) or None, covariance_ (d, d) or None (within groups,
    of the standardised columns), odd_sites_, client_names_, converged_, n_rounds_, history_,
    traffic_, refusals_, n_features_in_

    `transform` gives ((X - mean_) / scale_) @ whitening_. A column that never varies has scale 1.
    """

    _private = ("_position", "_site_rows", "_site_degrees", "_used")

    def __init__(self, whiten=False, n_groups=None, robust=False, random_state=None, engine=None):
        self.whiten = whiten
        self.n_groups = n_groups
        self.robust = robust
        self.random_state = random_state
        self.engine = engine

    def fit(self, X=None, y=None, groups=None):
        """Fit to sites: rows X with a site name per row, or a Federation; y is not used."""
        if self.n_groups is not None and self.n_groups < 1:
            raise ValueError(f"n_groups must be at least 1, not {self.n_groups}")
        self._forget()
        federation = self._federation(X, None, groups)
        settings = {"whiten": self.whiten, "n_groups": self.n_groups, "robust": self.robust}
        result = self._run(STANDARDIZER, settings, federation).result
        self.mean_, self.scale_ = result["mean"], result["scale"]
        self.n_features_in_ = len(self.mean_)
        self.covariance_, self.whitening_ = result.get("covariance"), result.get("whitening")
        self._site_rows = result["site_rows"]
        self._site_degrees = result.get("site_degrees")
        heard = np.isfinite(self._site_rows)
        self._used = result.get("used", heard)
        self.odd_sites_ = self.client_names_[heard & ~self._used]
        # Nothing is iterated; generic code may still ask.
        self.converged_, self.history_ = True, {}
        self._warn()
        return self

    def _warn(self) -> None:
        if self._site_degrees is None:
            return
        degrees = int(np.nansum(self._site_degrees[self._used]))
        if degrees < self.n_features_in_:
            warnings.warn(
                f"whitening {self.n_features_in_} features needs as many rows beyond the groups, "
                f"there are {degrees}; lower n_groups or take whiten=False",
                UserWarning,
                stacklevel=3,
            )

    # ------------------------------------------------------------ use

    def transform(self, X):
        """Standardised rows: an array for an array, a Federation for a Federation.

        A Federation's columns come out in the order of the fit.
        """
        return self._mapped(X, self._forward)

    def inverse_transform(self, X):
        """Rows in the original units: an array for an array, a Federation for a Federation."""
        return self._mapped(X, self._backward)

    def _mapped(self, X: Any, change: Any) -> Any:
        check_is_fitted(self)
        if isinstance(X, Federation):
            clients = self._with_columns_of_the_fit(X)
            return replace(clients, X=change(clients.X))
        return change(validate_data(self, X, dtype=np.float64, reset=False))

    def _forward(self, rows: np.ndarray) -> np.ndarray:
        scaled = (rows - self.mean_) / self.scale_
        return scaled if self.whitening_ is None else scaled @ self.whitening_

    def _backward(self, rows: np.ndarray) -> np.ndarray:
        if self.whitening_ is not None:
            rows = np.linalg.solve(self.whitening_, rows.T).T
        return rows * self.scale_ + self.mean_

    # ------------------------------------------------------------ account

    def summary(self) -> Summary:
        """Columns, sites and account as tables; prints as text, shows as HTML."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        features = {"feature": list(names), "mean": self.mean_, "scale": self.scale_}
        sites = {"site": self.client_names_, "rows": self._site_rows}
        if self.covariance_ is not None:
            features["scale within groups"] = self.scale_ * np.sqrt(np.diagonal(self.covariance_))
            sites["rows beyond groups"] = self._site_degrees
            sites["odd"] = np.isin(self.client_names_, self.odd_sites_)
        tables = {
            "features": Table(features, "Features"),
            "sites": Table(sites, "Sites"),
            "traffic": self._traffic_table(),
        }
        notes = [self._travelled(), ACCOUNT]
        if self.covariance_ is not None:
            notes.append(ACCOUNT_WHITEN)
        title = (
            f"Standardizer: {len(self.client_names_)} sites, {self.n_features_in_} features, "
            f"{np.nansum(self._site_rows):,.0f} rows"
        )
        return Summary(title, tables, notes)
