"""A fitted mixed model in tables and words, as a reader of lme4 expects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedkin.algorithms import better_off
from fedkin.algorithms.mixed_model_facts import Facts
from fedkin.algorithms.mixed_model_linear_facts import LinearFacts
from fedkin.arrays import Array, Floats, Indices
from fedkin.models.estimates import LEVEL, Estimates, terms_of
from fedkin.names import listed
from fedkin.protocol.runs import About
from fedkin.tables import Table


def estimates_of(result: Any, known: Facts) -> Estimates:
    """Coefficients with standard errors and Satterthwaite's degrees of freedom, (d,)."""
    return Estimates(result.coef, np.sqrt(np.diag(result.coef_covariance)), known.degrees)


def coefficient_intervals(result: Any, known: Facts, level: float) -> Floats:
    """Of every coefficient by Student's t, (d, 2)."""
    return estimates_of(result, known).intervals(level)


def fixed_table(result: Any, known: Facts, features: Sequence[str], level: float = LEVEL) -> Table:
    """Fixed effects as a reader of lme4 expects them, the intercept first."""
    found = Estimates(*(part[None] for part in estimates_of(result, known)))
    terms = terms_of(features, len(result.coef))
    return Table(found.by_group({}, terms, level), "Fixed effects")


def variance_table(
    result: Any, known: Facts, about: About, level: float = LEVEL, by: str = "wald"
) -> Table:
    """Standard deviations of effects and noise, and correlations, with intervals."""
    found, ends = known.components(), known.component_intervals(level, by)
    names = term_names(about.features, result.random)
    below = np.tril_indices(len(names), -1) if len(ends.correlation) else ((), ())
    pairs = [f"{names[i]}, {names[j]}" for i, j in zip(*below)]
    noise = ["noise"] if about.settings.gaussian else []
    table: dict[str, Any] = {
        "component": [*names, *pairs, *noise],
        "is": ["standard deviation"] * len(names)
        + ["correlation"] * len(pairs)
        + ["standard deviation"] * len(noise),
        "estimate": [
            *found.spread,
            *found.correlation[: len(pairs)],
            *([found.sigma] * len(noise)),
        ],
    }
    for name, end in ((f"{100 * level:g} % from", 0), ("to", 1)):
        sigma = [ends.sigma[end]] * len(noise)
        table[name] = [*ends.spread[:, end], *ends.correlation[:, end], *sigma]
    return Table(table, "Variance components")


def term_names(features: Sequence[str], columns: Indices) -> list[str]:
    """Names of columns; the one after the last feature is the intercept."""
    names = [*map(str, features), "(intercept)"]
    return [names[j] for j in columns]


def sites_table(result: Any, about: About) -> Table:
    """How far every site departs, with standard errors."""
    rows: dict[str, Array] = {"site": about.sites, "rows": result.site_rows}
    error = np.sqrt(np.einsum("mqq->mq", result.effects_covariance))
    for j, name in enumerate(term_names(about.features, result.random)):
        rows[name] = result.effects[:, j]
        rows[f"se {name}"] = error[:, j]
    if result.site_sigma is not None:
        rows["noise"] = result.site_sigma
    return Table(rows, "Sites: how far they depart")


def remarks(result: Any, known: Facts, about: About) -> list[str]:
    """A test of whether sites differ at all; what the data do not tell."""
    test = known.difference
    share = f"Share of the variance between sites {known.icc:.3f}."
    remarks = [share]
    if test is not None:
        remarks = [
            f"Do sites differ? Likelihood ratio {test.statistic:.4g}, p "
            f"{'at most ' * (not test.exact)}{test.p_value:.3g}. {share}"
        ]
    if known.singular:
        remarks.append(
            "Singular: some combination of effects has no variance between sites; a simpler "
            "`random` says the same."
        )
    if len(result.random) < len(about.settings.random_columns(len(result.coef))):
        remarks.append(
            "Sites have too few rows to tell how slopes differ: only their levels do here (who "
            "names `random` or `covariance` gets slopes)."
        )
    if _slopes_share(result, about):
        remarks.append(
            "Sites, or their rows, are too few to tell how departures go together: all slopes "
            "share one variance, of columns with spread one (covariance='full' has it otherwise)."
        )
    remarks += _simpler(result, known, about.settings)
    remarks += better_off.in_words(_beside(result, about.settings))
    if known.collinear:
        names = term_names(about.features, np.array(known.collinear))
        remarks.append(
            f"Columns depend on each other: {', '.join(names)}. Their coefficients are the "
            "shortest of all that fit equally well; drop one of them to read them singly."
        )
    if result.odd.any():
        remarks.append(f"Odd sites, which do not count: {listed(about.sites[result.odd])}.")
    if result.noise_shape is not None and np.isfinite(result.noise_shape):
        spread = 100 / np.sqrt(float(result.noise_shape))
        remarks.append(f"The sites' precisions vary by {spread:.0f} % around their mean.")
    return remarks


def _simpler(result: Any, known: Facts, settings: Any) -> list[str]:
    """That departures of slopes hardly pay, where levels alone, or none, have the lesser AIC."""
    level = len(result.coef) - 1
    slopes = len(result.random) > 1 and settings.fit_intercept and level in result.random
    if not isinstance(known, LinearFacts) or settings.robust or not slopes or len(result.heard) < 2:
        return []
    prices = known.aic_without_slopes()
    simplest = "departures of the level alone (random='intercept')", "one model for all"
    price, words = min(zip(prices, simplest))
    if not price < known.aic:
        return []
    return [
        f"Rows hardly tell that slopes differ: AIC prefers {words} by {known.aic - price:.2g}; "
        "sites may be worse off with slopes of their own."
    ]


def _beside(result: Any, settings: Any) -> Floats | None:
    """Errors to be expected beside one model for all and every site alone; None without sums."""
    if result.statistics is None or len(result.heard) < 2:
        return None
    counts = ~result.odd[result.heard]
    heard, statistics = result.heard[counts], result.statistics.T[counts]
    m, d = len(heard), len(result.coef)
    coef, covariance = np.tile(result.coef, (m, 1)), np.zeros((d, d))
    coef[:, result.random] += result.effects[heard]
    covariance[np.ix_(result.random, result.random)] = result.random_covariance
    noise = np.full(m, float(result.sigma) ** 2)
    if result.noise_shape is not None:
        noise = result.site_sigma[heard] ** 2
    intercept = settings.fit_intercept
    return better_off.fit_beside_others(
        np.ascontiguousarray(statistics), coef, covariance, noise, np.ones((m, 1)), intercept
    )


def _slopes_share(result: Any, about: About) -> bool:
    """Whether nobody asked for one variance of all slopes, and sites carry no more."""
    rows = np.nan_to_num(result.site_rows[~result.implausible])
    settings, size = about.settings, len(result.random)
    return settings.covariance == "auto" and settings.covariance_for(rows, size) != "full"
