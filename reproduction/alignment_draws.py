"""Estimates of components that satisfy Assumption C.1 of the FedGrEM paper, with odd sites."""

from __future__ import annotations

from typing import Any

import numpy as np

ODD_KINDS = ("far", "shifted", "colluding", "collapsed", "random", "halved", "crossed")
Array = np.ndarray
Generator = np.random.Generator


def relabel(components: Array, labels: Array) -> Array:
    """Components of every site in another order."""
    return np.take_along_axis(components, labels[:, :, None], axis=1)


def shuffled(components: Array, rng: Generator) -> tuple[Array, Array]:
    """Components in a random order at every site, and the order."""
    labels = np.array([rng.permutation(components.shape[1]) for _ in components])
    return relabel(components, labels), labels


def same_meaning(result: Any, labels: Array, honest: slice) -> bool:
    """Whether slot r holds the same true component at all honest sites."""
    meaning = np.take_along_axis(labels, result.permutations, axis=1)[honest]
    return bool((meaning == meaning[0]).all())


def of_length(vectors: Array, length: float) -> Array:
    """Vectors with this length, in their own direction."""
    return length * vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def assumption_draw(
    rng: Generator, n_components: int, kind: str, margin: float = 1.02
) -> tuple[Array, int]:
    """Estimates that satisfy Assumption C.1 by 2 %, with 30 % odd sites placed first.

    Delta is the least distance of true components at an honest site, h the distance of true
    components from their centre, error the largest error of an honest estimate.
    """
    n_sites, n_features = int(rng.integers(7, 30)), int(rng.integers(1, 12))
    n_odd = int(0.3 * n_sites)
    odd_share = n_odd / n_sites
    h, error = rng.uniform(0, 1, 2)
    needed = (1 + odd_share) / (1 - odd_share) * (2 * h + 4 * error)
    shape = (n_sites, n_components, n_features)
    deviation = of_length(rng.normal(size=shape), h)
    if rng.random() < 0.5:
        errors = of_length(rng.normal(size=shape), error)
    else:  # all components of a site err in the same direction
        errors = of_length(np.broadcast_to(rng.normal(size=(n_sites, 1, n_features)), shape), error)
    if rng.random() < 0.5:
        centers = rng.normal(size=shape[1:])
    else:  # on a line, as crowded as can be
        centers = np.arange(n_components)[:, None] * np.eye(1, n_features)
    centers = centers * least_scale(centers, deviation[n_odd:], margin * needed)
    truth = centers + deviation
    assert least_distance(truth[n_odd:]) > needed
    estimates = truth + errors
    estimates[:n_odd] = odd_sites(rng, kind, centers, estimates[:n_odd], needed)
    return estimates, n_odd


def least_distance(truth: Array) -> float:
    """The least distance of two components at one site."""
    gaps = np.linalg.norm(truth[:, :, None] - truth[:, None], axis=3)
    return float(gaps[:, ~np.eye(truth.shape[1], dtype=bool)].min())


def least_scale(centers: Array, deviation: Array, distance: float) -> float:
    """Factor on the centres, by bisection, that keeps components this far apart at every site."""
    low, high = 0.0, 1e5
    for _ in range(60):
        middle = (low + high) / 2
        enough = least_distance(middle * centers + deviation) >= distance
        low, high = (low, middle) if enough else (middle, high)
    return high


def odd_sites(rng: Generator, kind: str, centers: Array, estimates: Array, size: float) -> Array:
    """Estimates of odd sites of a kind."""
    shape = estimates.shape
    return {
        "far": estimates + 1e6 * rng.normal(size=shape),
        "shifted": estimates + size * rng.normal(size=(1, 1, shape[2])),
        "colluding": centers + 0.7 * size * rng.normal(size=(1, *shape[1:])),
        "collapsed": centers.mean(axis=0) + 0.1 * rng.normal(size=shape),
        "random": np.abs(centers).max() * rng.normal(size=shape),
        "halved": estimates / 2,
        # coordinates swapped between components: looks typical coordinate by coordinate
        "crossed": np.broadcast_to(rng.permuted(centers, axis=0), shape),
    }[kind]
