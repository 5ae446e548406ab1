"""What rows of a site say of the components of its mixture: a step from a fit, with information.

With a(i, r) the score of row i if it is of group r and g(i, r) the probability that it is, the
score of the row is s(i) = sum over r of g(i, r) a(i, r), and J = n E[s s'] its information. The
expectation is taken over rows drawn from the fit, many times as many as there are: what the rows
themselves would say of J is far off with thirty rows a group. Weights of the groups are the site's
own: they are among the parameters and then eliminated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from fedkin.arrays import Floats

# Simulated rows: so many for every parameter, and no fewer than the second number.
ROWS_PER_PARAMETER, LEAST_ROWS = 60, 2000
# Directions with less than this share of the information of the best known have none.
NO_INFORMATION = 1e-8


class SiteMixture(NamedTuple):
    """A site's own estimate (q,), its information (q, q), residual squares and their degrees.

    `chi_squared` is the share of q degrees of freedom that the law of distances has: rows with
    large scores make it wider than chi-squared.
    """

    estimate: Floats
    information: Floats
    square: float
    degrees: float
    chi_squared: float


class Scored(NamedTuple):
    """Scores of rows (n, q) in the components and (n, R) in the weights, and residual squares."""

    components: Floats
    weights: Floats
    squares: Floats


Score = Callable[[Floats, Floats], tuple[Floats, Floats, Floats]]
"""Log joint densities (n, R), scores (n, R, p) and residual squares (n, R) of rows with targets."""


def scored(joint: Floats, score: Floats, squares: Floats) -> Scored:
    """Scores of rows whose groups are not known."""
    share = softmax(joint, axis=1)
    whole = (share[:, :, None] * score).reshape(len(share), -1)
    return Scored(whole, share, (share * squares).sum(axis=1))


def one_step(rows: Scored, drawn: Scored, start: Floats, weights: Floats, width: float):
    """A site's estimate one step from the fit `start` (q,), from its rows and simulated ones.

    `width` is the residual square that a row has on average, its number of targets.
    """
    n, q = rows.components.shape
    outer = np.concatenate([drawn.components, drawn.weights - weights], axis=1)
    total = n * outer.T @ outer / len(outer)
    cross, inner = total[:q, q:], np.linalg.pinv(total[q:, q:], rcond=1e-10, hermitian=True)
    information = total[:q, :q] - cross @ inner @ cross.T
    information = 0.5 * (information + information.T)
    beside = (rows.weights - weights).sum(axis=0)
    score = rows.components.sum(axis=0) - cross @ inner @ beside
    back = np.linalg.pinv(information, rcond=NO_INFORMATION, hermitian=True)
    step = back @ score
    # Residual squares vary less than chi-squared ones where groups overlap.
    mean, variance = float(drawn.squares.mean()), float(drawn.squares.var())
    degrees = 2.0 * mean**2 / max(variance, 1e-300) * (n - q / width)
    free = max(n * width - q, 0.0)
    left = max(float(rows.squares.sum()) - float(score @ step), 0.0)
    square = degrees * left / max(free, 1e-300) if free else 0.0
    each = drawn.components - (drawn.weights - weights) @ (cross @ inner).T
    length = n * np.einsum("ni,ij,nj->n", each, back, each, optimize=True)
    rank = float(length.mean())
    spread = 2.0 * rank + (float((length**2).mean()) - rank**2 - 2.0 * rank) / n
    share = min(2.0 * rank / max(spread, 1e-300), 1.0)
    return SiteMixture(start + step, information, square, max(degrees, 0.0), share)


def n_simulated(n_rows: int, n_parameters: int) -> int:
    """How often the rows of a site are drawn anew."""
    wanted = max(ROWS_PER_PARAMETER * n_parameters, LEAST_ROWS)
    return max(1, -(-wanted // max(n_rows, 1)))
