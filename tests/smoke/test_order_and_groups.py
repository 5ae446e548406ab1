"""Predictions come in the order of the rows given; sites that were not named are told of."""

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.model_selection import cross_val_score as plain_score
from sklearn.pipeline import make_pipeline

from fedkin import (
    FGPR,
    FMLR,
    ODCL,
    Federation,
    FedGrEM,
    LocalERM,
    MixedModel,
    Standardizer,
)
from fedkin.estimators.base import OneSiteWarning
from fedkin.model_selection import RowsWithinSites, cross_val_score


@pytest.fixture(scope="module")
def shuffled():
    rng = np.random.default_rng(0)
    sites = rng.permutation(np.repeat([f"s{k}" for k in range(6)], 20))
    X = rng.normal(size=(120, 2))
    y = X @ [1.0, 2.0] + 3.0 * np.array([int(name[1:]) for name in sites])
    return X, y + 0.01 * rng.normal(size=120), sites


@pytest.mark.parametrize(
    "model",
    [
        FMLR(2, random_state=0),
        ODCL(2, random_state=0),
        ODCL(2, loss="logistic", random_state=0),
        LocalERM(),
        MixedModel(random="intercept"),
        FGPR(max_rounds=8, tol=1.0),
        FedGrEM(2, random_state=0),
    ],
    ids=lambda model: type(model).__name__ + getattr(model, "loss", ""),
)
def test_predictions_of_a_federation_are_in_the_order_of_its_table(model, shuffled):
    X, y, sites = shuffled
    if getattr(model, "loss", "") == "logistic":
        y = (y > np.median(y)).astype(float)
    data = Federation.from_groups(X, sites, y)
    model = model.fit(data)
    np.testing.assert_array_equal(model.predict(data), model.predict(X, sites))
    assert model.score(data) == pytest.approx(model.score(X, y, groups=sites), abs=1e-12)
    for name in ("predict_proba", "score_samples", "log_predictive_density"):
        if hasattr(model, name) and (name != "log_predictive_density" or hasattr(model, "kernel_")):
            extra = {"y": y} if name == "log_predictive_density" else {}
            np.testing.assert_array_equal(
                getattr(model, name)(data), getattr(model, name)(X, groups=sites, **extra)
            )


def test_a_part_of_a_federation_is_predicted_in_the_order_of_its_own_target(shuffled):
    X, y, sites = shuffled
    model = LocalERM().fit(X, y, groups=sites)
    part, _ = Federation.from_groups(X, sites, y).split(0.3)
    np.testing.assert_array_equal(model.predict(part), model.predict(X[part.rows], part.groups))
    assert np.corrcoef(model.predict(part), part.y)[0, 1] > 0.99


def test_a_formula_predicts_in_the_order_of_the_table(shuffled):
    X, y, sites = shuffled
    data = Federation.from_groups(X, sites, y)
    model = MixedModel(formula="y ~ x0 + x1 + (1 | site)").fit(data)
    assert np.corrcoef(model.predict(data), y)[0, 1] > 0.99


def test_a_fit_without_sites_says_that_nothing_is_shared(shuffled):
    X, y, sites = shuffled
    with pytest.warns(OneSiteWarning, match="120 rows count as those of one site"):
        FMLR(1).fit(X, y)
    with pytest.warns(OneSiteWarning, match=r"fedkin\.model_selection"):
        plain_score(FMLR(1), X, y, groups=sites, cv=GroupKFold(3))


def test_rows_left_out_within_sites_are_every_row_once(shuffled):
    X, _, sites = shuffled
    parts = [test for _, test in RowsWithinSites(3).split(X, groups=sites)]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(120))
    for test in parts:
        counts = np.unique(sites[test], return_counts=True)[1]
        assert len(counts) == 6 and counts.min() >= 6


def test_cross_validation_reaches_the_sites(shuffled):
    X, y, sites = shuffled
    model = LocalERM()
    known = cross_val_score(model, X, y, sites, cv=3)
    new = cross_val_score(model, X, y, sites, cv=3, leave_out="sites")
    assert known.min() > 0.99 and new.max() < 0.9
    by_name = cross_val_score(model, X, y, sites, cv=3, scoring="r2")
    np.testing.assert_allclose(known, by_name, atol=1e-12)
    piped = cross_val_score(make_pipeline(Standardizer(), model), X, y, sites, cv=3)
    np.testing.assert_allclose(known, piped, atol=1e-9)
    data = cross_val_score(model, Federation.from_groups(X, sites, y), cv=3)
    assert data.min() > 0.99


def test_with_routing_on_scikit_learn_hands_groups_on_without_requests(shuffled):
    X, y, sites = shuffled
    with sklearn.config_context(enable_metadata_routing=True):
        scores = plain_score(
            LocalERM(), X, y, params={"groups": sites}, cv=RowsWithinSites(3).split(X, groups=sites)
        )
        search = GridSearchCV(
            make_pipeline(Standardizer(), FMLR(random_state=0, degrees=False)),
            {"fmlr__n_components": [1, 6]},
            cv=list(RowsWithinSites(3).split(X, groups=sites)),
        ).fit(X, y, groups=sites)
    assert scores.min() > 0.99 and search.best_params_ == {"fmlr__n_components": 6}


def test_a_comparison_does_not_hang_on_the_order_of_the_table(shuffled):
    from fedkin.inference import benefit

    X, y, sites = shuffled
    order = np.argsort(sites, kind="stable")
    tables = (Federation.from_groups(X[k], sites[k], y[k]) for k in (np.arange(120), order))
    one, other = (benefit(LocalERM(), t, folds=3, new_sites=False) for t in tables)
    np.testing.assert_allclose(one.gain, other.gain, rtol=1e-9, atol=1e-9)


def test_conformal_intervals_are_those_of_the_rows_sites(shuffled):
    from fedkin.inference import conformalize

    X, y, sites = shuffled
    data = Federation.from_groups(X, sites, y)
    found = conformalize(LocalERM(), data, folds=3, method="exact", level=0.8)
    for one, other in zip(found.predict_interval(data), found.predict_interval(X, sites)):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_scores_of_rows_go_with_the_rows_of_a_shuffled_table(shuffled):
    X, y, sites = shuffled
    data = Federation.from_groups(X, sites, y)
    model = MixedModel(random="intercept").fit(data)
    scores = model._row_scores(model, data, data)
    assert np.abs(scores["residual"]).max() < 0.1
    expected = model.predict(X, sites)
    np.testing.assert_allclose(
        np.sort(scores["residual"]), np.sort(y - expected), rtol=1e-9, atol=1e-12
    )
