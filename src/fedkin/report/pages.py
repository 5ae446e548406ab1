"""The report of a fit: one HTML file that needs no other, for people who do not know the method."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np

from fedkin.displays.specs import pictures
from fedkin.report.answers import answer_and_more
from fedkin.report.benefits import can_be_compared
from fedkin.report.words import of_card, of_column
from fedkin.tables import Table, digits_that_tell

# Numbers of a fit that stand at the top, with the names people know them by.
CARDS = {
    "n_components": "groups",
    "n_clusters": "kinds",
    "n_priors": "priors",
    "sigma": "noise",
    "icc": "between sites",
    "bic": "BIC",
    "n_rounds": "rounds",
}
# What leaves sites where several ways are compared, besides what these send themselves.
OF_WAYS = {
    "scores": "sums of the scores of left-out rows, by way and fold",
    "sums of products": "products of features and target, added up over rows",
}
# What is told of the benefit in the table of sites.
BENEFIT_COLUMNS = ("gain", "low", "high")


def report(model: Any, record: Mapping[str, Any] | None = None, title: str | None = None) -> str:
    """The page of a fitted model.

    Parameters
    ----------
    model : fitted estimator
    record : mapping or None
        What the run knows besides (file, settings, warnings, benefit), as `run.json` holds it.
    title : str or None
        Heading; None is made from the method and the file.
    """
    from jinja2 import Environment

    record = record or {}
    content = content_of(model, record, title)
    folder = files("fedkin.report")
    template = (folder / "report.html.j2").read_text(encoding="utf-8")
    return (
        Environment(autoescape=True)
        .from_string(template)
        .render(
            title=content["title"],
            answer=content["answer"],
            more=content["more"],
            style=(folder / "report.css").read_text(encoding="utf-8"),
            script=(folder / "report.js").read_text(encoding="utf-8"),
            content=_json(content),
            content_=content,
        )
    )


def content_of(model: Any, record: Mapping[str, Any], title: str | None = None) -> dict[str, Any]:
    """Everything that is on the page, as plain values."""
    summary = model.summary()
    tables = {name: table for name, table in summary.tables.items() if name != "traffic"}
    if "sites" in tables:
        tables["sites"] = _with_benefit(tables["sites"], record)
        tables = {"sites": tables.pop("sites"), **tables}
    about = record.get("data", {})
    answer, more = answer_and_more(model, record)
    name = type(model).__name__
    where = f": {about['file'].rsplit('/', 1)[-1]}" if "file" in about else ""
    return {
        "title": title or f"{name}{where}",
        "answer": answer,
        "more": more,
        "subtitle": summary.title,
        "notes": list(record.get("notes", ())),
        "cards": _cards(model, record),
        "pictures": pictures(model, record),
        "tables": [_table(key, table) for key, table in tables.items()],
        "left": _what_left(model),
        "account": list(summary.notes),
        "why": _why(model),
        "checks": _checks(record),
        "next": _next(model, record),
        "repeat": _repeat(record),
    }


# ------------------------------------------------------------------ parts


def _cards(model: Any, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    m = len(model.client_names_)
    cards = [{"name": "sites", "value": f"{m:,}", "help": of_card("sites")}]
    rows = record.get("data", {}).get("rows")
    if rows:
        cards.append({"name": "rows", "value": f"{rows:,}", "help": of_card("rows")})
    for key, name in CARDS.items():
        if key == "n_components" and hasattr(model, "responsibilities_"):
            name = "kinds"
        value = getattr(model, f"{key}_", None)
        if value is None or np.ndim(value) > 0:
            continue
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        if isinstance(value, float) and 1e4 <= abs(value) < 1e15:
            text = f"{value:,.0f}"
        if key == "icc":
            text = f"{100 * value:.0f} %"
        cards.append({"name": name, "value": text, "help": of_card(key)})
    traffic = model.traffic_
    if traffic.rounds:
        each = f"{traffic.bytes_up / max(m, 1):,.0f}"
        cards.append({"name": "bytes a site", "value": each, "help": of_card("bytes a site")})
    odd = len(getattr(model, "odd_sites_", ()))
    if hasattr(model, "odd_sites_"):
        cards.append({"name": "odd sites", "value": str(odd), "help": of_card("odd sites")})
    told = record.get("benefit")
    if told:
        helped = f"{told['helped']} of {len(told['sites'])}"
        cards.insert(
            0, {"name": "joining helps", "value": helped, "help": of_card("joining helps")}
        )
    return cards


def _with_benefit(sites: Table, record: Mapping[str, Any]) -> Table:
    told = record.get("benefit")
    if not told:
        return sites
    place = {name: k for k, name in enumerate(told["sites"])}
    rows = [place.get(str(name)) for name in sites["site"]]
    told_of = {n: [None if k is None else told[n][k] for k in rows] for n in BENEFIT_COLUMNS}
    # Beside name and size, where they are seen without scrolling.
    first = {name: column for name, column in sites.items() if name in ("site", "rows")}
    return Table({**first, **told_of, **dict(sites)}, sites.title)


def _table(key: str, table: Table) -> dict[str, Any]:
    columns: list[dict[str, Any]] = []
    for name, column in table.items():
        kind = np.asarray(column).dtype.kind
        columns.append(
            {
                "name": name,
                "help": of_column(name),
                "numeric": kind in "iuf",
                "digits": digits_that_tell(column, name) if kind == "f" else 4,
            }
        )
    rows = [[_cell(value, c["digits"]) for value, c in zip(row, columns)] for row in table.rows()]
    return {"key": key, "title": table.title or key, "columns": columns, "rows": rows}


def _cell(value: Any, digits: int) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits + 2}g}") if np.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def _what_left(model: Any) -> dict[str, Any] | None:
    """What left the sites, field by field, in the words in which the method declares it."""
    up = model.traffic_.bytes_up_by_field
    if not up:
        return None
    meaning = _meanings(model)
    m = max(1, len(model.client_names_))
    table = Table(
        {
            "field": list(up),
            "what it is": [meaning.get(name, "") for name in up],
            "a site sent": [round(size / m, 1) for size in up.values()],
            "bytes up": list(up.values()),
        },
        "What left each site",
    )
    return _table("left", table)


def _meanings(model: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in getattr(model, "fitted_", {"": model}).values():
        algorithm = getattr(type(one), "_algorithm", None)
        for step in getattr(algorithm, "steps", {}).values():
            for name, field in {**step.reply, **step.optional}.items():
                found.setdefault(name, field.meaning)
    return {**OF_WAYS, **found} if hasattr(model, "ways_") else found


def _why(model: Any) -> list[str]:
    """In which way the method says that sites differ, in its own words."""
    doc = (type(model).__doc__ or "").strip().split("\n\n")
    plain = [" ".join(part.replace("`", "").split()) for part in doc[:2]]
    return [part for part in plain if not part.startswith("Parameters")]


def _checks(record: Mapping[str, Any]) -> list[dict[str, str]]:
    kinds = (("warnings", "fit"), ("checks", "data"), ("missing", "missing"))
    return [{"kind": word, "text": t} for name, word in kinds for t in record.get(name, ())]


def _next(model: Any, record: Mapping[str, Any]) -> list[str]:
    """What to do now."""
    steps = []
    odd = list(getattr(model, "odd_sites_", ()))
    if odd:
        steps.append(
            f"Look at the data of {', '.join(map(str, odd[:5]))}: wrong units, another population, "
            "or a mistake. Then fit again, without them or with --robust."
        )
    if getattr(model, "converged_", True) is False:
        steps.append("Fit again with a larger --max-rounds: the search had not come to its end.")
    if any("have no more rows than there are features" in t for t in record.get("checks", ())):
        steps.append("Leave columns out (--features), or collect rows at the smallest sites.")
    if not record.get("benefit") and can_be_compared(model):
        steps.append(
            "Ask whether sites are better off than alone, in the folder of the run: "
            f"fedkin compare {type(model).__name__.lower()} --config run.toml."
        )
    steps.append("Predict new rows: fedkin predict RUN new.csv; rows of a new site: fedkin adapt.")
    steps.append("On real sites the same method runs without data leaving them: see the README.")
    return steps


def _repeat(record: Mapping[str, Any]) -> dict[str, Any] | None:
    if "settings" not in record:
        return None
    return {
        "command": "fedkin fit --config run.toml",
        "file": record["data"].get("file", ""),
        "seed": record.get("seed"),
        "settings": {k: str(v) for k, v in record["settings"].items()},
        "versions": record.get("versions", {}),
    }


def _json(content: Mapping[str, Any]) -> str:
    """JSON that may stand inside a script element."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
