"""Linear regression of every client by itself, from packed statistics, with honest spread.

Slopes of standardised columns have the prior N(0, size * noise), the intercept a flat one. Which
`size` (how strong a ridge) is right the rows themselves say: their marginal likelihood weighs a
grid of sizes, and predictions are the weighted mixture of Student's t. Few rows lead to strong
ridges and wide tails, many rows to least squares; nothing has to be chosen.

The noise has a flat prior, which suits many rows, or one that knows how large targets are: with
`spread` their standard deviation, the variance is scaled inverse chi-squared with one degree of
freedom about (share * spread)^2, for shares from 1 to 1/1000 that are the likelier the larger they
are. Two equal targets then do not say that there is no noise (as a flat prior has it), and ten rows
on a line still say that there is little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.models.least_squares import RANK_TOLERANCE, unpack

# Prior variance of a standardised slope beside the noise variance: from nothing to anything.
SIZES = np.concatenate([[0.0], 10.0 ** np.linspace(-3.0, 4.0, 29)])
# Residual sums below this share of the target's own sum of squares are rounding.
LEAST_RESIDUAL = 1e-12
# Up to so many degrees of freedom the variance of t says little of its intervals.
FEW_DEGREES = 4.0
# A client with fewer rows has no spread of its own.
LEAST_ROWS = 2
# Noise that few rows may have, as shares of the targets' spread; each as likely as it is large. A
# coarser grid forces too much noise on sites that have little: steps of 10 cost .1 nats a row.
NOISE_SHARES = 10.0 ** np.linspace(0.0, -3.0, 13)
# Rows that the prior of the noise counts for.
NOISE_DEGREES = 1.0
# Rows whose mixtures are handled at once: 390 parts each.
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class RidgeFits:
    """Fits of m clients, each a mixture over G sizes of the slopes' prior and S of the noise's.

    center : (m, d) means of the columns; basis : (m, d, d) standardised columns to eigenvectors
    level : (m,) mean of the target; slopes : (m, G, d) along eigenvectors
    spread : (m, G, d) their variances beside the noise; scale : (m, G, S) noise variances
    weights : (m, G, S); degrees : (m,) of freedom; level_error : (m,) share of noise in the level
    """

    center: Floats
    basis: Floats
    level: Floats
    slopes: Floats
    spread: Floats
    scale: Floats
    weights: Floats
    degrees: Floats
    level_error: Floats

    def coefficients(self) -> tuple[Floats, Floats]:
        """Slopes (m, d) and intercepts (m,) of the predicted mean."""
        mixed = np.einsum("mgs,mgd->md", self.weights, self.slopes)
        slopes = np.einsum("mde,me->md", self.basis, mixed)
        return slopes, self.level - np.einsum("md,md->m", slopes, self.center)

    def predict(self, X: Floats, owner: Indices) -> tuple[Floats, Floats]:
        """Mean and standard deviation of targets at rows X (n, d).

        Where t has few degrees of freedom, the standard deviation of the normal law with the same
        95 % interval, which is less than its own.
        """
        from scipy.special import stdtrit

        mean, known = self._parts(X, owner)
        weights = self.weights.sum(axis=2)[owner]
        noise = np.einsum("mgs,mgs->mg", self.weights, self.scale)[owner]
        center = np.einsum("ng,ng->n", weights, mean)
        degrees = self.degrees[owner]
        reach = (stdtrit(degrees, 0.975) / stdtrit(1e9, 0.975)) ** 2
        wide = np.where(degrees > FEW_DEGREES, degrees / np.maximum(degrees - 2.0, 1.0), reach)
        within = wide * np.einsum("ng,ng->n", noise, known)
        between = np.einsum("ng,ng->n", weights, (mean - center[:, None]) ** 2)
        return center, np.sqrt(within + between)

    def log_density(self, X: Floats, y: Floats, owner: Indices) -> Floats:
        """Log density of targets y (n,) at rows X (n, d) of clients `owner` (n,)."""
        slices = [slice(k, k + ROWS_AT_ONCE) for k in range(0, len(X), ROWS_AT_ONCE)]
        found = [self._log_density(X[rows], y[rows], owner[rows]) for rows in slices]
        return np.concatenate([np.zeros(0), *found])

    def _log_density(self, X: Floats, y: Floats, owner: Indices) -> Floats:
        from scipy.special import gammaln, logsumexp

        mean, known = self._parts(X, owner)
        variance = self.scale[owner] * known[:, :, None]
        degrees = self.degrees[owner][:, None, None]
        ratio = (y[:, None] - mean)[:, :, None] ** 2 / variance
        log_t = gammaln((degrees + 1) / 2) - gammaln(degrees / 2)
        log_t = log_t - 0.5 * np.log(np.pi * degrees * variance)
        log_t = log_t - (degrees + 1) / 2 * np.log1p(ratio / degrees)
        with np.errstate(divide="ignore"):
            log_weights = np.log(self.weights[owner])
        return np.asarray(logsumexp(log_t + log_weights, axis=(1, 2)))

    def _parts(self, X: Floats, owner: Indices) -> tuple[Floats, Floats]:
        """Mean of each t and its squared scale beside the noise variance, (n, G)."""
        inside = np.einsum("nd,nde->ne", X - self.center[owner], self.basis[owner])
        mean = self.level[owner][:, None] + np.einsum("nd,ngd->ng", inside, self.slopes[owner])
        error = np.einsum("nd,ngd->ng", inside**2, self.spread[owner])
        return mean, 1.0 + self.level_error[owner][:, None] + error


def spread_within(statistics: Floats, fit_intercept: bool) -> float:
    """Standard deviation of targets within clients, from packed statistics (m, q).

    Without an intercept the root of their mean square, for there zero is the centre.
    """
    _, cross, square, n_rows = unpack(statistics)
    rows = np.maximum(n_rows, 1.0)
    level = cross[:, -1] / rows if fit_intercept else np.zeros(len(rows))
    total = float(np.maximum(square - rows * level**2, 0.0).sum())
    degrees = float(np.maximum(n_rows - fit_intercept, 0.0).sum())
    return float(np.sqrt(total / degrees)) if degrees > 0 else 0.0


def fit_ridges(statistics: Floats, fit_intercept: bool, spread: float = 0.0) -> RidgeFits:
    """Fit every client from its packed statistics (m, q).

    With the targets' `spread` the noise has a prior in its units, else (0) a flat one. With that a
    client with fewer than `LEAST_ROWS` rows (without an intercept: with none) has degrees of
    freedom below 1; what it predicts means nothing.
    """
    gram, cross, square, n_rows = unpack(statistics)
    m, rows = len(n_rows), np.maximum(n_rows, 1.0)
    d = gram.shape[-1] - fit_intercept
    center, level = np.zeros((m, d)), np.zeros(m)
    if fit_intercept:
        center, level = gram[:, d, :d] / rows[:, None], cross[:, d] / rows
    inner = gram[:, :d, :d] - rows[:, None, None] * center[:, :, None] * center[:, None, :]
    along = cross[:, :d] - (rows * level)[:, None] * center
    total = np.maximum(square - rows * level**2, 0.0)
    raw = np.einsum("mdd->md", gram[:, :d, :d])
    variance = np.einsum("mdd->md", inner) / rows[:, None]
    varies = variance > RANK_TOLERANCE * np.maximum(raw / rows[:, None], 1e-300)
    unit = np.where(varies, 1.0 / np.sqrt(np.where(varies, variance, 1.0)), 0.0)
    values, vectors = np.linalg.eigh(inner * unit[:, :, None] * unit[:, None, :])
    values = np.where(values > RANK_TOLERANCE * rows[:, None], values, 0.0)
    inside = np.where(values > 0, np.einsum("mde,md->me", vectors, along * unit), 0.0)
    errors = SIZES[None, :, None] / (1.0 + SIZES[None, :, None] * values[:, None, :])
    slopes = errors * inside[:, None, :]
    residual = total[:, None] - np.einsum("md,mgd->mg", inside, slopes)
    least = LEAST_RESIDUAL * np.maximum(square, np.finfo(float).tiny)
    residual = np.maximum(residual, least[:, None])
    fit = -0.5 * np.log1p(SIZES[None, :, None] * values[:, None, :]).sum(axis=-1)
    noise, degrees, evidence = _noise(residual, n_rows - fit_intercept, spread)
    evidence = evidence + fit[:, :, None]
    weights = np.exp(evidence - evidence.max(axis=(1, 2), keepdims=True))
    return RidgeFits(
        center=center,
        basis=unit[:, :, None] * vectors,
        level=level,
        slopes=slopes,
        spread=errors,
        scale=noise,
        weights=weights / weights.sum(axis=(1, 2), keepdims=True),
        degrees=degrees,
        level_error=fit_intercept / rows,
    )


def _noise(residual: Floats, own: Floats, spread: float) -> tuple[Floats, Floats, Floats]:
    """Noise variances (m, G, S), degrees of freedom (m,) and log evidence (m, G, S) of the noise.

    residual : (m, G) sums of squares that slopes leave; own : (m,) degrees of freedom of the rows
    """
    if not spread > 0:
        degrees = np.maximum(own, 0.5)
        evidence = -0.5 * degrees[:, None] * np.log(residual)
        return (residual / degrees[:, None])[:, :, None], degrees, evidence[:, :, None]
    degrees = np.maximum(own, 0.0) + NOISE_DEGREES
    before = NOISE_DEGREES * (NOISE_SHARES * spread) ** 2
    total = residual[:, :, None] + before
    evidence = 0.5 * NOISE_DEGREES * np.log(before) + np.log(NOISE_SHARES)
    evidence = evidence - 0.5 * degrees[:, None, None] * np.log(total)
    return total / degrees[:, None, None], degrees, evidence
