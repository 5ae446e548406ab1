"""Softmax regressions of sites, each pulled towards the common one as far as rows left out say.

    P(label = c | x) = softmax(x'(B + U_i))_c,    U_i[c, j] ~ N(0, v[c, block of j]),

columns standardised. There is one variance for every class and block of columns: the features
together and the intercept, or every column by itself with covariance="diagonal".

Given the variances (those of the departures, and one of B) the fit is Newton's method in B: a site
finds its own U_i at a B, and sends the height, its slope and its second derivatives, U_i having
gone along. Many sets of variances are fitted side by side, so that looking for the best of them
costs a few rounds and not a fit each.

1. Sets in which classes have equal variances, on a grid of sizes. Some have no departures: these
   are common models, from firm to loose.
2. Sets are judged by the loss of rows that sites leave out in turn (`models.softmax_left_out`).
   Sites that nothing is known of get the common model that whole sites left out lose least by.
3. Sets in which sites depart from a common model as it is, first from the best of them: where sites
   have few rows, the middle of their own models is not as well determined as one model of all rows.
4. New sets around the best one: features' and intercepts' departures and the variance of B larger
   or smaller (or the next common model); and single classes moved to where the departures found put
   them (empirical Bayes, `models.softmax_variances`), half the way and all of it. Judged again;
   parabolas through the losses along each of these ways tell where to look once more, with smaller
   steps. Where sites depart from a common model, none of this takes a search in rounds.

Rows left out have the word because empirical Bayes alone, free to give every class its own
variance, sent single classes to zero without any gain on new rows, and with few rows all of them.
"""

from __future__ import annotations

import numpy as np

from fedkin.algorithms.softmax_mixed_result import SoftmaxMixedResult
from fedkin.algorithms.softmax_mixed_rounds import as_they_are, better, for_new_sites, opened
from fedkin.algorithms.softmax_mixed_sets import TOGETHER_LOGS, first_sets, sets_around
from fedkin.algorithms.softmax_mixed_sites import STEPS, prepare
from fedkin.models.random_covariance import Covariance
from fedkin.protocol import Algorithm, Ask, Program, Roster
from fedkin.settings import Flag, Number, Settings, Whole, one_of, setting

# Later sets lie so far to both sides of the best one.
LATER = (1.0, 0.5)
# Rounds that another stage takes at the least.
LEAST_ROUNDS = 5


class SoftmaxMixedSettings(Settings):
    """What can be set."""

    covariance: Covariance = setting("isotropic", one_of("full", "diagonal", "isotropic"))
    fit_intercept: bool = setting(True, Flag(), at_site=True)
    share: str = setting("statistics", one_of("statistics", "gradients"))
    max_rounds: int = setting(60, Whole())
    tol: float = setting(1e-4, Number(above=0.0))


def program(roster: Roster, settings: SoftmaxMixedSettings) -> Program:
    """Scales, sets of variances side by side, sets around the best, and the end."""
    fit = yield from opened(roster, settings)
    sets = first_sets(fit.n_classes, fit.is_level)
    stage = yield from fit.stage(sets, np.zeros_like(sets.departures))
    verdict = yield from fit.judge(stage)
    alike = slice(len(TOGETHER_LOGS))
    commons = stage.only(alike)
    common = better(None, commons, verdict.only(alike))
    population = for_new_sites(commons, verdict.only(alike), int(np.count_nonzero(fit.rows)))
    best = better(None, stage, verdict)
    stage = fit.from_common(commons, common.common)
    verdict = yield from fit.judge(stage)
    best, guess = better(best, stage, verdict), None
    for size in LATER:
        if not best.departs or fit.left < (LEAST_ROUNDS if not best.together else 2):
            break
        together = best.together
        around = sets_around(fit.centre(best, guess), size, fit.is_level, together)
        if together:
            stage = as_they_are(commons, around.sets)
        else:
            start = np.tile(best.coef, (len(around.sets.common), 1, 1))
            stage = yield from fit.stage(around.sets, start)
        verdict = yield from fit.judge(stage)
        best, guess = better(best, stage, verdict), around.lowest(verdict.loss)
    wanted = ("departures",) if settings.share == "statistics" else ()
    told = fit.message(best.departures[None], best.coef[None])
    settled = yield Ask("settle", told, fields=wanted, note="sites learn their part")
    return fit.result(best, population, settled, len(roster))


SOFTMAX_MIXED = Algorithm(
    name="softmax_mixed",
    settings=SoftmaxMixedSettings,
    prepare=prepare,
    program=program,
    result=SoftmaxMixedResult,
    steps=STEPS,
)
