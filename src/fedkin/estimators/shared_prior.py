"""FGPR's shared part as a file: priors in numbers and words, never a row of anybody's.

What a site needs besides are its own rows, which it gives to `adapt` where they are.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.models.kernels import from_spec, to_spec
from fedkin.protocol import Traffic

if TYPE_CHECKING:
    from fedkin.estimators.fgpr import FGPR

# How rows are turned into curves; sites must do it as in the fit.
SETTINGS = ("personalise", "normalize_y", "mean", "max_points", "large_sites")
ARRAYS = ("theta", "weights", "spread", "outcome", "curve", "converged")


def save_prior(model: FGPR, path: str | Path) -> Path:
    """Write the priors of a fitted model; returns the place."""
    arrays = {name: np.asarray(model._shared[name]) for name in ARRAYS}
    words = {
        "kernel": None if model.kernel is None else to_spec(model.kernel),
        "settings": {name: getattr(model, name) for name in SETTINGS},
        "features": [str(name) for name in getattr(model, "feature_names_in_", ())],
    }
    with open(path, "wb") as file:
        np.savez(file, words=np.array(json.dumps(words)), **arrays)  # type: ignore[arg-type]
    return Path(path)


def load_prior(family: type[FGPR], path: str | Path) -> FGPR:
    """A fitted model that knows the priors and no site."""
    if Path(path).exists() and not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not a prior of {family.__name__}")
    with np.load(path, allow_pickle=False) as stored:
        if set(stored.files) != {"words", *ARRAYS}:
            raise ValueError(f"{path} is not a prior of {family.__name__}")
        words, arrays = json.loads(str(stored["words"])), {n: stored[n] for n in ARRAYS}
    kernel = None if words["kernel"] is None else from_spec(words["kernel"])
    settings: dict[str, Any] = {name: words["settings"][name] for name in SETTINGS}
    model = family(kernel, **settings)
    model._check_parameters()
    if words["features"]:
        model.feature_names_in_ = np.array(words["features"], dtype=object)
    model.client_names_, model._position = np.array([], dtype=object), {}
    model.traffic_, model.n_rounds_ = Traffic(), 0
    nobody = {name: np.zeros(0) for name in ("site_loglik", "site_rows", "site_own")}
    path_of_search = {"history_theta": arrays["theta"], "history_value": np.zeros(0)}
    model._read(SimpleNamespace(result={**arrays, **nobody, **path_of_search}), None)
    return model
