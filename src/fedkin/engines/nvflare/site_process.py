"""In a site's job process: its data, memory and ledger, and the answers to the server."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.collab import collab

from fedkin.algorithms import algorithm as find_algorithm
from fedkin.engines.nvflare.jobs import job_settings
from fedkin.engines.site import SiteHalf
from fedkin.federation import Federation
from fedkin.frames import plain_names
from fedkin.protocol import Ask, Fault, Reason

logger = logging.getLogger("fedkin.nvflare")

# What a site's calls come from; a peer site may not ask.
SERVER_NAME = "server"
# Seconds between looks at a lock that somebody else holds.
POLL = 0.2


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
            self.half = self._load(job_settings())
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
        settings = algorithm.settings.at_site(job["settings"])
        return SiteHalf(algorithm, settings, clients, job["seed"], job["run"], state, least)

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
        fields: list[str],
        acknowledged: int,
        common: dict[str, Any],
        personal: dict[str, Any],
    ) -> dict[str, Any]:
        """One question of the server's; the reply is declared arrays or a word."""
        if self.half is None or collab.caller != SERVER_NAME:
            return _word(Fault(Reason.ERROR))
        if not self._busy.acquire(blocking=False):
            return _word(Fault(Reason.LATE))
        try:
            ask = Ask(step, common, personal, tuple(fields))
            leaves = self.half.answer(number, ask, acknowledged)
        finally:
            self._busy.release()
        if leaves.fault is not None:
            return _word(leaves.fault)
        return {"reason": "", "field": "", "arrays": dict(leaves.arrays)}

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


def _word(fault: Fault) -> dict[str, Any]:
    return {**fault.to_json(), "arrays": {}}


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
