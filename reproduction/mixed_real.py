"""MixedModel on real sites beside statsmodels, empirical Bayes, every site alone, and one model."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from reproduction.pictures import dots
from reproduction.real_sites import REGRESSIONS, split
from reproduction.study import Promise, Results, Size, Study

OURS, PEERS = "MixedModel", ("statsmodels", "empirical Bayes", "alone, ridge by CV", "one model")
# Rows a site; None is all of them. Ten days of sleepstudy leave seven to learn from.
ROWS = {"sleepstudy": (4, None), "Exam": (4, 10, 30, None), "Parkinsons": (4, 10, 30, None)}
ALPHAS = np.logspace(-4, 4, 17)
# How much worse than the best of the others is still as good.
WITHIN = 1.02


def real_sites(seed: int, table: str, rows: str) -> list[dict[str, Any]]:
    """Errors on held-out rows of every site."""
    data = REGRESSIONS[table]()
    n_rows = None if rows == "all" else int(rows)
    train, test = split(data.site, n_rows, seed)
    learn = data.X[train], data.y[train], data.site[train]
    ask = data.X[test], data.site[test]
    found = {
        OURS: by_mixed_model(*learn, *ask),
        "statsmodels": by_statsmodels(*learn, *ask),
        "empirical Bayes": by_empirical_bayes(*learn, *ask),
        "alone, ridge by CV": by_ridge(*learn, *ask),
        "one model": by_one_model(*learn, *ask),
    }
    errors = {name: float(np.sqrt(np.mean((y - data.y[test]) ** 2))) for name, y in found.items()}
    return [{"method": name, "error": error} for name, error in errors.items()]


def by_mixed_model(X, y, site, X_test, site_test):
    """Ours, with its defaults."""
    from fedkin import MixedModel

    return MixedModel().fit(X, y, groups=site).predict(X_test, site_test)


def by_statsmodels(X, y, site, X_test, site_test):
    """MixedLM by REML: random intercept and slopes; what it warns of is its own business."""
    from statsmodels.api import MixedLM

    design, wanted = _with_level(X), _with_level(X_test)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how: dict[str, Any] = {"method": ["bfgs", "lbfgs", "cg"], "maxiter": 500}
        found = MixedLM(y, design, site, exog_re=design).fit(reml=True, **how)
        effects = found.random_effects
    own = np.array([np.asarray(effects.get(name, np.zeros(2))) for name in site_test])
    return np.einsum("nd,nd->n", wanted, np.asarray(found.fe_params) + own)


def by_empirical_bayes(X, y, site, X_test, site_test):
    """Least squares of every site pulled to their mean by variances estimated by moments.

    Sites with fewer than two rows to spare do not speak for the variances.
    """
    design, wanted = _with_level(X), _with_level(X_test)
    d, names = design.shape[1], np.unique(site)
    grams, crosses, left, free = [], [], 0.0, 0
    for name in names:
        own = site == name
        grams.append(design[own].T @ design[own])
        crosses.append(design[own].T @ y[own])
        coef = np.linalg.lstsq(design[own], y[own], rcond=None)[0]
        left += float(((y[own] - design[own] @ coef) ** 2).sum())
        free += max(int(own.sum()) - np.linalg.matrix_rank(design[own]), 0)
    noise = left / max(free, 1)
    sizes = [int((site == name).sum()) for name in names]
    full = [n >= d + 2 and np.linalg.matrix_rank(g) == d for n, g in zip(sizes, grams)]
    coefs = np.array([np.linalg.solve(g, b) for g, b, f in zip(grams, crosses, full) if f])
    errors = np.array([noise * np.linalg.inv(g) for g, f in zip(grams, full) if f])
    values, vectors = np.linalg.eigh(np.cov(coefs.T) - errors.mean(axis=0))
    spread = (vectors * np.maximum(values, 1e-9 * np.abs(values).max())) @ vectors.T
    weights = np.linalg.inv(errors + spread)
    mean = np.linalg.solve(weights.sum(axis=0), np.einsum("mij,mj->i", weights, coefs))
    prior = np.linalg.inv(spread)
    pulled = {
        name: np.linalg.solve(gram / noise + prior, cross / noise + prior @ mean)
        for name, gram, cross in zip(names, grams, crosses)
    }
    return np.einsum("nd,nd->n", wanted, np.array([pulled.get(n, mean) for n in site_test]))


def by_ridge(X, y, site, X_test, site_test):
    """Every site alone; the penalty by leave-one-out on its own rows."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    out = np.empty(len(X_test))
    for name in np.unique(site_test):
        own, asked = site == name, site_test == name
        model = make_pipeline(StandardScaler(), RidgeCV(ALPHAS)).fit(X[own], y[own])
        out[asked] = model.predict(X_test[asked])
    return out


def by_one_model(X, y, site, X_test, site_test):
    """Least squares of all rows."""
    return _with_level(X_test) @ np.linalg.lstsq(_with_level(X), y, rcond=None)[0]


def _with_level(X: np.ndarray) -> np.ndarray:
    return np.column_stack([X, np.ones(len(X))])


def promises(results: Results) -> list[Promise]:
    """As good as the best of the others on every table and with every number of rows."""
    found = []
    for cell in CELLS:
        run = results.where(**cell)
        ours = run.estimate("error", method=OURS).mean
        best = np.min([run.estimate("error", method=peer).mean for peer in PEERS])
        what = f"{cell['table']}, {cell['rows']} rows a site: error over that of the best other"
        found.append(Promise(what, ours / best, most=WITHIN))
    return found


CELLS = [
    {"table": table, "rows": "all" if n is None else str(n)}
    for table, sizes in ROWS.items()
    for n in sizes
]
STUDIES = (
    Study(
        name="mixed-real-sites",
        paper="fedkin",
        shows="real sites",
        title="MixedModel on tables with natural sites",
        protocol=(
            "Reaction times of 18 people by day (lme4's sleepstudy), exam results in 65 schools by "
            "an earlier test (mlmRev's Exam), scores of 42 Parkinsons patients by time. Thirty per "
            "cent of every site's rows are held out, 4, 10, 30 or all others are learnt from; five "
            "splits. *error* is the root mean squared error on held-out rows. MixedModel with its "
            "defaults; statsmodels MixedLM by REML with random intercept and slope; empirical "
            "Bayes: least squares of every site pulled to their mean by variances estimated by "
            "moments; every site alone with a ridge penalty by leave-one-out; one model for all."
        ),
        one=real_sites,
        figure=partial(dots, by=("table", "rows", "method"), measures=("error",), log=("error",)),
        promises=promises,
        by=("table", "rows", "method"),
        measures=("error",),
        full=Size(CELLS, 5),
        quick=Size(CELLS, 1),
        toy=Size([{"table": "sleepstudy", "rows": "all"}], 2),
        needs=tuple(REGRESSIONS.values()),
    ),
)
