"""No method makes a site worse off: many clusters are an answer, small sites join and are named."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from fedkin import IFCA, ODCL, LocalERM, NaiveAveraging
from fedkin.algorithms import better_off
from fedkin.algorithms.odcl_evidence import Evidence, sums_of
from fedkin.algorithms.odcl_rivals import RIVALS, rival_bics
from fedkin.clustering import choose_n_clusters
from fedkin.datasets import make_sparse_regressions
from fedkin.estimators.ifca import UnchosenModelsWarning
from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics


def levels(m=20, n=15, spread=5.0, noise=1.0, seed=0):
    """Sites with one slope and a level of their own."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m, n, 1))
    y = 2.0 * X[..., 0] + spread * rng.normal(size=(m, 1)) + noise * rng.normal(size=(m, n))
    return Federation.from_clients(list(zip(X, y)))


def kinds(m=24, n=20, seed=0, coef=((3.0, 1.0), (-3.0, 1.0))):
    rng = np.random.default_rng(seed)
    X, truth = rng.normal(size=(m, n, 2)), np.arange(m) % len(coef)
    y = np.einsum("mnd,md->mn", X, np.array(coef)[truth]) + rng.normal(size=(m, n))
    return X, y, truth


def sums(data, fit_intercept=True):
    return np.ascontiguousarray(packed_statistics(data, fit_intercept).T)


# ------------------------------------------------------------------ the number of clusters


@pytest.fixture(scope="module")
def alone():
    return ODCL(random_state=0).fit(levels())


def test_sites_with_levels_of_their_own_stay_alone(alone):
    data = levels()
    assert alone.n_clusters_ == 20 and alone.choice_method_ == "prediction"
    assert alone.score(data) > 0.95
    own = LocalERM().fit(data)
    assert alone.score(data) > own.score(data) - 0.01


def test_the_mixed_model_is_named_where_sites_differ_by_degrees(alone):
    text = str(alone.summary())
    assert "BIC prefers a mixed model" in text and "other models" in text
    rivals = dict(zip(alone.summary()["rivals"]["model"], alone.summary()["rivals"]["bic"]))
    assert min(rivals, key=rivals.get) == "mixed model"
    assert alone.choice_["bic of a mixed model"][0] == rivals["mixed model"]
    assert alone.choice_["bic of one common model"][0] == rivals["one common model"]
    # One cluster is one common model.
    assert alone.choice_["bic"][0] == pytest.approx(rivals["one common model"], rel=1e-9)


def test_with_fewer_clusters_allowed_the_best_of_these_is_taken():
    fitted = ODCL(max_clusters=6, random_state=0).fit(levels())
    assert 3 < fitted.n_clusters_ <= 6 and fitted.score(levels()) > 0.8


def test_kinds_are_kinds_and_beat_a_mixed_model():
    X, y, truth = kinds()
    fitted = ODCL(random_state=0).fit(Federation.from_clients(list(zip(X, y))))
    assert fitted.n_clusters_ == 2 and len(set(zip(truth, fitted.labels_))) == 2
    assert "BIC prefers kinds of sites" in str(fitted.summary())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [4, 20])
def test_sites_that_are_alike_are_one_cluster(seed, n):
    data = levels(m=30, n=n, spread=0.0, seed=seed)
    assert ODCL(random_state=0).fit(data).n_clusters_ == 1


def test_a_number_that_is_given_gives_what_it_gives_when_it_is_chosen():
    X, y, _ = kinds(seed=3)
    data = Federation.from_clients(list(zip(X, y)))
    chosen = ODCL(random_state=5).fit(data)
    given = ODCL(chosen.n_clusters_, random_state=5).fit(data)
    np.testing.assert_array_equal(chosen.labels_, given.labels_)
    np.testing.assert_allclose(chosen.coef_, given.coef_, rtol=1e-12)


def test_points_that_nothing_explains_stay_alone():
    points = 100.0 * np.arange(9.0)[:, None]
    found = choose_n_clusters(points, covariances=np.full((9, 1), 1.0))
    assert found.n_clusters == 9 and found.method == "chi2"
    bounded = choose_n_clusters(points, covariances=np.full((9, 1), 1.0), max_clusters=3)
    assert bounded.n_clusters == 3


# ------------------------------------------------------------------ small and flat sites


@pytest.mark.parametrize("send", [None, "covariance"])
def test_a_site_of_two_rows_joins_and_is_named(send):
    X, y, _ = kinds()
    clients = {f"s{k:02}": (X[k], y[k]) for k in range(24)}
    tiny = (np.array([[2.0, 0.0], [-2.0, 0.0]]), np.array([6.1, -5.8]))
    with_it, without = (
        ODCL(random_state=0, send=send).fit(Federation.from_clients(c))
        for c in ({**clients, "tiny": tiny}, clients)
    )
    assert list(with_it.joined_sites_) == ["tiny"] and not len(without.joined_sites_)
    assert "joined where these are likeliest: 'tiny'" in str(with_it.summary())
    np.testing.assert_array_equal(with_it.labels_[:24], without.labels_)
    assert with_it.labels_[24] == with_it.labels_[0]
    np.testing.assert_allclose(with_it.coef_[:24], without.coef_, atol=0.02)


def test_a_tiny_site_beside_sites_that_stay_alone_has_everybodys_model():
    data = levels()
    clients = {f"s{k:02}": data.client(k) for k in range(20)}
    clients["tiny"] = (np.array([[0.0]]), np.array([40.0]))
    fitted = ODCL(random_state=0).fit(Federation.from_clients(clients))
    assert fitted.n_clusters_ == 21 and list(fitted.joined_sites_) == ["tiny"]
    X = np.array([[1.0]])
    assert fitted.predict(X, "tiny") == fitted.predict(X, "nobody knows")


def test_columns_that_do_not_vary_within_sites_do_not_stop_the_rule():
    X, y, truth = kinds()
    flat = np.random.default_rng(1).normal(size=(24, 1, 1)).repeat(20, axis=1)
    wide = np.concatenate([X, flat], axis=2)
    fitted = ODCL(random_state=0).fit(Federation.from_clients(list(zip(wide, y))))
    assert fitted.n_clusters_ == 2 and len(set(zip(truth, fitted.labels_))) == 2
    data = levels()
    ages = np.random.default_rng(2).normal(size=(20, 1)).repeat(15, axis=1)
    rows = [(np.column_stack([data.client(k)[0], ages[k]]), data.client(k)[1]) for k in range(20)]
    everybody = Federation.from_clients(rows)
    fitted = ODCL(random_state=0).fit(everybody)
    assert fitted.n_clusters_ == 20 and fitted.score(everybody) > 0.95


def test_few_rows_of_many_columns_are_held_by_ridge():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 6, 12))
    level = 5.0 * rng.normal(size=(20, 1))
    slopes = 0.1 * rng.normal(size=12)
    new = rng.normal(size=(20, 40, 12))
    y = level + X @ slopes + rng.normal(size=(20, 6))
    fitted = ODCL(random_state=0).fit(Federation.from_clients(list(zip(X, y))))
    sites = np.repeat(fitted.client_names_, 40)
    missed = fitted.predict(new.reshape(-1, 12), sites) - (level + new @ slopes).ravel()
    means = np.repeat(y.mean(axis=1), 40) - (level + new @ slopes).ravel()
    assert np.sqrt((missed**2).mean()) < 1.1 * np.sqrt((means**2).mean())


# ------------------------------------------------------------------ averages


def test_averages_by_precision_are_pooled_least_squares_of_sites_as_noisy():
    data = levels(spread=0.0, n=400)
    pooled = LinearRegression().fit(data.X, data.y)
    for model in (NaiveAveraging(), LocalERM()):
        fitted = model.fit(data)
        X = np.array([[0.0], [1.0]])
        np.testing.assert_allclose(fitted.predict(X, "new"), pooled.predict(X), atol=2e-3)


def test_a_wild_fit_of_two_rows_has_next_to_no_say():
    data = levels(spread=0.0)
    clients = {f"s{k:02}": data.client(k) for k in range(20)}
    spoilt = {**clients, "tiny": (np.array([[0.0], [1e-3]]), np.array([0.0, 3.0]))}
    X = np.array([[1.0]])
    for model in (NaiveAveraging, LocalERM):
        before, after, plain = (
            model(aggregate=how).fit(Federation.from_clients(c)).predict(X, "new")[0]
            for how, c in (("auto", clients), ("auto", spoilt), ("mean", spoilt))
        )
        assert abs(after - before) < 0.02 and abs(plain - before) > 100.0


def test_sums_come_back_from_models_and_covariances():
    """With an intercept a covariance and the number of rows are the sums themselves."""
    from fedkin.models.local_loss import local_loss

    data = levels(n=12)
    local = local_loss(data, "squared", True, None)
    models = local.fit()
    found = sums_of(models, local.covariances(models), local.sizes, known_noise=False)
    np.testing.assert_allclose(found, sums(data), rtol=1e-8, atol=1e-8)


def test_rivals_are_compared_by_their_likelihoods():
    """One common model and every site alone by hand; kinds with one site each are no mixture."""
    data = levels(m=6, n=10)
    evidence = Evidence(sums(data), True)
    bics = dict(zip(RIVALS, rival_bics(evidence, np.zeros(6, dtype=int))))

    def by_hand(residuals, n_parameters):
        return 60 * (1 + np.log(2 * np.pi * residuals / 60)) + n_parameters * np.log(60)

    common = LinearRegression().fit(data.X, data.y)
    expected = by_hand(((data.y - common.predict(data.X)) ** 2).sum(), 3)
    assert bics["one common model"] == pytest.approx(expected, rel=1e-9)
    assert bics["kinds of sites"] == pytest.approx(expected, rel=1e-9)
    own = 0.0
    for k in range(6):
        X, y = data.client(k)
        own += ((y - LinearRegression().fit(X, y).predict(X)) ** 2).sum()
    assert bics["every site alone"] == pytest.approx(by_hand(own, 13), rel=1e-9)


def test_expected_errors_are_those_at_further_rows():
    """Sites alone and one model for all, over many draws, beside rows not learnt from."""
    expected, found = np.zeros(2), np.zeros(2)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        slopes = np.array([1.0, -1.0, 0.5]) + 0.3 * rng.normal(size=(8, 3))
        X, new = rng.normal(size=(2, 8, 12, 3))
        y, later = (
            np.einsum("mnd,md->mn", rows, slopes) + rng.normal(size=(8, 12)) for rows in (X, new)
        )
        evidence = Evidence(sums(Federation.from_clients(list(zip(X, y)))), True, 0.0)
        for k, labels in enumerate((np.arange(8), np.zeros(8, dtype=int))):
            expected[k] += (evidence.errors(labels) * evidence.unit).sum() / 96
            models = evidence.shared_models(labels, int(labels.max()) + 1)[labels]
            score = np.einsum("mnd,md->mn", new, models[:, :3]) + models[:, 3:]
            found[k] += ((later - score) ** 2).mean()
    np.testing.assert_allclose(expected / found, 1.0, atol=0.12)


def loud_and_quiet(rng, n):
    """Rows (20, n, 2) and targets of sites whose levels hardly differ, half of them loud."""
    noise = np.repeat([0.3, 2.0], 10)
    level = rng.normal(scale=0.6, size=20)

    def rows(n):
        X = rng.normal(size=(20, n, 2))
        return X, X.sum(axis=2) + level[:, None] + noise[:, None] * rng.normal(size=(20, n))

    return rows(n), rows(50)


def test_quiet_sites_do_not_send_loud_ones_away():
    """Staying alone gains the quiet ones many of their own units, and the loud ones lose more."""
    mine = pooled = 0.0
    for seed in range(8):
        (X, y), (new, later) = loud_and_quiet(np.random.default_rng(seed), 6)
        model = ODCL(random_state=0).fit(Federation.from_clients(list(zip(X, y))))
        answer = np.einsum("mnd,md->mn", new, model.coef_) + model.intercept_[:, None]
        together = LinearRegression().fit(X.reshape(-1, 2), y.ravel())
        of_all = together.predict(new.reshape(-1, 2)).reshape(later.shape)
        mine += np.mean((answer - later) ** 2)
        pooled += np.mean((of_all - later) ** 2)
    assert np.sqrt(mine / pooled) < 1.1


def test_errors_count_in_one_unit_but_for_wild_sites():
    (X, y), _ = loud_and_quiet(np.random.default_rng(0), 40)
    y[0] *= 1000.0
    evidence = Evidence(sums(Federation.from_clients(list(zip(X, y)))), True)
    usual = np.median(evidence.noise)
    near = evidence.noise <= 10.0 * usual
    assert near.sum() >= 18 and not near[0]
    np.testing.assert_allclose(evidence.unit[near], usual, rtol=1e-12)
    np.testing.assert_allclose(evidence.unit[~near], evidence.noise[~near] / 10.0, rtol=1e-12)


# ------------------------------------------------------------------ new sites


def test_a_new_site_of_local_erm_gets_a_model_of_its_own():
    data = levels()
    fitted = LocalERM().fit(data)
    X, y = levels(m=1, seed=9, spread=50.0).client(0)
    fitted.adapt(X, y, "new")
    oracle = LinearRegression().fit(X, y)
    np.testing.assert_allclose(fitted.predict(X, "new"), oracle.predict(X), rtol=1e-9)
    assert fitted.adapted_ == {"new": -1}


def test_a_new_site_beside_sites_that_stay_alone_gets_its_own_model(alone):
    X, y = levels(m=1, seed=9, spread=50.0).client(0)
    fitted = ODCL(random_state=0).fit(levels()).adapt(X, y, "new").adapt(X[:2], y[:2], "two rows")
    assert np.corrcoef(fitted.predict(X, "new"), y)[0, 1] > 0.8
    assert abs((fitted.predict(X, "new") - y).mean()) < 1e-9
    np.testing.assert_array_equal(fitted.predict(X, "two rows"), fitted.predict(X, "unknown"))


# ------------------------------------------------------------------ IFCA


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_ifca_does_not_depend_on_the_columns_units(fit_intercept):
    X, y, truth = kinds()
    unit = np.array([1e3, 1e-3])
    shift = 7.0 * unit * fit_intercept
    fits = [
        IFCA(2, fit_intercept=fit_intercept, random_state=0).fit(
            Federation.from_clients([(rows * u + s, t) for rows, t in zip(X, y)])
        )
        for u, s in ((1.0, 0.0), (unit, shift))
    ]
    np.testing.assert_array_equal(fits[0].labels_, fits[1].labels_)
    np.testing.assert_allclose(fits[0].coef_, fits[1].coef_ * unit, rtol=1e-5, atol=1e-6)
    assert len(set(zip(truth, fits[0].labels_))) == 2 and fits[0].converged_


def test_scaled_steps_end_where_printed_ones_do():
    groups = make_sparse_regressions(50, n_clients=12, intervals=((0.0, 1.0),), random_state=1)
    how = {"fit_intercept": False, "max_rounds": 3000, "tol": 1e-10, "random_state": 0}
    scaled, printed, one_step = (
        IFCA(1, **how, **more).fit(groups.federation)
        for more in (
            {"averaging": "gradient"},
            {"averaging": "gradient", "scale": False},
            {"local_steps": 1},
        )
    )
    np.testing.assert_allclose(scaled.coef_, printed.coef_, atol=1e-6)
    np.testing.assert_allclose(one_step.coef_, printed.coef_, atol=1e-6)


@pytest.mark.parametrize(("averaging", "unit"), [("model", 1e-7), ("gradient", 1e-6)])
def test_coefficients_that_creep_while_others_rest_have_not_settled(averaging, unit):
    """One column in tiny units: steps that suit the other hardly move its coefficient."""
    rng = np.random.default_rng(0)
    clients = [
        (X * [1.0, unit], X @ [1.0, 2.0] + 0.1 * rng.normal(size=30))
        for X in rng.normal(size=(8, 30, 2))
    ]
    how = {"averaging": averaging, "fit_intercept": False, "max_rounds": 60, "random_state": 0}
    data = Federation.from_clients(clients)
    with pytest.warns(UserWarning):
        creeping = IFCA(1, scale=False, **how).fit(data)
    assert creeping.history_["changes"][-1] < 1e-5 and not creeping.converged_
    scaled = IFCA(1, **how).fit(data)
    assert scaled.converged_ and scaled.coef_[0, 1] * unit == pytest.approx(2.0, abs=0.05)


def test_models_that_nobody_chose_are_told():
    data = levels(spread=0.0)
    with pytest.warns(UnchosenModelsWarning, match="1 of 2 models were chosen by no site"):
        fitted = IFCA(2, init=[[2.0, 0.0], [-50.0, 0.0]]).fit(data)
    assert "1 of 2 models were chosen by no site" in str(fitted.summary())


# ------------------------------------------------------------------ few rows


def test_sites_of_few_rows_have_a_penalty_and_others_least_squares():
    """Five coefficients: eleven rows are enough, ten are few."""
    rng = np.random.default_rng(3)
    sites = [(rng.normal(size=(n, 4)), rng.normal(size=n)) for n in (11, 10, 5, 30)]
    data = Federation.from_clients(sites)
    own, penalised, plain = (LocalERM(alpha=a).fit(data) for a in (None, "auto", 0.0))
    np.testing.assert_allclose(own.coef_[[0, 3]], plain.coef_[[0, 3]], rtol=1e-10)
    np.testing.assert_allclose(own.coef_[[1, 2]], penalised.coef_[[1, 2]], rtol=1e-10)
    assert np.abs(own.coef_[2]).max() < 0.5 * np.abs(plain.coef_[2]).max()
    X, y = sites[1]
    own.adapt(X, y, groups=np.full(len(y), "new"))
    np.testing.assert_allclose(
        own.predict(X, groups="new"), X @ own.coef_[1] + own.intercept_[1], rtol=1e-8
    )


def test_a_strength_for_all_leaves_the_median_site_a_row_to_spare():
    """Planes without noise: running through four rows looks perfect; nobody could stay alone."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(6, 4, 1)) + 0.05 * rng.normal(size=(6, 4, 4))
    y = X[..., 0] * rng.uniform(1.0, 3.0, size=(6, 1)) + 2.0 * X[..., 1]
    evidence = Evidence(sums(Federation.from_clients(list(zip(X, y)))), True)
    assert np.median(4 - evidence.chosen.freedom) >= 1.0
    assert evidence.can_stay_alone.all()


def as_good(errors, least, fewer):
    return better_off.as_good(np.array(errors, dtype=float), np.array(least, dtype=float), fewer)


def test_fewer_clusters_stand_where_sites_do_not_tell_the_difference():
    least = np.full(9, 10.0)
    one_site = np.append(np.full(8, 10.0), 17.0)
    assert as_good(one_site * (1 - 1e-9), least, fewer=True)
    assert not as_good(one_site, least, fewer=False)
    assert not as_good(least + 1.0 + 0.1 * np.arange(9), least, fewer=True)
    assert as_good(least * 1.019, least, fewer=False)
    assert not as_good([np.inf, 1.0], [1.0, 1.0], fewer=True)
    assert as_good([np.inf, 1.0], [np.inf, 1.0], fewer=False)


def test_the_summary_says_when_sites_were_probably_better_off_alone():
    said = "Probably worse than every site alone"
    assert said in str(NaiveAveraging().fit(levels()).summary())
    assert said in str(ODCL(2, random_state=0).fit(levels()).summary())
    assert "Probably worse" not in str(ODCL(random_state=0).fit(levels()).summary())
    alike = levels(spread=0.0)
    assert "Probably worse" not in str(NaiveAveraging().fit(alike).summary())
    split = ODCL(10, random_state=0).fit(levels(n=4, spread=0.0))
    assert "Probably worse than one model for all" in str(split.summary())
