"""One file a method: what leaves a client, the client functions, the server program.

Algorithms import the mathematics and the protocol, never an engine. `fedkin.registry` lists them.
"""

from __future__ import annotations

from importlib import import_module

from fedkin.protocol import Algorithm
from fedkin.registry import ALGORITHMS


def names() -> tuple[str, ...]:
    """All algorithms by name."""
    return tuple(ALGORITHMS)


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name."""
    if name not in ALGORITHMS:
        raise ValueError(f"there is no algorithm {name!r}; there are {', '.join(ALGORITHMS)}")
    module, constant = ALGORITHMS[name]
    known: Algorithm = getattr(import_module(module), constant)
    return known
