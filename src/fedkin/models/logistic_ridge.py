"""How strong the penalty of a client's logistic regression should be: approximate leave-one-out.

For every strength the client is fitted once; what its model would say of a row that was left out
follows from one Newton step without it (Rad, Maleki 2020): with s the row's score, g and w its
first and second derivative of the loss in s, and h = x'H^-1 x / n,

    s without the row = s + g h / (1 - w h).

The strength with the least loss at these scores is taken, the largest of those that tie. Columns
are in units of the client's own standard deviations. Blocks as in `models.logistic`.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from fedkin.arrays import Floats
from fedkin.models import logistic
from fedkin.ties import first_least

# Strengths tried, the largest first, in units in which every column has variance one.
STRENGTHS = np.logspace(2.0, -4.0, 13)
# Losses this near to the least one tie with it.
TIES = 1e-6
# The intercept's own penalty, without which rows of one class have no minimiser.
LEAST_PENALTY = 1e-10
# A row on which everything rests keeps a little of its score's freedom.
LEAST_SPARE = 1e-6
# A column whose variance is below this share of its mean square does not vary.
CONSTANT = 1e-10


def choose_logistic_ridge(
    X: Floats,
    y: Floats,
    present: Floats,
    fit_intercept: bool,
    strengths: Floats = STRENGTHS,
) -> Floats:
    """Strength on every coefficient (k, d) of every client of a block; the intercept's is 0."""
    variances = _variances(X, present, fit_intercept)
    losses = np.array(
        [_left_out_loss(X, y, present, alpha * variances, fit_intercept) for alpha in strengths]
    )
    best = first_least(losses, axis=0, relative=TIES)
    return np.asarray(strengths[best][:, None] * variances)


def _variances(X: Floats, present: Floats, fit_intercept: bool) -> Floats:
    """Variances of the features within each client (k, d); 0 for the intercept."""
    n = present.sum(axis=1)[:, None]
    square = np.einsum("kdn,kdn,kn->kd", X, X, present) / n
    if fit_intercept:
        mean = np.einsum("kdn,kn->kd", X, present) / n
        variance = square - mean**2
        square = np.where(variance > CONSTANT * square, variance, square)
    square = np.where(square > 0, square, 1.0)
    if fit_intercept:
        square[:, -1] = 0.0
    return np.asarray(square)


def _left_out_loss(
    X: Floats, y: Floats, present: Floats, penalties: Floats, fit_intercept: bool
) -> Floats:
    """Mean loss of rows under the models without them, (k,)."""
    penalties = np.maximum(penalties, LEAST_PENALTY)
    n = present.sum(axis=1)
    coef, _ = logistic.minimise(X, y, present, penalties, fit_intercept)
    score = np.einsum("kdn,kd->kn", X, coef)
    share = expit(score)
    weight = share * (1.0 - share) * present
    hessian = (X * (weight / n[:, None])[:, None, :]) @ X.transpose(0, 2, 1)
    places = np.arange(X.shape[1])
    hessian[:, places, places] += penalties
    solved = np.linalg.solve(hessian, X)
    leverage = np.einsum("kdn,kdn->kn", X, solved) / n[:, None]
    spare = np.maximum(1.0 - weight * leverage, LEAST_SPARE)
    without = score + logistic.slopes(score, y) * present * leverage / spare
    losses = np.logaddexp(0.0, -y * without) * present
    return np.asarray(losses.sum(axis=1) / n)
