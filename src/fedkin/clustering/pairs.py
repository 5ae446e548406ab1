"""All pairs of weighted points at once: distances, pull and curvature from matrix products.

For positions v_p (n, d) with sizes s_p the smoothed fusion penalty of (12) is

    P(v) = sum_{p<q} s_p s_q h(t_pq),   t_pq = |v_p - v_q|,
    h(t) = t - smoothing/2 if t > smoothing, else t^2 / (2 smoothing).

Every sum over pairs is a matrix product over blocks of rows, upper triangle only: no array has
more than two pair axes, so memory is O(n^2) while the blocks are kept (n <= KEPT_POINTS) and
O(n * block) when they are computed again on every use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from fedkin.arrays import Bools, Floats, Indices
from fedkin.clustering import tolerances
from fedkin.clustering.points import Points

# A block of this many pairs (2 MB) stays in a second-level cache.
PAIRS_PER_BLOCK = 1 << 18
# The upper triangle in this many steps is 5/8 of the square; steps of fewer rows cost more than
# they save.
STEPS_OF_TRIANGLE = 4
LEAST_ROWS = 64
# Two kept half-matrices of 4000 points take 128 MB.
KEPT_POINTS = 4000


class Block(NamedTuple):
    """Pairs (row, column) with start <= row < stop <= n and column >= start."""

    start: int
    stop: int
    weight: Floats  # (rows, columns): s_p s_q / max(t_pq, smoothing), zero on the diagonal
    bend: Floats  # (rows, columns): s_p s_q / t_pq^3 where t_pq > smoothing, else zero


class BlockSums(NamedTuple):
    """What one block adds to the sums over pairs."""

    block: Block
    linear: float  # sum of s_p s_q t_pq^2 / max(t_pq, smoothing)
    near_linear: float  # the part of `linear` with t_pq <= smoothing
    near_sizes: float  # sum of s_p s_q over those pairs
    slack: float  # sum of s_p s_q t_pq (1 - t_pq / max(t_pq, smoothing))


def beside(columns: list[Floats]) -> Floats:
    """Arrays of two axes beside each other: hstack without its checks, which cost as much."""
    return np.concatenate(columns, axis=1)


def squared_distances(left: Points, right: Points, scale: float) -> Floats:
    """Squared distances (n_left, n_right), exact also where the Gram product cancels."""
    ones_left, ones_right = np.ones((len(left), 1)), np.ones((len(right), 1))
    square_left = np.einsum("ij,ij->i", left, left)[:, None]
    square_right = np.einsum("ij,ij->i", right, right)[:, None]
    squared = (
        beside([-2.0 * left, square_left, ones_left]) @ beside([right, ones_right, square_right]).T
    )
    rows, columns = where(squared < (tolerances.CANCELLATION * scale) ** 2)
    if rows.size > squared.size // 8:
        from scipy.spatial.distance import cdist

        return np.asarray(cdist(left, right, "sqeuclidean"))
    difference = left[rows] - right[columns]
    squared[rows, columns] = np.einsum("ij,ij->i", difference, difference)
    return np.asarray(squared)


def where(mask: Bools) -> tuple[Indices, Indices]:
    """Rows and columns of the true entries; much faster than nonzero where they are few."""
    rows, columns = np.divmod(np.flatnonzero(mask), mask.shape[1])
    return rows, columns


def squares_from(positions: Points, scale: float, start: int, stop: int) -> Floats:
    """Squared distances of rows start..stop to rows start.., infinite from a row to itself."""
    squared = squared_distances(positions[start:stop], positions[start:], scale)
    squared[np.diag_indices(stop - start)] = np.inf
    return squared


def row_ranges(n_points: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows, each with at most PAIRS_PER_BLOCK pairs; several unless points are few."""
    step = max(LEAST_ROWS, -(-n_points // STEPS_OF_TRIANGLE))
    step = max(1, min(step, PAIRS_PER_BLOCK // n_points))
    for start in range(0, n_points, step):
        yield start, min(start + step, n_points)


def largest_norm(positions: Points) -> float:
    """Length of the longest row of (n, d)."""
    return float(np.sqrt(np.einsum("ij,ij->i", positions, positions).max(initial=0.0)))


def close_pairs(positions: Points, radius: Floats) -> tuple[Indices, Indices]:
    """Pairs p < q of positions (n, d) no further apart than radius_p + radius_q."""
    pairs = [(np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp))]
    scale, widest = largest_norm(positions), float(2.0 * radius.max()) ** 2
    for start, stop in row_ranges(len(positions)):
        squared = squares_from(positions, scale, start, stop)
        if squared.min() > widest:
            continue
        reach = radius[start:stop, None] + radius[None, start:]
        rows, columns = where(squared <= reach * reach)
        keep = columns > rows
        pairs.append((rows[keep] + start, columns[keep] + start))
    rows, columns = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return rows, columns


class CompletePairs:
    """The smoothed penalty, its gradient and Hessian at positions (n, d), all pairs coupled."""

    def __init__(self, positions: Points, sizes: Floats, smoothing: float) -> None:
        self.positions, self.sizes, self.smoothing = positions, sizes, smoothing
        self.n_points = len(positions)
        self._scale = largest_norm(positions)
        self._kept: list[Block] | None = [] if self.n_points <= KEPT_POINTS else None
        self._sum_over_pairs()

    def blocks(self) -> Iterator[Block]:
        """Blocks of the upper triangle; kept ones if there are few points."""
        if self._kept is not None:
            yield from self._kept
        else:
            for start, stop in row_ranges(self.n_points):
                yield self._block(start, stop).block

    def curvature(self, vectors: Floats) -> Floats:
        """Hessian of the penalty times x (n, d)."""
        v, x = self.positions, vectors
        inner = np.einsum("ij,ij->i", v, x)[:, None]
        ones = np.ones_like(inner)
        left, right = beside([-v, -x, inner, ones]), beside([x, v, ones, inner])
        both, with_one = beside([v, ones]), np.zeros((self.n_points, v.shape[1] + 1))
        result = self.degree[:, None] * x
        pulled = np.zeros_like(x)
        for start, stop, weight, bend in self.blocks():
            _add_symmetric_product(pulled, weight, x, start, stop)
            bent = left[start:stop] @ right[start:].T  # <v_p - v_q, x_p - x_q>
            bent *= bend
            _add_symmetric_product(with_one, bent, both, start, stop)
        result -= pulled
        result -= with_one[:, -1:] * v - with_one[:, :-1]
        return result

    def laplacian(self) -> Floats:
        """Upper triangle of diag(degree) - weight, (n, n): the penalty's quadratic majoriser."""
        matrix = np.zeros((self.n_points, self.n_points))
        for start, stop, weight, _ in self.blocks():
            np.negative(weight, out=matrix[start:stop, start:])
        matrix[np.diag_indices(self.n_points)] = self.degree
        return matrix

    def solver(self, mass: Floats, penalty: float) -> Callable[[Floats], Floats]:
        """x -> M^-1 x, M = diag(mass) + penalty * Laplacian; above KEPT_POINTS its diagonal."""
        if self._kept is None:
            diagonal = (mass + penalty * self.degree)[:, None]
            return lambda vectors: vectors / diagonal
        matrix = self.laplacian()
        matrix *= penalty
        matrix[np.diag_indices(self.n_points)] += mass
        # The transposed upper triangle is the lower one in LAPACK's column order: no copy.
        factor = cho_factor(matrix.T, lower=True, overwrite_a=True, check_finite=False)
        return lambda vectors: cho_solve(factor, vectors, check_finite=False)

    def _block(self, start: int, stop: int) -> BlockSums:
        squared = squares_from(self.positions, self._scale, start, stop)
        weight = np.sqrt(squared)
        near = where(weight <= self.smoothing)
        near_t = weight[near]
        weight[near] = self.smoothing
        np.reciprocal(weight, out=weight)
        bend = weight * weight
        near_squared = squared[near]
        squared[np.diag_indices(stop - start)] = 0.0
        row_size, column_size = self.sizes[start:stop, None], self.sizes[None, start:]
        if self.sizes.max() > 1.0:
            weight *= row_size
            weight *= column_size
        bend *= weight
        bend[near] = 0.0
        # The diagonal part of the block holds each of its pairs twice.
        half = stop - start
        linear = float(np.vdot(weight, squared))
        linear -= 0.5 * float(np.sum(weight[:, :half] * squared[:, :half]))
        share = np.where(near[1] < half, 0.5, 1.0)
        near_sizes = share * self.sizes[start:][near[0]] * self.sizes[start:][near[1]]
        near_linear = float(near_sizes @ near_squared) / self.smoothing if near_t.size else 0.0
        slack = float(near_sizes @ near_t) - near_linear
        return BlockSums(
            Block(start, stop, weight, bend), linear, near_linear, float(near_sizes.sum()), slack
        )

    def _sum_over_pairs(self) -> None:
        n, s = self.n_points, self.sizes
        with_one = beside([self.positions, np.ones((n, 1))])
        summed = np.zeros_like(with_one)
        linear = near_linear = near_sizes = self.slack = 0.0
        for start, stop in row_ranges(self.n_points):
            sums = self._block(start, stop)
            linear += sums.linear
            near_linear += sums.near_linear
            near_sizes += sums.near_sizes
            self.slack += sums.slack
            _add_symmetric_product(summed, sums.block.weight, with_one, start, stop)
            if self._kept is not None:
                self._kept.append(sums.block)
        all_sizes = 0.5 * (s.sum() ** 2 - s @ s)
        self.degree = summed[:, -1]  # (n,)
        self.pull = self.degree[:, None] * self.positions - summed[:, :-1]  # gradient, (n, d)
        far_sizes = max(all_sizes - near_sizes, 0.0)
        self.value = linear - 0.5 * (near_linear + self.smoothing * far_sizes)
        self.exact_value = linear + self.slack  # sum of s_p s_q t_pq


def _add_symmetric_product(
    result: Floats, block: Floats, vectors: Floats, start: int, stop: int
) -> None:
    """Add a symmetric matrix's upper block, and its mirror image, times vectors (n, k)."""
    result[start:stop] += block @ vectors[start:]
    result[stop:] += block[:, stop - start :].T @ vectors[start:stop]
