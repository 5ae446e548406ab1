"""The Kalman path against the covariance of all readings, by hand and by finite differences."""

import mpmath
import numpy as np
import pytest
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from fedkin.federation import Federation
from fedkin.models import gaussian_process, state_lanes
from fedkin.models.gp_rows import basis_at, input_frame, mean_basis, prepare
from fedkin.models.kernels import form_of, to_spec
from fedkin.models.matern_states import SMOOTHNESS, gaps_of, innovation_scale, stationary
from fedkin.models.state_filter import advance, both_sides, hankel
from fedkin.models.state_posterior import posterior
from fedkin.models.state_space import evaluate, readings

SCALE, LENGTH, NOISE = 1.3, 0.8, 0.05
FULL = np.log([SCALE, LENGTH, NOISE])
MEANS = ("zero", "constant", "linear")


def sites(sizes=(1, 2, 7, 40, 130), seed=0):
    """Unsorted times, some of them repeated."""
    rng = np.random.default_rng(seed)
    clients = []
    for n in sizes:
        times = rng.uniform(-3, 7, n)
        times[: n // 3] = np.round(times[: n // 3])
        clients.append((times[:, None], np.sin(times) + 0.3 * rng.normal(size=n)))
    return Federation.from_clients(clients)


def columns(federation, mean):
    return mean_basis(federation, federation.y, mean)


def read(federation, mean="zero"):
    basis = columns(federation, mean)
    return readings(federation.X[:, 0], federation.y, federation.offsets, basis)


def covariance(smoothness, full, a, b):
    scale, length, _ = np.exp(full)
    return scale * Matern(length, nu=smoothness)(a[:, None], b[:, None])


def dense(smoothness, full, times, y, basis):
    """Value and gradient by the definition."""
    kernel = ConstantKernel(np.exp(full[0])) * Matern(np.exp(full[1]), nu=smoothness)
    K, slopes = (kernel + WhiteKernel(np.exp(full[2])))(times[:, None], eval_gradient=True)
    K = K + basis @ basis.T
    root = np.linalg.cholesky(K)
    half = np.linalg.solve(root, y)
    value = 0.5 * (half @ half + len(y) * np.log(2 * np.pi)) + np.log(np.diag(root)).sum()
    inverse = np.linalg.inv(K)
    weights = inverse @ y
    return value, 0.5 * np.einsum("ij,ijp->p", inverse - np.outer(weights, weights), slopes)


@pytest.fixture(params=[1, 3], ids=["whole", "cut in three"])
def cut(request, monkeypatch):
    """Series walked whole, or in up to three pieces whatever their size."""
    monkeypatch.setattr(state_lanes, "n_pieces", lambda size, n: min(size, request.param))


# ------------------------------------------------------------------ the states


@pytest.mark.parametrize("smoothness", SMOOTHNESS)
def test_the_state_steps_with_the_covariance_of_the_curve(smoothness):
    x = np.array([[0.0, 1e-3, 0.4, 0.9, 3.0, 40.0]])
    gaps, still = gaps_of(smoothness, x), stationary(smoothness)
    for w, gap in enumerate(x[0]):
        ahead = advance(gaps.coefficients[0][:, [w]], still[:, :, None])[0, 0, 0]
        expected = Matern(np.sqrt(2 * smoothness), nu=smoothness)([[0.0]], [[gap]])[0, 0]
        assert ahead == pytest.approx(expected, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("smoothness", SMOOTHNESS)
def test_a_step_keeps_the_stationary_covariance(smoothness):
    gaps, still = (
        gaps_of(smoothness, np.array([[0.0, 1e-6, 0.3, 0.49, 0.51, 5.0]])),
        stationary(smoothness),
    )
    moved = both_sides(advance, gaps.coefficients[0], np.repeat(still[:, :, None], 6, axis=2))
    innovation = innovation_scale(smoothness)[:, :, None] * hankel(gaps.integrals[0])
    np.testing.assert_allclose(
        moved + innovation, np.repeat(still[:, :, None], 6, axis=2), rtol=1e-14
    )


@pytest.mark.parametrize("smoothness", SMOOTHNESS)
def test_innovations_over_tiny_gaps_keep_all_their_digits(smoothness):
    x = np.array([[1e-12, 1e-5, 0.1, 0.4999, 0.5001, 2.0, 30.0]])
    found = gaps_of(smoothness, x).integrals[0]
    for w, gap in enumerate(x[0]):
        for k, integral in zip(range(len(found) - 1, -1, -1), found[:, w]):
            exact = mpmath.gammainc(k + 1, 0, 2 * mpmath.mpf(gap)) / mpmath.mpf(2) ** (k + 1)
            assert abs(integral / exact - 1) < 1e-12


# ------------------------------------------------------------------ likelihood and gradient


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("smoothness", SMOOTHNESS)
@pytest.mark.usefixtures("cut")
def test_value_and_gradient_equal_the_dense_ones(smoothness, mean):
    federation = sites()
    found, basis = evaluate(read(federation, mean), smoothness, FULL), columns(federation, mean)
    for k, part in enumerate(np.split(np.arange(len(basis)), federation.offsets[1:-1])):
        times, y = federation.client(k)
        value, gradient = dense(smoothness, FULL, times[:, 0], y, basis[part])
        assert found.value[k] == pytest.approx(value, rel=1e-9)
        np.testing.assert_allclose(found.gradient[k], gradient, atol=1e-9 * np.abs(gradient).max())


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("smoothness", SMOOTHNESS)
def test_it_is_the_path_of_all_readings_with_its_parameters(smoothness, mean):
    """Same clients, same convention of the mean, same order of the parameters."""
    federation = sites()
    kernel = ConstantKernel(SCALE) * Matern(LENGTH, nu=smoothness) + WhiteKernel(NOISE)
    form = form_of(to_spec(kernel), 1)
    data = prepare(federation, False, mean)
    other = gaussian_process.evaluate(data, form, form.start)
    location = data.location[federation.owner]
    centred = Federation(
        federation.X, federation.offsets, federation.names, federation.y - location
    )
    found = evaluate(read(centred, mean), smoothness, form.start)
    np.testing.assert_allclose(found.value[data.rows > 0], other.value[data.rows > 0], rtol=1e-9)
    largest = np.abs(other.gradient).max(axis=1, keepdims=True)
    assert (
        np.abs(found.gradient - other.gradient)[data.rows > 0] <= 1e-9 * largest[data.rows > 0]
    ).all()


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("smoothness", SMOOTHNESS)
@pytest.mark.usefixtures("cut")
def test_gradient_equals_finite_differences(smoothness, mean):
    data, step = read(sites(), mean), 1e-3
    found = evaluate(data, smoothness, FULL)
    for j, unit in enumerate(np.eye(3)):
        f = [evaluate(data, smoothness, FULL + s * step * unit).value for s in (-2, -1, 1, 2)]
        numeric = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * step)
        size = np.abs(found.gradient).max(axis=1)
        assert (np.abs(found.gradient[:, j] - numeric) <= 1e-8 * size + 1e-9).all()


@pytest.mark.parametrize("n_pieces", [2, 7, 40])
@pytest.mark.parametrize("smoothness", SMOOTHNESS)
def test_cutting_a_series_changes_nothing(smoothness, n_pieces, monkeypatch):
    federation = sites((400,))
    monkeypatch.setattr(state_lanes, "n_pieces", lambda size, n: 1)
    whole = evaluate(read(federation), smoothness, FULL)
    monkeypatch.setattr(state_lanes, "n_pieces", lambda size, n: n_pieces)
    cut = evaluate(read(federation), smoothness, FULL)
    assert cut.value[0] == pytest.approx(whole.value[0], rel=1e-12)
    np.testing.assert_allclose(cut.gradient, whole.gradient, rtol=1e-10)


@pytest.mark.parametrize(
    ("length", "noise"), [(5.0, 1e-8), (0.3, 1e-10), (50.0, 1e-6), (1e4, 1e-8)]
)
@pytest.mark.parametrize("smoothness", SMOOTHNESS)
@pytest.mark.usefixtures("cut")
def test_little_noise_costs_no_digits(smoothness, length, noise):
    """Against sixty digits; the covariance of all readings keeps six to nine of sixteen here."""
    rng = np.random.default_rng(1)
    times = np.sort(rng.uniform(0, 1, 24))
    times[10] = times[11]
    y = np.sin(6 * times) + 0.01 * rng.normal(size=24)
    data = readings(times, y, np.array([0, 24]))
    found = evaluate(data, smoothness, np.log([1.0, length, noise])).value[0]
    assert abs(found / exact_value(smoothness, length, noise, times, y) - 1) < 1e-10


def exact_value(smoothness, length, noise, times, y):
    with mpmath.workdps(60):
        t = [mpmath.mpf(float(v)) for v in times]
        rate = mpmath.sqrt(2 * mpmath.mpf(smoothness)) / mpmath.exp(
            mpmath.mpf(float(np.log(length)))
        )

        def entry(i, j):
            x = rate * abs(t[i] - t[j])
            shape = {0.5: 1, 1.5: 1 + x, 2.5: 1 + x + x * x / 3}[smoothness]
            return shape * mpmath.exp(-x) + (i == j) * mpmath.exp(mpmath.mpf(float(np.log(noise))))

        n = len(t)
        K = mpmath.matrix(n, n)
        for i in range(n):
            for j in range(n):
                K[i, j] = entry(i, j)
        target = mpmath.matrix([mpmath.mpf(float(v)) for v in y])
        fit = (target.T * mpmath.lu_solve(K, target))[0]
        root = mpmath.cholesky(K)
        log_det = 2 * sum(mpmath.log(root[i, i]) for i in range(n))
        return (fit + log_det + n * mpmath.log(2 * mpmath.pi)) / 2


def test_each_client_may_have_its_own_parameters_and_order_is_irrelevant():
    federation = sites()
    full = FULL + 0.1 * np.arange(5)[:, None]
    whole = evaluate(read(federation), 1.5, full)
    for k in range(5):
        times, y = federation.client(k)
        shuffled = np.random.default_rng(k).permutation(len(y))
        data = readings(times[shuffled, 0], y[shuffled], np.array([0, len(y)]))
        alone = evaluate(data, 1.5, full[k])
        np.testing.assert_allclose(whole.value[k], alone.value[0], rtol=1e-12)
        np.testing.assert_allclose(whole.gradient[k], alone.gradient[0], rtol=1e-9, atol=1e-12)


def test_where_one_client_ends_and_the_next_begins_does_not_matter():
    """Times of one client may lie far before those of the client above it."""
    times, y = np.array([1e6, 1e6 + 1.0, 0.0, 2.0]), np.array([1.0, 0.5, -1.0, 0.3])
    found = evaluate(readings(times, y, np.array([0, 2, 4])), 2.5, FULL)
    for k in range(2):
        part = slice(2 * k, 2 * k + 2)
        alone = evaluate(readings(times[part], y[part], np.array([0, 2])), 2.5, FULL)
        assert found.value[k] == pytest.approx(alone.value[0], rel=1e-12)
        np.testing.assert_allclose(found.gradient[k], alone.gradient[0], rtol=1e-10)


def test_a_client_without_rows_adds_nothing():
    data = readings(np.array([0.0, 1.0]), np.array([1.0, 2.0]), np.array([0, 0, 2, 2]))
    found = evaluate(data, 1.5, FULL)
    assert found.value[0] == found.value[2] == 0.0 and found.value[1] != 0.0


def test_repeated_readings_without_noise_need_jitter_and_it_is_recorded():
    times = np.repeat(np.linspace(0, 1, 30), 2)
    data = readings(times, np.sin(6 * times), np.array([0, 60]))
    full = np.array([np.log(2.0), np.log(0.5), -np.inf])
    for smoothness in SMOOTHNESS:
        found = evaluate(data, smoothness, full)
        assert found.jitter[0] > 0 and np.isfinite(found.value).all()
        assert np.isfinite(found.gradient).all() and found.gradient[0, 2] == 0.0
    assert evaluate(data, 1.5, FULL).jitter[0] == 0.0


def test_a_long_series_is_the_sum_of_its_far_apart_parts():
    """Parts a thousand length scales apart are independent: 100,000 readings checked by 50."""
    rng = np.random.default_rng(3)
    times, y = rng.uniform(0, 40, (2000, 50)), rng.normal(size=(2000, 50))
    apart = times + 1000.0 * np.arange(2000)[:, None]
    one = evaluate(readings(apart.ravel(), y.ravel(), np.array([0, 100_000])), 2.5, FULL)
    many = evaluate(readings(times.ravel(), y.ravel(), np.arange(0, 100_001, 50)), 2.5, FULL)
    assert one.value[0] == pytest.approx(many.value.sum(), rel=1e-10)
    np.testing.assert_allclose(one.gradient[0], many.gradient.sum(axis=0), rtol=1e-6)


# ------------------------------------------------------------------ posterior


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("smoothness", SMOOTHNESS)
@pytest.mark.usefixtures("cut")
def test_posterior_equals_the_dense_one(smoothness, mean):
    federation, rng = sites(), np.random.default_rng(9)
    counts = np.array([4, 0, 9, 30, 3])
    new = Federation.from_clients([rng.uniform(-6, 12, (max(n, 1), 1)) for n in counts])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    places = np.concatenate([new.client(k)[0][:n, 0] for k, n in enumerate(counts)])
    places[offsets[3]] = federation.client(3)[0][0, 0]
    basis = columns(federation, mean)
    ahead = new_basis(federation, places, counts, mean)
    found = posterior(read(federation, mean), smoothness, FULL, places, offsets, ahead)
    for k in range(5):
        rows = slice(federation.offsets[k], federation.offsets[k + 1])
        at = slice(offsets[k], offsets[k + 1])
        times, y = federation.X[rows, 0], federation.y[rows]
        K = covariance(smoothness, FULL, times, times) + basis[rows] @ basis[rows].T
        cross = covariance(smoothness, FULL, places[at], times) + ahead[at] @ basis[rows].T
        own = SCALE + (ahead[at] ** 2).sum(axis=1)
        weights = np.linalg.solve(K + NOISE * np.eye(len(y)), np.column_stack([y, cross.T]))
        np.testing.assert_allclose(found[0][at], cross @ weights[:, 0], rtol=1e-9, atol=1e-9)
        expected = own - np.einsum("ij,ji->i", cross, weights[:, 1:])
        np.testing.assert_allclose(found[1][at], expected, atol=1e-9 * own.max(initial=1.0))


def new_basis(federation, places, counts, mean):
    """The mean function's columns at new places."""
    if mean == "zero":
        return np.zeros((len(places), 0))
    owner = np.repeat(np.arange(len(counts)), counts)
    centre, spread = input_frame(federation)
    size = np.array([np.sqrt(np.mean(federation.client(k)[1] ** 2)) for k in range(len(counts))])
    return basis_at(places[:, None], centre[owner], spread[owner], mean, size[owner])


def test_a_client_without_readings_is_predicted_by_the_prior():
    data = readings(np.zeros(0), np.zeros(0), np.array([0, 0]), np.zeros((0, 1)))
    at = np.array([[2.0], [3.0]])
    mean, variance = posterior(data, 1.5, FULL, np.array([1.0, 5.0]), np.array([0, 2]), at)
    np.testing.assert_allclose(mean, 0.0)
    np.testing.assert_allclose(variance, SCALE + at[:, 0] ** 2)
