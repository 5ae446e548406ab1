"""Odd sites neither set the mean nor the covariance of the effects, and are named."""

import numpy as np
import pytest
from mixed_oracles import with_intercept

from fedkin.federation import Federation
from fedkin.models import linear_mixed_fit, robust_mixed
from fedkin.models.least_squares import packed_statistics


def poisoned(seed, kind, n_clients=60, least=10, most=31, d=2, effect=0.5, uneven=0.0):
    """Packed statistics, true coefficients of every client, and which are poisoned (10 %)."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(least, most, n_clients)
    codes = np.repeat(np.arange(n_clients), sizes)
    X = with_intercept(rng.normal(size=(len(codes), d)))
    coef = np.linspace(-0.7, 2.3, d + 1) + effect * rng.normal(size=(n_clients, d + 1))
    spread = np.exp(uneven * rng.normal(size=n_clients))
    y = (X * coef[codes]).sum(axis=1) + spread[codes] * rng.normal(size=len(codes))
    bad = np.zeros(n_clients, dtype=bool)
    bad[rng.permutation(n_clients)[: n_clients // 10]] = True
    rows = bad[codes]
    if kind == "wrong units":
        y[rows] *= 1000.0
    elif kind == "flipped sign":
        y[rows] *= -1.0
    elif kind == "pure noise":
        y[rows] = 10.0 * rng.normal(size=rows.sum())
    elif kind == "feature in wrong units":
        X[rows, 0] *= 1000.0
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    clients = Federation(X[:, :-1], offsets, tuple(map(str, range(n_clients))), y)
    return packed_statistics(clients, True), coef, bad


def error_at_clean(found, coef, bad):
    return np.sqrt(np.mean((found.client_coef[~bad] - coef[~bad]) ** 2))


@pytest.mark.parametrize("uneven", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["wrong units", "flipped sign", "pure noise"])
def test_ten_per_cent_of_poison_leaves_the_error_at_clean_sites_alone(kind, uneven):
    ratios, found_out, falsely = [], [], []
    for seed in range(4):
        statistics, coef, bad = poisoned(seed, kind, uneven=uneven)
        found = robust_mixed.robust_fit(statistics, np.arange(3))
        clean = linear_mixed_fit.fit(statistics[:, ~bad], np.arange(3))
        without = np.sqrt(np.mean((clean.client_coef - coef[~bad]) ** 2))
        ratios.append(error_at_clean(found.fit, coef, bad) / without)
        found_out.append(found.odd[bad].mean())
        falsely.append(found.odd[~bad].mean())
    assert max(ratios) < 1.10
    # Where the sites' noises spread anyhow, a noisy site counts for less and need not be odd.
    assert np.mean(found_out) > (0.95 if uneven == 0 or kind != "pure noise" else 0.5)
    assert np.mean(falsely) < 0.03


def test_a_plain_fit_is_wrecked_by_what_the_robust_one_sees():
    """The test above can fail."""
    statistics, coef, bad = poisoned(0, "wrong units")
    plain = linear_mixed_fit.fit(statistics, np.arange(3))
    robust = robust_mixed.robust_fit(statistics, np.arange(3))
    assert error_at_clean(plain, coef, bad) > 3 * error_at_clean(robust.fit, coef, bad)
    np.testing.assert_array_equal(robust.odd, bad)


@pytest.mark.parametrize("random", [np.array([2]), np.array([2, 0])])
def test_fewer_random_columns_are_fine_too(random):
    statistics, _, bad = poisoned(5, "wrong units")
    found = robust_mixed.robust_fit(statistics, random)
    clean = linear_mixed_fit.fit(statistics[:, ~bad], random)
    np.testing.assert_array_equal(found.odd[bad], True)
    np.testing.assert_allclose(found.fit.coef, clean.coef, atol=0.15)


def test_sites_in_other_units_of_a_feature_do_not_set_the_scales():
    """A search started in their units ended where the others' slopes have no variance."""
    statistics, coef, bad = poisoned(0, "feature in wrong units")
    plain = linear_mixed_fit.fit(statistics, np.arange(3))
    clean = linear_mixed_fit.fit(statistics[:, ~bad], np.arange(3))
    without = np.sqrt(np.mean((clean.client_coef - coef[~bad]) ** 2))
    assert error_at_clean(plain, coef, bad) < 1.1 * without


def test_without_odd_sites_the_fit_is_nearly_the_plain_one():
    statistics, _, _ = poisoned(6, "none", n_clients=100)
    plain = linear_mixed_fit.fit(statistics, np.arange(3))
    found = robust_mixed.robust_fit(statistics, np.arange(3))
    assert found.odd.mean() <= 0.02
    np.testing.assert_allclose(found.noise_ratio, 1.0, atol=0.3)
    np.testing.assert_allclose(found.fit.coef, plain.coef, atol=0.05)
    np.testing.assert_allclose(
        np.diag(found.fit.random_covariance), np.diag(plain.random_covariance), rtol=0.2
    )


def test_one_odd_site_moves_the_estimate_boundedly():
    statistics, _, _ = poisoned(7, "none")
    before = robust_mixed.robust_fit(statistics, np.arange(3)).fit.coef
    for size in (1e2, 1e4, 1e6):
        worse = statistics.copy()
        # The target of one site times `size`: y'y by its square, X'y once.
        upper = np.triu_indices(4)
        worse[:-1, 0] *= size ** ((upper[0] == 3).astype(float) + (upper[1] == 3).astype(float))
        found = robust_mixed.robust_fit(worse, np.arange(3))
        assert found.odd[0] and found.weights[0] == 0.0
        np.testing.assert_allclose(found.fit.coef, before, atol=0.1)


def test_sites_without_rows_or_with_one_are_no_trouble():
    statistics, _, bad = poisoned(8, "wrong units", least=1, most=8)
    more = np.concatenate([statistics, np.zeros((len(statistics), 2))], axis=1)
    found = robust_mixed.robust_fit(more, np.array([2]))
    assert not found.odd[-2:].any()
    assert np.isfinite(found.fit.coef).all()
    assert found.odd[:-2][bad].mean() > 0.5
