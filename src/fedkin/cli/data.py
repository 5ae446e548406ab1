"""`fedkin data`: shipped and generated tables to try things with."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.cli.asking import AsJson
from fedkin.cli.json_text import json_text

app = typer.Typer(help="Tables to try things with: list, show, export.", no_args_is_help=True)


@dataclass(frozen=True)
class Example:
    """A table that comes with the package."""

    about: str
    call: str
    make: Callable[[int], Any]
    """The table as columns by name, from a seed."""


def _columns(federation: Any) -> dict[str, Any]:
    columns: dict[str, Any] = {"site": federation.groups}
    columns |= {name: federation.X[:, j] for j, name in enumerate(federation.feature_names)}
    if federation.y is not None:
        columns[federation.target_name or "y"] = federation.y
    return columns


def _turbofan(seed: int) -> dict[str, Any]:
    import numpy as np

    from fedkin.datasets import load_turbofan

    engines = load_turbofan()
    columns: dict[str, Any] = {"engine": np.array([f"engine-{n}" for n in engines.engine])}
    columns["cycle"] = engines.cycle
    return columns | {name: engines.column(name) for name in engines.columns}


def _engines(seed: int, seen: bool = True) -> dict[str, Any]:
    """Eight readings of sensor 7 of every engine, or all others."""
    import numpy as np

    table = _turbofan(seed)
    draw = np.random.default_rng(seed).random(len(table["cycle"]))
    _, codes = np.unique(table["engine"], return_inverse=True)
    order = np.lexsort((draw, codes))
    first = np.concatenate([[0], np.cumsum(np.bincount(codes))[:-1]])
    rank = np.empty(len(draw), dtype=int)
    rank[order] = np.arange(len(draw)) - first[codes[order]]
    rows = (rank < 8) == seen
    y = table["sensor_7"]
    return {
        "engine": table["engine"][rows],
        "cycles": table["cycle"][rows] / 100,
        "sensor_7": ((y - y.mean()) / y.std())[rows],
    }


def _pendigits(seed: int) -> dict[str, Any]:
    from fedkin.datasets import load_pendigits

    digits = load_pendigits()
    columns: dict[str, Any] = {"writer": digits.writer_names}
    columns |= {name: digits.X[:, j] for j, name in enumerate(digits.columns)}
    return {**columns, "digit": digits.digit}


def _kinds(seed: int) -> dict[str, Any]:
    from fedkin.datasets import make_regression_groups
    from fedkin.datasets.fmlr import PAPER_COEF

    return _columns(make_regression_groups(30, 20, PAPER_COEF[3], random_state=seed).federation)


def _curves(seed: int) -> dict[str, Any]:
    from fedkin.datasets import make_gaussian_sites

    return _columns(make_gaussian_sites(20, 15, random_state=seed).federation)


def _groups(seed: int) -> dict[str, Any]:
    from fedkin.datasets import make_gaussian_mixtures

    return _columns(
        make_gaussian_mixtures(
            10, 100, n_outliers=0, n_components=3, n_features=2, random_state=seed
        ).clients
    )


EXAMPLES = {
    "engines": Example(
        "100 turbofan engines (NASA C-MAPSS), eight readings of sensor 7 each",
        "fedkin fit auto engines.csv --client engine --target sensor_7",
        _engines,
    ),
    "engines-rest": Example(
        "all other readings of these engines, to predict",
        "fedkin predict RUN engines-rest.csv --out predicted.csv",
        lambda seed: _engines(seed, seen=False),
    ),
    "turbofan": Example(
        "100 turbofan engines run to failure (NASA C-MAPSS FD001), all sensors",
        "fedkin fit mixed-model turbofan.csv --client engine --target sensor_14 "
        "--features sensor_7,sensor_9",
        _turbofan,
    ),
    "pendigits": Example(
        "10,992 digits by 44 writers (coordinates of eight points along the stroke)",
        "fedkin fit fedgrem pendigits.csv --client writer --target digit -k 10",
        _pendigits,
    ),
    "kinds": Example(
        "generated: 30 sites of three kinds of regression",
        "fedkin fit fmlr kinds.csv",
        _kinds,
    ),
    "curves": Example(
        "generated: 20 sites that draw their curve from one prior",
        "fedkin fit fgpr curves.csv",
        _curves,
    ),
    "groups": Example(
        "generated: 10 sites with groups inside them",
        "fedkin fit fedgrem groups.csv -k 3",
        _groups,
    ),
}


def _example(name: str) -> Example:
    if name not in EXAMPLES:
        raise ValueError(f"there is no table {name!r}; there are {', '.join(EXAMPLES)}")
    return EXAMPLES[name]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the tables there are."""
    if as_json:
        told = [{"name": n, "about": e.about, "try": e.call} for n, e in EXAMPLES.items()]
        typer.echo(json_text(told, indent=1))
        return
    for name, example in EXAMPLES.items():
        typer.echo(f"{name:<14} {example.about}")
        typer.echo(f"{'':<14} try: {example.call}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the table.")],
    seed: Annotated[int, typer.Option(help="Seed of generated tables.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show the first rows of a table, and what to try with it."""
    from fedkin.tables import Table

    columns = _example(name).make(seed)
    height = len(next(iter(columns.values())))
    head = Table({n: c[:8] for n, c in columns.items()}, EXAMPLES[name].about)
    if as_json:
        facts = {"rows": height, "columns": list(columns), "first": head.records()}
        typer.echo(json_text(facts, indent=1))
        return
    typer.echo(str(head))
    typer.echo(f"{height} rows, {len(columns)} columns; try: {EXAMPLES[name].call}")


@app.command()
def export(
    name: Annotated[str, typer.Argument(help="Name of the table.")],
    out: Annotated[Path | None, typer.Argument(help="CSV or Parquet file to write.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of generated tables.")] = 0,
) -> None:
    """Write a table as a CSV or Parquet file."""
    from pyarrow import csv, parquet

    from fedkin.tables import Table

    out = out or Path(f"{name}.csv")
    table = Table(_example(name).make(seed)).to_arrow()
    if out.suffix == ".parquet":
        parquet.write_table(table, out)
    else:
        csv.write_csv(table, out)
    call = EXAMPLES[name].call.replace(f"{name}.csv", shlex.quote(str(out)))
    typer.echo(f"wrote {out}; try: {call}")
