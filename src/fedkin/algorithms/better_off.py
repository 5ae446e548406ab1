"""Is a fitted model probably worse for its sites than one model for all, or than every site alone?

Errors to be expected at further rows follow from the sums that sites sent anyway: those of the fit
(`models.expected_errors`, or ODCL's clusters) beside those of one regression of all rows and of
every site's own ridge (`odcl_evidence`). It is said only of what is much worse, and by more than a
standard error over sites: that single sites fare badly is no evidence for the others.
"""

from __future__ import annotations

import numpy as np

from fedkin.algorithms.odcl_evidence import Evidence
from fedkin.arrays import Floats
from fedkin.models.expected_errors import degrees_of_freedom, expected_errors

# Squared errors within this share of the best's are as good.
AS_GOOD = 0.02
# So are those of fewer clusters within so many standard errors, over sites, of the difference.
STANDARD_ERRORS = 1.0
# A root mean squared error so many times another's is said to be probably worse.
MUCH_WORSE = 1.1
# Sites that are looked at, evenly taken: enough to tell a tenth, and more would cost a fit several
# times its own time.
MOST_SITES = 300


def as_good(errors: Floats, least: Floats, fewer: bool) -> bool:
    """Whether sites' errors (k,) are as good as the least ones (k,); `fewer` clusters cost less."""
    if not np.isfinite(errors).all() or not np.isfinite(least).all():
        return not np.isfinite(least).all()
    worse = errors - least
    slack = AS_GOOD * float(least.sum())
    if fewer and len(worse) > 1:
        slack = max(slack, STANDARD_ERRORS * np.sqrt(len(worse)) * float(np.std(worse, ddof=1)))
    return bool(worse.sum() <= slack)


def beside_others(evidence: Evidence, errors: Floats) -> Floats:
    """Root mean squared errors to be expected: of a fit, of one model, of all alone, (3,).

    `errors` (m,) are the fit's squared errors at every site, in its `unit`. In standard deviations
    of the usual noise. NaN of one that sites do not tell from the fit.
    """
    able = evidence.can_stay_alone
    judges = able if able.any() else evidence.known
    m = len(errors)
    others = (np.zeros(m, dtype=np.intp), np.arange(m))
    mine, *rest = (each[judges] for each in (errors, *map(evidence.errors, others)))
    told = [each.sum() < mine.sum() and not as_good(mine, each, fewer=True) for each in rest]
    squares = [mine.sum(), *np.where(told, [each.sum() for each in rest], np.nan)]
    return np.sqrt(np.array(squares) / max(float(evidence.n_rows[judges].sum()), 1.0))


def fit_beside_others(
    statistics: Floats,
    coef: Floats,
    covariance: Floats,
    noise: Floats,
    share: Floats,
    fit_intercept: bool,
) -> Floats | None:
    """The same of coefficients (m, d) that were fitted for every site from statistics (m, q).

    `covariance` (d, d) of the departures, `noise` variances (m,), `share` (m, K) of the kinds.
    Sites of fewer than 2 d + 1 rows do not judge: where a fit of their own may double the noise,
    what is to be expected of it is too uncertain to send them away. None if hardly one is left.
    """
    judges = np.flatnonzero(statistics[:, -1] >= 2 * len(covariance) + 1)
    if len(judges) < 2:
        return None
    places = np.linspace(0, len(judges) - 1, min(len(judges), MOST_SITES))
    some = judges[np.unique(places.round().astype(np.intp))]
    evidence = Evidence(statistics[some], fit_intercept)
    taken = degrees_of_freedom(statistics[some], covariance, noise[some], share[some])
    return beside_others(
        evidence, expected_errors(statistics[some], coef[some], taken) / evidence.unit
    )


def in_words(beside: Floats | None) -> list[str]:
    """A sentence for each of one model and all alone that is probably much better."""
    if beside is None:
        return []
    mine, *others = beside
    return [
        f"Probably worse than {words}: errors of {mine:.3g} are to be expected at further "
        f"rows, there of {other:.3g} (in standard deviations of the usual noise)."
        for words, other in zip(("one model for all", "every site alone"), others)
        if mine > MUCH_WORSE * other
    ]
