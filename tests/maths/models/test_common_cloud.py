"""The cloud of parameters of a common curve, where the answer is known."""

import numpy as np
import pytest

from fedkin.models.common_cloud import (
    CLOSED_VOLUME,
    Cloud,
    cloud_around,
    cloud_weights,
    curvature,
    mixed,
    neighbours,
    open_parameters,
    weights_of_clouds,
)

MODE = np.array([0.5, -np.inf, 1.0, -9.0])
LOWER, UPPER = np.full(4, -9.0), np.full(4, 9.0)
BEND = np.array([[2.0, 0.6], [0.6, 1.0]])


def test_absent_parameters_and_those_at_a_bound_stay():
    assert open_parameters(MODE, LOWER, UPPER).tolist() == [0, 2]


def test_curvature_of_a_quadratic_is_its_matrix():
    free = np.array([0, 2])
    gradients = np.zeros((4, 4))
    gradients[:, free] = (neighbours(MODE, free)[:, free] - MODE[free]) @ BEND
    np.testing.assert_allclose(curvature(gradients, free), BEND, rtol=1e-9)


def test_the_weighted_cloud_of_a_normal_posterior_has_its_moments():
    free = np.array([0, 2])
    cloud = cloud_around(MODE, free, BEND, LOWER, UPPER)
    assert (cloud.points[:, [1, 3]] == MODE[[1, 3]]).all()
    away = cloud.points[:, free] - MODE[free]
    weights = cloud_weights(cloud, 0.5 * np.einsum("si,ij,sj->s", away, BEND, away) + 123.0)
    mean = weights @ away
    covariance = (weights[:, None] * away).T @ away
    np.testing.assert_allclose(mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(covariance, np.linalg.inv(BEND), atol=0.2)


def test_flat_directions_are_left_open_no_further_than_named():
    flat = cloud_around(MODE, np.array([0, 2]), np.diag([1e-9, 100.0]), LOWER, UPPER)
    assert 1.0 < flat.points[:, 0].std() < 4.0 and flat.points[:, 2].std() < 0.2


def test_points_far_below_the_best_count_for_nothing():
    cloud = Cloud(np.zeros((3, 1)), np.zeros((3, 1)))
    np.testing.assert_allclose(cloud_weights(cloud, np.array([5.0, 5.0, 50.0])), [0.5, 0.5, 0.0])


def test_clouds_of_several_models_share_by_their_evidence():
    """However many points a cloud has, and whatever its points happen to hit."""
    clouds = [Cloud(np.zeros((n, 1)), np.zeros((n, 1))) for n in (1, 3)]
    weights = weights_of_clouds(clouds, np.array([7.0, 2.0, 2.0, 2.0]), np.log([0.4, 1.2]))
    np.testing.assert_allclose(weights, [0.25, 0.25, 0.25, 0.25])


def test_the_volume_of_a_cloud_is_that_of_a_normal_posterior():
    cloud = cloud_around(MODE, np.array([0, 2]), BEND, LOWER, UPPER)
    area = 2.0 * np.pi / np.sqrt(np.linalg.det(BEND))
    assert np.exp(cloud.log_volume) == pytest.approx(area)
    # One that stays at its bound counts as one of which nothing is known but the bound.
    flat = cloud_around(MODE, np.array([0]), np.zeros((1, 1)), LOWER, UPPER)
    assert flat.log_volume == pytest.approx(CLOSED_VOLUME)


def test_a_mixture_has_the_spread_between_its_means():
    means, variances = np.array([[0.0, 1.0], [2.0, 1.0]]), np.ones((2, 2))
    mean, variance = mixed(means, variances, np.array([0.5, 0.5]))
    np.testing.assert_allclose(mean, [1.0, 1.0])
    np.testing.assert_allclose(variance, [2.0, 1.0])
