"""Files of a study, and the page that lays all of them beside the papers."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedkin.tables import Table
from reproduction.study import Results, Row, Study

CLAIM_COLUMNS = ("entry", "paper", "ours", "noted", "same protocol?", "why they differ")


def write_study(study: Study, results: Results, folder: Path, facts: dict[str, Any]) -> None:
    """NAME.csv (tidy rows), NAME.png, NAME.md and NAME.json (size, environment)."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_csv(folder / f"{study.name}.csv", results.rows)
    study.figure(results).savefig(folder / f"{study.name}.png", dpi=110)
    (folder / f"{study.name}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    lines = [
        f"# {study.paper}, {study.shows}: {study.title}",
        study.protocol,
        _how(study, facts),
        f"![{study.title}]({study.name}.png)",
        _claims(study, results),
        "Mean ± standard error over replications; all rows are in "
        f"[{study.name}.csv]({study.name}.csv).",
        markdown(study.table(results)),
    ]
    (folder / f"{study.name}.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")


def write_again(studies: Iterable[Study], out: Path) -> Path:
    """Tables, figures and page from the rows in `out/studies`; nothing is run."""
    studies = list(studies)
    for study in studies:
        found = read_study(study, out / "studies")
        if found is not None:
            write_study(study, found[0], out / "studies", found[1])
    return write_page(studies, out)


def write_page(studies: Iterable[Study], out: Path) -> Path:
    """`out/reproduction.md` from the files in `out/studies`; says what has not been run."""
    parts = [
        "# The papers' tables and figures, and ours",
        "Made by `python -m reproduction run`; do not edit. Every section names its command and so "
        "its size. *Ours* is the mean ± one standard error over replications. *Noted* is what code "
        "written independently of this library reached under the protocol of the row; where ours "
        "is more than two standard errors of the difference away (theirs from their own spread if "
        "it was noted, else from ours) the last column says why, or that we do not know.",
    ]
    for study in studies:
        parts.append(f"## {study.paper}, {study.shows}: {study.title}")
        found = read_study(study, out / "studies")
        if found is None:
            parts.append(f"Not run here: `python -m reproduction run {study.name}`.")
            continue
        results, facts = found
        parts += [
            study.protocol,
            _how(study, facts) + f" [Table](studies/{study.name}.md), "
            f"[rows](studies/{study.name}.csv).",
            f"![{study.title}](studies/{study.name}.png)",
            _claims(study, results),
        ]
    page = out / "reproduction.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page


def read_study(study: Study, folder: Path) -> tuple[Results, dict[str, Any]] | None:
    """Rows and facts of a study that was run; None if it was not."""
    path = folder / f"{study.name}.csv"
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]
    return Results(rows), json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def markdown(table: Table) -> str:
    """A table in Markdown."""
    return _grid(list(table), table.rows())


def _claims(study: Study, results: Results) -> str:
    return _grid(CLAIM_COLUMNS, [claim.cells() for claim in study.claims(results)])


def _how(study: Study, facts: dict[str, Any]) -> str:
    versions = ", ".join(
        f"{name} {value}" if name != "machine" else value
        for name, value in facts["environment"].items()
    )
    command = f"python -m reproduction run {study.name}" + (
        " --quick" if facts["size"] == "quick" else ""
    )
    return (
        f"`{command}`: {facts['cells']} settings, {facts['replications']} "
        f"replication{'s' * (facts['replications'] != 1)}, "
        f"{facts['core_seconds']:.0f} core seconds ({versions})."
    )


def _grid(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [_line(head), "|" + "---|" * len(head), *(_line(row) for row in rows)]
    return "\n".join(lines)


def _line(row: Sequence[Any]) -> str:
    return "| " + " | ".join(_cell(value) for value in row) + " |"


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    columns = dict.fromkeys(name for row in rows for name in row)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows({k: _rounded(v) for k, v in row.items()} for row in rows)


def _rounded(value: Any) -> Any:
    return f"{value:.7g}" if isinstance(value, float) else value


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None
