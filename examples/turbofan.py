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
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from fedkin import FGPR, Federation, LocalGP
from fedkin.datasets import load_turbofan
from fedkin.report.pages import report
from fedkin.tables import Table

READINGS = 8
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


def gains(joined: FGPR, alone: LocalGP, rest: Federation) -> dict:
    """What joining gives every engine: log density of its unseen readings, with 95 % intervals."""
    fed = rest.X, rest.y, rest.groups
    more = joined.log_predictive_density(*fed) - alone.log_predictive_density(*fed)
    mean = np.bincount(rest.owner, more) / rest.sizes
    spread = np.bincount(rest.owner, (more - mean[rest.owner]) ** 2) / (rest.sizes - 1)
    reach = 1.96 * np.sqrt(spread / rest.sizes)
    helped = int((mean > 0).sum())
    return {
        "sites": list(rest.names),
        "gain": mean.tolist(),
        "low": (mean - reach).tolist(),
        "high": (mean + reach).tolist(),
        "helped": helped,
        "sentence": f"Joining helps {helped} of {len(mean)} engines to foresee readings that they "
        "have not seen; eight readings are too few to learn how noisy a sensor is, a hundred "
        "engines together know.",
        "caption": "A dot is an engine: how much likelier its unseen readings are under the joined "
        "fit than under its own, cautious one, with a 95 % interval. Right of zero joining helps.",
        "unit": "gain in log density of an unseen reading",
    }


def page_of(model: FGPR, seen: Federation, rest: Federation, told: dict, table: Table) -> str:
    """The report, as any fit has it, with what joining gives each engine."""
    about = {"file": "engines.csv", "rows": len(seen.X), "client": "engine"}
    notes = [
        f"{row['']}: 95 % intervals hold {100 * row['coverage of 95 %']:.0f} % of the "
        f"{len(rest.X):,} unseen readings, log score {row['log score']:.3g}"
        for row in table.records()
    ]
    record = {"data": about, "benefit": told, "notes": notes}
    return report(model, record, "100 turbofan engines with eight readings each")


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
    told = gains(models["joined"], models["alone, cautious"], rest)
    print(told["sentence"])
    text = page_of(models["joined"], seen, rest, told, table)
    target.write_text(text, encoding="utf-8")
    print(f"wrote {target.resolve()}")
    return table


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "report.html"))
