"""A server or a site started from its kit alone, in the foreground, wherever the kit stands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedkin.durable import open_private, private_folder
from fedkin.engines.keeper import Keeper
from fedkin.engines.nvflare.kits import LOCAL_SERVER, PROJECT, settle_storage, write_json
from fedkin.engines.nvflare.site_process import SITE_FILE
from fedkin.protocol import LARGEST_MESSAGE

# Seconds. Each is far below FLARE's default, measured to shorten start, end and recovery.
HEARTBEAT = 2
LAST_WORD = 10
CONNECT = 5.0
LISTEN = 1.0
POLL = 0.5
# A participant that was killed so often (by the system, short of memory, say) is not started again.
MOST_RESTARTS = 20
# What FLARE calls the most that it sends, and the most that it makes room for.
MESSAGE_LIMITS = ("NVFLARE_MAX_MESSAGE_SIZE", "NVFLARE_STREAMING_MAX_BLOB_SIZE")


class KitError(ValueError):
    """The kit, the machine or the data are not ready; says what and what to do."""


@dataclass(frozen=True)
class Kit:
    """One participant's start-up kit: who it is and where its server listens."""

    folder: Path
    role: str
    name: str
    host: str
    port: int

    @classmethod
    def open(cls, folder: str | Path, role: str) -> Kit:
        """Read a kit; one that is of another participant is refused in words."""
        folder = Path(folder).resolve()
        path = folder / "startup" / f"fed_{role}.json"
        if not path.exists():
            what = "server" if role == "server" else "site"
            raise KitError(f"{folder} is not the kit of a {what} ({path.name} is missing)")
        told = json.loads(path.read_text())
        target = told["servers"][0]["service"]["target"]
        host, port = target.rsplit(":", 1)
        name = "server" if role == "server" else told["client"]["fqsn"]
        return cls(folder, role, name, host, int(port))

    @property
    def state(self) -> Path:
        """Where the participant keeps runs, memory and ledger."""
        return self.folder / "fedkin"

    def command(self) -> list[str]:
        """What the kit's sub_start.sh does, with this interpreter and without a shell."""
        role = self.role
        options = [] if role == "server" else [f"uid={self.name}"]
        options += [] if role == "server" else [f"heart_beat_interval={HEARTBEAT}"]
        command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{role}.{role}_train"]
        command += ["-m", str(self.folder), "-s", f"fed_{role}.json", "--set", "secure_train=true"]
        return [*command, *options, f"org={PROJECT}", "config_folder=config"]

    def start(self, own: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the participant; its files are private, its words go to console.log."""
        for folder in ("transfer", "tmp"):
            private_folder(self.folder / folder)
        if self.role == "server":
            settle_storage(self.folder)
        # Secure logging keeps tracebacks out of what FLARE itself sends about failures.
        quiet = {"TMPDIR": str(self.folder / "tmp"), "NVFLARE_SECURE_LOGGING": "1"}
        quiet["NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT"] = str(LAST_WORD)
        # A stream that says it is longer is ended before there is room for it.
        quiet |= dict.fromkeys(MESSAGE_LIMITS, str(LARGEST_MESSAGE))
        with open_private(self.folder / "console.log", "ab") as log:
            return subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env={**os.environ, **quiet, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,
            )

    def check(self) -> None:
        """Say what would make the start fail, before it does."""
        remedy = "ask the coordinator for a new kit"
        check_certificate(self.folder / "startup" / f"{self.role}.crt", remedy)
        if self.role == "server":
            self._check_port()

    def knock(self) -> str | None:
        """Why a site cannot come to its server as things are, for a person; None if it can."""
        startup, where = self.folder / "startup", f"the server at {self.host}:{self.port}"
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.check_hostname = False  # FLARE looks at the name
        context.set_alpn_protocols(["h2"])  # a server of gRPC hangs up on others
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        try:
            raw = socket.create_connection((self.host, self.port), CONNECT)
        except OSError as error:
            told = error.strerror or error
            return f"{where} cannot be reached ({told}): start it, or see to its name and firewalls"
        try:
            with raw, context.wrap_socket(raw) as way:
                way.settimeout(LISTEN)
                refused = way.recv(1) == b""
        except TimeoutError:  # the server waits for what we want
            return None
        except ssl.SSLCertVerificationError as error:
            return (
                f"{where} has a certificate of another authority, or one that is not valid now "
                f"({error.verify_message}): is this its federation, and is the clock right?"
            )
        except OSError:
            refused = True
        return f"{where} refuses this site's certificate: ask for a new kit" if refused else None

    def _check_port(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1" if self.host == LOCAL_SERVER else "", self.port))
            except OSError as error:
                raise KitError(
                    f"port {self.port} cannot be used ({error.strerror}); stop what listens there, "
                    "or make new kits with another --port"
                ) from error


def check_certificate(path: Path, remedy: str) -> None:
    """Complain about a certificate that is not valid now, with its dates and what to do."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise KitError(
            f"the certificate in {path} expired on {certificate.not_valid_after_utc:%Y-%m-%d}; "
            f"{remedy}"
        )
    if now < certificate.not_valid_before_utc:
        raise KitError(
            f"the certificate in {path} begins at {certificate.not_valid_before_utc:%F %T} UTC "
            f"and this machine's clock says {now:%F %T} UTC; set the clock"
        )


def configure_site(kit: Kit, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write the site's own file of facts into its kit; only its process reads it."""
    own = {"state": str(kit.state), **facts}
    write_json(kit.folder / "local" / SITE_FILE, own)
    return own


def run_in_foreground(
    kit: Kit, own: Mapping[str, str], follow: Callable[[], list[str]], say: Callable[[str], None]
) -> int:
    """Run a participant until it ends or is told to; `follow` gives new lines for a person.

    One that was killed is started again, so many times; if this program is killed itself, so is it.
    """
    process, keeper, restarts = kit.start(own), Keeper(), 0
    keeper.watch(process.pid)
    told: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: told.append(n))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        while not told:
            if process.poll() is not None:
                if process.returncode >= 0 or restarts == MOST_RESTARTS:
                    break
                restarts += 1
                say(f"killed by signal {-process.returncode}; started again ({restarts})")
                process = kit.start(own)
                keeper.watch(process.pid)
            time.sleep(POLL)
            for line in follow():
                say(line)
        if not told and process.returncode:
            say(f"ended with code {process.returncode}; see {kit.folder / 'console.log'}")
        return 0 if told else int(process.returncode or 0)
    finally:
        end_tree(process)
        keeper.done()
        for number, handler in before.items():
            signal.signal(number, handler)


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """End a participant at once with its job processes, which have sessions of their own."""
    import psutil

    victims = []
    with contextlib.suppress(psutil.NoSuchProcess):
        victims = psutil.Process(process.pid).children(recursive=True)
    if process.poll() is None:
        process.kill()
    process.wait(timeout=10)
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    psutil.wait_procs(victims, timeout=5)


class LedgerFollower:
    """New lines of a site's ledger in words."""

    def __init__(self, state: Path) -> None:
        from fedkin.privacy import Ledger

        self.ledger = Ledger(state / "ledger")
        self.seen = len(self.ledger.lines())

    def __call__(self) -> list[str]:
        """Lines since the last call."""
        lines = self.ledger.lines()
        new, self.seen = lines[self.seen :], len(lines)
        return [_in_words(line) for line in new]


def _in_words(line: Mapping[str, Any]) -> str:
    from fedkin.protocol import Reason

    where = f"run {line['run']}, round {line['round']} ({line['step']})"
    if line["withheld"] is not None and not line["round"]:
        told = line.get("story", "")
        return f"run {line['run']}: we take no part: {Reason[line['withheld']]} ({told})"
    if line["withheld"] is not None:
        story = f" ({line['story']})" if "story" in line else ""
        return f"{where}: nothing left: {Reason[line['withheld']]}{story}"
    size = sum(field["bytes"] for field in line["fields"].values())
    return f"{where}: {', '.join(line['fields'])} left, {size:,} bytes"


class RunsFollower:
    """New runs of a server and their ends, in words."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: dict[str, str] = self._state()

    def _state(self) -> dict[str, str]:
        runs = self.folder / "runs"
        found = {}
        for place in sorted(runs.iterdir()) if runs.is_dir() else []:
            ended = (place / "result.npz").exists()
            found[place.name] = "ended" if ended else "began"
        return found

    def __call__(self) -> list[str]:
        """What happened since the last call."""
        now = self._state()
        new = [f"run {run} {word}" for run, word in now.items() if self.seen.get(run) != word]
        self.seen = now
        return new
