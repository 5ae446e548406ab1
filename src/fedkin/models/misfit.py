"""How far rows are from where the parameters of a question put them.

A fit has groups where rows are, as wide as these scatter, and is as sure of a class as rows let it
be. Groups far from their rows or far narrower than these, and classes far too sure, cut through
rows like a knife: no fit leads there, and who asks so wants to tell rows apart. All numbers are
"times": about one for what a fit asks, and one number for every client, which all of its rows have.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import log_softmax

from fedkin.arrays import Floats, Indices

# Groups of fewer rows are not looked at: parts that differ by fewer leave alike anyway.
LEAST_ROWS = 10.0
# Shares of a linear predictor among which a better fit, which is less sure, is looked for.
SHARES = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
TINY = 1e-300


def times_as_far(away: Floats, share: Floats) -> float:
    """How many times as far rows of a group are from its centre as its spread says.

    `away` (n, d) are rows about the centre in units of the spread, of which `share` (n,) belong to
    the group. The direction decides in which they are furthest (root mean square), beside what so
    many rows have by chance (Marchenko and Pastur's edge).
    """
    total = float(share.sum())
    if total < LEAST_ROWS:
        return 0.0
    scatter = (away * share[:, None]).T @ away / total
    n_rows = total**2 / float(np.square(share).sum())
    by_chance = 1.0 + np.sqrt(away.shape[1] / n_rows)
    return float(np.sqrt(np.linalg.eigvalsh(scatter)[-1]) / by_chance)


def of_groups(away: Callable[[int], Floats], shares: Floats, sizes: Indices) -> Floats:
    """The worst group of every client, for all of its rows, (N,).

    `away(r)` are rows about the r-th centre of their client in units of its spread, (N, d);
    `shares` (N, R).
    """
    found, ends = np.zeros(len(sizes)), np.cumsum(sizes)
    for r in range(shares.shape[1]):
        offsets = away(r)
        for k, (end, n) in enumerate(zip(ends, sizes)):
            own = slice(end - n, end)
            found[k] = max(found[k], times_as_far(offsets[own], shares[own, r]))
    return np.repeat(found, sizes)


def of_classes(scores: Floats, hits: Floats, owner: Indices) -> Floats:
    """How many times as surprising the classes are as by a smaller share of the scores, (N, ...).

    `scores` (N, ..., C) are linear predictors, `hits` (N, C) how often a row had each class. What
    is too sure of the rows of a client gets better when it is shrunk; what no share of it betters
    has one.
    """
    n_clients = int(owner.max(initial=-1)) + 1

    def surprise(share: float) -> Floats:
        logs = log_softmax(share * scores, axis=-1)
        rows = -np.einsum("n...c,nc->n...", logs, hits)
        total = np.zeros((n_clients, *rows.shape[1:]))
        np.add.at(total, owner, rows)
        return total

    asked = surprise(1.0)
    least = np.minimum.reduce([asked, *(surprise(share) for share in SHARES)])
    times: Floats = (asked + TINY) / (least + TINY)
    return times[owner]
