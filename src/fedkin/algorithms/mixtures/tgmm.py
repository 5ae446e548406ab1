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

import numpy as np

from fedkin.algorithms.mixtures import sites
from fedkin.algorithms.mixtures.coordinator import Coordinator
from fedkin.algorithms.mixtures.families import prepare
from fedkin.algorithms.mixtures.fedgrem import IMPROVE, alternate
from fedkin.algorithms.mixtures.result import JoinedResult
from fedkin.algorithms.mixtures.settings import COVARIANCE, NOT_NEGATIVE, JoinedSettings
from fedkin.arrays import Floats
from fedkin.protocol import Algorithm, Program, Roster
from fedkin.settings import Flag, Whole, setting


class TgmmSettings(JoinedSettings):
    """What can be set; `fedkin.TGMM` says what each does."""

    covariance_type: str = setting("identity", COVARIANCE, at_site=True)
    labels: bool = setting(False, Flag(), at_site=True)
    source_weight: float = setting(0.4, NOT_NEGATIVE)
    max_rounds: int = setting(500, Whole())

    def check_together(self) -> None:
        """Complain about regressions."""
        super().check_together()
        if self.family != "gaussian":
            raise ValueError(
                "TGMM is a method for Gaussian mixtures; for mixtures of regressions use FedEM, "
                "FedGMM or FedGrEM"
            )


class Tgmm(Coordinator):
    """Own estimates averaged with the others' first ones."""

    first: Floats | None = None

    def combine(self) -> None:
        """The weighted mean of a site's own estimate and the others' first ones."""
        if self.first is None:
            self.first = np.full_like(self.estimates, np.nan)
        heard = self.last.heard[:, None, None]
        self.first = np.where(heard & np.isnan(self.first), self.estimates, self.first)
        weight, known = self.settings.source_weight, self.last.heard
        others = np.nansum(self.first, axis=0) - np.nan_to_num(self.first)
        total = 1.0 + weight * (known.sum() - known)
        self.shared = (self.estimates + weight * others) / total[:, None, None]
        self.centers = self.shared[known].mean(axis=0)


def program(roster: Roster, settings: TgmmSettings) -> Program:
    """FedGrEM's rounds with another central update."""
    return alternate(Tgmm(settings, roster))


TGMM = Algorithm(
    name="tgmm",
    settings=TgmmSettings,
    prepare=prepare,
    program=program,
    result=JoinedResult,
    steps={
        **sites.START,
        "classes": sites.CLASSES,
        "improve": IMPROVE,
        "settle": sites.SETTLE,
    },
)
