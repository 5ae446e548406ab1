"""What a fit of FMLR-EM is, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedkin.algorithms import better_off
from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.models.estimates import LEVEL, Estimates, root_of, terms_of
from fedkin.models.grouped_regression import Noise, Parameters, unpack_noise
from fedkin.models.kinds_degrees_fit import KindsFit, Way
from fedkin.models.kinds_prediction import HARDLY_REGULAR
from fedkin.models.random_covariance import correlations
from fedkin.models.sandwich import LEAST_CLIENTS
from fedkin.names import counted
from fedkin.protocol import Memory, Result
from fedkin.protocol.runs import About
from fedkin.tables import Table
from fedkin.ties import RELATIVE, first_best

# The label of sites that no regression explains (robust=True).
NOISE_LABEL = -1
# What is compared, in words.
THIS_FIT, BY_DEGREES = "this fit", "the mixed model (one kind, by degrees)"
COMMON = "one common model"
NO_ERRORS = "the fit was made before standard errors were kept with it; fit again"
# What the columns of `curve` are.
CURVE = ("n_components", "loglik", "bic", "degrees", "own_noise", "considered")
ACCOUNT = {
    "statistics": "Each site sent its sums of products of features and target once.",
    "sums": "Each site sent its sums of products weighted by its group probabilities in every "
    "round. Labels were not sent, but can be inferred from one site's sums.",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class FmlrResult(Result):
    """K regressions of d coefficients, an intercept last; G groups: K, and one more with noise.

    `weights` (G,), `curve` a row with `CURVE` for everything that was tried, `noise` the packed
    noise group or empty, `responsibilities` (m, G) where they are known to the server, and with
    them every site's departure, coefficients and noise. Where sites depart from their kind or have
    noise of their own there is the `way`, the search's `numbers`, and the `statistics` (., k) of
    the sites `heard`. How sure the coefficients are: `coef_sandwich` (K, d, d) over sites with
    `coef_degrees` (K,) of freedom, or by the model where `coef_by_sites` (K,) says so;
    `coef_covariance` is by the model, given who belongs where.
    """

    for_all = ("coef", "sigma", "weights", "noise")
    for_one = (
        *("responsibilities", "effects", "site_coef", "site_sigma"),
        *("site_loglik", "site_rows"),
    )

    coef: Floats
    sigma: Array
    weights: Floats
    noise: Floats
    identified: Bools
    loglik: Array
    bic: Array
    coef_covariance: Floats
    converged: Array
    history_loglik: Floats
    curve: Floats
    site_loglik: Floats
    site_rows: Floats
    implausible: Bools
    random_covariance: Floats
    responsibilities: Floats | None = None
    way: Bools | None = None
    noise_shape: Array | None = None
    numbers: Floats | None = None
    statistics: Floats | None = None
    heard: Indices | None = None
    effects: Floats | None = None
    site_coef: Floats | None = None
    site_sigma: Floats | None = None
    coef_sandwich: Floats | None = None
    coef_degrees: Floats | None = None
    coef_by_sites: Bools | None = None
    # Errors to be expected of this fit, of one model and of all alone, (3,): `better_off`.
    expected_beside: Floats | None = None

    def with_memories(self, memories: Memory) -> FmlrResult:
        """With the responsibilities that sites kept to themselves, where they can be seen."""
        if self.responsibilities is not None or memories is None:
            return self
        heard = np.isfinite(self.site_loglik)[:, None]
        share = np.where(heard, memories["responsibilities"], self.weights)
        return self.with_responsibilities(share)

    def with_responsibilities(self, share: Floats | None) -> FmlrResult:
        """With (m, G) probabilities of groups, and what follows for sites that do not depart."""
        if share is None:
            return self
        own = self.regular_share(share) @ self.coef
        m, sigma = len(own), np.full(len(own), float(self.sigma))
        effects = np.zeros((m, self.coef.shape[1]))
        return replace(
            self, responsibilities=share, site_coef=own, effects=effects, site_sigma=sigma
        )

    def beside_others(self, statistics: Floats, heard: Indices, fit_intercept: bool) -> FmlrResult:
        """With errors to be expected, from the sums (q, k) of the sites `heard`; odd ones aside."""
        share, labels, own = self.responsibilities, self.labels, self.site_coef
        if share is None or labels is None or own is None or self.site_sigma is None:
            return self
        regular = labels[heard] != NOISE_LABEL
        sites, sums = heard[regular], np.ascontiguousarray(statistics.T[regular])
        if len(sites) < 2:
            return self
        noise, kinds = self.site_sigma[sites] ** 2, self.regular_share(share[sites])
        how = (own[sites], self.random_covariance, noise, kinds, fit_intercept)
        return replace(self, expected_beside=better_off.fit_beside_others(sums, *how))

    # ------------------------------------------------------------ what follows

    @property
    def n_components(self) -> int:
        """Number of regressions K."""
        return len(self.coef)

    @property
    def estimates(self) -> Estimates:
        """Coefficients of all regressions with their errors, (K, d)."""
        if self.coef_sandwich is None or self.coef_degrees is None:  # of a file of an older fit
            raise ValueError(NO_ERRORS)
        errors = root_of(np.einsum("kdd->kd", self.coef_sandwich))
        return Estimates(self.coef, errors, self.coef_degrees[:, None])

    def estimates_table(self, about: About, level: float = LEVEL) -> Table:
        """Coefficients with standard error, degrees of freedom, t, p and interval."""
        terms = terms_of(about.features, self.coef.shape[1])
        groups = {"component": np.arange(self.n_components)}
        return Table(self.estimates.by_group(groups, terms, level), "Coefficients")

    @property
    def parameters(self) -> Parameters:
        """As the model's functions take them, with one restart."""
        return Parameters(self.coef[None], self.sigma[None], self.weights[None])

    @property
    def noise_group(self) -> Noise | None:
        """The group of sites that no regression explains."""
        return unpack_noise(self.noise)

    @property
    def degrees(self) -> bool:
        """Whether sites depart from their kind."""
        return self.way is not None and bool(self.way[0])

    @property
    def own_noise(self) -> bool:
        """Whether every site has a noise of its own."""
        return self.way is not None and bool(self.way[1])

    def kinds(self) -> KindsFit:
        """The fit behind the result, where sites depart or have their own noise."""
        assert self.numbers is not None and self.noise_shape is not None
        return KindsFit(
            way=Way(self.degrees, self.own_noise),
            coef=self.coef,
            weights=self.weights,
            random_covariance=self.random_covariance,
            sigma=float(self.sigma),
            noise_shape=float(self.noise_shape),
            loglik=float(self.loglik),
            n_covariance=0,
            gradient=0.0,
            numbers=self.numbers,
            history=self.history_loglik,
        )

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
        """Likelihood and BIC of everything that was tried, and of what stands beside it."""
        columns = dict(zip(CURVE, self.curve.T))
        flags = {name: columns[name].astype(bool) for name in ("degrees", "considered")}
        noise = np.where(columns["own_noise"] > 0, "own", "common")
        shown = {name: columns[name] for name in CURVE[:3]}
        return Table(
            {
                **shown,
                "degrees": flags["degrees"],
                "site_noise": noise,
                "considered": flags["considered"],
            },
            "Number of components",
        )

    def _row(self, n_components: int, degrees: bool) -> Floats | None:
        """The row of the curve of one number of kinds with one noise; None if there is none."""
        wanted = np.array([n_components, degrees, False])
        rows = self.curve[(self.curve[:, [0, 3, 4]] == wanted).all(axis=1)]
        return rows[0] if len(rows) else None

    # ------------------------------------------------------------ in words

    def title(self, about: About) -> str:
        """The fit in half a line."""
        degrees = " with departures" if self.degrees else ""
        own = " (of a typical site)" if self.own_noise else ""
        word = "regression" if self.n_components == 1 else "regressions"
        return (
            f"{counted(len(about.sites), 'site')}, {self.n_components} {word}{degrees}, "
            f"noise {self.sigma:.4g}{own}, log likelihood {self.loglik:.6g}"
        )

    def tables(self, about: About) -> dict[str, Table]:
        """Regressions, sites, and the choice of their number."""
        tables = {"components": Table(self._components(about), "Regressions")}
        if self.coef_sandwich is not None:
            tables["estimates"] = self.estimates_table(about)
        if self.degrees:
            tables["departures"] = Table(self._departures(about), "Departures from the kinds")
        tables["sites"] = Table(self._sites(about), "Sites")
        return {**tables, "choice": self.choice()}

    def _departures(self, about: About) -> dict[str, Array]:
        names = [*map(str, about.features), "(intercept)"][: len(self.random_covariance)]
        rows: dict[str, Array] = {
            "column": np.array(names, dtype=object),
            "standard deviation": np.sqrt(np.diag(self.random_covariance)),
        }
        between = correlations(self.random_covariance)
        return rows | {f"corr {name}": between[:, j] for j, name in enumerate(names[:-1])}

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
        if self.own_noise and self.site_sigma is not None:
            rows["noise"] = self.site_sigma
        with np.errstate(invalid="ignore", divide="ignore"):
            rows["log likelihood per row"] = self.site_loglik / self.site_rows
        return rows

    def account(self, about: About) -> list[str]:
        """What left the sites."""
        return [ACCOUNT[about.settings.share]]

    def remarks(self, about: About) -> list[str]:
        """A choice at the end of its range, and regressions without a site."""
        remarks = [*self._compared(about)]
        open_choice = about.settings.n_components is None
        if open_choice and self.curve[:, 0].max() == self.n_components > 1:
            remarks.append(
                f"BIC still falls at {self.n_components} regressions, the most that were tried "
                "(max_components): sites may differ by degrees rather than by kind."
            )
        if not self.identified.all():
            which = ", ".join(map(str, np.flatnonzero(~self.identified)))
            remarks.append(f"Unidentified, because no site belongs to it: component {which}.")
        if self.coef_by_sites is not None and not self.coef_by_sites.all():
            which = ", ".join(map(str, np.flatnonzero(~self.coef_by_sites)))
            remarks.append(
                "Standard errors believe the model, because fewer than "
                f"{LEAST_CLIENTS:.0f} sites tell of it: component {which}."
            )
        return [*remarks, *better_off.in_words(self.expected_beside)]

    def _noise_for_levels(self, settings: Any) -> bool:
        """Whether own noises were likelier and were not taken."""
        columns = dict(zip(CURVE, self.curve.T))
        refused = (columns["own_noise"] > 0) & (columns["considered"] == 0)
        likelier = refused & (columns["bic"] < float(self.bic))
        return bool(settings.site_noise == "choose" and not self.own_noise and likelier.any())

    def _compared(self, about: About) -> list[str]:
        """Kinds, degrees and one model for all, beside each other."""
        settings, remarks = about.settings, []
        if self.degrees:
            kinds = "one kind" if self.n_components == 1 else f"{self.n_components} kinds"
            remarks.append(
                f"Sites differ by degrees: they are of {kinds} and depart from it, each by its own "
                "coefficients (site_coef_)."
            )
        named = {THIS_FIT: float(self.bic)}
        for words, degrees in ((BY_DEGREES, True), (COMMON, False)):
            row = self._row(1, degrees)
            if row is not None and not settings.told:
                named[words] = float(row[2])
        if len(named) > 1:
            told = ", ".join(f"{name} {bic:.1f}" for name, bic in named.items())
            better = min(named, key=lambda name: named[name])
            remarks.append(f"BIC on the same rows: {told}; the least is that of {better}.")
            if better == BY_DEGREES and not self.degrees:
                remarks.append(
                    "Sites differ by degrees rather than by kind: MixedModel, or degrees='choose', "
                    "describes them better."
                )
        if self._noise_for_levels(settings):
            remarks.append(
                "Noises of the sites' own would be likelier still, but they take levels of sites "
                "for noise: larger errors are to be expected of them at further rows than with one "
                "noise (site_noise='own' has them all the same)."
            )
        if settings.share != "statistics" and settings.degrees == "choose":
            remarks.append(
                "Whether sites differ by degrees was not looked at: that needs share='statistics'."
            )
        return remarks
