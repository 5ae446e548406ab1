"""The public signatures as text: a file for every estimator, a line for whatever people call.

What people call is a promise: a parameter that changes its name or default, or that can no longer
go without its name, shows in the diff of these files. Keywords stand in alphabetical order,
because their order promises nothing. When a change is meant, `python -m
tests.arguments.signatures` writes the files anew (with names behind it, those only); say so in
CHANGELOG.md.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fedkin.estimators

FROZEN = Path(__file__).with_name("frozen_signatures")
NAMES = tuple(sorted(fedkin.estimators.__all__))


def signatures_of(name: str) -> list[str]:
    """The constructor of a public estimator and below it, indented, its public methods."""
    estimator = getattr(fedkin.estimators, name)
    methods = (f"    {method}{_text(function)}" for method, function in _methods(estimator))
    return [f"{name}{_text(estimator.__init__)}", *methods]


def file_of(name: str) -> Path:
    """Where the signatures of an estimator are kept."""
    return FROZEN / f"{name}.txt"


def freeze(name: str) -> None:
    """Write down the signatures of an estimator as they are now."""
    file_of(name).write_text("\n".join(signatures_of(name)) + "\n", encoding="utf-8")


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
    return str(inspect.Signature(sorted(bare, key=_place)))


def _place(parameter: inspect.Parameter) -> tuple[int, str]:
    """Keywords by name behind all others, which stay as they are."""
    keyword = parameter.kind is parameter.KEYWORD_ONLY
    return int(parameter.kind), parameter.name if keyword else ""


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        freeze(chosen)
