"""Stochastic gradient steps of many clients at once (the inexact local solver of ODCL).

theta <- project(theta - step_t g_t) with g_t the gradient on `batch_size` of the client's rows,
drawn by the client's own key. Strong convexity mu wants steps 1 / (mu t); they are too long at
first when rows differ in size, so t starts at L / mu, L the curvature of the client's largest row.

`iterate="last"` is the paper's choice; "average" weights iterate t by t (its Remark 16).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.federation import Federation
from fedkin.models.local_loss import LocalLoss
from fedkin.randomness import Keys

DRAWN_AT_ONCE = 256
# Strong convexity below this share of the curvature is none to speak of.
LEAST_CONVEXITY = 1e-6


def drawn_gradients(
    clients: Federation, local: LocalLoss, coef: Floats, lot: Floats, who: Indices | slice
) -> Floats:
    """Mean gradients over rows that a lot in [0, 1) draws, for the clients `who`.

    `coef` (k, d) are these clients' models, `lot` (k, batch_size) is theirs, too.
    """
    assert clients.y is not None
    drawn = rows_drawn(clients, lot, who)
    return local.row_gradients(clients.X[drawn], clients.y[drawn], coef)


def rows_drawn(clients: Federation, lot: Floats, who: Indices | slice = slice(None)) -> Indices:
    """Rows that a lot (k, batch_size) in [0, 1) draws for the clients `who`, (k, batch_size)."""
    sizes, starts = clients.sizes[who, None], clients.offsets[:-1][who, None]
    drawn = starts + (lot * sizes).astype(np.intp)
    return np.minimum(drawn, len(clients.X) - 1)  # a client without rows; its reply is refused


def times_drawn(clients: Federation, lots: Iterable[Floats], who: Indices | slice) -> Floats:
    """How often lots draw every row, (N,)."""
    counts = np.zeros(len(clients.X))
    for lot in lots:
        np.add.at(counts, rows_drawn(clients, lot, who), 1.0)
    return counts


def sgd(
    clients: Federation,
    local: LocalLoss,
    keys: Keys,
    n_steps: int,
    batch_size: int = 1,
    iterate: str = "last",
    radius: float | None = None,
) -> Floats:
    """Models (m, d) after `n_steps` steps from zero, kept within `radius` of it."""
    coef = np.zeros((len(clients), local.n_coefficients))
    average = np.zeros_like(coef)
    filled = np.flatnonzero(clients.sizes > 0)
    strongest, weakest = _curvature(clients, local)
    for t, now in enumerate(lots_of(keys, n_steps, batch_size, filled)):
        gradient = drawn_gradients(clients, local, coef[filled], now, filled)
        step = 1.0 / (weakest[filled] * (t + 1) + strongest[filled])
        coef[filled] -= step[:, None] * gradient
        if radius is not None:
            length = np.linalg.norm(coef, axis=1, keepdims=True)
            coef *= np.minimum(1.0, radius / np.maximum(length, np.finfo(float).tiny))
        average += (coef - average) * (2.0 / (t + 2))
    return coef if iterate == "last" else average


def lots_of(keys: Keys, n_steps: int, batch_size: int, who: Indices) -> Iterator[Floats]:
    """What every step draws for the clients `who`, (k, batch_size) each."""
    for t in range(n_steps):
        if t % DRAWN_AT_ONCE == 0:
            lot = keys.fold(t // DRAWN_AT_ONCE).uniform(DRAWN_AT_ONCE, batch_size)[who]
        yield lot[:, t % DRAWN_AT_ONCE]


def _curvature(clients: Federation, local: LocalLoss) -> tuple[Floats, Floats]:
    """Curvature of a client's largest row, and the least curvature of its loss, (m,) each."""
    lengths = (clients.X**2).sum(axis=1) + local.fit_intercept
    largest = np.zeros(len(clients))
    np.maximum.at(largest, clients.owner, lengths * local.steepest_row)
    own = local.own_strengths
    strength = local.alpha if own is None else own.max(axis=1)
    strongest = np.maximum(largest + strength, np.finfo(float).tiny)
    weakest = np.linalg.eigvalsh(local.curvatures())[:, 0]
    return strongest, np.maximum(weakest, LEAST_CONVEXITY * strongest)
