"""ODCL, Table 3 and Figure 5: how many rounds IFCA needs for what ODCL reaches in one.

The paper does not say how local gradients are taken, and the answer depends on it: both of all rows
and of one drawn row are run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.odcl_protocol import CAP
from reproduction.study import Check, Claim, Results, Size, Study, agreed, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH = {"all rows": None, "one row": 1}
STEPS = (0.1, 0.05, 0.01)
# Rounds whose error is kept for the figure.
SHOWN = (*range(1, 21), *range(25, 101, 5), *range(120, 301, 20), *range(350, CAP + 1, 50))
# A near miss counts as reached: IFCA's limit and one-shot averaging differ by about 5 %.
NEAR = 1.1


# ------------------------------------------------------------------ replications


def rounds(seed: int, setting: str, gradients: str) -> list[dict[str, Any]]:
    """Rounds of ODCL and of IFCA until it has ODCL's error, n = 400."""
    from fedkin import ODCL
    from reproduction.odcl_protocol import SETTINGS, first_round, ifca_errors, measured

    given = SETTINGS[setting]
    groups = given.draw(400, [seed, 400, 3])
    model = ODCL(given.n_clusters, aggregate="mean", random_state=seed, **given.fit)
    model.fit(groups.federation)
    target = measured(groups, model).error
    start = np.zeros((1, 20))
    if given.n_clusters > 1:
        start = groups.nearby(1 / 6, 1 / 4, [seed, 4])
    errors = ifca_errors(groups, start, BATCH[gradients], seed, target)
    first, near = (first_round(errors, factor * target) for factor in (1, NEAR))
    return [
        {
            "ODCL rounds": model.n_rounds_,
            "rounds": first or CAP,
            "matched": first is not None,
            "rounds if matched": first,
            "rounds to 1.1 x": near or CAP,
            "within 1.1 x": near is not None,
        }
    ]


def curves(seed: int, n: int, gradients: str, step: float) -> list[dict[str, Any]]:
    """IFCA's error round by round beside ODCL's, K = 4."""
    from fedkin import ODCL, OracleAveraging
    from reproduction.odcl_protocol import SETTINGS, first_round, ifca_errors, measured

    given = SETTINGS["D.2"]
    groups = given.draw(n, [seed, n, 5])
    exact = {"clustering": "convex", "penalty": "interval", "true_labels": groups.labels}
    convex, oracle = (
        measured(groups, model.fit(groups.federation)).error
        for model in (
            ODCL(aggregate="mean", random_state=seed, **given.fit, **exact),
            OracleAveraging(groups.labels, **given.fit),
        )
    )
    start = groups.nearby(1 / 5, 1 / 3, [seed, 6])
    errors = ifca_errors(groups, start, BATCH[gradients], seed, -1.0, step_size=step)
    # It ends before when no model moves any more.
    errors = np.pad(errors, (0, CAP - len(errors)), mode="edge")
    to_convex, to_oracle = (first_round(errors, target) for target in (convex, oracle))
    found: list[dict[str, Any]] = [
        {
            "method": "summary",
            "ODCL-CC": convex,
            "oracle averaging": oracle,
            "last": errors[-100:].mean(),
            "matches ODCL-CC": to_convex is not None,
            "rounds to ODCL-CC": to_convex,
            "matches the oracle": to_oracle is not None,
            "rounds to the oracle": to_oracle,
        }
    ]
    return found + [{"method": "IFCA", "round": t, "error": errors[t - 1]} for t in SHOWN]


# ------------------------------------------------------------------ Table 3

WORDS = {"one cluster": "homogeneous", "D.2": "heterogeneous"}
PAPER = {"one cluster": 440, "D.2": 655}
NEAR_TIE = (
    "a near-tie: IFCA's limit and ours differ by about 5 %, so some runs never match and count 1000"
)

_FLOOR = "; sampled steps have a floor"
MORE_WHY = {
    ("one cluster", "one row"): _FLOOR,
    ("D.2", "one row"): _FLOOR,
    ("D.2", "all rows"): "; only sampled steps, below, come near 655",
}


def draw_table(results: Results) -> Figure:
    """Rounds of IFCA for both settings and ways, the paper's as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.9), layout="constrained")
    measures = ("rounds", "rounds if matched", "rounds to 1.1 x")
    for axes, setting in zip(figure.subplots(1, 2, sharey=True), results.distinct("setting")):
        for i, way in enumerate(BATCH):
            found = results.where(setting=setting, gradients=way)
            places = np.arange(len(measures)) + 0.4 * i
            means = [found.estimate(name).mean for name in measures]
            errors = [found.estimate(name).se for name in measures]
            axes.bar(places, means, 0.36, yerr=errors, capsize=3, label=f"gradients of {way}")
        axes.axhline(PAPER[setting], color="k", ls="--", lw=1, label="paper")
        axes.set_xticks(np.arange(len(measures)) + 0.2, ["capped at 1000", *measures[1:]])
        axes.set(title=WORDS[setting])
        axes.tick_params(labelsize=8)
    first = figure.axes[0]
    first.set(ylabel="rounds of IFCA")
    figure.legend(
        *first.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
    )
    return figure


def table_claims(results: Results) -> list[Claim]:
    """The four entries, IFCA's for both ways, then what the mean hides."""
    found = []
    for setting, word in WORDS.items():
        here = results.where(setting=setting)
        found.append(Claim(f"ODCL-KM++, {word}", "1", here.estimate("ODCL rounds"), "yes"))
        for way in BATCH:
            ifca = here.where(gradients=way)
            matched = ifca.estimate("rounds if matched")
            found += [
                Claim(
                    f"IFCA, {word}, local gradients of {way}",
                    str(PAPER[setting]),
                    ifca.estimate("rounds"),
                    "how local gradients are taken is not said",
                    f"{NEAR_TIE}{MORE_WHY.get((setting, way), '')}",
                ),
                Claim(
                    f"IFCA, {word}, {way}: share matched / rounds of those / rounds to 1.1 x",
                    "not given",
                    f"{ifca.estimate('matched').mean:.2g} / {matched} / "
                    f"{ifca.estimate('rounds to 1.1 x')}",
                    "yes",
                ),
            ]
    return found


def table_checks(results: Results) -> list[Check]:
    """One round against hundreds."""
    one_shot = results.column("ODCL rounds")
    rounds = {
        (setting, way): results.estimate("rounds", setting=setting, gradients=way).mean
        for setting in WORDS
        for way in BATCH
    }
    told = ", ".join(f"{WORDS[s]}, {way}: {value:.0f}" for (s, way), value in rounds.items())
    return [
        Check(
            "ODCL needs 1 round, IFCA hundreds for the same error",
            bool((one_shot == 1).all()) and min(rounds.values()) >= 100,
            f"IFCA: {told}",
        ),
        Check(
            "IFCA needs more of them where sites differ",
            agreed(rounds["one cluster", way] < rounds["D.2", way] for way in BATCH),
            f"IFCA: {told}",
        ),
    ]


# ------------------------------------------------------------------ Figure 5


def draw_curves(results: Results) -> Figure:
    """Error against rounds for n = 400 (left) and 600 (right), both ways of local gradients."""
    from matplotlib.figure import Figure

    ways = results.distinct("gradients")
    figure = Figure(figsize=(10, 3.4 * len(ways) + 0.4), layout="constrained")
    grid = figure.subplots(len(ways), 2, squeeze=False, sharey=True)
    for row, way in zip(grid, ways):
        for axes, n in zip(row, sorted(results.distinct("n"))):
            here = results.where(n=n, gradients=way)
            for step, color in zip(STEPS, ("tab:orange", "tab:green", "tab:red")):
                x, error = here.curve("round", "error", method="IFCA", step=step)
                axes.plot(x, error, color=color, label=f"IFCA, step {step:g}")
            for name, look in (("ODCL-CC", "b-"), ("oracle averaging", "k:")):
                axes.axhline(here.estimate(name).mean, color=look[0], ls=look[1:], label=name)
            axes.set(xscale="log", yscale="log", xlabel="communication rounds")
            axes.set_title(f"n = {n}, local gradients of {way}", fontsize=10)
            axes.grid(alpha=0.3)
        row[0].set(ylabel="normalised MSE")
    grid[0, 0].legend(fontsize=8)
    return figure


# What the text says of the rounds until IFCA has ODCL-CC's error.
ROUNDS_SAID = {
    400: {0.1: "about 20", 0.05: "about 20", 0.01: "about 70"},
    600: dict.fromkeys(STEPS, "not within 1000"),
}
WHY_600 = "floors that grow with the step, as in the paper's figure, come with sampled gradients"


def curve_claims(results: Results) -> list[Claim]:
    """ODCL's lines, then for every step and way the rounds to them and IFCA's last error."""
    found = []
    for n in sorted(results.distinct("n")):
        here = results.where(n=n, method="summary")
        for name in ("ODCL-CC", "oracle averaging"):
            claim = Claim(
                f"n = {n}, MSE of {name}",
                "line, no number",
                here.estimate(name),
                "yes, an oracle: (13) with the true clusters" if name == "ODCL-CC" else "yes",
            )
            found.append(claim)
        for way in BATCH:
            for step in STEPS:
                this = results.where(n=n, gradients=way, step=step)
                found += _of_step(this, n, way, step)
    return found


def _of_step(results: Results, n: int, way: str, step: float) -> list[Claim]:
    here = results.where(method="summary")
    words = []
    for share, count, name in (
        ("matches ODCL-CC", "rounds to ODCL-CC", "ODCL-CC"),
        ("matches the oracle", "rounds to the oracle", "the oracle"),
    ):
        reached = here.estimate(share).mean
        after = f" after {here.estimate(count)} rounds" if reached else ""
        words.append(f"{name} in {reached:.0%} of runs{after}")
    full = way == "all rows"
    last = Claim(
        f"n = {n}, IFCA, step {step:g}, {way}: MSE after {CAP} rounds",
        "above ODCL's" if n == 600 else "no number",
        here.estimate("last"),
        "how local gradients are taken is not said",
        WHY_600 if n == 600 and full else "",
    )
    return [
        Claim(
            f"n = {n}, IFCA, step {step:g}, {way}: matches",
            ROUNDS_SAID.get(n, {}).get(step, "no such n"),
            "; ".join(words),
            "how local gradients are taken is not said",
            _read_off(results) if n == 400 else WHY_600 if full else "",
        ),
        last,
    ]


def _read_off(results: Results) -> str:
    """Where the averaged curve meets the averaged line, as the paper reads rounds off its figure.

    The curve is known at the kept rounds only.
    """
    at, error = results.curve("round", "error", method="IFCA")

    def meets(line: float) -> str:
        below = np.flatnonzero(error <= line)
        return f"first at round {at[below[0]]:.0f}" if below.size else "never"

    ours = results.estimate("ODCL-CC").mean
    return (
        "the paper reads rounds off averaged curves: at the rounds kept our averaged curve is "
        f"below our averaged ODCL-CC ({ours:.2g}) {meets(ours)}; the paper does not print its line"
    )


SAID = {
    400: "IFCA comes to ODCL-CC's error",
    600: "IFCA does not come to ODCL-CC's error within 1000 rounds",
}


def curve_checks(results: Results) -> list[Check]:
    """Whether IFCA comes to ODCL-CC's error: in more than half of the runs, at every step."""
    found = []
    for n, words in SAID.items():
        shares = {}
        for way in BATCH:
            here = results.where(n=n, gradients=way, method="summary")
            steps = here.distinct("step")
            if steps:
                shares[way] = [here.estimate("matches ODCL-CC", step=x).mean for x in steps]
        if not shares:
            continue
        told = "; ".join(
            f"gradients of {way}: in {min(s):.0%} to {max(s):.0%} of runs, by step"
            for way, s in shares.items()
        )
        verdicts = [min(s) > 0.5 if n == 400 else max(s) < 0.5 for s in shares.values()]
        found.append(Check(f"n = {n}: {words}", agreed(verdicts), told))
    return found


PLANS = cells(setting=("one cluster", "D.2"), gradients=tuple(BATCH))
CURVES = cells(n=(400, 600), gradients=tuple(BATCH), step=STEPS)
STUDIES = (
    Study(
        name="odcl-table-3",
        paper="ODCL",
        shows="Table 3",
        title="rounds IFCA needs for ODCL's error",
        protocol=(
            "100 sites, n = 400, 20 coefficients: uniform on [0, 1] (homogeneous, IFCA from zero) "
            "or D.2's four clusters (IFCA from D/6 to D/4 of the truth); model averaging, ten "
            "local steps of .01, loss with its factor 1/2, given up after 1000 rounds."
        ),
        one=rounds,
        figure=draw_table,
        claims=table_claims,
        checks=table_checks,
        why="a near-tie: IFCA's limit and ODCL's differ by 5 %, runs that never match count 1000; "
        "how the paper takes local gradients is not said",
        by=("setting", "gradients"),
        measures=(
            "ODCL rounds",
            "rounds",
            "matched",
            "rounds if matched",
            "rounds to 1.1 x",
            "within 1.1 x",
        ),
        full=Size(PLANS, 60),
        quick=Size(PLANS, 10),
        toy=Size(PLANS, 1),
    ),
    Study(
        name="odcl-figure-5",
        paper="ODCL",
        shows="Figure 5",
        title="IFCA round by round against ODCL",
        protocol=(
            "D.2's four clusters; IFCA from D/5 to D/3 of the truth, model averaging, ten local "
            "steps; ODCL-CC with the penalty from (13), as in D.1 (an oracle)."
        ),
        one=curves,
        figure=draw_curves,
        claims=curve_claims,
        checks=curve_checks,
        why="with gradients of all rows IFCA's limit is near ODCL's, above or below by chance; "
        "with one row drawn it stays above, as in the paper, which does not say which it took",
        by=("n", "gradients", "step"),
        measures=(
            "ODCL-CC",
            "oracle averaging",
            "last",
            "matches ODCL-CC",
            "matches the oracle",
        ),
        full=Size(CURVES, 20),
        quick=Size(CURVES, 1),
        toy=Size(cells(n=(600,), gradients=tuple(BATCH), step=(0.1, 0.01)), 1),
    ),
)
