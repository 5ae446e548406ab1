"""Weak priors: densities by SciPy, gradient by differences, units of the data."""

import numpy as np
import pytest
from scipy.stats import halfcauchy, halfnorm, norm

from fedkin.models.common_form import CommonForm
from fedkin.models.gp_priors import (
    CURVE_UNIT,
    GROWTH_WIDTH,
    LENGTH_WIDTH,
    NOISE_UNIT,
    PART_UNIT,
    PIVOT_WIDTH,
    common_priors,
    penalty,
    weak_priors,
)

KERNEL = ("constant_value", "length_scale", "length_scale", "noise_level")
SPREAD = np.array([2.0, 5.0])


def test_differences_of_the_penalty_are_those_of_the_densities():
    priors, target = weak_priors(KERNEL, 4.0, SPREAD), 4.0
    one, other = np.array([0.3, 1.0, -0.4, -2.0]), np.array([-0.5, 0.1, 0.6, 0.7])

    def log_density(theta):
        sd = np.exp(0.5 * theta)
        lengths = norm(np.log(SPREAD * np.sqrt(2)), LENGTH_WIDTH).logpdf(theta[1:3]).sum()
        signal = halfnorm(scale=CURVE_UNIT * target).logpdf(sd[0])
        noise = halfnorm(scale=NOISE_UNIT * target).logpdf(sd[3]) + np.log(sd[3])
        return lengths + signal + noise

    found = penalty(priors, one)[0] - penalty(priors, other)[0]
    assert found == pytest.approx(log_density(other) - log_density(one), rel=1e-12)


def test_parts_of_a_common_curve_are_half_cauchy_as_densities_of_logarithms():
    names = CommonForm(1).names
    priors = common_priors(names, 1)
    one, other = np.random.default_rng(3).normal(size=(2, len(names)))

    def log_density(theta):
        common, length, level, slope, own, own_length, pivot, growth, noise = theta
        parts = np.exp(0.5 * np.array([common, level, slope, own]))
        spread = (halfcauchy(scale=PART_UNIT).logpdf(parts) + np.log(parts)).sum()
        lengths = norm(0.0, LENGTH_WIDTH).logpdf([length, own_length]).sum()
        moved = norm(0.0, PIVOT_WIDTH).logpdf(pivot) + norm(0.0, GROWTH_WIDTH).logpdf(growth)
        noise_sd = np.exp(0.5 * noise)
        quiet = halfnorm(scale=NOISE_UNIT).logpdf(noise_sd) + np.log(noise_sd)
        return spread + lengths + moved + quiet

    found = penalty(priors, one)[0] - penalty(priors, other)[0]
    assert found == pytest.approx(log_density(other) - log_density(one), rel=1e-12)


@pytest.mark.parametrize(
    ("names", "priors"),
    [
        (KERNEL, weak_priors(KERNEL, 0.7, SPREAD)),
        (CommonForm(2).names, common_priors(CommonForm(2).names, 2)),
    ],
    ids=["kernel", "common curve"],
)
def test_gradient_equals_finite_differences(names, priors):
    step, theta = 1e-5, np.random.default_rng(0).normal(size=(3, len(names)))
    gradient = penalty(priors, theta)[1]
    for j, unit in enumerate(np.eye(len(names))):
        up, down = (penalty(priors, theta + s * step * unit)[0] for s in (1, -1))
        np.testing.assert_allclose(gradient[:, j], (up - down) / (2 * step), rtol=1e-6, atol=1e-8)


def test_other_units_of_the_data_change_nothing():
    theta = np.array([0.3, 1.0, -0.4, -2.0])
    moved = theta + np.log([100.0, 3.0, 3.0, 100.0])
    one = penalty(weak_priors(KERNEL, 4.0, SPREAD), theta)
    other = penalty(weak_priors(KERNEL, 40.0, 3.0 * SPREAD), moved)
    np.testing.assert_allclose(one[1], other[1], rtol=1e-10)


def test_no_noise_at_all_is_ruled_out_and_no_curve_is_not():
    priors = weak_priors(KERNEL, 1.0, SPREAD)
    quiet, flat = np.array([0.0, 0.0, 0.0, -60.0]), np.array([-60.0, 0.0, 0.0, 0.0])
    assert penalty(priors, quiet)[0] > 20.0 and penalty(priors, flat)[0] < 5.0
    assert penalty(priors, quiet)[1][3] == pytest.approx(-0.5)


def test_absent_parts_cost_nothing():
    form = CommonForm(1)
    priors = common_priors(form.names, 1)
    full = np.array([0.0, 0.2, -np.inf, -np.inf, 0.1, 0.3, 0.5, 0.0, -1.0])
    value, gradient = penalty(priors, full)
    assert np.isfinite(value) and (gradient[2:4] == 0.0).all()


def test_one_length_for_all_features_is_as_long_as_a_row():
    priors = weak_priors(("constant_value", "length_scale", "noise_level"), 1.0, SPREAD)
    assert np.exp(priors.centre[1]) == pytest.approx(np.sqrt(29.0))
