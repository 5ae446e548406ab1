"""What FMLR and ODCL know of the target's scale and of the price of a coefficient, by hand."""

import numpy as np
import pytest

from fedkin.algorithms.fmlr import FmlrSettings
from fedkin.algorithms.fmlr_expectation import Expectation
from fedkin.algorithms.odcl_evidence import Evidence
from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics
from fedkin.protocol import Roster


@pytest.mark.parametrize("shift", [0.0, 7.0, -300.0])
def test_the_scale_of_the_target_is_about_its_middle(shift):
    """Sites of one mean: the standard deviation of all rows, wherever zero is."""
    y = shift + np.array([[-2.0, 2.0, 1.0, -1.0], [3.0, -3.0, 0.0, 0.0]])
    source = Expectation(Roster(("a", "b")), FmlrSettings(), np.random.default_rng(0))
    source._measure(np.column_stack([[4, 4], y.sum(axis=1), (y**2).sum(axis=1)]), 3)
    assert source.scale == pytest.approx(y.std(), rel=1e-9)


def residual(X, y):
    return np.linalg.lstsq(X, y, rcond=None)[1][0]


def test_every_coefficient_of_every_cluster_costs_the_logarithm_of_the_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8, 12, 3))
    kind = np.arange(8) % 2
    coef = np.array([[3.0, -2.0, 1.0], [-3.0, 2.0, 2.0]])[kind]
    y = np.einsum("mnd,md->mn", X, coef) + 0.1 * rng.normal(size=(8, 12))
    packed = packed_statistics(Federation.from_clients(list(zip(X, y))), False).T
    evidence = Evidence(np.ascontiguousarray(packed), False)
    found = [evidence.profile_bic(labels) for labels in (np.zeros(8, dtype=int), kind)]
    squares = [
        residual(X.reshape(-1, 3), y.ravel()),
        sum(residual(X[kind == k].reshape(-1, 3), y[kind == k].ravel()) for k in (0, 1)),
    ]
    expected = 96 * np.log(np.array(squares) / 96) + np.array([3, 6]) * np.log(96)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
