"""FGPR's shared part as a file: priors in numbers and words, never a row of anybody's.

What a site needs besides are its own rows, which it gives to `adapt` where they are.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedkin.algorithms.fgpr_result import FgprResult
from fedkin.durable import ANYBODY, load_arrays, save_arrays
from fedkin.models.common_site import form_of
from fedkin.models.kernels import from_spec
from fedkin.protocol import Roster, Run, Traffic

if TYPE_CHECKING:
    from fedkin.estimators.fgpr import FGPR

# How rows are turned into curves; sites must do it as in the fit.
KEPT_SETTINGS = (
    "personalise",
    "normalize_y",
    "mean",
    "max_points",
    "large_sites",
    "common",
    "hyperprior",
)
KEPT_ARRAYS = ("theta", "weights", "spread", "target", "curve", "converged")
# Of a common curve; the last entry of `site_common` is about sites that were not in the fit.
KEPT_COMMON = (
    "common_theta",
    "common_weights",
    "common_frame",
    "common_units",
    "common_places",
    "common_kinds",
    "common_mean",
    "common_covariance",
    "common_bound",
    "common_missed",
    "common_tried",
    "site_common",
)


def save_prior(model: FGPR, path: str | Path) -> Path:
    """Write the priors of a fitted model; returns the place."""
    used = model._used.to_mapping()
    words = {
        "kernel": used["kernel"],
        "settings": {name: used[name] for name in KEPT_SETTINGS},
        "features": [str(name) for name in getattr(model, "feature_names_in_", ())],
    }
    arrays = {name: model._result[name] for name in KEPT_ARRAYS}
    if model._result.common_theta is not None:
        arrays |= {name: model._result[name] for name in KEPT_COMMON}
        arrays["site_common"] = arrays["site_common"][-1:]
    kept = {"words": np.array(json.dumps(words)), **arrays}
    save_arrays(Path(path), kept, rights=ANYBODY)
    return Path(path)


def load_prior(family: type[FGPR], path: str | Path) -> FGPR:
    """A fitted model that knows the priors and no site."""
    if Path(path).exists() and not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not a prior of {family.__name__}")
    arrays = load_arrays(path)
    plain = {"words", *KEPT_ARRAYS}
    if set(arrays) not in (plain, plain | set(KEPT_COMMON)):
        raise ValueError(f"{path} is not a prior of {family.__name__}")
    if "common_theta" in arrays:
        names = form_of(arrays["common_kinds"][0], arrays["common_places"]).names
        if arrays["common_theta"].shape[1] != len(names):
            raise ValueError(
                f"{path} was saved by another version of fedkin, whose common curve has other "
                "parameters; fit and save it again"
            )
    words = json.loads(str(arrays.pop("words")))
    kernel = words["kernel"] and from_spec(words["kernel"])
    model = family(kernel, **{name: words["settings"][name] for name in KEPT_SETTINGS})
    if words["features"]:
        model.feature_names_in_ = np.array(words["features"], dtype=object)
    result = FgprResult(**arrays, **_of_no_site(arrays["theta"]))
    model._keep(Run(result, Roster(()), Traffic(), ()), model._chosen_settings())
    return model


def _of_no_site(theta: np.ndarray) -> dict[str, np.ndarray]:
    """What a result says of sites and of the search, where there was neither."""
    nothing = np.zeros(0)
    sites = dict.fromkeys(("site_loglik", "site_rows", "site_own"), nothing)
    return {**sites, "loglik": np.zeros(()), "history_theta": theta, "history_value": nothing}
