"""How far a site's departures and noise may have swollen away from its rows."""

import numpy as np
import pytest

from fedkin.models.gp_priors import GROWTH_WIDTH
from fedkin.models.own_spread import FACTORS, SHARES, away, swollen


def test_the_walk_is_free_beyond_the_rows_and_pinned_between_them():
    """Variance of a Brownian motion from the last row, of a bridge between two of them."""
    places, x = np.array([3.0, 1.0, 1.0]), np.array([-1.0, 1.0, 1.5, 2.0, 3.0, 3.25])
    np.testing.assert_allclose(away(places, x), [2.0, 0.0, 0.375, 0.5, 0.0, 0.25])
    np.testing.assert_allclose(away(np.array([2.0]), np.array([1.0, 2.0, 5.0])), [1.0, 0.0, 3.0])


def test_three_factors_have_the_moments_of_the_walk():
    z = np.array([1.0, 1.0, 3.0])
    np.testing.assert_allclose([SHARES @ FACTORS**k for k in (0, 2, 4)], z)
    found = swollen(np.zeros(1), np.array([0.0, 0.5, 1.0]))
    np.testing.assert_array_equal(found[:, 0], 1.0)
    np.testing.assert_array_equal(found[0], 1.0)
    expected = np.exp(2.0 * GROWTH_WIDTH**2 * np.array([0.5, 1.0]))
    np.testing.assert_allclose(SHARES @ found[:, 1:], expected, rtol=0.01)
    assert found[1, 2] == pytest.approx(np.exp(2.0 * np.sqrt(3.0) * GROWTH_WIDTH))
