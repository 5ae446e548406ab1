"""What `odd_sites` and `how_many` promise: false alarms, power, influence, numbers found."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.study import Promise, Results, Size, Study, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL = 0.05
# Spoilt targets of curves are so many times the others'.
OTHER_UNITS = 10.0
TOO_FEW_ROWS = {
    "curves, white noise": "20 rows, standardised by their own spread, do not tell white noise "
    "from a rough curve among 40 sites"
}
TOO_MANY_NUMBERS = {
    "B.1 regressions, h = .5": "about 9 % there, where a site tells of 50 coefficients with 150 "
    "rows of five groups beside an odd site among ten; why is not known"
}
Drawn = tuple[Any, Any, np.ndarray]
"""An estimator, a federation, and which of its sites are odd."""


# ------------------------------------------------------------------ federations


def _lines(seed: int, m: int, n: int, unlike: float, ragged: bool = False) -> tuple[Any, ...]:
    """Rows of sites with random coefficients, noise 1."""
    rng = np.random.default_rng([91, seed, m, n])
    sizes = rng.integers(n // 2, 2 * n, m) if ragged else np.full(m, n)
    owner, spread = np.repeat(np.arange(m), sizes), unlike * np.array([0.5, 1.0, 1.5])
    X = rng.normal(size=(len(owner), 2))
    coef = np.array([1.0, -1.0, 2.0]) + spread * rng.normal(size=(m, 3))
    mean = (X * coef[owner, :2]).sum(axis=1) + coef[owner, 2]
    return X, mean, owner, rng


def by_degrees(seed: int, m: int = 20, n: int = 30, ragged: bool = False) -> Drawn:
    """A mixed model and sites that differ by degrees."""
    from fedkin import Federation, MixedModel

    X, mean, owner, rng = _lines(seed, m, n, 0.7, ragged)
    data = Federation.from_groups(X, owner, mean + rng.normal(size=len(mean)))
    return MixedModel(), data, np.zeros(data.n_clients, dtype=bool)


def own_noises(seed: int) -> Drawn:
    """Sites that differ by degrees, in their noise, too."""
    from fedkin import Federation, MixedModel

    X, mean, owner, rng = _lines(seed, 40, 25, 0.7)
    noise = np.exp(0.4 * rng.normal(size=40))[owner]
    data = Federation.from_groups(X, owner, mean + noise * rng.normal(size=len(mean)))
    return MixedModel(site_noise="own"), data, np.zeros(data.n_clients, dtype=bool)


def chances(seed: int) -> Drawn:
    """Two classes, log odds that differ by degrees."""
    from fedkin import Federation, MixedModel

    X, mean, owner, rng = _lines(seed, 30, 80, 0.4)
    y = (rng.random(len(mean)) < 1.0 / (1.0 + np.exp(2.0 - mean))).astype(float)
    data = Federation.from_groups(X, owner, y)
    return MixedModel(family="binomial"), data, np.zeros(data.n_clients, dtype=bool)


def of_kinds(seed: int, spoilt: Any = None) -> Drawn:
    """FMLR and sites of three kinds."""
    from fedkin import FMLR
    from fedkin.datasets import contaminate_sites, make_regression_groups

    coef = [[2.0, 0.0, 1.0], [-1.0, 1.0, 0.0], [0.0, -2.0, -1.0]]
    groups = make_regression_groups(60, 15, coef, random_state=seed)
    if spoilt is not None:
        groups = contaminate_sites(groups, 0.1, spoilt, seed)
    model = FMLR(3, degrees=False, site_noise="common", robust=spoilt is not None, random_state=0)
    return model, groups.federation, groups.labels < 0


def of_clusters(seed: int, spoilt: Any = None) -> Drawn:
    """ODCL and sites of four kinds."""
    from fedkin import ODCL
    from fedkin.datasets import make_sparse_regressions, spoil_sites
    from fedkin.datasets.odcl import SECTION_5

    groups = make_sparse_regressions(
        60, 60, SECTION_5[:4], n_features=6, n_active=3, random_state=seed
    )
    if spoilt is not None:
        groups = spoil_sites(groups, 0.1, spoilt, seed)
    model = ODCL(4, robust=spoilt is not None, random_state=0)
    return model, groups.federation, groups.labels < 0


def of_mixtures(seed: int, h: float, n_outliers: int = 0, variant: Any = "text") -> Drawn:
    """FedGrEM and section B.1 of its paper, 10 sites of 150 rows."""
    from fedkin import FedGrEM
    from fedkin.datasets import make_gaussian_mixtures

    drawn = make_gaussian_mixtures(10, 150, h, n_outliers, variant, random_state=seed)
    return FedGrEM(5, random_state=0), drawn.clients, drawn.outlier


def of_regressions(seed: int, h: float, n_outliers: int = 0, variant: Any = "text") -> Drawn:
    """FedGrEM and mixtures of regressions of section B.1."""
    from fedkin import FedGrEM
    from fedkin.datasets import make_regression_mixtures

    drawn = make_regression_mixtures(10, None, h, n_outliers, variant, random_state=seed)
    return FedGrEM(5, family="regression", random_state=0), drawn.clients, drawn.outlier


def of_curves(seed: int, spoilt: str | None = None) -> Drawn:
    """FGPR and curves of one prior; a spoilt site's target has other units, or is white noise."""
    from dataclasses import replace

    from fedkin import FGPR
    from fedkin.datasets import make_gaussian_sites
    from fedkin.datasets.fgpr import prior_spec

    data = make_gaussian_sites(40, 20, prior_spec(0.2, 2.0, 0.1), random_state=seed).federation
    bad = np.zeros(data.n_clients, dtype=bool)
    if spoilt is not None:
        bad[:2] = True
        noise = np.random.default_rng([92, seed]).normal(size=len(data.X))
        wrong = noise if spoilt == "noise" else OTHER_UNITS * np.asarray(data.y)
        data = replace(data, y=np.where(bad[data.owner], wrong, np.asarray(data.y)))
    units = "mean" if spoilt == "units" else True
    return FGPR(common=False, normalize_y=units, random_state=0), data, bad


CLEAN: dict[str, Callable[[int], Drawn]] = {
    "by degrees": by_degrees,
    "by degrees, sizes differ": lambda seed: by_degrees(seed, 40, 20, ragged=True),
    "by degrees, noises differ": own_noises,
    "two classes": chances,
    "kinds (FMLR)": of_kinds,
    "kinds (ODCL)": of_clusters,
    "mixtures, h = 0": lambda seed: of_mixtures(seed, 0.0),
    "mixtures, h = .5": lambda seed: of_mixtures(seed, 0.5),
    "curves": of_curves,
}
SPOILT: dict[str, Callable[[int], Drawn]] = {
    "B.1 as printed, h = 0": lambda seed: of_mixtures(seed, 0.0, 1),
    "B.1 as printed, h = 1": lambda seed: of_mixtures(seed, 1.0, 1),
    "B.1 as in the script, h = .5": lambda seed: of_mixtures(seed, 0.5, 1, "script"),
    "B.1 regressions, h = .5": lambda seed: of_regressions(seed, 0.5, 1),
    "FMLR, own coefficients": lambda seed: of_kinds(seed, "own"),
    "FMLR, noise": lambda seed: of_kinds(seed, "noise"),
    "ODCL, wild": lambda seed: of_clusters(seed, "wild"),
    "curves, other units": lambda seed: of_curves(seed, "units"),
    "curves, white noise": lambda seed: of_curves(seed, "noise"),
}


# ------------------------------------------------------------------ odd sites


def odd_once(seed: int, design: str) -> list[dict[str, Any]]:
    """Shares of clean and odd sites that are called odd in one federation."""
    from fedkin.inference import odd_sites

    model, data, bad = {**CLEAN, **SPOILT}[design](seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = odd_sites(model, data, level=LEVEL)
    below = np.nan_to_num(found.pvalue, nan=1.0) < LEVEL
    row = {"false_alarms": below[~bad].mean(), "any_false": float(found.odd[~bad].any())}
    return [row | ({"power": found.odd[bad].mean()} if bad.any() else {})]


def draw_odd(results: Results) -> Figure:
    """False alarms and power by design."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    names = results.distinct("design")
    for measure, colour in (("false_alarms", "C0"), ("any_false", "C2"), ("power", "C1")):
        found = [results.estimate(measure, design=name) for name in names]
        error = [2 * e.se if np.isfinite(e.se) else 0.0 for e in found]
        axes.errorbar([e.mean for e in found], names, xerr=error, fmt="o", c=colour, label=measure)
    axes.axvline(LEVEL, color="0.6", lw=1, ls=":")
    axes.legend()
    return figure


def odd_promises(results: Results) -> list[Promise]:
    """False alarms within 2 points of 5 %, power of 95 % for the paper's outlier tasks."""
    made = []
    for name in CLEAN:
        rate = results.estimate("false_alarms", design=name).mean
        made.append(Promise(f"odd_sites: p below .05 at clean sites, {name}", rate, 0.03, 0.07))
    several = [results.estimate("any_false", design=name).mean for name in CLEAN]
    what = "odd_sites: a clean federation has an odd site (Holm, 5 %), mean over designs"
    made.append(Promise(what, float(np.mean(several)), most=0.07))
    for name in SPOILT:
        power = results.estimate("power", design=name).mean
        what = f"odd_sites: odd sites that are found, {name}"
        made.append(Promise(what, power, 0.95, withdrawn=TOO_FEW_ROWS.get(name, "")))
        rate = results.estimate("false_alarms", design=name).mean
        what = f"odd_sites: p below .05 at the clean sites beside odd ones, {name}"
        made.append(Promise(what, rate, most=0.07, withdrawn=TOO_MANY_NUMBERS.get(name, "")))
    return made


# ------------------------------------------------------------------ influence

INFLUENCE = ("by degrees", "kinds (FMLR)", "kinds (ODCL)", "mixtures, h = .5", "curves")


def influence_once(seed: int, design: str) -> list[dict[str, Any]]:
    """Correlation of one-step influence with refits, over fifteen sites at most."""
    from fedkin.inference import odd_sites

    model, data, _ = CLEAN[design](seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = odd_sites(model, data)
        told = found.leave_one_out(found.sites[:15])
    both = np.array([told["one step"], told["fitted anew"]], dtype=float)
    ratio = float(np.median(both[0] / np.maximum(both[1], 1e-12)))
    return [{"correlation": float(np.corrcoef(both)[0, 1]), "ratio": ratio}]


def draw_influence(results: Results) -> Figure:
    """Correlations by design."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    for name in results.distinct("design"):
        found = results.where(design=name).column("correlation")
        axes.plot(found, [name] * len(found), "o", alpha=0.5)
    axes.axvline(0.95, color="0.6", lw=1, ls=":")
    axes.set(xlabel="correlation of one step with refits")
    return figure


def influence_promises(results: Results) -> list[Promise]:
    """Correlations of at least .95."""
    return [
        Promise(
            f"odd_sites: one-step influence beside refits, {name}",
            results.estimate("correlation", design=name).mean,
            0.95,
        )
        for name in INFLUENCE
    ]


# ------------------------------------------------------------------ how many


def _count_fmlr(seed: int, true: int) -> tuple[Any, Any, range]:
    from fedkin import FMLR
    from fedkin.datasets import make_regression_groups
    from fedkin.datasets.fmlr import PAPER_COEF

    coef = 0.5 * PAPER_COEF[6][:true]
    return (
        FMLR(random_state=0),
        make_regression_groups(300, 10, coef, random_state=[seed, true]).federation,
        range(1, 8),
    )


def _count_odcl(seed: int, true: int) -> tuple[Any, Any, range]:
    from fedkin import ODCL
    from fedkin.datasets import make_sparse_regressions
    from fedkin.datasets.odcl import SECTION_5

    drawn = make_sparse_regressions(100, intervals=SECTION_5[:true], random_state=[seed, true])
    return ODCL(random_state=0), drawn.federation, range(1, 13)


def _count_fedgrem(seed: int, true: int) -> tuple[Any, Any, range]:
    from fedkin import FedGrEM
    from fedkin.datasets import make_gaussian_mixtures

    h = (0.0, 0.25, 0.5)[seed % 3]
    drawn = make_gaussian_mixtures(10, 150, h, 0, n_components=true, random_state=seed)
    return FedGrEM(2, random_state=0), drawn.clients, range(1, 8)


def _count_fgpr(seed: int, true: int) -> tuple[Any, Any, range]:
    from fedkin import FGPR
    from fedkin.datasets import make_gaussian_sites, two_kinds_of_priors
    from fedkin.datasets.fgpr import prior_spec

    rough, noisy = two_kinds_of_priors()
    priors = {1: [rough], 2: [rough, noisy], 3: [rough, noisy, prior_spec(0.3, 1.0, 0.02)]}[true]
    data = make_gaussian_sites(40, 20, priors, random_state=[seed, true]).federation
    # All targets have one unit; each site's own spread as the unit makes sites of one prior unlike.
    return FGPR(normalize_y="mean", random_state=0), data, range(1, 5)


def _degrees(model: str) -> Callable[[int, int], tuple[Any, Any, range]]:
    def drawn(seed: int, true: int) -> tuple[Any, Any, range]:
        from fedkin import FMLR, ODCL, Federation

        X, mean, owner, rng = _lines(seed, 60, 15, 0.7)
        data = Federation.from_groups(X, owner, mean + rng.normal(size=len(mean)))
        found = FMLR(random_state=0) if model == "FMLR" else ODCL(random_state=0)
        return found, data, range(1, 7)

    return drawn


COUNTED: dict[str, Callable[[int, int], tuple[Any, Any, range]]] = {
    "FMLR": _count_fmlr,
    "ODCL": _count_odcl,
    "FedGrEM": _count_fedgrem,
    "FGPR": _count_fgpr,
    "FMLR, by degrees": _degrees("FMLR"),
    "ODCL, by degrees": _degrees("ODCL"),
}
TRUE = {
    "FMLR": range(1, 7),
    "ODCL": range(1, 11),
    "FedGrEM": range(2, 6),
    "FGPR": range(1, 4),
    "FMLR, by degrees": range(1, 2),
    "ODCL, by degrees": range(1, 2),
}


def count_once(seed: int, method: str, true: int) -> list[dict[str, Any]]:
    """Whether the number that is recommended is the true one."""
    from fedkin.inference import how_many

    estimator, data, numbers = COUNTED[method](seed, true)
    found = how_many(estimator, data, numbers=numbers, folds=0, resamples=0)
    degrees = method.endswith("by degrees")
    right = found.number == true and found.by_degrees == degrees
    return [{"right": float(right), "found": found.number, "degrees": float(found.by_degrees)}]


def draw_counts(results: Results) -> Figure:
    """Shares of right numbers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    for method in results.distinct("method"):
        numbers, right = results.curve("true", "right", method=method)
        axes.plot(numbers, right, "o-", alpha=0.6, label=method)
    axes.set(xlabel="true number", ylabel="share of draws in which it is found", ylim=(0, 1.05))
    axes.legend()
    return figure


def count_promises(results: Results) -> list[Promise]:
    """The right number in 95 % of the draws of every method."""
    made = []
    for method in COUNTED:
        right = results.where(method=method).column("right")
        share = float(right.mean()) if len(right) else float("nan")
        what = "by degrees is named" if "degrees" in method else "the right number is found"
        made.append(Promise(f"how_many: {what}, {method.split(',')[0]}", share, 0.95))
    return made


DESIGNS = cells(design=(*CLEAN, *SPOILT))
COUNTS = [{"method": method, "true": true} for method in TRUE for true in TRUE[method]]

STUDIES = (
    Study(
        name="odd-sites",
        paper="fedkin",
        shows="odd_sites",
        title="False alarms at clean sites, and odd sites that are found",
        protocol="Clean federations that are heterogeneous in the way of their method, and the "
        "outlier tasks of the papers (one site of ten in B.1; a tenth of the sites elsewhere). "
        "False alarms: sites with a p-value below .05; any_false: federations in which a clean "
        "site is odd at 5 % by Holm; power: odd sites that are odd at 5 % by Holm. Rows of "
        "*curves* are of a later day than the others.",
        one=odd_once,
        figure=draw_odd,
        promises=odd_promises,
        by=("design",),
        measures=("false_alarms", "any_false", "power"),
        full=Size(DESIGNS, 60),
        quick=Size(DESIGNS, 5),
        toy=Size(cells(design=("by degrees", "B.1 as printed, h = 0")), 3),
    ),
    Study(
        name="odd-influence",
        paper="fedkin",
        shows="odd_sites",
        title="How far what is shared moves without a site: one step beside refits",
        protocol="Clean federations; fifteen sites at most are left out one by one, with the "
        "number of kinds of the fit to all. Correlation over the sites of a federation.",
        one=influence_once,
        figure=draw_influence,
        promises=influence_promises,
        by=("design",),
        measures=("correlation", "ratio"),
        full=Size(cells(design=INFLUENCE), 10),
        quick=Size(cells(design=INFLUENCE), 2),
        toy=Size(cells(design=("by degrees",)), 1),
    ),
    Study(
        name="how-many",
        paper="fedkin",
        shows="how_many",
        title="The number of kinds, groups and priors, and sites that differ by degrees",
        protocol="FMLR: 300 sites of 10 rows, coefficients half of the paper's for six kinds. "
        "ODCL: section 5, 100 sites of 100 rows. FedGrEM: B.1 without outliers, 10 sites of 150 "
        "rows, h = 0, .25 or .5. FGPR: 40 sites of 20 rows, three kinds of priors, centred. "
        "By degrees: 60 sites of 15 rows with random coefficients. One, and by degrees, are among "
        "the answers.",
        one=count_once,
        figure=draw_counts,
        promises=count_promises,
        by=("method", "true"),
        measures=("right", "found", "degrees"),
        full=Size(COUNTS, 20),
        quick=Size(COUNTS, 2),
        toy=Size(COUNTS[-1:], 2),
    ),
)
