"""FedGrEM, Figure 3: eight methods against how much sites differ, for both families.

The figure's curves carry no numbers. Beside ours stands what the printed algorithm does without our
guards (`fedgrem_unguarded`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.study import Check, Claim, Estimate, Promise, Results, Size, Study, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

H = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
HALVES = (0.0, 0.5, 1.0, 1.5, 2.0)
# Least distance between two of the paper's centres: its signal-to-noise ratio (2 / it = 35.92 %).
SNR = 31.0**0.5


# ------------------------------------------------------------------ replications


def gaussian(seed: int, h: float) -> list[dict[str, Any]]:
    """All methods on one draw of Gaussian mixtures, and what known labels give."""
    from fedkin import TGMM, FedEM, FedGrEM, LocalEM, PooledEM
    from fedkin.datasets import make_gaussian_mixtures
    from reproduction.mixture_protocol import errors, known_labels

    sim = make_gaussian_mixtures(heterogeneity=h, random_state=seed)
    plain: dict[str, Any] = {"random_state": seed}
    ward: dict[str, Any] = {"init": "ward", "random_state": seed}
    paper: dict[str, Any] = {"shrinkage": "paper", "max_rounds": 1000, "random_state": seed}
    models = {
        "Local-EM": LocalEM(5, **plain),
        "Local-GrEM": LocalEM(5, step="gradient", **ward),
        "FedEM": FedEM(5, **ward),
        "FedGMM": FedEM(5, average="pooled", **ward),
        "TGMM": TGMM(5, **ward),
        "Pooled-EM": PooledEM(5, n_restarts=3, **plain),
        "Pooled-GrEM": PooledEM(5, step="gradient", **ward),
        "FedGrEM, two sweeps": FedGrEM(5, solver="alternating", **paper),
        "FedGrEM, exact": FedGrEM(5, **paper),
        "FedGrEM, adaptive": FedGrEM(5, **plain),
    }
    rows: list[dict[str, Any]] = []
    for name, model in models.items():
        model.fit(sim.clients)
        rows.append({"method": name, **errors(model.means_, model.weights_, sim)})
    return rows + [{"method": name, **found} for name, found in known_labels(sim, h).items()]


def regression(seed: int, h: float) -> list[dict[str, Any]]:
    """All methods on one draw of mixtures of regressions."""
    from fedkin import FedEM, FedGMM, FedGrEM, LocalEM, PooledEM
    from fedkin.datasets import make_regression_mixtures
    from reproduction.mixture_protocol import errors

    sim = make_regression_mixtures(heterogeneity=h, random_state=seed)
    plain: dict[str, Any] = {"family": "regression", "sigma": 1.0, "random_state": seed}
    alone: dict[str, Any] = {"init": "kmeans++", **plain}
    paper: dict[str, Any] = {"shrinkage": "paper", "max_rounds": 400}
    models = {
        "Local-EM": LocalEM(5, **plain),
        "Local-GrEM": LocalEM(5, step="gradient", **plain),
        "FedEM": FedEM(5, **alone),
        "FedEM, pooled": FedEM(5, average="pooled", **alone),
        "FedGMM": FedGMM(5, init="kmeans++", sigma=1.0, max_rounds=200, random_state=seed),
        "Pooled-EM": PooledEM(5, **plain),
        "Pooled-GrEM": PooledEM(5, step="gradient", n_restarts=1, **plain),
        "FedGrEM, two sweeps": FedGrEM(5, solver="alternating", **paper, **alone),
        "FedGrEM, exact": FedGrEM(5, **paper, **alone),
        "FedGrEM, exact, federated start": FedGrEM(5, n_restarts=8, **paper, **plain),
        "FedGrEM, adaptive": FedGrEM(5, n_restarts=8, **{**plain, "sigma": None}),
    }
    rows = []
    for name, model in models.items():
        model.fit(sim.clients)
        rows.append({"method": name, **errors(model.coef_, model.weights_, sim)})
    return rows


# ------------------------------------------------------------------ figure

LOOK = {
    "Local-EM": ("tab:blue", "o-"),
    "Local-GrEM": ("tab:cyan", "s-"),
    "FedEM": ("tab:orange", "^-"),
    "FedEM, pooled": ("tab:orange", "^:"),
    "FedGMM": ("tab:olive", "v-"),
    "TGMM": ("tab:green", "D-"),
    "Pooled-EM": ("tab:gray", "P-"),
    "Pooled-GrEM": ("tab:brown", "X-"),
    "FedGrEM, two sweeps": ("tab:red", "o--"),
    "FedGrEM, exact": ("tab:red", "o-"),
    "FedGrEM, exact, federated start": ("tab:pink", "o-"),
    "FedGrEM, adaptive": ("black", "o-"),
    "floor": ("black", ":"),
}


def draw(results: Results) -> Figure:
    """Logarithm of the largest error of the weights (left) and of the components (right)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, measure, words in zip(
        panels, ("w_alone", "theta_max"), ("mixture weights", "components")
    ):
        for name in results.distinct("method"):
            if name in LOOK and results.estimate(measure, method=name).n:
                color, style = LOOK[name]
                h, error = results.curve("h", measure, method=name)
                look: dict[str, Any] = {"color": color, "ms": 4, "lw": 1.2, "label": name}
                axes.plot(100 * h / SNR, np.log(error), style, **look)
        axes.set(xlabel="h / SNR (%)", ylabel="log_e error", title=f"largest error of {words}")
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


# ------------------------------------------------------------------ claims

STAND_IN = "start: Ward's clusters, paper: mclust"
SEEDED = "start: k-means++, paper: mclust"
MIXREG = "start: likeliest of ten random ones, paper: mixreg"
SAME = {
    "gaussian": {
        "Local-EM": SEEDED,
        "Pooled-EM": SEEDED,
        "FedGMM": "for Gaussians its model without an outcome; " + STAND_IN,
        "FedGrEM, two sweeps": SEEDED,
        "FedGrEM, exact": "no: central update solved exactly",
    },
    "regression": {
        "FedGMM": "M_1 = 3; " + MIXREG,
        "FedGrEM, exact": "no: central update solved exactly; " + MIXREG,
        # Gradient steps from where EM has ended lead nowhere else.
        "Local-GrEM": "start: where EM has ended, the same place",
    },
    "both": {
        "FedGrEM, exact, federated start": "no: start and central update are ours",
        "FedGrEM, adaptive": "no: our rule",
        "known labels, alone": "no method: labels known, every site alone",
        "floor": "no method: labels and spread between sites known",
    },
}
USUAL = {"gaussian": STAND_IN, "regression": MIXREG}
# The same without our guards and from other starts: method, start and step of `fedgrem_unguarded`.
UNGUARDED = {
    "gaussian": {
        "FedGrEM, two sweeps": ("two sweeps", "plain k-means++", 0.95),
        "FedGrEM, exact": ("exact", "plain k-means++", 0.95),
        "Pooled-GrEM": ("Pooled-GrEM", "fit of the first site", 0.95),
    },
    "regression": {
        "Local-EM": ("Local-EM", "best of thirty", 1.0),
        "FedEM": ("FedEM", "best of thirty", 1.0),
        "Pooled-EM": ("Pooled-EM", "fit of the first site", 1.0),
        "Pooled-GrEM": ("Pooled-GrEM", "fit of the first site", 0.1),
        "FedGrEM, two sweeps": ("two sweeps", "best of thirty", 0.95),
        "FedGrEM, exact": ("exact", "best of thirty", 0.95),
        "FedGrEM, exact, federated start": ("exact", "federated", 0.95),
    },
}


def _claims(family: str, results: Results, unguarded: Results) -> list[Claim]:
    """Every curve of the right panel, then the left at its ends and in the middle."""
    found = []
    h_run = sorted(results.distinct("h"))
    same = {**SAME["both"], **SAME[family]}
    some_h = tuple(dict.fromkeys((h_run[0], h_run[len(h_run) // 2], h_run[-1])))
    for what, measure, at in (("θ", "theta_max", h_run), ("w", "w_alone", some_h)):
        for method in results.distinct("method"):
            for h in at:
                ours = results.estimate(measure, method=method, h=h)
                if not ours.n:
                    continue
                bare = _bare(family, unguarded, method, h) if what == "θ" else None
                found.append(
                    Claim(
                        f"{what}, {method}, h = {h:g}",
                        "curve, no number",
                        ours,
                        same.get(method, USUAL[family]),
                        second=bare if bare and bare.n else None,
                    )
                )
    return found


def _bare(family: str, unguarded: Results, method: str, h: float) -> Estimate | None:
    """The largest error without our guards."""
    if method not in UNGUARDED[family]:
        return None
    name, start, step = UNGUARDED[family][method]
    where = {"family": family, "outliers": "text", "method": name, "start": start, "C_eta": step}
    return unguarded.estimate("theta_max", **where, h=h)


# ------------------------------------------------------------------ what the paper says

# Words of the paper without a number: what we take them to mean.
ALIKE, COMPARABLE = 0.02, 1.1


def _checks(family: str, results: Results, unguarded: Results) -> list[Check]:
    def mean(method: str, h: float, measure: str = "theta_max") -> float:
        return results.estimate(measure, method=method, h=h).mean

    h_run = sorted(results.distinct("h"))
    first, last = h_run[0], h_run[-1]
    named = [m for m in results.distinct("method") if results.estimate("w_alone", method=m).n]
    joined = [m for m in ("FedGrEM, two sweeps", "FedEM", "TGMM", "FedGMM") if m in named]
    leading = {m: mean(m, first) for m in joined}
    alone = mean("Local-EM", first)
    weights = {m: mean(m, first, "w_alone") for m in named}
    pooled = [w for m, w in weights.items() if m.startswith("Pooled")]
    others = [w for m, w in weights.items() if not m.startswith("Pooled")]
    worse = {m: _overtaken(results, m, h_run) for m in ("FedEM", "TGMM") if m in named}
    ours, local = mean("FedGrEM, two sweeps", last), mean("Local-EM", last)
    return [
        Check(
            f"at h = {first:g} methods that share lead, FedGrEM first",
            max(leading.values()) < alone and min(leading, key=leading.__getitem__) == joined[0],
            "largest error: "
            + ", ".join(f"{m} {error:.2f}" for m, error in leading.items())
            + f", Local-EM {alone:.2f}",
        ),
        Check(
            "weights are found alike by all but pooled methods",
            max(others) - min(others) <= ALIKE and min(pooled) > max(others),
            f"{min(others):.3f} to {max(others):.3f}, pooled {min(pooled):.3f} to "
            f"{max(pooled):.3f} (h = {first:g}; alike: within {ALIKE:g})",
        ),
        Check(
            f"{' and '.join(worse)} {'falls' if len(worse) == 1 else 'fall'} behind Local-EM as h "
            "grows",
            all(worse.values()),
            ", ".join(f"{m} {f'from h = {at:g} on' if at else 'never'}" for m, at in worse.items()),
        ),
        Check(
            f"at h = {last:g} FedGrEM is as good as Local-EM",
            ours <= COMPARABLE * local,
            f"largest error {ours:.2f} against {local:.2f}; mean error "
            f"{mean('FedGrEM, two sweeps', last, 'theta_mean'):.2f} against "
            f"{mean('Local-EM', last, 'theta_mean'):.2f}, the adaptive rule "
            f"{mean('FedGrEM, adaptive', last, 'theta_mean'):.2f} (as good: the largest error "
            f"within {COMPARABLE - 1:.0%})",
        ),
    ]


def _overtaken(results: Results, method: str, h_run: Sequence[float]) -> float | None:
    """The first h from which on a method's largest error is above Local-EM's."""
    first = None
    for h in reversed(h_run):
        mine, alone = (results.estimate("theta_max", method=m, h=h) for m in (method, "Local-EM"))
        if mine.mean <= alone.mean:
            break
        first = h
    return first


# ------------------------------------------------------------------ promises

# Largest and mean error of the default (adaptive), mean error with the paper's penalty.
PROMISED = {
    ("FedGrEM, adaptive", "theta_max"): (0.33, 0.66, 0.95, 1.13, 1.24),
    ("FedGrEM, adaptive", "theta_mean"): (0.22, 0.44, 0.55, 0.59, 0.61),
    ("FedGrEM, exact", "theta_mean"): (0.26, 0.50, 0.70, 0.79, 0.84),
}
# Nowhere is the default worse than staying alone by more than this.
NOT_WORSE = 1.02
# On no draw is the largest error more than twice the median one.
NO_FAILED_START, TWICE = (0.0, 0.5, 1.0), 2.0
PROMISED_REGRESSIONS = {0.0: 0.75, 0.5: 1.2, 1.0: 1.8}
# From the federated start at h = 2, by either rule; independent code reaches 3.5 to 3.6.
PROMISED_FAR = 3.8
WORDS = {"theta_max": "largest error", "theta_mean": "mean error"}


def promised_errors(results: Results) -> list[Promise]:
    """Errors of the default, and with the paper's penalty, at five h; against staying alone."""
    found = [
        Promise(
            f"{WORDS[measure]} of {method}, h = {h:g}",
            results.estimate(measure, method=method, h=h).mean,
            most=most,
        )
        for (method, measure), bounds in PROMISED.items()
        for h, most in zip(HALVES, bounds)
        if results.where(method=method).rows or not results.rows
    ]
    for h in sorted(results.distinct("h")) or HALVES:
        mine, alone = (
            results.estimate("theta_mean", method=m, h=h).mean
            for m in ("FedGrEM, adaptive", "Local-EM")
        )
        what = f"mean error of FedGrEM, adaptive, over that of Local-EM, h = {h:g}"
        found.append(Promise(what, mine / alone, most=NOT_WORSE))
    for h in NO_FAILED_START:
        errors = results.where(method="FedGrEM, adaptive", h=h).column("theta_max")
        worst = float(errors.max() / np.median(errors)) if len(errors) else math.nan
        what = f"largest error of FedGrEM, adaptive, worst draw over the median, h = {h:g}"
        found.append(Promise(what, worst, most=TWICE))
    return found


def _promises(family: str, results: Results, unguarded: Results) -> list[Promise]:
    if family == "gaussian":
        return promised_errors(results)
    return [
        Promise(
            f"largest error of FedGrEM, adaptive, federated start, h = {h:g}",
            results.estimate("theta_max", method="FedGrEM, adaptive", h=h).mean,
            most=most,
        )
        for h, most in PROMISED_REGRESSIONS.items()
    ] + [
        Promise(
            f"largest error of {method}, h = 2",
            results.estimate("theta_max", method=method, h=2.0).mean,
            most=PROMISED_FAR,
        )
        for method in ("FedGrEM, adaptive", "FedGrEM, exact, federated start")
    ]


# A largest error beyond this is that of a fit that never started.
FAILED_START = 3.0


def _known(family: str, results: Results, unguarded: Results) -> list[str]:
    """Draws whose default fit fails at every h, and what they do to the promises."""
    mine = results.where(method="FedGrEM, adaptive")
    if family != "gaussian" or not mine.rows:
        return []
    failed = [
        seed
        for seed in mine.distinct("seed")
        if min(mine.where(seed=seed).column("theta_max")) > FAILED_START
    ]
    if not failed:
        return []
    rest = Results([row for row in results.rows if row["seed"] not in failed])
    judged = [
        [p.holds for p in promised_errors(rows) if p.what.startswith("largest error")]
        for rows in (results, rest)
    ]
    errors = mine.where(seed=failed[0]).column("theta_max")
    return [
        f"FedGrEM, Figure 3: of {len(mine.distinct('seed'))} draws of Gaussian mixtures the "
        f"default fails to start on {len(failed)} (seed {', '.join(map(str, failed))}: largest "
        f"error {errors.min():.1f} to {errors.max():.1f}, at every h). That alone breaks "
        f"{judged[0].count(False)} of {len(judged[0])} promises about the largest error; over the "
        f"other draws {judged[1].count(False)} break."
    ]


# ------------------------------------------------------------------ studies

PROTOCOL = (
    "10 sites, 5 groups, 10 features, 150 rows a site, weights Dirichlet(5), components at "
    "distance h from common centres in a random direction, one outlier site ({outlier}); errors "
    "are the largest over groups and the nine other sites, averaged over replications. *Unguarded* "
    "is the algorithm as printed, from other starts: [a study of its own](fedgrem-unguarded.md). "
)
WHY = {
    "gaussian": "(1) FedGMM: the outlier site takes a component over (6 draws, h = 0: largest "
    "error 2.1, without that site .2)",
    "regression": "(3) 150 rows are few for a site alone (4 draws, h = 0: 9.5 from its own "
    "starts, 3.9 from the truth, .8 with 1,500 rows); (2) we do not know",
}


def _study(family: str) -> Study:
    gaussians = family == "gaussian"
    by, measures = ("h", "method"), ("theta_max", "theta_mean", "w_alone", "w_joint")
    return Study(
        name=f"fedgrem-figure-3-{'gmm' if gaussians else 'mor'}",
        paper="FedGrEM",
        shows="Figure 3, " + ("GMM" if gaussians else "MoR"),
        title="Gaussian mixtures" if gaussians else "mixtures of regressions",
        protocol=PROTOCOL.format(outlier="N(2, 3 I)" if gaussians else "coefficients all 3")
        + (
            "FedGMM stands for FedEM with the pooled M-step. *Two sweeps* is the paper's central "
            "update as its script runs it."
            if gaussians
            else "Noise 1 known, except *adaptive*, which learns it. The *federated start* is ours."
        ),
        one=gaussian if gaussians else regression,
        figure=draw,
        claims=partial(_claims, family),
        checks=partial(_checks, family),
        promises=partial(_promises, family),
        known=partial(_known, family),
        why=WHY[family],
        second="ours, unguarded",
        beside=("fedgrem-unguarded",),
        by=by,
        measures=measures,
        full=Size(cells(h=H), 100 if gaussians else 30),
        quick=Size(cells(h=HALVES), 4) if gaussians else Size(cells(h=HALVES[::2]), 2),
        toy=Size(cells(h=(0.0, 2.0) if gaussians else (0.0,)), 1),
    )


STUDIES = (_study("gaussian"), _study("regression"))
