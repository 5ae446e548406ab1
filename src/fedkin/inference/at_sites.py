"""Left-out rows of sites that hold their own: two rounds, of sums and of scores.

The joined model is fitted here, from the sums of all folds but one, by the estimator itself: an
engine hands it these sums as if sites had just sent them.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.algorithms.held_out import HELD_OUT, MOST_JOINED, HeldOutResult, HeldOutSettings
from fedkin.arrays import Floats, Indices
from fedkin.engines.journal import Record
from fedkin.engines.kept import KeptReplies
from fedkin.inference.held_out import HeldOut, Scores
from fedkin.models.least_squares import n_coefficients
from fedkin.models.ridge_evidence import spread_within
from fedkin.protocol import Replies

ALONE, JOINING, ONE = "alone", "joining", "one model"


@dataclass(frozen=True)
class FoldSums:
    """Sums of products (m, F, q) of the sites' folds, as they sent them.

    `part` are the sites with enough rows in every fold; `settings` is what they were asked with.
    """

    names: tuple[str, ...]
    sums: Floats
    part: Indices
    settings: HeldOutSettings
    seed: int

    @property
    def whole(self) -> Floats:
        """Sums of all rows of every site, (m, q)."""
        return np.asarray(self.sums.sum(axis=1))

    @property
    def sizes(self) -> Floats:
        """Rows of every site; none of those that take no part."""
        return np.asarray(self.whole[:, -1])

    def without(self, k: int) -> Floats:
        """Sums (m, q) of all folds but one."""
        return np.asarray(self.whole - self.sums[:, k])


def sums_by_fold(engine: Any, fit_intercept: bool, folds: int, seed: int) -> FoldSums:
    """Ask the sites for their sums."""
    settings = HeldOutSettings.from_mapping(
        {"folds": folds, "fold_seed": seed, "fit_intercept": fit_intercept}
    )
    run = engine.run(HELD_OUT, settings, None, seed)
    sums = run.result.statistics
    part = np.flatnonzero(sums[:, :, -1].sum(axis=1) > 0)
    if not len(part):
        raise ValueError("no site has enough rows in every fold; ask for fewer folds")
    return FoldSums(run.roster.names, sums, part, settings, seed)


def scores_at_sites(estimator: Any, way: Any, folds: int, seed: int) -> HeldOut:
    """What left-out rows say, asked of real sites through the estimator's engine.

    `way` is what to fit in the way of joining: an unfitted estimator that can be fitted to sums of
    products.
    """
    way = by_sums(way)
    known = sums_by_fold(estimator.engine, estimator.fit_intercept, folds, seed)
    return scores_of_ways(estimator.engine, {JOINING: way}, known)


def scores_of_ways(engine: Any, ways: Mapping[str, Any], known: FoldSums) -> HeldOut:
    """Scores of staying alone, of several ways of joining, by name, and of one model for all."""
    asked = known.settings.replace(**models_by_fold(ways, known))
    found = engine.run(HELD_OUT, asked, None, known.seed).result
    return summed(found, (ALONE, *ways, ONE), known.names, known.sizes)


def models_by_fold(ways: Mapping[str, Any], known: FoldSums) -> dict[str, Floats]:
    """What sites are told of these ways, and of one model for all, fitted without each fold."""
    if len(ways) > MOST_JOINED:
        raise ValueError(
            f"sites score at most {MOST_JOINED} ways of joining linear models in one question, not "
            f"{len(ways)}; leave some out"
        )
    m, n_folds, n_terms = *known.sums.shape[:2], n_coefficients(known.sums.shape[2])
    coef = np.zeros((m, n_folds, len(ways), n_terms))
    quadratic = np.zeros((*coef.shape, n_terms))
    for k in range(n_folds):
        for j, way in enumerate(ways.values()):
            fitted = fitted_to_sums(way, known, known.without(k))
            coef[:, k, j], quadratic[:, k, j] = _as_forms(fitted, known)
    whole, intercept = known.whole.sum(axis=0), known.settings.fit_intercept
    return {
        "coef": coef,
        "quadratic": quadratic,
        "pooled": np.stack([whole - known.sums[:, k].sum(axis=0) for k in range(n_folds)]),
        "spread": np.array([spread_within(known.without(k), intercept) for k in range(n_folds)]),
    }


def sums_at_sites(estimator: Any) -> tuple[tuple[str, ...], Floats]:
    """Names of the sites and their sums of products (m, .), asked through the engine.

    The sums of two folds of every site; one with few rows sends zeros.
    """
    shares = getattr(estimator, "share", "statistics") == "statistics"
    squared = getattr(estimator, "loss", "squared") == "squared"
    normal = getattr(estimator, "family", "gaussian") == "gaussian"
    if not (shares and squared and normal and hasattr(estimator, "fit_intercept")):
        raise ValueError(
            "at real sites this works from sums of products: it needs a linear model with a normal "
            "target (MixedModel, FMLR or ODCL)"
        )
    settings = HeldOutSettings.from_mapping(
        {"folds": 2, "fold_seed": 0, "fit_intercept": estimator.fit_intercept}
    )
    run = estimator.engine.run(HELD_OUT, settings, None, 0)
    return run.roster.names, np.asarray(run.result.statistics.sum(axis=1))


def fitted_to_sums(estimator: Any, known: FoldSums, statistics: Floats) -> Any:
    """The estimator fitted to sums of products (m, q) of the sites that take part."""
    from sklearn.base import clone

    replies = Replies(np.arange(len(known.part)), {"statistics": statistics[known.part]})
    record = Record(1, "", np.arange(len(known.part)), replies, ())
    kept = {"fit_intercept": estimator.fit_intercept}
    taking = tuple(known.names[k] for k in known.part)
    engine = KeptReplies("sums by fold", taking, kept, record)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return clone(estimator).set_params(engine=engine).fit()


def coefficients_of(model: Any, site: str, known: FoldSums) -> Floats:
    """Coefficients (p,) with which a model predicts at a site, known to it or not."""
    return _read_off(model, site, n_coefficients(known.sums.shape[2]) - 1)[0]


def _as_forms(model: Any, known: FoldSums) -> tuple[Floats, Floats]:
    """Coefficients (m, p) and variance forms (m, p, p) of a fitted model; zeros of the others."""
    m, n_terms = len(known.names), n_coefficients(known.sums.shape[2])
    coef, form = np.zeros((m, n_terms)), np.zeros((m, n_terms, n_terms))
    for k in known.part:
        coef[k], form[k] = _read_off(model, known.names[k], n_terms - 1)
    return coef, form


def _read_off(model: Any, site: str, d: int) -> tuple[Floats, Floats]:
    """The linear mean and quadratic variance of a site, from what is predicted at a few rows.

    With e_i the unit rows, a form v(x) = x'Qx + 2 b'x + c has c = v(0), 2 b_i = (v(e_i) - v(-e_i))
    / 2, Q_ii = (v(e_i) + v(-e_i)) / 2 - c and so on. Terms are in the order of the columns, the
    constant last.
    """
    unit = np.eye(d)
    pairs = [(i, j) for i in range(d) for j in range(i)]
    rows = np.concatenate(
        [np.zeros((1, d)), unit, -unit, *[(unit[i] + unit[j])[None] for i, j in pairs]]
    )
    mean, std = model.predict(rows, groups=site, return_std=True)
    variance = std**2
    constant, up, down = variance[0], variance[1 : d + 1], variance[d + 1 : 2 * d + 1]
    form = np.zeros((d + 1, d + 1))
    form[d, d] = constant
    form[d, :d] = form[:d, d] = (up - down) / 4.0
    form[range(d), range(d)] = (up + down) / 2.0 - constant
    for (i, j), value in zip(pairs, variance[2 * d + 1 :]):
        rest = form[i, i] + form[j, j] + constant + 2.0 * (form[i, d] + form[j, d])
        form[i, j] = form[j, i] = (value - rest) / 2.0
    return np.append(mean[1 : d + 1] - mean[0], mean[0]), form


def summed(
    found: HeldOutResult,
    ways: tuple[str, ...],
    names: tuple[str, ...],
    sizes: Floats,
    metrics_told: tuple[str, ...] = ("log", "rmse"),
) -> HeldOut:
    """Sums over folds as one repetition."""
    assert found.totals is not None and found.products is not None and found.rows is not None
    rows = found.rows
    trained = (rows * (sizes[:, None] - rows)).sum(axis=1) / np.maximum(rows.sum(axis=1), 1.0)
    metrics = {}
    for s, name in enumerate(metrics_told):
        totals = found.totals[:, :, s].sum(axis=1).T[:, None]
        products = found.products[:, :, s].sum(axis=1).transpose(1, 2, 0)[:, :, None]
        metrics[name] = Scores(totals, products)
    return HeldOut(ways, names, sizes, rows.sum(axis=1)[None], trained[None], metrics)


def by_sums(estimator: Any) -> Any:
    """The estimator as one that asks for sums of products once; refused if they cannot answer.

    `ODCL` asks for sites' models besides, unless it is told not to, and finds the same from sums.
    """
    from sklearn.base import clone

    if getattr(estimator, "send", "no such choice") is None:
        estimator = clone(estimator).set_params(send="statistics")
    sums = "statistics" in (getattr(estimator, "share", None), getattr(estimator, "send", None))
    normal = getattr(estimator, "family", "gaussian") == "gaussian"
    squared = getattr(estimator, "loss", "squared") == "squared"
    spread = "return_std" in inspect.signature(estimator.predict).parameters
    if not (sums and normal and squared and spread):
        raise ValueError(
            "at real sites benefit works from sums of products by fold: it needs MixedModel, FMLR "
            "or ODCL with a normal target, and sites that send such sums; or from fits without "
            "each fold: FGPR, FedGrEM, FedEM, FedGMM or TGMM"
        )
    if not estimator.fit_intercept:
        raise ValueError("at real sites benefit needs fit_intercept=True")
    return estimator
