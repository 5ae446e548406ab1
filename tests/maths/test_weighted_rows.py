"""Weights of rows: scaled rows, the constant they leave out, and weights that are none."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

from fedkin import Federation
from fedkin.models.least_squares import packed_statistics, solve, unpack
from fedkin.models.weighted_rows import log_weights, weighted


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(4)
    X, w = rng.normal(size=(40, 2)), rng.uniform(0.2, 3.0, size=40)
    y = X @ [1.0, -2.0] + 0.5 + rng.normal(size=40) / np.sqrt(w)
    return X, y, w, rng.permutation(np.repeat(["a", "b"], 20))


def test_scaled_rows_give_weighted_least_squares(rows):
    X, y, w, _ = rows
    data = Federation.from_groups(X, np.full(40, "a"), y).with_weights(w)
    coef, _ = solve(packed_statistics(data, True).T)
    oracle = sm.WLS(y, np.column_stack([X, np.ones(40)]), weights=w).fit()
    np.testing.assert_allclose(coef[0], oracle.params, rtol=1e-10)


def test_half_the_log_weights_are_what_the_likelihood_of_scaled_rows_lacks(rows):
    X, y, w, _ = rows
    oracle = sm.WLS(y, X, weights=w).fit()
    scaled, target, logs = weighted(X, y, w)
    assert sm.OLS(target, scaled).fit().llf + logs / 2 == pytest.approx(oracle.llf, abs=1e-9)


def test_weights_follow_their_rows_to_the_sites(rows):
    X, y, w, groups = rows
    data = Federation.from_groups(X, groups, y).with_weights(w)
    gram, cross, square, n = unpack(packed_statistics(data, True).T)
    for k, name in enumerate(data.names):
        own = groups == name
        assert n[k] == own.sum()
        assert gram[k, 2, 2] == pytest.approx(w[own].sum())
        assert cross[k, 0] == pytest.approx((w * X[:, 0] * y)[own].sum())
        assert square[k] == pytest.approx((w * y**2)[own].sum())
        assert log_weights(data)[k] == pytest.approx(np.log(w[own]).sum())


def test_equal_weights_change_nothing_and_a_weight_of_zero_is_no_row(rows):
    X, y, w, groups = rows
    data = Federation.from_groups(X, groups, y)
    plain = packed_statistics(data, True)
    np.testing.assert_allclose(packed_statistics(data.with_weights(np.ones(40)), True), plain)
    kept = np.arange(40) % 3 > 0
    dropped = packed_statistics(data.with_weights(np.where(kept, w, 0.0)), True)
    left = Federation.from_groups(X[kept], groups[kept], y[kept]).with_weights(w[kept])
    np.testing.assert_allclose(dropped, packed_statistics(left, True))


def test_a_site_whose_weights_are_all_zero_stays_without_rows(rows):
    X, y, _, groups = rows
    data = Federation.from_groups(X, groups, y).with_weights((groups == "b").astype(float))
    assert data.names == ("a", "b") and data.sizes.tolist() == [0, 20]


@pytest.mark.parametrize(
    ("weights", "words"),
    [(np.ones(39), "one weight for each"), (np.full(40, -1.0), "site"), (np.zeros(40), "no row")],
)
def test_weights_that_are_none_are_refused(rows, weights, words):
    X, y, _, groups = rows
    with pytest.raises(ValueError, match=words):
        Federation.from_groups(X, groups, y).with_weights(weights)


def test_parts_of_a_federation_keep_their_weights(rows):
    X, y, w, groups = rows
    data = Federation.from_groups(X, groups, y).with_weights(w)
    assert np.array_equal(data.take([1]).weights, data.weights[data.owner == 1])
    train, test = data.split(0.5)
    assert np.sort(np.append(train.weights, test.weights)) == pytest.approx(np.sort(w))
