"""What a fitted mixed model is, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.models.linear_mixed_fit import LinearMixedFit, finished
from fedkin.models.linear_mixed_inference import (
    aic,
    bic,
    components,
    intraclass,
    numbers_covariance,
    numbers_of,
    satterthwaite,
    wald_intervals,
)
from fedkin.models.linear_mixed_scales import prepare
from fedkin.models.site_differences import SiteTest, site_differences
from fedkin.models.smooth_search import Found
from fedkin.protocol import Result, over_roster
from fedkin.protocol.runs import About
from fedkin.tables import Table

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedModelResult(Result):
    """Fixed coefficients (d,), an intercept last; effects (m, q) on the columns `random` (q,).

    Sites that were not heard have no effects: zero, with the covariance of all effects. `theta` are
    the free numbers of the effects' relative factor in the coordinates worked in, `statistics`
    (., k) the sums of the sites `heard` (k,).
    """

    coef: Floats
    coef_covariance: Floats
    random: Indices
    random_covariance: Floats
    sigma: Array
    effects: Floats
    effects_covariance: Floats
    loglik: Array
    gradient: Array
    theta: Floats
    statistics: Floats
    heard: Indices
    implausible: Bools
    site_rows: Floats

    @classmethod
    def of(
        cls, fit: LinearMixedFit, statistics: Floats, heard: Indices, odd: Indices, m: int
    ) -> MixedModelResult:
        """From a fit to the statistics of the sites `heard`, of m sites in all."""
        implausible = np.zeros(m, dtype=bool)
        implausible[odd] = True
        spread = fit.random_covariance
        return cls(
            coef=fit.coef,
            coef_covariance=fit.coef_covariance,
            random=fit.random,
            random_covariance=spread,
            sigma=np.array(fit.sigma),
            effects=over_roster(fit.effects.means, heard, m, missing=0.0),
            effects_covariance=over_roster(fit.effects.total, heard, m, missing=spread),
            loglik=np.array(fit.loglik),
            gradient=np.array(fit.gradient),
            theta=fit.theta,
            statistics=statistics,
            heard=heard,
            implausible=implausible,
            site_rows=over_roster(statistics[-1], heard, m),
        )

    def fit(self, settings) -> LinearMixedFit:
        """The fit with all that follows from it, made again from what was kept."""
        prepared, shape = prepare(
            self.statistics, self.random, settings.covariance, settings.fit_intercept
        )
        end = Found(self.theta, -2.0 * float(self.loglik), float(self.gradient), 0)
        return finished(prepared, shape, settings.method, end)

    # ------------------------------------------------------------ in words

    def title(self, about: About) -> str:
        """The fit in half a line."""
        kind = "REML" if about.settings.method == "reml" else "ML"
        n_rows = np.nansum(self.site_rows)
        return (
            f"{len(about.sites)} sites, {n_rows:,.0f} rows, fitted by {kind}, "
            f"-2 log likelihood {-2 * self.loglik:.4f}"
        )

    def tables(self, about: About) -> dict[str, Table]:
        """Fixed effects, variance components and sites."""
        known = MixedFacts(self, about.settings)
        return {
            "fixed": known.fixed(about.features),
            "variances": known.variances(about.features),
            "sites": self._sites(about),
        }

    def _sites(self, about: About) -> Table:
        rows: dict[str, Array] = {"site": about.sites, "rows": self.site_rows}
        error = np.sqrt(np.einsum("mqq->mq", self.effects_covariance))
        for j, name in enumerate(term_names(about.features, self.random)):
            rows[name] = self.effects[:, j]
            rows[f"se {name}"] = error[:, j]
        return Table(rows, "Sites: how far they depart")

    def account(self, about: About) -> list[str]:
        """What left the sites."""
        return ["Each site sent its sums of products of features and target once."]

    def remarks(self, about: About) -> list[str]:
        """A test of whether sites differ at all; what the data do not tell."""
        known = MixedFacts(self, about.settings)
        test = known.difference
        remarks = [
            f"Do sites differ? Likelihood ratio {test.statistic:.4g}, p "
            f"{'at most ' * (not test.exact)}{test.p_value:.3g}. Share of the variance between "
            f"sites {known.icc:.3f}."
        ]
        if known.fit.singular:
            remarks.append(
                "Singular: some combination of effects has no variance between sites; a simpler "
                "`random` says the same."
            )
        if known.fit.collinear:
            names = term_names(about.features, np.array(known.fit.collinear))
            remarks.append(
                f"Columns depend on each other: {', '.join(names)}. Their coefficients are the "
                "shortest of all that fit equally well; drop one of them to read them singly."
            )
        return remarks


class MixedFacts:
    """What follows from a fit: degrees of freedom, intervals, tests."""

    def __init__(self, result: MixedModelResult, settings) -> None:
        self.result, self.settings = result, settings

    @cached_property
    def fit(self) -> LinearMixedFit:
        """The fit itself."""
        return self.result.fit(self.settings)

    @cached_property
    def uncertainty(self) -> Floats:
        """Covariance of the variance parameters."""
        return numbers_covariance(self.fit)

    @cached_property
    def degrees(self) -> Floats:
        """Satterthwaite's degrees of freedom of every coefficient, (d,)."""
        return satterthwaite(self.fit, uncertainty=self.uncertainty)

    @cached_property
    def difference(self) -> SiteTest:
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

    def intervals(self, level: float = LEVEL) -> Floats:
        """Of every coefficient, (d, 2)."""
        from scipy.stats import t

        error = np.sqrt(np.diag(self.result.coef_covariance))
        half = t.ppf(0.5 + level / 2, self.degrees) * error
        return np.stack([self.result.coef - half, self.result.coef + half], axis=1)

    def fixed(self, features, level: float = LEVEL) -> Table:
        """Fixed effects as a reader of lme4 expects them, the intercept first."""
        from scipy.stats import t

        coef, error = self.result.coef, np.sqrt(np.diag(self.result.coef_covariance))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = coef / error
        low, high = self.intervals(level).T
        columns = {
            "term": np.array(term_names(features, np.arange(len(coef))), dtype=object),
            "estimate": coef,
            "std. error": error,
            "df": self.degrees,
            "t": ratio,
            "p": 2.0 * t.sf(np.abs(ratio), self.degrees),
            f"{100 * level:g} % from": low,
            "to": high,
        }
        order = np.roll(np.arange(len(coef)), int(len(coef) > len(features)))
        return Table({name: column[order] for name, column in columns.items()}, "Fixed effects")

    def variances(self, features, level: float = LEVEL, by: str = "wald") -> Table:
        """Standard deviations of effects and noise, and correlations, with intervals."""
        from fedkin.models.linear_mixed_profile import profile_intervals

        fit = self.fit
        found = components(fit.prepared, fit.shape, numbers_of(fit))
        if by == "profile":
            ends = profile_intervals(fit, level)
        else:
            ends = wald_intervals(fit, level, self.uncertainty)
        names = term_names(features, fit.random)
        below = np.tril_indices(len(names), -1) if len(ends.correlation) else ((), ())
        pairs = [f"{names[i]}, {names[j]}" for i, j in zip(*below)]
        n_pairs = len(pairs)
        kind = ["standard deviation"] * len(names) + ["correlation"] * n_pairs
        return Table(
            {
                "component": [*names, *pairs, "noise"],
                "is": [*kind, "standard deviation"],
                "estimate": np.concatenate(
                    [found.spread, found.correlation[:n_pairs], [found.sigma]]
                ),
                f"{100 * level:g} % from": np.concatenate(
                    [ends.spread[:, 0], ends.correlation[:, 0], [ends.sigma[0]]]
                ),
                "to": np.concatenate([ends.spread[:, 1], ends.correlation[:, 1], [ends.sigma[1]]]),
            },
            "Variance components",
        )


def term_names(features, columns: Indices) -> list[str]:
    """Names of columns; the one after the last feature is the intercept."""
    names = [*map(str, features), "(intercept)"]
    return [names[j] for j in columns]


def extended(fit: LinearMixedFit, statistics: Floats) -> LinearMixedFit:
    """The fit with further sites (., k) that had no part in it: their effects given the rest."""
    from fedkin.models.linear_mixed import evaluate, profile
    from fedkin.models.linear_mixed_fit import Effects, predicted_effects
    from fedkin.models.linear_mixed_scales import products_of

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
