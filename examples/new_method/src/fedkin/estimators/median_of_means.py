"""Median of means as a scikit-learn transformer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedkin.algorithms.median_of_means import MEDIAN_OF_MEANS
from fedkin.estimators.base import FederatedEstimator
from fedkin.federation import Federation


class MedianOfMeans(OneToOneFeatureMixin, TransformerMixin, FederatedEstimator):
    """Move all rows so that the centre of the sites is at zero; a few odd sites do not matter.

    Parameters
    ----------
    weights : "rows" or "equal"
        How often a site counts in the median: as often as it has rows, or once.
    clip : float or None
        Values beyond it (and below its negative) count as it in their site's mean.
    random_state : int, RandomState or None
        Nothing here is left to chance; every estimator has it.
    engine : engine or None
        Who reaches the sites; None holds all of them in this process.

    Attributes
    ----------
    center_ : array of shape (d,)
        Median of the sites' means, column by column.
    site_distances_ : array of shape (m,)
        How far each site's means are from the centre; NaN for a site that was not heard.
    n_features_in_ : int
        Number of columns.
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
    >>> from fedkin import MedianOfMeans
    >>> X = np.array([[1.0], [3.0], [2.0], [4.0], [98.0], [102.0]])
    >>> model = MedianOfMeans().fit(X, groups=["a", "a", "b", "b", "odd", "odd"])
    >>> model.center_
    array([3.])
    >>> model.site_distances_
    array([ 1.,  0., 97.])
    """

    _algorithm = MEDIAN_OF_MEANS
    _needs_target = False

    def _read(self, run) -> None:
        self.center_ = run.result.center
        self.site_distances_ = run.result.site_distances
        self.n_features_in_ = len(self.center_)
        # Nothing is iterated; generic code may still ask.
        self.converged_ = True

    def transform(self, X):
        """Rows about the centre: an array for an array, a Federation for a Federation."""
        check_is_fitted(self)
        if isinstance(X, Federation):
            clients = self._with_columns_of_the_fit(X)
            return replace(clients, X=clients.X - self.center_)
        return validate_data(self, X, dtype=np.float64, reset=False) - self.center_
