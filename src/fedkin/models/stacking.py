"""Weights of several predictive distributions: those of all clients, and every client's own.

Stacking of predictive densities (Yao, Vehtari, Simpson, Gelman 2018): weights that maximise the log
score of the mixture at left-out rows. With few rows such weights are noisy: they are pulled to each
way's chance of being the best one when clients are drawn anew (pseudo-BMA+ of the same paper),
worth `FIRM` rows. A client's weights maximise its own rows' score plus a Dirichlet prior about the
weights of all, worth `strength` rows; which strength is right, rows left out of the weighing say.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.arrays import Floats, Indices

# Rows that the weights of all are worth beside a client's own; infinite: nobody has its own.
STRENGTHS = (2.0, 8.0, 32.0, 128.0, 512.0, np.inf)
# Rows that the chances of being the best way are worth beside the rows there are.
FIRM = 100.0
# Draws of clients by which these chances are found.
DRAWS = 500
# Steps of EM, and when weights stand still.
STEPS = 500
TOLERANCE = 1e-7
# Weights below this are none: EM takes for ever to reach zero.
LEAST_WEIGHT = 1e-3
# Parts into which a client's rows fall when the strength is chosen.
PARTS = 5


class Stack(NamedTuple):
    """Weights of all (W,), of every client (m, W), and what the former were worth in rows."""

    common: Floats
    own: Floats
    strength: float


def stack(log_density: Floats, owner: Indices, n_clients: int, parts: Indices) -> Stack:
    """Weights from log densities (W, N) of left-out rows of clients `owner` (N,).

    `parts` (N,) says which rows are left out together to choose the strength.
    """
    scores = np.zeros((len(STRENGTHS), n_clients))
    for part in np.unique(parts):
        out = parts == part
        if out.all():
            continue
        common = common_weights(log_density[:, ~out], owner[~out])
        for k, strength in enumerate(STRENGTHS):
            own = client_weights(log_density[:, ~out], owner[~out], n_clients, common, strength)
            gained = mixture(log_density[:, out], own[owner[out]])
            scores[k] += np.bincount(owner[out], gained, minlength=n_clients)
    strength = STRENGTHS[_strongest(scores)]
    common = common_weights(log_density, owner)
    own = client_weights(log_density, owner, n_clients, common, strength)
    return Stack(common, own, strength)


def _strongest(scores: Floats) -> int:
    """The strongest pull whose scores (S, m) are not worse than the best by more than their error.

    Own weights have to earn their place.
    """
    best = int(scores.sum(axis=1).argmax())
    lost = scores[best] - scores
    error = np.sqrt(lost.shape[1]) * lost.std(axis=1)
    return int(np.flatnonzero(lost.sum(axis=1) <= error + 1e-9).max())


def common_weights(log_density: Floats, owner: Indices | None = None) -> Floats:
    """Weights (W,) that maximise the mean log score of the mixture, by EM.

    With the rows' clients `owner` (N,), pulled to `chances`.
    """
    n_ways, n_rows = log_density.shape
    weights = np.full(n_ways, 1.0 / n_ways)
    if not n_rows:
        return weights
    density = _scaled(log_density)
    prior = np.zeros(n_ways) if owner is None else FIRM * chances(log_density, owner)
    for _ in range(STEPS):
        share = weights[:, None] * density
        new = (share / share.sum(axis=0)).sum(axis=1) + prior
        new = new / new.sum()
        moved, weights = np.abs(new - weights).max(), new
        if moved <= TOLERANCE:
            break
    weights = np.where(weights >= LEAST_WEIGHT, weights, 0.0)
    return weights / weights.sum()


def chances(log_density: Floats, owner: Indices) -> Floats:
    """Mean over draws of clients of each way's weight by its total log density, (W,)."""
    totals = _by_client(log_density, owner)
    m = totals.shape[1]
    drawn = np.random.default_rng(0).dirichlet(np.ones(m), size=DRAWS) * m
    scores = drawn @ (totals - totals.max(axis=0)).T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray((weights / weights.sum(axis=1, keepdims=True)).mean(axis=0))


def point_weights(residual: Floats, owner: Indices) -> Floats:
    """Weights (W,) of ways as point predictions, from residuals (W, N) of left-out rows.

    They minimise the squared error of the combination, plus `FIRM` rows' worth of squared distance
    from each way's chance of having the least squared error when clients are drawn anew.
    """
    from scipy.optimize import nnls

    lean = least_error_chances(_by_client(residual**2, owner), residual.shape[1])
    size = float((residual**2).mean(axis=1).min())
    if not size > 0:
        return lean
    n_ways = len(residual)
    pull = np.sqrt(FIRM * size) * np.eye(n_ways)
    whole = 1e3 * np.sqrt(residual.shape[1] * size)  # weights sum to 1
    left = np.vstack([residual.T, pull, np.full((1, n_ways), whole)])
    right = np.concatenate([np.zeros(residual.shape[1]), pull @ lean, [whole]])
    found = nnls(left, right)[0]
    found = np.where(found >= LEAST_WEIGHT, found, 0.0)
    return np.asarray(found / found.sum())


def _by_client(values: Floats, owner: Indices) -> Floats:
    """Sums (W, m) over the rows of each client."""
    _, place = np.unique(owner, return_inverse=True)
    m = int(place.max(initial=-1)) + 1
    return np.array([np.bincount(place, one, minlength=m) for one in values])


def least_error_chances(totals: Floats, n_rows: float) -> Floats:
    """Mean over draws of clients of each way's normal likelihood, its noise profiled out, (W,).

    From the clients' sums (W, m) of squared errors of `n_rows` rows in all.
    """
    m = totals.shape[1]
    drawn = np.random.default_rng(0).dirichlet(np.ones(m), size=DRAWS) * m
    scores = -0.5 * n_rows * np.log(np.maximum(drawn @ totals.T, 1e-300))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray((weights / weights.sum(axis=1, keepdims=True)).mean(axis=0))


def client_weights(
    log_density: Floats, owner: Indices, n_clients: int, common: Floats, strength: float
) -> Floats:
    """Weights (m, W) of every client, pulled to the common ones, by EM."""
    weights = np.repeat(common[None], n_clients, axis=0)
    if np.isinf(strength):
        return weights
    density = _scaled(log_density)
    rows = np.bincount(owner, minlength=n_clients)
    for _ in range(STEPS):
        share = weights.T[:, owner] * density
        share /= np.maximum(share.sum(axis=0), np.finfo(float).tiny)
        sums = np.array([np.bincount(owner, one, minlength=n_clients) for one in share]).T
        new = (sums + strength * common) / (rows[:, None] + strength)
        moved, weights = np.abs(new - weights).max(initial=0.0), new
        if moved <= TOLERANCE:
            break
    return weights


def mixture(log_density: Floats, weights: Floats) -> Floats:
    """Log density (N,) of the mixture with weights (N, W)."""
    top = log_density.max(axis=0)
    total = np.einsum("wn,nw->n", np.exp(log_density - top), weights)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(total) + top)


def _scaled(log_density: Floats) -> Floats:
    """Densities in units of each row's largest."""
    return np.asarray(np.exp(log_density - log_density.max(axis=0)))
