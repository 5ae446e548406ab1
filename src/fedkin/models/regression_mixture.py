"""Mixtures of linear regressions inside every client, batched over clients.

A row's target comes from one of R regressions with the client's own weights, coefficients and one
noise for all of them (FedGrEM's model, equation 5, has noise one). Whatever an M-step or a gradient
step needs of a component is its weighted Gram matrix of (x, y), packed as in `least_squares`:

    packed = (triu(Z' W Z), sum of W),   Z = (x, [1], y),   W the responsibilities.

Arrays have the client as first axis. Between it and the components there may be further axes,
written `...`: restarts that run side by side. p coefficients: d, and the intercept last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.arrays import Floats
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
from fedkin.models.least_squares import (
    RANK_TOLERANCE,
    n_statistics,
    residual_coefficients,
    solve,
    unpack,
)
from fedkin.models.row_blocks import CHUNK_ELEMENTS, Chunk, RowBlocks

# Noise variance is at least this share of the mean square of a client's y (of one, where y is 0):
# few rows and many coefficients fit perfectly, and the likelihood would run away.
SMALLEST_NOISE_SHARE = 1e-6
# A row shorter than this share of the clip is not clipped, whatever its residual.
LEAST_LENGTH = 1e-6


class Parameters(NamedTuple):
    """`weights` (m, ..., R), `coef` (m, ..., R, p), `sigma` (m, ...): noise standard deviation.

    A client axis of length one means common to all clients.
    """

    weights: Floats
    coef: Floats
    sigma: Floats


class Statistics(NamedTuple):
    """What an E-step leaves of a client's rows.

    `counts` (m, ..., R): responsibilities added up. `packed` (m, ..., R, q): weighted Gram matrices
    and, last, the sum of their weights, which is the count unless rows are clipped. `loglik`
    (m, ...); `n_rows` (m,). `squares` (m, ...): if rows are clipped, what clipped residuals about
    the current coefficients say of the sum of squares of all, had there been no odd rows.
    """

    counts: Floats
    packed: Floats
    loglik: Floats
    n_rows: Floats
    squares: Floats | None = None


class Fit(NamedTuple):
    """Weighted least squares of many components.

    `coef` (..., p); `variance` (...): mean variance of a coefficient when the noise is one, and
    infinite where the rows do not determine them; `squares` (...): weighted squared residuals.
    """

    coef: Floats
    variance: Floats
    squares: Floats


def prepare(clients: Federation, fit_intercept: bool = False) -> RowBlocks:
    """The clients' rows (x, [1], y), ready for everything below."""
    if clients.y is None:
        raise ValueError("a mixture of regressions needs a target y at every site")
    ones = [np.ones((len(clients.X), 1))] if fit_intercept else []
    columns = np.concatenate([clients.X, *ones, clients.y[:, None]], axis=1)
    return RowBlocks.of(clients, columns, centred=False)


# -------------------------------------------------------------------- E-step


def expect(rows: RowBlocks, parameters: Parameters, clip: float | None = None) -> Statistics:
    """The E-step of every client.

    `clip` bounds how far one row can pull one component: posterior times |residual| / sigma times
    the length of x, its gradient in units of the noise. Counts and likelihood stay as they are;
    the noise is found from residuals clipped likewise (Huber's proposal 2).
    """
    m, size = rows.n_clients, rows.n_columns
    lead = parameters.coef.shape[1:-1]
    coef, logs, scale = _flattened(rows, parameters)
    n_restarts, n_components = logs.shape[1:]
    per_row = n_restarts * n_components
    packed = np.zeros((m, per_row, n_statistics(size - 1)))
    counts = np.zeros((m, per_row))
    loglik = np.zeros((m, n_restarts))
    kept, expected = np.zeros((m, n_restarts)), np.zeros(m)
    for chunk in rows.chunks(max(per_row, packed.shape[-1])):
        data, who = chunk.data, chunk.clients
        joint, residual = _log_joint(data, coef[who], logs[who], scale[who], keep=clip is not None)
        flat = joint.reshape(per_row, len(who), -1).transpose(1, 0, 2)
        total = to_posterior(joint)
        loglik[who] += np.einsum("skn,kn->ks", total, data[:, -1])
        if clip is not None:
            counts[who] += np.einsum("krn,kn->kr", flat, data[:, -1])
            length = np.sqrt(np.einsum("kdn,kdn->kn", data[:, :-2], data[:, :-2]))
            pull = np.abs(residual) * length
            held = (clip_factors(1.0, pull, clip) * residual) ** 2
            kept[who] += np.einsum("srkn,srkn,kn->ks", joint, held, data[:, -1])
            joint *= clip_factors(joint, pull, clip)
            share = clipped_share(clip / np.maximum(length, clip * LEAST_LENGTH), 1)
            expected[who] += np.einsum("kn,kn->k", share, data[:, -1])
        packed[who] += flat @ row_products(data).transpose(0, 2, 1)
    packed = packed.reshape(m, *lead, -1)
    n_rows = rows.sizes.astype(float)
    noise = np.log(2 * np.pi) - 2.0 * np.log(scale)
    loglik = (loglik - 0.5 * n_rows[:, None] * noise).reshape(m, *lead[:-1])
    if clip is None:
        return Statistics(packed[..., -1], packed, loglik, n_rows)
    squares = kept / scale**2 * (n_rows / np.maximum(expected, np.finfo(float).tiny))[:, None]
    return Statistics(
        counts.reshape(m, *lead), packed, loglik, n_rows, squares.reshape(m, *lead[:-1])
    )


def log_joint(rows: RowBlocks, parameters: Parameters) -> Floats:
    """log(weight * density of y given x) of every row under every component, (N, R).

    `parameters` without restarts.
    """
    coef, logs, scale = _flattened(rows, parameters)
    constant = np.log(scale) - 0.5 * np.log(2 * np.pi)

    def of_chunk(chunk: Chunk) -> Floats:
        who = chunk.clients
        values, _ = _log_joint(chunk.data, coef[who], logs[who], scale[who])
        return values[0].transpose(1, 0, 2) + constant[who][:, :, None]

    return rows.row_by_row(of_chunk, logs.shape[-1])


def away(rows: RowBlocks, parameters: Parameters, s: int, r: int) -> Floats:
    """Residuals about one regression of one restart, in units of the noise, (N, 1)."""
    coef, logs, scale = _flattened(rows, parameters)
    own, unit = coef[:, None, s * logs.shape[2] + r], scale[:, s, None, None]

    def of_chunk(chunk: Chunk) -> Floats:
        return own[chunk.clients] @ chunk.data * unit[chunk.clients]

    return rows.row_by_row(of_chunk, 1)


def _flattened(rows: RowBlocks, parameters: Parameters) -> tuple[Floats, Floats, Floats]:
    """Residual coefficients (m, S * R, p + 2), log weights (m, S, R), precision roots (m, S)."""
    m, shape = rows.n_clients, parameters.coef.shape
    signed = residual_vectors(parameters.coef.reshape(len(parameters.coef), -1, shape[-1]))
    logs = log_weights(parameters.weights).reshape(len(parameters.weights), -1, shape[-2])
    scale = 1.0 / parameters.sigma.reshape(len(parameters.sigma), -1)
    return (
        np.broadcast_to(signed, (m, *signed.shape[1:])),
        np.broadcast_to(logs, (m, *logs.shape[1:])),
        np.broadcast_to(scale, (m, logs.shape[1])),
    )


def residual_vectors(coef: Floats) -> Floats:
    """Vectors (..., p + 2) whose product with (x, [1], y, present) is a row's residual."""
    ends = np.broadcast_to([1.0, 0.0], (*coef.shape[:-1], 2))
    return np.concatenate([-coef, ends], axis=-1)


def _log_joint(
    data: Floats, coef: Floats, logs: Floats, scale: Floats, keep: bool = False
) -> tuple[Floats, Floats]:
    """Log weight - residual^2 / 2 sigma^2, (S, R, k, width); and the residuals, if to be kept."""
    k, n_restarts, n_components = logs.shape
    joint = np.empty((n_restarts, n_components, k, data.shape[-1]))
    np.matmul(coef, data, out=joint.reshape(-1, k, data.shape[-1]).transpose(1, 0, 2))
    joint *= scale.T[:, None, :, None]
    residual = joint.copy() if keep else joint
    joint *= joint
    joint *= -0.5
    joint += logs.transpose(1, 2, 0)[..., None]
    return joint, residual


def row_products(data: Floats) -> Floats:
    """Packed products of the columns of a chunk's rows, (k, q, width); zero in the padding."""
    size = data.shape[1] - 1
    products = np.empty((len(data), n_statistics(size - 1), data.shape[-1]))
    first = 0
    for i in range(size):
        last = first + size - i
        np.multiply(data[:, i : i + 1], data[:, i:-1], out=products[:, first:last])
        first = last
    products[:, -1] = data[:, -1]
    return products


# -------------------------------------------------------------------- M-step


def least_squares(packed: Floats) -> Fit:
    """Weighted least squares for packed statistics (..., q), all at once.

    Every Gram matrix is swept (Goodnight 1979), which leaves coefficients, inverse and residual sum
    together. Where the rows do not determine the coefficients, the least-norm solution is given.
    """
    flat = packed.reshape(-1, packed.shape[-1])
    size = unpack(flat[:0])[0].shape[-1]
    coef = np.zeros((len(flat), size))
    variance = np.full(len(flat), np.inf)
    squares = np.zeros(len(flat))
    step = max(1, CHUNK_ELEMENTS // (size + 1) ** 2)
    for begin in range(0, len(flat), step):
        some = slice(begin, begin + step)
        coef[some], variance[some], squares[some] = _swept(flat[some])
    loose = np.flatnonzero(~np.isfinite(variance))
    if len(loose):
        coef[loose] = solve(flat[loose])[0]
        squares[loose] = (residual_coefficients(coef[loose]) * flat[loose]).sum(axis=-1)
    shape = packed.shape[:-1]
    return Fit(
        coef.reshape(*shape, size),
        variance.reshape(shape),
        np.maximum(squares, 0.0).reshape(shape),
    )


def _swept(packed: Floats) -> tuple[Floats, Floats, Floats]:
    """Coefficients (b, p), mean variances (b,), infinite if not determined, and squares (b,)."""
    size = int(unpack(packed[:0])[0].shape[-1]) + 1
    upper = np.triu_indices(size)
    table = np.empty((size, size, len(packed)))
    table[upper] = packed[:, :-1].T
    table[upper[1], upper[0]] = table[upper]
    diagonal = np.einsum("iib->ib", table)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    table /= scale[:, None] * scale[None]
    determined = np.ones(len(packed), dtype=bool)
    for j in range(size - 1):
        determined &= table[j, j] > RANK_TOLERANCE
        pivot = np.where(determined, table[j, j], 1.0)
        row, column = table[j] / pivot, table[:, j].copy()
        table -= column[:, None] * row[None]
        table[j], table[:, j] = row, -column / pivot
        table[j, j] = 1.0 / pivot
    inner = scale[:-1]
    coef = table[:-1, -1] / inner * scale[-1]
    variance = (np.einsum("iib->ib", table)[:-1] / inner**2).mean(axis=0)
    return coef.T, np.where(determined, variance, np.inf), table[-1, -1] * scale[-1] ** 2


def maximise(packed: Floats, current: Floats) -> Floats:
    """The coefficients that maximise Q; a component without rows keeps its current ones."""
    return np.where(packed[..., -1:] > EMPTY_COMPONENT, least_squares(packed).coef, current)


def smallest_noise(rows: RowBlocks) -> Floats:
    """What a client's noise variance must not fall below, (m,)."""
    square = rows.squares[:, -1] / np.maximum(rows.sizes, 1)
    return SMALLEST_NOISE_SHARE * np.where(square > 0, square, 1.0)


def residual_squares(statistics: Statistics, coef: Floats) -> Floats:
    """Weighted squared residuals summed over components, (m, ...).

    Clipped ones are about the coefficients of the E-step, whatever `coef` is.
    """
    if statistics.squares is not None:
        return statistics.squares
    return _squares(statistics.packed, coef)


def _squares(packed: Floats, coef: Floats) -> Floats:
    squares = (residual_coefficients(coef) * packed).sum(axis=-1)
    total: Floats = np.maximum(squares, 0.0).sum(axis=-1)
    return total


def maximise_sigma(statistics: Statistics, coef: Floats, smallest: Floats) -> Floats:
    """Each client's noise given its coefficients, (m, ...), no variance below `smallest` (m,)."""
    squares = residual_squares(statistics, coef)
    rows = after_client(np.maximum(statistics.n_rows, 1.0), squares.ndim - 1)
    return np.sqrt(np.maximum(squares / rows, after_client(smallest, squares.ndim - 1)))


def noise_of(packed: Floats, coef: Floats, smallest: float) -> Floats:
    """The noise common to all clients from statistics added over them (..., R, q), (...)."""
    total = np.maximum(packed[..., -1].sum(axis=-1), 1.0)
    return np.sqrt(np.maximum(_squares(packed, coef) / total, smallest))


def ascent_direction(statistics: Statistics, coef: Floats) -> Floats:
    """Gradient of a client's Q (a mean over its rows) times the noise variance, (m, ..., R, p).

    With noise one it is the paper's gradient.
    """
    gram, cross, _, _ = unpack(statistics.packed)
    rows = after_client(np.maximum(statistics.n_rows, 1.0), coef.ndim - 1)
    return (cross - np.einsum("...ij,...j->...i", gram, coef)) / rows


def longest_step(statistics: Statistics) -> Floats:
    """The step 1 / L that cannot overshoot: L is the largest curvature of Q, (m, ..., R).

    The paper's C_eta / weight presumes uncorrelated features of unit variance; where it exceeds
    twice this value the step diverges.
    """
    gram = unpack(statistics.packed)[0]
    curvature = np.linalg.eigvalsh(gram)[..., -1]
    rows = after_client(np.maximum(statistics.n_rows, 1.0), curvature.ndim - 1)
    return rows / np.maximum(curvature, np.finfo(float).tiny * rows)


def sampling_variance(statistics: Statistics, sigma: Floats) -> Floats:
    """Mean variance of a component's coefficients, (m, ..., R); infinite if not determined."""
    return least_squares(statistics.packed).variance * sigma[..., None] ** 2


def em_step(
    rows: RowBlocks, parameters: Parameters, learn_sigma: bool = True
) -> tuple[Parameters, Floats]:
    """One E-step and full M-step at every client, and the log likelihood before it, (m, ...)."""
    statistics, sigma = expect(rows, parameters), parameters.sigma
    coef = maximise(statistics.packed, parameters.coef)
    if learn_sigma:
        sigma = maximise_sigma(statistics, coef, smallest_noise(rows))
    weights = mixture_weights(statistics.counts, parameters.weights)
    return Parameters(weights, coef, sigma), statistics.loglik
