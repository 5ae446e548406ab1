"""Pulling estimates to a centre: arithmetic by hand, CVXPY as oracle, invariances, odd sites."""

import contextlib
import warnings

import cvxpy as cp
import numpy as np
import pytest

from fedkin.shrinkage import shrink_adaptively, shrink_to_center
from fedkin.shrinkage.spread import belonging, center_and_spread

# --- oracles -------------------------------------------------------------------------------------


def objective(estimates, sizes, penalty, moved, center):
    """The problem as it is stated, with nothing eliminated."""
    fidelity = sizes / 2 * ((moved - estimates) ** 2).sum(axis=1)
    distance = np.sqrt(sizes) * penalty * np.linalg.norm(moved - center, axis=1)
    return (fidelity + distance).sum()


def solve_tightly(problem):
    """Solve with the tightest tolerance that the solver attains."""
    for tolerance in (1e-12, 1e-11, 1e-10, 1e-9, 1e-8):
        options = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), tolerance)
        with warnings.catch_warnings(), contextlib.suppress(cp.SolverError):
            warnings.simplefilter("ignore")  # inaccurate: the next tolerance will do
            problem.solve(solver=cp.CLARABEL, **options)
        if problem.status == cp.OPTIMAL:
            return problem.value
    raise AssertionError("the oracle did not converge")


def cvxpy_minimum(estimates, sizes, penalty):
    """Least objective over site parameters and centre."""
    n_sites, n_features = estimates.shape
    moved, center = cp.Variable((n_sites, n_features)), cp.Variable((1, n_features))
    fidelity = cp.multiply(sizes / 2, cp.sum(cp.square(moved - estimates), axis=1))
    gaps = cp.norm(moved - np.ones((n_sites, 1)) @ center, 2, axis=1)
    distance = penalty * cp.multiply(np.sqrt(sizes), gaps)
    unit = penalty * np.sqrt(sizes).sum() * np.abs(estimates).max()
    return unit * solve_tightly(cp.Problem(cp.Minimize(cp.sum(fidelity + distance) / unit)))


def cvxpy_dual_maximum(estimates, sizes, penalty):
    """The same number from below: forces u_k of length <= sqrt(n_k) penalty that cancel.

    The interior point solver copes with a site at 1e6 in this form only.
    """
    offsets = estimates - np.median(estimates, axis=0)
    scale = np.abs(offsets).max() * penalty
    forces = cp.Variable(estimates.shape)  # in units of sqrt(n_k) penalty
    gain = cp.sum(cp.multiply(offsets * (np.sqrt(sizes) * penalty / scale)[:, None], forces))
    loss = cp.sum_squares(forces) * penalty**2 / 2 / scale
    limits = [cp.norm(forces, 2, axis=1) <= 1, np.sqrt(sizes) @ forces == 0]
    return solve_tightly(cp.Problem(cp.Maximize(gain - loss), limits)) * scale


def random_problem(seed):
    rng = np.random.default_rng(seed)
    n_sites, n_features = int(rng.integers(2, 25)), int(rng.integers(1, 11))
    sizes = rng.integers(5, 400, n_sites).astype(float)
    estimates = rng.normal(size=(n_sites, n_features)) * rng.choice([0.1, 1.0, 5.0])
    if seed % 4 == 0:
        estimates[n_sites // 2 :] = estimates[n_sites // 2]  # ties
    penalty = float(10 ** rng.uniform(-3, 3))
    return estimates, sizes, penalty


def imbalance(estimates, sizes, penalty, center):
    """Resultant force on the centre against the sum of the forces' lengths; 0 at the minimum."""
    offsets = estimates - center
    distances = np.linalg.norm(offsets, axis=-1)
    radii = penalty / np.sqrt(sizes)
    pulls = sizes * np.minimum(1, radii / np.maximum(distances, 1e-300))
    return np.linalg.norm(pulls @ offsets) / (pulls * distances).sum()


def ragged(seed=0, n_sites=9, n_components=4, n_features=3):
    rng = np.random.default_rng(seed)
    estimates = rng.normal(size=(n_components, n_features)) * 4
    estimates = estimates + rng.normal(size=(n_sites, n_components, n_features))
    return estimates, rng.integers(3, 90, n_sites).astype(float)


# --- the penalised centre ------------------------------------------------------------------------


def test_two_sites_move_towards_their_middle_by_their_radius():
    result = shrink_to_center([[0.0], [10.0]], [4, 4], penalty=2.0)
    np.testing.assert_allclose(result.center, [5.0])
    np.testing.assert_allclose(result.estimates, [[1.0], [9.0]])


def test_a_far_site_pulls_the_others_by_its_radius_only():
    # balance: 2 (0 - c) + 3 = 0
    result = shrink_to_center([[0.0], [0.0], [100.0]], [1, 1, 1], penalty=3.0)
    np.testing.assert_allclose(result.center, [1.5])
    np.testing.assert_allclose(result.estimates, [[1.5], [1.5], [97.0]])


@pytest.mark.parametrize("seed", range(25))
def test_the_objective_is_the_least_that_cvxpy_finds(seed):
    estimates, sizes, penalty = random_problem(seed)
    result = shrink_to_center(estimates, sizes, penalty)
    reached = objective(estimates, sizes, penalty, result.estimates, result.center)
    assert reached == pytest.approx(cvxpy_minimum(estimates, sizes, penalty), rel=1e-8)


@pytest.mark.parametrize("seed", range(25, 50))
def test_the_objective_is_the_least_with_a_site_at_distance_a_million(seed):
    estimates, sizes, penalty = random_problem(seed)
    estimates[0] += 1e6 * np.random.default_rng(seed).normal(size=estimates.shape[1])
    result = shrink_to_center(estimates, sizes, penalty)
    reached = objective(estimates, sizes, penalty, result.estimates, result.center)
    assert reached == pytest.approx(cvxpy_dual_maximum(estimates, sizes, penalty), rel=1e-8)


@pytest.mark.parametrize("distance", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("penalty", [0.1, 8.0, 100.0])
def test_forces_on_the_centre_balance_with_three_of_ten_sites_far_away(distance, penalty):
    rng = np.random.default_rng(1)
    estimates = rng.normal(size=(10, 6))
    estimates[:3] += distance * rng.normal(size=(3, 6))
    sizes = rng.integers(50, 300, 10).astype(float)
    result = shrink_to_center(estimates, sizes, penalty)
    assert imbalance(estimates, sizes, penalty, result.center) < 1e-9


def test_a_far_site_is_as_strong_at_a_million_as_at_a_billion():
    rng = np.random.default_rng(2)
    estimates, direction = rng.normal(size=(8, 5)), rng.normal(size=5)
    near, far = (
        shrink_to_center(np.vstack([estimates, distance * direction]), np.full(9, 50.0), 4.0).center
        for distance in (1e6, 1e9)
    )
    np.testing.assert_allclose(near, far, atol=1e-5)
    assert np.linalg.norm(far - estimates.mean(axis=0)) < 2 * 4.0 / np.sqrt(50)


@pytest.mark.parametrize("seed", range(150))
def test_any_penalty_is_solved_also_with_ties_lines_and_very_unequal_sizes(seed):
    rng = np.random.default_rng(seed)
    n_sites = int(rng.integers(2, 30))
    estimates = rng.normal(size=(n_sites, 1)) * rng.normal(size=(1, 3))  # on a line
    if seed % 2:
        estimates = np.round(2 * rng.normal(size=(n_sites, int(rng.integers(1, 4)))))  # on a grid
    sizes = 100 * np.exp(3 * rng.normal(size=n_sites))
    penalty = 10 ** rng.uniform(-5, 3)
    result = shrink_to_center(estimates, sizes, penalty)
    assert imbalance(estimates, sizes, penalty, result.center) < 1e-7
    assert result.n_iter <= 20


def test_zero_penalty_is_local_and_its_centre_is_the_geometric_median():
    estimates, sizes = ragged(3)
    result = shrink_to_center(estimates, sizes, penalty=0.0)
    np.testing.assert_array_equal(result.estimates, estimates)
    for component in range(estimates.shape[1]):
        points, center = estimates[:, component], cp.Variable((1, estimates.shape[2]))
        distances = cp.norm(points - np.ones((len(points), 1)) @ center, 2, axis=1)
        least = solve_tightly(cp.Problem(cp.Minimize(np.sqrt(sizes) @ distances)))
        reached = np.sqrt(sizes) @ np.linalg.norm(points - result.center[component], axis=1)
        assert reached == pytest.approx(least, rel=1e-8)
    nearly = shrink_to_center(estimates, sizes, penalty=1e-7)
    np.testing.assert_allclose(nearly.center, result.center, atol=1e-6)


@pytest.mark.parametrize("penalty", [1e4, 1e12, np.inf])
def test_infinite_penalty_is_one_shared_parameter(penalty):
    estimates, sizes = ragged(4)
    result = shrink_to_center(estimates, sizes, penalty)
    np.testing.assert_allclose(result.center, np.average(estimates, axis=0, weights=sizes))
    np.testing.assert_array_equal(result.estimates, np.broadcast_to(result.center, estimates.shape))


@pytest.mark.parametrize("penalty", [0.0, 1e-3, 1.0, np.inf])
def test_one_client_and_identical_clients_keep_their_estimate(penalty):
    alone = shrink_to_center([[1.0, -2.0]], [7], penalty)
    np.testing.assert_allclose(alone.estimates, [[1.0, -2.0]], rtol=1e-15)
    np.testing.assert_allclose(alone.center, [1.0, -2.0], rtol=1e-15)
    alike = shrink_to_center(np.tile([1.0, -2.0], (5, 1)), [7, 1, 3, 3, 50], penalty)
    np.testing.assert_allclose(alike.estimates, np.tile([1.0, -2.0], (5, 1)), rtol=1e-15)


@pytest.mark.parametrize("penalty", [0.0, 2.0, np.inf])
def test_a_client_without_rows_does_not_pull_and_gets_the_centre(penalty):
    estimates, sizes = ragged(5)
    with_empty = np.concatenate([np.full_like(estimates[:1], np.nan), estimates])
    result = shrink_to_center(with_empty, np.append(0, sizes), penalty)
    without = shrink_to_center(estimates, sizes, penalty)
    np.testing.assert_array_equal(result.estimates[0], result.center)
    np.testing.assert_allclose(result.estimates[1:], without.estimates, rtol=1e-12, atol=1e-12)


def test_sizes_may_differ_by_component():
    estimates, sizes = ragged(6)
    by_component = sizes[:, None] * np.array([1.0, 0.5, 2.0, 0.1])
    result = shrink_to_center(estimates, by_component, 2.0)
    for component in range(4):
        single = shrink_to_center(estimates[:, component], by_component[:, component], 2.0)
        np.testing.assert_allclose(result.estimates[:, component], single.estimates, atol=1e-11)
        np.testing.assert_allclose(result.center[component], single.center, atol=1e-11)


def test_order_of_sites_is_irrelevant():
    estimates, sizes = ragged(7)
    order = np.random.default_rng(7).permutation(len(sizes))
    result = shrink_to_center(estimates, sizes, 3.0)
    shuffled = shrink_to_center(estimates[order], sizes[order], 3.0)
    np.testing.assert_allclose(shuffled.estimates, result.estimates[order], atol=1e-11)


def test_translation_rotation_and_scale_carry_over():
    estimates, sizes = ragged(8)
    rotation = np.linalg.qr(np.random.default_rng(8).normal(size=(3, 3)))[0]
    result = shrink_to_center(estimates, sizes, 3.0)
    changed = shrink_to_center(10 * estimates @ rotation + 1e3, sizes, 30.0)
    np.testing.assert_allclose(changed.estimates, 10 * result.estimates @ rotation + 1e3, atol=1e-9)
    np.testing.assert_allclose(changed.center, 10 * result.center @ rotation + 1e3, atol=1e-9)


def test_a_warm_start_changes_the_way_but_not_the_result():
    estimates, sizes = ragged(9)
    cold = shrink_to_center(estimates, sizes, 3.0)
    for start in (cold.center, cold.center + 100.0):
        warm = shrink_to_center(estimates, sizes, 3.0, start=start)
        np.testing.assert_allclose(warm.center, cold.center, atol=1e-10)
    assert shrink_to_center(estimates, sizes, 3.0, start=cold.center).n_iter < cold.n_iter


def test_two_passes_of_the_alternation_by_hand():
    # pass 1: mean 30. Radius 3: clipped offsets -3, -3, +3. Pass 2: centre 30 - 1.
    result = shrink_to_center(
        [[0.0], [0.0], [90.0]], [1, 1, 1], penalty=3.0, solver="alternating", passes=2
    )
    np.testing.assert_allclose(result.center, [29.0])
    np.testing.assert_allclose(result.estimates, [[3.0], [3.0], [87.0]])


def test_two_passes_leave_a_far_sites_pull_and_many_passes_reach_the_minimum():
    rng = np.random.default_rng(10)
    estimates, sizes = rng.normal(size=(10, 4)), np.full(10, 100.0)
    estimates[0] += 20
    exact, two, many = (
        objective(estimates, sizes, 6.0, result.estimates, result.center)
        for result in (
            shrink_to_center(estimates, sizes, 6.0),
            shrink_to_center(estimates, sizes, 6.0, solver="alternating"),
            shrink_to_center(estimates, sizes, 6.0, solver="alternating", passes=2000),
        )
    )
    assert two > 1.05 * exact
    assert many == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0], [np.nan]], [1, 1], 1.0), "site 1, component 0"),
        (([[1.0], [2.0]], [1, -1], 1.0), "site 1"),
        (([[1.0], [2.0]], [1, 1, 1], 1.0), "sizes"),
        (([[1.0], [2.0]], [1, 1], -1.0), "penalty"),
        (([[1.0], [2.0]], [1, 1], np.nan), "penalty"),
        (([1.0, 2.0], [1, 1], 1.0), "shape"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        shrink_to_center(*arguments)


# --- the adaptive rule ---------------------------------------------------------------------------


def model_draw(h, *, n_sites=10, n_repeats=400, n_features=10, seed=0):
    """Sites at distance about h from their centre, with sampling variances around 1/30."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(n_sites, n_repeats, n_features)) * h / np.sqrt(n_features)
    variances = np.exp(0.4 * rng.normal(size=(n_sites, n_repeats))) / 30
    noise = np.sqrt(variances)[..., None] * rng.normal(size=truth.shape)
    return truth, truth + noise, variances


def mean_error(estimates, truth):
    return np.linalg.norm(estimates - truth, axis=2).mean()


@pytest.mark.parametrize("h", [0.3, 1.0])
def test_centre_and_spread_solve_their_two_equations(h):
    # an odd number of sites: the median is one of the ratios
    _, estimates, variances = model_draw(h, n_sites=11, n_repeats=30)
    by_component = np.moveaxis(estimates, 0, 1), variances.T, np.ones(variances.T.shape, dtype=bool)
    start = np.median(estimates, axis=0)
    center, between, _ = center_and_spread(*by_component, start)
    total = between + variances
    offsets = estimates - center
    ratios = (offsets**2).sum(axis=2) / total
    spread = between > 0
    assert spread.mean() > 0.5
    np.testing.assert_allclose(np.median(ratios, axis=0)[spread], 10, rtol=1e-7)
    assert (np.median(ratios, axis=0)[~spread] <= 10).all()
    pulls = np.minimum(1, (np.sqrt(10) + 1) / np.sqrt(ratios)) / total
    resultant = np.linalg.norm((pulls[..., None] * offsets).sum(axis=0), axis=1)
    assert (resultant <= 1e-9 * (pulls * np.linalg.norm(offsets, axis=2)).sum(axis=0)).all()


@pytest.mark.parametrize("h", [0.0, 0.5, 1.0])
def test_the_refined_spread_is_closer_to_the_truth_than_the_median(h):
    _, estimates, variances = model_draw(h)
    by_component = np.moveaxis(estimates, 0, 1), variances.T, np.ones(variances.T.shape, dtype=bool)
    _, first, _ = center_and_spread(*by_component, np.median(estimates, axis=0))
    refined = shrink_adaptively(estimates, variances).between_variance
    truth = h**2 / 10
    assert np.abs(refined - truth).mean() < 0.95 * np.abs(first - truth).mean()


def test_odd_sites_inflate_the_refined_spread_boundedly():
    _, estimates, variances = model_draw(0.5)
    found = []
    for distance in (1e2, 1e9):
        spoilt = estimates.copy()
        spoilt[7:] += distance
        found.append(shrink_adaptively(spoilt, variances).between_variance)
    np.testing.assert_allclose(found[0], found[1], rtol=0.05)
    assert found[1].mean() < 0.1


def test_a_typical_site_gets_the_posterior_mean():
    _, estimates, variances = model_draw(0.7, n_repeats=20)
    result = shrink_adaptively(estimates, variances)
    share = result.between_variance / (result.between_variance + variances)
    posterior = result.center + share[..., None] * (estimates - result.center)
    typical = result.belonging == 1
    assert typical.mean() > 0.4
    np.testing.assert_allclose(result.estimates[typical], posterior[typical], atol=1e-12)


@pytest.mark.parametrize("n_features", [1, 2, 10])
@pytest.mark.parametrize("h", [0.0, 0.2, 0.5, 1.0, 2.0, 4.0])
def test_joining_is_no_worse_than_staying_alone(h, n_features):
    truth, estimates, variances = model_draw(h, n_features=n_features)
    result = shrink_adaptively(estimates, variances)
    assert mean_error(result.estimates, truth) <= 1.02 * mean_error(estimates, truth)


@pytest.mark.parametrize("h", [0.0, 0.5, 1.0, 2.0, 4.0])
def test_the_error_is_within_five_per_cent_of_knowing_the_spread(h):
    truth, estimates, variances = model_draw(h)
    spread = h**2 / 10
    weights = 1 / (spread + variances)
    center = (weights[..., None] * estimates).sum(axis=0) / weights.sum(axis=0)[:, None]
    oracle = center + (spread * weights)[..., None] * (estimates - center)
    error = mean_error(shrink_adaptively(estimates, variances).estimates, truth)
    assert error <= 1.05 * mean_error(oracle, truth)


def test_sites_that_agree_take_the_centre_and_sites_far_apart_keep_their_own():
    rng = np.random.default_rng(11)
    agreeing = shrink_adaptively(1e-3 * rng.normal(size=(8, 2, 5)), np.ones((8, 2)))
    np.testing.assert_array_equal(agreeing.between_variance, [0, 0])
    same = np.broadcast_to(agreeing.center, (8, 2, 5))
    np.testing.assert_allclose(agreeing.estimates, same, atol=1e-15)
    apart = 1e3 * rng.normal(size=(8, 2, 5))
    kept = shrink_adaptively(apart, np.ones((8, 2))).estimates
    np.testing.assert_allclose(kept, apart, atol=1e-2)


def test_odd_sites_keep_their_own_hardly_move_the_others_and_stand_out():
    truth, estimates, variances = model_draw(0.5, n_repeats=50)
    clean = shrink_adaptively(estimates[3:], variances[3:])
    attacked = estimates.copy()
    attacked[:3] += 1e6 * np.random.default_rng(12).normal(size=attacked[:3].shape)
    result = shrink_adaptively(attacked, variances)
    np.testing.assert_allclose(result.estimates[:3], attacked[:3], rtol=1e-12)
    error, clean_error = (
        mean_error(estimate, truth[3:]) for estimate in (result.estimates[3:], clean.estimates)
    )
    assert error < 1.1 * clean_error
    assert (result.outlier_score[:3] > 1e3).all()
    assert (np.abs(result.outlier_score[3:]) < 10).all()


def test_a_million_and_a_billion_are_equally_odd_to_the_others():
    _, estimates, variances = model_draw(0.5, n_repeats=5)
    direction = np.random.default_rng(13).normal(size=(2, 5, 10))
    results = []
    for distance in (1e6, 1e9):
        attacked = estimates.copy()
        attacked[:2] = distance * direction
        results.append(shrink_adaptively(attacked, variances).estimates[2:])
    np.testing.assert_allclose(*results, atol=1e-5)


def test_a_site_that_knows_nothing_takes_the_centre_and_changes_nothing():
    _, estimates, variances = model_draw(0.5, n_repeats=4)
    with_empty = np.concatenate([np.full_like(estimates[:1], np.nan), estimates])
    unknown = np.concatenate([np.full_like(variances[:1], np.inf), variances])
    result = shrink_adaptively(with_empty, unknown)
    without = shrink_adaptively(estimates, variances)
    np.testing.assert_array_equal(result.estimates[0], result.center)
    np.testing.assert_allclose(result.estimates[1:], without.estimates, atol=1e-11)
    np.testing.assert_allclose(result.outlier_score[1:], without.outlier_score, atol=1e-8)
    assert result.outlier_score[0] == 0


def test_a_component_that_is_empty_everywhere_stays_where_it_started():
    estimates = np.random.default_rng(14).normal(size=(5, 2, 3))
    variances = np.column_stack([np.full(5, 0.1), np.full(5, np.inf)])
    start = np.array([[0.0, 0, 0], [1, 2, 3]])
    result = shrink_adaptively(estimates, variances, start=start)
    np.testing.assert_array_equal(result.estimates[:, 1], np.tile(start[1], (5, 1)))
    assert np.isfinite(result.estimates).all()


def test_one_site_is_left_alone_and_two_meet_symmetrically():
    estimates = np.array([[[1.0, 2.0]], [[3.0, 6.0]]])
    alone = shrink_adaptively(estimates[:1], [[0.5]])
    np.testing.assert_allclose(alone.estimates, estimates[:1], rtol=1e-15)
    two = shrink_adaptively(estimates, [[0.5], [0.5]])
    np.testing.assert_allclose(two.center, [[2.0, 4.0]])
    np.testing.assert_allclose(two.estimates.mean(axis=0), [[2.0, 4.0]])
    np.testing.assert_allclose(two.between_variance, [5 / 2 - 0.5])  # |offset|^2 / d - s


@pytest.mark.parametrize("variance", [0.0, 1e-300, 1.0])
def test_ties_are_no_trouble(variance):
    estimates = np.tile([1.0, 2.0, 3.0], (6, 2, 1))
    result = shrink_adaptively(estimates, np.full((6, 2), variance))
    np.testing.assert_allclose(result.estimates, estimates, rtol=1e-15)
    estimates[0] += 5.0  # five ties and one odd site
    result = shrink_adaptively(estimates, np.full((6, 2), variance))
    np.testing.assert_allclose(result.between_variance, [0, 0], atol=1e-20)
    assert np.isfinite(result.estimates).all()


def test_adaptive_order_of_sites_is_irrelevant_and_units_carry_over():
    _, estimates, variances = model_draw(0.6, n_repeats=6)
    order = np.random.default_rng(15).permutation(10)
    result = shrink_adaptively(estimates, variances)
    shuffled = shrink_adaptively(estimates[order], variances[order])
    np.testing.assert_allclose(shuffled.estimates, result.estimates[order], atol=1e-10)
    np.testing.assert_allclose(shuffled.outlier_score, result.outlier_score[order], atol=1e-8)
    scaled = shrink_adaptively(100 * estimates + 1e4, 1e4 * variances)
    np.testing.assert_allclose(scaled.estimates, 100 * result.estimates + 1e4, atol=1e-7)
    np.testing.assert_allclose(scaled.between_variance, 1e4 * result.between_variance, atol=1e-6)


def test_components_do_not_hear_of_each_other():
    _, estimates, variances = model_draw(0.6, n_repeats=6)
    together = shrink_adaptively(estimates, variances)
    for component in range(6):
        each = [component]
        alone = shrink_adaptively(estimates[:, each], variances[:, each])
        np.testing.assert_allclose(alone.estimates, together.estimates[:, each], atol=1e-10)


def test_belonging_falls_smoothly_from_one_to_zero():
    distances = np.linspace(0, 200, 2001)[None]
    values = belonging(distances, 10, 10)[0]
    assert (values[distances[0] <= 10] == 1).all()
    assert (np.diff(values) <= 0).all()
    assert np.abs(np.diff(values)).max() < 0.01
    assert values[-1] < 1e-10
    assert belonging(np.array([[1e300]]), 10, 10)[0, 0] < 1e-300


def test_honest_sites_score_about_standard_normal():
    _, estimates, variances = model_draw(1.0, n_sites=300, n_repeats=3)
    score = shrink_adaptively(estimates, variances).outlier_score
    assert abs(np.median(score)) < 0.4
    assert 0.8 < score.std() < 1.25


def test_variances_must_be_non_negative_and_something_must_be_known():
    with pytest.raises(ValueError, match="site 1"):
        shrink_adaptively(np.zeros((2, 1, 3)), [[1.0], [-1.0]])
    with pytest.raises(ValueError, match="no site has a finite estimate"):
        shrink_adaptively(np.full((2, 1, 3), np.nan), [[np.inf], [np.inf]])
