"""What a fit of FGPR is, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from fedkin.algorithms.fgpr_common import MUCH_MISSED, CommonFit
from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.models.common_form import SPLINE, parameters
from fedkin.models.common_site import Shared, Units
from fedkin.models.common_site import form_of as common_form
from fedkin.models.estimates import LEVEL, Estimates
from fedkin.models.kernels import Form, default_spec, form_of
from fedkin.names import counted
from fedkin.protocol import Memory, Result
from fedkin.protocol.runs import About
from fedkin.tables import Table
from fedkin.ties import RELATIVE, first_best

# The standard deviation of fewer rows is off by a quarter and more.
FEW_FOR_A_SCALE = 10
NOTHING_LEARNT = (
    "Nothing was learnt: no site has two rows whose targets differ, so hyper-parameters are where "
    "the search began (or where weak priors put them) and predictions are not to be relied on."
)
NO_ERRORS = (
    "the fit has no standard errors: they need one more round; fit with standard_errors=True"
)
# What a common curve may be called.
CURVES = {SPLINE: "spline", np.inf: "RBF"}
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
    standardised target. `site_theta`, `site_freedom` (what holds those that are a site's own,
    `fgpr_sites`), `responsibilities` and `jitter` stay at the sites and are there when these are in
    this process.

    With a common curve: `common_theta` (S, p) with `common_weights` (S,) are its parameters in the
    frame of all sites (`common_frame` (2, d), `common_units` (2,)), `common_mean` (S, F) and
    `common_covariance` (S, F, F) the weights of its features at `common_places` (M, d);
    `common_bound` is the bound of the log likelihood at its mode and `common_missed` what the
    points lose of it per row. `left_out` (m, 2, 2) is the log density of each site's rows, each
    left out and all left out, without and with it; `site_common` (m + 1,) says who uses it, last
    those not seen, and `common_heard` (m,) whose rows are behind it. `theta_errors` (P, p) are
    standard errors of `theta`, NaN at a bound.
    """

    for_all = (
        *("theta", "weights", "spread", "target"),
        *("common_theta", "common_weights", "common_frame", "common_units"),
        *("common_places", "common_kinds", "common_mean", "common_covariance"),
    )
    for_one = ("site_theta", "site_common", "site_rows")

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
    site_freedom: Floats | None = None
    responsibilities: Floats | None = None
    jitter: Floats | None = None
    common_theta: Floats | None = None
    common_weights: Floats | None = None
    common_frame: Floats | None = None
    common_units: Floats | None = None
    common_places: Floats | None = None
    common_kinds: Floats | None = None
    common_mean: Floats | None = None
    common_covariance: Floats | None = None
    common_bound: Array | None = None
    common_missed: Array | None = None
    common_tried: Floats | None = None
    left_out: Floats | None = None
    site_common: Bools | None = None
    common_heard: Bools | None = None
    theta_errors: Floats | None = None

    def with_common(self, fit: CommonFit, left_out: Floats | None, use: Bools) -> Self:
        """With a common curve, who uses it, and what rows left out said of it, if anything."""
        shared = fit.shared
        return replace(
            self,
            converged=np.array(bool(self.converged) and fit.converged),
            common_theta=shared.theta,
            common_weights=shared.weights,
            common_frame=shared.units.frame,
            common_units=shared.units.target,
            common_places=shared.places,
            common_kinds=shared.kinds,
            common_mean=shared.mean,
            common_covariance=shared.covariance,
            common_bound=np.array(fit.bound),
            common_missed=np.array(fit.missed),
            common_tried=fit.tried,
            left_out=left_out,
            site_common=use,
            common_heard=fit.heard,
        )

    @property
    def shared(self) -> Shared | None:
        """The common curve, if one was looked for."""
        if self.common_theta is None:
            return None
        return Shared(
            Units(self["common_frame"], self["common_units"]),
            self["common_places"],
            self["common_kinds"],
            self["common_theta"],
            self["common_weights"],
            self["common_mean"],
            self["common_covariance"],
        )

    @property
    def uses_common(self) -> Bools:
        """Whether each site, and last those not seen, predicts with the common curve, (m + 1,)."""
        if self.site_common is None:
            return np.zeros(len(self.site_own) + 1, dtype=bool)
        return self.site_common.astype(bool)

    def with_memories(self, memories: Memory) -> Self:
        """With what sites keep to themselves, where it can be seen; unheard ones as all others."""
        if memories is None:
            return self
        heard = np.isfinite(self.site_loglik)[:, None]
        return replace(
            self,
            site_theta=np.where(heard, memories["theta"], self.theta[0]),
            site_freedom=memories["freedom"],
            responsibilities=np.where(heard, memories["responsibilities"], self.weights),
            jitter=memories["jitter"],
        )

    def seen_by(self, k: int) -> Self:
        """The priors, the common curve and the k-th site's own row; nothing of the search."""
        own = ("site_loglik", "site_own", "site_rows", "common_heard")
        rows = {name: self[name][k : k + 1] for name in own if name in self}
        searched = {n: self[n][:0] for n in ("history_theta", "history_value", "curve")}
        use = None if self.site_common is None else self.site_common[[k, -1]]
        return replace(
            self,
            **rows,
            **searched,
            loglik=self.site_loglik[k],
            site_common=use,
            left_out=None,
            common_bound=None,
            common_missed=None,
            common_tried=None,
            theta_errors=None,
        )

    def shared_by(self, n_clients: int) -> Self:
        """The fit of one client that held everybody's rows; no site's own likelihood is known."""
        nobody = np.full(n_clients, np.nan)
        own = np.repeat(self.site_own, n_clients)
        return replace(self, site_loglik=nobody, site_own=own, site_rows=nobody)

    # ------------------------------------------------------------ what follows

    def common_parameters(self) -> dict[str, Any] | None:
        """Most probable variances and lengths of common curve and departures, in data's units."""
        shared = self.shared
        if shared is None:
            return None
        likeliest = int(first_best(shared.weights, floor=RELATIVE))
        form = common_form(shared.kinds[likeliest], shared.places)
        part = parameters(form, shared.theta[likeliest])
        scale = float(shared.units.target[1]) ** 2
        spread = shared.units.frame[1]
        return {
            "common variance": scale * part.common,
            "common lengths": np.where(form.common == SPLINE, np.nan, spread * part.common_lengths),
            "level variance": scale * part.level,
            "slope variance": scale * part.slope,
            "own variance": scale * part.own,
            "own lengths": spread * part.own_lengths,
            "pivot": shared.units.frame[0] + spread * part.pivot,
            "growth": part.growth / spread[: form.n_growth],
            "haste": part.haste / spread[: form.n_haste],
            "noise variance": scale * part.noise,
            "own smoothness": float(form.own),
            "common curve": CURVES.get(form.common, f"Matern-{form.common:g}"),
        }

    @property
    def estimates(self) -> Estimates:
        """Log hyper-parameters of all priors with their errors, (P, p)."""
        if self.theta_errors is None:
            raise ValueError(NO_ERRORS)
        return Estimates(self.theta, self.theta_errors, np.full(1, np.inf))

    def common_estimates(self) -> tuple[list[str], Estimates] | None:
        """Names and logs of what the common curve has, (1, q), with errors from its cloud.

        Of the likeliest smoothness, in units of target and features, and as they are pivot, growth
        and haste; None without a common curve.
        """
        shared = self.shared
        if shared is None:
            return None
        best = int(first_best(shared.weights, floor=RELATIVE))
        middle, spread = shared.units.frame[:2]
        names = common_form(shared.kinds[best], shared.places).names
        is_length, is_pivot, is_growth, is_haste = (
            np.array([word in name for name in names])
            for word in ("length", "pivot", "growth", "haste")
        )
        bent = np.asarray(shared.theta[:, is_haste].any(axis=1))
        alike = (shared.kinds == shared.kinds[best]).all(axis=1) & (shared.weights > 0)
        alike &= bent == bent[best]
        weights = shared.weights[alike] / shared.weights[alike].sum()
        units = np.full(len(names), 2.0 * np.log(float(shared.units.target[1])))
        factor = np.ones(len(names))
        units[is_length] = np.tile(np.log(spread), int(is_length.sum()) // len(spread))
        units[is_pivot], factor[is_pivot] = middle, spread
        for rate in (is_growth, is_haste):
            units[rate], factor[rate] = 0.0, 1.0 / spread[: rate.sum()]
        there = np.isfinite(shared.theta[best]) & (bent[best] | ~is_haste)
        points = (factor * shared.theta[alike] + units)[:, there]
        mean = weights @ points
        errors = np.sqrt(weights @ (points - mean) ** 2)
        found = Estimates(mean[None], errors[None], np.full(1, np.inf))
        logs = [f"log {name}" for name in numbered(names)]
        told = np.where(is_pivot | is_growth | is_haste, numbered(names), logs)
        return list(map(str, told[there])), found

    def estimates_table(self, about: About, level: float = LEVEL) -> Table:
        """Log hyper-parameters with standard error, degrees of freedom, t, p and interval."""
        names = [f"log {name}" for name in numbered(self.form(about.settings).names)]
        common, columns = self.common_estimates(), {}
        if self.theta_errors is not None:
            of = {"of": [f"prior {k}" for k in range(len(self.theta))]}
            columns = self.estimates.by_group(of, names, level)
        if common is not None:
            more = common[1].by_group({"of": ["common curve"]}, common[0], level)
            columns = {
                n: np.concatenate([columns.get(n, part[:0]), part]) for n, part in more.items()
            }
        if not columns:
            raise ValueError(NO_ERRORS)
        return Table(columns, "Log hyper-parameters")

    def form(self, settings: FgprSettings) -> Form:
        """The kernel's form: that of the settings, or the default for these sites."""
        spec = settings.kernel or default_spec(self.spread, float(self.target[3]))
        return form_of(spec, len(self.spread))

    @property
    def learnt(self) -> bool:
        """Whether any rows taught anything."""
        return bool(np.isfinite(self.loglik))

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
        sites, priors = counted(len(about.sites), "site"), counted(len(self.weights), "prior")
        if not self.learnt:
            return f"{sites}, nothing learnt"
        if self.common_bound is not None and self.uses_common[-1]:
            around = int(self.uses_common[:-1].sum())
            bound = f"log likelihood at least {self.common_bound:.6g}"
            return f"{sites}, {around} of them around a common curve, {bound}"
        return f"{sites}, {priors}, log likelihood {self.loglik:.6g}"

    def tables(self, about: About) -> dict[str, Table]:
        """Priors, sites, and the choice of their number."""
        tables = {
            "priors": self.priors(about.settings),
            "sites": Table(self._sites(about), "Sites"),
            "choice": self.choice(),
        }
        if self.common_theta is not None:
            tables["common"] = self._common_table(about)
        if self.theta_errors is not None:
            tables["estimates"] = self.estimates_table(about)
        return tables

    def _common_table(self, about: About) -> Table:
        """The parts of a site's curve around the common one."""
        found = self.common_parameters()
        assert found is not None
        lengths = [found["common lengths"], found["own lengths"]]
        nothing = np.full(len(about.features), np.nan)
        rows: dict[str, Any] = {
            "part": ["common curve", "own level", "own slope", "own curve", "noise"],
            "variance": [
                found[f"{part} variance"] for part in ("common", "level", "slope", "own", "noise")
            ],
        }
        each = np.array([lengths[0], nothing, nothing, lengths[1], nothing])
        rows |= {f"length, {name}": each[:, j] for j, name in enumerate(about.features)}
        return Table(rows, "Common curve and departures from it")

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
        if self.left_out is not None:
            rows["common"] = self.uses_common[:-1]
            gain = self.left_out[:, 0, 1] - self.left_out[:, 0, 0]
            with np.errstate(invalid="ignore", divide="ignore"):
                rows["gain per row by it"] = gain / self.site_rows
        if self.jitter is not None:
            rows["jitter"] = self.jitter
        return rows

    def account(self, about: About) -> list[str]:
        """What left the sites, and what did not."""
        optimizer = about.settings.optimizer
        account = [SENT[optimizer]]
        if self.common_theta is not None:
            asked = self.left_out is not None
            account.append(
                "For the common curve each site sent sums over its rows, with slopes in every "
                "round of the search: a site of few rows can be read from them."
                + " At the end it sent the log density of its rows, left out, without and with the "
                "common curve." * asked
            )
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
        remarks = [] if self.learnt else [NOTHING_LEARNT]
        if self.left_out is not None:
            remarks.append(self._gain_in_words())
        if self.common_missed is not None and self.common_missed > MUCH_MISSED:
            remarks.append(
                f"{len(self['common_places'])} points carry the common curve with a loss of "
                f"{self.common_missed:.2g} in log likelihood per row; n_points= takes more."
            )
        large = int((rows > settings.max_points).sum())
        if large:
            nearest = settings.large_sites == "neighbours"
            remarks.append(
                f"{large} sites have more than max_points={settings.max_points} rows: trained on "
                "random pieces of that size, predicted from "
                f"{'the nearest rows' if nearest else 'a random subset'}."
            )
        few = int(((rows > 0) & (rows < FEW_FOR_A_SCALE)).sum())
        if few and settings.normalize_y is True and not self.uses_common[-1]:
            remarks.append(
                f"{few} sites have fewer than {FEW_FOR_A_SCALE} rows and are standardised by their "
                "own spread, which they hardly know: their bands are too narrow. If sites are in "
                "the same units, normalize_y='mean' shares the scale."
            )
        if self.jitter is not None and self.jitter.any():
            remarks.append(f"Jitter was needed at {(self.jitter > 0).sum()} sites.")
        return remarks

    def _gain_in_words(self) -> str:
        """What the common curve gains at rows left out."""
        assert self.left_out is not None
        gain = self.left_out[:, 0, 1] - self.left_out[:, 0, 0]
        rows = max(float(np.nansum(self.site_rows)), 1.0)
        uses = "use" if self.uses_common[-1] else "do not use"
        return (
            f"Rows left out have a log density higher by {gain.sum() / rows:.3g} per row with the "
            f"common curve; it helps {(gain > 0).sum()} of {len(gain)} sites. Sites not in the fit "
            f"{uses} it."
        )


def numbered(names: tuple[str, ...]) -> list[str]:
    """Names with a number where they repeat."""
    return [
        name if names.count(name) == 1 else f"{name} {names[: k + 1].count(name)}"
        for k, name in enumerate(names)
    ]
