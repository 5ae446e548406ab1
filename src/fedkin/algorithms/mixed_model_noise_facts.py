"""What follows from a mixed model in which every site has a noise of its own, from statistics."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from fedkin.algorithms.mixed_model_data import statistics_of
from fedkin.algorithms.mixed_model_facts import (
    Predicted,
    Rows,
    components_of,
    only_wald,
    own_means,
    shifted,
)
from fedkin.arrays import Floats
from fedkin.federation import Federation
from fedkin.models import site_noise_fit, site_noise_prediction
from fedkin.models.linear_mixed_inference import Components, Intervals, wald_of
from fedkin.models.random_covariance import SINGULAR
from fedkin.models.site_differences import SiteTest, bounded_test


class OwnNoiseFacts:
    """Every site has a noise of its own, from statistics."""

    def __init__(self, result: Any, settings: Any, fit: Any = None) -> None:
        self.result, self.settings = result, settings
        self.fit = self._again() if fit is None else fit

    def _again(self) -> site_noise_fit.SiteNoiseFit:
        result, settings = self.result, self.settings
        found = site_noise_fit.fit_at(
            result.theta,
            result.statistics,
            result.random,
            settings.method,
            settings.covariance_for(result.statistics[-1], len(result.random)),
            settings.fit_intercept,
            result.weights,
        )
        return replace(found, gradient=float(result.gradient))

    @cached_property
    def uncertainty(self) -> Floats:
        """Covariance of all parameters as worked with."""
        return site_noise_prediction.parameter_covariance(self.fit)

    @cached_property
    def degrees(self) -> Floats:
        """Satterthwaite's degrees of freedom of every coefficient, (d,)."""
        return site_noise_prediction.coefficient_degrees(self.fit, self.uncertainty)

    @cached_property
    def difference(self) -> SiteTest | None:
        """The likelihood ratio test of no difference but in the noise."""
        without = site_noise_fit.without_effects(self.fit)
        return bounded_test(without, -2.0 * self.fit.loglik, self.fit.factor_shape.n_parameters)

    @property
    def icc(self) -> float:
        """Share of the variance that lies between sites, beside a typical site's noise."""
        prepared, factor = self.fit.data.prepared, self.fit.parameters.factor
        gram = prepared.products[:, prepared.rank + 1 :] @ prepared.weights
        between = float(np.trace(factor.T @ gram @ factor)) / max(prepared.total_rows, 1.0)
        return between / (between + float(np.exp(self.fit.parameters.log_variance)))

    @property
    def _n_parameters(self) -> int:
        return self.fit.data.prepared.rank + self.fit.factor_shape.n_parameters + 2

    @property
    def aic(self) -> float:
        """Akaike's criterion."""
        return -2.0 * float(self.result.loglik) + 2.0 * self._n_parameters

    @property
    def bic(self) -> float:
        """Schwarz's criterion with the number of rows."""
        n_rows = self.fit.data.prepared.total_rows
        return -2.0 * float(self.result.loglik) + float(np.log(n_rows)) * self._n_parameters

    @property
    def singular(self) -> bool:
        """Whether some combination of effects has no variance."""
        return self.fit.singular

    @property
    def collinear(self) -> tuple[int, ...]:
        """Columns that depend on each other."""
        return self.fit.collinear

    @property
    def n_places(self) -> int:
        """How many sites have a place."""
        return len(self.fit.effects)

    def _parts(self, numbers: Floats) -> Components:
        prepared = self.fit.data.prepared
        factor = prepared.scale * prepared.spread @ self.fit.factor_shape.factor(numbers[:-2])
        return components_of(factor @ factor.T, prepared.scale * float(np.exp(numbers[-2] / 2)))

    @property
    def _numbers(self) -> Floats:
        return np.asarray(self.fit.point[self.fit.data.prepared.rank :])

    def components(self) -> Components:
        """Standard deviations of the effects, their correlations, and a typical site's noise."""
        return self._parts(self._numbers)

    def component_intervals(self, level: float, by: str) -> Intervals:
        """Intervals of the components by Wald's formula."""
        only_wald(by)
        prepared = self.fit.data.prepared
        size = np.sqrt(np.diag(prepared.spread @ prepared.spread.T) * self.fit.typical_variance)
        p = prepared.rank
        own = self.uncertainty[p:, p:]
        return wald_of(self._parts, self._numbers, own, SINGULAR * size, level)

    def means(self, rows: Rows) -> Floats:
        """Expected target of every row, (n,)."""
        return own_means(self.fit.client_coef, self.fit.coef, rows)

    def predict(self, rows: Rows, level: float | None) -> Predicted:
        """Mean, spread of a new target, and its interval: mixtures over the site's noise."""
        found = site_noise_prediction.predict(self.fit, rows.design, rows.places)
        ends = None
        if level is not None:
            ends = site_noise_prediction.intervals(
                self.fit, rows.design, rows.places, level, self.uncertainty
            )
        mean = found.mean() + rows.offset
        return Predicted(mean, np.sqrt(found.variance()), shifted(ends, rows.offset))

    def extended(self, clients: Federation) -> OwnNoiseFacts:
        """The fit with further sites: their noise and effects given the rest."""
        statistics = statistics_of(clients, self.settings)
        fit = site_noise_fit.extended(self.fit, statistics)
        more = OwnNoiseFacts(self.result, self.settings, fit)
        more.__dict__["uncertainty"] = self.uncertainty
        return more
