"""Three real NVIDIA FLARE sites with mutual TLS on 127.0.0.1."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("nvflare", reason="the nvflare extra is not installed")

from fedkin import FMLR, Federation, InProcess, Rules
from fedkin.engines import Journal
from fedkin.engines.nvflare import Deployment, Flare, provision
from fedkin.privacy import Ledger
from fedkin.protocol import Reason
from tests.conformance.cases import CASES, ragged_federation

pytestmark = pytest.mark.flare

NAMES = ("berlin", "lyon", "porto")


def three_sites() -> Federation:
    data = ragged_federation(3)
    return Federation.from_clients({name: data.client(k) for k, name in enumerate(NAMES)})


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flare")
    data = three_sites()
    sites = {}
    for k, name in enumerate(data.names):
        X, y = data.client(k)
        np.savez(folder / f"{name}.npz", X=X, y=y)
        sites[name] = {"data": folder / f"{name}.npz"}
    with Deployment(provision(folder / "kits", NAMES), sites) as running:
        yield running
    assert not any(process.poll() is None for process in running.processes.values())


def in_process(case, **engine):
    return InProcess(block_size=1, **engine).run(case.algorithm, case.settings, three_sites(), 3)


def on_flare(case, deployment, settings=None, **engine):
    return Flare(deployment, timeout=100.0, **engine).run(
        case.algorithm, settings or case.settings, seed=3
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_flare_agrees_with_one_process(case, deployment):
    here, there = in_process(case), on_flare(case, deployment)
    assert there.traffic == here.traffic
    for name in case.shared:
        np.testing.assert_allclose(there.result[name], here.result[name], rtol=1e-9, atol=1e-9)


def test_an_estimator_fits_sites_it_never_sees(deployment):
    engine = Flare(deployment, timeout=100.0)
    apart = FMLR(2, fit_intercept=False, random_state=0, engine=engine).fit()
    together = FMLR(2, fit_intercept=False, random_state=0).fit(three_sites())
    np.testing.assert_allclose(apart.coef_, together.coef_, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(apart.labels_, together.labels_)
    assert tuple(apart.client_names_) == NAMES
    with pytest.raises(ValueError, match="without data"):
        FMLR(engine=engine).fit(three_sites())


def _job_process(deployment, site) -> psutil.Process:
    return psutil.Process(deployment.processes[site].pid).children(recursive=True)[0]


def after_round(runs: Path, before: set[Path], number: int, act) -> threading.Thread:
    """Act once the journal of a new run has closed round `number`; bounded."""

    def watch():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            new = set(runs.iterdir()) - before
            if any((folder / f"round-{number:06d}.npz").exists() for folder in new):
                return act()
            time.sleep(0.02)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


LONG = {"alpha": 5.0, "tol": 0.0, "max_rounds": 150}


def test_faults_cost_a_round_or_a_resubmission_never_the_result(deployment):
    """A frozen site is late, its late step is void; a killed job process resumes bit for bit."""
    case = next(case for case in CASES if case.name == "consensus_lasso")
    runs = deployment.server_folder / "runs"

    frozen = []

    def freeze():
        process = _job_process(deployment, "lyon")
        process.suspend()
        time.sleep(1.6)
        process.resume()
        frozen.append(process.pid)

    before = set(runs.iterdir())
    watcher = after_round(runs, before, 20, freeze)
    late = on_flare(case, deployment, LONG, deadline=1.0)
    watcher.join(5)
    assert frozen
    gaps = {refusal.round for refusal in late.refusals}
    assert gaps and {(r.site, r.reason) for r in late.refusals} == {("lyon", Reason.LATE)}
    skipped = InProcess(
        block_size=1, absent=lambda number, names: ["lyon"] if number in gaps else []
    ).run(case.algorithm, LONG, three_sites(), 3)
    np.testing.assert_array_equal(late.result["coef"], skipped.result["coef"])

    killed = []

    def kill():
        deployment.kill("porto", only_job=True)
        killed.append(True)

    before = set(runs.iterdir())
    watcher = after_round(runs, before, 20, kill)
    broken = on_flare(case, deployment, LONG, rules=Rules(on_loss="wait"), deadline=5.0)
    watcher.join(5)
    assert killed
    unbroken = InProcess(block_size=1).run(case.algorithm, LONG, three_sites(), 3)
    assert not broken.refusals
    np.testing.assert_array_equal(broken.result["coef"], unbroken.result["coef"])
    folder = (set(runs.iterdir()) - before).pop()
    np.testing.assert_array_equal(Journal(folder).result()["coef"], broken.result["coef"])


def test_every_site_has_its_ledger_and_nothing_else_left(deployment):
    """Last, so that all runs above are in it."""
    data = three_sites()
    raw = np.concatenate([data.X.ravel(), data.y])
    declared = {c.name: {n: set(s.reply) for n, s in c.algorithm.steps.items()} for c in CASES}
    for name in NAMES:
        ledger = Ledger(deployment.state[name] / "ledger")
        lines = ledger.lines()
        assert lines and all(line["sites"] == [name] for line in lines)
        for line in lines:
            steps = declared[line["run"].rsplit("-", 1)[0]]
            assert set(line["fields"]) <= steps[line["step"]]
        values = [array for line in lines for array in ledger.values(line).values()]
        assert not any(np.isin(array, raw).any() for array in values)
