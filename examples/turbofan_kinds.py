"""100 turbofan engines, each a site that has seen only a few readings of its own.

Every engine regresses its corrected core speed (sensor 14) on static pressure (sensor 11), fan
temperature (sensor 7) and its age. Alone, a handful of readings is too few; pooled, engines of
different kinds are averaged away. FMLR finds the kinds and lets every engine borrow from its own.
All readings that an engine has not "seen" are the test. Prints a table, writes the page whose
name is given.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np

from fedkin import FMLR, Federation
from fedkin.datasets import load_turbofan
from fedkin.report import page
from fedkin.tables import Summary, Table

FEATURES = ("sensor_11", "sensor_7", "cycle")
READINGS = (4, 5, 6, 8, 12, 20)


def standardised(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()


def seen_and_rest(data: Federation, n_seen: int, seed: int) -> tuple[Federation, Federation]:
    """`n_seen` readings of every engine, drawn at random, and all others."""
    order = np.random.default_rng(seed).random(len(data.X))
    rank = np.empty(len(order), dtype=int)
    by_engine = np.lexsort((order, data.owner))
    rank[by_engine] = np.arange(len(order)) - data.offsets[:-1][data.owner]
    seen = rank < n_seen
    names = np.array(data.names)[data.owner]

    def part(rows: np.ndarray) -> Federation:
        return Federation.from_groups(data.X[rows], names[rows], data.y[rows], FEATURES)

    return part(seen), part(~seen)


def alone(seen: Federation, rest: Federation) -> np.ndarray:
    """Every engine by itself: one regression per site."""
    predicted = np.empty(len(rest.X))
    for k in range(len(seen)):
        X, y = seen.client(k)
        model = FMLR(1).fit(X, y)
        rows = slice(rest.offsets[k], rest.offsets[k + 1])
        predicted[rows] = model.predict(rest.X[rows])
    return predicted


def rmse(predicted: np.ndarray, rest: Federation) -> np.ndarray:
    """Root mean square error of every engine."""
    squares = np.bincount(rest.owner, (predicted - rest.y) ** 2) / rest.sizes
    return np.sqrt(squares)


def main(target: Path) -> Table:
    warnings.simplefilter("ignore")
    engines = load_turbofan()
    X = np.stack([standardised(engines.column(name)) for name in FEATURES], axis=1)
    y = standardised(engines.column("sensor_14"))
    data = Federation.from_groups(X, engines.engine, y, FEATURES, "sensor_14")
    columns: dict[str, list] = {name: [] for name in ("readings", "pooled", "alone", "FMLR")}
    columns |= {"kinds found": [], "engines helped": []}
    fitted = None
    for n_seen in READINGS:
        seen, rest = seen_and_rest(data, n_seen, seed=0)
        model = FMLR(random_state=0).fit(seen)
        fitted = model if n_seen == 8 else fitted
        errors = {
            "pooled": rmse(FMLR(1, random_state=0).fit(seen).predict(rest), rest),
            "alone": rmse(alone(seen, rest), rest),
            "FMLR": rmse(model.predict(rest), rest),
        }
        columns["readings"].append(n_seen)
        for name, error in errors.items():
            columns[name].append(float(np.median(error)))
        columns["kinds found"].append(model.n_components_)
        columns["engines helped"].append(int((errors["FMLR"] < errors["alone"]).sum()))
    table = Table(columns, "Median error over 100 engines on readings they have not seen")
    print(table)
    assert fitted is not None
    told = fitted.summary()
    tables = {"curve": table, **told.tables}
    notes = (
        "Error in standard deviations of sensor 14. Joining helps while an engine has few readings "
        "of its own, and stops helping when it has many: engines differ by degrees, not only by "
        "kind. Below the curve: the fit with 8 readings an engine.",
        *told.notes,
    )
    target.write_text(page(Summary("100 turbofan engines", tables, notes)), encoding="utf-8")
    print(f"wrote {target.resolve()}")
    return table


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "kinds.html"))
