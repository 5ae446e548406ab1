"""Units of columns: grams or tonnes, groups with covariances of their own are the same."""

import numpy as np
import pytest

from fedkin import FedGrEM
from fedkin.algorithms.mixtures.fedgrem import FEDGREM
from fedkin.algorithms.mixtures.shared_start import SharedStart, typical_spread
from fedkin.protocol import Replies, Roster
from fedkin.shrinkage import in_common, site_shifts

N_CLASSES, D, M, N = 3, 5, 8, 40
# Powers of two, so that nothing is rounded: columns up to 4e12 times as wide as others.
UNITS = 2.0 ** np.array([20, -21, 3, 0, -7])


def people(seed=0):
    """Rows, classes and sites; columns go together, and sites differ."""
    rng = np.random.default_rng(seed)
    root = 0.4 * rng.normal(size=(D, D)) + np.eye(D)
    centers = 2.0 * rng.normal(size=(N_CLASSES, D))
    site, y = np.repeat(np.arange(M), N), rng.integers(0, N_CLASSES, M * N)
    own = centers + 0.3 * rng.normal(size=(M, N_CLASSES, D))
    return own[site, y] + rng.normal(size=(M * N, D)) @ root.T, y, site


def told(X, y, site, **settings):
    """Means in units of the columns, and probabilities of the rows' groups."""
    model = FedGrEM(N_CLASSES, random_state=0, **settings).fit(X, y, groups=site)
    return model.means_, model.predict_proba(X, groups=site), model.score_samples(X, groups=site)


@pytest.mark.parametrize("kind", ["full", "diag", "tied"])
@pytest.mark.parametrize("share", [1.0, 0.3])
def test_with_labels_units_of_columns_change_nothing(kind, share):
    X, y, site = people()
    y = np.where(np.random.default_rng(1).random(len(y)) < share, y, -1)
    first = told(X, y, site, covariance_type=kind)
    means, probabilities, density = told(X * UNITS, y, site, covariance_type=kind)
    np.testing.assert_allclose(means / UNITS, first[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(probabilities, first[1], atol=1e-6)
    np.testing.assert_allclose(density + np.log(UNITS).sum(), first[2], atol=1e-5)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_without_labels_units_of_columns_change_nothing_but_starts(kind):
    X, y, site = people()
    centers = np.stack([X[y == c].mean(axis=0) for c in range(N_CLASSES)])
    first = told(X, None, site, covariance_type=kind, init=centers)
    means, probabilities, density = told(
        X * UNITS, None, site, covariance_type=kind, init=centers * UNITS
    )
    np.testing.assert_allclose(means / UNITS, first[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(probabilities, first[1], atol=1e-6)
    np.testing.assert_allclose(density + np.log(UNITS).sum(), first[2], atol=1e-5)


def test_starts_find_the_groups_whatever_the_units():
    """No eigenvalue was less than a millionth of their mean: narrow columns told nothing."""
    X, _, site = people()
    first = told(X, None, site, covariance_type="full")
    _, probabilities, density = told(X * UNITS, None, site, covariance_type="full")
    assert density.mean() + np.log(UNITS).sum() > first[2].mean() - 0.01
    same = probabilities.argmax(axis=1)[:, None] == np.arange(N_CLASSES)
    other = first[1].argmax(axis=1)[:, None] == np.arange(N_CLASSES)
    # One group of each is one of the other's, but for rows that are near both.
    assert ((same.T @ other.astype(float)).max(axis=1) / same.sum(axis=0) > 0.98).all()


def test_next_to_nothing_is_measured_column_by_column():
    flat = np.diag([1.0, 1e-9]) * 4.0
    left = in_common.floored(flat, in_common.Floor(1.0))
    np.testing.assert_allclose(np.diag(left), [4.0, 2e-6], rtol=1e-6)
    units = np.array([1.0, np.sqrt(1e-9)])
    np.testing.assert_allclose(in_common.floored(flat, in_common.Floor(units)), flat, rtol=1e-12)
    nothing = in_common.floored(np.zeros((2, 2)), in_common.Floor(units))
    np.testing.assert_allclose(nothing, np.diag(units**2), rtol=1e-12)


@pytest.mark.parametrize(("widest", "wanted"), [(20.0, [14.0, 14.0]), (2000.0, [0.5, 900.0])])
def test_columns_are_compared_as_they_are_where_all_are_seen(widest, wanted):
    start = SharedStart(FEDGREM.settings(covariance_type="full"), Roster(("a",), 0))
    start.typical = np.array([0.5, 900.0])
    np.testing.assert_allclose(start._as_they_are(np.array([1.0, widest])), wanted, rtol=0.02)


def columns(rows, middle, variance):
    arrays = {"rows": rows, "middle": middle, "variance": variance}
    return Replies(np.arange(len(rows)), {name: np.array(a, float) for name, a in arrays.items()})


def test_the_spread_is_that_of_rows_of_the_median_site_about_the_middle_of_all():
    rows, middle = [9, 9, 9], [[1.0, 0.0], [2.0, 0.0], [5.0, 0.0]]
    found = typical_spread(columns(rows, middle, [[4.0, 1.0], [9.0, 1.0], [16.0, 1.0]]))
    np.testing.assert_allclose(found, [3.0, 1.0])
    single = typical_spread(columns([1, 1, 1], middle, np.zeros((3, 2))))
    np.testing.assert_allclose(single[0], 1.0)


def test_one_site_of_huge_values_does_not_stretch_the_units():
    rows, middle = [9, 9, 9], [[1.0, 0.0], [2.0, 0.0], [1e9, 0.0]]
    odd = typical_spread(columns(rows, middle, [[4.0, 1.0], [9.0, 1.0], [1e60, 1e60]]))
    np.testing.assert_allclose(odd, [3.0, 1.0])


def test_of_two_sites_the_one_that_claims_less_is_believed():
    rows, middle = [9, 9], [[0.0, 0.0], [0.0, 0.0]]
    found = typical_spread(columns(rows, middle, [[1e30, 4.0], [9.0, 1.0]]))
    np.testing.assert_allclose(found, [3.0, 1.0])


def test_a_column_that_hardly_any_site_varies_in_is_measured_by_all_rows():
    rows, middle = [10, 10, 10], [[0.0], [0.0], [0.0]]
    found = typical_spread(columns(rows, middle, [[0.0], [0.0], [12.0]]))
    np.testing.assert_allclose(found, 2.0)


def test_equations_of_centres_are_solved_in_any_units():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    matrix, vector = root @ root.T, rng.normal(size=4)
    units = 10.0 ** np.array([9, -9, 0, 4])
    found = site_shifts.solved(matrix * np.outer(units, units), vector * units)
    np.testing.assert_allclose(found * units, np.linalg.solve(matrix, vector), rtol=1e-6)


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_a_column_of_one_value_takes_nothing_from_the_others(share):
    X, y, site = people()
    y = np.where(np.random.default_rng(1).random(len(y)) < share, y, -1)
    without = told(X, y, site, covariance_type="full")[1]
    beside = told(np.column_stack([X, np.full(len(X), 7e5)]), y, site, covariance_type="full")[1]
    assert np.isfinite(beside).all()
    right = [(p[np.arange(len(y)), people()[1]]).mean() for p in (without, beside)]
    assert right[1] > right[0] - 0.02
