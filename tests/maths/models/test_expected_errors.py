"""Degrees of freedom and expected errors from sums, beside the smoother's own matrix."""

import numpy as np
import pytest

from fedkin.federation import Federation
from fedkin.models.expected_errors import degrees_of_freedom, expected_errors
from fedkin.models.least_squares import packed_statistics


def sites(seed=0, sizes=(4, 7, 3, 12)):
    rng = np.random.default_rng(seed)
    X = [np.column_stack([rng.normal(size=(n, 2)) * 5 + 3, np.ones(n)]) for n in sizes]
    y = [rows @ rng.normal(size=3) + rng.normal(size=len(rows)) for rows in X]
    return X, y


def sums(X, y):
    data = Federation.from_clients([(rows[:, :-1], target) for rows, target in zip(X, y)])
    return np.ascontiguousarray(packed_statistics(data, True).T)


def hat_matrix(X, covariance, noise, share):
    """Targets to fitted values, dense: generalised least squares, then best linear predictions."""
    ends = np.cumsum([len(rows) for rows in X])
    where = [slice(end - len(rows), end) for rows, end in zip(X, ends)]
    inverse = [
        np.linalg.inv(rows @ covariance @ rows.T + s * np.eye(len(rows)))
        for rows, s in zip(X, noise)
    ]
    hat = np.zeros((ends[-1], ends[-1]))
    for k in range(share.shape[1]):
        pairs = list(zip(X, inverse, share[:, k]))
        precision = sum(w * rows.T @ inv @ rows for rows, inv, w in pairs)
        coef = np.zeros((3, ends[-1]))
        for here, (rows, inv, w) in zip(where, pairs):
            coef[:, here] = w * np.linalg.solve(precision, rows.T @ inv)
        for here, (rows, inv, w) in zip(where, pairs):
            departs = rows @ covariance @ rows.T @ inv
            unit = np.eye(ends[-1])[here]
            hat[here] += w * (rows @ coef + departs @ (unit - rows @ coef))
    return hat, where


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spread", [0.0, 0.3, 50.0])
def test_degrees_of_freedom_are_the_trace_of_the_smoother(seed, spread):
    X, y = sites(seed)
    rng = np.random.default_rng([seed, 1])
    root = spread * rng.normal(size=(3, 3))
    covariance, noise = root @ root.T, rng.uniform(0.2, 3.0, len(X))
    share = np.ones((len(X), 1))
    hat, where = hat_matrix(X, covariance, noise, share)
    traces = [np.trace(hat[here, here]) for here in where]
    found = degrees_of_freedom(sums(X, y), covariance, noise, share)
    np.testing.assert_allclose(found, traces, rtol=1e-6)


def test_kinds_take_degrees_of_freedom_from_their_own_sites():
    X, y = sites(2, (6, 9, 8, 12))
    share = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    noise, covariance = np.array([1.0, 2.0, 0.5, 1.0]), np.diag([0.1, 0.2, 1.0])
    hat, where = hat_matrix(X, covariance, noise, share)
    found = degrees_of_freedom(sums(X, y), covariance, noise, share)
    np.testing.assert_allclose(found, [np.trace(hat[here, here]) for here in where], rtol=1e-6)


def test_without_departures_all_sites_together_take_a_row_a_coefficient():
    X, y = sites()
    found = degrees_of_freedom(sums(X, y), np.zeros((3, 3)), np.ones(4), np.ones((4, 1)))
    assert found.sum() == pytest.approx(3.0)


def test_departures_without_bound_take_a_row_a_coefficient_of_every_site():
    X, y = sites(1, (6, 9, 8, 12))
    found = degrees_of_freedom(sums(X, y), 1e8 * np.eye(3), np.ones(4), np.ones((4, 1)))
    np.testing.assert_allclose(found, 3.0, rtol=1e-5)


def test_one_site_has_the_textbooks_generalised_cross_validation():
    X, y = sites(3, (11,))
    coef = np.linalg.lstsq(X[0], y[0], rcond=None)[0]
    residual = ((y[0] - X[0] @ coef) ** 2).sum()
    found = expected_errors(sums(X, y), coef[None], np.array([3.0]))
    assert found[0] == pytest.approx(residual / (1 - 3 / 11) ** 2, rel=1e-8)


def test_units_of_the_columns_change_nothing():
    X, y = sites(4)
    units = np.array([1e4, 1e-3, 1.0])
    covariance = np.diag([0.1, 0.4, 2.0])
    other = [rows * units for rows in X]
    same = degrees_of_freedom(sums(X, y), covariance, np.ones(4), np.ones((4, 1)))
    scaled = covariance / units / units[:, None]
    found = degrees_of_freedom(sums(other, y), scaled, np.ones(4), np.ones((4, 1)))
    np.testing.assert_allclose(found, same, rtol=1e-7)
