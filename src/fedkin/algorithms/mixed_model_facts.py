"""What follows from a fitted mixed model: degrees of freedom, tests, predictions, new sites.

There is one class for every way to fit; all answer the same questions. They are made again from
what a result keeps, so a result that was read from a file answers them, too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedkin.algorithms.mixed_model_sites import statistics_of
from fedkin.arrays import Floats, Indices
from fedkin.federation import Federation
from fedkin.models import linear_mixed_prediction, site_noise_fit, site_noise_prediction
from fedkin.models.linear_mixed import evaluate, profile
from fedkin.models.linear_mixed_fit import (
    Effects,
    LinearMixedFit,
    finished,
    predicted_effects,
)
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
    wald_of,
)
from fedkin.models.linear_mixed_profile import profile_intervals
from fedkin.models.linear_mixed_scales import prepare, products_of
from fedkin.models.random_covariance import SINGULAR, correlations
from fedkin.models.site_differences import SiteTest, site_differences
from fedkin.models.smooth_search import Found


class Rows(NamedTuple):
    """Rows to predict: design (n, d), intercept last; place of the site (-1: new); offset."""

    design: Floats
    places: Indices
    offset: Floats


class Predicted(NamedTuple):
    """Of every row: mean, standard deviation, and ends of an interval (n, 2) if asked for."""

    mean: Floats
    std: Floats
    ends: Floats | None


class Facts(Protocol):
    """What an estimator asks of a fit."""

    @property
    def degrees(self) -> Floats:
        """Satterthwaite's degrees of freedom of every coefficient, (d,)."""

    @property
    def difference(self) -> SiteTest | None:
        """The likelihood ratio test of no difference between sites, where it is known."""

    @property
    def icc(self) -> float:
        """Share of the variance that lies between sites."""

    @property
    def aic(self) -> float:
        """Akaike's criterion."""

    @property
    def bic(self) -> float:
        """Schwarz's criterion."""

    @property
    def singular(self) -> bool:
        """Whether some combination of effects has no variance."""

    @property
    def collinear(self) -> tuple[int, ...]:
        """Columns that depend on each other."""

    @property
    def n_places(self) -> int:
        """How many sites have a place."""

    def components(self) -> Components:
        """Standard deviations of the effects, their correlations, and the noise."""

    def component_intervals(self, level: float, by: str) -> Intervals:
        """Intervals of the components."""

    def means(self, rows: Rows) -> Floats:
        """Expected target of every row, (n,)."""

    def predict(self, rows: Rows, level: float | None) -> Predicted:
        """The same with its spread."""

    def extended(self, clients: Federation) -> Facts:
        """The fit with further sites that had no part in it."""


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
            settings.covariance,
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
        return aic(self.fit)

    @property
    def bic(self) -> float:
        """Schwarz's criterion."""
        return bic(self.fit)

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
        return Predicted(mean, np.sqrt(found.variance), _moved(ends, rows.offset))

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


class OwnNoiseFacts:
    """Every site has a noise of its own, from statistics."""

    difference: SiteTest | None = None

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
            settings.covariance,
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
        return -2.0 * self.fit.loglik + 2.0 * self._n_parameters

    @property
    def bic(self) -> float:
        """Schwarz's criterion with the number of rows."""
        n_rows = self.fit.data.prepared.total_rows
        return -2.0 * self.fit.loglik + float(np.log(n_rows)) * self._n_parameters

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
        return Predicted(mean, np.sqrt(found.variance()), _moved(ends, rows.offset))

    def extended(self, clients: Federation) -> OwnNoiseFacts:
        """The fit with further sites: their noise and effects given the rest."""
        statistics = statistics_of(clients, self.settings)
        fit = site_noise_fit.extended(self.fit, statistics)
        more = OwnNoiseFacts(self.result, self.settings, fit)
        more.__dict__["uncertainty"] = self.uncertainty
        return more


# ------------------------------------------------------------------ common ground


def own_means(client_coef: Floats, coef: Floats, rows: Rows) -> Floats:
    """Linear predictors of rows by their sites' own coefficients; the common ones if new."""
    own = np.concatenate([client_coef, coef[None]])
    return np.einsum("nd,nd->n", rows.design, own[rows.places]) + rows.offset


def components_of(covariance: Floats, sigma: float) -> Components:
    """Standard deviations, correlations and noise of a covariance (q, q)."""
    below = np.tril_indices(len(covariance), -1)
    return Components(np.sqrt(np.diag(covariance)), correlations(covariance)[below], sigma)


def only_wald(by: str) -> None:
    """Complain about intervals that this fit has not."""
    if by != "wald":
        raise ValueError(f"intervals={by!r} needs one noise and the sites' statistics; use 'wald'")


def _moved(ends: Floats | None, offset: Floats) -> Floats | None:
    return None if ends is None else ends + offset[:, None]


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
