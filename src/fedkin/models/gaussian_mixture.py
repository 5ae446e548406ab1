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
from numpy.typing import NDArray

from fedkin.federation import Federation
from fedkin.models.latent_classes import (
    EMPTY_COMPONENT,
    after_client,
    clip_factors,
    clipped_share,
    log_weights,
    mixture_weights,
    to_posterior,
)
from fedkin.models.row_blocks import RowBlocks

Floats = NDArray[np.float64]
CovarianceType = Literal["identity", "spherical", "diag", "tied"]
COVARIANCE_TYPES: tuple[str, ...] = get_args(CovarianceType)

# A variance is at least this share of the client's mean variance over columns (of one, where all
# its rows are equal). Sums of squares carry about 1e-16 of rounding; a millionth of the spread, a
# thousandth of the scale, is far above it and below what data measured to three digits can show.
SMALLEST_VARIANCE_SHARE = 1e-6
# Rows that differ by less than this share of their distance from zero are equal but for rounding.
ROUNDING = 64 * np.finfo(float).eps


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

    `counts` (m, ..., R): responsibilities added up. `pulls` (m, ..., R) and `sums` (m, ..., R, d):
    weights and weighted rows behind the means; pulls are the counts unless rows are clipped.
    `loglik` (m, ...); `n_rows` (m,). `clipped`: there if rows are clipped and a covariance learnt.
    """

    counts: Floats
    pulls: Floats
    sums: Floats
    loglik: Floats
    n_rows: Floats
    clipped: Clipped | None = None


def prepare(clients: Federation) -> RowBlocks:
    """The clients' rows, ready for everything below."""
    return RowBlocks.of(clients, clients.X, centred=True)


# -------------------------------------------------------------------- densities


def covariance_kind(parameters: Parameters) -> CovarianceType:
    """Which of the four a parameter's covariance is, by its number of axes."""
    if parameters.covariance is None:
        return "identity"
    extra = parameters.covariance.ndim - (parameters.means.ndim - 2)
    kinds: tuple[CovarianceType, ...] = ("spherical", "diag", "tied")
    return kinds[extra]


def times_precision(parameters: Parameters, vectors: Floats) -> Floats:
    """Vectors (m, ..., R, d) multiplied by the inverse covariance."""
    covariance, kind = parameters.covariance, covariance_kind(parameters)
    if covariance is None:
        return vectors
    if kind == "spherical":
        return vectors / covariance[..., None, None]
    if kind == "diag":
        return vectors / covariance[..., None, :]
    return vectors @ np.linalg.inv(covariance)


def log_determinant(parameters: Parameters) -> Floats:
    """Log determinant of the covariance, (m, ...) or broadcasting to it."""
    covariance, kind = parameters.covariance, covariance_kind(parameters)
    if covariance is None:
        return np.zeros((1,) * (parameters.means.ndim - 2))
    if kind == "spherical":
        return parameters.means.shape[-1] * np.log(covariance)
    if kind == "diag":
        return np.log(covariance).sum(axis=-1)
    return np.asarray(np.linalg.slogdet(covariance)[1])


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


def _row_lengths(data: Floats, parameters: Parameters, clients: NDArray[np.intp]) -> Floats:
    """x' P x of the rows of a chunk, (S or 1, k, width)."""
    columns, covariance = data[:, :-1], parameters.covariance
    kind = covariance_kind(parameters)
    if covariance is None:
        return np.einsum("kdn,kdn->kn", columns, columns)[None]
    own = covariance if len(covariance) == 1 else covariance[clients]
    dims = {"spherical": 0, "diag": 1, "tied": 2}[kind]
    own = own.reshape(len(own), -1, *own.shape[own.ndim - dims :])
    if kind == "spherical":
        return (np.einsum("kdn,kdn->kn", columns, columns)[:, None] / own[..., None]).swapaxes(0, 1)
    if kind == "diag":
        return ((1.0 / own) @ columns**2).swapaxes(0, 1)
    scaled = np.linalg.inv(own) @ columns[:, None]
    return np.einsum("ksdn,kdn->skn", scaled, columns)


# -------------------------------------------------------------------- E-step


def expect(rows: RowBlocks, parameters: Parameters, clip: float | None = None) -> Statistics:
    """The E-step of every client.

    `clip` bounds how far one row can pull one component: posterior times Mahalanobis length of
    (row - mean). It is a clipped gradient for the gradient step and a Huber weight for the full
    M-step; counts and likelihood are not touched by it. A covariance gets Huber's weights for
    scatter (Maronna 1976), scaled to be right for normal rows.
    """
    linear, logs = _linear_part(rows, parameters)
    m, n_restarts, n_components, size = linear.shape
    found = np.zeros((m, n_restarts * n_components, size))
    counts = np.zeros((m, n_restarts * n_components))
    loglik = np.zeros((m, n_restarts))
    per_row = n_restarts * n_components
    robust = clip is not None and parameters.covariance is not None
    doubly = np.zeros_like(found) if robust else None
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
        found[who] += flat @ data.transpose(0, 2, 1)
    lead = parameters.means.shape[1:-1]
    found = found.reshape(m, *lead, size)
    pulls = found[..., -1]
    clipped = None
    if doubly is not None and scatter is not None and clip is not None:
        share = clipped_share(clip, size - 1)
        doubly = doubly.reshape(found.shape) / share
        scatter = scatter.reshape(m, *lead[:-1], size - 1, size - 1) / share
        clipped = Clipped(doubly[..., -1], doubly[..., :-1], scatter)
    return Statistics(
        pulls if clip is None else counts.reshape(m, *lead),
        pulls,
        found[..., :-1] + pulls[..., None] * after_client(rows.centre, found.ndim - 2),
        _complete(rows, parameters, loglik.reshape(m, *lead[:-1])),
        rows.sizes.astype(float),
        clipped,
    )


def _complete(rows: RowBlocks, parameters: Parameters, loglik: Floats) -> Floats:
    """Add what all components of a client share: its rows' x' P x and the normalising constant."""
    covariance, kind = parameters.covariance, covariance_kind(parameters)
    n_axes = loglik.ndim - 1
    if covariance is None:
        quadratic = after_client(rows.squares.sum(axis=-1), n_axes)
    elif kind == "spherical":
        quadratic = after_client(rows.squares.sum(axis=-1), n_axes) / covariance
    elif kind == "diag":
        quadratic = (after_client(rows.squares, n_axes) / covariance).sum(axis=-1)
    else:
        scatter = after_client(rows.scatter, n_axes)
        quadratic = np.einsum("...ij,...ij->...", scatter, np.linalg.inv(covariance))
    constant = rows.n_columns * np.log(2 * np.pi) + log_determinant(parameters)
    return loglik - 0.5 * (quadratic + after_client(rows.sizes, n_axes) * constant)


def log_joint(clients: Federation, parameters: Parameters) -> Floats:
    """log(weight * density) of every row under every component, (N, R).

    `parameters` without restarts. The log sum over components is a row's log density, the softmax
    its responsibilities.
    """
    rows = prepare(clients)
    linear, _ = _linear_part(rows, parameters)
    joint = np.zeros((len(clients.X), linear.shape[2]))
    constant = rows.n_columns * np.log(2 * np.pi) + log_determinant(parameters)
    constant = np.broadcast_to(constant, rows.n_clients)[:, None, None]
    for chunk in rows.chunks(linear.shape[2]):
        values = linear[chunk.clients, 0] @ chunk.data
        values -= 0.5 * _row_lengths(chunk.data, parameters, chunk.clients)[0][:, None]
        values -= 0.5 * constant[chunk.clients]
        rows.to_rows(chunk, values, joint, clients.offsets[:-1])
    return joint


# -------------------------------------------------------------------- M-step


def maximise_means(statistics: Statistics, current: Floats) -> Floats:
    """The means that maximise Q; a component without rows keeps its current one."""
    pulls = statistics.pulls[..., None]
    alive = pulls > EMPTY_COMPONENT
    return np.where(alive, statistics.sums / np.where(alive, pulls, 1.0), current)


def maximise_weights(statistics: Statistics, current: Floats) -> Floats:
    """The weights that maximise Q."""
    return mixture_weights(statistics.counts, current)


def gradient(statistics: Statistics, parameters: Parameters) -> Floats:
    """Gradient of a client's Q (a mean over its rows) at the current means, (m, ..., R, d)."""
    return times_precision(parameters, ascent_direction(statistics, parameters.means))


def ascent_direction(statistics: Statistics, means: Floats) -> Floats:
    """The gradient times the covariance: with the identity it is the gradient itself."""
    pull = statistics.sums - statistics.pulls[..., None] * means
    return pull / after_client(np.maximum(statistics.n_rows, 1.0), means.ndim - 1)


def gradient_step(statistics: Statistics, means: Floats, step: Floats) -> Floats:
    """means + step * direction, Algorithm 1 with step (m, ..., R) = C_eta / initial weight.

    The direction is the gradient times the covariance, so that the same C_eta < 2 converges
    whatever the units of the data; with the identity this is the paper's step.
    """
    return means + step[..., None] * ascent_direction(statistics, means)


def step_sizes(initial_weights: Floats, constant: float, n_rows: Floats) -> Floats:
    """C_eta / weight (B.1), for no weight below that of one row of the client."""
    one_row = after_client(1.0 / np.maximum(n_rows, 1.0), initial_weights.ndim - 1)
    return constant / np.maximum(initial_weights, one_row)


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
    fitted = (2.0 * sums - counts * about) * about
    before = np.diagonal(all_rows, axis1=-2, axis2=-1)
    squares = np.maximum(before - fitted.sum(axis=-2), 0.0)
    return squares.sum(axis=-1) if kind == "spherical" else squares


def smallest_variance(rows: RowBlocks) -> Floats:
    """What a client's variances must not fall below, (m,)."""
    spread = rows.squares.sum(axis=-1) / np.maximum(rows.sizes * rows.n_columns, 1)
    rounding = ROUNDING**2 * (rows.centre**2).mean(axis=-1)
    return SMALLEST_VARIANCE_SHARE * np.where(spread > rounding, spread, 1.0)


def covariance_of(
    scatter: Floats, n_rows: Floats, smallest: Floats, kind: CovarianceType, n_features: int
) -> Floats:
    """The most likely covariance with no variance below `smallest` (m,), given the scatter.

    `n_rows` (m,). A tied matrix has its small eigenvalues raised, which is the constrained maximum.
    """
    axes = scatter.ndim - 1
    rows = after_client(np.maximum(n_rows, 1.0), axes)
    raw = scatter / (rows * n_features if kind == "spherical" else rows)
    if kind != "tied":
        return np.maximum(raw, after_client(smallest, axes))
    values, vectors = np.linalg.eigh(raw)
    values = np.maximum(values, after_client(smallest, axes - 1))
    return (vectors * values[..., None, :]) @ vectors.swapaxes(-1, -2)


def em_step(rows: RowBlocks, parameters: Parameters) -> tuple[Parameters, Floats]:
    """One E-step and full M-step at every client, and the log likelihood before it, (m, ...).

    The covariance, if there is one, is each client's own.
    """
    kind = covariance_kind(parameters)
    found = expect(rows, parameters)
    means = maximise_means(found, parameters.means)
    covariance = parameters.covariance
    if kind != "identity":
        scatter = within_scatter(rows, found, means, kind)
        covariance = covariance_of(
            scatter, found.n_rows, smallest_variance(rows), kind, rows.n_columns
        )
    weights = maximise_weights(found, parameters.weights)
    return Parameters(weights, means, covariance), found.loglik
