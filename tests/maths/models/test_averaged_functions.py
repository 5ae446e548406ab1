"""Gradients of the curves that FedAvg averages, against finite differences."""

import numpy as np
import pytest

from fedkin.models.averaged_functions import Network, Polynomial, legendre


def half_error(curve, inputs, y, weights, theta):
    return 0.5 * (weights * (curve.values(inputs, theta) - y) ** 2).sum(axis=1)


@pytest.mark.parametrize("curve", [Network(2, 1, 4), Network(2, 3, 3), Polynomial(3, np.eye(7))])
def test_gradients_equal_finite_differences(curve):
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, size=(2, 6, 2)), rng.normal(size=(2, 6))
    weights = np.array([np.full(6, 1 / 6), [0.25] * 4 + [0.0] * 2])
    n_parameters = len(curve.start(rng)) if isinstance(curve, Network) else legendre(X, 3).shape[-1]
    theta, inputs, step = rng.normal(size=(2, n_parameters)), curve.inputs(X), 1e-5
    found = curve.gradient(inputs, y, weights, theta)
    for j, unit in enumerate(step * np.eye(n_parameters)):
        up, down = (half_error(curve, inputs, y, weights, theta + s * unit) for s in (1, -1))
        np.testing.assert_allclose(found[:, j], (up - down) / (2 * step), rtol=1e-6, atol=1e-8)
