"""Benefit of curves and mixtures where sites hold their own rows: the numbers of one process."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.smoke.test_benefit_at_sites import Sites

from fedkin import FGPR, TGMM, FedEM, Federation, FedGMM, FedGrEM, InProcess, LocalEM
from fedkin.estimators.left_out import LEFT_OUT, MARKS, SERVED, Plan, settings_for
from fedkin.inference import benefit
from fedkin.protocol import Reason

FOLDS = 3
SCORES = {"totals", "products"}


@dataclass(frozen=True)
class StrictSites(Sites):
    """Sites that withhold by the default rules."""

    runs: list = field(default_factory=list)

    def run(self, algorithm, settings, federation, seed=0):
        assert federation is None
        engine = InProcess(disclosure="enforce")
        self.runs.append(engine.run(algorithm, settings, self.data, seed))
        return self.runs[-1]


def groups(m=4, n=36, target=False, seed=0):
    """Two groups of rows at every site, a little apart from the other sites'."""
    rng = np.random.default_rng(seed)
    site, side = np.repeat(np.arange(m), n), np.arange(m * n) % 2
    X = rng.normal(size=(m * n, 2)) + 3.0 * side[:, None] + 0.3 * rng.normal(size=(m, 2))[site]
    y = np.where(side, 1.0, -1.0) * X[:, 0] + 0.3 * rng.normal(size=m * n) if target else None
    return Federation.from_groups(X, site, y)


def curves(m=4, n=15, seed=0, few=()):
    """Sites around one curve; those in `few` have 12 rows."""
    rng = np.random.default_rng(seed)
    clients = {}
    for k in range(m):
        X = rng.uniform(0, 4, size=(12 if k in few else n, 1))
        curve = np.sin(2 * X[:, 0]) + 0.5 * rng.normal()
        clients[f"site-{k}"] = (X, curve + 0.2 * rng.normal(size=len(X)))
    return Federation.from_clients(clients)


MODELS = [
    (FGPR(common=False), curves()),
    (FGPR(common=False, personalise="posterior", n_priors=2, mean="linear"), curves()),
    (FGPR(optimizer="sgd", max_rounds=4, local_steps=2, batch_size=4), curves()),
    (FGPR(common=True, n_points=6, max_rounds=4), curves(m=2, n=9)),
    (FedGrEM(2), groups()),
    (FedGrEM(2, covariance_type="tied"), groups()),
    (FedGrEM(2, covariance_type="full"), groups()),
    (FedGrEM(2, family="regression", fit_intercept=True, tol=1e-3), groups(target=True)),
    (FedEM(2), groups()),
    (FedGMM(2, n_restarts=2, max_rounds=10), groups(target=True)),
    (TGMM(2), groups()),
]


@pytest.mark.parametrize("model, data", MODELS, ids=lambda one: str(one).replace("\n", ""))
def test_the_numbers_are_those_of_fits_without_the_folds(model, data):
    """The oracle: one process that leaves out the same rows and scores by the estimator."""
    model = model.set_params(random_state=3)
    here = benefit(model.set_params(engine=None), data, folds=FOLDS, new_sites=False)
    there = benefit(model.set_params(engine=Sites(data)), folds=FOLDS)
    assert there.held_out.ways == ("alone", "joining")
    for metric, scores in there.held_out.metrics.items():
        by_hand = here.held_out.metrics[metric]
        np.testing.assert_allclose(scores.totals, by_hand.totals[:2], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(scores.products, by_hand.products[:2, :2], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(there.held_out.rows, here.held_out.rows)
    np.testing.assert_allclose(there.held_out.trained, here.held_out.trained)
    np.testing.assert_allclose(there.interval, here.interval, rtol=1e-7, atol=1e-9)
    assert list(there.verdicts) == list(here.verdicts)
    assert "Joining" in str(there)


def test_nothing_leaves_but_what_the_fits_send_and_sums_of_scores():
    sites = StrictSites(curves(m=3, n=60))
    found = benefit(FGPR(common=False, engine=sites, random_state=0), folds=FOLDS)
    (run,) = sites.runs
    assert set(found.verdicts) <= {"helps", "no difference", "hurts", "cannot tell"}
    of_fits = {name for step in FGPR._algorithm.steps.values() for name in step.reply}
    assert set(run.traffic.bytes_up_by_field) - of_fits == SCORES
    assert not run.refusals


def test_a_site_with_few_rows_in_a_fold_has_no_part_in_anything():
    """60 rows in five folds are twelve each; twelve rows are withheld in every round."""
    data = curves(m=5, n=60, few=(2,))
    others = data.take([0, 1, 3, 4])
    model = FGPR(common=False, random_state=0)
    here = benefit(model, others, folds=5, new_sites=False)
    sites = StrictSites(data)
    there = benefit(model.set_params(engine=sites), folds=5)
    (run,) = sites.runs
    assert {(r.site, r.reason) for r in run.refusals} == {("site-2", Reason.FEW_ROWS)}
    assert len(run.refusals) == run.traffic.rounds, "nothing of it leaves in any round"
    assert there.verdicts[2] == "cannot tell" and np.isnan(there.gain[2])
    for metric in ("log", "rmse"):
        found = there.held_out.means(metric)[:, [0, 1, 3, 4]]
        np.testing.assert_allclose(found, here.held_out.means(metric)[:2], rtol=1e-9)


def test_a_common_curve_that_sites_do_not_trust_the_server_with_is_left_out():
    """What is withheld for its step leaves the rest of the fit as it is."""
    data = curves(m=3, n=40)
    sites = StrictSites(data)
    there = benefit(FGPR(engine=sites, random_state=0), folds=2)
    reasons = {r.reason for r in sites.runs[0].refusals}
    assert reasons == {Reason.TRUST} and np.isfinite(there.gain).all()
    without = FGPR(common=False, hyperprior=True, random_state=0)
    here = benefit(without, data, folds=2, new_sites=False)
    np.testing.assert_allclose(
        there.held_out.means("log"), here.held_out.means("log")[:2], rtol=1e-6
    )


def test_where_no_fold_is_large_enough_the_remedy_is_said():
    with pytest.raises(ValueError, match="fewer folds"):
        benefit(FGPR(common=False, engine=Sites(curves(m=2, n=8)), random_state=0), folds=5)


def test_what_cannot_be_asked_is_said():
    with pytest.raises(ValueError, match="fraction=1"):
        benefit(FedGrEM(2, fraction=0.5, engine=Sites(groups(m=2))))
    with pytest.raises(ValueError, match="metric must be one of 'log'"):
        model = FedEM(2, engine=Sites(groups(m=2)), random_state=0)
        benefit(model, folds=2, metric="rmse")
    with pytest.raises(ValueError, match="at real sites"):
        benefit(LocalEM(2, engine=Sites(groups(m=2))))


def test_a_site_that_was_not_heard_in_a_fit_is_not_scored_in_its_fold():
    data = curves(m=4, n=12)
    settings = settings_for(FGPR(common=False, random_state=0), 2, 0)
    whole = InProcess().run(LEFT_OUT, settings, data, 0)
    # The last round of the second fold's fit of those that join is the last before the scores.
    last = whole.traffic.rounds - 1
    gone = InProcess(absent=lambda number, names: ["site-1"] if number == last else [])
    found = gone.run(LEFT_OUT, settings, data, 0).result
    np.testing.assert_array_equal(found.rows[1], [6, 0])
    np.testing.assert_array_equal(np.delete(found.rows, 1, axis=0), 6)


# ------------------------------------------------------------------ what sites are told


# Besides what every site gets at the end of a run anyway: what sites have in common.
IN_COMMON = {"converged", "between_variance", "between", "degrees", "concentration", "known"}


@pytest.mark.parametrize("model, data", MODELS, ids=lambda one: str(one).replace("\n", ""))
def test_a_site_is_told_nothing_of_another_site(model, data):
    """Whatever a site gets of a result is shared, its own row, or empty."""
    plan = Plan(settings_for(model.set_params(random_state=3, engine=None), 2, 0))
    for way in plan.ways:
        result = InProcess().run(way.algorithm, way.settings, data, 3).result
        for k in range(len(data)):
            seen = result.seen_by(k)
            for name in set(seen) - set(seen.for_all) - IN_COMMON:
                own = result["site_loglik"] if name == "loglik" else result[name]
                own = own[[k, -1]] if name == "site_common" else own[k : k + 1]
                if seen[name].size:
                    np.testing.assert_array_equal(np.atleast_1d(seen[name]), own, name)


def test_a_start_for_every_site_is_not_told_to_sites():
    start = np.random.default_rng(0).normal(size=(4, 2, 2))
    settings = settings_for(FedGrEM(2, init=start, random_state=0), 2, 0)
    assert "starts" not in settings.for_sites().to_mapping()
    assert "init" not in settings.for_sites().ways
    data = groups()
    plan = Plan(settings, settings.starts)
    np.testing.assert_array_equal(plan.ways[1].settings.given_start, start)
    assert InProcess().run(LEFT_OUT, settings, data, 0).result.rows.sum() == len(data.X)


def test_every_estimator_served_has_all_its_algorithms_here():
    for name in SERVED:
        family = type(next(model for model, _ in MODELS if type(model).__name__ == name))
        plan = Plan(settings_for(family(random_state=0), 2, 0))
        for way in plan.ways:
            for step in way.algorithm.steps:
                assert f"{way.algorithm.name}.{step}" in LEFT_OUT.steps


def test_a_server_cannot_name_a_fold_or_a_way_that_is_not_there():
    data = curves(m=1)
    settings = settings_for(FGPR(common=False, random_state=0), 2, 0).for_sites()
    cache = LEFT_OUT.prepare(data, settings)
    for way, fold in ((0, 2), (0, -1), (2, 0), (-1, 0)):
        common = dict(zip(MARKS, map(np.array, (way, fold, 1))))
        with pytest.raises(ValueError, match="there is no way"):
            step = LEFT_OUT.step("fgpr.describe")
            step.function(data, cache, settings, common, {}, None, None, fields=())


def test_fits_without_a_fold_have_the_seed_of_a_fit():
    """Random numbers of sites and server are those of the estimator's own fit."""
    data = groups()
    model = FedGrEM(2, random_state=7)
    seeds = []

    @dataclass(frozen=True)
    class Watched:
        def run(self, algorithm, settings, federation, seed=0):
            seeds.append(int(seed))
            return InProcess().run(algorithm, settings, federation, seed)

    model.set_params(engine=Watched()).fit(data)
    assert seeds == [Plan(settings_for(model, 2, 0)).ways[1].seed]
