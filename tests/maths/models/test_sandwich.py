"""Standard errors against numerical differentiation, refits without a client, and closed forms."""

import numpy as np
import pytest
from scipy.special import logsumexp

from fedkin.federation import Federation
from fedkin.models import sandwich
from fedkin.models.grouped_regression import (
    Noise,
    Parameters,
    coefficient_errors,
    density_coefficients,
    noise_density,
)
from fedkin.models.grouped_regression import _kinds as kinds_of_regressions
from fedkin.models.kinds_degrees_fit import Way, clients_of, fit, likelihood_of
from fedkin.models.least_squares import packed_statistics, solve
from fedkin.models.sandwich import Kinds, Terms, known_inverse, moves, of_kinds


def regressions(m=9, n=6, seed=0, apart=1.0):
    """Packed statistics (q, m) of clients of two overlapping regressions."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(m), n)
    X = rng.normal(size=(m * n, 2))
    coef = apart * np.array([[1.0, 0.5, 0.0], [-0.2, 0.3, 1.0]])
    y = (np.column_stack([X, np.ones(m * n)]) * coef[owner % 2]).sum(axis=1) + rng.normal(
        size=m * n
    )
    return packed_statistics(Federation.from_groups(X, owner, y), True), coef


def derivatives(function, point, step=1e-4):
    """Gradient (m, P) and curvature (m, P, P) of a function of a point with m values."""
    eye = step * np.eye(len(point))
    gradient = np.array([(function(point + e) - function(point - e)) / (2 * step) for e in eye])
    bend = np.array(
        [
            [
                function(point + a + b)
                - function(point + a - b)
                - function(point - a + b)
                + function(point - a - b)
                for b in eye
            ]
            for a in eye
        ]
    ) / (4 * step**2)
    return gradient.T, bend.transpose(2, 0, 1)


@pytest.mark.parametrize("robust", [False, True])
def test_terms_of_kinds_are_the_derivatives_of_the_clients_likelihoods(robust):
    statistics, coef = regressions()
    noise = Noise(np.zeros(3), 4.0)
    outside = noise_density(statistics, noise) if robust else None
    weights = np.array([0.5, 0.3, 0.2]) if robust else np.array([0.6, 0.4])
    sigma = 1.1

    def loglik(point):
        logits = np.append(point[6:], 0.0)
        logs = logits - logsumexp(logits)
        at = Parameters(point[:6].reshape(1, 2, 3), np.array([sigma]), np.exp(logs)[None])
        joint = density_coefficients(at)[0] @ statistics
        joint = joint if outside is None else np.vstack([joint, outside])
        return logsumexp(joint + logs[:, None], axis=0)

    point = np.append(coef.ravel() + 0.1, np.log(weights[:-1] / weights[-1]))
    at = Parameters(point[:6].reshape(1, 2, 3), np.array([sigma]), weights[None])
    (clients,) = kinds_of_regressions(statistics, at, outside)
    found = of_kinds(clients, weights)
    gradient, bend = derivatives(loglik, point)
    assert np.allclose(found.scores, gradient, rtol=1e-5, atol=1e-6)
    assert np.allclose(found.informations, -bend, rtol=1e-4, atol=1e-4)
    given = of_kinds(clients, None)
    assert np.allclose(given.informations, -bend[:, :6, :6], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", [Way(True, False), Way(False, True), Way(True, True)], ids=str)
def test_clients_scores_are_the_slopes_of_their_likelihoods(way):
    statistics, _ = regressions(m=14, n=8)
    clients = clients_of(statistics, "isotropic")
    found = fit(clients, way, 1)
    coef, likelihood = clients.inside(found.coef) + 0.1, likelihood_of(clients, way)
    scores = likelihood.evaluate(coef, found.numbers).scores()
    gradient, _ = derivatives(
        lambda point: likelihood.evaluate(point[None], found.numbers).loglik[0], coef[0]
    )
    assert scores.shape == (1, 3, 14)
    assert np.allclose(scores[0].T, gradient, rtol=1e-5, atol=1e-6)


def test_moves_of_one_regression_are_those_of_refits_without_the_client():
    statistics, _ = regressions()
    coef = solve(statistics.sum(axis=1))[0]
    at = Parameters(coef[None, None], np.array([0.7]), np.ones((1, 1)))
    (clients,) = kinds_of_regressions(statistics, at, None)
    terms = of_kinds(clients, None)
    refits = np.array(
        [
            solve(np.delete(statistics, k, axis=1).sum(axis=1))[0] - coef
            for k in range(statistics.shape[1])
        ]
    )
    assert np.allclose(moves(terms, terms.informations.sum(axis=0)), refits, atol=1e-6)


def test_of_many_clients_errors_are_the_jackknifes_and_of_few_they_believe_the_model():
    statistics, _ = regressions(m=12)
    coef = solve(statistics.sum(axis=1))[0]
    at = Parameters(coef[None, None], np.array([0.7]), np.ones((1, 1)))
    found = coefficient_errors(statistics, at)
    refits = np.array([solve(np.delete(statistics, k, 1).sum(axis=1))[0] for k in range(12)])
    away = refits - coef
    assert found.by_sites.all() and found.degrees == pytest.approx(11.0)
    assert np.allclose(found.covariance[0], 11 / 12 * away.T @ away, rtol=1e-5)
    few = coefficient_errors(statistics[:, :4], at)
    (clients,) = kinds_of_regressions(statistics[:, :4], at, None)
    gram = clients.information.sum(axis=(0, 1))
    assert not few.by_sites.any() and few.degrees == pytest.approx(4 * 6 - 3)
    assert np.allclose(few.covariance[0], np.linalg.inv(gram))


def test_of_equal_kinds_weights_are_not_known_and_move_nothing():
    """All that is known of the weights cancels: what rounding leaves of it must not count."""
    statistics, _ = regressions(m=40)
    coef = solve(statistics.sum(axis=1))[0]
    at = Parameters(coef[None, None].repeat(2, axis=1), np.ones(1), np.full((1, 2), 0.5))
    (clients,) = kinds_of_regressions(statistics, at, None)
    given = np.array([0.3, 0.7])
    clients = clients._replace(share=clients.share * 0.0 + given)  # .3 and .7 are rounded
    terms = of_kinds(clients, given)
    total = sandwich._Terms(clients, given).total()
    assert not total[-1].any() and not total[:, -1].any() and np.diagonal(total)[:6].all()
    assert np.allclose(total, terms.informations.sum(axis=0), atol=1e-9)
    moved = moves(terms, total)
    assert np.isfinite(moved).all() and not moved[:, -1].any() and moved[:, :6].all()


def test_clients_too_many_to_be_left_out_one_by_one_have_about_the_same_errors(monkeypatch):
    statistics, coef = regressions(m=150, apart=2.0)
    at = Parameters(coef[None], np.ones(1), np.full((1, 2), 0.5))
    exact = coefficient_errors(statistics, at)
    monkeypatch.setattr(sandwich, "MOST_KEPT", 0)
    quick = coefficient_errors(statistics, at)
    found, wanted = (np.sqrt(np.einsum("kdd->kd", e.covariance)) for e in (quick, exact))
    assert np.allclose(found, wanted, rtol=0.05)
    assert not np.allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize("robust", [False, True])
def test_clients_are_left_out_the_same_with_and_without_matrices(monkeypatch, robust, learnt):
    statistics, coef = regressions(m=400, apart=0.7)
    statistics[:, 3] *= 100.0  # one client with a good deal of the information
    outside = noise_density(statistics, Noise(np.zeros(3), 4.0)) if robust else None
    weights = np.array([0.5, 0.3, 0.2]) if robust else np.array([0.6, 0.4])
    at = Parameters(coef[None], np.ones(1), weights[None])
    exact = coefficient_errors(statistics, at, outside, learnt)
    heavy, some = [], sandwich._Terms.some
    monkeypatch.setattr(sandwich._Terms, "some", lambda *a: heavy.append(a[1]) or some(*a))
    monkeypatch.setattr(sandwich, "MOST_MATRICES", 0)
    series = coefficient_errors(statistics, at, outside, learnt)
    assert len(heavy) == 1 and 3 in heavy[0] and len(heavy[0]) < 200
    np.testing.assert_allclose(series.covariance, exact.covariance, rtol=1e-8)
    (clients,) = kinds_of_regressions(statistics, at, outside)
    terms = of_kinds(clients, weights if learnt else None)
    found = sandwich._Terms(clients, weights if learnt else None)
    np.testing.assert_allclose(found.scores, terms.scores, atol=1e-10)
    np.testing.assert_allclose(found.total(), terms.informations.sum(axis=0), atol=1e-9)
    vectors = np.random.default_rng(0).normal(size=terms.scores.shape)
    by_matrices = np.einsum("mij,mj->mi", terms.informations, vectors)
    np.testing.assert_allclose(found.times(vectors), by_matrices, atol=1e-9)


def test_one_client_with_most_of_the_rows_does_not_count_as_many():
    statistics, coef = regressions(m=10)
    statistics[:, 0] *= 1e4
    at = Parameters(coef[None, :1], np.ones(1), np.ones((1, 1)))
    assert not coefficient_errors(statistics, at).by_sites.any()


def test_what_nothing_is_known_of_has_no_error():
    found = known_inverse(np.array([[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 4.0]]))
    assert np.isnan(found[:2]).all() and found[2, 2] == pytest.approx(0.25)
    clients = Kinds(np.ones((6, 1)), np.zeros((6, 1, 1)), np.zeros((6, 1, 1, 1)), *[np.ones(6)] * 2)
    assert np.isnan(sandwich.kinds_errors([clients], None, 1.0).covariance).all()


def test_units_of_columns_change_nothing_but_units():
    statistics, coef = regressions(m=8)
    at = Parameters(coef[None, :1], np.ones(1), np.ones((1, 1)))
    (clients,) = kinds_of_regressions(statistics, at, None)
    terms = of_kinds(clients, None)
    unit = np.array([1e6, 1e-6, 1.0])
    scaled = Terms(terms.scores / unit, terms.informations / unit[:, None] / unit)
    plain = moves(terms, terms.informations.sum(axis=0))
    assert np.allclose(moves(scaled, scaled.informations.sum(axis=0)) / unit, plain, rtol=1e-6)
