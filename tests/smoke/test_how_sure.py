"""Standard errors and intervals on every estimator that has them: one face, and its refusals."""

import warnings

import numpy as np
import pytest

import fedkin
from fedkin import (
    FGPR,
    FMLR,
    IFCA,
    ODCL,
    FedAvgPolynomial,
    FedEM,
    Federation,
    FedGrEM,
    InProcess,
    LocalERM,
    LocalGP,
    MixedModel,
    NaiveAveraging,
)
from fedkin.inference import conformalize, estimates
from fedkin.models.least_squares import packed_statistics, solve

pytestmark = pytest.mark.filterwarnings("ignore")
COLUMNS = ["term", "estimate", "std. error", "df", "t", "p", "95 % from", "to"]


@pytest.fixture(scope="module")
def sites():
    """Twelve sites of two kinds of regressions with an intercept."""
    rng = np.random.default_rng(0)
    groups = np.repeat([f"site-{k}" for k in range(12)], 25)
    X = rng.normal(size=(300, 2))
    kind = (np.arange(300) // 25) % 2
    slopes = np.where(kind[:, None], [1.0, 2.0], [-1.0, 0.0])
    return X, (X * slopes).sum(axis=1) + kind + 0.5 * rng.normal(size=300), groups


REGRESSIONS = {
    "FMLR": FMLR(2, random_state=0),
    "FMLR, sums": FMLR(2, share="sums", degrees=False, site_noise="common", random_state=0),
    "FMLR, degrees": FMLR(1, degrees=True, random_state=0),
    "MixedModel": MixedModel(),
    "ODCL": ODCL(random_state=0),
    "LocalERM": LocalERM(),
    "NaiveAveraging": NaiveAveraging(),
}


@pytest.mark.parametrize("name", REGRESSIONS)
def test_coefficients_have_one_face(name, sites):
    X, y, groups = sites
    model = REGRESSIONS[name].fit(X, y, groups=groups)
    table, ends = model.estimates(), model.conf_int()
    assert list(table)[-8:] == COLUMNS
    assert estimates(model).rows() == table.rows()
    assert table["term"][0] == "(intercept)"
    coef = model.cluster_coef_ if hasattr(model, "cluster_coef_") else model.coef_
    assert ends.shape == (*coef.shape, 2)
    assert np.allclose(ends.mean(axis=-1), coef)
    slopes = np.asarray(table["term"]) != "(intercept)"
    assert np.allclose(np.asarray(table["estimate"])[slopes], coef.ravel())
    assert np.allclose(np.asarray(table["to"])[slopes], ends[..., 1].ravel())
    wider = model.conf_int(0.99)
    assert (wider[..., 0] < ends[..., 0]).all() and (wider[..., 1] > ends[..., 1]).all()
    if name != "MixedModel":
        assert "Coefficients" in str(model.summary())


def test_sums_tell_the_errors_that_statistics_tell(sites):
    X, y, groups = sites
    plain = {"degrees": False, "site_noise": "common", "random_state": 0, "tol": 1e-12}
    one, other = (
        FMLR(2, share=s, **plain).fit(X, y, groups=groups) for s in ("statistics", "sums")
    )
    orders = [np.argsort(model.coef_[:, 0]) for model in (one, other)]
    assert np.allclose(one.coef_se_[orders[0]], other.coef_se_[orders[1]], rtol=1e-6)
    assert np.allclose(one.df_[orders[0]], other.df_[orders[1]])


def test_a_site_alone_has_the_errors_of_least_squares(sites):
    X, y, groups = sites
    model = LocalERM().fit(X, y, groups=groups)
    own = np.column_stack([X[:25], np.ones(25)])
    squares = np.linalg.lstsq(own, y[:25], rcond=None)[1]
    error = np.sqrt(np.diag(np.linalg.inv(own.T @ own)) * squares / 22)
    assert np.allclose(model.cluster_coef_se_[0], error[:2])
    assert model.df_[0] == 22


@pytest.mark.parametrize("aggregate", ["mean", "size", "statistics"])
def test_a_clusters_errors_are_the_jackknifes_over_its_sites(aggregate, sites):
    X, y, groups = sites
    model = NaiveAveraging(aggregate=aggregate) if aggregate != "statistics" else None
    model = model or ODCL(1, aggregate="statistics")
    model.fit(X, y, groups=groups)
    data = Federation.from_groups(X, groups, y)
    statistics = packed_statistics(data, True)

    def estimate(who):
        if aggregate == "statistics":
            return solve(statistics[:, who].sum(axis=1))[0]
        return solve(statistics[:, who].T)[0].mean(axis=0)

    everybody = np.arange(12)
    away = np.array([estimate(np.delete(everybody, k)) for k in everybody]) - estimate(everybody)
    count = model.df_[0] + 1
    wanted = np.sqrt((count - 1) / count * (away**2).sum(axis=0))
    assert np.allclose(model.cluster_coef_se_[0], wanted[:2], rtol=1e-5)


def test_models_alone_tell_errors_over_sites_but_no_spread_of_targets(sites):
    X, y, groups = sites
    model = ODCL(2, aggregate="mean", send="model", random_state=0).fit(X, y, groups=groups)
    assert np.isfinite(model.conf_int()).all()
    with pytest.raises(ValueError, match="send='statistics'"):
        model.predict(X, groups, level=0.9)
    held = conformalize(model, X, y, groups)  # falls back to residuals of one scale
    assert np.isfinite(held.predict_interval(X[:2], groups[:2])[1]).all()


PREDICTORS = {
    **REGRESSIONS,
    "IFCA": IFCA(2, random_state=3),
    "FGPR": FGPR(common=False),
    "LocalGP": LocalGP(),
    "FedAvgPolynomial": FedAvgPolynomial(2),
    "FedGrEM": FedGrEM(2, family="regression", fit_intercept=True, random_state=0),
    "FedEM": FedEM(2, family="regression", random_state=0),
}


@pytest.mark.parametrize("name", PREDICTORS)
def test_every_method_that_predicts_a_number_predicts_intervals(name, sites):
    X, y, groups = sites
    model = PREDICTORS[name].fit(X, y, groups=groups)
    rows, some = X[::7], groups[::7]
    mean, std, ends = model.predict(rows, some, return_std=True, level=0.9)
    assert np.allclose(mean, model.predict(rows, some))
    assert (std > 0).all() and (ends[:, 0] < ends[:, 1]).all()
    for asked, wanted in (({"return_std": True}, std), ({"level": 0.9}, ends)):
        assert np.allclose(model.predict(rows, some, **asked)[1], wanted)
    inside = (ends[:, 0] <= y[::7]) & (y[::7] <= ends[:, 1])
    assert inside.mean() > 0.75
    unknown = model.predict(rows, "elsewhere", return_std=True)[1]
    assert np.isfinite(unknown).all()
    with pytest.raises(ValueError, match="level"):
        model.predict(rows, some, level=1.5)


def test_classes_and_groups_have_no_spread(sites):
    X, y, groups = sites
    classes = ODCL(2, loss="logistic", random_state=0).fit(X, y > 0.5, groups=groups)
    assert classes.conf_int().shape == (2, 2, 2)
    with pytest.raises(ValueError, match="predict_proba"):
        classes.predict(X, groups, return_std=True)
    mixture = FedGrEM(2, random_state=0).fit(X, groups=groups)
    with pytest.raises(ValueError, match="predict_proba"):
        mixture.predict(X, groups, level=0.9)


def test_new_sites_with_models_of_their_own_predict_intervals_also_from_files(sites, tmp_path):
    X, y, groups = sites
    model = LocalERM().fit(X, y, groups=groups).adapt(X[:20], y[:20], groups="new")
    mean, std = model.predict(X[:3], "new", return_std=True)
    again = fedkin.load(model.save(tmp_path / "model"))
    assert np.allclose(again.predict(X[:3], "new", return_std=True)[1], std)
    assert np.allclose(again.conf_int(), model.conf_int())
    assert np.all(std < 1.5) and np.isfinite(mean).all()


# ------------------------------------------------------------------ groups inside sites


@pytest.fixture(scope="module")
def grouped():
    rng = np.random.default_rng(2)
    labels = rng.integers(2, size=480)
    X = np.where(labels[:, None], [3.0, 0.0], [-3.0, 1.0]) + rng.normal(size=(480, 2))
    return X, np.repeat([f"site-{k}" for k in range(8)], 60)


def test_groups_inside_sites_have_errors_of_centres_and_of_their_own(grouped, tmp_path):
    X, groups = grouped
    model = FedGrEM(2, standard_errors=True, random_state=0, engine=InProcess(journal=tmp_path))
    model.fit(X, groups=groups)
    assert model.conf_int().shape == (2, 2, 2)
    assert model.conf_int(of="sites").shape == (8, 2, 2, 2)
    # Well apart, with about 30 rows a group and site: errors of means.
    assert np.isclose(model.centers_se_.mean(), 1 / np.sqrt(240), rtol=0.3)
    assert (model.means_se_ > 0.9 * model.centers_se_).all()
    assert list(model.estimates())[-8:] == COLUMNS
    assert list(model.estimates(of="sites"))[:2] == ["site", "group"]
    assert "slope and curvature" in str(model.summary())
    assert {"slope", "curvature"} <= set(model.traffic_.bytes_up_by_field)
    again = FedGrEM(2, standard_errors=True, random_state=0, engine=InProcess(journal=tmp_path))
    assert np.array_equal(again.fit(X, groups=groups).centers_se_, model.centers_se_)
    kept = fedkin.load(model.save(tmp_path / "model"))
    assert np.array_equal(kept.conf_int(), model.conf_int())


def test_errors_that_nobody_asked_for_are_not_sent_and_are_refused(grouped):
    X, groups = grouped
    model = FedGrEM(2, random_state=0).fit(X, groups=groups)
    assert "curvature" not in model.traffic_.bytes_up_by_field
    with pytest.raises(ValueError, match="standard_errors=True"):
        model.conf_int()
    with pytest.raises(ValueError, match="shrinkage='adaptive'"):
        FedGrEM(2, shrinkage="paper", standard_errors=True).fit(X, groups=groups)
    with pytest.raises(ValueError, match="'identity' or 'tied'"):
        FedGrEM(2, covariance_type="full", standard_errors=True).fit(X, groups=groups)


def test_where_groups_are_ambiguous_intervals_are_refused(grouped):
    from dataclasses import replace

    X, groups = grouped
    model = FedGrEM(2, standard_errors=True, random_state=0).fit(X, groups=groups)
    few = np.arange(8) > 2
    model._result = replace(model._result, ambiguous=few)
    with pytest.raises(ValueError, match="matched otherwise"):
        model.conf_int()
    with pytest.raises(ValueError, match="matched otherwise"):
        model.estimates()


def test_an_ambiguous_site_has_no_errors_and_no_say(grouped, monkeypatch):
    from fedkin.algorithms.mixtures.fedgrem import FedGrem

    X, groups = grouped
    monkeypatch.setattr(FedGrem, "_still_ambiguous", lambda self: np.arange(8) == 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FedGrEM(2, standard_errors=True, random_state=0).fit(X, groups=groups)
    assert (
        np.isnan(model.means_se_[2]).all() and np.isfinite(np.delete(model.means_se_, 2, 0)).all()
    )
    assert model.df_ < 6.5


def test_curves_refuse_errors_of_searches_that_end_elsewhere():
    X = np.linspace(0, 3, 20)[:, None]
    with pytest.raises(ValueError, match="optimizer='exact'"):
        FGPR(optimizer="sgd", standard_errors=True).fit(X, X[:, 0], groups=np.arange(20) % 2)
    plain = FGPR(common=False).fit(X, np.sin(X[:, 0]), groups=np.arange(20) % 2)
    with pytest.raises(ValueError, match="standard_errors=True"):
        plain.conf_int()
    assert not hasattr(LocalGP(), "conf_int")
    with pytest.raises(TypeError, match="no standard errors"):
        estimates(LocalGP())
