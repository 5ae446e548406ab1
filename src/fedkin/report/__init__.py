"""Pages for people: one self-contained HTML file per fit."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from fedkin.tables import Summary

# Dots per inch of pictures: sharp on a screen that shows two for each.
RESOLUTION = 150


def page(summary: Summary, figures: Mapping[str, Any] | None = None) -> str:
    """A summary as one HTML page that needs no other file.

    `figures` are matplotlib figures by caption; they are put into the page.
    """
    from jinja2 import Environment

    text = (files("fedkin.report") / "page.html.j2").read_text(encoding="utf-8")
    pictures = [(caption, _png(f), _width(f)) for caption, f in (figures or {}).items()]
    template = Environment(autoescape=True).from_string(text)
    return template.render(summary=summary, pictures=pictures)


def _png(figure: Any) -> str:
    """A figure as the address of an image."""
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=RESOLUTION)
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def _width(figure: Any) -> int:
    """Width on the page: the figure's inches in CSS pixels."""
    return round(96 * float(figure.get_figwidth()))
