"""What follows from a mixed model that was fitted in rounds."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fedkin.algorithms.mixed_model_data import OwnEffects, prepare
from fedkin.algorithms.mixed_model_facts import Predicted, Rows, components_of, only_wald
from fedkin.algorithms.mixed_model_sites import own_effects
from fedkin.arrays import Floats, Indices
from fedkin.federation import Federation
from fedkin.models.generalised_mixed_fit import expected_response, response_spread
from fedkin.models.linear_mixed_fit import is_singular
from fedkin.models.linear_mixed_inference import Components, Intervals, wald_of
from fedkin.models.random_covariance import SINGULAR
from fedkin.models.site_differences import SiteTest, bounded_test


class RoundsFacts:
    """Fitted in rounds; `known` is what is known here of the sites' effects.

    Where the target is normal, intervals are by the normal distribution. For counts mean, spread
    and intervals are of the expected target.
    """

    def __init__(self, result: Any, settings: Any, known: OwnEffects | None = None) -> None:
        self.result, self.settings = result, settings
        self.known = OwnEffects(*result.own_effects()) if known is None else known
        self.at = result.coordinates()

    @property
    def degrees(self) -> Floats:
        """Satterthwaite's degrees of freedom of every coefficient; infinite for counts, (d,)."""
        return np.asarray(self.result.degrees)

    @cached_property
    def difference(self) -> SiteTest | None:
        """The likelihood ratio test of no difference between sites.

        None if other sites were heard at the start, without effects, than at the end.
        """
        if self.result.without_effects is None:
            return None
        criterion = -2.0 * float(self.result.loglik)
        without = float(self.result.without_effects)
        return bounded_test(without, criterion, self.at.shape.n_parameters)

    @property
    def icc(self) -> float:
        """Share of the variance that lies between sites; for counts on the scale of the link."""
        factor = self.at.shape.factor(self.result.theta)
        between = float(np.trace(factor @ factor.T))
        within = {"binomial": np.pi**2 / 3.0}.get(self.settings.family, 1.0)
        if self.settings.family == "poisson":
            within = float(np.log1p(np.exp(-self.result.mean_predictor)))
        return between / (between + within)

    @property
    def _n_parameters(self) -> int:
        return self.at.basis.shape[1] + self.at.shape.n_parameters + int(self.settings.gaussian)

    @property
    def aic(self) -> float:
        """Akaike's criterion."""
        return float(-2.0 * self.result.loglik + 2.0 * self._n_parameters)

    @property
    def bic(self) -> float:
        """Schwarz's criterion with the number of rows."""
        n_rows = float(np.nansum(self.result.site_rows))
        return float(-2.0 * self.result.loglik + np.log(n_rows) * self._n_parameters)

    @property
    def singular(self) -> bool:
        """Whether some combination of effects has no variance."""
        return is_singular(self.at.shape.factor(self.result.theta))

    @property
    def collinear(self) -> tuple[int, ...]:
        """Columns that depend on each other."""
        return tuple(map(int, self.result.collinear))

    @property
    def n_places(self) -> int:
        """How many sites have a place."""
        return len(self.known.effects)

    def _parts(self, numbers: Floats) -> Components:
        """Numbers are those of the spread and, where there is noise, its logarithm."""
        theta = numbers[: self.at.shape.n_parameters]
        noise = numbers[len(theta) :]
        sigma = self.at.scale * float(np.exp(noise.sum()))
        factor = (sigma if len(noise) else 1.0) * self.at.spread @ self.at.shape.factor(theta)
        return components_of(factor @ factor.T, sigma)

    def components(self) -> Components:
        """Standard deviations of the effects, their correlations, and the noise."""
        return self._parts(self.result.numbers)

    def component_intervals(self, level: float, by: str) -> Intervals:
        """Intervals of the components by Wald's formula."""
        only_wald(by)
        size = np.sqrt(np.diag(self.at.spread @ self.at.spread.T)) * self.components().sigma
        uncertainty = self.result.uncertainty
        return wald_of(self._parts, self.result.numbers, uncertainty, SINGULAR * size, level)

    def _predictor(self, rows: Rows) -> tuple[Floats, Floats]:
        """Linear predictor and the variance of its error, (n,) each."""
        known, result = self.known, self.result
        own = rows.places >= 0
        place = np.where(own, rows.places, 0)
        design, Z = rows.design, rows.design[:, result.random]
        effects = np.where(own[:, None], _at(known.effects, place), 0.0)
        eta = design @ result.coef + np.einsum("nq,nq->n", Z, effects) + rows.offset
        back = np.einsum("nq,nqd->nd", Z, _at(known.by_coef, place))
        moved = design - np.where(own[:, None], back, 0.0)
        spread = np.where(own[:, None, None], _at(known.given, place), result.random_covariance)
        variance = np.einsum("nd,de,ne->n", moved, result.coef_covariance, moved)
        return eta, variance + np.einsum("nq,nqr,nr->n", Z, spread, Z)

    def means(self, rows: Rows) -> Floats:
        """Expected target of every row, (n,)."""
        eta, variance = self._predictor(rows)
        if self.settings.gaussian:
            return eta
        return expected_response(eta, variance, self.settings.family)

    def predict(self, rows: Rows, level: float | None) -> Predicted:
        """Mean, spread and interval of a new target; for counts of the expected target."""
        from scipy.special import expit
        from scipy.stats import norm

        eta, error = self._predictor(rows)
        gaussian, family = self.settings.gaussian, self.settings.family
        spread = np.sqrt(error + (float(self.result.sigma) ** 2 if gaussian else 0.0))
        ends = None
        if level is not None:
            half = norm.ppf(0.5 + level / 2) * spread
            ends = np.stack([eta - half, eta + half], axis=1)
        if gaussian:
            return Predicted(eta, spread, ends)
        link = np.exp if family == "poisson" else expit
        mean = expected_response(eta, error, family)
        std = response_spread(eta, error, family)
        return Predicted(mean, std, None if ends is None else np.asarray(link(ends)))

    def extended(self, clients: Federation) -> RoundsFacts:
        """The fit with further sites: their effects given the rest."""
        cache = prepare(clients, self.settings)
        own = own_effects(clients, cache, self.settings, self.at, self.result.point)
        both = OwnEffects(*(np.concatenate(pair) for pair in zip(self.known, own)))
        return RoundsFacts(self.result, self.settings, both)


def _at(values: Floats, places: Indices) -> Floats:
    """Values at places; one row of zeros stands for no site at all."""
    if not len(values):
        return np.zeros((len(places), *values.shape[1:]))
    return np.asarray(values[places])
