"""FedGrEM under attack: bad data and bad messages at one to three of ten sites.

Not a table of the paper, which has one kind of outlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.mixture_protocol import ONE_EACH
from reproduction.study import Claim, Promise, Results, Size, Study, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = (
    "two sweeps, .55",
    "two sweeps, .95",
    "exact, .55",
    "exact, .95",
    "FedEM",
    "adaptive",
)
NONE, LEFT_OUT = "none", "bad sites left out"
# Attack and bad sites of ten.
ATTACKS = (
    (NONE, 3),
    (LEFT_OUT, 1),
    (LEFT_OUT, 3),
    ("outliers as in the paper", 1),
    ("outliers as in the paper", 2),
    ("outliers as in the paper", 3),
    ("collude, data shifted by 2", 3),
    ("collude, data shifted by 1", 3),
    ("all rows on a far point", 3),
    (ONE_EACH, 3),
    ("data of size 1e6", 1),
    ("data of size 1e6", 3),
    ("messages plus 1e6", 1),
    ("messages plus 1e6", 3),
    ("collude, messages shifted by 3", 3),
    ("messages of NaN", 1),
    ("messages of NaN", 3),
)


def one(seed: int, attack: str, bad: int) -> list[dict[str, Any]]:
    """Every method under one attack; errors at the sites that are not bad."""
    from fedkin import FedEM, FedGrEM
    from fedkin.datasets import make_gaussian_mixtures
    from reproduction.mixture_protocol import attacked, component_errors

    sim = make_gaussian_mixtures(heterogeneity=0.5, n_outliers=0, random_state=seed)
    who, good = np.arange(10 - bad, 10), np.arange(10 - bad)
    clients, engine = attacked(attack, sim.clients, who, seed)
    if attack == LEFT_OUT:
        clients = clients.take(good)
    rows = []
    for method in METHODS:
        common: dict[str, Any] = {"random_state": seed, "engine": engine}
        if method == "FedEM":
            model = FedEM(5, n_restarts=5, **common)
        elif method == "adaptive":
            model = FedGrEM(5, **common)
        else:
            update, constant = method.split(", ")
            model = FedGrEM(
                5,
                n_restarts=5,
                shrinkage="paper",
                step_constant=float(constant),
                solver="exact" if update == "exact" else "alternating",
                max_rounds=500,
                **common,
            )
        model.fit(clients)
        away, _ = component_errors(model.means_[good], sim.components[good])
        rows.append(
            {
                "method": method,
                "theta_max": float(away.max()),
                "theta_mean": float(away.mean()),
                "refused": len(model.refusals_),
            }
        )
    return rows


# The figure ends here; what lies beyond is written at its edge.
EDGE = 6.0


def draw(results: Results) -> Figure:
    """Largest error at the clean sites under every attack."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    kinds = [(a, n) for a, n in ATTACKS if results.where(attack=a, bad=n).rows]
    place = np.arange(len(kinds))[::-1]
    beyond: list[list[str]] = [[] for _ in kinds]
    look = ("s", "s", "o", "o", "^", "*")
    shade = ("tab:orange", "tab:red", "tab:cyan", "tab:blue", "tab:gray", "black")
    for method, marker, color in zip(METHODS, look, shade):
        error = np.array(
            [results.estimate("theta_max", attack=a, bad=n, method=method).mean for a, n in kinds]
        )
        size = 9 if method == "adaptive" else 5
        axes.plot(error, place, marker, color=color, ms=size, ls="none", label=method)
        for words, value in zip(beyond, error):
            if value > EDGE:
                words.append(f"{method}: {value:.2g}")
    for words, y in zip(beyond, place):
        if words:
            axes.text(EDGE, y, "; ".join(words) + " →", ha="right", va="center", fontsize=7)
    axes.set_yticks(place, [f"{a}, {n} of 10" for a, n in kinds])
    axes.set(xlabel="largest error at clean sites (h = 0.5)", xscale="log", xlim=(0.5, EDGE))
    axes.set_xticks([0.5, 0.7, 1, 2, 4], ["0.5", "0.7", "1", "2", "4"])
    axes.minorticks_off()
    axes.grid(axis="y", lw=0.3)
    figure.legend(loc="outside right center", fontsize=8, title="numbers: C_eta")
    return figure


# A run that ends this far off has not come back from the first rounds.
ASTRAY = 10.0


def _astray(run: Results) -> str:
    """How many runs end far off, and the median, where a mean says little."""
    errors = run.column("theta_max")
    far = int((errors > ASTRAY).sum())
    if not 0 < far < len(errors) / 2:
        return ""
    return f"{far} of {len(errors)} runs end above {ASTRAY:g}; median {np.median(errors):.2f}"


def claims(results: Results, unguarded: Results) -> list[Claim]:
    """Every attack and method; for two sweeps under the paper's outliers also without guards."""
    found = []
    for attack, bad in ATTACKS:
        if not results.where(attack=attack, bad=bad).rows:
            continue
        for method in METHODS:
            run = results.where(attack=attack, bad=bad, method=method)
            bare = None
            if (attack, method) == ("outliers as in the paper", "two sweeps, .55"):
                where = {"family": "several outliers", "outliers": f"{bad} of 10"}
                bare = unguarded.estimate("theta_max", **where)
            found.append(
                Claim(
                    f"{attack}, {bad} of 10, {method}",
                    "not in the paper",
                    run.estimate("theta_max"),
                    "the paper's outlier site, more of it" if "paper" in attack else "ours",
                    _astray(run),
                    second=bare if bare and bare.n else None,
                )
            )
    return found


# The default's largest error with three bad sites, and how much huge values or NaN may change it.
MOST, CHANGE = 0.95, 0.1


def promises(results: Results, unguarded: Results) -> list[Promise]:
    """What bad sites can do to the default."""

    def mean(attack: str, bad: int, measure: str = "theta_max", method: str = "adaptive") -> float:
        return results.estimate(measure, attack=attack, bad=bad, method=method).mean

    spoilt = [(a, n) for a, n in ATTACKS if a not in (NONE, LEFT_OUT)]
    found = [
        Promise(f"largest error at good sites, {attack}, 3 of 10", mean(attack, 3), most=MOST)
        for attack, bad in spoilt
        if bad == 3
    ]
    for attack, bad in spoilt:
        if "1e6" in attack or "NaN" in attack:
            change = [
                abs(mean(attack, bad, measure) / mean(LEFT_OUT, bad, measure) - 1)
                for measure in ("theta_max", "theta_mean")
            ]
            what = f"change of errors against leaving the bad sites out, {attack}, {bad} of 10"
            found.append(Promise(what, max(change), most=CHANGE))
    for bad in (1, 3):
        refused = [mean("messages of NaN", bad, "refused", method) for method in METHODS]
        what = f"replies refused, messages of NaN, {bad} of 10, the least of all methods"
        found.append(Promise(what, min(refused), least=1))
    return found


STUDIES = (
    Study(
        name="fedgrem-attacks",
        paper="fedkin",
        shows="robustness",
        title="FedGrEM: attacks on data and messages",
        protocol=(
            "Bad data or messages at one to three of ten sites, and the largest error at the "
            "others. Gaussian mixtures of FedGrEM's Figure 3 with h = 0.5 and no outlier site but "
            "the bad ones; local starts from 5 restarts (*adaptive*, the default: from 10). Bad "
            "sites collude where said: all add the same vector to rows or messages. NaN messages "
            "are refused by the engine."
        ),
        one=one,
        figure=draw,
        claims=claims,
        promises=promises,
        second="ours, unguarded",
        beside=("fedgrem-unguarded",),
        by=("attack", "bad", "method"),
        measures=("theta_max", "theta_mean", "refused"),
        full=Size([{"attack": a, "bad": n} for a, n in ATTACKS], 30),
        quick=Size([{"attack": a, "bad": n} for a, n in ATTACKS], 2),
        toy=Size(cells(attack=("data of size 1e6", LEFT_OUT), bad=(3,)), 1),
    ),
)
