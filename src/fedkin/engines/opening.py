"""A site takes up a run: its own file of facts, the job's words, and the data between them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import fedkin
from fedkin.algorithms import algorithm as find_algorithm
from fedkin.durable import FolderLock
from fedkin.engines.schema import JobSchema
from fedkin.engines.site import MOST_DEATHS, Deaths, SiteHalf, check_run_name
from fedkin.engines.site_data import CannotTakePart, fault_of, site_data
from fedkin.engines.site_report import CHECKS_RUN
from fedkin.privacy.disclosure import DisclosureRules
from fedkin.privacy.ledger import Ledger
from fedkin.privacy.policy import PolicyError, SitePolicy
from fedkin.protocol import Fault, ProtocolError, Reason

logger = logging.getLogger("fedkin.site")

# Seconds to wait for a folder that a process from before still holds.
PATIENCE = 30.0
DAY = 24 * 3600.0
# What the ledger calls the look at a job before its first question.
OPENING = "opening"
# Words by which the coordinator hears something of a table that takes no part.
ABOUT_THE_TABLE = frozenset(
    reason.name
    for reason in (
        *(Reason.COLUMN, Reason.NUMBER, Reason.VALUES, Reason.WHOLE),
        *(Reason.LEVEL, Reason.UNIT, Reason.RANGE),
    )
)


def site_facts(path: str | Path) -> dict[str, Any]:
    """A site's own file: where its data and its state are; only the site reads it."""
    path = Path(path)
    if not path.exists():
        raise CannotTakePart(
            Fault(Reason.DATA), f"{path} is missing; it names the site's data (fedkin site run)"
        )
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    facts.setdefault("state", str(path.parent.parent / "fedkin"))
    return facts


def open_site(
    name: str, facts: Mapping[str, Any], job: Mapping[str, Any], submitter: str | None = None
) -> SiteHalf:
    """The site's half of a run; `CannotTakePart` or another error if there can be none.

    The caller owns the state folder (`own_state`) as long as the half lives. That it takes no part,
    and why, is written down in its ledger.
    """
    try:
        return _opened(name, facts, job, submitter)
    except Exception as error:
        _write_down(Path(facts["state"]), name, check_run_name(job["run"]), error)
        raise


def _opened(
    name: str, facts: Mapping[str, Any], job: Mapping[str, Any], submitter: str | None
) -> SiteHalf:
    if job["version"] != fedkin.__version__:
        raise CannotTakePart(
            Fault(Reason.VERSION),
            f"the coordinator has fedkin {job['version']}, this site {fedkin.__version__}",
        )
    state = Path(facts["state"])
    deaths = Deaths(state / check_run_name(job["run"]))
    n_deaths = deaths.begin()
    if n_deaths >= MOST_DEATHS:
        raise CannotTakePart(
            Fault(Reason.DIED),
            f"the process died {n_deaths} times at work on run {job['run']!r}; see to it, then "
            f"remove {deaths.count_file} to take part again",
        )
    deaths.busy()
    try:
        return _open(name, facts, job, state, submitter)
    finally:
        deaths.idle()


def _write_down(state: Path, name: str, run: str, error: Exception) -> None:
    """That the site takes no part in a run, and why, for the site itself."""
    story = error.story if isinstance(error, CannotTakePart) else f"{type(error).__name__}: {error}"
    try:
        ledger = Ledger(state / "ledger")
        ledger.record(run, 0, OPENING, [name], {}, fault_of(error).reason, story)
    except OSError:
        logger.exception("the ledger cannot be written")


def _open(
    name: str,
    facts: Mapping[str, Any],
    job: Mapping[str, Any],
    state: Path,
    submitter: str | None,
) -> SiteHalf:
    try:
        algorithm = find_algorithm(job["algorithm"])
        settings = algorithm.settings.at_site(job["settings"])
    except (ValueError, KeyError, ProtocolError) as error:
        raise CannotTakePart(Fault(Reason.VERSION), f"the job is not known here: {error}") from None
    # Who may not ask hears nothing of the table, not even which columns it has.
    least, policy = int(facts.get("least_rows", 0)), policy_of(facts)
    for method in (algorithm.name, *algorithm.made_of(settings)):
        _allow(policy, method, submitter, job["run"], state)
    target = job.get("target") or facts.get("target")
    try:
        schema = JobSchema.from_mapping(job.get("schema", {}))
    except ValueError as error:
        raise CannotTakePart(Fault(Reason.VERSION), f"the job's schema: {error}") from None
    units = facts.get("units", {})
    given = (name, facts["data"], target, job["features"], schema, units, job.get("weights"))
    clients = site_data(*given)
    run, seed = job["run"], job["seed"]
    return SiteHalf(algorithm, settings, clients, seed, run, state, least, policy=policy)


def policy_of(facts: Mapping[str, Any]) -> SitePolicy:
    """The site's policy: its file, or disclosure rules by name; `false` lifts the rules."""
    if "policy" in facts:
        try:
            return SitePolicy.read(facts["policy"])
        except PolicyError as error:
            raise CannotTakePart(Fault(Reason.POLICY), str(error)) from error
    told = facts.get("disclosure", {})
    if told is False:
        logger.warning("the disclosure rules are lifted at this site")
        return SitePolicy(disclosure=None)
    return SitePolicy(disclosure=DisclosureRules.from_mapping(told))


def _allow(policy: SitePolicy, method: str, submitter: str | None, run: str, state: Path) -> None:
    """Refuse a run by the site's policy; one that has begun goes on."""
    if run.endswith(CHECKS_RUN):
        raise CannotTakePart(Fault(Reason.POLICY), f"names that end in {CHECKS_RUN} are our own")
    if (state / run / "run.json").exists():
        return
    refused = policy.refuses_run(method, submitter, _runs_of_a_day(state))
    if refused is None and policy.approve and not approval(state, method).exists():
        refused = f"the first run of {method} awaits approval: fedkin site approve {state} {method}"
    if refused is not None:
        raise CannotTakePart(Fault(Reason.POLICY), refused)


def approval(state: Path, method: str) -> Path:
    """The file by which an operator has approved a method."""
    return state / "approved" / check_run_name(method)


def _runs_of_a_day(state: Path) -> int:
    """Runs that began in 24 hours, and looks at the table that ended in words about it."""
    since = time.time() - DAY
    runs = [path for path in state.glob("*/run.json") if not path.parent.name.endswith(CHECKS_RUN)]
    looks = [
        line
        for line in Ledger(state / "ledger").lines()
        if line["step"] == OPENING and line["withheld"] in ABOUT_THE_TABLE
    ]
    times = [path.stat().st_mtime for path in runs]
    times += [datetime.fromisoformat(line["time"]).timestamp() for line in looks]
    return sum(when > since for when in times)


def own_state(state: Path, patience: float = PATIENCE) -> FolderLock:
    """A process left over from before a crash must be gone before we touch its memory."""
    lock = FolderLock(state)
    lock.take(patience)
    return lock
