"""100 turbofan engines, each a site that has seen only eight readings of sensor 7 in its life.

Alone, an engine must learn from eight readings how fast its sensor changes and how noisy it is,
and is sure of itself too often. Joined, engines learn one prior for these (FGPR) without showing
each other a reading; every engine then draws its own curve through its own eight. All readings an
engine has not seen are the test. Prints a table, writes report.html.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from fedkin import FGPR, Federation, LocalGP
from fedkin.datasets import load_turbofan
from fedkin.estimators.curve_plots import calibration, posterior_bands
from fedkin.report import page
from fedkin.tables import Summary, Table

READINGS = 8
SHOWN = 6
# Engines are in the same units, so the scale of their curves is shared, too.
UNITS = {"normalize_y": "mean"}
# Nothing keeps a likelihood of eight readings from a curve through all of them without noise;
# this rival may not go below 1 % of the fleet's variance.
CAUTIOUS = ConstantKernel(1.0, (1e-2, 1e2)) * RBF(1.0, (0.05, 20.0)) + WhiteKernel(
    0.1, (0.01, 10.0)
)


def fleet() -> Federation:
    """Sensor 7 of every engine, in standard deviations of the fleet, by hundreds of cycles."""
    engines = load_turbofan()
    y = engines.column("sensor_7")
    names = np.array([f"engine-{number}" for number in engines.engine])
    x = engines.cycle[:, None] / 100
    return Federation.from_groups(x, names, (y - y.mean()) / y.std(), ["cycles / 100"], "sensor 7")


def seen_and_rest(data: Federation, n_seen: int, seed: int) -> tuple[Federation, Federation]:
    """`n_seen` readings of every engine, drawn at random, and all others."""
    draw = np.random.default_rng(seed).random(len(data.X))
    rank = np.empty(len(draw), dtype=int)
    rank[np.lexsort((draw, data.owner))] = np.arange(len(draw)) - data.offsets[:-1][data.owner]
    names = np.array(data.names)[data.owner]

    def part(rows: np.ndarray) -> Federation:
        return Federation.from_groups(
            data.X[rows], names[rows], data.y[rows], data.feature_names, data.target_name
        )

    return part(rank < n_seen), part(rank >= n_seen)


def comparison(scores: dict[str, Table]) -> Table:
    """One row a method; log score is minus the log density of an unseen reading."""
    joined = next(iter(scores.values()))
    columns: dict[str, list] = {"": list(scores)}
    columns["coverage of 95 %"] = [float(s["coverage"].mean()) for s in scores.values()]
    columns["log score"] = [-float(s["log density"].mean()) for s in scores.values()]
    columns["its median"] = [-float(np.median(s["log density"])) for s in scores.values()]
    columns["RMSE"] = [float(s["rmse"].mean()) for s in scores.values()]
    helped = [int((joined["log density"] > s["log density"]).sum()) for s in scores.values()]
    columns["joining helps"] = ["", *(f"{n} of {len(joined['site'])}" for n in helped[1:])]
    return Table(columns, f"Readings an engine has not seen, {READINGS} seen; lower scores win")


def by_engine(joined: Table, alone: Table) -> Table:
    """Every engine's gain in log score, the largest first."""
    gain = joined["log density"] - alone["log density"]
    order = np.argsort(-gain)
    columns = {"engine": joined["site"][order], "unseen readings": joined["rows"][order]}
    for name, scores in (("joined", joined), ("alone", alone)):
        columns[f"coverage, {name}"] = scores["coverage"][order]
        columns[f"RMSE, {name}"] = scores["rmse"][order]
    columns["gain in log score"] = gain[order]
    return Table(columns, "Engine by engine, against the cautious separate fit")


def curves(models: dict, seen: Federation, rest: Federation, sites: list[str]) -> Figure:
    """Bands of some engines, joined above and alone below, over what they saw and the rest."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    panels = figure.subplots(len(models), len(sites), sharex="col", sharey=True, squeeze=False)
    for number, (name, model) in enumerate(models.items()):
        for axes, site in zip(panels[number], sites):
            X, y = rest.client(rest.names.index(site))
            axes.plot(X[:, 0], y, ".", color="0.75", ms=2)
            posterior_bands(model, seen, site, axes, over=(X.min(), X.max()))
            axes.set(title="" if number else site, ylabel=f"{name}: {axes.get_ylabel()}")
            axes.label_outer()
    return figure


def main(target: Path) -> Table:
    warnings.simplefilter("ignore")
    seen, rest = seen_and_rest(fleet(), READINGS, seed=0)
    models = {
        "joined": FGPR(**UNITS).fit(seen),
        "alone": LocalGP(**UNITS).fit(seen),
        "alone, cautious": LocalGP(CAUTIOUS, **UNITS).fit(seen),
    }
    scores = {name: model.evaluate(rest) for name, model in models.items()}
    table = comparison(scores)
    print(table)
    joined, alone = scores["joined"], scores["alone, cautious"]
    gain = joined["log density"] - alone["log density"]
    spread = np.argsort(-gain)[np.linspace(0, len(gain) - 1, SHOWN).astype(int)]
    shown = {name: models[name] for name in ("joined", "alone, cautious")}
    held = Figure(figsize=(4.2, 3.6), layout="constrained")
    axes = held.subplots()
    for model in shown.values():
        calibration(model, rest, axes)
    axes.legend(axes.lines[1::2], shown)
    figures = {
        "Six engines, from the one that gains most by joining to the one that loses most: black "
        "what it saw, grey what it did not, band 95 %": curves(
            shown, seen, rest, [str(joined["site"][k]) for k in spread]
        ),
        "How many unseen readings lie inside intervals of each promised share": held,
    }
    told = models["joined"].summary()
    tables = {"methods": table, **told.tables, "engines": by_engine(joined, alone)}
    del tables["sites"], tables["choice"]
    notes = (
        f"Each engine is a site with {READINGS} readings; {len(rest.X):,} others are the test. "
        "Joined: one prior for all engines, found without a reading leaving its engine. Alone: "
        "a Gaussian process fitted to each engine by maximum likelihood; cautious: with noise of "
        "at least 1 % of the fleet's variance. A few engines without that limit believe in a curve "
        "without noise, which ruins their mean log score, hence the median.",
        *told.notes,
    )
    summary = Summary("100 turbofan engines with eight readings each", tables, notes)
    target.write_text(page(summary, figures), encoding="utf-8")
    print(f"wrote {target.resolve()}")
    return table


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "report.html"))
