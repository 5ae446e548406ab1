"""FMLR beyond its paper: from scratch with everything learnt, and with spoilt sites."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from reproduction.pictures import dots
from reproduction.study import Promise, Results, Size, Study, cells

# A fit has succeeded when its error is at most this multiple of that with labels known.
SUCCESS = 2.0
SHARES, COMPONENTS, ROWS = ("statistics", "sums"), (3, 6), (2, 5, 10, 25)


# ------------------------------------------------------------------ from scratch


def scratch(seed: int, share: str, components: int, n: int) -> list[dict[str, Any]]:
    """Noise and proportions learnt, no start given: with K given, and with K chosen by BIC."""
    from fedkin import FMLR
    from fedkin.datasets import make_regression_groups
    from fedkin.datasets.fmlr import PAPER_COEF

    coef = PAPER_COEF[components]
    groups = make_regression_groups(300, n, coef, random_state=[2, components, n, seed])
    known = groups.error(groups.known_labels_coef())
    options: dict[str, Any] = {"fit_intercept": False, "random_state": seed, "share": share}
    fixed = FMLR(components, **options).fit(groups.federation)
    ratio = groups.error(fixed.coef_) / known
    chosen = FMLR(max_components=components + 2, **options).fit(groups.federation)
    right = chosen.n_components_ == components
    return [{"success": ratio <= SUCCESS, "K right": right, "error over labels known": ratio}]


def scratch_promises(results: Results) -> list[Promise]:
    """Success and the right K in nearly all draws."""
    found = []
    for cell in cells(share=SHARES, components=COMPONENTS, n=ROWS):
        words = f'share="{cell["share"]}", K = {cell["components"]}, n = {cell["n"]}'
        for measure, what in (("success", "success"), ("K right", "K chosen right")):
            share = results.estimate(measure, **cell).mean
            found.append(Promise(f"{words}: share of draws with {what}", share, 0.95))
    return found


# ------------------------------------------------------------------ spoilt sites

# Where the sites of the coordinated kind are.
COORDINATED = 6.0 * np.where(np.arange(5) % 2, -1, 1)
CASES = (
    *((kind, share, "scratch") for kind in ("own", "noise") for share in (0.05, 0.2)),
    *(("coordinated", share, "near") for share in (0.05, 0.2)),
    *((kind, 0.2, "plain") for kind in ("own", "noise")),
    ("coordinated", 0.2, "choose K"),
)


def spoilt(seed: int, kind: str, share: float, start: str) -> list[dict[str, Any]]:
    """500 sites of 10 rows, a share of them spoilt; who is named, and the error of the rest."""
    from fedkin import FMLR
    from fedkin.datasets import contaminate_sites, make_regression_groups
    from fedkin.datasets.fmlr import PAPER_COEF

    clean = make_regression_groups(500, 10, PAPER_COEF[3], random_state=[3, seed])
    made = contaminate_sites(clean, share, kind, seed)  # type: ignore[arg-type]
    options: dict[str, Any] = {"fit_intercept": False, "random_state": seed}
    if start == "choose K":
        model = FMLR(robust=True, max_components=5, **options).fit(made.federation)
        away = np.linalg.norm(model.coef_ - COORDINATED, axis=1).min()
        return [{"success": model.n_components_ == 4 and away < 0.5}]
    init = clean.nearby(clean.separation() / 5, seed) if start == "near" else "auto"
    model = FMLR(3, robust=start != "plain", init=init, **options).fit(made.federation)
    bad = set(np.array(made.federation.names)[made.labels < 0])
    ratio = made.error(model.coef_) / made.error(made.known_labels_coef())
    return [
        {
            "success": ratio <= SUCCESS,
            "error over labels known": ratio,
            "spoilt sites named": len(bad & set(model.odd_sites_)) / max(len(bad), 1),
            "clean sites named": len(set(model.odd_sites_) - bad),
        }
    ]


def spoilt_promises(results: Results) -> list[Promise]:
    """With robust=True the fit succeeds; without, odd sites are named nevertheless."""
    found = []
    for kind, share, start in CASES:
        run = results.where(kind=kind, share=share, start=start)
        words = f"{kind}, {share:.0%} of sites, {start}"
        success = run.estimate("success").mean
        if start == "plain":
            named = run.estimate("spoilt sites named").mean
            found.append(Promise(f"{words}: share of spoilt sites named", named, 0.95))
            clean = run.estimate("clean sites named").mean
            found.append(Promise(f"{words}: clean sites named, on average", clean, most=1))
            continue
        found.append(Promise(f"{words}: share of draws with success", success, 0.95))
        if start != "choose K":
            ratios = run.column("error over labels known")
            middle = float(np.median(ratios)) if len(ratios) else np.nan
            what = f"{words}: median error over labels known"
            found.append(Promise(what, middle, most=1.05))
    return found


SCRATCH = ("success", "K right", "error over labels known")
SPOILT = ("success", "error over labels known", "spoilt sites named", "clean sites named")
STUDIES = (
    Study(
        name="fmlr-from-scratch",
        paper="fedkin",
        shows="from scratch",
        title="FMLR from scratch",
        protocol=(
            "FMLR without a start, noise and proportions learnt, K given or chosen by BIC. 300 "
            "sites of n rows, truths of Figures 1 and 3; success: error at most twice that of "
            "least squares with known labels."
        ),
        one=scratch,
        figure=partial(dots, by=("share", "components", "n"), measures=SCRATCH),
        promises=scratch_promises,
        by=("share", "components", "n"),
        measures=SCRATCH,
        full=Size(cells(share=SHARES, components=COMPONENTS, n=ROWS), 20),
        quick=Size(cells(share=SHARES, components=COMPONENTS, n=(2, 10)), 2),
        toy=Size(cells(share=("statistics",), components=(3,), n=(2, 10)), 1),
    ),
    Study(
        name="fmlr-spoilt-sites",
        paper="fedkin",
        shows="spoilt sites",
        title="FMLR with spoilt sites",
        protocol=(
            "FMLR where 5 or 20 % of 500 sites follow a regression of their own, or none (noise), "
            "or together one more (coordinated). Ten rows a site, truth of Figure 1. robust=True "
            "from scratch or from near the truth; *plain* without it; *choose K* chooses K and "
            "succeeds where it finds the coordinated sites as a fourth group."
        ),
        one=spoilt,
        figure=partial(dots, by=("kind", "share", "start"), measures=SPOILT),
        promises=spoilt_promises,
        by=("kind", "share", "start"),
        measures=SPOILT,
        full=Size([dict(zip(("kind", "share", "start"), case)) for case in CASES], 20),
        quick=Size([dict(zip(("kind", "share", "start"), case)) for case in CASES], 1),
        toy=Size(cells(kind=("own",), share=(0.2,), start=("scratch", "plain")), 1),
    ),
)
