"""Server, sites and coordinator from their kits alone, in separate folders and processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

pytest.importorskip("nvflare", reason="the nvflare extra is not installed")

from fedkin import MixedModel
from fedkin.engines.site import site_model
from fedkin.federation import Federation
from fedkin.privacy import Ledger

pytestmark = [pytest.mark.flare, pytest.mark.deploy]

NAMES = ("berlin", "lyon", "porto")
COLUMNS = ("age", "bmi")
JOB = """
method = "MixedModel"
name = "pressure-1"
features = ["age", "bmi"]

[settings]
random = "intercept"

[rules]
on_loss = "wait"
"""


POLICY = """
[allow]
methods = ["mixed_model", "standardizer"]
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


def done(*words, timeout=200, code=0):
    process = fedkin(*words)
    told, _ = process.communicate(timeout=timeout)
    assert process.returncode == code, told
    return told


def site_table(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(80, 2))
    return X, X @ [1.0, -2.0] + seed / 5 + rng.normal(size=80)


@pytest.fixture(scope="module")
def organisations(tmp_path_factory):
    """Each organisation has its own folder with its own kit; the folder of the kits is gone."""
    top = tmp_path_factory.mktemp("organisations")
    options = [word for name in NAMES for word in ("--site", name)]
    done("federation", "new", top / "kits", *options)
    made = next((top / "kits" / "fedkin").glob("prod_*"))
    kits = {"server": "localhost", "coordinator": "admin@fedkin.org"} | {n: n for n in NAMES}
    for owner, kit in kits.items():
        (top / owner).mkdir()
        shutil.move(made / kit, top / owner / "kit")
    shutil.rmtree(top / "kits")
    for k, name in enumerate(NAMES):
        X, y = site_table(k)
        table = np.column_stack([X, y])
        header = ",".join([*COLUMNS, "pressure"])
        np.savetxt(top / name / "data.csv", table, delimiter=",", header=header, comments="")
    running = {"server": fedkin("server", "run", "kit", cwd=top / "server")}
    for name in NAMES:
        (top / name / "policy.toml").write_text(POLICY)
        words = ("--data", "data.csv", "--target", "pressure", "--policy", "policy.toml")
        words = (*words, "--out", "records")
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
        process = fedkin("federation", "status", "--kits", top / "coordinator" / "kit")
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
        *("--kits", top / "coordinator" / "kit", "--out", top / "coordinator" / "results"),
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
        assert {line["run"] for line in Ledger(records / "ledger").lines()} == {"pressure-1"}
        model = site_model(records, "pressure-1")
        np.testing.assert_array_equal(model["shared.coef"], coef)
        np.testing.assert_allclose(model["own.effects"], effects[k], rtol=1e-9, atol=1e-9)
        assert "What left us: 1 replies" in (records / "pressure-1" / "report.txt").read_text()


def test_a_run_is_resumed_by_its_name_and_can_be_read(organisations):
    top, _ = organisations
    out, kit = top / "coordinator" / "results", top / "coordinator" / "kit"
    again = done("federation", "resume", "pressure-1", "--kits", kit, "--out", out)
    assert (out / "pressure-1" / "summary.txt").read_text().strip() in again
    shown = done("journal", "show", top / "server" / "kit" / "fedkin" / "runs" / "pressure-1")
    assert "algorithm: mixed_model" in shown and "ended: True" in shown
    shown = done("ledger", "show", top / "lyon" / "records", "--values")
    assert "pressure-1 round 1 statistics:" in shown and "1 replies" in shown
    assert "stopped: nothing was running" in done("federation", "stop", "--kits", kit)


def test_a_method_that_sites_do_not_allow_is_refused_by_them(organisations):
    top, _ = organisations
    job = top / "coordinator" / "fmlr.toml"
    job.write_text('method = "FMLR"\nfeatures = ["age", "bmi"]')
    told = done(
        *("federation", "submit", job, "--kits", top / "coordinator" / "kit"),
        *("--out", top / "coordinator" / "results"),
        code=2,
    )
    assert told.count("not allowed by the site's policy") == 3


def test_a_missing_column_stops_the_job_with_a_table(organisations):
    top, _ = organisations
    job = top / "coordinator" / "wrong.toml"
    job.write_text(JOB.replace('"bmi"', '"weight"').replace("pressure-1", "pressure-2"))
    told = done(
        *("federation", "submit", job, "--kits", top / "coordinator" / "kit"),
        *("--out", top / "coordinator" / "results"),
        code=2,
    )
    assert told.count("a column is missing in 'weight'") == 3


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
