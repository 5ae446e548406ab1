"""Weights of predictive distributions: convex optimisation, limits and invariants."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from fedkin.models.stacking import (
    chances,
    client_weights,
    common_weights,
    mixture,
    point_weights,
    stack,
)


def densities(seed=0, n=400):
    """Rows of half N(0, 1), half N(3, 1), and three candidates."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.5, rng.normal(size=n), rng.normal(3.0, 1.0, size=n))
    return np.stack([norm.logpdf(y, 0, 1), norm.logpdf(y, 3, 1), norm.logpdf(y, 9, 1)])


def test_common_weights_are_the_optimum_that_a_general_solver_finds():
    logs = densities()
    weights = common_weights(logs)

    def loss(free):
        share = np.exp(free - free.max())
        return -mixture(logs, np.tile(share / share.sum(), (logs.shape[1], 1))).mean()

    best = minimize(
        loss, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-9, "maxiter": 4000}
    )
    ours = -mixture(logs, np.tile(weights, (logs.shape[1], 1))).mean()
    assert ours == pytest.approx(best.fun, abs=1e-5)
    assert weights[2] == 0.0 and weights.sum() == pytest.approx(1.0)


def test_ways_that_are_better_together_stay_together():
    """Where each of two ways has half of the rows, the chance of being best is no weight."""
    owner = np.repeat(np.arange(12), 10)
    logs = np.tile([[0.0, -0.8], [-1.0, 0.0]], 60)
    plain, leant = common_weights(logs), common_weights(logs, owner)
    assert chances(logs, owner)[0] > 0.9
    assert 0.5 < plain[0] < 0.8 and abs(leant[0] - plain[0]) < 0.05


def test_a_site_with_few_rows_keeps_the_weights_of_all_and_one_with_many_its_own():
    common = np.array([0.5, 0.5])
    for n, low, high in ((1, 0.4, 0.65), (2000, 0.95, 1.0)):
        logs = np.tile([[0.0], [-1.5]], n)
        own = client_weights(logs, np.zeros(n, int), 1, common, strength=8.0)
        assert low <= own[0, 0] <= high


def test_infinite_strength_is_one_for_all_and_rows_of_others_do_not_count():
    logs, owner = densities(n=60), np.repeat([0, 1, 2], 20)
    common = common_weights(logs)
    np.testing.assert_array_equal(client_weights(logs, owner, 3, common, np.inf), [common] * 3)
    own = client_weights(logs, owner, 3, common, 8.0)
    alone = client_weights(logs[:, 20:40], np.zeros(20, int), 1, common, 8.0)
    np.testing.assert_allclose(own[1], alone[0], atol=1e-6)


def test_own_weights_are_given_where_sites_differ_and_only_there():
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(20), 40)
    parts = np.tile(np.arange(5), 160)
    own_truth = rng.normal(0.0, 1.0, size=800) + 3.0 * (owner % 2)
    differ = np.stack([norm.logpdf(own_truth, 0, 1), norm.logpdf(own_truth, 3, 1)])
    found = stack(differ, owner, 20, parts)
    assert (
        found.strength <= 8.0
        and (found.own[::2, 0] > 0.8).all()
        and (found.own[1::2, 1] > 0.8).all()
    )
    same = stack(densities(1, 800)[:2], owner, 20, parts)
    assert same.strength > found.strength and np.ptp(same.own[:, 0]) < 0.2


def test_units_of_densities_and_impossible_rows_do_not_matter():
    logs = densities(n=100)
    moved = logs + np.linspace(-900, 900, 100)
    np.testing.assert_allclose(common_weights(moved), common_weights(logs), atol=1e-6)
    logs[0, :3] = -1e4
    weights = common_weights(logs)
    assert (
        np.isfinite(weights).all() and np.isfinite(mixture(logs, np.tile(weights, (100, 1)))).all()
    )


def test_without_rows_weights_are_even():
    np.testing.assert_allclose(common_weights(np.zeros((4, 0))), 0.25)


def test_few_rows_lean_to_the_way_that_is_likely_best():
    """Ten sites of four rows: the better of two alike ways is not given up for luck."""
    rng = np.random.default_rng(3)
    y, owner = rng.normal(size=40), np.repeat(np.arange(10), 4)
    logs = np.stack([norm.logpdf(y, 0, 1), norm.logpdf(y, 0, 3)])
    lean = chances(logs, owner)
    assert lean[0] > 0.95 and common_weights(logs, owner)[0] > 0.9
    np.testing.assert_allclose(chances(np.zeros((3, 8)), np.repeat([0, 1], 4)), 1 / 3)


def test_points_are_those_of_the_least_squared_error_unless_that_is_luck():
    rng = np.random.default_rng(4)
    owner = np.repeat(np.arange(30), 10)
    truth = rng.normal(size=300)
    worse = np.stack([truth, truth + rng.normal(size=300)])
    assert point_weights(worse, owner)[0] > 0.95
    np.testing.assert_allclose(point_weights(np.stack([truth] * 3), owner), 1 / 3, atol=1e-6)
    both = np.stack([truth + 2 * rng.normal(size=300) for _ in range(2)])
    weights = point_weights(both, owner)
    assert weights.min() > 0.3 and (weights @ both).std() < both.std(axis=1).min()
