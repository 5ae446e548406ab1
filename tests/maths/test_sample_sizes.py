import numpy as np
import pytest

from fedkin.inference import local_error_constant, rows_needed


def test_thresholds_are_the_papers():
    m, size, D, M = 100, 10, 13.4, 2.0
    convex = rows_needed("convex", m, size, D, M)
    assert convex.threshold == pytest.approx(256 * M * (m - size) ** 2 / (size**2 * D**2))
    kmeans = rows_needed("kmeans", m, size, D, M)
    expected = 64 * M * (np.sqrt(size) + 100 * np.sqrt(m)) ** 2 / (size * D**2)
    assert kmeans.threshold == pytest.approx(expected)
    spectral = rows_needed("spectral part I", m, size, D, M)
    assert spectral.threshold == pytest.approx(64 * 100**2 * m * M / (D**2 * size))
    assert spectral.rows < kmeans.rows  # Remark 20


@pytest.mark.parametrize("noise", [1e-4, 0.5, 3.0, 400.0])
def test_the_rows_are_the_least_that_satisfy_the_inequality(noise):
    needed = rows_needed("convex", 40, 10, 2.0, noise)
    assert needed.rows / np.log(needed.rows) > needed.threshold
    before = needed.rows - 1
    assert needed.rows == 3 or before / np.log(before) <= needed.threshold


def test_inexact_fits_need_more_rows_and_too_inexact_ones_are_hopeless():
    exact = rows_needed("convex", 40, 10, 2.0, 1.0)
    alpha = exact.alpha
    most = 2.0**2 / (16 * alpha**2)
    inexact = rows_needed("convex", 40, 10, 2.0, 1.0, precision=most / 2)
    assert inexact.threshold == pytest.approx(2 * exact.threshold)
    hopeless = rows_needed("convex", 40, 10, 2.0, 1.0, precision=most)
    assert hopeless.rows == np.inf and "No number of rows is enough" in hopeless.why


def test_the_sentence_says_why_it_is_pessimistic():
    needed = rows_needed("convex", 100, 10, 13.4, 20.0)
    assert "pessimistic" in needed.why and "interval (13)" in needed.why
    assert f"{needed.rows:,.0f} rows" in str(needed)


def test_the_error_constant_adds_its_four_terms():
    found = local_error_constant(2.0, 0.5, 3, 4.0, 1.0, 5.0, 6.0)
    inner = 3 * (np.log(24) + 3)
    terms = [
        16 * 2 * 1 * (np.log(2) + 3) / 0.25,
        64 * 16 * 2 * (3 + np.log(2) + inner) / 0.5,
        16 * 4 * 5 * (np.log(2) + 3) / 0.5,
        (12 + 16 * 4 * 2 * (4 + np.log(2) + inner)) / 0.5,
    ]
    assert found == pytest.approx(sum(terms))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"clustering": "ward"}, "clustering must be convex"),
        ({"smallest_cluster": 0}, "smallest_cluster must lie between 1 and 10"),
        ({"separation": 0.0}, "must be positive"),
        ({"clustering": "spectral part I", "precision": 0.1}, "Theorem 3 is about exact"),
    ],
)
def test_wrong_arguments_are_named(change, complaint):
    usual = {
        "clustering": "convex",
        "n_sites": 10,
        "smallest_cluster": 5,
        "separation": 1.0,
        "noise": 1.0,
    }
    with pytest.raises(ValueError, match=complaint):
        rows_needed(**{**usual, **change})
