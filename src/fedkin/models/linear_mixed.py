"""The linear mixed model from packed statistics: exact criterion and slope, batched over clients.

    y_i = X_i beta + Z_i u_i + noise,    u_i ~ N(0, s^2 L L'),    noise ~ N(0, s^2)

Z are some of X's columns. With A_i = X'X, b_i = X'y, c_i = y'y of client i (what
`least_squares.packed_statistics` holds) and W_i = Z'(X, y), the model needs of the clients

    M_i = I + L' A_i[ZZ] L,    F = sum_i (X, y)'(X, y) - W_i' L M_i^-1 L' W_i = [[P, q], [q', r]],

and then beta = P^-1 q, rss = r - q' beta, and (k = N - rank for REML, N for ML)

    -2 log likelihood = sum_i log|M_i| + k (1 + log(2 pi rss / k)) [+ log|P| for REML].

One evaluation gives the slopes of F and of sum log|M_i| in every entry of L as well; they are sums
over clients, so clients can be added up in any grouping. Arrays have clients last: a Cholesky
factor of all clients is a loop over the q columns, each step of which is one pass over memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.least_squares import n_coefficients, upper_triangle
from fedkin.models.random_covariance import Shape
from fedkin.models.small_matrices import backward

Floats = NDArray[np.float64]
Method = Literal["reml", "ml"]

LOG_2PI = float(np.log(2 * np.pi))
# Doubles of one array worked on at once: half a MiB stays in a core's own cache.
CHUNK_ELEMENTS = 1 << 16
# A sum of squared residuals below this share of the target's is rounding.
LEAST_RESIDUAL = 1e-13


@dataclass(frozen=True, eq=False)
class Prepared:
    """Clients' sums in coordinates in which all numbers are near one (`linear_mixed_scales`).

    Fixed columns are X `basis` (d, p), random ones X[:, random] `spread`, the target is
    (y - X `offset`) / `scale`.
    """

    products: Floats
    """Z'(X, y, Z) of every client, (q, p + 1 + q, m)."""
    total: Floats
    """(X, y)'(X, y) of all clients, weighted, (p + 1, p + 1)."""
    n_rows: Floats
    weights: Floats
    random: NDArray[np.intp]
    basis: Floats
    spread: Floats
    offset: Floats
    scale: float
    log_volume: float
    """log|X'X| of the columns kept: what REML's log|P| changes by with the coordinates."""
    collinear: tuple[int, ...]
    """Columns that take part in a linear dependence."""

    @property
    def rank(self) -> int:
        """Number of fixed coefficients p that the rows determine."""
        return len(self.total) - 1

    @property
    def total_rows(self) -> float:
        """Weighted number of rows N."""
        return float(self.weights @ self.n_rows)

    def of_clients(self, who: NDArray[np.intp]) -> Prepared:
        """The same coordinates with some clients' own sums; the totals stay everybody's."""
        return replace(
            self,
            products=self.products[:, :, who],
            n_rows=self.n_rows[who],
            weights=self.weights[who],
        )


class Sums(NamedTuple):
    """One evaluation: F (p + 1, p + 1), sum log|M|, and their slopes in the entries of L.

    d (sum log|M|) / dL = 2 `logdet_slope` (q, q);
    dF[r, s] / dL[i, k] = - `slope`[i, r, k, s] - `slope`[i, s, k, r]  (q, p + 1, q, p + 1).
    """

    cross: Floats
    logdet: float
    logdet_slope: Floats
    slope: Floats


class Profile(NamedTuple):
    """The criterion with beta and s taken out, and where they lie."""

    value: float
    coef: Floats
    variance: float
    inverse: Floats
    """P^-1 (p, p)."""


def target_products(statistics: Floats, columns: NDArray[np.intp]) -> Floats:
    """X[:, columns]'(X, y) of every client, (q, d + 1, m), from packed statistics (., m)."""
    size = n_coefficients(len(statistics)) + 1
    upper = upper_triangle(size)
    place = np.zeros((size, size), dtype=np.intp)
    place[upper[0], upper[1]] = place[upper[1], upper[0]] = np.arange(len(upper[0]))
    return np.asarray(statistics[place[columns]])


def total_products(statistics: Floats, weights: Floats) -> Floats:
    """(X, y)'(X, y) of all clients, (d + 1, d + 1)."""
    size = n_coefficients(len(statistics)) + 1
    upper = upper_triangle(size)
    out = np.zeros((size, size))
    out[upper[0], upper[1]] = out[upper[1], upper[0]] = statistics[:-1] @ weights
    return out


# ------------------------------------------------------------------ sums over clients


def evaluate(prepared: Prepared, factor: Floats, slopes: bool = True) -> Sums:
    """F, sum log|M| and, if wanted, their slopes at the relative factor L (q, q)."""
    q, width, m = prepared.products.shape
    p1 = width - q
    cross, logdet = prepared.total.copy(), 0.0
    logdet_slope, slope = np.zeros((q, q)), np.zeros((q * p1, q * p1))
    step = max(256, CHUNK_ELEMENTS // max(q * width, 1))
    for begin in range(0, m, step):
        some = slice(begin, begin + step)
        products, weight = prepared.products[:, :, some], prepared.weights[some]
        root, half = eliminate(products, factor)
        for row in half[:, :p1]:
            cross -= (row * weight) @ row.T
        logdet += 2.0 * float(weight @ np.log(np.einsum("jjm->jm", root)).sum(axis=0))
        if slopes:
            solved = backward(root, half)
            logdet_slope += np.einsum("jim,m->ij", solved[:, p1:], weight)
            first = solved[:, :p1]
            left = remainder(products[:, :p1], products[:, p1:], first, factor)
            n = left.shape[-1]
            slope += (left * weight).reshape(q * p1, n) @ first.reshape(q * p1, n).T
    return Sums(cross, logdet, logdet_slope, slope.reshape(q, p1, q, p1))


def remainder(own: Floats, gram: Floats, solved: Floats, factor: Floats) -> Floats:
    """Z' Sigma^-1 C = Z'C - Z'Z L M^-1 L' Z'C for columns C with `own` = Z'C (q, r, m)."""
    effects = np.tensordot(factor, solved, 1)
    return np.asarray(own - np.einsum("ijm,jrm->irm", gram, effects))


def eliminate(products: Floats, factor: Floats) -> tuple[Floats, Floats]:
    """Lower factors C of M = I + L' A L and C^-1 L' (products), clients last."""
    q, width, n = products.shape
    half = (factor.T @ products.reshape(q, width * n)).reshape(q, width, n)
    gram = np.matmul(factor.T, half[:, width - q :])
    root = np.zeros((q, q, n))
    for j in range(q):
        pivot = gram[j, j] + 1.0 - np.einsum("km,km->m", root[j, :j], root[j, :j])
        root[j, j] = np.sqrt(pivot)
        if j:
            half[j] -= np.einsum("km,krm->rm", root[j, :j], half[:j])
        half[j] /= root[j, j]
        for i in range(j + 1, q):
            below = gram[i, j] - np.einsum("km,km->m", root[i, :j], root[j, :j])
            root[i, j] = below / root[j, j]
    return root, half


# ------------------------------------------------------------------ the criterion


def profile(prepared: Prepared, sums: Sums, method: Method) -> Profile:
    """-2 log (restricted) likelihood with beta and s at their best, in the original units."""
    p = prepared.rank
    values, vectors = np.linalg.eigh(sums.cross[:p, :p])
    values = np.maximum(values, np.finfo(float).tiny)
    inverse = (vectors / values) @ vectors.T
    coef = inverse @ sums.cross[:p, p]
    residual = float(sums.cross[p, p] - sums.cross[:p, p] @ coef)
    residual = max(residual, LEAST_RESIDUAL * max(float(prepared.total[p, p]), 1.0))
    k = prepared.total_rows - (p if method == "reml" else 0)
    scaled = np.log(residual / k) + 2.0 * np.log(prepared.scale)
    value = sums.logdet + k * (1.0 + LOG_2PI + scaled)
    if method == "reml":
        value += float(np.log(values).sum()) + prepared.log_volume
    return Profile(float(value), coef, residual / k, inverse)


def factor_slope(sums: Sums, found: Profile, method: Method) -> Floats:
    """Slope of the criterion in every entry of L, (q, q)."""
    toward = np.append(-found.coef, 1.0)
    pull = np.outer(toward, toward) / found.variance
    if method == "reml":
        pull[:-1, :-1] += found.inverse
    return np.asarray(2.0 * (sums.logdet_slope - np.einsum("irks,rs->ik", sums.slope, pull)))


def criterion(
    prepared: Prepared, shape: Shape, method: Method, theta: Floats
) -> tuple[float, Floats]:
    """-2 log (restricted) likelihood and its slope in the free numbers of L."""
    sums = evaluate(prepared, shape.factor(theta))
    found = profile(prepared, sums, method)
    return found.value, shape.gather(factor_slope(sums, found, method))
