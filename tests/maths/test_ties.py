"""Of values that differ by rounding alone the first is best, whatever the processor."""

import numpy as np
import pytest

from fedkin.ties import RELATIVE, first_best, first_least, tied_order, tied_ranks

NAN, INFINITY = np.nan, np.inf
ROUNDING = 1e-13


@pytest.mark.parametrize("size", [1e-30, 1.0, -1.0, 1e30])
def test_of_values_within_rounding_the_first_is_best(size):
    worse = size - abs(size)
    values = np.array([worse, size, size * (1 + ROUNDING), size * (1 - ROUNDING)])
    assert first_best(values) == 1
    assert first_least(-values) == 1


def test_a_real_difference_decides():
    assert first_best([1.0, 1.0 + 1e-6, 1.0 - 1e-6]) == 1
    assert first_least([1.0, 1.0 + 1e-6, 1.0 - 1e-6]) == 2


def test_near_zero_the_floor_says_what_rounding_is():
    values = [3e-17, -1e-16, 5e-17]
    assert first_best(values) == 2
    assert first_best(values, floor=RELATIVE) == first_least(values, floor=RELATIVE) == 0


def test_every_row_has_its_own_best_and_its_own_floor():
    values = np.array([[1.0, 2.0, 2.0 + ROUNDING], [5.0, 5.0 - ROUNDING, NAN], [0.0, 0.1, 0.3]])
    np.testing.assert_array_equal(first_best(values, axis=1), [1, 0, 2])
    np.testing.assert_array_equal(first_best(values.T, axis=0), [1, 0, 2])
    np.testing.assert_array_equal(first_best(values, floor=np.array([2.0, 0.0, 0.25])), [0, 0, 1])


def test_what_is_no_number_is_never_best():
    assert first_best([NAN, 1.0, 2.0]) == 2
    assert first_least([NAN, 1.0, 2.0]) == 1
    assert first_best([NAN, -INFINITY]) == 1
    assert first_best([NAN, NAN]) == first_least([NAN, NAN]) == 0


def test_infinities_tie_with_infinities_only():
    assert first_best([1.0, INFINITY, INFINITY]) == 1
    assert first_least([1e300, 1.0, -INFINITY]) == 2


def test_what_ties_keeps_its_order():
    weights = np.array([0.3 - ROUNDING, 0.4, 0.3, 0.0])
    np.testing.assert_array_equal(tied_order(-weights), [1, 0, 2, 3])
    np.testing.assert_array_equal(tied_ranks(-weights), [1, 0, 1, 2])


def test_without_ties_the_order_is_that_of_the_values():
    values = np.random.default_rng(0).normal(size=50)
    np.testing.assert_array_equal(tied_order(values), np.argsort(values))
    np.testing.assert_array_equal(tied_ranks([]), [])


@pytest.mark.parametrize("value", [0.0, 1e-30, -2.0])
def test_equal_values_tie_also_where_they_are_nothing(value):
    np.testing.assert_array_equal(tied_ranks([value, value, 5.0, value]), [0, 0, 1, 0])
    np.testing.assert_array_equal(tied_order([5.0, value, value]), [1, 2, 0])
