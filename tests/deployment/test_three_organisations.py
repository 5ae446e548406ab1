"""Server, sites and coordinator from their kits alone, in separate folders and processes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

pytest.importorskip("nvflare", reason="the nvflare extra is not installed")

from fedkin import FMLR, Best, MixedModel
from fedkin.engines.nvflare.participants import Kit
from fedkin.engines.site import site_model
from fedkin.federation import Federation
from fedkin.inference import benefit
from fedkin.privacy import Ledger
from tests.smoke.test_best_in_rounds_at_sites import NoFolds

pytestmark = [pytest.mark.flare, pytest.mark.deploy, pytest.mark.short]

NAMES = ("berlin", "lyon", "porto")
COLUMNS = ("age", "bmi")
JOB = """
method = "MixedModel"
name = "pressure-1"
features = ["age", "bmi"]
benefit = true

[settings]
random = "intercept"

[schema.age]
unit = "standard deviations"

[rules]
on_loss = "wait"
"""


POLICY = """
[allow]
methods = ["mixed_model", "fmlr", "held_out", "site_checks", "standardizer"]
coordinators = ["admin@fedkin.org"]

[limits]
runs_per_day = 20
"""


def fedkin(*words, **options):
    command = [sys.executable, "-m", "fedkin.cli", *map(str, words)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **options,
    )


def done(*words, timeout=200, code=0, **options):
    process = fedkin(*words, **options)
    told, _ = process.communicate(timeout=timeout)
    assert process.returncode == code, told
    return told


def site_table(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(80, 2))
    return X, X @ [1.0, -2.0] + seed / 5 + rng.normal(size=80)


@pytest.fixture(scope="module")
def organisations(tmp_path_factory):
    """Each organisation has its own folder with its own key; only requests and answers travel."""
    top = tmp_path_factory.mktemp("organisations")
    home = top / "coordinator"
    told = done("federation", "open", home)
    mark = re.search("SHA256:[0-9A-F:]{95}", told)[0]
    port = re.search("localhost:([0-9]+)", told)[1]
    asks = {"server": ("server", "request", "localhost", "--port", port)}
    asks |= {name: ("site", "request", name) for name in NAMES}
    for owner, words in asks.items():
        (top / owner).mkdir()
        done(*words, cwd=top / owner)
        (request,) = (top / owner / "key").glob("*.request.zip")
        answer = top / f"{owner}.signed.zip"
        done("federation", "approve", home, request, "--out", answer)
        done(words[0], "kit", answer, "--fingerprint", mark, cwd=top / owner)
        shutil.rmtree(top / owner / "key")
    for k, name in enumerate(NAMES):
        X, y = site_table(k)
        table = np.column_stack([X, y])
        header = ",".join([*COLUMNS, "pressure"])
        np.savetxt(top / name / "data.csv", table, delimiter=",", header=header, comments="")
    running = {"server": fedkin("server", "run", "kit", cwd=top / "server")}
    for name in NAMES:
        (top / name / "policy.toml").write_text(POLICY)
        (top / name / "units.toml").write_text('age = "standard deviations"')
        words = ("--data", "data.csv", "--target", "pressure", "--policy", "policy.toml")
        words = (*words, "--units", "units.toml", "--out", "records")
        running[name] = fedkin("site", "run", "kit", *words, cwd=top / name)
    try:
        wait_for(top)
        yield top, running
    finally:
        for process in running.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)
        for process in running.values():
            process.wait(timeout=30)


def wait_for(top):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        process = fedkin("federation", "status", "--kits", top / "coordinator")
        told, _ = process.communicate(timeout=60)
        if process.returncode == 0 and told.count("connected") == 3 and "not conn" not in told:
            return
        time.sleep(1.0)
    raise AssertionError(f"the sites did not come: {told}")


def test_a_job_runs_on_kits_alone_and_agrees_with_one_process(organisations):
    top, _ = organisations
    (top / "coordinator" / "job.toml").write_text(JOB)
    told = done(
        *("federation", "submit", top / "coordinator" / "job.toml"),
        *("--kits", top / "coordinator", "--out", top / "coordinator" / "results"),
    )
    assert "3 sites, 240 rows" in told and "bmi" in told
    place = top / "coordinator" / "results" / "pressure-1"
    with np.load(place / "result.npz") as found:
        coef, effects = found["coef"], found["effects"]
    together = Federation.from_clients({name: site_table(k) for k, name in enumerate(NAMES)})
    expected = MixedModel(random="intercept").fit(together)._result["coef"]
    np.testing.assert_allclose(coef, expected, rtol=1e-9, atol=1e-9)
    assert "MixedModel" in done("federation", "results", "pressure-1", "--out", place.parent)
    for k, name in enumerate(NAMES):
        records = top / name / "records"
        assert {line["run"] for line in Ledger(records / "ledger").lines()} == {
            *("pressure-1", "pressure-1.held-out-sums", "pressure-1.held-out-scores"),
            "pressure-1.checks",
        }
        model = site_model(records, "pressure-1")
        np.testing.assert_array_equal(model["shared.coef"], coef)
        np.testing.assert_allclose(model["own.effects"], effects[k], rtol=1e-9, atol=1e-9)
        report = (records / "pressure-1" / "report.txt").read_text()
        assert "What left us: 5 replies" in report
        assert "What deserves a look in our table (checks.txt):" in report
        gain, low, high = re.search(r"gains (\S+) \((\S+) to (\S+),", report).groups()
        assert float(low) < float(gain) < float(high)
    joined = benefit(MixedModel(random="intercept"), together, folds=5, new_sites=False)
    means = joined.held_out.means("log")
    assert f"alone {means[0][2]:.4g}, joining {means[1][2]:.4g}" in report
    assert "Benefit of MixedModel" in (place / "benefit.txt").read_text()
    assert "nothing to complain about" in (place / "checks.txt").read_text()


def test_a_site_is_not_told_that_a_server_which_takes_it_refuses_it(organisations):
    top, _ = organisations
    for name in NAMES:
        assert Kit.open(top / name / "kit", "client").knock() is None


def test_a_run_is_resumed_by_its_name_and_can_be_read(organisations):
    top, _ = organisations
    out, kit = top / "coordinator" / "results", top / "coordinator"
    again = done("federation", "resume", "pressure-1", "--kits", kit, "--out", out)
    assert (out / "pressure-1" / "summary.txt").read_text().strip() in again
    shown = done("journal", "show", top / "server" / "kit" / "fedkin" / "runs" / "pressure-1")
    assert "algorithm: mixed_model" in shown and "ended: True" in shown
    shown = done("ledger", "show", top / "lyon" / "records", "--values")
    assert "pressure-1 round 1 statistics:" in shown and "5 replies" in shown
    assert "stopped: nothing was running" in done("federation", "stop", "--kits", kit)


def test_auto_asks_which_way_fits_and_then_fits_it(organisations):
    top, _ = organisations
    job = top / "coordinator" / "auto.toml"
    job.write_text('method = "auto"\nname = "pressure-auto"\nfeatures = ["age", "bmi"]\nseed = 0\n')
    told = done(
        *("federation", "submit", job, "--kits", top / "coordinator"),
        *("--out", top / "coordinator" / "results"),
        timeout=400,
    )
    together = Federation.from_clients({name: site_table(k) for k, name in enumerate(NAMES)})
    here = Best(engine=NoFolds(together), random_state=0).fit()
    assert here.best_way_ == "one model" and "'one model' won overall" in told
    method, settings = here.way_as_method()
    assert f"fitting {method}" in told
    place = top / "coordinator" / "results" / "pressure-auto"
    with np.load(place / "result.npz") as found:
        expected = FMLR(**settings).fit(together)._result["coef"]
        np.testing.assert_allclose(found["coef"], expected, rtol=1e-9, atol=1e-9)
    ways = (place / "ways.txt").read_text()
    assert "left-out log score" in ways
    assert "'common curve' was not compared" in ways, "policies do not allow fits without folds"
    report = (top / "lyon" / "records" / "pressure-auto" / "report.txt").read_text()
    assert "What left us: 7 replies" in report and "joining gains" in report


def test_a_method_that_sites_do_not_allow_is_refused_by_them(organisations):
    top, _ = organisations
    job = top / "coordinator" / "odcl.toml"
    job.write_text('method = "ODCL"\nfeatures = ["age", "bmi"]')
    told = done(
        *("federation", "submit", job, "--kits", top / "coordinator"),
        *("--out", top / "coordinator" / "results"),
        code=2,
    )
    assert told.count("not allowed by the site's policy") == 3
    assert "a site decides itself" in told


def test_a_missing_column_stops_the_job_with_a_table(organisations):
    top, _ = organisations
    job = top / "coordinator" / "wrong.toml"
    wrong = JOB.replace('"bmi"', '"weight"').replace("pressure-1", "pressure-2")
    job.write_text(wrong.replace('"standard deviations"', '"years"').replace("= true", "= false"))
    told = done(
        *("federation", "submit", job, "--kits", top / "coordinator"),
        *("--out", top / "coordinator" / "results"),
        code=2,
    )
    assert told.count("a column is missing in 'weight'") == 3
    kept = top / "coordinator" / "results" / "pressure-2" / "not-ready.txt"
    assert kept.read_text().count("a column is missing in 'weight'") == 3
    assert "a site decides itself" not in told
    assert told.count("another unit than the job's, or none declared in 'age'") == 3


def flare_of(process):
    """FLARE's process under `fedkin site run`."""
    found = []
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.Error):  # killed and not yet taken notice of, say
            found += [child] if any("client_train" in word for word in child.cmdline()) else []
    return found


LONG_JOB = """
method = "FMLR"
name = "long-1"
features = ["age", "bmi"]

[settings]
n_components = 2
share = "sums"
max_rounds = 100000
tol = 1e-300

[rules]
on_loss = "wait"
"""


def test_a_run_that_is_stopped_is_not_submitted_again(organisations):
    top, _ = organisations
    kit, rounds = top / "coordinator", top / "server" / "kit" / "fedkin" / "runs" / "long-1"
    (kit / "long.toml").write_text(LONG_JOB)
    words = ("--kits", kit, "--out", kit / "results")
    submitted = fedkin("federation", "submit", kit / "long.toml", *words)
    deadline = time.monotonic() + 120
    while not list(rounds.glob("round-*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert "stopped: long-1" in done("federation", "stop", "--kits", kit)
    told, _ = submitted.communicate(timeout=120)
    assert submitted.returncode == 2 and "run 'long-1' was stopped" in told, told
    assert "federation resume long-1" in told
    assert "RUNNING" not in done("federation", "status", "--kits", kit)


def test_a_site_that_is_killed_is_started_again_by_its_program(organisations):
    top, running = organisations
    (before,) = flare_of(running["lyon"])
    before.kill()
    deadline = time.monotonic() + 30
    while not (now := flare_of(running["lyon"])) or now == [before]:
        assert time.monotonic() < deadline, "nobody started it again"
        time.sleep(0.2)
    job = top / "coordinator" / "scale.toml"
    rules = '[rules]\non_loss = "wait"\n'
    job.write_text(f'method = "Standardizer"\nname = "scale-1"\nfeatures = ["age"]\n{rules}')
    told = done(
        *("federation", "submit", job, "--kits", top / "coordinator"),
        *("--out", top / "coordinator" / "results"),
    )
    assert "3 sites" in told and site_model(top / "lyon" / "records", "scale-1")


def test_what_a_withdrawn_site_had_sent_is_named(organisations):
    top, _ = organisations
    home = top / "coordinator"
    told = done("federation", "withdraw", "porto", "--kits", home, "--out", home / "results")
    assert "pressure-1" in told and "statistics" in told
    shown = done("server", "sent", top / "server" / "kit", "porto")
    runs = ("pressure-1", "pressure-1.held-out-sums", "pressure-1.held-out-scores")
    assert all(run in shown for run in runs)
    assert "porto" not in done("federation", "status", "--kits", home)
    done("federation", "withdraw", "porto", "--kits", home, code=2)


def test_a_site_stops_cleanly_and_leaves_nobody_behind(organisations):
    """Last: the site is gone afterwards."""
    _, running = organisations
    process = running["porto"]
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    os.kill(process.pid, signal.SIGTERM)
    told, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "site porto: data data.csv" in told
    assert not any(child.is_running() for child in family)


def test_a_program_that_is_killed_takes_its_site_along(organisations):
    """Last: else FLARE would go on answering, with nobody to watch it or to stop it."""
    _, running = organisations
    process = running["lyon"]
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert family and not alive
