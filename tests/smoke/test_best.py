"""Best: which way of sharing fits us, at every site."""

import re
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.base import clone

from fedkin import FGPR, FMLR, ODCL, Best, Federation, LocalEM, LocalERM, MixedModel, PooledEM
from fedkin.estimators.candidates import linear_ways, usual
from fedkin.estimators.site_models import PlainClasses, PlainRegression
from fedkin.models.least_squares import packed_statistics
from fedkin.report.answers import TOGETHER, answer

PLAIN = {"alone": PlainRegression(), "one model": PlainRegression(True)}


def made(m=16, n=10, spread=1.0, seed=0, d=2):
    rng = np.random.default_rng(seed)
    groups = np.repeat([f"site-{k}" for k in range(m)], n)
    X = rng.normal(size=(m * n, d))
    y = X[:, 0] + np.repeat(spread * rng.normal(size=m), n) + 0.5 * rng.normal(size=m * n)
    return X, y, groups


@pytest.fixture(scope="module")
def fitted():
    X, y, groups = made()
    ways = {
        **PLAIN,
        "by degrees": MixedModel(random="intercept"),
        "by kind": FMLR(2, random_state=0),
    }
    return Best(ways, random_state=0).fit(X, y, groups=groups)


def test_sites_by_degrees_are_told(fitted):
    assert fitted.best_way_ == "by degrees"
    assert "'by degrees' won overall" in str(fitted.summary())
    assert fitted.site_weights_.shape == (16, 4)
    np.testing.assert_allclose(fitted.site_weights_.sum(axis=1), 1.0)


def test_it_is_about_as_good_as_the_best_way_on_new_rows(fitted):
    X, y, groups = made(n=210)
    new = np.arange(len(y)) % 210 >= 10
    model = clone(fitted).fit(X[~new], y[~new], groups=groups[~new])
    data = Federation.from_groups(X[new], groups[new], y[new])
    errors = {n: np.mean((data.y - m.predict(data)) ** 2) ** 0.5 for n, m in model.fitted_.items()}
    best = np.mean((data.y - model.predict(data)) ** 2) ** 0.5
    assert best <= 1.02 * min(errors.values())


def test_where_nobody_is_alike_it_stays_alone():
    rng = np.random.default_rng(1)
    X, _, groups = made(m=6, n=40)
    slopes = np.repeat(5.0 * rng.normal(size=(6, 2)), 40, axis=0)
    y = (X * slopes).sum(axis=1) + 0.3 * rng.normal(size=240)
    model = Best(PLAIN, folds=3, random_state=0).fit(X, y, groups=groups)
    assert model.weights_[0] > 0.95


def test_predictions_are_the_weighted_mixture(fitted):
    X, y, groups = made()
    where = slice(5, 8)
    mean, std, ends = fitted.predict(X[where], groups[where], return_std=True, level=0.9)
    data = Federation.from_groups(X[where], groups[where], y[where])
    weights = fitted.site_weights_[list(fitted.client_names_).index(groups[5])]
    means = np.array([fit.normal(data)[0] for fit in fitted._fits])
    stds = np.array([fit.normal(data)[1] for fit in fitted._fits])
    np.testing.assert_allclose(mean, fitted.point_weights_ @ means)
    np.testing.assert_allclose(std**2, weights @ (stds**2 + (means - mean) ** 2))
    for side, probability in ((0, 0.05), (1, 0.95)):
        inside = weights @ norm.cdf(ends[:, side], means, stds)
        np.testing.assert_allclose(inside, probability, atol=1e-6)


def test_order_of_rows_and_a_federation_change_nothing(fitted):
    X, y, groups = made()
    back = np.argsort(groups[::-1], kind="stable")
    np.testing.assert_allclose(
        fitted.predict(X[back], groups[back]), fitted.predict(X, groups)[back]
    )
    again = clone(fitted).fit(Federation.from_groups(X, groups, y))
    np.testing.assert_allclose(again.predict(X, groups), fitted.predict(X, groups))


def test_a_new_site_gets_no_word_from_alone(fitted):
    X, y, _ = made()
    assert fitted.new_site_weights_[0] == 0.0
    mean, std = fitted.predict(X[:4], groups="nowhere", return_std=True)
    assert np.isfinite(mean).all() and (std > 0.5).all()
    density = fitted.log_predictive_density(X[:4], y[:4], groups="nowhere")
    assert np.isfinite(density).all()


def test_a_site_of_one_row_is_served_by_the_others():
    X, y, groups = made()
    groups = np.append(groups, "lonely")
    X, y = np.vstack([X, X[:1]]), np.append(y, 1e3)
    model = Best({**PLAIN, "by degrees": MixedModel(random="intercept")}, folds=2, random_state=0)
    predicted = model.fit(X, y, groups=groups).predict(X[:1], groups="lonely")
    assert np.isfinite(predicted).all()


def test_classes_and_words_are_weighed_too():
    X, y, groups = made(m=5, n=15)
    labels = np.where(y > 0, "high", "low")
    ways = {"alone": PlainClasses(), "one model": PlainClasses(True)}
    model = Best(ways, folds=2, random_state=0).fit(X, labels, groups=groups)
    share = model.predict_proba(X, groups)
    np.testing.assert_allclose(share.sum(axis=1), 1.0)
    assert model.score(X, labels, groups) > 0.7 and set(model.predict(X, groups)) <= {"high", "low"}
    assert (model.log_predictive_density(X, labels, groups) <= 0).all()


def test_rows_without_a_target_are_described():
    X, _, groups = made(n=20)
    ways = {"alone": LocalEM(2, random_state=0), "one model": PooledEM(2, random_state=0)}
    model = Best(ways, folds=2, random_state=0).fit(X, groups=groups)
    assert model.target_ == "rows" and np.isfinite(model.score(X, groups=groups))
    assert model.predict(X, groups).shape == (len(X),)
    assert not hasattr(model, "predict_proba")


def test_a_way_without_a_spread_gets_that_of_its_residuals():
    X, y, groups = made(m=6)
    model = Best([ODCL(n_clusters=1), PlainRegression()], folds=2, random_state=0)
    model.fit(X, y, groups=groups)
    assert model.ways_ == ("ODCL", "PlainRegression")
    std = model._fits[0].normal(Federation.from_groups(X, groups, y))[1]
    assert np.all(std > 0.2)


def test_the_usual_candidates_fit_the_data():
    from fedkin.estimators.candidates import usual

    X, y, groups = made(m=4, n=6, d=3)
    few = usual("number", Federation.from_groups(X, groups, y), None, 0)
    assert "common curve" not in few and "by kind" not in few
    X, y, groups = made(m=10, n=6, d=1)
    assert "common curve" in usual("number", Federation.from_groups(X, groups, y), None, 0)
    assert "by degrees" in usual("classes", Federation.from_groups(X, groups, y > 0), None, 0)


def test_noise_that_differs_between_sites_brings_another_way():
    from fedkin.estimators.candidates import usual

    rng = np.random.default_rng(0)
    X, _, groups = made(m=30, n=20)
    noise = np.repeat(np.exp(rng.normal(size=30)), 20)
    for scale, told in ((1.0, False), (noise, True)):
        y = X[:, 0] + scale * rng.normal(size=600)
        ways = usual("number", Federation.from_groups(X, groups, y), None, 0)
        assert ("by degrees, own noise" in ways) == told


@pytest.mark.parametrize(
    ("parameters", "words"),
    [({"target": "curve"}, "target"), ({"folds": 1}, "folds"), ({"candidates": []}, "candidates")],
)
def test_what_cannot_be_is_said(parameters, words):
    with pytest.raises(ValueError, match=words):
        Best(**parameters).fit(*made(m=3))


def test_it_asks_for_data_and_a_target():
    with pytest.raises(ValueError, match="needs data"):
        Best().fit()
    with pytest.raises(ValueError, match="requires y"):
        Best(target="number").fit(made()[0], groups=made()[2])
    with pytest.raises(ValueError, match="by itself"):
        Best().benefit(*made(m=3))


def test_one_row_cannot_be_left_out():
    with pytest.raises(ValueError, match="n_samples=1"):
        Best().fit([[1.0, 2.0]], [1.0], groups=["a"])


def test_the_best_way_is_laid_beside_staying_alone():
    rng = np.random.default_rng(0)
    groups = np.repeat([f"site-{k}" for k in range(12)], 8)
    X = rng.normal(size=(96, 3))
    y = np.repeat(rng.normal(size=12), 8) + X[:, 0] + rng.normal(size=96)
    model = Best([MixedModel(random="intercept"), LocalERM()], folds=2, random_state=0).fit(
        X, y, groups=groups
    )
    assert model.against_alone() is None  # nobody is called alone
    ways = {"alone": LocalERM(), "by degrees": MixedModel(random="intercept")}
    model = Best(ways, folds=2, random_state=0).fit(X, y, groups=groups)
    told = model.against_alone()
    assert model.best_way_ == "by degrees" and told.method == "'by degrees'"
    alone, joined = model.held_out_.means("log")
    np.testing.assert_allclose(told.scores["joining"] - told.scores["alone"], joined - alone)
    assert told.against_alone.mean > 0


def test_many_sites_are_tried_more_coarsely():
    """In a plane a hundred sites have the usual common curve, one more a coarser one."""
    few, many = (
        usual("number", Federation.from_groups(X, groups, y), None, 0)
        for X, y, groups in (made(m=100, n=4), made(m=101, n=4))
    )
    assert list(few) == list(many)
    assert few["common curve"].n_points is None and many["common curve"].n_points == 20
    assert few["by kind"].site_noise == FMLR().site_noise
    assert many["by kind"].site_noise == "common"
    X, y, groups = made(m=101, n=4, d=1)
    line = usual("number", Federation.from_groups(X, groups, y), None, 0)
    assert line["common curve"].n_points is None


def test_the_answer_has_errors_beside_scores_and_says_that_weights_may_differ(fitted):
    told = answer(fitted)
    assert re.search(
        r"log score at rows that were left out is -[\d.]+ \(median RMSE [\d.]+\)", told
    )
    assert TOGETHER not in told
    other = copy(fitted)
    other.best_way_ = "one model"
    assert TOGETHER in answer(other)


@pytest.mark.parametrize("columns, tried", [(3, True), (30, False)])
def test_a_noise_of_each_site_is_not_tried_where_a_fit_takes_minutes(columns, tried):
    rng = np.random.default_rng(0)
    m, n = 120, 40
    groups, X = np.repeat(np.arange(m), n), rng.normal(size=(m * n, columns))
    y = X[:, 0] + np.repeat(np.exp(rng.normal(size=m)), n) * rng.normal(size=m * n)
    data = Federation.from_groups(X, groups, y)
    ways = linear_ways(packed_statistics(data, True).T, 0)
    assert ("by degrees, own noise" in ways) is tried and "by degrees" in ways


def test_kinds_of_many_columns_are_few():
    X, _, groups = made(m=16, n=30, d=8)
    data = Federation.from_groups(X, groups, X[:, 0])
    assert usual("number", data, None, 0)["by kind"].max_components == 4


def test_fits_without_rows_look_for_nothing_to_warn_of_and_the_last_one_does(monkeypatch):
    X, y, groups = made()
    y = np.where(groups == "site-3", y + 30.0 * X[:, 1], y)  # a site that is odd
    way, asked = FMLR(1, degrees=False, site_noise="common", random_state=0), []
    second = FMLR._odd_sites_without_distortion

    def counted(self, federation):
        asked.append(len(federation.X))
        return second(self, federation)

    monkeypatch.setattr(FMLR, "_odd_sites_without_distortion", counted)
    model = Best({**PLAIN, "by kind": way}, random_state=0).fit(X, y, groups=groups)
    assert asked == [len(X)]
    assert list(model.fitted_["by kind"].odd_sites_) == ["site-3"]


def test_where_staying_alone_weighs_most_but_scores_less_that_is_not_called_clear(fitted):
    """esoph: alone had 68 % of the weight and -2.31, kinds -2.18; joining "does not help"."""
    other = copy(fitted)
    other.best_way_ = "alone"
    place = fitted.ways_.index("alone")
    other.weights_ = np.eye(len(fitted.ways_))[place]
    other.site_weights_ = np.tile(other.weights_, (len(fitted.client_names_), 1))
    told = answer(other)
    assert "Whether joining helps is not clear" in told and "Joining does not help" not in told
    totals = fitted.held_out_.metrics["log"].totals.copy()
    totals[place] = totals.max(axis=0) + 1.0
    metrics = {**fitted.held_out_.metrics}
    metrics["log"] = replace(metrics["log"], totals=totals)
    other.held_out_ = replace(fitted.held_out_, metrics=metrics)
    assert "Joining does not help: no way of sharing" in answer(other)


def test_sites_of_one_row_each_cannot_be_left_out():
    X, y, _ = made(4, 5)
    with pytest.raises(ValueError, match="each of the 20 sites has one row"):
        Best(random_state=0).fit(X, y, groups=np.arange(20))


def test_kinds_that_turn_out_to_be_one_are_not_called_a_few():
    X, y, groups = made(12, 12, spread=0.7)
    ways = {"by kind": FMLR(1, degrees=True, random_state=0), "alone": PlainRegression()}
    told = answer(Best(ways, random_state=0).fit(X, y, groups=groups))
    assert "'by kind' (here one kind, from which sites depart by degrees)" in told


def test_a_curve_that_wins_is_called_one():
    rng = np.random.default_rng(8)
    X, groups = rng.uniform(0, 6, size=(48, 1)), np.repeat(np.arange(6), 8)
    y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=6)[groups] + 0.05 * rng.normal(size=48)
    ways = {"common curve": FGPR(random_state=0), "alone": PlainRegression()}
    told = answer(Best(ways, random_state=0).fit(X, y, groups=groups))
    assert "'common curve' (a curve for each site, around a common one)" in told
