"""Where a client's Gaussian mixture may begin, found at the client alone.

- `kmeans_start`: greedy k-means++ seeds (Arthur and Vassilvitskii 2007), restarts side by side.
  Which rows become seeds is keyed by the client's name.
- `ward_start`: hierarchical clustering of the client's rows, one start without chance. With a tied
  covariance EM from there stands in for what R users get from mclust's EEE model.

A client with fewer distinct rows than components gets components that coincide or are empty; one
without rows gets means at zero and equal weights.
"""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.models.gaussian_mixture import (
    CovarianceType,
    Parameters,
    Statistics,
    maximise,
    maximise_covariance,
    smallest_variance,
)
from fedkin.models.latent_classes import mixture_weights
from fedkin.models.row_blocks import CHUNK_ELEMENTS, RowBlocks
from fedkin.models.ward import ward_labels
from fedkin.randomness import Keys
from fedkin.ties import first_least

# Squared distances below this share of a client's mean square are rounding error, hence zero.
SAME_ROW_SHARE = 1e-13


# -------------------------------------------------------------------- k-means++


def kmeans_start(
    rows: RowBlocks,
    n_components: int,
    n_restarts: int,
    keys: Keys,
    covariance_type: CovarianceType = "identity",
) -> Parameters:
    """Means (m, S, R, d) at rows chosen by greedy k-means++, equal weights.

    For diag and tied covariances columns are compared in units of the client's own spread.
    """
    m, d = rows.n_clients, rows.n_columns
    n_candidates = 2 + int(np.log(n_components))
    chance = keys.uniform(n_restarts, n_components, n_candidates)
    means = np.zeros((m, n_restarts, n_components, d))
    nearest = np.zeros((m, n_restarts))
    units = _units(rows) if covariance_type in ("diag", "tied") else np.ones((m, d))
    per_row = n_restarts * n_candidates
    for block in rows.blocks:
        step = max(1, CHUNK_ELEMENTS // (per_row * block.data.shape[-1]))
        for begin in range(0, len(block.clients), step):
            some = slice(begin, begin + step)
            who = block.clients[some]
            points = block.data[some, :-1] / units[who][:, :, None]
            seeds, cost = _seeds(points, block.data[some, -1], block.sizes[some], chance[who])
            means[who] = seeds * units[who][:, None, None, :]
            nearest[who] = cost
    means += rows.centre[:, None, None, :]
    weights = np.full((m, n_restarts, n_components), 1.0 / n_components)
    return Parameters(weights, means, _seed_covariance(rows, nearest, units, covariance_type))


def _units(rows: RowBlocks) -> Floats:
    """Standard deviations of a client's columns; one where a column does not vary, (m, d)."""
    spread = np.sqrt(rows.squares / np.maximum(rows.sizes, 1)[:, None])
    return np.where(spread > 0, spread, 1.0)


def _seeds(
    points: Floats, present: Floats, sizes: Indices, chance: Floats
) -> tuple[Floats, Floats]:
    """Seeds (k, S, R, d) among points (k, d, n), and the summed squared distances to them (k, S).

    `chance` (k, S, R, C): of C candidates drawn with probability in proportion to the squared
    distance from the seeds so far, the one that lowers the sum of distances most is taken.
    """
    k, n_restarts, n_components, _ = chance.shape
    squares = np.einsum("kdn,kdn->kn", points, points)
    zero = SAME_ROW_SHARE * squares.sum(axis=-1) / np.maximum(sizes, 1)
    seeds = np.empty((k, n_restarts, n_components, points.shape[1]))
    distance = np.broadcast_to(present[:, None], (k, n_restarts, points.shape[2]))
    for r in range(n_components):
        cumulative = distance.cumsum(axis=-1)
        target = chance[:, :, r] * cumulative[..., -1:]
        drawn = (cumulative[:, :, None] < target[..., None]).sum(axis=-1)
        if r == 0:
            drawn = drawn[..., :1]
        at = np.minimum(drawn, sizes[:, None, None] - 1).reshape(k, -1)
        candidates = np.take_along_axis(points, at[:, None, :], axis=-1).transpose(0, 2, 1)
        lengths = np.take_along_axis(squares, at, axis=-1)
        apart = squares[:, None] + lengths[..., None] - 2.0 * (candidates @ points)
        apart = np.where(apart > zero[:, None, None], apart, 0.0) * present[:, None]
        apart = apart.reshape(*drawn.shape, -1)
        if r:
            apart = np.minimum(apart, distance[:, :, None])
        best = first_least(apart.sum(axis=-1))[..., None]
        distance = np.take_along_axis(apart, best[..., None], axis=2)[:, :, 0]
        candidates = candidates.reshape(*drawn.shape, -1)
        seeds[:, :, r] = np.take_along_axis(candidates, best[..., None], axis=2)[:, :, 0]
    return seeds, distance.sum(axis=-1)


def _seed_covariance(
    rows: RowBlocks, nearest: Floats, units: Floats, kind: CovarianceType
) -> Floats | None:
    """The mean squared distance to the nearest seed, in the shape of the covariance."""
    if kind == "identity":
        return None
    floor = smallest_variance(rows)[:, None]
    share = nearest / np.maximum(rows.sizes * rows.n_columns, 1)[:, None]
    if kind == "spherical":
        return np.maximum(share, floor)
    variances = np.maximum(share[..., None] * units[:, None, :] ** 2, floor[..., None])
    return variances if kind == "diag" else variances[..., None] * np.eye(rows.n_columns)


# -------------------------------------------------------------------- labels


def at_known_groups(start: Parameters, counts: Floats, centers: Floats) -> Parameters:
    """A start (m, S, ...) whose groups with labels begin at the means of their labelled rows.

    `counts` (m, R) and `centers` (m, R, d) are of these. The seed that is nearest to such a mean
    makes room for it; groups without labels begin at the seeds that are left.
    """
    means = start.means.copy()
    free = np.ones(means.shape[:3], dtype=bool)
    who, restart = np.ogrid[: means.shape[0], : means.shape[1]]
    for r in range(counts.shape[1]):
        told, seed = (counts[:, r] > 0)[:, None], means[:, :, r].copy()
        away = np.square(means - centers[:, None, r, None]).sum(axis=-1)
        nearest = first_least(np.where(free, away, np.inf))
        means[who, restart, np.where(told, nearest, r)] = seed
        means[:, :, r] = np.where(told[..., None], centers[:, None, r], seed)
        free[:, :, r] &= ~told
    return start._replace(means=means)


# -------------------------------------------------------------------- hierarchical


def ward_start(
    rows: RowBlocks, n_components: int, covariance_type: CovarianceType = "tied"
) -> Parameters:
    """M-step (m, 1, ...) from Ward's clusters of a client's rows, one site after another."""
    m, d = rows.n_clients, rows.n_columns
    units = _units(rows)
    counts = np.zeros((m, n_components))
    sums = np.zeros((m, n_components, d))
    for block in rows.blocks:
        for data, n, k in zip(block.data, block.sizes, block.clients):
            own = data[:-1, :n].T
            chosen = np.eye(n_components)[ward_labels(own / units[k], n_components)]
            counts[k], sums[k] = chosen.sum(axis=0), chosen.T @ own
    sums += counts[..., None] * rows.centre[:, None]
    packed = np.append(sums, counts[..., None], axis=-1)
    statistics = Statistics(counts, packed, np.zeros(m), rows.sizes.astype(float))
    means = maximise(packed, np.broadcast_to(rows.centre[:, None], sums.shape))
    weights = mixture_weights(counts, np.full((m, n_components), 1.0 / n_components))
    covariance = maximise_covariance(rows, statistics, means, covariance_type)
    own_covariance = None if covariance is None else covariance[:, None]
    return Parameters(weights[:, None], means[:, None], own_covariance)
