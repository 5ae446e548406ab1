"""A start for mixtures of regressions that all sites find together: `init="federated"`.

A site alone cannot find 5 regressions of 10 coefficients in 150 rows; all sites together can. EM
with shared coefficients, every site's own weights, and one component more than wanted, from several
random starts side by side. The spare component takes what no other explains (an outlier site, say);
the component that the median site uses least is dropped.

The noise is learnt here also where it is given: about shared coefficients rows scatter by what
sites depart from them besides, and with less noise than that EM stays where it began.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import numpy as np

from fedkin.algorithms.mixtures.settings import MixtureSettings
from fedkin.arrays import Floats
from fedkin.models import regression_mixture as regression
from fedkin.models.latent_classes import mixture_weights, to_posterior
from fedkin.models.misfit import of_groups
from fedkin.protocol import MISFIT, Ask, Field, Replies, Roster, Step, TracedReply
from fedkin.ties import RELATIVE, first_best, tied_order

# Rounds of the start; it needs to find the components, not to polish them.
START_ROUNDS = 100
START_TOL = 1e-3
# The noise of the start is at least this share of the target's mean square.
SMALLEST_START_NOISE_SHARE = 1e-12
# Keeps a division by the size of nothing at all defined.
TINY = 1e-300
# Components more than wanted. With two or three spare ones a shared fit has more ways to go wrong:
# largest error at h = 2, five draws, two odd sites: 3.45, 4.18 and 5.49 with one, two and three.
SPARE = 1

SPREAD = Field(
    (3,), "rows, mean square of the target, mean square of a feature", least=0.0, reveals="sums"
)
N_COEFFICIENTS = Field(
    (), "number of coefficients of the site's model", least=0.0, reveals="nothing"
)
SUMS = Field(
    ("S", "C", "q"),
    "products of features and target, weighted and added up",
    reveals="products",
    empty=0.0,
)
LOGLIK = Field(("S",), "log likelihood of the site's rows, for each restart")
COEF = Field(("S", "C", "p"), "shared coefficients of every restart")
SIGMA = Field(("S",), "noise of every restart")


def _spread(clients, cache, settings, common, personal, memory, keys):
    squares = cache.squares / np.maximum(cache.sizes, 1)[:, None]
    rows, feature = cache.sizes.astype(float), squares[:, :-1].mean(axis=1)
    return {"spread": np.stack([rows, squares[:, -1], feature], axis=1)}, memory


def _n_coefficients(clients, cache, settings, common, personal, memory, keys):
    return {"n_coefficients": np.full(len(clients), float(cache.n_columns - 1))}, memory


def _shared_sums(clients, cache, settings, common, personal, memory, keys):
    """E-step under shared coefficients with the site's own weights, for every restart."""
    coef, kept = common["coef"], memory or {}
    m, n_components = len(clients), coef.shape[1]
    equal = np.full((m, len(coef), n_components), 1.0 / n_components)
    weights = kept.get("start_weights", equal)
    parameters = regression.Parameters(weights, coef[None], np.tile(common["sigma"], (m, 1)))
    statistics = regression.expect(cache, parameters)
    new = mixture_weights(statistics.counts, weights)
    reply = {"sums": statistics.packed, "loglik": statistics.loglik}
    traced = TracedReply(reply, partial(_rows_of_groups, cache, parameters))
    return traced, {**kept, "start_weights": new}


def _rows_of_groups(rows, parameters):
    """How much every row counts in every component of every restart, (N, S, C)."""
    weights, coef, sigma = parameters
    each = []
    for s in range(coef.shape[1]):
        one = regression.Parameters(weights[:, s], coef[:, s], sigma[:, s])
        joint = regression.log_joint(rows, one).T[None].copy()
        to_posterior(joint)
        each.append(joint[0].T)
    misfit = [
        of_groups(partial(regression.away, rows, parameters, s), shares, rows.sizes)
        for s, shares in enumerate(each)
    ]
    return {"sums": np.stack(each, axis=1), MISFIT: np.stack(misfit, axis=1)}


def federated_start(
    roster: Roster, settings: MixtureSettings
) -> Generator[Ask, Replies, tuple[Floats, float]]:
    """Shared coefficients (R, p) and the noise found beside them."""
    note, n_restarts = "federated start", settings.n_restarts
    replies = yield Ask("spread", note=note)
    _, square, feature = np.median(replies["spread"], axis=0)
    replies = yield Ask("n_coefficients", note=note)
    p = int(np.median(replies["n_coefficients"]))
    rng = np.random.default_rng([roster.seed, 0x57A7])
    scale = np.sqrt(square / feature) if feature > 0 else 1.0
    coef = scale * rng.normal(size=(n_restarts, settings.n_components + SPARE, p)) / np.sqrt(p)
    sigma = np.full(n_restarts, np.sqrt(square) or settings.sigma or 1.0)
    least = max(SMALLEST_START_NOISE_SHARE * square, (settings.sigma or 0.0) ** 2)
    for number in range(START_ROUNDS):
        replies = yield Ask("shared_sums", {"coef": coef, "sigma": sigma}, note=note)
        sums = replies.total("sums")
        new = regression.maximise(sums, coef)
        sigma = regression.noise_of(sums, new, least)
        moved = np.abs(new - coef).max() / max(np.abs(new).max(), TINY)
        coef = new
        if moved <= START_TOL and number > 0:
            break
    best = int(first_best(replies.total("loglik"), floor=RELATIVE))
    counts = replies["sums"][:, best, :, -1]
    used = np.median(counts / np.maximum(counts.sum(axis=1, keepdims=True), TINY), axis=0)
    kept = np.sort(tied_order(-used)[: settings.n_components])
    return coef[best, kept], float(sigma[best])


FEDERATED_START = {
    "spread": Step(_spread, {"spread": SPREAD}),
    "n_coefficients": Step(_n_coefficients, {"n_coefficients": N_COEFFICIENTS}),
    "shared_sums": Step(
        _shared_sums, {"sums": SUMS, "loglik": LOGLIK}, {"coef": COEF, "sigma": SIGMA}
    ),
}
