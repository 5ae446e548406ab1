"""Real sites on NVIDIA FLARE 2.9: provision, start, submit, wait, collect, stop.

    kits = provision("federation", ["a", "b", "c"])
    with Deployment(kits, {"a": {"data": "a.csv", "target": "y"}, ...}) as deployment:
        model = FMLR(2, engine=Flare(deployment)).fit()

Who runs where: `provision`, `Deployment` and `Flare` in the caller's process; `Server` in the
server's job process, where the drive loop and the journal are; `Site` in each site's job process,
where data, memory and ledger are. No code travels: fedkin is installed everywhere, a job is a few
JSON files, and every participant's own policy admits just the classes of `ALLOWED`.

FLARE fails a whole job when one site's job process dies and lets nobody rejoin a running job; so a
run that has not ended is submitted again, a bounded number of times, and goes on from the journal.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import logging
import math
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.collab import collab

from fedkin.algorithms import algorithm as find_algorithm
from fedkin.engines.driver import Rules, SiteLost, drive
from fedkin.engines.journal import Journal, Record, decode, encode
from fedkin.engines.site import RUN_NAME, SiteHalf, check_run_name
from fedkin.federation import Federation
from fedkin.frames import plain_names
from fedkin.names import name_order
from fedkin.protocol import (
    Algorithm,
    Ask,
    Block,
    Fault,
    Indices,
    Memory,
    Outcome,
    QuorumLost,
    Reason,
    Refusal,
    Roster,
    Settings,
    Traffic,
)

logger = logging.getLogger("fedkin.nvflare")

PROJECT = "fedkin"
ADMIN = "admin@fedkin.org"
# This very name makes FLARE listen on 127.0.0.1 only; a real server gives its own host name.
LOCAL_SERVER = "localhost"
CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
SITE_CLASS = "fedkin.engines.nvflare.Site"
SERVER_CLASS = "fedkin.engines.nvflare.Server"
ALLOWED = (CONTROLLER, EXECUTOR, SITE_CLASS, SERVER_CLASS)
# By default FLARE sends a site's error log, tracebacks and all, to the server.
LOG_STREAMERS = ("site_log_streamer", "log_receiver")
SETTINGS_FILE = "settings.json"
OUTCOME_FILE = "outcome.json"
# What a site's calls come from; a peer site may not ask.
SERVER_NAME = "server"

# Seconds. Each is far below FLARE's default, measured to shorten start, end and recovery.
HEARTBEAT = 2
FORGET_SITE = 60
LAST_WORD = 10
TASK_INTERVAL = 0.5
POLL = 0.2


# ------------------------------------------------------------------ provision


@dataclass(frozen=True)
class Kits:
    """Start-up kits on disk: keys, certificates and policy of every participant."""

    port: int
    server: Path
    admin: Path
    sites: dict[str, Path]


def provision(
    folder: str | Path, sites: Sequence[str], host: str = LOCAL_SERVER, port: int | None = None
) -> Kits:
    """Make a certificate authority and one mutual-TLS kit per participant below `folder`.

    Hand each site its kit and keep the rest; `startup/` is signed and must not be edited.
    """
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    for site in sites:
        if not RUN_NAME.fullmatch(site) or site in (host, "server"):
            raise ValueError(
                f"site {site!r}: a deployed site's name may have letters, digits, '_', '.' and "
                "'-' only; rename it"
            )
    if len(set(sites)) < len(sites):
        raise ValueError("two sites have the same name; rename one of them")
    port = port or _free_port()
    project = _project(sites, host, port)
    made = Provisioner(str(folder), prepare_builders(project)).provision(
        prepare_project(project), logger=logger
    )
    if made.get("build_error"):
        raise RuntimeError(f"FLARE could not provision below {folder}: {made.get_errors()}")
    root = Path(made["current_prod_dir"]).resolve()
    kits = Kits(port, root / host, root / ADMIN, {site: root / site for site in sites})
    for kit in (kits.server, *kits.sites.values()):
        _write_policy(kit / "local")
    return kits


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _project(sites: Sequence[str], host: str, port: int) -> dict[str, Any]:
    server = {"name": host, "type": "server", "org": PROJECT, "fed_learn_port": port}
    clients = [{"name": site, "type": "client", "org": PROJECT} for site in sites]
    admin = {"name": ADMIN, "type": "admin", "org": PROJECT, "role": "project_admin"}
    builders = [
        {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder"},
        {
            "path": "nvflare.lighter.impl.static_file.StaticFileBuilder",
            "args": {"config_folder": "config"},
        },
        {"path": "nvflare.lighter.impl.cert.CertBuilder"},
        {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
    ]
    participants = [server, *clients, admin]
    return {"api_version": 3, "name": PROJECT, "participants": participants, "builders": builders}


def _write_policy(local: Path) -> None:
    """The participant's own rules: no code comes in, only our classes run, all stays in the kit."""
    resources = json.loads((local / "resources.json.default").read_text())
    resources["class_allow_list"] = list(ALLOWED)
    resources["allow_log_streaming"] = False
    parts = [part for part in resources["components"] if part["id"] not in LOG_STREAMERS]
    resources["components"] = parts
    if "snapshot_persistor" in resources:
        storage = local.parent / "storage"
        place = resources["snapshot_persistor"]["args"]["storage"]["args"]
        place["root_dir"] = str(storage / "snapshots")
        manager = next(part for part in parts if part["id"] == "job_manager")
        manager["args"]["uri_root"] = str(storage / "jobs")
        resources["servers"][0]["heart_beat_timeout"] = FORGET_SITE
    _write_json(local / "resources.json", resources)
    authorization = json.loads((local / "authorization.json.default").read_text())
    may = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
    rights = dict.fromkeys(may, "any") | {"shell_commands": "none", "byoc": "none"}
    authorization["permissions"] = {"project_admin": rights}
    _write_json(local / "authorization.json", authorization)


def _write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1))


# ------------------------------------------------------------------ a federation on this machine


class Deployment:
    """A server and its sites as child processes on this machine, driven by an admin session.

    `sites` gives each site's own configuration: `data` (CSV, Parquet or npz), `target`, and
    optionally `least_rows` and `state` (folder for memory and ledger, default in the kit). It is
    written to a file that only the site's process is told of.
    """

    def __init__(self, kits: Kits, sites: Mapping[str, Mapping[str, Any]]) -> None:
        unknown = sorted(set(sites) ^ set(kits.sites))
        if unknown:
            raise ValueError(f"kits and configurations name different sites: {', '.join(unknown)}")
        self.kits = kits
        self.server_folder = kits.server / "fedkin"
        self.state = {
            name: Path(own.get("state", kits.sites[name] / "fedkin")).resolve()
            for name, own in sites.items()
        }
        for name, own in sites.items():
            facts = {**own, "data": str(Path(own["data"]).resolve())}
            _write_json(self._site_file(name), {**facts, "state": str(self.state[name])})
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._session: Any = None

    def _site_file(self, name: str) -> Path:
        return self.kits.sites[name] / "local" / "fedkin_site.json"

    def __enter__(self) -> Deployment:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, timeout: float = 120.0) -> Deployment:
        """Start everybody; returns when the server knows every site."""
        try:
            self.start_server()
            for name in self.kits.sites:
                self.start_site(name)
            self.connect(self.kits.sites, timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def start_server(self) -> None:
        """Start the server's parent process."""
        own = {"FEDKIN_SERVER": str(self.server_folder)}
        own["NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT"] = str(LAST_WORD)
        self._spawn("server", self.kits.server, own, [])

    def start_site(self, name: str) -> None:
        """Start a site's parent process."""
        own = {"FEDKIN_SITE": str(self._site_file(name))}
        options = [f"uid={name}", f"heart_beat_interval={HEARTBEAT}"]
        self._spawn(name, self.kits.sites[name], own, options)

    def _spawn(self, name: str, kit: Path, own: Mapping[str, str], options: list[str]) -> None:
        """What the kit's sub_start.sh does, with this interpreter and without a shell."""
        role = "server" if name == "server" else "client"
        command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{role}.{role}_train"]
        command += ["-m", str(kit), "-s", f"fed_{role}.json", "--set", "secure_train=true"]
        command += [*options, f"org={PROJECT}", "config_folder=config"]
        for folder in ("transfer", "tmp"):
            (kit / folder).mkdir(exist_ok=True)
        # Secure logging keeps tracebacks out of what FLARE itself sends about failures.
        quiet = {"TMPDIR": str(kit / "tmp"), "NVFLARE_SECURE_LOGGING": "1"}
        environment = {**os.environ, **quiet, **own}
        with open(kit / "console.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=kit,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def connect(self, sites: Iterable[str], timeout: float) -> None:
        """Open the admin session and wait for these sites; also after a server's restart."""
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        deadline = time.monotonic() + timeout
        self._close_session()
        # A session opened before the server listens loses its whole time-out, so knock first.
        while not self._listens():
            self._check("server", deadline, "does not listen")
        left = max(deadline - time.monotonic(), 1.0)
        with contextlib.redirect_stdout(io.StringIO()):
            self._session = new_secure_session(ADMIN, str(self.kits.admin), timeout=left)
        self.wait_for_sites(sites, max(deadline - time.monotonic(), 1.0))

    def wait_for_sites(self, sites: Iterable[str], timeout: float) -> None:
        """Wait until the server knows these sites."""
        deadline = time.monotonic() + timeout
        while missing := set(sites) - self.connected_sites():
            self._check(min(missing), deadline, "did not register")

    def connected_sites(self) -> set[str]:
        """Sites that the server knows now."""
        return {client.name for client in self._session.get_connected_client_list()}

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.kits.port)) == 0

    def _check(self, name: str, deadline: float, what: str) -> None:
        process = self.processes.get(name)
        kit = self.kits.server if name == "server" else self.kits.sites[name]
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"{name!r} ended with code {process.returncode}; see {kit}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name!r} {what} in time; see {kit / 'console.log'}")
        time.sleep(POLL)

    def submit(self, job: Job) -> str:
        """Hand a job to the server; its identifier comes back at once."""
        return str(self._session.submit_job(str(job.write(self.kits.admin / "transfer"))))

    def wait(self, job_id: str, timeout: float) -> str:
        """FLARE's word on how the job ended; a job out of time is aborted."""
        deadline = time.monotonic() + timeout
        while True:
            status = str(self._session.get_job_meta(job_id)["status"])
            if status.startswith("FINISHED"):
                return status
            if time.monotonic() > deadline:
                self._session.abort_job(job_id)
                raise TimeoutError(f"job {job_id} was {status} after {timeout:.0f} s; aborted")
            time.sleep(POLL)

    def collect(self, job_id: str) -> Path:
        """The folder with what the server's job process left in its workspace."""
        return Path(self._session.download_job_result(job_id)) / "workspace"

    def kill(self, name: str, only_job: bool = False) -> None:
        """End one participant at once, or its job processes only.

        Job processes have sessions of their own, so they are found as children; and a dead
        parent must be reaped, or they believe it alive.
        """
        import psutil

        process = self.processes[name]
        alive = process.poll() is None
        victims = psutil.Process(process.pid).children(recursive=True) if alive else []
        if not only_job:
            process.kill()
            process.wait(timeout=10)
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        psutil.wait_procs(victims, timeout=5)

    def stop(self) -> None:
        """End everything that `start` started, job processes included."""
        self._close_session()
        for name in list(self.processes):
            try:
                self.kill(name)
            except Exception:
                logger.exception("could not end %s", name)
        self.processes.clear()

    def _close_session(self) -> None:
        if self._session is not None:
            with contextlib.suppress(Exception):  # the server may be gone already
                self._session.api.close()
            self._session = None


# ------------------------------------------------------------------ jobs


@dataclass(frozen=True)
class Job:
    """What is submitted: names and settings, never code. Sites see `for_sites` only."""

    run: str
    for_server: Mapping[str, Any]
    for_sites: Mapping[str, Any]
    sites: Sequence[str]
    min_sites: int
    sync_seconds: int = 60

    def write(self, folder: Path) -> Path:
        """The job in FLARE's layout: one app for the server, one for the sites."""
        place = folder / check_run_name(self.run)
        shutil.rmtree(place, ignore_errors=True)
        deploy = {"app_server": ["server"], "app_site": list(self.sites)}
        meta = {"name": self.run, "resource_spec": {}, "deploy_map": deploy}
        _write_json(place / "meta.json", {**meta, "min_clients": self.min_sites})
        controller = {"server_obj_id": "_server", "sync_task_timeout": self.sync_seconds}
        server = {
            "server": {"task_request_interval": TASK_INTERVAL},
            "workflows": [{"id": "controller", "path": CONTROLLER, "args": controller}],
            "components": [{"id": "_server", "path": SERVER_CLASS, "args": {}}],
        }
        executor = {"path": EXECUTOR, "args": {"client_obj_id": "_client"}}
        site = {
            "default_task_fetch_interval": TASK_INTERVAL,
            "executors": [{"tasks": ["*"], "executor": executor}],
            "components": [{"id": "_client", "path": SITE_CLASS, "args": {}}],
        }
        # Arrays inside the message instead of a download of their own: 4 to 5 times faster.
        shared = {"format_version": 2, "np_download_chunk_size": 0}
        halves = (("server", server, self.for_server), ("site", site, self.for_sites))
        for half, content, settings in halves:
            config = place / f"app_{half}" / "config"
            role = "server" if half == "server" else "client"
            _write_json(config / f"config_fed_{role}.json", {**shared, **content})
            # A file of our own: in constructor arguments FLARE replaces {braces} and more.
            _write_json(config / SETTINGS_FILE, encode(dict(settings)))
        return place


def _job_settings() -> dict[str, Any]:
    config = Path(collab.workspace.get_app_config_dir(collab.fl_ctx.get_job_id()))
    settings: dict[str, Any] = decode(json.loads((config / SETTINGS_FILE).read_text()))
    return settings


# ------------------------------------------------------------------ the engine


class Unfinished(RuntimeError):
    """The run did not end within the allowed resubmissions; its journal is kept."""


@dataclass
class Flare:
    """Runs algorithms on a deployment; `fit()` without data.

    features : names of the columns to use, in the order all sites shall use them; needed where
        sites hold named columns (CSV, Parquet), because names do not travel back
    deadline : seconds a site has for an answer
    resubmissions : how often a run that broke off is submitted again
    run_id : name of the run; give the name of an unfinished one to go on with it
    """

    deployment: Deployment
    features: Sequence[str] | None = None
    rules: Rules = field(default_factory=Rules)
    deadline: float = 60.0
    resubmissions: int = 3
    timeout: float = 3600.0
    run_id: str | None = None

    def run(
        self,
        algorithm: Algorithm,
        settings: Settings,
        federation: Federation | None = None,
        seed: int = 0,
    ) -> Outcome:
        """Submit, wait, resubmit if need be, collect."""
        if federation is not None:
            raise ValueError("on real sites the data are at the sites: call fit() without data")
        sites = sorted(self.deployment.kits.sites, key=name_order)
        run = check_run_name(self.run_id or f"{algorithm.name}-{uuid.uuid4().hex[:12]}")
        logger.info("run %s", run)
        settings = algorithm.completed(settings)
        both = {"run": run, "algorithm": algorithm.name, "seed": seed}
        for_server = {
            **both,
            "settings": dict(settings),
            "sites": sites,
            "rules": asdict(self.rules),
            "deadline": self.deadline,
        }
        own = dict(algorithm.settings_for_clients(settings))
        for_sites = {**both, "settings": own, "features": self.features}
        wait = self.rules.on_loss == "wait"
        needed = len(sites) if wait else max(1, math.ceil(self.rules.quorum * len(sites)))
        status = "not submitted"
        for _ in range(self.resubmissions + 1):
            if wait:
                self.deployment.wait_for_sites(sites, self.timeout)
            job_id = self.deployment.submit(Job(run, for_server, for_sites, sites, needed))
            try:
                status = self.deployment.wait(job_id, self.timeout)
            except TimeoutError as error:
                raise Unfinished(f"run {run!r}: {error}; run_id={run!r} goes on with it") from error
            ended = self._read(job_id) if status == "FINISHED:COMPLETED" else None
            if ended is not None:
                return ended
            logger.warning("run %s broke off (%s)", run, status)
        raise Unfinished(
            f"run {run!r} did not end in {self.resubmissions + 1} submissions (last: {status}); "
            "console.log in the kits says more, and "
            f"Flare(..., run_id={run!r}) goes on with it"
        )

    def _read(self, job_id: str) -> Outcome | None:
        """What the server's job process wrote; None if the run is to be submitted again."""
        folder = self.deployment.collect(job_id)
        facts = json.loads((folder / OUTCOME_FILE).read_text())
        if facts["ended"] == "site lost":
            return None
        if facts["ended"] == "quorum lost":
            raise QuorumLost(facts["message"])
        if facts["ended"] == "failed":
            raise RuntimeError(f"the server program failed: {facts['message']}")
        with np.load(folder / "result.npz", allow_pickle=False) as stored:
            result = dict(stored)
        refusals = (Refusal(**{**r, "reason": Reason[r["reason"]]}) for r in facts["refusals"])
        return Outcome(
            result,
            Roster(tuple(facts["names"]), facts["seed"]),
            Traffic(**facts["traffic"]),
            tuple(refusals),
            tuple(facts["dropped"]),
        )


# ------------------------------------------------------------------ in the server's job process


class Server:
    """The drive loop with its journal, in a folder of the server's that outlives jobs."""

    @collab.main
    def run(self) -> None:
        """Run or resume the program; how it ended is written to the job's workspace."""
        job = _job_settings()
        place = Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id()))
        facts: dict[str, Any]
        try:
            outcome = self._drive(job)
        except _Aborted:
            raise
        except SiteLost as error:
            facts = {"ended": "site lost", "message": str(error)}
        except QuorumLost as error:
            facts = {"ended": "quorum lost", "message": str(error)}
        except Exception as error:
            logger.exception("run %s", job["run"])
            facts = {"ended": "failed", "message": f"{type(error).__name__}: {error}"}
        else:
            np.savez(place / "result.npz", allow_pickle=False, **outcome.result)
            facts = {
                "ended": "finished",
                "names": outcome.roster.names,
                "seed": outcome.roster.seed,
                "traffic": asdict(outcome.traffic),
                "refusals": [{**asdict(r), "reason": r.reason.name} for r in outcome.refusals],
                "dropped": outcome.dropped,
            }
        _write_json(place / OUTCOME_FILE, facts)

    def _drive(self, job: dict[str, Any]) -> Outcome:
        algorithm = find_algorithm(job["algorithm"])
        roster = Roster(tuple(job["sites"]), job["seed"])
        run = check_run_name(job["run"])
        journal = Journal(Path(os.environ["FEDKIN_SERVER"]) / "runs" / run)
        known = {name: job[name] for name in ("algorithm", "settings", "seed", "sites")}
        about = {name: job[name] for name in ("rules", "deadline")}
        journal.open({**known, "engine": "nvflare"}, about)
        link = _FlareLink(roster, job["deadline"])
        rules = Rules(**job["rules"])
        return drive(algorithm, job["settings"], roster, link, rules, journal, progress=False)


class _Aborted(RuntimeError):
    """FLARE ended the job; the open round must not be closed."""


class _FlareLink:
    """Asks all sites at once; acknowledgements ride on the next question."""

    sizes: Indices | None = None
    least_rows = 0
    last_error: Exception | None = None

    def __init__(self, roster: Roster, deadline: float) -> None:
        self.roster, self.deadline = roster, deadline
        self.acknowledged = np.zeros(len(roster), dtype=np.int64)

    def exchange(
        self, number: int, ask: Ask, asked: Indices
    ) -> tuple[Sequence[Block], dict[int, Fault]]:
        blocks: list[Block] = []
        failed: dict[int, Fault] = {}
        pending = {}
        for k in map(int, asked):
            try:
                pending[k] = self._call(number, ask, k)
            except RuntimeError:  # the site never came to this job
                failed[k] = (Reason.LATE, "")
        for k, queue in pending.items():
            for _, reply in queue:
                arrays, fault = understood(reply)
                if fault is not None:
                    failed[k] = fault
                else:
                    blocks.append((np.array([k]), arrays))
            if queue.failures:
                failed[k] = (Reason.LATE, "")
        if collab.is_aborted:
            raise _Aborted(f"round {number}")
        return blocks, failed

    def _call(self, number: int, ask: Ask, k: int) -> Any:
        personal = {name: array[k : k + 1] for name, array in ask.personal.items()}
        site = collab.get_clients([self.roster.names[k]])
        return site(blocking=False, timeout=self.deadline).answer(
            number, ask.step, int(self.acknowledged[k]), dict(ask.common), personal
        )

    def settle(self, number: int, accepted: Indices) -> None:
        self.acknowledged[accepted] = number

    def finish(self) -> None:
        """Tell every site which of its replies was the last that counted; no answer is needed."""
        present = {client.name for client in collab.clients}
        for name, number in zip(self.roster.names, self.acknowledged):
            if name in present and number > 0:
                with contextlib.suppress(Exception):
                    for _ in collab.get_clients([name])(
                        blocking=False, timeout=self.deadline
                    ).finish(int(number)):
                        pass

    def replay(self, ask: Ask, record: Record) -> None:
        self.settle(record.number, record.replies.clients)

    def memories(self) -> Memory:
        return None


def understood(reply: Any) -> tuple[dict[str, Any], Fault | None]:
    """A site's reply, whatever it may be: its arrays, or what is wrong."""
    strange = (Reason.UNDECLARED, "")
    if not isinstance(reply, dict) or not isinstance(reply.get("arrays"), dict):
        return {}, strange
    word, name = reply.get("fault", ""), reply.get("field", "")
    if word:
        known = isinstance(word, str) and word in Reason.__members__
        declared = name if isinstance(name, str) and name.isidentifier() else ""
        return {}, (Reason[word], declared[:80]) if known else strange
    return reply["arrays"], None


# ------------------------------------------------------------------ in a site's job process


class Site:
    """Answers questions about the site's own data; one question at a time.

    FLARE calls `answer` from several threads, and a step that outlived its deadline runs on
    beside the next call: such a site says it is late instead of answering twice at once.
    """

    def __init__(self) -> None:
        self.half: SiteHalf | None = None
        self._busy = threading.Lock()
        self._owned = -1

    @collab.init
    def open(self) -> None:
        """Load what the site's own file names; the story of a failure stays in the site's log."""
        try:
            self.half = self._load(_job_settings())
        except Exception:
            logger.exception("the site could not be opened")

    def _load(self, job: dict[str, Any]) -> SiteHalf:
        own = json.loads(Path(os.environ["FEDKIN_SITE"]).read_text())
        state = Path(own["state"])
        self._own(state)
        clients = Federation.from_files({collab.site_name: own["data"]}, own.get("target"))
        clients = in_order(clients, job["features"])
        algorithm = find_algorithm(job["algorithm"])
        least = own.get("least_rows", 0)
        return SiteHalf(algorithm, job["settings"], clients, job["seed"], job["run"], state, least)

    def _own(self, state: Path, patience: float = 30.0) -> None:
        """A job process left over from before a crash must be gone before we touch its memory."""
        state.mkdir(parents=True, exist_ok=True)
        self._owned = os.open(state / "lock", os.O_CREAT | os.O_RDWR)
        deadline = time.monotonic() + patience
        while True:
            try:
                return fcntl.flock(self._owned, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL)

    @collab.publish
    def answer(
        self,
        number: int,
        step: str,
        acknowledged: int,
        common: dict[str, Any],
        personal: dict[str, Any],
    ) -> dict[str, Any]:
        """One question of the server's; the reply is declared arrays or a word."""
        if self.half is None or collab.caller != SERVER_NAME:
            return _word(Reason.ERROR)
        if not self._busy.acquire(blocking=False):
            return _word(Reason.LATE)
        try:
            answer = self.half.answer(number, step, acknowledged, common, personal)
        finally:
            self._busy.release()
        if answer.fault is not None:
            return _word(*answer.fault)
        return {"fault": "", "field": "", "arrays": dict(answer.arrays)}

    @collab.publish
    def finish(self, acknowledged: int) -> bool:
        """The run is over; keep what went with the last accepted reply."""
        if self.half is None or collab.caller != SERVER_NAME:
            return False
        with self._busy:
            try:
                self.half.finish(acknowledged)
            except Exception:
                logger.exception("the last memory could not be kept")
        return True


def _word(reason: Reason, name: str = "") -> dict[str, Any]:
    return {"fault": reason.name, "field": name, "arrays": {}}


def in_order(clients: Federation, features: Sequence[str] | None) -> Federation:
    """The columns the job names, in its order: sites must mean the same by the j-th column."""
    named = clients.feature_names != plain_names(clients.n_features)
    if features is None:
        if named:
            raise ValueError("the job names no features, but the site's columns have names")
        return clients
    missing = [name for name in features if name not in clients.feature_names]
    if missing:
        raise ValueError(f"the site has no column {', '.join(missing)}")
    columns = [clients.feature_names.index(name) for name in features]
    chosen = np.ascontiguousarray(clients.X[:, columns])
    return replace(clients, X=chosen, feature_names=tuple(features))
