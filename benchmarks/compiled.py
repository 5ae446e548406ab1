"""Peers that are compiled: the loops one writes in Numba, on the same work as ours.

Compiled for this processor; sums may be reordered, so that they use its vector instructions. The
first call pays for compiling and is not timed.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from benchmarks.measure import threads

numba.set_num_threads(min(threads(), numba.config.NUMBA_NUM_THREADS))
REORDERED = {"reassoc", "contract", "nsz", "arcp"}
compiled = numba.njit(fastmath=REORDERED)

# ------------------------------------------------------------------ convex clustering by AMA

MOST_ROUNDS = 20_000


@compiled
def _net_pulls(pulls, points, moved):
    """moved = points - net pull on every point; `pulls` holds one dual vector a pair."""
    m, d = points.shape
    moved[:] = points
    pair = 0
    for i in range(m - 1):
        for j in range(i + 1, m):
            for k in range(d):
                moved[i, k] -= pulls[pair, k]
                moved[j, k] += pulls[pair, k]
            pair += 1


@compiled
def _primal(points, moved, penalty):
    m, d = points.shape
    value = 0.0
    for i in range(m):
        for k in range(d):
            value += 0.5 * (points[i, k] - moved[i, k]) ** 2
        for j in range(i + 1, m):
            square = 0.0
            for k in range(d):
                square += (moved[i, k] - moved[j, k]) ** 2
            value += penalty * math.sqrt(square)
    return value


@compiled
def _dual(points, moved):
    value = 0.0
    m, d = points.shape
    for i in range(m):
        for k in range(d):
            value += 0.5 * (points[i, k] ** 2 - moved[i, k] ** 2)
    return value


@compiled
def _ama(points, penalty, pulls, gap, most_rounds):
    """As `ama.ama`; step, projection, momentum and next net pulls in one pass over the pairs."""
    m, d = points.shape
    step, momentum, best = 1.0 / m, 1.0, -np.inf
    for pair in range(len(pulls)):
        square = 0.0
        for k in range(d):
            square += pulls[pair, k] ** 2
        if square > penalty * penalty:
            for k in range(d):
                pulls[pair, k] *= penalty / math.sqrt(square)
    # `pulls` is where momentum carries `current`, the feasible duals; `moved` belongs to `pulls`.
    current, new = pulls.copy(), np.empty(d)
    moved, following_moved = np.empty_like(points), np.empty_like(points)
    _net_pulls(pulls, points, moved)
    for n_rounds in range(1, most_rounds + 1):
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum))
        ahead = (momentum - 1.0) / following
        following_moved[:] = points
        pair = 0
        for i in range(m - 1):
            for j in range(i + 1, m):
                square = 0.0
                for k in range(d):
                    new[k] = pulls[pair, k] + step * (moved[i, k] - moved[j, k])
                    square += new[k] * new[k]
                scale = penalty / math.sqrt(square) if square > penalty * penalty else 1.0
                for k in range(d):
                    feasible = scale * new[k]
                    carried = feasible + ahead * (feasible - current[pair, k])
                    current[pair, k], pulls[pair, k] = feasible, carried
                    following_moved[i, k] -= carried
                    following_moved[j, k] += carried
                pair += 1
        moved, following_moved = following_moved, moved
        momentum = following
        if n_rounds % 5 == 0:
            _net_pulls(current, points, following_moved)
            dual, value = _dual(points, following_moved), _primal(points, following_moved, penalty)
            if value - dual <= gap * value:
                break
            if dual < best:
                momentum = 1.0
                pulls[:] = current
                moved[:] = following_moved
            best = max(best, dual)
    pulls[:] = current
    _net_pulls(current, points, moved)
    return moved, n_rounds


def ama_path(points, penalties, gap):
    """Centred solutions and numbers of rounds along the penalties, duals warm-started."""
    centred = points - points.mean(axis=0)
    m, d = points.shape
    pulls = np.zeros((m * (m - 1) // 2, d))
    return [_ama(centred, penalty, pulls, gap, MOST_ROUNDS) for penalty in penalties]


# ------------------------------------------------------------------ a round of a Gaussian mixture


@numba.njit(fastmath=REORDERED, parallel=True)
def mixture_round(X, offsets, squares, weights, means):
    """E-step, weights, means and log likelihood of every site, row by row; identity covariance."""
    n_sites, n_components, d = means.shape
    new_weights = np.zeros((n_sites, n_components))
    new_means = np.zeros((n_sites, n_components, d))
    logliks = np.empty(n_sites)
    for s in numba.prange(n_sites):
        logs, constant = np.empty(n_components), np.empty(n_components)
        for r in range(n_components):
            size = 0.0
            for k in range(d):
                size += means[s, r, k] * means[s, r, k]
            constant[r] = math.log(weights[s, r]) - 0.5 * size
        n_rows = offsets[s + 1] - offsets[s]
        loglik = -0.5 * (squares[s] + n_rows * d * math.log(2 * math.pi))
        for i in range(offsets[s], offsets[s + 1]):
            top = -np.inf
            for r in range(n_components):
                inner = 0.0
                for k in range(d):
                    inner += X[i, k] * means[s, r, k]
                logs[r] = constant[r] + inner
                top = max(top, logs[r])
            total = 0.0
            for r in range(n_components):
                logs[r] = math.exp(logs[r] - top)
                total += logs[r]
            for r in range(n_components):
                share = logs[r] / total
                new_weights[s, r] += share
                for k in range(d):
                    new_means[s, r, k] += share * X[i, k]
            loglik += top + math.log(total)
        for r in range(n_components):
            for k in range(d):
                new_means[s, r, k] /= new_weights[s, r]
            new_weights[s, r] /= n_rows
        logliks[s] = loglik
    return new_weights, new_means, logliks
