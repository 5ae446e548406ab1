"""Rows that count more or less than others: precision weights, as lme4 and scikit-learn have them.

A row of weight w has noise of variance sigma^2 / w. Its features (and the 1 of the intercept) and
its target times the root of w are a row of plain weight, so every sum of products takes weights in
by scaling rows. What scaling leaves out of a log likelihood is half the sum of log w: the density
of y is that of root(w) y times root(w). The number of rows stays what it is; a row of weight zero
is none (`Federation.with_weights` leaves it out). Two rows with the same features are not one row
of weight two: that row has half the noise, but says nothing of how large the noise is.
"""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Floats
from fedkin.federation import Federation


def weighted(X: Floats, y: Floats, weights: Floats) -> tuple[Floats, Floats, float]:
    """Rows X (N, d), the column of the intercept included, and y as plain ones; sum of log w.

    Half of the sum is what the log likelihood of y has beyond that of the scaled target.
    """
    root = np.sqrt(weights)
    return X * root[:, None], y * root, float(np.log(weights).sum())


def log_weights(clients: Federation) -> Floats:
    """Sum of log w of every client's rows, (m,); zero without weights."""
    if clients.weights is None:
        return np.zeros(clients.n_clients)
    logs = np.log(clients.weights)
    return np.asarray(np.bincount(clients.owner, logs, minlength=clients.n_clients))
