"""A site's policy: what is not allowed is refused by the site, on record, and nothing leaves."""

from __future__ import annotations

import os

import numpy as np
import pytest
from typer.testing import CliRunner

from fedkin import InProcess, Standardizer
from fedkin.cli import app
from fedkin.cli.records import spans
from fedkin.engines.opening import approval, open_site
from fedkin.privacy import Ledger, SitePolicy
from fedkin.privacy.policy import PolicyError
from fedkin.protocol import Ask, Fault, Reason
from tests.conformance.cases import ragged_federation
from tests.deployment.test_losses import facts, job, reason_of

REFUSED = Fault(Reason.POLICY)


def with_policy(tmp_path, text):
    own = facts(tmp_path)
    (tmp_path / "policy.toml").write_text(text)
    return {**own, "policy": str(tmp_path / "policy.toml")}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[allow]\nmethod = ['fmlr']", "no key of .allow. 'method'"),
        ("[alow]\n", "no section 'alow'"),
        ("allow = 3", "must be a section"),
        ("[limits]\nrounds = -1", "rounds must be a whole number"),
        ("[mode]\ndry_run = 'yes'", "dry_run must be true or false"),
        ("[allow]\nmethods = 'fmlr'", "methods must be a list of names"),
        ("[disclosure]\nnfilter_tabs = 3", "no key of .disclosure. 'nfilter_tabs'"),
        ("[allow", "is not TOML"),
        (
            "[allow]\nmethods = ['MixedModel']",
            "no method 'MixedModel'; there are fmlr, mixed_model",
        ),
        ("[allow]\ntrusted = ['fgp.slopes']", "no method 'fgp.slopes'"),
    ],
)
def test_what_is_wrong_with_a_policy_is_said(tmp_path, text, told):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=told):
        SitePolicy.read(path)
    # A site whose policy cannot be understood takes part in nothing.
    own = with_policy(tmp_path, text)
    assert reason_of(lambda: open_site("a", own, job())) == REFUSED


def test_methods_and_coordinators_that_are_not_listed_are_refused(tmp_path):
    own = with_policy(tmp_path, "[allow]\nmethods = ['fmlr']")
    assert reason_of(lambda: open_site("a", own, job())) == REFUSED
    own = with_policy(tmp_path, "[allow]\ncoordinators = ['ann@x.org']")
    assert reason_of(lambda: open_site("a", own, job(), "bob@x.org")) == REFUSED
    assert reason_of(lambda: open_site("a", own, job())) == REFUSED
    open_site("a", own, job(), "ann@x.org")


def test_steps_fields_and_rounds_have_limits(tmp_path):
    own = with_policy(tmp_path, "[allow]\nsteps = ['consensus_lasso.agree']")
    assert open_site("a", own, job()).answer(1, Ask("describe"), 0).fault == REFUSED
    own = with_policy(tmp_path, "[allow]\nfields = ['rows']\nsteps = ['consensus_lasso.*']")
    assert open_site("a", own, job()).answer(1, Ask("describe"), 0).fault == REFUSED
    own = with_policy(tmp_path, "[limits]\nrounds = 2")
    half = open_site("a", own, job())
    assert half.answer(2, Ask("describe"), 0).fault is None
    assert half.answer(3, Ask("describe"), 2).fault == REFUSED
    withheld = [line["withheld"] for line in Ledger(tmp_path / "state" / "ledger").lines()]
    assert withheld == ["POLICY", "POLICY", None, "POLICY"]


def test_a_dry_run_shows_what_would_leave_and_sends_nothing(tmp_path):
    own = with_policy(tmp_path, "[mode]\ndry_run = true")
    half = open_site("a", own, job())
    leaves = half.answer(1, Ask("describe"), 0)
    assert leaves.fault == REFUSED and not leaves.arrays
    assert half.ledger.account() == {}
    would = Ledger(tmp_path / "state" / "ledger" / "dry-run")
    (line,) = would.lines()
    assert would.values(line)["rows"].tolist() == [20.0]


def test_a_dry_run_keeps_to_the_rules_and_is_remembered_by_nobody(tmp_path):
    """What would be withheld would not leave; and a run after it is the first."""
    dry = "[mode]\ndry_run = true\n[disclosure]\nnfilter_subset = {}"
    own = with_policy(tmp_path, dry.format(21))
    assert open_site("a", own, job()).answer(1, Ask("describe"), 0).fault == REFUSED
    own = with_policy(tmp_path, dry.format(10))
    assert open_site("a", own, job()).answer(1, Ask("describe"), 0).fault == REFUSED
    state = tmp_path / "state"
    would = Ledger(state / "ledger" / "dry-run").lines()
    assert [line["withheld"] for line in would] == ["FEW_ROWS", None]
    assert not list((state / "released").glob("*"))
    shown = run("ledger", "show", state / "ledger" / "dry-run")
    assert "would have left" in shown and "What left" not in shown
    stories = [line["story"] for line in Ledger(state / "ledger").lines()]
    assert stories[0].startswith("dry run: would not leave: too few rows")
    assert stories[1] == "dry run: rows, features would leave"


def test_who_may_not_ask_hears_nothing_of_the_table(tmp_path):
    own = with_policy(tmp_path, "[allow]\ncoordinators = ['ann@x.org']")
    strange = job(features=["weight"])
    assert reason_of(lambda: open_site("a", own, strange, "bob@x.org")) == REFUSED
    missing = Fault(Reason.COLUMN, "weight")
    assert reason_of(lambda: open_site("a", own, strange, "ann@x.org")) == missing


def test_that_a_site_takes_no_part_and_why_is_on_its_record(tmp_path):
    own = with_policy(tmp_path, "[allow]\nmethods = ['fmlr']")
    reason_of(lambda: open_site("a", own, job()))
    own = with_policy(tmp_path, "[mode]\napprove = true")
    reason_of(lambda: open_site("a", own, job()))
    reason_of(lambda: open_site("a", facts(tmp_path), job(features=["weight"])))
    lines = Ledger(tmp_path / "state" / "ledger").lines()
    assert [line["withheld"] for line in lines] == ["POLICY", "POLICY", "COLUMN"]
    stories = [line["story"] for line in lines]
    assert "method consensus_lasso is not among allow.methods" in stories[0]
    assert "fedkin site approve" in stories[1] and "no column weight" in stories[2]
    told = run("ledger", "show", tmp_path / "state")
    assert "0 replies, 0 bytes left; 0 were withheld" in told and "no part in 3 runs" in told


def test_questions_about_the_table_count_as_runs_of_a_day(tmp_path):
    """A coordinator could ask for ever which columns and levels a table has."""
    own = with_policy(tmp_path, "[limits]\nruns_per_day = 2")
    for column in ("weight", "hiv"):
        fault = reason_of(lambda column=column: open_site("a", own, job(features=[column])))
        assert fault == Fault(Reason.COLUMN, column)
    assert reason_of(lambda: open_site("a", own, job(features=["x"]))) == REFUSED


def test_no_name_keeps_a_run_from_being_counted(tmp_path):
    own = with_policy(tmp_path, "[limits]\nruns_per_day = 1")
    assert reason_of(lambda: open_site("a", own, job(run="one.checks"))) == REFUSED


def test_an_operator_approves_the_first_run_of_a_method(tmp_path):
    own = with_policy(tmp_path, "[mode]\napprove = true")
    assert reason_of(lambda: open_site("a", own, job())) == REFUSED
    state = tmp_path / "state"
    done = CliRunner().invoke(app, ["site", "approve", str(state), "consensus_lasso"])
    assert done.exit_code == 0, done.output
    assert approval(state, "consensus_lasso").exists()
    open_site("a", own, job())
    elsewhere = CliRunner().invoke(app, ["site", "approve", str(tmp_path), "consensus_lasso"])
    assert "holds no ledger" in str(elsewhere.exception)


def test_runs_of_a_day_are_counted_and_one_that_began_goes_on(tmp_path):
    own = with_policy(tmp_path, "[limits]\nruns_per_day = 1")
    open_site("a", own, job(run="one"))
    open_site("a", own, job(run="one"))
    assert reason_of(lambda: open_site("a", own, job(run="two"))) == REFUSED


# ------------------------------------------------------------------ records to be read


def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_ledger_can_be_read_by_a_person(tmp_path):
    half = open_site("a", facts(tmp_path), job())
    half.answer(1, Ask("describe"), 0)
    half.answer(2, Ask("no such step"), 1)
    shown = run("ledger", "show", tmp_path / "state", "--values")
    assert "describe" in shown and "rows 1, features 1" in shown
    assert "r round 1 rows: 20" in shown
    assert "no formal guarantee" in shown
    assert '"withheld": null' in run("ledger", "show", tmp_path / "state", "--json")
    assert "nothing has left" in run("ledger", "show", tmp_path / "state", "--run", "other")
    assert "of 0 replies" in run("ledger", "prune", tmp_path / "state", "--days", "1")
    for path in (tmp_path / "state" / "ledger").glob("*.npz"):
        os.utime(path, (0, 0))
    assert "of 1 replies" in run("ledger", "prune", tmp_path / "state", "--days", "1")
    assert "rows 1, features 1" in run("ledger", "show", tmp_path / "state"), "the lines stay"
    assert "the numbers were removed" in run("ledger", "show", tmp_path / "state", "--values")
    with open(tmp_path / "state" / "ledger" / "ledger.jsonl", "a") as file:
        file.write('{"run": "r"}\n')
    assert "1 lines of" in run("ledger", "show", tmp_path / "state")


@pytest.mark.parametrize("words", [("ledger", "show"), ("journal", "show")])
def test_a_folder_without_records_is_not_said_to_be_empty(words, tmp_path):
    done = CliRunner().invoke(app, [*words, str(tmp_path)])
    assert isinstance(done.exception, ValueError) and "holds no" in str(done.exception)


def test_no_reply_is_left_out_where_a_ledger_is_shown(tmp_path):
    book = Ledger(tmp_path / "ledger")
    for number in range(1, 61):
        step = ("improve", "add_up")[number % 2]
        withheld = Reason.CELL if number == 31 else None
        arrays = {} if withheld else {"sums": np.ones((1, 2))}
        book.record("long", number, step, ["a"], arrays, withheld)
    book.record("late", 1, "start", ["a"], {"sums": np.ones((1, 2))})
    shown = run("ledger", "show", tmp_path)
    assert "more rows" not in shown and "late" in shown and "too few rows in a cell" in shown
    assert "60 replies, 960 bytes left; 1 were withheld" in shown
    assert spans([1, 3, 4, 5, 9]) == "1, 3-5, 9"


def test_the_journal_can_be_read_by_a_person(tmp_path):
    away = InProcess(
        journal=tmp_path, absent=lambda number, names: ["site-8"] if number == 1 else []
    )
    Standardizer(engine=away).fit(ragged_federation())
    shown = run("journal", "show", tmp_path)
    assert "algorithm: standardizer" in shown and "ended: True" in shown
    assert "site-8: did not take part" in shown
    assert np.isin(["asked", "answered", "bytes"], shown.split()).all()


def test_old_journals_are_removed_but_for_runs_that_can_be_resumed(tmp_path):
    for name in ("old", "open", "young"):
        Standardizer(engine=InProcess(journal=tmp_path / name)).fit(ragged_federation())
    os.utime(tmp_path / "old" / "result.npz", (0, 0))
    (tmp_path / "open" / "result.npz").unlink()
    told = run("journal", "prune", tmp_path, "--days", "30")
    assert "removed old" in told and "removed 1 of 2" in told
    assert {path.name for path in tmp_path.iterdir()} == {"open", "young"}
