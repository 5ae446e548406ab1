"""FMLR with kinds, degrees, noises and weights: what is chosen, what is said, what is predicted."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import statsmodels.api as sm

from fedkin import FMLR, Federation, MixedModel
from fedkin.algorithms.fmlr_degrees import carries
from fedkin.datasets import make_regression_groups
from fedkin.datasets.fmlr import PAPER_COEF
from fedkin.engines import InProcess
from reproduction.fmlr_degrees import DEPARTURES, agreement, drawn_sites

PRINTED = {"degrees": False, "site_noise": "common"}


def drawn(kinds, departs, m=60, n=15, noise=1.0, seed=0):
    return drawn_sites(np.random.default_rng([5, seed]), m, n, kinds, departs, noise)


def fitted(data, **parameters):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return FMLR(random_state=0, max_components=4, **parameters).fit(
            data.X, data.y, groups=data.site
        )


@pytest.fixture(scope="module")
def both():
    data = drawn(2, True)
    return data, fitted(data)


# ------------------------------------------------------------------ what is chosen


def test_two_kinds_that_depart_are_found(both):
    data, model = both
    assert (model.n_components_, model.degrees_, model.site_noise_) == (2, True, "common")
    assert agreement(model.labels_, data.kind) == 1.0
    spread = np.sqrt(np.diag(model.random_covariance_))
    np.testing.assert_allclose(spread, DEPARTURES, rtol=0.35)


def test_degrees_without_kinds_are_one_kind():
    model = fitted(drawn(1, True))
    assert (model.n_components_, model.degrees_) == (1, True)


def test_kinds_without_degrees_stay_as_printed():
    made = make_regression_groups(60, 15, PAPER_COEF[3], random_state=1)
    chosen = FMLR(fit_intercept=False, max_components=4, random_state=0).fit(made.federation)
    printed = FMLR(fit_intercept=False, max_components=4, random_state=0, **PRINTED)
    printed.fit(made.federation)
    assert (chosen.n_components_, chosen.degrees_, chosen.site_noise_) == (3, False, "common")
    np.testing.assert_allclose(chosen.coef_, printed.coef_, rtol=1e-12)
    assert not chosen.effects_.any() and not chosen.random_covariance_.any()


@pytest.mark.filterwarnings("ignore::fedkin.estimators.fmlr.OddSitesWarning")
@pytest.mark.parametrize("share", ["statistics", "sums"])
def test_a_far_site_of_few_rows_is_no_kind_of_its_own(share):
    """Four rows of five coefficients: they would be met exactly, and the next one by chance."""
    rng = np.random.default_rng(3)
    X, site = rng.normal(size=(60 * 4, 4)), np.repeat(np.arange(60), 4)
    X[site == 0] *= 10.0
    y = X @ np.ones(4) + 0.3 * rng.normal(size=len(X))
    y[site == 0] += 30.0 * rng.normal(size=4)
    names = np.array([f"site-{k:02d}" for k in range(60)])[site]
    model = FMLR(max_components=4, random_state=0, share=share).fit(X, y, groups=names)
    rows = 4.0 * model.responsibilities_[:, : model.n_components_].sum(axis=0)
    assert model.n_components_ == 1 or rows.min() >= 2 * 5 + 1
    given = FMLR(2, degrees=False, random_state=0, share=share).fit(X, y, groups=names)
    assert min(given.weights_) < 1.5 / 60, "whoever asks for two gets them"


@pytest.mark.parametrize(("n", "enough"), [(10, False), (11, True)])
def test_coefficients_of_a_kind_may_add_as_much_as_noise_does(n, enough):
    """Of least squares with normal columns, by drawing: d / (n - d - 1) of the noise variance."""
    assert carries(np.array([500.0, n]), 5) is enough
    assert carries(np.array([float(n)]), 5)
    rng = np.random.default_rng(0)
    X, x = rng.normal(size=(4000, n, 5)), rng.normal(size=(4000, 5))
    noise = rng.normal(size=(4000, n))
    coef = np.linalg.solve(X.mT @ X, X.mT @ noise[..., None])[..., 0]
    added = np.mean((x * coef).sum(axis=1) ** 2)
    assert added == pytest.approx(5 / (n - 6), rel=0.15)


@pytest.mark.parametrize("robust", [False, True])
def test_sites_of_very_different_noise_are_of_their_two_kinds_and_nobody_is_odd(robust):
    noise = np.exp(np.random.default_rng(1).uniform(np.log(0.06), np.log(6.0), size=40))
    data = drawn(2, False, 40, 20, noise, seed=1)
    model = fitted(data, robust=robust)
    assert (model.n_components_, model.site_noise_, len(model.odd_sites_)) == (2, "own", 0)
    assert agreement(model.labels_, data.kind) > 0.85
    assert np.corrcoef(np.log(model.site_sigma_), np.log(noise))[0, 1] > 0.95


def test_sites_far_from_all_others_are_named_although_departures_could_explain_them():
    data = drawn(2, False, 40, 15)
    y = data.y + 40.0 * (data.site == 7) * data.X[:, 0] - 25.0 * (data.site == 20) * data.X[:, 1]
    with pytest.warns(UserWarning, match="fit none of the groups"):
        model = FMLR(2, random_state=0).fit(data.X, y, groups=data.site)
    assert {"7", "20"} <= set(model.odd_sites_)


# ------------------------------------------------------------------ one kind is the mixed model


@pytest.fixture(scope="module")
def one_kind():
    data = drawn(1, True, 40, 8)
    return data, fitted(data, n_components=1, degrees=True, site_noise="common")


def test_one_kind_with_degrees_is_the_mixed_model(one_kind):
    data, model = one_kind
    mixed = MixedModel(method="ml").fit(data.X, data.y, groups=data.site)
    np.testing.assert_allclose(model.coef_[0], mixed.coef_, rtol=1e-6, atol=1e-6)
    assert model.intercept_[0] == pytest.approx(mixed.intercept_, abs=1e-6)
    np.testing.assert_allclose(model.random_covariance_, mixed.random_covariance_, atol=1e-6)
    assert model.sigma_ == pytest.approx(mixed.sigma_, abs=1e-6)
    assert model.loglik_ == pytest.approx(mixed.loglik_, abs=1e-6)
    assert model.bic_ == pytest.approx(mixed.bic_, abs=1e-5)
    for name in ("effects_", "site_coef_", "site_intercept_"):
        np.testing.assert_allclose(getattr(model, name), getattr(mixed, name), atol=1e-5)
    assert model.random_columns_ == mixed.random_columns_


def test_one_kind_with_own_noise_is_the_mixed_model_with_own_noise(one_kind):
    data, _ = one_kind
    model = fitted(data, n_components=1, degrees=True, site_noise="own")
    mixed = MixedModel(method="ml", site_noise="own").fit(data.X, data.y, groups=data.site)
    assert model.loglik_ == pytest.approx(mixed.loglik_, abs=1e-4)
    np.testing.assert_allclose(model.site_coef_, mixed.site_coef_, atol=2e-3)


def test_a_journal_of_kinds_and_degrees_can_be_fitted_as_a_mixed_model(one_kind, tmp_path):
    data, model = one_kind
    kept = FMLR(random_state=0, max_components=2, engine=InProcess(journal=tmp_path / "run"))
    kept.fit(data.X, data.y, groups=data.site)
    assert kept.n_rounds_ == 1
    again = MixedModel.from_journal(tmp_path / "run", method="ml")
    np.testing.assert_allclose(again.coef_, model.coef_[0], atol=1e-6)


# ------------------------------------------------------------------ what is said


def test_one_model_and_the_mixed_model_stand_beside_what_was_chosen(one_kind):
    data, mixed = one_kind
    model = fitted(data, n_components=2, **PRINTED)
    choice = model.choice_
    beside = np.flatnonzero(~choice["considered"])
    assert choice["n_components"][beside].tolist() == [1, 1]
    assert choice["degrees"][beside].tolist() == [False, True]
    assert choice["bic"][beside[1]] == pytest.approx(mixed.bic_, abs=1e-3)
    design = np.column_stack([data.X, np.ones(len(data.y))])
    pooled = sm.OLS(data.y, design).fit()
    # statsmodels does not count the noise among the numbers.
    assert choice["loglik"][beside[0]] == pytest.approx(pooled.llf, abs=1e-8)
    assert choice["bic"][beside[0]] == pytest.approx(pooled.bic + np.log(len(data.y)), abs=1e-8)
    words = str(model.summary())
    assert "by degrees rather than by kind" in words
    assert "the least is that of the mixed model" in " ".join(words.split())


def test_a_fit_with_degrees_says_so(both):
    _, model = both
    words = " ".join(str(model.summary()).split())
    assert "Sites differ by degrees: they are of 2 kinds and depart" in words
    assert "the least is that of this fit" in words
    assert model.bic_ == pytest.approx(model.choice_["bic"].min(), abs=1e-3)


def test_where_sites_send_sums_degrees_are_not_looked_at_and_that_is_said():
    data = drawn(2, True, 20, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FMLR(2, share="sums", random_state=0).fit(data.X, data.y, groups=data.site)
    assert not model.degrees_ and model.site_noise_ == "common"
    words = " ".join(str(model.summary()).split())
    assert "needs share='statistics'" in words and "one common model" in words


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"degrees": True, "share": "sums"}, "degrees=True needs share='statistics'"),
        ({"site_noise": "own", "share": "sums"}, "site_noise='own' needs share='statistics'"),
        ({"degrees": True, "sigma": 1.0}, "leave sigma and weights at None"),
        ({"degrees": "perhaps"}, "degrees must be one of"),
        ({"site_noise": "loud"}, "site_noise must be one of"),
    ],
)
def test_what_does_not_go_together_is_refused(parameters, complaint):
    with pytest.raises(ValueError, match=complaint):
        fitted(drawn(1, False, 6, 4), **parameters)


def test_given_noise_stays_as_printed():
    model = fitted(drawn(2, True, 20, 10), n_components=2, sigma=1.0)
    assert not model.degrees_ and model.sigma_ == 1.0


# ------------------------------------------------------------------ what is predicted


def test_a_known_site_has_its_own_coefficients_and_a_new_one_the_populations(both):
    _, model = both
    row = np.array([[0.5, -1.0]])
    own = row @ model.site_coef_[7] + model.site_intercept_[7]
    assert model.predict(row, "7") == pytest.approx(own)
    population = model.weights_ @ (model.coef_ @ row[0] + model.intercept_)
    assert model.predict(row, "elsewhere") == pytest.approx(population)
    mean, std, ends = model.predict(row, "7", return_std=True, level=0.95)
    assert mean == pytest.approx(own)
    _, wider = model.predict(row, "elsewhere", return_std=True)
    assert wider > 1.2 * std and ends[0, 0] < mean < ends[0, 1]


@pytest.mark.parametrize("which", ["both", "plain"])
def test_a_site_adapted_to_is_as_one_of_the_fit(both, which):
    data, model = both
    if which == "plain":
        data = drawn(2, False, 20, 10)
        model = fitted(data, n_components=2, **PRINTED)
    own = data.site == 3
    model.adapt(data.X[own], data.y[own], groups="newcomer")
    for got, expected in zip(
        model.predict(data.X[own], "newcomer", return_std=True, level=0.9),
        model.predict(data.X[own], "3", return_std=True, level=0.9),
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_intervals_hold_new_rows_at_new_sites_whatever_their_kind(both):
    _, model = both
    rng = np.random.default_rng(99)
    other = drawn_sites(rng, 300, 3, 2, True)
    _, ends = model.predict(other.X, "elsewhere", level=0.95)
    held = np.mean((ends[:, 0] <= other.y) & (other.y <= ends[:, 1]))
    assert 0.92 < held < 0.98
    # Without knowing which kind it may be of, an interval as wide as the noise holds far less.
    near = np.abs(other.y - model.predict(other.X, "elsewhere")) < 1.96 * model.sigma_
    assert near.mean() < 0.75


def test_intervals_need_a_level_between_zero_and_one(both):
    _, model = both
    with pytest.raises(ValueError, match="level must lie between"):
        model.predict(np.ones((1, 2)), "1", level=95)


# ------------------------------------------------------------------ weights of rows


@pytest.fixture(scope="module")
def weighted():
    rng = np.random.default_rng(8)
    w = rng.uniform(0.2, 4.0, size=300)
    X = rng.normal(size=(300, 2))
    y = X @ [1.0, -1.0] + 2.0 + 0.7 * rng.normal(size=300) / np.sqrt(w)
    return X, y, w, np.arange(300) % 6


@pytest.mark.parametrize("share", ["statistics", "sums"])
def test_one_kind_with_weights_is_weighted_least_squares(weighted, share):
    X, y, w, site = weighted
    model = FMLR(1, share=share, random_state=0, degrees=False, site_noise="common")
    if share == "sums":
        model.set_params(degrees="choose", site_noise="choose")
    model.fit(X, y, groups=site, sample_weight=w)
    oracle = sm.WLS(y, np.column_stack([X, np.ones(300)]), weights=w).fit()
    np.testing.assert_allclose([*model.coef_[0], model.intercept_[0]], oracle.params, rtol=1e-8)
    assert model.sigma_**2 == pytest.approx(oracle.ssr / 300, rel=1e-8)
    assert model.loglik_ == pytest.approx(oracle.llf, abs=1e-6)


def test_weights_are_precisions_in_kinds_and_degrees(weighted):
    X, y, w, site = weighted
    model = FMLR(1, degrees=True, site_noise="common", random_state=0)
    scaled = model.fit(X, y, groups=site, sample_weight=w)
    coef, spread = scaled.coef_, scaled.random_covariance_
    sigma, loglik = scaled.sigma_, scaled.loglik_
    ten = model.fit(X, y, groups=site, sample_weight=10.0 * w)
    np.testing.assert_allclose(ten.coef_, coef, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ten.random_covariance_, spread, atol=1e-4)
    assert ten.sigma_ == pytest.approx(np.sqrt(10.0) * sigma, rel=1e-5)
    assert ten.loglik_ == pytest.approx(loglik, abs=1e-5)


def test_equal_weights_change_nothing_and_zero_is_no_row(weighted):
    X, y, _, site = weighted
    plain = FMLR(2, random_state=0).fit(X, y, groups=site)
    ones = FMLR(2, random_state=0).fit(X, y, groups=site, sample_weight=np.ones(300))
    np.testing.assert_allclose(ones.coef_, plain.coef_, rtol=1e-9)
    assert ones.loglik_ == pytest.approx(plain.loglik_, abs=1e-8)
    kept = np.arange(300) % 5 > 0
    some = FMLR(1, random_state=0).fit(X, y, groups=site, sample_weight=kept)
    less = FMLR(1, random_state=0).fit(X[kept], y[kept], groups=site[kept])
    np.testing.assert_allclose(some.coef_, less.coef_, rtol=1e-9)


def test_weights_where_there_is_no_room_for_them_are_refused(weighted):
    from fedkin import Standardizer

    X, y, w, site = weighted
    data = Federation.from_groups(X, site, y).with_weights(w)
    with pytest.raises(ValueError, match="no weights of rows"):
        Standardizer().fit(data)
    with pytest.raises(ValueError, match="brings its own weights"):
        FMLR(1).fit(data, sample_weight=w)
    by_data = FMLR(1, random_state=0).fit(data)
    by_word = FMLR(1, random_state=0).fit(X, y, groups=site, sample_weight=w)
    np.testing.assert_allclose(by_data.coef_, by_word.coef_, rtol=1e-12)


def large_and_small(seed, m=40, n=4, ahead=20):
    """Level and noise of a site grow with its size, as deaths in states do; most are small."""
    rng = np.random.default_rng([7, seed])
    size, X = np.exp(1.5 * rng.normal(size=(m, 1))), rng.normal(size=(m, n + ahead, 1))
    y = 2.0 * X[..., 0] + 6.0 * size + size * rng.normal(size=(m, n + ahead))
    names = np.repeat(np.arange(m).astype(str), n + ahead).reshape(m, -1)
    return X, y, names, np.tile(np.arange(n + ahead) < n, (m, 1))


@pytest.mark.parametrize("seed", range(3))
def test_noises_of_their_own_do_not_pass_for_levels(seed):
    """They are likelier, and a large site would have the level of the small ones."""
    X, y, names, learn = large_and_small(seed)
    chosen, own = (
        FMLR(1, site_noise=noise, random_state=0).fit(X[learn], y[learn], groups=names[learn])
        for noise in ("choose", "own")
    )

    def error(model):
        return float(np.sqrt(((model.predict(X[~learn], names[~learn]) - y[~learn]) ** 2).mean()))

    assert own.bic_ < chosen.bic_ and chosen.site_noise_ == "common"
    assert error(chosen) < 0.6 * error(own)
    assert "take levels of sites for noise" in str(chosen.summary())


def test_noises_of_their_own_stay_where_levels_are_followed():
    drawn = drawn_sites(np.random.default_rng(5), 60, 12, 1, True, np.tile([0.2, 3.0], 30))
    model = FMLR(1, random_state=0).fit(drawn.X, drawn.y, groups=drawn.site)
    assert model.site_noise_ == "own"
    assert "take levels of sites" not in str(model.summary())
