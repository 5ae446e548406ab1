"""The `fedkin` command. Parses, calls the library, prints; holds no statistics of its own.

Exit codes: 0 all is well; 1 the data or the fit need attention (sites whose part is missing, a
target that says nothing; with --strict any warning); 2 the call was wrong or the data cannot be
used. With --json errors are JSON, too; --debug shows where an error comes from.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedkin.cli import answers, federation, kits, odcl, predicting, records
from fedkin.cli import data as tables
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
    Strict,
    TableOptions,
    Target,
)
from fedkin.cli.fitting import ComparingGroup, MethodGroup, fit, options_from
from fedkin.cli.json_text import json_text
from fedkin.cli.methods import methods

NEEDS_ATTENTION = 1
UNUSABLE = 2
STOPPED = 130
WITHOUT_ROWS = "fedkin: --missing drop leaves rows out that lack a number"
# Findings of a check and columns of a table that are printed; --json has all.
SHOWN_FINDINGS = 100
NAMED = 40
# Errors of a run that a person can mend, by name: their rooms need not be imported to say so.
# What the extra "nvflare" brings.
OF_FEDERATIONS = ("psutil", "nvflare")
FOR_PEOPLE = {
    "CannotTakePart",
    "Locked",
    "NotReady",
    "ProtocolError",
    "QuorumLost",
    "ServerFailed",
    "SiteLost",
    "SitesNotReady",
    "Unfinished",
}

# Commands in the order in which a newcomer needs them, by what they are about.
TABLE, WAY, REAL = "A table with a column of sites", "Finding your way", "Real sites"
PANELS = {
    TABLE: ("check", "fit", "compare", "odd", "count", "predict", "adapt", "report"),
    WAY: ("methods", "data", "plan", "demo"),
    REAL: ("federation", "server", "site", "odcl", "ledger", "journal"),
}
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


class InOrder(TyperGroup):
    """Commands as `PANELS` has them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands."""
        order = list(PANEL_OF)
        return sorted(super().list_commands(ctx), key=order.index)


app = typer.Typer(
    cls=InOrder,
    help="Federated statistics for sites that are alike but not the same.",
    epilog="Exit codes: 0 all is well; 1 needs attention; 2 the call or the data cannot be used.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
fits = typer.Typer(
    cls=MethodGroup,
    help="Fit a method to a table with a column of site names; writes a folder.",
    invoke_without_command=True,
)
comparisons = typer.Typer(
    cls=ComparingGroup,
    help="Fit a method, and ask what joining gives each site over staying alone.",
    no_args_is_help=True,
)
app.add_typer(fits, name="fit", rich_help_panel=PANEL_OF["fit"])
app.add_typer(comparisons, name="compare", rich_help_panel=PANEL_OF["compare"])
app.add_typer(tables.app, name="data", rich_help_panel=PANEL_OF["data"])
app.add_typer(odcl.app, name="odcl", rich_help_panel=PANEL_OF["odcl"])
app.add_typer(records.ledger, name="ledger", rich_help_panel=PANEL_OF["ledger"])
app.add_typer(records.journal, name="journal", rich_help_panel=PANEL_OF["journal"])
app.add_typer(kits.federation, name="federation", rich_help_panel=PANEL_OF["federation"])
app.add_typer(kits.server, name="server", rich_help_panel=PANEL_OF["server"])
app.add_typer(kits.site, name="site", rich_help_panel=PANEL_OF["site"])
app.command("demo", rich_help_panel=WAY)(federation.demo)


@app.command(rich_help_panel=TABLE)
def check(
    data: Data,
    client: Client = "site",
    target: Target = None,
    features: Features = None,
    drop: Drop = None,
    sep: Sep = None,
    decimal: Decimal = None,
    encoding: FileEncoding = None,
    missing: Missing = "error",
    ignore: Annotated[
        str | None, typer.Option("--ignore", help="Codes to leave out, comma separated.")
    ] = None,
    as_json: AsJson = False,
    strict: Strict = False,
) -> None:
    """Look at a table before fitting: every check at once, with codes."""
    from fedkin.checks import Findings, checks, checks_of_table
    from fedkin.frames import FederationError

    table_options = TableOptions(
        data, client, target, features, sep, decimal, encoding, missing, drop
    )
    left_out = [code.strip() for code in ignore.split(",") if code.strip()] if ignore else []
    federation: Any = None
    try:
        federation = table_options.federation(classes=True)
        findings = checks(federation, ignore=left_out)  # words are levels by now, as in a fit
    except FederationError as error:
        findings = Findings(error.findings)
        with suppress(ValueError):  # with codes, and more besides, where all are numbers
            frame = table_options.frame()
            findings = checks_of_table(
                frame, client, target, table_options.columns(frame), left_out
            )
    table = replace(findings.table(), shown_rows=SHOWN_FINDINGS)
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
        if federation.encoding is not None and federation.encoding.classes:
            facts["classes"] = list(federation.encoding.classes)
    if as_json:
        typer.echo(json_text({**facts, "findings": table.records()}, indent=1))
    else:
        for name, value in facts.items():
            typer.echo(f"{name.replace('_', ' ')}: {_in_words(value)}")
        typer.echo(str(table) if findings else "nothing to complain about")
        if any("values missing" in finding.fact for finding in errors):
            typer.echo(WITHOUT_ROWS, err=True)
    if errors:
        raise typer.Exit(UNUSABLE)
    if findings and strict:
        raise typer.Exit(NEEDS_ATTENTION)


@app.command(rich_help_panel=WAY)
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


app.command(rich_help_panel=TABLE)(answers.odd)
app.command(rich_help_panel=TABLE)(answers.count)
app.command(rich_help_panel=TABLE)(predicting.predict)
app.command(rich_help_panel=TABLE)(predicting.adapt)
app.command(rich_help_panel=TABLE)(predicting.report)
app.command(rich_help_panel=WAY)(methods)


@comparisons.callback()
def _compare() -> None:
    """A group needs a function to have a name."""


@fits.callback()
def _fit_by_configuration(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file that names method and data.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the run.")] = None,
    as_json: AsJson = False,
    strict: Strict = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    if config is None:
        typer.echo(context.get_help())
        raise typer.Exit()
    given = {"config": config, "out": out, "as_json": as_json, "strict": strict}
    fit(options_from(None, {name: value for name, value in given.items() if value is not None}))


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where errors come from.")] = False,
) -> None:
    if version:
        import fedkin

        typer.echo(fedkin.__version__)
        raise typer.Exit()


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, list):
        return str(value)
    more = f" and {len(value) - NAMED} more" if len(value) > NAMED else ""
    return ", ".join(value[:NAMED]) + more


def main() -> None:
    """Run the command; errors that a person can mend are one line, not a traceback."""
    debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except typer.Abort:
        typer.echo("fedkin: stopped", err=True)
        sys.exit(STOPPED)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message(), err=True)  # type: ignore[attr-defined]
            sys.exit(UNUSABLE)
        if debug or not _for_people(error):
            raise
        if "--json" in sys.argv:
            typer.echo(json_text({"error": _told(error)}, indent=1))
        typer.echo(f"fedkin: {_words(error)}", err=True)
        if "values missing" in str(error):
            typer.echo(WITHOUT_ROWS, err=True)
        sys.exit(UNUSABLE)


def _for_people(error: Exception) -> bool:
    """Whether an error is of the call, of data or of what sites sent, not a mistake of ours."""
    theirs = isinstance(error, ValueError | OSError) or type(error).__name__ in FOR_PEOPLE
    lacking = isinstance(error, ModuleNotFoundError) and error.name in OF_FEDERATIONS
    theirs = theirs or lacking
    return theirs or hasattr(error, "format_message")


def _words(error: Exception) -> str:
    """What an error says; one of the call says where its options are listed."""
    if isinstance(error, ModuleNotFoundError):
        return (
            f"federations need {error.name}, which is not installed: pip install "
            '"fedkin[nvflare]", in a clone pip install -c constraints.txt -e ".[nvflare]"'
        )
    if not hasattr(error, "format_message"):
        return str(error)
    context = getattr(error, "ctx", None)
    said = error.format_message().rstrip(".")
    return f"{said}; see {context.command_path} --help" if context else said


def _told(error: Exception) -> dict[str, Any]:
    """An error as JSON: its kind, its words, and what was found wrong with the data."""
    findings = [
        {"level": f.level, "site": f.site, "fact": f.fact, "remedy": f.remedy}
        for f in getattr(error, "findings", ())
    ]
    return {"kind": type(error).__name__, "message": _words(error), "findings": findings}
