"""Answers: does joining help, which way of sharing, intervals that hold; on draws with a truth."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.pictures import dots
from reproduction.study import Promise, Results, Size, Study, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Sites, rows a site, features, spread of the sites' coefficients; noise is 1.
DESIGNS: dict[str, tuple[int, tuple[int, ...], int, float]] = {
    "alike, 15 rows": (20, (15,), 3, 0.0),
    "near, 30 rows": (16, (30,), 3, 0.2),
    "apart, 40 rows": (20, (40,), 2, 0.5),
    "12 or 60 rows": (24, (12, 60), 3, 0.4),
}
# Draws of all sites' rows by which an expected difference is found.
TRUTH_DRAWS = 150
TEST_ROWS = 200


MEASURES = ("expected_held", "fitted_held", "right", "commits", "commits_large", "told", "off")


class Sites:
    """The sites of a design, with coefficients that stay, whose rows can be drawn again."""

    def __init__(self, design: str, seed: int) -> None:
        m, rows, d, spread = DESIGNS[design]
        fixed = np.random.default_rng([71, *design.encode()])
        self.coef = np.append(np.ones(d), 0.0) + spread * fixed.normal(size=(m, d + 1))
        self.rows = np.resize(rows, m)
        self.rng = np.random.default_rng([72, seed, *design.encode()])

    def draw(self, rows: Any = None) -> Any:
        """A federation with so many rows a site."""
        from fedkin import Federation

        owner = np.repeat(np.arange(len(self.coef)), self.rows if rows is None else rows)
        d = self.coef.shape[1] - 1
        X = self.rng.normal(size=(len(owner), d))
        y = (X * self.coef[owner, :d]).sum(axis=1) + self.coef[owner, d]
        return Federation.from_groups(X, owner, y + self.rng.normal(size=len(owner)))

    def difference(self, data: Any) -> np.ndarray:
        """Log score of joining less that of staying alone, of fits to the data, by site."""
        from fedkin import MixedModel

        test = self.draw(TEST_ROWS)
        model = MixedModel(covariance="isotropic")
        both = model._ways()
        found = [
            model._row_scores(both[w].fit(data), test, data)["log"] for w in ("joining", "alone")
        ]
        return np.asarray((found[0] - found[1]).reshape(len(self.coef), TEST_ROWS).mean(axis=1))


@cache
def expected_difference(design: str) -> np.ndarray:
    """The mean difference at every site over draws of everybody's rows."""
    sites = Sites(design, 10**6)
    return np.mean([sites.difference(sites.draw()) for _ in range(TRUTH_DRAWS)], axis=0)


def benefit_once(seed: int, design: str) -> list[dict[str, Any]]:
    """Intervals and verdicts of one federation beside the truth."""
    import warnings

    from fedkin import MixedModel
    from fedkin.inference import benefit

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sites = Sites(design, seed)
        data = sites.draw()
        fitted = sites.difference(data)
        expected = expected_difference(design)
        found = benefit(MixedModel(covariance="isotropic"), data, new_sites=False)
    gains = found.against_alone
    helps, none, hurts = (found.verdicts == w for w in ("helps", "no difference", "hurts"))
    commits = helps | none | hurts
    right = (helps & (expected > 0)) | (hurts & (expected < 0))
    right |= none & (np.abs(expected) <= found.margin)
    large = np.abs(expected) > 2 * found.margin
    return [
        {
            "expected_held": np.mean((gains.low <= expected) & (expected <= gains.high)),
            "fitted_held": np.mean((gains.own_low <= fitted) & (fitted <= gains.own_high)),
            "commits": commits.mean(),
            "right": right[commits].mean() if commits.any() else None,
            "commits_large": commits[large].mean() if large.any() else None,
            "told": gains.gain.mean(),
            "off": gains.gain.mean() - expected.mean(),
        }
    ]


def draw_benefit(results: Results) -> Figure:
    """What intervals hold, for every design."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    names = results.distinct("design")
    for measure, colour in (("expected_held", "C0"), ("fitted_held", "C1"), ("right", "C2")):
        found = [results.estimate(measure, design=name) for name in names]
        error = [2 * e.se for e in found]
        means = [e.mean for e in found]
        axes.errorbar(means, names, xerr=error, fmt="o", color=colour, label=measure)
    axes.axvline(0.95, color="0.6", lw=1, ls=":")
    axes.legend()
    return figure


def benefit_promises(results: Results) -> list[Promise]:
    """Coverage and verdicts, over all designs."""

    def over_designs(measure: str) -> float:
        found = [results.estimate(measure, design=d).mean for d in results.distinct("design")]
        known = [value for value in found if np.isfinite(value)]
        return float(np.mean(known)) if known else float("nan")

    held = "benefit: 95 % intervals hold the"
    return [
        Promise(f"{held} expected difference", over_designs("expected_held"), 0.93, 0.97),
        Promise(f"{held} fitted models' difference", over_designs("fitted_held"), 0.93, 0.97),
        Promise("benefit: verdicts that commit are right", over_designs("right"), 0.90),
        Promise(
            "benefit: verdicts commit where the difference is twice the margin",
            over_designs("commits_large"),
            0.80,
        ),
    ]


# ------------------------------------------------------------------ verdicts that are known

# Of the writers of pen digits, so many at a time.
N_WRITERS = 12
HELPS, NONE, HURTS = "helps", "no difference", "hurts"


def _alike_groups(seed: int) -> tuple[Any, Any, int | tuple[int, ...], Any]:
    """Sites with the same groups of rows (B.1 of FedGrEM's paper, h = 0), 40 rows each."""
    from fedkin import FedGrEM
    from fedkin.datasets import make_gaussian_mixtures

    data = make_gaussian_mixtures(10, 40, 0.0, 0, random_state=seed).clients
    return FedGrEM(5, random_state=0), data, (10, 5), slice(None)


def _branin(seed: int) -> tuple[Any, Any, int | tuple[int, ...], Any]:
    """BRANIN in three fidelities: the dear one has other hyper-parameters than the cheap ones.

    Hyper-parameters are shared strictly: by default a site that does better alone goes its own way.
    """
    from fedkin import FGPR
    from fedkin.datasets import make_multi_fidelity

    task = make_multi_fidelity("branin", seed)
    own = task.federation.names.index(task.site)
    shared = FGPR(common=False, personalise="posterior", random_state=0)
    return shared, task.federation, (10, 5), slice(own, own + 1)


def _writers(seed: int) -> tuple[Any, Any, int | tuple[int, ...], Any]:
    """Twelve writers of about 250 digits each, enough for a model of one's own."""
    from fedkin import Federation, MixedModel
    from fedkin.datasets import load_pendigits

    digits = load_pendigits()
    who = np.random.default_rng([74, seed]).permutation(np.unique(digits.writer))[:N_WRITERS]
    here = np.isin(digits.writer, who)
    target = digits.digit[here].astype(float)
    data = Federation.from_groups(digits.X[here] / 100.0, digits.writer[here], target)
    return MixedModel(family="multinomial"), data, 5, slice(None)


# What is known of sites, the word for it, and federations a replication: of BRANIN one site is
# judged, twelve writers take two minutes.
KNOWN: dict[str, tuple[Any, str, int]] = {
    "alike groups, 40 rows (FedGrEM)": (_alike_groups, HELPS, 4),
    "BRANIN, shared hyper-parameters (FGPR)": (_branin, HURTS, 4),
    "pen digits, all rows (MixedModel)": (_writers, NONE, 1),
}


def verdict_once(seed: int, case: str) -> list[dict[str, Any]]:
    """Share of the sites that are told what is known, and of those told the contrary."""
    import warnings

    from fedkin.inference import benefit

    made, word, draws = KNOWN[case]
    contrary = {HELPS: (HURTS,), HURTS: (HELPS,), NONE: (HELPS, HURTS)}[word]
    told, gain = [], []
    for draw in range(draws * seed, draws * (seed + 1)):
        model, data, folds, sites = made(draw)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = benefit(model, data, folds=folds, new_sites=False, random_state=draw)
        told.append(found.verdicts[sites])
        gain.append(found.gain[sites])
    return [
        {
            "told": float(np.mean(np.array(told) == word)),
            "contrary": float(np.mean(np.isin(np.array(told, dtype=str), contrary))),
            "gain": float(np.mean(gain)),
        }
    ]


def verdict_promises(results: Results) -> list[Promise]:
    """What is known is told, and the contrary is not."""
    made = []
    for case, (_, word, _) in KNOWN.items():
        run = results.where(case=case)
        told, contrary = (run.estimate(m).mean for m in ("told", "contrary"))
        made.append(Promise(f"benefit: {word!r} is told, {case}", told, 0.9))
        made.append(Promise(f"benefit: the contrary of {word!r}, {case}", contrary, most=0.1))
    return made


# ------------------------------------------------------------------ conformal

TABLES = ("parkinsons", "turbofan")


def _table(name: str) -> Any:
    from fedkin import Federation
    from fedkin.datasets import load_turbofan
    from reproduction.real_sites import from_folder

    if name == "parkinsons":
        stored = from_folder("parkinsons_telemonitoring.npz")
        return Federation.from_groups(stored["X"][:, 2:6], stored["subject"], stored["motor_UPDRS"])
    engines = load_turbofan()
    sensor = engines.values[:, list(engines.columns).index("sensor_7")]
    return Federation.from_groups(engines.cycle[:, None] / 100.0, engines.engine, sensor)


def _parkinsons() -> Any:
    return _table("parkinsons")


# Splits a replication; the coverage of a site is its mean over them, for it has few rows.
CONFORMAL_SPLITS = 10
# Coverage that nine sites of ten must have.
SITE_HELD = 0.93
# Where chance alone breaks it, seen after a look at the rows: binomial chances of a site's rows.
CHANCE_ALONE = {
    "turbofan": "intervals that held every row with .95 exactly would hold .93 of the 128 to 362 "
    "rows at .896 of these engines (binomial): nine of ten asks for more than can be seen here"
}


def conformal_once(seed: int, table: str, model: str) -> list[dict[str, Any]]:
    """Coverage of conformal intervals on half of every site's rows, fitted to the other half."""
    import warnings

    from fedkin import MixedModel
    from fedkin.inference import conformalize

    data, sites = _table(table), []
    estimator = MixedModel("all" if model == "mixed" else "intercept", covariance="isotropic")
    for split in range(CONFORMAL_SPLITS * seed, CONFORMAL_SPLITS * (seed + 1)):
        train, test = data.split(0.5, random_state=split)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, ends = conformalize(estimator, train).predict_interval(test)
            plain = estimator.fit(train).predict(test, level=0.95)[1]
        held = [(low <= test.y) & (test.y <= high) for low, high in (ends.T, plain.T)]
        sites.append([np.bincount(test.owner, each) / test.sizes for each in held])
    ours, plain = np.array(sites).transpose(1, 0, 2)
    share = test.sizes / test.sizes.sum()
    return [
        {
            "held": float((ours @ share).mean()),
            "sites_spread": float(ours.std(axis=1).mean()),
            "sites_held": float((ours.mean(axis=0) >= SITE_HELD).mean()),
            "model_held": float((plain @ share).mean()),
            "model_spread": float(plain.std(axis=1).mean()),
            "model_sites_held": float((plain.mean(axis=0) >= SITE_HELD).mean()),
        }
    ]


def draw_conformal(results: Results) -> Figure:
    """Coverage of conformal and of the model's own intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    cases = [(t, m) for t in results.distinct("table") for m in results.distinct("model")]
    for measure in ("held", "model_held"):
        found = [results.estimate(measure, table=t, model=m).mean for t, m in cases]
        axes.plot(found, range(len(cases)), "o", label=measure)
    axes.set_yticks(range(len(cases)), [", ".join(case) for case in cases])
    axes.axvline(0.95, color="0.6", lw=1, ls=":")
    axes.legend()
    return figure


def conformal_promises(results: Results) -> list[Promise]:
    """Coverage over all rows, and site by site, on every table with every model."""
    made = []
    for table in results.distinct("table"):
        for model in results.distinct("model"):
            run, words = results.where(table=table, model=model), f"{table}, {model}"
            held, sites = (run.estimate(m).mean for m in ("held", "sites_held"))
            made.append(Promise(f"conformal: 95 % intervals hold, {words}", held, 0.94, 0.96))
            many = f"conformal: sites at which they hold for 93 % of the rows, {words}"
            made.append(Promise(many, sites, 0.9, withdrawn=CHANCE_ALONE.get(table, "")))
    return made


# ------------------------------------------------------------------ plans


# Federations a replication: more where a single one tells little and fits are fast.
PLAN_DRAWS = {"by degrees": 1, "levels": 10, "FMLR": 2, "ODCL": 5}
# Sites by which the usual cost of mistakes is found, so many at a time.
GUESSES, AT_A_TIME = 400_000, 10_000


def plan_once(
    seed: int, way: str, m: int, n: int, d: int, kinds: int, unlike: float
) -> list[dict[str, Any]]:
    """Excess error of sites' own coefficients beside the planned one."""
    from fedkin.inference import plan

    rng = np.random.default_rng([73, seed, m, n, d])
    found = plan(m, n, d, 1.0, unlike if kinds == 1 else 0.0)
    if kinds == 1:
        each = [_by_degrees(rng, m, n, d, unlike) for _ in range(PLAN_DRAWS[way])]
        planned = found.joined
    else:
        each = [_by_kind(rng, way, m, n, d, kinds, unlike) for _ in range(PLAN_DRAWS[way])]
        planned = found.of_kinds(kinds, unlike, "soft" if way == "FMLR" else "hard")
    excess = float(np.mean(each))
    return [{"excess": excess, "planned": planned, "ratio": excess / planned}]


def _by_degrees(rng: np.random.Generator, m: int, n: int, d: int, unlike: float) -> float:
    """Excess error of a mixed model at sites with random coefficients."""
    coef = rng.normal(size=d + 1) + unlike * rng.normal(size=(m, d + 1))
    design, y = _rows(rng, coef, n)
    return _squared_error(_own_coefficients("mixed", 1, design, y), coef)


def _by_kind(
    rng: np.random.Generator, way: str, m: int, n: int, d: int, kinds: int, unlike: float
) -> float:
    """The same of FMLR or ODCL, less what is luck of the draw and has a known mean."""
    from fedkin.inference.kinds_planning import equally_far

    centres, kind = equally_far(kinds, d + 1, unlike), np.arange(m) % kinds
    design, y = _rows(rng, centres[kind], n)
    excess = _squared_error(_own_coefficients(way, kinds, design, y), centres[kind])
    guessed = float(_guess_cost(way, design, y, centres, kind).mean())
    usual = _usual_guess_cost(way, n, d, kinds, unlike)
    return excess - _luck(design, y, centres, kind) - (guessed - usual)


def _rows(rng: np.random.Generator, coef: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns and intercept (m, n, p) and targets (m, n) of sites with coefficients (m, p)."""
    m, p = coef.shape
    design = rng.normal(size=(m, n, p))
    design[:, :, -1] = 1.0
    return design, np.einsum("mnp,mp->mn", design, coef) + rng.normal(size=(m, n))


def _squared_error(own: np.ndarray, coef: np.ndarray) -> float:
    return float(((own - coef) ** 2).sum(axis=1).mean())


def _luck(design: np.ndarray, y: np.ndarray, centres: np.ndarray, kind: np.ndarray) -> float:
    """Excess error of least squares that is told the kinds, less what it has in the mean.

    Its mean is known (`Plan.alone`), and taking off what a draw has besides leaves less chance in
    what is compared.
    """
    from fedkin.inference import plan

    off, p = np.zeros(len(kind)), centres.shape[1]
    for k, centre in enumerate(centres):
        X, target = design[kind == k].reshape(-1, p), y[kind == k].ravel()
        fitted = np.linalg.lstsq(X, target, rcond=None)[0]
        off[kind == k] = ((fitted - centre) ** 2).sum() - plan(1, len(X), p - 1).alone
    return float(off.mean())


def _guess_cost(
    way: str, design: np.ndarray, y: np.ndarray, centres: np.ndarray, kind: np.ndarray
) -> np.ndarray:
    """Squared error of sites that know the kinds and guess which is theirs, (m,).

    By the chances that their rows give (FMLR), or by the distance of their least squares (ODCL).
    """
    from scipy.special import softmax

    if way == "FMLR":
        fitted = np.einsum("mnp,kp->mkn", design, centres, optimize=True)
        share = softmax(-0.5 * ((y[:, None] - fitted) ** 2).sum(axis=2), axis=1)
        guess = share @ centres
    else:
        moments = np.einsum("mnp,mn->mp", design, y)[:, :, None]
        own = np.linalg.solve(design.mT @ design, moments)[:, None, :, 0]
        guess = centres[((own - centres) ** 2).sum(axis=2).argmin(axis=1)]
    return np.asarray(((guess - centres[kind]) ** 2).sum(axis=1))


@cache
def _usual_guess_cost(way: str, n: int, d: int, kinds: int, unlike: float) -> float:
    """Its mean, by brute force."""
    from fedkin.inference.kinds_planning import equally_far

    rng = np.random.default_rng([75, n, d, kinds])
    centres, kind = equally_far(kinds, d + 1, unlike), np.arange(AT_A_TIME) % kinds
    found = []
    for _ in range(GUESSES // AT_A_TIME):
        design, y = _rows(rng, centres[kind], n)
        found.append(_guess_cost(way, design, y, centres, kind).mean())
    return float(np.mean(found))


def _own_coefficients(way: str, kinds: int, design: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Coefficients of every site, the intercept last, (m, d + 1)."""
    import warnings

    from fedkin import FMLR, ODCL, Federation, MixedModel

    m, n, p = design.shape
    owner = np.repeat(np.arange(m), n)
    data = Federation.from_groups(design.reshape(-1, p)[:, :-1], owner, y.ravel())
    told = {"degrees": False, "site_noise": "common", "fit_intercept": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way == "FMLR":
            model = FMLR(kinds, random_state=0, **told).fit(data)
            share = np.array([model.responsibilities(name) for name in data.names])
            return np.asarray(share @ np.column_stack([model.coef_, model.intercept_]))
        if way == "ODCL":
            model = ODCL(kinds, random_state=0, fit_intercept=True).fit(data)
            return np.column_stack([model.coef_, model.intercept_])
        model = MixedModel(covariance="isotropic").fit(data)
    return np.column_stack([model.site_coef_, model.site_intercept_])


def _off(results: Results) -> list[float]:
    """Planned over found less 1, for every setting."""
    names = ("m", "n", "d", "kinds", "unlike")
    settings = dict.fromkeys(tuple(row[name] for name in names) for row in results.rows)
    found = []
    for setting in settings:
        run = results.where(**dict(zip(names, setting)))
        found.append(run.estimate("planned").mean / run.estimate("excess").mean - 1.0)
    return found


def draw_plans(results: Results) -> Figure:
    """Planned against found excess errors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), layout="constrained")
    axes = figure.subplots()
    axes.loglog(results.column("excess"), results.column("planned"), ".", alpha=0.4)
    ends = axes.get_xlim()
    axes.plot(ends, ends, color="0.6", lw=1)
    axes.set(xlabel="excess error found", ylabel="planned")
    return figure


def plan_promises(results: Results) -> list[Promise]:
    """The share of settings within 10 %, of every way."""
    made = []
    for way, words in PLANNED.items():
        near = [abs(value) <= 0.1 for value in _off(results.where(way=way))]
        share = float(np.mean(near)) if near else float("nan")
        made.append(
            Promise(f"plan: settings of {words} whose error is planned to 10 %", share, 0.95)
        )
    return made


PLANNED = {
    "by degrees": "a mixed model",
    "levels": "shrinkage of levels",
    "FMLR": "FMLR",
    "ODCL": "ODCL",
}
ALL = cells(design=tuple(DESIGNS))


def _plans(way: str, sizes: Any, unlike: tuple[float, ...]) -> list[dict[str, Any]]:
    """Twenty settings of a way."""
    return [
        {"way": way, "m": m, "n": n, "d": d, "kinds": kinds, "unlike": far}
        for m, n, d, kinds in sizes
        for far in unlike
    ]


DEGREES = ((30, 12, 2, 1), (60, 12, 4, 1), (40, 25, 3, 1), (100, 8, 3, 1), (40, 50, 6, 1))
LEVELS = ((30, 4, 0, 1), (60, 8, 0, 1), (100, 2, 0, 1), (40, 20, 0, 1), (200, 5, 0, 1))
KINDS = ((200, 20, 6, 3), (150, 30, 9, 2), (200, 30, 6, 4), (300, 15, 5, 5), (300, 20, 7, 6))
PLANS = [
    *_plans("by degrees", DEGREES, (0.2, 0.4, 0.8, 1.6)),
    *_plans("levels", LEVELS, (0.2, 0.4, 0.8, 1.6)),
    *_plans("FMLR", KINDS, (0.6, 0.9, 1.5, 3.0)),
    *_plans("ODCL", KINDS, (0.7, 1.0, 2.0, 4.0)),
]
CONFORMAL = cells(table=TABLES, model=("mixed", "level only"))

STUDIES = (
    Study(
        name="benefit-draws",
        paper="fedkin",
        shows="benefit",
        title="Does joining help: intervals and verdicts beside the truth",
        protocol="Sites with random coefficients, noise 1; a mixed model against staying alone, "
        "log score. The expected difference at a site is the mean over 150 further draws of "
        "everybody's rows, each tested on 200 rows a site; the fitted models' difference is that "
        "of the very fits.",
        one=benefit_once,
        figure=draw_benefit,
        promises=benefit_promises,
        by=("design",),
        measures=(
            "expected_held",
            "fitted_held",
            "right",
            "commits",
            "commits_large",
            "gain",
            "told",
        ),
        full=Size(ALL, 50),
        quick=Size(ALL, 3),
        toy=Size(cells(design=("near, 30 rows",)), 2),
    ),
    Study(
        name="benefit-known",
        paper="fedkin",
        shows="benefit",
        title="Does joining help: three answers that are known",
        protocol="Groups of rows that are the same at ten sites of 40 rows: joining helps. BRANIN, "
        "whose fidelities share hyper-parameters that do not suit the dear one: joining hurts "
        "there. Twelve writers of pen digits with all their rows (five folds): no difference. "
        "A replication has four federations of groups and of BRANIN, one of writers. *told*: "
        "share of sites with that verdict; *contrary*: with one that says the opposite. The rows "
        "of writers were made by the same calls outside the runner, one of them fold by fold.",
        one=verdict_once,
        figure=partial(dots, by=("case",), measures=("told", "contrary")),
        promises=verdict_promises,
        by=("case",),
        measures=("told", "contrary", "gain"),
        full=Size(cells(case=tuple(KNOWN)), 2),
        quick=Size(cells(case=tuple(KNOWN)[:2]), 1),
        toy=Size(cells(case=tuple(KNOWN)[:1]), 1),
    ),
    Study(
        name="conformal-tables",
        paper="fedkin",
        shows="conformalize",
        title="Conformal intervals on two real tables, with a better and a worse model",
        protocol="Half of every site's rows to fit and calibrate (five folds), half to test; lines "
        "with random slopes, or with random levels only, which fit neither table. *sites_held*: "
        "share of sites whose coverage, mean of a replication's ten splits, is at least .93; "
        "*model*: intervals of the model itself.",
        one=conformal_once,
        figure=draw_conformal,
        promises=conformal_promises,
        by=("table", "model"),
        measures=(
            "held",
            "sites_spread",
            "sites_held",
            "model_held",
            "model_spread",
            "model_sites_held",
        ),
        full=Size(CONFORMAL, 5),
        quick=Size(CONFORMAL, 1),
        toy=Size(cells(table=("turbofan",), model=("level only",)), 1),
        needs=(_parkinsons,),
    ),
    Study(
        name="plan-draws",
        paper="fedkin",
        shows="plan",
        title="Planned errors beside those found",
        protocol="Twenty settings a way: sites, rows, columns, and how unlike sites are (standard "
        "deviation of their coefficients, or distance of kinds); noise 1. *levels*: a mixed model "
        "without columns, which is shrinkage of means. A replication has one federation of a mixed "
        "model, ten of levels, two of FMLR, five of ODCL. FMLR and ODCL know the number of kinds; "
        "what chance adds to a draw is taken off where its mean is known: by how much least "
        "squares that is told the kinds is off its mean, and what mistakes cost sites that know "
        "the kinds (mean of 400,000 sites). Excess error of sites' own coefficients, mean over "
        "sites and draws. Kinds overlap, are rarely mistaken, or far apart.",
        one=plan_once,
        figure=draw_plans,
        promises=plan_promises,
        by=("way", "m", "n", "d", "kinds", "unlike"),
        measures=("excess", "ratio"),
        full=Size(PLANS, 20),
        quick=Size(PLANS, 1),
        toy=Size(PLANS[:2], 3),
    ),
)
