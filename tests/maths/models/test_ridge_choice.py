"""Penalties that are found, beside scikit-learn's and beside leaving rows out."""

import numpy as np
import pytest
from scipy.linalg import hadamard
from scipy.special import expit
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeCV

from fedkin import ODCL, LocalERM, NaiveAveraging
from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics
from fedkin.models.local_loss import local_loss
from fedkin.models.logistic_ridge import STRENGTHS as LOGISTIC_STRENGTHS
from fedkin.models.ridge_choice import STRENGTHS, choose_ridge


def one_site(X, y):
    return Federation.from_groups(X, np.full(len(y), "a"), y)


def sums(data, fit_intercept=True):
    return np.ascontiguousarray(packed_statistics(data, fit_intercept).T)


@pytest.mark.parametrize("seed", range(4))
def test_for_all_where_rows_have_the_same_leverage_it_is_ridge_cv(seed):
    """Columns of a Hadamard matrix: leave-one-out and its generalised form are the same."""
    rng = np.random.default_rng(seed)
    X = hadamard(16)[:, 1:8].astype(float)
    y = X @ rng.normal(size=7) * 0.3 + rng.normal(size=16) + 2.0
    found = choose_ridge(sums(one_site(X, y)), True, common=True)
    oracle = RidgeCV(16 * STRENGTHS).fit(X, y)
    assert found.alpha[0] == pytest.approx(oracle.alpha_ / 16, rel=1e-9)


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("n", [6, 40])
def test_scores_and_freedom_are_the_textbooks_with_scaled_columns(n, common):
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, 8)) * 10.0 ** rng.uniform(-3, 3, 8) + 5.0
    y = rng.normal(size=n) + 100.0
    found = choose_ridge(sums(one_site(X, y)), True, common=common)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)

    def score(alpha):
        hat = Z @ np.linalg.solve(Z.T @ Z + n * alpha * np.eye(8), Z.T) + 1.0 / n
        squares, df = ((y - Ridge(n * alpha).fit(Z, y).predict(Z)) ** 2).sum(), np.trace(hat)
        if common:
            return df, squares / n / (1 - df / n) ** 2
        # (n + 1) (n - 2) / n over (n - df) (n - df - 1): S_p as Breiman and Freedman have it.
        left = (n - df) * (n - df - 1)
        return df, squares * (n + 1) * (n - 2) / n / left if n - df > 1 else np.inf

    freedom, least = score(found.alpha[0])
    assert found.freedom[0] == pytest.approx(freedom, rel=1e-6)
    assert found.score[0] == pytest.approx(least, rel=1e-6)
    # Near interpolation both are rounding over rounding.
    others = [score(alpha)[1] for alpha in STRENGTHS if alpha > 1e-4]
    assert least <= min(others) * (1 + 1e-5)
    fitted = LocalERM(alpha="auto").fit(X, y, groups=np.full(n, "a"))
    own = choose_ridge(sums(one_site(X, y)), True).alpha[0]
    oracle = Ridge(n * own).fit(Z, y)
    np.testing.assert_allclose(fitted.coef_[0], oracle.coef_ / X.std(axis=0), rtol=1e-6)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_the_score_of_least_squares_is_its_error_at_rows_drawn_alike(fit_intercept):
    """Eight rows, three normal columns; generalised cross-validation would be a quarter too low."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 8, 3))
    slopes = rng.normal(size=(4000, 3))
    y = np.einsum("knp,kp->kn", X, slopes) + rng.normal(size=(4000, 8))
    data = Federation.from_clients(list(zip(X, y)))
    expected = choose_ridge(sums(data, fit_intercept), fit_intercept, np.array([1e-9])).score
    fitted = LocalERM(alpha=0.0, fit_intercept=fit_intercept).fit(data)
    found = 1.0 + ((fitted.coef_ - slopes) ** 2).sum(axis=1) + fitted.intercept_**2
    difference = expected - found
    assert abs(difference.mean()) < 4.0 * difference.std() / np.sqrt(4000) < 0.12 * found.mean()


def test_with_hardly_more_rows_than_columns_a_penalty_of_its_own_keeps_a_site_from_far_guesses():
    """Six rows, four columns: generalised cross-validation runs through the rows of many sites."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 6, 4))
    slopes = 0.5 * rng.normal(size=(300, 4))
    y = np.einsum("knp,kp->kn", X, slopes) + rng.normal(size=(300, 6))
    data = Federation.from_clients(list(zip(X, y)))
    plain, own = (LocalERM(alpha=alpha).fit(data) for alpha in (0.0, None))
    far_off = [((model.coef_ - slopes) ** 2).sum(axis=1).mean() for model in (plain, own)]
    assert far_off[1] < 0.3 * far_off[0]


def test_two_rows_say_nothing_of_a_slope():
    found = choose_ridge(sums(one_site(np.array([[0.0], [1.0]]), np.array([0.0, 9.0]))), True)
    assert found.alpha[0] == STRENGTHS[0]


def test_one_strength_for_all_is_not_led_by_a_site_of_other_units():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(10, 8, 3))
    y = X @ [1.0, -1.0, 0.5] + 0.3 * rng.normal(size=(10, 8))
    y[0] *= 1e6
    alike, plain = (
        choose_ridge(sums(Federation.from_clients(list(zip(X[k:], y[k:])))), True, common=True)
        for k in (0, 1)
    )
    assert len(set(alike.alpha)) == 1
    assert abs(np.log10(alike.alpha[0] / plain.alpha[0])) <= 0.5


def test_the_logistic_strength_has_the_least_loss_at_rows_left_out():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 2)) * [1.0, 50.0]
    y = np.where(rng.uniform(size=30) < expit(X @ [1.0, 0.02]), 1.0, 0.0)
    local = local_loss(one_site(X, y), "logistic", True, "auto")
    chosen = local.strengths[0, 0] / X[:, 0].var()
    np.testing.assert_allclose(local.strengths[0], [*(chosen * X.var(axis=0)), 0.0])

    def loss_left_out(alpha):
        scale, total = X.std(axis=0), 0.0
        for k in range(30):
            rest = np.arange(30) != k
            fitted = LogisticRegression(C=1 / (29 * alpha), tol=1e-8).fit(X[rest] / scale, y[rest])
            score = fitted.decision_function(X[[k]] / scale)[0]
            total += np.logaddexp(0.0, -(2 * y[k] - 1) * score)
        return total

    tried = LOGISTIC_STRENGTHS[2:10]
    losses = np.array([loss_left_out(alpha) for alpha in tried])
    (mine,) = losses[np.isclose(tried, chosen)]
    assert mine <= 1.005 * losses.min()


def test_a_separable_site_gets_a_model_of_reasonable_size():
    X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    groups, y = np.full(4, "a"), [0, 0, 1, 1]
    weak, found = (LocalERM("logistic", alpha=a).fit(X, y, groups=groups) for a in (None, "auto"))
    assert abs(found.coef_[0, 0]) < 5 < abs(weak.coef_[0, 0])


# ------------------------------------------------------------------ weights of rows


def weighted_sites():
    rng = np.random.default_rng(0)
    groups = np.repeat(["a", "b", "c"], [20, 30, 25])
    X = rng.normal(size=(75, 2)) + 1.0
    y = X @ [1.0, -2.0] + rng.normal(size=75)
    weights = rng.uniform(0.0, 3.0, 75)
    weights[::10] = 0.0
    return X, y, groups, weights


@pytest.mark.parametrize("alpha", [None, 0.3])
def test_weighted_rows_of_a_site_are_scikit_learns(alpha):
    X, y, groups, weights = weighted_sites()
    fitted = LocalERM(alpha=alpha).fit(X, y, groups=groups, sample_weight=weights)
    for k, site in enumerate("abc"):
        rows = (groups == site) & (weights > 0)
        plain = LinearRegression() if alpha is None else Ridge(alpha * rows.sum())
        oracle = plain.fit(X[rows], y[rows], sample_weight=weights[rows])
        np.testing.assert_allclose(fitted.coef_[k], oracle.coef_, rtol=1e-9)
        np.testing.assert_allclose(fitted.intercept_[k], oracle.intercept_, rtol=1e-9)


def test_weighted_rows_of_all_sites_are_one_weighted_least_squares():
    X, y, groups, weights = weighted_sites()
    fitted = ODCL(1, aggregate="statistics").fit(X, y, groups=groups, sample_weight=weights)
    oracle = LinearRegression().fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(fitted.cluster_coef_[0], oracle.coef_, rtol=1e-9)


def test_weighted_logistic_rows_are_scikit_learns():
    X, y, groups, weights = weighted_sites()
    fitted = LocalERM("logistic", alpha=0.01)
    fitted.fit(X, y > 0, groups=groups, sample_weight=weights)
    for k, site in enumerate("abc"):
        rows = groups == site
        strength = 0.01 * weights[rows].sum()
        oracle = LogisticRegression(C=1 / strength, tol=1e-10, max_iter=1000)
        oracle.fit(X[rows], y[rows] > 0, sample_weight=weights[rows])
        np.testing.assert_allclose(fitted.coef_[k], oracle.coef_[0], rtol=1e-4)


def test_a_weight_of_two_is_a_row_twice_for_the_coefficients():
    X, y, groups, _ = weighted_sites()
    double = np.where(np.arange(75) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(75), double.astype(int))
    for loss, target in (("squared", y), ("logistic", (y > 0).astype(float))):
        weighted = LocalERM(loss, alpha=0.0 if loss == "squared" else 0.1)
        weighted.fit(X, target, groups=groups, sample_weight=double)
        copied = LocalERM(loss, alpha=weighted.alpha)
        copied.fit(X[twice], target[twice], groups=groups[twice])
        np.testing.assert_allclose(weighted.coef_, copied.coef_, rtol=1e-7)


def test_stochastic_steps_refuse_weights():
    X, y, groups, weights = weighted_sites()
    with pytest.raises(ValueError, match="take no weights"):
        ODCL(1, solver="sgd").fit(X, y, groups=groups, sample_weight=weights)
    assert NaiveAveraging().fit(X, y, groups=groups, sample_weight=weights).n_clusters_ == 1
