"""`fedkin ledger` and `fedkin journal`: what left a site, and what a run is made of, to be read."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.cli.json_text import json_text

ledger = typer.Typer(help="A site's record of what left it.", no_args_is_help=True)
journal = typer.Typer(help="A run's record of its rounds.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="The folder.", exists=True, file_okay=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
# Numbers of one array that are printed with --values; the files beside the ledger have all.
SHOWN_NUMBERS = 12
DAY = 24 * 3600.0


@ledger.command("show")
def show_ledger(
    folder: Folder,
    run: Annotated[str | None, typer.Option("--run", help="Of this run only.")] = None,
    values: Annotated[bool, typer.Option("--values", help="The very numbers, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """What left the site, when, for which run, by which rule not."""
    from fedkin.privacy import Ledger
    from fedkin.privacy.ledger import DRY_RUN
    from fedkin.tables import Table

    book = Ledger(ledger_in(folder))
    dry = book.folder.name == DRY_RUN
    lines = [line for line in book.lines() if run in (None, line["run"])]
    if as_json:
        typer.echo(json_text(lines, indent=1))
        return
    if damaged := book.n_damaged():
        typer.echo(f"{damaged} lines of {book.folder} are damaged: what they told of is not shown")
    if not lines:
        typer.echo("nothing has left this site" + f" for run {run}" * (run is not None))
        return
    columns: dict[str, list[Any]] = {
        "time": [line["time"].replace("T", " ")[:19] for line in lines],
        "run": [line["run"] for line in lines],
        "round": [line["round"] for line in lines],
        "step": [line["step"] for line in lines],
        "what left": [_what_left(line) for line in lines],
        "bytes": [sum(field["bytes"] for field in line["fields"].values()) for line in lines],
    }
    title = "What would have left this site (dry runs)" if dry else "What left this site"
    typer.echo(str(Table(columns, title)))
    if values:
        for line in lines:
            _show_values(book, line)
    opened = [line for line in lines if line["round"]]
    n_withheld = sum(line["withheld"] is not None for line in opened)
    typer.echo(
        f"{len(opened) - n_withheld} replies, {sum(columns['bytes']):,} bytes "
        f"{'would have left' if dry else 'left'}; {n_withheld} were withheld by rule. "
        f"{_no_part(len(lines) - len(opened))}These are exact numbers, without added noise: there "
        "is no formal guarantee of privacy beyond the rules."
    )


def ledger_in(folder: Path) -> Path:
    """The ledger in a site's folder of records, in its kit, or the folder itself."""
    places = [folder / "ledger", folder / "fedkin" / "ledger"]
    found = [place for place in places if place.is_dir()]
    if found or (folder / "ledger.jsonl").exists():
        return found[0] if found else folder
    raise ValueError(
        f"{folder} holds no ledger; give the site's folder of records (--out of fedkin site run)"
    )


def _no_part(n_runs: int) -> str:
    return f"The site took no part {n_runs} times. " if n_runs else ""


def _show_values(book: Any, line: dict[str, Any]) -> None:
    """The very numbers of one reply, or that they are not there any more."""
    where = f"{line['run']} round {line['round']}"
    try:
        arrays = book.values(line)
    except FileNotFoundError:
        typer.echo(f"{where}: the numbers were removed")
        return
    except (OSError, ValueError) as error:
        typer.echo(f"{where}: the numbers cannot be read ({error})")
        return
    for name, array in arrays.items():
        numbers = ", ".join(f"{x:.6g}" for x in array.ravel()[:SHOWN_NUMBERS])
        more = f", ... {array.size - SHOWN_NUMBERS} more" * (array.size > SHOWN_NUMBERS)
        typer.echo(f"{where} {name}: {numbers}{more}")


def _what_left(line: dict[str, Any]) -> str:
    from fedkin.protocol import Reason

    if line["withheld"] is not None:
        known = line["withheld"] in Reason.__members__
        story = f" ({line['story']})" if "story" in line else ""
        return f"nothing: {Reason[line['withheld']] if known else line['withheld']}{story}"
    shapes = {name: field["shape"][1:] for name, field in line["fields"].items()}
    return ", ".join(f"{name} {'x'.join(map(str, s)) or '1'}" for name, s in shapes.items())


@ledger.command("prune")
def prune_ledger(
    folder: Folder,
    days: Annotated[int, typer.Option("--days", min=1, help="Keep what is younger.")],
) -> None:
    """Remove the numbers of old replies; the lines that say what left stay."""
    book = ledger_in(folder)
    old = [p for p in book.glob("*.npz") if p.stat().st_mtime < time.time() - days * DAY]
    for path in old:
        path.unlink()
    typer.echo(f"removed the numbers of {len(old)} replies")


@journal.command("prune")
def prune_journals(
    folder: Annotated[
        Path, typer.Argument(help="The folder of runs (kit/fedkin/runs).", exists=True)
    ],
    days: Annotated[int, typer.Option("--days", min=1, help="Keep what is younger.")],
) -> None:
    """Remove the journals of runs that ended long ago; one that has not can still be resumed."""
    ends = folder.glob("*/result.npz")
    old = [path.parent for path in ends if path.stat().st_mtime < time.time() - days * DAY]
    for run in old:
        shutil.rmtree(run)
        typer.echo(f"removed {run.name}")
    typer.echo(f"removed {len(old)} of {sum(path.is_dir() for path in folder.iterdir())} runs")


@journal.command("show")
def show_journal(folder: Folder, as_json: AsJson = False) -> None:
    """What a run is about, and who answered in which round."""
    from fedkin.engines import Journal
    from fedkin.tables import Table

    book = Journal(folder)
    if not book.exists():
        raise ValueError(
            f"{folder} holds no run (run.json is missing); a server's runs are in "
            "kit/fedkin/runs, one folder each"
        )
    told = book.configuration()
    names = told.get("names") or told.get("sites") or []
    rows = []
    for number in book.rounds():
        record = book.read(number)
        if record is None:
            rows.append({"round": number, "asked": "", "answered": "damaged", "missing": ""})
            continue
        missing = "; ".join(f"{r.site}: {r.fault}" for r in record.refusals)
        dropped = ", ".join(str(names[k]) for k in record.dropped)
        rows.append(
            {
                "round": number,
                "asked": len(record.asked),
                "answered": len(record.replies.clients),
                "missing": missing + (f" (not asked again: {dropped})" if dropped else ""),
                "bytes": sum(array.nbytes for array in record.replies.values()),
            }
        )
    about = {
        "algorithm": told["algorithm"],
        "sites": len(names),
        "seed": told["seed"],
        "features": told.get("features"),
        "versions": told.get("versions"),
        "rounds": len(rows),
        "ended": (folder / "result.npz").exists(),
    }
    if as_json:
        typer.echo(json_text({**about, "records": rows}, indent=1))
        return
    for name, value in about.items():
        typer.echo(f"{name}: {value}")
    if rows:
        columns = {key: [row.get(key, "") for row in rows] for key in rows[0]}
        typer.echo(str(Table(columns, "Rounds")))
