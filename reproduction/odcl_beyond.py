"""ODCL beyond its paper: fewer rows than coefficients, and spoilt sites."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from reproduction.pictures import dots
from reproduction.study import Promise, Results, Size, Study, cells

# ------------------------------------------------------------------ few rows

WAYS: dict[str, dict[str, Any]] = {
    "statistics": {"n_clusters": 10, "aggregate": "statistics"},
    "statistics, number chosen": {"aggregate": "statistics"},
    "precision": {"n_clusters": 10, "aggregate": "precision"},
    "models": {"n_clusters": 10, "aggregate": "mean"},
}
ROWS = (5, 10, 15, 25, 30, 50, 100, 400)
# Two numbers that agree to all digits that are kept.
KEPT_DIGITS = 1e-6


def few_rows(seed: int, n: int) -> list[dict[str, Any]]:
    """Every way to put sites together, beside pooling the rows of the true clusters."""
    from fedkin import ODCL, ClusterOracle
    from fedkin.datasets import make_sparse_regressions
    from reproduction.odcl_protocol import fit

    groups = make_sparse_regressions(n, random_state=[seed, n])
    ways = {k: v for k, v in WAYS.items() if k != "precision" or n > 20}
    rows = [
        {"method": name, **fit(groups, ODCL, seed, fit_intercept=False, **way)._asdict()}
        for name, way in ways.items()
    ]
    oracle = fit(groups, ClusterOracle, true_labels=groups.labels, fit_intercept=False)
    return [*rows, {"method": "cluster oracle", **oracle._asdict()}]


def few_promises(results: Results) -> list[Promise]:
    """Statistics are as good as knowing the clusters, with half as many rows as coefficients."""
    error = results.estimate("error", n=10, method="statistics").mean
    found = [Promise("n = 10, 20 coefficients, statistics: normalised error", error, most=1e-2)]
    for n in (50, 100, 400):
        mine, oracle = (
            results.where(n=n, method=method).column("error")
            for method in ("statistics", "cluster oracle")
        )
        away = float(np.abs(mine / oracle - 1).max()) if len(mine) else np.nan
        what = f"n = {n}: largest difference of statistics from the cluster oracle, as a share"
        found.append(Promise(what, away, most=KEPT_DIGITS))
    return found


# ------------------------------------------------------------------ spoilt sites


def spoilt(seed: int, kind: str, robust: bool, clusters: int) -> list[dict[str, Any]]:
    """A tenth of the sites wild or shifted; `clusters` = 0 has the number chosen."""
    from fedkin import ODCL
    from fedkin.datasets import make_sparse_regressions, spoil_sites

    clean = make_sparse_regressions(100, random_state=[seed, 100])
    groups = spoil_sites(clean, 0.1, kind, seed)  # type: ignore[arg-type]
    how: dict[str, Any] = {"fit_intercept": False, "aggregate": "mean", "robust": bool(robust)}
    model = ODCL(clusters or None, random_state=seed, **how)
    model.fit(groups.federation)
    named, bad = set(model.odd_sites_), set(model.client_names_[groups.labels < 0])
    return [
        {
            "error": groups.error(model.coef_),
            "missed": len(bad - named),
            "false": len(named - bad),
        }
    ]


SPOILT = cells(kind=("wild", "shifted"), robust=(1, 0), clusters=(10, 0))


def spoilt_promises(results: Results) -> list[Promise]:
    """With robust=True exactly the spoilt sites are named and the others are fitted."""
    found = []
    for cell in SPOILT:
        if not cell["robust"]:
            continue
        run = results.where(**cell)
        chosen = "number chosen" if not cell["clusters"] else f"{cell['clusters']} clusters"
        words = f"{cell['kind']}, {chosen}"
        missed, false = (
            float(run.column(m).sum()) if run.rows else np.nan for m in ("missed", "false")
        )
        found += [
            Promise(f"{words}: normalised error", run.estimate("error").mean, most=1e-3),
            Promise(f"{words}: spoilt sites missed, all draws", missed, most=0),
            Promise(f"{words}: other sites named, all draws", false, most=1),
        ]
    return found


FIT = ("error", "exact", "clusters")
STUDIES = (
    Study(
        name="odcl-few-rows",
        paper="fedkin",
        shows="few rows",
        title="ODCL with fewer rows than coefficients",
        protocol=(
            "ODCL on its Figure 2 with 5 to 400 rows for 20 coefficients. Sites send models, "
            "models with precisions, or sums of products (statistics); the cluster oracle pools "
            "the rows of the true clusters."
        ),
        one=few_rows,
        figure=partial(dots, by=("n", "method"), measures=FIT, log=("error",)),
        promises=few_promises,
        by=("n", "method"),
        measures=FIT,
        full=Size(cells(n=ROWS), 10),
        quick=Size(cells(n=ROWS), 1),
        toy=Size(cells(n=(10,)), 1),
    ),
    Study(
        name="odcl-spoilt-sites",
        paper="fedkin",
        shows="spoilt sites",
        title="ODCL with spoilt sites",
        protocol=(
            "ODCL on its Figure 2 (n = 100) with a tenth of the sites wild or shifted. The error "
            "is that of the other sites; robust=True sets odd sites aside and names them."
        ),
        one=spoilt,
        figure=partial(
            dots,
            by=("kind", "robust", "clusters"),
            measures=("error", "missed", "false"),
            log=("error",),
        ),
        promises=spoilt_promises,
        by=("kind", "robust", "clusters"),
        measures=("error", "missed", "false"),
        full=Size(SPOILT, 10),
        quick=Size(SPOILT, 1),
        toy=Size(cells(kind=("wild",), robust=(1,), clusters=(0,)), 1),
    ),
)
