"""What FGPR promises, at sizes that take seconds; full size by `make accept`."""

from dataclasses import replace

import numpy as np
import pytest

from fedkin.algorithms.fgpr import FGPR as ALGORITHM
from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.algorithms.fgpr_sites import needed_gain
from fedkin.datasets import (
    make_gaussian_sites,
    make_multi_fidelity,
    turbofan_noise_floor,
    turbofan_split,
    two_kinds_of_priors,
)
from fedkin.datasets.fgpr import prior_spec
from fedkin.engines import InProcess
from fedkin.estimators import FGPR, CoKriging, FedAvgPolynomial, LocalGP, PooledGP
from fedkin.federation import Federation
from fedkin.models.gaussian_process import evaluate
from fedkin.models.gp_rows import prepare
from fedkin.models.kernels import form_of

PLAIN = {"normalize_y": False, "mean": "zero", "personalise": "posterior"}


def run(federation, algorithm=ALGORITHM, **settings):
    base = {"kernel": prior_spec(2.0, 2.0, 2.0), **PLAIN}
    return InProcess().run(algorithm, FgprSettings(**{**base, **settings}), federation, 1)


def per_row(federation, theta):
    found = evaluate(prepare(federation, False), form_of(prior_spec(1.0, 1.0, 1.0), 1), theta)
    n = len(federation.X)
    return found.value.sum() / n, np.abs(found.gradient.sum(axis=0)).max() / n


@pytest.fixture(scope="module")
def sites():
    return make_gaussian_sites(60, 8, random_state=3).federation


@pytest.fixture(scope="module")
def exact(sites):
    return run(sites)


def test_the_exact_optimum_takes_about_fifteen_rounds(sites, exact):
    assert len(exact.result["history_value"]) <= 25 and exact.result["converged"]
    assert per_row(sites, exact.result["theta"][0])[1] <= 1e-5


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({}, 1e-3),
        ({"schedule": "inverse-sqrt"}, 2e-3),
        ({"schedule": "inverse", "learning_rate": 10.0}, 1e-3),
        ({"schedule": "constant", "learning_rate": 0.5}, 5e-3),
        ({"fraction": 0.2}, 5e-3),
    ],
    ids=str,
)
def test_local_steps_come_near_the_optimum(sites, exact, settings, limit):
    found = run(sites, optimizer="sgd", max_rounds=60, **settings)
    best = per_row(sites, exact.result["theta"][0])[0]
    assert 0 <= per_row(sites, found.result["theta"][0])[0] - best <= limit


def test_restarted_adam_stays_away_from_the_optimum(sites, exact):
    best = per_row(sites, exact.result["theta"][0])[0]
    local = run(sites, optimizer="sgd", max_rounds=60).result["theta"][0]
    adam = run(sites, optimizer="adam-restarted", max_rounds=60, learning_rate=0.1)
    worse = per_row(sites, adam.result["theta"][0])[0] - best
    assert worse > 5 * (per_row(sites, local)[0] - best)


def test_mini_batches_do_not_depend_on_blocks():
    data = make_gaussian_sites(6, 40, random_state=0).federation
    settings = FgprSettings(
        kernel=prior_spec(2.0, 2.0, 2.0), optimizer="sgd", max_rounds=3, batch_size=16, **PLAIN
    )
    one, other = (
        InProcess(block_size=b).run(ALGORITHM, settings, data, 5).result["theta"] for b in (None, 2)
    )
    np.testing.assert_allclose(one, other, rtol=1e-12)


def poisoned(step):
    def function(clients, *rest, **fields):
        reply, memory = step.function(clients, *rest, **fields)
        name = "gradient" if "gradient" in reply else "theta"
        if "site-7" in clients.names and name in reply:
            reply = {**reply, name: reply[name].copy()}
            reply[name][clients.names.index("site-7")] = 1e6
        return reply, memory

    return replace(step, function=function)


def test_a_poisoned_site_does_not_move_the_prior(sites, exact):
    steps = {name: poisoned(step) for name, step in ALGORITHM.steps.items()}
    spoilt = replace(ALGORITHM, steps=steps)
    clean = exact.result["theta"][0]
    held = run(sites, spoilt, robust="trimmed").result["theta"][0]
    assert np.abs(np.expm1(held - clean)).max() <= 0.05
    local = run(sites, spoilt, robust="trimmed", optimizer="sgd", max_rounds=60).result["theta"][0]
    assert np.abs(local - clean).max() < 0.3
    free = run(sites, spoilt).result["theta"][0]
    assert np.abs(free - clean).max() > 1.0


def boastful(step, rows):
    def function(clients, *rest, **fields):
        reply, memory = step.function(clients, *rest, **fields)
        if "site-7" in clients.names:
            claimed = reply["rows"].copy()
            claimed[clients.names.index("site-7")] = rows
            reply = {**reply, "rows": claimed}
        return reply, memory

    return replace(step, function=function)


@pytest.mark.parametrize("optimizer", ["exact", "sgd"])
def test_a_claim_of_many_rows_does_not_move_a_robust_prior(sites, optimizer):
    steps = {name: boastful(step, 1e9) for name, step in ALGORITHM.steps.items()}
    settings = {"robust": "trimmed", "optimizer": optimizer, "max_rounds": 60}
    clean = run(sites, **settings).result["theta"][0]
    held = run(sites, replace(ALGORITHM, steps=steps), **settings).result["theta"][0]
    assert np.abs(held - clean).max() <= 0.15


def test_a_claim_of_more_rows_than_there_can_be_is_refused(sites):
    steps = {name: boastful(step, 1e13) for name, step in ALGORITHM.steps.items()}
    found = run(sites, replace(ALGORITHM, steps=steps))
    assert {(r.site, r.field) for r in found.refusals} == {("site-7", "rows")}


@pytest.mark.parametrize("normalize_y", [True, "mean", False])
@pytest.mark.parametrize("robust", ["trimmed", "median"])
def test_a_site_in_other_units_moves_a_robust_population_boundedly(normalize_y, robust):
    data = make_gaussian_sites(30, 8).federation
    spoilt = replace(data, y=np.where(data.owner == 0, 1e6, 1.0) * data.y)
    model = FGPR(common=False, robust=robust, normalize_y=normalize_y, personalise="posterior")
    found = []
    for one in (data, spoilt):
        mean, std = model.fit(one).predict([[0.5]], "new", return_std=True)
        found.append(np.concatenate([model.theta_[0], mean, np.log(std)]))
    assert np.abs(found[1] - found[0]).max() < 0.3


def test_without_bad_sites_trimming_changes_nothing(sites, exact):
    found = run(sites, robust="trimmed", tol=1e-7).result["theta"]
    np.testing.assert_allclose(found, run(sites, tol=1e-7).result["theta"], atol=1e-4)


def test_two_kinds_of_sites_are_told_apart():
    known = make_gaussian_sites(30, 20, two_kinds_of_priors(), 30, random_state=1)
    new = make_gaussian_sites(20, 20, two_kinds_of_priors(), 30, random_state=2)
    losses = []
    for n_priors in (1, None):
        model = FGPR(common=False, n_priors=n_priors, normalize_y=False, personalise="posterior")
        model.fit(known.federation)
        at_known = -model.evaluate(known.held_out)["log density"].mean()
        model.adapt(new.federation)
        losses.append((at_known, -model.evaluate(new.held_out)["log density"].mean()))
    assert model.n_priors_ == 2
    agree = np.mean(model.labels_ == known.labels)
    assert max(agree, 1 - agree) >= 0.9
    assert losses[0][0] - losses[1][0] >= 0.1 and losses[0][1] - losses[1][1] >= 0.1


def test_sites_of_one_kind_have_one_prior():
    data = make_gaussian_sites(30, 20, random_state=4).federation
    assert FGPR(common=False, n_priors=None, normalize_y=False).fit(data).n_priors_ == 1


def test_choosing_repairs_negative_transfer():
    task = make_multi_fidelity("branin", 11)
    where = np.full(len(task.X_test), task.site)
    errors = {
        how: task.rmse(
            FGPR(common=False, personalise=how).fit(task.federation).predict(task.X_test, where)
        )
        for how in ("posterior", "choose", "map")
    }
    assert errors["choose"] <= 0.03 < errors["posterior"]
    assert errors["map"] < errors["posterior"]


def test_few_rows_need_more_than_bic():
    assert needed_gain(3, 4.0) == np.inf
    assert needed_gain(3, 8.0) > 1.5 * np.log(8.0) + 2.0
    assert abs(needed_gain(3, 1e6) - 1.5 * np.log(1e6)) < 1e-4


def test_cokriging_bounds_what_a_federation_could_reach():
    task = make_multi_fidelity("park", 11)
    where = np.full(len(task.X_test), task.site)
    joined = CoKriging().fit(task.federation)
    shared = FGPR(common=False, personalise="posterior").fit(task.federation)
    assert task.rmse(joined.predict(task.X_test, where)) < task.rmse(
        shared.predict(task.X_test, where)
    )


def test_turbofan_engines_reach_the_noise_floor_and_one_curve_does_not():
    data = turbofan_split(7, n_train=15, random_state=11)
    few = data.given.take(np.arange(8)), data.asked.take(np.arange(8))
    floor = turbofan_noise_floor(7)
    shared = (
        FGPR(common=False, personalise="posterior").fit(data.train).adapt(few[0]).evaluate(few[1])
    )
    one_curve = FedAvgPolynomial(10, max_rounds=50).fit(data.train).adapt(few[0]).evaluate(few[1])
    assert shared["rmse"].mean() < 1.15 * floor.mean() < one_curve["rmse"].mean()
    assert 0.9 <= shared["coverage"].mean() <= 0.98


def test_the_model_free_noise_floors_of_the_sensors():
    assert abs(10 * turbofan_noise_floor(2).mean() - 6.58) < 0.01
    assert abs(10 * turbofan_noise_floor(7, difference=2).mean() - 5.33) < 0.01


def test_one_site_alone_equals_its_pool():
    X, y = make_gaussian_sites(1, 30, random_state=5).federation.client(0)
    data = Federation.from_clients({"only": (X, y)})
    grid = np.linspace(0, 1, 9)[:, None]
    where = np.full(9, "only")
    shared = FGPR(common=False, personalise="posterior", tol=1e-8).fit(data)
    alone, pooled = LocalGP(hyperprior=False).fit(data), PooledGP(tol=1e-8).fit(data)
    for other in (alone, pooled):
        np.testing.assert_allclose(
            shared.predict(grid, where), other.predict(grid, where), atol=1e-3
        )


def test_a_shared_scale_covers_better_at_sites_of_few_rows():
    sites = make_gaussian_sites(60, 6, prior_spec(0.3, 2.0, 0.3), 40, random_state=8)
    scores = {n: FGPR(common=False, normalize_y=n).fit(sites.federation) for n in (True, "mean")}
    density = {n: m.evaluate(sites.held_out)["log density"].mean() for n, m in scores.items()}
    assert density["mean"] > density[True]
