"""Points and oracles shared by the tests of the clustering room."""

import numpy as np
import pytest


@pytest.fixture
def same_partition():
    def compare(left, right):
        left, right = np.asarray(left), np.asarray(right)
        return bool(((left[:, None] == left) == (right[:, None] == right)).all())

    return compare


@pytest.fixture
def blobs():
    """Function: well separated groups, points (m, d) and true labels (m,)."""

    def draw(seed, sizes=(6, 7, 8), d=3, distance=10.0, noise=0.1):
        rng = np.random.default_rng(seed)
        labels = np.repeat(np.arange(len(sizes)), sizes)
        centers = np.zeros((len(sizes), d))
        centers[:, 0] = distance * np.arange(len(sizes))
        return centers[labels] + noise * rng.normal(size=(labels.size, d)), labels

    return draw


@pytest.fixture
def cvxpy_centers():
    """Function: the solution u (m, d) of (12), or of Remark 23 with weights (m, m), by CVXPY."""
    cp = pytest.importorskip("cvxpy")

    def solve(points, penalty, weights=None):
        m, d = points.shape
        first, second = np.triu_indices(m, 1)
        w = np.ones(first.size) if weights is None else np.asarray(weights)[first, second]
        first, second, w = first[w > 0], second[w > 0], w[w > 0]
        u = cp.Variable((m, d))
        lengths = cp.norm(u[first] - u[second], axis=1)
        objective = 0.5 * cp.sum_squares(u - points) + penalty * cp.sum(cp.multiply(w, lengths))
        tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-9)
        cp.Problem(cp.Minimize(objective)).solve(solver=cp.CLARABEL, **tight)
        return u.value

    return solve
