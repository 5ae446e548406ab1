"""How sure: coverage of 95 % intervals of coefficients, components and new targets, on draws."""

from __future__ import annotations

import warnings
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.study import Promise, Results, Size, Study, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL = 0.95
# New rows of every site by which intervals of targets are judged.
NEW_ROWS = 10
# Kinds of regressions, the intercept last.
KINDS = np.array([[1.0, 2.0, 0.0, 0.5], [-1.0, 0.0, 1.0, 0.0], [0.0, 1.0, -1.0, -0.5]])
# A Gaussian process: variance, length, noise variance; sites and rows.
CURVES = (1.0, 0.5, 0.1)


def held(ends: np.ndarray, truth: np.ndarray) -> float:
    """Share of the truth between the ends; intervals that are not told do not count."""
    told = np.isfinite(ends).all(axis=-1)
    inside = (ends[..., 0] <= truth) & (truth <= ends[..., 1])
    return float(inside[told].mean()) if told.any() else float("nan")


def targets_held(model: Any, test: Any) -> dict[str, float]:
    """Share of new targets within their intervals, at sites of the fit and at one unknown."""
    known = model.predict(test, level=LEVEL)[1]
    order = test.given_order
    rows, target = test.X[order], test.y[order]
    return {
        "targets_held": held(known, target),
        "unknown_held": held(model.predict(rows, groups="elsewhere", level=LEVEL)[1], target),
    }


# ------------------------------------------------------------------ draws


def linear_sites(rng: Any, labels: np.ndarray, rows: int, departure: float = 0.0) -> Any:
    """Sites of kinds, with departures from them or without: (data to fit, data to test)."""
    from fedkin import Federation

    own = KINDS[labels] + departure * rng.normal(size=(len(labels), KINDS.shape[1]))

    def draw(n: int) -> Any:
        owner = np.repeat(np.arange(len(labels)), n)
        X = rng.normal(size=(len(owner), KINDS.shape[1] - 1))
        y = (X * own[owner, :-1]).sum(axis=1) + own[owner, -1] + rng.normal(size=len(owner))
        return Federation.from_groups(X, owner, y)

    return draw(rows), draw(NEW_ROWS)


def matched(found: np.ndarray, truth: np.ndarray) -> list[int]:
    """The order of what was found (K, d) that is nearest to the truth."""
    orders = permutations(range(len(found)), len(truth))
    return list(min(orders, key=lambda order: float(((found[list(order)] - truth) ** 2).sum())))


# ------------------------------------------------------------------ methods


def _fmlr(rng: Any, departure: float) -> dict[str, float]:
    from fedkin import FMLR

    n_kinds = 1 if departure else 3
    data, test = linear_sites(rng, rng.permutation(np.arange(60) % n_kinds), 10, departure)
    model = FMLR(n_kinds, random_state=0).fit(data)
    order = matched(model.coef_, KINDS[:n_kinds, :-1])
    return {
        "held": held(model.conf_int()[order], KINDS[:n_kinds, :-1]),
        **targets_held(model, test),
    }


def _odcl(rng: Any, name: str) -> dict[str, float]:
    from fedkin import IFCA, ODCL, LocalERM

    labels = rng.permutation(np.arange(30) % 3)
    data, test = linear_sites(rng, labels, 20 if name == "LocalERM" else 100)
    starts = {"init": KINDS + 0.1, "n_clusters": 3} if name == "IFCA" else {}
    model = {"ODCL": ODCL, "LocalERM": LocalERM, "IFCA": IFCA}[name](**starts).fit(data)
    found = targets_held(model, test)
    if name != "IFCA":
        found["held"] = held(model.conf_int()[model.labels_], KINDS[labels, :-1])
    return found


def _fedgrem(rng: Any, family: str, apart: float) -> dict[str, float]:
    from fedkin import Federation, FedGrEM
    from fedkin.datasets import make_gaussian_mixtures, make_regression_mixtures

    make = make_gaussian_mixtures if family == "gaussian" else make_regression_mixtures
    n_rows = 150 if family == "gaussian" else 150 + NEW_ROWS
    sim = make(
        n_rows=n_rows,
        heterogeneity=apart,
        n_outliers=0,
        n_components=3,
        n_features=5,
        random_state=int(rng.integers(2**31)),
    )
    data, found = sim.clients, {}
    if family == "regression":
        first, target = np.arange(len(data.X)) % n_rows < 150, np.asarray(sim.clients.y)
        data, test = (
            Federation.from_groups(sim.clients.X[w], sim.clients.groups[w], target[w])
            for w in (first, ~first)
        )
    model = FedGrEM(3, family=family, standard_errors=True, random_state=0).fit(data)
    order = matched(model.centers_, sim.centers)
    if family == "regression":
        found["targets_held"] = held(model.predict(test, level=LEVEL)[1], test.y[test.given_order])
    places = [list(sim.clients.names).index(name) for name in model.client_names_]
    return {
        **found,
        "held": held(model.conf_int()[order], sim.centers),
        "sites_held": held(model.conf_int(of="sites")[:, order], sim.components[places]),
        "refused": float(model.ambiguous_.mean()),
    }


def _fgpr(rng: Any) -> dict[str, float]:
    from fedkin import FGPR, Federation

    variance, length, noise = CURVES
    m, n = 20, 15 + NEW_ROWS
    X = rng.uniform(0, 3, size=(m, n))
    gaps = (X[:, :, None] - X[:, None]) ** 2
    covariance = variance * np.exp(-0.5 * gaps / length**2) + noise * np.eye(n)
    y = np.einsum("mij,mj->mi", np.linalg.cholesky(covariance), rng.normal(size=(m, n)))
    y += rng.normal(size=(m, 1))
    data, test = (
        Federation.from_groups(X[:, s].reshape(-1, 1), np.repeat(np.arange(m), k), y[:, s].ravel())
        for s, k in ((slice(15), 15), (slice(15, None), NEW_ROWS))
    )
    model = FGPR(
        common=False, normalize_y="mean", personalise="posterior", standard_errors=True
    ).fit(data)
    return {"held": held(model.conf_int()[0], np.log(CURVES)), **targets_held(model, test)}


def _mixed(rng: Any) -> dict[str, float]:
    from fedkin import MixedModel

    data, test = linear_sites(rng, np.zeros(30, dtype=int), 10, 0.5)
    model = MixedModel().fit(data)
    return {"held": held(model.conf_int(), KINDS[0, :-1]), **targets_held(model, test)}


METHODS = {
    "FMLR, 3 kinds": lambda rng: _fmlr(rng, 0.0),
    "FMLR, by degrees": lambda rng: _fmlr(rng, 0.5),
    "ODCL": lambda rng: _odcl(rng, "ODCL"),
    "LocalERM": lambda rng: _odcl(rng, "LocalERM"),
    "IFCA": lambda rng: _odcl(rng, "IFCA"),
    "FedGrEM, h = 0": lambda rng: _fedgrem(rng, "gaussian", 0.0),
    "FedGrEM, h = 1": lambda rng: _fedgrem(rng, "gaussian", 1.0),
    "FedGrEM regressions, h = 0": lambda rng: _fedgrem(rng, "regression", 0.0),
    "FedGrEM regressions, h = 1": lambda rng: _fedgrem(rng, "regression", 1.0),
    "FGPR": _fgpr,
    "MixedModel": _mixed,
}
MEASURES = ("held", "sites_held", "targets_held", "unknown_held", "refused")


def intervals_once(seed: int, method: str) -> list[dict[str, Any]]:
    """Coverage in one federation."""
    rng = np.random.default_rng([151, seed, *method.encode()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = METHODS[method](rng)
    return [{name: found.get(name) for name in MEASURES}]


def draw_intervals(results: Results) -> Figure:
    """What intervals hold, for every method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    names = results.distinct("method")
    for measure, colour in zip(MEASURES[:4], ("C0", "C1", "C2", "C3")):
        found = {name: results.estimate(measure, method=name) for name in names}
        some = [name for name in names if np.isfinite(found[name].mean)]
        means, errors = [found[n].mean for n in some], [2 * found[n].se for n in some]
        axes.errorbar(means, some, xerr=errors, fmt="o", color=colour, label=measure)
    axes.axvline(LEVEL, color="0.6", lw=1, ls=":")
    axes.invert_yaxis()
    axes.legend()
    return figure


def intervals_promises(results: Results) -> list[Promise]:
    """Bounds of what 95 % intervals hold."""

    def value(measure: str, method: str) -> float:
        return results.estimate(measure, method=method).mean

    def over(measure: str) -> float:
        found = [value(measure, name) for name in results.distinct("method")]
        known = [one for one in found if np.isfinite(one)]
        return float(np.mean(known)) if known else float("nan")

    what = "95 % intervals hold"
    made = [
        Promise(f"{what} coefficients: {name}", value("held", name), 0.93, 0.97)
        for name in ("FMLR, 3 kinds", "FMLR, by degrees", "MixedModel")
    ]
    made.append(Promise(f"{what} coefficients: ODCL, n = 100", value("held", "ODCL"), 0.92, 0.97))
    made.append(Promise(f"{what} log hyper-parameters: FGPR", value("held", "FGPR"), 0.91, 0.97))
    for name in ("FedGrEM", "FedGrEM regressions"):
        for apart in (0, 1):
            cell = f"{name}, h = {apart}"
            made.append(Promise(f"{what} centres: {cell}", value("held", cell), 0.91, 0.97))
            own = value("sites_held", cell)
            made.append(Promise(f"{what} sites' own components: {cell}", own, 0.91, 0.97))
    for name in results.distinct("method"):
        known = value("targets_held", name)
        if np.isfinite(known):
            made.append(Promise(f"{what} new targets: {name}", known, 0.93, 0.97))
    new = over("unknown_held")
    made.append(Promise(f"{what} new targets of unknown sites, all methods", new, 0.93, 0.97))
    return made


def intervals_known(results: Results) -> list[str]:
    """What a reader should know besides."""
    return [
        "FedGrEM at h = 1: `held` is about the common centre, `sites_held` about each site's own "
        "components around its pulled estimate; intervals of the one do not serve for the other.",
        "Intervals of targets at a site that is not known are wide where a method knows little of "
        "such sites: LocalERM's mix all sites' own fits, FGPR's are the prior's.",
        "FedGrEM regressions at h = 1 are the narrowest: the noise is fitted, and rows' groups are "
        "less sure than in Gaussian mixtures.",
    ]


ALL = cells(method=tuple(METHODS))

STUDIES = (
    Study(
        name="interval-draws",
        paper="fedkin",
        shows="conf_int",
        title="What intervals of coefficients, components and new targets hold",
        protocol="Nominal 95 %, averaged over coordinates (or rows) and federations. FMLR: 60 "
        "sites of 10 rows, three kinds, or one from which sites depart. ODCL and IFCA (told where "
        "to begin): 30 sites of 100 rows, three kinds; LocalERM: 20 rows. FedGrEM: 10 sites of 150 "
        "rows, three groups in five dimensions, drawn as in B.1 without outliers; `held` is the "
        "common centre, `sites_held` every site's own components, which lie at distance h from "
        "it. FGPR: 20 sites of 15 rows, log hyper-parameters. MixedModel: 30 sites of 10 rows. "
        "New targets: 10 further rows a site; `unknown_held`: the same rows as those of a site "
        "that the fit does not know. `refused`: share of sites whose groups are ambiguous.",
        one=intervals_once,
        figure=draw_intervals,
        promises=intervals_promises,
        known=intervals_known,
        by=("method",),
        measures=MEASURES,
        full=Size(ALL, 200),
        quick=Size(ALL, 10),
        toy=Size(cells(method=("FMLR, 3 kinds", "ODCL", "FedGrEM, h = 1")), 3),
    ),
)
