"""Batched logistic regression against scikit-learn and finite differences."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fedkin.federation import Federation
from fedkin.models.local_loss import LogisticLoss


def ragged(n_clients=9, d=4, seed=0, least=30, most=80):
    rng = np.random.default_rng(seed)
    clients = []
    for _ in range(n_clients):
        X = rng.normal(size=(int(rng.integers(least, most)), d))
        chance = 1 / (1 + np.exp(-X @ np.linspace(-1, 1, d) - 0.5))
        clients.append((X, (rng.random(len(X)) < chance).astype(float)))
    return Federation.from_clients(clients)


def by_scikit_learn(X, y, alpha, fit_intercept):
    model = LogisticRegression(
        C=1 / (alpha * len(y)),
        fit_intercept=fit_intercept,
        solver="newton-cholesky",
        tol=1e-12,
        max_iter=10_000,
    ).fit(X, y)
    return np.append(model.coef_[0], model.intercept_) if fit_intercept else model.coef_[0]


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("alpha", [1e-3, 0.1])
def test_every_client_gets_scikit_learns_fit(fit_intercept, alpha):
    data = ragged()
    coef, settled = LogisticLoss.of(data, fit_intercept, alpha).minimise()
    assert settled.all()
    for k in range(len(data)):
        expected = by_scikit_learn(*data.client(k), alpha, fit_intercept)
        np.testing.assert_allclose(coef[k], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_fewer_rows_than_coefficients_are_solved_in_the_span_of_the_rows(fit_intercept):
    data = ragged(5, d=25, least=6, most=15)
    coef = LogisticLoss.of(data, fit_intercept, 0.01).fit()
    for k in range(len(data)):
        X, y = data.client(k)
        if len(np.unique(y)) == 2:
            expected = by_scikit_learn(X, y, 0.01, fit_intercept)
            np.testing.assert_allclose(coef[k], expected, atol=1e-5)


def test_the_gradient_vanishes_at_the_fit_and_is_the_slope_of_the_loss():
    data = ragged(4)
    loss, unpenalised = (LogisticLoss.of(data, True, alpha) for alpha in (0.01, 0.0))
    fitted = loss.fit()
    assert np.abs(loss.gradients(fitted)).max() < 1e-12
    at = np.random.default_rng(1).normal(size=fitted.shape)
    gradient = unpenalised.gradients(at)
    for j in range(at.shape[1]):
        move = 1e-6 * np.eye(at.shape[1])[j]
        up, down = (np.diag(loss.losses(at + sign * move)) for sign in (1.0, -1.0))
        np.testing.assert_allclose(gradient[:, j], (up - down) / 2e-6, atol=1e-7)


def test_curvature_is_the_slope_of_the_gradient():
    loss = LogisticLoss.of(ragged(3), True, 0.1)
    at = np.random.default_rng(2).normal(size=(3, 5))
    curvature = loss.curvatures(at)
    move = 1e-6 * np.eye(5)
    for j in range(5):
        up = loss.gradients(at + move[j])
        down = loss.gradients(at - move[j])
        np.testing.assert_allclose(curvature[:, :, j], (up - down) / 2e-6, atol=1e-7)


def test_separable_and_one_class_clients_have_finite_fits_of_small_loss():
    X = np.arange(-3.0, 4.0)[:, None]
    separable = (X, (X[:, 0] > 0).astype(float))
    one_class = (X, np.ones(7))
    loss = LogisticLoss.of(Federation.from_clients([separable, one_class]), True, 0.0)
    coef, settled = loss.minimise()
    assert np.isfinite(coef).all() and settled.all()
    assert np.diag(loss.losses(coef)).max() < 1e-5


def test_sampling_covariance_covers_the_truth():
    """Standardised errors of 400 clients have the chi-square's mean."""
    rng = np.random.default_rng(3)
    truth = np.array([1.0, -0.5, 0.3])
    clients = []
    for _ in range(400):
        X = rng.normal(size=(300, 2))
        chance = 1 / (1 + np.exp(-X @ truth[:2] - truth[2]))
        clients.append((X, (rng.random(300) < chance).astype(float)))
    loss = LogisticLoss.of(Federation.from_clients(clients), True, 0.0)
    coef = loss.fit()
    covariance = loss.covariances(coef)
    off = coef - truth
    squares = np.einsum("mi,mij,mj->m", off, np.linalg.inv(covariance), off)
    assert abs(squares.mean() - 3) < 4 * np.sqrt(6 / 400)  # four standard errors


def test_too_few_rows_give_no_covariance():
    data = Federation.from_clients([(np.eye(3), np.array([0.0, 1.0, 0.0]))])
    assert not LogisticLoss.of(data, True, 0.1).covariances(np.zeros((1, 4))).any()


def test_a_target_that_is_no_class_names_its_site():
    data = Federation.from_clients({"A": (np.eye(2), [0.0, 1.0]), "B": (np.eye(2), [0.0, 2.0])})
    with pytest.raises(ValueError, match=r"site 'B': the target has the value 2; .* recode it"):
        LogisticLoss.of(data, True, 0.1)
