"""Best where sites hold their own rows and ways take rounds: mixtures of rows, a common curve."""

from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.utils import check_random_state
from tests.smoke.test_benefit_at_sites import Sites
from tests.smoke.test_left_out_at_sites import StrictSites, curves, groups

import fedkin
from fedkin import FGPR, TGMM, Best, Federation, FedGrEM, LocalEM, MixedModel, PooledEM
from fedkin.estimators.best_at_sites import FOLD_SEED
from fedkin.estimators.candidates import (
    CURVE_COLUMNS,
    CURVE_ROWS,
    POINTS_OF_MANY,
    ROUNDS_COMPARED,
    STARTS_COMPARED,
    curve_ways,
    rows_at_sites,
    without_last_digits,
)
from fedkin.estimators.left_out import _heard_widely
from fedkin.estimators.site_models import PlainRegression
from fedkin.inference.held_out import rows_left_out
from fedkin.protocol import Fault, Reason

FOLDS = 2
SEED = int(check_random_state(0).randint(2**31 - 1))
MIXTURES = ("alone", "one model", "groups", "groups, own variances", "groups, own covariances")


def agree(held, by_hand, metrics, **how):
    assert held.ways == by_hand.ways and set(held.metrics) == set(metrics)
    np.testing.assert_array_equal(held.rows, by_hand.rows)
    np.testing.assert_allclose(held.trained, by_hand.trained)
    for metric in metrics:
        found, wanted = held.metrics[metric], by_hand.metrics[metric]
        np.testing.assert_allclose(found.totals, wanted.totals, **how)
        np.testing.assert_allclose(found.products, wanted.products, **how)


# ------------------------------------------------------------------ rows themselves


@pytest.fixture(scope="module")
def sites():
    return Sites(groups(m=5))


@pytest.fixture(scope="module")
def fitted(sites):
    best = Best(target="rows", n_components=2, folds=FOLDS, random_state=0, engine=sites)
    return best.fit()


def test_scores_of_mixtures_and_their_products_are_those_of_one_process(fitted, sites):
    ways = {n: without_last_digits(w) for n, w in rows_at_sites(2, SEED).items()}
    by_hand = rows_left_out(Best(), ways, sites.data, (FOLDS,), FOLD_SEED)
    assert fitted.ways_ == MIXTURES
    agree(fitted.held_out_, by_hand, ["log"], rtol=1e-9, atol=1e-9)


def test_one_run_compares_and_every_way_has_a_run_of_its_own(fitted, sites):
    asked = [name for name, _ in sites.asked]
    assert asked == ["left_out", "local_em", "fedem", "fedgrem", "fedgrem", "fedgrem"]
    assert fitted.n_rounds_ == sum(traffic.rounds for _, traffic in sites.asked)
    assert fitted.traffic_.bytes_up == sum(traffic.bytes_up for _, traffic in sites.asked)
    assert fitted.refusals_ == () and fitted.missing_sites_ == {} and fitted.kept_back_ == {}


def test_every_way_is_fitted_to_all_rows_as_by_itself(fitted, sites):
    for name, way in rows_at_sites(2, SEED).items():
        by_itself = way.fit(sites.data)
        found = fitted.fitted_[name].score_samples(sites.data)
        np.testing.assert_allclose(found, by_itself.score_samples(sites.data), rtol=1e-9)


def test_the_answer_about_rows_is_whole(fitted, sites):
    data = sites.data
    assert fitted.target_ == "rows" and not hasattr(fitted, "point_weights_")
    assert fitted.weights_.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(fitted.site_weights_.sum(axis=1), 1.0)
    assert fitted.new_site_weights_[0] == 0.0
    np.testing.assert_allclose(fitted.new_site_weights_.sum(), 1.0)
    assert sorted(site for won in fitted.won_at().values() for site in won) == sorted(data.names)
    assert f"'{fitted.best_way_}' won overall" in str(fitted.summary())
    assert np.isfinite(fitted.score_samples(data)).all()
    assert np.isfinite(fitted.score_samples(data.X[:3], groups="a new site")).all()
    assert fitted.predict(data).shape == (len(data.X),)
    assert fitted.n_features_in_ == 2 and fitted.against_alone() is not None


def test_groups_that_all_share_are_not_best_described_alone(fitted):
    """Two groups about as far apart at all sites, which differ a little."""
    assert fitted.best_way_ != "alone" and fitted.weights_[0] < 0.05
    assert fitted.against_alone().against_alone.mean > 0


def test_the_best_way_is_a_method_with_its_settings(fitted):
    method, settings = fitted.way_as_method()
    assert method in ("FedEM", "FedGrEM")
    again = getattr(fedkin, method)(**settings, random_state=SEED)
    given = fitted.fitted_[fitted.best_way_].get_params()
    assert {**again.get_params(), "engine": None} == {**given, "engine": None}
    one = Best.__new__(Best)
    vars(one).update({**vars(fitted), "best_way_": "one model"})
    assert one.way_as_method() == ("FedEM", {"covariance_type": "tied", "average": "pooled"})


def test_mixtures_outlive_the_process(fitted, sites, tmp_path):
    again = fedkin.load(fitted.save(tmp_path / "best"))
    np.testing.assert_array_equal(again.score_samples(sites.data), fitted.score_samples(sites.data))
    assert again.kept_back_ == {}


def test_the_number_of_groups_is_asked_of_the_sites():
    data = groups(m=4, n=60)
    sites = Sites(data)
    model = Best(target="rows", folds=FOLDS, random_state=0, engine=sites)._choose_at_sites()
    told = FedGrEM(None, covariance_type="diag", random_state=SEED).fit(data)
    assert [name for name, _ in sites.asked] == ["fedgrem", "left_out"]
    assert told.n_components_ == 2
    assert {way.n_components for way in model.fitted_.values()} == {2}


def test_to_choose_nothing_is_fitted_to_all_rows(fitted):
    sites = Sites(groups(m=5))
    best = Best(target="rows", n_components=2, folds=FOLDS, random_state=0, engine=sites)
    chosen = best._choose_at_sites()
    assert [name for name, _ in sites.asked] == ["left_out"]
    np.testing.assert_array_equal(chosen.weights_, fitted.weights_)
    assert chosen.way_as_method() == fitted.way_as_method()
    assert str(chosen.summary().tables["ways"]) == str(fitted.summary().tables["ways"])


def test_candidates_are_compared_with_their_like_alone():
    data = groups(m=4)
    given = {"transfer": TGMM(2, random_state=1), "robust": FedGrEM(2, random_state=2)}
    best = Best(given, target="rows", folds=FOLDS, random_state=0, engine=Sites(data)).fit()
    ways = {"alone": LocalEM(2, random_state=1), **given}
    by_hand = rows_left_out(Best(), ways, data, (FOLDS,), FOLD_SEED)
    agree(best.held_out_, by_hand, ["log"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "candidates, words",
    [
        ([PooledEM(2)], "not by PooledEM"),
        ([MixedModel()], "not by MixedModel"),
        ([FedGrEM(2, family="regression")], "not by FedGrEM"),
    ],
)
def test_what_cannot_describe_rows_at_sites_is_refused(candidates, words):
    with pytest.raises(ValueError, match=words):
        Best(candidates, target="rows", engine=Sites(groups(m=2))).fit()


def test_folds_that_are_too_small_are_told_with_the_remedy():
    data = groups(m=3, n=8)
    with pytest.raises(ValueError, match="fewer folds"):
        Best(target="rows", n_components=2, random_state=0, engine=Sites(data)).fit()


def test_a_site_with_few_rows_has_no_part_in_the_comparison_of_mixtures():
    data = groups(m=4)
    kept = (data.owner != 2) | (np.arange(len(data.X)) % 36 < 5)
    few = Federation.from_groups(data.X[kept], data.owner[kept])
    best = Best([FedGrEM(2)], target="rows", folds=FOLDS, random_state=0, engine=Sites(few))
    with pytest.warns(UserWarning, match="site '2': too few rows in a fold"):
        best.fit()
    np.testing.assert_array_equal(best.site_weights_[2], best.weights_)


def test_a_mixture_without_a_fold_has_fewer_rounds_and_starts():
    for way in rows_at_sites(3, 0).values():
        fewer = without_last_digits(way)
        assert fewer.max_rounds == min(way.max_rounds, ROUNDS_COMPARED) and fewer.n_components == 3
        own = isinstance(way, FedGrEM) and way.covariance_type != "identity"
        assert fewer.n_restarts == (STARTS_COMPARED if own else way.n_restarts)


# ------------------------------------------------------------------ a common curve


CURVE = FGPR(common=True, n_points=6, max_rounds=4)
WAYS = {"by degrees": MixedModel(covariance="isotropic"), "curve": CURVE}


@pytest.fixture(scope="module")
def with_curve():
    sites = Sites(curves(m=4, n=16))
    return Best(WAYS, folds=FOLDS, random_state=0, engine=sites).fit(), sites


def test_a_curve_is_scored_beside_linear_ways_at_the_same_rows(with_curve):
    best, sites = with_curve
    plain = {"alone": PlainRegression(), "one model": PlainRegression(True)}
    by_hand = rows_left_out(Best(), {**plain, **WAYS}, sites.data, (FOLDS,), FOLD_SEED)
    agree(best.held_out_, by_hand, ["log", "rmse"], rtol=1e-6, atol=1e-8)
    for metric in ("log", "rmse"):
        found, wanted = best.held_out_.metrics[metric], by_hand.metrics[metric]
        np.testing.assert_allclose(found.totals[3], wanted.totals[3], rtol=1e-9)


def test_sums_then_fits_and_scores_then_the_curve_of_all_rows(with_curve):
    best, sites = with_curve
    assert [name for name, _ in sites.asked] == ["held_out", "left_out", "fgpr"]
    assert best.n_rounds_ == sum(traffic.rounds for _, traffic in sites.asked)
    assert best.ways_ == ("alone", "one model", "by degrees", "curve")
    assert best.weights_.sum() == pytest.approx(1.0)
    assert best.new_site_weights_.sum() == pytest.approx(1.0) and best.new_site_weights_[0] == 0


def test_a_curve_that_bends_wins_over_lines(with_curve):
    best, _ = with_curve
    assert best.best_way_ == "curve" and best.point_weights_[3] > 0.9
    assert best.way_as_method() == ("FGPR", {"common": True, "n_points": 6, "max_rounds": 4})


def test_the_coordinator_knows_no_curve_of_a_site_but_that_of_a_new_one(with_curve):
    best, sites = with_curve
    curve = best._fits[3]
    np.testing.assert_array_equal(curve.serves((*sites.data.names, "new")), [False] * 4 + [True])
    weights = best._weights_at(sites.data)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert (weights[:, 3] == 0).all()
    assert np.isfinite(best.predict(sites.data)).all()
    X = np.linspace(0.5, 3.5, 7)[:, None]
    shared = best.fitted_["curve"].predict(X, groups="new")
    found = best.predict(X, groups="new")
    assert best.new_site_weights_[3] > 0.5
    np.testing.assert_allclose(found, shared, atol=0.8 * np.ptp(shared))


def test_where_the_curve_has_all_weight_the_others_stand_in_by_their_chances(with_curve):
    best, sites = with_curve
    only = Best.__new__(Best)
    vars(only).update(vars(best))
    only.site_weights_ = np.tile(np.eye(4)[3], (4, 1))
    weights = only._weights_at(sites.data)
    np.testing.assert_allclose(weights, np.tile(best._stand_in, (4, 1)))
    assert best._stand_in[3] == 0 and best._stand_in.sum() == pytest.approx(1.0)


def test_a_curve_with_its_lines_outlives_the_process(with_curve, tmp_path):
    best, sites = with_curve
    again = fedkin.load(best.save(tmp_path / "best"))
    np.testing.assert_array_equal(again.predict(sites.data), best.predict(sites.data))


def test_a_common_curve_is_tried_where_columns_and_rows_are_few():
    assert list(curve_ways(CURVE_COLUMNS, CURVE_ROWS, True)) == ["common curve"]
    assert not curve_ways(CURVE_COLUMNS + 1, 9, True) and not curve_ways(1, CURVE_ROWS + 1, True)
    assert curve_ways(2, 9, True)["common curve"].n_points == POINTS_OF_MANY
    assert curve_ways(1, 9, True)["common curve"].n_points is None


def test_a_curve_that_sites_do_not_trust_the_server_with_is_out_and_lines_are_as_without_it():
    data = curves(m=3, n=60)
    linear = {"by degrees": MixedModel(covariance="isotropic")}
    strict = StrictSites(data)
    best = Best({**linear, "curve": CURVE}, folds=4, random_state=0, engine=strict).fit()
    without = Best(linear, folds=4, random_state=0, engine=StrictSites(data)).fit()
    assert best.ways_ == without.ways_ == ("alone", "one model", "by degrees")
    assert set(best.kept_back_) == {"curve"} and "allow.trusted" in best.kept_back_["curve"]
    assert "'curve' was not compared" in str(best.summary())
    agree(best.held_out_, without.held_out_, ["log", "rmse"], rtol=1e-12)
    np.testing.assert_allclose(best.predict(data), without.predict(data))


@dataclass(frozen=True)
class NoFolds(Sites):
    """Sites whose policies do not allow fits without folds."""

    reason: Reason = Reason.POLICY

    def run(self, algorithm, settings, federation, seed=0):
        if algorithm.name == "left_out":
            raise NotReady(self.reason)
        return super().run(algorithm, settings, federation, seed)


class NotReady(RuntimeError):
    def __init__(self, reason):
        super().__init__("sites are not ready")
        self.problems = [type("Problem", (), {"fault": Fault(reason)})()]


def test_where_policies_do_not_allow_fits_without_folds_lines_are_compared():
    data = curves(m=3, n=20)
    best = Best(WAYS, folds=FOLDS, random_state=0, engine=NoFolds(data)).fit()
    without = Best({"by degrees": WAYS["by degrees"]}, folds=FOLDS, engine=Sites(data)).fit()
    agree(best.held_out_, without.held_out_, ["log", "rmse"], rtol=1e-12)
    assert best.kept_back_ == {"curve": str(Reason.POLICY)}
    with pytest.raises(NotReady):
        Best(WAYS, folds=FOLDS, engine=NoFolds(data, reason=Reason.DATA)).fit()


# ------------------------------------------------------------------ ways that sites keep back


def test_a_way_in_which_most_sites_are_not_heard_is_out():
    def of(*heard):
        return [{"site_loglik": np.where(heard, 1.0, np.nan)}] * 2

    all_of_them, half, few = of(1, 1, 1, 1), of(1, 1, 0, 0), of(1, 0, 0, 0)
    assert _heard_widely({0: all_of_them, 2: half, 3: few}) == [0, 2]
    assert _heard_widely({1: few}) == [1]
    assert _heard_widely({}) == []


def test_where_every_way_is_kept_back_the_reasons_are_told():
    rng = np.random.default_rng(0)
    data = Federation.from_groups(rng.normal(size=(66, 9)), np.repeat(np.arange(3), 22))
    best = Best([FedGrEM(2)], target="rows", folds=FOLDS, random_state=0, engine=StrictSites(data))
    with pytest.raises(ValueError, match=r"every way asks for \('alone': withheld"):
        best.fit()


def test_a_number_of_groups_that_sites_do_not_tell_is_asked_for():
    rng = np.random.default_rng(0)
    data = Federation.from_groups(rng.normal(size=(66, 9)), np.repeat(np.arange(3), 22))
    with pytest.raises(ValueError, match="say how many: n_components"):
        Best(target="rows", random_state=0, engine=StrictSites(data)).fit()


def test_groups_are_counted_under_rules_although_more_groups_are_more_numbers():
    """Ten starts of three groups are more numbers than a reply of 160 rows may have."""
    data = groups(m=3, n=160)
    strict = StrictSites(data)
    told = FedGrEM(None, covariance_type="diag", random_state=3, engine=strict).fit()
    assert told.n_components_ == 2
    assert {r.reason for r in strict.runs[0].refusals} == {Reason.PARAMETERS}
