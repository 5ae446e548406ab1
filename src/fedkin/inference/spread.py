"""Whether a fitted model tells how far new targets are from its predictions."""

from __future__ import annotations

import inspect
from typing import Any


def tells_spread(model: Any) -> bool:
    """Whether `predict` takes `return_std` and this fit has an answer to it.

    A model of classes or groups has none, nor one whose sites sent too little; they say so by
    `_tells_spread`.
    """
    takes = "return_std" in inspect.signature(model.predict).parameters
    return takes and bool(getattr(model, "_tells_spread", True))
