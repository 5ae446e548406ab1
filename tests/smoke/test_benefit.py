"""Does joining help? The answer for every kind of estimator, in words, tables and a picture."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

from fedkin import FGPR, FMLR, ODCL, Federation, FedGrEM, MixedModel, Standardizer
from fedkin.datasets import make_gaussian_mixtures
from fedkin.estimators.site_models import PlainClasses, PlainRegression
from fedkin.estimators.ways import row_scores
from fedkin.inference import benefit
from fedkin.inference.benefit import Benefit, judged
from fedkin.inference.held_out import HeldOut, Scores


def by_degrees(m=24, n=15, spread=1.0, seed=0):
    rng = np.random.default_rng(seed)
    groups = np.repeat([f"site-{k}" for k in range(m)], n)
    X = rng.normal(size=(m * n, 4))
    level = np.repeat(spread * rng.normal(size=m), n)
    return X, X @ [1.0, -2.0, 0.0, 0.5] + level + rng.normal(size=m * n), groups


@pytest.fixture(scope="module")
def found():
    return MixedModel(random="intercept").benefit(*by_degrees())


def test_sites_of_few_rows_are_helped_by_a_mixed_model(found):
    assert found.share("helps") >= 0.9 and found.overall == "helps"
    assert (found.interval[:, 0] < found.gain).all() and (found.gain < found.interval[:, 1]).all()
    assert "helps" in found.sentence and "24 sites" in found.sentence


def test_one_model_for_all_is_worse_where_levels_differ(found):
    assert found.against_one.mean_low > 0


def test_it_is_told_by_another_metric_without_fitting_again(found):
    other = found.by("rmse")
    assert other.metric == "rmse" and other.held_out is found.held_out
    rows = found.held_out
    alone = rows.means("rmse")[0]
    square = -rows.metrics["rmse"].totals[0].sum(axis=0) / rows.rows.sum(axis=0)
    np.testing.assert_allclose(alone, np.sqrt(square))
    raw = other.against_alone
    joined = rows.means("rmse")[1]
    np.testing.assert_allclose(raw.own - raw.carried, alone - joined, atol=0.1)
    with pytest.raises(ValueError, match="metric"):
        found.by("error")


def test_tables_text_and_picture(found):
    table = found.table()
    assert list(table["site"]) != list(found.sites) and len(table.rows()) == 24
    assert np.all(np.diff(table["gain"]) <= 0)
    assert "verdict" in str(found) and "<table" in found._repr_html_()
    assert len(found.plot().lines) > 48
    assert len(found.new_site_table().rows()) == 24


def test_the_estimator_stays_as_it_was_and_a_federation_does(found):
    X, y, groups = by_degrees()
    model = MixedModel(random="intercept")
    again = benefit(model, Federation.from_groups(X, groups, y))
    assert not hasattr(model, "coef_")
    np.testing.assert_allclose(again.gain, found.gain)


def test_scores_are_those_of_fits_to_the_other_rows():
    """One fold after another by hand, for the way `one model`."""
    X, y, groups = by_degrees(m=5, n=8)
    found = benefit(MixedModel(), X, y, groups, folds=4, new_sites=False)
    from fedkin.models.folds import row_folds

    data = Federation.from_groups(X, groups, y)
    fold, error = row_folds(data, 4, 0), np.zeros(len(y))
    for part in range(4):
        out = fold == part
        model = PlainRegression(True).fit(
            Federation.from_groups(data.X[~out], data.owner[~out], data.y[~out])
        )
        test = Federation.from_groups(data.X[out], data.owner[out], data.y[out])
        error[out] = (test.y - model.predict(test)) ** 2
    by_hand = np.sqrt(np.bincount(data.owner, error) / 8)
    np.testing.assert_allclose(found.held_out.means("rmse")[2], by_hand)


def test_sites_with_plenty_of_rows_see_no_difference():
    found = benefit(MixedModel(), *by_degrees(m=6, n=400, spread=3.0), folds=4, new_sites=False)
    assert found.share("no difference") == 1.0 and found.margin == 0.05


def test_rows_that_tell_nothing_are_not_said_to_see_no_difference():
    """Six rows a site, far apart: intervals of a nat, which no person would call nothing."""
    found = benefit(MixedModel(), *by_degrees(m=4, n=6, spread=3.0), folds=3, new_sites=False)
    assert found.margin > 0.25 and found.share("no difference") == 0.0
    assert found.share("cannot tell") > 0 and "too few to say" in found.sentence
    wide = benefit(
        MixedModel(), *by_degrees(m=4, n=6, spread=3.0), folds=3, new_sites=False, margin=20.0
    )
    assert wide.share("no difference") == 1.0  # who says what matters is believed


def test_joining_hurts_those_who_are_forced_to_be_one():
    X, y, groups = by_degrees(m=6, n=60, spread=4.0)
    found = benefit(ODCL(n_clusters=1), X, y, groups, folds=4, new_sites=False)
    assert found.share("hurts") >= 0.6 and found.share("helps") == 0.0 and "hurt" in found.sentence


def test_every_kind_of_estimator_can_be_asked():
    X, y, groups = by_degrees(m=4, n=12)
    labels = np.where(y > 0, "yes", "no")
    for model, target, metrics in (
        (FMLR(1), y, {"log", "rmse"}),
        (FGPR(), y, {"log", "rmse"}),
        (MixedModel(family="multinomial"), labels, {"log", "error"}),
        (FedGrEM(2, random_state=0), None, {"log"}),
        (FedGrEM(2, random_state=0), labels, {"log", "error"}),
    ):
        found = benefit(model, X[:, :1], target, groups, folds=2, new_sites=False)
        assert set(found.held_out.metrics) == metrics, model
        assert np.isfinite(found.held_out.means("log")).all(), model


def test_at_no_heterogeneity_forty_rows_are_helped():
    data = make_gaussian_mixtures(n_rows=40, n_outliers=0, heterogeneity=0.0, random_state=1)
    found = benefit(FedGrEM(5, random_state=0), data.clients, folds=5, new_sites=False)
    assert found.share("helps") >= 0.9


def test_groups_are_judged_by_classes_that_fits_do_not_see():
    data = make_gaussian_mixtures(4, 60, n_outliers=0, n_components=2, n_features=3)
    labelled = Federation.from_groups(data.clients.X, data.clients.owner, data.labels)
    model = FedGrEM(2, random_state=0).fit(data.clients)
    error = -row_scores(clone(model).fit(labelled), labelled, labelled)["error"]
    assert error.mean() < 0.1


def test_a_plain_regression_of_many_rows_is_least_squares():
    X, y, groups = by_degrees(m=2, n=2000)
    data = Federation.from_groups(X, groups, y)
    own = PlainRegression().fit(data).predict(data)
    rows, target = data.client(0)
    exact = LinearRegression().fit(rows, target).predict(rows)
    np.testing.assert_allclose(own[:2000], exact, atol=1e-2)


def test_a_class_that_a_site_has_not_seen_is_not_impossible():
    X = np.arange(12.0)[:, None]
    groups = np.repeat(["a", "b"], 6)
    data = Federation.from_groups(X, groups, np.array([0.0] * 6 + [0, 1, 2, 0, 1, 2]))
    share = PlainClasses().fit(data).predict_proba(data)
    np.testing.assert_allclose(share.sum(axis=1), 1.0)
    assert (share[:6, 1:] > 0).all() and share[:6, 0].min() > 0.8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folds": 1}, "folds"),
        ({"level": 1.0}, "level"),
        ({"margin": -1.0}, "margin"),
        ({"metric": "error"}, "metric"),
    ],
)
def test_what_cannot_be_is_said(options, words):
    with pytest.raises(ValueError, match=words):
        benefit(MixedModel(), *by_degrees(m=3, n=6), new_sites=False, **options)


def test_what_has_nothing_to_compare_says_so():
    X, y, groups = by_degrees(m=3, n=6)
    with pytest.raises(ValueError, match="groups"):
        benefit(MixedModel(), X, y)
    with pytest.raises(ValueError, match="data"):
        benefit(MixedModel())
    with pytest.raises(ValueError, match="counts"):
        benefit(MixedModel(family="poisson"), X, np.round(np.abs(y)), groups)
    assert not hasattr(Standardizer(), "benefit")


# ------------------------------------------------------------------ what a mean does not tell


def told_of(gains, errors=None):
    """A benefit of sites of 20 rows whose joined rows score so much better than alone, and whose
    RMSE alone is 1."""
    gains = np.asarray(gains, dtype=float)
    m = len(gains)
    rng = np.random.default_rng(0)
    alone, noise = 0.01 * rng.normal(size=(2, m, 20))
    noise -= noise.mean(axis=1, keepdims=True)
    scores = {"log": np.stack([alone, alone + gains[:, None] + noise])}
    if errors is not None:
        joined = np.asarray(errors)[:, None] ** 2 + noise
        scores["rmse"] = -np.stack([np.ones((m, 20)), joined])
    metrics = {
        name: Scores(rows.sum(axis=2)[:, None], np.einsum("amr,bmr->abm", rows, rows)[:, :, None])
        for name, rows in scores.items()
    }
    rows = np.full((1, m), 20.0)
    names = tuple(f"site-{k}" for k in range(m))
    held = HeldOut(("alone", "joining"), names, rows[0], rows, rows * 0.9, metrics)
    return judged(Benefit("it", "log", 0.0, 0.0, 0.95, held), None)


def test_a_mean_that_a_few_sites_make_is_told_with_the_median():
    even = told_of(np.full(12, 0.4))
    assert "a few sites" not in even.sentence
    wrecked = told_of([*np.full(11, 0.1), 60.0])
    assert "but a few sites make that mean: the median site gains 0.1" in wrecked.sentence
    # Against the others, too.
    assert "the median site gains 0.1" in told_of([*np.full(11, 0.1), -60.0]).sentence
    assert "a few sites" not in told_of(np.full(12, 0.001)).sentence
    assert "the median site loses 0.1" in told_of([*np.full(11, -0.1), 60.0]).sentence
    assert "the median site gains next to nothing" in told_of([*np.full(11, 1e-4), -60.0]).sentence


def test_a_loss_is_called_a_loss():
    assert "on average it gains 0.4 in log score (" in told_of(np.full(12, 0.4)).sentence
    lost = told_of(np.full(12, -0.4)).sentence
    assert "on average it loses 0.4 in log score against staying alone (a gain from -0.4" in lost


def test_errors_of_a_typical_site_are_those_of_the_median_one():
    held = told_of(np.full(5, 0.4), [0.8, 0.8, 0.8, 0.8, 90.0]).held_out
    assert held.typical("rmse")[1] == pytest.approx(0.8)
    assert held.typical("log")[1] == pytest.approx(np.mean(held.means("log")[1]))


def test_beside_the_log_score_stands_what_becomes_of_the_error():
    assert "RMSE" not in told_of(np.full(12, 0.4)).sentence
    falls = told_of(np.full(12, 0.4), np.full(12, 0.8))
    assert "The error (RMSE) of the median site falls by 20 %." in falls.sentence
    assert "rises by 10 %" in told_of(np.full(12, 0.4), np.full(12, 1.1)).sentence
    assert "stays the same" in told_of(np.full(12, 0.4), np.full(12, 1.001)).sentence
    assert "median site" not in falls.by("rmse").sentence


def test_sites_that_saw_equal_targets_are_no_rivals_of_straw():
    """Staying alone, two equal targets are no proof that there is no noise."""
    rng = np.random.default_rng(1)
    m, n = 60, 4
    groups = np.repeat([f"site-{k}" for k in range(m)], n)
    X = rng.normal(size=(m * n, 1))
    # Rounded as people write it down: at some sites the first rows are all 0.
    y = np.round(np.maximum(rng.normal(size=m * n), 0.0))
    found = MixedModel("intercept").benefit(X, y, groups)
    alone = found.held_out.means("log")[0]
    assert np.isfinite(alone).all() and alone.mean() > -3.0
