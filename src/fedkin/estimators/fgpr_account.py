"""The account of a fitted FGPR: its tables, and what left the sites in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.tables import Summary, Table

# The standard deviation of fewer rows is off by a quarter and more.
FEW_ROWS = 10
ACCOUNT = {
    "exact": "In every round each site sent value and gradient of its log likelihood.",
    "sgd": "In every round each site sent the hyper-parameters its own steps led to.",
    "adam-restarted": "In every round each site sent the hyper-parameters its steps led to.",
    "none": "No hyper-parameters were exchanged.",
}


def summary_of(model: Any) -> Summary:
    """Priors, sites and account as tables; prints as text, shows as HTML."""
    sites: dict[str, Any] = {"site": model.client_names_, "rows": model._site_rows}
    if hasattr(model, "labels_"):
        sites["prior"] = model.labels_
    sites["own"] = model.own_
    with np.errstate(invalid="ignore", divide="ignore"):
        sites["log likelihood per row"] = model._site_loglik / model._site_rows
    if hasattr(model, "jitter_"):
        sites["jitter"] = model.jitter_
    tables = {
        "priors": prior_table(model),
        "sites": Table(sites, "Sites"),
        "choice": model.choice_,
        "traffic": model._traffic_table(),
    }
    title = (
        f"{type(model).__name__}: {len(model.client_names_)} sites, {model.n_priors_} priors, "
        f"log likelihood {model.log_marginal_likelihood_:.6g}"
    )
    return Summary(title, tables, _notes(model))


def prior_table(model: Any) -> Table:
    """Hyper-parameters of every prior."""
    priors = {"prior": np.arange(model.n_priors_), "weight": model.weights_}
    for j, name in enumerate(_parameter_names(model._form.names)):
        priors[name] = np.exp(model.theta_[:, j])
    return Table(priors, "Shared hyper-parameters")


def _notes(model: Any) -> list[str]:
    optimizer = model._settings()["optimizer"]
    notes = [model._travelled(), ACCOUNT[optimizer]]
    if model.own_.any():
        open_ = "" if optimizer == "none" else ", averaged over what their rows leave open"
        notes.append(
            f"{int(model.own_.sum())} of {len(model.own_)} sites predict with hyper-parameters "
            f"of their own, which did not leave them{open_}."
        )
    large = model._site_rows > model.max_points
    if large.any():
        how = "the nearest rows" if model.large_sites == "neighbours" else "a random subset"
        notes.append(
            f"{int(large.sum())} sites have more than max_points={model.max_points} rows: "
            f"trained on random pieces of that size, predicted from {how}."
        )
    few = int(((model._site_rows > 0) & (model._site_rows < FEW_ROWS)).sum())
    if few and model.normalize_y is True:
        notes.append(
            f"{few} sites have fewer than {FEW_ROWS} rows and are standardised by their own "
            "spread, which they hardly know: their bands are too narrow. If sites are in the "
            "same units, normalize_y='mean' shares the scale."
        )
    if hasattr(model, "jitter_") and (model.jitter_ > 0).any():
        notes.append(f"Jitter was needed at {int((model.jitter_ > 0).sum())} sites.")
    return notes


def _parameter_names(names: tuple[str, ...]) -> list[str]:
    """Names of the free parameters, numbered where they repeat."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        made.append(name if names.count(name) == 1 else f"{name} {seen[name]}")
    return made
