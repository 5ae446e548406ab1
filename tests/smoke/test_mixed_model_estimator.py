"""The mixed model as people use it: any kind of input, known and new sites, awkward data."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedkin import Best, Federation, MixedModel
from fedkin.checks import CheckWarning
from fedkin.engines import InProcess


def sites(n_sites=20, n_rows=12, seed=0, slope=0.8, level=1.0, noise=0.5):
    """Rows, target and site of each row: 1 + 2 a - b, and departures in a and in the level."""
    rng = np.random.default_rng(seed)
    groups = np.repeat([f"site-{k}" for k in range(n_sites)], n_rows)
    X = rng.normal(size=(len(groups), 2))
    own = np.repeat(rng.normal(size=(n_sites, 2)) * [slope, level], n_rows, axis=0)
    y = 1 + 2 * X[:, 0] - X[:, 1] + own[:, 0] * X[:, 0] + own[:, 1]
    return X, y + noise * rng.normal(size=len(y)), groups


X, Y, GROUPS = sites()


# A row of weight two has half the noise, as in lme4; two rows say twice how large it is.
EXPECTED = {"check_sample_weight_equivalence_on_dense_data": "weights are precisions"}


@parametrize_with_checks([MixedModel()], expected_failed_checks=lambda estimator: EXPECTED)
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


def test_rows_frames_and_federations_give_the_same_fit():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    plain = MixedModel().fit(X, Y, groups=GROUPS)
    columns = {"a": X[:, 0], "b": X[:, 1]}
    frame = pandas.DataFrame(columns)
    named = MixedModel(random=["a"]).fit(frame, Y, groups=GROUPS)
    assert named.random_columns_ == ["a", "(intercept)"]
    assert list(named.feature_names_in_) == ["a", "b"]
    whole = polars.DataFrame({**columns, "y": Y, "site": GROUPS})
    federation = Federation.from_frame(whole, target="y")
    for other in (
        MixedModel().fit(frame, Y, groups=GROUPS),
        MixedModel().fit(federation),
        MixedModel().fit(polars.DataFrame(columns), Y, groups=GROUPS),
    ):
        np.testing.assert_allclose(other.coef_, plain.coef_, rtol=1e-10)
        np.testing.assert_allclose(other.effects_, plain.effects_, atol=1e-8)


def test_predictions_stand_in_the_order_of_the_rows():
    fitted = MixedModel().fit(X, Y, groups=GROUPS)
    order = np.random.default_rng(1).permutation(len(X))
    mean = fitted.predict(X, GROUPS)
    np.testing.assert_array_equal(fitted.predict(X[order], GROUPS[order]), mean[order])
    mean, std, ends = fitted.predict(X, GROUPS, return_std=True, level=0.9)
    turned = fitted.predict(X[order], GROUPS[order], return_std=True, level=0.9)
    for one, other in zip((mean, std, ends), turned):
        np.testing.assert_allclose(other, one[order], rtol=1e-10)
    assert ends.shape == (len(X), 2) and (ends[:, 0] < mean).all() and (mean < ends[:, 1]).all()


def test_names_that_are_not_text_are_found_again():
    numbers = np.array([int(name.removeprefix("site-")) for name in GROUPS])
    fitted = MixedModel().fit(X, Y, groups=numbers)
    by_number = fitted.predict(X[:3], groups=numbers[:3])
    np.testing.assert_array_equal(by_number, fitted.predict(X[:3], groups=["0"] * 3))
    np.testing.assert_array_equal(by_number, fitted.predict(X[:3], groups=0))
    own = X[:3] @ fitted.site_coef_[0] + fitted.site_intercept_[0]
    np.testing.assert_allclose(by_number, own)


def test_known_new_and_adapted_sites_are_predicted_differently():
    fitted = MixedModel().fit(X, Y, groups=GROUPS)
    x = np.array([[1.0, 1.0]])
    common = fitted.coef_.sum() + fitted.intercept_
    np.testing.assert_allclose(fitted.predict(x), common)
    np.testing.assert_allclose(fitted.predict(x, "never seen"), common)
    mean, known = fitted.predict(x, "site-3", return_std=True)
    assert abs(mean[0] - common) > 0.01
    new = fitted.predict(x, "never seen", return_std=True)[1]
    assert new[0] > 1.5 * known[0] > 1.5 * fitted.sigma_ * 0.99
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(400, 2))
    before = fitted.coef_.copy()
    fitted.adapt(rows, 4.0 + 3.0 * rows[:, 0] - rows[:, 1], groups="new")
    np.testing.assert_allclose(fitted.predict(x, "new"), [6.0], atol=0.05)
    assert fitted.predict(x, "new", return_std=True)[1][0] < known[0]
    np.testing.assert_array_equal(fitted.coef_, before)


def test_adapting_to_a_site_gives_the_effects_it_has_in_a_fit():
    """The common part given: a site of the fit adapted under another name predicts the same."""
    fitted = MixedModel().fit(X, Y, groups=GROUPS)
    own = GROUPS == "site-4"
    fitted.adapt(X[own], Y[own], groups="twin")
    one = fitted.predict(X[own], "site-4", return_std=True)
    two = fitted.predict(X[own], "twin", return_std=True)
    np.testing.assert_allclose(one[0], two[0], rtol=1e-9)


def test_sites_that_were_not_heard_have_the_common_coefficients():
    away = InProcess(absent=lambda number, names: ["site-2"])
    fitted = MixedModel(engine=away).fit(X, Y, groups=GROUPS)
    k = list(fitted.client_names_).index("site-2")
    np.testing.assert_array_equal(fitted.effects_[k], 0.0)
    np.testing.assert_allclose(
        fitted.effects_se_[k], np.sqrt(np.diag(fitted.random_covariance_)), rtol=1e-12
    )
    np.testing.assert_array_equal(fitted.site_coef_[k], fitted.coef_)
    new = fitted.predict(X[:2], "never seen", return_std=True)
    np.testing.assert_allclose(fitted.predict(X[:2], "site-2", return_std=True), new)
    others = GROUPS != "site-2"
    without = MixedModel().fit(X[others], Y[others], groups=GROUPS[others])
    np.testing.assert_allclose(fitted.coef_, without.coef_, rtol=1e-10)


def test_one_site_is_least_squares():
    own = GROUPS == "site-0"
    fitted = MixedModel(random="intercept").fit(X[own], Y[own])
    plain = LinearRegression().fit(X[own], Y[own])
    np.testing.assert_allclose(fitted.coef_, plain.coef_, rtol=1e-8)
    np.testing.assert_allclose(fitted.predict(X[own]), plain.predict(X[own]), rtol=1e-6)
    assert fitted.singular_ and "Singular" in str(fitted.summary())


def test_an_empty_site_costs_nothing():
    data = Federation.from_groups(X, GROUPS, Y)
    clients = {name: data.client(k) for k, name in enumerate(data.names)}
    clients["empty"] = (np.empty((0, 2)), np.empty(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = MixedModel().fit(Federation.from_clients(clients))
    np.testing.assert_allclose(fitted.coef_, MixedModel().fit(data).coef_, rtol=1e-10)
    assert [refusal.site for refusal in fitted.refusals_] == ["empty"]
    assert np.isfinite(fitted.effects_).all()


def test_sites_with_fewer_rows_than_columns_take_part():
    rows, target, groups = sites(n_sites=60, n_rows=2, seed=4)
    fitted = MixedModel().fit(rows, target, groups=groups)
    assert np.isfinite(fitted.site_coef_).all() and fitted.converged_
    np.testing.assert_allclose(fitted.coef_, [2.0, -1.0], atol=0.4)


def test_columns_that_are_constant_within_sites_are_fixed_effects():
    """A site's own income tells why levels differ; least squares at a site could not use it."""
    rng = np.random.default_rng(7)
    income = np.repeat(rng.normal(size=20), 12)
    rows = np.column_stack([X, income])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = MixedModel(random="intercept").fit(rows, Y + 3.0 * income, groups=GROUPS)
    assert fitted.collinear_ == []
    assert fitted.coef_[2] == pytest.approx(3.0, abs=3 * fitted.coef_se_[2])
    # What differs between sites is known from twenty of them, what is inside from all rows.
    assert fitted.df_[2] < 20 < fitted.df_[1]


def test_columns_that_depend_on_each_other_are_named_and_share():
    rows = np.column_stack([X, X[:, 0] * 2.0])
    with pytest.warns(UserWarning, match="columns depend on each other: 'x0', 'x2'"):
        fitted = MixedModel(random="intercept").fit(rows, Y, groups=GROUPS)
    plain = MixedModel(random="intercept").fit(X, Y, groups=GROUPS)
    assert fitted.collinear_ == ["x0", "x2"]
    assert fitted.coef_[0] + 2 * fitted.coef_[2] == pytest.approx(plain.coef_[0], rel=1e-8)
    np.testing.assert_allclose(
        fitted.predict(rows, GROUPS), plain.predict(X, GROUPS), rtol=1e-7, atol=1e-8
    )


def test_columns_that_are_not_there_are_refused_by_name():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    with pytest.raises(ValueError, match="random names 'c'; the columns are 'a', 'b'"):
        MixedModel(random=["a", "c"]).fit(frame, Y, groups=GROUPS)
    with pytest.raises(ValueError, match="columns that are not there"):
        MixedModel(random=[7]).fit(X, Y, groups=GROUPS)
    with pytest.raises(ValueError, match="needs fit_intercept=True"):
        MixedModel(random="intercept", fit_intercept=False).fit(X, Y, groups=GROUPS)


def test_the_summary_reads_as_lme4s_reader_expects_it():
    fitted = MixedModel(["x0"]).fit(X, Y, groups=GROUPS)
    summary = fitted.summary()
    fixed = summary.tables["fixed"].records()
    assert [row["term"] for row in fixed] == ["(intercept)", "x0", "x1"]
    assert list(fixed[0])[:6] == ["term", "estimate", "std. error", "df", "t", "p"]
    parts = [row["component"] for row in summary.tables["variances"].records()]
    assert parts == ["x0", "(intercept)", "(intercept), x0", "noise"]
    text = str(summary)
    for words in ("fitted by REML", "Do sites differ?", "bytes left the sites"):
        assert words in text
    low, high = fitted.conf_int(0.9).T
    assert (low < fitted.coef_).all() and (fitted.coef_ < high).all()
    assert fitted.difference_test_.p_value < 1e-6
    profile = fitted.variance_components(intervals="profile").records()
    assert all(row["95 % from"] < row["estimate"] < row["to"] for row in profile)


def test_cloning_and_fitting_again_leaves_nothing_behind():
    fitted = MixedModel(random="intercept", method="ml").fit(X, Y, groups=GROUPS)
    again = clone(fitted).fit(X, Y, groups=GROUPS)
    np.testing.assert_array_equal(fitted.coef_, again.coef_)
    fitted.adapt(X[:5], Y[:5], groups="new").fit(X, Y, groups=GROUPS)
    np.testing.assert_allclose(fitted.predict(X[:2], "new"), fitted.predict(X[:2], "never seen"))


def test_a_score_is_higher_where_sites_differ():
    fitted = MixedModel().fit(X, Y, groups=GROUPS)
    assert fitted.score(X, Y, groups=GROUPS) > 0.9 > fitted.score(X, Y)


# ------------------------------------------------------------------ counts


def counts(family="binomial", seed=0, n_sites=15, n_rows=30):
    rng = np.random.default_rng(seed)
    groups = np.repeat([f"site-{k}" for k in range(n_sites)], n_rows)
    rows = rng.normal(size=(len(groups), 2))
    eta = 0.3 + rows @ [1.0, -0.5] + np.repeat(rng.normal(size=n_sites), n_rows)
    if family == "poisson":
        return rows, rng.poisson(np.exp(0.5 * eta)).astype(float), groups
    return rows, (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float), groups


def test_probabilities_of_known_new_and_adapted_sites():
    rows, y, groups = counts()
    fitted = MixedModel("intercept", family="binomial").fit(rows, y, groups=groups)
    known = fitted.predict_proba(rows, groups)
    assert known.shape == (len(rows), 2) and np.allclose(known.sum(axis=1), 1.0)
    loss = -np.log(np.where(y == 1, known[:, 1], known[:, 0])).mean()
    new = fitted.predict(rows)
    assert loss < -np.log(np.where(y == 1, new, 1 - new)).mean()
    mean, std, ends = fitted.predict(rows[:5], "never seen", return_std=True, level=0.95)
    assert (std > 0.02).all() and (ends[:, 0] > 0).all() and (ends[:, 1] < 1).all()
    assert (ends[:, 0] < mean).all() and (mean < ends[:, 1]).all()
    own = groups == "site-2"
    fitted.adapt(rows[own], y[own], groups="twin")
    np.testing.assert_allclose(
        fitted.predict(rows[own], "twin"), fitted.predict(rows[own], "site-2"), rtol=1e-7
    )
    assert not hasattr(MixedModel(), "predict_proba")


def test_counts_have_several_random_columns_by_laplace_and_one_by_quadrature():
    rows, y, groups = counts("poisson")
    fitted = MixedModel([0], family="poisson").fit(rows, y, groups=groups)
    assert fitted.random_covariance_.shape == (2, 2) and fitted.converged_
    assert fitted.n_rounds_ <= 25
    with pytest.raises(ValueError, match="needs one random effect, not 2"):
        MixedModel([0], family="poisson", n_quadrature=5).fit(rows, y, groups=groups)
    text = str(fitted.summary())
    assert "values and slopes" in text and "Do sites differ?" in text


def test_numbers_are_no_classes():
    """Every one of 450 values was a class of its own, and the fit took minutes."""
    rows, _, groups = counts()
    y = rows[:, 0]
    for given in ((rows, y, groups), (Federation.from_groups(rows, groups, y),)):
        with pytest.raises(ValueError, match=r"450 different values.*numbers, not classes; take"):
            MixedModel(family="multinomial").fit(*given)
    halves = np.where(y > 0, 0.5, 1.5)
    fitted = MixedModel(family="multinomial").fit(rows, halves, groups=groups)
    assert fitted.classes_.tolist() == [0.5, 1.5]


@pytest.mark.parametrize("family", ["poisson", "binomial"])
def test_counts_that_are_not_whole_are_told_with_site_and_remedy(family, recwarn):
    rows, y, groups = counts(family)
    MixedModel("intercept", family=family).fit(rows, y, groups=groups)
    assert not [one for one in recwarn if "FK024" in str(one.message)]
    y[groups == "site-3"] *= 0.5
    told = r"FK024 target 'y' has \d+ of 450 values that are not whole, such as .*'site-3'"
    with pytest.warns(CheckWarning, match=told) as caught:
        fitted = MixedModel("intercept", family=family).fit(rows, y, groups=groups)
    remedy = {"poisson": "offset=", "binomial": "trials="}[family]
    assert any(remedy in str(one.message) for one in caught)
    with pytest.warns(CheckWarning, match="FK024"):
        fitted.adapt(rows[:5], np.full(5, 0.25), groups="new")


def test_targets_that_the_family_does_not_have_are_refused_by_site():
    rows, y, groups = counts()
    bad = y.copy()
    bad[groups == "site-4"] = 2.0
    told = r"site 'site-4': target 'y' has 30 of 30 values that cannot be, such as 2: .*trials="
    with pytest.raises(ValueError, match=told):
        MixedModel(family="binomial").fit(rows, bad, groups=groups)
    with pytest.raises(ValueError, match=r"site 'site-0'.*such as -1.*at least 0; .*gaussian"):
        MixedModel(family="poisson").fit(rows, y - 1.0, groups=groups)
    trials = np.column_stack([rows, np.full(len(y), 1.0)])
    with pytest.raises(ValueError, match=r"site 'site-4'.*between 0 and the trials; correct"):
        MixedModel(family="binomial", trials=2).fit(trials, bad, groups=groups)
    with pytest.raises(ValueError, match="trials are for family='binomial'"):
        MixedModel(trials=0).fit(rows, y, groups=groups)
    with pytest.raises(ValueError, match="trials=7, but there are 2 columns"):
        MixedModel(family="binomial", trials=7).fit(rows, y, groups=groups)


def test_an_offset_of_a_normal_target_is_taken_off():
    rows = np.column_stack([X, np.arange(len(X)) / 10.0])
    plain = MixedModel().fit(X, Y, groups=GROUPS)
    shifted = MixedModel(offset=2).fit(rows, Y + rows[:, 2], groups=GROUPS)
    np.testing.assert_allclose(shifted.coef_, plain.coef_, rtol=1e-9)
    np.testing.assert_allclose(
        shifted.predict(rows, GROUPS), plain.predict(X, GROUPS) + rows[:, 2], rtol=1e-8
    )
    shifted.adapt(rows[:9], Y[:9] + rows[:9, 2], groups="new")
    plain.adapt(X[:9], Y[:9], groups="new")
    np.testing.assert_allclose(
        shifted.predict(rows, "new"), plain.predict(X, "new") + rows[:, 2], rtol=1e-8
    )


def test_collinear_columns_are_named_in_rounds_too():
    rows, y, groups = counts()
    twice = np.column_stack([rows, 2.0 * rows[:, 0]])
    with pytest.warns(UserWarning, match="columns depend on each other: 'x0', 'x2'"):
        fitted = MixedModel("intercept", family="binomial").fit(twice, y, groups=groups)
    plain = MixedModel("intercept", family="binomial").fit(rows, y, groups=groups)
    np.testing.assert_allclose(
        fitted.predict(twice, groups), plain.predict(rows, groups), atol=1e-6
    )


def test_what_needs_statistics_says_so():
    for wrong in ({"share": "gradients"}, {"family": "poisson"}):
        with pytest.raises(ValueError, match="needs the sites' statistics"):
            MixedModel(robust=True, **wrong).fit(X, Y, groups=GROUPS)
        with pytest.raises(ValueError, match="site_noise='own' needs"):
            MixedModel(site_noise="own", **wrong).fit(X, Y, groups=GROUPS)
    with pytest.raises(ValueError, match="needs no quadrature"):
        MixedModel(n_quadrature=5).fit(X, Y, groups=GROUPS)


# ------------------------------------------------------------------ classes


def classes(seed=0, n_sites=12, n_rows=40):
    """Three labels; sites bend the boundaries between them."""
    rng = np.random.default_rng(seed)
    groups = np.repeat([f"site-{k}" for k in range(n_sites)], n_rows)
    rows = rng.normal(size=(len(groups), 2)) * [1.0, 50.0] + [0.0, 300.0]
    inside = np.column_stack([rows[:, 0], (rows[:, 1] - 300.0) / 50.0, np.ones(len(rows))])
    coef = np.array([[2.0, 0.0, 0.0], [-2.0, 1.0, 0.5], [0.0, -2.0, 0.0]])
    own = np.repeat(coef + 1.5 * rng.normal(size=(n_sites, 3, 3)), n_rows, axis=0)
    gumbel = rng.gumbel(size=(len(rows), 3))
    codes = (np.einsum("nd,ncd->nc", inside, own) + gumbel).argmax(axis=1)
    return rows, np.array(["sit", "stand", "walk"])[codes], groups


def test_missing_labels_are_named_with_their_sites():
    labels = np.where(Y > 1, "high", "low").astype(object)
    labels[[13, 15, 30]] = [None, np.nan, None]
    for model in (MixedModel(family="multinomial"), Best(target="classes")):
        with pytest.raises(ValueError, match=r"3 missing labels at sites 'site-1', 'site-2'"):
            model.fit(X, labels, groups=GROUPS)


def test_classes_of_any_label_are_predicted_by_site():
    rows, y, groups = classes()
    train = np.arange(len(rows)) % 40 < 25
    model = MixedModel(family="multinomial").fit(rows[train], y[train], groups=groups[train])
    assert list(model.classes_) == ["sit", "stand", "walk"]
    assert model.coef_.shape == (3, 2) and model.site_coef_.shape == (12, 3, 2)
    assert model.converged_ and model.n_rounds_ <= 25
    test, sites = rows[~train], groups[~train]
    share = model.predict_proba(test, sites)
    np.testing.assert_allclose(share.sum(axis=1), 1.0)
    assert set(model.predict(test, sites)) <= set(y)
    assert model.score(test, y[~train], sites) > model.score(test, y[~train])
    truth = np.searchsorted(model.classes_, y[~train])
    known, new = (
        -np.log(said[np.arange(len(truth)), truth]).mean()
        for said in (share, model.predict_proba(test))
    )
    assert known < 0.85 * new
    scores = test @ model.site_coef_[0].T + model.site_intercept_[0]
    first = np.exp(scores - scores.max(axis=1, keepdims=True))
    by_hand = first / first.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(test, "site-0"), by_hand, atol=1e-10)
    own = train & (groups == "site-3")
    model.adapt(rows[own], y[own], groups="twin")
    np.testing.assert_allclose(
        model.predict_proba(test, "twin"), model.predict_proba(test, "site-3"), atol=1e-6
    )
    text = str(model.summary())
    assert "3 classes" in text and "rows left out" in text


def test_classes_are_numbers_in_a_federation_and_labels_may_be_any_numbers():
    rows, y, groups = classes(1)
    codes = np.unique(y, return_inverse=True)[1] * 10.0 - 5.0
    words = MixedModel(family="multinomial").fit(rows, y, groups=groups)
    numbers = MixedModel(family="multinomial").fit(Federation.from_groups(rows, groups, codes))
    assert list(numbers.classes_) == [-5.0, 5.0, 15.0]
    np.testing.assert_allclose(words.predict_proba(rows), numbers.predict_proba(rows), atol=1e-8)
    kept = MixedModel(family="multinomial", share="gradients").fit(rows, y, groups=groups)
    np.testing.assert_allclose(kept.effects_, words.effects_, atol=1e-8)
    assert "departures" not in kept.traffic_.bytes_up_by_field


def test_what_classes_do_not_have_is_refused():
    rows, y, groups = classes(2)
    model = MixedModel(family="multinomial")
    with pytest.raises(ValueError, match="1 class only"):
        model.fit(rows, np.full(len(y), "sit"), groups=groups)
    with pytest.raises(ValueError, match="takes random='all'"):
        MixedModel("intercept", family="multinomial").fit(rows, y, groups=groups)
    model.fit(rows, y, groups=groups)
    assert not hasattr(model, "conf_int")
    with pytest.raises(ValueError, match="predict_proba gives probabilities"):
        model.predict(rows, return_std=True)
    with pytest.raises(ValueError, match="labels 'fly' are new"):
        model.adapt(rows[:3], ["sit", "fly", "sit"], groups="new")


def test_sites_of_one_row_each_do_not_tell_noise_from_differences():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 1))
    y = X[:, 0] + rng.normal(size=60)
    with pytest.warns(UserWarning, match="no site has two rows"):
        MixedModel("intercept").fit(X, y, groups=np.arange(60))
