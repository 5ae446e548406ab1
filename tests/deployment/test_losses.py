"""Sites that fail are lost, never silently absent; runs know their data; damage is told."""

from __future__ import annotations

import errno
import json
import stat
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest

from fedkin import FMLR, Federation, FedGrEM, InProcess, Rules, Standardizer
from fedkin.durable import Locked, load_arrays, save_arrays
from fedkin.engines import Journal, drive, keeper, resume
from fedkin.engines import site as site_module
from fedkin.engines.driver import SiteLost
from fedkin.engines.opening import open_site
from fedkin.engines.site import MOST_DEATHS, Deaths
from fedkin.engines.site_data import CannotTakePart, fault_of, site_data
from fedkin.privacy import Ledger
from fedkin.protocol import Ask, Fault, ProtocolError, QuorumLost, Reason, Roster
from tests.conformance.cases import ragged_federation
from tests.deployment.test_site_half import LossyLink, agree, case_of, stateful_half

# ------------------------------------------------------------------ what a site says of its data


def write_csv(path, **columns):
    rows = zip(*columns.values())
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))
    return path


def reason_of(call) -> Fault:
    with pytest.raises(CannotTakePart) as caught:
        call()
    return caught.value.fault


def test_only_the_columns_of_the_run_are_looked_at(tmp_path):
    path = write_csv(tmp_path / "a.csv", name=["Ann", "Bob"], bmi=[1, 2], age=[3, 4], y=[5, 6])
    found = site_data("a", path, "y", ["age", "bmi"])
    np.testing.assert_array_equal(found.X, [[3, 1], [4, 2]])
    np.testing.assert_array_equal(found.y, [5, 6])
    assert found.feature_names == ("age", "bmi")


def test_what_is_wrong_with_data_is_one_safe_word(tmp_path):
    path = write_csv(tmp_path / "a.csv", name=["Ann", "Bob"], bmi=[1, "nan"], y=[5, 6])
    wrong = {
        Fault(Reason.COLUMN, "weight"): lambda: site_data("a", path, "y", ["bmi", "weight"]),
        Fault(Reason.COLUMN, "z"): lambda: site_data("a", path, "z", ["bmi"]),
        Fault(Reason.COLUMN): lambda: site_data("a", path, "y", None),
        Fault(Reason.NUMBER, "name"): lambda: site_data("a", path, "y", ["name"]),
        Fault(Reason.VALUES, "bmi"): lambda: site_data("a", path, "y", ["bmi"]),
        Fault(Reason.DATA): lambda: site_data("a", tmp_path / "none.csv", "y", ["bmi"]),
    }
    for fault, call in wrong.items():
        assert reason_of(call) == fault
        assert "Ann" not in str(fault)


def test_a_full_disk_and_a_lock_have_words_of_their_own():
    assert fault_of(OSError(errno.ENOSPC, "no space")) == Fault(Reason.DISK)
    assert fault_of(Locked("x")) == Fault(Reason.LOCKED)
    assert fault_of(ZeroDivisionError("patient 17")) == Fault(Reason.ERROR)


def test_names_of_columns_are_repeated_only_if_the_run_named_them():
    told = {"reason": "COLUMN", "field": "blood pressure of Ann"}
    assert Fault.from_json(told) == Fault(Reason.COLUMN)
    assert Fault.from_json(told, ("blood pressure of Ann",)).field == "blood pressure of Ann"


# ------------------------------------------------------------------ lost, not absent


def failing(names):
    """FMLR whose client function fails at some sites."""
    algorithm = case_of("fmlr").algorithm

    def spoilt(step):
        def function(clients, *rest, **fields):
            if set(names) & set(clients.names):
                raise RuntimeError("patient 17 has value 42")
            return step.function(clients, *rest, **fields)

        return replace(step, function=function)

    steps = {name: spoilt(step) for name, step in algorithm.steps.items()}
    return replace(algorithm, steps=steps)


def test_a_site_that_fails_stops_a_run_that_waits():
    engine = InProcess(block_size=1, rules=Rules(on_loss="wait"))
    with pytest.raises(SiteLost, match=r"'site-7': the client function failed") as caught:
        engine.run(failing(["site-7"]), case_of("fmlr").chosen(), ragged_federation(), 3)
    assert not caught.value.passing and "patient" not in str(caught.value)


def test_a_site_that_fails_is_left_out_named_and_counted_nowhere(monkeypatch):
    data = ragged_federation()
    model = FMLR(2, fit_intercept=False, random_state=0)
    monkeypatch.setattr(FMLR, "_algorithm", failing(["site-7"]))
    with pytest.warns(UserWarning, match="1 of 7 sites are not part of the fit .*'site-7'"):
        model.fit(data)
    assert model.missing_sites_ == {"site-7": "the client function failed"}
    summary = model.summary()
    assert summary.title.startswith("FMLR: 6 sites (1 left out),")
    assert "site-7" not in set(summary["sites"]["site"])
    assert {len(column) for column in summary["sites"].values()} == {6}
    assert summary["components"]["sites"].sum() == 6
    assert "site 'site-7' was left out: the client function failed" in str(summary)
    assert model.labels_[list(data.names).index("site-7")] == -1


def test_a_site_that_missed_a_round_is_in_the_summary_but_stays_a_member():
    away = InProcess(absent=lambda number, names: ["site-8"] if number == 2 else [])
    model = FMLR(2, share="sums", random_state=0, engine=away).fit(ragged_federation())
    assert not model.missing_sites_
    assert "Missing: site 'site-8': did not take part (round 2)." in str(model.summary())


def test_a_lost_quorum_names_the_field_of_a_value_over_the_bound():
    data = ragged_federation()
    huge = Federation.from_clients({n: (X, y * 1e70) for n, (X, y) in clients_of(data).items()})
    with pytest.raises(QuorumLost, match="a value over the bound in 'statistics'"):
        FMLR(2).fit(huge)


def clients_of(data):
    return {name: data.client(k) for k, name in enumerate(data.names)}


# ------------------------------------------------------------------ the run is about its data


JOB = {"algorithm": "consensus_lasso", "run": "r", "seed": 3, "features": ["age", "bmi"]}


def job(**changes):
    import fedkin

    settings = case_of("consensus_lasso").chosen().for_sites().to_mapping()
    return {**JOB, "settings": settings, "version": fedkin.__version__, **changes}


def facts(tmp_path, **columns):
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=20).round(6) for name in ("age", "bmi", "y")} | columns
    path = write_csv(tmp_path / "a.csv", **columns)
    return {"data": str(path), "target": "y", "state": str(tmp_path / "state")}


def test_a_site_refuses_to_go_on_with_other_rows_columns_or_settings(tmp_path):
    own = facts(tmp_path)
    assert open_site("a", own, job()).answer(1, Ask("describe"), 0).fault is None
    open_site("a", own, job())
    swapped = job(features=["bmi", "age"])
    assert reason_of(lambda: open_site("a", own, swapped)) == Fault(Reason.CHANGED, "features")
    reseeded = job(seed=4)
    assert reason_of(lambda: open_site("a", own, reseeded)) == Fault(Reason.CHANGED, "seed")
    older = job(version="0.0.1")
    assert reason_of(lambda: open_site("a", own, older)) == Fault(Reason.VERSION)
    facts(tmp_path, age=np.arange(20.0))
    assert reason_of(lambda: open_site("a", own, job())) == Fault(Reason.CHANGED, "data")
    open_site("a", own, job(run="another"))


def test_a_fingerprint_is_salted(tmp_path):
    kept = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        open_site("a", facts(tmp_path / place), job())
        kept.append(json.loads((tmp_path / place / "state" / "r" / "run.json").read_text()))
    assert kept[0].pop("data") != kept[1].pop("data")
    assert kept[0] == kept[1]


def test_a_run_nobody_chose_a_seed_for_can_be_resumed(tmp_path):
    data, engine = ragged_federation(), InProcess(journal=tmp_path)
    first = FMLR(2, engine=engine).fit(data)
    np.testing.assert_array_equal(FMLR(2, engine=engine).fit(data).coef_, first.coef_)
    with pytest.raises(ProtocolError, match="another run"):
        FMLR(2, random_state=1, engine=engine).fit(data)


def test_a_journal_of_another_version_is_refused_and_both_are_named(tmp_path):
    Standardizer(engine=InProcess(journal=tmp_path)).fit(ragged_federation())
    told = json.loads((tmp_path / "run.json").read_text())
    told["versions"]["numpy"] = "1.0"
    (tmp_path / "run.json").write_text(json.dumps(told))
    with pytest.raises(ProtocolError, match=rf"numpy \('1.0', now '{np.__version__}'\)"):
        Standardizer(engine=InProcess(journal=tmp_path)).fit(ragged_federation())


def test_resuming_in_process_computes_only_what_is_new(tmp_path):
    case, data = case_of("consensus_lasso"), ragged_federation()
    calls = []

    def counting(number, names):
        calls.append(number)
        return []

    whole = InProcess(journal=tmp_path).run(case.algorithm, case.chosen(), data, 3)
    last = whole.traffic.rounds
    for suffix in (".npz", ".copy"):
        (tmp_path / f"round-{last:06d}{suffix}").unlink()
    # The memories are now a round ahead of the journal: everything is computed, once.
    again = resume(tmp_path, case.algorithm, data, InProcess(absent=counting))
    np.testing.assert_array_equal(again.result["coef"], whole.result["coef"])
    assert calls == [last]

    def never(*_, **__):
        raise AssertionError("a round was computed again")

    steps = {n: replace(s, function=never) for n, s in case.algorithm.steps.items()}
    idle = resume(tmp_path, replace(case.algorithm, steps=steps), data)
    np.testing.assert_array_equal(idle.result["coef"], whole.result["coef"])
    np.testing.assert_array_equal(idle.memories["dual"], whole.memories["dual"])


def test_a_program_that_changed_between_is_refused(tmp_path):
    """The journal's questions are not those of the code that resumes it."""
    case, data = case_of("consensus_lasso"), ragged_federation()
    InProcess(journal=tmp_path).run(case.algorithm, case.at_most(5), data, 3)
    (tmp_path / "result.npz").unlink()

    def changed(roster, settings):
        program, replies = case.algorithm.program(roster, settings), None
        while True:
            ask = program.send(replies)
            moved = {name: np.asarray(array) + 1e-9 for name, array in ask.common.items()}
            replies = yield replace(ask, common=moved)

    other = replace(case.algorithm, program=changed)
    with pytest.raises(ProtocolError, match="was asked by another program"):
        InProcess(journal=tmp_path).run(other, case.at_most(5), data, 3)


@pytest.mark.parametrize("seed", range(3))
def test_a_mixture_of_regressions_bears_one_regression_and_features_in_two_clumps(seed):
    rng, sites = np.random.default_rng(seed), {}
    for k in range(8):
        X = rng.normal(size=(40, 2)) + np.where(np.arange(40) % 2, 6.0, -6.0)[:, None]
        sites[f"s{k}"] = (X, X @ [1.0, -2.0] + 0.3 * rng.normal(size=40))
    model = FedGrEM(2, family="regression", random_state=0).fit(Federation.from_clients(sites))
    assert not model.missing_sites_ and model.traffic_.refused == 0
    np.testing.assert_allclose(model.centers_, [[1.0, -2.0]] * 2, atol=0.2)


def test_two_runs_do_not_share_a_journal_at_the_same_time(tmp_path):
    one, other = Journal(tmp_path), Journal(tmp_path)
    one.open({"seed": 1}, {})
    with pytest.raises(Locked, match="another process works in"):
        other.open({"seed": 1}, {})
    one.close()
    other.open({"seed": 1}, {})
    other.close()


# ------------------------------------------------------------------ damage


def long_run(tmp_path, folder, journal=None, link=None):
    case, data = case_of("consensus_lasso"), ragged_federation()
    link = link or LossyLink(case, data, tmp_path / folder)
    settings = case.at_most(8)
    if journal is not None:
        journal.open({"seed": 3}, {})
    try:
        rules = Rules(on_loss="wait")
        return drive(case.algorithm, settings, Roster(data.names, 3), link, rules, journal)
    finally:
        if journal is not None:
            journal.close()


class Saboteur(LossyLink):
    """Does something to a site's files before a round."""

    def __init__(self, *given, act, at):
        super().__init__(*given)
        self.act, self.at, self.done = act, at, False

    def put(self, questions):
        if not self.done and any(q.number == self.at for q in questions.values()):
            self.done = True
            self.halves.clear()
            self.act(self.folder / "site-8" / "run")
        return super().put(questions)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("number", [2, 5])
@pytest.mark.parametrize("what", ["offered", "committed", "earlier"])
def test_one_damaged_memory_costs_a_repeated_question_and_no_bit(tmp_path, what, number):
    case, data = case_of("consensus_lasso"), ragged_federation()

    def act(folder):
        path = folder / f"{what}.npz"
        assert path.exists() or (what, number) in (("committed", 2), ("earlier", 2))
        if path.exists():
            flip(path)

    link = Saboteur(case, data, tmp_path / "hurt", act=act, at=number)
    hurt, whole = long_run(tmp_path, "", link=link), long_run(tmp_path, "whole")
    assert link.done and not hurt.refusals
    np.testing.assert_array_equal(hurt.result["coef"], whole.result["coef"])


def test_a_lost_memory_stops_a_run_that_waits_and_is_named(tmp_path):
    case, data = case_of("consensus_lasso"), ragged_federation()

    def act(folder):
        for path in folder.glob("*.npz"):
            path.unlink()

    link = Saboteur(case, data, tmp_path / "hurt", act=act, at=5)
    with pytest.raises(SiteLost, match=r"site 'site-8': the site's memory is lost or damaged"):
        long_run(tmp_path, "", link=link)


@pytest.mark.parametrize("number", [1, 4, "last"])
@pytest.mark.parametrize("both", [False, True])
def test_a_damaged_record_costs_a_round_or_stops_with_its_name(tmp_path, number, both):
    case, data = case_of("consensus_lasso"), ragged_federation()
    journal = Journal(tmp_path / "run")
    whole = long_run(tmp_path, "sites", journal)
    number = whole.traffic.rounds if number == "last" else number
    for path in [journal._path(number), journal._path(number).with_suffix(".copy")][: 1 + both]:
        flip(path)
    link = LossyLink(case, data, tmp_path / "sites")
    if both and number < whole.traffic.rounds:
        with pytest.raises(ProtocolError, match=rf"round-{number:06d}.npz is damaged"):
            long_run(tmp_path, "", journal, link)
        return
    again = long_run(tmp_path, "", journal, link)
    np.testing.assert_array_equal(again.result["coef"], whole.result["coef"])


def test_every_flipped_byte_of_a_sealed_file_is_noticed(tmp_path):
    path = tmp_path / "a.npz"
    save_arrays(path, {"x": np.arange(3.0)})
    content = path.read_bytes()
    for place in range(len(content)):
        spoilt = bytearray(content)
        spoilt[place] ^= 0x40
        path.write_bytes(spoilt)
        with pytest.raises(ValueError, match=r"seal"):
            load_arrays(path, seal=True)
    path.write_bytes(content)
    np.testing.assert_array_equal(np.load(path)["x"], np.arange(3.0))


def test_a_full_disk_is_said_and_the_question_can_be_repeated(tmp_path, monkeypatch):
    half = stateful_half(tmp_path)
    agree(half, 1, 0)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(site_module, "save_arrays", full)
        assert agree(half, 2, 1).fault == Fault(Reason.DISK)
    steady = stateful_half(tmp_path / "steady")
    agree(steady, 1, 0)
    np.testing.assert_array_equal(
        agree(half, 2, 1).arrays["contribution"], agree(steady, 2, 1).arrays["contribution"]
    )


# ------------------------------------------------------------------ deaths


def test_a_site_that_dies_every_time_steps_aside(tmp_path):
    own = facts(tmp_path)
    half = open_site("a", own, job())
    for _ in range(MOST_DEATHS):
        half.deaths.busy()  # ... and the process is gone
        half.deaths.begin()
    assert reason_of(lambda: open_site("a", own, job())) == Fault(Reason.DIED)
    open_site("a", own, job(run="another"))


def test_deaths_count_only_without_an_answer_between(tmp_path):
    deaths = Deaths(tmp_path)
    deaths.busy()
    assert deaths.begin() == 1
    deaths.busy()
    deaths.answered()
    assert deaths.begin() == 0
    deaths.busy()
    deaths.idle()  # FLARE ends the job: no death
    assert deaths.begin() == 0


def test_an_error_is_no_death(tmp_path):
    half = stateful_half(tmp_path)
    assert half.answer(1, Ask("no such step"), 0).fault == Fault(Reason.ERROR)
    assert half.deaths.begin() == 0


# ------------------------------------------------------------------ private files


def test_what_a_site_and_a_run_keep_is_nobody_elses(tmp_path):
    half = stateful_half(tmp_path / "state")
    agree(half, 1, 0)
    agree(half, 2, 1)
    Standardizer(engine=InProcess(journal=tmp_path / "run", ledger=tmp_path / "ledger")).fit(
        ragged_federation()
    )
    kept = [path for top in ("state", "run", "ledger") for path in (tmp_path / top).rglob("*")]
    assert len(kept) > 10
    for path in kept:
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_a_line_cut_short_spoils_no_other_line_of_the_ledger(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.record("r", 1, "s", ["a"], {"x": np.ones(1)})
    with open(tmp_path / "ledger.jsonl", "ab") as file:
        file.write(b'{"time": "2026')
    ledger.record("r", 2, "s", ["a"], {"x": np.ones(1)})
    assert [line["round"] for line in ledger.lines()] == [1, 2]


def test_processes_end_with_a_driver_that_is_killed():
    script = f"""
import subprocess, sys, psutil
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         start_new_session=True)
keeper = subprocess.Popen([sys.executable, {keeper.__file__!r}], stdin=subprocess.PIPE,
                          stdout=subprocess.DEVNULL, start_new_session=True)
started = psutil.Process(child.pid).create_time()
keeper.stdin.write(f"{{child.pid}} {{started:.6f}}\\n".encode())
keeper.stdin.flush()
print(child.pid, flush=True)
sys.stdin.read()
"""
    driver = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child = psutil.Process(int(driver.stdout.readline()))
    driver.kill()
    driver.wait()
    deadline = time.monotonic() + 30
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the child outlived its driver"
        time.sleep(0.05)
