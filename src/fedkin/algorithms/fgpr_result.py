"""What a fit of FGPR is, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.models.kernels import Form, default_spec, form_of
from fedkin.protocol import Memory, Result
from fedkin.protocol.runs import About
from fedkin.tables import Table
from fedkin.ties import RELATIVE, first_best

# The standard deviation of fewer rows is off by a quarter and more.
FEW_FOR_A_SCALE = 10
SENT = {
    "exact": "In every round each site sent value and gradient of its log likelihood.",
    "sgd": "In every round each site sent the hyper-parameters its own steps led to.",
    "adam-restarted": "In every round each site sent the hyper-parameters its steps led to.",
    "none": "No hyper-parameters were exchanged.",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class FgprResult(Result):
    """P priors of p free log hyper-parameters, and what is known of m sites of d features.

    `history_theta` and `history_value` are of the last search; `curve` has a row (priors, log
    likelihood, BIC) for each number tried; `spread` (d,) is that of the features at a typical site
    and `target` its location, scale, variance of locations between sites, and variance of the
    standardised target. `site_theta`, `responsibilities` and `jitter` stay at the sites and are
    there when these are in this process.
    """

    for_all = ("theta", "weights", "spread", "target")
    for_one = ("site_theta", "site_rows")

    theta: Floats
    weights: Floats
    converged: Array
    history_theta: Floats
    history_value: Floats
    curve: Floats
    spread: Floats
    target: Floats
    loglik: Array
    site_loglik: Floats
    site_own: Floats
    site_rows: Floats
    site_theta: Floats | None = None
    responsibilities: Floats | None = None
    jitter: Floats | None = None

    def with_memories(self, memories: Memory) -> Self:
        """With what sites keep to themselves, where it can be seen; unheard ones as all others."""
        if memories is None:
            return self
        heard = np.isfinite(self.site_loglik)[:, None]
        return replace(
            self,
            site_theta=np.where(heard, memories["theta"], self.theta[0]),
            responsibilities=np.where(heard, memories["responsibilities"], self.weights),
            jitter=memories["jitter"],
        )

    def shared_by(self, n_clients: int) -> Self:
        """The fit of one client that held everybody's rows; no site's own likelihood is known."""
        nobody = np.full(n_clients, np.nan)
        own = np.repeat(self.site_own, n_clients)
        return replace(self, site_loglik=nobody, site_own=own, site_rows=nobody)

    # ------------------------------------------------------------ what follows

    def form(self, settings: FgprSettings) -> Form:
        """The kernel's form: that of the settings, or the default for these sites."""
        spec = settings.kernel or default_spec(self.spread, float(self.target[3]))
        return form_of(spec, len(self.spread))

    @property
    def own(self) -> Bools:
        """Sites that predict with hyper-parameters of their own, (m,)."""
        return self.site_own > 0

    @property
    def labels(self) -> Indices | None:
        """The likeliest prior of every site, (m,); None where they stayed at the sites."""
        if self.responsibilities is None:
            return None
        return first_best(self.responsibilities, axis=1, floor=RELATIVE)

    def choice(self) -> Table:
        """Likelihood and BIC for every number of priors that was tried."""
        return Table(dict(zip(("n_priors", "loglik", "bic"), self.curve.T)), "Number of priors")

    # ------------------------------------------------------------ in words

    def title(self, about: About) -> str:
        """The fit in half a line."""
        sites, priors = len(about.sites), len(self.weights)
        return f"{sites} sites, {priors} priors, log likelihood {self.loglik:.6g}"

    def tables(self, about: About) -> dict[str, Table]:
        """Priors, sites, and the choice of their number."""
        return {
            "priors": self.priors(about.settings),
            "sites": Table(self._sites(about), "Sites"),
            "choice": self.choice(),
        }

    def priors(self, settings: FgprSettings) -> Table:
        """Hyper-parameters of every prior."""
        rows = {"prior": np.arange(len(self.weights)), "weight": self.weights}
        names = numbered(self.form(settings).names)
        rows.update(zip(names, np.exp(self.theta).T))
        return Table(rows, "Shared hyper-parameters")

    def _sites(self, about: About) -> dict[str, Array]:
        rows: dict[str, Array] = {"site": about.sites, "rows": self.site_rows}
        if self.labels is not None:
            rows["prior"] = self.labels
        rows["own"] = self.own
        with np.errstate(invalid="ignore", divide="ignore"):
            rows["log likelihood per row"] = self.site_loglik / self.site_rows
        if self.jitter is not None:
            rows["jitter"] = self.jitter
        return rows

    def account(self, about: About) -> list[str]:
        """What left the sites, and what did not."""
        optimizer = about.settings.optimizer
        account = [SENT[optimizer]]
        if self.own.any():
            still_open = ", averaged over what their rows leave open" * (optimizer != "none")
            account.append(
                f"{self.own.sum()} of {len(self.own)} sites predict with hyper-parameters of their "
                f"own, which did not leave them{still_open}."
            )
        return account

    def remarks(self, about: About) -> list[str]:
        """Sites that are too large or too small, and those that needed jitter."""
        settings, rows = about.settings, self.site_rows
        remarks = []
        large = int((rows > settings.max_points).sum())
        if large:
            nearest = settings.large_sites == "neighbours"
            remarks.append(
                f"{large} sites have more than max_points={settings.max_points} rows: trained on "
                "random pieces of that size, predicted from "
                f"{'the nearest rows' if nearest else 'a random subset'}."
            )
        few = int(((rows > 0) & (rows < FEW_FOR_A_SCALE)).sum())
        if few and settings.normalize_y is True:
            remarks.append(
                f"{few} sites have fewer than {FEW_FOR_A_SCALE} rows and are standardised by their "
                "own spread, which they hardly know: their bands are too narrow. If sites are in "
                "the same units, normalize_y='mean' shares the scale."
            )
        if self.jitter is not None and self.jitter.any():
            remarks.append(f"Jitter was needed at {(self.jitter > 0).sum()} sites.")
        return remarks


def numbered(names: tuple[str, ...]) -> list[str]:
    """Names with a number where they repeat."""
    return [
        name if names.count(name) == 1 else f"{name} {names[: k + 1].count(name)}"
        for k, name in enumerate(names)
    ]
