"""What the methods for hidden classes inside every site share: the site's half.

Two families, one face. A site has `weights` (R), `components` (R, p: means or coefficients) and a
`scale` of its own (nothing for identity covariance; variance, variances or noise) or one covariance
common to all ("tied"). Weights and scale are the site's memory; components come from the server
each round and go back improved.

Step names say what else leaves: "improve+variances" sends the sampling variances, and nothing that
is not in its name. The methods pick the ones they need.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.algorithms.mixture_family import Family
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import regression_mixture as regression
from fedkin.protocol import Arrays, Field, Memory, Schema, Step

Floats = NDArray[np.float64]

DEFAULTS: dict[str, Any] = {
    "n_components": 2,
    "family": "gaussian",
    "covariance_type": "identity",
    "sigma": None,
    "shared_noise": False,
    "fit_intercept": False,
    "init": "local",
    "local_start": "kmeans++",
    "n_restarts": 10,
    "step": "em",
    "step_constant": 0.95,
    "local_steps": 1,
    "batch_size": None,
    "clip": None,
    "threshold": None,
    "fraction": 1.0,
    "max_rounds": 200,
    "tol": 1e-4,
    "local_max_iter": 200,
}
CLIENT_SETTINGS = (
    "n_components",
    "family",
    "covariance_type",
    "sigma",
    "shared_noise",
    "fit_intercept",
    "local_start",
    "n_restarts",
    "step",
    "step_constant",
    "local_steps",
    "batch_size",
    "clip",
    "threshold",
    "local_max_iter",
)

# ------------------------------------------------------------------ what may leave a client

ROWS = Field((), "number of rows")
COMPONENTS = Field(("R", "p"), "the site's means or coefficients")
VARIANCES = Field(("R",), "sampling variance of each component; the site's group sizes follow")
WEIGHTS = Field(("R",), "the site's mixture weights", bound=1.0)
SCATTER = Field(("d", "d"), "squares and products of the rows about their component's mean")
LOGLIK = Field((), "log likelihood of the site's rows")
HALVINGS = Field((), "how often the gradient step had to be halved so far")
SUMS = Field(("R", "q"), "rows (or their products), weighted by responsibility and added up")

RESIDUAL = Field((), "mean squared residual of the site's rows")

OPTIONAL = {
    "variances": VARIANCES,
    "weights": WEIGHTS,
    "scatter": SCATTER,
    "residual": RESIDUAL,
}

ORDER = Field(("R",), "which of the site's components is the r-th", dtype="int64", bound=1e6)
COVARIANCE = Field(("e", "e"), "covariance common to all sites; empty if there is none")


def names_of(step: str, wanted: dict[str, bool]) -> str:
    """The step's name with what shall leave besides."""
    return "+".join([step, *(name for name in OPTIONAL if wanted.get(name))])


def variants(function: Callable[..., Any], step: str, reply: Schema, **schemas: Any) -> dict:
    """The step with every choice of what else leaves."""
    made = {}
    for size in range(len(OPTIONAL) + 1):
        for extra in combinations(OPTIONAL, size):
            fields = {**reply, **{name: OPTIONAL[name] for name in extra}}
            name = names_of(step, dict.fromkeys(extra, True))
            made[name] = Step(partial(function, tuple(fields)), fields, **schemas)
    return made


def prepare(clients, settings):
    """Rows in blocks for batched products."""
    return Family(settings).prepare(clients)


# ------------------------------------------------------------------ client functions

# A variance that stands for "this site knows nothing of this component": infinity may not travel.
UNKNOWN_VARIANCE = 1e90
# Passes in which a site that gets components from outside finds its weights and scale to them: the
# spread of all its rows, where the scale begins, would blur the groups it was sent.
FIRST_PASSES = 30
# A gradient step of this many times the longest that cannot overshoot is taken to diverge.
DIVERGES = 1.9
HALVED = 1.5
# The t-th mini-batch moves a site's own running mean by t^-RATE of the way: batches average out,
# and the way is long enough (Robbins and Monro: between 1/2 and 1).
BATCH_RATE = 0.7


def start(fields, clients, cache, settings, common, personal, memory, keys):
    """Fit alone; components leave, weights and scale stay."""
    family = Family(settings)
    weights, components, scale = family.alone(cache, keys)
    found = family.expect(cache, weights, components, scale)
    new = {
        "weights": weights,
        "first_weights": weights,
        "components": components,
        "halvings": np.zeros(len(weights)),
    }
    if scale is not None:
        new["scale"] = scale
    reply = {"components": components, "rows": cache.sizes.astype(float)}
    return _picked(fields, reply, family, cache, found, components, scale, new), new


def start_again(fields, clients, cache, settings, common, personal, memory, keys):
    """Fit alone once more, also from the sites' common centres; the likelier fit counts.

    A site whose own start went astray finds its groups with everybody's help; one that is
    different stays different, because its own likelihood decides.
    """
    family = Family(settings)
    centers = np.broadcast_to(common["centers"], (len(clients), *common["centers"].shape))
    personal = {**personal, "components": centers, "weights": centers[:, 0, :0]}
    memory, scale = _remembered(family, cache, common, personal, memory)
    own = memory.get("components", centers)
    own = np.take_along_axis(own, personal["order"][..., None], axis=1)
    equal = np.full(centers.shape[:2], 1.0 / centers.shape[1])
    twice = None
    if scale is not None:
        full = np.broadcast_to(scale, (len(clients), *scale.shape[1:]))
        twice = np.stack([full, full], axis=1)
    weights, components, found_scale = family.best_of(
        cache,
        np.stack([memory["weights"], equal], axis=1),
        np.stack([own, centers], axis=1),
        twice,
    )
    new = {**memory, "weights": weights, "first_weights": weights, "components": components}
    if "scale" in memory:
        new["scale"] = scale = found_scale
    found = family.expect(cache, weights, components, scale)
    reply = {"components": components, "rows": cache.sizes.astype(float)}
    return _picked(fields, reply, family, cache, found, components, scale, new), new


def improve(fields, clients, cache, settings, common, personal, memory, keys):
    """`local_steps` E- and M-steps from the components the server sent."""
    family = Family(settings)
    memory, scale = _remembered(family, cache, common, personal, memory)
    components, weights, found = personal["components"], memory["weights"], None
    sent = components
    for pass_number in range(settings["local_steps"]):
        rows, rate = cache, None
        if settings["batch_size"]:
            rows = cache.batch(keys.fold(pass_number + 1), settings["batch_size"])
            memory, rate = _batch_rate(memory, rows.sizes < cache.sizes)
        found = family.expect(rows, weights, components, scale)
        if settings["step"] == "em":
            new = family.maximise(found, components)
        else:
            new, memory = _gradient(family, found, components, memory, settings)
        if settings["threshold"]:
            new = _thresholded(new, settings["threshold"], family.n_intercepts)
        memory, components = _averaged(memory, "components", new, rate)
        memory, weights = _averaged(memory, "weights", family.weights(found, weights), rate)
        new_scale = family.scale(rows, found, new, scale)
        if new_scale is not scale:
            memory, scale = _averaged(memory, "scale", new_scale, rate)
    memory = {**memory, "weights": weights}
    if scale is not None and "scale" in memory:
        memory["scale"] = scale
    reply = {
        "components": components,
        "rows": cache.sizes.astype(float),
        "halvings": memory["halvings"],
    }
    # Residuals about what was sent: about the site's own new fit they would flatter it.
    about = sent if "residual" in fields else components
    return _picked(fields, reply, family, rows, found, about, scale, memory), memory


def add_up(fields, clients, cache, settings, common, personal, memory, keys):
    """The E-step under the components the server sent; sums leave, weights stay."""
    family = Family(settings)
    memory, scale = _remembered(family, cache, common, personal, memory)
    rows, rate = cache, None
    if settings["batch_size"]:
        rows = cache.batch(keys.fold(1), settings["batch_size"])
        memory, rate = _batch_rate(memory, rows.sizes < cache.sizes)
    sent = personal["components"]
    found = family.expect(rows, memory["weights"], sent, scale)
    memory, weights = _averaged(memory, "weights", family.weights(found, memory["weights"]), rate)
    memory = {**memory, "weights": weights}
    if scale is not None and "scale" in memory:
        memory["scale"] = family.scale(rows, found, sent, scale)
    # A mini-batch stands for all rows.
    share = cache.sizes / np.maximum(rows.sizes, 1)
    memory, sums = _averaged(memory, "sums", family.sums(found) * share[:, None, None], rate)
    reply = {"sums": sums, "rows": cache.sizes.astype(float)}
    return _picked(fields, reply, family, rows, found, sent, scale, memory), memory


def settle(clients, cache, settings, common, personal, memory, keys):
    """Take the final components and bring own weights up to date; only the likelihood leaves."""
    family = Family(settings)
    memory, scale = _remembered(family, cache, common, personal, memory)
    found = family.expect(cache, memory["weights"], personal["components"], scale)
    weights = memory["weights"]
    if not personal["weights"].size:
        weights = family.weights(found, weights)
    kept = {**memory, "weights": weights, "components": personal["components"]}
    return {"loglik": found.loglik}, kept


def _gradient(family, found, components, memory, settings):
    """The paper's step C_eta / first weight; one that would diverge is halved until it is safe.

    Twice the longest step diverges, and close to it the way is a zigzag: hence DIVERGES, and HALVED
    for the length below which a step that must be halved ends.
    """
    n_rows = np.maximum(found.n_rows, 1.0)
    step = gaussian.step_sizes(memory["first_weights"], settings["step_constant"], n_rows)
    ratio = step / family.longest_step(found)
    n_halvings = np.where(ratio > DIVERGES, np.ceil(np.log2(np.maximum(ratio, 1.0) / HALVED)), 0.0)
    memory = {**memory, "halvings": memory["halvings"] + n_halvings.sum(axis=1)}
    return family.climb(found, components, step * 0.5**n_halvings), memory


def _thresholded(components, threshold, n_intercepts):
    """Components pulled to zero by the threshold; an intercept, the last column, is no feature."""
    held = np.sign(components) * np.maximum(np.abs(components) - threshold, 0.0)
    last = components.shape[-1] - n_intercepts
    held[..., last:] = components[..., last:]
    return held


def _batch_rate(memory, partial_batch):
    """Memory with the batches counted, and how far of the way each site goes, (m,)."""
    n_batches = memory.get("n_batches", np.zeros(len(partial_batch))) + 1.0
    rate = np.where(partial_batch, n_batches**-BATCH_RATE, 1.0)
    return {**memory, "n_batches": n_batches}, rate


def _averaged(memory, name, new, rate):
    """Memory with the running mean of what the batches gave (m, ...), and that mean.

    It is the site's own: the server's pull must not enter it, or it would add up. Without a rate
    (m,) there are no batches, and the mean is the new.
    """
    if rate is None:
        return memory, new
    old = memory.get(f"batch_{name}", new)
    mean = old + rate.reshape(len(rate), *[1] * (new.ndim - 1)) * (new - old)
    return {**memory, f"batch_{name}": mean}, mean


def _remembered(family, rows, common, personal, memory):
    """Weights and scale in the server's order; a site that missed the start begins here."""
    components = personal["components"]
    if memory is None or "weights" not in memory:
        equal = np.full(components.shape[:2], 1.0 / components.shape[1])
        memory = {"weights": equal, "halvings": np.zeros(len(equal))}
        scale = family.first_scale(rows, common["noise"])
        if scale is not None:
            memory["scale"] = scale
        for _ in range(FIRST_PASSES):
            own = _common_or(family, memory.get("scale"), common)
            found = family.expect(rows, memory["weights"], components, own)
            memory["weights"] = family.weights(found, memory["weights"])
            if scale is not None and own is memory.get("scale"):
                memory["scale"] = family.own_scale(rows, found, components, own)
        memory["first_weights"] = memory["weights"]
    order = personal["order"]
    memory = dict(memory)
    for name in ("weights", "first_weights"):
        memory[name] = np.take_along_axis(memory[name], order, axis=1)
    if personal["weights"].size:
        memory["weights"] = personal["weights"]
    return memory, _common_or(family, memory.get("scale"), common)


def _common_or(family, own, common):
    """The scale that all sites share, where they share one; else the site's own."""
    if family.regression:
        shared = family.settings["shared_noise"] and common["noise"].size
        return np.full_like(own, common["noise"][0]) if shared else own
    covariance = common["covariance"]
    return covariance[None] if covariance.size else own


def _picked(
    fields: tuple[str, ...],
    reply: dict[str, Floats],
    family: Family,
    rows: Any,
    found: Any,
    components: Floats,
    scale: Floats | None,
    memory: Memory,
) -> Arrays:
    """The fields that the step's name promises; a mini-batch stands for all rows."""
    assert memory is not None
    made = dict(reply)
    share = reply["rows"] / np.maximum(found.n_rows, 1.0)
    if "variances" in fields:
        own = family.variances(found, scale) / np.maximum(share, 1.0)[:, None]
        made["variances"] = np.where(np.isfinite(own), own, UNKNOWN_VARIANCE)
    if "weights" in fields:
        made["weights"] = memory["weights"]
    if "residual" in fields:
        squares = regression.residual_squares(found, components)
        made["residual"] = squares / np.maximum(found.n_rows, 1.0)
    if "scatter" in fields:
        scatter = gaussian.within_scatter(rows, found, components, "tied")
        made["scatter"] = share[:, None, None] * scatter
    return {name: made[name] for name in fields}


SENT_WEIGHTS = Field(("s",), "weights the site shall use; empty if it shall keep its own")
PERSONAL = {"components": COMPONENTS, "order": ORDER, "weights": SENT_WEIGHTS}
NOISE = Field(("z",), "noise at which a site without its own begins; empty if not known")
COMMON = {"covariance": COVARIANCE, "noise": NOISE}

START = variants(start, "start", {"components": COMPONENTS, "rows": ROWS})
START_AGAIN = variants(
    start_again,
    "start_again",
    {"components": COMPONENTS, "rows": ROWS},
    common={**COMMON, "centers": COMPONENTS},
    personal={"order": ORDER},
)
IMPROVE = variants(
    improve,
    "improve",
    {"components": COMPONENTS, "rows": ROWS, "halvings": HALVINGS},
    common=COMMON,
    personal=PERSONAL,
)
ADD_UP = variants(add_up, "add_up", {"sums": SUMS, "rows": ROWS}, common=COMMON, personal=PERSONAL)
SETTLE = {"settle": Step(settle, {"loglik": LOGLIK}, COMMON, PERSONAL)}
