"""A long series in pieces that are walked side by side, joined without loss.

A piece acts on the state x at its start by five sums that need no start: the state at its end is
`transition` x + `shift` + noise of covariance `spread`, and its readings tell of x with precision
`information` and weighted sum `score`. One piece after another they give the state predicted at
the start of each, and backwards the adjoints at the end of each, from which all pieces are walked
at once (after Saerkkae and Garcia-Fernandez 2021).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.matern_states import innovation_scale, stationary
from fedkin.models.state_filter import States, Walk, advance, both_sides, condition, hankel

Floats = NDArray[np.float64]


class Pieces(NamedTuple):
    """What every lane does to a state at its start."""

    transition: Floats
    shift: Floats
    spread: Floats
    score: Floats
    information: Floats


def pieces_of(walk: Walk) -> Pieces:
    """What every lane does to a state at its start, (.., W) each."""
    s, c, width = walk.gaps.coefficients.shape[1], walk.columns.shape[1], walk.columns.shape[2]
    scale = innovation_scale(walk.smoothness)[:, :, None]
    transition = np.repeat(np.eye(s)[:, :, None], width, axis=2)
    shift, spread = np.zeros((s, c, width)), np.zeros((s, s, width))
    score, information = np.zeros((s, c, width)), np.zeros((s, s, width))
    for t, a in enumerate(walk.lanes.n_active):
        move, pull, fill = transition[..., :a], shift[..., :a], spread[..., :a]
        noise = walk.noise_at(t)[:a]
        variance = fill[0, 0] + noise
        gain = fill[:, 0] / variance
        seen = move[0] / variance
        surprise = walk.columns[t, :, :a] - pull[0]
        score[..., :a] += seen[:, None] * surprise
        information[..., :a] += seen[:, None] * move[0]
        coefficients = walk.gaps.coefficients[t, :, :a]
        transition[..., :a] = advance(coefficients, move - gain[:, None] * move[0])
        shift[..., :a] = advance(coefficients, pull + gain[:, None] * surprise)
        after = both_sides(advance, coefficients, condition(fill, variance, noise, gain))
        after += scale * hankel(walk.gaps.integrals[t, :, :a])
        spread[..., :a] = after
    return Pieces(transition, shift, spread, score, information)


def starts_of(walk: Walk, pieces: Pieces | None) -> States:
    """Predicted state at the start of every lane; without pieces each lane is a whole series."""
    s, c, width = walk.gaps.coefficients.shape[1], walk.columns.shape[1], walk.columns.shape[2]
    first = stationary(walk.smoothness)
    mean = np.zeros((s, c, width))
    covariance = np.repeat(first[:, :, None], width, axis=2)
    if pieces is not None:
        for before, after in zip(walk.lanes.chain.T[:-1], walk.lanes.chain.T[1:]):
            mean[..., after], covariance[..., after] = _end_of(
                Pieces(*(part[..., before] for part in pieces)),
                States(mean[..., before], covariance[..., before]),
            )
    return States(mean, covariance)


def _end_of(piece: Pieces, start: States) -> States:
    """Predicted state behind a piece."""
    known = _settled(piece, start)
    mean = known @ (_front(start.mean) + _front(start.covariance) @ _front(piece.score))
    transition = _front(piece.transition)
    covariance = transition @ known @ _front(start.covariance) @ transition.swapaxes(1, 2)
    covariance = 0.5 * (covariance + covariance.swapaxes(1, 2))
    return States(_back(transition @ mean) + piece.shift, _back(covariance) + piece.spread)


def ends_of(walk: Walk, pieces: Pieces | None, starts: States) -> States:
    """Adjoints r and N behind every lane."""
    mean, covariance = np.zeros_like(starts.mean), np.zeros_like(starts.covariance)
    if pieces is not None:
        for before, after in zip(walk.lanes.chain.T[-2::-1], walk.lanes.chain.T[:0:-1]):
            mean[..., before], covariance[..., before] = _start_of(
                Pieces(*(part[..., after] for part in pieces)),
                States(starts.mean[..., after], starts.covariance[..., after]),
                States(mean[..., after], covariance[..., after]),
            )
    return States(mean, covariance)


def _start_of(piece: Pieces, start: States, end: States) -> States:
    """Adjoints in front of a piece from those behind it."""
    known = _settled(piece, start)
    passed = (_front(piece.transition) @ known).swapaxes(1, 2)
    own = _front(piece.score) - _front(piece.information) @ _front(start.mean)
    mean = known.swapaxes(1, 2) @ own + passed @ _front(end.mean)
    covariance = known.swapaxes(1, 2) @ _front(piece.information)
    covariance += passed @ _front(end.covariance) @ passed.swapaxes(1, 2)
    return States(_back(mean), _back(0.5 * (covariance + covariance.swapaxes(1, 2))))


def _settled(piece: Pieces, start: States) -> Floats:
    """inv(1 + P information), (k, s, s)."""
    product = _front(start.covariance) @ _front(piece.information)
    return np.asarray(np.linalg.inv(product + np.eye(product.shape[1])), dtype=np.float64)


def _front(block: Floats) -> Floats:
    return np.moveaxis(block, -1, 0)


def _back(block: Floats) -> Floats:
    return np.moveaxis(block, 0, -1)
