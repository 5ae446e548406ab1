"""`fedkin predict`, `fedkin adapt` and `fedkin report`: models of earlier runs in use."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.cli import asking
from fedkin.cli.json_text import json_text

Model = Annotated[Path, typer.Argument(help="Folder of a run, or of a model.")]


def predict(
    model: Model,
    data: asking.Data,
    client: Annotated[
        str | None, typer.Option("--client", "--site", help="Column with the site; the fit's.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="CSV file to write; else it is printed.")
    ] = None,
    level: Annotated[
        float | None, typer.Option(help="Also intervals that hold so often, such as .95.")
    ] = None,
    sep: asking.Sep = None,
    decimal: asking.Decimal = None,
    encoding: asking.FileEncoding = None,
    as_json: asking.AsJson = False,
) -> None:
    """Predict the rows of a table: it comes back in its order, with columns added."""
    import sys

    from pyarrow import csv

    from fedkin.frames import read_frame

    if level is not None and not 0 < level < 1:
        raise ValueError(f"--level must be between 0 and 1, such as .95, not {level:g}")
    fitted, record = loaded(model)
    if client is not None:
        record = {**record, "data": {**record["data"], "client": client}}
    frame = read_frame(data, sep, decimal, encoding)
    asking.check_rows(frame, data)
    table = predicted(fitted, frame, record, level)
    if as_json:
        typer.echo(json_text(table.to_pylist(), indent=1))
    elif out is None:
        csv.write_csv(table, sys.stdout.buffer)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        csv.write_csv(table, out)
        typer.echo(f"wrote {out}", err=True)


def adapt(
    model: Model,
    data: asking.Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the adapted model.")],
    client: Annotated[
        str | None, typer.Option("--client", "--site", help="Column with the site; the fit's.")
    ] = None,
    target: asking.Target = None,
    sep: asking.Sep = None,
    decimal: asking.Decimal = None,
    encoding: asking.FileEncoding = None,
    missing: asking.Missing = "error",
) -> None:
    """Give a model the rows of sites it has not seen; what is shared stays as it is."""
    from dataclasses import replace

    from fedkin.cli.run_folder import MODEL, RECORD
    from fedkin.estimators import Best
    from fedkin.federation import Federation
    from fedkin.frames import read_frame

    fitted, record = loaded(model)
    if not hasattr(fitted, "adapt"):
        instead = "; adapt a fit of one method (fedkin methods)" if type(fitted) is Best else ""
        raise ValueError(f"{type(fitted).__name__} cannot be adapted to new sites{instead}")
    about = record["data"]
    target = (target or about["target"]) if fitted._uses_target() else None
    frame = read_frame(data, sep, decimal, encoding)
    asking.check_rows(frame, data)
    rows = Federation.from_frame(
        frame,
        client or about["client"],
        target,
        None if about["encoding"] else about["features"],
        encoding=encoding_of(record),
        missing=missing,  # type: ignore[arg-type]
    )
    fitted.adapt(replace(rows, X=scaled(rows.X, record)))
    out.mkdir(parents=True, exist_ok=True)
    place = fitted.save(out / MODEL)
    (out / RECORD).write_text(json_text(record, indent=1), encoding="utf-8")
    typer.echo(f"the model now knows {', '.join(rows.names)}")
    typer.echo(f"wrote {place}", err=True)


def report(
    model: Model,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="HTML file to write; in the folder if open.")
    ] = None,
) -> None:
    """Write the page of a run again: the answer, pictures, sites, what left them."""
    from fedkin.report.pages import report as page

    fitted, record = loaded(model)
    out = out or model / "report.html"
    out.write_text(page(fitted, record), encoding="utf-8")
    typer.echo(f"wrote {out}")


# ------------------------------------------------------------------ models and tables


def loaded(place: Path) -> tuple[Any, dict[str, Any]]:
    """A model and the record of its run; a bare model has a record of the least."""
    from fedkin.cli.run_folder import find_model
    from fedkin.keeping import load

    folder, record = find_model(place)
    fitted = load(folder)
    return fitted, record or _bare(fitted)


def _bare(fitted: Any) -> dict[str, Any]:
    names = fitted._features()
    data = {"client": "site", "target": "y", "features": names, "encoding": None}
    return {"data": data, "warnings": [], "checks": [], "missing": []}


def scaled(X: Any, record: dict[str, Any]) -> Any:
    """Rows in the units of the fit."""
    import numpy as np

    scales = record.get("scales")
    return X if scales is None else (X - np.array(scales["mean"])) / np.array(scales["scale"])


def encoding_of(record: dict[str, Any]) -> Any:
    """How words of a table become numbers, as in the fit."""
    from fedkin.levels import Encoding

    told = record["data"]["encoding"]
    return None if told is None else Encoding.from_json(told)


def predicted(fitted: Any, frame: Any, record: dict[str, Any], level: float | None = None) -> Any:
    """The table asked, in its order, with what the model says of every row beside it.

    A row that lacks a number gets no prediction; how many do, and which sites the model does not
    know, is told.
    """
    import narwhals.stable.v1 as nw
    import numpy as np
    import pyarrow

    from fedkin.levels import Column, Encoding
    from fedkin.names import canonical_names

    about = record["data"]
    table = nw.from_native(frame, eager_only=True)
    encoding = encoding_of(record) or Encoding(tuple(Column(n) for n in about["features"]))
    X = scaled(encoding.matrix(table), record)
    whole = np.flatnonzero(np.isfinite(X).all(axis=1))
    if not len(whole):
        raise ValueError(f"each of the {len(X)} rows asked lacks a number; fill them in")
    sites, remarks = None, []
    if len(whole) < len(X):
        remarks.append(f"{len(X) - len(whole)} of {len(X)} rows lack a number: no prediction")
    if about["client"] not in table.columns:
        remarks.append(
            f"there is no column {about['client']!r} of sites; all rows are predicted as those of "
            "a new site (--client names another column)"
        )
    else:
        labels = np.array(table[about["client"]].to_list(), dtype=object)
        remarks += _unknown(fitted, canonical_names(labels)[whole])
        sites = labels[whole]
    for remark in remarks:
        typer.echo(f"warning: {remark}", err=True)
    with warnings.catch_warnings():
        # Columns are put in their order by name above; rows then come without names.
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        columns = columns_said(fitted, X[whole], sites, encoding.classes, level)
    for name, values in columns.items():
        unique = name if name not in frame.column_names else f"{name} (fedkin)"
        full: list[Any] = [None] * len(X)
        for place, value in zip(whole.tolist(), np.asarray(values).tolist()):
            full[place] = value
        frame = frame.append_column(unique, pyarrow.array(full))
    return frame


def _unknown(fitted: Any, sites: Any) -> list[str]:
    """A remark on rows of sites that the model does not know, a misspelt one perhaps."""
    from fedkin.names import name_order, sites_listed

    known = {*getattr(fitted, "client_names_", ()), *getattr(fitted, "_adapted", ())}
    known -= set(getattr(fitted, "_elsewhere", ())) - {*getattr(fitted, "_adapted", ())}
    rows = [site for site in sites if site not in known]
    if not rows or not hasattr(fitted, "predict"):
        return []
    named = sites_listed(sorted(set(rows), key=name_order))
    adapted = " (fedkin adapt gives it rows of such a site)" if hasattr(fitted, "adapt") else ""
    return [
        f"{len(rows)} of {len(sites)} rows are of sites that the model has nothing of ({named}); "
        f"they are predicted as those of a new site{adapted}"
    ]


def columns_said(
    fitted: Any, X: Any, sites: Any, classes: tuple[str, ...], level: float | None
) -> dict[str, Any]:
    """What a model says of rows, as columns."""
    import numpy as np

    from fedkin.inference.spread import tells_spread

    if not hasattr(fitted, "predict"):
        names = [f"{name} (transformed)" for name in fitted._features()]
        return dict(zip(names, fitted.transform(X).T))
    takes = inspect.signature(fitted.predict).parameters
    spread = tells_spread(fitted)
    how: dict[str, Any] = {"return_std": True} if spread else {}
    if level is not None:
        how |= _level_option(fitted, takes, level, spread)
    said = fitted.predict(X, groups=sites, **how)
    said = said if isinstance(said, tuple) else (said,)
    told = getattr(fitted, "target_", None)  # what `Best` found it has to predict
    group = "prediction" if fitted._uses_target() and told != "rows" else "group"
    mean = np.asarray(said[0])
    of_classes = "logistic" in getattr(fitted, "loss", "") or (
        getattr(fitted, "family", "") == "multinomial" or told == "classes"
    )
    if classes and of_classes:
        mean = np.array(classes, dtype=object)[mean.astype(int)]
    columns: dict[str, Any] = {group: mean}
    if spread:
        columns["standard deviation"] = said[1]
    if level is not None:
        ends = _ends(said, "level" in takes, level)
        columns |= {"low": ends[0], "high": ends[1]}
    if hasattr(fitted, "predict_proba") and hasattr(fitted, "classes_"):
        labels = classes or tuple(map(str, fitted.classes_))
        share = fitted.predict_proba(X, groups=sites)
        columns |= {f"probability of {c}": p for c, p in zip(labels, share.T)}
    return columns


def _level_option(fitted: Any, takes: Any, level: float, spread: bool) -> dict[str, Any]:
    if spread and "level" in takes:
        return {"level": level}
    if spread:
        return {}
    raise ValueError(f"{type(fitted).__name__} tells no intervals; leave --level out")


def _ends(said: tuple[Any, ...], own: bool, level: float) -> tuple[Any, Any]:
    """Ends of intervals: the model's own, or normal ones around the prediction."""
    if own:
        return said[-1][:, 0], said[-1][:, 1]
    from scipy.special import ndtri

    reach = float(ndtri(0.5 + level / 2)) * said[1]
    return said[0] - reach, said[0] + reach
