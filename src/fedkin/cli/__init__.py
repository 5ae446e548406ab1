"""The `fedkin` command. Parses, calls the library, prints; holds no statistics of its own.

Exit codes: 0 all is well; 1 the data or the fit need attention (findings, odd sites with
--strict); 2 the call was wrong or the data cannot be used.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.cli import odcl
from fedkin.cli.json_text import json_text

NEEDS_ATTENTION = 1
UNUSABLE = 2

app = typer.Typer(
    help="Federated statistics for sites that are alike but not the same.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
fit = typer.Typer(help="Fit a method to a table with a column of site names.", no_args_is_help=True)
app.add_typer(fit, name="fit")
app.add_typer(odcl.app, name="odcl")

Data = Annotated[Path, typer.Argument(help="CSV or Parquet file, one row per observation.")]
Client = Annotated[str, typer.Option("--client", help="Column with the site's name.")]
Target = Annotated[str | None, typer.Option("--target", help="Column with the target.")]
Features = Annotated[
    str | None, typer.Option("--features", help="Columns to use, comma separated; default all.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 on warnings, too.")]


@app.command()
def check(
    data: Data,
    client: Client = "site",
    target: Target = None,
    features: Features = None,
    ignore: Annotated[
        str | None, typer.Option("--ignore", help="Codes to leave out, comma separated.")
    ] = None,
    as_json: AsJson = False,
    strict: Strict = False,
) -> None:
    """Look at a table before fitting: every check at once, with codes."""
    from fedkin.federation import Federation
    from fedkin.frames import FederationError
    from fedkin.inference.checks import checks_of_table

    federation: Federation | None = None
    with suppress(FederationError):  # what is wrong is among the findings
        federation = _read(data, client, target, features)
    left_out = [code.strip() for code in ignore.split(",") if code.strip()] if ignore else []
    findings = checks_of_table(_frame(data), client, target, _columns(features), left_out)
    table = findings.table()
    errors = [finding for finding in findings if finding.level == "error"]
    facts: dict[str, Any] = {"file": str(data), "usable": not errors}
    if federation is not None:
        facts |= {
            "sites": federation.n_clients,
            "rows": len(federation.X),
            "features": list(federation.feature_names),
            "smallest_site": int(federation.sizes.min()),
            "largest_site": int(federation.sizes.max()),
        }
    if as_json:
        typer.echo(json_text({**facts, "findings": table.records()}, indent=1))
    else:
        for name, value in facts.items():
            typer.echo(f"{name.replace('_', ' ')}: {_in_words(value)}")
        typer.echo(str(table) if findings else "nothing to complain about")
    if errors:
        raise typer.Exit(UNUSABLE)
    if findings and strict:
        raise typer.Exit(NEEDS_ATTENTION)


@app.command()
def plan(
    sites: Annotated[int, typer.Option("--sites", help="Number of sites.")],
    rows: Annotated[int, typer.Option("--rows", help="Rows a site.")],
    columns: Annotated[int, typer.Option("--columns", help="Number of columns.")],
    noise: Annotated[float, typer.Option(help="Standard deviation of the noise.")] = 1.0,
    unlike: Annotated[float, typer.Option(help="Standard deviation of sites' coefficients.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """What to expect before any data move: errors alone, joined, and as one model."""
    from fedkin.inference import plan as planned

    found = planned(sites, rows, columns, noise, unlike)
    if as_json:
        typer.echo(json_text({"ways": found.table().records(), "gain": found.gain}, indent=1))
    else:
        typer.echo(str(found))


@fit.command("auto")
def fit_auto(
    data: Data,
    client: Client = "site",
    target: Annotated[
        str | None, typer.Option("--target", help="Column with the target; none: the rows.")
    ] = None,
    features: Features = None,
    folds: Annotated[int, typer.Option(help="Parts in which rows are left out.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of folds and starts.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for tables and page.")] = None,
    as_json: AsJson = False,
    strict: Strict = False,
) -> None:
    """Which way of sharing fits us? Tries those that make sense and weighs them at every site."""
    from fedkin.estimators import Best

    model = Best(folds=folds, random_state=seed)
    _fit(model, _read(data, client, target, features), out, as_json, strict)


@fit.command("fmlr")
def fit_fmlr(
    data: Data,
    client: Client = "site",
    target: Annotated[str, typer.Option("--target", help="Column with the target.")] = "y",
    features: Features = None,
    components: Annotated[
        int | None,
        typer.Option("--components", "-k", help="Number of regressions (BIC)."),
    ] = None,
    share: Annotated[
        str, typer.Option(help="What leaves a site: statistics or sums.")
    ] = "statistics",
    robust: Annotated[bool, typer.Option("--robust", help="Set odd sites apart.")] = False,
    degrees: Annotated[
        str, typer.Option(help="Sites depart from their regression: choose (BIC), yes or no.")
    ] = "choose",
    site_noise: Annotated[
        str, typer.Option(help="Noise of the sites: choose (BIC), common or own.")
    ] = "choose",
    seed: Annotated[int, typer.Option(help="Seed of the restarts.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for tables and page.")] = None,
    as_json: AsJson = False,
    strict: Strict = False,
) -> None:
    """Every site follows one of K linear regressions: which, and what are they?"""
    from fedkin.estimators import FMLR

    model = FMLR(
        components,
        share=share,
        robust=robust,
        degrees={"yes": True, "no": False}.get(degrees, degrees),
        site_noise=site_noise,
        random_state=seed,
    )
    _fit(model, _read(data, client, target, features), out, as_json, strict)


@fit.command("fgpr")
def fit_fgpr(
    data: Data,
    client: Client = "site",
    target: Annotated[str, typer.Option("--target", help="Column with the target.")] = "y",
    features: Features = None,
    priors: Annotated[
        int | None, typer.Option("--priors", help="Number of priors; 0 chooses it by BIC.")
    ] = 1,
    scale: Annotated[
        str, typer.Option(help="Scale of the target: own (each site's) or shared (same units).")
    ] = "own",
    robust: Annotated[bool, typer.Option("--robust", help="No one site moves the prior.")] = False,
    predict: Annotated[
        Path | None,
        typer.Option("--predict", help="Table of rows to predict, with the column of sites."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for tables, page, prior, predictions.")
    ] = None,
    as_json: AsJson = False,
    strict: Strict = False,
) -> None:
    """Every site draws its curve from one prior: which, and what does each curve look like?"""
    from fedkin.estimators import FGPR

    if scale not in ("own", "shared"):
        raise ValueError(f"--scale must be own or shared, not {scale!r}")
    if predict is not None and out is None:
        raise ValueError("--predict needs --out, the folder for predictions.csv")
    model = FGPR(
        n_priors=priors or None,
        normalize_y=True if scale == "own" else "mean",
        robust="trimmed" if robust else False,
    )
    federation = _read(data, client, target, features)
    warned = _fit(model, federation, out, as_json, strict=False)
    if out is not None:
        typer.echo(f"wrote {model.save_shared(out / 'prior.npz')}", err=True)
    if predict is not None and out is not None:
        asked = _read(predict, client, None, ",".join(federation.feature_names))
        typer.echo(f"wrote {_write_predictions(model, asked, out)}", err=True)
    if strict and warned:
        raise typer.Exit(NEEDS_ATTENTION)


def _fit(model: Any, federation: Any, out: Path | None, as_json: bool, strict: bool) -> bool:
    """Fit, print and write; says whether there were warnings."""
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(federation)
    summary = model.summary()
    if as_json:
        records = {name: table.records() for name, table in summary.tables.items()}
        typer.echo(json_text(records, indent=1))
    else:
        typer.echo(str(summary))
    for warning in caught:
        typer.echo(f"warning: {warning.message}", err=True)
    if out is not None:
        for path in _write(summary, out):
            typer.echo(f"wrote {path}", err=True)
    if strict and caught:
        raise typer.Exit(NEEDS_ATTENTION)
    return bool(caught)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        import fedkin

        typer.echo(fedkin.__version__)
        raise typer.Exit()


def _read(data: Path, client: str, target: str | None, features: str | None) -> Any:
    from fedkin.federation import Federation

    return Federation.from_frame(_frame(data), client, target, _columns(features))


def _frame(data: Path) -> Any:
    from fedkin.frames import read_frame

    return read_frame(data)


def _columns(features: str | None) -> list[str] | None:
    return None if features is None else [name.strip() for name in features.split(",")]


def _write(summary: Any, out: Path) -> list[Path]:
    """The tables as CSV and the whole as one page."""
    from pyarrow import csv

    from fedkin.report import page

    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, table in summary.tables.items():
        csv.write_csv(table.to_arrow(), out / f"{name}.csv")
        written.append(out / f"{name}.csv")
    (out / "summary.html").write_text(page(summary), encoding="utf-8")
    return [*written, out / "summary.html"]


def _write_predictions(model: Any, asked: Any, out: Path) -> Path:
    """Mean and standard deviation of a new target at every row asked for."""
    from pyarrow import csv

    from fedkin.tables import Table

    mean, std = model.predict(asked, return_std=True)
    columns = {"site": [asked.names[k] for k in asked.owner]}
    columns |= {name: asked.X[:, j] for j, name in enumerate(asked.feature_names)}
    table = Table({**columns, "mean": mean, "standard deviation": std})
    csv.write_csv(table.to_arrow(), out / "predictions.csv")
    return out / "predictions.csv"


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)


def main() -> None:
    """Run the command; errors that a person can mend are one line, not a traceback."""
    try:
        app()
    except (ValueError, OSError) as error:
        typer.echo(f"fedkin: {error}", err=True)
        sys.exit(UNUSABLE)
