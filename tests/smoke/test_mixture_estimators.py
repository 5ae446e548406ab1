import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.mixture import GaussianMixture
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedkin
from fedkin import TGMM, FedEM, Federation, FedGMM, FedGrEM, LocalEM, PooledEM
from fedkin.datasets import make_gaussian_mixtures, make_regression_mixtures
from fedkin.engines import InProcess

SITES = make_gaussian_mixtures(6, 120, 0.5, n_outliers=0, n_components=3, random_state=1)
REGRESSIONS = make_regression_mixtures(
    6, 150, 0.3, n_outliers=0, n_components=2, n_features=3, random_state=1
)


@parametrize_with_checks(
    [FedGrEM(), FedEM(), TGMM(), LocalEM(), PooledEM()],
)
def test_scikit_learn_accepts_the_estimator(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        check(estimator)


def joined(sim):
    names = np.array(sim.clients.names)[sim.clients.owner]
    return sim.clients.X, sim.clients.y, names


def agreement(found, truth, n_components):
    """Share of rows in the right group under the best matching of groups."""
    from scipy.optimize import linear_sum_assignment

    table = np.zeros((n_components, n_components))
    np.add.at(table, (found, truth), 1)
    return table[linear_sum_assignment(-table)].sum() / len(truth)


GAUSSIAN = [
    FedGrEM(3, random_state=0),
    FedGrEM(3, shrinkage="paper", max_rounds=1000, random_state=0),
    FedGrEM(3, covariance_type="tied", max_rounds=500, random_state=0),
    FedGrEM(3, covariance_type="diag", random_state=0),
    FedGrEM(3, covariance_type="spherical", init="ward", random_state=0),
    FedEM(3, random_state=0),
    FedEM(3, average="pooled", random_state=0),
    TGMM(3, random_state=0),
    LocalEM(3, random_state=0),
    LocalEM(3, covariance_type="tied", random_state=0),
    PooledEM(3, random_state=0),
]


@pytest.mark.parametrize("estimator", GAUSSIAN, ids=str)
def test_gaussian_faces_agree_about_easy_data(estimator):
    X, _, names = joined(SITES)
    fitted = clone(estimator).fit(X, groups=names)
    assert fitted.means_.shape == (6, 3, 10) and fitted.centers_.shape == (3, 10)
    np.testing.assert_allclose(fitted.weights_.sum(axis=1), 1.0)
    own = fitted.predict(X, groups=names)
    each = [agreement(own[names == n], SITES.labels[names == n], 3) for n in set(names)]
    assert np.mean(each) > 0.97
    share = fitted.predict_proba(X, groups=names)
    np.testing.assert_allclose(share.sum(axis=1), 1.0)
    np.testing.assert_array_equal(share.argmax(axis=1), own)
    assert np.isfinite(fitted.score_samples(X, groups=names)).all()
    assert fitted.score(X, groups=names) > -16
    text = str(fitted.summary())
    assert type(fitted).__name__ in text and "rounds" in text


@pytest.mark.parametrize("kind", ["identity", "tied", "diag", "spherical"])
def test_after_joining_a_group_means_the_same_at_every_site(kind):
    X, _, names = joined(SITES)
    fitted = FedGrEM(3, covariance_type=kind, max_rounds=500, random_state=0).fit(X, groups=names)
    assert agreement(fitted.predict(X, groups=names), SITES.labels, 3) > 0.97


def test_densities_are_those_of_scikit_learn():
    X, _, names = joined(SITES)
    fitted = FedGrEM(3, covariance_type="tied", max_rounds=500, random_state=0).fit(X, groups=names)
    for k in (0, 3):
        site = fitted.client_names_[k]
        other = GaussianMixture(3, covariance_type="tied")
        other.weights_, other.means_ = fitted.weights_[k], fitted.means_[k]
        other.covariances_ = fitted.covariance_
        other.precisions_cholesky_ = np.linalg.cholesky(np.linalg.inv(fitted.covariance_))
        own = X[names == site]
        np.testing.assert_allclose(
            fitted.score_samples(own, groups=[site] * len(own)), other.score_samples(own)
        )
        np.testing.assert_allclose(
            fitted.predict_proba(own, groups=[site] * len(own)),
            other.predict_proba(own),
            atol=1e-12,
        )


def test_rows_groups_and_federation_give_the_same_answers_in_the_order_asked():
    X, _, names = joined(SITES)
    shuffled = np.random.default_rng(0).permutation(len(X))
    one = FedGrEM(3, random_state=0).fit(SITES.clients)
    other = FedGrEM(3, random_state=0).fit(X[shuffled], groups=names[shuffled])
    np.testing.assert_allclose(one.means_, other.means_, atol=1e-6)
    by_federation = one.predict_proba(SITES.clients)
    by_rows = one.predict_proba(X[shuffled], groups=names[shuffled])
    np.testing.assert_allclose(by_federation[shuffled], by_rows, atol=1e-12)
    np.testing.assert_allclose(
        one.score_samples(SITES.clients)[shuffled],
        one.score_samples(X[shuffled], groups=names[shuffled]),
    )


def test_an_unseen_site_gets_population_components_and_weights_of_its_own_rows():
    fitted = FedGrEM(3, random_state=0).fit(SITES.clients)
    rng = np.random.default_rng(0)
    label = rng.choice(3, p=[0.1, 0.1, 0.8], size=400)
    X = fitted.centers_[label] + rng.normal(size=(400, 10))
    share = fitted.predict_proba(X, groups=["new"] * 400)
    counts = np.bincount(label, minlength=3) / 400
    # At the maximum of the likelihood over weights, weights are mean responsibilities.
    np.testing.assert_allclose(share.mean(axis=0), counts, atol=0.01)
    weights = share.mean(axis=0)
    other = GaussianMixture(3, covariance_type="spherical")
    other.weights_, other.means_ = weights, fitted.centers_
    other.covariances_, other.precisions_cholesky_ = np.ones(3), np.ones(3)
    np.testing.assert_allclose(share, other.predict_proba(X), atol=1e-6)
    np.testing.assert_array_equal(fitted.predict(X), fitted.predict(X, groups=["new"] * 400))


REGRESSION = [
    FedGrEM(2, family="regression", random_state=0),
    FedGrEM(2, family="regression", fit_intercept=True, random_state=0),
    FedGrEM(2, family="regression", sigma=1.0, shrinkage="paper", max_rounds=1000, random_state=0),
    FedEM(2, family="regression", random_state=0),
    FedEM(2, family="regression", average="pooled", random_state=0),
    FedGMM(2, random_state=0),
    LocalEM(2, family="regression", random_state=0),
    PooledEM(2, family="regression", random_state=0),
]


@pytest.mark.parametrize("estimator", REGRESSION, ids=str)
def test_regression_faces_find_easy_regressions(estimator):
    X, y, names = joined(REGRESSIONS)
    fitted = clone(estimator).fit(X, y, groups=names)
    assert fitted.coef_.shape == (6, 2, 3) and fitted.intercept_.shape == (6, 2)
    assert fitted.sigma_.shape == (6,)
    np.testing.assert_allclose(fitted.sigma_, 1.0, atol=0.25)
    share = fitted.predict_proba(X, y, groups=names)
    own = share.argmax(axis=1)
    each = [agreement(own[names == n], REGRESSIONS.labels[names == n], 2) for n in set(names)]
    assert np.mean(each) > 0.85
    assert "regressions" in str(fitted.summary())
    if isinstance(estimator, FedGMM):
        return  # x tells more than the site does
    mixed = np.einsum("mr,mrd->md", fitted.weights_, fitted.coef_)
    offset = np.einsum("mr,mr->m", fitted.weights_, fitted.intercept_)
    owner = REGRESSIONS.clients.owner
    expected = np.einsum("nd,nd->n", X, mixed[owner]) + offset[owner]
    np.testing.assert_allclose(fitted.predict(X, groups=names), expected)
    np.testing.assert_allclose(
        fitted.predict_proba(X[:5], groups=names[:5]), fitted.weights_[owner[:5]]
    )


def two_blobs(n_sites=4, n_rows=100, seed=0):
    """x about -5 or 5, and y on another line there."""
    rng = np.random.default_rng(seed)
    place = rng.choice([-5.0, 5.0], size=n_sites * n_rows)
    x = place + rng.normal(size=len(place))
    y = np.where(place > 0, 2.0 * x, 10.0 - 2.0 * x) + 3.0 * rng.normal(size=len(place))
    return x[:, None], y, np.repeat([f"s{k}" for k in range(n_sites)], n_rows)


def brute_pairs(model, X, y, pairs):
    """Pair weights times densities of x (n, M, R); densities of y (n, R); lines at x (n, R)."""
    from scipy.stats import multivariate_normal, norm

    of_x = np.stack(
        [
            multivariate_normal(m, c).pdf(X)
            for m, c in zip(model.input_centers_, model.input_covariances_)
        ],
        axis=1,
    )
    lines = X @ model.coef_[0].T + model.intercept_[0]
    of_y = norm(lines, model.sigma_[0]).pdf(y[:, None])
    return pairs * of_x[:, :, None], of_y, lines


def test_fedgmm_predicts_with_the_regressions_of_the_place_where_x_lies():
    X, y, names = two_blobs()
    model = FedGMM(2, n_input_components=2, fit_intercept=True, n_restarts=5, random_state=0)
    fitted = model.fit(X, y, groups=names)
    assert fitted.pair_weights_.shape == (4, 2, 2)
    np.testing.assert_allclose(fitted.pair_weights_.sum(axis=1), fitted.weights_)
    assert fitted.score(X, y, groups=names) > 0.6
    # A site of the fit, and one that was not in it: its own pair weights, and the average.
    cases = {"s1": fitted.pair_weights_[1], "new": fitted.pair_weights_.mean(axis=0)}
    for site, pairs in cases.items():
        of_x, of_y, lines = brute_pairs(fitted, X, y, pairs)
        share = of_x.sum(axis=1) / of_x.sum(axis=(1, 2))[:, None]
        np.testing.assert_allclose(fitted.predict_proba(X, groups=site), share, atol=1e-10)
        np.testing.assert_allclose(fitted.predict(X, groups=site), (share * lines).sum(axis=1))
        if site == "s1":
            joint = share * of_y
            total = joint.sum(axis=1)
            np.testing.assert_allclose(
                fitted.score_samples(X, y, groups=site), np.log(total), rtol=1e-8
            )
            np.testing.assert_allclose(
                fitted.predict_proba(X, y, groups=site), joint / total[:, None], atol=1e-10
            )


def test_fedgmm_adapts_pair_weights_to_a_new_site():
    X, y, names = two_blobs()
    model = FedGMM(2, n_input_components=2, fit_intercept=True, n_restarts=5, random_state=0)
    fitted = model.fit(X, y, groups=names)
    # At the new site the lines have changed places.
    lines = X @ fitted.coef_[0].T + fitted.intercept_[0]
    new_y = lines[np.arange(len(X)), fitted.predict_proba(X).argmin(axis=1)]
    assert fitted.score(X, new_y, groups="new") < 0
    fitted.adapt(X[:200], new_y[:200], groups="new")
    assert fitted.score(X[200:], new_y[200:], groups="new") > 0.9


def test_fedgmm_without_weights_of_the_sites_still_predicts():
    X, y, names = two_blobs()
    model = FedGMM(2, n_input_components=2, fit_intercept=True, random_state=0)
    fitted = model.set_params(engine=ElsewhereEngine()).fit(X, y, groups=names)
    assert not hasattr(fitted, "pair_weights_")
    np.testing.assert_allclose(fitted.predict_proba(X, groups=names), 0.5)
    assert np.isfinite(fitted.score_samples(X, y, groups=names)).all()


@pytest.mark.parametrize("per_site", [False, True])
@pytest.mark.parametrize("estimator", GAUSSIAN, ids=str)
def test_a_gaussian_fit_can_go_on_from_fitted_components(estimator, per_site):
    first = clone(estimator).fit(SITES.clients)
    start = first.means_ if per_site else first.centers_
    again = clone(estimator).set_params(init=start).fit(SITES.clients)
    assert again.score(SITES.clients) == pytest.approx(first.score(SITES.clients), abs=0.02)


@pytest.mark.parametrize("per_site", [False, True])
@pytest.mark.parametrize("estimator", REGRESSION, ids=str)
def test_a_regression_fit_can_go_on_from_fitted_coefficients(estimator, per_site):
    first = clone(estimator).fit(REGRESSIONS.clients)
    start = first.coef_ if per_site else first.centers_
    again = clone(estimator).set_params(init=start).fit(REGRESSIONS.clients)
    density = [fit.score_samples(REGRESSIONS.clients).mean() for fit in (first, again)]
    assert density[1] == pytest.approx(density[0], abs=0.02)


@pytest.mark.parametrize("model", [LocalEM(2, tol=1e-10), PooledEM(2, tol=1e-10)], ids=str)
@pytest.mark.parametrize("kind", ["identity", "spherical", "diag", "tied"])
def test_given_components_decide_where_a_fit_alone_begins(model, kind):
    rng = np.random.default_rng(0)
    means = np.array([[-4.0, 0.0], [4.0, 1.0]])
    clients = Federation.from_clients([means[np.arange(90) % 2] + rng.normal(size=(90, 2))] * 2)
    for order in ([0, 1], [1, 0]):
        start = 0.5 * means[order]
        found = clone(model).set_params(covariance_type=kind, init=start).fit(clients)
        np.testing.assert_allclose(found.means_, np.tile(means[order], (2, 1, 1)), atol=0.4)


def test_coefficients_given_without_intercepts_start_at_intercept_zero():
    options = {"family": "regression", "fit_intercept": True, "random_state": 0}
    first = FedGrEM(2, **options).fit(REGRESSIONS.clients)
    zero = np.concatenate([first.coef_, np.zeros((6, 2, 1))], axis=-1)
    starts = (first.coef_, zero)
    one, other = (FedGrEM(2, init=s, **options).fit(REGRESSIONS.clients) for s in starts)
    np.testing.assert_array_equal(one.coef_, other.coef_)


def test_adapting_gives_a_new_site_weights_and_leaves_the_rest():
    fitted = FedGrEM(3, random_state=0).fit(SITES.clients)
    before, centers = fitted.weights_.copy(), fitted.centers_.copy()
    rng = np.random.default_rng(0)
    label = rng.choice(3, p=[0.05, 0.05, 0.9], size=300)
    X = centers[label] + rng.normal(size=(300, 10))
    middle = (centers[0] + centers[2])[None] / 2
    even = fitted.predict_proba(middle, groups=["new"])
    fitted.adapt(X, groups="new")
    # Between two groups the site's weights decide.
    odds = fitted.predict_proba(middle, groups=["new"])[0, [2, 0]]
    counts = np.bincount(label, minlength=3)
    assert odds[0] / odds[1] == pytest.approx(counts[2] / counts[0], rel=0.05)
    assert not np.allclose(even[0, 2] / even[0, 0], odds[0] / odds[1], rtol=0.5)
    np.testing.assert_array_equal(fitted.weights_, before)
    np.testing.assert_array_equal(fitted.centers_, centers)
    with pytest.raises(ValueError, match="'site-1' was in the fit"):
        fitted.adapt(X, groups="site-1")
    with pytest.raises(ValueError, match="needs the name of the site"):
        fitted.adapt(X)


def test_adapting_a_mixture_of_regressions_needs_and_uses_the_target():
    fitted = FedGrEM(2, family="regression", random_state=0).fit(REGRESSIONS.clients)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = X @ fitted.centers_[1] + rng.normal(size=200)
    before = fitted.score(X, y, groups=["new"] * 200)
    with pytest.raises(ValueError, match="needs the target y"):
        fitted.adapt(X, groups="new")
    fitted.adapt(X[:100], y[:100], groups="new")
    after = fitted.score(X[100:], y[100:], groups=["new"] * 100)
    assert after > 0.8 > before
    again = fitted.fit(REGRESSIONS.clients)
    assert again.score(X, y, groups=["new"] * 200) == pytest.approx(before)


def test_predictions_at_a_new_site_do_not_depend_on_the_targets_to_be_predicted():
    fitted = FedGrEM(2, family="regression", random_state=0).fit(REGRESSIONS.clients)
    X = np.random.default_rng(0).normal(size=(100, 3))
    y = X @ fitted.centers_[1]
    new = Federation.from_groups(X, ["new"] * 100, y)
    np.testing.assert_array_equal(fitted.predict(new), fitted.predict(X, groups=["new"] * 100))
    assert fitted.score(new) == fitted.score(X, y, groups=["new"] * 100) < 0.9


class ElsewhereEngine(InProcess):
    """Sites that keep their memories, as those beyond a network do."""

    def run(self, *given):
        return replace(super().run(*given), memories=None)


def test_a_second_fit_keeps_nothing_of_the_first():
    X, y, names = joined(REGRESSIONS)
    named = Federation.from_groups(X, names, y, feature_names=["age", "dose", "weight"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # groups of x are not to be found in these data
        fitted = FedGrEM(2, random_state=0).fit(named)
    assert list(fitted.feature_names_in_) == ["age", "dose", "weight"]
    fitted.set_params(family="regression").fit(X, y, groups=names)
    fresh = FedGrEM(2, family="regression", random_state=0).fit(X, y, groups=names)
    assert set(vars(fitted)) == set(vars(fresh))
    assert not {"feature_names_in_", "means_", "covariance_"} & set(vars(fitted))
    # Weights of rows that were here do not pass for those of sites elsewhere.
    fitted.set_params(engine=ElsewhereEngine()).fit(X, y, groups=names)
    assert not hasattr(fitted, "weights_")


def test_the_summary_says_what_left():
    adaptive = str(FedGrEM(3, random_state=0).fit(SITES.clients).summary())
    assert "number of rows in each of its groups can be inferred" in adaptive.replace("\n", " ")
    paper = FedGrEM(3, shrinkage="paper", max_rounds=1000, random_state=0).fit(SITES.clients)
    assert "Mixture weights stayed at the sites" in str(paper.summary())
    assert not {"weights", "variances"} & set(paper.traffic_.bytes_up_by_field)
    alone = LocalEM(3, random_state=0).fit(SITES.clients)
    assert set(alone.traffic_.bytes_up_by_field) == {"loglik", "rows"}
    assert "Nothing but its log likelihood" in str(alone.summary())
    assert "shares the data" in str(PooledEM(3, random_state=0).fit(SITES.clients).summary())


def test_an_odd_site_is_pointed_out():
    spoilt = make_gaussian_mixtures(10, 120, 0.3, n_outliers=1, random_state=3)
    for shrinkage in ("adaptive", "paper"):
        fitted = FedGrEM(5, shrinkage=shrinkage, max_rounds=2000, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted.fit(spoilt.clients)
        assert fitted.outlier_score_.argmax() == 9
        assert f"Unlike the others (outlier score above 4): site '{spoilt.clients.names[9]}'" in (
            str(fitted.summary()).replace("\n", " ")
        )


def test_names_are_loaded_from_the_package():
    for name in ("FedGrEM", "FedEM", "FedGMM", "TGMM", "LocalEM", "PooledEM"):
        assert getattr(fedkin, name).__name__ == name
    assert isinstance(SITES.clients, Federation)
