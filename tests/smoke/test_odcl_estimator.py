from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedkin import (
    IFCA,
    ODCL,
    ClusterOracle,
    Federation,
    LocalERM,
    NaiveAveraging,
    OracleAveraging,
)
from fedkin.datasets import make_logistic_groups, make_sparse_regressions, spoil_sites
from fedkin.datasets.odcl import APPENDIX_D2
from fedkin.estimators.odcl import NoCovarianceWarning

GROUPS = make_sparse_regressions(80, n_clients=24, intervals=APPENDIX_D2, random_state=0)
CLASSES = make_logistic_groups(400, n_clients=16, random_state=1)


def expected(estimator):
    """A row given twice is two rows where it is asked whether a site has few; a weight is not."""
    few = isinstance(estimator, LocalERM) and estimator.loss == "squared"
    return (
        {"check_sample_weight_equivalence_on_dense_data": "weights are precisions"} if few else {}
    )


@parametrize_with_checks(
    [
        ODCL(),
        ODCL(loss="logistic"),
        LocalERM(),
        LocalERM(loss="logistic"),
        NaiveAveraging(),
        IFCA(max_rounds=20),
    ],
    expected_failed_checks=expected,
)
@pytest.mark.filterwarnings("ignore:IFCA did not settle")
def test_scikit_learn_accepts_the_estimators(estimator, check):
    check(estimator)


def test_one_site_equals_scikit_learn():
    data = GROUPS.federation.take([0])
    plain = LinearRegression().fit(data.X, data.y)
    for model in (ODCL(), LocalERM(), NaiveAveraging(), ClusterOracle([0])):
        fitted = clone(model).fit(data)
        np.testing.assert_allclose(fitted.coef_[0], plain.coef_, atol=1e-8)
        np.testing.assert_allclose(fitted.intercept_[0], plain.intercept_, atol=1e-8)
    data = CLASSES.federation.take([0])
    plain = LogisticRegression(C=1 / (1e-3 * len(data.y)), solver="newton-cholesky", tol=1e-10)
    plain.fit(data.X, data.y)
    fitted = ODCL(loss="logistic", alpha=1e-3).fit(data)
    np.testing.assert_allclose(fitted.predict_proba(data), plain.predict_proba(data.X), atol=1e-6)
    np.testing.assert_array_equal(fitted.predict(data), plain.predict(data.X))
    np.testing.assert_array_equal(fitted.classes_, [-1.0, 1.0])


def test_the_face_has_its_attributes_and_known_truth_orders_the_rivals():
    data, plain = GROUPS.federation, {"fit_intercept": False}
    fitted = ODCL(random_state=0, **plain).fit(data)
    assert fitted.n_clusters_ == 4 and GROUPS.recovers(fitted.labels_)
    assert fitted.cluster_coef_.shape == (4, 20) and fitted.coef_.shape == (24, 20)
    assert fitted.choice_["n_clusters"][0] == 1 and fitted.n_rounds_ == 1
    by_name = dict(zip(data.names, GROUPS.labels))
    oracle = OracleAveraging(by_name, **plain).fit(data)
    paper = ODCL(4, aggregate="mean", random_state=0, **plain).fit(data)
    np.testing.assert_allclose(paper.coef_, oracle.coef_, rtol=1e-10)
    error = {
        name: GROUPS.error(model.fit(data).coef_)
        for name, model in {
            "pooled": ClusterOracle(GROUPS.labels, **plain),
            "local": LocalERM(**plain),
            "naive": NaiveAveraging(**plain),
        }.items()
    }
    assert error["pooled"] < GROUPS.error(oracle.coef_) < error["local"] < error["naive"]
    np.testing.assert_allclose(
        ODCL(4, aggregate="statistics", **plain).fit(data).coef_,
        ClusterOracle(GROUPS.labels, **plain).fit(data).coef_,
        rtol=1e-8,
    )


def test_rows_groups_and_federation_give_the_same_fit():
    data = GROUPS.federation
    names = np.array(data.names)[data.owner]
    shuffled = np.random.default_rng(0).permutation(len(data.X))
    one = ODCL(4, random_state=0).fit(data)
    other = ODCL(4, random_state=0).fit(data.X[shuffled], data.y[shuffled], names[shuffled])
    np.testing.assert_array_equal(one.labels_, other.labels_)
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-9)
    np.testing.assert_allclose(
        one.predict(data)[shuffled], other.predict(data.X[shuffled], names[shuffled]), atol=1e-8
    )


def test_known_unknown_and_adapted_sites_predict_with_their_models():
    data = GROUPS.federation
    fitted = ODCL(4, fit_intercept=False, aggregate="mean", random_state=0)
    fitted.fit(data.take(range(20)))
    new = data.take(range(20, 24))
    X = new.client(0)[0]
    population = np.bincount(fitted.labels_) @ fitted.cluster_coef_ / 20
    np.testing.assert_allclose(fitted.predict(X, ["?"] * len(X)), X @ population)
    before = fitted.cluster_coef_.copy()
    assert fitted.score(new, new.y) < 0.5
    fitted.adapt(new)
    assert fitted.score(new, new.y) > 0.7
    truth = {name: GROUPS.labels[20 + k] for k, name in enumerate(new.names)}
    for name, cluster in fitted.adapted_.items():
        members = fitted.labels_ == cluster
        assert (GROUPS.labels[:20][members] == truth[name]).all()
    np.testing.assert_array_equal(before, fitted.cluster_coef_)


@pytest.mark.parametrize("one", [7, 7.0, np.int64(7), "7", b"7"])
def test_one_name_for_all_rows_may_be_a_number(one):
    data = GROUPS.federation
    fitted = ODCL(4, random_state=0).fit(data)
    X, y = data.client(6)
    np.testing.assert_array_equal(fitted.predict(X, one), fitted.predict(X, ["7"] * len(X)))
    assert fitted.score(X, y, one) == fitted.score(X, y, ["7"] * len(X))
    left = ODCL(4, random_state=0).fit(data.take([k for k in range(24) if k != 6]))
    assert list(left.adapt(X, y, one).adapted_) == ["7"]


def test_logistic_clusters_classify_and_adapt():
    data = CLASSES.federation
    fitted = ODCL(loss="logistic", random_state=0).fit(data)
    assert CLASSES.recovers(fitted.labels_) and is_classifier(fitted) and is_regressor(ODCL())
    own = LocalERM(loss="logistic").fit(data)
    pooled = ClusterOracle(CLASSES.labels, loss="logistic").fit(data)
    errors = [
        CLASSES.error(np.column_stack([m.coef_, m.intercept_])) for m in (pooled, fitted, own)
    ]
    assert errors[1] < 0.5 * errors[2] and errors[0] < 0.5 * errors[2]
    chance = fitted.predict_proba(data)
    np.testing.assert_allclose(chance.sum(axis=1), 1.0)
    assert (np.abs(fitted.decision_function(data)) < 1e-9).sum() == 0
    new = replace(data.take([3]), names=("new",))
    assert fitted.adapt(new).adapted_ == {"new": fitted.labels_[3]}


def test_a_site_of_the_fit_keeps_its_cluster():
    data = GROUPS.federation
    fitted = ODCL(4, random_state=0).fit(data)
    before = fitted.predict(data)
    with pytest.raises(ValueError, match="site '1' was in the fit and has cluster 0; adapt is for"):
        fitted.adapt(*data.client(1), groups="1")
    assert fitted.adapted_ == {}
    np.testing.assert_array_equal(fitted.predict(data), before)


def test_a_site_without_a_cluster_may_be_adapted():
    spoilt = spoil_sites(GROUPS, 0.05, "wild", 3)
    odd = int(np.flatnonzero(spoilt.labels < 0)[0])
    clients = dict(zip(spoilt.federation.names, map(spoilt.federation.client, range(24))))
    clients["empty"] = (np.empty((0, 20)), np.empty(0))
    fitted = ODCL(robust=True, random_state=0).fit(Federation.from_clients(clients))
    name = fitted.client_names_[odd]
    assert list(fitted.odd_sites_) == [name]
    X, y = GROUPS.federation.client(odd)
    fitted.adapt(X, y, name).adapt(X, y, "empty")
    assert fitted.adapted_[name] == fitted.adapted_["empty"]


def test_a_federation_is_scored_by_its_own_target():
    data = GROUPS.federation
    fitted = ODCL(4, random_state=0).fit(data)
    assert fitted.score(data) == fitted.score(data, data.y)
    with pytest.raises(ValueError, match="score needs the target y"):
        fitted.score(data.X)


def test_odd_sites_are_named_in_the_summary_and_keep_their_own_model():
    groups = spoil_sites(make_sparse_regressions(80, random_state=2), 0.1, "wild")
    fitted = ODCL(robust=True, fit_intercept=False, random_state=0).fit(groups.federation)
    spoilt = fitted.client_names_[groups.labels < 0]
    assert list(fitted.odd_sites_) == list(spoilt)
    text = str(fitted.summary())
    assert f"with their own model: {spoilt[0]!r}" in text
    assert "Each site sent its own model, its number of rows and its sums of products" in text
    sites = fitted.summary()["sites"]
    assert list(np.array(sites["cluster"]) == -1) == list(groups.labels < 0)


@pytest.mark.parametrize("aggregate", ["mean", "size", "precision", "statistics", "median"])
@pytest.mark.filterwarnings("ignore:aggregate='precision'")
def test_discordant_sites_are_coped_with(aggregate):
    """Empty, single-row, constant-column and ragged sites in one federation."""
    rng = np.random.default_rng(0)
    clients = {}
    for k in range(20):
        X = rng.normal(size=(int(rng.integers(1, 30)), 3))
        sign = 1.0 if k % 2 else -1.0
        clients[f"s{k}"] = (X, sign * X @ [1, 2, 3] + 0.1 * rng.normal(size=len(X)))
    clients["empty"] = (np.empty((0, 3)), np.empty(0))
    clients["constant"] = (np.ones((5, 3)), np.full(5, 6.0))
    data = Federation.from_clients(clients)
    for more in ({}, {"n_clusters": 2, "refine_rounds": 2}, {"robust": True}):
        fitted = ODCL(aggregate=aggregate, fit_intercept=False, random_state=0, **more).fit(data)
        assert {r.site for r in fitted.refusals_} == {"empty"}
        assert np.isfinite(fitted.coef_).all()
        assert np.isfinite(fitted.predict(np.ones((2, 3)), ["empty", "constant"])).all()


def test_what_leaves_a_site_can_be_said():
    data = GROUPS.federation
    fitted = ODCL(send="model", random_state=0).fit(data)
    assert list(fitted.traffic_.bytes_up_by_field) == ["model"]
    assert GROUPS.recovers(fitted.labels_) and fitted.choice_method_ == "gap"
    assert "Each site sent its own model once." in str(fitted.summary())
    usual, sums = (ODCL(random_state=0, **how).fit(data) for how in ({}, {"send": "statistics"}))
    np.testing.assert_allclose(sums.coef_, usual.coef_, rtol=1e-6)


def test_precision_without_covariances_weighs_by_rows_and_says_so():
    groups = make_sparse_regressions(
        np.arange(7, 13), n_clients=6, intervals=((1.0, 2.0),), n_features=8, n_active=8
    )
    with pytest.warns(NoCovarianceWarning, match=r"6 of 6 sites .*\('1', '2', '3' and 3 more\)"):
        fitted = ODCL(1, aggregate="precision", send="covariance").fit(groups.federation)
    by_size = ODCL(1, aggregate="size").fit(groups.federation)
    np.testing.assert_array_equal(fitted.coef_, by_size.coef_)
    plain = ODCL(1, aggregate="mean").fit(groups.federation)
    assert np.abs(fitted.coef_ - plain.coef_).max() > 1e-3
    text = str(fitted.summary())
    assert "No covariance came from 6 sites" in text and "weighted by rows" in text


def test_with_so_many_coefficients_that_no_covariance_travels_rows_are_the_weights():
    rng = np.random.default_rng(0)
    clients = []
    for n in (300, 400):
        X = rng.normal(size=(n, 210))
        clients.append((X, X[:, 0] + rng.normal(size=n)))
    data = Federation.from_clients(clients)
    with pytest.warns(NoCovarianceWarning, match="2 of 2 sites"):
        fitted = ODCL(1, aggregate="precision").fit(data)
    np.testing.assert_array_equal(fitted.coef_, ODCL(1, aggregate="size").fit(data).coef_)


def test_a_site_without_covariance_has_no_say_beside_others():
    sizes = np.array([80, 80, 80, 20])
    groups = make_sparse_regressions(
        sizes, n_clients=4, intervals=((1.0, 2.0),), n_features=18, n_active=9
    )
    how = {"aggregate": "precision", "send": "covariance", "fit_intercept": False}
    with pytest.warns(NoCovarianceWarning, match=r"1 of 4 sites .*\('4'\)"):
        fitted = ODCL(1, **how).fit(groups.federation)
    alone = ODCL(1, **how).fit(groups.federation.take([0, 1, 2]))
    np.testing.assert_allclose(fitted.cluster_coef_, alone.cluster_coef_, rtol=1e-12)


def test_rivals_cope_with_an_empty_site():
    clients = {name: GROUPS.federation.client(k) for k, name in enumerate(GROUPS.federation.names)}
    clients["empty"] = (np.empty((0, 20)), np.empty(0))
    data = Federation.from_clients(clients)
    truth = {**dict(zip(GROUPS.federation.names, GROUPS.labels)), "empty": 9}
    for model in (
        LocalERM(aggregate="mean"),
        NaiveAveraging(aggregate="mean"),
        OracleAveraging(truth),
        ClusterOracle(truth),
        IFCA(4, init=GROUPS.coef, averaging="gradient", max_rounds=2000),
    ):
        fitted = model.fit(data)
        assert {r.site for r in fitted.refusals_} == {"empty"}
        assert np.isfinite(fitted.coef_).all() and np.isfinite(fitted.cluster_coef_).all()
        population = np.bincount(fitted.labels_[:-1]) @ fitted.cluster_coef_ / 24
        np.testing.assert_allclose(fitted.coef_[-1], population)
        assert f"{type(model).__name__}: 24 sites (1 left out)" in str(fitted.summary())
    classes = np.where(data.y > 0, 1.0, 0.0)
    sites = np.array(data.names)[data.owner]
    with pytest.raises(ValueError, match="true cluster 4 has no rows"):
        ClusterOracle(truth, loss="logistic").fit(
            Federation.from_clients(
                {
                    **{n: (data.X[sites == n], classes[sites == n]) for n in data.names[:-1]},
                    "empty": clients["empty"],
                }
            )
        )


def test_one_class_sites_are_coped_with():
    rng = np.random.default_rng(0)
    clients = {f"s{k}": (rng.normal(size=(9, 2)), np.tile([0.0, 1.0, 1.0], 3)) for k in range(8)}
    clients["ones"] = (rng.normal(size=(9, 2)), np.ones(9))
    fitted = ODCL(loss="logistic", random_state=0).fit(Federation.from_clients(clients))
    assert np.isfinite(fitted.coef_).all() and np.isfinite(fitted.intercept_).all()


def test_classes_may_be_words_and_others_are_refused():
    data = CLASSES.federation
    words = np.where(data.y > 0, "sick", "healthy")
    sites = np.array(data.names)[data.owner]
    fitted = ODCL(4, loss="logistic", random_state=0).fit(data.X, words, sites)
    numbers = ODCL(4, loss="logistic", random_state=0).fit(data)
    assert fitted.classes_.tolist() == ["healthy", "sick"]
    np.testing.assert_array_equal(fitted.coef_, numbers.coef_)
    assert set(fitted.predict(data.X, sites)) == {"healthy", "sick"}
    assert fitted.score(data.X, words, sites) == numbers.score(data, data.y)
    own = sites == data.names[3]
    fitted.adapt(data.X[own], words[own], "new")
    assert fitted.adapted_ == {"new": fitted.labels_[3]}
    with pytest.raises(ValueError, match=r"the value 'ill'; the classes of the fit are"):
        fitted.adapt(data.X[own], np.where(words[own] == "sick", "ill", "healthy"), "other")
    with pytest.raises(ValueError, match=r"the value 7.0; the classes of the fit are"):
        numbers.adapt(data.X[own], np.full(own.sum(), 7.0), "other")


def test_inexact_fits_cluster_as_exact_ones_do():
    fitted = ODCL(4, solver="sgd", n_steps=3000, batch_size=5, fit_intercept=False, random_state=0)
    fitted.fit(GROUPS.federation)
    assert GROUPS.recovers(fitted.labels_)
    exact = ODCL(4, fit_intercept=False, random_state=0).fit(GROUPS.federation)
    assert 0 < np.abs(fitted.local_coef_ - exact.local_coef_).max() < 1.0


def test_the_convex_path_is_kept():
    fitted = ODCL(clustering="convex", fit_intercept=False, random_state=0).fit(GROUPS.federation)
    assert GROUPS.recovers(fitted.labels_)
    path = fitted.path_
    assert path["labels"].shape == (len(path["penalties"]), 24)
    assert (np.diff(path["n_clusters"]) <= 0).all()
    assert path["penalties"][0] <= fitted.penalty_ <= path["penalties"][-1]
    assert path["linkage"].shape == (23, 4)
