"""Rows left out at sites that hold their own: sums of products by fold, then scores.

For linear models with a normal target. A site cuts its rows into folds, by its own name and size
alone, and sends the sums of products of each fold. All folds but one give whatever fit the
coordinator wants, exactly as if those rows had been left out. The fits go back, and the site scores
the fold that was left out: only sums of scores travel.

| word | meaning |
|---|---|
| way | first alone (the site fits it), ways of joining, last one model (from the sums of all) |
| score | 0 log density, 1 negative squared error |

A joined model travels as coefficients, intercept last, and the quadratic form that gives the
variance of a target at a row. A site with few rows in some fold sends zeros: it takes no part.

Sums of a fold are about the rows of that fold, and a site's disclosure rules judge every fold as if
it were all there is. Who knows a site's name and number of rows knows its folds, so that sums over
folds of many seeds could be solved for every row: a site lets its rows out cut in one way only.

The models that are scored are the server's. One that makes them up reads rows from scores: a
variance that is positive on one side of a plane only leaves all rows of the other side at the worst
score there is, and the few that are not can be read off; and every further model is a further
equation. So a score at which some rows of a fold are the worst there is and others are not counts
as told of one row, and a site with rules scores a handful of models, once in a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedkin.arrays import Array, Floats
from fedkin.models.folds import row_folds, rows_where
from fedkin.models.least_squares import packed_statistics
from fedkin.models.ridge_evidence import fit_ridges
from fedkin.protocol import (
    Algorithm,
    Ask,
    Field,
    Program,
    Result,
    Roster,
    Step,
    TracedReply,
    over_roster,
)
from fedkin.settings import Flag, Settings, Whole, setting

# A sum over fewer rows says too much of each of them (DataSHIELD's rule for tables).
LEAST_FOLD_ROWS = 3
N_SCORES = 2
# Log densities below this are all as bad.
LOWEST = -1e4
# Ways of joining that one question can be about; `Best` has three of its own.
MOST_JOINED = 4


class HeldOutSettings(Settings):
    """Folds, and the models to score; without models sites send sums of products."""

    folds: int = setting(5, Whole(2), at_site=True)
    fold_seed: int = setting(0, Whole(0), at_site=True)
    least_fold_rows: int = setting(LEAST_FOLD_ROWS, Whole(0), at_site=True)
    fit_intercept: bool = setting(True, Flag(), at_site=True)
    coef: Any = setting(None)
    quadratic: Any = setting(None)
    pooled: Any = setting(None)
    spread: Any = setting(None)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOutResult(Result):
    """Sums by fold (m, F, q) and of all (q,); or scores by fold, way and kind, and rows.

    Where ways are fitted in rounds: `ways` (V,), those that could be, and `spans` (all ways, 2),
    the rounds before the first and up to the last of each.
    """

    heard: Array
    statistics: Floats | None = None
    total: Floats | None = None
    totals: Floats | None = None
    products: Floats | None = None
    rows: Floats | None = None
    ways: Array | None = None
    spans: Array | None = None

    for_one = ("totals", "products", "rows")

    def account(self, about: Any) -> list[str]:
        """What left the sites."""
        if self.statistics is not None:
            return ["Each site sent the sums of products of features and target of every fold."]
        return ["Each site sent sums of scores of its left-out rows."]


# ------------------------------------------------------------------ what leaves a client

STATISTICS = Field(
    ("F", "q"), "sums of products of features and target, by fold", reveals="products"
)
TOTALS = Field(("F", "S", "W"), "sums of scores of left-out rows, by fold, score and way")
PRODUCTS = Field(("F", "S", "W", "W"), "second moments of the ways' scores, by fold")
ROWS = Field(("F",), "rows left out, by fold", least=0.0, reveals="count")

# What comes to the sites to be scored: of all sites, and the joined models of each.
OF_ALL = {
    "pooled": Field(("F", "q"), "sums of products of all sites, fold left out"),
    "spread": Field(("F",), "spread of targets within sites, fold left out"),
}
MODELS = {
    "coef": Field(("F", "J", "p"), "coefficients of the joined models, by fold"),
    "quadratic": Field(("F", "J", "p", "p"), "variance of a target at a row, by fold"),
}


# ------------------------------------------------------------------ client functions


def prepare(clients, settings):
    """Sums of products of every client's folds, (m, F, q)."""
    if clients.y is None:
        raise ValueError("rows left out are scored by their target: y is needed at every site")
    fold = row_folds(clients, settings.folds, settings.fold_seed)
    parts = [rows_where(clients, fold == k) for k in range(settings.folds)]
    sums = np.stack([packed_statistics(part, settings.fit_intercept).T for part in parts], axis=1)
    rows = np.stack([part.sizes for part in parts], axis=1)
    sums[rows.min(axis=1) < settings.least_fold_rows] = 0.0
    return {"sums": sums}


def fold_sums(clients, cache, settings, common, personal, memory, keys):
    """Sums of products by fold."""
    reply = {"statistics": cache["sums"].copy()}
    return TracedReply(reply, partial(rows_of_folds, clients, cache, settings, reply)), memory


def rows_of_folds(clients, cache, settings, reply):
    """Which rows are in which fold, (N, F), for every field; none of who takes no part."""
    fold = row_folds(clients, settings.folds, settings.fold_seed)
    takes_part = cache["sums"][:, :, -1].sum(axis=1) > 0
    inside = (fold[:, None] == np.arange(settings.folds)) & takes_part[clients.owner, None]
    return dict.fromkeys(reply, inside.astype(float))


def scores(clients, cache, settings, common, personal, memory, keys):
    """Scores of left-out rows by every way, summed by fold."""
    m, n_folds = len(clients), settings.folds
    n_ways = n_joined(personal) + 2
    totals = np.zeros((m, n_folds, N_SCORES, n_ways))
    products = np.zeros((m, n_folds, N_SCORES, n_ways, n_ways))
    rows = np.zeros((m, n_folds))
    singled = np.zeros((m, n_folds), dtype=bool)
    fold = row_folds(clients, n_folds, settings.fold_seed)
    takes_part = cache["sums"][:, :, -1].sum(axis=1) > 0
    for k in range(n_folds):
        test = rows_where(clients, (fold == k) & takes_part[clients.owner])
        if not len(test.X):
            continue
        rows[:, k] = test.sizes
        each = scores_of_rows(test, cache["sums"], k, settings, common, personal)
        singled[:, k] = singles_out(each[0], test)
        for a in range(n_ways):
            for s in range(N_SCORES):
                totals[:, k, s, a] = np.bincount(test.owner, each[s, a], minlength=m)
                for b in range(n_ways):
                    both = each[s, a] * each[s, b]
                    products[:, k, s, a, b] = np.bincount(test.owner, both, minlength=m)
    reply = {"totals": totals, "products": products, "rows": rows}
    behind = partial(rows_of_scores, clients, cache, settings, reply, singled)
    return TracedReply(reply, behind), memory


def n_joined(personal):
    """How many joined models came to be scored."""
    n_models = int(personal["coef"].shape[2])
    if n_models > MOST_JOINED:
        raise ValueError(f"{n_models} ways of joining in one question, {MOST_JOINED} at most")
    return n_models


def singles_out(logs, test):
    """Whether a way gives some rows of a client the worst score there is, and others not, (m,)."""
    n_worst = np.array([np.bincount(test.owner, log <= LOWEST, len(test)) for log in logs])
    return ((n_worst > 0) & (n_worst < test.sizes)).any(axis=0)


def rows_of_scores(clients, cache, settings, reply, singled):
    """As `rows_of_folds`, but one row only of a fold whose scores `singled` (m, F) rows out."""
    inside = rows_of_folds(clients, cache, settings, reply)["totals"]
    return dict.fromkeys(reply, one_row_where(singled, inside, clients.owner))


def one_row_where(singled, inside, owner):
    """Which rows are in which fold (N, F), one row only of folds that are `singled` out (m, F)."""
    left = inside.copy()
    for client, k in np.argwhere(singled):
        own = np.flatnonzero((owner == client) & (inside[:, k] > 0))
        left[own[1:], k] = 0.0
    return left


def scores_of_rows(test, sums, k, settings, common, personal):
    """Every score of the rows of the k-th fold by every way, (S, W, n); `sums` are by fold."""
    spread = float(common["spread"][k])
    alone = fit_ridges(sums.sum(axis=1) - sums[:, k], settings.fit_intercept, spread)
    one = fit_ridges(common["pooled"][None, k], settings.fit_intercept)
    joined = [
        _normal(test, personal["coef"][:, k, j], personal["quadratic"][:, k, j], settings)
        for j in range(personal["coef"].shape[2])
    ]
    all_rows = np.zeros(len(test.X), dtype=np.intp)
    means = [alone.predict(test.X, test.owner)[0], *[mean for mean, _ in joined]]
    means.append(one.predict(test.X, all_rows)[0])
    logs = [alone.log_density(test.X, test.y, test.owner), *[log for _, log in joined]]
    logs.append(one.log_density(test.X, test.y, all_rows))
    return np.stack([np.maximum(logs, LOWEST), -((test.y - np.array(means)) ** 2)])


def _normal(test, coef, quadratic, settings):
    """Mean and log density of every row by a linear model with a quadratic variance."""
    level = np.ones((len(test.X), int(settings.fit_intercept)))
    design = np.concatenate([test.X, level], axis=1)
    mean = np.einsum("np,np->n", design, coef[test.owner])
    variance = np.einsum("np,npr,nr->n", design, quadratic[test.owner], design)
    variance = np.maximum(variance, np.finfo(float).tiny)
    with np.errstate(over="ignore"):  # as bad as can be
        log = -0.5 * (np.log(2 * np.pi * variance) + (test.y - mean) ** 2 / variance)
    return mean, log


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: HeldOutSettings) -> Program:
    """Ask for sums, or for scores of the models in the settings."""
    m = len(roster)
    if settings.coef is None:
        replies = yield Ask("sums")
        sums = replies["statistics"]
        everyone = over_roster(sums, replies.clients, m, 0.0)
        total = sums.sum(axis=(0, 1))
        return HeldOutResult(heard=replies.clients, statistics=everyone, total=total)
    models = {"coef": np.asarray(settings.coef), "quadratic": np.asarray(settings.quadratic)}
    common = {"pooled": np.asarray(settings.pooled), "spread": np.asarray(settings.spread)}
    replies = yield Ask("scores", common, models)
    told = {n: over_roster(replies[n], replies.clients, m, 0.0) for n in ("totals", "products")}
    rows = over_roster(replies["rows"], replies.clients, m, 0.0)
    return HeldOutResult(heard=replies.clients, rows=rows, **told)


HELD_OUT = Algorithm(
    name="held_out",
    steps={
        "sums": Step(fold_sums, {"statistics": STATISTICS}, cuts=True),
        "scores": Step(
            scores,
            {"totals": TOTALS, "products": PRODUCTS, "rows": ROWS},
            common=OF_ALL,
            personal=MODELS,
            cuts=True,
            most=1,
        ),
    },
    program=program,
    settings=HeldOutSettings,
    result=HeldOutResult,
    prepare=prepare,
)
