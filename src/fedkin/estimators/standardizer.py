"""Federated standardisation as a scikit-learn transformer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedkin.algorithms.standardizer import STANDARDIZER
from fedkin.estimators.base import FederatedEstimator
from fedkin.federation import Federation


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

    Attributes
    ----------
    mean_ : array of shape (d,)
        Means of the columns over the rows of all sites.
    scale_ : array of shape (d,)
        Standard deviations; 1 for a column that never varies.
    covariance_ : array of shape (d, d) or None
        Covariance within groups of the standardised columns.
    whitening_ : array of shape (d, d) or None
        `transform` gives ``((X - mean_) / scale_) @ whitening_``.
    odd_sites_ : array
        Sites that were left out of the whitening (`robust`).
    n_features_in_ : int
        Number of columns.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import Standardizer
    >>> X = np.array([[1.0], [2.0], [3.0], [6.0]])
    >>> scaler = Standardizer().fit(X, groups=["a", "a", "b", "b"])
    >>> scaler.mean_
    array([3.])
    >>> scaler.transform(X).mean().round(12)
    np.float64(0.0)
    """

    _algorithm = STANDARDIZER
    _needs_target = False

    def _read(self, run) -> None:
        result = run.result
        self.mean_, self.scale_ = result.mean, result.scale
        self.n_features_in_ = len(self.mean_)
        self.covariance_, self.whitening_ = result.covariance, result.whitening
        self.odd_sites_ = self.client_names_[result.odd]
        # Nothing is iterated; generic code may still ask.
        self.converged_ = True
        self.history_: dict[str, np.ndarray] = {}

    def _warn(self, federation: Federation | None) -> None:
        degrees = self._result.degrees
        if degrees is not None and degrees < self.n_features_in_:
            self._warning(
                f"whitening {self.n_features_in_} features needs as many rows beyond the groups, "
                f"there are {degrees}; lower n_groups or take whiten=False"
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
