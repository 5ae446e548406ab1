"""What rows of a mixture tell of its components: slope and curvature of a client's likelihood.

By Louis (1982), row by row: with responsibilities r, and u_r the score of a row as if it were of
component r,

    score = sum_r r_r u_r,
    information = sum_r r_r J_r - (sum_r r_r u_r u_r' - score score'),

where J_r is the information of a row of component r. The client's weights, which it fits itself,
are profiled out; its scale is taken as known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.arrays import Floats

# Eigenvalues of the weights' information below this share of the largest tell nothing.
NO_WEIGHT = 1e-10


class Rows(NamedTuple):
    """A client's rows under R components.

    `share` (n, R) responsibilities, `score` (n, R, p) by the row's component, `bend` (R, p, p)
    informations of all rows, weighted by responsibility.
    """

    share: Floats
    score: Floats
    bend: Floats


def gaussian_rows(X: Floats, share: Floats, means: Floats, precision: Floats) -> Rows:
    """Rows X (n, d) about means (R, d) with one precision (d, d)."""
    score = (X[:, None] - means) @ precision
    return Rows(share, score, share.sum(axis=0)[:, None, None] * precision)


def regression_rows(X: Floats, y: Floats, share: Floats, coef: Floats, sigma: float) -> Rows:
    """Rows X (n, p), the ones of an intercept among them, with targets y and noise sigma."""
    residual = y[:, None] - X @ coef.T
    score = residual[..., None] * X[:, None] / sigma**2
    return Rows(share, score, np.einsum("nr,ni,nj->rij", share, X, X, optimize=True) / sigma**2)


def score_and_information(rows: Rows, weights: Floats | None) -> tuple[Floats, Floats]:
    """Slope (R, p) and profiled information (R p, R p); weights (R,) that are given are None."""
    share, score = rows.share, rows.score
    (n, n_components), p = share.shape, score.shape[-1]
    size = n_components * p
    by_row = (share[..., None] * score).reshape(n, size)
    information = by_row.T @ by_row
    for r in range(n_components):
        own = slice(r * p, (r + 1) * p)
        weighted = np.sqrt(share[:, r, None]) * score[:, r]
        information[own, own] += rows.bend[r] - weighted.T @ weighted
    slope = by_row.sum(axis=0).reshape(n_components, p)
    if weights is None or n_components == 1:
        return slope, information
    return slope, _profiled(information, by_row, share, weights)


def _profiled(information: Floats, by_row: Floats, share: Floats, weights: Floats) -> Floats:
    """The information without what fitting the weights' logits costs."""
    n, free = len(share), len(weights) - 1
    away = share[:, :free] - weights[:free]
    choice = np.eye(len(weights))[:, :free] - weights[:free]
    p = by_row.shape[1] // len(weights)
    cross = by_row.T @ away
    cross -= np.repeat(choice, p, axis=0) * by_row.sum(axis=0)[:, None]
    logits = n * (np.diag(weights[:free]) - weights[:free, None] * weights[:free])
    logits -= np.einsum("nr,ra,rb->ab", share, choice, choice, optimize=True)
    logits += away.T @ away
    inverse = np.linalg.pinv(logits, NO_WEIGHT, hermitian=True)
    return np.asarray(information - cross @ inverse @ cross.T)
