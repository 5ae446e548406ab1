"""Numbers that README and evidence.md quote are those of the rows that the commands there make."""

from pathlib import Path

import numpy as np
import pytest

from reproduction import catalogue
from reproduction.book import read_study

ROOT = Path(__file__).parents[2]
HALVES = (0.0, 0.5, 1.0, 1.5, 2.0)


def rows(name):
    return read_study(catalogue()[name], ROOT / "docs" / "studies")[0]


def short(*values):
    """Two decimals without the leading zero, as the pages write shares and errors."""
    return ", ".join(f"{value:.2f}".removeprefix("0") for value in values)


def fmlr():
    right = rows("fmlr-from-scratch").column("K right")
    return [f"K right in {int(right.sum())} of {len(right)} draws"]


def fedgrem():
    found = rows("fedgrem-figure-3-gmm")
    mine, alone = (
        [found.estimate("theta_mean", method=m, h=h).mean for h in HALVES]
        for m in ("FedGrEM, adaptive", "Local-EM")
    )
    worst = found.where(method="FedGrEM, adaptive", h=0.0).column("theta_max")
    failed = f"{(worst > 3).sum()} of {len(worst)} draws fail to start"
    return [short(*mine), f"each site alone {short(min(alone))} to {short(max(alone))}", failed]


def attacks():
    found = rows("fedgrem-attacks").where(method="adaptive", bad=3)
    kinds = [k for k in found.distinct("attack") if k not in ("none", "bad sites left out")]
    worst = [found.estimate("theta_max", attack=kind).mean for kind in kinds]
    free = found.estimate("theta_max", attack="bad sites left out").mean
    words = {8: "eight", 9: "nine"}[len(kinds)]
    return [
        f"{words} attacks",
        f"{short(min(worst))} to {short(max(worst))}; {short(free)} with the bad sites left out",
    ]


def odcl():
    found = rows("odcl-figure-2").where(method="ODCL-KM++, number chosen")
    draws = {n: found.where(n=n).column("exact") for n in (50, 100, 200, 300, 400)}
    assert all(exact.all() and len(exact) == 20 for exact in draws.values())
    return ["true clusters in 20 of 20 draws at every n"]


def fgpr_rounds():
    found = rows("fgpr-figure-1").where(m=100, method="exact")
    return [f"at most {int(np.nanmax(found.column('rounds')))} rounds"]


def turbofan():
    found = rows("fgpr-table-1").where(axis="cycles")
    told = []
    for method in ("FGPR", "separate", "floor"):
        pair = [found.estimate("rmse10", method=method, sensor=s).mean for s in (2, 7)]
        told.append(f"{pair[0]:.2f} and {pair[1]:.2f}")
    return [f"{told[0]}; each engine alone {told[1]}; the sensors' noise {told[2]}"]


def coverage():
    found = [rows(f"fgpr-example-{k}").where(method="FGPR choose") for k in range(3, 8)]
    return [short(*(each.estimate("coverage").mean for each in found))]


def pen_digits():
    found = rows("fedgrem-tables-1-6").where(share="0%", scaling="whitened")
    lines = []
    for name, method in (('LocalEM(init="ward")', "Local-EM"), ("FedGrEM", "FedGrEM, adaptive")):
        once, each = (found.estimate(m, method=method).mean for m in ("one_matching", "error"))
        lines.append(f"| `{name}` | {once:.0f} % of test digits wrong | {each:.1f} % |")
    return lines


def few_digits():
    found = rows("fedgrem-few-digits")
    whitened = "FedGrEM, default, whitened", "LocalEM, Ward, whitened"
    tied = "FedGrEM, tied, Ward, z-scores", "LocalEM, tied, Ward, z-scores"
    told = [
        found.estimate("error", digits=n, setting=setting).mean
        for n, pair in ((10, whitened), (10, tied), (20, whitened), (160, whitened))
        for setting in pair
    ]
    pairs = zip(told[::2], told[1::2])
    return [f"{mine:.1f} % against {alone:.1f} %" for mine, alone in pairs]


QUOTED = {
    "fmlr-from-scratch": fmlr,
    "fedgrem-figure-3-gmm": fedgrem,
    "fedgrem-attacks": attacks,
    "odcl-figure-2": odcl,
    "fgpr-figure-1": fgpr_rounds,
    "fgpr-table-1": turbofan,
    "fgpr-example-3": coverage,
    "fedgrem-tables-1-6": pen_digits,
    "fedgrem-few-digits": few_digits,
}


@pytest.mark.parametrize("name", QUOTED)
def test_pages_quote_what_the_command_beside_it_gives(name):
    pages = (ROOT / "README.md", ROOT / "docs" / "evidence.md")
    text = " ".join(" ".join(page.read_text(encoding="utf-8") for page in pages).split())
    assert f"`{name}`" in text or f"reproduction run {name}`" in text
    assert [words for words in QUOTED[name]() if words not in text] == []
