"""Single steps of FGPR against Bayes' rule, finite differences and scikit-learn's gradients."""

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor

from fedkin.algorithms.fgpr import FGPR as ALGORITHM
from fedkin.algorithms.fgpr_mixture import _Problem
from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.datasets import make_gaussian_sites, two_kinds_of_priors
from fedkin.datasets.fgpr import prior_spec
from fedkin.engines import InProcess
from fedkin.models.adam import Adam
from fedkin.models.gaussian_process import evaluate_each
from fedkin.models.gp_rows import prepare
from fedkin.models.kernels import form_of, from_spec
from fedkin.protocol import Replies

PLAIN = {"normalize_y": False, "mean": "zero", "personalise": "posterior"}
SPEC = prior_spec(0.3, 1.5, 0.2)


def slope(X, y):
    """The gradient of the negative log likelihood at SPEC, by scikit-learn."""
    kernel = from_spec(SPEC)
    fitted = GaussianProcessRegressor(kernel, alpha=0, optimizer=None).fit(X, y)
    return -fitted.log_marginal_likelihood(kernel.theta, eval_gradient=True)[1]


@pytest.mark.parametrize(("scaling", "scale_divisor"), [("rows", 9.0), ("theory", 3 * np.log(9))])
def test_a_local_step_is_the_papers_gradient(scaling, scale_divisor):
    """Over the rows M of the mini-batch; the scale of the signal, in the theory, over 3 log M."""
    data = make_gaussian_sites(1, 9, random_state=1).federation
    settings = FgprSettings(
        kernel=SPEC,
        optimizer="sgd",
        gradient_scaling=scaling,
        local_steps=1,
        max_rounds=1,
        learning_rate=0.01,
        schedule="constant",
        **PLAIN,
    )
    path = InProcess().run(ALGORITHM, settings, data, 1).result["history_theta"]
    expected = -0.01 * slope(*data.client(0)) / [scale_divisor, 9.0, 9.0]
    np.testing.assert_allclose(path[1] - path[0], expected, rtol=1e-9)


@pytest.fixture(scope="module")
def unequal():
    """Five sites of one kind for every one of the other."""
    every = make_gaussian_sites(40, 12, two_kinds_of_priors(), 0, random_state=1)
    kept = [*np.flatnonzero(every.labels == 0)[:20], *np.flatnonzero(every.labels == 1)[:4]]
    return every.federation.take(np.sort(kept))


def test_sites_settle_by_bayes_rule(unequal):
    settings = FgprSettings(kernel=SPEC, n_priors=2, **PLAIN)
    run = InProcess().run(ALGORITHM, settings, unequal, 1)
    theta, weights = run.result["theta"], run.result["weights"]
    assert weights.max() > 2 * weights.min()
    value = evaluate_each(prepare(unequal, False), form_of(SPEC, 1), theta).value
    likelihood = weights * np.exp(-value)
    np.testing.assert_allclose(run.result["site_loglik"], np.log(likelihood.sum(axis=1)))
    expected = likelihood / likelihood.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(run.memories["responsibilities"], expected, atol=1e-9)


def seen_at(problem, point, data, form):
    """One evaluation of a mixture of priors, as the sites would answer it."""
    program = problem.evaluate(point)
    ask = next(program)
    value, gradient, _ = evaluate_each(data, form, ask.common["theta"])
    arrays = {"value": value, "gradient": gradient, "rows": data.rows}
    with pytest.raises(StopIteration) as end:
        program.send(Replies(np.arange(len(value)), arrays))
    return end.value.value


def test_the_mixtures_gradient_equals_finite_differences(unequal):
    form, data = form_of(SPEC, 1), prepare(unequal, False)
    problem = _Problem(2, form, FgprSettings(kernel=SPEC, n_priors=2, **PLAIN))
    point = np.concatenate([form.start - 0.3, form.start + 0.4, [0.7]])
    numeric = [
        (
            seen_at(problem, point + step, data, form).value
            - seen_at(problem, point - step, data, form).value
        )
        / 2e-5
        for step in 1e-5 * np.eye(len(point))
    ]
    np.testing.assert_allclose(
        seen_at(problem, point, data, form).gradient, numeric, rtol=1e-5, atol=1e-8
    )


def test_bic_counts_the_shares_of_priors(unequal):
    settings = FgprSettings(kernel=SPEC, n_priors=2, **PLAIN)
    result = InProcess().run(ALGORITHM, settings, unequal, 1).result
    n_priors, loglik, bic = result["curve"].T
    free = 3 * n_priors + (n_priors - 1)
    np.testing.assert_allclose(bic, free * np.log(len(unequal.X)) - 2 * loglik)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_adams_steps_along_a_constant_gradient_are_of_length_one(size):
    """From the first step on: averages that begin at zero are corrected for it."""
    adam, gradient = Adam(), size * np.array([1.0, -2.0])
    for number in range(1, 6):
        np.testing.assert_allclose(adam.direction(gradient, number), [1.0, -1.0], rtol=1e-4)
