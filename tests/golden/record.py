"""Run the cases and keep what they gave: `python -m tests.golden.record [case ...]`.

With names only these cases are recorded anew; the others stay as they are.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from tests.golden.cases import CASES

GOLDEN = Path(__file__).with_name("golden.npz")
TRAFFIC = ("rounds", "messages_up", "messages_down", "bytes_up", "bytes_down", "refused")
UNKNOWN, NEWCOMER = "elsewhere", "newcomer"
N_PROBES, N_NEW_ROWS = 3, 12
KEPT_KINDS = "biufU"


def outcome_of(case: str) -> dict[str, np.ndarray]:
    """Everything that is compared of one case, by attribute."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = CASES[case]()
    found = {"estimator": np.array(type(fitted).__name__), "warnings": _categories(caught)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found |= dict(attributes(fitted))
        found |= dict(predictions(fitted))
        found |= dict(after_adapting(fitted))
    return found


def _categories(caught: list[warnings.WarningMessage]) -> np.ndarray:
    """Which of our warnings, and scikit-learn's of not settling, were given."""
    ours = [
        w.category.__name__
        for w in caught
        if w.category.__module__.startswith("fedkin") or w.category is ConvergenceWarning
    ]
    return np.array(sorted(set(ours)), dtype=np.str_)


def attributes(fitted: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Public attributes of a fit, flattened to arrays of numbers and words."""
    for name in sorted(dir(fitted)):
        if name.endswith("_") and not name.startswith("_") and hasattr(fitted, name):
            yield from flattened(name, getattr(fitted, name))


def flattened(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays of one value: a dictionary or table by key, a list by place, a kernel's theta."""
    if value is None:
        yield name, np.array("None")
    elif hasattr(value, "bytes_up"):
        yield name, np.array([getattr(value, part) for part in TRAFFIC])
    elif isinstance(value, Mapping):
        for key in value:
            yield from flattened(f"{name}/{key}", value[key])
    elif hasattr(value, "theta") and hasattr(value, "get_params"):
        yield name, np.array(value.theta)
    elif isinstance(value, list | tuple):
        yield f"{name}/length", np.array(len(value))
        for k, one in enumerate(value):
            yield from flattened(f"{name}/{k}", one)
    elif isinstance(value, np.ndarray | np.generic | str | bool | int | float):
        array = np.array(value)
        yield name, array.astype(np.str_) if array.dtype.kind == "O" else array


def _probes(n_rows: int, n_features: int) -> np.ndarray:
    """Fixed rows, of no generator: they stay the same whatever numpy does."""
    grid = np.arange(1, n_rows * n_features + 1).reshape(n_rows, n_features)
    return 2.0 * np.sin(1.7 * grid)


def predictions(fitted: Any) -> Iterator[tuple[str, np.ndarray]]:
    """What is said of fixed rows at the first and last site, and at one not in the fit."""
    sites = [fitted.client_names_[0], fitted.client_names_[-1], UNKNOWN]
    if hasattr(fitted, "levels"):
        sites.remove(UNKNOWN)  # co-kriging predicts at its levels alone
    groups = np.repeat(np.array(sites, dtype=np.str_), N_PROBES)
    rows = np.tile(_probes(N_PROBES, fitted.n_features_in_), (len(sites), 1))
    yield from at_sites(fitted, rows, groups)


def at_sites(fitted: Any, rows: np.ndarray, groups: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Predictions for rows of sites, in every way that the estimator has."""
    if hasattr(fitted, "transform"):
        rows_there = fitted.transform(rows)
        yield "transform", rows_there
        yield "inverse_transform", fitted.inverse_transform(rows_there)
        return
    yield "predict", fitted.predict(rows, groups=groups)
    if hasattr(fitted, "log_predictive_density"):
        yield "predict_std", fitted.predict(rows, groups=groups, return_std=True)[1]
        density = fitted.log_predictive_density(rows, rows[:, 0], groups=groups)
        yield "log_predictive_density", density
    if hasattr(fitted, "predict_proba"):
        yield "predict_proba", fitted.predict_proba(rows, groups=groups)
    if hasattr(fitted, "score_samples"):
        target = rows[:, 0] if fitted.family == "regression" else None
        yield "score_samples", fitted.score_samples(rows, target, groups=groups)


def after_adapting(fitted: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The predictions for a site that came after the fit with rows of its own."""
    if not hasattr(fitted, "adapt") or hasattr(fitted, "levels"):
        return
    rows = _probes(N_NEW_ROWS, fitted.n_features_in_)
    target: Any = rows @ np.arange(1.0, rows.shape[1] + 1) + np.cos(5.0 * np.arange(len(rows)))
    if getattr(fitted, "loss", None) == "logistic":
        target = fitted.classes_[(target > 0).astype(int)]
    if getattr(fitted, "family", None) == "gaussian":
        target = None
    fitted.adapt(rows, target, groups=NEWCOMER)
    for name, array in at_sites(fitted, rows[:N_PROBES], NEWCOMER):
        yield f"{name}/{NEWCOMER}", array
    yield from flattened("adapted_", getattr(fitted, "adapted_", {}))


def recorded() -> dict[str, dict[str, np.ndarray]]:
    """The stored results: case -> attribute -> array."""
    cases: dict[str, dict[str, np.ndarray]] = {}
    with np.load(GOLDEN, allow_pickle=False) as stored:
        for key in stored.files:
            case, attribute = key.split("/", 1)
            cases.setdefault(case, {})[attribute] = stored[key]
    return cases


def main(wanted: list[str]) -> None:
    """Write the results of all cases, or of some beside those that are stored."""
    strangers = set(wanted) - set(CASES)
    if strangers:
        raise SystemExit(f"there are no such cases: {', '.join(sorted(strangers))}")
    arrays: dict[str, np.ndarray] = {}
    for case, found in recorded().items() if wanted else ():
        if case not in wanted:
            arrays |= {f"{case}/{attribute}": array for attribute, array in found.items()}
    started = time.process_time()
    for case in wanted or CASES:
        before = time.process_time()
        for attribute, array in outcome_of(case).items():
            if array.dtype.kind not in KEPT_KINDS:
                raise TypeError(f"{case}/{attribute} has dtype {array.dtype}")
            arrays[f"{case}/{attribute}"] = array
        print(f"{case}: {time.process_time() - before:.2f} s")
    np.savez_compressed(GOLDEN, **arrays)
    print(
        f"{len(CASES)} cases, {len(arrays)} arrays, {GOLDEN.stat().st_size:,} bytes, "
        f"{time.process_time() - started:.1f} s of CPU"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
