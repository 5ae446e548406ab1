"""Files of a study, the page that sums all of them up, and the list of promises."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedkin.tables import Table
from reproduction.study import Check, Claim, Promise, Results, Row, Study

# Heads of the page.
PAPERS = {
    "FedGrEM": "FedGrEM: groups inside every site (Tian, Weng, Feng 2024)",
    "ODCL": "ODCL: kinds of sites in one round (Armacki et al. 2024)",
    "FMLR": "FMLR: every site follows one of K regressions (Tao, Chandak, Kulkarni 2024)",
    "FGPR": "FGPR: curves from one prior (Yue, Kontar 2021)",
    "lme4": "MixedModel: sites that differ by degrees (lme4 and its relatives)",
}
# What a study is called that shows nothing of a paper.
OURS = "fedkin"


# ------------------------------------------------------------------ one study


def write_study(study: Study, results: Results, folder: Path, facts: dict[str, Any]) -> None:
    """NAME.csv (tidy rows), NAME.png, NAME.md and NAME.json (size, environment)."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{study.name}.csv"
    _write_csv(path, results.rows)
    results = Results(_read_csv(path))  # rounded, as readers of the rows have them
    study.figure(results).savefig(folder / f"{study.name}.png", dpi=110)
    (folder / f"{study.name}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    text = study_page(study, results, read_others(study, folder), facts)
    (folder / f"{study.name}.md").write_text(text, encoding="utf-8")


def study_page(
    study: Study, results: Results, others: Sequence[Results], facts: dict[str, Any]
) -> str:
    """A study's own page: protocol, what is judged, every entry, means."""
    lines = [
        f"# {heading(study)}",
        study.protocol,
        _how(study, facts),
        f"![{study.title}]({study.name}.png)",
        *_judged(study, results, others),
        "## Means",
        "Mean ± standard error over replications; all rows are in "
        f"[{study.name}.csv]({study.name}.csv).",
        markdown(study.table(results)),
    ]
    return "\n\n".join(lines) + "\n"


def write_again(studies: Iterable[Study], out: Path) -> Path:
    """Tables, figures and pages from the rows in `out/studies`; nothing is run."""
    studies = list(studies)
    for study in studies:
        found = read_study(study, out / "studies")
        if found is not None:
            write_study(study, found[0], out / "studies", found[1])
    return write_page(studies, out)


def read_study(study: Study, folder: Path) -> tuple[Results, dict[str, Any]] | None:
    """Rows and facts of a study that was run; None if it was not."""
    path = folder / f"{study.name}.csv"
    if not path.is_file():
        return None
    return Results(_read_csv(path)), json.loads(path.with_suffix(".json").read_text("utf-8"))


def read_others(study: Study, folder: Path) -> list[Results]:
    """The rows of the studies it is laid beside; none where they were not run."""
    paths = [folder / f"{name}.csv" for name in study.beside]
    return [Results(_read_csv(path) if path.is_file() else []) for path in paths]


def heading(study: Study) -> str:
    """What the study shows, in a line."""
    return study.title if study.paper == OURS else f"{study.paper}, {study.shows}: {study.title}"


def markdown(table: Table) -> str:
    """A table in Markdown."""
    return _grid(list(table), table.rows())


def _judged(study: Study, results: Results, others: Sequence[Results]) -> list[str]:
    """What the paper says, what we promise, and every entry beside ours."""
    parts = []
    checks = study.checks(results, *others)
    if checks:
        rows = [(check.says, check.verdict, check.found) for check in checks]
        head = ("the paper says", "does it hold", "found")
        parts += ["## What the paper says", _grid(head, rows)]
    if study.why:
        parts.append(f"Why it differs: {study.why}.")
    promises = study.promises(results, *others)
    if promises:
        grid = _grid(PROMISE_COLUMNS[1:], [_promise_cells(p) for p in promises])
        parts += ["## What we promise", grid]
    claims = study.claims(results, *others)
    if claims:
        parts += ["## Entry by entry", _claims(study, claims)]
    return parts


def _claims(study: Study, claims: Sequence[Claim]) -> str:
    head = ["entry", "paper", "ours", study.second, "same protocol?", "why they differ"]
    rows = [[c.entry, c.paper, c.ours, c.second, c.same, c.why] for c in claims]
    if not study.second:
        head.pop(3)
        for row in rows:
            row.pop(3)
    return _grid(head, rows)


def _how(study: Study, facts: dict[str, Any]) -> str:
    versions = ", ".join(
        f"{name} {value}" if name != "machine" else value
        for name, value in facts["environment"].items()
    )
    quick = " --quick" if facts["size"] == "quick" else ""
    # Rows that were made in parts have no cost of their own.
    spent = f", {facts['core_seconds']:.0f} core seconds" if "core_seconds" in facts else ""
    return (
        f"`python -m reproduction run {study.name}{quick}`: {facts['cells']} settings, "
        f"{facts['replications']} replication{'s' * (facts['replications'] != 1)}{spent} "
        f"({versions})."
    )


# ------------------------------------------------------------------ the summary

INTRODUCTION = (
    "Made by `python -m reproduction page --out docs` from the rows in [studies](studies); do not "
    "edit. A row stands for a table or figure: what the paper says of it, whether our rows agree, "
    "the entry whose printed number is farthest from ours, and why, where that was tested. The "
    "link leads to every entry, the protocol, the command and its cost."
)
SUMMARY_COLUMNS = ("", "the paper says", "holds", "farthest from a printed number", "why")
# Open promises of one study that stand on the page of all; the study's own has them all.
SHOWN_PROMISES = 1
PROMISE_COLUMNS = ("study", "promise", "found", "promised", "")
PICTURES_A_LINE = 4
PLURAL = {
    "holds": "hold",
    "FAILS": "**fail**",
    "not run": "were not run",
    "withdrawn": "are withdrawn",
}


def write_page(studies: Iterable[Study], out: Path) -> Path:
    """`out/reproduction.md` and `out/promises.md` from the files in `out/studies`."""
    studies = list(studies)
    folder = out / "studies"
    run: Run = {}
    for study in studies:
        found = read_study(study, folder)
        if found is not None:
            run[study.name] = (study, found[0], read_others(study, folder))
    promised = [(study, promise) for study in studies for promise in promises_of(study, folder)]
    parts = ["# The papers' tables and figures, and ours", INTRODUCTION]
    parts += _promises_in_short(promised)
    for paper in dict.fromkeys(s.paper for s in studies if s.paper != OURS):
        mine = [study for study in studies if study.paper == paper]
        parts += [
            f"## {PAPERS.get(paper, paper)}",
            _grid(SUMMARY_COLUMNS, [_summary(s, run) for s in mine]),
        ]
        parts += _pictures([s for s in mine if s.name in run])
    said = [text for s, rows, others in run.values() for text in s.known(rows, *others)]
    if said:
        parts += ["## Worth knowing", "\n".join(f"- {text}" for text in said)]
    beyond = [study for study in studies if study.paper == OURS]
    if beyond:
        rows = [[_link(s, run), *_own(s, run)] for s in beyond]
        parts += ["## Beyond the papers", _grid(("", "what was measured", "promises"), rows)]
    out.mkdir(parents=True, exist_ok=True)
    page = out / "reproduction.md"
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    (out / "promises.md").write_text(_promises_page(promised), encoding="utf-8")
    return page


Run = dict[str, tuple[Study, Results, list[Results]]]


def _summary(study: Study, run: Run) -> list[str]:
    """A study's row: what the paper says, does it hold, the largest distance, why."""
    if study.name not in run:
        command = f"`python -m reproduction run {study.name}`"
        return [_link(study, run), f"not run here: {command}", "", "", ""]
    _, rows, others = run[study.name]
    checks: Sequence[Check] = study.checks(rows, *others)
    many = len(checks) > 1
    marks = [f"({k + 1}) " if many else "" for k in range(len(checks))]
    says = "; ".join(mark + check.says for mark, check in zip(marks, checks))
    holds = ", ".join(mark + check.verdict for mark, check in zip(marks, checks))
    return [_link(study, run), says, holds, farthest(study.claims(rows, *others)), study.why]


def farthest(claims: Sequence[Claim]) -> str:
    """The entry whose printed number is farthest from ours, by their ratio."""
    far = [claim for claim in claims if claim.compared and claim.distance is not None]
    if not far:
        return "no numbers printed"
    # A ratio of two and of a half are as far; a number of another sign is farther than any.
    claim = max(far, key=lambda c: abs(math.log(max(1 + (c.distance or 0.0), 1e-12))))
    return f"{claim.entry}: {claim.paper}, ours {claim.ours}"


def _own(study: Study, run: Run) -> list[str]:
    if study.name not in run:
        return [study.protocol.split(". ")[0], "not run"]
    _, rows, others = run[study.name]
    verdicts = [promise.verdict for promise in study.promises(rows, *others)]
    counts = {word: verdicts.count(word) for word in dict.fromkeys(verdicts)}
    return [
        study.protocol.split(". ")[0] + ".",
        ", ".join(f"{count} {PLURAL[word]}" for word, count in counts.items()) or "none",
    ]


def _link(study: Study, run: Run) -> str:
    words = study.title if study.paper == OURS else study.shows
    return f"[{words}](studies/{study.name}.md)" if study.name in run else words


def _pictures(studies: Sequence[Study]) -> list[str]:
    """Small pictures side by side, each a link to its study."""
    shown = [
        f'<a href="studies/{s.name}.md"><img src="studies/{s.name}.png" width="200" '
        f'alt="{s.shows}: {s.title}" title="{s.shows}: {s.title}"></a>'
        for s in studies
    ]
    lines = [shown[k : k + PICTURES_A_LINE] for k in range(0, len(shown), PICTURES_A_LINE)]
    return ["\n".join(line) for line in lines]


# ------------------------------------------------------------------ promises


def promises_of(study: Study, folder: Path | None) -> list[Promise]:
    """A study's promises by its rows in a folder; without rows none has a number."""
    found = None if folder is None else read_study(study, folder)
    if folder is None or found is None:
        return list(study.promises(Results([]), *(Results([]) for _ in study.beside)))
    return list(study.promises(found[0], *read_others(study, folder)))


def _promises_in_short(promised: Sequence[tuple[Study, Promise]]) -> list[str]:
    """How many hold, and those that do not."""
    verdicts = [promise.verdict for _, promise in promised]
    counts = {w: verdicts.count(w) for w in ("holds", "FAILS", "not run", "withdrawn")}
    told = ", ".join(f"{counts[word]} {PLURAL[word]}" for word in PLURAL if counts[word])
    said = ("holds", "not run")
    open_ = [(study, promise) for study, promise in promised if promise.verdict not in said]
    waiting = dict.fromkeys(study.name for study, p in promised if p.verdict == "not run")
    later = f" Not run yet at full size: {', '.join(waiting)}." if waiting else ""
    parts = [
        "## What we promise",
        f"Of [{len(promised)} promises](promises.md) about our own methods {told} "
        "(`make accept` runs them and exits with 1 if one fails; `python -m reproduction accept "
        f"--kept` judges the rows that are here).{later}",
    ]
    return [*parts, _grid(PROMISE_COLUMNS, _shortened(open_))] if open_ else parts


def _shortened(promised: Sequence[tuple[Study, Promise]]) -> list[Sequence[str]]:
    """Rows of a study's first promises, failed ones before others, and how many more there are."""
    rows: list[Sequence[str]] = []
    for name in dict.fromkeys(study.name for study, _ in promised):
        study = next(one for one, _ in promised if one.name == name)
        own = [promise for one, promise in promised if one is study]
        own.sort(key=lambda promise: promise.verdict != "FAILS")
        link = _study_of(study, own[0])
        rows += [(link, *_promise_cells(promise)) for promise in own[:SHOWN_PROMISES]]
        left = [promise.verdict for promise in own[SHOWN_PROMISES:]]
        told = [f"{left.count(word)} {PLURAL[word]}" for word in PLURAL if word in left]
        if left:
            *cells, verdict = rows[-1]
            rows[-1] = (*cells, f"{verdict}; of others {', '.join(told)}")
    return rows


def _promises_page(promised: Sequence[tuple[Study, Promise]]) -> str:
    parts = [
        "# What we promise of our own methods",
        "Made by `python -m reproduction page --out docs`; do not edit. `make accept` runs what is "
        "behind every promise again and exits with 1 if one fails.",
        _promise_grid(promised),
    ]
    return "\n\n".join(parts) + "\n"


def _promise_grid(promised: Sequence[tuple[Study, Promise]]) -> str:
    rows = [(_study_of(study, promise), *_promise_cells(promise)) for study, promise in promised]
    return _grid(PROMISE_COLUMNS, rows)


def _study_of(study: Study, promise: Promise) -> str:
    """The study's name; a link if it was run."""
    if promise.verdict == "not run":
        return study.name
    return f"[{study.name}](studies/{study.name}.md)"


def _promise_cells(promise: Promise) -> list[str]:
    words = promise.verdict
    if promise.verdict != "holds":
        words = f"**{words}**" + (f": {promise.withdrawn}" if promise.withdrawn else "")
    return [promise.what, promise.shown, promise.bounds, words]


# ------------------------------------------------------------------ tables and rows


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


def _read_csv(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _rounded(value: Any) -> Any:
    return f"{value:.7g}" if isinstance(value, float) else value


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None
