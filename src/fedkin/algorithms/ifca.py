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

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.algorithms.aggregate import members
from fedkin.algorithms.clustered_result import NO_CLUSTER, ClusteredResult
from fedkin.algorithms.odcl import CHOICE, MODELS, ROWS, prepare
from fedkin.algorithms.odcl_settings import LOSSES, STRENGTH
from fedkin.arrays import Floats
from fedkin.models.descent import drawn_gradients
from fedkin.protocol import Algorithm, Ask, Field, Program, Replies, Roster, Step, over_roster
from fedkin.protocol.runs import About
from fedkin.settings import FRACTION, Flag, Number, Settings, Start, Whole, one_of, setting
from fedkin.ties import first_least

# Coefficients of this size come from steps that overshoot, not from data.
DIVERGED = 1e15


class IfcaSettings(Settings):
    """What can be set; `fedkin.IFCA` says what each does."""

    n_clusters: int = setting(2, Whole())
    loss: str = setting("squared", LOSSES, at_site=True)
    init: Any = setting("random", Start(("random",), least_axes=2))
    init_scale: float = setting(1.0, Number(least=0.0))
    averaging: str = setting("model", one_of("model", "gradient"), at_site=True)
    divide_by: str = setting("cluster", one_of("cluster", "all"))
    step_size: float | None = setting(None, Number(above=0.0, or_none=True))
    local_steps: int = setting(10, Whole(), at_site=True)
    batch_size: int | None = setting(None, Whole(or_none=True), at_site=True)
    max_rounds: int = setting(200, Whole())
    tol: float = setting(1e-6, Number(least=0.0))
    fraction: float = setting(1.0, FRACTION)
    alpha: float | None = setting(None, STRENGTH, at_site=True)
    fit_intercept: bool = setting(True, Flag(), at_site=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class IfcaResult(ClusteredResult):
    """Clusters that sites chose; `site_loss` (m,) is the mean loss of each under its choice."""

    site_loss: Floats

    def account(self, about: About) -> list[str]:
        """What left the sites."""
        sent = "its gradient" if about.settings.averaging == "gradient" else "its model"
        return [f"In every round each site sent {sent} and which shared model it chose."]


# ------------------------------------------------------------------ what leaves a client

UPDATE = Field(
    ("d",),
    "the chosen model after the site's steps, or its gradient at that model",
    reveals="model",
)
LOSS = Field((), "mean loss of the site's rows under the model it chose")
FEATURES = Field((), "number of coefficients of a model", least=0.0, reveals="nothing")
STEEPNESS = Field((), "largest second derivative of the site's loss")
STEP = Field((), "length of a gradient step")

# ------------------------------------------------------------------ client functions


def _describe(clients, cache, settings, common, personal, memory, keys):
    rows = np.array(cache.sizes)
    reply = {"features": np.full(len(rows), float(cache.n_coefficients)), "rows": rows}
    return {**reply, "steepness": cache.steepness()}, memory


def _update(clients, cache, settings, common, personal, memory, keys):
    """Choose the best model and say how to move it."""
    models = common["models"]
    choice = first_least(cache.losses(models), axis=1)
    update = models[choice]
    if settings.averaging == "gradient":
        update = _gradient(clients, cache, settings, update, keys, 0)
    else:
        for t in range(settings.local_steps):
            update -= common["step"] * _gradient(clients, cache, settings, update, keys, t)
    return {"update": update, "choice": choice.astype(np.float64)}, memory


def _gradient(clients, cache, settings, models, keys, stream):
    """Gradient of every client's loss at its model, over all rows or over a few drawn ones."""
    if settings.batch_size is None:
        return cache.gradients(models)
    lot = keys.fold(stream).uniform(settings.batch_size)
    return drawn_gradients(clients, cache, models, lot, slice(None))


def _choose(clients, cache, settings, common, personal, memory, keys):
    losses = cache.losses(common["models"])
    choice = first_least(losses, axis=1)
    return {"choice": choice.astype(np.float64), "loss": losses.min(axis=1)}, memory


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: IfcaSettings) -> Program:
    """Send the models, let sites choose and answer, move every model; until none moves."""
    replies = yield Ask("describe", note="sizes")
    rows = over_roster(replies["rows"], replies.clients, len(roster))
    step = settings.step_size or 1.0 / max(float(replies["steepness"].max()), 1e-300)
    models = _start(int(np.median(replies["features"])), settings, roster.seed)
    history, converged = [], False
    for _ in range(settings.max_rounds):
        common = {"models": models, "step": np.array(step)}
        replies = yield Ask("update", common, fraction=settings.fraction, note="IFCA")
        new = _moved(models, replies, step, settings)
        change, largest = float(np.abs(new - models).max()), float(np.abs(new).max())
        history.append(change)
        models = new
        if not largest <= DIVERGED:
            raise ValueError(
                f"IFCA diverges: coefficients reached {largest:.0e} with step_size={step:.3g}; use "
                "a smaller one, or None"
            )
        converged = change <= settings.tol * (1.0 + largest)
        if converged:
            break
    replies = yield Ask("choose", {"models": models}, note="sites choose for the last time")
    choice = np.where(np.isin(replies["choice"], np.arange(len(models))), replies["choice"], -1)
    labels = over_roster(choice.astype(np.intp), replies.clients, len(roster), NO_CLUSTER)
    heard = labels >= 0
    return IfcaResult(
        cluster_models=models,
        models=np.where(heard[:, None], models[np.maximum(labels, 0)], np.nan),
        labels=labels,
        heard=heard,
        site_rows=rows,
        site_loss=over_roster(replies["loss"], replies.clients, len(roster)),
        converged=np.bool_(converged),
        history_changes=np.array(history),
    )


def _start(n_coefficients: int, settings: IfcaSettings, seed: int) -> Floats:
    shape = (settings.n_clusters, n_coefficients)
    if isinstance(settings.init, str):
        rng = np.random.default_rng([seed, 0x1FCA])
        return settings.init_scale * rng.normal(size=shape)
    given: Floats = settings.init
    if settings.fit_intercept and given.shape[1:] == (n_coefficients - 1,):
        given = np.concatenate([given, np.zeros((len(given), 1))], axis=1)
    if given.shape != shape:
        raise ValueError(f"init has shape {given.shape}; expected {shape}, the intercept last")
    return given


def _moved(models: Floats, replies: Replies, step: float, settings: IfcaSettings) -> Floats:
    """The models after one round; a model nobody chose stays."""
    share = members(replies["choice"].astype(np.intp), len(models))
    count = share.sum(axis=1, keepdims=True)
    total = share @ replies["update"]
    if settings.averaging == "gradient":
        all_of_them = settings.divide_by == "all"
        divisor = len(replies.clients) if all_of_them else np.maximum(count, 1.0)
        return models - step * total / divisor
    return np.where(count > 0, total / np.maximum(count, 1.0), models)


IFCA = Algorithm(
    name="ifca",
    settings=IfcaSettings,
    prepare=prepare,
    program=program,
    result=IfcaResult,
    steps={
        "describe": Step(_describe, {"features": FEATURES, "rows": ROWS, "steepness": STEEPNESS}),
        "update": Step(_update, {"update": UPDATE, "choice": CHOICE}, {**MODELS, "step": STEP}),
        "choose": Step(_choose, {"choice": CHOICE, "loss": LOSS}, MODELS),
    },
)
