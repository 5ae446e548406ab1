"""Averages over sites against brute force."""

import numpy as np
import pytest

from fedkin.algorithms.aggregate import MOST_WEIGHT, average, capped, weighted_median


def test_sites_without_rows_have_no_part_in_what_is_usual():
    rows = np.array([0.0, 0.0, 0.0, 0.0, 10.0, 10.0, 1e9])
    np.testing.assert_array_equal(capped(rows), [0, 0, 0, 0, 10, 10, 10 * MOST_WEIGHT])
    np.testing.assert_array_equal(capped(np.zeros(3)), np.zeros(3))


@pytest.mark.parametrize("seed", range(20))
def test_the_weighted_median_is_the_median_of_repeated_values(seed):
    rng = np.random.default_rng(seed)
    values, counts = rng.normal(size=7), rng.integers(0, 5, size=7)
    counts[0] += 1
    expected = np.median(np.repeat(values, counts))
    assert weighted_median(values, counts.astype(float)) == pytest.approx(expected, rel=1e-12)


def test_trimming_leaves_out_who_is_far_and_nobody_else():
    rng = np.random.default_rng(0)
    points, rows = rng.normal(size=(30, 4)), rng.integers(5, 9, size=30).astype(float)
    plain = average(points, rows)
    np.testing.assert_allclose(plain, np.average(points, axis=0, weights=rows))
    np.testing.assert_allclose(average(points, rows, "trimmed"), plain)
    points[3] = 1e6
    others = np.arange(30) != 3
    expected = np.average(points[others], axis=0, weights=rows[others])
    np.testing.assert_allclose(average(points, rows, "trimmed"), expected)
