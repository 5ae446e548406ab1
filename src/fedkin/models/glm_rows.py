"""Counts of many clients: their rows, and the log likelihood of every row with its derivatives.

Rows of all clients stand one below the other, columns first (d, N); sums over a client's rows are
`reduceat`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from fedkin.arrays import Floats, Indices

Family = Literal["binomial", "poisson"]

# exp overflows beyond 709; means that large have no meaning.
LARGEST_LOG_MEAN = 300.0


@dataclass(frozen=True, eq=False)
class GlmRows:
    """Rows of m clients: fixed columns X (d, N), random ones Z (q, N), y, trials and offset (N,).

    `starts` (m + 1,) stand between the clients. A row of weight w counts as w rows: y and trials
    (one for Poisson) hold w times what was counted, which is all that the likelihood needs of it.
    """

    X: Floats
    Z: Floats
    y: Floats
    starts: Indices
    family: Family
    trials: Floats
    offset: Floats
    weight: Floats

    @classmethod
    def of(
        cls,
        X: Floats,
        y: Floats,
        starts: Indices,
        random: Indices,
        family: Family,
        trials: Floats | None = None,
        offset: Floats | None = None,
        weight: Floats | None = None,
    ) -> GlmRows:
        """From a table X (N, d) with effects on its columns `random`.

        For "binomial" y counts successes of `trials` (one each unless given).
        """
        shift = np.zeros(len(y)) if offset is None else np.asarray(offset, dtype=float)
        columns = np.ascontiguousarray(X.T, dtype=float)
        own = columns[random]
        return cls.weighted(columns, own, y, starts, family, trials, shift, weight)

    @classmethod
    def weighted(
        cls,
        X: Floats,
        Z: Floats,
        y: Floats,
        starts: Indices,
        family: Family,
        trials: Floats | None,
        offset: Floats,
        weight: Floats | None,
    ) -> GlmRows:
        """From columns X and Z and what was counted, each row as often as its weight says."""
        ones = np.ones(len(y))
        often = ones if weight is None else np.asarray(weight, dtype=float)
        single = trials is None or family == "poisson"
        plain = ones if single else np.asarray(trials, dtype=float)
        target = often * np.asarray(y, dtype=float)
        return cls(X, Z, target, starts, family, often * plain, offset, often)

    @property
    def n_clients(self) -> int:
        """Number of clients m."""
        return len(self.starts) - 1

    @cached_property
    def owner(self) -> Indices:
        """The client of every row."""
        return np.repeat(np.arange(self.n_clients), np.diff(self.starts))

    @cached_property
    def filled(self) -> Indices:
        """Clients with rows."""
        return np.flatnonzero(np.diff(self.starts) > 0)

    def sums(self, values: Floats) -> Floats:
        """Sums over every client's rows, (..., N) -> (..., m)."""
        out = np.zeros((*values.shape[:-1], self.n_clients))
        if len(self.filled):
            out[..., self.filled] = np.add.reduceat(values, self.starts[self.filled], axis=-1)
        return out

    @cached_property
    def constant(self) -> Floats:
        """What the log likelihood has beside its terms in eta, every client's sum, (m,)."""
        from scipy.special import gammaln

        safe = np.where(self.weight > 0, self.weight, 1.0)
        y, n = self.y / safe, self.trials / safe
        if self.family == "poisson":
            return self.sums(-self.weight * gammaln(y + 1.0))
        ways = gammaln(n + 1) - gammaln(y + 1) - gammaln(n - y + 1)
        return self.sums(self.weight * ways)


class Curve(NamedTuple):
    """Of every row at eta: log likelihood without constant, mean, and derivatives of the mean."""

    loglik: Floats
    mean: Floats
    weight: Floats
    bend: Floats


def curve(rows: GlmRows, eta: Floats) -> Curve:
    """Log likelihood, mean, and its first and second derivative in eta, (N,) each."""
    if rows.family == "poisson":
        mean = rows.trials * np.exp(np.minimum(eta, LARGEST_LOG_MEAN))
        return Curve(rows.y * eta - mean, mean, mean, mean)
    from scipy.special import expit

    share = np.asarray(expit(eta))
    loglik = rows.y * eta - rows.trials * np.logaddexp(0.0, eta)
    weight = rows.trials * share * (1.0 - share)
    return Curve(loglik, rows.trials * share, weight, weight * (1.0 - 2.0 * share))
