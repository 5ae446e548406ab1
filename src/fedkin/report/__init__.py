"""Pages for people: one self-contained HTML file per fit."""

from __future__ import annotations

from importlib.resources import files

from fedkin.tables import Summary


def page(summary: Summary) -> str:
    """The whole summary as one page that needs nothing else."""
    from jinja2 import Environment

    text = (files("fedkin.report") / "page.html.j2").read_text(encoding="utf-8")
    return Environment(autoescape=True).from_string(text).render(summary=summary)
