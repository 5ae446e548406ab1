"""Federated statistics for sites that are alike but not the same.

Names are loaded when first used, so that `import fedkin` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedkin.registry import ESTIMATORS

__version__ = "0.1.0"

_HOMES = {
    "Federation": "fedkin.federation",
    "FederationError": "fedkin.frames",
    "InProcess": "fedkin.engines",
    "Rules": "fedkin.engines",
    "load": "fedkin.keeping",
    **ESTIMATORS,
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedkin' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
