"""Convex clustering by alternating minimisation (AMA) in NumPy, written with care: a peer."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import pdist

RELATIVE_GAP = 1e-7


class PairDuals:
    """One dual vector per pair, (n_pairs, d); differences are taken row by row, without gathers."""

    def __init__(self, m, d):
        self.m, self.pulls = m, np.zeros((m * (m - 1) // 2, d))
        self.starts = np.concatenate([[0], np.cumsum(np.arange(m - 1, 0, -1))])

    def rows(self):
        for i in range(self.m - 1):
            yield i, slice(self.starts[i], self.starts[i + 1])

    def pull(self):
        """Net pull on every point, (m, d)."""
        total = np.zeros((self.m, self.pulls.shape[1]))
        for i, pairs in self.rows():
            block = self.pulls[pairs]
            total[i] += block.sum(axis=0)
            total[i + 1 :] -= block
        return total


def ama(points, penalty, duals, max_rounds=20_000):
    """Chi and Lange's AMA with Nesterov's acceleration and restarts, warm-started duals.

    Pulls are kept scaled to length <= penalty; the dual step 1/m is the largest safe one. The gap
    is tested every fifth round. Returns u (m, d) and the number of rounds.
    """
    m = len(points)
    step, momentum = 1.0 / m, 1.0
    duals.pulls *= np.minimum(
        1.0, penalty / np.maximum(np.sqrt((duals.pulls**2).sum(axis=1)), 1e-300)
    )[:, None]
    previous = duals.pulls.copy()
    best = -np.inf
    for n_rounds in range(1, max_rounds + 1):
        u = points - duals.pull()
        for i, pairs in duals.rows():
            block = duals.pulls[pairs]
            block += step * (u[i] - u[i + 1 :])
            length = np.sqrt(np.einsum("ij,ij->i", block, block))
            block *= (penalty / np.maximum(length, penalty))[:, None]
        current = duals.pulls.copy()
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        if n_rounds % 5 == 0:
            u = points - duals.pull()
            dual = 0.5 * ((points**2).sum() - (u**2).sum())
            if dual < best:
                momentum = following = 1.0
            best = max(best, dual)
            value = primal(points, u, penalty)
            if value - dual <= RELATIVE_GAP * value:
                break
        duals.pulls += ((momentum - 1.0) / following) * (current - previous)
        previous, momentum = current, following
    return u, n_rounds


def primal(points, u, penalty):
    return 0.5 * ((points - u) ** 2).sum() + penalty * pdist(u).sum()


def ama_path(points, penalties):
    centred = points - points.mean(axis=0)
    duals = PairDuals(*points.shape)
    return [ama(centred, penalty, duals) for penalty in penalties]
