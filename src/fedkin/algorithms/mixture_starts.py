"""A federated start for mixtures of regressions: one set of coefficients, many restarts.

A site alone cannot find 5 regressions of 10 coefficients in 150 rows; all sites together can. EM
with shared coefficients, every site's own weights, and one component more than wanted, from several
random starts side by side. The spare component takes what no other explains (an outlier site, say);
the component that the median site uses least is dropped.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from fedkin.models import regression_mixture as regression
from fedkin.models.latent_classes import EMPTY_COMPONENT
from fedkin.models.least_squares import residual_coefficients
from fedkin.protocol import Ask, Field, Replies, Roster, Settings, Step
from fedkin.ties import RELATIVE, first_best, tied_order

Floats = NDArray[np.float64]

# Rounds of the start; it needs to find the components, not to polish them.
START_ROUNDS = 100
START_TOL = 1e-3

SPREAD = Field((3,), "rows, mean square of the outcome, mean square of a feature")
START_SUMS = Field(("S", "C", "q"), "products of features and outcome, weighted and added up")
START_LOGLIK = Field(("S",), "log likelihood of the site's rows, for each restart")
START_COEF = Field(("S", "C", "p"), "shared coefficients of every restart")
START_SIGMA = Field(("S",), "noise of every restart")


def _spread(clients, cache, settings, common, personal, memory, keys):
    rows = np.maximum(cache.sizes, 1).astype(float)
    squares = cache.squares / rows[:, None]
    mean = squares[:, :-1].mean(axis=1)
    return {"spread": np.stack([cache.sizes.astype(float), squares[:, -1], mean], 1)}, memory


def _shared_sums(clients, cache, settings, common, personal, memory, keys):
    """E-step under shared coefficients with the site's own weights, for every restart."""
    coef, sigma = common["coef"], common["sigma"]
    m = len(clients)
    weights = np.full((m, *coef.shape[:2]), 1.0 / coef.shape[1])
    if memory is not None and "start_weights" in memory:
        weights = memory["start_weights"]
    parameters = regression.Parameters(weights, coef[None], np.tile(sigma, (m, 1)))
    found = regression.expect(cache, parameters)
    kept = {**(memory or {}), "start_weights": regression.maximise_weights(found, weights)}
    return {"sums": found.packed, "loglik": found.loglik}, kept


def federated_start(
    roster: Roster, settings: Settings
) -> Generator[Ask, Replies, tuple[Floats, float]]:
    """Shared coefficients (R, p) and the noise found beside them."""
    replies = yield Ask("spread", note="federated start")
    _, square, feature = np.median(replies["spread"], axis=0)
    rng = np.random.default_rng([roster.seed, 0x57A7])
    n_components, n_restarts = settings["n_components"] + 1, settings["n_restarts"]
    scale = np.sqrt(square / feature) if feature > 0 else 1.0
    known = settings["sigma"]
    sigma = np.full(n_restarts, known if known else np.sqrt(square) or 1.0)
    probe = yield Ask("n_coefficients", note="federated start")
    p = int(np.median(probe["n_coefficients"]))
    coef = scale * rng.normal(size=(n_restarts, n_components, p)) / np.sqrt(p)
    for number in range(START_ROUNDS):
        replies = yield Ask("shared_sums", {"coef": coef, "sigma": sigma}, note="federated start")
        sums = replies.total("sums")
        alive = sums[..., -1:] > EMPTY_COMPONENT
        new = np.where(alive, regression.least_squares(sums).coef, coef)
        if not known:
            left = np.maximum((residual_coefficients(new) * sums).sum(axis=-1), 0.0)
            total = np.maximum(sums[..., -1].sum(axis=-1), 1.0)
            sigma = np.sqrt(np.maximum(left.sum(axis=-1) / total, 1e-12 * square))
        moved = np.abs(new - coef).max() / max(np.abs(new).max(), 1e-300)
        coef = new
        if moved <= START_TOL and number > 0:
            break
    best = int(first_best(replies.total("loglik"), floor=RELATIVE))
    share = replies["sums"][:, best, :, -1]
    share = share / np.maximum(share.sum(axis=1, keepdims=True), 1e-300)
    used = np.median(share, axis=0)
    kept = np.sort(tied_order(-used)[: settings["n_components"]])
    return coef[best, kept], float(sigma[best])


def _n_coefficients(clients, cache, settings, common, personal, memory, keys):
    return {"n_coefficients": np.full(len(clients), float(cache.n_columns - 1))}, memory


STEPS = {
    "spread": Step(_spread, {"spread": SPREAD}),
    "n_coefficients": Step(
        _n_coefficients, {"n_coefficients": Field((), "number of coefficients of the site's model")}
    ),
    "shared_sums": Step(
        _shared_sums,
        {"sums": START_SUMS, "loglik": START_LOGLIK},
        {"coef": START_COEF, "sigma": START_SIGMA},
    ),
}
