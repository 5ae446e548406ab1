"""Means, scales and the scatter within groups: a client's sums, and what pools them.

A client's half works on the rows of all clients at once; the pooling half works on sums alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedkin.arrays import Bools, Floats, Indices
from fedkin.federation import Federation
from fedkin.models.ward import ward_labels
from fedkin.randomness import row_uniforms

UInts = NDArray[np.uint64]

# Ward's tree needs the distances of all pairs of rows: 16 MB for so many rows. A client with more
# grows the tree of a sample and puts the other rows with the nearest group mean.
TREE_ROWS = 2000
# A column whose standard deviation is below so many roundings of its mean does not vary.
CONSTANT_ROUNDINGS = 10
# Standard deviation of a normal variable over its median absolute deviation.
MAD_TO_SCALE = 1.4826022185056018
# A client's covariance is odd at more than so many times the median client's distance from the
# middle one. For one feature and normal sampling error that is 4 x 0.67 = 2.7 standard errors:
# alike clients are lost by one to three in a hundred with one feature, with many features none.
ODD_RATIO = 4.0
# Whatever the others do, a covariance within this factor of their size is not odd for its size.
SAME_SIZE = 2.0
# Below this distance, in units of the middle covariance, two covariances are the same.
SAME_DISTANCE = 1e-9
# The middle is only a reference to measure from: a percent of sampling error is near enough.
MIDDLE_STEPS = 30
MIDDLE_TOLERANCE = 1e-4
# Eigenvalues of a covariance below this share of the largest are raised to it: no direction is
# stretched more than a thousand times as far as another.
EIGENVALUE_SHARE = 1e-6


# ------------------------------------------------------------------ at a client


def sums_about(clients: Federation, shift: Floats) -> tuple[Floats, Floats]:
    """Sums and sums of squares of the columns about `shift`, each (m, d)."""
    sums = np.zeros((clients.n_clients, clients.n_features))
    squares = np.zeros_like(sums)
    rows = clients.X - shift
    for bucket in clients.buckets():
        block = bucket.pack(rows)
        sums[bucket.clients] = block.sum(axis=-1)
        squares[bucket.clients] = np.square(block).sum(axis=-1)
    return sums, squares


def within_scatter(clients: Federation, rows: Floats, labels: Indices) -> tuple[Floats, Indices]:
    """Products about the means of a client's groups, summed (m, d, d), and rows less groups (m,).

    `rows` (N, d) in place of the clients' own; `labels` (N,) count the groups of a client from 0.
    """
    key = clients.owner * (labels.max(initial=0) + 1) + labels
    found, first, group, counts = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    # By way of the group's first row: far-away groups stay exact, constant columns become zero.
    about = rows - rows[first][group]
    for column in about.T:
        column -= (np.bincount(group, column, len(found)) / counts)[group]
    scatter = np.zeros((clients.n_clients, rows.shape[1], rows.shape[1]))
    for bucket in clients.buckets():
        block = bucket.pack(about)
        scatter[bucket.clients] = block @ block.transpose(0, 2, 1)
    n_groups = np.bincount(clients.owner[first], minlength=clients.n_clients)
    return scatter, clients.sizes - n_groups


def ward_groups(clients: Federation, rows: Floats, n_groups: int, keys: UInts) -> Indices:
    """Ward's groups of every client's `rows` (N, d), one client after another; (N,)."""
    labels = np.zeros(len(rows), dtype=np.intp)
    if n_groups == 1:
        return labels
    for k in np.flatnonzero(clients.sizes > 1):
        own = slice(clients.offsets[k], clients.offsets[k + 1])
        points = rows[own] - rows[own].mean(axis=0)
        labels[own] = _labels_of_many(points, n_groups, keys[k : k + 1])
    return labels


def _labels_of_many(points: Floats, n_groups: int, key: UInts) -> Indices:
    if len(points) <= TREE_ROWS:
        return ward_labels(points, n_groups)
    lot = row_uniforms(key, np.arange(len(points), dtype=np.uint64))
    drawn = np.sort(np.argpartition(lot, TREE_ROWS)[:TREE_ROWS])
    sample = points[drawn]
    found = ward_labels(sample - sample.mean(axis=0), n_groups)
    means = np.array([sample[found == g].mean(axis=0) for g in range(found.max() + 1)])
    # Squared distance to a mean, without what is the same for all means.
    return np.asarray(np.argmin(np.square(means).sum(axis=1) - 2 * points @ means.T, axis=1))


# ------------------------------------------------------------------ pooling


def pooled_mean_and_variance(rows: Floats, sums: Floats, squares: Floats) -> tuple[Floats, Floats]:
    """Mean (about the shift) and variance of all rows together, each (d,)."""
    mean = sums.sum(axis=0) / rows.sum()
    return mean, np.maximum(squares.sum(axis=0) / rows.sum() - mean**2, 0.0)


def median_mean_and_variance(rows: Floats, sums: Floats, squares: Floats) -> tuple[Floats, Floats]:
    """The same from medians over clients, each client counting once.

    Variance = median of the clients' variances + the squared robust spread of their means: for
    clients that are alike this estimates the variance of all rows together, whatever their size.
    A column that varies at less than half of the clients takes the median of those where it does.
    """
    means = sums / rows[:, None]
    variances = np.maximum(squares / rows[:, None] - means**2, 0.0)
    mean = np.median(means, axis=0)
    spread = MAD_TO_SCALE * np.median(np.abs(means - mean), axis=0)
    variance = np.median(variances, axis=0) + spread**2
    apart = variances + (means - mean) ** 2
    elsewhere = np.ma.median(np.ma.masked_equal(apart, 0.0), axis=0).filled(0.0)
    return mean, np.where(variance > 0, variance, elsewhere)


def rounding_of(mean: Floats) -> Floats:
    """The standard deviation below which a column with this mean does not vary, (d,)."""
    rounding: Floats = CONSTANT_ROUNDINGS * np.finfo(np.float64).eps * np.abs(mean)
    return rounding


def scale_of(variance: Floats, mean: Floats) -> Floats:
    """Standard deviations (d,); one for a column that does not vary."""
    return np.where(variance > rounding_of(mean) ** 2, np.sqrt(variance), 1.0)


def pooled_covariance(scatter: Floats, degrees: Floats, rounding: Floats) -> Floats:
    """The covariance within groups, (d, d), from scatter (m, d, d) and degrees of freedom (m,).

    Zero for a column whose standard deviation is not above `rounding` (d,).
    """
    covariance = scatter.sum(axis=0) / degrees.sum()
    varies = np.diagonal(covariance) > rounding**2
    return np.where(np.outer(varies, varies), (covariance + covariance.T) / 2, 0.0)


def alike(scatter: Floats, degrees: Floats) -> Bools:
    """Clients whose covariance is not far from the others', in shape or in size, (m,)."""
    kept = np.ones(len(degrees), dtype=bool)
    freedom = degrees > 0
    if freedom.any():
        own = scatter[freedom] / degrees[freedom, None, None]
        apart, size = _apart_and_size(own, middle_covariance(own))
        beyond = np.abs(size - np.median(size))
        kept[freedom] = _near(apart, degrees[freedom]) & (
            (beyond <= np.log(SAME_SIZE)) | _near(beyond, degrees[freedom])
        )
    return kept


def _near(distance: Floats, degrees: Floats) -> Bools:
    """Not far, as a distance or in units of sampling error.

    A small client errs more and a large one shows real differences; neither is odd for that.
    """
    errors = distance * np.sqrt(degrees)
    near: Bools = (distance <= ODD_RATIO * np.median(distance) + SAME_DISTANCE) | (
        errors <= ODD_RATIO * np.median(errors)
    )
    return near


def middle_covariance(own: Floats) -> Floats:
    """The geometric median of covariances (m, d, d), in units in which it is the identity itself.

    Weiszfeld's fixed point. In these units a change of shape weighs the same in narrow directions
    as in wide ones, and whitening cares for the narrow ones.
    """
    middle = np.diag(np.median(np.diagonal(own, axis1=1, axis2=2), axis=0))
    for _ in range(MIDDLE_STEPS):
        before = middle
        weight = 1.0 / np.maximum(_apart_and_size(own, before)[0], SAME_DISTANCE)
        middle = np.tensordot(weight / weight.sum(), own, axes=1)
        if np.linalg.norm(middle - before) <= MIDDLE_TOLERANCE * np.linalg.norm(before):
            break
    return middle


def _apart_and_size(own: Floats, middle: Floats) -> tuple[Floats, Floats]:
    """In units in which `middle` is the identity: distance from it, and logarithm of the trace."""
    whitening = whitening_matrix(middle)
    white = whitening @ own @ whitening
    apart = np.linalg.norm(white - whitening @ middle @ whitening, axis=(1, 2))
    trace = np.trace(white, axis1=1, axis2=2)
    return apart, np.log(np.maximum(trace, np.finfo(np.float64).tiny))


def whitening_matrix(covariance: Floats) -> Floats:
    """The symmetric W with W covariance W = identity, eigenvalues held above the floor, (d, d).

    Of all matrices that whiten, the symmetric one moves the features least, so they keep their
    names. A column that does not vary within groups is left as it is.
    """
    whitening = np.eye(len(covariance))
    varies = np.flatnonzero(np.diagonal(covariance) > 0)
    if len(varies):
        square = np.ix_(varies, varies)
        values, vectors = np.linalg.eigh(covariance[square])
        held = np.maximum(values, EIGENVALUE_SHARE * values[-1])
        whitening[square] = (vectors / np.sqrt(held)) @ vectors.T
    return whitening
