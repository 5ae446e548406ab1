"""Matern curves along a line in O(n): likelihood, gradient and posterior by a Kalman filter.

    target = basis @ coefficients + scale^(1/2) f(time) + noise^(1/2) e,

f a Matern-1/2, 3/2 or 5/2 curve of unit variance, coefficients standard normal (`basis` carries
the standard deviation of their vague prior, as in `gp_rows.mean_basis`). The same numbers as the
covariance of all readings gives (`gaussian_process.py`), in linear time and, because no matrix of
all readings is ever factored, with more correct digits where noise is small. Clients are batched;
readings may be unsorted and repeated. `state_choice.py` says where this is the faster way.

With a mean function K = K0 + B B'. The filter is run for target and columns of B at once; with
M = 1 + B' inv(K0) B and beta = inv(M) B' inv(K0) y

    y' inv(K) y = e' inv(K0) e + beta' beta,  e = y - B beta;    log det K = log det K0 + log det M;
    inv(K) - inv(K) y y' inv(K) = inv(K0) - inv(K0) (e e' + B inv(M) B') inv(K0),

so target and columns are replaced by e and B M^(-1/2), after which all columns are alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.matern_states import gaps_of, rate_of
from fedkin.models.state_filter import Predictions, States, Walk, walk_backwards, walk_forwards
from fedkin.models.state_lanes import Lanes, Series, lanes_of, sorted_series
from fedkin.models.state_pieces import Pieces, ends_of, pieces_of, starts_of

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

LOG_2PI = float(np.log(2 * np.pi))
# Noise, as a share of the curve's variance, below which repeated readings leave nothing to
# divide by.
LEAST_NOISE = 1e-14


class Readings(NamedTuple):
    """Series of m clients, cut and packed; made once per fit."""

    series: Series
    blocks: tuple[Lanes, ...]


class Evaluation(NamedTuple):
    """Negative log marginal likelihood (m,), its gradient (m, 3), and the jitter used (m,).

    The gradient is by log scale, log length and log noise.
    """

    value: Floats
    gradient: Floats
    jitter: Floats


class Known(NamedTuple):
    """A block's filter: lanes in units of the curve, joints, predictions, and its mean's part."""

    walk: Walk
    pieces: Pieces | None
    starts: States
    seen: Predictions
    mean: MeanPart


class MeanPart(NamedTuple):
    """Per client: y' inv(K) y (k,), log det M (k,), beta (k, q), inv(M) (k, q, q).

    `columns` (k, 1 + q, 1 + q) turns target and basis into the columns e and B M^(-1/2).
    """

    fit: Floats
    log_det: Floats
    coefficients: Floats
    inverse: Floats
    columns: Floats


def readings(
    times: Floats, target: Floats, offsets: Indices, basis: Floats | None = None
) -> Readings:
    """Rows of client k are `offsets[k]` to `offsets[k + 1]`, in any order of time."""
    series, _ = sorted_series(times, target, offsets, basis)
    return Readings(series, tuple(lanes_of(series)))


# ------------------------------------------------------------------ likelihood and gradient


def evaluate(data: Readings, smoothness: float, full: Floats) -> Evaluation:
    """For log scale, log length and log noise `full`, (3,) or one per client (m, 3)."""
    m = len(data.series.sizes)
    full = np.broadcast_to(full, (m, 3))
    result = Evaluation(np.zeros(m), np.zeros((m, 3)), np.zeros(m))
    for lanes in data.blocks:
        own = full[lanes.clients]
        n_rows = data.series.sizes[lanes.clients]
        for whole, part in zip(result, _evaluate_block(lanes, n_rows, smoothness, own)):
            whole[lanes.clients] = part
    return result


def _evaluate_block(lanes: Lanes, n_rows: Indices, smoothness: float, full: Floats) -> Evaluation:
    scale, share, jitter = _units(full)
    known = filtered(lanes, smoothness, full)
    sums = walk_backwards(known.walk, known.seen, ends_of(known.walk, known.pieces, known.starts))
    mean = known.mean
    log_det = _per_client(lanes, np.log(known.seen.variance).sum(axis=0)) + mean.log_det
    value = 0.5 * (mean.fit + log_det + n_rows * (np.log(scale) + LOG_2PI))
    by_share = 0.5 * (_per_client(lanes, sums.precisions) - _per_client(lanes, sums.squares))
    # tr[(inv K - aa') K] is n - y'a; what is not signal is noise, jitter and the mean's part.
    spent = mean.coefficients.shape[1] - np.trace(mean.inverse, axis1=1, axis2=2)
    spent = spent - (mean.coefficients**2).sum(axis=1)
    by_scale = 0.5 * (n_rows - mean.fit - spent) - share * by_share
    by_noise = (share - jitter / scale) * by_share
    gradient = np.stack([by_scale, _per_client(lanes, sums.slope), by_noise], axis=1)
    return Evaluation(value, gradient, jitter)


def _units(full: Floats) -> tuple[Floats, Floats, Floats]:
    """Scale, noise as a share of it with the jitter it takes, and that jitter, (k,) each."""
    scale, noise = np.exp(full[:, 0]), np.exp(full[:, 2])
    jitter = np.maximum(LEAST_NOISE * scale - noise, 0.0)
    return scale, (noise + jitter) / scale, jitter


def _per_client(lanes: Lanes, amounts: Floats) -> Floats:
    """Sums over the lanes of a client, (..., W) to (..., k)."""
    total: Floats = amounts[..., lanes.chain].sum(axis=-1)
    return total


def filtered(lanes: Lanes, smoothness: float, full: Floats, missing: Floats | None = None) -> Known:
    """The block walked forwards in units of the curve; `missing` (T, W) is noise to add."""
    scale, share, _ = _units(full)
    rate = rate_of(smoothness, np.exp(full[:, 1]))[lanes.owner]
    noise = share[lanes.owner][None]
    walk = Walk(
        lanes,
        smoothness,
        gaps_of(smoothness, lanes.gaps * rate),
        lanes.columns / np.sqrt(scale)[lanes.owner],
        noise if missing is None else noise + missing,
    )
    pieces = pieces_of(walk) if lanes.chain.shape[1] > 1 else None
    starts = starts_of(walk, pieces)
    seen = walk_forwards(walk, starts)
    return _without_mean(Known(walk, pieces, starts, seen, _mean_part(lanes, seen)))


# ------------------------------------------------------------------ mean function


def _mean_part(lanes: Lanes, seen: Predictions) -> MeanPart:
    weighted = seen.innovation / seen.variance[:, None]
    inner = np.array([(seen.innovation * part[:, None]).sum(axis=0) for part in _columns(weighted)])
    gram = np.moveaxis(_per_client(lanes, inner), -1, 0)
    k, q = len(gram), gram.shape[1] - 1
    root = np.linalg.cholesky(gram[:, 1:, 1:] + np.eye(q))
    half = np.linalg.inv(root).swapaxes(1, 2)
    inverse = half @ half.swapaxes(1, 2)
    beta = (inverse @ gram[:, 1:, :1])[:, :, 0]
    columns = np.zeros((k, 1 + q, 1 + q))
    columns[:, 0, 0] = 1.0
    columns[:, 1:, 0] = -beta
    columns[:, 1:, 1:] = half
    residual = np.einsum("kc,kcd,kd->k", columns[:, :, 0], gram, columns[:, :, 0])
    log_det = 2.0 * np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    return MeanPart(residual + (beta**2).sum(axis=1), log_det, beta, inverse, columns)


def _columns(block: Floats) -> Floats:
    """(T, c, W) with the column in front."""
    return block.swapaxes(0, 1)


def _without_mean(known: Known) -> Known:
    """The same for columns e and B M^(-1/2), in which all is linear."""
    if known.walk.columns.shape[1] == 1:
        return known
    turn = np.moveaxis(known.mean.columns, 0, -1)[..., known.walk.lanes.owner]
    seen = known.seen._replace(
        mean=_recombined(known.seen.mean, turn), innovation=_recombined(known.seen.innovation, turn)
    )
    starts = known.starts._replace(mean=_recombined(known.starts.mean, turn))
    pieces = known.pieces
    if pieces is not None:
        pieces = pieces._replace(
            shift=_recombined(pieces.shift, turn), score=_recombined(pieces.score, turn)
        )
    return known._replace(pieces=pieces, starts=starts, seen=seen)


def _recombined(block: Floats, turn: Floats) -> Floats:
    """Columns (..., c, W) times (c, c, W)."""
    turned = np.zeros_like(block)
    for c, d in np.ndindex(*turn.shape[:2]):
        turned[..., d, :] += block[..., c, :] * turn[c, d]
    return turned
