"""`python -m reproduction`: the papers' tables and figures by one command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from reproduction.study import Study

UNUSABLE = 2

app = typer.Typer(
    help="Run the papers' tables and figures again.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

LOCAL_BACKENDS = ("loky", "threading")
OUT = Path("reproduction-run")
# What is committed.
DOCS = Path("docs")


@app.command("list")
def show(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """What can be run."""
    from fedkin.tables import Table
    from reproduction import catalogue

    rows = [(s.name, s.paper, s.shows, s.title) for s in catalogue().values()]
    table = Table(dict(zip(("name", "paper", "shows", "title"), zip(*rows))), "Studies")
    if as_json:
        typer.echo(json.dumps(table.records()))
        return
    for name, paper, shows, title in rows:
        typer.echo(f"{name:28} {paper}, {shows}: {title}")


@app.command("page")
def page(out: Annotated[Path, typer.Option("-o", "--out", help="Folder of a run.")] = OUT) -> None:
    """Write tables, figures and page again from the rows of earlier runs."""
    from reproduction import catalogue
    from reproduction.book import write_again

    typer.echo(f"page: {write_again(catalogue().values(), out)}")


@app.command("accept")
def accept(
    names: Annotated[list[str] | None, typer.Argument(help="Studies by name; default all.")] = None,
    kept: Annotated[
        bool, typer.Option("--kept", help="Run nothing: judge the rows that are there.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Replications at once.")] = 2,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of a run.")] = DOCS,
) -> None:
    """Say which promises hold; exit with 1 if one does not.

    Studies whose rows were not made by the present code are run first.
    """
    from reproduction import catalogue
    from reproduction.accept import judge, missing, promising
    from reproduction.book import write_page
    from reproduction.runner import run as run_studies

    known = catalogue()
    studies = promising([known[name] for name in _wanted(names or ["all"], known)])
    if not kept:
        todo = [study for study in studies if missing(study, out / "studies")]
        _finish(lambda: run_studies(todo, out, "full", jobs, say=typer.echo))
        typer.echo(f"page: {write_page(known.values(), out)}")
    if judge(studies, out / "studies", typer.echo):
        raise typer.Exit(1)


@app.command("run")
def run(
    names: Annotated[list[str], typer.Argument(help="Studies by name, or all.")],
    quick: Annotated[bool, typer.Option("--quick", help="Minutes instead of hours.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Replications at once.")] = 2,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for everything.")] = OUT,
    backend: Annotated[
        str, typer.Option(help="loky (processes), threading, or dask with --address.")
    ] = "loky",
    address: Annotated[str | None, typer.Option(help="Address of a Dask scheduler.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not use kept replications.")] = False,
) -> None:
    """Run studies; tables and figures go to OUT/studies, the page to OUT/reproduction.md."""
    from reproduction import catalogue
    from reproduction.book import write_page
    from reproduction.runner import run as run_studies

    known = catalogue()
    if backend == "ray":
        raise ValueError(
            "--backend ray: joblib's Ray backend returns replications only when all are done, so "
            "none could be kept; start a Dask scheduler on the cluster and use --backend dask"
        )
    if backend not in (*LOCAL_BACKENDS, "dask"):
        raise ValueError(f"--backend {backend} is none of loky, threading, dask")
    if backend == "dask" and address is None:
        raise ValueError("--backend dask needs --address, for example tcp://127.0.0.1:8786")
    wanted = [known[name] for name in _wanted(names, known)]
    size = "quick" if quick else "full"
    try:
        _finish(
            lambda: run_studies(wanted, out, size, jobs, backend, address, fresh, say=typer.echo)
        )
    finally:
        typer.echo(f"page: {write_page(known.values(), out)}")


def _wanted(names: Sequence[str], known: Mapping[str, Study]) -> list[str]:
    """The names of the studies asked for, `all` standing for every one."""
    unknown = [name for name in names if name != "all" and name not in known]
    if unknown:
        raise ValueError(
            f"no study is called {unknown[0]!r}; `python -m reproduction list` names them"
        )
    return list(known) if "all" in names else list(dict.fromkeys(names))


def _finish(run: Callable[[], None]) -> None:
    """Run studies; replications that fail are said and end the command with 1."""
    from reproduction.runner import StudyFailed

    try:
        run()
    except StudyFailed as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def main() -> None:
    """Run the command; errors that a person can mend are one line, not a traceback."""
    try:
        app(prog_name="python -m reproduction")
    except (ValueError, OSError) as error:
        typer.echo(f"reproduction: {error}", err=True)
        sys.exit(UNUSABLE)


if __name__ == "__main__":
    main()
