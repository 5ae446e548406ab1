"""TGMM (Wang et al. 2021): transfer learning of Gaussian mixtures, every site with all others.

| FedGrEM, B.1 | here |
|---|---|
| lambda = 0.4 | `source_weight` of every other site |
| sources | the other sites' first estimates, aligned; they stay as they are |

In every M-step a site's mean becomes

    (own M-step + source_weight * sum of the others' first) / (1 + source_weight * (m - 1)).

Gaussian mixtures only, as in FedGrEM's experiments. The first estimate of a site that missed the
start is the one of its first answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.algorithms import mixture_desk, mixtures
from fedkin.protocol import Algorithm, Program, Replies, Roster, Settings

DEFAULTS: dict[str, Any] = {**mixtures.DEFAULTS, "align": "auto", "source_weight": 0.4}


class Desk(mixture_desk.Desk):
    """Own estimates averaged with the others' first ones."""

    def __init__(self, settings: Settings, m: int, n_components: int, p: int) -> None:
        super().__init__(settings, m, n_components, p)
        self.first = np.zeros((m, n_components, p))
        self.has_first = np.zeros(m, dtype=bool)

    def hear(self, replies: Replies) -> None:
        """A first answer is also a source for the others."""
        super().hear(replies)
        self._keep_first()

    def combine(self, number: int) -> None:
        """The weighted mean of a site's own estimate and the others' first ones."""
        self._keep_first()
        weight = self.settings["source_weight"]
        others = self.first.sum(axis=0) - self.first
        n_others = self.has_first.sum() - self.has_first
        total = 1.0 + weight * n_others
        self.shared = (self.estimates + weight * others) / total[:, None, None]
        self.centers = self.shared[self.has_first].mean(axis=0)

    def _keep_first(self) -> None:
        new = self.heard & ~self.has_first
        self.first[new] = self.estimates[new]
        self.has_first |= new


def program(roster: Roster, settings: Settings) -> Program:
    """As FedGrEM, with another central update."""
    if settings["family"] != "gaussian":
        raise ValueError(
            "TGMM is a method for Gaussian mixtures; for mixtures of regressions use FedEM, FedGMM "
            "or FedGrEM"
        )
    return (yield from mixture_desk.program(Desk, roster, settings))


TGMM = Algorithm(
    name="tgmm",
    prepare=mixtures.prepare,
    program=program,
    defaults=DEFAULTS,
    client_settings=mixtures.CLIENT_SETTINGS,
    steps={**mixtures.START, **mixtures.IMPROVE, **mixtures.SETTLE},
)
