"""A fitted `Standardizer` applied at a site: its own table, in the scale all sites agreed on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.arrays import Arrays, Floats
from fedkin.durable import load_arrays
from fedkin.engines.schema import ColumnFault, ColumnRule
from fedkin.engines.site_data import CannotTakePart
from fedkin.engines.site_report import MODEL_FILE
from fedkin.frames import read_frame

METHOD = "standardizer"


def standardized(state: str | Path, run: str, data: str | Path) -> Any:
    """The site's table with the columns of a Standardizer's run scaled, all others as they are."""
    import narwhals.stable.v1 as nw

    folder = Path(state) / run
    if not (folder / MODEL_FILE).exists():
        raise ValueError(f"{folder} holds no model: the run has not ended here")
    about = json.loads((folder / "run.json").read_text())
    if about["algorithm"] != METHOD:
        raise ValueError(f"run {run!r} is of {about['algorithm']}, not of a Standardizer")
    model, columns = load_arrays(folder / MODEL_FILE, seal=True), list(about["features"])
    table = nw.from_native(read_frame(data), eager_only=True)
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise ValueError(f"{data} has no column {', '.join(missing)}, which the run had")
    try:
        X = np.concatenate([ColumnRule(c).numbers(table[c]) for c in columns], axis=1)
    except ColumnFault as error:
        raise CannotTakePart(error.fault, f"{data}: {error}") from error
    scaled = scale(X, model)
    space = nw.get_native_namespace(table)
    new = [nw.new_series(c, scaled[:, j], native_namespace=space) for j, c in enumerate(columns)]
    return table.with_columns(*new)


def scale(X: Floats, model: Arrays) -> Floats:
    """What `Standardizer.transform` gives, from the arrays that every site gets."""
    scaled = (X - model["shared.mean"]) / model["shared.scale"]
    whitening = model.get("shared.whitening")
    return scaled if whitening is None else scaled @ whitening
