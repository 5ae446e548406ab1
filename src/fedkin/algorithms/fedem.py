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

from typing import Any

import numpy as np

from fedkin.algorithms import mixture_desk, mixture_starts, mixtures
from fedkin.algorithms.mixture_family import Family
from fedkin.algorithms.mixtures import names_of
from fedkin.protocol import Algorithm, Program, Replies, Roster, Settings

DEFAULTS: dict[str, Any] = {
    **mixtures.DEFAULTS,
    "average": "plain",
    "align": "auto",
    "shared_noise": True,
}


class PlainDesk(mixture_desk.Desk):
    """The mean of the sites' estimates."""

    def combine(self, number: int) -> None:
        """Every site heard so far counts the same."""
        self.centers = self.estimates[self.heard].mean(axis=0)
        self.shared = np.tile(self.centers, (len(self.heard), 1, 1))


class PooledDesk(PlainDesk):
    """The M-step of all rows, from sums; the first one, before there are sums, is the mean."""

    sums: Any = None

    def step(self, name: str) -> str:
        """Sums leave in place of M-steps."""
        return names_of("add_up" if name == "improve" else name, self.wanted(self.settings))

    def hear(self, replies: Replies) -> None:
        """Note the sums; a site that is not heard keeps its last."""
        self.heard[replies.clients] = True
        self.order[replies.clients] = np.arange(self.order.shape[1])
        if self.sums is None:
            self.sums = np.zeros((len(self.heard), *replies["sums"].shape[1:]))
        self.sums[replies.clients] = replies["sums"]
        self.note(replies)

    def combine(self, number: int) -> None:
        """Add up and maximise."""
        if self.sums is None:
            super().combine(number)
        else:
            current = self.shared[0] if self.centers is None else self.centers
            self.centers = Family(self.settings).pooled(self.sums.sum(axis=0), current)
            self.shared = np.tile(self.centers, (len(self.heard), 1, 1))


def program(roster: Roster, settings: Settings) -> Program:
    """Every round: M-steps (or sums) of the sites in, one set of components out."""
    desk = PooledDesk if settings["average"] == "pooled" else PlainDesk
    return (yield from mixture_desk.program(desk, roster, settings))


FEDEM = Algorithm(
    name="fedem",
    prepare=mixtures.prepare,
    program=program,
    defaults=DEFAULTS,
    client_settings=mixtures.CLIENT_SETTINGS,
    steps={
        **mixtures.START,
        **mixtures.IMPROVE,
        **mixtures.ADD_UP,
        **mixtures.SETTLE,
        **mixture_starts.STEPS,
    },
)
