"""What a fit of groups inside sites is, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from fedkin.arrays import Array, Bools, Floats
from fedkin.models.component_errors import ComponentErrors
from fedkin.models.estimates import LEVEL, Estimates, terms_of
from fedkin.names import counted, sites_listed
from fedkin.protocol import Memory, Result
from fedkin.protocol.runs import About
from fedkin.shrinkage import borrowed
from fedkin.tables import Table

# Outlier scores are about standard normal; a site with a higher one than this is pointed out.
ODD_SCORE = 4.0
# What left the sites, by field.
LEFT = {
    "components": "Each site sent its components in every round. A group of few rows at a site is "
    "told by its mean: a group of one row is that row.",
    "sums": "Each site sent its rows (or products of them) weighted by group and added up; sizes "
    "and means of its groups follow from these sums.",
    "variances": "Each site also sent the sampling variance of each of its components; the number "
    "of rows in each of its groups can be inferred from it.",
    "weights": "Each site also sent its mixture weights.",
    "counts": "Each site sent, for each of its groups, how many rows it has, their mean and their "
    "scatter: of a group of one row that is the row.",
    "class_means": "Each site also sent, for each class, how many of its rows have that label, and "
    "their mean: of one row that is the row.",
    "middle": "Each site also sent mean and variance of its columns.",
    "foretold": "Each site also sent, once, how likely its labels are by what is common elsewhere "
    "and its other labels, at several temperatures.",
    "blended": "And, once, how likely these are by two ways of foretelling them together.",
    "scatter": "Each site also sent the scatter of its rows about its components.",
    "residual": "Each site also sent the mean squared residual of its rows.",
    "spread": "Each site also sent the mean square of its target and of its features.",
    "moments": "Each site also sent sums of its x and of products of its x.",
    "curvature": "For standard errors each site also sent slope and curvature of its log "
    "likelihood at the end: products of its rows weighted by group.",
}
# What is said of a site that was not compared with others.
NOTHING_ODD: dict[str, Any] = {"outlier_score": np.nan, "ambiguous": False, "halvings": 0.0}
# A larger share of the probabilities of classes by labelled rows alone is remarked on.
MOSTLY = 0.75
NOT_JUDGED = (
    "No site told how likely left-out labels are (labels at a single site, or rules of the sites): "
    "probabilities of classes are those of the groups, which are often too sure."
)
WEIGHTS_STAYED = "Mixture weights stayed at the sites."
# Numbers of covariances that are kept with a fit.
MOST_COVARIANCES_KEPT = 1_000_000
# Sites whose groups may be matched otherwise are left out of standard errors; of more than this
# share of the sites there are none.
AMBIGUOUS_SHARE = 0.5
NO_ERRORS = (
    "the fit has no standard errors: they need one more message from every site; fit with "
    "standard_errors=True (and no more than 200 coefficients a site)"
)
AMBIGUOUS = (
    "at more than half of the sites groups could be matched otherwise (ambiguous_): what would be "
    "averaged are different groups, so there are no standard errors; take fewer components"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureResult(Result):
    """R components of m sites.

    `components` (m, R, p) and `centers` (R, p) are None where they stayed at the sites, as
    `weights` (m, R) and a `scale` (m, ...) of their own are until `with_memories`.
    """

    for_all: ClassVar[tuple[str, ...]] = ("centers", "covariance", "noise")
    for_one: ClassVar[tuple[str, ...]] = ("components", "weights", "scale", "site_rows")
    by_site: ClassVar[tuple[str, ...]] = (
        *("site_loglik", "site_rows", "outlier_score", "ambiguous", "halvings"),
        *("components", "weights", "scale"),
    )
    """Arrays with the sites as first axis, as the server has them."""
    by_round: ClassVar[tuple[str, ...]] = ()
    """What was noted in every round."""
    unneeded: ClassVar[tuple[str, ...]] = ()
    """What no prediction needs."""

    site_loglik: Floats
    site_rows: Floats
    converged: Array
    outlier_score: Floats = None  # type: ignore[assignment]
    ambiguous: Bools = None  # type: ignore[assignment]
    halvings: Floats = None  # type: ignore[assignment]
    components: Floats | None = None
    centers: Floats | None = None
    covariance: Floats | None = None
    noise: Floats | None = None
    between_variance: Floats | None = None
    weights: Floats | None = None
    scale: Floats | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in NOTHING_ODD.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.full(len(self.site_rows), value))

    def seen_by(self, k: int) -> Self:
        """What is shared, and the k-th site's own rows."""
        seen: dict[str, Any] = dict.fromkeys(self.unneeded)
        seen |= {name: self[name][k : k + 1] for name in self.by_site if name in self}
        seen |= {name: self[name][:0] for name in self.by_round}
        return replace(self, **seen)

    @property
    def heard(self) -> Bools:
        """Sites that have a part in the fit, (m,)."""
        return self.site_rows > 0

    @property
    def history(self) -> dict[str, Floats]:
        """What was noted in every round."""
        return {n.removeprefix("history_"): a for n, a in self.items() if n.startswith("history_")}

    def with_memories(self, memories: Memory, settings: Any) -> Self:
        """With what sites kept to themselves, where it can be seen.

        A site that was not heard gets the average weights and the median scale.
        """
        known, scale = memories or {}, self._shared_scale(settings)
        if scale is None and "scale" in known:
            own = known["scale"]
            scale = _where(self.heard, own, np.median(own[self.heard], axis=0))
        weights = self.or_average(known["weights"]) if "weights" in known else None
        return replace(self, weights=weights, scale=scale)

    def or_average(self, weights: Floats) -> Floats:
        """Weights (m, ...) in which the sites that have none get the others' average."""
        has = self.heard & (weights.reshape(len(weights), -1).sum(axis=1) > 0)
        return _where(has, weights, weights[has].mean(axis=0))

    def average_of(self, weights: Floats, settings: Any) -> Floats:
        """Average over sites of weights (m, ..., R), in the order of the centres."""
        average: Floats = weights[self.heard].mean(axis=0)
        return average

    def _shared_scale(self, settings: Any) -> Floats | None:
        """The noise of every site (m,), or the covariance of all (d, d), where they share it."""
        if settings.family == "regression":
            common = self.noise[0] if self.noise is not None and self.noise.size else None
            sigma = settings.sigma if settings.sigma is not None else common
            return None if sigma is None else np.full(len(self.site_rows), float(sigma))
        return self.covariance if self.covariance is not None and self.covariance.size else None

    # ------------------------------------------------------------ in words

    def title(self, about: About) -> str:
        """The fit in half a line."""
        kind = "regression" if about.settings.family == "regression" else "group"
        return (
            f"{counted(len(about.sites), 'site')}, {counted(self._n_groups(about), kind)}, "
            f"log likelihood {np.nansum(self.site_loglik):.6g}"
        )

    def tables(self, about: About) -> dict[str, Table]:
        """The population and the sites."""
        return {
            "centers": Table(self._population(about), "Population"),
            "sites": Table(self._sites(about), "Sites"),
        }

    def _n_groups(self, about: About) -> int:
        """Number of groups; where it was chosen, the centres tell."""
        return int(about.settings.n_components) if self.centers is None else len(self.centers)

    def _population(self, about: About) -> dict[str, Any]:
        columns: dict[str, Any] = {"group": np.arange(self._n_groups(about))}
        if self.weights is not None:
            columns["mean weight"] = self.average_of(self.weights, about.settings)
        if self.between_variance is not None and np.isfinite(self.between_variance).all():
            columns["spread between sites"] = np.sqrt(self.between_variance)
        if self.centers is not None:
            if about.settings.has_intercept:
                columns["intercept"] = self.centers[:, -1]
            columns |= dict(zip(about.features, self.centers.T))
        return columns

    def _sites(self, about: About) -> dict[str, Any]:
        columns: dict[str, Any] = {"site": about.sites, "rows": self.site_rows}
        with np.errstate(invalid="ignore", divide="ignore"):
            columns["log likelihood per row"] = self.site_loglik / self.site_rows
        if np.isfinite(self.outlier_score).any():
            columns["outlier score"] = self.outlier_score
            columns["groups ambiguous"] = self.ambiguous
        if self.weights is not None:
            columns |= {f"weight {r}": weight for r, weight in enumerate(self.weights.T)}
        return columns

    def account(self, about: About) -> list[str]:
        """What left the sites, from the fields that did."""
        skipped = {"scatter"} if "counts" in about.left else set()
        account = [s for name, s in LEFT.items() if name in about.left and name not in skipped]
        told = {"weights", "variances", "counts", "class_rows"} & set(about.left)
        return account if told else [*account, WEIGHTS_STAYED]

    def remarks(self, about: About) -> list[str]:
        """Sites unlike the others, and sites whose groups are hard to match."""
        remarks, odd = [], np.nan_to_num(self.outlier_score) > ODD_SCORE
        if odd.any():
            named = sites_listed(about.sites[odd])
            remarks.append(f"Unlike the others (outlier score above {ODD_SCORE:g}): {named}.")
        if self.ambiguous.any():
            named = sites_listed(about.sites[self.ambiguous])
            remarks.append(f"Groups could be matched otherwise at: {named}.")
        return remarks


@dataclass(frozen=True, kw_only=True, eq=False)
class JoinedResult(MixtureResult):
    """The fit of sites that exchanged components.

    With standard errors: of the centres (R, p) with `center_degrees` (1,) of freedom, over sites or
    by the model as `center_by_sites` (1,) says; of the sites' components (m, R, p) with theirs, and
    `component_covariance` (m, R, p, p).
    """

    by_round = ("history_change",)
    unneeded = (
        *("center_errors", "center_degrees", "center_by_sites"),
        *("component_errors", "component_degrees", "component_covariance"),
    )

    history_change: Floats
    center_errors: Floats | None = None
    center_degrees: Floats | None = None
    center_by_sites: Bools | None = None
    component_errors: Floats | None = None
    component_degrees: Floats | None = None
    component_covariance: Floats | None = None

    def with_errors(self, found: ComponentErrors) -> Self:
        """With standard errors; covariances only while they are not too many."""
        few = found.covariance.size <= MOST_COVARIANCES_KEPT
        return replace(
            self,
            center_errors=found.center,
            center_degrees=found.center_degrees,
            center_by_sites=found.by_sites,
            component_errors=found.sites,
            component_degrees=found.site_degrees,
            component_covariance=found.covariance if few else None,
        )

    def estimates(self, of: str = "centers") -> Estimates:
        """Centres (R, p), or components of sites (m, R, p), with their errors."""
        if self.center_errors is None or self.center_degrees is None:
            raise ValueError(NO_ERRORS)
        heard = self.heard
        if self.ambiguous[heard].sum() > AMBIGUOUS_SHARE * heard.sum():
            raise ValueError(AMBIGUOUS)
        if of == "sites":
            assert self.components is not None and self.component_errors is not None
            assert self.component_degrees is not None
            return Estimates(self.components, self.component_errors, self.component_degrees)
        assert self.centers is not None
        return Estimates(self.centers, self.center_errors, self.center_degrees[:, None])

    def estimates_table(self, about: About, level: float = LEVEL, of: str = "centers") -> Table:
        """Centres or sites' components with standard error, df, t, p and interval."""
        found = self.estimates(of)
        terms = terms_of(about.features, found.values.shape[-1])
        groups = np.arange(found.values.shape[-2])
        columns: dict[str, Any] = {"group": groups}
        if of == "sites":
            m = len(about.sites)
            columns = {"site": np.repeat(about.sites, len(groups)), "group": np.tile(groups, m)}
            shape = found.values.shape
            parts = (np.broadcast_to(part, shape).reshape(-1, shape[-1]) for part in found)
            found = Estimates(*parts)
        return Table(found.by_group(columns, terms, level), "Groups")

    def tables(self, about: About) -> dict[str, Table]:
        """Also the centres with their errors."""
        tables = super().tables(about)
        if self.center_errors is None or self.ambiguous.mean() > AMBIGUOUS_SHARE:
            return tables
        return {"centers": tables["centers"], "estimates": self.estimates_table(about), **tables}

    def remarks(self, about: About) -> list[str]:
        """Also what standard errors are of."""
        remarks = super().remarks(about)
        if self.center_errors is not None:
            remarks.append(
                "Standard errors of the population are those of the mean of all such sites; "
                "estimates(of='sites') has those of each site's own groups."
            )
        return remarks


@dataclass(frozen=True, kw_only=True, eq=False)
class FedGremResult(JoinedResult):
    """FedGrEM's fit; where groups have covariances of their own, with what they share.

    What is common: `covariances`, `between` (R, d, d), `degrees`, `concentration`, `known` (R,),
    and with all labels `shift` (d, d), how groups of a site are moved alike.
    Of sites: `scale` (m, R, d, d), `counts` (m, R) of rows, `lacking` (m, R), groups without rows,
    `implausible` (m,), who sent scatter that no rows can have; and for new rows `predictive`
    (m, R, d, d) and `freedom` (m, R).
    With labels `class_counts` (m, R) of rows that have them, and `temperatures` (2,), by which log
    probabilities of classes are divided at sites with labels and at others; ones if no site
    `judged` left-out labels. Where some rows have labels and others not, the same of classes, by
    labelled rows alone: `class_weights`, `class_means`, `class_predictive`, `class_freedom`. And,
    where left-out labels tell what is to be had by it, all of this by labelled rows alone, what is
    common, too (`taught_...`); `taught_alike` if covariances are one for all, `taught_share` (2,)
    by which probabilities of classes are theirs, at sites with labels and at others.
    """

    for_all = (
        *(*JoinedResult.for_all, "covariances", "temperatures"),
        *("taught_centers", "taught_covariances", "taught_temperatures", "taught_share"),
    )
    of_groups: ClassVar[tuple[str, ...]] = ("weights", "components", "predictive", "freedom")
    of_classes: ClassVar[tuple[str, ...]] = (
        *("class_weights", "class_means", "class_predictive", "class_freedom"),
    )
    of_taught: ClassVar[tuple[str, ...]] = (
        *("taught_weights", "taught_means", "taught_predictive", "taught_freedom"),
    )
    of_labels: ClassVar[tuple[str, ...]] = (*of_classes, *of_taught, "class_counts")
    for_one = (*JoinedResult.for_one, "predictive", "freedom", *of_labels)
    by_site = (
        *(*JoinedResult.by_site, "counts", "predictive", "freedom", "lacking", "implausible"),
        *of_labels,
    )

    covariances: Floats | None = None
    between: Floats | None = None
    degrees: Floats | None = None
    concentration: Floats | None = None
    counts: Floats | None = None
    known: Floats | None = None
    predictive: Floats | None = None
    freedom: Floats | None = None
    lacking: Bools | None = None
    implausible: Bools | None = None
    shift: Floats | None = None
    temperatures: Floats | None = None
    judged: Bools | None = None
    class_counts: Floats | None = None
    class_weights: Floats | None = None
    class_means: Floats | None = None
    class_predictive: Floats | None = None
    class_freedom: Floats | None = None
    taught_weights: Floats | None = None
    taught_means: Floats | None = None
    taught_predictive: Floats | None = None
    taught_freedom: Floats | None = None
    taught_centers: Floats | None = None
    taught_between: Floats | None = None
    taught_covariances: Floats | None = None
    taught_degrees: Floats | None = None
    taught_concentration: Floats | None = None
    taught_known: Floats | None = None
    taught_shift: Floats | None = None
    taught_alike: Bools | None = None
    taught_temperatures: Floats | None = None
    taught_share: Floats | None = None

    def with_memories(self, memories: Memory, settings: Any) -> Self:
        """With what sites kept, unless all is known at the server."""
        return self if self.shaped else super().with_memories(memories, settings)

    @property
    def shaped(self) -> bool:
        """Whether groups have covariances of their own."""
        return self.covariances is not None

    @property
    def common(self) -> borrowed.Common:
        """What groups have in common."""
        assert self.centers is not None and self.counts is not None
        n_estimates = np.array(float((self.counts > borrowed.FEW).sum()))
        shapes: tuple[Any, ...] = (self.between, self.covariances, self.degrees, self.concentration)
        everything: Any = (self.centers, *shapes, n_estimates, self.known, self.shift)
        return borrowed.Common(*everything)

    @property
    def taught(self) -> borrowed.Common:
        """What classes have in common by labelled rows alone."""
        assert self.class_counts is not None
        n_estimates = np.array(float((self.class_counts > borrowed.FEW).sum()))
        names = "centers", "between", "covariances", "degrees", "concentration", "known", "shift"
        parts: Any = {name: self[f"taught_{name}"] for name in names}
        return borrowed.Common(**parts, n_estimates=n_estimates)

    @property
    def kept_back(self) -> Floats:
        """Rows of every site (m,) whose groups did not leave, by its own rules."""
        assert self.counts is not None
        rest = self.site_rows - self.counts.sum(axis=1)
        by_rule = rest >= borrowed.LEAST_KEPT_BACK
        return np.where(
            by_rule if self.implausible is None else by_rule & ~self.implausible, rest, 0.0
        )

    def words_of_kept_back(self, names: Any) -> str:
        """Whose groups did not leave, and what is behind the fit then."""
        rest = self.kept_back
        named, told = sites_listed(names[rest > 0]), 1.0 - rest.sum() / self.site_rows.sum()
        return (
            f"Groups of few rows did not leave {named}, by the sites' own rules; there they have "
            f"the common mean and covariance. {told:.0%} of the rows are behind the groups."
        )

    def _words_of_taught(self) -> str:
        """How far unlabelled rows have a say in classes."""
        assert self.taught_share is not None
        share = float(self.taught_share[0])
        words = (
            f"Probabilities of classes are a blend: {share:.0%} by what is common to labelled rows "
            "alone, the rest by all rows, by how likely left-out labels are with each share."
        )
        if share <= MOSTLY:
            return words
        return f"{words} Groups that rows without labels make are not quite the classes here."

    def remarks(self, about: About) -> list[str]:
        """With the sites that lack groups."""
        remarks = super().remarks(about)
        if self.lacking is None:
            return remarks
        if self.kept_back.any():
            remarks.append(self.words_of_kept_back(about.sites))
        if self.class_means is not None:
            remarks.append(
                "A site's classes are told by what its labelled rows add to what is common; rows "
                "without a label tell of no more than what is common."
            )
        if self.taught_share is not None:
            remarks.append(self._words_of_taught())
        if self.judged is not None and not self.judged:
            remarks.append(NOT_JUDGED)
        n_sites = int(self.lacking.any(axis=1).sum())
        if n_sites:
            moved = "" if self.shift is None else ", moved as the site's others are,"
            remarks.append(
                f"At {n_sites} of {len(self.lacking)} sites groups have no rows; there they have "
                f"the common mean{moved} and covariance (lacking_)."
            )
        return remarks


def _where(rows: Bools, values: Floats, otherwise: Floats) -> Floats:
    """Values (m, ...) of some rows, and one value for all others."""
    return np.where(rows.reshape(-1, *[1] * (values.ndim - 1)), values, otherwise)
