"""What is submitted: a few JSON files, never code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.collab import collab

from fedkin.engines.journal import decode, encode
from fedkin.engines.nvflare.kits import (
    CONTROLLER,
    EXECUTOR,
    SERVER_CLASS,
    SITE_CLASS,
    write_json,
)
from fedkin.engines.site import check_run_name

SETTINGS_FILE = "settings.json"
# How the run ended, left in the job's workspace by the server's job process.
ENDING_FILE = "ending.json"
# Seconds between a site's looks for work; far below FLARE's default.
TASK_INTERVAL = 0.5


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
        write_json(place / "meta.json", {**meta, "min_clients": self.min_sites})
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
            write_json(config / f"config_fed_{role}.json", {**shared, **content})
            # A file of our own: in constructor arguments FLARE replaces {braces} and more.
            write_json(config / SETTINGS_FILE, encode(dict(settings)))
        return place


def job_settings() -> dict[str, Any]:
    """In a job process: the settings of this half of the job."""
    config = Path(collab.workspace.get_app_config_dir(collab.fl_ctx.get_job_id()))
    settings: dict[str, Any] = decode(json.loads((config / SETTINGS_FILE).read_text()))
    return settings
