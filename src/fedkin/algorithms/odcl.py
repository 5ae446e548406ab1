"""ODCL: sites of a kind in one round (Armacki, Bajovic, Jakovetic, Kar 2024, Algorithm 1).

Every site fits its own model and sends it; the server clusters the models and averages clusters.

| paper | here |
|---|---|
| theta_i hat, f_i | `model` of a site, its loss (`models.local_loss`) |
| Xi, eta | `clustering`, `n_clusters` or `penalty` |
| C'_k, theta_k tilde | `labels`, `cluster_models` |
| I-ODCL, T (section 4.4) | `solver="sgd"`, `n_steps` |
| oracle averaging, naive averaging, local ERM | `labels` given; one cluster; every site its own |

Where we differ from the paper
- The number of clusters is chosen: the smallest that the sites' own sampling errors explain
  (chi-square, n - d degrees of freedom). That needs a covariance of every site with its model;
  where one is withheld (n <= d + 4 rows, or too many coefficients) the silhouette decides, with a
  gap test against one cluster.
- `aggregate`: the paper's mean; "size" and "precision" weigh sites by what they know (3 times less
  error with n from 30 to 600; without covariances "precision" is "size"); "median" bears wild
  sites; "statistics" pools X'X and X'y of the cluster, which is what training on its joint rows
  would give (half the error at n = 2.5 d).
- Fewer than twice as many rows as coefficients: models are useless as points (error .4 at
  n = d / 2), so with "statistics" sites are clustered by what a shared model predicts of them
  (error .005, that of known clusters).
- `robust`: sites far from every neighbour are set aside and named, and keep their own model.
- `refine_rounds`: sites choose the model that fits them best and clusters are averaged again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.algorithms.odcl_groups import Grouping
from fedkin.algorithms.odcl_sites import ASIDE, LEAST_FREEDOM, Sites, by_roster, group_sites
from fedkin.federation import Federation
from fedkin.models.descent import sgd
from fedkin.models.least_squares import upper_triangle
from fedkin.models.local_loss import LocalLoss, local_loss
from fedkin.protocol import (
    Algorithm,
    Ask,
    Field,
    Program,
    Result,
    Roster,
    Schema,
    Settings,
    Step,
)
from fedkin.ties import first_least

Floats = NDArray[np.float64]

DEFAULTS: dict[str, Any] = {
    "loss": "squared",
    "fit_intercept": True,
    "alpha": None,
    "solver": "exact",
    "n_steps": 1000,
    "batch_size": 1,
    "iterate": "last",
    "radius": None,
    "clustering": "kmeans",
    "n_clusters": None,
    "max_clusters": None,
    "penalty": "auto",
    "n_neighbors": None,
    "labels": None,
    "true_labels": None,
    "send": None,
    "aggregate": "mean",
    "space": "auto",
    "robust": False,
    "refine_rounds": 0,
    "fraction": 1.0,
}
CLIENT_SETTINGS = (
    "loss",
    "fit_intercept",
    "alpha",
    "solver",
    "n_steps",
    "batch_size",
    "iterate",
    "radius",
)

# A covariance of more coefficients than this is not sent: 160 kB a site.
MOST_COVARIANCES = 200

# ------------------------------------------------------------------ what leaves a client

MODEL = Field(("d",), "coefficients of the site's own fit, the intercept last")
ROWS = Field((), "number of rows")
COVARIANCE = Field(
    ("u",), "sampling covariance of that fit, upper triangle; zeros where the rows do not give one"
)
STATISTICS = Field(("q",), "sums over the site's rows of products of features and outcome, and n")
CHOICE = Field((), "which of the shared models fits the site's rows best", bound=1e9)

MESSAGES: Mapping[str, Schema] = {
    "model": {"model": MODEL},
    "model_and_rows": {"model": MODEL, "rows": ROWS},
    "model_and_covariance": {"model": MODEL, "rows": ROWS, "covariance": COVARIANCE},
    "statistics": {"statistics": STATISTICS},
}
MODELS = {"models": Field(("K", "d"), "the shared model of every cluster")}


# What a site may be asked to send, by a word for people, the smallest first.
SEND = {
    "model": "model",
    "rows": "model_and_rows",
    "covariance": "model_and_covariance",
    "statistics": "statistics",
}


def message_for(settings: Settings) -> str:
    """The message that is asked for, or the smallest that serves the other settings."""
    if settings["send"] is not None:
        return SEND[settings["send"]]
    if settings["aggregate"] == "statistics":
        return "statistics"
    chooses = settings["n_clusters"] is None and settings["labels"] is None
    chooses &= not (settings["clustering"] == "convex" and settings["penalty"] != "auto")
    if chooses or settings["aggregate"] == "precision":
        return "model_and_covariance"
    return "model_and_rows" if settings["aggregate"] == "size" else "model"


# ------------------------------------------------------------------ client functions


def prepare(clients: Federation, settings: Settings) -> LocalLoss:
    """The clients behind their loss."""
    return local_loss(clients, settings["loss"], settings["fit_intercept"], settings["alpha"])


def own_models(clients, local, settings, memory, keys):
    """Every client's fit (m, d): exact, or by stochastic steps; made once and remembered."""
    if memory is not None:
        return memory["model"]
    if settings["solver"] == "exact":
        return local.fit()
    how = {name: settings[name] for name in ("n_steps", "batch_size", "iterate", "radius")}
    return sgd(clients, local, settings["loss"], keys, **how)


def packed_covariances(local: LocalLoss, models: Floats) -> Floats:
    """Upper triangles (m, u) of the fits' covariances; (m, 0) where they would be too long."""
    d = models.shape[1]
    if d > MOST_COVARIANCES:
        return np.zeros((len(models), 0))
    covariances = local.covariances(models)
    covariances[local.sizes < d + LEAST_FREEDOM] = 0.0
    upper = upper_triangle(d)
    return covariances[:, upper[0], upper[1]]


def _sender(fields: Schema):
    """The client function that sends these fields."""

    def send(clients, cache, settings, common, personal, memory, keys):
        if "statistics" in fields:
            return {"statistics": cache.statistics.copy()}, memory
        models = own_models(clients, cache, settings, memory, keys)
        reply = {"model": models}
        if "rows" in fields:
            reply["rows"] = np.array(cache.sizes)
        if "covariance" in fields:
            reply["covariance"] = packed_covariances(cache, models)
        return reply, {"model": models}

    return send


def _choose(clients, cache, settings, common, personal, memory, keys):
    choice = first_least(cache.losses(common["models"]), axis=1)
    return {"choice": choice.astype(np.float64)}, memory


def _chooser(fields: Schema):
    """As `_sender`, with the choice in front: for rounds in which not everybody was heard yet."""
    send = _sender(fields)

    def choose_and_send(*arguments):
        first, _ = _choose(*arguments)
        reply, memory = send(*arguments)
        return {**first, **reply}, memory

    return choose_and_send


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: Settings) -> Program:
    """Collect the models, cluster them, average; refine if asked to."""
    rng = np.random.default_rng([roster.seed, 0x0DC1])
    known = {name: by_roster(settings[name], roster.names) for name in ("labels", "true_labels")}
    settings = {**settings, **known}
    message = message_for(settings)
    sites = Sites(len(roster), settings)
    sites.hear((yield Ask(message, note="sites fit their own models")))
    grouping, aside = group_sites(sites, settings, rng)
    labels = np.full(len(roster), ASIDE, dtype=np.intp)
    labels[sites.heard] = grouping.labels
    n_clusters = int(labels.max()) + 1 if (labels >= 0).any() else 0
    models = sites.average(labels, n_clusters)
    changes = []
    for _ in range(settings["refine_rounds"]):
        settled = (sites.heard | sites.implausible).all()
        step = "choose" if settled else f"choose_with_{message}"
        ask = Ask(step, {"models": models}, fraction=settings["fraction"], note="sites choose")
        replies = yield ask
        if step != "choose":
            sites.hear(replies)
        before = labels.copy()
        choice = replies["choice"]
        free = sites.heard[replies.clients] & ~aside[replies.clients]
        free &= np.isin(choice, np.arange(n_clusters))
        labels[replies.clients[free]] = choice[free].astype(np.intp)
        changes.append((labels != before).sum())
        again = sites.average(labels, n_clusters)
        models = np.where(np.isfinite(again), again, models)
    return _result(sites, labels, aside, models, grouping, np.array(changes, dtype=np.float64))


def _result(
    sites: Sites,
    labels: NDArray[np.intp],
    aside: NDArray[np.bool_],
    models: Floats,
    grouping: Grouping,
    changes: Floats,
) -> Result:
    own = np.where(sites.heard[:, None], sites.models, np.nan)
    member = labels >= 0
    personal = np.where(member[:, None], models[np.maximum(labels, 0)], own) if len(models) else own
    rows = sites.known.get("rows", np.full(sites.n_sites, np.nan))
    result = {
        "cluster_models": models,
        "models": personal,
        "local_models": own,
        "labels": labels,
        "heard": sites.heard,
        "aside": aside,
        "implausible": sites.implausible,
        "without_covariance": sites.without_covariance(),
        "site_rows": np.where(sites.heard, rows, np.nan),
        "history_changes": changes,
        **{name: np.asarray(array) for name, array in grouping.evidence.items()},
    }
    return {name: np.asarray(array) for name, array in result.items()}


ODCL = Algorithm(
    name="odcl",
    prepare=prepare,
    program=program,
    defaults=DEFAULTS,
    client_settings=CLIENT_SETTINGS,
    steps={
        **{name: Step(_sender(fields), fields) for name, fields in MESSAGES.items()},
        "choose": Step(_choose, {"choice": CHOICE}, MODELS),
        **{
            f"choose_with_{name}": Step(_chooser(fields), {"choice": CHOICE, **fields}, MODELS)
            for name, fields in MESSAGES.items()
        },
    },
)
