"""Minimisers as server programs, on functions whose minimum is known."""

import numpy as np

from fedkin.algorithms.aggregate import average, geometric_median, weighted_median
from fedkin.algorithms.minimise import Seen, minimise_by_replay, minimise_damped
from fedkin.protocol import Ask

WIDE = np.full(2, -10.0), np.full(2, 10.0)


def drive(search, responders=lambda number: b"all"):
    """Play the engine: answer every Ask with Rosenbrock's function."""
    asked, reply = [], None
    try:
        while True:
            ask = search.send(reply) if asked else next(search)
            asked.append(ask.common["x"])
            x, y = ask.common["x"]
            value = (1 - x) ** 2 + 10 * (y - x**2) ** 2
            gradient = np.array([-2 * (1 - x) - 40 * x * (y - x**2), 20 * (y - x**2)])
            reply = Seen(value, gradient, responders(len(asked)))
    except StopIteration as end:
        return end.value, asked


def evaluate(point):
    seen = yield Ask("f", {"x": point})
    return seen


def test_replay_finds_the_minimum_and_asks_for_no_point_twice():
    found, asked = drive(minimise_by_replay(evaluate, np.zeros(2), *WIDE, 1e-8, 100))
    np.testing.assert_allclose(found.point, 1.0, rtol=1e-6)
    assert found.converged and len({a.tobytes() for a in asked}) == len(asked) == len(found.path)


def test_replay_keeps_to_its_bounds():
    upper = np.array([0.5, 10.0])
    found, asked = drive(minimise_by_replay(evaluate, np.zeros(2), WIDE[0], upper, 1e-8, 100))
    np.testing.assert_allclose(found.point, [0.5, 0.25], rtol=1e-5)
    assert all(a[0] <= 0.5 for a in asked)


def test_a_minimum_at_a_bound_is_an_end_as_good_as_any():
    """There the gradient is 1, and pushes against the bound."""
    upper = np.array([0.5, 10.0])
    found, asked = drive(minimise_by_replay(evaluate, np.zeros(2), WIDE[0], upper, 1e-6, 200))
    np.testing.assert_allclose(found.point, [0.5, 0.25], atol=1e-5)
    assert found.converged and len(asked) < 60


def test_replay_begins_again_when_other_sites_answer():
    search = minimise_by_replay(evaluate, np.zeros(2), *WIDE, 1e-8, 100)
    found, _ = drive(search, lambda number: b"some" if 3 <= number <= 5 else b"all")
    np.testing.assert_allclose(found.point, 1.0, rtol=1e-6)


def test_replay_comes_to_an_end_when_other_sites_answer_every_time():
    search = minimise_by_replay(evaluate, np.zeros(2), *WIDE, 1e-6, 200)
    found, asked = drive(search, lambda number: str(number).encode())
    assert len(asked) <= 200 and found.value < 0.1


def test_replay_stops_at_its_limit():
    found, asked = drive(minimise_by_replay(evaluate, np.zeros(2), *WIDE, 1e-8, 4))
    assert len(asked) == 4 and not found.converged


def test_damped_steps_need_gradients_alone():
    found, _ = drive(minimise_damped(evaluate, np.zeros(2), *WIDE, 1e-8, 300))
    np.testing.assert_allclose(found.point, 1.0, rtol=1e-5)


def test_one_far_site_moves_a_robust_average_boundedly():
    rng = np.random.default_rng(0)
    points, weights = rng.normal(size=(50, 3)), np.ones(50)
    spoilt = points.copy()
    spoilt[7] = 1e6
    clean = np.delete(points, 7, axis=0).mean(axis=0)
    np.testing.assert_allclose(average(spoilt, weights, "trimmed"), clean)
    assert np.abs(average(spoilt, weights, "median")).max() < 1.0
    assert np.abs(average(spoilt, weights)).max() > 1e4


def test_a_claim_of_many_rows_does_not_win_a_robust_average():
    rng = np.random.default_rng(0)
    points, weights = rng.normal(size=(30, 2)), np.full(30, 8.0)
    points[7], weights[7] = 5.0, 1e9
    for robust in ("trimmed", "median"):
        assert np.abs(average(points, weights, robust)).max() < 1.0


def test_a_clean_federation_is_averaged_in_full():
    points = np.random.default_rng(1).normal(size=(50, 3))
    weights = np.arange(1.0, 51.0)
    np.testing.assert_allclose(average(points, weights, "trimmed"), average(points, weights))


def test_geometric_median_of_a_line_is_its_median():
    points = np.array([[0.0], [1.0], [5.0]])
    np.testing.assert_allclose(geometric_median(points, np.ones(3)), [1.0], atol=1e-9)


def test_a_weighted_median_has_half_the_weight_on_either_side():
    values = np.array([5.0, 1.0, 3.0, 2.0])
    assert weighted_median(values, np.ones(4)) == np.median(values)
    assert weighted_median(values[:3], np.ones(3)) == 3.0
    assert weighted_median(values, np.array([1.0, 4.0, 1.0, 1.0])) == 1.0
    assert weighted_median(values[:1], np.ones(1)) == 5.0


def test_newton_leaves_a_place_between_two_minima():
    """A spread and its negative are the same: at zero no slope tells that it belongs elsewhere."""
    from fedkin.algorithms.newton_rounds import Looked, minimise_by_newton

    def value(points):
        x, y = points.T
        return x**4 - 2.0 * x**2 + 3.0 * (y - 1.0) ** 2

    def slope(points):
        x, y = points.T
        return np.stack([4.0 * x**3 - 4.0 * x, 6.0 * (y - 1.0)], axis=1)

    def look(points):
        yield
        return Looked(value(points), slope(points), frozenset([0]))

    search = minimise_by_newton(look, np.array([0.0, 5.0]), 1e-8, 40)
    try:
        while True:
            next(search)
    except StopIteration as ended:
        end = ended.value
    assert end.converged
    np.testing.assert_allclose(end.point, [1.0, 1.0], atol=1e-6)
