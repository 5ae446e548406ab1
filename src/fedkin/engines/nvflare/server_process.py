"""In the server's job process: the drive loop, its journal, and the way to the sites."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.collab import collab

from fedkin.algorithms import algorithm as find_algorithm
from fedkin.engines.driver import Rules, SiteLost, drive
from fedkin.engines.job_checks import Checked, JobChecks, check_at_sites
from fedkin.engines.journal import Journal
from fedkin.engines.link import End, Question, SiteLink
from fedkin.engines.nvflare.jobs import ENDING_FILE, job_settings
from fedkin.engines.nvflare.kits import write_json
from fedkin.engines.opening import PATIENCE
from fedkin.engines.site import check_run_name
from fedkin.protocol import Fault, QuorumLost, Reason, Roster, Run
from fedkin.protocol.gate import Batch, Faults

logger = logging.getLogger("fedkin.nvflare")

# No fault of the job or the data: what becomes of such a site the rules of the run say.
A_MATTER_OF_RULES = (Reason.LATE, Reason.LOCKED, Reason.DISK, Reason.DIED)
# Problems of one site that the coordinator hears of.
MOST_PROBLEMS = 50
# What a site may say its version is.
VERSION = re.compile(r"[0-9A-Za-z.+]{1,40}")


class Server:
    """The drive loop with its journal, in a folder of the server's that outlives jobs."""

    @collab.main
    def run(self) -> None:
        """Run or resume the program; how it ended is written to the job's workspace."""
        job = job_settings()
        place = Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id()))
        facts: dict[str, Any]
        try:
            run, checked = self._drive(job)
        except _Aborted:
            raise
        except SiteLost as error:
            facts = {"ended": "site lost", "message": str(error), "passing": error.passing}
        except NotReady as error:
            facts = {"ended": "not ready", "problems": error.problems}
            facts["checked"] = error.checked.to_json()
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
                "left_out": {site: f.to_json() for site, f in run.left_out.items()},
                "checked": checked.to_json(),
            }
        write_json(place / ENDING_FILE, facts)

    def _drive(self, job: dict[str, Any]) -> tuple[Run, Checked]:
        algorithm = find_algorithm(job["algorithm"])
        roster = Roster(tuple(job["sites"]), job["seed"])
        run = check_run_name(job["run"])
        journal = Journal(server_folder() / "runs" / run)
        known = {name: job[name] for name in ("algorithm", "settings", "seed", "sites", "features")}
        known |= {name: job[name] for name in ("schema", "weights") if job[name]}
        about = {name: job[name] for name in ("rules", "deadline")}
        columns = tuple(job["columns"])
        link = _FlareLink(roster, job["deadline"], columns)
        rules = Rules(**job["rules"])
        settings = algorithm.settings.from_mapping(job["settings"])
        # The process of a job that was killed with its parent may take a moment to end.
        journal.open({**known, "engine": "nvflare"}, about, patience=PATIENCE)
        try:
            checked = Checked()
            if not journal.rounds():
                said, failed = link.check()
                check_sites(roster, rules, said, failed)
                if job["checks"] is not None:
                    ready = [name for k, name in enumerate(roster.names) if k not in failed]
                    checked = self._checked(JobChecks.from_mapping(job["checks"]), ready, link)
            ended = drive(algorithm, settings, roster, link, rules, journal, progress=False)
            return ended, checked
        finally:
            journal.close()

    def _checked(self, wanted: JobChecks, ready: Sequence[str], link: _FlareLink) -> Checked:
        """What the library's checks say at the sites; a code that the job names stops the run."""
        checked = check_at_sites(ready, link.for_checks).without(wanted.ignore)
        if checked.stops(wanted.stop):
            raise NotReady([], checked)
        return checked


def check_sites(
    roster: Roster, rules: Rules, said: Mapping[int, Mapping[str, Any]], failed: Faults
) -> None:
    """Before the first round: whoever cannot take part stops the run, with a table of problems.

    A site that is silent, or ails without being asked wrongly, is a matter of the rules, as in any
    round.
    """
    found = [facts["n_features"] for k, facts in said.items() if k not in failed]
    usual = max(set(found), key=found.count) if found else 0
    faults = dict(failed)
    for k, facts in said.items():
        if k not in failed and facts["n_features"] != usual:
            faults[k] = Fault(Reason.SHAPE)
    problems = [
        {"site": roster.names[k], **fault.to_json(), "version": said[k]["version"]}
        for k in sorted(faults)
        if k in said and faults[k].reason not in A_MATTER_OF_RULES
        for fault in (faults[k], *said[k]["problems"])
    ]
    if problems:
        raise NotReady(problems)
    silent = {roster.names[k]: fault for k, fault in sorted(faults.items())}
    if silent and rules.on_loss == "wait":
        raise SiteLost(silent)


class NotReady(RuntimeError):
    """Some sites cannot take part as they are; `problems` and `checked` say which and why."""

    def __init__(
        self, problems: Sequence[Mapping[str, Any]], checked: Checked | None = None
    ) -> None:
        super().__init__("some sites cannot take part as they are")
        self.problems = [dict(problem) for problem in problems]
        self.checked = checked or Checked()


def server_folder() -> Path:
    """Where the server keeps its runs: what the environment says, else in its own kit."""
    told = os.environ.get("FEDKIN_SERVER")
    return Path(told) if told else Path(collab.workspace.get_site_config_dir()).parent / "fedkin"


class _Aborted(RuntimeError):
    """FLARE ended the job; the open round must not be closed."""


class _FlareLink(SiteLink):
    """Asks all sites at once; acknowledgements ride on the next question."""

    call = "answer"

    def __init__(self, roster: Roster, deadline: float, columns: Sequence[str] = ()) -> None:
        super().__init__(roster)
        self.deadline, self.columns = deadline, columns

    def for_checks(self, roster: Roster) -> _ChecksLink:
        """The way to the halves that answer the library's checks."""
        return _ChecksLink(roster, self.deadline, self.columns)

    def put(self, questions: Mapping[int, Question]) -> tuple[Sequence[Batch], Faults]:
        """One call for every site, side by side."""
        replies, failed = self._calls({k: _arguments(q) for k, q in questions.items()}, self.call)
        batches: list[Batch] = []
        for k, reply in replies.items():
            arrays, fault = understood(reply, self.columns)
            if fault is not None:
                failed[k] = fault
            else:
                batches.append((np.array([k]), arrays))
        return batches, failed

    def check(self) -> tuple[dict[int, dict[str, Any]], Faults]:
        """What every site says of its data before the first round: facts, or what is wrong."""
        replies, failed = self._calls(dict.fromkeys(range(len(self.roster)), ()), "check")
        said = {}
        for k, reply in replies.items():
            _, fault = understood(reply, self.columns)
            if fault is not None:
                failed[k] = fault
            said[k] = {"version": _version(reply), "n_features": _whole(reply, "n_features")}
            said[k]["problems"] = _others(reply, self.columns)
        return said, failed

    def _calls(
        self, arguments: Mapping[int, tuple[Any, ...]], what: str
    ) -> tuple[dict[int, Any], Faults]:
        replies: dict[int, Any] = {}
        failed: Faults = {}
        pending = {}
        for k, given in arguments.items():
            try:
                site = collab.get_clients([self.roster.names[k]])
                call = getattr(site(blocking=False, timeout=self.deadline), what)
                pending[k] = call(*given)
            except RuntimeError:  # the site never came to this job
                failed[k] = Fault(Reason.LATE)
        for k, queue in pending.items():
            for _, reply in queue:
                replies[k] = reply
            if queue.failures:
                failed[k] = Fault(Reason.LATE)
        if collab.is_aborted:
            raise _Aborted(what)
        return replies, failed

    def end(self, ends: Mapping[int, End]) -> Faults:
        """Tell every site its last reply that counted, and its model."""
        arguments = {k: (int(end.acknowledged), end.model) for k, end in ends.items()}
        replies, failed = self._calls(arguments, "finish")
        for k, reply in replies.items():
            _, fault = understood(reply, self.columns)
            if fault is not None:
                failed[k] = fault
        return failed


class _ChecksLink(_FlareLink):
    """Asks what the library's checks say; nothing is remembered of it."""

    call = "look"

    def end(self, ends: Mapping[int, End]) -> Faults:
        """There is nothing to keep."""
        return {}


def _arguments(question: Question) -> tuple[Any, ...]:
    ask = question.ask
    head = (question.number, ask.step, list(ask.fields), question.acknowledged)
    return (*head, dict(ask.common), dict(ask.personal))


def _version(reply: Any) -> str:
    told = reply.get("version") if isinstance(reply, dict) else None
    return told if isinstance(told, str) and VERSION.fullmatch(told) else "unknown"


def _others(reply: Any, columns: Sequence[str]) -> list[Fault]:
    """What else is wrong at a site, beyond the first fault."""
    told = reply.get("problems") if isinstance(reply, dict) else None
    if not isinstance(told, list):
        return []
    return [Fault.from_json(one, columns) for one in told[1:MOST_PROBLEMS]]


def _whole(reply: Any, name: str) -> int:
    told = reply.get(name) if isinstance(reply, dict) else None
    return told if isinstance(told, int) else -1


def understood(reply: Any, columns: Sequence[str] = ()) -> tuple[dict[str, Any], Fault | None]:
    """A site's reply, whatever it may be: its arrays, or what is wrong."""
    if not isinstance(reply, dict) or not isinstance(reply.get("arrays"), dict):
        return {}, Fault(Reason.UNDECLARED)
    reason = reply.get("reason", "")
    if not isinstance(reason, str) or reason:
        return {}, Fault.from_json(reply, columns)
    return reply["arrays"], None
