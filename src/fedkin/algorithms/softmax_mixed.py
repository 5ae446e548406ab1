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
3. Sets in which sites depart from the best common model as it is: where sites have few rows, the
   middle of their own models is not as well determined as one model of all rows. Then with larger
   and smaller departures of features and of intercepts, and single classes moved to where the
   departures found put them (empirical Bayes, `models.softmax_variances`), half the way and all of
   it; parabolas through the losses along each of these ways tell where the best set is. Around it
   lies a grid of departures and of the next common models. None of this takes a search for B.
4. If sets with a B of their own are not far behind, new ones around the best of them, in the same
   ways.
5. A site's model is the mean of those by all sets of the grids, each with a weight that falls by a
   factor e with every 10 nats that it loses more on all rows left out: a few rows decide between
   neighbours, and the mean of firm and loose models does better than any of them.

Rows left out have the word because empirical Bayes alone, free to give every class its own
variance, sent single classes to zero without any gain on new rows, and with few rows all of them.
"""

from __future__ import annotations

import numpy as np

from fedkin.algorithms.softmax_mixed_result import SoftmaxMixedResult
from fedkin.algorithms.softmax_mixed_rounds import (
    Best,
    Fit,
    Mean,
    Server,
    Stage,
    Verdict,
    as_they_are,
    better,
    for_new_sites,
    opened,
)
from fedkin.algorithms.softmax_mixed_sets import (
    TOGETHER_LOGS,
    first_sets,
    sets_around,
    sets_aside,
)
from fedkin.algorithms.softmax_mixed_sites import STEPS, prepare
from fedkin.models.random_covariance import Covariance
from fedkin.protocol import Algorithm, Ask, Program, Roster
from fedkin.settings import Flag, Number, Settings, Whole, one_of, setting

# Later sets lie so far to both sides of the best one.
LATER = (1.0, 0.5)
# Rounds that another stage takes at the least.
LEAST_ROUNDS = 5

Judged = list[tuple[Stage, Verdict]]
"""Sets whose models are averaged at the end, with what rows left out say of them."""


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
    judged = [(stage, verdict)]
    alike, apart = slice(len(TOGETHER_LOGS)), slice(len(TOGETHER_LOGS), None)
    commons, of_commons = stage.only(alike), verdict.only(alike)
    population = for_new_sites(commons, of_commons, int(np.count_nonzero(fit.rows)))
    common = better(None, commons, of_commons)
    middle = better(None, stage.only(apart), verdict.only(apart))
    common = yield from from_commons(fit, commons, common, middle, judged)
    if fit.within_reach(middle, common):
        middle = yield from from_middle(fit, middle, judged)
    mean = Mean.of(judged, fit.counted)
    told = {**fit.message(mean.departures, mean.coef), "weights": mean.weights}
    wanted = ("departures",) if settings.share == "statistics" else ()
    settled = yield Ask("settle", told, fields=wanted, note="sites learn their part")
    return fit.result(mean, min(common.loss, middle.loss), population, settled, len(roster))


def from_commons(fit: Fit, commons: Stage, best: Best, middle: Best, judged: Judged) -> Server:
    """The best set of departures from a common model as it is; no B has to be found."""
    stage = fit.from_common(commons, best.common)
    verdict = yield from fit.judge(stage)
    best = better(best, stage, verdict)
    if not best.departs or fit.left < LEAST_ROUNDS or not fit.within_reach(best, middle):
        judged.append((stage, verdict))
        return best
    around = sets_around(fit.centre(best), LATER[0], fit.is_level, together=True)
    stage = as_they_are(commons, around.sets)
    verdict = yield from fit.judge(stage)
    best, guess = better(best, stage, verdict), around.lowest(verdict.loss)
    stage = as_they_are(commons, sets_aside(*guess))
    verdict = yield from fit.judge(stage)
    once = stage.distinct()[0]
    judged.append((stage.only(once), verdict.only(once)))
    return better(best, stage, verdict)


def from_middle(fit: Fit, best: Best, judged: Judged) -> Server:
    """The best set of departures from the middle of the sites' own models."""
    guess = None
    for size in LATER:
        if fit.left < LEAST_ROUNDS:
            break
        around = sets_around(fit.centre(best, guess), size, fit.is_level, together=False)
        start = np.tile(best.coef, (len(around.sets.common), 1, 1))
        stage = yield from fit.stage(around.sets, start)
        verdict = yield from fit.judge(stage)
        # The first centre was judged before.
        once = stage.distinct()[0][int(guess is None) :]
        judged.append((stage.only(once), verdict.only(once)))
        best, guess = better(best, stage, verdict), around.lowest(verdict.loss)
    return best


SOFTMAX_MIXED = Algorithm(
    name="softmax_mixed",
    settings=SoftmaxMixedSettings,
    prepare=prepare,
    program=program,
    result=SoftmaxMixedResult,
    steps=STEPS,
)
