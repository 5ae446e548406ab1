"""The linear mixed model for sites that send no statistics: values and slopes whose sums suffice.

At a point (beta, theta, log s), L = L(theta), client i with Sigma_i = I + Z_i L L' Z_i' answers

    value_i = n log(2 pi s^2) + log|Sigma_i| + (y - X beta)' Sigma_i^-1 (y - X beta) / s^2

and its slope. Maximum likelihood needs the sums of these. REML needs two more sums, of numbers
that do not depend on the target: P_i = X' Sigma_i^-1 X and its slope in theta, for

    criterion = sum value_i + log|sum P_i| - p log(2 pi s^2),

whose minimum over (beta, theta, s) is the REML fit: given theta and s, beta minimises sum value_i.
Columns should be standardised by scales the sites agree on; nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.least_squares import upper_triangle
from fedkin.models.linear_mixed import (
    LOG_2PI,
    Method,
    eliminate,
    remainder,
    target_products,
)
from fedkin.models.random_covariance import Shape
from fedkin.models.small_matrices import backward
from fedkin.models.smooth_search import Found, minimise

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


class Answers(NamedTuple):
    """What clients answer, one row each; `information` is the upper triangle of P_i.

    value (m,), slope (m, d + k + 1), information (m, d (d + 1) / 2), and its slope in theta
    (m, k, d (d + 1) / 2). The last two are empty (., 0) where only ML is asked for.
    """

    value: Floats
    slope: Floats
    information: Floats
    information_slope: Floats

    def total(self) -> Answers:
        """The sums over clients, which is all a server needs."""
        return Answers(*(part.sum(axis=0) for part in self))


def answers(
    statistics: Floats, random: Indices, shape: Shape, point: Floats, method: Method
) -> Answers:
    """Every client's answer at `point` = (beta, theta, log s), from packed statistics (., m)."""
    d = len(point) - shape.n_parameters - 1
    everything = target_products(statistics, np.arange(d + 1))
    products = np.concatenate([everything[random], everything[random][:, random]], axis=1)
    return answers_from(everything, products, statistics[-1], shape, point, method)


def answers_from(
    everything: Floats,
    products: Floats,
    n_rows: Floats,
    shape: Shape,
    point: Floats,
    method: Method,
) -> Answers:
    """Answers from (X, y)'(X, y) (d + 1, d + 1, m) and Z'(X, y, Z) (q, d + 1 + q, m) of clients."""
    d = len(everything) - 1
    coef, factor = point[:d], shape.factor(point[d:-1])
    root, half = eliminate(products, factor)
    solved = backward(root, half)
    left = remainder(products[:, : d + 1], products[:, d + 1 :], solved[:, : d + 1], factor)
    curved = solved[:, d + 1 :]
    logdet = 2.0 * sum(np.log(root[j, j]) for j in range(len(factor)))
    inverse = everything - np.einsum("jrm,jsm->rsm", half[:, : d + 1], half[:, : d + 1])
    toward = np.append(-coef, 1.0)
    pulled = np.einsum("rsm,s->rm", inverse, toward)
    square = toward @ pulled
    variance = float(np.exp(2.0 * point[-1]))
    value = n_rows * (LOG_2PI + 2.0 * point[-1]) + logdet + square / variance
    own, seen = (np.einsum("irm,r->im", part, toward) for part in (left, solved[:, : d + 1]))
    in_factor = 2.0 * (np.swapaxes(curved, 0, 1) - np.einsum("im,jm->ijm", own, seen) / variance)
    slope = np.concatenate(
        [
            -2.0 * pulled[:d].T / variance,
            shape.gather(np.moveaxis(in_factor, -1, 0)),
            (2.0 * n_rows - 2.0 * square / variance)[:, None],
        ],
        axis=1,
    )
    information, moved = _information(inverse, left, solved, shape, d, method)
    return Answers(value, slope, information, moved)


def _information(
    inverse: Floats, left: Floats, solved: Floats, shape: Shape, d: int, method: Method
) -> tuple[Floats, Floats]:
    """P_i, packed, and its slope in theta: dP = -(E' dL T + T' dL' E)."""
    m = inverse.shape[-1]
    if method == "ml":
        return np.zeros((m, 0)), np.zeros((m, shape.n_parameters, 0))
    upper = upper_triangle(d)
    entries = np.zeros((m, len(upper[0]), shape.size, shape.size))
    for k, (r, s) in enumerate(zip(*upper)):
        one = np.einsum("im,jm->mij", left[:, r], solved[:, s])
        entries[:, k] = -one - np.einsum("im,jm->mij", left[:, s], solved[:, r])
    return inverse[upper[0], upper[1]].T, np.swapaxes(shape.gather(entries), 1, 2)


def criterion_of(total: Answers, point: Floats, method: Method) -> tuple[float, Floats]:
    """The criterion and its slope at `point` from the sums of the clients' answers."""
    if method == "ml":
        return float(total.value), total.slope
    matrix = information_of(total)
    d = len(matrix)
    upper = upper_triangle(d)
    twice = np.where(upper[0] == upper[1], 1.0, 2.0)
    inverse = np.linalg.inv(matrix)[upper]
    value = float(total.value) + float(np.linalg.slogdet(matrix)[1])
    slope = total.slope.copy()
    slope[d:-1] += total.information_slope @ (twice * inverse)
    slope[-1] -= 2.0 * d
    return value - d * (LOG_2PI + 2.0 * float(point[-1])), slope


def information_of(total: Answers) -> Floats:
    """sum P_i (d, d)."""
    size = int(np.sqrt(2 * len(total.information) + 0.25))
    upper = upper_triangle(size)
    out = np.zeros((size, size))
    out[upper[0], upper[1]] = out[upper[1], upper[0]] = total.information
    return out


def search_by_sums(
    ask: Callable[[Floats], Answers],
    start: Floats,
    method: Method,
    n_clients: int,
    n_rows: float,
    tol: float = 1e-6,
) -> Found:
    """The fit on sums alone: `ask` gives the clients' answers, summed, at a point.

    Each evaluation is a round. A server may use any other search on `criterion_of`. The curvature
    is guessed: 4 N in log s, 4 m in theta, and for REML 2 P / s^2 in beta from a first answer.
    """

    def objective(point: Floats) -> tuple[float, Floats]:
        return criterion_of(ask(point), point, method)

    curve = np.full(len(start), 4.0 * n_clients)
    curve[-1] = 4.0 * n_rows
    inverse = np.diag(1.0 / curve)
    if method == "reml":
        matrix = information_of(ask(start))
        d = len(matrix)
        inverse[:d, :d] = 0.5 * np.exp(2.0 * start[-1]) * np.linalg.inv(matrix)
    return minimise(objective, start, tol, inverse)
