"""FGPR and its rivals as scikit-learn estimators."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, RationalQuadratic, WhiteKernel
from sklearn.utils.estimator_checks import check_estimator

from fedkin.datasets import make_gaussian_sites, two_kinds_of_priors
from fedkin.estimators import FGPR, CoKriging, FedAvgNetwork, FedAvgPolynomial, LocalGP, PooledGP
from fedkin.estimators.fgpr import WrongTargetWarning
from fedkin.models import cokriging
from fedkin.report import page

GRID = np.linspace(0, 1, 7)[:, None]


@pytest.mark.parametrize(
    "model",
    [
        FGPR(personalise="posterior", max_rounds=20),
        LocalGP(),
        PooledGP(max_rounds=20),
        FedAvgPolynomial(2, max_rounds=20),
        FedAvgNetwork(1, max_rounds=20, random_state=0),
    ],
    ids=str,
)
def test_scikit_learn_finds_nothing_to_complain_about(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = check_estimator(model, on_fail=None, on_skip=None)
    failed = {r["check_name"]: str(r["exception"]) for r in report if r["status"] == "failed"}
    assert not failed


def test_fitted_attributes_and_summary():
    data = make_gaussian_sites(8, 12, random_state=1).federation
    model = FGPR(n_priors=2).fit(data)
    assert model.theta_.shape == (2, 3) and model.responsibilities_.shape == (8, 2)
    assert set(model.site_kernels_) == set(data.names) and len(model.kernels_) == 2
    np.testing.assert_allclose(model.weights_.sum(), 1.0)
    np.testing.assert_allclose(model.responsibilities_.sum(axis=1), 1.0)
    assert np.isfinite(model.log_marginal_likelihood_)
    summary = model.summary()
    assert set(summary.tables) == {"priors", "sites", "choice", "traffic"}
    assert "value and gradient" in str(summary) and "<table" in page(summary)


@pytest.mark.parametrize("family", [FGPR, LocalGP, PooledGP])
def test_what_is_known_of_sites_has_an_entry_for_each(family):
    data = make_gaussian_sites(4, 8, random_state=1).federation
    model = family().fit(data)
    assert tuple(model.client_names_) == tuple(model.site_kernels_) == data.names
    for array in (model.own_, model.labels_, model.responsibilities_, model.jitter_):
        assert len(array) == 4


@pytest.mark.parametrize("family", [FGPR, LocalGP, PooledGP])
def test_any_kernel_of_scikit_learn_will_do(family):
    data = make_gaussian_sites(5, 10, random_state=1).federation
    kernel = RBF(0.5) * RationalQuadratic(1.0) + WhiteKernel(0.5)
    model = family(kernel, normalize_y=False).fit(data)
    assert type(model.kernel_) is type(kernel)
    assert np.isfinite(model.predict(GRID, np.full(7, "site-1"))).all()


def test_groups_and_a_federation_give_the_same_fit():
    data = make_gaussian_sites(5, 10, random_state=1).federation
    names = np.array(data.names)[data.owner]
    one = FGPR().fit(data)
    other = FGPR().fit(data.X, data.y, groups=names)
    np.testing.assert_array_equal(one.theta_, other.theta_)


def test_an_array_of_log_parameters_is_a_start():
    data = make_gaussian_sites(20, 8, random_state=1).federation
    plain = {"personalise": "posterior", "common": False}
    first = FGPR(**plain, tol=1e-8).fit(data)
    again = FGPR(**plain, init=first.theta_[0]).fit(data)
    assert len(again.history_["value"]) == 1
    np.testing.assert_array_equal(first.theta_, again.theta_)


@pytest.mark.parametrize(
    "model",
    [
        FGPR(),
        FGPR(optimizer="sgd"),
        FGPR(robust="trimmed"),
        FGPR(n_priors=2),
        FGPR(n_priors=None),
        LocalGP(),
        PooledGP(),
    ],
    ids=str,
)
def test_parameters_of_a_fit_are_a_start(model):
    data = make_gaussian_sites(10, 8, random_state=1).federation
    first = model.fit(data).theta_
    again = clone(model).set_params(init=first).fit(data)
    np.testing.assert_allclose(again.theta_, first, atol=0.05)


def test_two_priors_begin_where_they_are_told_to():
    data = make_gaussian_sites(20, 12, two_kinds_of_priors(), random_state=1).federation
    settings = {"n_priors": 2, "normalize_y": False, "personalise": "posterior"}
    first = FGPR(**settings).fit(data)
    again = FGPR(**settings, init=first.theta_).fit(data)
    np.testing.assert_allclose(again.theta_, first.theta_, atol=0.01)
    assert again.n_rounds_ < first.n_rounds_ and len(again.choice_["bic"]) == 1
    grown = FGPR(**settings, init=first.theta_[:1]).fit(data)
    assert grown.n_priors_ == 2


def test_co_kriging_tells_of_its_search(monkeypatch):
    data = make_gaussian_sites(3, 8, random_state=1).federation
    model = CoKriging().fit(data)
    values = model.history_["value"]
    assert model.converged_ and len(values) > 2 and values.min() < values[0]
    assert model.refusals_ == () and model.n_rounds_ == 0
    monkeypatch.setattr(cokriging, "MOST_STEPS", 1)
    assert not model.fit(data).converged_ and "not come to its end" in str(model.summary())


@pytest.mark.parametrize(
    "model",
    [FGPR(), PooledGP(), FedAvgPolynomial(3), FedAvgNetwork(1, random_state=0)],
    ids=str,
)
def test_a_search_that_is_cut_short_warns_where_fit_was_called(model):
    data = make_gaussian_sites(5, 8, random_state=1).federation
    with pytest.warns(ConvergenceWarning, match="did not settle within max_rounds=2") as told:
        clone(model).set_params(max_rounds=2).fit(data)
    assert told[0].filename == __file__


def test_what_settles_or_searches_for_nothing_does_not_warn():
    data = make_gaussian_sites(5, 8, random_state=1).federation
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model in (FGPR(), PooledGP(), FedAvgPolynomial(3), LocalGP(max_rounds=1)):
            model.fit(data)


def test_restarted_adam_warns():
    data = make_gaussian_sites(5, 8, random_state=1).federation
    with pytest.warns(WrongTargetWarning, match="signs"):
        FGPR(optimizer="adam-restarted", learning_rate=0.1, max_rounds=60).fit(data)


def test_samples_have_the_moments_of_the_prediction():
    data = make_gaussian_sites(6, 12, random_state=1).federation
    model, where = FGPR().fit(data), np.full(7, "site-1")
    mean, std = model.predict(GRID, where, return_std=True)
    drawn = model.sample_y(GRID, where, 4000, random_state=1)
    np.testing.assert_allclose(drawn.mean(axis=1), mean, atol=0.1)
    np.testing.assert_allclose(drawn.std(axis=1), std, rtol=0.06)


def test_degree_is_chosen_on_training_sites():
    data = make_gaussian_sites(12, 10, random_state=1).federation
    model = FedAvgPolynomial(None, max_rounds=5).fit(data)
    assert len(model.choice_["degree"]) == 20
    assert model.size_ == model.choice_["degree"][np.argmin(model.choice_["rmse"])]


@pytest.mark.parametrize("kernel", [None, RBF(0.5) * RationalQuadratic(1.0) + WhiteKernel(0.5)])
def test_a_saved_prior_serves_new_sites_and_holds_no_rows(tmp_path, kernel):
    data = make_gaussian_sites(9, 12, random_state=1).federation
    new = make_gaussian_sites(2, 12, random_state=2).federation
    model = FGPR(kernel, n_priors=2, normalize_y="mean").fit(data)
    place = model.save_shared(tmp_path / "prior.npz")
    with np.load(place, allow_pickle=False) as stored:
        names, words = set(stored.files), str(stored["words"])
        numbers = np.concatenate([stored[n].ravel() for n in names - {"words", "converged"}])
    assert names == {"words", "theta", "weights", "spread", "target", "curve", "converged"}
    assert not np.isin(numbers, np.concatenate([data.X.ravel(), data.y])).any()
    assert not any(name in words for name in data.names)
    again = FGPR.load_shared(place)
    for one, other in zip(
        model.predict(GRID, "nobody", return_std=True),
        again.predict(GRID, "nobody", return_std=True),
    ):
        np.testing.assert_array_equal(one, other)
    where = np.full(7, "site-1")
    one = again.adapt(new).predict(GRID, where, return_std=True)
    other = model.adapt(new).predict(GRID, where, return_std=True)
    np.testing.assert_array_equal(one, other)
    assert "2 priors" in str(again.summary())


def test_what_is_not_a_prior_is_not_loaded(tmp_path):
    np.savez(tmp_path / "other.npz", theta=np.zeros(3))
    (tmp_path / "words.npz").write_text("not even that")
    for name in ("other.npz", "words.npz"):
        with pytest.raises(ValueError, match="not a prior"):
            FGPR.load_shared(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        FGPR.load_shared(tmp_path / "nowhere.npz")
    data = make_gaussian_sites(3, 8, random_state=1).federation
    with pytest.raises(ValueError, match="no shared prior"):
        PooledGP().fit(data).save_shared(tmp_path / "pool.npz")
