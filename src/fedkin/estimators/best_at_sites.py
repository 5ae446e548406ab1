"""`Best` where sites hold their own rows: ways are weighed by sums of scores alone.

Sites send the sums of products of their folds, get the fits of every way without each fold, and
answer with sums of scores of the rows left out (`fedkin.algorithms.held_out`). Weights that single
rows would give (`fedkin.models.stacking`) cannot be had from sums, and are not worth the many
questions that would tell of single rows; in their place stand chances:

| weights | are the chance of a way to be the best one ... |
|---|---|
| of all sites | by total log score, when sites are drawn anew (pseudo-BMA+) |
| of a site | by its expected gain over staying alone, with what the other sites tell of it |
| of point predictions | by total squared error, when sites are drawn anew |
| of new sites | by squared error at sites left out as a whole, which the sums of products tell |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from fedkin.arrays import Array, Floats
from fedkin.estimators.candidates import ALONE, ONE, Fitted, checked, linear_ways
from fedkin.estimators.site_models import PlainRegression
from fedkin.inference.at_sites import (
    FoldSums,
    by_sums,
    coefficients_of,
    fitted_to_sums,
    scores_of_ways,
    sums_by_fold,
)
from fedkin.inference.gains import gains
from fedkin.inference.held_out import RMSE, HeldOut
from fedkin.models.folds import name_folds
from fedkin.models.least_squares import n_coefficients, residual_coefficients
from fedkin.models.stacking import chances, least_error_chances
from fedkin.protocol import Run, Traffic

# Sites let their rows out cut in one way only: that of `benefit`.
FOLD_SEED = 0
# Draws of expected gains at a site.
DRAWS = 2000
LEVEL = 0.95


class Counting:
    """An engine that remembers what its runs sent, and who was left out of them."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.runs: list[Run] = []

    def run(self, *given: Any) -> Any:
        """Run, and keep the account."""
        self.runs.append(self.engine.run(*given))
        return self.runs[-1]


def fit_at_sites(best: Any, seed: int, site_folds: int) -> None:
    """Set what `Best.fit` sets, by two rounds of questions to the sites of its engine."""
    engine = Counting(best.engine)
    known = sums_by_fold(engine, True, best.folds, FOLD_SEED)
    ways = _ways(best.candidates, known, seed)
    held = scores_of_ways(engine, ways, known)
    order = (ALONE, ONE, *ways)
    held = _in_order(held, order)
    part = known.part
    totals = {metric: scores.totals[:, 0, part] for metric, scores in held.metrics.items()}
    best.ways_, best.held_out_ = order, held
    best.weights_ = chances(totals["log"], np.arange(len(part)))
    best.site_weights_ = _own_weights(held, best.weights_)
    best.strength_ = float("nan")
    best.best_way_ = order[int(np.argmax(best.weights_))]
    best.point_weights_ = least_error_chances(-totals[RMSE], float(held.rows.sum()))
    best.new_site_weights_ = _for_new_sites(ways, known, site_folds, seed)
    best.fitted_ = _fitted(ways, known)
    sites = {known.names[k] for k in part}
    best._fits = [Fitted.again(n, m, known.names, sites, None) for n, m in best.fitted_.items()]
    best.converged_ = all(getattr(m, "converged_", True) for m in best.fitted_.values())
    best.n_features_in_ = n_coefficients(known.sums.shape[2]) - 1
    best.client_names_ = np.array(known.names, dtype=object)
    _account(best, engine, known)


def _ways(candidates: Any, known: FoldSums, seed: int) -> dict[str, Any]:
    """Ways of joining, by name; those that sums of products do not fit are refused."""
    if len(known.part) < 2:
        raise ValueError(
            f"only site {known.names[known.part[0]]!r} has enough rows in every fold: ways of "
            "sharing are compared among two sites or more; ask for fewer folds"
        )
    if candidates is None:
        return linear_ways(known.whole, seed)
    return {name: by_sums(model) for name, model in checked(candidates).items()}


def _in_order(held: HeldOut, order: tuple[str, ...]) -> HeldOut:
    """The ways in another order."""
    place = [held.ways.index(way) for way in order]
    metrics = {
        name: replace(s, totals=s.totals[place], products=s.products[place][:, place])
        for name, s in held.metrics.items()
    }
    return replace(held, ways=order, metrics=metrics)


def _own_weights(held: HeldOut, common: Floats) -> Floats:
    """Each way's chance to gain most over staying alone at each site, (m, W).

    Expected gains are normal about what the site's rows and the other sites tell; a site that was
    not heard has the weights of all.
    """
    rng = np.random.default_rng(0)
    m, others = len(held.names), [way for way in held.ways if way != ALONE]
    drawn = np.zeros((len(held.ways), DRAWS, m))
    for way in others:
        found = gains(held.paired("log", way, ALONE), LEVEL)
        error = (found.high - found.low) / (2.0 * ndtri(0.5 + LEVEL / 2.0))
        drawn[held.ways.index(way)] = found.gain + error * rng.standard_normal((DRAWS, m))
    won = drawn.argmax(axis=0)
    chance = np.stack([(won == w).mean(axis=0) for w in range(len(held.ways))], axis=1)
    heard = np.asarray(np.isfinite(drawn).all(axis=(0, 1)))
    return np.where(heard[:, None], chance, common)


def _for_new_sites(ways: Mapping[str, Any], known: FoldSums, n_folds: int, seed: int) -> Floats:
    """Weights at a site that comes later, (W,): sites left out, squared errors from their sums."""
    names, part = (ONE, *ways), known.part
    if len(names) < 2 or len(part) < 2:
        return np.append(0.0, np.full(len(names), 1.0 / len(names)))
    fold = name_folds(tuple(known.names[k] for k in part), min(n_folds, len(part)), seed)
    square = np.zeros((len(names), len(part)))
    for k in np.unique(fold):
        out, rest = part[fold == k], replace(known, part=part[fold != k])
        coef = [np.append(*_plain(rest, pooled=True)._fits.coefficients())]
        coef += [
            coefficients_of(fitted_to_sums(way, rest, rest.whole), known.names[out[0]], rest)
            for way in ways.values()
        ]
        square[:, fold == k] = residual_coefficients(np.array(coef)) @ known.whole[out].T
    # Sites are what is drawn: each counts once, however many rows it has.
    each = square / known.sizes[part]
    return np.append(0.0, least_error_chances(np.maximum(each, 0.0), float(len(part))))


def _plain(known: FoldSums, pooled: bool) -> PlainRegression:
    """A plain fit of the sites that take part."""
    sums = known.whole[known.part]
    names = [known.names[k] for k in known.part]
    return PlainRegression(pooled)._from_sums(
        sums.sum(axis=0, keepdims=True) if pooled else sums, names
    )


def _fitted(ways: Mapping[str, Any], known: FoldSums) -> dict[str, Any]:
    """Every way fitted to all rows, from the sums that are here already."""
    joined = {name: fitted_to_sums(way, known, known.whole) for name, way in ways.items()}
    return {ALONE: _plain(known, False), ONE: _plain(known, True), **joined}


def _account(best: Any, engine: Counting, known: FoldSums) -> None:
    """What the two runs sent; fits to the sums asked nobody again."""
    best.traffic_ = Traffic()
    for run in engine.runs:
        best.traffic_.add(run.traffic)
    best.n_rounds_ = best.traffic_.rounds
    best.refusals_ = tuple(refusal for run in engine.runs for refusal in run.refusals)
    best.dropped_ = tuple(dict.fromkeys(name for run in engine.runs for name in run.dropped))
    missing = {site: str(fault) for run in engine.runs for site, fault in run.left_out.items()}
    few = _not_taking_part(known)
    best.missing_sites_ = {**dict.fromkeys(few, "too few rows in a fold"), **missing}


def _not_taking_part(known: FoldSums) -> list[str]:
    rest: Array = np.setdiff1d(np.arange(len(known.names)), known.part)
    return [known.names[k] for k in rest]
