"""Every site alone: EM (Local-EM) or gradient EM (Local-GrEM). Nothing is shared.

What leaves a site is its log likelihood and number of rows, so that the server can say how the
fits went; components, weights and scale stay. A round is a whole local fit; sites that were not
heard are given further rounds. Given components (`init`) are sent to the sites as their start.

`step="gradient"` climbs with a step of `step_constant` (0.1 in the script of FedGrEM's authors)
from the local start, shortened where it would diverge. From a k-means++ start, which EM has already
brought to its end, it finds the same place; the difference shows from a Ward start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from fedkin.algorithms.mixtures import sites
from fedkin.algorithms.mixtures.families import family_of, prepare
from fedkin.algorithms.mixtures.fedgrem import DIVERGES
from fedkin.algorithms.mixtures.result import MixtureResult
from fedkin.algorithms.mixtures.settings import (
    COVARIANCE,
    POSITIVE,
    POSITIVE_OR_NONE,
    MixtureSettings,
)
from fedkin.alignment import align
from fedkin.arrays import Array, Floats
from fedkin.models.latent_classes import climb, mixture_weights
from fedkin.protocol import Algorithm, Ask, LastReplies, Memory, Program, Roster, Step
from fedkin.protocol.runs import About
from fedkin.settings import Flag, Number, Start, Whole, one_of, setting

# The gradient's gains are about this much smaller than EM's; so is what counts as standing still.
GRADIENT_PATIENCE = 0.01
ONLY_LIKELIHOOD_LEFT = "Nothing but its log likelihood and number of rows left a site."
ROWS_LEFT = "All rows were brought to one place: this fit shares the data themselves."


class LocalEmSettings(MixtureSettings):
    """What can be set; `fedkin.LocalEM` says what each does."""

    init: Any = setting("auto", Start(("auto", "kmeans++", "ward")))
    max_rounds: int = setting(5, Whole())
    tol: float = setting(1e-6, Number(), at_site=True)
    covariance_type: str = setting("identity", COVARIANCE, at_site=True)
    labels: bool = setting(False, Flag(), at_site=True)
    step: str = setting("em", one_of("em", "gradient"), at_site=True)
    step_constant: float = setting(0.1, POSITIVE, at_site=True)
    sigma: float | None = setting(None, POSITIVE_OR_NONE, at_site=True)
    fit_intercept: bool = setting(False, Flag(), at_site=True)

    regression_starts: ClassVar[tuple[str, ...]] = ("kmeans++",)
    shares_scale: ClassVar[bool] = False
    local_max_iter: ClassVar[int] = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalEmResult(MixtureResult):
    """The fits of sites that fitted alone."""

    by_round = ("history_loglik",)

    loglik: Array
    history_loglik: Floats

    def seen_by(self, k: int) -> Self:
        """The k-th site's own part alone: nothing is shared."""
        return replace(super().seen_by(k), loglik=self.site_loglik[k])

    def with_memories(self, memories: Memory, settings: Any) -> Self:
        """With components and their centres, which are medians over the aligned sites."""
        result = super().with_memories(memories, settings)
        if not memories:
            return result
        components, heard = memories["components"], self.heard
        centers = self._centers_of(components[heard], settings)
        components = np.where(heard[:, None, None], components, centers)
        found = replace(result, components=components, centers=centers)
        weights = memories["weights"]
        average = found.average_of(weights, settings)
        return replace(found, weights=np.where(heard[:, None], weights, average))

    def _centers_of(self, known: Floats, settings: Any) -> Floats:
        """Medians over sites, whose groups are in orders of their own unless they have labels."""
        centers: Floats = np.median(known, axis=0) if settings.labels else align(known).reference
        return centers

    def average_of(self, weights: Floats, settings: Any) -> Floats:
        """Average weights of the groups that were taken for one another."""
        if settings.labels or self.centers is None or self.components is None:
            return super().average_of(weights, settings)
        order = align(self.components[self.heard], reference=self.centers).permutations
        average: Floats = np.take_along_axis(weights[self.heard], order, axis=1).mean(axis=0)
        return average

    def shared_by(self, n_clients: int) -> PooledEmResult:
        """The fit of one site that held everybody's rows, as everybody's."""
        unknown = np.full(n_clients, np.nan)
        return PooledEmResult(
            site_loglik=unknown,
            site_rows=unknown,
            loglik=self.loglik,
            history_loglik=self.history_loglik,
            converged=self.converged,
        )

    def account(self, about: About) -> list[str]:
        """What left the sites."""
        return [ONLY_LIKELIHOOD_LEFT]


@dataclass(frozen=True, kw_only=True, eq=False)
class PooledEmResult(LocalEmResult):
    """The fit of all rows in one place."""

    def _centers_of(self, known: Floats, settings: Any) -> Floats:
        """The components, which are everybody's, in their order."""
        return known[0]

    def account(self, about: About) -> list[str]:
        """What left the sites."""
        return [ROWS_LEFT]


# ------------------------------------------------------------------ client functions


def _fit(clients, cache, settings, common, personal, memory, keys, how="kmeans++"):
    """Fit alone and keep everything; from memory, go on where the last round ended."""
    family = family_of(settings)
    if memory is None:
        begin = family.alone(cache, keys, how)
    else:
        begin = memory["weights"], memory["components"], memory.get("scale")
    gradient = settings.step == "gradient"
    ended = climb(
        cache,
        family.model.Parameters(*begin),
        _gradient_step(family) if gradient else family.em_step,
        settings.local_max_iter,
        settings.tol * (GRADIENT_PATIENCE if gradient else 1.0),
    )
    weights, components, scale = ended.parameters
    kept = {"weights": weights, "components": components, "converged": ended.converged}
    if scale is not None:
        kept["scale"] = scale
    return {"loglik": ended.loglik, "rows": cache.sizes.astype(float)}, kept


def _fit_from(clients, cache, settings, common, personal, memory, keys):
    """Fit alone from given components."""
    if memory is None:
        family, components = family_of(settings), personal["components"]
        nothing = {name: np.empty(0) for name in sites.COMMON}
        scale = family.first_scale(cache, nothing["noise"])
        weights, scale = sites.found_to(family, cache, components, scale, nothing)
        memory = {"weights": weights, "components": components, "scale": scale}
    return _fit(clients, cache, settings, common, personal, memory, keys)


def _gradient_step(family):
    """E-step, one gradient step of the components, M-step of weights and scale."""

    def step(rows, now):
        weights, components, scale = now
        statistics = family.expect(rows, now)
        longest = DIVERGES * family.model.longest_step(statistics)
        lengths = np.minimum(family.settings.step_constant, longest)
        moved = family.gradient_step(statistics, components, lengths)
        scale = family.own_scale(rows, statistics, moved, scale)
        weights = mixture_weights(statistics.counts, weights)
        return family.model.Parameters(weights, moved, scale), statistics.loglik

    return step


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: LocalEmSettings) -> Program:
    """Ask until every site has answered and none gains any more."""
    m, given = len(roster), settings.given_start
    step, each = "fit_by_ward" if settings.start == "ward" else "fit", {}
    if given is not None:
        step = "fit_from"
        each = {"components": np.array(np.broadcast_to(given, (m, *given.shape[-2:])))}
    last, history, converged = LastReplies(m, missing=np.nan), [], False
    before = np.full(m, np.nan)
    for _ in range(settings.max_rounds):
        replies = yield Ask(step, personal=each, note="every site alone")
        who = replies.clients
        last.hear(replies)
        loglik, rows = last["loglik"], np.nan_to_num(last["rows"])
        history.append(float(np.nansum(loglik)))
        gain = (loglik - before)[who]
        converged = bool((gain <= settings.tol * np.maximum(rows, 1.0)[who]).all())
        before = loglik.copy()
        if converged and len(who) == m:
            break
    return LocalEmResult(
        site_loglik=loglik,
        site_rows=rows,
        loglik=np.nansum(loglik),
        history_loglik=np.array(history),
        converged=np.array(converged),
    )


_REPLY = {"loglik": sites.LOGLIK, "rows": sites.ROWS}

LOCAL_EM = Algorithm(
    name="local_em",
    settings=LocalEmSettings,
    prepare=prepare,
    program=program,
    result=LocalEmResult,
    steps={
        "fit": Step(_fit, _REPLY),
        "fit_by_ward": Step(partial(_fit, how="ward"), _REPLY),
        "fit_from": Step(_fit_from, _REPLY, personal={"components": sites.COMPONENTS}),
    },
)
