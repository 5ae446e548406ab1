"""The meta-analyst's face: estimates of sites, one each, and what they say together.

Names and conventions are those of metafor (Viechtbauer 2010): the random-effects model
estimate_k = mu + u_k + error_k with u_k ~ N(0, tau^2), tau^2 by REML, DerSimonian and Laird, or
Paule and Mandel; its interval by the profile of Q (Viechtbauer 2007); I^2 with the typical error
variance of Higgins and Thompson.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedkin.arrays import Floats
from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics, sampling_covariances, solve_many
from fedkin.tables import Summary, Table

METHODS = ("REML", "DL", "PM", "FE")
# Steps of a search for tau^2, and when it stands still.
STEPS = 200
TOLERANCE = 1e-12
# tau^2 is looked for up to this multiple of the estimates' variance.
FAR = 1e4


class Pooled(NamedTuple):
    """A weighted mean: estimate, standard error, ends of its interval, z and its chance."""

    estimate: float
    error: float
    low: float
    high: float
    z: float
    chance: float


@dataclass(frozen=True)
class MetaAnalysis:
    """Estimates of sites together; prints as tables.

    Attributes
    ----------
    names, estimates, errors : of the sites that have one
    method : {"REML", "DL", "PM", "FE"}
    level : float
        Of all intervals.
    pooled : Pooled
        The mean over sites.
    tau2, tau2_low, tau2_high : float
        Variance between sites and its interval.
    Q, Q_chance : float
        Cochran's test of one value for all sites.
    I2, H2 : float
        Share of the variance that lies between sites, in percent; total over error variance.
    prediction : (float, float)
        Interval of the value at a further site.
    """

    names: tuple[str, ...]
    estimates: Floats
    errors: Floats
    method: str
    level: float
    pooled: Pooled
    tau2: float
    tau2_low: float
    tau2_high: float
    Q: float
    Q_chance: float
    I2: float
    H2: float
    prediction: tuple[float, float]

    @property
    def weights(self) -> Floats:
        """Weights of the sites in percent."""
        weights = 1.0 / (self.errors**2 + self.tau2)
        return np.asarray(100.0 * weights / weights.sum())

    def table(self) -> Table:
        """Every site with its interval and weight."""
        half = _normal(self.level) * self.errors
        columns = {
            "site": list(self.names),
            "estimate": self.estimates,
            "error": self.errors,
            "low": self.estimates - half,
            "high": self.estimates + half,
            "weight %": self.weights,
        }
        return Table(columns, "Sites")

    def leave_one_out(self) -> Table:
        """The analysis without each of the sites."""
        rows = []
        for k in range(len(self.names)):
            kept = np.arange(len(self.names)) != k
            names = [n for n, here in zip(self.names, kept) if here]
            found = meta_analysis(
                self.estimates[kept], self.errors[kept], names, self.method, self.level
            )
            rows.append((*found.pooled[:4], found.Q, found.tau2, found.I2))
        words = ("estimate", "error", "low", "high", "Q", "tau^2", "I^2 %")
        columns = dict(zip(words, np.array(rows).T))
        return Table({"without": list(self.names), **columns}, "Leaving one out")

    def asymmetry(self) -> tuple[float, float]:
        """Egger's regression test of the funnel: z of the errors' slope, and its chance.

        As metafor's regtest: weights with tau^2 of the model with that slope are those of the
        model without, so that no second search is needed.
        """
        from scipy.stats import norm

        design = np.column_stack([np.ones(len(self.names)), self.errors])
        weights = 1.0 / (self.errors**2 + self.tau2)
        inverse = np.linalg.inv(design.T @ (weights[:, None] * design))
        coef = inverse @ (design.T @ (weights * self.estimates))
        z = float(coef[1] / np.sqrt(inverse[1, 1]))
        return z, float(2 * norm.sf(abs(z)))

    def summary(self) -> Summary:
        """The whole as tables."""
        mean = self.pooled
        words = {
            "mean over sites": mean.estimate,
            "standard error": mean.error,
            "low": mean.low,
            "high": mean.high,
            "a further site: low": self.prediction[0],
            "a further site: high": self.prediction[1],
            "tau^2": self.tau2,
            "tau^2 low": self.tau2_low,
            "tau^2 high": self.tau2_high,
            "I^2 %": self.I2,
            "Q": self.Q,
            "p of Q": self.Q_chance,
        }
        facts = Table({"what": list(words), "value": np.array(list(words.values()))}, "Together")
        title = f"Meta-analysis of {len(self.names)} sites ({self.method})"
        return Summary(title, {"together": facts, "sites": self.table()})

    def __str__(self) -> str:
        return str(self.summary())

    def forest(self, ax: Any = None) -> Any:
        """Forest plot: sites, their mean, and the interval of a further site; returns the axes."""
        from fedkin.inference.pictures import new_axes

        m = len(self.names)
        axes = new_axes(1.5 + 0.22 * m, ax)
        half = _normal(self.level) * self.errors
        size = 20.0 + 8.0 * self.weights * m / 100.0
        place = np.arange(m)[::-1] + 2
        axes.hlines(place, self.estimates - half, self.estimates + half, color="0.4", lw=1)
        axes.scatter(self.estimates, place, s=size, marker="s", color="#0072B2", zorder=3)
        mean = self.pooled
        axes.hlines(0.5, *self.prediction, color="#D55E00", lw=1.5)
        axes.fill([mean.low, mean.estimate, mean.high, mean.estimate], [0.5, 0.8, 0.5, 0.2], "k")
        axes.axvline(mean.estimate, color="0.7", lw=0.8, ls=":")
        axes.set_yticks([*place, 0.5], [*self.names, "mean, further site"], fontsize=7)
        return axes

    def funnel(self, ax: Any = None) -> Any:
        """Funnel plot: estimates against their errors; returns the axes."""
        from fedkin.inference.pictures import new_axes

        axes = new_axes(4.0, ax)
        axes.scatter(self.estimates, self.errors, s=18, color="#0072B2")
        top, middle = float(self.errors.max()) * 1.05, self.pooled.estimate
        reach = _normal(self.level) * top
        axes.plot([middle - reach, middle, middle + reach], [top, 0.0, top], color="0.6", lw=1)
        axes.axvline(middle, color="0.6", lw=0.8)
        axes.set(xlabel="estimate", ylabel="standard error", ylim=(top, 0.0))
        return axes


def meta_analysis(
    estimates: Any,
    errors: Any,
    names: Sequence[str] | None = None,
    method: str = "REML",
    level: float = 0.95,
) -> MetaAnalysis:
    """What sites' estimates say together.

    Parameters
    ----------
    estimates, errors : arrays of shape (m,)
        One estimate a site, such as a coefficient, and its standard error. Sites without either
        (NaN, or an error of 0) have no part.
    names : sequence of str or None
        Of the sites.
    method : {"REML", "DL", "PM", "FE"}
        How the variance between sites is estimated; "FE" takes it to be 0.
    level : float
        Of all intervals.
    """
    from scipy.stats import chi2, norm

    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    y, s = np.asarray(estimates, dtype=float), np.asarray(errors, dtype=float)
    if y.shape != s.shape or y.ndim != 1:
        raise ValueError(f"estimates and errors must be alike, not {y.shape} and {s.shape}")
    called = tuple(map(str, names)) if names is not None else tuple(map(str, range(len(y))))
    usable = np.isfinite(y) & np.isfinite(s) & (s > 0)
    if usable.sum() < 2:
        raise ValueError("a meta-analysis needs at least two sites with an estimate and its error")
    y, v = y[usable], s[usable] ** 2
    m = len(y)
    Q = _q(y, v, 0.0)
    tau2 = {"REML": _reml, "DL": _dersimonian_laird, "PM": _paule_mandel, "FE": _nothing}[method](
        y, v
    )
    weights = 1.0 / (v + tau2)
    mean, error = float(weights @ y / weights.sum()), float(1.0 / np.sqrt(weights.sum()))
    z, reach = mean / error, _normal(level) * error
    pooled = Pooled(mean, error, mean - reach, mean + reach, z, float(2 * norm.sf(abs(z))))
    fixed = 1.0 / v
    typical = float((m - 1) * fixed.sum() / (fixed.sum() ** 2 - (fixed**2).sum()))
    low, high = _q_profile(y, v, level) if method != "FE" else (0.0, 0.0)
    wide = _normal(level) * float(np.sqrt(tau2 + error**2))
    return MetaAnalysis(
        names=tuple(n for n, here in zip(called, usable) if here),
        estimates=y,
        errors=np.sqrt(v),
        method=method,
        level=level,
        pooled=pooled,
        tau2=tau2,
        tau2_low=low,
        tau2_high=high,
        Q=Q,
        Q_chance=float(chi2.sf(Q, m - 1)),
        I2=100.0 * tau2 / (tau2 + typical),
        H2=(tau2 + typical) / typical,
        prediction=(mean - wide, mean + wide),
    )


def site_estimates(
    X: Any, y: Any = None, groups: Any = None, fit_intercept: bool = True
) -> tuple[tuple[str, ...], Floats, Floats]:
    """Names, coefficients (m, p) and standard errors (m, p) of every site's own least squares.

    The intercept comes last. NaN where a site's rows do not determine them. `X` may be a
    Federation.
    """
    data = X if isinstance(X, Federation) else Federation.from_groups(X, groups, y)
    statistics = packed_statistics(data, fit_intercept).T
    coef, _ = solve_many(statistics)
    covariance = sampling_covariances(statistics, coef, 0.0, fit_intercept)
    error = np.sqrt(np.einsum("mpp->mp", covariance))
    known = (error > 0).all(axis=1)
    coef, error = coef.copy(), error.copy()
    coef[~known], error[~known] = np.nan, np.nan
    return data.names, coef, error


# ------------------------------------------------------------------ the variance between sites


def _normal(level: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(0.5 + level / 2))


def _q(y: Floats, v: Floats, tau2: float) -> float:
    weights = 1.0 / (v + tau2)
    mean = weights @ y / weights.sum()
    return float(weights @ (y - mean) ** 2)


def _nothing(y: Floats, v: Floats) -> float:
    return 0.0


def _dersimonian_laird(y: Floats, v: Floats) -> float:
    weights = 1.0 / v
    scale = weights.sum() - (weights**2).sum() / weights.sum()
    return max(0.0, float((_q(y, v, 0.0) - (len(y) - 1)) / scale))


def _paule_mandel(y: Floats, v: Floats) -> float:
    return _where_q_is(y, v, float(len(y) - 1))


def _where_q_is(y: Floats, v: Floats, wanted: float) -> float:
    """tau^2 at which Q falls to a value; 0 if it is below from the start."""
    from scipy.optimize import brentq

    if _q(y, v, 0.0) <= wanted:
        return 0.0
    high = FAR * (float(np.var(y)) + float(v.max()))
    return float(brentq(lambda tau2: _q(y, v, tau2) - wanted, 0.0, high, xtol=1e-14))


def _q_profile(y: Floats, v: Floats, level: float) -> tuple[float, float]:
    from scipy.stats import chi2

    ends = chi2.ppf([0.5 + level / 2, 0.5 - level / 2], len(y) - 1)
    low, high = (_where_q_is(y, v, float(end)) for end in ends)
    return low, high


def _reml(y: Floats, v: Floats) -> float:
    """Fisher's scoring of the restricted likelihood, from DerSimonian and Laird's value."""
    tau2 = _dersimonian_laird(y, v)
    for _ in range(STEPS):
        weights = 1.0 / (v + tau2)
        total = weights.sum()
        residual = y - weights @ y / total
        slope = (weights**2) @ residual**2 - total + (weights**2).sum() / total
        second, third = (weights**2).sum(), (weights**3).sum()
        information = second - 2.0 * third / total + (second / total) ** 2
        new = max(0.0, float(tau2 + slope / information))
        moved, tau2 = abs(new - tau2), new
        if moved <= TOLERANCE * (tau2 + float(v.min())):
            break
    return tau2
