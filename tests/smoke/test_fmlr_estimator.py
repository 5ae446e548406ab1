import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedkin import FMLR, Federation
from fedkin.datasets import contaminate_sites, make_regression_groups
from fedkin.datasets.fmlr import PAPER_COEF
from fedkin.engines import InProcess
from fedkin.estimators.fmlr import OddSitesWarning
from fedkin.tables import Table

GROUPS = make_regression_groups(40, 12, PAPER_COEF[3], random_state=3)


@parametrize_with_checks([FMLR()])
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


def test_rows_groups_and_federation_give_the_same_fit():
    data = GROUPS.federation
    one = FMLR(3, random_state=0).fit(data)
    shuffled = np.random.default_rng(0).permutation(len(data.X))
    names = np.array(data.names)[data.owner]
    other = FMLR(3, random_state=0).fit(data.X[shuffled], data.y[shuffled], groups=names[shuffled])
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-9)
    np.testing.assert_array_equal(one.labels_, other.labels_)
    np.testing.assert_allclose(
        one.predict(data)[shuffled], other.predict(data.X[shuffled], names[shuffled]), atol=1e-8
    )


def test_one_site_equals_least_squares():
    data = GROUPS.federation.take([0])
    fitted = FMLR(random_state=0).fit(data.X, data.y)
    plain = LinearRegression().fit(data.X, data.y)
    assert fitted.n_components_ == 1
    np.testing.assert_allclose(fitted.coef_[0], plain.coef_, atol=1e-8)
    np.testing.assert_allclose(fitted.intercept_[0], plain.intercept_, atol=1e-8)
    np.testing.assert_allclose(fitted.predict(data.X), plain.predict(data.X), atol=1e-8)


def test_known_unknown_and_adapted_sites_are_predicted_differently():
    fitted = FMLR(3, random_state=0).fit(GROUPS.federation)
    x = np.ones((1, 5))
    population = fitted.weights_ @ (fitted.coef_.sum(axis=1) + fitted.intercept_)
    np.testing.assert_allclose(fitted.predict(x), population)
    np.testing.assert_allclose(fitted.predict(x, ["never seen"]), population)
    for k in (0, 1, 2):
        site = fitted.client_names_[fitted.labels_ == k][0]
        own = fitted.coef_[k].sum() + fitted.intercept_[k]
        np.testing.assert_allclose(fitted.predict(x, [site]), own, atol=1e-6)
    rng = np.random.default_rng(0)
    new = rng.normal(size=(4, 5))
    before = fitted.coef_.copy()
    fitted.adapt(new, new @ np.full(5, 3.0), groups=["new"] * 4)
    np.testing.assert_allclose(fitted.predict(x, ["new"]), [15.0], atol=1.0)
    np.testing.assert_array_equal(fitted.coef_, before)
    assert fitted.responsibilities("new").max() > 0.99


def test_names_that_are_not_text_are_found_again():
    data = GROUPS.federation
    groups = data.owner + 100
    fitted = FMLR(3, random_state=0).fit(data.X, data.y, groups=groups)
    assert fitted.client_names_[0] == "100"
    by_number = fitted.predict(data.X[:3], groups=[100, 100, 100])
    by_text = fitted.predict(data.X[:3], groups=["100", "100", "100"])
    np.testing.assert_array_equal(by_number, by_text)


def test_metadata_routing_and_cloning_work():
    import sklearn

    with sklearn.config_context(enable_metadata_routing=True):
        estimator = FMLR(2).set_fit_request(groups=True).set_predict_request(groups=True)
        assert estimator.get_metadata_routing().fit.requests["groups"] is True
    assert clone(FMLR(2, robust=True)).get_params()["robust"] is True


def test_a_fit_with_odd_sites_warns_and_names_them():
    spoilt = contaminate_sites(GROUPS, 0.2, "noise", 1)
    bad = [n for n, k in zip(spoilt.federation.names, spoilt.labels) if k < 0]
    with pytest.warns(OddSitesWarning, match=r"fit none of the groups.*robust=True") as caught:
        fitted = FMLR(3, random_state=0).fit(spoilt.federation)
    assert set(fitted.odd_sites_) == set(bad)
    assert all(repr(name) in str(caught[0].message) for name in bad)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        robust = FMLR(3, robust=True, random_state=0).fit(spoilt.federation)
    assert set(robust.odd_sites_) == set(bad)
    assert (robust.labels_[np.isin(robust.client_names_, bad)] == -1).all()


def test_a_clean_fit_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = FMLR(random_state=0).fit(GROUPS.federation)
    assert len(fitted.odd_sites_) == 0 and fitted.n_components_ == 3


def test_the_summary_prints_shows_and_hands_on():
    fitted = FMLR(3, share="sums", random_state=0).fit(GROUPS.federation)
    summary = fitted.summary()
    text = str(summary)
    assert "40 sites, 3 regressions" in text and "can be inferred from one site's sums" in text
    assert "... and 20 more rows" in text
    assert summary._repr_html_().count("<table>") == 5
    frame = summary["sites"].to_pandas()
    assert list(frame["group"]) == list(fitted.labels_)
    assert fitted.traffic_.bytes_up_by_field["sums"] > 0
    assert "responsibilities" not in fitted.traffic_.bytes_up_by_field


def test_discordant_sites_are_coped_with():
    """Empty, single-row, constant-column and ragged sites in one federation."""
    rng = np.random.default_rng(0)
    clients = {}
    for k in range(20):
        X = rng.normal(size=(int(rng.integers(1, 9)), 3))
        clients[f"s{k}"] = (X, X @ [1, 2, 3] + 0.1 * rng.normal(size=len(X)))
    clients["empty"] = (np.empty((0, 3)), np.empty(0))
    clients["constant"] = (np.ones((5, 3)), np.full(5, 6.0))
    for share in ("statistics", "sums"):
        fitted = FMLR(1, share=share, fit_intercept=False, random_state=0)
        fitted.fit(Federation.from_clients(clients))
        np.testing.assert_allclose(fitted.coef_[0], [1, 2, 3], atol=0.1)
        assert {r.site for r in fitted.refusals_} == {"empty"}
        assert np.isfinite(fitted.predict(np.ones((2, 3)), ["empty", "constant"])).all()


def test_ten_thousand_ragged_sites():
    sizes = np.random.default_rng(0).integers(1, 30, size=10_000)
    groups = make_regression_groups(10_000, sizes, PAPER_COEF[3], random_state=1)
    fitted = FMLR(3, n_restarts=2, random_state=0).fit(groups.federation)
    assert groups.error(fitted.coef_) < 0.05


def _turned(data, order):
    names = tuple(np.array(data.feature_names)[order])
    return replace(data, X=np.ascontiguousarray(data.X[:, order]), feature_names=names)


def test_columns_of_a_federation_are_found_by_name():
    data = replace(GROUPS.federation, feature_names=tuple("abcde"))
    turned = _turned(data, [3, 1, 0, 4, 2])
    fitted = FMLR(3, random_state=0).fit(data)
    np.testing.assert_array_equal(fitted.predict(turned), fitted.predict(data))
    new = replace(data.take([0]), names=("new",))
    expected = fitted.adapt(new).responsibilities("new")
    fitted.adapt(_turned(new, [3, 1, 0, 4, 2]))
    np.testing.assert_allclose(fitted.responsibilities("new"), expected, atol=1e-12)


def test_a_column_far_off_centre_is_named():
    data = GROUPS.federation
    X = data.X.copy()
    X[:, 2] = 1.6e9 + 1e3 * X[:, 2]
    far = replace(data, X=X, feature_names=("a", "b", "seconds", "d", "e"))
    finding = next(f for f in far.findings if "seconds" in f.fact)
    assert finding.level == "warning" and "centre the column" in finding.remedy
    with pytest.warns(RuntimeWarning, match="column 'seconds' is so small beside its mean"):
        FMLR(3, random_state=0).fit(far)
    near = replace(far, X=np.where(np.arange(5) == 2, X - 1.6e9, X))
    assert not any("seconds" in f.fact for f in near.findings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = FMLR(3, random_state=0).fit(near)
    coef = fitted.coef_ * [1, 1, 1e3, 1, 1]
    np.testing.assert_allclose(GROUPS.error(coef), GROUPS.error(_plain_coef()), rtol=1e-6)


def _plain_coef():
    return FMLR(3, random_state=0).fit(GROUPS.federation).coef_


@pytest.mark.parametrize("share", ["statistics", "sums"])
def test_features_called_like_columns_of_the_summary_hide_nothing(share):
    taken = ("weight", "sites", "component", "identified", "intercept")
    fitted = FMLR(3, share=share, random_state=0)
    fitted.fit(replace(GROUPS.federation, feature_names=taken))
    table = fitted.summary()["components"]
    np.testing.assert_array_equal(table["weight"], fitted.weights_)
    np.testing.assert_array_equal(table["intercept"], fitted.intercept_)
    for j, name in enumerate(taken):
        np.testing.assert_array_equal(table[f"coef[{name}]"], fitted.coef_[:, j])
    fields = list(fitted.summary()["traffic"]["field"])
    assert len(fields) == len(set(fields))


def test_a_site_called_site_is_not_everybody():
    data = GROUPS.federation
    names = ("site", *data.names[1:])
    fitted = FMLR(3, random_state=0).fit(replace(data, names=names))
    x = np.ones((1, 5))
    population = fitted.weights_ @ (fitted.coef_.sum(axis=1) + fitted.intercept_)
    np.testing.assert_allclose(fitted.predict(x), population)
    assert abs(fitted.predict(x, groups="site") - population) > 1


def test_a_second_fit_keeps_nothing_of_the_first():
    class Remote(InProcess):
        """Data at the sites: what they remember stays there."""

        def run(self, *arguments):
            return replace(super().run(*arguments), memories=None)

    named = replace(GROUPS.federation, feature_names=tuple("abcde"))
    model = FMLR(3, share="sums", random_state=0).fit(named)
    model.adapt(replace(named.take([0]), names=("new",)))
    model.set_params(engine=Remote()).fit(GROUPS.federation)
    assert not hasattr(model, "labels_") and not hasattr(model, "responsibilities_")
    assert not hasattr(model, "feature_names_in_")
    np.testing.assert_array_equal(model.responsibilities("new"), model.weights_)
    assert "group" not in model.summary()["sites"]


def test_one_name_or_names_of_many_kinds_will_do():
    data = GROUPS.federation
    fitted = FMLR(3, random_state=0).fit(data.X, data.y, groups=data.owner)
    own = data.owner == 7
    fitted.adapt(data.X[own], data.y[own], groups="new-site")
    np.testing.assert_allclose(fitted.responsibilities("new-site"), fitted.responsibilities(7))
    np.testing.assert_array_equal(fitted.responsibilities(7.0), fitted.responsibilities("7"))
    mixed = fitted.predict(data.X[:3], groups=[7, "new-site", 7.0])
    np.testing.assert_allclose(mixed, fitted.predict(data.X[:3], groups="7"), atol=1e-6)


def test_a_federation_is_scored_by_its_own_outcome():
    data = make_regression_groups(20, 10, PAPER_COEF[3], random_state=0).federation
    model = FMLR(3, random_state=0).fit(data)
    sites = np.array(data.names)[data.owner]
    assert model.score(data) == model.score(data.X, data.y, sites) > 0.5
    y = data.y.copy()
    y[:2] = np.nan
    with pytest.raises(ValueError, match="2 of 10 values missing"):
        model.score(data.X, y, sites)
    with pytest.raises(ValueError, match="score needs the target"):
        model.score(data.X, groups=sites)


@pytest.mark.parametrize("n_columns", range(1, 40, 3))
def test_a_table_shows_as_many_columns_as_fit_and_cuts_no_number(n_columns):
    rng = np.random.default_rng(n_columns)
    columns = {f"x{j}": rng.normal(size=3) * 10.0 ** rng.integers(-6, 6) for j in range(n_columns)}
    text = str(Table({"group": np.arange(3), **columns}, "Groups"))
    shown = text.splitlines()[2].split()
    assert "…" not in text and max(map(len, text.splitlines())) <= 120
    assert shown == ["group", *list(columns)[: len(shown) - 1]]
    assert (f"... and {n_columns + 1 - len(shown)} more columns" in text) == (
        len(shown) <= n_columns
    )


def test_a_fit_with_a_journal_may_look_for_odd_sites(tmp_path):
    """The look at odd sites is a second fit, but no second run in the same folder."""
    clean = make_regression_groups(30, 12, PAPER_COEF[2], random_state=3)
    spoilt = contaminate_sites(clean, 0.2, "noise", 1).federation
    kept = FMLR(2, random_state=0, engine=InProcess(journal=tmp_path / "run"))
    with pytest.warns(OddSitesWarning):
        plain = FMLR(2, random_state=0).fit(spoilt)
    with pytest.warns(OddSitesWarning):
        kept.fit(spoilt)
    assert list(kept.odd_sites_) == list(plain.odd_sites_)
