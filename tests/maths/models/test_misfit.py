"""How far rows are from where a question puts them: against brute force and what can be seen."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy.special import expit

from fedkin.federation import Federation
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import joint_mixture as joint
from fedkin.models import regression_mixture as regression
from fedkin.models import shaped_mixture as shaped
from fedkin.models.misfit import LEAST_ROWS, of_classes, of_groups, times_as_far


def test_rows_of_a_group_are_as_far_as_it_says():
    rows = np.random.default_rng(0).normal(size=(400, 3))
    assert times_as_far(rows, np.ones(400)) == pytest.approx(1.0, abs=0.15)
    assert times_as_far(rows / 5.0, np.ones(400)) == pytest.approx(0.2, abs=0.03)


def test_the_direction_that_is_worst_decides():
    rows = np.random.default_rng(0).normal(size=(4000, 3)) * [1.0, 1.0, 7.0]
    assert times_as_far(rows, np.ones(4000)) == pytest.approx(7.0, rel=0.06)
    moved = np.random.default_rng(0).normal([0.0, 4.0, 0.0], size=(4000, 3))
    assert times_as_far(moved, np.ones(4000)) == pytest.approx(np.sqrt(17.0), rel=0.05)


@pytest.mark.parametrize(("n_rows", "d"), [(12, 3), (30, 10), (60, 20)])
def test_few_rows_in_many_columns_are_not_far_by_chance(n_rows, d):
    rng = np.random.default_rng(1)
    each = [times_as_far(rng.normal(size=(n_rows, d)), np.ones(n_rows)) for _ in range(200)]
    assert max(each) < 1.5 and 0.75 < np.median(each) < 1.0


def test_groups_of_few_rows_are_not_looked_at():
    rows = 100.0 * np.ones((50, 2))
    share = np.full(50, (LEAST_ROWS - 0.1) / 50)
    assert times_as_far(rows, share) == 0.0
    assert times_as_far(rows, share * 1.1) > 50.0


def test_the_worst_group_of_every_client_counts_for_all_its_rows():
    rng = np.random.default_rng(2)
    sizes = np.array([40, 0, 60])
    offsets = rng.normal(size=(2, 100, 2))
    offsets[1, 40:] *= 6.0
    shares = rng.dirichlet([1.0, 1.0], size=100)
    found = of_groups(offsets.__getitem__, shares, sizes)
    by_hand = [
        max(times_as_far(offsets[r, own], shares[own, r]) for r in range(2))
        for own in (slice(0, 40), slice(40, 100))
    ]
    np.testing.assert_allclose(found, np.repeat(by_hand, [40, 60]))
    assert by_hand[0] < 1.5 < 4.0 < by_hand[1]


# ------------------------------------------------------------------ rows about components


def three_clients(d=2, seed=3):
    rng = np.random.default_rng(seed)
    rows = {
        f"s{k}": (rng.normal(size=(n, d)) + k, rng.normal(size=n)) for k, n in enumerate((5, 9, 7))
    }
    return Federation.from_clients(rows), rng


@pytest.mark.parametrize("kind", ["identity", "spherical", "diag", "tied"])
def test_rows_about_means_in_units_of_their_covariance(kind):
    clients, rng = three_clients()
    means = rng.normal(size=(3, 2, 2))
    root = rng.normal(size=(3, 2, 2))
    covariance = {
        "identity": None,
        "spherical": rng.uniform(1, 2, size=3),
        "diag": rng.uniform(1, 2, size=(3, 2)),
        "tied": root @ root.mT + np.eye(2),
    }[kind]
    parameters = gaussian.Parameters(np.full((3, 2), 0.5), means, covariance)
    squares = gaussian.matrices(parameters)
    spread = np.broadcast_to(squares[:, None, None], (len(squares), 1, 2, 2, 2))
    groups = shaped.Groups(parameters.weights[:, None], means[:, None], spread)
    away = shaped.away(gaussian.prepare(clients), groups, 0, 1)
    for i, k in enumerate(clients.owner):
        own = clients.X[i] - means[k, 1]
        expected = own @ np.linalg.inv(squares[k % len(squares)]) @ own
        assert away[i] @ away[i] == pytest.approx(expected)


def test_residuals_about_regressions_in_units_of_the_noise():
    clients, rng = three_clients()
    coef, sigma = rng.normal(size=(3, 2, 2, 3)), rng.uniform(1, 2, size=(3, 2))
    parameters = regression.Parameters(np.full((3, 2, 2), 0.5), coef, sigma)
    rows = regression.prepare(clients, fit_intercept=True)
    design = np.column_stack([clients.X, np.ones(len(clients.X))])
    for s in range(2):
        away = regression.away(rows, parameters, s, 1)
        own = clients.owner
        expected = (clients.y - (design * coef[own, s, 1]).sum(axis=1)) / sigma[own, s]
        np.testing.assert_allclose(away[:, 0], expected)


def test_rows_about_components_of_both_kinds_at_once():
    clients, rng = three_clients()
    root = rng.normal(size=(3, 2, 2))
    shared = joint.Shared(
        rng.normal(size=(3, 2)), root @ root.mT + np.eye(2), rng.normal(size=(2, 3)), 0.7
    )
    away = joint.away(clients.X, shared, 2)
    about = clients.X - shared.centers[2]
    expected = np.einsum("ni,ij,nj->n", about, np.linalg.inv(shared.covariances[2]), about)
    np.testing.assert_allclose(np.square(away).sum(axis=1), expected)
    coef = shared.coef[1]
    residual = clients.y - clients.X @ coef[:2] - coef[2]
    found = joint.away_from_regression(clients.X, clients.y, shared, 1)
    np.testing.assert_allclose(found[:, 0], residual / 0.7)


def test_rows_with_labels_are_told_from_others():
    clients, _ = three_clients()
    labels = np.where(np.arange(len(clients.X)) % 3 == 0, 1.0, -1.0)
    labelled = Federation(clients.X, clients.offsets, clients.names, labels)
    np.testing.assert_array_equal(gaussian.prepare(labelled, True).unlabelled, labels < 0)
    assert gaussian.prepare(clients).unlabelled.all()


# ------------------------------------------------------------------ classes


def yes_and_no(seed=4, n=300):
    rng = np.random.default_rng(seed)
    eta = 2.0 * rng.normal(size=n)
    y = (rng.random(n) < expit(eta)).astype(float)
    return eta, np.stack([1.0 - y, y], axis=1), rng


def surprise(eta, hits, owner=None):
    owner = np.zeros(len(eta), dtype=np.intp) if owner is None else owner
    return of_classes(np.stack([np.zeros_like(eta), eta], axis=1), hits, owner)


def test_what_is_as_sure_as_rows_let_it_be_has_one():
    eta, hits, _ = yes_and_no()
    np.testing.assert_allclose(surprise(eta, hits), 1.0)
    np.testing.assert_allclose(surprise(0.2 * eta, hits), 1.0, err_msg="not sure enough")
    separable = np.where(hits[:, 1] > 0, 50.0, -50.0)
    np.testing.assert_allclose(surprise(separable, hits), 1.0)


def test_what_is_too_sure_is_more_surprised_than_a_share_of_it():
    eta, hits, rng = yes_and_no()
    assert 2.0 < surprise(8.0 * eta, hits)[0] < 5.0
    assert surprise(100.0 * eta, hits)[0] > 5.0
    share = np.linspace(0.0, 1.0, 200)[:, None]
    every = np.logaddexp(0.0, -share * 20.0 * eta * (2 * hits[:, 1] - 1)).mean(axis=1)
    beside_the_best = every[-1] / every.min()
    assert surprise(20.0 * eta, hits)[0] == pytest.approx(beside_the_best, rel=0.05)
    noise = 20.0 * rng.normal(size=len(eta))
    by_hand = np.logaddexp(0.0, -noise * (2 * hits[:, 1] - 1)).mean() / np.log(2.0)
    assert surprise(noise, hits)[0] == pytest.approx(by_hand), "nothing is better than noise"


def test_clients_and_points_are_judged_each_for_itself():
    eta, hits, _ = yes_and_no()
    owner = (np.arange(len(eta)) >= 150).astype(np.intp)
    scores = np.stack([eta, np.where(owner == 1, 50.0 * eta, eta)], axis=1)
    found = of_classes(np.stack([np.zeros_like(scores), scores], axis=2), hits, owner)
    assert found.shape == (300, 2)
    np.testing.assert_allclose(found[:150], 1.0, atol=0.05)
    np.testing.assert_allclose(found[150:, 0], 1.0, atol=0.05)
    assert (found[150:, 1] > 3.0).all()
    once = partial(surprise, 50.0 * eta[150:])
    assert found[-1, 1] == pytest.approx(once(hits[150:])[0])
