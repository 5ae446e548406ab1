"""How much more or less than others a site departs and is off, as its rows tell.

Some sites lie closer to the common curve than others and are measured more exactly. In several
dimensions a site's departures and noise are therefore multiplied by a scale of its own, whose
logarithm is normal around zero: S of `common_posterior.py` becomes scale^2 S. All rows tell of the
common curve as if every scale were one; for another scale a site takes back what its own rows have
said and says it anew. With W'W = inv(S), B = W Phi D, r = W (y - Phi D mean) and

    B C B' = U diag(e) U',    z = U' r,    q = e + scale^2 (1 - e),    Q = C B' U,    V = U' W,

mean and C those of the weights given all rows, a scale beside one has

    log evidence      -1/2 sum(log q - (scale^2 - 1) z^2 / q),
    weights           mean - (scale^2 - 1) Q (z / q),       C + (scale^2 - 1) Q diag(1 / q) Q',
    rows left out     surprise V' (z / q),                  precision V' diag((1 - e) / q) V.

The evidence is that of what the points carry: the bound's charge for what they do not carry falls
with a larger scale, and quiet sites would take one for that alone. Under every member of a cloud
three scales stand for what the rows leave open of it, as along a line (`own_spread.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from fedkin.arrays import Floats, Indices
from fedkin.models.own_spread import FACTORS

# Standard deviation of the logarithm of a site's scale.
SCALE_WIDTH = 0.25
# Over these logarithms its evidence is summed; rows of the largest site that judges (`max_points`)
# leave a standard deviation of two thirds of a step.
LOG_SCALES = np.linspace(-4.0, 4.0, 161)
# Precisions are kept above this share of those that a known common curve would leave.
LEAST_PRECISION = 1e-12


class OwnRows(NamedTuple):
    """What the k rows of each of m sites say under one member of a cloud.

    `share` e (m, k) of each direction that they alone tell, `off` z (m, k), `turned` V (m, k, k),
    `pull` Q (m, F, k), `rest` (m, k) the variance that the points do not carry at the rows.
    """

    share: Floats
    off: Floats
    turned: Floats
    pull: Floats
    rest: Floats

    def evidence(self) -> Floats:
        """Log posterior density (m, G) of `LOG_SCALES`, up to a constant."""
        squares = np.exp(2.0 * LOG_SCALES)
        told = np.empty((len(self.off), len(squares)))
        for g, square in enumerate(squares):
            q = self.share + square * (1.0 - self.share)
            told[:, g] = (np.log(q) - (square - 1.0) * self.off**2 / q).sum(axis=1)
        found: Floats = -0.5 * (told + (LOG_SCALES / SCALE_WIDTH) ** 2)
        return found

    def moved(
        self, there: Floats, squares: Floats, owner: Indices | None = None
    ) -> tuple[Floats, Floats]:
        """What squared scales (W, m) add to means and variances (W, n) of the common curve.

        `there` (n, F) are the features that weights multiply at rows of the sites `owner` (n,), or
        of the only one.
        """
        q = self._q(squares)
        by_mean, by_variance = self.off / q, 1.0 / q
        if owner is None:
            more, along = squares - 1.0, there @ self.pull[0]
            return -more * (by_mean[:, 0] @ along.T), more * (by_variance[:, 0] @ (along**2).T)
        more, along = (squares - 1.0)[:, owner], np.einsum("nf,nfk->nk", there, self.pull[owner])
        mean, variance = (
            np.einsum("nk,wnk->wn", part, by[:, owner])
            for part, by in ((along, by_mean), (along**2, by_variance))
        )
        return -more * mean, more * variance

    def covariance(self, there: Floats, square: Floats) -> Floats:
        """What a squared scale (1,) adds to the covariance (n, n) at rows of the only site."""
        along = there @ self.pull[0]
        added: Floats = (square - 1.0) * (along / self._q(square)) @ along.T
        return added

    def left_out(self, y: Floats, squares: Floats) -> tuple[Floats, Floats]:
        """Means and variances (W, m, k) of targets y (m, k), each left out, for scales (W, m)."""
        q = self._q(squares)
        surprise = np.einsum("mlk,wml->wmk", self.turned, self.off / q)
        precision = np.einsum("mlk,wml->wmk", self.turned**2, (1.0 - self.share) / q)
        least = LEAST_PRECISION * (self.turned**2).sum(axis=1) / squares[..., None]
        precision = np.maximum(precision, least)
        return y - surprise / precision, 1.0 / precision + self.rest

    def _q(self, squares: Floats) -> Floats:
        """q (..., m, k) of squared scales (..., m)."""
        q: Floats = self.share + squares[..., None] * (1.0 - self.share)
        return q


def own_scales(told: list[OwnRows]) -> Floats:
    """Squared scales (S, W, m) of m sites that stand for what rows leave open of them, from what
    these say under every member of a cloud."""
    found = []
    for rows in told:
        logs = rows.evidence()
        share = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
        centre = share @ LOG_SCALES
        spread = np.sqrt(np.maximum(share @ LOG_SCALES**2 - centre**2, 0.0))
        found.append(np.exp(2.0 * (centre + FACTORS[:, None] * spread)))
    return np.array(found)
