"""Best where sites hold their own rows: two rounds, sums and scores, and a model for everybody."""

import numpy as np
import pytest
from tests.smoke.test_benefit_at_sites import Sites, made

import fedkin
from fedkin import ODCL, Best, Federation, MixedModel


def wide(m=12):
    """With a column that tells nothing: more than a common curve is tried with."""
    data = made(m=m)
    more = np.random.default_rng(9).normal(size=len(data.X))
    names = np.array(data.names)[data.owner]
    return Federation.from_groups(np.column_stack([data.X, more]), names, data.y)


@pytest.fixture(scope="module")
def sites():
    return Sites(wide())


@pytest.fixture(scope="module")
def fitted(sites):
    return Best(random_state=0, engine=sites).fit()


def test_two_rounds_of_sums_and_scores_are_all_that_travels(fitted, sites):
    left = [set(traffic.bytes_up_by_field) for _, traffic in sites.asked]
    assert left == [{"statistics"}, {"totals", "products", "rows"}]
    assert fitted.n_rounds_ == 2
    assert fitted.traffic_.bytes_up == sum(traffic.bytes_up for _, traffic in sites.asked)


def test_left_out_scores_are_those_of_one_process(fitted, sites):
    here = MixedModel().benefit(sites.data, folds=5, new_sites=False).held_out
    for metric in ("log", "rmse"):
        there = dict(zip(fitted.ways_, fitted.held_out_.means(metric)))
        found = dict(zip(here.ways, here.means(metric)))
        found["by degrees"] = found.pop("joining")
        for way, scores in found.items():
            np.testing.assert_allclose(there[way], scores, rtol=1e-6)


def test_sites_that_differ_by_degrees_are_told_so(fitted):
    assert fitted.best_way_.startswith("by degrees")
    assert fitted.weights_.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(fitted.site_weights_.sum(axis=1), 1.0)
    np.testing.assert_allclose(fitted.new_site_weights_.sum(), 1.0)
    assert fitted.new_site_weights_[0] == 0.0
    assert "'by degrees" in str(fitted.summary())
    told = fitted.against_alone()
    assert told.against_alone.mean > 0 and len(told.verdicts) == 12


def test_predictions_are_those_of_the_best_way_fitted_to_all_rows(fitted, sites):
    data = sites.data
    alike = MixedModel(**{**fitted.fitted_["by degrees"].get_params(), "engine": None}).fit(data)
    np.testing.assert_allclose(
        fitted.fitted_["by degrees"].predict(data), alike.predict(data), rtol=1e-8
    )
    fresh = wide()
    _, std, ends = fitted.predict(fresh, return_std=True, level=0.95)
    assert np.isfinite(fitted.log_predictive_density(fresh)).all()
    held = (ends[:, 0] <= fresh.y) & (fresh.y <= ends[:, 1])
    assert 0.9 <= held.mean() <= 1.0 and (std > 0).all()
    new = fitted.predict(data.X[:3], groups="a new site")
    np.testing.assert_allclose(new, alike.predict(data.X[:3], groups="other"), atol=0.1)


def test_it_outlives_the_process(fitted, sites, tmp_path):
    again = fedkin.load(fitted.save(tmp_path / "best"))
    np.testing.assert_array_equal(again.predict(sites.data), fitted.predict(sites.data))


def test_kinds_are_found_by_sums_too():
    rng = np.random.default_rng(3)
    groups = np.repeat([f"s{k}" for k in range(16)], 30)
    X = rng.normal(size=(480, 3))
    slopes = np.where(np.arange(480)[:, None] < 240, [2.0, 0.0, 0.0], [-1.0, 1.0, 0.0])
    data = Federation.from_groups(X, groups, (X * slopes).sum(axis=1) + rng.normal(size=480))
    model = Best(engine=Sites(data), random_state=0).fit()
    assert model.best_way_ == "by kind"
    assert model.fitted_["by kind"].n_components_ == 2
    assert model.way_as_method() == ("FMLR", {})


def test_a_site_with_few_rows_is_named_and_in_no_fit(sites):
    data = sites.data
    kept = (data.owner != 2) | (np.arange(len(data.X)) % 20 < 7)
    few = Federation.from_groups(data.X[kept], data.owner[kept], data.y[kept])
    with pytest.warns(UserWarning, match="site '2': too few rows in a fold"):
        model = Best(engine=Sites(few), random_state=0).fit()
    np.testing.assert_array_equal(model.site_weights_[2], model.weights_)


def test_one_site_has_nobody_to_share_with():
    with pytest.raises(ValueError, match="only site 'site-0' has enough rows"):
        Best(engine=Sites(made(m=1)), random_state=0).fit()


@pytest.mark.parametrize(
    ("parameters", "given", "message"),
    [
        ({"target": "classes"}, (), "models of a number"),
        ({"candidates": [ODCL(send="model")]}, (), "at real sites"),
        ({}, ([[1.0]],), "without X"),
    ],
)
def test_what_cannot_be_asked_of_real_sites_is_said(sites, parameters, given, message):
    with pytest.raises(ValueError, match=message):
        Best(**parameters, engine=sites).fit(*given)
