"""Conformal intervals hold per site and at new sites, also with a wrong model."""

import numpy as np
import pytest

from fedkin import ODCL, Federation, MixedModel
from fedkin.inference import conformalize


def curved(m, n, seed=0, noise=0.3):
    """A quadratic, which a line does not fit; sites differ in level."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(m * n, 1))
    groups = np.repeat([f"site-{k}" for k in range(m)], n)
    level = np.repeat(np.random.default_rng(99).normal(size=m), n)
    return x, x[:, 0] ** 2 + level + noise * rng.standard_t(4, size=m * n), groups


@pytest.fixture(scope="module")
def fitted():
    return conformalize(MixedModel(random="intercept"), *curved(20, 60), level=0.9)


def held(model, X, y, groups):
    _, ends = model.predict_interval(X, groups)
    return (ends[:, 0] <= y) & (y <= ends[:, 1])


def test_a_wrong_model_holds_what_it_says_overall_and_per_site(fitted):
    X, y, groups = curved(20, 400, seed=1)
    inside = held(fitted, X, y, groups)
    assert 0.88 <= inside.mean() <= 0.92
    by_site = inside.reshape(20, 400).mean(axis=1)
    assert np.mean(by_site >= 0.86) >= 0.9


def test_new_sites_are_held_on_average(fitted):
    rng = np.random.default_rng(5)
    x = rng.uniform(-2, 2, size=(6000, 1))
    level = np.repeat(rng.normal(size=300), 20)
    y = x[:, 0] ** 2 + level + 0.3 * rng.standard_t(4, size=6000)
    assert 0.86 <= held(fitted, x, y, "nowhere").mean() <= 0.97


def test_exact_quantiles_are_ranks_of_left_out_scores():
    X, y, groups = curved(4, 30)
    model = conformalize(MixedModel(random="intercept"), X, y, groups, level=0.9, method="exact")
    np.testing.assert_array_equal(model.multipliers, model.quantiles)
    new = curved(4, 500, seed=2)
    assert held(model, *new).mean() >= 0.88
    few = conformalize(MixedModel(random="intercept"), *curved(4, 5), level=0.9, method="exact")
    assert np.isinf(few.quantiles).all()


def test_noisy_sites_get_wider_intervals():
    rng = np.random.default_rng(3)
    groups = np.repeat(["a", "b", "c", "d"], 200)
    noise = np.repeat([0.1, 0.1, 0.1, 3.0], 200)
    X = rng.normal(size=(800, 1))
    y = X[:, 0] + noise * rng.normal(size=800)
    model = conformalize(ODCL(n_clusters=1), X, y, groups)
    assert model.multipliers[3] > 10 * model.multipliers[0]


def test_a_federation_does_and_small_sites_are_served():
    X, y, groups = curved(10, 12)
    data = Federation.from_groups(X, groups, y)
    model = conformalize(MixedModel(random="intercept"), data, level=0.95)
    assert np.isfinite(model.multipliers).all() and np.isinf(model.quantiles).all()
    mean, ends = model.predict_interval(data)
    assert ends.shape == (120, 2) and (ends[:, 0] < mean).all() and (mean < ends[:, 1]).all()
    np.testing.assert_allclose(model.predict(data), mean)


@pytest.mark.parametrize(
    ("options", "words"), [({"method": "x"}, "method"), ({"level": 2}, "level")]
)
def test_what_cannot_be_is_said(options, words):
    with pytest.raises(ValueError, match=words):
        conformalize(MixedModel(), *curved(3, 5), **options)
    with pytest.raises(ValueError, match="target"):
        conformalize(MixedModel(), curved(3, 5)[0], None, curved(3, 5)[2])
