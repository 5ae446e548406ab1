"""Weights of rows in a mixed model: dense likelihoods, scaled rows, rows that are repeated."""

import numpy as np
import pytest
from mixed_oracles import dense_deviance

from fedkin import Federation, MixedModel


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    groups = np.repeat([f"site-{k}" for k in range(12)], rng.integers(4, 9, 12))
    X, w = rng.normal(size=(len(groups), 2)), rng.uniform(0.2, 4.0, len(groups))
    own = rng.normal(size=(12, 2))[np.unique(groups, return_inverse=True)[1]]
    y = 1.0 + X @ [1.0, -1.0] + own[:, 0] + own[:, 1] * X[:, 0]
    return X, y + 0.5 * rng.normal(size=len(y)) / np.sqrt(w), groups, w


@pytest.mark.parametrize("method", ["reml", "ml"])
def test_the_fit_is_where_the_dense_likelihood_is_largest(rows, method):
    X, y, groups, w = rows
    found = MixedModel([0], method=method).fit(X, y, groups=groups, sample_weight=w)
    design = np.column_stack([X, np.ones(len(X))])

    def criterion(numbers):
        factor = np.array([[numbers[0], 0.0], [numbers[1], numbers[2]]])
        noise = np.exp(numbers[3]) / w
        return dense_deviance(design, y, groups, [0, 2], factor @ factor.T, noise, method)

    lower = np.linalg.cholesky(found.random_covariance_)
    at = np.array([lower[0, 0], lower[1, 0], lower[1, 1], 2 * np.log(found.sigma_)])
    value, beta, covariance = criterion(at)
    assert -2 * found.loglik_ == pytest.approx(value, abs=1e-8)
    np.testing.assert_allclose(np.append(found.coef_, found.intercept_), beta, rtol=1e-7)
    np.testing.assert_allclose(found.coef_se_, np.sqrt(np.diag(covariance))[:2], rtol=1e-7)
    for step in 1e-4 * np.eye(4):
        assert abs(criterion(at + step)[0] - criterion(at - step)[0]) < 1e-7
    more = 2 * (3 + 3 + 1)
    assert found.aic_ == pytest.approx(value + more, abs=1e-8)


@pytest.mark.parametrize(
    "how", [{}, {"site_noise": "own"}, {"robust": True}, {"share": "gradients"}], ids=str
)
def test_weights_are_scaled_rows(rows, how):
    """The same by hand: every column, that of the intercept too, times the root of the weight."""
    X, y, groups, w = rows
    found = MixedModel(["x0"], **how)
    found.fit(*frame(X, y), groups=groups, sample_weight=w)
    root = np.sqrt(w)[:, None]
    by_hand = MixedModel(["x0", "level"], fit_intercept=False, **how)
    by_hand.fit(*frame(X * root, y * root[:, 0], level=root[:, 0]), groups=groups)
    np.testing.assert_allclose(found.coef_, by_hand.coef_[:2], rtol=1e-4)
    np.testing.assert_allclose(found.intercept_, by_hand.coef_[2], rtol=1e-4)
    np.testing.assert_allclose(found.sigma_, by_hand.sigma_, rtol=1e-4)
    logs = np.log(w).sum()
    if how.get("robust"):
        assert not len(found.odd_sites_)
    assert found.loglik_ == pytest.approx(by_hand.loglik_ + 0.5 * logs, abs=1e-4)
    assert found.aic_ == pytest.approx(by_hand.aic_ - logs, abs=1e-3)
    mine, theirs = found.difference_test_, by_hand.difference_test_
    assert mine.statistic == pytest.approx(theirs.statistic, abs=1e-3)


def frame(X, y, **more):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"x0": X[:, 0], "x1": X[:, 1], **more}), y


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_counts_of_weight_w_are_w_equal_rows(rows, family):
    X, _, groups, _ = rows
    rng = np.random.default_rng(5)
    y = rng.poisson(0.7, len(X)).astype(float)
    y = np.minimum(y, 1.0) if family == "binomial" else y
    often = rng.integers(0, 4, len(X))
    model = MixedModel("intercept", family=family)
    found = model.fit(X, y, groups=groups, sample_weight=often)
    again = np.repeat(np.arange(len(X)), often)
    other = MixedModel("intercept", family=family).fit(X[again], y[again], groups=groups[again])
    assert found.loglik_ == pytest.approx(other.loglik_, abs=1e-7)
    np.testing.assert_allclose(found.coef_, other.coef_, atol=1e-5)
    np.testing.assert_allclose(found.random_covariance_, other.random_covariance_, atol=1e-5)


def test_classes_take_weights_and_equal_ones_change_nothing(rows):
    X, _, groups, _ = rows
    labels = np.array(["a", "b", "c"])[np.random.default_rng(6).integers(0, 3, len(X))]
    plain = MixedModel(family="multinomial").fit(X, labels, groups=groups)
    ones = MixedModel(family="multinomial").fit(X, labels, groups=groups, sample_weight=1.0)
    np.testing.assert_allclose(ones.coef_, plain.coef_, atol=1e-10)
    assert ones.left_out_loss_ == pytest.approx(plain.left_out_loss_)
    heavy = np.where(labels == "a", 30.0, 1.0)
    moved = MixedModel(family="multinomial").fit(X, labels, groups=groups, sample_weight=heavy)
    assert (moved.predict(X, groups) == "a").mean() > 0.9


def test_new_sites_bring_their_weights(rows):
    X, y, groups, w = rows
    found = MixedModel().fit(X, y, groups=groups, sample_weight=w)
    own = groups == "site-4"
    twin = Federation.from_groups(X[own], np.full(own.sum(), "twin"), y[own])
    found.adapt(twin.with_weights(w[own]))
    np.testing.assert_allclose(
        found.predict(X[own], "twin"), found.predict(X[own], "site-4"), rtol=1e-9
    )


def test_weights_that_are_none_are_refused_by_site(rows):
    X, y, groups, w = rows
    with pytest.raises(ValueError, match=r"site-0.*negative"):
        MixedModel().fit(X, y, groups=groups, sample_weight=-w)
