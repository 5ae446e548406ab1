"""ODCL and IFCA against closed forms, and what each option promises, at reduced size."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from fedkin.algorithms import aggregate as averages
from fedkin.algorithms import algorithm
from fedkin.algorithms.odcl_evidence import Evidence, sums_of
from fedkin.algorithms.odcl_groups import stand_alone
from fedkin.datasets import make_logistic_groups, make_sparse_regressions, spoil_sites
from fedkin.datasets.odcl import APPENDIX_D2
from fedkin.engines import InProcess
from fedkin.federation import Federation
from fedkin.models.descent import sgd
from fedkin.models.least_squares import packed_statistics, sampling_covariances
from fedkin.models.local_loss import local_loss
from fedkin.models.random_effects import shared_prior_fits
from fedkin.randomness import KeyRing

FIGURE_2 = make_sparse_regressions(60, n_clients=60, random_state=1)


def run(groups, name="odcl", seed=0, **settings):
    return run_on(groups.federation, name, seed, **settings).result


def run_on(data, name="odcl", seed=0, **settings):
    method = algorithm(name)
    chosen = method.settings.from_mapping({"fit_intercept": False, **settings})
    return InProcess().run(method, chosen, data, seed)


def truth_of(groups):
    return {"given_clusters": "true", "true_labels": groups.labels}


def known(groups):
    return {"given_clusters": "true", "true_labels": groups.labels}


def own_fits(groups):
    clients = (groups.federation.client(k) for k in range(len(groups.federation)))
    return np.array([np.linalg.lstsq(X, y, rcond=None)[0] for X, y in clients])


# ------------------------------------------------------------------ local fits


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_penalised_squared_loss_is_ridge(fit_intercept):
    data = FIGURE_2.federation
    found = local_loss(data, "squared", fit_intercept, 0.3).fit()
    for k in (0, 7):
        X, y = data.client(k)
        ridge = Ridge(alpha=0.3 * len(y), fit_intercept=fit_intercept).fit(X, y)
        expected = np.append(ridge.coef_, ridge.intercept_) if fit_intercept else ridge.coef_
        np.testing.assert_allclose(found[k], expected, atol=1e-9)


def test_an_undetermined_site_gets_the_shortest_solution():
    data = make_sparse_regressions(6, n_clients=4, intervals=APPENDIX_D2).federation
    found = local_loss(data, "squared", False, None).fit()
    for k in range(4):
        X, y = data.client(k)
        np.testing.assert_allclose(found[k], np.linalg.pinv(X) @ y, atol=1e-8)


def test_sampling_covariance_is_the_textbooks():
    X, y = FIGURE_2.federation.client(3)
    coef = np.linalg.lstsq(X, y, rcond=None)[0]
    expected = np.linalg.inv(X.T @ X) * ((y - X @ coef) ** 2).sum() / (len(y) - 20)
    packed = packed_statistics(FIGURE_2.federation, False).T
    found = sampling_covariances(packed, own_fits(FIGURE_2), 0.0, False)
    np.testing.assert_allclose(found[3], expected, rtol=1e-8)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_gradients_are_the_slopes_of_the_penalised_loss(loss):
    data = make_logistic_groups(40, n_clients=3).federation
    local = local_loss(data, loss, True, 0.2)
    at = np.random.default_rng(0).normal(size=(3, 3))

    def value(models):
        return np.diag(local.losses(models)) + 0.1 * (models[:, :2] ** 2).sum(axis=1)

    for j in range(3):
        move = 1e-6 * np.eye(3)[j]
        slope = (value(at + move) - value(at - move)) / 2e-6
        np.testing.assert_allclose(local.gradients(at)[:, j], slope, atol=1e-7)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_stochastic_steps_approach_the_exact_fit_and_do_not_depend_on_the_block(loss):
    data = make_logistic_groups(50, n_clients=6).federation
    local = local_loss(data, loss, True, 0.1)
    exact = local.fit()
    ring = KeyRing(data.names, 4)
    off = [
        np.linalg.norm(sgd(data, local, ring.at(1), steps) - exact, axis=1).mean()
        for steps in (30, 300, 3000)
    ]
    assert off[0] > 1.8 * off[1] > 3.2 * off[2]  # at least nearly the root of the steps
    who = np.array([4, 1])
    part = sgd(data.take(who), local.take(who), ring.at(1, who), 50)
    np.testing.assert_allclose(part, sgd(data, local, ring.at(1), 50)[who], atol=1e-12)


def test_the_weighted_iterate_is_the_weighted_mean_of_all_iterates():
    data = make_sparse_regressions(30, n_clients=2, intervals=APPENDIX_D2[:2]).federation
    local = local_loss(data, "squared", False, 0.1)
    keys = KeyRing(data.names, 0).at(1)
    last = np.array([sgd(data, local, keys, t) for t in range(1, 8)])
    weights = np.arange(1, 8) / np.arange(1, 8).sum()
    average = sgd(data, local, keys, 7, iterate="average")
    np.testing.assert_allclose(average, np.tensordot(weights, last, axes=1), atol=1e-12)
    held = sgd(data, local, keys, 50, radius=0.1)
    assert np.linalg.norm(held, axis=1).max() <= 0.1 + 1e-12


# ------------------------------------------------------------------ averages


def test_aggregates_equal_their_formulas():
    groups, own = FIGURE_2, own_fits(FIGURE_2)
    labels = groups.labels
    ragged = make_sparse_regressions(
        np.random.default_rng(0).integers(40, 200, 60), n_clients=60, random_state=1
    )
    found = run(groups, n_clusters=10, aggregate="mean")["models"]
    np.testing.assert_allclose(found[0], own[labels == labels[0]].mean(axis=0), rtol=1e-9)
    own, sizes = own_fits(ragged), ragged.federation.sizes
    found = run(ragged, n_clusters=10, aggregate="size")["models"]
    inside = labels == labels[0]
    expected = np.average(own[inside], axis=0, weights=sizes[inside])
    np.testing.assert_allclose(found[0], expected, rtol=1e-9)
    rows = inside[ragged.federation.owner]
    pooled = np.linalg.lstsq(ragged.federation.X[rows], ragged.federation.y[rows], rcond=None)[0]
    found = run(ragged, n_clusters=10, aggregate="statistics")["models"]
    np.testing.assert_allclose(found[0], pooled, rtol=1e-8)


def test_precision_weights_are_generalised_least_squares():
    rng = np.random.default_rng(0)
    models, labels = rng.normal(size=(6, 2)), np.array([0, 0, 0, 1, 1, 1])
    factors = rng.normal(size=(6, 2, 2))
    covariances = factors @ factors.transpose(0, 2, 1) + 0.1 * np.eye(2)
    covariances[[2, 3, 4, 5]] = 0.0  # withheld: one of the first group, all of the second
    rows = np.array([20.0, 30.0, 5.0, 5.0, 4.0, 2.0])
    sums = sums_of(models, covariances, rows, known_noise=True)
    found = Evidence(sums, False, as_sent=True).shared_models(labels, 2)
    one, two = np.linalg.inv(covariances[:2])
    np.testing.assert_allclose(
        found[0], np.linalg.solve(one + two, one @ models[0] + two @ models[1])
    )
    assert np.isnan(found[1]).all()


def test_the_geometric_median_balances_unit_pulls():
    points = np.random.default_rng(0).normal(size=(9, 3))
    found = averages.geometric_medians(points, np.zeros(9, dtype=int), 1)[0]
    pulls = (points - found) / np.linalg.norm(points - found, axis=1, keepdims=True)
    assert np.linalg.norm(pulls.sum(axis=0)) < 1e-6


def test_weights_beat_the_plain_mean_where_sites_differ_in_size():
    """Paired over three draws: rows from 30 to 600."""
    sizes = np.exp(np.random.default_rng(0).uniform(np.log(30), np.log(600), 60)).astype(int)
    errors = {how: [] for how in ("mean", "size", "precision", "statistics")}
    for seed in range(3):
        groups = make_sparse_regressions(sizes, n_clients=60, random_state=seed)
        for how, found in errors.items():
            result = run(groups, **truth_of(groups), aggregate=how)
            found.append(groups.error(result["models"]))
    assert np.mean(errors["size"]) < 0.6 * np.mean(errors["mean"])
    assert np.mean(errors["precision"]) < 0.6 * np.mean(errors["mean"])
    assert np.mean(errors["statistics"]) <= np.mean(errors["precision"])


# ------------------------------------------------------------------ groups


@pytest.mark.parametrize(
    "clustering", ["kmeans", "spectral", "spectral_part_one", "gradient", "huber", "convex"]
)
def test_the_true_partition_is_found_without_knowing_the_number(clustering):
    result = run(FIGURE_2, clustering=clustering)
    assert FIGURE_2.recovers(result["labels"]) and len(result["cluster_models"]) == 10


def test_homogeneous_sites_are_one_cluster_by_the_default_rule_and_for_convex_clustering():
    for seed in range(3):
        groups = make_sparse_regressions(
            80, n_clients=40, intervals=APPENDIX_D2[:1], random_state=seed
        )
        assert len(run(groups)["cluster_models"]) == 1
        assert len(run(groups, clustering="convex")["cluster_models"]) == 1


def test_four_logistic_kinds_are_told_apart():
    groups = make_logistic_groups(800, n_clients=40, random_state=0)
    result = run(groups, loss="logistic", fit_intercept=True)
    assert groups.recovers(result["labels"])
    assert groups.error(result["models"]) < 5e-3


def test_the_oracle_penalty_with_plenty_of_rows_finds_the_clusters():
    groups = make_sparse_regressions(800, n_clients=40, intervals=APPENDIX_D2, random_state=2)
    result = run(groups, clustering="convex", penalty="interval", true_labels=groups.labels)
    assert groups.recovers(result["labels"])


@pytest.mark.parametrize("known", [True, False])
def test_fewer_rows_than_coefficients_reach_the_cluster_oracle_with_statistics(known):
    groups = make_sparse_regressions(10, random_state=3)
    number = {"n_clusters": 10} if known else {"max_clusters": 12}
    found = run(groups, aggregate="statistics", **number)
    oracle = run(groups, aggregate="statistics", **truth_of(groups))
    assert groups.recovers(found["labels"])
    np.testing.assert_allclose(found["models"], oracle["models"], rtol=1e-9)
    paper = run(groups, n_clusters=10, aggregate="mean")  # models are no points here
    assert groups.error(paper["models"]) > 0.1


def test_a_shared_prior_brings_short_sites_nearer_to_the_truth():
    groups = make_sparse_regressions(8, random_state=0)
    packed = packed_statistics(groups.federation, False).T
    shared = shared_prior_fits(np.ascontiguousarray(packed))
    assert groups.error(shared) < 0.2 * groups.error(own_fits(groups))


@pytest.mark.parametrize("kind", ["wild", "shifted"])
def test_exactly_the_spoilt_sites_are_set_aside(kind):
    groups = spoil_sites(make_sparse_regressions(100, random_state=5), 0.1, kind, 1)
    plain, robust = run(groups, n_clusters=10), run(groups, robust=True)
    np.testing.assert_array_equal(robust["aside"], groups.labels < 0)
    assert groups.error(robust["models"]) < 1e-3
    assert groups.error(robust["models"]) < 0.5 * groups.error(plain["models"])
    np.testing.assert_allclose(
        robust["models"][robust["aside"]], own_fits(groups)[robust["aside"]], atol=1e-8
    )


def test_small_sites_do_not_stand_alone_for_being_small():
    rng = np.random.default_rng(0)
    spread = np.where(np.arange(60) % 6 == 0, 5.0, 0.5)
    models = spread[:, None] * rng.normal(size=(60, 10))
    assert stand_alone(models).sum() == 10
    assert not stand_alone(models, spread * np.sqrt(10)).any()


def test_large_sites_do_not_stand_alone_for_being_large():
    """What they know to .01 the others know to .5: these lie where chance puts them."""
    rng = np.random.default_rng(1)
    spread = np.where(np.arange(60) % 6 == 0, 0.01, 0.5)
    models = spread[:, None] * rng.normal(size=(60, 10))
    models[::6] += 0.5 * rng.normal(size=(10, 10)) / np.sqrt(10)
    assert not stand_alone(models, spread * np.sqrt(10)).any()


def test_copies_of_a_site_do_not_make_the_next_one_stand_alone():
    models = np.ones((10, 3))
    models[7:] += 1e-13 * np.arange(3)
    assert not stand_alone(models).any()
    models[9] = 2.0
    assert np.flatnonzero(stand_alone(models)).tolist() == [9]


@pytest.mark.parametrize("clustering", ["kmeans", "spectral", "gradient"])
def test_the_units_of_a_column_do_not_decide_where_covariances_travel(clustering):
    """In millionths, a column's coefficient is a million times larger, and so is its error."""
    rng = np.random.default_rng(3)
    coef, truth = np.array([[2.0, 0.0], [-2.0, 0.0]]), np.arange(16) % 2
    clients = []
    for k in truth:
        X = rng.normal(size=(40, 2))
        clients.append((X * [1.0, 1e-6], X @ coef[k] + rng.normal(size=40)))
    data = Federation.from_clients(clients)
    labels = run_on(data, clustering=clustering).result["labels"]
    np.testing.assert_array_equal(labels, truth)


@pytest.mark.parametrize("penalty", ["auto", "clusterpath"])
def test_convex_clustering_chooses_no_more_than_the_largest_number(penalty):
    groups = make_sparse_regressions(80, n_clients=24, intervals=APPENDIX_D2, random_state=0)
    settings = {"clustering": "convex", "penalty": penalty}
    assert len(run(groups, **settings)["cluster_models"]) > 2
    assert len(run(groups, max_clusters=2, **settings)["cluster_models"]) <= 2


def test_convex_clustering_can_couple_neighbours_only():
    groups = make_sparse_regressions(100, n_clients=20, intervals=APPENDIX_D2, random_state=1)
    settings = {"clustering": "convex", "penalty": 2.0}
    near = run(groups, n_neighbors=4, **settings)
    assert groups.recovers(near["labels"])
    # Coupled with all, the same penalty joins everybody.
    assert len(run(groups, **settings)["cluster_models"]) == 1


def _wrong_labels(seed, refine_rounds):
    rng = np.random.default_rng(seed)
    coef, truth = np.array([[1.0] * 5, [-1.0] * 5]), np.arange(40) % 2
    clients = []
    for k in truth:
        X = rng.normal(size=(8, 5))
        clients.append((X, X @ coef[k] + 3.0 * rng.normal(size=8)))
    data = Federation.from_clients(clients)
    labels = run_on(data, n_clusters=2, aggregate="mean", refine_rounds=refine_rounds).result[
        "labels"
    ]
    return min((labels != truth).sum(), (labels == truth).sum())


def test_a_refining_round_mends_wrong_labels():
    """Eight rows for five coefficients: models mislead, losses do less."""
    once = sum(_wrong_labels(seed, 0) for seed in (0, 1, 2))
    refined = sum(_wrong_labels(seed, 1) for seed in (0, 1, 2))
    assert refined < once / 2


def test_a_refining_round_costs_one_number_a_site_when_all_were_heard():
    done = run_on(FIGURE_2.federation, n_clusters=10, aggregate="mean", refine_rounds=1)
    assert done.traffic.bytes_up_by_field == {"model": 60 * 20 * 8, "choice": 60 * 8}


# ------------------------------------------------------------------ IFCA


def test_one_cluster_of_ifca_with_gradients_is_the_mean_losss_minimiser():
    groups = make_sparse_regressions(50, n_clients=8, intervals=APPENDIX_D2[:1])
    found = run(groups, "ifca", n_clusters=1, averaging="gradient", max_rounds=5000, tol=1e-12)
    X, y = groups.federation.X, groups.federation.y
    expected = np.linalg.lstsq(X, y, rcond=None)[0]  # equal sizes: the pooled fit
    np.testing.assert_allclose(found["cluster_models"][0], expected, atol=1e-8)


def test_ifca_from_nearby_finds_the_clusters_and_its_options_agree_on_them():
    groups = make_sparse_regressions(100, n_clients=24, intervals=APPENDIX_D2, random_state=1)
    start = groups.nearby(1 / 6, 1 / 4, 0)
    for averaging, batch_size in (("model", None), ("gradient", None), ("model", 10)):
        found = run(
            groups,
            "ifca",
            n_clusters=4,
            init=start,
            averaging=averaging,
            batch_size=batch_size,
            step_size=0.2,
            max_rounds=150,
        )
        assert groups.recovers(found["labels"])
        assert groups.error(found["models"]) < 0.05


def test_dividing_by_all_sites_shortens_a_clusters_step():
    groups = make_sparse_regressions(50, n_clients=12, intervals=APPENDIX_D2, random_state=1)
    how = {"n_clusters": 4, "init": groups.coef + 0.1, "averaging": "gradient"}
    moved = [
        run(groups, "ifca", **how, step_size=0.1, max_rounds=1, divide_by=by)["cluster_models"]
        - how["init"]
        for by in ("cluster", "all")
    ]
    np.testing.assert_allclose(moved[1], moved[0] / 4, rtol=1e-9)
