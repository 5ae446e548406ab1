"""What a fitted mixed model of classes is, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedkin.algorithms.softmax_mixed_sites import Told
from fedkin.arrays import Array, Floats, Indices
from fedkin.names import counted
from fedkin.protocol import Result
from fedkin.protocol.runs import About
from fedkin.tables import Table


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftmaxMixedResult(Result):
    """B (C, d) of standardised columns (intercept last), departures (m, C, d), variances (C, d).

    `population` (C, d) is the one model for all rows; `loss` is the mean log loss of rows left out
    by the best set of variances. A site's model is the mean of those by several sets.
    """

    for_all = ("population", "variances", "mean", "spread")
    for_one = ("departures", "site_rows")

    coef: Floats
    population: Floats
    departures: Floats
    variances: Floats
    """Of the departures, (C, d); `block` (d,) says which columns share one."""
    block: Indices
    common_variance: Array
    """Of B itself."""
    set_weights: Floats
    """Weights (G,) of the sets that are averaged; what follows is of every such set."""
    set_coef: Floats
    """B (G, C, d)."""
    set_logs: Floats
    """Log variances of departures (G, C, d)."""
    mean: Floats
    spread: Floats
    loss: Array
    heard: Indices
    site_rows: Floats
    converged: Array
    tried: Floats
    """Mean log variances of features, of intercepts, and of B of every set; its loss, (sets, 4)."""

    def told(self) -> Told:
        """What sites were told last."""
        return Told(self.set_coef, self.set_logs, self.mean, self.spread)

    @property
    def block_variances(self) -> Floats:
        """One number for every class and block, (C, b)."""
        first = np.unique(self.block, return_index=True)[1]
        return self.variances[:, first]

    def title(self, about: About) -> str:
        """The fit in half a line."""
        return (
            f"{counted(len(about.sites), 'site')}, {np.nansum(self.site_rows):,.0f} rows, "
            f"{len(self.coef)} classes; log loss of rows left out {self.loss:.3f}"
        )

    def tables(self, about: About) -> dict[str, Table]:
        """Variances, and how far every site departs."""
        size = np.sqrt((self.departures**2).mean(axis=(1, 2)))
        spread = np.sqrt(self.block_variances)
        columns = {name: spread[:, b] for b, name in enumerate(self.block_names(about.features))}
        return {
            "variances": Table(
                {"class": np.arange(len(self.coef)), **columns},
                "Standard deviations of departures, of standardised columns",
            ),
            "sites": Table(
                {"site": about.sites, "rows": self.site_rows, "departs": size},
                "Sites: how far they depart",
            ),
        }

    def block_names(self, features: Sequence[str]) -> list[str]:
        """What shares a variance, in words."""
        n_blocks = len(np.unique(self.block))
        if n_blocks == len(self.block) and len(self.block) != 2:
            return [*map(str, features), "(intercept)"][: len(self.block)]
        return ["features", "intercept"][:n_blocks]

    def account(self, about: About) -> list[str]:
        """What left the sites."""
        own = ", and at the end its own departure." if "departures" in about.left else "."
        return [
            "Each site sent heights, slopes and second derivatives of its penalised likelihood, "
            "losses of its rows left out and the squares of its departures" + own
        ]
