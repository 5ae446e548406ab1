"""MixedModel's intervals hold what they say, and poisoned sites do not lead it."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from reproduction.pictures import dots
from reproduction.study import Promise, Results, Size, Study, cells

COEF, LEVEL = np.array([1.0, -1.0]), 2.0
# Of the effects of the first column and of the level.
SPREAD = np.array([[0.5, 0.2], [0.2, 1.0]])
# Rows a site, and sites, asked for predictions.
N_ASKED, N_NEW = 4, 20
LEAST, MOST = 0.93, 0.97


# ------------------------------------------------------------------ intervals


def federation(rng: Any, m: int, n: int, noise: np.ndarray) -> tuple[np.ndarray, ...]:
    """Rows, expected target, target and site (codes) of m sites of n rows."""
    site = np.repeat(np.arange(m), n)
    X = rng.normal(size=(m * n, 2))
    own = rng.multivariate_normal(np.zeros(2), SPREAD, size=m)[site]
    mean = LEVEL + X @ COEF + own[:, 0] * X[:, 0] + own[:, 1]
    return X, mean, mean + noise[site] * rng.normal(size=m * n), site


def coverage(seed: int, sites: int, rows: int, noise: str) -> list[dict[str, Any]]:
    """Shares of coefficients and of new targets within their 95 % intervals."""
    from fedkin import MixedModel

    rng = np.random.default_rng([14, sites, rows, seed])
    total = sites + N_NEW
    scale = np.exp(rng.uniform(-np.log(2), np.log(2), total)) if noise == "own" else np.ones(total)
    X, _, y, site = federation(rng, total, rows + N_ASKED, scale)
    asked = np.tile(np.arange(rows + N_ASKED) >= rows, total)
    train = ~asked & (site < sites)
    model = MixedModel(["x0"], site_noise="own" if noise == "own" else "common")
    model.fit(*_framed(X[train], y[train]), groups=site[train])
    low, high = model.conf_int().T
    records = model.fixed_effects().records()
    level = records[0]["95 % from"] <= LEVEL <= records[0]["to"]
    out: dict[str, Any] = {
        "fixed effects": float(np.mean([*((low <= COEF) & (high >= COEF)), level]))
    }
    for name, whose in (("known sites", site < sites), ("new sites", site >= sites)):
        wanted = asked & whose
        groups = np.where(whose, site, -1)[wanted]
        ends = model.predict(_framed(X[wanted], None)[0], groups, level=0.95)[1]
        inside = (ends[:, 0] <= y[wanted]) & (y[wanted] <= ends[:, 1])
        out[name] = float(inside.mean())
        out[f"width, {name}"] = float(np.mean(ends[:, 1] - ends[:, 0]))
    return [out]


def _framed(X: np.ndarray, y: Any) -> tuple[Any, Any]:
    import pandas

    return pandas.DataFrame(X, columns=["x0", "x1"]), y


def coverage_promises(results: Results) -> list[Promise]:
    """Between 93 and 97 % everywhere."""
    found = []
    for cell in CELLS:
        words = f"{cell['sites']} sites of {cell['rows']} rows, {cell['noise']} noise"
        for measure in COVERED:
            share = results.estimate(measure, **cell).mean
            found.append(Promise(f"{words}: coverage, {measure}", share, LEAST, MOST))
    return found


COVERED = ("fixed effects", "known sites", "new sites")
CELLS = cells(sites=(10, 50), rows=(5, 50), noise=("common", "own"))


# ------------------------------------------------------------------ poisoned sites

KINDS = ("x 1000", "sign flipped", "noise")
N_POISONED, N_SITES, N_ROWS = 5, 50, 20


def poisoned(seed: int, kind: str) -> list[dict[str, Any]]:
    """Error at clean sites with a tenth of the sites poisoned, over that without these sites."""
    from fedkin import MixedModel

    rng = np.random.default_rng([15, seed])
    X, mean, y, site = federation(rng, N_SITES, 2 * N_ROWS, np.ones(N_SITES))
    train = np.tile(np.arange(2 * N_ROWS) < N_ROWS, N_SITES)
    bad = site < N_POISONED
    target = y.copy()
    if kind == "x 1000":
        target[bad] *= 1000.0
    elif kind == "sign flipped":
        target[bad] *= -1.0
    else:
        target[bad] = 10.0 * rng.normal(size=int(bad.sum()))
    clean = train & ~bad
    asked = ~train & ~bad

    def error(robust: bool, rows: np.ndarray) -> tuple[float, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = MixedModel(robust=robust).fit(X[rows], target[rows], groups=site[rows])
        found = model.predict(X[asked], site[asked])
        return float(np.sqrt(np.mean((found - mean[asked]) ** 2))), model

    without, _ = error(False, clean)
    plain, _ = error(False, train)
    robust, model = error(True, train)
    named = {int(name) for name in model.odd_sites_}
    return [
        {
            "robust over without": robust / without,
            "plain over without": plain / without,
            "poisoned sites named": len(named & set(range(N_POISONED))) / N_POISONED,
            "clean sites named": len(named - set(range(N_POISONED))),
        }
    ]


def poisoned_promises(results: Results) -> list[Promise]:
    """Within a tenth of the error without the poisoned sites."""
    return [
        Promise(
            f"{kind}: error at clean sites, robust, over that without the poisoned sites",
            results.estimate("robust over without", kind=kind).mean,
            most=1.1,
        )
        for kind in KINDS
    ]


SPOILT = ("robust over without", "plain over without", "poisoned sites named", "clean sites named")
STUDIES = (
    Study(
        name="mixed-coverage",
        paper="fedkin",
        shows="coverage",
        title="95 % intervals of MixedModel",
        protocol=(
            "Federations of 10 and 50 sites with 5 and 50 rows: two columns, random level and "
            "slope of the first, noise 1 at every site (*common*) or between 0.5 and 2 (*own*, "
            'fitted with site_noise="own"). Shares of coefficients and of new targets, at sites of '
            "the fit and at 20 others, within 95 % intervals (`conf_int`, `predict(level=0.95)`)."
        ),
        one=coverage,
        figure=partial(dots, by=("sites", "rows", "noise"), measures=COVERED),
        promises=coverage_promises,
        by=("sites", "rows", "noise"),
        measures=(*COVERED, "width, known sites", "width, new sites"),
        full=Size(CELLS, 200),
        quick=Size(CELLS, 10),
        toy=Size(cells(sites=(50,), rows=(5,), noise=("common", "own")), 2),
    ),
    Study(
        name="mixed-poisoned",
        paper="fedkin",
        shows="poisoned sites",
        title="MixedModel with a tenth of the sites poisoned",
        protocol=(
            "50 sites of 20 rows, five of which send targets times 1000, with flipped sign, or "
            "noise (ten times the others'). Root mean squared error of predictions at the 45 clean "
            "sites around the true means, over that of a fit without the poisoned sites: with "
            "robust=True and without."
        ),
        one=poisoned,
        figure=partial(dots, by=("kind",), measures=SPOILT, log=("plain over without",)),
        promises=poisoned_promises,
        by=("kind",),
        measures=SPOILT,
        full=Size(cells(kind=KINDS), 50),
        quick=Size(cells(kind=KINDS), 5),
        toy=Size(cells(kind=KINDS), 2),
    ),
)
