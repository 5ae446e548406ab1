"""Predictive distributions by numerical integration, conditioning by hand, and samples."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from fedkin.federation import Federation
from fedkin.models.curves import Independent, Rescaled
from fedkin.models.gaussian_process import evaluate
from fedkin.models.gp_posterior import SiteCurve
from fedkin.models.gp_rows import prepare
from fedkin.models.kernels import form_of, to_spec

FORM = form_of(to_spec(ConstantKernel(1.0) * RBF(0.5) + WhiteKernel(0.1)), 1)
X = np.array([[0.1], [0.4], [0.45], [0.9]])
Y = np.array([1.0, 4.0, 3.0, -2.0])
AT = np.array([[0.2], [0.7], [1.6]])


def curve(theta, weights, **others):
    return SiteCurve(FORM, np.log(theta), np.asarray(weights), X, Y, 1.0, 3.0, **others)


ONE = curve([[1.2, 0.3, 0.2]], [1.0])
TWO = curve([[1.2, 0.3, 0.2], [0.5, 1.5, 0.05]], [0.3, 0.7])
FAR = curve([[1.2, 0.3, 0.2]], [1.0], between=4.0)


def integrated(one, at):
    """Mass, mean and variance of the predictive density at single rows."""
    grid = np.linspace(-60.0, 60.0, 40_001)
    step = grid[1] - grid[0]
    for x in at:
        density = np.exp(one.log_density(np.repeat(x[None], len(grid), axis=0), grid)) * step
        mean = density @ grid
        yield density.sum(), mean, density @ (grid - mean) ** 2


@pytest.mark.parametrize("one", [ONE, TWO, FAR], ids=["one prior", "two priors", "level unknown"])
@pytest.mark.parametrize("scale", [None, 2.5])
def test_mean_and_deviation_are_those_of_the_density(one, scale):
    one = one if scale is None else Rescaled(one, -1.0, scale)
    for found, mean, std in zip(integrated(one, AT), *one.predict(AT), strict=True):
        np.testing.assert_allclose(found, [1.0, mean, std**2], rtol=1e-6, atol=1e-8)


def test_independent_targets_have_the_density_of_their_moments():
    one = Independent(lambda rows: (rows[:, 0], 0.2 + rows[:, 0]))
    for found, x in zip(integrated(Rescaled(one, 3.0, 4.0), AT), AT[:, 0], strict=True):
        np.testing.assert_allclose(found, [1.0, 3 + 4 * x, (4 * (0.2 + x)) ** 2], rtol=1e-6)


@pytest.mark.parametrize("one", [ONE, FAR], ids=["level known", "level unknown"])
def test_predictions_and_samples_are_those_of_conditioned_rows(one):
    """By the textbook: C_zz - C_zx inv(C_xx) C_xz, in units of 3, plus the level's variance."""
    scale, length, noise = 1.2, 0.3, 0.2
    points = np.concatenate([AT, X])[:, 0]
    whole = scale * np.exp(-0.5 * ((points[:, None] - points) / length) ** 2)
    whole += noise * np.eye(len(points))
    to_rows = whole[:3, 3:] @ np.linalg.inv(whole[3:, 3:])
    expected = 9.0 * (whole[:3, :3] - to_rows @ whole[3:, :3]) + one.between
    mean, std = one.predict(AT)
    np.testing.assert_allclose(std**2, np.diagonal(expected), rtol=1e-9)
    np.testing.assert_allclose(mean, 1.0 + to_rows @ (Y - 1.0), rtol=1e-9)
    drawn = one.sample(AT, 20_000, np.random.default_rng(0))
    np.testing.assert_allclose(np.cov(drawn), expected, atol=0.04 * expected.max())
    np.testing.assert_allclose(drawn.mean(axis=1), mean, atol=0.15)


def test_gradient_by_the_scale_where_jitter_stands_for_noise():
    """By eigenvalues: jitter belongs to the covariance and not to the signal.

    Every row twice and no noise: half of the eigenvalues are zero, whatever the scale.
    """
    places = np.repeat(np.linspace(0, 1, 5), 2)
    data = Federation.from_clients([(places[:, None], np.sin(6 * places))])
    form = form_of(to_spec(ConstantKernel(2.0) * RBF(0.2)), 1)
    found = evaluate(prepare(data, False), form, form.start)
    jitter = found.jitter[0]
    signal = 2.0 * np.exp(-0.5 * ((places[:, None] - places) / 0.2) ** 2)
    values, vectors = np.linalg.eigh(signal)
    values, along = np.maximum(values, 0.0), (vectors.T @ np.sin(6 * places)) ** 2
    share = values / (values + jitter)
    expected = 0.5 * (share - along * share / (values + jitter)).sum()
    assert jitter > 0
    np.testing.assert_allclose(found.gradient[0, 0], expected, rtol=1e-3)
