"""`fedkin ledger` and `fedkin journal`: what left a site, and what a run is made of, to be read."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
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
    rows = [
        {
            "first": line["time"].replace("T", " ")[:19],
            "run": line["run"],
            "round": line["round"],
            "step": line["step"],
            "what left": _what_left(line),
            "bytes": sum(field["bytes"] for field in line["fields"].values()),
        }
        for line in lines
    ]
    title = "What would have left this site (dry runs)" if dry else "What left this site"
    typer.echo(str(all_rounds(rows, title)))
    if values:
        for line in lines:
            _show_values(book, line)
    opened = [line for line in lines if line["round"]]
    n_withheld = sum(line["withheld"] is not None for line in opened)
    typer.echo(
        f"{len(opened) - n_withheld} replies, {sum(row['bytes'] for row in rows):,} bytes "
        f"{'would have left' if dry else 'left'}; {n_withheld} were withheld by rule. "
        f"{_no_part(len(lines) - len(opened))}These are exact numbers, without added noise: there "
        "is no formal guarantee of privacy beyond the rules."
    )


def all_rounds(rows: Sequence[Mapping[str, Any]], title: str) -> Any:
    """A table of rows that are alike but for round and bytes: one for all rounds, none left out."""
    from fedkin.tables import Table

    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        same = {name: v for name, v in row.items() if name not in ("first", "round", "bytes")}
        alike.setdefault(tuple(same.items()), []).append(row)
    columns: dict[str, list[Any]] = {name: [] for name in rows[0]}
    for several in alike.values():
        told = {**several[0], "round": spans([row["round"] for row in several])}
        if "bytes" in told:
            told["bytes"] = sum(row["bytes"] for row in several)
        for name, column in columns.items():
            column.append(told.get(name, ""))
    return Table(columns, title, shown_rows=len(alike))


def spans(numbers: Sequence[int]) -> str:
    """Numbers in words, those in a row as their ends: 1, 3-7."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


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
    return f"The site took no part in {n_runs} run{'s' * (n_runs > 1)}. " if n_runs else ""


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
            damaged = {"asked": "", "answered": "damaged", "missing": "", "bytes": 0}
            rows.append({"round": number, **damaged})
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
        typer.echo(str(all_rounds(rows, "Rounds")))
