"""A federation on this machine: a server and its sites as child processes."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedkin.engines.nvflare.jobs import Job
from fedkin.engines.nvflare.kits import ADMIN, PROJECT, Kits, write_json

logger = logging.getLogger("fedkin.nvflare")

# Seconds. Each is far below FLARE's default, measured to shorten start, end and recovery.
HEARTBEAT = 2
LAST_WORD = 10
POLL = 0.2


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
            write_json(self._site_file(name), {**facts, "state": str(self.state[name])})
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
