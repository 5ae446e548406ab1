"""What a fit of sites with a cluster each is, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.models.estimates import LEVEL, Estimates, terms_of
from fedkin.models.sandwich import LEAST_CLIENTS
from fedkin.names import counted, listed
from fedkin.protocol import Result
from fedkin.protocol.runs import About
from fedkin.tables import Table

# Coefficients shown in a table; more are for `cluster_coef_`.
SHOWN_FEATURES = 8
# The label of a site that has no cluster: not heard, or set aside.
NO_CLUSTER = -1
# Coefficients with their errors that a summary still shows.
SHOWN_ESTIMATES = 200
NO_ERRORS = (
    "what the sites sent does not tell how sure the clusters' models are; ODCL does, and averages "
    "of models over five sites and more"
)
NO_NOISE = (
    "what the sites sent does not tell how far a new target is from the model: fit with "
    "send='statistics' or 'covariance' (squared loss), or take conformalize"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusteredResult(Result):
    """K clusters of m sites; models have d coefficients, the intercept last if there is one.

    `models` (m, d) are those that sites use, NaN for a site that was not heard; `local_models`
    their own. `choice_*` is how the number of clusters was chosen, `path_*` the convex path.
    `joined` (m,) are sites without a model of their own, which joined where their rows are
    likeliest; `population_model` (d,) is what an unknown site gets, None for the clusters' mean.
    How sure the clusters' models are: standard `cluster_errors` (K, d), `cluster_covariance`
    (K, d, d) and `cluster_degrees` (K,) of freedom, over sites or by the model as
    `cluster_by_sites` (K,) says; noise variances of clusters with degrees of freedom (K,), and of
    sites (m,).
    """

    for_all = ("cluster_models", "cluster_noise")
    for_one = ("models", "labels", "site_noise", "site_rows")

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
    cluster_errors: Floats | None = None
    cluster_covariance: Floats | None = None
    cluster_degrees: Floats | None = None
    cluster_by_sites: Bools | None = None
    cluster_noise: Floats | None = None
    noise_degrees: Floats | None = None
    site_noise: Floats | None = None

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

    @property
    def estimates(self) -> Estimates:
        """Coefficients of all clusters with their errors, (K, d)."""
        if self.cluster_errors is None or self.cluster_degrees is None:
            raise ValueError(NO_ERRORS)
        return Estimates(self.cluster_models, self.cluster_errors, self.cluster_degrees[:, None])

    def estimates_table(self, about: About, level: float = LEVEL) -> Table:
        """Coefficients with standard error, degrees of freedom, t, p and interval."""
        terms = terms_of(about.features, self.cluster_models.shape[1])
        groups = {"cluster": np.arange(self.n_clusters)}
        return Table(self.estimates.by_group(groups, terms, level), "Coefficients")

    @property
    def tells_noise(self) -> bool:
        """Whether it is known how far new targets are from the models."""
        return self.cluster_noise is not None

    @cached_property
    def cluster_rows(self) -> Floats:
        """Rows behind every cluster, (K,)."""
        known = self.labels >= 0
        rows = np.nan_to_num(self.site_rows[known])
        return np.bincount(self.labels[known], rows, self.n_clusters).astype(np.float64)

    def around(self, X: Floats, cluster: int) -> tuple[Floats, Floats, Floats]:
        """Means, squared scales and degrees of freedom of new targets of rows X (n, d), (n,).

        Where a model's covariance is not known, its error is that of the average row.
        """
        if self.cluster_noise is None or self.noise_degrees is None:
            raise ValueError(NO_NOISE)
        noise, free = float(self.cluster_noise[cluster]), float(self.noise_degrees[cluster])
        average = noise * X.shape[1] / max(float(self.cluster_rows[cluster]), 1.0)
        own, own_free = np.full(len(X), average), free
        if self.cluster_covariance is not None and self.cluster_degrees is not None:
            found = np.einsum("nd,de,ne->n", X, self.cluster_covariance[cluster], X, optimize=True)
            own, own_free = np.where(np.isfinite(found), found, own), self.cluster_degrees[cluster]
        scales = noise + own
        degrees = scales**2 / (noise**2 / free + own**2 / own_free)
        return X @ self.cluster_models[cluster], scales, degrees

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
        return (
            f"{counted(len(about.sites), 'site')}, {counted(int(self.n_clusters), 'cluster')}, "
            f"{about.settings.loss} loss"
        )

    def tables(self, about: About) -> dict[str, Table]:
        """Clusters, sites, and the choice of the clusters' number."""
        tables = {
            "clusters": Table(self._clusters(about), "Clusters"),
            "sites": Table(self._sites(about), "Sites"),
        }
        if self.cluster_errors is not None and self.cluster_errors.size <= SHOWN_ESTIMATES:
            tables["estimates"] = self.estimates_table(about)
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
        if self.cluster_by_sites is not None and self.cluster_by_sites.any():
            remarks.append(
                "Standard errors are over the sites of a cluster, given who is in it; in clusters "
                f"of fewer than {LEAST_CLIENTS:.0f} sites they believe the model."
            )
        odd = about.sites[self.flagged(self.aside)]
        if len(odd):
            remarks.append(
                f"Set aside, far from every neighbour, with their own model: {listed(odd)}."
            )
        return remarks
