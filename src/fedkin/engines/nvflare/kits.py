"""Start-up kits: a certificate authority, mutual TLS, and the policy of every participant."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.durable import close_to_others, private_folder, write_bytes
from fedkin.engines.site import RUN_NAME

logger = logging.getLogger("fedkin.nvflare")

PROJECT = "fedkin"
ADMIN = "admin@fedkin.org"
# This very name makes FLARE listen on 127.0.0.1 only; a real server gives its own host name.
LOCAL_SERVER = "localhost"
CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
# Policies at the sites name these two: they stay where they are, whatever file holds the code.
SITE_CLASS = "fedkin.engines.nvflare.Site"
SERVER_CLASS = "fedkin.engines.nvflare.Server"
ALLOWED = (CONTROLLER, EXECUTOR, SITE_CLASS, SERVER_CLASS)
# By default FLARE sends a site's error log, tracebacks and all, to the server.
LOG_STREAMERS = ("site_log_streamer", "log_receiver")
# What kits there are, beside them.
KITS_FILE = "kits.json"
# Roles of a coordinator: of kits made in one place, and of kits made by request.
COORDINATORS = ("project_admin", "lead")
# Seconds until the server forgets a silent site; far below FLARE's default.
FORGET_SITE = 60


@dataclass(frozen=True)
class Kits:
    """Start-up kits on disk: keys, certificates and policy of every participant."""

    port: int
    server: Path
    admin: Path
    sites: dict[str, Path]
    host: str = LOCAL_SERVER

    @classmethod
    def load(cls, folder: str | Path) -> Kits:
        """The kits that `provision` made in this folder, wherever it stands now."""
        found = cls._file(folder)
        facts, root = json.loads(found.read_text()), found.parent
        # The coordinator's kit alone: the others are elsewhere, and only their names matter.
        alone = (root / "startup" / "fed_admin.json").exists()
        admin, root = (root, root.parent) if alone else (root / ADMIN, root)
        gone = facts.get("withdrawn", [])
        sites = {site: root / site for site in facts["sites"] if site not in gone}
        return cls(facts["port"], root / facts["host"], admin, sites, facts["host"])

    @classmethod
    def _file(cls, folder: str | Path) -> Path:
        top = Path(folder).resolve()
        places = [top / KITS_FILE, *sorted(top.glob(f"{PROJECT}/prod_*/{KITS_FILE}"))]
        found = [place for place in places if place.exists()]
        if not found:
            raise ValueError(f"{folder} holds no start-up kits of fedkin ({KITS_FILE} is missing)")
        return found[-1]

    @classmethod
    def withdraw(cls, folder: str | Path, site: str) -> None:
        """Leave a site out of whatever is submitted from these kits from now on."""
        known = cls.load(folder)
        if site not in known.sites:
            raise ValueError(f"there is no site {site!r}; there are {', '.join(known.sites)}")
        if len(known.sites) == 1:
            raise ValueError(f"{site!r} is the only site that is left")
        top = cls._file(folder)
        # The coordinator's kit beside the others, or the folder around a kit, says the same.
        for path in {top, known.admin / KITS_FILE, known.admin.parent / KITS_FILE}:
            if path.exists():
                facts = json.loads(path.read_text())
                facts["withdrawn"] = sorted({*facts.get("withdrawn", []), site})
                write_json(path, facts)

    @property
    def address(self) -> tuple[str, int]:
        """Where the server listens."""
        return ("127.0.0.1" if self.host == LOCAL_SERVER else self.host), self.port


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
        check_site_name(site, host)
    if len(set(sites)) < len(sites):
        raise ValueError("two sites have the same name; rename one of them")
    port = port or free_port()
    project = _project(sites, host, port)
    made = Provisioner(str(folder), prepare_builders(project)).provision(
        prepare_project(project), logger=logger
    )
    if made.get("build_error"):
        raise RuntimeError(f"FLARE could not provision below {folder}: {made.get_errors()}")
    root = Path(made["current_prod_dir"]).resolve()
    kits = Kits(port, root / host, root / ADMIN, {site: root / site for site in sites}, host)
    for kit in (kits.server, *kits.sites.values()):
        write_policy(kit / "local")
    # The coordinator may have its own kit only: it knows the others' names, not their keys.
    for place in (root, kits.admin):
        write_json(place / KITS_FILE, {"host": host, "port": port, "sites": list(sites)})
    # FLARE leaves the keys of everybody readable for everybody.
    close_to_others(Path(folder))
    return kits


def free_port() -> int:
    """A port of this machine that nobody uses."""
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


def check_site_name(site: str, host: str = "server") -> None:
    """A site's name is also a folder's, and nobody else's."""
    if not RUN_NAME.fullmatch(site) or site in (host, "server"):
        raise ValueError(
            f"site {site!r}: a deployed site's name may have letters, digits, '_', '.' and "
            "'-' only; rename it"
        )


def write_policy(local: Path) -> None:
    """The participant's own rules: no code comes in, only our classes run, all stays in the kit."""
    resources = json.loads((local / "resources.json.default").read_text())
    resources["class_allow_list"] = list(ALLOWED)
    resources["allow_log_streaming"] = False
    parts = [part for part in resources["components"] if part["id"] not in LOG_STREAMERS]
    resources["components"] = parts
    if "snapshot_persistor" in resources:
        resources["servers"][0]["heart_beat_timeout"] = FORGET_SITE
    write_json(local / "resources.json", resources)
    authorization = json.loads((local / "authorization.json.default").read_text())
    may = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
    rights = dict.fromkeys(may, "any") | {"shell_commands": "none", "byoc": "none"}
    authorization["permissions"] = dict.fromkeys(COORDINATORS, rights)
    write_json(local / "authorization.json", authorization)


def settle_storage(kit: Path) -> None:
    """Jobs and snapshots of a server are kept in its kit, wherever that stands now."""
    path, storage = kit / "local" / "resources.json", kit / "storage"
    resources = json.loads(path.read_text())
    place = resources["snapshot_persistor"]["args"]["storage"]["args"]
    place["root_dir"] = str(storage / "snapshots")
    manager = next(part for part in resources["components"] if part["id"] == "job_manager")
    manager["args"]["uri_root"] = str(storage / "jobs")
    write_json(path, resources)


def write_json(path: Path, content: object) -> None:
    """Write a small file of FLARE's or ours."""
    private_folder(path.parent)
    write_bytes(path, json.dumps(content, indent=1).encode())
