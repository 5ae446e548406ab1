"""FedEM (Marfoq et al., NeurIPS 2021): one set of components for all sites, weights of their own.

| paper | here |
|---|---|
| pi_tm, weights of client t | `weights` (stay at the site) |
| theta_m, shared components | `components` |
| n_t / n, weight of a client | rows and responsibilities behind the sums (`average="pooled"`) |

`average="plain"` is what FedGrEM's authors compare with: the mean of the sites' M-steps, every
site counting the same. `average="pooled"` is the M-step of all rows: the sites' weighted sums are
added up.

Where we differ from the paper
- Local fits, aligned, are the start, as in FedGrEM's experiments; so are given components. Mixtures
  of regressions may start from all sites together (`init="federated"`).
- A stopping rule instead of a number of rounds.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from fedkin.algorithms.mixtures import sites
from fedkin.algorithms.mixtures.coordinator import Coordinator
from fedkin.algorithms.mixtures.families import family_of, prepare
from fedkin.algorithms.mixtures.federated_start import FEDERATED_START
from fedkin.algorithms.mixtures.fedgrem import IMPROVE, alternate, rows_behind
from fedkin.algorithms.mixtures.result import JoinedResult
from fedkin.algorithms.mixtures.settings import (
    COVARIANCE,
    POSITIVE,
    POSITIVE_OR_NONE,
    JoinedSettings,
)
from fedkin.models.latent_classes import mixture_weights
from fedkin.protocol import Algorithm, Program, Roster, Step, TracedReply
from fedkin.settings import Flag, Whole, one_of, setting


class FedEmSettings(JoinedSettings):
    """What can be set; `fedkin.FedEM` says what each does."""

    covariance_type: str = setting("identity", COVARIANCE, at_site=True)
    labels: bool = setting(False, Flag(), at_site=True)
    average: str = setting("plain", one_of("plain", "pooled"))
    step: str = setting("em", one_of("em", "gradient"), at_site=True)
    step_constant: float = setting(0.95, POSITIVE, at_site=True)
    local_steps: int = setting(1, Whole(), at_site=True)
    batch_size: int | None = setting(None, Whole(or_none=True), at_site=True)
    clip: float | None = setting(None, POSITIVE_OR_NONE, at_site=True)
    sigma: float | None = setting(None, POSITIVE_OR_NONE, at_site=True)
    fit_intercept: bool = setting(False, Flag(), at_site=True)
    max_rounds: int = setting(500, Whole())

    def check_together(self) -> None:
        """Complain about steps that sums do not allow."""
        super().check_together()
        if self.average == "pooled" and (self.step != "em" or self.local_steps != 1):
            raise ValueError("average='pooled' makes one M-step of all rows: step='em', 1 a round")


def add_up(clients, cache, settings, common, personal, memory, keys, fields):
    """The E-step under the components the server sent; sums leave, weights stay."""
    family, sent = family_of(settings), personal["components"]
    memory, scale = sites.remembered(family, cache, common, personal, memory)
    batch = sites.Batch(cache, settings, keys.fold(1), memory)
    expected = memory["weights"], sent, scale
    statistics = family.expect(batch.rows, expected)
    weights = batch.averaged("weights", mixture_weights(statistics.counts, memory["weights"]))
    # A mini-batch stands for all rows.
    share = cache.sizes / np.maximum(batch.rows.sizes, 1)
    sums = batch.averaged("sums", statistics.packed * share[:, None, None])
    kept = {**batch.memory, "weights": weights}
    if "scale" in kept:
        kept["scale"] = family.scale(batch.rows, statistics, sent, scale)
    reply, fit = {"sums": sums, "rows": cache.sizes.astype(float)}, (weights, sent, scale)
    reply = sites.with_optional(reply, fields, family, batch.rows, statistics, fit)
    return TracedReply(reply, partial(rows_behind, family, cache, expected, batch)), kept


class PlainMean(Coordinator):
    """The mean of the sites' estimates, every site heard so far counting the same."""

    def combine(self) -> None:
        """One set of components for all."""
        self.centers = self.mean()
        self.shared = np.tile(self.centers, (len(self.order), 1, 1))

    def mean(self):
        """Components (R, p)."""
        return self.estimates[self.last.heard].mean(axis=0)


class PooledStep(PlainMean):
    """The M-step of all rows, from sums; the first one, before there are sums, is the mean."""

    improving = "add_up"

    def mean(self):
        """Components (R, p)."""
        if "sums" not in self.last:
            return super().mean()
        current = self.shared[0] if self.centers is None else self.centers
        return self.family.model.maximise(np.nansum(self.last["sums"], axis=0), current)


def program(roster: Roster, settings: FedEmSettings) -> Program:
    """Every round: M-steps (or sums) of the sites in, one set of components out."""
    kind = PooledStep if settings.average == "pooled" else PlainMean
    return alternate(kind(settings, roster))


FEDEM = Algorithm(
    name="fedem",
    settings=FedEmSettings,
    prepare=prepare,
    program=program,
    result=JoinedResult,
    steps={
        **sites.START,
        "classes": sites.CLASSES,
        "improve": IMPROVE,
        "add_up": Step(
            add_up,
            {"sums": sites.SUMS, "rows": sites.ROWS},
            sites.COMMON,
            sites.PERSONAL,
            sites.OPTIONAL,
        ),
        "settle": sites.SETTLE,
        **FEDERATED_START,
    },
)
