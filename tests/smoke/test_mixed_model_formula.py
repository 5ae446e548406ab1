"""Mixed models by formula: what lme4's readers write, on tables of any kind."""

import numpy as np
import pytest

from fedkin import Federation, MixedModel

pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")


def table(seed=0, n_sites=12, n_rows=20):
    rng = np.random.default_rng(seed)
    site = np.repeat([f"clinic {k}" for k in range(n_sites)], n_rows)
    age, sex = rng.uniform(20, 80, len(site)), rng.choice(["f", "m"], len(site))
    own = np.repeat(rng.normal(size=(n_sites, 2)) * [0.1, 2.0], n_rows, axis=0)
    y = 5 + (0.2 + own[:, 0]) * age + 3.0 * (sex == "m") + own[:, 1] + rng.normal(size=len(site))
    return pandas.DataFrame({"y": y, "age": age, "sex": sex, "site": site})


FRAME = table()
FORMULA = "y ~ age * sex + (age | site)"


def by_hand(frame):
    male = (frame["sex"] == "m").to_numpy(float)
    age = frame["age"].to_numpy(float)
    return np.column_stack([age, male, age * male])


def test_a_formula_is_the_fit_by_hand():
    found = MixedModel(formula=FORMULA).fit(FRAME)
    plain = MixedModel([0]).fit(
        by_hand(FRAME), FRAME["y"].to_numpy(), groups=FRAME["site"].to_numpy()
    )
    assert list(found.feature_names_in_) == ["age", "sex[T.m]", "age:sex[T.m]"]
    assert found.random_columns_ == ["age", "(intercept)"]
    np.testing.assert_allclose(found.coef_, plain.coef_, rtol=1e-8)
    np.testing.assert_allclose(found.effects_, plain.effects_, rtol=1e-7, atol=1e-9)
    again = MixedModel(formula=FORMULA).fit(polars.from_pandas(FRAME))
    np.testing.assert_allclose(found.coef_, again.coef_, rtol=1e-10)
    assert "age:sex[T.m]" in str(found.summary())


def test_tables_are_predicted_with_the_sites_they_name():
    found = MixedModel(formula=FORMULA).fit(FRAME)
    few = FRAME.iloc[[3, 100, 7]]
    own = found.predict(few)
    plain = by_hand(few) @ found.coef_ + found.intercept_
    departs = [list(found.client_names_).index(name) for name in few["site"]]
    effects = found.effects_[departs]
    np.testing.assert_allclose(own, plain + effects[:, 0] * few["age"] + effects[:, 1])
    np.testing.assert_allclose(found.predict(few.drop(columns="site")), plain)
    np.testing.assert_allclose(found.predict(few, groups="never seen"), plain)
    assert found.score(FRAME) > 0.9
    new = table(seed=1, n_sites=1)
    found.adapt(new.assign(site="new"))
    assert found.predict(new.assign(site="new")).std() > 0
    better = found.score(new.assign(site="new"))
    assert better > found.score(new.assign(site="never seen"))


def test_other_ways_to_write_it():
    level = MixedModel(formula="y ~ age + (1 | site)").fit(FRAME)
    assert level.random_columns_ == ["(intercept)"]
    apart = MixedModel(formula="y ~ age + (age || site)").fit(FRAME)
    assert apart.random_covariance_[0, 1] == 0.0
    slope = MixedModel(formula="y ~ age + (0 + age | site)").fit(FRAME)
    assert slope.random_columns_ == ["age"]
    through = MixedModel(formula="y ~ 0 + age + (0 + age | site)").fit(FRAME)
    assert through.intercept_ == 0.0 and len(through.coef_) == 1
    spline = MixedModel(formula="y ~ bs(age, df=4) + sex + (1 | site)").fit(FRAME)
    assert len(spline.coef_) == 5
    assert np.isfinite(spline.predict(FRAME.head(3))).all()
    nothing = MixedModel(formula="y ~ (1 | site)").fit(FRAME)
    assert len(nothing.coef_) == 0 and nothing.predict(FRAME.head(3)).shape == (3,)
    data = Federation.from_frame(FRAME.drop(columns="sex"), target="y")
    np.testing.assert_allclose(
        MixedModel(formula="y ~ age + (1 | site)").fit(data).coef_, level.coef_, rtol=1e-10
    )


def test_counts_with_trials_and_offset_by_formula():
    rng = np.random.default_rng(3)
    n = rng.integers(2, 20, len(FRAME))
    frame = FRAME.assign(n=n, ill=rng.binomial(n, 0.3), time=np.log(n))
    share = MixedModel(formula="ill ~ sex + (1 | site)", family="binomial", trials="n").fit(frame)
    assert share.predict(frame).mean() == pytest.approx(0.3, abs=0.05)
    rate = MixedModel(formula="ill ~ sex + (1 | site)", family="poisson", offset="time").fit(frame)
    assert rate.predict(frame).sum() == pytest.approx(frame["ill"].sum(), rel=0.01)
    assert list(rate.feature_names_in_) == ["sex[T.m]", "time"] and len(rate.coef_) == 1


def test_levels_of_one_site_and_new_levels_are_refused_by_name():
    other = FRAME["sex"].where(np.arange(len(FRAME)) > 2, "x")
    with pytest.raises(ValueError, match="level 'x' of 'sex' is at site 'clinic 0' only"):
        MixedModel(formula=FORMULA).fit(FRAME.assign(sex=other))
    found = MixedModel(formula=FORMULA).fit(FRAME)
    with pytest.raises(ValueError, match="column 'sex' has 'x'; at the fit it had 'f', 'm'"):
        found.predict(FRAME.assign(sex="x"))


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("y ~ age", "one term for the sites"),
        ("age + (1 | site)", "one term for the sites"),
        ("y ~ age + (1 | site) + (1 | sex)", "one term for the sites"),
        ("y ~ age + (1 | clinic)", "no column 'clinic'"),
        ("y ~ age + (sex | site)", "differ between sites, but are not among"),
        ("y ~ weight + (1 | site)", "weight"),
        (3, "must be text"),
    ],
)
def test_formulas_that_cannot_be_read_say_why(formula, words):
    with pytest.raises(ValueError, match=words):
        MixedModel(formula=formula).fit(FRAME)


def test_a_formula_takes_one_table():
    with pytest.raises(ValueError, match="takes one table"):
        MixedModel(formula=FORMULA).fit(FRAME, FRAME["y"])
    with pytest.raises(ValueError, match="table with named columns"):
        MixedModel(formula=FORMULA).fit(np.ones((3, 2)))
    gap = FRAME.assign(age=FRAME["age"].where(np.arange(len(FRAME)) != 30))
    with pytest.raises(ValueError, match=r"site 'clinic 1'.*age.*missing"):
        MixedModel(formula=FORMULA).fit(gap)
