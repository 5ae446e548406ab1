"""Odd sites by their likelihood: no false alarms among many, and none missed."""

import numpy as np
import pytest

from fedkin.inference import odd_by_likelihood, odd_by_misfit
from fedkin.models.kinds_prediction import Misfit


def loglik_of(residuals, sigma):
    n = residuals.shape[1]
    return -0.5 * ((residuals / sigma) ** 2).sum(axis=1) - 0.5 * n * np.log(2 * np.pi * sigma**2)


@pytest.mark.parametrize("seed", range(5))
def test_among_many_clean_sites_none_is_odd(seed):
    """Each at its own level of .01, ten of a thousand would be."""
    residuals = np.random.default_rng(seed).normal(size=(1000, 4))
    odd = odd_by_likelihood(loglik_of(residuals, 1.0), np.full(1000, 4.0), 1.0)
    assert odd.sum() == 0


def test_a_site_with_four_times_the_noise_is_odd_and_one_not_heard_is_not():
    residuals = np.random.default_rng(0).normal(size=(50, 20))
    residuals[7] *= 4
    loglik = loglik_of(residuals, 1.0)
    loglik[9] = np.nan
    odd = odd_by_likelihood(loglik, np.full(50, 20.0), 1.0)
    assert list(np.flatnonzero(odd)) == [7]


def test_with_many_rows_a_small_misfit_is_no_oddness():
    residuals = np.random.default_rng(0).normal(size=(20, 5000))
    residuals[3] *= 1.2
    odd = odd_by_likelihood(loglik_of(residuals, 1.0), np.full(20, 5000.0), 1.0)
    assert not odd.any()


def misfit_of(departure, residual, rows=12.0, directions=3.0):
    m = len(departure)
    return Misfit(departure, np.full(m, directions), residual, np.full(m, rows))


@pytest.mark.parametrize("own_noise", [False, True])
def test_departures_and_noises_that_the_law_gives_are_hardly_ever_odd(own_noise):
    """One draw in a hundred may have an odd departure, and one an odd noise: 1.2 of 60."""
    wrong = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        noise = np.exp(rng.uniform(-4, 4, 300)) if own_noise else np.ones(300)
        misfit = misfit_of(rng.chisquare(3, 300), noise * rng.chisquare(12, 300))
        wrong += odd_by_misfit(misfit, own_noise).any()
    assert wrong <= 5


def test_departures_are_judged_beside_the_median_which_odd_sites_do_not_widen():
    rng = np.random.default_rng(0)
    # Two sites have widened the fitted spread a hundredfold: the others are near zero.
    departure = rng.chisquare(3, 60) / 100.0
    departure[[4, 30]] = 9.0
    assert list(np.flatnonzero(odd_by_misfit(misfit_of(departure, rng.chisquare(12, 60))))) == [
        4,
        30,
    ]


def test_noises_are_judged_beside_the_middle_half():
    rng = np.random.default_rng(0)
    residual = rng.chisquare(12, 60)
    residual[[5, 6]] *= 50.0
    found = odd_by_misfit(misfit_of(np.zeros(60), residual), own_noise=True)
    assert list(np.flatnonzero(found)) == [5, 6]


def test_simulated_curves_have_the_fit_that_was_found():
    """In units of their own spread curves drawn from the fit itself are noisier than the sites'."""
    from fedkin import FGPR
    from fedkin.datasets import make_gaussian_sites
    from fedkin.datasets.fgpr import prior_spec
    from fedkin.estimators.site_evidence import _drawn_scores, _scores_of_draws

    data = make_gaussian_sites(15, 15, prior_spec(0.2, 2.0, 0.1), random_state=0).federation
    model = FGPR(common=False, normalize_y=True, random_state=0).fit(data)
    labels = np.zeros(15, dtype=np.intp)
    theta = model.theta_[labels]

    def off(scores):
        return np.abs(scores.mean(axis=(0, 1)) / scores.std(axis=(0, 1))).max()

    assert off(_scores_of_draws(model, data, (theta, theta), 200, seed=0)) > 0.2
    assert off(_drawn_scores(model, data, theta, labels)) < 0.1
