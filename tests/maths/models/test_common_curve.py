"""Common curve with own departures: the bound from sums of sites against the dense process."""

import numpy as np
import pytest
from scipy.optimize import minimize

from fedkin.federation import Federation
from fedkin.models.common_curve import (
    negative_bound,
    negative_bound_value,
    share_missed,
    updated,
    weights,
)
from fedkin.models.common_dense import Rows, dense_posterior, dense_value
from fedkin.models.common_form import ABSENT, SPLINE, CommonForm, parameters, start_of
from fedkin.models.common_posterior import common_posterior, site_joint, site_posterior
from fedkin.models.common_sums import Sums, pack, sums, together, travelling, wholes
from fedkin.models.inducing import features, grid, points_at

RBF = np.inf
FORMS = [
    CommonForm(1),
    CommonForm(1, common=2.5, own=0.5, mean="constant", vague=3.0),
    CommonForm(1, common=1.5, own=1.5, mean="linear", vague=2.0),
    CommonForm(2, common=RBF, own=2.5),
    CommonForm(2, common=1.5, own=RBF, mean="linear", vague=1.0),
    CommonForm(1, common=2.5, own=1.5, mean="linear", vague=2.0, edges=((-1.1,), (0.6,))),
    CommonForm(2, common=RBF, own=2.5, mean="linear", vague=1.0, edges=((-1.1, -2.0), (0.6, 2.0))),
    CommonForm(2, common=1.5, own=RBF, edges=((-2.0,) * 2, (2.0,) * 2)),
    CommonForm(1, common=SPLINE, own=2.5, mean="linear", vague=2.0),
]


def parameters_of(form, seed=0):
    """Something in the middle, all different."""
    rng = np.random.default_rng(seed)
    return start_of(form, 1.5) + rng.uniform(-0.5, 0.5, len(form.names))


def sites(form, sizes=(1, 3, 4, 9, 12), seed=1, on_grid=False):
    rng = np.random.default_rng(seed)
    clients = []
    for n in sizes:
        X = rng.uniform(-1.7, 1.7, (n, form.n_features))
        X = np.round(4 * X) / 4 if on_grid else X
        level, slope = rng.normal(size=2)
        y = np.sin(2 * X[:, 0]) + level + 0.3 * slope * X[:, -1] + 0.2 * rng.normal(size=n)
        clients.append((X, y))
    return Federation.from_clients(clients)


def rows_of(federation):
    return Rows(federation.X, federation.y, federation.owner)


def sums_of(federation, form, full, places):
    return sums(pack(federation), len(federation), form, full, points_at(form, full, places))


def bound(federation, form, full, places):
    return negative_bound(form, full, sums_of(federation, form, full, places))


def differences(f, full, step=1e-3):
    """Central differences of fourth order by the parameters that are there."""
    slopes = np.zeros(len(full))
    for j in np.flatnonzero(np.isfinite(full)):
        unit = step * (np.arange(len(full)) == j)
        v = [f(full + k * unit) for k in (-2, -1, 1, 2)]
        slopes[j] = (v[0] - 8 * v[1] + 8 * v[2] - v[3]) / (12 * step)
    return slopes


# ------------------------------------------------------------------ the dense process


def test_the_covariance_is_the_one_on_the_page():
    """Two rows of one site and one of another, written out; growth ends at the edge."""
    form = CommonForm(1, edges=((-1.0,), (0.7,)))
    full = np.log([0.5, 0.8, 0.3, 0.2, 0.4, 1.1, 1.0, 1.0, 0.1])
    full[-3:-1] = -0.3, 0.6
    rows = Rows(np.array([[0.2], [1.0], [1.0]]), np.array([1.0, -0.5, 0.3]), np.array([0, 0, 1]))

    def k(t, u, length):
        return np.exp(-0.5 * ((t - u) / length) ** 2)

    K = np.empty((3, 3))
    for i, (t, a) in enumerate(zip(rows.X[:, 0], rows.owner)):
        for j, (u, b) in enumerate(zip(rows.X[:, 0], rows.owner)):
            own = 0.3 + 0.2 * (t + 0.3) * (u + 0.3) + 0.4 * k(t, u, 1.1) + (i == j) * 0.1
            swelling = np.exp(0.6 * (min(t, 0.7) + min(u, 0.7)))
            K[i, j] = 0.5 * k(t, u, 0.8) + (a == b) * swelling * own
    fit = rows.y @ np.linalg.solve(K, rows.y)
    expected = 0.5 * (fit + np.log(np.linalg.det(K)) + 3 * np.log(2 * np.pi))
    assert dense_value(form, full, rows)[0] == pytest.approx(expected, rel=1e-12)


def test_features_bend_between_their_edges_and_go_straight_on():
    """Written out; edges stay, no haste is no bend, and pace does not jump at an edge."""
    form = CommonForm(2, edges=((-1.0, -2.0), (1.0, 1.0)))
    full = start_of(form, 1.0)
    X = np.array([[-1.0, -2.0], [0.0, -0.5], [1.0, 1.0], [1.5, -3.0]])
    np.testing.assert_array_equal(parameters(form, full).bent(X), X)
    full[-3:-1] = 0.7, -1.2
    part = parameters(form, full)

    def at(x, low, high, haste):
        return low + (high - low) * np.expm1(haste * (x - low)) / np.expm1(haste * (high - low))

    expected = X.copy()
    expected[1] = at(0.0, -1.0, 1.0, 0.7), at(-0.5, -2.0, 1.0, -1.2)
    ends = np.array([2.0 * 0.7 * np.exp(1.4) / np.expm1(1.4), 3.0 * -1.2 / np.expm1(-3.6)])
    expected[3] = 1.0 + 0.5 * ends[0], -2.0 - ends[1]
    np.testing.assert_allclose(part.bent(X), expected, rtol=1e-12)
    for haste in (1e-5, 0.7):
        step = 1e-6
        full[-3:-1] = haste, -haste
        up, down = (
            parameters(form, full + step * sign * np.isin(np.arange(13), (10, 11))).bent(X)
            for sign in (1.0, -1.0)
        )
        slopes = parameters(form, full).bending(X)
        np.testing.assert_allclose(slopes, (up - down) / (2 * step), atol=1e-8)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_dense_gradient_equals_finite_differences(form):
    rows, full = rows_of(sites(form)), parameters_of(form)
    value = differences(lambda f: dense_value(form, f, rows)[0], full)
    np.testing.assert_allclose(dense_value(form, full, rows)[1], value, atol=1e-8)


# ------------------------------------------------------------------ the bound


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_gradient_of_the_bound_equals_finite_differences(form):
    federation, full = sites(form), parameters_of(form)
    places = grid(np.full(form.n_features, -2.0), np.full(form.n_features, 2.0), 9)
    numeric = differences(lambda f: bound(federation, form, f, places)[0], full)
    found = bound(federation, form, full, places)[1]
    np.testing.assert_allclose(found, numeric, atol=1e-7 * np.abs(found).max())


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_points_on_all_rows_give_the_likelihood_and_its_gradient(form):
    federation, full = sites(form, on_grid=True), parameters_of(form)
    places = parameters(form, full).bent(np.unique(federation.X, axis=0))
    value, gradient = bound(federation, form, full, places)
    exact, slopes = dense_value(form, full, rows_of(federation))
    assert value == pytest.approx(exact, abs=1e-6)
    np.testing.assert_allclose(gradient, slopes, atol=1e-5)


@pytest.mark.parametrize("form", [f for f in FORMS if f.common != SPLINE], ids=str)
def test_the_bound_is_one_and_rises_with_the_points(form):
    federation, full = sites(form), parameters_of(form)
    places = grid(np.full(form.n_features, -2.0), np.full(form.n_features, 2.0), 16)
    values = [bound(federation, form, full, places[:n])[0] for n in (2, 4, 8, 16)]
    exact = dense_value(form, full, rows_of(federation))[0]
    assert (np.diff(values) < 1e-9).all() and values[-1] > exact - 1e-9
    missed = [
        share_missed(form, full, sums_of(federation, form, full, places[:n])) for n in (2, 16)
    ]
    assert missed[1] < missed[0]


def test_a_spline_is_all_at_its_knots_and_walks_on_beyond_them():
    """Likelihood, gradient and predictions are those of the dense process."""
    form = FORMS[-1]
    federation, full, knots = sites(form), parameters_of(form), grid(-1.75, 1.75, 8)
    rows = rows_of(federation)._replace(knots=knots)
    value, gradient = bound(federation, form, full, knots)
    exact, slopes = dense_value(form, full, rows)
    assert value == pytest.approx(exact, rel=1e-9) and share_missed(
        form, full, sums_of(federation, form, full, knots)
    ) == pytest.approx(0.0)
    np.testing.assert_allclose(gradient[1:], slopes[1:], atol=1e-6)
    X, points = np.array([[-3.0], [0.3], [1.75], [2.5], [4.0]]), points_at(form, full, knots)
    known = weights(form, full, sums_of(federation, form, full, knots))
    found = site_posterior(form, full, points, known, federation.client(3), X)
    mean, spread = dense_posterior(form, full, rows, X, np.full(len(X), 3))
    np.testing.assert_allclose(found[0], mean, atol=1e-7)
    np.testing.assert_allclose(found.common + found.left, np.diagonal(spread), rtol=1e-6)
    joint = sum(site_joint(form, full, points, known, federation.client(3), X)[1:3])
    np.testing.assert_allclose(joint, spread, atol=1e-6)
    # Straight beyond the knots, with the variance of an integrated walk besides.
    line = common_posterior(form, full, points, known, np.array([[2.0], [3.0], [4.0]]))
    assert np.diff(line[0], 2)[0] == pytest.approx(0.0, abs=1e-9)
    walk = common_posterior(form, full, points, known, np.array([[2.75]]))[1][0]
    phi = features(form, full, points, np.array([[2.75]]))[0] * np.append(
        np.full(8, np.exp(0.5 * full[0])), [1.0, 1.0]
    )
    carried = float((phi @ known.covariance @ phi.T)[0, 0])
    assert walk - carried == pytest.approx(np.exp(full[0]) / 3.0)


@pytest.mark.parametrize("absent", [(3,), (2, 3), (4,), (2, 3, 4)], ids=str)
def test_parts_may_be_absent(absent):
    """Level, slope and own curve: 2, 3 and 4 with one feature."""
    form, federation = CommonForm(1), sites(CommonForm(1), on_grid=True)
    full = parameters_of(form)
    full[list(absent)] = ABSENT
    value, gradient = bound(federation, form, full, np.unique(federation.X, axis=0))
    exact, slopes = dense_value(form, full, rows_of(federation))
    assert value == pytest.approx(exact, abs=1e-6) and (gradient[list(absent)] == 0.0).all()
    np.testing.assert_allclose(gradient, slopes, atol=1e-5)


def test_without_a_common_part_sites_are_independent():
    form, federation = CommonForm(1), sites(CommonForm(1))
    full = parameters_of(form)
    full[0] = ABSENT
    value, gradient = bound(federation, form, full, grid(-2, 2, 5))
    alone = [
        dense_value(form, full, Rows(*federation.client(k), np.zeros(n, dtype=int)))
        for k, n in enumerate(federation.sizes)
    ]
    assert value == pytest.approx(sum(v for v, _ in alone), rel=1e-10)
    np.testing.assert_allclose(gradient, sum(g for _, g in alone), atol=1e-9)


def test_sums_of_one_client_at_a_time_are_those_of_all_at_once():
    form, federation = FORMS[1], sites(FORMS[1], sizes=(0, 3, 30, 4, 33))
    full, places = parameters_of(form), grid(-2, 2, 7)
    whole = sums_of(federation, form, full, places)
    for k in range(1, 5):
        alone = Federation.from_clients([federation.client(k)])
        for one, other in zip(sums_of(alone, form, full, places), whole):
            np.testing.assert_allclose(one[0], other[k], rtol=1e-9, atol=1e-11)
    assert whole.rows.tolist() == [0, 3, 30, 4, 33] and not whole.gram[0].any()
    np.testing.assert_allclose(together(whole).gram[0], whole.gram.sum(axis=0))


def test_sums_without_slopes_give_the_same_bound_and_curve():
    form, federation = FORMS[2], sites(FORMS[2])
    full = parameters_of(form)
    points = points_at(form, full, grid(-2, 2, 9))
    whole = sums(pack(federation), len(federation), form, full, points)
    short = sums(pack(federation), len(federation), form, full, points, slopes=False)
    assert short.gram.shape == (5, 1, 12, 12)
    assert negative_bound_value(form, full, short) == negative_bound(form, full, whole)[0]
    np.testing.assert_array_equal(weights(form, full, short).mean, weights(form, full, whole).mean)


def test_triangles_travel_and_become_matrices_again():
    form, federation = CommonForm(1), sites(CommonForm(1), sizes=(0, 3, 30, 4, 33))
    asked = [parameters_of(form, seed) for seed in (0, 1)]
    points = [points_at(form, full, grid(-2, 2, 20)) for full in asked]
    told = travelling(pack(federation), 5, [(form, *each) for each in zip(asked, points)])
    assert told.gram.shape == (5, 2, 8, 231)
    for k, full in enumerate(asked):
        whole = sums_of(federation, form, full, grid(-2, 2, 20))
        gram = wholes(told.gram[:, k], 21)
        np.testing.assert_allclose(gram, whole.gram, rtol=1e-9, atol=1e-10)
        np.testing.assert_array_equal(told.log_det[:, k], whole.log_det)
        np.testing.assert_array_equal(told.missed[:, k], whole.missed)
    np.testing.assert_array_equal(told.rows, [0, 3, 30, 4, 33])
    added = wholes(together(told).gram[:, 1], 21)
    np.testing.assert_allclose(added[0], whole.gram.sum(axis=0), rtol=1e-9, atol=1e-10)


def test_the_order_of_clients_and_rows_is_irrelevant():
    form, federation = CommonForm(1), sites(CommonForm(1))
    full, places = parameters_of(form), grid(-2, 2, 9)
    clients = [federation.client(k) for k in range(len(federation))]
    turned = Federation.from_clients([(X[::-1], y[::-1]) for X, y in clients[::-1]])
    one, other = (bound(f, form, full, places) for f in (federation, turned))
    assert one[0] == pytest.approx(other[0], rel=1e-11)
    np.testing.assert_allclose(one[1], other[1], rtol=1e-8)


# ------------------------------------------------------------------ posterior


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_with_points_on_all_rows_predictions_are_the_dense_ones(form):
    federation, full = sites(form, on_grid=True), parameters_of(form)
    X = np.unique(federation.X, axis=0)[::3]
    places = parameters(form, full).bent(np.unique(federation.X, axis=0))
    points = points_at(form, full, places)
    known = weights(form, full, sums(pack(federation), len(federation), form, full, points))
    nobody = (np.zeros((0, form.n_features)), np.zeros(0))
    cases = [(-1, common_posterior(form, full, points, known, X))]
    cases += [(99, site_posterior(form, full, points, known, nobody, X)[:3])]
    for k in (0, 3):
        cases.append((k, site_posterior(form, full, points, known, federation.client(k), X)[:3]))
    for who, (mean, *parts) in cases:
        owner = np.full(len(X), who)
        exact, spread = dense_posterior(form, full, rows_of(federation), X, owner)
        np.testing.assert_allclose(mean, exact, atol=1e-6)
        np.testing.assert_allclose(sum(parts), np.diagonal(spread), atol=1e-6)


def test_far_from_all_points_the_prior_is_left():
    form, federation = CommonForm(1), sites(CommonForm(1))
    full, far = parameters_of(form), np.array([[40.0]])
    points = points_at(form, full, grid(-2, 2, 9))
    known = weights(form, full, sums(pack(federation), len(federation), form, full, points))
    mean, variance = common_posterior(form, full, points, known, far)
    common, _, level, slope, own = np.exp(full[:5])
    assert mean[0] == pytest.approx(0.0, abs=1e-9) and variance[0] == pytest.approx(common)
    nobody = (np.zeros((0, 1)), np.zeros(0))
    variance = sum(site_posterior(form, full, points, known, nobody, far)[1:3])
    departures = level + slope * (40.0 - full[6]) ** 2 + own
    assert variance[0] == pytest.approx(common + np.exp(2.0 * full[7] * 40.0) * departures)
    ended = form._replace(edges=((-2.0,), (2.0,)))
    variance = sum(site_posterior(ended, full, points, known, nobody, far)[1:3])
    assert variance[0] == pytest.approx(common + np.exp(2.0 * full[7] * 2.0) * departures)


def test_a_site_that_comes_later_is_as_one_that_was_there():
    form, federation = CommonForm(1), sites(CommonForm(1))
    full = parameters_of(form)
    points = points_at(form, full, grid(-2, 2, 20))
    every = sums(pack(federation), len(federation), form, full, points)
    before, after = (Sums(*(part[which] for part in every)) for which in (slice(4), slice(4, 5)))
    later = updated(form, full, weights(form, full, before), after)
    expected = weights(form, full, every)
    np.testing.assert_allclose(later.mean, expected.mean, atol=1e-8)
    np.testing.assert_allclose(later.covariance, expected.covariance, atol=1e-8)


# ------------------------------------------------------------------ fits


def smooth_sites(n_clients=12, n_rows=8, seed=0):
    """A common curve, departures of a third of its size, noise of a tenth."""
    rng = np.random.default_rng(seed)
    clients = []
    for _ in range(n_clients):
        t = np.sort(rng.uniform(-1.7, 1.7, n_rows))
        level, slope, phase = rng.normal(size=3) * [0.4, 0.2, 1.0]
        own = level + slope * t + 0.3 * np.sin(2.0 * t + 2.0 * phase)
        clients.append(
            (t[:, None], np.sin(1.5 * t) + 0.5 * t + own + 0.1 * rng.normal(size=n_rows))
        )
    return Federation.from_clients(clients)


def fitted(objective, start):
    free = np.isfinite(start)

    def along(values):
        full = start.copy()
        full[free] = values
        value, gradient = objective(full)
        return value, gradient[free]

    bounds = [(v - 7, v + 4) for v in start[free]]
    found = minimize(
        along, start[free], jac=True, bounds=bounds, options={"gtol": 1e-7, "ftol": 1e-14}
    )
    full = start.copy()
    full[free] = found.x
    return full


@pytest.mark.parametrize("n_points", [15, 30, 50])
@pytest.mark.parametrize("seed", [0, 1])
def test_few_points_find_the_dense_parameters_and_predictions(n_points, seed):
    """Issue: parameters to 1e-2, predictions to 1e-3 standard deviations, at most 50 points."""
    form, federation = CommonForm(1, common=RBF, own=2.5), smooth_sites(seed=seed)
    rows, places = rows_of(federation), grid(-1.7, 1.7, n_points)
    start = start_of(form, federation.y.var())
    exact = fitted(lambda full: dense_value(form, full, rows), start)
    found = fitted(lambda full: bound(federation, form, full, places), start)
    determined = exact > start - 6.5
    np.testing.assert_allclose(found[determined], exact[determined], atol=1e-2)
    X = np.linspace(-1.7, 1.7, 21)[:, None]
    points = points_at(form, found, places)
    known = weights(form, found, sums(pack(federation), len(federation), form, found, points))
    for k in (0, 5, 99):
        own = federation.client(k) if k < 12 else (np.zeros((0, 1)), np.zeros(0))
        mean, *parts = site_posterior(form, found, points, known, own, X)[:3]
        truth, spread = dense_posterior(form, exact, rows, X, np.full(21, k))
        sd = np.sqrt(np.diagonal(spread) + np.exp(exact[-1]))
        assert (np.abs(mean - truth) < 1e-3 * sd).all()
        assert (np.abs(np.sqrt(sum(parts) + np.exp(found[-1])) - sd) < 1e-3 * sd).all()


def test_columns_so_huge_that_rounding_outweighs_the_prior_end_no_search():
    """G is the unit matrix and a positive one: columns of 1e10 that are alike leave it no unit."""
    form, rng = CommonForm(1), np.random.default_rng(0)
    columns = 1e10 * np.column_stack([np.ones(40), 1.0 + 1e-9 * rng.normal(size=(40, 20))])
    both = np.column_stack([columns, rng.normal(size=40)])
    gram = both.T @ both
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(np.eye(21) + gram[:-1, :-1])
    slopes = len(form.names) - 2
    told = Sums(
        np.concatenate([gram[None, None], np.zeros((1, slopes, 22, 22))], axis=1),
        np.zeros((1, 1 + slopes)),
        np.zeros((1, 1 + slopes)),
        np.array([40.0]),
    )
    value, gradient = negative_bound(form, parameters_of(form), told)
    assert np.isfinite(value) and np.isfinite(gradient).all()
