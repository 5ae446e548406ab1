import numpy as np
import pytest

from fedkin.datasets import make_regression_groups
from fedkin.datasets.fmlr import PAPER_COEF


def test_drawn_labels_leave_no_component_empty_and_given_ones_are_kept():
    for seed in range(10):
        drawn = make_regression_groups(3, 2, PAPER_COEF[3], random_state=seed)
        assert sorted(drawn.labels) == [0, 1, 2]
    given = make_regression_groups(2, 2, PAPER_COEF[3], labels=[2, 2], random_state=0)
    np.testing.assert_array_equal(given.labels, [2, 2])
    with pytest.raises(ValueError, match="3 components need at least as many sites"):
        make_regression_groups(2, 2, PAPER_COEF[3])


def test_targets_follow_the_given_labels():
    drawn = make_regression_groups(4, 50, PAPER_COEF[3], 0.01, labels=[0, 1, 2, 2], random_state=0)
    fitted = drawn.known_labels_coef()
    np.testing.assert_allclose(fitted, PAPER_COEF[3], atol=0.02)
