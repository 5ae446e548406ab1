"""Fits without folds at real site halves: the numbers of one process, and attacks by difference."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin import FGPR, Federation, FedGrEM
from fedkin.algorithms.fgpr import FGPR as FGPR_ALGORITHM
from fedkin.algorithms.held_out import HELD_OUT
from fedkin.algorithms.mixtures.fedgrem import FEDGREM
from fedkin.cli.jobs import did_joining_help
from fedkin.engines import Journal, Rules, drive
from fedkin.engines.link import SiteLink
from fedkin.engines.opening import open_site
from fedkin.engines.site import SiteHalf, site_memory, site_model
from fedkin.engines.site_data import CannotTakePart
from fedkin.engines.site_report import joining_in_words
from fedkin.estimators.left_out import LEFT_OUT, MARKS, settings_for
from fedkin.inference import benefit
from fedkin.models.folds import row_folds
from fedkin.privacy.disclosure import DEFAULT_RULES, DisclosureRules
from fedkin.privacy.policy import SitePolicy
from fedkin.protocol import Ask, Fault, QuorumLost, Reason, Roster
from tests.smoke.test_left_out_at_sites import StrictSites, curves, groups

DESCRIBE = "fgpr.describe"


class HalvesLink(SiteLink):
    """Site halves in this process, each with its own folder."""

    def __init__(self, engine, algorithm, settings, seed):
        super().__init__(Roster(engine.data.names, seed))
        self.halves = [
            SiteHalf(
                *(algorithm, settings.for_sites(), engine.data.take([k]), seed, engine.run_id),
                engine.folder / name,
                policy=engine.policies.get(name, engine.policy),
            )
            for k, name in enumerate(engine.data.names)
        ]

    def put(self, questions):
        batches, failed = [], {}
        for k, question in questions.items():
            left = self.halves[k].answer(question.number, question.ask, question.acknowledged)
            if left.fault is not None:
                failed[k] = left.fault
            else:
                batches.append((np.array([k]), left.arrays))
        return batches, failed

    def end(self, ends):
        faults = {k: self.halves[k].finish(e.acknowledged, e.model) for k, e in ends.items()}
        return {k: fault for k, fault in faults.items() if fault is not None}


@dataclass
class Halves:
    """The engine of site halves under a policy, with a journal."""

    data: Federation
    folder: Path
    policy: SitePolicy = field(default_factory=SitePolicy)
    policies: dict = field(default_factory=dict)
    run_id: str = "run"
    refusals: tuple = ()

    def run(self, algorithm, settings, federation, seed=0):
        assert federation is None
        link = HalvesLink(self, algorithm, settings, seed)
        journal = Journal(self.folder / f"journal-{self.run_id}")
        journal.open({"algorithm": algorithm.name, "settings": settings.to_mapping()}, {})
        try:
            run = drive(algorithm, settings, link.roster, link, Rules(), journal, progress=False)
        finally:
            journal.close()
        self.refusals = run.refusals
        return run


TRUSTING = SitePolicy(trusted=("left_out.fgpr.slopes", "left_out.fgpr.totals"))
# Groups that are nearly those of a round before leave as they were then: a fit ends a little
# elsewhere. Without that rule the others leave an honest fit as it is.
ON_ROWS = SitePolicy(disclosure=DisclosureRules(differencing=False))


@pytest.mark.parametrize(
    "model, data, policy, folds",
    [
        (FGPR(common=False), curves(m=3, n=40), SitePolicy(), 3),
        (FGPR(common=True, n_points=6, max_rounds=4), curves(m=2, n=20), TRUSTING, 2),
        (FedGrEM(2), groups(m=3, n=160), ON_ROWS, 3),
        (FedGrEM(2, covariance_type="diag", max_rounds=9), groups(m=3, n=400), ON_ROWS, 2),
    ],
    ids=["curves", "common curve", "groups", "groups with covariances"],
)
def test_site_halves_under_rules_give_the_numbers_of_one_process(
    model, data, policy, folds, tmp_path
):
    model = model.set_params(random_state=3)
    here = benefit(model.set_params(engine=None), data, folds=folds, new_sites=False)
    engine = Halves(data, tmp_path, policy)
    there = benefit(model.set_params(engine=engine), folds=folds)
    assert not engine.refusals
    for metric in there.held_out.metrics:
        found, wanted = (one.held_out.means(metric)[:2] for one in (there, here))
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
    assert list(there.verdicts) == list(here.verdicts)


def test_with_all_default_rules_sites_and_one_process_still_agree(tmp_path):
    data, model = groups(m=3, n=160), FedGrEM(2, random_state=3)
    engine = Halves(data, tmp_path)
    there = benefit(model.set_params(engine=engine), folds=3)
    strict = benefit(model.set_params(engine=StrictSites(data)), folds=3)
    free = benefit(model.set_params(engine=None), data, folds=3, new_sites=False)
    found = there.held_out.means("log")
    assert not engine.refusals
    np.testing.assert_allclose(found, strict.held_out.means("log"), rtol=1e-9)
    np.testing.assert_allclose(found, free.held_out.means("log")[:2], rtol=1e-3)


def test_every_site_reads_its_own_answer_and_nobody_elses(tmp_path):
    data = curves(m=3, n=24)
    engine = Halves(data, tmp_path, run_id="fit.held-out-scores")
    found = benefit(FGPR(common=False, engine=engine, random_state=0), folds=2)
    for k, name in enumerate(data.names):
        model = site_model(tmp_path / name, engine.run_id)
        assert set(model) == {"own.totals", "own.products", "own.rows"}
        log = found.held_out.metrics["log"].totals[:, 0, k]
        np.testing.assert_allclose(model["own.totals"].sum(axis=0)[0], log)
        told = "\n".join(joining_in_words("fit", "fgpr", tmp_path / name))
        assert f"alone {log[0] / 24:.4g}, joining {log[1] / 24:.4g}" in told
        assert site_memory(tmp_path / name, engine.run_id) is None, "fits are let go of"


@dataclass
class NamedHalves(Halves):
    """With what a job sets of an engine besides."""

    checks: None = None


def test_a_job_asks_under_the_name_that_the_sites_report_looks_for(tmp_path):
    pytest.importorskip("nvflare", reason="the nvflare extra is not installed")
    from fedkin.engines.nvflare.job_file import JobFile

    job = JobFile("FGPR", seed=0, settings={"common": False, "max_rounds": 3})
    told = did_joining_help(job, NamedHalves(curves(m=2, n=50), tmp_path), "curve-1")
    assert "Benefit of FGPR" in told and "site-1" in told and "one model" not in told
    assert "rows of ours" in joining_in_words("curve-1", "fgpr", tmp_path / "site-0")[0]
    few = did_joining_help(job, NamedHalves(curves(m=2, n=40), tmp_path / "few"), "curve-2")
    assert few.startswith("Whether joining helps the sites is not known") and "fewer folds" in few


def test_a_step_that_needs_trust_needs_it_here_by_its_name_here(tmp_path):
    """A site that trusts the server with the fit has not yet trusted it with fits without folds."""
    data = curves(m=2, n=24)
    of_the_fit = SitePolicy(trusted=("fgpr.slopes", "fgpr.totals"))
    engine = Halves(data, tmp_path, of_the_fit)
    with pytest.raises(QuorumLost, match="could single rows out"):
        benefit(FGPR(common=True, n_points=6, max_rounds=4, engine=engine, random_state=0), folds=2)


def test_policies_name_the_method_and_its_steps(tmp_path):
    data = curves(m=3, n=24)
    only_fits = SitePolicy(steps=("left_out.fgpr.describe", "left_out.fgpr.settle"))
    engine = Halves(data, tmp_path, policies={"site-1": only_fits})
    found = benefit(FGPR(common=False, engine=engine, random_state=0), folds=2)
    assert {(r.site, r.reason) for r in engine.refusals} == {("site-1", Reason.POLICY)}
    assert np.isnan(found.gain[1]) and np.isfinite(np.delete(found.gain, 1)).all()


@pytest.mark.parametrize(
    "methods, opens",
    [
        (("left_out", "fgpr"), True),
        (("left_out",), False),
        (("fgpr",), False),
        (("left_out", "fedgrem"), False),
    ],
)
def test_a_policy_must_allow_the_method_too_whose_rounds_are_asked(methods, opens, tmp_path):
    X, y = curves(m=1, n=24).client(0)
    np.savez(tmp_path / "data.npz", X=X, y=y)
    listed = ", ".join(f'"{name}"' for name in methods)
    (tmp_path / "policy.toml").write_text(f"[allow]\nmethods = [{listed}]\n")
    facts = {"data": tmp_path / "data.npz", "state": tmp_path / "state"}
    settings = settings_for(FGPR(common=False, random_state=0), 2, 0).for_sites().to_mapping()
    job = {"run": "r", "algorithm": "left_out", "settings": settings, "seed": 0, "features": None}
    given = {**facts, "policy": tmp_path / "policy.toml"}, {**job, "version": fedkin.__version__}
    if opens:
        assert open_site("a", *given).algorithm is LEFT_OUT
        return
    with pytest.raises(CannotTakePart, match="is not among allow") as refused:
        open_site("a", *given)
    assert refused.value.fault == Fault(Reason.POLICY)


def test_a_budget_of_questions_holds_for_all_folds_together(tmp_path):
    few = SitePolicy(disclosure=DisclosureRules(questions=9))
    engine = Halves(curves(m=2, n=24), tmp_path, few)
    with pytest.raises(QuorumLost, match="more questions than it answers"):
        benefit(FGPR(common=False, engine=engine, random_state=0), folds=2)


# ------------------------------------------------------------------ attacks by difference


def asked(k, number=1, way=1):
    return dict(zip(MARKS, map(np.array, (way, k, number))))


def site_of(X, y, folder, rules, model, folds, fold_seed=0, run="run"):
    settings = settings_for(model, folds, fold_seed).for_sites()
    client = Federation.from_clients({"a": (X, y)})
    return SiteHalf(LEFT_OUT, settings, client, 0, run, folder, disclosure=rules), client


def sums_of_targets_by_fold(site, n, folds):
    """What a curious server makes of means of all rows but a fold: sums of every fold."""
    sums = []
    for k in range(folds):
        answer = site.answer(k + 1, Ask(DESCRIBE, asked(k), fields=()), 0)
        if answer.fault is not None:
            return answer.fault
        sums.append(float(answer.arrays["rows"][0] * answer.arrays["moments"][0, 0]))
    total = sum(sums) / (folds - 1)
    return total - np.array(sums)


def test_replies_without_each_fold_give_what_each_fold_holds(tmp_path):
    """So every fold must have the rows that the rules want of a table."""
    n, folds = 40, 5
    X, y = curves(m=1, n=n).client(0)
    model = FGPR(common=False, random_state=0)
    lifted, client = site_of(X, y, tmp_path / "lifted", None, model, folds)
    by_fold = np.bincount(row_folds(client, folds, 0), y)
    np.testing.assert_allclose(sums_of_targets_by_fold(lifted, n, folds), by_fold, atol=1e-9)
    kept, _ = site_of(X, y, tmp_path / "kept", DEFAULT_RULES, model, folds)
    assert sums_of_targets_by_fold(kept, n, folds) == Fault(Reason.FEW_ROWS, "rows")
    enough, _ = site_of(X, y, tmp_path / "enough", DEFAULT_RULES, model, 4)
    assert sums_of_targets_by_fold(enough, n, 4).shape == (4,), "ten rows in every fold do leave"


def test_folds_of_fewer_than_three_rows_never_leave(tmp_path):
    """Also where a site lifts its rules; its own least number of rows is about folds, too."""
    X, y = curves(m=1, n=12).client(0)
    model = FGPR(common=False, random_state=0)
    site, _ = site_of(X, y, tmp_path / "six", None, model, 6)
    assert sums_of_targets_by_fold(site, 12, 6).reason is Reason.FEW_ROWS
    settings, client = settings_for(model, 2, 0).for_sites(), Federation.from_clients([(X, y)])
    strict = SiteHalf(LEFT_OUT, settings, client, 0, "run", tmp_path / "own", least_rows=7)
    assert sums_of_targets_by_fold(strict, 12, 2).reason is Reason.FEW_ROWS


def test_a_rare_level_that_is_alone_in_a_fold_is_withheld(tmp_path):
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(size=200), np.zeros(200)])
    X[[3, 50, 97, 160], 1] = 1.0
    y = rng.normal(size=200)
    model = FGPR(common=False, random_state=0)
    site, _ = site_of(X, y, tmp_path, DEFAULT_RULES, model, 5)
    assert sums_of_targets_by_fold(site, 200, 5).reason is Reason.CELL


def test_the_same_rows_leave_cut_in_one_way_only(tmp_path):
    X, y = curves(m=1, n=60).client(0)
    model = FGPR(common=False, random_state=0)
    faults = []
    for run, (folds, seed) in enumerate([(4, 0), (4, 1), (5, 0), (4, 0)]):
        site, _ = site_of(X, y, tmp_path, DEFAULT_RULES, model, folds, seed, f"run-{run}")
        found = sums_of_targets_by_fold(site, 60, folds)
        faults.append(found.reason if isinstance(found, Fault) else None)
    assert faults == [None, Reason.CUT, Reason.CUT, None]


def test_sums_of_folds_of_linear_models_are_the_same_cut(tmp_path):
    """`held_out` and fits without folds cut rows alike: one may follow the other."""
    X, y = curves(m=1, n=60).client(0)
    model = FGPR(common=False, random_state=0)
    client = Federation.from_clients({"a": (X, y)})
    for seed, fault in ((0, None), (1, Fault(Reason.CUT))):
        chosen = HELD_OUT.settings(folds=4, fold_seed=seed).for_sites()
        first = SiteHalf(
            HELD_OUT, chosen, client, 0, f"sums-{seed}", tmp_path, disclosure=DEFAULT_RULES
        )
        assert first.answer(1, Ask("sums"), 0).fault == fault
    site, _ = site_of(X, y, tmp_path, DEFAULT_RULES, model, 4)
    assert sums_of_targets_by_fold(site, 60, 4).shape == (4,)


def test_rows_without_a_fold_that_are_nearly_those_of_an_earlier_run_are_withheld(tmp_path):
    """A table that grew by a fold: without that fold it is the earlier one, but for two rows."""
    X, y = curves(m=1, n=60).client(0)
    model = FGPR(common=False, random_state=0)
    _, client = site_of(X, y, tmp_path / "looked", None, model, 4)
    earlier = np.flatnonzero(row_folds(client, 4, 0) != 2)[2:]

    def fit(rows, folder, run="fit"):
        settings = FGPR_ALGORITHM.settings(common=False).for_sites()
        part = Federation.from_clients({"a": (X[rows], y[rows])})
        half = SiteHalf(FGPR_ALGORITHM, settings, part, 0, run, folder, disclosure=DEFAULT_RULES)
        return half.answer(1, Ask("describe", fields=()), 0).fault

    assert fit(earlier, tmp_path) is None
    site, _ = site_of(X, y, tmp_path, DEFAULT_RULES, model, 4)
    assert sums_of_targets_by_fold(site, 60, 4) == Fault(Reason.DIFFERENCE)
    # And the other way round: a fit that is nearly what left without a fold.
    first, _ = site_of(X, y, tmp_path / "first", DEFAULT_RULES, model, 4)
    assert sums_of_targets_by_fold(first, 60, 4).shape == (4,)
    assert fit(earlier, tmp_path / "first") == Fault(Reason.DIFFERENCE)
    assert fit(np.arange(60), tmp_path / "first", "whole") is None, "all rows differ by a fold"


def far_rows(n=120, n_far=14, seed=0):
    """A cloud, and fourteen rows far from it."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    X[rng.choice(n, n_far, replace=False)] += 30.0
    return X


TWO_CLOUDS = {
    "weights": np.full((1, 1, 2), 0.5),
    "means": np.array([[0.0, 0.0], [30.0, 30.0]])[None, None],
    "covariances": np.tile(np.eye(2), (1, 1, 2, 1, 1)),
}


def sums_of_a_group_by_fold(site, folds):
    """The same question, of two clouds the server chose, without each of the folds."""
    found = []
    for k in range(folds):
        ask = Ask("fedgrem.own_moments", asked(k), TWO_CLOUDS)
        answer = site.answer(k + 1, ask, 0)
        assert answer.fault is None
        counts, means = (answer.arrays[name][0, 0, 1] for name in ("counts", "means"))
        found.append(np.append(counts * means, counts))
    found = np.array(found)
    return found.sum(axis=0) / (folds - 1) - found


def test_a_group_of_enough_rows_is_not_told_without_folds_that_hold_a_few_of_it(tmp_path):
    """Fourteen rows may leave as a group; the three of them in a fold may not."""
    X, folds = far_rows(), 5
    model = FedGrEM(2, covariance_type="diag", random_state=0)
    lifted, client = site_of(X, np.zeros(120), tmp_path / "lifted", None, model, folds)
    fold, far = row_folds(client, folds, 0), X[:, 0] > 15
    inside = np.array([(far & (fold == k)).sum() for k in range(folds)])
    assert inside.min() == 2, "some fold holds hardly any of the group"
    plain = FEDGREM.settings(covariance_type="diag").for_sites()
    whole = SiteHalf(
        FEDGREM, plain, client, 0, "fit", tmp_path / "fit", disclosure=DEFAULT_RULES
    ).answer(1, Ask("own_moments", personal=TWO_CLOUDS), 0)
    assert round(float(whole.arrays["counts"][0, 0, 1])) == 14, "as a group of all rows it leaves"
    read = sums_of_a_group_by_fold(lifted, folds)
    by_fold = np.array([X[far & (fold == k)].sum(axis=0) for k in range(folds)])
    np.testing.assert_allclose(read[:, :2], by_fold, atol=1e-6)
    np.testing.assert_allclose(read[:, 2], inside, atol=1e-6)
    kept, _ = site_of(X, np.zeros(120), tmp_path / "kept", DEFAULT_RULES, model, folds)
    assert not sums_of_a_group_by_fold(kept, folds).any(), "the group is empty in every fold"


def test_groups_with_enough_rows_in_every_fold_do_leave(tmp_path):
    X = far_rows(n=200, n_far=90)
    model = FedGrEM(2, covariance_type="diag", random_state=0)
    site, client = site_of(X, np.zeros(200), tmp_path, DEFAULT_RULES, model, 3)
    fold, far = row_folds(client, 3, 0), X[:, 0] > 15
    read = sums_of_a_group_by_fold(site, 3)
    np.testing.assert_allclose(read[:, 2], np.bincount(fold[far]), atol=1e-6)


def test_scores_of_folds_obey_the_rules(tmp_path):
    """Scores are sums over the rows of a fold, whatever the server says is a model."""
    X, y = curves(m=1, n=40).client(0)
    model = FGPR(common=False, random_state=0)
    site, _ = site_of(X, y, tmp_path, DEFAULT_RULES, model, 5)
    nothing = {"ways": np.arange(2.0), "shared": np.zeros((2, 5, 8), dtype=np.uint8)}
    own = {"own": np.zeros((1, 2, 5, 8), dtype=np.uint8)}
    assert site.answer(1, Ask("scores", nothing, own), 0).fault.reason is Reason.ERROR


def test_settings_that_travel_are_text(tmp_path):
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel

    settings = settings_for(FGPR(kernel=RBF(2.0) + WhiteKernel(), random_state=0), 2, 0)
    sent = json.loads(json.dumps(settings.for_sites().to_mapping()))
    again = LEFT_OUT.settings.at_site(sent)
    plan = LEFT_OUT.prepare(curves(m=1), again).plan
    assert plan.ways[1].estimator.kernel == RBF(2.0) + WhiteKernel()


@pytest.mark.parametrize(
    "ways, words",
    [
        ('[["Best", {}, 0]]', "estimator must be one of"),
        ('[["PooledEM", {}, 0]]', "estimator must be one of"),
        ('[["FGPR", {}, -1]]', "seed must be at least 0"),
        ('[["FGPR", 3, 0]]', "must hold"),
        ("[7]", "must hold"),
        ("[]", "at least one"),
        ("x", "Expecting value"),
    ],
)
def test_ways_that_cannot_be_are_refused_before_anything_is_made(ways, words):
    with pytest.raises(ValueError, match=words):
        LEFT_OUT.settings(ways=ways)
