"""Weighted convex clustering on a graph (Remark 23): few pairs coupled, each by its own weight.

    minimise over u_1..u_m   1/2 sum_i |a_i - u_i|^2 + penalty * sum_{(i,j) in E} w_ij |u_i - u_j|

Points outside a group no longer pull its members alike, so groups cannot be contracted one by one
as in `fusion`. The smoothed problem is followed to ever finer smoothings on the whole graph instead
(every array is (n_edges, d) at most); points joined by edges shorter than the smoothing are set to
their common mean, and the gap is that of these exactly fused centres.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import coo_array, csr_array, diags_array, triu
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

from fedkin.arrays import Bools, Floats
from fedkin.clustering import tolerances
from fedkin.clustering.newton import SmoothProblem, minimise
from fedkin.clustering.points import (
    Labels,
    Points,
    centred,
    check_points,
    group_means,
    in_order_of_appearance,
)


def nearest_neighbor_weights(
    points: ArrayLike, n_neighbors: int = 10, bandwidth: float | None = None
) -> csr_array:
    """Gaussian weights exp(-|a_i - a_j|^2 / (2 bandwidth^2)) between nearest neighbours, (m, m).

    i and j are coupled when either is among the other's `n_neighbors` nearest. The default
    bandwidth is the median distance of coupled points, so that a typical weight is exp(-1/2).
    """
    from sklearn.neighbors import NearestNeighbors

    array = check_points(points)
    m = len(array)
    if n_neighbors < 1:
        raise ValueError(f"n_neighbors must be at least 1; got {n_neighbors}")
    if m == 1:
        return csr_array((1, 1))
    nearest = NearestNeighbors(n_neighbors=min(int(n_neighbors), m - 1), algorithm="kd_tree").fit(
        array
    )
    graph = nearest.kneighbors_graph(mode="distance")
    width = float(np.median(graph.data)) if bandwidth is None else float(bandwidth)
    graph.data = np.exp(-0.5 * (graph.data / width) ** 2) if width > 0 else np.ones(graph.nnz)
    return csr_array(graph.maximum(graph.T))


class Edges(NamedTuple):
    """Coupled pairs and the matrix that takes their differences."""

    weights: Floats  # (n_edges,)
    difference: csr_array  # (n_edges, m): row e has +1 at its first point and -1 at its second

    @classmethod
    def of(cls, weights: Any, n_points: int) -> Edges:
        """Edges of a symmetric matrix of weights (m, m), dense or sparse."""
        matrix = csr_array(weights)
        if matrix.shape != (n_points, n_points):
            raise ValueError(f"weights must have shape {(n_points, n_points)}; got {matrix.shape}")
        if not np.isfinite(matrix.data).all() or (matrix.data < 0).any():
            raise ValueError("weights must be finite and not negative")
        if abs(matrix - matrix.T).max() > 0:
            raise ValueError("weights must be symmetric: w_ij and w_ji differ")
        upper = coo_array(triu(matrix, k=1))
        upper.eliminate_zeros()
        n = upper.nnz
        columns = np.stack([upper.row, upper.col], axis=1).ravel()
        signs = np.tile([1.0, -1.0], n)
        difference = csr_array((signs, columns, 2 * np.arange(n + 1)), shape=(n, n_points))
        return cls(np.asarray(upper.data, dtype=np.float64), difference)

    def components(self, chosen: Bools) -> Labels:
        """Groups of points connected by the chosen edges, (m,)."""
        picked = self.difference[chosen]
        return np.asarray(connected_components(abs(picked.T @ picked), directed=False)[1])


class EdgePairs:
    """The smoothed penalty of a graph, its gradient and Hessian at positions (m, d)."""

    def __init__(self, positions: Points, edges: Edges, smoothing: float) -> None:
        self.edges = edges
        self.apart = edges.difference @ positions  # (n_edges, d)
        self.length = np.sqrt(np.einsum("ij,ij->i", self.apart, self.apart))
        self.far = self.length > smoothing
        bounded = np.maximum(self.length, smoothing)
        self.stiffness = edges.weights / bounded
        self.bend = np.where(self.far, self.stiffness / bounded**2, 0.0)
        linear = self.stiffness * self.length**2
        self.exact_value = float(edges.weights @ self.length)
        self.slack = max(self.exact_value - float(linear.sum()), 0.0)
        smooth = np.where(self.far, linear - 0.5 * smoothing * edges.weights, 0.5 * linear)
        self.value = float(smooth.sum())
        self.pull = np.asarray(edges.difference.T @ (self.stiffness[:, None] * self.apart))

    def curvature(self, vectors: Floats) -> Floats:
        """Hessian of the penalty times x (m, d)."""
        moved = self.edges.difference @ vectors
        along = (self.bend * np.einsum("ij,ij->i", self.apart, moved))[:, None]
        change = self.stiffness[:, None] * moved - along * self.apart
        return np.asarray(self.edges.difference.T @ change)

    def solver(self, mass: Floats, penalty: float) -> Callable[[Floats], Floats]:
        """x -> M^-1 x, M = diag(mass) + penalty * Laplacian, by sparse factors."""
        difference = self.edges.difference
        laplacian = difference.T @ diags_array(self.stiffness) @ difference
        matrix = (diags_array(mass) + penalty * laplacian).tocsc()
        factors = splu(
            matrix,
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
        return lambda vectors: np.asarray(factors.solve(vectors))


def solve_on_graph(
    points: Points, penalty: float, weights: Any
) -> tuple[Points, Labels, float, int, bool]:
    """Centers (m, d), labels (m,), relative gap, Newton steps, whether it met the promised gap."""
    edges = Edges.of(weights, len(points))
    targets, mean, unit = centred(points)
    penalty = penalty / unit
    whole = in_order_of_appearance(edges.components(np.ones(edges.weights.size, dtype=bool)))
    middle = group_means(targets, whole, whole.max() + 1)[whole]
    if _all_fuse(targets - middle, whole, edges, penalty):
        return unit * middle + mean, whole, 0.0, 0, True
    lengths = np.sqrt(((edges.difference @ targets) ** 2).sum(axis=1))
    positive = lengths[lengths > 0]
    smoothing = tolerances.FIRST_SMOOTHING * float(np.median(positive)) if positive.size else 1.0
    positions, n_iter, mass = targets, 0, np.ones(len(points))
    for _ in range(tolerances.N_LEVELS):
        problem = SmoothProblem(targets, mass, penalty, _couple_by(edges, smoothing))
        solution = minimise(problem, positions, tolerances.GRAPH_TOLERANCE)
        n_iter += solution.n_iter
        coupling = solution.coupling
        assert isinstance(coupling, EdgePairs)
        together = coupling.length <= tolerances.JOINED_WITHIN * smoothing
        labels = in_order_of_appearance(edges.components(together))
        centers = group_means(solution.positions, labels, labels.max() + 1)[labels]
        gap = _relative_gap(centers, targets, penalty, coupling)
        if gap <= tolerances.PROMISED_GAP:
            break
        positions = centers + tolerances.SMOOTHING_STEP * (solution.positions - centers)
        smoothing *= tolerances.SMOOTHING_STEP
    return unit * centers + mean, labels, gap, n_iter, bool(gap <= tolerances.PROMISED_GAP)


def _all_fuse(about: Points, labels: Labels, edges: Edges, penalty: float) -> bool:
    """Whether the penalty surely joins all that edges connect; `about` (m, d) their means.

    Pulls along a spanning tree balance a component, and no edge of it carries more than the sum of
    the distances from the mean.
    """
    carried = np.bincount(labels, np.sqrt((about**2).sum(axis=1))).max()
    return bool(penalty > 0 and carried <= penalty * edges.weights.min(initial=np.inf))


def _couple_by(edges: Edges, smoothing: float) -> Callable[[Points], EdgePairs]:
    return lambda positions: EdgePairs(positions, edges, smoothing)


def _relative_gap(centers: Points, targets: Points, penalty: float, coupling: EdgePairs) -> float:
    """Gap of the fused centres (m, d) against the dual point z_e of the smoothed solution.

    objective - dual = 1/2 sum_i |u_i - a_i + penalty sum_e w_e z_e|^2
                       + penalty sum_e w_e (|u_i - u_j| - <z_e, u_i - u_j>)
    """
    edges = coupling.edges
    residual = centers - targets + penalty * coupling.pull
    apart = edges.difference @ centers
    length = np.sqrt(np.einsum("ij,ij->i", apart, apart))
    slack = edges.weights @ length - float(
        np.vdot(coupling.stiffness[:, None] * coupling.apart, apart)
    )
    objective = 0.5 * float(((centers - targets) ** 2).sum()) + penalty * float(
        edges.weights @ length
    )
    gap = 0.5 * float((residual**2).sum()) + penalty * max(float(slack), 0.0)
    # Where points lie on their neighbours the objective is rounding: squares of it are no measure.
    return gap / max(
        objective, tolerances.NO_OBJECTIVE * float((targets**2).sum()), np.finfo(float).tiny
    )
