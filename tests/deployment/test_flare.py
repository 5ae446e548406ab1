"""Three real NVIDIA FLARE sites with mutual TLS on 127.0.0.1."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from sklearn.base import clone

pytest.importorskip("nvflare", reason="the nvflare extra is not installed")

from fedkin import (
    FGPR,
    FMLR,
    ODCL,
    Best,
    FedEM,
    Federation,
    FedGrEM,
    InProcess,
    MixedModel,
    Rules,
    Standardizer,
)
from fedkin.algorithms import algorithm
from fedkin.engines import Journal
from fedkin.engines.job_checks import JobChecks
from fedkin.engines.nvflare import Deployment, Flare, Kits, SitesNotReady, provision, understood
from fedkin.engines.nvflare.participants import Kit
from fedkin.engines.opening import OPENING
from fedkin.engines.site import site_memory
from fedkin.inference import benefit
from fedkin.privacy import Ledger
from fedkin.protocol import Fault, Reason
from tests.conformance.cases import CASES, ragged_federation
from tests.smoke.test_benefit_at_sites import Sites

pytestmark = pytest.mark.flare

NAMES = ("berlin", "lyon", "porto")


def three_sites() -> Federation:
    data = ragged_federation(3)
    return Federation.from_clients({name: data.client(k) for k, name in enumerate(NAMES)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("flare")


def hand_out(data, folder):
    """Every site's file; sites read theirs when a job begins."""
    for k, name in enumerate(data.names):
        X, y = data.client(k)
        np.savez(folder / f"{name}.npz", X=X, y=y)


@pytest.fixture(scope="module")
def deployment(folder):
    data = three_sites()
    hand_out(data, folder)
    # Sites of a dozen rows each: what is tested here is not what they withhold.
    sites = {n: {"data": folder / f"{n}.npz", "disclosure": False} for n in data.names}
    with Deployment(provision(folder / "kits", NAMES), sites) as running:
        yield running
        parents = [psutil.Process(process.pid) for process in running.processes.values()]
        started = parents + [child for p in parents for child in p.children(recursive=True)]
    assert len(started) >= 4 and not any(process.is_running() for process in started)


def in_process(case, **engine):
    return InProcess(block_size=1, **engine).run(case.algorithm, case.chosen(), three_sites(), 3)


def on_flare(case, deployment, settings=None, **engine):
    return Flare(deployment, timeout=100.0, **engine).run(
        case.algorithm, settings or case.chosen(), seed=3
    )


def one_of_each(cases):
    """Rows of the battery; what carries messages is the same for every further row of a method."""
    seen: set[str] = set()
    for case in cases:
        yield pytest.param(case, marks=[pytest.mark.deploy] if case.name in seen else [])
        seen.add(case.name)


# The deployed sites' targets are measurements; counts and classes have a test below.
@pytest.mark.parametrize("case", list(one_of_each(c for c in CASES if c.any_target)), ids=str)
def test_flare_agrees_with_one_process(case, deployment):
    here, there = in_process(case), on_flare(case, deployment)
    assert there.traffic == here.traffic
    for name in case.shared:
        np.testing.assert_allclose(there.result[name], here.result[name], rtol=1e-9, atol=1e-9)


def test_counts_and_classes_agree_with_one_process_too(deployment, folder):
    """The same sites with targets 0, 1 and 2: successes of two trials, counts, and classes."""
    plain = three_sites()
    sites = {name: plain.client(k) for k, name in enumerate(plain.names)}
    counted = Federation.from_clients(
        {
            name: (
                np.column_stack([X, np.full(len(X), 2.0)]),
                np.clip(np.round(1.0 + 0.3 * y), 0.0, 2.0),
            )
            for name, (X, y) in sites.items()
        }
    )
    hand_out(counted, folder)
    how = {"random": "intercept", "tol": 1e-8}
    try:
        for name, settings, shared in (
            ("mixed_model", {**how, "family": "binomial", "trials": 3}, ("coef", "loglik")),
            ("mixed_model", {**how, "family": "poisson", "offset": 3}, ("coef", "loglik")),
            ("softmax_mixed", {"tol": 1e-4}, ("coef", "population", "variances")),
        ):
            method = algorithm(name)
            chosen = method.settings.from_mapping(settings)
            here = InProcess(block_size=1).run(method, chosen, counted, 3)
            there = Flare(deployment, timeout=100.0).run(method, chosen, seed=3)
            assert there.traffic == here.traffic
            for field in shared:
                np.testing.assert_allclose(
                    there.result[field], here.result[field], rtol=1e-9, atol=1e-9
                )
    finally:
        hand_out(plain, folder)


def test_rows_count_by_their_weights_as_in_one_process(deployment, folder):
    plain = three_sites()
    weights = np.random.default_rng(5).uniform(0.2, 3.0, len(plain.X))
    for name, (X, y) in {n: plain.client(k) for k, n in enumerate(plain.names)}.items():
        own = weights[plain.owner == plain.names.index(name)]
        np.savez(folder / f"{name}.npz", X=X, y=y, visits=own)
    weighted = plain.with_weights(weights)
    engine = Flare(deployment, timeout=100.0, weights="visits")
    try:
        for make in (partial(FMLR, 2), partial(ODCL, 1), partial(MixedModel, "intercept")):
            here, there = make(random_state=0).fit(weighted), make(random_state=0, engine=engine)
            there.fit()
            for name in ("coef_", "labels_", "intercept_"):
                if hasattr(here, name):
                    found, expected = getattr(there, name), getattr(here, name)
                    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
            assert not np.allclose(here.coef_, make(random_state=0).fit(plain).coef_, atol=1e-4)
        with pytest.raises(ValueError, match="has no weights of rows"):
            Standardizer(engine=engine).fit()
    finally:
        hand_out(plain, folder)


def test_checks_are_told_before_the_first_round_and_can_stop_the_run(deployment, tmp_path):
    X, y = three_sites().client(1)
    X = X.copy()
    X[2, 0] = -999.0
    np.savez(tmp_path / "minus.npz", X=X, y=y)
    runs = deployment.server_folder / "runs"
    before = set(runs.glob("*"))
    with own_facts(deployment, "lyon", data=str(tmp_path / "minus.npz")):
        told = on_flare(LASSO, deployment)
        with pytest.raises(SitesNotReady, match="FK003 site 'lyon'") as caught:
            on_flare(LASSO, deployment, checks=JobChecks(stop=("FK003",)), run_id="stopped-1")
    (finding,) = [finding for finding in told.findings if finding.code]
    assert (finding.site, finding.code, finding.columns) == ("lyon", "FK003", (0,))
    assert caught.value.table()["site"] == ["lyon"]
    assert before < set(runs.glob("*")) and not Journal(runs / "stopped-1").rounds()
    words = (deployment.state["lyon"] / "stopped-1" / "checks.txt").read_text()
    assert "1 of" in words and "-999" in words


def test_an_estimator_fits_sites_it_never_sees(deployment):
    engine = Flare(deployment, timeout=100.0)
    apart = FMLR(2, fit_intercept=False, random_state=0, engine=engine).fit()
    together = FMLR(2, fit_intercept=False, random_state=0).fit(three_sites())
    np.testing.assert_allclose(apart.coef_, together.coef_, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(apart.labels_, together.labels_)
    assert tuple(apart.client_names_) == NAMES
    with pytest.raises(ValueError, match="without data"):
        FMLR(engine=engine).fit(three_sites())


@pytest.mark.parametrize(
    "model",
    [FGPR(common=False, max_rounds=5), FedGrEM(1, family="regression", max_rounds=5)],
    ids=["curves", "groups"],
)
def test_whether_joining_helps_is_answered_as_in_one_process(model, deployment):
    """Fits without each fold and scores: rounds of one job."""
    model = model.set_params(random_state=0)
    engine = Flare(deployment, timeout=100.0)
    there = benefit(model.set_params(engine=engine), folds=2)
    here = benefit(model.set_params(engine=None), three_sites(), folds=2, new_sites=False)
    for metric in ("log", "rmse"):
        found = there.held_out.means(metric)
        np.testing.assert_allclose(found, here.held_out.means(metric)[:2], rtol=1e-9)
    assert list(there.verdicts) == list(here.verdicts)


def test_which_mixture_describes_rows_is_answered_as_in_one_process(deployment):
    """One job for all ways without each fold; then a job a way, of which sites keep their own."""
    given = {"one": FedEM(1, covariance_type="tied", max_rounds=2, random_state=0)}
    best = Best(given, target="rows", folds=2, random_state=0)
    there = clone(best).set_params(engine=Flare(deployment, timeout=100.0)).fit()
    here = clone(best).set_params(engine=Sites(three_sites())).fit()
    for name in ("weights_", "site_weights_"):
        np.testing.assert_allclose(getattr(there, name), getattr(here, name), rtol=1e-9)
    np.testing.assert_allclose(there.held_out_.means("log"), here.held_out_.means("log"), rtol=1e-9)
    assert not there._fits[0].serves(NAMES).any() and here._fits[0].serves(NAMES).all()
    data = three_sites()
    found = there.fitted_["one"].score_samples(data.X, groups="new")
    np.testing.assert_allclose(found, here.fitted_["one"].score_samples(data.X, groups="new"))


def _job_process(deployment, site) -> psutil.Process:
    return psutil.Process(deployment.processes[site].pid).children(recursive=True)[0]


def after_round(runs: Path, before: set[Path], number: int, act) -> threading.Thread:
    """Act once the journal of a new run has closed round `number`; bounded."""

    def watch():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            new = set(runs.glob("*")) - before
            if any((folder / f"round-{number:06d}.npz").exists() for folder in new):
                return act()
            time.sleep(0.02)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


LONG = {"alpha": 5.0, "tol": 0.0, "max_rounds": 120}
LASSO = next(case for case in CASES if case.name == "consensus_lasso")


def gaps(run) -> set[int]:
    return {refusal.round for refusal in run.refusals}


def without(run, site, rounds=121) -> set[int]:
    """Rounds without the site: those it missed, and all after it was given up."""
    given_up = range(max(gaps(run), default=0), rounds + 1) if site in run.dropped else ()
    return gaps(run) | set(given_up)


def skipping(site, rounds, settings=None):
    """One process in which `site` skips these rounds."""
    engine = InProcess(
        block_size=1, absent=lambda number, names: [site] if number in rounds else []
    )
    settings = settings or LASSO.chosen(**LONG)
    return engine.run(LASSO.algorithm, settings, three_sites(), 3)


def disturbed(deployment, act, **engine):
    """A long run during which `act` happens after round 20."""
    runs = deployment.server_folder / "runs"
    before = set(runs.glob("*"))
    happened = []
    watcher = after_round(runs, before, 20, lambda: happened.append(act()))
    run = on_flare(LASSO, deployment, LASSO.chosen(**LONG), **engine)
    watcher.join(10)
    assert happened, "the disturbance came too late"
    return run, (set(runs.glob("*")) - before).pop()


def test_a_frozen_site_is_late_and_its_late_step_is_void(deployment):
    runs = deployment.server_folder / "runs"
    before = set(runs.glob("*"))

    def freeze():
        """Until the server has closed a round without the site, however long that takes."""
        process = _job_process(deployment, "lyon")
        process.suspend()
        journal = Journal((set(runs.glob("*")) - before).pop())
        number, deadline = 20, time.monotonic() + 60
        while time.monotonic() < deadline:
            record = journal.read(number)
            if record is None:
                time.sleep(0.02)
            elif any(refusal.site == "lyon" for refusal in record.refusals):
                break
            else:
                number += 1
        process.resume()

    late, _ = disturbed(deployment, freeze, deadline=3.0)
    assert gaps(late) and {(r.site, r.reason) for r in late.refusals} == {("lyon", Reason.LATE)}
    # On a busy machine it may miss three rounds running; then it is not asked again.
    there = skipping("lyon", without(late, "lyon"))
    np.testing.assert_array_equal(late.result["coef"], there.result["coef"])


def test_a_killed_site_process_is_waited_for_bit_for_bit(deployment):
    def kill():
        deployment.kill("porto", only_job=True)

    broken, folder = disturbed(deployment, kill, rules=Rules(on_loss="wait"), deadline=5.0)
    assert not broken.refusals
    np.testing.assert_array_equal(broken.result["coef"], skipping("porto", ()).result["coef"])
    np.testing.assert_array_equal(Journal(folder).result()["coef"], broken.result["coef"])


@pytest.mark.deploy
def test_a_site_whose_process_dies_every_time_is_left_out_and_named(deployment, tmp_path):
    """Its table never ends, say: the process is killed whenever it reads it."""
    os.mkfifo(tmp_path / "endless.npz")
    stop, busy = threading.Event(), deployment.state["lyon"] / "deadly" / "busy"

    def reaper():
        parent, seen = psutil.Process(deployment.processes["lyon"].pid), set()
        while not stop.wait(0.05):
            # A file that an earlier process left is no sign of this one.
            begun = busy.stat().st_mtime_ns if busy.exists() else 0
            if begun and begun not in seen:
                seen.add(begun)
                for child in parent.children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()

    thread = threading.Thread(target=reaper, daemon=True)
    thread.start()
    try:
        with own_facts(deployment, "lyon", data=str(tmp_path / "endless.npz")):
            left = on_flare(LASSO, deployment, deadline=10.0, run_id="deadly")
    finally:
        stop.set()
        thread.join(10)
    assert {r.reason for r in left.refusals} == {Reason.DIED}
    assert set(left.left_out) == {"lyon"}
    without = skipping("lyon", range(1, 10_000), LASSO.chosen())
    np.testing.assert_array_equal(left.result["coef"], without.result["coef"])


def test_a_lost_site_costs_only_itself_when_the_run_goes_on(deployment):
    def kill():
        deployment.kill("berlin")

    lost, _ = disturbed(deployment, kill, rules=Rules(on_loss="continue"), deadline=2.0)
    assert lost.dropped == ("berlin",)
    never = without(lost, "berlin")
    np.testing.assert_array_equal(lost.result["coef"], skipping("berlin", never).result["coef"])
    deployment.start_site("berlin")
    deployment.wait_for_sites(NAMES, 60)


@pytest.mark.parametrize("only_job", [True, False])
def test_a_killed_server_resumes_bit_for_bit(deployment, only_job):
    """With its parent, too: the driver starts it again, reconnects, and goes on by itself."""

    def kill():
        deployment.kill("server", only_job)

    broken, _ = disturbed(deployment, kill, rules=Rules(on_loss="wait"), deadline=5.0)
    assert not broken.refusals
    np.testing.assert_array_equal(broken.result["coef"], skipping("porto", ()).result["coef"])


@contextlib.contextmanager
def own_facts(deployment, site, **changes):
    """The site's own file with other words in it, for a while."""
    place = deployment.kits.sites[site] / "local" / "fedkin_site.json"
    own = json.loads(place.read_text())
    try:
        place.write_text(json.dumps({**own, **changes}))
        yield
    finally:
        place.write_text(json.dumps(own))


def test_a_server_that_dies_again_while_one_reconnects_is_started_again(deployment, monkeypatch):
    from nvflare.fuel.flare_api import flare_api

    opened, real = [], flare_api.new_secure_session

    def session(*given, **named):
        opened.append(named["timeout"])
        if len(opened) == 1:
            deployment.kill("server")
        return real(*given, **named)

    monkeypatch.setattr(flare_api, "new_secure_session", session)
    deployment.kill("server")
    deployment.recover(NAMES, 120.0)
    assert len(opened) >= 2 and opened[0] < 60.0
    assert deployment.connected_sites() == set(NAMES)


def test_a_site_that_cannot_take_part_stops_the_run_before_it_begins(deployment):
    runs = deployment.server_folder / "runs"
    before = set(runs.glob("*"))
    wrong = own_facts(deployment, "porto", data="/nowhere/porto.csv")
    with wrong, pytest.raises(SitesNotReady, match="'porto': the data file is miss") as caught:
        on_flare(LASSO, deployment)
    assert caught.value.table()["site"] == ["porto"]
    (folder,) = set(runs.glob("*")) - before
    assert not Journal(folder).rounds()


def test_another_session_can_attach_to_a_running_federation(deployment):
    attached = Deployment.attach(Kits.load(deployment.kits.server.parent))
    try:
        here, there = in_process(LASSO), on_flare(LASSO, attached)
    finally:
        attached.stop()
    np.testing.assert_allclose(there.result["coef"], here.result["coef"], rtol=1e-9, atol=1e-9)
    assert all(process.poll() is None for process in deployment.processes.values())


def test_keys_and_what_is_kept_are_private(deployment):
    top = deployment.kits.server.parent.parent
    kept = [path for path in top.rglob("*") if not path.is_symlink()]
    keys = [path for path in kept if path.suffix == ".key" or path.name == "cert.json"]
    assert len(keys) >= 5
    for path in kept:
        assert not path.stat().st_mode & 0o077, path


def first_word(kits, certificate=None, key=None) -> bytes:
    """What the server says to somebody who comes with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    with (
        contextlib.suppress(OSError),
        socket.create_connection(kits.address, 10) as raw,
        context.wrap_socket(raw) as way,
    ):
        way.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return way.recv(100)
    return b""


def expired(kits, folder):
    """A certificate of the federation's own authority that ended yesterday, and its key."""
    authority = json.loads((kits.server.parent.parent / "state" / "cert.json").read_text())
    old = x509.load_pem_x509_certificate(authority["berlin"]["cert"].encode())
    root = x509.load_pem_x509_certificate(authority["root_cert"].encode())
    signing = serialization.load_pem_private_key(authority["root_pri_key"].encode(), None)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    builder = x509.CertificateBuilder(root.subject, old.subject, old.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(yesterday - timedelta(days=9)).not_valid_after(yesterday)
    signed = builder.sign(signing, hashes.SHA256())
    (folder / "old.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "old.key").write_text(authority["berlin"]["pri_key"])
    return folder / "old.crt", folder / "old.key"


def test_without_a_certificate_of_the_federation_nobody_hears_a_word(deployment, tmp_path):
    kits = deployment.kits
    own = kits.sites["berlin"] / "startup"
    assert first_word(kits, own / "client.crt", own / "client.key").startswith(b"HTTP/1.1")
    others = provision(tmp_path / "others", NAMES, port=kits.port)
    foreign = others.sites["berlin"] / "startup"
    assert first_word(kits) == b""
    assert first_word(kits, foreign / "client.crt", foreign / "client.key") == b""
    assert first_word(kits, *expired(kits, tmp_path)) == b""
    # ... and a site that comes with the kit of another federation is told so.
    assert Kit.open(kits.sites["berlin"], "client").knock() is None
    assert "another authority" in Kit.open(others.sites["berlin"], "client").knock()


def test_values_over_the_bound_never_leave_their_site(deployment, tmp_path):
    """A site whose data are absurd refuses by itself; the others' fit is as if it were absent."""
    case = next(case for case in CASES if case.name == "fmlr")
    X, y = three_sites().client(2)
    np.savez(tmp_path / "absurd.npz", X=X, y=y * 1e70)
    with own_facts(deployment, "porto", data=str(tmp_path / "absurd.npz")):
        absurd = on_flare(case, deployment)
    assert {(r.site, r.reason) for r in absurd.refusals} == {("porto", Reason.BOUND)}
    without = in_process(case, absent=lambda number, names: ["porto"])
    for name in case.shared:
        np.testing.assert_allclose(absurd.result[name], without.result[name], atol=1e-9)


def test_sites_see_their_settings_only(deployment):
    settings = list(deployment.kits.sites["porto"].glob("*/app_*/config/settings.json"))
    assert settings
    for path in settings:
        seen = json.loads(path.read_text())
        known = {"run", "algorithm", "seed", "settings", "features", "version", "schema", "weights"}
        assert set(seen) == known
        allowed = set(algorithm(seen["algorithm"]).settings.seen_at_sites())
        assert set(seen["settings"]) <= allowed


def test_a_site_keeps_what_it_learnt(deployment):
    """FMLR with share="sums": the label never left, and the site can read it."""
    case = next(case for case in CASES if case.name == "fmlr")
    here = in_process(case)
    runs = list((deployment.server_folder / "runs").glob("fmlr-*"))
    run = min(runs, key=lambda path: path.stat().st_mtime).name
    for k, name in enumerate(NAMES):
        own = site_memory(deployment.state[name], run)["responsibilities"]
        np.testing.assert_allclose(own[0], here.memories["responsibilities"][k], atol=1e-9)


def _declared(algorithm):
    return {name: {*step.reply, *step.optional} for name, step in algorithm.steps.items()}


def test_every_site_has_its_ledger_and_nothing_else_left(deployment):
    """Last, so that all runs above are in it."""
    data = three_sites()
    raw = np.concatenate([data.X.ravel(), data.y])
    declared = {c.name: _declared(c.algorithm) for c in CASES}
    checks = _declared(algorithm("site_checks"))
    for name in NAMES:
        ledger = Ledger(deployment.state[name] / "ledger")
        lines = ledger.lines()
        assert lines and all(line["sites"] == [name] for line in lines)
        for line in lines:
            run = line["run"]
            if line["step"] == OPENING:  # the site took no part, and its ledger says why
                assert line["withheld"] and not line["fields"]
                continue
            steps = checks if run.endswith(".checks") else declared[run.rsplit("-", 1)[0]]
            assert set(line["fields"]) <= steps[line["step"]]
        values = [array for line in lines for array in ledger.values(line).values()]
        assert not any(np.isin(array, raw).any() for array in values)


def test_the_ledger_holds_what_the_server_got(deployment):
    for folder in (deployment.server_folder / "runs").iterdir():
        for k, name in enumerate(NAMES):
            ledger = Ledger(deployment.state[name] / "ledger")
            sent = {line["round"]: line for line in ledger.lines() if line["run"] == folder.name}
            for number in (1, 2, 3):
                record = Journal(folder).read(number)
                if record is None or k not in record.replies.clients:
                    continue
                at = list(record.replies.clients).index(k)
                for field, array in ledger.values(sent[number]).items():
                    np.testing.assert_array_equal(array[0], record.replies[field][at])


@pytest.mark.parametrize(
    "reply", [None, "text", {}, {"reason": "FOO", "arrays": {}}, {"reason": "", "arrays": [1]}]
)
def test_a_reply_of_no_known_form_is_a_fault_not_a_crash(reply):
    arrays, fault = understood(reply)
    assert not arrays and fault == Fault(Reason.UNDECLARED)
