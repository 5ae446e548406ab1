"""A curve carried by its values at a few fixed points, with slopes by its length scales.

With Kuu the correlation of the points (and a small ridge) and Kuu = L L', the features of a row are
inv(L) k(points, row): standard normal weights of them give the curve's projection on the points.
Any rotation of the features gives the same projection, so the slope of L may be taken as
L S / 2 with S = inv(L) dKuu inv(L'), though L would then not stay triangular.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dtrtrs

from fedkin.models.common_form import (
    SPLINE,
    CommonForm,
    Parameters,
    curve,
    curve_moved,
    integrated_walk,
    mean_columns,
    parameters,
)

Floats = NDArray[np.float64]

# Added to the correlation of the points: their smooth combinations differ by less than rounding.
RIDGE = 1e-10


class Points(NamedTuple):
    """Points (M, d) at given lengths: factor L (M, M) and S / 2 by each log length (d, M, M).

    They are where the curves see rows (`common_form.py`), so they stay when features bend.
    """

    places: Floats
    root: Floats
    turns: Floats


def points_at(form: CommonForm, full: Floats, places: Floats) -> Points:
    """The points with what depends on the parameters; made once per evaluation."""
    lengths = parameters(form, full).common_lengths
    inside, slopes = curve(form.common, lengths, places, places)
    root = np.asarray(np.linalg.cholesky(inside + RIDGE * np.eye(len(places))), dtype=np.float64)
    half = [_solve(root, _solve(root, slope).T) for slope in slopes]
    return Points(places, root, 0.5 * np.array(half))


def features(form: CommonForm, full: Floats, points: Points, X: Floats) -> tuple[Floats, Floats]:
    """Features (..., n, M + q) of rows X (..., n, d) and slopes by common lengths (d, ..., n, M).

    The last q are the common mean's, which have no slopes.
    """
    part = parameters(form, full)
    value, slopes = curve(form.common, part.common_lengths, part.bent(X), points.places)
    carried = _whitened(points.root, value)
    turned = np.array([carried @ turn for turn in points.turns])
    by_length = np.array([_whitened(points.root, slope) for slope in slopes]) - turned
    return np.concatenate([carried, mean_columns(form, X)], axis=-1), by_length


def features_moved(form: CommonForm, part: Parameters, points: Points, X: Floats) -> Floats:
    """Slopes (d, ..., n, M) of the points' features of rows X by haste; the points stay."""
    rows, still = (part.bent(X), part.bending(X)), np.zeros_like(points.places)
    slopes = curve_moved(form.common, part.common_lengths, rows, (points.places, still))
    return np.array([_whitened(points.root, slope) for slope in slopes])


def feature_values(form: CommonForm, full: Floats, points: Points, X: Floats) -> Floats:
    """The features alone."""
    part = parameters(form, full)
    value, _ = curve(form.common, part.common_lengths, part.bent(X), points.places)
    return np.concatenate([_whitened(points.root, value), mean_columns(form, X)], axis=-1)


def not_carried(form: CommonForm, full: Floats, points: Points, A: Floats, B: Floats) -> Floats:
    """Correlation (a, b) of what the points do not carry at rows A (a, d) and B (b, d).

    Between its knots a spline has nothing else; beyond the last one its walk goes on.
    """
    if form.common == SPLINE:
        beyond = [_beyond(points.places[:, 0], rows[:, 0]) for rows in (A, B)]
        return integrated_walk(*beyond)
    part, M = parameters(form, full), len(points.places)
    carried = [feature_values(form, full, points, rows)[:, :M] for rows in (A, B)]
    whole = curve(form.common, part.common_lengths, part.bent(A), part.bent(B))[0]
    rest: Floats = whole - carried[0] @ carried[1].T
    return rest


def _beyond(knots: Floats, x: Floats) -> Floats:
    """How far rows are above the last knot or, negative, below the first."""
    above: Floats = np.maximum(x - knots.max(), 0.0) + np.minimum(x - knots.min(), 0.0)
    return above


def grid(low: Floats, high: Floats, n_points: int) -> Floats:
    """Points that fill the box: evenly in one dimension, a Halton sequence in several."""
    low, high = np.atleast_1d(low), np.atleast_1d(high)
    if len(low) == 1:
        return np.linspace(low, high, n_points)
    from scipy.stats import qmc

    unit = qmc.Halton(len(low), scramble=False).random(n_points + 1)[1:]
    return np.asarray(low + (high - low) * unit, dtype=np.float64)


def _whitened(root: Floats, block: Floats) -> Floats:
    """block inv(L') for a block (..., n, M)."""
    flat = block.reshape(-1, len(root))
    return np.asarray(_solve(root, flat.T).T).reshape(block.shape)


def _solve(root: Floats, right: Floats) -> Floats:
    """inv(L) times columns; LAPACK itself, as systems are small and many."""
    if not right.size:
        return right
    return np.asarray(dtrtrs(root.T, right, lower=0, trans=1)[0])
