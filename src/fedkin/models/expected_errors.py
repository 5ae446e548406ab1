"""Errors to be expected at further rows of every client, from sums of products alone.

A client's squared residuals under the coefficients that were fitted for it, raised by what the fit
took of its rows: generalised cross-validation (Golub, Heath, Wahba 1979) client by client,

    n e_i = RSS_i / (1 - df_i / n_i)^2.

Degrees of freedom are those of the mixed model as a linear smoother (Hodges, Sargent 2001), given
its variances: with A_i = X'X / noise_i, departures of covariance V, K_i = (V^-1 + A_i)^-1, shares
of the kinds,

    df_i = tr(A_i K_i) + sum_k share_ik tr(P_k^-1 (A_i - 2 A_i K_i A_i + A_i K_i A_i K_i A_i)),
    P_k  = sum_i share_ik (A_i - A_i K_i A_i).

Clients with most of what a fit takes (a far one, a large one) are raised by what it took of *them*:
one factor for all rows would call a fit good that runs through the rows that matter.
"""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Floats
from fedkin.models.least_squares import RANK_TOLERANCE, residual_coefficients, unpack

# Of a client's rows, left by its fit: without any to spare its errors could be anything.
LEAST_SPARE = 1e-3


def degrees_of_freedom(
    statistics: Floats, covariance: Floats, noise: Floats, share: Floats
) -> Floats:
    """Rows of every client that a fit has taken, (m,).

    `statistics` (m, q), `covariance` (d, d) of the departures, `noise` variances (m,), `share`
    (m, K) of the kinds.
    """
    gram, d = unpack(statistics)[0], len(covariance)
    scale = np.sqrt(np.maximum(np.einsum("mdd->d", gram), np.finfo(float).tiny))
    gram = gram / scale / scale[:, None] / noise[:, None, None]
    spread = covariance * scale * scale[:, None]
    toward = spread @ np.linalg.inv(np.eye(d) + gram @ spread)
    pulled = gram @ toward
    taken = pulled @ gram
    total = np.einsum("mk,mij->kij", share, gram - taken)
    inverse = np.linalg.pinv(total, rcond=RANK_TOLERANCE, hermitian=True)
    twice = gram - 2.0 * taken + pulled @ taken
    common = np.einsum("mk,kij,mji->m", share, inverse, twice, optimize=True)
    return np.asarray(np.einsum("mii->m", pulled) + common)


def expected_errors(statistics: Floats, coef: Floats, degrees: Floats) -> Floats:
    """Squared errors at as many further rows as each client has, (m,), by coefficients (m, d)."""
    residual = np.einsum("mq,mq->m", residual_coefficients(coef), statistics)
    spare = 1.0 - degrees / np.maximum(statistics[:, -1], 1.0)
    return np.asarray(np.maximum(residual, 0.0) / np.maximum(spare, LEAST_SPARE) ** 2)
