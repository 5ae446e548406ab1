"""Every site alone: EM (Local-EM) or gradient EM (Local-GrEM). Nothing is shared.

What leaves a site is its log likelihood and number of rows, so that the server can say how the
fits went; components, weights and scale stay. A round is a whole local fit; sites that were not
heard are given further rounds. Given components (`init`) are sent to the sites as their start.

`step="gradient"` climbs with a step of `step_constant` (0.1 in the script of FedGrEM's authors)
from the local start, shortened where it would diverge. From a k-means++ start, which EM has already
brought to its end, it finds the same place; the difference shows from a Ward start.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.algorithms import mixtures
from fedkin.algorithms.mixture_family import Family
from fedkin.algorithms.mixtures import COMPONENTS, FIRST_PASSES, LOGLIK, ROWS
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import regression_mixture as regression
from fedkin.models.latent_classes import climb
from fedkin.protocol import Algorithm, Ask, Program, Roster, Settings, Step

DEFAULTS: dict[str, Any] = {
    "n_components": 2,
    "family": "gaussian",
    "covariance_type": "identity",
    "sigma": None,
    "fit_intercept": False,
    "clip": None,
    "shared_noise": False,
    "init": "local",
    "local_start": "kmeans++",
    "n_restarts": 10,
    "step": "em",
    "step_constant": 0.1,
    "max_rounds": 5,
    "tol": 1e-6,
    "local_max_iter": 1000,
}
CLIENT_SETTINGS = tuple(name for name in DEFAULTS if name not in ("init", "max_rounds"))
# The gradient's gains are about this much smaller than EM's; so is what counts as standing still.
GRADIENT_PATIENCE = 0.01


# ------------------------------------------------------------------ client functions


def _fit(clients, cache, settings, common, personal, memory, keys):
    """Fit alone and keep everything; from memory, go on where the last round ended."""
    family = Family(settings)
    if memory is None:
        weights, components, scale = family.alone(cache, keys, own_scale=True)
    else:
        weights, components, scale = (memory.get(n) for n in ("weights", "components", "scale"))
    gradient = settings["step"] == "gradient"
    ended = climb(
        cache,
        family.parameters(weights, components, scale),
        _gradient_step(family, settings) if gradient else _em_step(family, settings),
        settings["local_max_iter"],
        settings["tol"] * (GRADIENT_PATIENCE if gradient else 1.0),
    )
    weights, components, scale = ended.parameters
    kept = {"weights": weights, "components": components, "converged": ended.converged}
    if scale is not None:
        kept["scale"] = scale
    return {"loglik": ended.loglik, "rows": cache.sizes.astype(float)}, kept


def _fit_from(clients, cache, settings, common, personal, memory, keys):
    """The same from given components."""
    if memory is None:
        memory = _begin_at(Family(settings), cache, personal["components"])
    return _fit(clients, cache, settings, common, personal, memory, keys)


def _begin_at(family, rows, components):
    """Weights and scale that go with given components, from equal weights and all rows' spread."""
    weights = np.full(components.shape[:2], 1.0 / components.shape[1])
    scale = family.first_scale(rows, np.empty(0))
    if family.kind == "tied" and not family.regression:
        floor, n_rows = gaussian.smallest_variance(rows), rows.sizes.astype(float)
        scale = gaussian.covariance_of(rows.scatter, n_rows, floor, "tied", rows.n_columns)
    for _ in range(FIRST_PASSES):
        found = family.expect(rows, weights, components, scale)
        weights = family.weights(found, weights)
        scale = family.own_scale(rows, found, components, scale)
    return {"weights": weights, "components": components, "scale": scale}


def _em_step(family: Family, settings: Settings) -> Any:
    if not family.regression:
        return gaussian.em_step
    return lambda rows, now: regression.em_step(rows, now, learn_sigma=settings["sigma"] is None)


def _gradient_step(family: Family, settings: Settings) -> Any:
    """E-step, one gradient step of the components, M-step of weights and scale."""

    def step(rows, now):
        weights, components, scale = now
        found = family.expect(rows, weights, components, scale)
        length = np.minimum(settings["step_constant"], 1.9 * family.longest_step(found))
        moved = family.climb(found, components, length)
        scale = family.own_scale(rows, found, moved, scale)
        return family.parameters(family.weights(found, weights), moved, scale), found.loglik

    return step


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: Settings) -> Program:
    """Ask until every site has answered and none gains any more."""
    m, given = len(roster), settings["init"]
    ask = Ask("fit", note="every site alone")
    if not isinstance(given, str):
        given = np.asarray(given, dtype=float)
        each = np.array(np.broadcast_to(given, (m, *given.shape[-2:])))
        ask = Ask("fit_from", personal={"components": each}, note="every site alone")
    loglik, rows = np.full(m, np.nan), np.zeros(m)
    history: list[float] = []
    converged = False
    for _ in range(settings["max_rounds"]):
        before = loglik.copy()
        replies = yield ask
        loglik[replies.clients], rows[replies.clients] = replies["loglik"], replies["rows"]
        history.append(float(np.nansum(loglik)))
        room = settings["tol"] * np.maximum(rows, 1.0)
        converged = bool((loglik - before <= room)[replies.clients].all())
        if converged and len(replies.clients) == m:
            break
    return {
        "site_loglik": loglik,
        "site_rows": rows,
        "loglik": np.array(np.nansum(loglik)),
        "history_loglik": np.array(history),
        "converged": np.array(converged),
    }


LOCAL_EM = Algorithm(
    name="local_em",
    prepare=mixtures.prepare,
    program=program,
    defaults=DEFAULTS,
    client_settings=CLIENT_SETTINGS,
    steps={
        "fit": Step(_fit, {"loglik": LOGLIK, "rows": ROWS}),
        "fit_from": Step(
            _fit_from, {"loglik": LOGLIK, "rows": ROWS}, personal={"components": COMPONENTS}
        ),
    },
)
