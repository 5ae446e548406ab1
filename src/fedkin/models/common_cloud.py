"""What all rows leave open of the parameters of a common curve.

With few sites the best parameters are one guess among many. As for a site's own parameters
(`gp_uncertainty.py`) they are replaced by a small cloud around the mode, spread by the curvature of
the penalised bound and weighted by it. For a server this is two more rounds, points side by side:
gradients at `neighbours` of the mode give the curvature, sums without slopes at the cloud's points
give their weights and the common curve under each. Several models share a cloud by what Laplace's
approximation says of each; a dozen points in as many dimensions would be too few to say it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from fedkin.models.gaussian_process import LOG_2PI
from fedkin.models.gp_uncertainty import (
    CLOUD,
    DIFFERENCE_STEP,
    LEAST_CURVATURE,
    LEAST_WEIGHT,
    WIDER,
    spaced_normals,
)

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


# What a parameter that stays at a bound adds to the log volume: as one that is left open so far.
CLOSED_VOLUME = 0.5 * (LOG_2PI - float(np.log(LEAST_CURVATURE)))


class Cloud(NamedTuple):
    """Parameters (S, p) around a mode, and the standard normal draws (S, f) they came from.

    `log_volume` is the logarithm of the integral of the posterior, one at its mode, by Laplace's
    approximation.
    """

    points: Floats
    draws: Floats
    log_volume: float = 0.0


def open_parameters(mode: Floats, lower: Floats, upper: Floats) -> Indices:
    """Which parameters are neither absent nor at a bound; the others stay where they are."""
    inside = (mode > lower + DIFFERENCE_STEP) & (mode < upper - DIFFERENCE_STEP)
    return np.flatnonzero(np.isfinite(mode) & inside)


def neighbours(mode: Floats, free: Indices) -> Floats:
    """Where gradients are needed: a step up and a step down each free parameter, (2 f, p)."""
    steps = DIFFERENCE_STEP * np.eye(len(mode))[free]
    return np.concatenate([mode + steps, mode - steps])


def curvature(gradients: Floats, free: Indices) -> Floats:
    """Second derivatives (f, f) from the gradients at the neighbours."""
    up, down = np.split(gradients[:, free], 2)
    slopes = (up - down) / (2 * DIFFERENCE_STEP)
    symmetric: Floats = 0.5 * (slopes + slopes.T)
    return symmetric


def cloud_around(
    mode: Floats,
    free: Indices,
    bend: Floats,
    lower: Floats,
    upper: Floats,
    n_points: int = CLOUD,
) -> Cloud:
    """Points around the mode of a penalised bound that bends so, in pairs of opposites.

    Draws are spread by a triangular root: eigenvectors of equal values are left to rounding.
    """
    values, vectors = np.linalg.eigh(bend)
    spread = (vectors * (WIDER**2 / np.maximum(values, LEAST_CURVATURE))) @ vectors.T
    root = np.linalg.cholesky(0.5 * (spread + spread.T))
    half = spaced_normals(n_points // 2, len(free))
    draws = np.concatenate([half, -half])
    points = np.tile(mode, (len(draws), 1))
    moved = mode[free] + draws @ root.T
    points[:, free] = np.clip(moved, lower[free], upper[free])
    volume = 0.5 * float((LOG_2PI - np.log(np.maximum(values, LEAST_CURVATURE))).sum())
    return Cloud(points, draws, volume)


def cloud_weights(cloud: Cloud, penalised: Floats) -> Floats:
    """Weights (S,) from the negative penalised bounds at the points; tiny ones are zero."""
    return weights_of_clouds([cloud], penalised, np.zeros(1))


def weights_of_clouds(clouds: Sequence[Cloud], penalised: Floats, log_evidence: Floats) -> Floats:
    """The same for the clouds of several models, one below the other, by their evidence (k,)."""
    ends = np.cumsum([len(cloud.points) for cloud in clouds])
    within = [
        softmax(0.5 * (cloud.draws**2).sum(axis=1) - values)
        for cloud, values in zip(clouds, np.split(penalised, ends[:-1]))
    ]
    shares = softmax(log_evidence)
    weights = np.concatenate([share * part for share, part in zip(shares, within)])
    weights[weights < LEAST_WEIGHT] = 0.0
    normalised: Floats = weights / weights.sum()
    return normalised


def mixed(means: Floats, variances: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Mean and variance (n,) of a mixture of predictions (S, n)."""
    mean = weights @ means
    return mean, weights @ (variances + (means - mean) ** 2)
