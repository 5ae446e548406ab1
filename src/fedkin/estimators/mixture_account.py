"""The account of a fitted mixture: its tables, and what left the sites in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.estimators.base import listed
from fedkin.tables import Summary, Table

# Outlier scores are about standard normal; a site with a higher one than this is pointed out.
ODD_SCORE = 4.0

COMPONENTS_LEFT = (
    "Each site sent its components in every round. A group of few rows at a site is told by its "
    "mean: a group of one row is that row."
)
VARIANCES_LEFT = (
    "Each site also sent the sampling variance of each of its components; the number of rows "
    "in each of its groups can be inferred from it."
)
WEIGHTS_LEFT = "Each site also sent its mixture weights."
WEIGHTS_STAYED = "Mixture weights stayed at the sites."
SCATTER_LEFT = "Each site also sent the scatter of its rows about its components."
RESIDUAL_LEFT = "Each site also sent the mean squared residual of its rows."


def summary_of(model: Any) -> Summary:
    """Centres, sites and account as tables; prints as text, shows as HTML."""
    d = getattr(model, "n_features_in_", 0)
    names = getattr(model, "feature_names_in_", [f"x{j}" for j in range(d)])
    centers: dict[str, Any] = {"group": np.arange(model.n_components)}
    if hasattr(model, "weights_"):
        centers["mean weight"] = model.weights_[model._heard].mean(axis=0)
    if model.between_variance_ is not None and np.isfinite(model.between_variance_).all():
        centers["spread between sites"] = np.sqrt(model.between_variance_)
    if model._centers is not None and model._centers.shape[1] > d:
        centers["intercept"] = model._centers[:, -1]
    if model._centers is not None:
        centers |= {str(name): model.centers_[:, j] for j, name in enumerate(names)}
    sites: dict[str, Any] = {"site": model.client_names_, "rows": model._site_rows}
    with np.errstate(invalid="ignore", divide="ignore"):
        sites["log likelihood per row"] = model._site_loglik / model._site_rows
    if np.isfinite(model.outlier_score_).any():
        sites["outlier score"] = model.outlier_score_
        sites["groups ambiguous"] = model.ambiguous_
    if hasattr(model, "weights_"):
        sites |= {f"weight {r}": model.weights_[:, r] for r in range(model.n_components)}
    tables = {
        "centers": Table(centers, "Population"),
        "sites": Table(sites, "Sites"),
        "traffic": model._traffic_table(),
    }
    kind = "regressions" if model.family == "regression" else "groups"
    title = (
        f"{type(model).__name__}: {len(model.client_names_)} sites, {model.n_components} {kind}, "
        f"log likelihood {np.nansum(model._site_loglik):.6g}"
    )
    return Summary(title, tables, _notes(model))


def _notes(model: Any) -> list[str]:
    notes = [model._travelled(), *model._account()]
    odd = model.client_names_[np.nan_to_num(model.outlier_score_) > ODD_SCORE]
    if len(odd):
        notes.append(f"Unlike the others (outlier score above {ODD_SCORE:g}): {sites_listed(odd)}.")
    if model.ambiguous_.any():
        named = sites_listed(model.client_names_[model.ambiguous_])
        notes.append(f"Groups could be matched otherwise at: {named}.")
    return notes


def account_of(model: Any) -> list[str]:
    """What left the sites, in words, from the fields that did."""
    left = model.traffic_.bytes_up_by_field
    notes = [COMPONENTS_LEFT] if "components" in left else []
    if "variances" in left:
        notes.append(VARIANCES_LEFT)
    elif "weights" not in left:
        notes.append(WEIGHTS_STAYED)
    notes += [WEIGHTS_LEFT] if "weights" in left else []
    notes += [SCATTER_LEFT] if "scatter" in left else []
    notes += [RESIDUAL_LEFT] if "residual" in left else []
    return notes


def sites_listed(names: np.ndarray) -> str:
    """Names of sites for a sentence."""
    return f"{len(names)} sites: {listed(names)}" if len(names) > 1 else f"site {listed(names)}"
