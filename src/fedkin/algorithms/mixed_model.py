"""The mixed model: sites differ by degrees.

    y = X (beta + u_i) + noise,    u_i ~ N(0, V) on the columns with random effects

| Laird and Ware 1982; lme4 | here |
|---|---|
| beta, cov(beta) | `coef`, `coef_covariance` |
| u_i (BLUP, conditional mode) and its error | `effects`, `effects_covariance` |
| V, sigma | `random_covariance`, `sigma` |

For a normal target REML and ML need of a site nothing but its sums of products of features and
target, so the fit is the one that all rows in one place would give, to rounding
(`models.linear_mixed`), after one round. These are the very sums that FMLR sends with
`share="statistics"`: a journal of such a fit can be fitted again as a mixed model, and no site is
asked again. Sites that do not send them (`share="gradients"`), and counts (binomial, Poisson), send
values and slopes of their own marginal likelihoods in rounds (`mixed_model_rounds`).

Where we differ from the distributed versions in the literature (DLMM and its R package): the
restricted likelihood has its log|P|, and effects have their own errors, not the spread of sites.
Counts are fitted by Laplace's method or quadrature as in lme4, not by penalised quasi-likelihood.
"""

from __future__ import annotations

import numpy as np

from fedkin.algorithms.mixed_model_data import prepare
from fedkin.algorithms.mixed_model_result import MixedModelResult
from fedkin.algorithms.mixed_model_rounds import fit_in_rounds
from fedkin.algorithms.mixed_model_settings import MixedModelSettings
from fedkin.algorithms.mixed_model_sites import STEPS
from fedkin.models import linear_mixed_fit, robust_mixed, site_noise_fit
from fedkin.models.least_squares import n_coefficients, possible
from fedkin.protocol import Algorithm, Ask, Program, Roster


def program(roster: Roster, settings: MixedModelSettings) -> Program:
    """Ask once, or search in rounds."""
    if settings.in_rounds:
        fitted = yield from fit_in_rounds(roster, settings)
        return MixedModelResult.of_rounds(fitted, settings, len(roster))
    fields = ("log_weights",) if settings.weighted else ()
    replies = yield Ask("statistics", fields=fields, note="collecting statistics")
    sent = np.ascontiguousarray(replies["statistics"].T)
    # With weights the sum of squares of the intercept's column is not the number of rows.
    fine = possible(sent, settings.fit_intercept and not settings.weighted)
    if not fine.any():
        raise ValueError("no site sent statistics that rows can give; look at the sites")
    result = _fit(sent[:, fine], settings)
    if settings.weighted:
        result = result.with_log_weights(replies["log_weights"][fine])
    return result.among(len(roster), replies.clients[fine], replies.clients[~fine])


def _fit(statistics: np.ndarray, settings: MixedModelSettings) -> MixedModelResult:
    """From the statistics of the sites that sent possible ones, as if there were no others."""
    random = settings.random_columns(n_coefficients(len(statistics)))
    covariance = settings.covariance_for(statistics[-1], len(random))
    how = (random, settings.method, covariance, settings.fit_intercept)
    weights = None
    if settings.robust:
        robust = robust_mixed.robust_fit(statistics, *how)
        if settings.site_noise == "common":
            return MixedModelResult.of_robust(robust, statistics)
        weights = robust.weights
    if settings.site_noise == "own":
        own = site_noise_fit.fit(statistics, *how, weights)
        return MixedModelResult.of_own_noise(own, statistics, weights)
    return MixedModelResult.of_fit(linear_mixed_fit.fit(statistics, *how), statistics)


MIXED_MODEL = Algorithm(
    name="mixed_model",
    settings=MixedModelSettings,
    prepare=prepare,
    program=program,
    result=MixedModelResult,
    steps=STEPS,
)
