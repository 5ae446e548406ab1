"""In a site's job process: its data, memory and ledger, and the answers to the server."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.collab import collab
from nvflare.collab.api.context import get_call_context

import fedkin
from fedkin.durable import FolderLock
from fedkin.engines.job_checks import open_checks, write_words
from fedkin.engines.nvflare.jobs import job_settings
from fedkin.engines.opening import open_site, own_state, site_facts
from fedkin.engines.site import SiteHalf
from fedkin.engines.site_data import fault_of, faults_of
from fedkin.protocol import Ask, Fault, Reason

logger = logging.getLogger("fedkin.nvflare")

# What a site's calls come from; a peer site may not ask.
SERVER_NAME = "server"
# The site's own file of facts in the `local` folder of its kit.
SITE_FILE = "fedkin_site.json"
# Seconds between looks whether FLARE ends the job.
POLL = 0.1


class Site:
    """Answers questions about the site's own data; one question at a time.

    FLARE calls `answer` from several threads, and a step that outlived its deadline runs on
    beside the next call: such a site says it is late instead of answering twice at once.
    """

    def __init__(self) -> None:
        self.half: SiteHalf | None = None
        self.checks: SiteHalf | None = None
        self.faults: tuple[Fault, ...] = (Fault(Reason.LATE),)
        self._busy = threading.Lock()
        self._lock: FolderLock | None = None

    @collab.init
    def open(self) -> None:
        """Load what the site's own file names; the story of a failure stays in the site's log."""
        try:
            told = os.environ.get("FEDKIN_SITE")
            place = Path(collab.workspace.get_site_config_dir()) / SITE_FILE
            facts = site_facts(told or place)
            self._lock = own_state(Path(facts["state"]))
            self.half = open_site(collab.site_name, facts, job_settings(), _submitter())
            self.faults = ()
            self._watch_for_the_end()
        except Exception as error:
            logger.exception("the site could not be opened")
            self.faults = faults_of(error)

    def _watch_for_the_end(self) -> None:
        """A job that FLARE ends while a step is at work is no death of this process."""
        signal, half = get_call_context().abort_signal, self.half

        def watch() -> None:
            while not signal.triggered:
                time.sleep(POLL)
            if half is not None:
                half.deaths.idle()

        threading.Thread(target=watch, daemon=True).start()

    @collab.publish
    def check(self) -> dict[str, Any]:
        """What the coordinator is told before the first round; nothing about rows."""
        if collab.caller != SERVER_NAME:
            return _word(Fault(Reason.ERROR))
        facts: dict[str, Any] = {"version": fedkin.__version__, "n_features": -1}
        if self.half is not None:
            facts["n_features"] = self.half.clients.n_features
        problems = [fault.to_json() for fault in self.faults]
        return {**_word(self._fault()), **facts, "problems": problems}

    def _fault(self) -> Fault | None:
        return self.faults[0] if self.faults else None

    @collab.publish
    def look(
        self,
        number: int,
        step: str,
        fields: list[str],
        acknowledged: int,
        common: dict[str, Any],
        personal: dict[str, Any],
    ) -> dict[str, Any]:
        """A question of the library's checks, before the first round."""
        asked = number, Ask(step, common, personal, tuple(fields)), acknowledged
        return self._answered(self._checks, *asked)

    def _checks(self, half: SiteHalf) -> SiteHalf:
        if self.checks is None:
            write_words(half)
            self.checks = open_checks(half)
        return self.checks

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
        asked = number, Ask(step, common, personal, tuple(fields)), acknowledged
        return self._answered(lambda half: half, *asked)

    def _answered(
        self, choose: Callable[[SiteHalf], SiteHalf], number: int, ask: Ask, acknowledged: int
    ) -> dict[str, Any]:
        if collab.caller != SERVER_NAME:
            return _word(Fault(Reason.ERROR))
        if self.half is None:
            return _word(self._fault())
        if not self._busy.acquire(blocking=False):
            return _word(Fault(Reason.LATE))
        try:
            leaves = choose(self.half).answer(number, ask, acknowledged)
        except Exception as error:
            logger.exception("a question could not be taken up")
            return _word(fault_of(error))
        finally:
            self._busy.release()
        if leaves.fault is not None:
            return _word(leaves.fault)
        return {"reason": "", "field": "", "arrays": dict(leaves.arrays)}

    @collab.publish
    def finish(self, acknowledged: int, model: dict[str, Any]) -> dict[str, Any]:
        """The run is over; keep what went with the last accepted reply, and the site's model."""
        if collab.caller != SERVER_NAME:
            return _word(Fault(Reason.ERROR))
        if self.half is None:
            return _word(self._fault())
        with self._busy:
            try:
                return _word(self.half.finish(acknowledged, model))
            except Exception as error:
                logger.exception("the last memory could not be kept")
                return _word(fault_of(error))


def _submitter() -> str | None:
    """Who submitted the job, as the server says."""
    meta = collab.fl_ctx.get_prop(FLContextKey.JOB_META)
    name = meta.get("submitter_name") if isinstance(meta, dict) else None
    return name if isinstance(name, str) else None


def _word(fault: Fault | None) -> dict[str, Any]:
    told = {"reason": "", "field": ""} if fault is None else fault.to_json()
    return {**told, "arrays": {}}
