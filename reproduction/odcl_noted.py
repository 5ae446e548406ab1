"""What independent code reached for ODCL's Figures 2 to 4, and what the paper's text says of them.

Normalised errors by setting, method and rows a site; five replications unless `NOTED_N` says
otherwise. "=" in the notes (the error of oracle averaging, to all digits) is filled in here.
"""

from __future__ import annotations

from collections.abc import Mapping

Curve = dict[int, float]

_FIGURE_2 = (25, 50, 100, 200, 300, 400, 600, 800)
_D1 = (500, 1000, 2000, 3000, 4000, 4600, 6000)
_D2 = (100, 200, 300, 400, 600, 800)


def _at(sizes: tuple[int, ...], *values: float) -> Curve:
    return dict(zip(sizes, values, strict=True))


# The oracle's first five draws were unlucky where sixty were made later.
_ORACLE = _at(_FIGURE_2, 1.2e-1, 1.75e-3, 5.6e-4, 1.87e-4, 1.61e-4, 1.10e-4, 6.96e-5, 4.89e-5)
_CC = _at(_FIGURE_2[:5], 1.25, 1.71e-2, 5.80e-3, 2.34e-3, 7.87e-4)
_ORACLE_D1 = _at(_D1, 1.04e-3, 5.1e-4, 2.4e-4, 1.4e-4, 1.06e-4, 1.03e-4, 6.7e-5)
_CC_D1 = _at(_D1[:4], 2.4e-2, 1.2e-2, 1.2e-3, 2.7e-4)
_ORACLE_D2 = _at(_D2, 3.59e-3, 1.55e-3, 1.12e-3, 6.98e-4, 4.94e-4, 3.94e-4)


def _from(oracle: Curve, least: int) -> Curve:
    """The oracle's error from some n on: where the true partition was found in every run."""
    return {n: value for n, value in oracle.items() if n >= least}


NOTED: dict[str, dict[str, Mapping[int, float | str]]] = {
    "section 5": {
        "Oracle averaging": _ORACLE,
        "Cluster oracle": _at(
            _FIGURE_2, 2.11e-3, 1.08e-3, 4.89e-4, 1.61e-4, 1.50e-4, 9.20e-5, 6.54e-5, 4.63e-5
        ),
        "Local": _at(
            _FIGURE_2, 1.25, 1.71e-2, 5.80e-3, 2.34e-3, 1.53e-3, 1.07e-3, 7.49e-4, 5.22e-4
        ),
        "Naive": {25: "1.08", **dict.fromkeys(_FIGURE_2[1:], "1.00")},
        "ODCL-KM++": {25: 1.15, **_from(_ORACLE, 50)},
        "ODCL-CC, (13)": {**_CC, **_from(_ORACLE, 400)},
        "ODCL-CC, (13), equal within 1e-3": {**_CC, **_from(_ORACLE, 400)},
        "ODCL-CC, clusterpath": {25: 1.45, **_from(_ORACLE, 50)},
        "ODCL-CC, polished": _from(_ORACLE, 50),
    },
    "D.1": {
        "Oracle averaging": _ORACLE_D1,
        "Cluster oracle": _at(_D1, 1.01e-3, 4.3e-4, 2.3e-4, 1.4e-4, 1.08e-4, 1.00e-4, 6.7e-5),
        "Local": _at(_D1, 2.4e-2, 1.3e-2, 5.9e-3, 4.1e-3, 2.9e-3, 2.5e-3, 1.9e-3),
        "Naive": dict.fromkeys(_D1, "0.84"),
        "ODCL-CC, (13)": {**_CC_D1, **_from(_ORACLE_D1, 4000)},
        "ODCL-CC, (13), equal within 1e-3": {**_CC_D1, **_from(_ORACLE_D1, 4000)},
        "ODCL-CC, polished": _from(_ORACLE_D1, 500),
    },
    "D.2": {
        "Oracle averaging": _ORACLE_D2,
        "ODCL-CC, (13)": _from(_ORACLE_D2, 600),
        "ODCL-CC, (13), equal within 1e-3": _from(_ORACLE_D2, 600),
        "ODCL-CC, clusterpath": _from(_ORACLE_D2, 200),
        "ODCL-CC, polished": _ORACLE_D2,
    },
}
# Sixty runs behind the oracle's error, and so behind every method that found its partition.
NOTED_N = {
    ("section 5", method, n): 60
    for method in ("Oracle averaging", "ODCL-KM++", "ODCL-CC, clusterpath", "ODCL-CC, polished")
    for n in (50, 100, 400)
}
_CC_CLUSTERS: dict[str, dict[int, str]] = {
    "section 5": {
        **dict.fromkeys((25, 50, 100, 200), "100"),
        300: "48",
        **dict.fromkeys((400, 600, 800), "10"),
    },
    "D.1": {
        500: "100 (median)",
        1000: "77 (median)",
        2000: "7 (median)",
        3000: "5 (median)",
        **dict.fromkeys((4000, 4600, 6000), "4 (median)"),
    },
    "D.2": {
        **dict.fromkeys((100, 200, 300), "100"),
        400: "true partition in 80 %",
        600: "4",
        800: "4",
    },
}
_PATH_CLUSTERS = {100: "true partition in 80 %", **dict.fromkeys((200, 300, 400, 600, 800), "4")}
NOTED_CLUSTERS = {
    setting: {
        "ODCL-CC, (13), equal within 1e-3": noted,
        "ODCL-CC, clusterpath": _PATH_CLUSTERS if setting == "D.2" else {},
    }
    for setting, noted in _CC_CLUSTERS.items()
}

# What the paper's text says of who finds the partition: method, words, same protocol?
_OURS = ("ODCL-CC, polished", "not in it: our rule", "no: needs no truth")
_PROVED = "yes, an oracle; equal only if proved"
_NEAR = "yes, an oracle; the paper gives no tolerance"
_KM = "ten greedy starts"
_EXACT_CC, _NEAR_CC = "ODCL-CC, (13)", "ODCL-CC, (13), equal within 1e-3"
_PATH_CC, _OWN_CC = "ODCL-CC, clusterpath", "ODCL-CC, polished"
_PLAIN = "ODCL-KM++, one plain start"
SAID: dict[str, tuple[tuple[str, str, str], ...]] = {
    "section 5": (
        ("ODCL-KM++", "for any n", _KM),
        (_EXACT_CC, "n of about 400", _PROVED),
        (_NEAR_CC, "n of about 400", _NEAR),
        (_PATH_CC, "no curve", "appendix C"),
        _OURS,
    ),
    "D.1": (
        (_EXACT_CC, "n >= 4600", _PROVED),
        (_NEAR_CC, "n >= 4600", _NEAR),
        ("ODCL-KM++", "no curve", _KM),
        _OURS,
    ),
    "D.2": (
        (_EXACT_CC, "n >= 600", _PROVED),
        (_NEAR_CC, "n >= 600", _NEAR),
        (_PATH_CC, "n >= 600; below it worse than (13)", "our reading of C 2(a)"),
        ("ODCL-KM++", "no curve", _KM),
        _OURS,
    ),
}
# The same in the notes; five draws where no number is given.
FINDS_NOTED = {
    ("section 5", "ODCL-KM++"): "from n = 40 (10 draws), not at 25",
    ("section 5", _NEAR_CC): "from n = 400; 60% at 400 with 1e-2 of the least distance",
    ("section 5", _PATH_CC): "from n = 50",
    ("section 5", _OWN_CC): "from n = 40 (80% at 30)",
    ("D.1", _NEAR_CC): "from n = 4000 (40% at 3000)",
    ("D.1", "ODCL-KM++"): "at every n, 500 to 6000",
    ("D.1", _OWN_CC): "from n = 500 (60% at 300)",
    ("D.2", _NEAR_CC): "from n = 600 (80% at 400)",
    ("D.2", _PATH_CC): "from n = 200 (80% at 100)",
    ("D.2", "ODCL-KM++"): "at n = 50, no other n noted",
    ("D.2", _OWN_CC): "from n = 100 (0% at 50)",
}
# Noted numbers of runs: measure, method, rows a site, runs in which it held, all runs.
SHARES_NOTED: dict[str, tuple[tuple[str, str, tuple[int, ...], int, int], ...]] = {
    "section 5": (
        ("interval", _NEAR_CC, (800,), 4, 5),
        ("exact", _NEAR_CC, (400,), 5, 5),
        ("exact", _PLAIN, (100,), 35, 40),
    ),
    "D.1": (
        ("exact", _NEAR_CC, (3000,), 2, 5),
        ("exact", _OWN_CC, (300,), 3, 5),
        ("exact", _PLAIN, _D1, 32, 35),
    ),
    "D.2": (
        ("exact", _NEAR_CC, (400,), 4, 5),
        ("exact", _PATH_CC, (100,), 4, 5),
        ("exact", _OWN_CC, (50,), 0, 5),
    ),
}

# Why who finds the partition, or how many clusters there are, is not what the paper says.
FEW_ROWS = (
    "25 rows for 20 coefficients: nearly singular sites carry the error; 50 is our next n; the "
    "paper does not name its least"
)
PATH = (
    "the paper explains its fewer clusters by coarsenings that satisfy (13); in three of our draws "
    "at each n from 100 no penalty of the path satisfies it, with K = 1 neither, so 2(b) decides, "
    "the same with K = 1 and K = m let in; by footnote 3's wider interval K = 1 alone would "
    "satisfy it up to n = 400, in some draws from 600 K = 4 too: perhaps the paper's check"
)
PATH_SHORT = "see the first rows: no penalty of our path satisfies (13)"
PATH_FEW = (
    "K falls from 100 to 1 within the ten penalties; K = 1 and K = m are left out, which leaves 26 "
    "or 51, or nothing: then the largest penalty is taken, K = 1"
)

# What more draws than a study makes say of the rows that differ (`odcl.py spread`).
MORE = "benchmarks/accept/odcl_spread.csv"
NEAR_D = (
    "25 rows for 20 coefficients: the mean never settles, nearly singular sites carry all of it; "
    f"means of five draws range over four powers of ten ({MORE})"
)
THRESHOLD = "near its threshold; joined where proved equal, the note within 1e-3: next curve"
UNLUCKY = "the note's five draws: its oracle averaging had {} here, {} over sixty draws"
OUR_DRAWS = f"our few draws: more of them agree with the note ({MORE})"
THEIR_DRAWS = (
    "the note's five draws are low: n - d - 1 times the oracle's error is .041 to .045 at n = 100, "
    "300, 400 there and here, .033 in the note at 200; sixty draws agree with ours "
    f"({MORE}); the rows at this n share their draws"
)
HIGH_DRAWS = (
    "our draws are high: n times oracle averaging's error is .43 to .55 at the other n, .59 here; "
    "the rows at this n share their draws: one coincidence, not several"
)
# Rows that are plain averages over sites; `OUR_DRAWS` only where more than a study's 20 were made.
LOOKED_AT = {
    ("section 5", "Local", 50): OUR_DRAWS,
    ("section 5", "oracle", 200): THEIR_DRAWS,
    ("D.1", "oracle", 6000): HIGH_DRAWS,
    ("D.2", "oracle", 800): OUR_DRAWS,
}


def reason(setting: str, method: str, n: int) -> str:
    """Why ours and the noted error differ, if they do; nothing where we know of no reason."""
    if setting == "section 5" and n == 25:
        return NEAR_D
    if method == _EXACT_CC and (setting, n) in (("section 5", 300), ("D.1", 2000)):
        return THRESHOLD
    if (setting, method) == ("section 5", "Cluster oracle") and n in (50, 100):
        return UNLUCKY.format(*(("2.2e-3", "1.75e-3") if n == 50 else ("6.8e-4", "5.6e-4")))
    # Sites left alone have the local error, sites rightly joined the oracle's.
    alone = method == "Local" or (setting == "section 5" and "(13)" in method and n <= 200)
    return LOOKED_AT.get((setting, "Local" if alone else "oracle", n), "")
