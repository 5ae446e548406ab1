"""Words that several estimators' docstrings share, written once.

A docstring tells what is special to its estimator; parameters and attributes that it leaves out
are described by the `_words` of its class, and stand in `help(...)` like the others. An entry is
"name : type", a line break, and what it means, as numpydoc has it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping

SECTIONS = ("Parameters", "Attributes")
ENTRY = re.compile(r"^(\w[\w, ]*) :", re.M)


def told(text: str, section: str) -> set[str]:
    """Names that a section of a docstring has an entry for."""
    return {name for names in ENTRY.findall(_split(text, section)[1]) for name in names.split(", ")}


def completed(text: str | None, parameters: Iterable[str], words: Mapping[str, str]) -> str:
    """The docstring with the entries it leaves out: of these parameters, and of all attributes."""
    clean = inspect.cleandoc(text or "")
    attributes = [name for name in words if name.endswith("_")]
    for section, names in (("Parameters", parameters), ("Attributes", attributes)):
        before, inside, after = _split(clean, section)
        if not before:
            continue
        known = told(clean, section)
        added = [words[name].strip() for name in names if name in words and name not in known]
        clean = "\n".join([before.rstrip(), *([inside.rstrip()] if inside.strip() else []), *added])
        clean += f"\n\n{after.lstrip()}" if after.strip() else "\n"
    return clean


def _split(text: str, section: str) -> tuple[str, str, str]:
    """The text up to a section's underline, the section, and what follows; empty without it."""
    head = re.search(rf"^{section}\n-+\n", text, re.M)
    if head is None:
        return "", "", ""
    rest = text[head.end() :]
    end = re.search(r"^\w[^\n]*\n-{3,}\n", rest, re.M)
    stop = len(rest) if end is None else end.start()
    return text[: head.end()], rest[:stop], rest[stop:]
