"""What joining gives each site, as a page and a record hold it."""

from __future__ import annotations

from typing import Any

import numpy as np

UNITS = {
    "log": "gain in log score of a left-out row (nats)",
    "rmse": "fall of the root mean squared error",
    "error": "fall of the share of wrong classes",
}


def benefit_record(found: Any) -> dict[str, Any]:
    """Plain values of a `fedkin.inference.Benefit`."""
    interval = np.asarray(found.interval, dtype=np.float64)
    verdicts = [str(word) for word in found.verdicts]
    return {
        "sites": [str(name) for name in found.sites],
        "gain": _plain(found.gain),
        "low": _plain(interval[:, 0]),
        "high": _plain(interval[:, 1]),
        "verdict": verdicts,
        "helped": sum(word == "helps" for word in verdicts),
        "sentence": str(found.sentence),
        "unit": UNITS.get(found.metric, f"gain in {found.metric}"),
        "caption": "A dot is a site: how much better rows that were left out are predicted by "
        f"joining than alone, with a {found.level:.0%} interval. Right of zero joining helps.",
    }


def can_be_compared(model: Any) -> bool:
    """Whether there is a way to stay alone that a fitted method can be compared with.

    `Best` has compared already.
    """
    if hasattr(model, "ways_") or not hasattr(model, "predict"):
        return False
    try:
        model._ways()
    except ValueError:
        return False
    return len(model.client_names_) > 1


def _plain(values: Any) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in np.asarray(values, dtype=np.float64)]
