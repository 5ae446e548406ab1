"""Methods as scikit-learn estimators: parameters in, an engine's run, fitted attributes out.

`fedkin.registry` lists them; each is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedkin.registry import ESTIMATORS

__all__ = sorted(ESTIMATORS)


def __getattr__(name: str) -> Any:
    if name not in ESTIMATORS:
        raise AttributeError(f"module 'fedkin.estimators' has no attribute {name!r}")
    return getattr(import_module(ESTIMATORS[name]), name)


def __dir__() -> list[str]:
    return __all__
