"""In the server's job process: the drive loop, its journal, and the way to the sites."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.collab import collab

from fedkin.algorithms import algorithm as find_algorithm
from fedkin.arrays import Indices
from fedkin.engines.driver import Rules, SiteLost, drive
from fedkin.engines.journal import Journal, Record
from fedkin.engines.nvflare.jobs import ENDING_FILE, job_settings
from fedkin.engines.nvflare.kits import write_json
from fedkin.engines.site import check_run_name
from fedkin.protocol import Ask, Fault, Memory, QuorumLost, Reason, Roster, Run
from fedkin.protocol.gate import Batch, Faults

logger = logging.getLogger("fedkin.nvflare")


class Server:
    """The drive loop with its journal, in a folder of the server's that outlives jobs."""

    @collab.main
    def run(self) -> None:
        """Run or resume the program; how it ended is written to the job's workspace."""
        job = job_settings()
        place = Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id()))
        facts: dict[str, Any]
        try:
            run = self._drive(job)
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
            np.savez(place / "result.npz", allow_pickle=False, **run.result)
            facts = {
                "ended": "finished",
                "names": run.roster.names,
                "seed": run.roster.seed,
                "traffic": asdict(run.traffic),
                "refusals": [refusal.to_json() for refusal in run.refusals],
                "dropped": run.dropped,
            }
        write_json(place / ENDING_FILE, facts)

    def _drive(self, job: dict[str, Any]) -> Run:
        algorithm = find_algorithm(job["algorithm"])
        roster = Roster(tuple(job["sites"]), job["seed"])
        run = check_run_name(job["run"])
        journal = Journal(Path(os.environ["FEDKIN_SERVER"]) / "runs" / run)
        known = {name: job[name] for name in ("algorithm", "settings", "seed", "sites")}
        about = {name: job[name] for name in ("rules", "deadline")}
        journal.open({**known, "engine": "nvflare"}, about)
        link = _FlareLink(roster, job["deadline"])
        rules = Rules(**job["rules"])
        settings = algorithm.settings.from_mapping(job["settings"])
        return drive(algorithm, settings, roster, link, rules, journal, progress=False)


class _Aborted(RuntimeError):
    """FLARE ended the job; the open round must not be closed."""


class _FlareLink:
    """Asks all sites at once; acknowledgements ride on the next question."""

    gated = False
    last_error: Exception | None = None

    def __init__(self, roster: Roster, deadline: float) -> None:
        self.roster, self.deadline = roster, deadline
        self.acknowledged = np.zeros(len(roster), dtype=np.int64)

    def exchange(self, number: int, ask: Ask, asked: Indices) -> tuple[Sequence[Batch], Faults]:
        batches: list[Batch] = []
        failed: Faults = {}
        pending = {}
        for k in map(int, asked):
            try:
                pending[k] = self._call(number, ask, k)
            except RuntimeError:  # the site never came to this job
                failed[k] = Fault(Reason.LATE)
        for k, queue in pending.items():
            for _, reply in queue:
                arrays, fault = understood(reply)
                if fault is not None:
                    failed[k] = fault
                else:
                    batches.append((np.array([k]), arrays))
            if queue.failures:
                failed[k] = Fault(Reason.LATE)
        if collab.is_aborted:
            raise _Aborted(f"round {number}")
        return batches, failed

    def _call(self, number: int, ask: Ask, k: int) -> Any:
        personal = {name: array[k : k + 1] for name, array in ask.personal.items()}
        site = collab.get_clients([self.roster.names[k]])
        return site(blocking=False, timeout=self.deadline).answer(
            number,
            ask.step,
            list(ask.fields),
            int(self.acknowledged[k]),
            dict(ask.common),
            personal,
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
    if not isinstance(reply, dict) or not isinstance(reply.get("arrays"), dict):
        return {}, Fault(Reason.UNDECLARED)
    if reply.get("reason"):
        return {}, Fault.from_json(reply)
    return reply["arrays"], None
