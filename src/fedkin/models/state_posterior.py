"""A Matern curve given its readings, at new places, in O(n).

New places are put among the readings as places without one; the filter's adjoint then gives the
curve at all of them at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.state_filter import walk_smoothly
from fedkin.models.state_lanes import Lanes, Series, lanes_of
from fedkin.models.state_pieces import ends_of
from fedkin.models.state_space import MeanPart, Readings, filtered

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Truths = NDArray[np.bool_]

# Noise of a place without a reading: its weight vanishes against any reading's.
NO_READING = 1e150


def posterior(
    data: Readings,
    smoothness: float,
    full: Floats,
    times: Floats,
    offsets: Indices,
    basis: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Mean and variance of every client's curve (no noise) at new times, (n,) each.

    New times of client k are `offsets[k]` to `offsets[k + 1]`; `basis` (n, q) is the mean
    function's there.
    """
    full = np.broadcast_to(full, (len(offsets) - 1, 3))
    merged, place, is_new = _merged(data.series, times, offsets)
    mean, variance = np.zeros(len(times)), np.zeros(len(times))
    for lanes in lanes_of(merged):
        own = full[lanes.clients]
        fit = _fit(lanes, smoothness, own, is_new[lanes.rows])
        new = fit.is_new
        rows, owner = place[lanes.rows[new]], np.broadcast_to(lanes.owner, new.shape)[new]
        units = np.exp(0.5 * own[owner, 0])
        curves = fit.curves.transpose(0, 2, 1)[new] * units[:, None]
        there = np.zeros((len(rows), 0)) if basis is None else basis[rows]
        mean[rows], left = _with_mean(fit.mean, owner, curves, there)
        variance[rows] = fit.variance[new] * units**2 + left
    return mean, variance


class Fit(NamedTuple):
    """Curves (T, c, W) through e and B M^(-1/2) with variance (T, W), in units of the curve."""

    curves: Floats
    variance: Floats
    mean: MeanPart
    is_new: Truths


def _fit(lanes: Lanes, smoothness: float, full: Floats, is_new: Truths) -> Fit:
    """The block at all its places; of those past a lane's end none is new."""
    known = filtered(lanes, smoothness, full, np.where(is_new, NO_READING, 0.0))
    ends = ends_of(known.walk, known.pieces, known.starts)
    curves, variance = walk_smoothly(known.walk, known.seen, ends)
    running = np.arange(len(lanes.owner)) < lanes.n_active[:, None]
    return Fit(curves, variance, known.mean, is_new & running)


def _merged(series: Series, times: Floats, offsets: Indices) -> tuple[Series, Indices, Truths]:
    """Readings and new places in one series, where each stood, and which are new."""
    old = np.repeat(np.arange(len(offsets) - 1), series.sizes)
    new = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    owner = np.concatenate([old, new])
    order = np.lexsort((np.concatenate([series.times, times]), owner))
    columns = np.zeros((len(owner), series.columns.shape[1]))
    columns[: len(old)] = series.columns
    every = np.concatenate([series.times, times])[order]
    is_new = order >= len(old)
    place = np.where(is_new, order - len(old), order)
    return Series(every, columns[order], series.offsets + offsets), place, is_new


def _with_mean(
    mean: MeanPart, owner: Indices, fitted: Floats, basis: Floats
) -> tuple[Floats, Floats]:
    """Means at new places, and what the coefficients leave open of them.

    `fitted` (n, 1 + q) are the curve's fits to e and to the columns of B M^(-1/2).
    """
    value = fitted[:, 0] + (basis * mean.coefficients[owner]).sum(axis=1)
    turned = np.einsum("nq,nqd->nd", basis, mean.columns[owner][:, 1:, 1:])
    return value, ((turned - fitted[:, 1:]) ** 2).sum(axis=1)
