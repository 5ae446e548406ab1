"""44 people wrote digits; nobody says which digit is which. What does joining give a writer?

Every writer finds ten groups. Alone, the groups are as pure as joined, but group 3 is another
digit for every writer. Joined (FedGrEM), a group means the same digit for all, so that one
person who names ten groups has named them for everybody. Digits are used for scoring only.
Prints a table, writes the page whose name is given.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment

from fedkin import Federation, FedGrEM, LocalEM, Standardizer
from fedkin.datasets import load_pendigits
from fedkin.report import page
from fedkin.tables import Summary, Table

DIGITS = 10
SHOWN = 5


def confusion(groups: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """How often each group (rows) holds each digit (columns)."""
    table = np.zeros((DIGITS, DIGITS))
    np.add.at(table, (groups, digits.astype(int)), 1)
    return table


def error(table: np.ndarray) -> float:
    """Share of digits in the wrong group under the best naming of groups."""
    return 1 - table[linear_sum_assignment(-table)].sum() / table.sum()


def errors(groups: np.ndarray, test: Federation) -> tuple[float, float]:
    """In per cent: groups named once for all writers, and anew for every writer."""
    own = [
        error(confusion(groups[test.owner == k], test.y[test.owner == k]))
        for k in range(test.n_clients)
    ]
    weights = test.sizes / test.sizes.sum()
    return 100 * error(confusion(groups, test.y)), 100 * float(weights @ own)


def strokes(model, scaler: Standardizer, writers: list[int], names: list[str]) -> Figure:
    """The centre of every group at some writers, drawn as the pen went."""
    figure = Figure(figsize=(11, 1.25 * len(writers)), layout="constrained")
    panels = figure.subplots(len(writers), DIGITS)
    for row, k in zip(panels, writers):
        centres = scaler.inverse_transform(model.means_[k]).reshape(DIGITS, 8, 2)
        for group, (axes, points) in enumerate(zip(row, centres)):
            axes.plot(*points.T, lw=2)
            axes.plot(*points[0], "k.", ms=5)
            axes.set(xlim=(-10, 110), ylim=(-10, 110), xticks=[], yticks=[], aspect="equal")
            axes.set_title(f"group {group}" if k == writers[0] else "", fontsize=9)
        row[0].set_ylabel(names[k], fontsize=8)
    return figure


def main(target: Path) -> Table:
    warnings.simplefilter("ignore")
    train, test = load_pendigits().federation(labelled=True).split(0.2, "rows", 0)
    scaler = Standardizer(whiten=True, n_groups=DIGITS).fit(train)
    scaled, asked = scaler.transform(train), scaler.transform(test)
    models = {
        "joined": FedGrEM(DIGITS, random_state=0).fit(scaled),
        "alone": LocalEM(DIGITS, random_state=0).fit(scaled),
    }
    scores = [errors(model.predict(asked.X, asked.groups), test) for model in models.values()]
    columns: dict[str, list] = {"": list(models)}
    columns["% wrong, groups named once for all"] = [once for once, _ in scores]
    columns["% wrong, named anew for every writer"] = [own for _, own in scores]
    table = Table(columns, "Digits not used in the fit, 44 writers")
    print(table)
    some = np.linspace(0, train.n_clients - 1, SHOWN).astype(int).tolist()
    figures = {
        f"{name.capitalize()}: centres of the groups of {SHOWN} writers; the dot is where the pen "
        "began": strokes(model, scaler, some, list(train.names))
        for name, model in models.items()
    }
    told = models["joined"].summary()
    notes = (
        "A writer's own error hardly changes by joining; what is gained is a common meaning.",
        *told.notes,
    )
    summary = Summary("44 writers of digits", {"errors": table, **told.tables}, notes)
    target.write_text(page(summary, figures), encoding="utf-8")
    print(f"wrote {target.resolve()}")
    return table


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "pen_digits.html"))
