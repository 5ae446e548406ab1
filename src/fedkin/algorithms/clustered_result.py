"""What a fit of sites with a cluster each is, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.names import listed
from fedkin.protocol import Result
from fedkin.protocol.runs import About
from fedkin.tables import Table

# Coefficients shown in a table; more are for `cluster_coef_`.
SHOWN_FEATURES = 8
# The label of a site that has no cluster: not heard, or set aside.
NO_CLUSTER = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusteredResult(Result):
    """K clusters of m sites; models have d coefficients, the intercept last if there is one.

    `models` (m, d) are those that sites use, NaN for a site that was not heard; `local_models`
    their own. `choice_*` is how the number of clusters was chosen, `path_*` the convex path.
    `joined` (m,) are sites without a model of their own, which joined where their rows are
    likeliest; `population_model` (d,) is what an unknown site gets, None for the clusters' mean.
    """

    cluster_models: Floats
    models: Floats
    labels: Indices
    heard: Bools
    site_rows: Floats
    history_changes: Floats
    converged: Array | np.bool_ = np.True_
    aside: Bools | None = None
    implausible: Bools | None = None
    local_models: Floats | None = None
    joined: Bools | None = None
    population_model: Floats | None = None
    choice_candidates: Indices | None = None
    choice_curve: Floats | None = None
    choice_method: Array | None = None
    penalty: Array | None = None
    path_penalties: Floats | None = None
    path_labels: Indices | None = None
    path_n_clusters: Indices | None = None
    path_recovered: Bools | None = None
    path_linkage: Floats | None = None

    # ------------------------------------------------------------ what follows

    @property
    def n_clusters(self) -> int:
        """Number of clusters K."""
        return len(self.cluster_models)

    @property
    def counts(self) -> Indices:
        """Sites in every cluster, (K,)."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.n_clusters)

    @cached_property
    def population(self) -> Floats:
        """The mean model over all sites that have a cluster, (d,)."""
        if self.population_model is not None:
            return self.population_model
        if not self.counts.any():
            return self.cluster_models[0]
        return np.average(self.cluster_models, axis=0, weights=self.counts)

    @cached_property
    def usable_models(self) -> Floats:
        """Everybody's model (m, d); the population's for sites that were not heard."""
        return np.where(self.heard[:, None], self.models, self.population)

    def flagged(self, which: Bools | None) -> Bools:
        """Which sites have the mark, (m,); none has it where it was not looked for."""
        return np.zeros(len(self.labels), dtype=bool) if which is None else which

    def choice(self) -> Table | None:
        """The curve by which the number of clusters was chosen; None if it was not."""
        if self.choice_curve is None:
            return None
        columns = {"n_clusters": self.choice_candidates, "curve": self.choice_curve}
        return Table(columns, f"Number of clusters ({self.choice_method})")

    def path(self) -> dict[str, Array] | None:
        """The convex path by name; None if there is none."""
        parts = {n.removeprefix("path_"): self[n] for n in self if n.startswith("path_")}
        return parts or None

    # ------------------------------------------------------------ in words

    def title(self, about: About) -> str:
        """The fit in half a line."""
        return f"{len(about.sites)} sites, {self.n_clusters} clusters, {about.settings.loss} loss"

    def tables(self, about: About) -> dict[str, Table]:
        """Clusters, sites, and the choice of the clusters' number."""
        tables = {
            "clusters": Table(self._clusters(about), "Clusters"),
            "sites": Table(self._sites(about), "Sites"),
        }
        choice = self.choice()
        return tables if choice is None else {**tables, "choice": choice}

    def _clusters(self, about: About) -> dict[str, Array]:
        rows: dict[str, Array] = {"cluster": np.arange(self.n_clusters), "sites": self.counts}
        if about.settings.fit_intercept:
            rows["intercept"] = self.cluster_models[:, -1]
        for name, coef in zip(about.features[:SHOWN_FEATURES], self.cluster_models.T):
            # A feature called "sites" must not hide the sites.
            rows[f"coef[{name}]" if name in rows else name] = coef
        return rows

    def _sites(self, about: About) -> dict[str, Array]:
        rows: dict[str, Array] = {"site": about.sites, "cluster": self.labels}
        if np.isfinite(self.site_rows).any():
            rows["rows"] = self.site_rows
        if self.local_models is not None:
            apart = (self.local_models - self.usable_models)[:, : len(about.features)]
            rows["distance to cluster"] = np.linalg.norm(apart, axis=1)
        return {**rows, "set aside": self.flagged(self.aside)}

    def remarks(self, about: About) -> list[str]:
        """Coefficients that are not shown; sites that joined, and such as were set aside."""
        remarks = []
        if len(about.features) > SHOWN_FEATURES:
            n_more = len(about.features) - SHOWN_FEATURES
            remarks.append(f"{n_more} more coefficients: cluster_coef_")
        joined = about.sites[self.flagged(self.joined)]
        if len(joined):
            remarks.append(
                "Too few rows for a model of their own, joined where these are likeliest: "
                f"{listed(joined)}."
            )
        odd = about.sites[self.flagged(self.aside)]
        if len(odd):
            remarks.append(
                f"Set aside, far from every neighbour, with their own model: {listed(odd)}."
            )
        return remarks
