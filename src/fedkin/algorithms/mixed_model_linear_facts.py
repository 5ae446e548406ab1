"""What follows from a mixed model with one noise for all sites, from statistics."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from fedkin.algorithms.mixed_model_data import statistics_of
from fedkin.algorithms.mixed_model_facts import Predicted, Rows, own_means, shifted
from fedkin.arrays import Floats, Indices
from fedkin.federation import Federation
from fedkin.models import linear_mixed_prediction
from fedkin.models.linear_mixed import criterion, evaluate, profile
from fedkin.models.linear_mixed_fit import Effects, LinearMixedFit, finished, predicted_effects
from fedkin.models.linear_mixed_fit import fit as fit_mixed
from fedkin.models.linear_mixed_inference import (
    Components,
    Intervals,
    aic,
    bic,
    components,
    intraclass,
    numbers_covariance,
    numbers_of,
    satterthwaite,
    wald_intervals,
)
from fedkin.models.linear_mixed_profile import profile_intervals
from fedkin.models.linear_mixed_scales import prepare, products_of
from fedkin.models.site_differences import SiteTest, site_differences
from fedkin.models.smooth_search import Found


class LinearFacts:
    """One noise for all sites, from statistics."""

    def __init__(self, result: Any, settings: Any, fit: LinearMixedFit | None = None) -> None:
        self.result, self.settings = result, settings
        self.fit = self._again() if fit is None else fit

    def _again(self) -> LinearMixedFit:
        """The fit with all that follows from it, made again from what was kept."""
        result, settings = self.result, self.settings
        prepared, shape = prepare(
            result.statistics,
            result.random,
            settings.covariance_for(result.statistics[-1], len(result.random)),
            settings.fit_intercept,
            result.weights,
        )
        end = Found(result.theta, -2.0 * float(result.loglik), float(result.gradient), 0)
        return finished(prepared, shape, settings.method, end)

    @cached_property
    def uncertainty(self) -> Floats:
        """Covariance of the variance parameters."""
        return numbers_covariance(self.fit)

    @cached_property
    def degrees(self) -> Floats:
        """Satterthwaite's degrees of freedom of every coefficient, (d,)."""
        return satterthwaite(self.fit, uncertainty=self.uncertainty)

    @cached_property
    def difference(self) -> SiteTest | None:
        """The likelihood ratio test of no difference between sites."""
        return site_differences(self.fit)

    @property
    def icc(self) -> float:
        """Share of the variance that lies between sites."""
        return intraclass(self.fit)

    @property
    def aic(self) -> float:
        """Akaike's criterion."""
        return aic(self.fit) - self.result.by_weights

    @property
    def bic(self) -> float:
        """Schwarz's criterion."""
        return bic(self.fit) - self.result.by_weights

    def aic_without_slopes(self) -> tuple[float, float]:
        """AIC of departures of the level (the last column) alone, and of no departures at all."""
        fit = self.fit
        level = fit_mixed(self.result.statistics, np.array([len(fit.coef) - 1]), fit.method)
        nothing = np.zeros(level.shape.n_parameters)
        none = criterion(level.prepared, level.shape, fit.method, nothing)[0]
        prices = aic(level), none + 2.0 * (fit.rank + 1)
        return prices[0] - self.result.by_weights, prices[1] - self.result.by_weights

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
        return len(self.fit.effects.means)

    def components(self) -> Components:
        """Standard deviations of the effects, their correlations, and the noise."""
        return components(self.fit.prepared, self.fit.shape, numbers_of(self.fit))

    def component_intervals(self, level: float, by: str) -> Intervals:
        """Intervals of the components, by Wald's formula or by the profile of the likelihood."""
        if by == "profile":
            return profile_intervals(self.fit, level)
        return wald_intervals(self.fit, level, self.uncertainty)

    def means(self, rows: Rows) -> Floats:
        """Expected target of every row, (n,)."""
        return own_means(self.fit.client_coef, self.fit.coef, rows)

    def predict(self, rows: Rows, level: float | None) -> Predicted:
        """Mean, spread of a new target, and its interval."""
        found = linear_mixed_prediction.predict(
            self.fit, rows.design, rows.places, self.uncertainty
        )
        found = found._replace(variance=found.variance + self._more_noise(rows.places))
        ends = None if level is None else linear_mixed_prediction.intervals(found, level)
        mean = found.mean + rows.offset
        return Predicted(mean, np.sqrt(found.variance), shifted(ends, rows.offset))

    def _more_noise(self, places: Indices) -> Floats:
        """What a robust fit gives a site's noise variance beyond the common one, (n,)."""
        if self.result.noise_ratio is None:
            return np.zeros(len(places))
        ratio = np.append(self.result.noise_ratio, 1.0)
        known = (places >= 0) & (places < len(ratio) - 1)
        return self.fit.sigma**2 * (ratio[np.where(known, places, -1)] - 1.0)

    def extended(self, clients: Federation) -> LinearFacts:
        """The fit with further sites: their effects given the rest."""
        statistics = statistics_of(clients, self.settings)
        return LinearFacts(self.result, self.settings, _extended(self.fit, statistics))


def _extended(fit: LinearMixedFit, statistics: Floats) -> LinearMixedFit:
    """The fit with further sites (., k) that had no part in it: their effects given the rest."""
    prepared = fit.prepared
    own = replace(
        prepared,
        products=products_of(prepared, statistics),
        n_rows=statistics[-1],
        weights=np.zeros(statistics.shape[1]),
    )
    factor = fit.shape.factor(fit.theta)
    best = profile(prepared, evaluate(prepared, factor, slopes=False), fit.method)
    new = predicted_effects(own, factor, best.coef, best.inverse, fit.sigma**2)
    both = replace(
        prepared,
        products=np.concatenate([prepared.products, own.products], axis=2),
        n_rows=np.concatenate([prepared.n_rows, own.n_rows]),
        weights=np.concatenate([prepared.weights, own.weights]),
    )
    effects = Effects(*(np.concatenate(pair) for pair in zip(fit.effects, new)))
    return replace(fit, prepared=both, effects=effects)
