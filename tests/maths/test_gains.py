"""Intervals of paired differences: closed forms, Monte Carlo, and edge cases."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import polygamma

from fedkin.federation import Federation
from fedkin.inference.gains import Paired, gains, inverse_trigamma, moderated, posterior
from fedkin.models.folds import row_folds, rows_where, site_folds


def paired(differences, trained=0.9):
    """One repetition of given differences by site."""
    sizes = np.array([len(d) for d in differences], float)
    totals = np.array([np.sum(d) for d in differences])
    squares = np.array([np.sum(np.square(d)) for d in differences])
    return Paired(totals[None], squares[None], sizes[None], trained * sizes[None], sizes)


def test_one_site_has_the_corrected_t_interval():
    rng = np.random.default_rng(0)
    d = rng.normal(0.3, 1.0, size=40)
    found = gains(paired([d]))
    error = np.sqrt(d.var(ddof=1) / 40 * (1.0 + 1.0 / 0.9))
    half = stats.t.ppf(0.975, 39) * error
    assert found.own[0] == pytest.approx(d.mean())
    assert found.own_high[0] - found.own[0] == pytest.approx(half)
    assert found.high[0] - found.gain[0] == pytest.approx(half / np.sqrt(1.0 + 1.0 / 0.9))


def test_nadeau_and_bengio_is_what_the_correction_of_splits_gives():
    """A split has the variance of a row times K / n; of it, 1 / K + left out / trained."""
    n, folds = 100.0, 5
    by_split = (1.0 / folds + 1.0 / (folds - 1)) * (folds / n)
    p = Paired(*(np.full((1, 1), v) for v in (0.0, n - 1.0, n, n * (1 - 1 / folds))), np.array([n]))
    half = gains(p).own_high[0] / stats.t.ppf(0.975, n - 1)
    assert half**2 == pytest.approx(by_split)


def test_alike_sites_share_one_gain_and_unlike_ones_keep_their_own():
    rng = np.random.default_rng(1)
    alike = gains(paired([rng.normal(0.2, 1.0, size=30) for _ in range(40)]))
    assert np.ptp(alike.gain) < 0.3 * np.ptp(alike.own)
    assert (alike.high - alike.low).mean() < 0.5 * (alike.own_high - alike.own_low).mean()
    truth = np.repeat([-3.0, 3.0], 20)
    unlike = gains(paired([rng.normal(mu, 1.0, size=30) for mu in truth]))
    np.testing.assert_allclose(unlike.gain, unlike.own, atol=0.02)


def test_posterior_is_the_textbook_one_for_a_known_spread():
    """With very many sites the spread is known: shrinkage v / (v + s), Efron and Morris."""
    rng = np.random.default_rng(2)
    true = rng.normal(1.0, 0.5, size=4000)
    estimates = true + rng.normal(size=4000)
    mean, error, spread = posterior(estimates, np.ones(4000), np.ones((4000, 1)))
    kept = 0.25 / 1.25
    assert spread == pytest.approx(0.5, abs=0.05)
    np.testing.assert_allclose(mean, 1.0 + kept * (estimates - 1.0), atol=0.15)
    assert error.mean() == pytest.approx(np.sqrt(kept), rel=0.1)


def test_posterior_intervals_hold_what_they_say():
    rng = np.random.default_rng(3)
    held = []
    for spread in (0.0, 0.3, 1.0):
        for _ in range(60):
            true = rng.normal(0.5, spread, size=15)
            estimates = true + rng.normal(size=15)
            mean, error, _ = posterior(estimates, np.ones(15), np.ones((15, 1)))
            held.append(np.abs(mean - true) <= 1.96 * error)
    assert 0.93 <= np.mean(held) <= 0.99


def test_variances_are_pulled_to_their_common_value_if_they_have_one():
    rng = np.random.default_rng(4)
    raw = 2.0 * rng.chisquare(9, size=300) / 9
    same = moderated(raw, np.full(300, 9.0), np.full(300, 10.0))
    assert same.own.std() < raw.std() / 3 and same.own.mean() == pytest.approx(2.0, rel=0.1)
    scales = np.exp(3.0 * rng.normal(size=300))
    raw = scales * rng.chisquare(9, size=300) / 9
    unlike = moderated(raw, np.full(300, 9.0), np.full(300, 10.0))
    assert np.median(np.abs(np.log(unlike.own / raw))) < 0.1


def test_small_sites_are_not_pulled_to_the_variances_of_large_ones():
    rng = np.random.default_rng(5)
    sizes = np.repeat([10.0, 1000.0], 100)
    truth = np.repeat([4.0, 0.25], 100)
    raw = truth * rng.chisquare(sizes - 1) / (sizes - 1)
    found = moderated(raw, sizes - 1, sizes)
    np.testing.assert_allclose(found.own[:100].mean(), 4.0, rtol=0.15)


@pytest.mark.parametrize("value", [1e-4, 0.1, 1.0, 50.0])
def testinverse_trigamma(value):
    assert polygamma(1, inverse_trigamma(value)) == pytest.approx(value, rel=1e-6)


def test_tiny_sites_are_not_carried_where_nobody_looked():
    """Ten folds and five are the same ones for sites of five rows or fewer."""
    rng = np.random.default_rng(3)
    sizes = np.tile(np.arange(2.0, 11.0), 12)
    trained = sizes - np.stack([np.maximum(sizes / k, 1.0) for k in (10, 5)])
    each = 3.0 + rng.normal(size=(2, len(sizes)))
    rows = np.tile(sizes, (2, 1))
    found = gains(Paired(rows * each, rows * (each**2 + 1.0), rows, trained, sizes))
    tiny = sizes <= 5
    np.testing.assert_allclose(found.own[tiny], each[:, tiny].mean(axis=0))
    assert found.mean == pytest.approx(3.0, abs=0.4)
    assert abs(found.carried) < 0.3


def test_gains_are_carried_on_to_all_rows():
    """Differences that fall as 1 / trained^2 are told as at the whole size."""
    sizes = np.repeat([20.0, 40.0], 10)
    trained = np.stack([0.9 * sizes, 0.8 * sizes])
    totals = 100.0 / trained**2 * sizes
    p = Paired(totals, totals**2 / sizes + 1e-9 * sizes, np.stack([sizes] * 2), trained, sizes)
    np.testing.assert_allclose(gains(p).own, 100.0 / sizes**2, rtol=1e-9)


def test_sites_without_rows_left_out_are_not_known():
    d = [np.array([0.1, 0.3, 0.2, 0.1])] * 5
    p = paired(d)
    rows = p.rows.copy()
    rows[0, 2] = 0.0
    found = gains(Paired(p.totals * (rows > 0), p.squares * (rows > 0), rows, p.trained, p.sizes))
    assert np.isnan(found.gain[2]) and np.isfinite(np.delete(found.gain, 2)).all()
    assert np.isfinite(found.mean)


# ------------------------------------------------------------------ folds


def federation(sizes=(1, 2, 7, 23)):
    groups = np.repeat([f"site-{k}" for k in range(len(sizes))], sizes)
    return Federation.from_groups(np.arange(len(groups), dtype=float)[:, None], groups)


def test_folds_of_a_site_are_even_and_hang_on_its_name_and_size_alone():
    data = federation()
    fold = row_folds(data, 5, seed=3)
    assert (fold[:1] == -1).all()
    for k in (1, 2, 3):
        counts = np.bincount(fold[data.owner == k], minlength=5)
        assert np.ptp(counts) <= 1
    alone = row_folds(data.take([2]), 5, seed=3)
    np.testing.assert_array_equal(alone, fold[data.owner == 2])
    assert (row_folds(data, 5, seed=4) != fold).any()


def test_sites_are_left_out_in_even_folds():
    fold = site_folds(federation([3] * 13), 5, seed=0)
    assert np.ptp(np.bincount(fold, minlength=5)) <= 1


def test_rows_where_keeps_sites_without_rows():
    data = federation()
    kept = rows_where(data, data.owner != 1)
    assert kept.names == data.names and kept.sizes.tolist() == [1, 0, 7, 23]
