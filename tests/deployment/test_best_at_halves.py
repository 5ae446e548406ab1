"""Best at real site halves: the numbers of one process under rules, policies, jobs, attacks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from sklearn.utils import check_random_state

import fedkin
from fedkin import Best, Federation, FedGrEM
from fedkin.engines.opening import open_site
from fedkin.engines.site import SiteHalf, site_model
from fedkin.engines.site_data import CannotTakePart
from fedkin.engines.site_report import WAYS_FITS, WAYS_NUMBER, site_report
from fedkin.estimators.best_at_sites import FOLD_SEED
from fedkin.estimators.candidates import rows_at_sites, without_last_digits
from fedkin.estimators.left_out import LEFT_OUT, Plan, settings_of
from fedkin.inference.held_out import rows_left_out
from fedkin.models.folds import row_folds
from fedkin.models.least_squares import packed_statistics
from fedkin.privacy import Ledger
from fedkin.privacy.disclosure import DEFAULT_RULES, DisclosureRules
from fedkin.privacy.policy import SitePolicy
from fedkin.protocol import Ask, Fault, Reason
from tests.deployment.test_left_out import (
    ON_ROWS,
    Halves,
    asked,
    far_rows,
    sums_of_a_group_by_fold,
)
from tests.smoke.test_left_out_at_sites import groups

SEED = int(check_random_state(0).randint(2**31 - 1))
FOLDS = 2


@dataclass
class ManyRuns(Halves):
    """Site halves for one run after the other."""

    runs: list = field(default_factory=list)

    def run(self, algorithm, settings, federation, seed=0):
        self.run_id = f"run-{len(self.runs)}"
        self.runs.append(super().run(algorithm, settings, federation, seed))
        return self.runs[-1]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return ManyRuns(groups(m=3, n=400), tmp_path_factory.mktemp("halves"), ON_ROWS)


@pytest.fixture(scope="module")
def fitted(engine):
    best = Best(target="rows", n_components=2, folds=FOLDS, random_state=0, engine=engine)
    return best.fit()


def test_mixtures_at_site_halves_under_rules_are_compared_as_in_one_process(fitted, engine):
    ways = {n: without_last_digits(w) for n, w in rows_at_sites(2, SEED).items()}
    here = rows_left_out(Best(), ways, engine.data, (FOLDS,), FOLD_SEED)
    assert not engine.runs[0].refusals and fitted.kept_back_ == {}
    for found, wanted in zip(
        (fitted.held_out_.metrics["log"].totals, fitted.held_out_.metrics["log"].products),
        (here.metrics["log"].totals, here.metrics["log"].products),
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_what_is_a_sites_own_stays_there_and_the_others_serve(fitted, engine):
    names, data = engine.data.names, engine.data
    assert [run.memories for run in engine.runs] == [None] * 6
    alone = fitted._fits[0]
    assert not alone.serves(names).any() and not alone.serves(("new",)).any()
    weights = fitted._weights_at(data)
    assert (weights[:, 0] == 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert np.isfinite(fitted.score_samples(data)).all()
    other = Best.__new__(Best)
    vars(other).update({**vars(fitted), "best_way_": "alone"})
    with pytest.raises(ValueError, match="its mixtures stayed at the sites"):
        other.predict(data)


def test_what_stayed_at_the_sites_is_not_in_the_coordinators_files(fitted, engine, tmp_path):
    again = fedkin.load(fitted.save(tmp_path / "best"))
    data = engine.data
    np.testing.assert_array_equal(again.score_samples(data), fitted.score_samples(data))
    assert not again._fits[0].serves(data.names).any()


def test_a_budget_is_one_for_all_ways_and_names_itself(tmp_path):
    few = SitePolicy(disclosure=DisclosureRules(questions=12))
    engine = ManyRuns(groups(m=2, n=160), tmp_path, few)
    best = Best([FedGrEM(2)], target="rows", folds=FOLDS, random_state=0, engine=engine)
    with pytest.raises(RuntimeError, match="more questions than it answers"):
        best.fit()


def test_the_usual_ways_keep_within_the_default_budget(engine, fitted):
    rules = DisclosureRules()
    run = engine.runs[0]
    rounds = run.traffic.rounds * 5 / FOLDS
    assert rounds < rules.questions
    assert len(run.result.spans) == 5 and run.result.spans[-1, 1] + 1 == run.traffic.rounds


# ------------------------------------------------------------------ policies


@pytest.mark.parametrize(
    "methods, opens",
    [
        (("left_out", "fedem", "fedgrem"), True),
        (("left_out", "fedgrem"), False),
        (("left_out", "fedem"), False),
        (("fedem", "fedgrem", "local_em"), False),
    ],
)
def test_a_policy_must_allow_every_method_that_is_compared(methods, opens, tmp_path):
    X = groups(m=1).X
    np.savez(tmp_path / "data.npz", X=X)
    listed = ", ".join(f'"{name}"' for name in methods)
    (tmp_path / "policy.toml").write_text(f"[allow]\nmethods = [{listed}]\n")
    ways = list(rows_at_sites(2, 0).values())
    settings = settings_of(ways, [0] * len(ways), 2, 0).for_sites().to_mapping()
    job = {"run": "r", "algorithm": "left_out", "settings": settings, "seed": 0, "features": None}
    facts = {"data": tmp_path / "data.npz", "state": tmp_path / "state"}
    given = {**facts, "policy": tmp_path / "policy.toml"}, {**job, "version": fedkin.__version__}
    if opens:
        assert open_site("a", *given).algorithm is LEFT_OUT
        return
    with pytest.raises(CannotTakePart, match="is not among allow") as refused:
        open_site("a", *given)
    assert refused.value.fault == Fault(Reason.POLICY)


def test_curves_that_are_called_alone_are_still_curves():
    """Who names a method only as a way to stay alone goes through its steps nevertheless."""
    settings = LEFT_OUT.settings(ways=json.dumps([["LocalGP", {}, 0]]))
    assert LEFT_OUT.made_of(settings) == ("fgpr",)
    settings = LEFT_OUT.settings(ways=json.dumps([["LocalEM", {}, 0], ["FedEM", {}, 1]]))
    assert LEFT_OUT.made_of(settings) == ("fedem",)


# ------------------------------------------------------------------ attacks


def half(X, folder, rules, ways, folds):
    settings = settings_of(ways, [0] * len(ways), folds, 0).for_sites()
    client = Federation.from_clients({"a": (X, np.zeros(len(X)))})
    return SiteHalf(LEFT_OUT, settings, client, 0, "run", folder, disclosure=rules), client


def test_folds_of_a_group_cannot_be_had_from_two_ways_either(tmp_path, monkeypatch):
    """The same question without one fold by one way and without the next by another."""
    X, folds = far_rows(), 5
    ways = [FedGrEM(2, covariance_type="diag"), FedGrEM(2, covariance_type="diag", tol=1e-3)]
    by_turns = lambda k, number=1: asked(k, number, way=k % 2)  # noqa: E731
    monkeypatch.setattr("tests.deployment.test_left_out.asked", by_turns)
    lifted, client = half(X, tmp_path / "lifted", None, ways, folds)
    fold, far = row_folds(client, folds, 0), X[:, 0] > 15
    read = sums_of_a_group_by_fold(lifted, folds)
    np.testing.assert_allclose(read[:, 2], np.bincount(fold[far], minlength=folds), atol=1e-6)
    kept, _ = half(X, tmp_path / "kept", DEFAULT_RULES, ways, folds)
    assert not sums_of_a_group_by_fold(kept, folds).any(), "the group is empty in every fold"


def test_a_way_that_the_settings_do_not_name_is_neither_fitted_nor_scored(tmp_path):
    ways = [FedGrEM(2)]
    site, _ = half(groups(m=1, n=60).X, tmp_path, DEFAULT_RULES, ways, 2)
    scored = {"ways": np.array([1.0]), "shared": np.zeros((1, 2, 8), dtype=np.uint8)}
    own = {"own": np.zeros((1, 1, 2, 8), dtype=np.uint8)}
    assert site.answer(1, Ask("scores", scored, own), 0).fault.reason is Reason.ERROR
    columns = Ask("fedgrem.columns", asked(0, way=1))
    assert site.answer(1, columns, 0).fault.reason is Reason.ERROR
    foreign = Ask("local_em.fit", asked(0, way=0))
    assert site.answer(1, foreign, 0).fault.reason is Reason.ERROR


def test_linear_models_that_are_scored_beside_obey_the_rules_of_folds(tmp_path):
    """Scores of any model are sums over a fold: too few rows in one, and nothing leaves."""
    rng = np.random.default_rng(0)
    table = Federation.from_clients({"a": (rng.normal(size=(60, 1)), rng.normal(size=60))})
    plan = LEFT_OUT.settings(folds=5).for_sites()
    common = {
        "ways": np.zeros(0),
        "shared": np.zeros((0, 5, 8), dtype=np.uint8),
        "pooled": np.tile(packed_statistics(table, True).T, (5, 1)),
        "spread": np.ones(5),
    }
    personal = {
        "own": np.zeros((1, 0, 5, 8), dtype=np.uint8),
        "coef": np.zeros((1, 5, 1, 2)),
        "quadratic": np.tile(np.eye(2), (1, 5, 1, 1, 1)),
    }
    ask = Ask("scores_beside_lines", common, personal)
    for n_rows, reason in ((40, Reason.FEW_ROWS), (60, None)):
        client = Federation.from_clients({"a": (table.X[:n_rows], table.y[:n_rows])})
        folder = tmp_path / str(n_rows)
        site = SiteHalf(LEFT_OUT, plan, client, 0, "run", folder, disclosure=DEFAULT_RULES)
        fault = site.answer(1, ask, 0).fault
        assert (fault and fault.reason) == reason


# ------------------------------------------------------------------ jobs


@dataclass
class NamedRunsOfHalves(Halves):
    """With what a job sets of an engine besides."""

    checks: None = None


def test_a_job_asks_which_mixture_fits_and_the_report_counts_what_left(tmp_path):
    pytest.importorskip("nvflare", reason="the nvflare extra is not installed")
    from fedkin.cli.jobs import _way_that_fits
    from fedkin.engines.nvflare.job_file import JobFile

    told = {"target": "rows", "folds": FOLDS}
    job = JobFile("auto", seed=0, settings=told)
    engine = NamedRunsOfHalves(groups(m=3, n=160), tmp_path, ON_ROWS)
    chosen = _way_that_fits(job, engine, "groups-1", tmp_path)
    assert chosen.method in ("FedEM", "FedGrEM") and chosen.benefit
    assert "left-out log score" in (tmp_path / "ways.txt").read_text()
    for name in engine.data.names:
        state = tmp_path / name
        assert set(site_model(state, "groups-1" + WAYS_FITS)) >= {"own.totals", "own.rows"}
        assert "shared.centers" in site_model(state, "groups-1" + WAYS_NUMBER)
        ledger = Ledger(state / "ledger")
        lines = sum(line["withheld"] is None for line in ledger.lines())
        report = site_report("groups-1", chosen.method.lower(), {}, ledger, state)
        assert f"What left us: {lines} replies" in report


def test_the_settings_of_a_run_are_the_same_when_a_job_is_submitted_again():
    ways = list(rows_at_sites(2, 5).values())
    first, second = (settings_of(ways, [5] * 5, 2, 0).to_mapping() for _ in range(2))
    assert first == second
    assert [way.seed for way in Plan(settings_of(ways, [5] * 5, 2, 0)).ways] == [5] * 5
