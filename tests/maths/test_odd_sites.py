"""Odd sites by their likelihood: no false alarms among many, and none missed."""

import numpy as np
import pytest

from fedkin.inference import odd_by_likelihood


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
