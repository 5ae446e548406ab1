"""Standard errors of hyper-parameters against the likelihood's curvature by differentiation."""

import numpy as np
import pytest
from scipy.special import logsumexp
from tests.maths.models.test_sandwich import derivatives

from fedkin import FGPR
from fedkin.federation import Federation
from fedkin.models.gaussian_process import evaluate_each
from fedkin.models.gp_errors import neighbours_of, prior_errors
from fedkin.models.gp_priors import penalty, weak_priors
from fedkin.models.gp_rows import prepare


def two_kinds():
    """Curves with little and with much noise at every second site."""
    rng = np.random.default_rng(0)
    X, groups = rng.uniform(0, 3, size=(160, 1)), np.repeat(np.arange(16), 10)
    y = np.sin(2 * X[:, 0] + groups) + np.where(groups % 2, 0.05, 0.7) * rng.normal(size=160)
    return Federation.from_groups(X, groups, y)


@pytest.mark.parametrize("weak", [False, True])
@pytest.mark.parametrize("n_priors", [1, 2])
def test_errors_are_the_inverse_curvature_of_the_likelihood(n_priors, weak):
    clients = two_kinds()
    how = {"common": False, "hyperprior": weak, "n_priors": n_priors, "standard_errors": True}
    model = FGPR(**how, personalise="posterior", normalize_y=False, tol=1e-7).fit(clients)
    form = model._form
    data = prepare(clients, False, "constant", 500, form)
    spread, cut = float(np.sqrt(model._result.target[3])), 3 * n_priors
    priors = weak_priors(form.names, spread, model._result.spread) if weak else None

    def loglik(point):
        at, logits = point[:cut].reshape(-1, 3), np.append(0.0, point[cut:])
        value = evaluate_each(data, form, at).value
        total = logsumexp(logits - logsumexp(logits) - value, axis=1).sum(keepdims=True)
        return total - (0.0 if priors is None else penalty(priors, at)[0].sum())

    share = np.log(model.weights_[1:] / model.weights_[0])
    bend = derivatives(loglik, np.append(model.theta_.ravel(), share), 1e-3)[1][0]
    wanted = np.sqrt(np.diag(np.linalg.inv(-bend)))[:cut].reshape(-1, 3)
    assert np.allclose(model.theta_se_, wanted, rtol=5e-3)
    ends = model.conf_int(0.9)
    assert np.allclose(ends.mean(axis=-1), model.theta_)
    assert np.allclose((ends[..., 1] - ends[..., 0]) / 2, 1.6448536 * wanted, rtol=5e-3)


def test_a_parameter_at_its_bound_has_no_error_and_the_others_have():
    near = neighbours_of(np.array([[0.0, 1.0]]), np.array([0.0, -5.0]), np.full(2, 5.0))
    assert near.open.tolist() == [[0, 1]] and near.theta.shape == (3, 2)
    gradient = np.array([[[0.0, 0.0], [0.0, 0.004], [0.0, -0.004]]])
    found = prior_errors((np.zeros((1, 3)), gradient), near, np.ones(1), None)
    assert np.isnan(found[0, 0]) and found[0, 1] == pytest.approx(0.5)
