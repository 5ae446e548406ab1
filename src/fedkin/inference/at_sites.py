"""Left-out rows of sites that hold their own: two rounds, of sums and of scores.

The joined model is fitted here, from the sums of all folds but one, by the estimator itself: an
engine hands it these sums as if sites had just sent them.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np

from fedkin.algorithms.held_out import HELD_OUT, HeldOutResult, HeldOutSettings
from fedkin.arrays import Floats, Indices
from fedkin.engines.journal import Record
from fedkin.engines.kept import KeptReplies
from fedkin.inference.held_out import HeldOut, Scores
from fedkin.models.least_squares import n_coefficients
from fedkin.protocol import Replies

WAYS = ("alone", "joining", "one model")


def scores_at_sites(estimator: Any, ways: Any, folds: int, seed: int) -> HeldOut:
    """What left-out rows say, asked of real sites through the estimator's engine.

    `ways` is what to fit in the way of joining: an unfitted estimator that asks for sums of
    products once.
    """
    _check(estimator)
    settings = HeldOutSettings.from_mapping(
        {"folds": folds, "fold_seed": seed, "fit_intercept": estimator.fit_intercept}
    )
    run = estimator.engine.run(HELD_OUT, settings, None, seed)
    names, sums = run.roster.names, run.result.statistics
    part = np.flatnonzero(sums[:, :, -1].sum(axis=1) > 0)
    if not len(part):
        raise ValueError("no site has enough rows in every fold; ask for fewer folds")
    models = [_joined(ways, names, _without(sums, k), part) for k in range(folds)]
    whole = sums.sum(axis=(0, 1))
    asked = settings.replace(
        coef=np.stack([coef for coef, _ in models], axis=1),
        quadratic=np.stack([form for _, form in models], axis=1),
        pooled=np.stack([whole - sums[:, k].sum(axis=0) for k in range(folds)]),
    )
    found = estimator.engine.run(HELD_OUT, asked, None, seed).result
    return _summed(found, names, sums)


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


def _without(sums: Floats, k: int) -> Floats:
    """Sums (m, q) of all folds but one."""
    return np.asarray(sums.sum(axis=1) - sums[:, k])


def _joined(
    estimator: Any, names: tuple[str, ...], statistics: Floats, part: Indices
) -> tuple[Floats, Floats]:
    """Coefficients (m, p) and variance forms (m, p, p) of the joined models of one fold."""
    from sklearn.base import clone

    replies = Replies(np.arange(len(part)), {"statistics": statistics[part]})
    record = Record(1, "", np.arange(len(part)), replies, ())
    kept = {"fit_intercept": estimator.fit_intercept}
    taking = tuple(names[k] for k in part)
    engine = KeptReplies("sums by fold", taking, kept, record)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = clone(estimator).set_params(engine=engine).fit()
    n_terms = n_coefficients(statistics.shape[1])
    coef, form = np.zeros((len(names), n_terms)), np.zeros((len(names), n_terms, n_terms))
    for k in part:
        coef[k], form[k] = _read_off(model, names[k], n_terms - 1)
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


def _summed(found: HeldOutResult, names: tuple[str, ...], sums: Floats) -> HeldOut:
    """Sums over folds as one repetition."""
    assert found.totals is not None and found.products is not None and found.rows is not None
    sizes = sums[:, :, -1].sum(axis=1)
    rows = found.rows
    trained = (rows * (sizes[:, None] - rows)).sum(axis=1) / np.maximum(rows.sum(axis=1), 1.0)
    metrics = {}
    for s, name in enumerate(("log", "rmse")):
        totals = found.totals[:, :, s].sum(axis=1).T[:, None]
        products = found.products[:, :, s].sum(axis=1).transpose(1, 2, 0)[:, :, None]
        metrics[name] = Scores(totals, products)
    return HeldOut(WAYS, names, sizes, rows.sum(axis=1)[None], trained[None], metrics)


def _check(estimator: Any) -> None:
    """Complain about what sums of products cannot answer."""
    shares = getattr(estimator, "share", None) == "statistics"
    normal = getattr(estimator, "family", "gaussian") == "gaussian"
    spread = "return_std" in inspect.signature(estimator.predict).parameters
    if not (shares and normal and spread):
        raise ValueError(
            "at real sites benefit works from sums of products by fold: it needs MixedModel (or "
            "another linear method that tells its spread) with share='statistics'"
        )
    if not estimator.fit_intercept:
        raise ValueError("at real sites benefit needs fit_intercept=True")
