"""What a fitted mixed model is, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedkin.algorithms import mixed_model_words as words
from fedkin.algorithms.mixed_model_data import Coordinates
from fedkin.algorithms.mixed_model_facts import Facts
from fedkin.algorithms.mixed_model_linear_facts import LinearFacts
from fedkin.algorithms.mixed_model_noise_facts import OwnNoiseFacts
from fedkin.algorithms.mixed_model_rounds import EFFECTS, Fitted, inference, log_likelihood
from fedkin.algorithms.mixed_model_rounds_facts import RoundsFacts
from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.models.linear_mixed_fit import LinearMixedFit
from fedkin.models.robust_mixed import ODD, RobustFit
from fedkin.models.site_noise_fit import SiteNoiseFit
from fedkin.names import counted
from fedkin.protocol import Result, over_roster
from fedkin.protocol.runs import About
from fedkin.tables import Table

# A slope of the criterion (which counts in units of one) above this is no end of a search.
CONVERGED = 1e-4


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedModelResult(Result):
    """Fixed coefficients (d,), an intercept last; effects (m, q) on the columns `random` (q,).

    Sites that were not heard have no effects: zero, with the covariance of all effects. `theta` are
    the free numbers of the search in the coordinates worked in.
    """

    for_all = ("coef", "coef_covariance", "random", "random_covariance", "sigma")
    for_one = ("effects", "effects_covariance", "site_sigma", "site_rows")

    coef: Floats
    coef_covariance: Floats
    random: Indices
    random_covariance: Floats
    effects: Floats
    effects_covariance: Floats
    loglik: Array
    gradient: Array
    theta: Floats
    heard: Indices
    implausible: Bools
    site_rows: Floats
    sigma: Array | None = None
    # From statistics (., k) of the sites heard; how much each counts, and its noise.
    statistics: Floats | None = None
    weights: Floats | None = None
    noise_ratio: Floats | None = None
    site_sigma: Floats | None = None
    noise_shape: Array | None = None
    # What weights of rows add to twice the log likelihood.
    log_weights: Array | None = None
    # In rounds: coordinates worked in, the end of the search, what is known of single sites.
    point: Floats | None = None
    basis: Floats | None = None
    shift: Floats | None = None
    scale: Array | None = None
    spread: Floats | None = None
    places: Indices | None = None
    collinear: Indices | None = None
    degrees: Floats | None = None
    uncertainty: Floats | None = None
    given: Floats | None = None
    by_coef: Floats | None = None
    without_effects: Array | None = None
    mean_predictor: Array | None = None
    history_criterion: Floats | None = None

    # ------------------------------------------------------------ from fits

    @classmethod
    def of_fit(cls, fit: LinearMixedFit, statistics: Floats, **more: Any) -> MixedModelResult:
        """From a fit to the statistics of all sites there are."""
        m = statistics.shape[1]
        return cls(
            coef=fit.coef,
            coef_covariance=fit.coef_covariance,
            random=fit.random,
            random_covariance=fit.random_covariance,
            sigma=np.array(fit.sigma),
            effects=fit.effects.means,
            effects_covariance=fit.effects.total,
            loglik=np.array(fit.loglik),
            gradient=np.array(fit.gradient),
            theta=fit.theta,
            statistics=statistics,
            heard=np.arange(m),
            implausible=np.zeros(m, dtype=bool),
            site_rows=statistics[-1],
            **more,
        )

    @classmethod
    def of_robust(cls, robust: RobustFit, statistics: Floats) -> MixedModelResult:
        """From a fit in which odd sites count for less; statistics are in units of their noise."""
        scaled = statistics / robust.noise_ratio
        scaled[-1] = statistics[-1]
        sigma = robust.fit.sigma * np.sqrt(robust.noise_ratio)
        return cls.of_fit(
            robust.fit,
            scaled,
            weights=robust.weights,
            noise_ratio=robust.noise_ratio,
            site_sigma=sigma,
        )

    @classmethod
    def of_own_noise(
        cls, fit: SiteNoiseFit, statistics: Floats, weights: Floats | None
    ) -> MixedModelResult:
        """From a fit in which every site has its noise."""
        m = statistics.shape[1]
        return cls(
            coef=fit.coef,
            coef_covariance=fit.coef_covariance,
            random=fit.random,
            random_covariance=fit.random_covariance,
            sigma=np.sqrt(fit.typical_variance),
            effects=fit.effects,
            effects_covariance=fit.effect_covariances,
            loglik=np.array(fit.loglik),
            gradient=np.array(fit.gradient),
            theta=fit.point,
            statistics=statistics,
            heard=np.arange(m),
            implausible=np.zeros(m, dtype=bool),
            site_rows=statistics[-1],
            weights=weights,
            site_sigma=np.sqrt(fit.variances),
            noise_shape=np.array(fit.shape),
        )

    @classmethod
    def of_rounds(cls, fitted: Fitted, settings: Any, m: int) -> MixedModelResult:
        """From a search in rounds, of m sites in all."""
        at, end, settled = fitted.opened.at, fitted.end, fitted.settled
        k = at.basis.shape[1]
        numbers = end.point[k:]
        theta = numbers[: at.shape.n_parameters]
        sigma = at.scale * np.exp(end.point[-1]) if settings.gaussian else None
        own = (1.0 if sigma is None else sigma) * at.spread @ at.shape.factor(theta)
        known = inference(fitted)
        spread = own @ own.T
        q, d = len(at.random), len(at.basis)
        told = [settled[name] for name in EFFECTS if name in settled]
        effects, given, by_coef = told or (
            np.zeros((0, q)),
            np.zeros((0, q, q)),
            np.zeros((0, q, d)),
        )
        heard = settled.clients if told else settled.clients[:0]
        total = given + by_coef @ known.covariance @ by_coef.transpose(0, 2, 1)
        coef = at.offset + at.scale * at.basis @ end.point[:k]
        without = fitted.without_effects
        rows = np.array(fitted.opened.rows)
        rows[settled.clients] = settled["rows"]
        return cls(
            coef=coef,
            coef_covariance=known.covariance,
            random=at.random,
            random_covariance=spread,
            sigma=sigma,
            effects=over_roster(effects, heard, m, missing=0.0),
            effects_covariance=over_roster(total, heard, m, missing=spread),
            loglik=np.array(log_likelihood(fitted, settings)),
            gradient=np.array(np.abs(end.slope).max(initial=0.0)),
            theta=theta,
            heard=heard,
            implausible=np.zeros(m, dtype=bool),
            site_rows=rows,
            point=end.point,
            basis=at.basis,
            shift=at.offset,
            scale=np.array(at.scale),
            spread=at.spread,
            places=at.places,
            collinear=np.array(fitted.opened.collinear, dtype=np.intp),
            degrees=known.degrees,
            uncertainty=known.uncertainty,
            given=given,
            by_coef=by_coef,
            without_effects=None if without is None else np.array(without),
            mean_predictor=np.array(fitted.opened.centre @ coef),
            history_criterion=end.history,
        )

    def among(self, m: int, heard: Indices, implausible: Indices) -> MixedModelResult:
        """The result of the sites `heard`, in a roster of m."""
        odd = np.zeros(m, dtype=bool)
        odd[implausible] = True

        def spread_out(values: Array | None, missing: Any = np.nan) -> Any:
            return None if values is None else over_roster(values, heard, m, missing=missing)

        return replace(
            self,
            effects=spread_out(self.effects, 0.0),
            effects_covariance=spread_out(self.effects_covariance, self.random_covariance),
            heard=heard,
            implausible=odd,
            site_rows=spread_out(self.site_rows),
            site_sigma=spread_out(self.site_sigma),
        )

    def with_log_weights(self, logs: Floats) -> MixedModelResult:
        """With what the weights of the sites' rows add to the likelihood, logs (k,) of log w."""
        total = np.array(logs.sum() if self.weights is None else logs @ self.weights)
        return replace(self, log_weights=total, loglik=self.loglik + 0.5 * total)

    @property
    def by_weights(self) -> float:
        """What weights of rows add to twice the log likelihood."""
        return 0.0 if self.log_weights is None else float(self.log_weights)

    def with_memories(self, memories: Any) -> MixedModelResult:
        """With what sites in this process know of their effects, though they did not send it."""
        if memories is None or len(self.heard) or self.given is None:
            return self
        heard = np.flatnonzero(memories["known"])
        effects, given, by_coef = (memories[name][heard] for name in EFFECTS)
        total = given + by_coef @ self.coef_covariance @ by_coef.transpose(0, 2, 1)
        m = len(self.implausible)
        return replace(
            self,
            heard=heard,
            given=given,
            by_coef=by_coef,
            effects=over_roster(effects, heard, m, missing=0.0),
            effects_covariance=over_roster(total, heard, m, missing=self.random_covariance),
        )

    # ------------------------------------------------------------ what follows

    def facts(self, settings: Any) -> Facts:
        """Degrees of freedom, tests and predictions."""
        if self.point is not None:
            return RoundsFacts(self, settings)
        return (OwnNoiseFacts if settings.site_noise == "own" else LinearFacts)(self, settings)

    def coordinates(self) -> Coordinates:
        """The columns worked with in rounds."""
        assert self.basis is not None and self.shift is not None and self.scale is not None
        assert self.spread is not None and self.places is not None
        return Coordinates(
            self.basis, self.shift, float(self.scale), self.random, self.spread, self.places
        )

    @property
    def numbers(self) -> Floats:
        """Of the spread and, where there is one, the logarithm of the noise."""
        assert self.point is not None and self.basis is not None
        return np.asarray(self.point[self.basis.shape[1] :])

    def own_effects(self) -> tuple[Floats, Floats, Floats]:
        """Effects of the sites heard, their covariances given the rest, and how they move."""
        assert self.given is not None and self.by_coef is not None
        return self.effects[self.heard], self.given, self.by_coef

    @property
    def odd(self) -> Bools:
        """Which sites a robust fit found odd, (m,)."""
        out = np.zeros(len(self.implausible), dtype=bool)
        if self.weights is not None:
            out[self.heard] = self.weights < ODD
        return out

    # ------------------------------------------------------------ in words

    def title(self, about: About) -> str:
        """The fit in half a line."""
        settings = about.settings
        kind = settings.method.upper() if settings.gaussian else f"ML, {settings.family}"
        n_rows = np.nansum(self.site_rows)
        return (
            f"{counted(len(about.sites), 'site')}, {n_rows:,.0f} rows, fitted by {kind}, "
            f"-2 log likelihood {-2 * self.loglik:.4f}"
        )

    def tables(self, about: About) -> dict[str, Table]:
        """Fixed effects, variance components and sites."""
        known = self.facts(about.settings)
        return {
            "fixed": words.fixed_table(self, known, about.features),
            "variances": words.variance_table(self, known, about),
            "sites": words.sites_table(self, about),
        }

    def account(self, about: About) -> list[str]:
        """What left the sites."""
        if self.point is None:
            return ["Each site sent its sums of products of features and target once."]
        told = "Each site sent values and slopes of its log likelihood"
        own = ", and at the end its own departure." if "effects" in about.left else "."
        return [told + own]

    def remarks(self, about: About) -> list[str]:
        """A test of whether sites differ at all; what the data do not tell."""
        return words.remarks(self, self.facts(about.settings), about)
