"""A federation on this machine: a server and its sites as child processes."""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import subprocess
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedkin.durable import close_to_others, private_folder, write_bytes
from fedkin.engines.keeper import Keeper
from fedkin.engines.nvflare.jobs import Job
from fedkin.engines.nvflare.kits import ADMIN, Kits, write_json
from fedkin.engines.nvflare.participants import Kit, check_certificate
from fedkin.engines.site import check_run_name

logger = logging.getLogger("fedkin.nvflare")

# Seconds.
POLL = 0.2
CONNECT = 2.0
# For an attempt to open a session: whoever is killed meanwhile is started again only after it.
SESSION = 15.0
# Errors of FLARE's session that mean nobody is there.
GONE = ("NoConnection", "ConnectionError", "CommunicationError", "SessionClosed")


class ServerLost(ConnectionError):
    """The server does not answer any more."""


class Ended(RuntimeError):
    """A process of ours has ended."""


class Deployment:
    """A server and its sites as child processes on this machine, driven by an admin session.

    Processes end with their driver, however it ends. `Deployment.attach` starts nobody: it opens a
    session to a server that runs, here or elsewhere.

    `sites` gives each site's own configuration: `data` (CSV, Parquet or npz), `target`, and
    optionally `least_rows` and `state` (folder for memory and ledger, default in the kit). It is
    written to a file that only the site's process is told of.
    """

    def __init__(self, kits: Kits, sites: Mapping[str, Mapping[str, Any]] | None) -> None:
        self.kits = kits
        self.server_folder = kits.server / "fedkin"
        self.state: dict[str, Path] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._session: Any = None
        self._keeper = Keeper()
        if sites is not None:
            self._configure(sites)

    @classmethod
    def attach(cls, kits: Kits, timeout: float = 30.0) -> Deployment:
        """A session to a federation that others started; `stop` ends the session only."""
        own = kits.admin / "startup" / "client.crt"
        check_certificate(own, "renew the coordinator's kit (fedkin federation renew)")
        attached = cls(kits, None)
        attached.connect((), timeout)
        return attached

    def __deepcopy__(self, _: Mapping[int, Any]) -> Deployment:
        """Processes and a session are not copied: a clone of an estimator asks the same sites."""
        return self

    def _configure(self, sites: Mapping[str, Mapping[str, Any]]) -> None:
        kits = self.kits
        unknown = sorted(set(sites) ^ set(kits.sites))
        if unknown:
            raise ValueError(f"kits and configurations name different sites: {', '.join(unknown)}")
        self.state = {
            name: Path(own.get("state", kits.sites[name] / "fedkin")).resolve()
            for name, own in sites.items()
        }
        for name, own in sites.items():
            facts = {**own, "data": str(Path(own["data"]).resolve())}
            write_json(self._site_file(name), {**facts, "state": str(self.state[name])})

    def _site_file(self, name: str) -> Path:
        return self.kits.sites[name] / "local" / "fedkin_site.json"

    def __enter__(self) -> Deployment:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, timeout: float = 120.0) -> Deployment:
        """Start everybody who is not; returns when the server knows every site."""
        if self.processes:  # `with Deployment(...).start() as running` starts nobody twice
            return self
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
        kit = Kit.open(self.kits.server, "server")
        self._keep("server", kit.start({"FEDKIN_SERVER": str(self.server_folder)}))

    def start_site(self, name: str) -> None:
        """Start a site's parent process."""
        kit = Kit.open(self.kits.sites[name], "client")
        self._keep(name, kit.start({"FEDKIN_SITE": str(self._site_file(name))}))

    def _keep(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.processes[name] = process
        self._keeper.watch(process.pid)

    def connect(self, sites: Iterable[str], timeout: float) -> None:
        """Open the admin session and wait for these sites; also after a server's restart."""
        deadline = time.monotonic() + timeout
        self._close_session()
        while not self._opened(deadline):
            self._check("server", deadline, "does not answer")
        self.wait_for_sites(sites, max(deadline - time.monotonic(), 1.0))

    def _opened(self, deadline: float) -> bool:
        """Whether a session could be opened to a server that listens."""
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        # A session opened before the server listens loses its whole time-out, so knock first.
        while not self._listens():
            self._check("server", deadline, "does not listen")
        left = min(max(deadline - time.monotonic(), 1.0), SESSION)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self._session = new_secure_session(ADMIN, str(self.kits.admin), timeout=left)
        except Exception as error:
            if type(error).__name__ in GONE or not self._listens():
                logger.info("no session yet: %s", error)
                return False
            raise
        return True

    def wait_for_sites(self, sites: Iterable[str], timeout: float) -> None:
        """Wait until the server knows these sites."""
        deadline = time.monotonic() + timeout
        while missing := set(sites) - self.connected_sites():
            self._check(min(missing), deadline, "did not register")

    def connected_sites(self) -> set[str]:
        """Sites that the server knows now."""
        return {client.name for client in self._ask("get_connected_client_list")}

    def _ask(self, what: str, *given: Any) -> Any:
        """Ask the server over the admin session; that it is gone is said in words."""
        try:
            return getattr(self._session, what)(*given)
        except Exception as error:
            # FLARE raises errors of several kinds when nobody is there, and the same for others.
            if type(error).__name__ in GONE or not self._listens():
                host, port = self.kits.address
                raise ServerLost(
                    f"the server at {host}:{port} does not answer; start it again"
                ) from error
            raise

    def recover(self, sites: Collection[str], timeout: float) -> None:
        """Come back to a server that was lost: start again what was ours, then reconnect.

        Whoever ends meanwhile is started once more, as long as there is time.
        """
        deadline = time.monotonic() + timeout
        while True:
            self.revive(("server", *sites))
            try:
                return self.connect(sites, max(deadline - time.monotonic(), 1.0))
            except (Ended, ServerLost):
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL)

    def revive(self, names: Iterable[str]) -> None:
        """Start those of our own processes again that have ended unasked."""
        for name in names:
            process = self.processes.get(name)
            if process is None or process.poll() is None:
                continue
            code = process.returncode
            logger.warning("%r ended with code %s and is started again", name, code)
            if name == "server":
                self.start_server()
            else:
                self.start_site(name)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(CONNECT)
            try:
                return probe.connect_ex(self.kits.address) == 0
            except OSError:
                return False

    def _check(self, name: str, deadline: float, what: str) -> None:
        process = self.processes.get(name)
        kit = self.kits.server if name == "server" else self.kits.sites[name]
        if process is not None and process.poll() is not None:
            raise Ended(f"{name!r} ended with code {process.returncode}; see {kit}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{self._whom(name)} {what} in time; {self._where(name, kit)}")
        time.sleep(POLL)

    def _whom(self, name: str) -> str:
        host, port = self.kits.address
        return f"the server at {host}:{port}" if name == "server" else f"site {name!r}"

    def _where(self, name: str, kit: Path) -> str:
        """Where to look: at a process of ours, or at others' machines."""
        if name in self.processes:
            return f"see {kit / 'console.log'}"
        if name == "server":
            return "start it, or see to its name, its port and firewalls"
        return "see whether `fedkin site run` runs there, and what it says"

    def submit(self, job: Job) -> str:
        """Hand a job to the server; its identifier comes back at once."""
        folder = job.write(private_folder(self.kits.admin / "transfer"))
        job_id = str(self._ask("submit_job", str(folder)))
        close_to_others(folder)
        return job_id

    def wait(self, job_id: str, timeout: float) -> str:
        """FLARE's word on how the job ended; a job out of time is aborted."""
        deadline = time.monotonic() + timeout
        while True:
            status = str(self._ask("get_job_meta", job_id)["status"])
            if status.startswith("FINISHED"):
                return status
            if time.monotonic() > deadline:
                self._ask("abort_job", job_id)
                raise TimeoutError(f"job {job_id} was {status} after {timeout:.0f} s; aborted")
            time.sleep(POLL)

    def collect(self, job_id: str) -> Path:
        """The folder with what the server's job process left in its workspace."""
        folder = Path(self._ask("download_job_result", job_id))
        close_to_others(folder)
        return folder / "workspace"

    def jobs(self) -> list[dict[str, str]]:
        """The server's jobs, youngest first: run, status, when submitted, and identifier."""
        found = [
            {
                "run": str(job.get("job_name", "")),
                "status": str(job.get("status", "")),
                "submitted": str(job.get("submit_time", ""))[:19],
                "id": str(job.get("job_id", "")),
            }
            for job in self._ask("list_jobs")
        ]
        return sorted(found, key=lambda job: job["submitted"], reverse=True)

    def end(self, job: Mapping[str, str]) -> bool:
        """Abort a job; False if it has ended already.

        Who submitted it from the same kit does not take that for a failure, and submits no more.
        """
        if job["status"].startswith("FINISHED"):
            return False
        write_bytes(self._stopped(job["run"]), b"stopped\n")
        self._ask("abort_job", job["id"])
        return True

    def may_run(self, run: str) -> None:
        """A run is begun, or gone on with: that it was stopped before does not count."""
        self._stopped(run).unlink(missing_ok=True)

    def was_stopped(self, run: str) -> bool:
        """Whether somebody has ended the run on purpose."""
        return self._stopped(run).exists()

    def _stopped(self, run: str) -> Path:
        return private_folder(self.kits.admin / "stopped") / check_run_name(run)

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
        self._keeper.done()

    def _close_session(self) -> None:
        if self._session is not None:
            with contextlib.suppress(Exception):  # the server may be gone already
                self._session.api.close()
            self._session = None
