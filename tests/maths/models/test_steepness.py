"""The longest curvature of a loss with many coefficients, which is only bounded."""

import numpy as np
import pytest

from fedkin.federation import Federation
from fedkin.models.local_loss import MOST_EIGENVALUES, local_loss

D = MOST_EIGENVALUES + 20


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_the_bound_is_above_the_largest_eigenvalue_and_reached_by_equal_rows(fit_intercept):
    rng = np.random.default_rng(0)
    different = rng.normal(size=(30, D))
    equal = np.repeat(rng.normal(size=(1, D)), 30, axis=0)
    y = np.tile([0.0, 1.0], 15)
    local = local_loss(
        Federation.from_clients([(different, y), (equal, y)]), "logistic", fit_intercept, 0.0
    )
    exact = np.linalg.eigvalsh(local.curvatures())[:, -1]
    bound = local.steepness()
    assert bound[0] > exact[0]
    assert bound[1] == pytest.approx(exact[1], rel=1e-9)
