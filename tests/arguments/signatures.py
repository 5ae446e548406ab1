"""The public signatures as text, one line each; `python -m tests.arguments.signatures` rewrites it.

What people call is a promise: a parameter that changes its name, place or default shows here, and
stands in the change's diff. Rewrite the file when a change is meant, and say so in CHANGELOG.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fedkin.estimators

FROZEN = Path(__file__).with_name("signatures.txt")
NAMES = tuple(sorted(fedkin.estimators.__all__))


def lines_of(name: str) -> list[str]:
    """The constructor of a public estimator and below it, indented, its public methods."""
    estimator = getattr(fedkin.estimators, name)
    methods = (f"    {method}{_text(function)}" for method, function in _methods(estimator))
    return [f"{name}{_text(estimator.__init__)}", *methods]


def frozen() -> dict[str, list[str]]:
    """What the file says, by estimator."""
    known: dict[str, list[str]] = {}
    for line in FROZEN.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            known[name := line.split("(")[0]] = []
        known[name].append(line)
    return known


def _methods(estimator: type) -> Iterator[tuple[str, Any]]:
    """What this project adds to scikit-learn's own methods, by name."""
    for name, member in inspect.getmembers(estimator, callable):
        ours = str(getattr(member, "__module__", "")).startswith("fedkin")
        if ours and not name.startswith("_"):
            yield name, member


def _text(function: Any) -> str:
    """Parameters and defaults; neither annotations nor `self`."""
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    return str(inspect.Signature(bare))


if __name__ == "__main__":
    text = "\n".join(line for name in NAMES for line in lines_of(name))
    FROZEN.write_text(text + "\n", encoding="utf-8")
