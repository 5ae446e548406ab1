"""What a fit of FMLR-EM is, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.models.grouped_regression import Noise, Parameters
from fedkin.protocol import Memory, Result
from fedkin.protocol.runs import About
from fedkin.tables import Table
from fedkin.ties import RELATIVE, first_best

# The label of sites that no regression explains (robust=True).
NOISE_LABEL = -1
# A site whose probability of all regressions together is less is taken for one of them by lot.
HARDLY_REGULAR = 1e-12
ACCOUNT = {
    "statistics": "Each site sent its sums of products of features and target once.",
    "sums": "Each site sent its sums of products weighted by its group probabilities in every "
    "round. Labels were not sent, but can be inferred from one site's sums.",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class FmlrResult(Result):
    """K regressions of d coefficients, an intercept last; G groups: K, and one more with noise.

    `weights` (G,), `curve` (number of components, log likelihood, BIC) per number tried, `noise`
    the packed noise group or empty, `responsibilities` (m, G) where they are known to the server.
    """

    for_all = ("coef", "sigma", "weights", "noise")
    for_one = ("responsibilities", "site_loglik", "site_rows")

    coef: Floats
    sigma: Array
    weights: Floats
    noise: Floats
    identified: Bools
    loglik: Array
    converged: Array
    history_loglik: Floats
    curve: Floats
    site_loglik: Floats
    site_rows: Floats
    implausible: Bools
    responsibilities: Floats | None = None

    def with_memories(self, memories: Memory) -> FmlrResult:
        """With the responsibilities that sites kept to themselves, where they can be seen."""
        if self.responsibilities is not None or memories is None:
            return self
        heard = np.isfinite(self.site_loglik)[:, None]
        share = np.where(heard, memories["responsibilities"], self.weights)
        return FmlrResult(**{**self, "responsibilities": share})

    # ------------------------------------------------------------ what follows

    @property
    def n_components(self) -> int:
        """Number of regressions K."""
        return len(self.coef)

    @property
    def parameters(self) -> Parameters:
        """As the model's functions take them, with one restart."""
        return Parameters(self.coef[None], self.sigma[None], self.weights[None])

    @property
    def noise_group(self) -> Noise | None:
        """The group of sites that no regression explains."""
        return Noise(self.noise[:-1], float(self.noise[-1])) if len(self.noise) else None

    @property
    def regular_weights(self) -> Floats:
        """Proportions of the regressions among themselves, (K,)."""
        regular = self.weights[: self.n_components]
        # If every site is odd, nothing is known of the proportions.
        total = float(regular.sum())
        return regular / total if total else np.full(self.n_components, 1 / self.n_components)

    def regular_share(self, share: Floats) -> Floats:
        """Probabilities (m, K) of the regressions, given that it is one of them, from (m, G)."""
        regular = share[:, : self.n_components]
        total = regular.sum(axis=1, keepdims=True)
        some = total > HARDLY_REGULAR
        return np.where(some, regular / np.where(total > 0, total, 1.0), self.regular_weights)

    @property
    def labels(self) -> Indices | None:
        """The likeliest group of every site, (m,); None where groups stayed at the sites."""
        if self.responsibilities is None:
            return None
        best = first_best(self.responsibilities, axis=1, floor=RELATIVE)
        return np.where(best < self.n_components, best, NOISE_LABEL)

    def choice(self) -> Table:
        """Likelihood and BIC for every number of components that was tried."""
        columns = ("n_components", "loglik", "bic")
        return Table(dict(zip(columns, self.curve.T)), "Number of components")

    # ------------------------------------------------------------ in words

    def title(self, about: About) -> str:
        """The fit in half a line."""
        return (
            f"{len(about.sites)} sites, {self.n_components} regressions, "
            f"noise {self.sigma:.4g}, log likelihood {self.loglik:.6g}"
        )

    def tables(self, about: About) -> dict[str, Table]:
        """Regressions, sites, and the choice of their number."""
        return {
            "components": Table(self._components(about), "Regressions"),
            "sites": Table(self._sites(about), "Sites"),
            "choice": self.choice(),
        }

    def _components(self, about: About) -> dict[str, Array]:
        with_intercept = about.settings.fit_intercept
        rows: dict[str, Array] = {
            "component": np.arange(self.n_components),
            "weight": self.regular_weights,
        }
        if self.labels is not None:
            regular = self.labels[(self.labels >= 0) & ~np.isnan(self.site_rows)]
            rows["sites"] = np.bincount(regular, minlength=self.n_components)
        rows["identified"] = self.identified
        if with_intercept:
            rows["intercept"] = self.coef[:, -1]
        for name, coef in zip(about.features, self.coef.T):
            # A feature called "weight" must not hide the weights.
            rows[f"coef[{name}]" if name in rows else name] = coef
        return rows

    def _sites(self, about: About) -> dict[str, Array]:
        rows: dict[str, Array] = {"site": about.sites, "rows": self.site_rows}
        if self.labels is not None and self.responsibilities is not None:
            rows["group"] = self.labels
            rows["probability"] = self.responsibilities.max(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            rows["log likelihood per row"] = self.site_loglik / self.site_rows
        return rows

    def account(self, about: About) -> list[str]:
        """What left the sites."""
        return [ACCOUNT[about.settings.share]]

    def remarks(self, about: About) -> list[str]:
        """A choice at the end of its range, and regressions without a site."""
        remarks = []
        open_choice = about.settings.n_components is None
        if open_choice and len(self.curve) == self.n_components > 1:
            remarks.append(
                f"BIC still falls at {self.n_components} regressions, the most that were tried "
                "(max_components): sites may differ by degrees rather than by kind."
            )
        if not self.identified.all():
            which = ", ".join(map(str, np.flatnonzero(~self.identified)))
            remarks.append(f"Unidentified, because no site belongs to it: component {which}.")
        return remarks
