"""Least squares with a few rows' worth of ridge against scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics, solve


@pytest.mark.parametrize("ridge", [0.5, 1.0, 10.0])
def test_ridge_is_that_of_columns_of_unit_size(ridge):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(15, 4)) * [1.0, 100.0, 0.01, 3.0]
    y = X @ [1.0, 0.01, 50.0, 0.0] + rng.normal(size=15)
    size = np.sqrt((X**2).mean(axis=0))
    expected = Ridge(alpha=ridge, fit_intercept=False).fit(X / size, y).coef_ / size
    packed = packed_statistics(Federation.from_clients([(X, y)]), False).T
    np.testing.assert_allclose(solve(packed, ridge=ridge)[0][0], expected, rtol=1e-9)
