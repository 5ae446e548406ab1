"""Before any data move: what error to expect alone, joined and as one, and what joining will gain.

Sites have n rows of d standardised columns and an intercept (p = d + 1 terms), noise s^2, and
coefficients that are normal about common ones with variance v ("by degrees"), or one of K sets
("by kind"). What is planned is the mean squared error of predicted means at a new row of a site.

| way | excess error | why |
|---|---|---|
| alone | s^2 ((n+1)(n-2) / (n (n-d-2)) - 1) | least squares with normal columns, exact |
| by degrees | sum of t + b^2 (v + w) / m + (v + w) E q (b^ - b)^2 | terms, centre, pull |
| one model | p v (1 + 1/m) + s^2 p / (m n - p - 1) | every site is off by its own departure |
| by kind | s^2 K p / (m n) | least squares of each kind, once sites are told apart |

Of the intercept 1/t' = 1/v + n / (s^2 + d t), of a slope 1/t = 1/v + (n - 1 + t'/v) / (s^2 + p t),
by the spectrum of X'X: exact without columns (v s/(v + s)) and without a prior (least squares).
w = t v / (v - t) is the error variance of a site's own coefficients, b = w / (v + w) how far they
are pulled to the centre, b^ the same with the spread that the sites show, and q the mean square of
their departures over the expected one, which b^ comes from (chi squared). Kinds that are not surely
told apart are simulated (`kinds_planning`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedkin.arrays import Floats
from fedkin.tables import Table

# The most rows or sites that are looked at when an answer is sought.
MOST = 1_000_000
# Slopes and intercept are found from each other; a handful of passes is enough.
PASSES = 30
# Sites that are alike are spread by this share of the noise variance, so that nothing is divided
# by zero.
ALIKE = 1e-12
# Values by which the law of an estimated spread is summed up, and that of the noise.
QUANTILES, NOISE_QUANTILES = 200, 20
WAYS = ("alone", "by degrees", "one model")


@dataclass(frozen=True)
class Plan:
    """Expected errors of a federation that is yet to be; prints as a table.

    Attributes
    ----------
    n_sites, n_rows, n_features : int
        Sites, rows a site, columns.
    noise : float
        Standard deviation of the noise.
    heterogeneity : float
        Standard deviation of sites' coefficients about the common ones.
    """

    n_sites: int
    n_rows: int
    n_features: int
    noise: float = 1.0
    heterogeneity: float = 0.0

    def __post_init__(self) -> None:
        if min(self.n_sites, self.n_rows) < 1 or self.n_features < 0:
            raise ValueError("there must be at least one site, one row and no negative columns")
        if not (self.noise > 0 and self.heterogeneity >= 0):
            raise ValueError("noise must be positive and heterogeneity not negative")

    @property
    def n_terms(self) -> int:
        """Columns and the intercept."""
        return self.n_features + 1

    # ------------------------------------------------------------ expected excess errors

    @property
    def alone(self) -> float:
        """Excess error of a site's own least squares; infinite without enough rows."""
        n, d = self.n_rows, self.n_features
        if n <= d + 2:
            return float("inf")
        return self.noise**2 * ((n + 1) * (n - 2) / (n * (n - d - 2)) - 1.0)

    @property
    def joined(self) -> float:
        """Excess error of sites that borrow by degrees."""
        v, m = max(self.heterogeneity**2, ALIKE * self.noise**2), self.n_sites
        t = self._posterior_variances(v)
        own = t * v / (v - t)
        total = v + own
        pull = own / total
        return float((t + pull**2 * total / m + total * self._pull_is_off(v, own, pull)).sum())

    def _pull_is_off(self, v: float, own: Floats, pull: Floats) -> Floats:
        """Squared error of the pulls that the fit finds, weighed by squared departures, (p,).

        Both come from the same (m - 1) p departures of mean square v + own: where they happen to be
        small, sites are pulled too far, and by less. The spread is never negative; noise is known
        from the rows beyond p.
        """
        m, p = self.n_sites, self.n_terms
        square = _chi_squared_mean(max(m - 1, 1) * p, QUANTILES)[:, None]
        noise = _chi_squared_mean(m * (self.n_rows - p), NOISE_QUANTILES)
        typical = float(own.mean())
        spread = np.maximum((v + typical) * square - typical * noise, 0.0)[..., None]
        seen = own * noise[:, None]
        off = (seen / (spread + seen) - pull) ** 2 * square[..., None]
        return np.asarray(off.mean(axis=(0, 1))) * max(m - 1, 1) / m

    @property
    def one(self) -> float:
        """Excess error of one model for all."""
        v, m, p = self.heterogeneity**2, self.n_sites, self.n_terms
        return p * v * (1.0 + 1.0 / m) + self.noise**2 * p / max(m * self.n_rows - p - 1, 1)

    def _posterior_variances(self, v: float) -> Floats:
        """Variances of a site's coefficients given its rows, the intercept last, (p,)."""
        s2, n, d = self.noise**2, self.n_rows, self.n_features
        slope, level = v, 1.0 / (1.0 / v + n / s2)
        for _ in range(PASSES if d else 0):
            # (d + 1) t^2 + (s^2 + (left - d - 1) v) t - s^2 v = 0
            left = n - 1.0 + level / v
            b = s2 + (left - d - 1.0) * v
            slope = 2.0 * s2 * v / (b + np.sqrt(b * b + 4.0 * (d + 1.0) * s2 * v))
            level = 1.0 / (1.0 / v + n / (s2 + d * slope))
        return np.append(np.full(d, slope), level)

    def of_kinds(self, n_kinds: int, separation: float | None = None, way: str = "soft") -> float:
        """Excess error where sites are of so many kinds.

        Without `separation` the kinds are told apart for sure. With it their coefficients are so
        far from each other, and sites may be mistaken: "soft" sites are weighed by the chance of
        every kind (`FMLR`), "hard" ones belong to the kind that their own fit is nearest to
        (`ODCL`).
        """
        if separation is None:
            return self.noise**2 * n_kinds * self.n_terms / (self.n_sites * self.n_rows)
        from fedkin.inference.kinds_planning import excess_of_kinds

        sizes = (self.n_sites, self.n_rows, self.n_features)
        return excess_of_kinds(*sizes, n_kinds, separation / self.noise, way) * self.noise**2

    def mistaken(self, separation: float) -> float:
        """Chance to take a site for one of another kind whose coefficients are so far away."""
        from scipy.special import ndtr

        return float(ndtr(-np.sqrt(self.n_rows) * separation / (2.0 * self.noise)))

    # ------------------------------------------------------------ answers

    def rmse(self, excess: float) -> float:
        """Root mean squared error of new targets."""
        return float(np.sqrt(self.noise**2 + excess))

    @property
    def gain(self) -> float:
        """Share of the excess error alone that joining takes away."""
        return 1.0 - self.joined / self.alone if np.isfinite(self.alone) else 1.0

    def table(self) -> Table:
        """Errors of every way."""
        excess = [self.alone, self.joined, self.one]
        columns = {
            "way": list(WAYS),
            "excess error": excess,
            "RMSE of a new target": [self.rmse(e) for e in excess],
        }
        words = f"{self.n_sites} sites of {self.n_rows} rows, {self.n_features} columns"
        return Table(columns, f"{words}, noise {self.noise:g}, unlike {self.heterogeneity:g}")

    @property
    def sentence(self) -> str:
        """The answer, to be read out."""
        best = min((self.joined, "joining by degrees"), (self.one, "one model"))[1]
        if not np.isfinite(self.alone):
            return f"A site alone has too few rows for a fit of its own; {best} is the way."
        return (
            f"Joining takes {self.gain:.0%} of the excess error away (RMSE "
            f"{self.rmse(self.alone):.4g} alone, {self.rmse(self.joined):.4g} joined, "
            f"{self.rmse(self.one):.4g} as one model)."
        )

    def __str__(self) -> str:
        return f"{self.table()}{self.sentence}\n"

    def rows_needed(self, excess: float, way: str = "by degrees") -> int | None:
        """The fewest rows a site with which a way has no more excess error; None if none are."""
        return _least(lambda n: _excess(replace(self, n_rows=n), way) <= excess)

    def sites_needed(self, excess: float, way: str = "by degrees") -> int | None:
        """The fewest sites with which a way has no more excess error; None if none are."""
        return _least(lambda m: _excess(replace(self, n_sites=m), way) <= excess)

    def unlike_at_most(self, gain: float) -> float:
        """How unlike sites may be for joining to take this share of the excess error away."""
        if not 0 < gain < 1:
            raise ValueError(f"gain must be a share between 0 and 1, not {gain}")
        if replace(self, heterogeneity=0.0).gain < gain:
            return 0.0
        low, high = 0.0, 1e3 * self.noise
        for _ in range(100):
            middle = (low + high) / 2
            enough = replace(self, heterogeneity=middle).gain >= gain
            low, high = (middle, high) if enough else (low, middle)
        return low

    def plot(self, ax: Any = None) -> Any:
        """RMSE of the three ways against rows a site; returns the axes."""
        from fedkin.inference.pictures import new_axes

        axes = new_axes(4.0, ax)
        least = self.n_features + 4
        rows = np.unique(np.geomspace(least, max(20 * least, 4 * self.n_rows), 60).astype(int))
        for way in WAYS:
            each = [self.rmse(_excess(replace(self, n_rows=int(n)), way)) for n in rows]
            axes.plot(rows, each, label=way)
        axes.axvline(self.n_rows, color="0.6", lw=1, ls=":")
        axes.set(xscale="log", xlabel="rows a site", ylabel="RMSE of a new target")
        axes.legend(frameon=False)
        return axes


def plan(
    n_sites: int,
    n_rows: int,
    n_features: int,
    noise: float = 1.0,
    heterogeneity: float = 0.0,
) -> Plan:
    """What to expect of a federation: expected errors, and what joining will gain.

    Parameters
    ----------
    n_sites, n_rows, n_features : int
        Sites, rows a site, columns.
    noise : float
        Standard deviation of the noise.
    heterogeneity : float
        Standard deviation of sites' coefficients about the common ones, for columns of spread 1.
    """
    return Plan(n_sites, n_rows, n_features, noise, heterogeneity)


def _chi_squared_mean(freedom: int, n_quantiles: int) -> Floats:
    """Quantiles of a mean of so many squared standard normal numbers; of 1 where there are none."""
    from scipy.special import gammaincinv

    if freedom < 1:
        return np.ones(1)
    chance = (np.arange(n_quantiles) + 0.5) / n_quantiles
    return np.asarray(gammaincinv(0.5 * freedom, chance) * 2.0 / freedom)


def _excess(found: Plan, way: str) -> float:
    ways = {"alone": found.alone, "by degrees": found.joined, "one model": found.one}
    if way not in ways:
        raise ValueError(f"way must be one of {', '.join(WAYS)}, not {way!r}")
    return ways[way]


def _least(enough: Callable[[int], bool]) -> int | None:
    """The least whole number that is enough, by doubling and halving."""
    high = 1
    while not enough(high):
        high *= 2
        if high > MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
