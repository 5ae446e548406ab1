"""What can be switched on in FedGrEM: clipping, thresholds, shared weights, batches, fractions."""

from dataclasses import replace

import numpy as np
import pytest
from tests.maths.test_fedgrem import KINDS, errors, run, small

from fedkin.algorithms.mixtures.families import GaussianFamily
from fedkin.algorithms.mixtures.fedgrem import FedGremSettings, step_lengths
from fedkin.datasets import make_regression_mixtures
from fedkin.datasets.fedgrem import contaminated_rows
from fedkin.federation import Federation
from fedkin.models import gaussian_mixture as gaussian

# --- clipping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_clipping_bounds_what_contaminated_rows_do(kind):
    sim = small(0.3, n_rows=200)
    spoilt = contaminated_rows(sim.clients, 0.05, 0)
    options = {"n_components": 3, "init": sim.centers, "covariance_type": kind}
    plain = run("fedgrem", spoilt, **options).result["components"]
    clipped = run("fedgrem", spoilt, clip=3.0, **options).result["components"]
    assert errors(clipped, sim.components).max() < 0.4 * errors(plain, sim.components).max()


@pytest.mark.parametrize("clip", [2.0, 3.0])
@pytest.mark.parametrize("kind", ["spherical", "diag", "tied"])
def test_clipped_variances_are_right_for_clean_rows_and_hold_for_contaminated_ones(kind, clip):
    sim = small(0.0, n_rows=400, n_clients=4)
    options = {"n_components": 3, "init": sim.centers, "covariance_type": kind, "clip": clip}

    def variances(clients):
        found = run("fedgrem", clients, **options)
        if kind == "tied":
            return np.diagonal(found.result["covariance"])
        return found.memories["scale"]

    assert np.mean(variances(sim.clients)) == pytest.approx(1.0, abs=0.1)
    assert np.mean(variances(contaminated_rows(sim.clients, 0.05, 0))) < 1.3


@pytest.mark.parametrize("sigma", [None, 1.0])
def test_clipping_holds_regressions_and_their_noise(sigma):
    sim = make_regression_mixtures(8, 300, 0.2, n_outliers=0, n_components=3, n_features=4)
    rng = np.random.default_rng(0)
    odd = rng.uniform(size=len(sim.clients.y)) < 0.05
    spoilt = replace(sim.clients, y=sim.clients.y + 30.0 * odd)
    options = {
        "n_components": 3,
        "family": "regression",
        "init": sim.centers,
        "sigma": sigma,
        "max_rounds": 100,
    }
    plain = errors(run("fedgrem", spoilt, **options).result["components"], sim.components)
    clipped = run("fedgrem", spoilt, clip=2.0, **options)
    assert errors(clipped.result["components"], sim.components).mean() < 0.3 * plain.mean()
    if sigma is None:
        assert clipped.result["noise"][0] == pytest.approx(1.0, abs=0.3)
        clean = run("fedgrem", sim.clients, clip=2.0, **options)
        assert clean.result["noise"][0] == pytest.approx(1.0, abs=0.1)


# --- thresholds ----------------------------------------------------------------------------------


def sparse_sites(seed=0):
    """Two groups that differ in 3 of 60 features; a site has 30 rows."""
    rng = np.random.default_rng(seed)
    means = np.zeros((2, 60))
    means[:, :3] = [[3.0, 3.0, 3.0], [-3.0, -3.0, -3.0]]
    tables = [means[np.arange(30) % 2] + rng.normal(size=(30, 60)) for _ in range(6)]
    return Federation.from_clients(tables), np.tile(means, (6, 1, 1))


@pytest.mark.parametrize("shrinkage", ["adaptive", "paper"])
def test_a_threshold_finds_sparse_components_where_features_outnumber_rows(shrinkage):
    clients, means = sparse_sites()
    options = {"n_components": 2, "shrinkage": shrinkage, "max_rounds": 50}
    plain = run("fedgrem", clients, **options).result["components"]
    held = run("fedgrem", clients, threshold=0.4, **options).result["components"]
    assert errors(held, means).mean() < errors(plain, means).mean()
    assert np.abs(held[..., 3:]).mean() < 0.2 * np.abs(plain[..., 3:]).mean()
    assert np.abs(held[..., :3]).min() > 1.5


@pytest.mark.parametrize("step", ["em", "gradient"])
def test_a_threshold_leaves_the_intercept_alone(step):
    rng = np.random.default_rng(0)
    clients = {}
    for k in range(6):
        X, label = rng.normal(size=(200, 3)), rng.choice(2, 200)
        y = np.where(label, 4.0, -4.0) + 3.0 * X[:, 0] + 0.5 * rng.normal(size=200)
        clients[f"s{k}"] = (X, y)
    found = run(
        "fedgrem",
        Federation.from_clients(clients),
        n_components=2,
        family="regression",
        fit_intercept=True,
        threshold=1.0,
        step=step,
        init=np.array([[3.0, 0.0, 0.0, 4.0], [3.0, 0.0, 0.0, -4.0]]),
    ).result["centers"]
    np.testing.assert_allclose(found[:, 3], [4.0, -4.0], atol=0.15)
    np.testing.assert_allclose(found[:, 1:3], 0.0, atol=1e-12)
    assert (found[:, 0] < 2.5).all()


# --- gradient steps ------------------------------------------------------------------------------


def test_steps_follow_the_paper_and_spare_tiny_weights():
    family = GaussianFamily(FedGremSettings(step_constant=0.95))
    counts, packed, loglik = np.zeros((2, 2)), np.zeros((2, 2, 4)), np.zeros(2)
    no_pull = gaussian.Statistics(counts, packed, loglik, np.array([10.0, 20.0]))
    lengths, halvings = step_lengths(family, no_pull, np.array([[0.5, 0.5], [1.0, 0.0]]))
    np.testing.assert_allclose(lengths, [[1.9, 1.9], [0.95, 19.0]])
    np.testing.assert_array_equal(halvings, 0.0)


def test_a_step_that_would_diverge_is_halved_and_counted():
    sim = make_regression_mixtures(5, 150, 0.1, n_outliers=0, n_components=2, n_features=3)
    wide = replace(sim.clients, X=sim.clients.X * [30.0, 1.0, 1.0])
    found = run(
        "fedgrem",
        wide,
        n_components=2,
        family="regression",
        shrinkage="paper",
        step="gradient",
        init="federated",
        max_rounds=50,
    )
    assert (found.result["halvings"] > 0).all()
    assert np.isfinite(found.result["components"]).all()


def test_steps_far_too_long_settle_and_do_as_well_as_ordinary_ones():
    """Where they settle differs a little: how far a site is pulled depends on its step."""
    sim = small(0.5)
    options = {"n_components": 3, "step": "gradient", "tol": 1e-9, "max_rounds": 500}
    right = run("fedgrem", sim.clients, **options)
    wild = run("fedgrem", sim.clients, step_constant=50.0, **options)
    assert right.result["halvings"].sum() == 0 < wild.result["halvings"].min()
    assert wild.result["converged"]
    found = [errors(fit.result["components"], sim.components).mean() for fit in (wild, right)]
    assert found[0] < 1.1 * found[1]


# --- shared weights ------------------------------------------------------------------------------


def sites_of_equal_weights(n_clients=8, n_rows=40, seed=0):
    rng = np.random.default_rng(seed)
    weights = np.array([0.5, 0.3, 0.2])
    means = small().centers
    labels = rng.choice(3, p=weights, size=(n_clients, n_rows))
    return Federation.from_clients(list(means[labels] + rng.normal(size=(n_clients, n_rows, 4))))


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_weights_that_are_alike_are_found_better_together(fraction):
    clients = sites_of_equal_weights()
    options = {"n_components": 3, "init": small().centers, "fraction": fraction}
    own = run("fedgrem", clients, **options)
    shared = run("fedgrem", clients, share_weights=True, **options)
    assert "weights" in shared.traffic.bytes_up_by_field
    assert "weights" not in own.traffic.bytes_up_by_field
    truth = np.array([0.5, 0.3, 0.2])
    found = [np.abs(fit.memories["weights"] - truth).mean() for fit in (shared, own)]
    assert found[0] < 0.8 * found[1]
    np.testing.assert_allclose(shared.memories["weights"].sum(axis=1), 1.0)


def test_weights_that_differ_stay_the_sites_own():
    rng = np.random.default_rng(0)
    means = small().centers
    weights = np.eye(3)[np.arange(9) % 3] * 0.9 + 0.1 / 3
    labels = [rng.choice(3, p=w, size=300) for w in weights]
    tables = [means[label] + rng.normal(size=(300, 4)) for label in labels]
    counts = np.array([np.bincount(label, minlength=3) / 300 for label in labels])
    fit = run(
        "fedgrem", Federation.from_clients(tables), n_components=3, init=means, share_weights=True
    )
    np.testing.assert_allclose(fit.memories["weights"], counts, atol=0.03)


# --- part of the rows, part of the sites ---------------------------------------------------------


def test_mini_batches_average_out():
    """The error against all rows is far below that of one batch of 40 of 400 rows."""
    sim = small(0.3, n_rows=400, n_clients=6)
    options = {"n_components": 3, "init": sim.centers}
    whole = run("fedgrem", sim.clients, **options).result["components"]
    for step in ("em", "gradient"):
        found = run(
            "fedgrem", sim.clients, batch_size=40, max_rounds=100, tol=0.0, step=step, **options
        ).result["components"]
        one_batch = 1 / np.sqrt(40 / 3) * np.sqrt(4)
        assert errors(found, whole).mean() < 0.35 * one_batch


@pytest.mark.parametrize("average", ["plain", "pooled"])
def test_mini_batches_of_ragged_sites_leave_every_site_its_weight(average):
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(n, 2)) + shift for n, shift in ((20, 0.0), (2000, 1.0))]
    clients = Federation.from_clients(tables)
    found = run(
        "fedem", clients, n_components=1, average=average, batch_size=20, max_rounds=200, tol=0.0
    ).result["centers"]
    expected = 0.5 if average == "plain" else 2000 / 2020
    np.testing.assert_allclose(found[0], expected, atol=0.35)


@pytest.mark.parametrize("name", ["fedgrem", "fedem"])
def test_several_steps_between_rounds_end_where_one_does(name):
    sim = small(0.3)
    options = {"n_components": 3, "init": sim.centers, "tol": 1e-10, "max_rounds": 2000}
    one, three = (
        run(name, sim.clients, local_steps=steps, **options).result["components"]
        for steps in (1, 3)
    )
    assert errors(one, three).max() < 0.1


def test_a_fraction_of_the_sites_does_not_stop_before_the_others_were_asked():
    """All sites but one stand at their own optimum: whoever is asked first hardly moves."""
    sim = small(2.0, n_clients=10)
    options = {"n_components": 3, "shrinkage": "paper", "penalty_start": 0.0}
    options |= {"penalty_constant": 0.0, "step": "em", "tol": 1e-6, "max_rounds": 400}
    ended = run("fedgrem", sim.clients, init=sim.components, **options).result["components"]
    start = ended.copy()
    start[7] += 1.5
    found = run("fedgrem", sim.clients, init=start, fraction=0.1, **options)
    assert found.result["converged"]
    assert errors(found.result["components"], ended).max() < 1e-3


def test_fractions_end_where_everybody_does():
    sim = small(0.3, n_clients=6)
    options = {"n_components": 3, "init": sim.centers, "tol": 1e-9, "max_rounds": 1000}
    whole = run("fedgrem", sim.clients, **options).result["components"]
    half = run("fedgrem", sim.clients, fraction=0.5, **options).result["components"]
    assert errors(half, whole).max() < 1e-5


def test_clipped_scatter_is_that_of_weighted_rows():
    """Against the definition, row by row: weights posterior * min(1, clip / length)^2."""
    clients = small(0.5, n_clients=2, n_rows=30).clients
    rng = np.random.default_rng(0)
    means = small().centers + rng.normal(size=(2, 3, 4))
    root = rng.normal(size=(4, 4))
    covariance = np.tile(root @ root.T + np.eye(4), (2, 1, 1))
    parameters = gaussian.Parameters(np.full((2, 3), 1 / 3), means, covariance)
    rows = gaussian.prepare(clients)
    found = gaussian.expect(rows, parameters, clip=1.5)
    about = means + 0.3
    scatter = gaussian.within_scatter(rows, found, about, "tied")
    joint = gaussian.log_joint(rows, parameters)
    share = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    z = rng.normal(size=(400_000, 4))
    expected_share = np.minimum((z**2).sum(axis=1), 1.5**2).mean() / 4
    for k in range(2):
        X, own = clients.client(k)[0], share[clients.owner == k]
        total = np.zeros((4, 4))
        for r in range(3):
            off = X - means[k, r]
            length = np.sqrt((off @ np.linalg.inv(covariance[k]) * off).sum(axis=1))
            weight = own[:, r] * np.minimum(1.0, 1.5 / length) ** 2
            total += ((X - about[k, r]) * weight[:, None]).T @ (X - about[k, r])
        np.testing.assert_allclose(scatter[k], total / expected_share, rtol=5e-3)
