"""Kits whose keys never travel: a participant makes a key and asks, the coordinator signs.

FLARE's own flow (`nvflare cert`, `nvflare package`). What travels is a request (a public key and a
name) and the answer to it (a certificate and where the server is); both may be read by anybody.
That nobody put himself between is seen by comparing two fingerprints by another way, by telephone
say: of the request's key when it is approved, of the authority when the kit is assembled.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.durable import close_to_others, private_folder
from fedkin.engines.nvflare.kits import (
    ADMIN,
    KITS_FILE,
    PROJECT,
    Kits,
    check_site_name,
    free_port,
    write_json,
    write_policy,
)
from fedkin.engines.nvflare.participants import KitError

# JSON is YAML, which is what FLARE reads.
PROFILE, AUTHORITY, PARTICIPANT = "profile.yml", "authority", "participant.yml"
# How the answer to a request must be called for FLARE to take it.
ANSWER = ".signed.zip"
# Who holds which key, by name, as it was approved.
APPROVED = "approved.json"
# Seconds a command of FLARE's may take, and the most a request may hold.
PATIENCE = 120
LARGEST_REQUEST = 1 << 20
VALID_DAYS = 360
# FLARE does not sign a project_admin by request; at our sites a lead may do the same.
ROLE = "lead"


@dataclass(frozen=True)
class Request:
    """Who asks for a certificate, and for which key."""

    name: str
    kind: str
    key: str

    @classmethod
    def read(cls, path: str | Path) -> Request:
        """What a request says of itself; FLARE checks it against the key when it signs."""
        try:
            with zipfile.ZipFile(path) as parts:
                if parts.getinfo("request.json").file_size > LARGEST_REQUEST:
                    raise ValueError("too large")
                told = json.loads(parts.read("request.json"))
            return cls(str(told["name"]), str(told["kind"]), str(told["public_key_sha256"]))
        except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
            raise KitError(f"{path} is not a request for a certificate ({error})") from error


def open_federation(folder: str | Path, host: str, port: int | None = None) -> Kits:
    """Make the authority and the coordinator's own kit; everybody else asks."""
    folder = private_folder(Path(folder).resolve())
    port = port or free_port()
    server = {"host": host, "fed_learn_port": port, "admin_port": port}
    profile = {"name": PROJECT, "scheme": "grpc", "connection_security": "mtls", "server": server}
    write_json(folder / PROFILE, profile)
    _flare("cert", "init", "--profile", folder / PROFILE, "-o", folder / AUTHORITY)
    _keep(folder, host, port, {})
    renew_coordinator(folder)
    return Kits.load(folder)


def renew_coordinator(folder: str | Path) -> None:
    """Make the coordinator's own kit, with a new key; an old one is replaced when it is ready."""
    folder = Path(folder).resolve()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        own = request(ADMIN, Path(place) / "request", {"type": "admin", "role": ROLE})
        signed = _sign(folder, own, Path(place) / f"{ADMIN}{ANSWER}")
        made = assemble(signed, own.parent, Path(place) / "kit", fingerprint(folder))
        shutil.copyfile(folder / KITS_FILE, made / KITS_FILE)
        shutil.rmtree(folder / ADMIN, ignore_errors=True)
        shutil.move(made, folder / ADMIN)
    close_to_others(folder)


def request_site(name: str, folder: str | Path) -> Path:
    """Make a site's key, and the request to send to the coordinator."""
    check_site_name(name)
    return request(name, Path(folder), {"type": "client"})


def request_server(host: str, folder: str | Path, port: int) -> Path:
    """Make the server's key, and the request to send to the coordinator."""
    told = {"type": "server", "fed_learn_port": port, "admin_port": port}
    return request(host, Path(folder), told)


def request(name: str, folder: Path, participant: Mapping[str, Any]) -> Path:
    """Make a key in this folder, and a request for it."""
    if folder.exists():
        raise KitError(f"{folder} exists already; choose another folder")
    private_folder(folder)
    about = {"name": PROJECT, "participants": [{"name": name, "org": PROJECT, **participant}]}
    write_json(folder / PARTICIPANT, about)
    told = _flare("cert", "request", "-p", folder / PARTICIPANT, "--out", folder, "--force")
    close_to_others(folder)
    return Path(told["request_zip"])


def approve(folder: str | Path, path: str | Path, out: Path, renew: bool = False) -> Request:
    """Sign a request of a site or of the server; a coordinator is nobody's by request."""
    if not out.name.endswith(ANSWER):
        raise KitError(f"{out}: the answer to a request must be called NAME{ANSWER}")
    folder, asked = Path(folder), Request.read(path)
    facts = json.loads((folder / KITS_FILE).read_text())
    approved = json.loads((folder / APPROVED).read_text())
    if asked.kind not in ("site", "server"):
        raise KitError(f"{path} asks to be a {asked.kind}; only sites and the server are approved")
    if asked.kind == "site":
        check_site_name(asked.name, facts["host"])
    elif asked.name != facts["host"]:
        raise KitError(f"{path} asks to be server {asked.name!r}; the server is {facts['host']!r}")
    if approved.get(asked.name, asked.key) != asked.key and not renew:
        raise KitError(
            f"{asked.name!r} was approved with another key; ask its owner, then --renew if the new "
            "one is right (the old certificate stays valid until it expires)"
        )
    _sign(folder, Path(path), out)
    if asked.kind == "site":
        facts["withdrawn"] = [name for name in facts.get("withdrawn", []) if name != asked.name]
    _keep(folder, facts["host"], facts["port"], {**approved, asked.name: asked.key}, facts)
    return asked


def _sign(folder: Path, path: Path, out: Path) -> Path:
    authority = ("-c", folder / AUTHORITY, "--profile", folder / PROFILE)
    options = ("--valid-days", VALID_DAYS, "--force")
    _flare("cert", "approve", path, *authority, "--out", out, *options)
    return out


def assemble(signed: Path, key_folder: Path, kit: Path, authority: str) -> Path:
    """Make the kit from the own key and the answer; another authority is refused."""
    if kit.exists():
        raise KitError(f"{kit} exists already; choose another folder")
    with tempfile.TemporaryDirectory(dir=private_folder(kit.parent)) as place:
        options = ("--request-dir", key_folder, "-w", place, "--fingerprint", authority)
        made = Path(_flare("package", signed, *options)["output_dir"])
        if not (made / "startup" / "fed_admin.json").exists():
            write_policy(made / "local")
        close_to_others(made)
        shutil.move(made, kit)
    return kit


def fingerprint(folder: str | Path) -> str:
    """The authority's fingerprint, to be compared by telephone."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    path = Path(folder) / AUTHORITY / "rootCA.pem"
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return "SHA256:" + certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def _keep(
    folder: Path,
    host: str,
    port: int,
    approved: Mapping[str, str],
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write down who was approved, for the coordinator's kit, too."""
    sites = [name for name in approved if name != host]
    told = {**(facts or {}), "host": host, "port": port, "sites": sites}
    write_json(folder / APPROVED, dict(approved))
    for place in (folder, folder / ADMIN):
        if place.is_dir():
            write_json(place / KITS_FILE, told)


def _flare(*words: object) -> dict[str, Any]:
    """Run a command of FLARE's; what it complains about is said in its words."""
    command = [sys.executable, "-m", "nvflare.cli", "--format", "json", *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=PATIENCE
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    told = json.loads(lines[-1]) if lines else {}
    if done.returncode or told.get("status") != "ok":
        said = told.get("message") or done.stderr.strip()[-500:] or f"code {done.returncode}"
        raise KitError(f"FLARE could not do it: {said} {told.get('hint', '')}".strip())
    return dict(told["data"])
