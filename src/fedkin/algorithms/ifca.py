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
- `scale`: steps are taken as if columns had mean zero and variance one over all rows, and starts
  are drawn in these units and the target's. With columns in other units one step length does for
  none of them: all sites choose one model, and nothing moves any more. Models travel in the
  columns' own units: a step goes along M M' g, g the gradient, M as in `_Units`.
- It stops when no model moves by `tol`, and asks everybody for a last choice. Models that creep
  (moves that hardly shrink, with far more to go than `CREEP` times `tol`) have not settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from fedkin.algorithms.aggregate import members
from fedkin.algorithms.clustered_result import NO_CLUSTER, ClusteredResult
from fedkin.algorithms.odcl import CHOICE, MODELS, ROWS, prepare
from fedkin.algorithms.odcl_settings import LOSSES, STRENGTH
from fedkin.arrays import Array, Floats
from fedkin.models.descent import drawn_gradients, times_drawn
from fedkin.models.local_loss import MOST_EIGENVALUES
from fedkin.models.misfit import of_classes
from fedkin.protocol import (
    MISFIT,
    Algorithm,
    Ask,
    Field,
    Program,
    Replies,
    Roster,
    Step,
    TracedReply,
    over_roster,
)
from fedkin.protocol.runs import About
from fedkin.settings import FRACTION, Flag, Number, Settings, Start, Whole, one_of, setting
from fedkin.ties import first_least

# Coefficients of this size come from steps that overshoot, not from data.
DIVERGED = 1e15
# How many times `tol` may be left to go, if moves go on to shrink as they do.
CREEP = 1e3
# Moves that are no more than rounding of the models.
ROUNDING = 1e-14
# A column whose variance is below this share of its mean square does not vary.
CONSTANT = 1e-10


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
    alpha: float | str | None = setting(None, STRENGTH, at_site=True)
    fit_intercept: bool = setting(True, Flag(), at_site=True)
    scale: bool = setting(True, Flag())


@dataclass(frozen=True, kw_only=True, eq=False)
class IfcaResult(ClusteredResult):
    """Clusters that sites chose; `site_loss` (m,) is the mean loss of each under its choice."""

    site_loss: Floats

    def account(self, about: About) -> list[str]:
        """What left the sites."""
        sent = "its gradient" if about.settings.averaging == "gradient" else "its model"
        account = [f"In every round each site sent {sent} and which shared model it chose."]
        if about.settings.scale:
            account.append("Before, each site sent sums and sums of squares of its columns.")
        return account

    def remarks(self, about: About) -> list[str]:
        """Also models that nobody chose."""
        remarks = super().remarks(about)
        if self.n_unchosen:
            remarks.append(f"{self.n_unchosen} of {self.n_clusters} models were chosen by no site.")
        return remarks

    @property
    def n_unchosen(self) -> int:
        """How many models no site has chosen."""
        return int((self.counts == 0).sum())


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
TOTALS = Field(("f",), "sums of the site's columns and of its target")
SQUARES = Field(("f",), "sums of squares of the site's columns and of its target")
UNITS = {
    "center": Field(("p",), "means of the columns over all sites"),
    "unit": Field(("p",), "standard deviations of the columns over all sites"),
}

# ------------------------------------------------------------------ units of the columns


class _Units(NamedTuple):
    """Columns less `center`, divided by `unit` (p,), are alike; M takes models there to models.

    M g = (g_j / unit_j, g_0 - sum_j center_j g_j / unit_j), the intercept last; without one there
    is no centre.
    """

    center: Floats
    unit: Floats
    fit_intercept: bool

    def outward(self, models: Floats) -> Floats:
        """M times models (..., d): coefficients in the columns' own units."""
        if not self.fit_intercept:
            return models / self.unit
        coef = models[..., :-1] / self.unit
        level = models[..., -1:] - (coef * self.center).sum(axis=-1, keepdims=True)
        return np.concatenate([coef, level], axis=-1)

    def inward(self, models: Floats) -> Floats:
        """The inverse of `outward`."""
        if not self.fit_intercept:
            return models * self.unit
        coef = models[..., :-1]
        level = models[..., -1:] + (coef * self.center).sum(axis=-1, keepdims=True)
        return np.concatenate([coef * self.unit, level], axis=-1)

    def along(self, gradients: Floats) -> Floats:
        """M M' times gradients (..., d): the step that a gradient asks for in these units."""
        if not self.fit_intercept:
            return gradients / self.unit**2
        level = gradients[..., -1:]
        turned = (gradients[..., :-1] - self.center * level) / self.unit
        return self.outward(np.concatenate([turned, level], axis=-1))

    def matrix(self) -> Floats:
        """M itself, (d, d)."""
        return self.outward(np.eye(len(self.unit) + self.fit_intercept)).T


# ------------------------------------------------------------------ client functions


def _describe(clients, cache, settings, common, personal, memory, keys, fields=()):
    rows = np.array(cache.sizes)
    reply = {"features": np.full(len(rows), float(cache.n_coefficients)), "rows": rows}
    if "steepness" in fields:
        reply["steepness"] = cache.steepness()
    if "totals" in fields:
        columns = np.column_stack([clients.X, clients.y])
        reply["totals"], reply["squares"] = (_sums(clients, part) for part in (columns, columns**2))
    return reply, memory


def _sums(clients, columns):
    """Sums of columns (N, f) over every client's rows, (m, f)."""
    out = np.zeros((len(clients), columns.shape[1]))
    np.add.at(out, clients.owner, columns)
    return out


def _steepness(clients, cache, settings, common, personal, memory, keys):
    """Largest second derivative in units in which the columns are alike."""
    units = _Units(common["center"], common["unit"], settings.fit_intercept)
    if cache.n_coefficients > MOST_EIGENVALUES:
        lengths = (((clients.X - units.center) / units.unit) ** 2).sum(axis=1)
        mean = _sums(clients, lengths[:, None])[:, 0] / np.maximum(cache.sizes, 1.0)
        strongest = (cache.penalties[..., : len(units.unit)] / units.unit**2).max(axis=-1)
        return {"steepness": cache.steepest_row * (mean + 1.0) + strongest}, memory
    factor = units.matrix()
    scaled = factor.T @ cache.curvatures() @ factor
    return {"steepness": np.linalg.eigvalsh(scaled)[:, -1]}, memory


def _update(clients, cache, settings, common, personal, memory, keys):
    """Choose the best model and say how to move it."""
    units = None
    if "unit" in common:
        units = _Units(common["center"], common["unit"], settings.fit_intercept)
    models = common["models"]
    choice = first_least(cache.losses(models), axis=1)
    behind = partial(_rows_of_update, clients, settings, models[choice], keys)
    update = models[choice]
    if settings.averaging == "gradient":
        update = _gradient(clients, cache, settings, update, keys, 0)
    else:
        for t in range(settings.local_steps):
            gradient = _gradient(clients, cache, settings, update, keys, t)
            update -= common["step"] * (gradient if units is None else units.along(gradient))
    reply = {"update": update, "choice": choice.astype(np.float64)}
    if settings.loss == "logistic" or settings.batch_size is not None:
        reply = TracedReply(reply, behind)
    return reply, memory


def _rows_of_update(clients, settings, models, keys):
    """How much every row counts in an update: as often as it is drawn, and as it is not fitted."""
    counts, behind = np.ones(len(clients.X)), {}
    if settings.batch_size is not None:
        n_steps = 1 if settings.averaging == "gradient" else settings.local_steps
        lots = (keys.fold(t).uniform(settings.batch_size) for t in range(n_steps))
        counts = times_drawn(clients, lots, slice(None))
    if settings.loss == "logistic":
        own = models[clients.owner]
        score = (clients.X * own[:, : clients.n_features]).sum(axis=1)
        score += own[:, -1] if settings.fit_intercept else 0.0
        hits = np.stack([clients.y <= 0, clients.y > 0], axis=1).astype(np.float64)
        counts = counts * np.abs(hits[:, 1] - expit(score))
        scores = np.stack([np.zeros_like(score), score], axis=1)
        behind = {MISFIT: of_classes(scores, hits, clients.owner)}
    return {"update": counts, **behind}


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
    fields = ("totals", "squares") if settings.scale else ("steepness",)
    replies = yield Ask("describe", fields=fields, note="sizes")
    rows = over_roster(replies["rows"], replies.clients, len(roster))
    n_coefficients = int(np.median(replies["features"]))
    scaling = _scaling(replies, settings) if settings.scale else None
    step, question, units = settings.step_size, "update", {}
    if scaling is not None:
        question = "scaled_update"
        units = {"center": scaling.units.center, "unit": scaling.units.unit}
        if step is None:
            replies = yield Ask("steepness", units, note="length of a step")
    if step is None:
        step = 1.0 / max(float(replies["steepness"].max()), 1e-300)
    models = _start(n_coefficients, settings, roster.seed, scaling)
    history, converged = [], False
    last: Floats | None = None
    for _ in range(settings.max_rounds):
        common = {"models": models, "step": np.array(step), **units}
        replies = yield Ask(question, common, fraction=settings.fraction, note="IFCA")
        new = _moved(models, replies, step, settings, scaling)
        before, after = (x if scaling is None else scaling.inward(x) for x in (models, new))
        change, largest = float(np.abs(after - before).max()), float(np.abs(after).max())
        history.append(change)
        models = new
        if not largest <= DIVERGED:
            raise ValueError(
                f"IFCA diverges: coefficients reached {largest:.0e} with step_size={step:.3g}; use "
                "a smaller one, or None"
            )
        moved = after - before
        converged = _settled(moved, last, settings.tol * (1.0 + largest))
        last = moved
        if converged:
            break
    replies = yield Ask("choose", {"models": models}, note="sites choose for the last time")
    choice = np.where(np.isin(replies["choice"], np.arange(len(models))), replies["choice"], -1)
    labels = over_roster(choice.astype(np.intp), replies.clients, len(roster), NO_CLUSTER)
    heard = labels >= 0
    losses = over_roster(replies["loss"], replies.clients, len(roster))
    noise = _noise(losses, rows, labels, models.shape) if settings.loss == "squared" else None
    return IfcaResult(
        cluster_models=models,
        models=np.where(heard[:, None], models[np.maximum(labels, 0)], np.nan),
        labels=labels,
        heard=heard,
        site_rows=rows,
        site_loss=losses,
        cluster_noise=None if noise is None else noise[0],
        noise_degrees=None if noise is None else noise[1],
        converged=np.bool_(converged),
        history_changes=np.array(history),
    )


def _noise(
    losses: Floats, rows: Floats, labels: Array, shape: tuple[int, ...]
) -> tuple[Floats, Floats]:
    """Noise variances around the clusters' models with degrees of freedom, (K,) each.

    A loss is half a mean square. A model that nobody chose has the noise of all.
    """
    K, d = shape
    used = np.flatnonzero((labels >= 0) & np.isfinite(losses) & np.isfinite(rows))
    squares = np.bincount(labels[used], 2.0 * losses[used] * rows[used], minlength=K)
    spare = np.maximum(np.bincount(labels[used], rows[used], minlength=K) - d, 1.0)
    of_all = float(squares.sum()) / max(float(rows[used].sum()) - d, 1.0)
    return np.where(squares > 0, squares / spare, of_all), spare


def _settled(moved: Floats, last: Floats | None, tol: float) -> bool:
    """Whether models hardly move, and not because steps are too short to get anywhere.

    `moved` (K, d) since the last round, and in the `last` one. If moves go on to shrink as they do,
    `CREEP` times `tol` are left at most, in all and of each coefficient: one whose column is in
    other units may creep while the others come to rest.
    """
    change = float(np.abs(moved).max())
    if change == 0.0 or change > tol or last is None:
        return change == 0.0
    before = float(np.abs(last).max())
    left = change / (1.0 - change / before) if change < before else change
    # A drift: on and on in one direction by as much. With |1 - ratio| as small as this, too much
    # is left.
    drifts = (np.abs(last - moved) * CREEP * tol < moved * last) & (np.abs(moved) > ROUNDING)
    return bool(left <= CREEP * tol and not drifts.any())


class _Scaling(NamedTuple):
    """Units of the columns, and mean and spread of the target."""

    units: _Units
    level: float
    spread: float

    def inward(self, models: Floats) -> Floats:
        """Models (..., d) as they would be if columns and target were standardised."""
        inside = self.units.inward(models)
        if self.units.fit_intercept:
            inside[..., -1] -= self.level
        return inside / self.spread

    def outward(self, models: Floats) -> Floats:
        """The inverse of `inward`."""
        inside = models * self.spread
        if self.units.fit_intercept:
            inside[..., -1] += self.level
        return self.units.outward(inside)


def _scaling(replies: Replies, settings: IfcaSettings) -> _Scaling:
    """Means and standard deviations over all rows of all sites."""
    n_rows = max(float(replies["rows"].sum()), 1.0)
    mean, square = (replies[name].sum(axis=0) / n_rows for name in ("totals", "squares"))
    if not settings.fit_intercept:
        mean = np.zeros_like(mean)
    variance = square - mean**2
    variance = np.where(variance > CONSTANT * square, variance, square)
    spread = np.sqrt(np.where(variance > 0, variance, 1.0))
    units = _Units(mean[:-1], spread[:-1], settings.fit_intercept)
    if settings.loss == "logistic":
        return _Scaling(units, 0.0, 1.0)
    return _Scaling(units, float(mean[-1]), float(spread[-1]))


def _start(
    n_coefficients: int, settings: IfcaSettings, seed: int, scaling: _Scaling | None
) -> Floats:
    shape = (settings.n_clusters, n_coefficients)
    if isinstance(settings.init, str):
        rng = np.random.default_rng([seed, 0x1FCA])
        drawn = settings.init_scale * rng.normal(size=shape)
        return drawn if scaling is None else scaling.outward(drawn)
    given: Floats = settings.init
    if settings.fit_intercept and given.shape[1:] == (n_coefficients - 1,):
        given = np.concatenate([given, np.zeros((len(given), 1))], axis=1)
    if given.shape != shape:
        raise ValueError(f"init has shape {given.shape}; expected {shape}, the intercept last")
    return given


def _moved(
    models: Floats,
    replies: Replies,
    step: float,
    settings: IfcaSettings,
    scaling: _Scaling | None,
) -> Floats:
    """The models after one round; a model nobody chose stays."""
    share = members(replies["choice"].astype(np.intp), len(models))
    count = share.sum(axis=1, keepdims=True)
    total = share @ replies["update"]
    if settings.averaging == "gradient":
        all_of_them = settings.divide_by == "all"
        divisor = len(replies.clients) if all_of_them else np.maximum(count, 1.0)
        along = total if scaling is None else scaling.units.along(total)
        return models - step * along / divisor
    return np.where(count > 0, total / np.maximum(count, 1.0), models)


IFCA = Algorithm(
    name="ifca",
    settings=IfcaSettings,
    prepare=prepare,
    program=program,
    result=IfcaResult,
    steps={
        "describe": Step(
            _describe,
            {"features": FEATURES, "rows": ROWS},
            optional={"steepness": STEEPNESS, "totals": TOTALS, "squares": SQUARES},
        ),
        "steepness": Step(_steepness, {"steepness": STEEPNESS}, UNITS),
        "update": Step(_update, {"update": UPDATE, "choice": CHOICE}, {**MODELS, "step": STEP}),
        "scaled_update": Step(
            _update,
            {"update": UPDATE, "choice": CHOICE},
            {**MODELS, "step": STEP, **UNITS},
        ),
        "choose": Step(_choose, {"choice": CHOICE, "loss": LOSS}, MODELS, most=1),
    },
)
