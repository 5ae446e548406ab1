"""A site around the common curve: rows left out, joint samples, nearest rows, against dense."""

import numpy as np
import pytest

from fedkin.federation import Federation
from fedkin.models import common_site
from fedkin.models.common_curve import weights
from fedkin.models.common_dense import Rows, dense_posterior, dense_value
from fedkin.models.common_form import start_of
from fedkin.models.common_posterior import (
    _departure,
    _not_carried,
    _scaled,
    left_out,
    own_rows,
    site_from_nearest,
    site_joint,
    site_posterior,
    sites_posterior,
)
from fedkin.models.common_site import (
    CommonSiteCurve,
    Shared,
    Units,
    foresee,
    form_of,
    left_out_of,
)
from fedkin.models.common_sums import pack, sums
from fedkin.models.inducing import grid, points_at
from fedkin.models.own_scale import LOG_SCALES, SCALE_WIDTH, own_scales
from fedkin.models.own_spread import SHARES, swollen

KINDS = np.array([[0.0, 0.0, 1.0], [0.0, 2.5, 0.0], [0.0, 1.5, 1.0]])


def clients(seed=0):
    """Rows on a grid, which the points lie on: nothing of the common curve is missed."""
    rng = np.random.default_rng(seed)
    found = []
    for n in (4, 6, 9):
        x = rng.permutation(np.linspace(-1.5, 1.5, 13))[:n]
        found.append((x[:, None], np.sin(x) + rng.normal() + 0.3 * rng.normal(size=n)))
    return found


def problem(kind):
    places, parts = np.linspace(-1.5, 1.5, 13)[:, None], clients()
    form = form_of(kind, places)
    theta = start_of(form, 1.0) + np.random.default_rng(1).uniform(-0.4, 0.4, len(form.names))
    points = points_at(form, theta, places)
    data = Federation.from_clients(parts)
    known = weights(form, theta, sums(pack(data), len(data), form, theta, points))
    return form, theta, points, known, data


def without(data, rows):
    return Rows(data.X[rows], data.y[rows], data.owner[rows])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_row_left_out_is_predicted_from_all_others(kind):
    form, theta, points, known, data = problem(kind)
    mean, variance, _ = left_out(form, theta, points, known, data.client(1))
    for place, row in enumerate(np.flatnonzero(data.owner == 1)):
        rest = without(data, np.arange(len(data.X)) != row)
        own = data.X[row : row + 1], np.array([1])
        expected, spread = dense_posterior(form, theta, rest, *own)
        assert mean[place] == pytest.approx(expected[0], abs=1e-6)
        noise = np.exp(theta[-1] + 2.0 * theta[-2] * data.X[row, 0])
        assert variance[place] == pytest.approx(spread[0, 0] + noise, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_site_left_out_has_the_density_that_it_adds(kind):
    form, theta, points, known, data = problem(kind)
    _, _, found = left_out(form, theta, points, known, data.client(2))
    every = np.ones(len(data.X), dtype=bool)
    with_it, others = (
        dense_value(form, theta, without(data, rows))[0] for rows in (every, data.owner != 2)
    )
    assert found == pytest.approx(others - with_it, abs=1e-6)


def test_the_joint_covariance_has_the_variances_on_its_diagonal_and_is_the_dense_one():
    form, theta, points, known, data = problem(KINDS[2])
    X = np.linspace(-1.5, 1.5, 13)[::3, None]
    own = data.client(0)
    mean, *parts = site_posterior(form, theta, points, known, own, X)[:3]
    joint_mean, *joints = site_joint(form, theta, points, known, own, X)[:3]
    np.testing.assert_allclose(joint_mean, mean, atol=1e-12)
    for joint, variance in zip(joints, parts):
        np.testing.assert_allclose(np.diagonal(joint), variance, atol=1e-9)
    rows = Rows(data.X, data.y, data.owner)
    _, dense = dense_posterior(form, theta, rows, X, np.zeros(len(X), dtype=int))
    np.testing.assert_allclose(sum(joints), dense, atol=1e-6)


def test_from_all_rows_as_the_nearest_ones_nothing_changes():
    form, theta, points, known, data = problem(KINDS[1])
    X, own = np.array([[-0.7], [0.1], [1.9]]), data.client(2)
    near = np.tile(own[0], (3, 1, 1)), np.tile(own[1], (3, 1))
    one = site_posterior(form, theta, points, known, own, X)
    other = site_from_nearest(form, theta, points, known, near, X)
    for a, b in zip(one, other):
        np.testing.assert_allclose(a, b, atol=1e-9)


def shared_of(data, units, n_members=3):
    """A small cloud whose common curve knows the rows of these clients, in their units."""
    framed = Federation.from_clients(
        [(units.rows(X), units.targets(y)) for X, y in map(data.client, range(len(data)))]
    )
    places, members = np.linspace(-1.5, 1.5, 13)[:, None], []
    for number in range(n_members):
        form = form_of(KINDS[number], places)
        theta = start_of(form, 1.0) + 0.2 * number
        told = sums(pack(framed), len(data), form, theta, points_at(form, theta, places))
        members.append((theta, *weights(form, theta, told)))
    theta, mean, covariance = map(np.array, zip(*members))
    share = np.array([0.5, 0.3, 0.2])[:n_members]
    return Shared(units, places, KINDS[:n_members], theta, share / share.sum(), mean, covariance)


UNITS = Units(np.array([[5.0], [2.0]]), np.array([100.0, 10.0]))


def in_units(parts):
    return Federation.from_clients([(5.0 + 2.0 * X, 100.0 + 10.0 * y) for X, y in parts])


def test_the_curve_is_a_mixture_in_the_sites_units():
    data = in_units(clients())
    shared = shared_of(data, UNITS)
    curve = CommonSiteCurve(shared, *data.client(0))
    X = np.array([[4.0], [6.5], [9.0]])
    mean, std = curve.predict(X)
    means, variances = curve.moments(X)
    assert means.shape == (9, 3), "every member with three spreads of the site's own"
    shares = np.concatenate([share * shared.weights for share in SHARES])
    np.testing.assert_allclose(mean, shares @ means)
    second = shares @ (variances + means**2)
    np.testing.assert_allclose(std**2, second - mean**2)
    drawn = curve.sample(X, 20_000, np.random.default_rng(0))
    np.testing.assert_allclose(drawn.mean(axis=1), mean, atol=0.3)
    np.testing.assert_allclose(drawn.std(axis=1), std, rtol=0.05)
    grid = np.linspace(mean[1] - 12 * std[1], mean[1] + 12 * std[1], 4001)
    density = np.exp(curve.log_density(np.repeat(X[1:2], 4001, axis=0), grid))
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=1e-6)


def test_away_from_its_rows_a_site_may_have_swollen_and_its_mean_stays():
    """The member's own variance of departure and noise, times those of three spreads."""
    data = in_units(clients())
    shared = shared_of(data, UNITS, 1)
    X, places = np.array([[4.0], [12.0]]), shared.units.rows(data.client(0)[0])[:, 0]
    rows, own = shared.units.rows(X), (places[:, None], shared.units.targets(data.client(0)[1]))
    member = shared.each()[0]
    mean, common, left, _ = site_posterior(*member, own, rows)
    factors = swollen(places, rows[:, 0])
    means, variances = CommonSiteCurve(shared, *data.client(0)).moments(X)
    np.testing.assert_allclose(means, np.tile(100.0 + 10.0 * mean, (3, 1)))
    expected = common + factors * (left + member.noise(rows))
    np.testing.assert_allclose(variances, 100.0 * expected, rtol=1e-9)
    at_rows = CommonSiteCurve(shared, *data.client(0)).moments(data.client(0)[0])[1]
    np.testing.assert_array_equal(at_rows[1:], at_rows[:1].repeat(2, axis=0))


def test_a_site_without_rows_swells_beyond_the_edges_only():
    shared = shared_of(in_units(clients()), UNITS, 1)
    nobody = CommonSiteCurve(shared, np.zeros((0, 1)), np.zeros(0))
    _, (known, wider, narrower) = nobody.moments(np.array([[2.0], [4.5], [8.0], [9.0], [1.0]]))
    np.testing.assert_array_equal(wider[:3], known[:3])
    assert (narrower[3:] < known[3:]).all() and (known[3:] < wider[3:]).all()


def test_what_was_asked_before_changes_nothing():
    """Moments of the last rows are kept, and members are the same wherever they come from."""
    data = in_units(clients())
    shared = shared_of(data, UNITS)
    one, other = np.array([[4.0], [6.5]]), np.array([[9.0], [2.0]])
    used = CommonSiteCurve(shared, *data.client(0), members=shared.each())
    for X in (one, other, one[::-1], one):
        fresh = CommonSiteCurve(shared, *data.client(0))
        np.testing.assert_array_equal(used.predict(X), fresh.predict(X))
        density = used.log_density(X, np.zeros(2)), fresh.log_density(X, np.zeros(2))
        np.testing.assert_array_equal(*density)


def test_a_later_site_is_as_one_that_was_there():
    data = in_units(clients())
    first = data.take([0, 1])
    later = shared_of(first, UNITS).knowing(*data.client(2))
    expected = shared_of(data, UNITS)
    np.testing.assert_allclose(later.mean, expected.mean, atol=1e-7)
    np.testing.assert_allclose(later.covariance, expected.covariance, atol=1e-7)


def test_densities_of_rows_left_out_average_over_the_cloud():
    data = in_units(clients())
    shared = shared_of(data, UNITS, 1)
    found = left_out_of(shared, shared.each(), *data.client(1))
    member = shared.each()[0]
    own = shared.units.rows(data.client(1)[0]), shared.units.targets(data.client(1)[1])
    mean, variance, together = left_out(*member, own)
    expected = -0.5 * (np.log(2 * np.pi * variance) + (own[1] - mean) ** 2 / variance) - np.log(10)
    np.testing.assert_allclose(found.each, expected, atol=1e-9)
    np.testing.assert_allclose(found.mean, 100.0 + 10.0 * mean)
    assert found.together == pytest.approx(together - 6 * np.log(10))


@pytest.mark.parametrize("large", ["neighbours", "subset"])
def test_large_sites_are_predicted_from_some_of_their_rows(large):
    rng = np.random.default_rng(3)
    x = rng.uniform(-1.5, 1.5, 400)
    y = np.sin(2 * x) + 0.1 * rng.normal(size=400)
    data = in_units([*clients(), (x[:, None], y)])
    shared = shared_of(data, UNITS)
    grid = np.linspace(2.5, 7.5, 9)[:, None]
    exact = CommonSiteCurve(shared, *data.client(3)).predict(grid)
    some = CommonSiteCurve(shared, *data.client(3), 150, large).predict(grid)
    assert (np.abs(some[0] - exact[0]) < 0.5 * exact[1]).all()
    np.testing.assert_allclose(some[1], exact[1], rtol=0.1)


def test_many_small_sites_at_once_are_predicted_as_one_after_another():
    """Sites of one, three and no rows, of two common curves, and a large one that goes alone."""
    rng = np.random.default_rng(3)
    sizes = [1, 3, 3, 0, 0, 3, 40, 1]
    data = Federation.from_clients([(rng.normal(size=(n, 1)), rng.normal(size=n)) for n in sizes])
    units = Units(np.array([[0.1], [0.8]]), np.array([0.2, 1.3]))
    shared = shared_of(data.take(np.flatnonzero(data.sizes)), units)
    other = shared._replace(mean=shared.mean + 0.5)
    members = {False: shared.each(), True: other.each()}

    def curves():
        return [
            CommonSiteCurve(other if k == 5 else shared, *data.client(k), members=members[k == 5])
            for k in range(len(sizes))
        ]

    rows = [rng.normal(size=(1 + k % 3, 1)) for k in range(len(sizes))]
    alone, together = curves(), curves()
    foresee(list(zip(together, rows)))
    assert [len(c._kept) for c in together] == [1, 1, 1, 1, 1, 0, 0, 1], (
        "alone in its kind or large"
    )
    for one, also, X in zip(alone, together, rows):
        for a, b in zip(one.moments(X), also.moments(X)):
            np.testing.assert_allclose(b, a, rtol=1e-9)
    elsewhere = rng.normal(size=(2, 1))
    np.testing.assert_array_equal(together[1].moments(elsewhere)[0], alone[1].moments(elsewhere)[0])


def of_two_columns(n, noise):
    """The common curve of two sites on a plane, and the first of them."""
    shared, data = two_sites(n, noise)
    return shared, data.client(0)


def two_sites(n, noise, seed=4):
    """Two sites on a plane with a common curve, the first with n rows and so much noise."""
    rng = np.random.default_rng(seed)
    parts = []
    for size, spread in ((n, noise), (12, 0.1)):
        X = rng.uniform(-1.5, 1.5, (size, 2))
        parts.append((X, np.sin(X).sum(axis=1) + spread * rng.normal(size=size)))
    units = Units(np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([0.0, 1.0]))
    data, places = Federation.from_clients(parts), grid(np.full(2, -1.5), np.full(2, 1.5), 40)
    form = form_of(KINDS[0], places)
    theta = start_of(form, 0.2)
    told = sums(pack(data), len(data), form, theta, points_at(form, theta, places))
    known = weights(form, theta, told)
    shared = Shared(units, places, KINDS[:1], theta[None], np.ones(1), *(x[None] for x in known))
    return shared, data


class BruteForce:
    """Covariances of all rows, with departures and noise of the first site times a square."""

    def __init__(self, shared, data, square):
        self.member, self.data, self.square = shared.each()[0], data, square
        form, theta, points, _ = self.member
        self.phi = _scaled(form, theta, points, data.X)
        self.K = self.phi @ self.phi.T
        for k in range(len(data)):
            rows = data.owner == k
            X = data.X[rows]
            S = _departure(form, theta, X, X) + np.diag(self.member.noise(X))
            self.K[np.ix_(rows, rows)] += S * (square if k == 0 else 1.0)
            if k == 0:
                self.rest = _not_carried(form, theta, points, self.phi[rows], X)

    def log_evidence(self):
        """Of what the points carry, up to a constant."""
        y = self.data.y
        return -0.5 * float(y @ np.linalg.solve(self.K, y) + np.linalg.slogdet(self.K)[1])

    def at(self, X):
        """Mean and variance of the first site's curve, no noise."""
        form, theta, points, _ = self.member
        phi, first = _scaled(form, theta, points, X), self.data.owner == 0
        cross = phi @ self.phi.T
        cross[:, first] += self.square * _departure(form, theta, X, self.data.X[first])
        own = np.diagonal(_departure(form, theta, X, X)) * self.square
        prior = (phi**2).sum(axis=1) + _not_carried(form, theta, points, phi, X) + own
        told = np.linalg.solve(self.K, np.column_stack([self.data.y, cross.T]))
        return cross @ told[:, 0], prior - np.einsum("nk,kn->n", cross, told[:, 1:])

    def left_out(self):
        """Mean and variance of the first site's targets, each left out."""
        inverse, y = np.linalg.inv(self.K), self.data.y
        first, variance = self.data.owner == 0, 1.0 / np.diagonal(inverse)
        return (y - variance * (inverse @ y))[first], variance[first] + self.rest


PLANE = np.array([[0.1, -0.4], [1.0, 1.2], [-1.4, 0.3]])


@pytest.mark.parametrize("square", [0.04, 1.0, 9.0])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_a_scale_of_its_own_is_as_if_all_rows_were_fitted_with_it(n, square):
    shared, data = two_sites(n, noise=0.8)
    member, own = shared.each()[0], data.client(0)
    exact, told = BruteForce(shared, data, square), own_rows(*member, (own[0][None], own[1][None]))
    mean, common, left, there = site_posterior(*member, own, PLANE)
    squares = np.array([[square]])
    moved, more = told.moved(there, squares)
    found = mean + moved[0], common + more[0] + square * left
    for ours, theirs in zip(found, exact.at(PLANE)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)
    for ours, theirs in zip(told.left_out(own[1][None], squares), exact.left_out()):
        np.testing.assert_allclose(ours[0, 0], theirs, rtol=1e-7, atol=1e-9)
    added = told.covariance(there, squares[0])
    np.testing.assert_allclose(np.diagonal(added), more[0], rtol=1e-9, atol=1e-12)


def test_the_evidence_of_a_scale_is_that_of_all_rows_with_it():
    shared, data = two_sites(7, noise=0.8)
    own = data.client(0)
    found = own_rows(*shared.each()[0], (own[0][None], own[1][None])).evidence()[0]
    assert found.shape == LOG_SCALES.shape
    found = found + 0.5 * (LOG_SCALES / SCALE_WIDTH) ** 2
    one = BruteForce(shared, data, 1.0).log_evidence()
    for k in range(0, len(LOG_SCALES), 20):
        exact = BruteForce(shared, data, np.exp(2 * LOG_SCALES[k])).log_evidence() - one
        np.testing.assert_allclose(found[k], exact, rtol=1e-7, atol=1e-7)


def integrated(shared, data, X):
    """Mean and variance of the first site's targets over all scales, by brute force."""
    logs = np.linspace(-2.5, 2.5, 101)
    each = [BruteForce(shared, data, float(np.exp(2 * log))) for log in logs]
    score = np.array([one.log_evidence() for one in each]) - 0.5 * (logs / SCALE_WIDTH) ** 2
    share = np.exp(score - score.max()) / np.exp(score - score.max()).sum()
    mean, variance = (np.array(part) for part in zip(*(one.at(X) for one in each)))
    variance = variance + np.exp(2 * logs)[:, None] * shared.each()[0].noise(X)
    centre = share @ mean
    return centre, share @ (variance + (mean - centre) ** 2)


@pytest.mark.parametrize("n", [2, 8, 40])
@pytest.mark.parametrize("noise", [0.1, 0.8])
def test_three_scales_stand_for_all(n, noise):
    shared, data = two_sites(n, noise)
    curve = CommonSiteCurve(shared, *data.client(0))
    centre, variance = integrated(shared, data, PLANE)
    found, std = curve.predict(PLANE)
    np.testing.assert_allclose(found, centre, atol=0.03 * np.sqrt(variance.max()))
    np.testing.assert_allclose(std**2, curve._judged().short[0] * variance, rtol=0.05)
    assert curve._weights.sum() == pytest.approx(1.0)
    drawn = curve.sample(PLANE, 20_000, np.random.default_rng(0))
    np.testing.assert_allclose(drawn.mean(axis=1), found, atol=0.05 * std.max())
    np.testing.assert_allclose(drawn.std(axis=1), std, rtol=0.06)


@pytest.mark.parametrize("n", [5, 40])
def test_a_site_whose_rows_lie_further_off_than_they_should_is_wider(n):
    """By their mean square with three rows more that lie as they should."""
    shared, own = of_two_columns(n, noise=3.0)
    curve = CommonSiteCurve(shared, *own)
    told = own_rows(*shared.each()[0], (own[0][None], own[1][None]))
    mean, variance = (part[:, 0] for part in told.left_out(own[1][None], own_scales([told])[0]))
    centre = SHARES @ mean
    spread = SHARES @ (variance + (mean - centre) ** 2)
    off = (float(np.sum((own[1] - centre) ** 2 / spread)) + 3.0) / (n + 3.0)
    assert off > 1.02
    np.testing.assert_allclose(curve._judged().short[0], off, rtol=1e-9)
    _, common, left, _ = site_posterior(*shared.each()[0], own, PLANE)
    noise = shared.each()[0].noise(PLANE)
    assert (curve.predict(PLANE)[1] ** 2 > 3.0 * (common + left + noise)).all()


def test_a_site_closer_to_the_common_curve_than_others_is_narrower():
    shared, own = of_two_columns(40, noise=0.02)
    curve, member = CommonSiteCurve(shared, *own), shared.each()[0]
    _, common, left, _ = site_posterior(*member, own, PLANE)
    assert curve._judged().short[0] == 1.0
    assert (curve.predict(PLANE)[1] ** 2 < 0.5 * (common + left + member.noise(PLANE))).all()


@pytest.mark.parametrize(("n", "most"), [(0, 500), (40, 39)])
def test_no_rows_and_too_many_say_nothing_of_a_scale(n, most):
    shared, own = of_two_columns(n, noise=1.5)
    curve = CommonSiteCurve(shared, *own, max_points=most, large="subset")
    member = shared.each()[0]
    _, common, left, _ = site_posterior(*member, curve._own, PLANE)
    np.testing.assert_allclose(curve.predict(PLANE)[1] ** 2, common + left + member.noise(PLANE))


def exact_left(form, theta, rows, X):
    """Variance of a departure given rows, in longer numbers than usual."""
    K = _departure(form, theta, rows, rows).astype(np.longdouble)
    cross, n = _departure(form, theta, rows, X).astype(np.longdouble), len(rows)
    K[np.diag_indices(n)] += np.exp(np.longdouble(theta[-1]))
    for k in range(n):
        factor = K[k + 1 :, k] / K[k, k]
        K[k + 1 :] -= np.outer(factor, K[k])
        cross[k + 1 :] -= np.outer(factor, cross[k])
    return np.diagonal(_departure(form, theta, X, X)) - (cross**2 / np.diagonal(K)[:, None]).sum(0)


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no longer numbers than usual")
def test_little_that_is_left_of_a_large_departure_is_not_rounding():
    """A smooth own curve of variance 100 beside noise of 1e-8, as functions without noise have."""
    shared, own = of_two_columns(30, noise=0.0)
    form = form_of(KINDS[1], shared.places)
    theta = start_of(form, 1.0)
    theta[[5, 6, 7, -1]] = np.log([100.0, 15.0, 15.0, 1e-8])
    X = np.random.default_rng(2).uniform(-1.2, 1.2, (40, 2))
    points = points_at(form, theta, shared.places)
    known = weights(form, theta, sums(pack(Federation.from_clients([own])), 1, form, theta, points))
    found = site_posterior(form, theta, points, known, own, X)[2]
    many = sites_posterior(
        form, theta, points, known, (own[0][None], own[1][None]), X, np.zeros(len(X), dtype=int)
    )[2]
    joint = np.diagonal(site_joint(form, theta, points, known, own, X)[2])
    exact = exact_left(form, theta, own[0], X).astype(float)
    assert exact.min() > 0 and np.median(exact) < 1e-4
    for left in (found, many, joint):
        np.testing.assert_allclose(left, exact, rtol=1e-2)


@pytest.mark.parametrize("at_once", [1 << 24, 1])
def test_many_sites_at_once_are_as_wide_as_each_by_itself(at_once, monkeypatch):
    monkeypatch.setattr(common_site, "MOST_KEPT", at_once)
    shared, own = of_two_columns(30, noise=3.0)
    members, y = shared.each(), np.zeros(len(PLANE))
    quiet = own[0], 0.1 * own[1]
    two = [CommonSiteCurve(shared, *one, members=members) for one in (own, quiet)]
    foresee([(curve, PLANE) for curve in two])
    assert CommonSiteCurve(shared, *own)._judged().short[0] > 1.02
    for curve, rows in zip(two, (own, quiet)):
        alone = CommonSiteCurve(shared, *rows)
        assert curve._kept, "foreseen"
        for a, b in zip(curve.moments(PLANE), alone.moments(PLANE)):
            np.testing.assert_allclose(a, b, rtol=1e-9)
        np.testing.assert_allclose(curve.log_density(PLANE, y), alone.log_density(PLANE, y))
        elsewhere = PLANE[:1] + 0.1
        np.testing.assert_allclose(curve.predict(elsewhere), alone.predict(elsewhere), rtol=1e-9)
