"""Models of another form beside ODCL's clusters, from the same sums: what do the rows prefer?

BIC of each on the same rows, by maximum likelihood with one noise variance: one model for all
sites, the kinds that were found (a mixture: which kind a site is of is summed over), every site its
own model, and a mixed model, in which sites depart from a common model by random effects. No
further message is needed.
"""

from __future__ import annotations

import numpy as np

from fedkin.algorithms.odcl_evidence import Evidence
from fedkin.arrays import Floats, Indices
from fedkin.models.last_answers import LastAnswers
from fedkin.models.least_squares import residual_coefficients, solve
from fedkin.models.linear_mixed_fit import fit
from fedkin.models.random_covariance import Covariance
from fedkin.models.ridge_choice import RESIDUAL_ROUNDING

RIVALS = ("one common model", "kinds of sites", "every site alone", "mixed model")
# Coefficients up to which the mixed model's random effects have a full covariance, and up to which
# every coefficient has a variance of its own; beyond, all features share one.
FULL, DIAGONAL = 4, 12
# The mixed model is left out of more coefficients than this: its search would take longer than
# everything else.
MOST = 60
# Steps for the noise of the kinds, which come to rest much sooner.
NOISE_STEPS = 50


def rival_bics(evidence: Evidence, labels: Indices) -> Floats:
    """BIC of `RIVALS` for sites with labels (m,); NaN of what the rows cannot tell."""
    known = np.flatnonzero(evidence.known)
    evidence, labels = evidence.take(known), labels[known]
    statistics, n_rows = evidence.statistics, float(evidence.n_rows.sum())
    floor = max(RESIDUAL_ROUNDING * float(statistics[:, -2].sum()), np.finfo(float).tiny)

    def gaussian(residual: float, n_parameters: float) -> float:
        """BIC of a residual sum of squares with noise at its best."""
        if n_parameters >= n_rows:
            return float("nan")
        noise = max(residual, floor) / n_rows
        return float(n_rows * (1.0 + np.log(2.0 * np.pi * noise)) + n_parameters * np.log(n_rows))

    coef, rank = solve(statistics.sum(axis=0))
    common = gaussian(
        float(residual_coefficients(coef) @ statistics.sum(axis=0)), float(rank) + 1.0
    )
    alone = gaussian(float(evidence.plain_residual.sum()), float(evidence.rank.sum()) + 1.0)
    return np.array([common, kinds_bic(evidence, labels), alone, _mixed(evidence)])


def kinds_bic(evidence: Evidence, labels: Indices) -> float:
    """BIC of clusters (m,) as kinds of sites, with one noise variance."""
    floor = max(RESIDUAL_ROUNDING * float(evidence.statistics[:, -2].sum()), np.finfo(float).tiny)
    _, labels = np.unique(labels, return_inverse=True)
    count, n_rows = np.bincount(labels), float(evidence.n_rows.sum())
    n_parameters = len(count) * (evidence.n_coefficients + 1.0)
    if n_parameters >= n_rows:
        return float("nan")
    share = (labels == np.arange(len(count))[:, None]).astype(float)
    residual = evidence.residuals(solve(share @ evidence.statistics)[0])
    noise = max(float(residual[np.arange(len(labels)), labels].sum()), floor) / n_rows
    for _ in range(NOISE_STEPS):
        logs = np.log(count / count.sum()) - 0.5 * residual / noise
        top = logs.max(axis=1, keepdims=True)
        chance = np.exp(logs - top)
        total = chance.sum(axis=1, keepdims=True)
        again = max(float((chance / total * residual).sum()), floor) / n_rows
        if abs(again - noise) <= 1e-10 * noise:
            break
        noise = again
    loglik = float((top + np.log(total)).sum()) - 0.5 * n_rows * np.log(2.0 * np.pi * noise)
    return float(-2.0 * loglik + n_parameters * np.log(n_rows))


# The same sites are compared with other numbers of clusters.
MIXED_MODELS = LastAnswers[float]()


def _mixed(evidence: Evidence) -> float:
    """BIC of the mixed model with random effects on every coefficient."""
    d = evidence.n_coefficients
    if d > MOST or len(evidence.statistics) < 2:
        return float("nan")
    form: Covariance = "full" if d <= FULL else "diagonal" if d <= DIAGONAL else "isotropic"
    sums = np.ascontiguousarray(evidence.statistics.T)

    def bic() -> float:
        try:
            found = fit(sums, np.arange(d), "ml", form, evidence.fit_intercept)
        except (ValueError, np.linalg.LinAlgError):
            return float("nan")
        return float(found.criterion + found.n_parameters * np.log(evidence.n_rows.sum()))

    return MIXED_MODELS.of([sums], f"{form} {evidence.fit_intercept}", bic)


def in_words(bics: Floats) -> str:
    """Which of the models the rows prefer."""
    best = RIVALS[int(np.nanargmin(bics))] if np.isfinite(bics).any() else RIVALS[0]
    if best == "mixed model":
        return (
            "BIC prefers a mixed model: the sites differ by degrees rather than by kind; see "
            "fedkin.MixedModel."
        )
    if best == "every site alone":
        return "BIC prefers every site alone: the sites have nothing in common; see LocalERM."
    return f"BIC prefers {best} to a mixed model."
