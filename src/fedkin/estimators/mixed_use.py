"""What a fitted mixed model is used for: predictions, new sites, intervals, tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.mixed_model_data import check_counts, not_whole
from fedkin.algorithms.mixed_model_facts import Rows
from fedkin.algorithms.mixed_model_settings import CLASSES, MixedModelSettings
from fedkin.algorithms.mixed_model_words import (
    coefficient_intervals,
    fixed_table,
    variance_table,
)
from fedkin.estimators.base import FederatedEstimator
from fedkin.estimators.mixed_classes import codes_of
from fedkin.federation import Federation
from fedkin.models.estimates import LEVEL, checked_level
from fedkin.tables import Table

# The place of a site that is not in the fit.
NEW_SITE = -1


def _has_probabilities(estimator: Any) -> bool:
    return estimator.family in ("binomial", CLASSES)


def _has_errors(estimator: Any) -> bool:
    return bool(estimator.family != CLASSES)


class FittedMixedModel(RegressorMixin, FederatedEstimator):
    """The half of `MixedModel` that needs a fit."""

    _used: MixedModelSettings
    _facts: Any
    _place: dict[str, int]
    _design: Any

    @property
    def difference_test_(self):
        """Likelihood ratio test of "sites do not differ", corrected for the boundary."""
        check_is_fitted(self)
        if self.family == CLASSES:
            return None
        return self._facts.difference

    # ------------------------------------------------------------ use

    @property
    def _tells_spread(self) -> bool:
        """Whether `predict` has standard deviations to tell."""
        return bool(self.family != CLASSES)

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
        if level is not None:
            checked_level(level)
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
            self._warn_of(not_whole(clients, self._used))
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
    def estimates(self, level=LEVEL) -> Table:
        """What other estimators call `fixed_effects`."""
        return self.fixed_effects(level)

    @available_if(_has_errors)
    def variance_components(self, level=LEVEL, intervals="wald") -> Table:
        """Standard deviations and correlations of the departures, and the noise.

        `intervals` are by Wald's formula (quick) or "profile" (by the likelihood).
        """
        check_is_fitted(self)
        return variance_table(self._result, self._facts, self._about(), level, intervals)
