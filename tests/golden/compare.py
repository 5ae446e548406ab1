"""Run the cases again and print what differs: `python -m tests.golden.compare`.

Ends with 1 if anything differs. Attributes and cases that were not recorded are listed, no more.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from tests.golden.cases import CASES
from tests.golden.record import outcome_of, recorded

TOLERANCE = 1e-9


def difference(old: np.ndarray, new: np.ndarray, tolerance: float) -> str | None:
    """In words, how two arrays differ; None if they do not."""
    if old.dtype.kind != new.dtype.kind:
        return f"was of type {old.dtype}, is {new.dtype}"
    if old.shape != new.shape:
        return f"had shape {old.shape}, has {new.shape}"
    if old.dtype.kind != "f":
        unequal = old != new
        if not unequal.any():
            return None
        return f"{unequal.sum()} of {old.size} differ, {_first(old, new, unequal)}"
    # NaN and the infinities must be where they were.
    alike = np.isclose(new, old, rtol=tolerance, atol=tolerance, equal_nan=True)
    if alike.all():
        return None
    with np.errstate(invalid="ignore"):
        largest = np.nanmax(np.abs(new - old))
    return f"{(~alike).sum()} of {old.size} differ by up to {largest:.2g}, " + _first(
        old, new, ~alike
    )


def _first(old: np.ndarray, new: np.ndarray, unequal: np.ndarray) -> str:
    where = tuple(np.argwhere(unequal)[0])
    return f"the first was {old[where]}, is {new[where]}"


def differences(
    old: dict[str, np.ndarray], new: dict[str, np.ndarray], tolerance: float
) -> list[str]:
    """How the attributes of one case differ from the recorded ones; new ones are no difference."""
    found = []
    for attribute, before in old.items():
        if attribute not in new:
            found.append(f"{attribute}: is missing")
            continue
        words = difference(before, new[attribute], tolerance)
        if words:
            found.append(f"{attribute}: {words}")
    return found


def main() -> int:
    """Compare all cases and say how many differences there are."""
    parser = argparse.ArgumentParser(description="Compare all cases with the recorded results.")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    parser.add_argument("--only", default="", help="cases whose name begins so")
    options = parser.parse_args()
    tolerance, n_different, n_compared = options.tolerance, 0, 0
    golden = {name: case for name, case in recorded().items() if name.startswith(options.only)}
    for case in [
        *golden,
        *(name for name in CASES if name.startswith(options.only) and name not in golden),
    ]:
        if case not in CASES:
            print(f"{case}: the case is missing")
            n_different += 1
            continue
        if case not in golden:
            print(f"{case}: new, not recorded")
            continue
        now = outcome_of(case)
        n_compared += len(golden[case])
        found = differences(golden[case], now, tolerance)
        n_different += len(found)
        for words in found:
            print(f"{case}/{words}")
        for attribute in now.keys() - golden[case].keys():
            print(f"{case}/{attribute}: new, not recorded")
    print(f"{len(golden)} cases, {n_compared} arrays, {n_different} differences at {tolerance:g}")
    return int(n_different > 0)


if __name__ == "__main__":
    sys.exit(main())
