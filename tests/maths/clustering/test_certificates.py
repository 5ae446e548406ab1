"""What is called proved must be true: groups that are one are never proved apart."""

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from fedkin.clustering.contraction import Groups
from fedkin.clustering.convex import _all_apart
from fedkin.clustering.fusion import connected

SIZES = np.array([1.0, 40.0])
MEANS = np.array([[41.0], [0.0]])
FUSED_FROM = 1.0  # penalty * 41 = their distance


def objective(positions, penalty):
    own = 0.5 * (SIZES * ((MEANS - positions) ** 2).sum(axis=1)).sum()
    return own + penalty * SIZES.prod() * np.linalg.norm(positions[0] - positions[1])


@pytest.mark.parametrize("away", [1e-3, 0.1, 1.0])
def test_two_groups_at_the_penalty_that_joins_them_are_not_proved_apart(away):
    """The small one has strayed, which costs 1/2 away^2: as little as strong convexity allows."""
    penalty = FUSED_FROM * (1 + 1e-12)
    groups = Groups(np.repeat([0, 1], [1, 40]), MEANS, SIZES)
    joined = np.full((2, 1), SIZES @ MEANS[:, 0] / SIZES.sum())
    strayed = joined + np.array([[away], [0.0]])
    gap = objective(strayed, penalty) - objective(joined, penalty)
    assert gap == pytest.approx(0.5 * away**2, rel=1e-4)
    assert not _all_apart(strayed, groups, penalty, gap, 0.0)
    # Far below that penalty they are apart, and a gap of nothing says so.
    apart = np.array([[41.0 - 20.0], [0.5]])
    assert _all_apart(apart, groups, 0.5 * FUSED_FROM, 1e-12, 0.0)


@pytest.mark.parametrize("reach", [0.0, 0.03, 0.08, 0.2, 2.0])
def test_components_are_those_of_the_graph_in_the_order_of_their_first_points(reach):
    """Chains through shuffled points, and every number of components from one to all."""
    rng = np.random.default_rng(5)
    line = np.column_stack([np.linspace(0.0, 1.0, 60), np.zeros(60)])[rng.permutation(60)]
    for positions in (rng.uniform(size=(60, 2)), line):
        near = np.linalg.norm(positions[:, None] - positions[None], axis=2) <= reach
        expected = connected_components(near, directed=False)[1]
        np.testing.assert_array_equal(connected(positions, np.full(60, 0.5 * reach)), expected)
