"""`fedkin odd METHOD` and `fedkin count METHOD`: which sites are odd, how many groups there are."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fedkin.cli.asking import (
    AsJson,
    Client,
    Data,
    Decimal,
    Drop,
    Features,
    FileEncoding,
    Missing,
    Sep,
    TableOptions,
    Target,
)
from fedkin.cli.fitting import NEEDS_ATTENTION, FitOptions, model_and_rows
from fedkin.cli.json_text import json_text

Method = Annotated[str, typer.Argument(help="A method; fedkin methods lists them.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting of the method, as name=value; may be repeated."),
]
Seed = Annotated[int, typer.Option(help="Seed.")]


def odd(
    method: Method,
    data: Data,
    client: Client = "site",
    target: Target = None,
    features: Features = None,
    drop: Drop = None,
    sep: Sep = None,
    decimal: Decimal = None,
    encoding: FileEncoding = None,
    missing: Missing = "error",
    settings: Settings = None,
    level: Annotated[float, typer.Option(help="Of false alarms.")] = 0.05,
    adjust: Annotated[str, typer.Option(help="holm or bh.")] = "holm",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Which sites do not go with the others; exits with 1 if there are some."""
    from fedkin.inference import odd_sites

    table = TableOptions(data, client, target, features, sep, decimal, encoding, missing, drop)
    model, rows = model_and_rows(FitOptions(table, method, _read(settings), seed))
    found = odd_sites(model, rows, level=level, adjust=adjust)
    if as_json:
        told = {"odd": found.names, "sentence": found.sentence, "sites": found.table().records()}
        typer.echo(json_text(told, indent=1))
    else:
        typer.echo(str(found))
    if found.names:
        raise typer.Exit(NEEDS_ATTENTION)


def count(
    method: Method,
    data: Data,
    client: Client = "site",
    target: Target = None,
    features: Features = None,
    drop: Drop = None,
    sep: Sep = None,
    decimal: Decimal = None,
    encoding: FileEncoding = None,
    missing: Missing = "error",
    settings: Settings = None,
    most: Annotated[int | None, typer.Option(help="The largest number to try.")] = None,
    folds: Annotated[int, typer.Option(help="Folds of rows left out; 0: none.")] = 2,
    resamples: Annotated[int, typer.Option(help="How often sites are drawn anew.")] = 2,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """How many groups, kinds or priors there are, or whether sites differ by degrees."""
    from fedkin.inference import how_many

    table = TableOptions(data, client, target, features, sep, decimal, encoding, missing, drop)
    model, rows = model_and_rows(FitOptions(table, method, _read(settings), seed))
    numbers = None if most is None else range(1, most + 1)
    found = how_many(
        model, rows, numbers=numbers, folds=folds, resamples=resamples, random_state=seed
    )
    if as_json:
        told: dict[str, Any] = {"number": found.number, "by_degrees": found.by_degrees}
        told |= {"sentence": found.sentence, "tried": found.table().records()}
        typer.echo(json_text(told, indent=1))
    else:
        typer.echo(str(found))


def _read(settings: list[str] | None) -> dict[str, Any]:
    """Settings from words such as n_components=3."""
    chosen = {}
    for word in settings or ():
        name, sign, value = word.partition("=")
        if not sign:
            raise ValueError(f"--set wants name=value, not {word!r}")
        chosen[name.strip().replace("-", "_")] = value.strip()
    return chosen
