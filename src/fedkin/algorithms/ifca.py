"""IFCA: sites choose among K shared models, the server moves each (Ghosh, Chung, Yin, Ramchandran
2020); the rival of ODCL in Armacki et al. 2024.

Each round the server sends all models; a site takes the one with the least local loss and answers
with a gradient (`averaging="gradient"`) or with the model after `local_steps` steps of its own
(`averaging="model"`).

| Armacki et al. | here |
|---|---|
| step-size, tau, T | `step_size`, `local_steps`, `max_rounds` |
| IFCA-1, IFCA-2, IFCA-R | `init` as an array (cluster oracle plus noise), or "random" |

Where we differ from the paper
- "Gradient averaging with 10 local steps" contradicts itself: both options are here. Gradients are
  averaged over the sites of the cluster; `divide_by="all"` divides by all sites that answered.
- Full local gradients unless `batch_size` says how many rows to draw a step; the paper is silent.
- The squared loss has its factor 1/2; without it, double `step_size`.
- `step_size=None` is one over the steepest site's curvature, with which no site can overshoot.
- It stops when no model moves by `tol`, and asks everybody for a last choice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.algorithms.odcl import CHOICE, MODELS, prepare
from fedkin.algorithms.odcl_averages import members
from fedkin.models.local_loss import row_gradients, signed
from fedkin.protocol import Algorithm, Ask, Field, Program, Roster, Settings, Step
from fedkin.ties import first_least

Floats = NDArray[np.float64]

DEFAULTS: dict[str, Any] = {
    "loss": "squared",
    "fit_intercept": True,
    "alpha": None,
    "n_clusters": 2,
    "init": "random",
    "init_scale": 1.0,
    "averaging": "model",
    "divide_by": "cluster",
    "step_size": None,
    "local_steps": 10,
    "batch_size": None,
    "max_rounds": 200,
    "tol": 1e-6,
    "fraction": 1.0,
}

# Coefficients of this size come from steps that overshoot, not from data.
DIVERGED = 1e15

# ------------------------------------------------------------------ what leaves a client

UPDATE = Field(("d",), "the chosen model after the site's steps, or its gradient at that model")
LOSS = Field((), "mean loss of the site's rows under the model it chose")
FEATURES = Field((), "number of coefficients of a model")
STEEPNESS = Field((), "largest second derivative of the site's loss")
STEP = Field((), "length of a gradient step")
ROWS = Field((), "number of rows")

# ------------------------------------------------------------------ client functions


def _describe(clients, cache, settings, common, personal, memory, keys):
    rows = np.array(cache.sizes)
    reply = {"features": np.full(len(rows), float(cache.n_coefficients)), "rows": rows}
    return {**reply, "steepness": cache.steepness()}, memory


def _update(clients, cache, settings, common, personal, memory, keys):
    """Choose the best model and say how to move it."""
    models = common["models"]
    choice = first_least(cache.losses(models), axis=1)
    start = models[choice]
    if settings["averaging"] == "gradient":
        update = _gradient(clients, cache, settings, start, keys, 0)
    else:
        update = start.copy()
        for t in range(settings["local_steps"]):
            update -= common["step"] * _gradient(clients, cache, settings, update, keys, t)
    return {"update": update, "choice": choice.astype(np.float64)}, memory


def _gradient(clients, cache, settings, models, keys, stream):
    """Gradient of every client's loss at its model, over all rows or over a few drawn ones."""
    if settings["batch_size"] is None:
        return cache.gradients(models)
    lot = keys.fold(stream).uniform(settings["batch_size"])
    drawn = clients.offsets[:-1, None] + (lot * clients.sizes[:, None]).astype(np.intp)
    drawn = np.minimum(drawn, len(clients.X) - 1)  # a client without rows; its reply is refused
    y = signed(settings["loss"], clients.y)
    return row_gradients(
        settings["loss"], clients.X[drawn], y[drawn], models, cache.fit_intercept, cache.alpha
    )


def _choose(clients, cache, settings, common, personal, memory, keys):
    losses = cache.losses(common["models"])
    choice = first_least(losses, axis=1)
    return {"choice": choice.astype(np.float64), "loss": losses.min(axis=1)}, memory


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: Settings) -> Program:
    """Send the models, let sites choose and answer, move every model; until none moves."""
    replies = yield Ask("describe", note="sizes")
    rows = np.full(len(roster), np.nan)
    rows[replies.clients] = replies["rows"]
    step = settings["step_size"] or 1.0 / max(float(replies["steepness"].max()), 1e-300)
    models = _start(int(np.median(replies["features"])), settings, roster.seed)
    history, converged = [], False
    for _ in range(settings["max_rounds"]):
        common = {"models": models, "step": np.array(step)}
        replies = yield Ask("update", common, fraction=settings["fraction"], note="IFCA")
        new = _moved(models, replies["update"], replies["choice"], step, settings)
        change = float(np.abs(new - models).max())
        history.append(change)
        models = new
        largest = float(np.abs(models).max())
        if not largest <= DIVERGED:
            raise ValueError(
                f"IFCA diverges: coefficients reached {largest:.0e} with step_size={step:.3g}; use "
                "a smaller one, or None"
            )
        converged = change <= settings["tol"] * (1.0 + largest)
        if converged:
            break
    replies = yield Ask("choose", {"models": models}, note="sites choose for the last time")
    labels = np.full(len(roster), -1)
    known = np.isin(replies["choice"], np.arange(len(models)))
    labels[replies.clients[known]] = replies["choice"][known].astype(np.intp)
    losses = np.full(len(roster), np.nan)
    losses[replies.clients] = replies["loss"]
    heard = labels >= 0
    return {
        "cluster_models": models,
        "models": np.where(heard[:, None], models[np.maximum(labels, 0)], np.nan),
        "labels": labels,
        "heard": heard,
        "aside": np.zeros(len(roster), dtype=bool),
        "site_rows": rows,
        "site_loss": losses,
        "converged": np.array(converged),
        "history_changes": np.array(history),
    }


def _start(n_coefficients: int, settings: Settings, seed: int) -> Floats:
    shape = (settings["n_clusters"], n_coefficients)
    if isinstance(settings["init"], str):
        rng = np.random.default_rng([seed, 0x1FCA])
        return settings["init_scale"] * rng.normal(size=shape)
    given = np.array(settings["init"], dtype=np.float64)
    if given.shape != shape:
        raise ValueError(f"init has shape {given.shape}; expected {shape}, the intercept last")
    return given


def _moved(
    models: Floats, updates: Floats, choice: Floats, step: float, settings: Settings
) -> Floats:
    """The models after one round; a model nobody chose stays."""
    share = members(choice.astype(np.intp), len(models))
    count = share.sum(axis=1, keepdims=True)
    total = share @ updates
    if settings["averaging"] == "gradient":
        divisor = len(choice) if settings["divide_by"] == "all" else np.maximum(count, 1.0)
        return models - step * total / divisor
    return np.where(count > 0, total / np.maximum(count, 1.0), models)


IFCA = Algorithm(
    name="ifca",
    prepare=prepare,
    program=program,
    defaults=DEFAULTS,
    client_settings=(
        "loss",
        "fit_intercept",
        "alpha",
        "averaging",
        "local_steps",
        "batch_size",
    ),
    steps={
        "describe": Step(_describe, {"features": FEATURES, "rows": ROWS, "steepness": STEEPNESS}),
        "update": Step(_update, {"update": UPDATE, "choice": CHOICE}, {**MODELS, "step": STEP}),
        "choose": Step(_choose, {"choice": CHOICE, "loss": LOSS}, MODELS),
    },
)
