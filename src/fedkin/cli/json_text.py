"""Results as JSON that every reader takes."""

from __future__ import annotations

import json
from typing import Any


def json_text(content: Any, indent: int | None = None) -> str:
    """JSON of plain values; NaN is not JSON, so what is not known or not finite is null."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
