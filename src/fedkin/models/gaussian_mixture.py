"""Gaussian mixtures inside every client: E-step, M-step and gradient step, batched over clients.

A client's rows come from R normal components with its own weights and means and ONE covariance for
all its components: the identity (FedGrEM's model, equation 4), a number, a diagonal, or a matrix
that may also be common to all clients. With one covariance

- the quadratic term x' P x (P the inverse covariance) cancels from the posterior, so the E-step is
  one matrix product with the rows and the M-step another;
- all that is needed of second moments is the scatter of all rows of a client, known beforehand;
- the likelihood cannot be driven to infinity by one component closing in on one row.

Arrays have the client as first axis. Between it and the components there may be further axes,
written `...`: restarts that run side by side.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.federation import Federation
from fedkin.models.latent_classes import (
    EMPTY_COMPONENT,
    after_client,
    clip_factors,
    clipped_share,
    log_weights,
    mixture_weights,
    rule_out,
    to_posterior,
)
from fedkin.models.row_blocks import Chunk, RowBlocks

CovarianceType = Literal["identity", "spherical", "diag", "tied"]
COVARIANCE_TYPES: tuple[str, ...] = get_args(CovarianceType)

# A variance is at least this share of the client's mean variance over columns (of one, where all
# its rows are equal). Sums of squares carry about 1e-16 of rounding; a millionth of the spread, a
# thousandth of the scale, is far above it and below what data measured to three digits can show.
SMALLEST_VARIANCE_SHARE = 1e-6
# Rows that differ by less than this share of their distance from zero are equal but for rounding.
SAME_VALUE = 64 * np.finfo(float).eps


class Parameters(NamedTuple):
    """`weights` (m, ..., R), `means` (m, ..., R, d), and a covariance shared by the components.

    `covariance` is None (identity), (m, ...) spherical, (m, ..., d) diagonal or (m, ..., d, d)
    tied; its client axis may have length one: common to all clients.
    """

    weights: Floats
    means: Floats
    covariance: Floats | None = None


class Clipped(NamedTuple):
    """What clipped rows leave for a covariance: a row's square counts as clip^2 at most.

    `pulls` (m, ..., R), `sums` (m, ..., R, d) and `scatter` (m, ..., d, d): weights, weighted rows
    and products of all rows, about the client's centre.
    """

    pulls: Floats
    sums: Floats
    scatter: Floats


class Statistics(NamedTuple):
    """What an E-step leaves of a client's rows.

    `counts` (m, ..., R): responsibilities added up. `packed` (m, ..., R, d + 1): weighted rows and,
    last, the sum of their weights, which is the count unless rows are clipped. `loglik` (m, ...);
    `n_rows` (m,). `clipped`: there if rows are clipped and a covariance learnt.
    """

    counts: Floats
    packed: Floats
    loglik: Floats
    n_rows: Floats
    clipped: Clipped | None = None

    @property
    def pulls(self) -> Floats:
        """Weights behind the means, (m, ..., R)."""
        return self.packed[..., -1]

    @property
    def sums(self) -> Floats:
        """Weighted rows behind the means, (m, ..., R, d)."""
        return self.packed[..., :-1]


def prepare(clients: Federation, labelled: bool = False) -> RowBlocks:
    """The clients' rows; with `labelled`, y holds the number of a row's group, or UNKNOWN."""
    return RowBlocks.of(clients, clients.X, True, clients.y if labelled else None)


# -------------------------------------------------------------------- densities


def covariance_kind(parameters: Parameters) -> CovarianceType:
    """Which of the four a parameter's covariance is, by its number of axes."""
    if parameters.covariance is None:
        return "identity"
    extra = parameters.covariance.ndim - (parameters.means.ndim - 2)
    kinds: tuple[CovarianceType, ...] = ("spherical", "diag", "tied")
    return kinds[extra]


def _variances(parameters: Parameters) -> Floats | None:
    """Variances of the columns (m, ..., d), or broadcasting to it; None for a tied covariance."""
    covariance, kind = parameters.covariance, covariance_kind(parameters)
    n_axes, d = parameters.means.ndim - 2, parameters.means.shape[-1]
    if covariance is None:
        return np.ones((*[1] * n_axes, d))
    if kind == "tied":
        return None
    return covariance if kind == "diag" else np.repeat(covariance[..., None], d, axis=-1)


def _matrix(parameters: Parameters) -> Floats:
    """A tied covariance, (m, ..., d, d)."""
    assert parameters.covariance is not None
    return parameters.covariance


def matrices(parameters: Parameters) -> Floats:
    """The covariance as a matrix, of whatever kind it is, (m or 1, ..., d, d)."""
    variances = _variances(parameters)
    if variances is None:
        return _matrix(parameters)
    return variances[..., None] * np.eye(variances.shape[-1])


def times_precision(parameters: Parameters, vectors: Floats) -> Floats:
    """Vectors (m, ..., R, d) multiplied by the inverse covariance."""
    variances = _variances(parameters)
    if variances is None:
        return vectors @ np.linalg.inv(_matrix(parameters))
    return vectors / variances[..., None, :]


def _normalising(rows: RowBlocks, parameters: Parameters) -> Floats:
    """d log(2 pi) + log determinant of the covariance, (m, ...) or broadcasting to it."""
    variances = _variances(parameters)
    if variances is None:
        log_determinant = np.asarray(np.linalg.slogdet(_matrix(parameters))[1])
    else:
        log_determinant = np.log(variances).sum(axis=-1)
    return rows.n_columns * np.log(2 * np.pi) + log_determinant


def _linear_part(rows: RowBlocks, parameters: Parameters) -> tuple[Floats, Floats]:
    """Vectors a with a . (x, 1) = log weight + x' P mean - mean' P mean / 2, (m, S, R, d + 1).

    x and mean are measured from the client's centre. Also the log weights, (m, S, R).
    """
    means = parameters.means - after_client(rows.centre, parameters.means.ndim - 2)
    scaled = times_precision(parameters, means)
    shape = (rows.n_clients, -1, *parameters.means.shape[-2:])
    logs = log_weights(parameters.weights)
    constant = logs - 0.5 * np.einsum("...d,...d->...", scaled, means)
    linear = np.concatenate([scaled, constant[..., None]], axis=-1)
    linear = np.broadcast_to(linear, (rows.n_clients, *linear.shape[1:]))
    logs = np.broadcast_to(logs, (rows.n_clients, *logs.shape[1:]))
    return linear.reshape(*shape[:-1], shape[-1] + 1), logs.reshape(shape[:-1])


def _row_lengths(data: Floats, parameters: Parameters, clients: Indices) -> Floats:
    """x' P x of the rows of a chunk, (S or 1, k, width)."""
    columns, variances = data[:, :-1], _variances(parameters)
    spread = _matrix(parameters) if variances is None else variances
    own = spread if len(spread) == 1 else spread[clients]
    if variances is None:
        scaled = np.linalg.inv(own.reshape(len(own), -1, *own.shape[-2:])) @ columns[:, None]
        return np.einsum("ksdn,kdn->skn", scaled, columns)
    return ((1.0 / own.reshape(len(own), -1, own.shape[-1])) @ columns**2).swapaxes(0, 1)


# -------------------------------------------------------------------- E-step


def expect(rows: RowBlocks, parameters: Parameters, clip: float | None = None) -> Statistics:
    """The E-step of every client; a row whose label is known belongs to its component.

    `clip` bounds how far one row can pull one component: posterior times Mahalanobis length of
    (row - mean). It is a clipped gradient for the gradient step and a Huber weight for the full
    M-step; counts and likelihood are not touched by it. A covariance gets Huber's weights for
    scatter (Maronna 1976), scaled to be right for normal rows.
    """
    linear, logs = _linear_part(rows, parameters)
    m, n_restarts, n_components, size = linear.shape
    sums = np.zeros((m, n_restarts * n_components, size))
    counts = np.zeros((m, n_restarts * n_components))
    loglik = np.zeros((m, n_restarts))
    per_row = n_restarts * n_components
    robust = clip is not None and parameters.covariance is not None
    doubly = np.zeros_like(sums) if robust else None
    scatter = np.zeros((m, n_restarts, size - 1, size - 1)) if robust else None
    for chunk in rows.chunks(per_row):
        data, who = chunk.data, chunk.clients
        joint = np.empty((n_restarts, n_components, len(who), data.shape[-1]))
        flat = joint.reshape(per_row, len(who), -1).transpose(1, 0, 2)
        np.matmul(linear[who].reshape(len(who), per_row, size), data, out=flat)
        if clip is not None:
            log_weight = logs[who].transpose(1, 2, 0)[..., None]
            length = _row_lengths(data, parameters, who)[:, None] + 2.0 * (log_weight - joint)
            np.sqrt(np.maximum(length, 0.0, out=length), out=length)
        rule_out(joint, chunk.labels)
        total = to_posterior(joint)
        loglik[who] += np.einsum("skn,kn->ks", total, data[:, -1])
        if clip is not None:
            counts[who] += np.einsum("krn,kn->kr", flat, data[:, -1])
            if doubly is not None and scatter is not None:
                held = joint * clip_factors(1.0, length, clip) ** 2
                each = held.reshape(per_row, len(who), -1).transpose(1, 0, 2)
                doubly[who] += each @ data.transpose(0, 2, 1)
                weighted = held.sum(axis=1).swapaxes(0, 1)[:, :, None] * data[:, None, :-1]
                scatter[who] += weighted @ data[:, None, :-1].swapaxes(-1, -2)
            joint *= clip_factors(joint, length, clip)
        sums[who] += flat @ data.transpose(0, 2, 1)
    lead = parameters.means.shape[1:-1]
    sums = sums.reshape(m, *lead, size)
    pulls = sums[..., -1]
    clipped = None
    if doubly is not None and scatter is not None and clip is not None:
        share = clipped_share(clip, size - 1)
        doubly = doubly.reshape(sums.shape) / share
        scatter = scatter.reshape(m, *lead[:-1], size - 1, size - 1) / share
        clipped = Clipped(doubly[..., -1], doubly[..., :-1], scatter)
    sums[..., :-1] += pulls[..., None] * after_client(rows.centre, sums.ndim - 2)
    return Statistics(
        pulls if clip is None else counts.reshape(m, *lead),
        sums,
        _complete(rows, parameters, loglik.reshape(m, *lead[:-1])),
        rows.sizes.astype(float),
        clipped,
    )


def _complete(rows: RowBlocks, parameters: Parameters, loglik: Floats) -> Floats:
    """Add what all components of a client share: its rows' x' P x and the normalising constant."""
    n_axes, variances = loglik.ndim - 1, _variances(parameters)
    if variances is None:
        precision = np.linalg.inv(_matrix(parameters))
        quadratic = np.einsum("...ij,...ij->...", after_client(rows.scatter, n_axes), precision)
    else:
        quadratic = (after_client(rows.squares, n_axes) / variances).sum(axis=-1)
    constant = after_client(rows.sizes, n_axes) * _normalising(rows, parameters)
    return loglik - 0.5 * (quadratic + constant)


def log_joint(rows: RowBlocks, parameters: Parameters) -> Floats:
    """log(weight * density) of every row under every component, (N, R).

    `parameters` without restarts. The log sum over components is a row's log density, the softmax
    its responsibilities.
    """
    linear, _ = _linear_part(rows, parameters)
    constant = np.broadcast_to(_normalising(rows, parameters), rows.n_clients)[:, None, None]

    def of_chunk(chunk: Chunk) -> Floats:
        lengths = _row_lengths(chunk.data, parameters, chunk.clients)[0][:, None]
        values = linear[chunk.clients, 0] @ chunk.data
        values -= 0.5 * (lengths + constant[chunk.clients])
        rule_out(values.transpose(1, 0, 2)[None], chunk.labels)
        return values

    return rows.row_by_row(of_chunk, linear.shape[2])


# -------------------------------------------------------------------- M-step


def maximise(packed: Floats, current: Floats) -> Floats:
    """The means that maximise Q; a component without rows keeps its current one."""
    sums, pulls = packed[..., :-1], packed[..., -1:]
    alive = pulls > EMPTY_COMPONENT
    return np.where(alive, sums / np.where(alive, pulls, 1.0), current)


def ascent_direction(statistics: Statistics, means: Floats) -> Floats:
    """Gradient of a client's Q (a mean over its rows) times the covariance, (m, ..., R, d).

    Times the covariance, so that the same step C_eta < 2 / weight converges whatever the units of
    the data; with the identity it is the paper's gradient.
    """
    pull = statistics.sums - statistics.pulls[..., None] * means
    return pull / after_client(np.maximum(statistics.n_rows, 1.0), means.ndim - 1)


def longest_step(statistics: Statistics) -> Floats:
    """The step beyond twice which a gradient step diverges, (m, ..., R): 1 / share of the rows."""
    rows = after_client(np.maximum(statistics.n_rows, 1.0), statistics.pulls.ndim - 1)
    return 1.0 / np.maximum(statistics.pulls / rows, np.finfo(float).tiny)


def sampling_variance(statistics: Statistics, covariance: Floats | None) -> Floats:
    """Variance of a coordinate of a component's mean, (m, R); infinite if it has no rows.

    In the metric of the covariance, if None is given for it.
    """
    spread, pulls = np.ones((len(statistics.counts), 1)), statistics.pulls
    if covariance is not None:
        spread = covariance.reshape(len(covariance), -1).mean(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.where(pulls > EMPTY_COMPONENT, spread / pulls, np.inf)


def within_scatter(
    rows: RowBlocks, statistics: Statistics, means: Floats, kind: CovarianceType
) -> Floats:
    """Responsibility-weighted squares about `means`, summed over components.

    (m, ...) for spherical, (m, ..., d) for diag, (m, ..., d, d) for tied. Adding them (and the
    rows) over clients gives what a covariance common to all clients needs.
    """
    n_axes = means.ndim - 3
    centre = after_client(rows.centre, means.ndim - 2)
    about, clipped = means - centre, statistics.clipped
    if clipped is None:
        counts = statistics.counts[..., None]
        sums, all_rows = statistics.sums - counts * centre, after_client(rows.scatter, n_axes)
    else:
        counts, sums, all_rows = clipped.pulls[..., None], clipped.sums, clipped.scatter
    if kind == "tied":
        cross = sums.swapaxes(-1, -2) @ about
        square = about.swapaxes(-1, -2) @ (counts * about)
        return all_rows - cross - cross.swapaxes(-1, -2) + square
    fitted = np.einsum("...rd,...rd->...d", 2.0 * sums - counts * about, about)
    before = np.diagonal(all_rows, axis1=-2, axis2=-1)
    squares = np.maximum(before - fitted, 0.0)
    return squares.sum(axis=-1) if kind == "spherical" else squares


def smallest_variance(rows: RowBlocks) -> Floats:
    """What a client's variances must not fall below, (m,)."""
    spread = rows.squares.sum(axis=-1) / np.maximum(rows.sizes * rows.n_columns, 1)
    rounding = SAME_VALUE**2 * (rows.centre**2).mean(axis=-1)
    return SMALLEST_VARIANCE_SHARE * np.where(spread > rounding, spread, 1.0)


def covariance_of(rows: RowBlocks, scatter: Floats, kind: CovarianceType) -> Floats:
    """The most likely covariance of every client with no variance below its smallest.

    A tied matrix has its small eigenvalues raised, which is the constrained maximum.
    """
    axes, smallest = scatter.ndim - 1, smallest_variance(rows)
    n_rows = after_client(np.maximum(rows.sizes, 1.0), axes)
    raw = scatter / (n_rows * rows.n_columns if kind == "spherical" else n_rows)
    if kind != "tied":
        return np.maximum(raw, after_client(smallest, axes))
    values, vectors = np.linalg.eigh(raw)
    values = np.maximum(values, after_client(smallest, axes - 1))
    return (vectors * values[..., None, :]) @ vectors.swapaxes(-1, -2)


def maximise_covariance(
    rows: RowBlocks, statistics: Statistics, means: Floats, kind: CovarianceType
) -> Floats | None:
    """Every client's own covariance given its means; None for the identity."""
    if kind == "identity":
        return None
    return covariance_of(rows, within_scatter(rows, statistics, means, kind), kind)


def em_step(rows: RowBlocks, parameters: Parameters) -> tuple[Parameters, Floats]:
    """One E-step and full M-step at every client, and the log likelihood before it, (m, ...).

    The covariance, if there is one, is each client's own.
    """
    statistics = expect(rows, parameters)
    means = maximise(statistics.packed, parameters.means)
    weights = mixture_weights(statistics.counts, parameters.weights)
    covariance = maximise_covariance(rows, statistics, means, covariance_kind(parameters))
    return Parameters(weights, means, covariance), statistics.loglik
