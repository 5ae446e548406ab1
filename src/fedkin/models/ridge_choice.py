"""How strong a client's ridge penalty should be, from its packed statistics alone.

Columns are in units of the client's own standard deviations, the intercept is left free, and the
strength with the least error to be expected at further rows is taken. With

    df(alpha) = s(alpha) + intercept,    s = sum_k l_k / (l_k + alpha)

degrees of freedom, l_k the eigenvalues of the columns' correlations, a client's own strength has
the least S_p (Tukey 1967; Thompson 1978; Breiman, Freedman 1983), and one strength for all clients
the least sum of generalised cross-validation (Golub, Heath, Wahba 1979):

    S_p = RSS / (n - df) (1 + intercept / n) (1 + s / (n - df - 1)),    GCV = n RSS / (n - df)^2

S_p is the expected error of least squares at rows drawn as the client's own were, whose columns are
normal; GCV is the error at the rows' own places, and with few rows too small: further rows lie
farther out. Below one row to spare S_p is infinite, so that one client of few rows could forbid
everybody a strength: hence GCV for all. With many rows both are the same. Of equal strengths the
largest is taken: two rows fit any line, and tell nothing of its slope.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.arrays import Bools, Floats
from fedkin.models.least_squares import unpack
from fedkin.ties import first_least

# Strengths tried, the largest first, in units in which every column has variance one.
STRENGTHS = np.logspace(4.0, -6.0, 41)
# A column whose variance is below this share of its mean square does not vary.
CONSTANT = 1e-10
# Scores this near to the least one tie with it, and the largest strength wins.
TIES = 1e-6
# Residuals below this share of the target's squares are rounding of the sums.
RESIDUAL_ROUNDING = 1e-14
# Degrees of freedom that the fit of a client with a model of its own leaves.
LEAST_SPARE = 0.1
# Rows from which on a client's own residuals tell of a strength at all.
LEAST_ROWS = 3
# Degrees of freedom that a strength for all leaves the median client: with less than one its
# residuals are next to nothing whatever the noise.
COMMON_SPARE = 1.0
# Clients looked at together.
BLOCK = 1024


class RidgeChoice(NamedTuple):
    """What was chosen for every client."""

    alpha: Floats
    """Strength in units of the columns' own standard deviations, (m,)."""
    strengths: Floats
    """Strength on every coefficient in the columns' units, (m, d); the intercept's is 0."""
    freedom: Floats
    """Degrees of freedom that the fit spends, the intercept's included, (m,)."""
    score: Floats
    """The least S_p or GCV, (m,): mean squared error to be expected at further rows."""


def column_variances(gram: Floats, n_rows: Floats, fit_intercept: bool) -> Floats:
    """Variances of the features (m, p) within each client; mean squares of those that do not vary.

    Without an intercept they are mean squares; 1 for a column of zeros.
    """
    n = np.maximum(n_rows, 1.0)[..., None]
    square = np.einsum("...dd->...d", gram) / n
    if fit_intercept:
        total = np.maximum(gram[..., -1, -1], np.finfo(float).tiny)[..., None]
        mean = gram[..., :-1, -1] / total
        square = square[..., :-1]
        variance = square - mean**2 * total / n
        square = np.where(variance > CONSTANT * square, variance, square)
    return np.where(square > 0, square, 1.0)


def choose_ridge(
    statistics: Floats, fit_intercept: bool, strengths: Floats = STRENGTHS, common: bool = False
) -> RidgeChoice:
    """The strength of every client's penalty from its statistics (m, q).

    `common`: one strength for all, and columns in units of their standard deviation within clients,
    all taken together: with few rows a client's own scores, and its own deviations, are too
    uncertain. Every client's score counts as a share of what it would be with all slopes at zero,
    and as often as it has rows. Strengths with which the median client has no row to spare are no
    candidates.
    """
    typical = _typical_variances(statistics, fit_intercept) if common else None
    parts = [
        _scored(statistics[begin : begin + BLOCK], fit_intercept, strengths, typical)
        for begin in range(0, max(len(statistics), 1), BLOCK)
    ]
    variances, freedom, scores = (np.concatenate(arrays) for arrays in zip(*parts))
    if common:
        total = (statistics[:, -1:] * _relative(scores)).sum(axis=0)
        total = np.where(_leaves_rows(statistics[:, -1], freedom), total, np.inf)
        best = np.full(len(scores), first_least(total, relative=TIES))
    else:
        best = first_least(scores, axis=1, relative=TIES)
    rows = np.arange(len(best))
    alpha = strengths[best]
    on_columns = alpha[:, None] * variances
    if fit_intercept:
        on_columns = np.concatenate([on_columns, np.zeros((len(best), 1))], axis=1)
    return RidgeChoice(alpha, on_columns, freedom[rows, best], scores[rows, best])


def _relative(scores: Floats) -> Floats:
    """Scores (m, s) over those of the largest strength, the first; 1 where there are none."""
    first = scores[:, :1]
    told = np.isfinite(first) & (first > 0)
    return np.where(told, scores, 1.0) / np.where(told, first, 1.0)


def _leaves_rows(n_rows: Floats, freedom: Floats) -> Bools:
    """Which strengths leave the median client of three rows and more a row to spare, (s,).

    The strongest always may be taken.
    """
    told = n_rows >= LEAST_ROWS
    if not told.any():
        return np.ones(freedom.shape[1], dtype=bool)
    spare = np.median(n_rows[told, None] - freedom[told], axis=0)
    return np.asarray((spare >= COMMON_SPARE) | (np.arange(len(spare)) == 0))


def _typical_variances(statistics: Floats, fit_intercept: bool) -> Floats:
    """Variances of the features within clients (p,), all clients taken together."""
    gram, _, _, n_rows = unpack(statistics)
    square = np.einsum("mdd->md", gram).sum(axis=0)
    within = square
    if fit_intercept:
        total = np.maximum(gram[:, -1, -1], np.finfo(float).tiny)[:, None]
        square = square[:-1]
        within = square - (gram[:, :-1, -1] ** 2 / total).sum(axis=0)
    within = np.where(within > CONSTANT * square, within, square) / max(n_rows.sum(), 1.0)
    return np.where(within > 0, within, 1.0)


def _scored(
    statistics: Floats, fit_intercept: bool, strengths: Floats, typical: Floats | None = None
) -> tuple[Floats, Floats, Floats]:
    """Variances of the columns (m, p), degrees of freedom and scores (m, s) of every strength.

    With `typical` variances, for all clients, GCV; else S_p.
    """
    gram, cross, square, n_rows = unpack(statistics)
    n = np.maximum(n_rows, 1.0)
    variances = column_variances(gram, n_rows, fit_intercept)
    if typical is not None:
        variances = np.broadcast_to(typical, variances.shape)
    correlations, slopes, left = _centred(gram, cross, square, n, variances, fit_intercept)
    values, vectors = np.linalg.eigh(correlations)
    # Sums without cancelling terms: near interpolation a score is one small number over another.
    told = values > CONSTANT * np.maximum(values[:, -1:], np.finfo(float).tiny)
    values = np.where(told, values, 1.0)
    along = np.where(told, np.einsum("mij,mi->mj", vectors, slopes) ** 2, 0.0)
    out_of_reach = np.maximum(left - (along / values).sum(axis=-1), 0.0)
    shrunk = strengths[:, None] / (values[:, None, :] + strengths[:, None])
    residual = out_of_reach[:, None] + ((along / values)[:, None, :] * shrunk**2).sum(axis=-1)
    residual = np.maximum(residual, RESIDUAL_ROUNDING * (square / n)[:, None])
    rank = told.sum(axis=-1)[:, None]
    unspent = np.where(told[:, None, :], shrunk, 0.0).sum(axis=-1)
    freedom = rank - unspent + fit_intercept
    spare = n[:, None] - fit_intercept - rank + unspent
    for_all = typical is not None
    with np.errstate(divide="ignore", invalid="ignore"):
        noise = n[:, None] * residual / spare
        further = (1.0 + fit_intercept / n[:, None]) * (1.0 + (rank - unspent) / (spare - 1.0))
        raised = n[:, None] / spare if for_all else further
        scores = np.where(spare > (0.0 if for_all else 1.0), noise * raised, np.inf)
    return variances, freedom, scores


def _centred(
    gram: Floats, cross: Floats, square: Floats, n: Floats, variances: Floats, fit_intercept: bool
) -> tuple[Floats, Floats, Floats]:
    """Correlations (m, p, p), slopes (m, p) and mean squares (m,) about the means."""
    if fit_intercept:
        total = np.maximum(gram[:, -1, -1], np.finfo(float).tiny)
        column, level = gram[:, :-1, -1], cross[:, -1]
        square = square - level**2 / total
        cross = cross[:, :-1] - column * (level / total)[:, None]
        gram = gram[:, :-1, :-1] - column[:, :, None] * column[:, None, :] / total[:, None, None]
    scale = np.sqrt(variances)
    correlations = gram / (scale[:, :, None] * scale[:, None, :]) / n[:, None, None]
    return correlations, cross / scale / n[:, None], np.maximum(square, 0.0) / n


def carries_own_model(n_rows: Floats, freedom: Floats) -> Bools:
    """Whether a client's rows are enough for a model of its own, (m,).

    Three rows, which the fit does not quite use up: below that any line fits.
    """
    return np.asarray((n_rows >= LEAST_ROWS) & (n_rows - freedom >= LEAST_SPARE))
