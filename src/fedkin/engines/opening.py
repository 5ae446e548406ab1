"""A site takes up a run: its own file of facts, the job's words, and the data between them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedkin
from fedkin.algorithms import algorithm as find_algorithm
from fedkin.durable import FolderLock, Locked
from fedkin.engines.site import MOST_DEATHS, Deaths, SiteHalf, check_run_name
from fedkin.engines.site_data import CannotTakePart, site_data
from fedkin.privacy.disclosure import DisclosureRules
from fedkin.protocol import Fault, ProtocolError, Reason

logger = logging.getLogger("fedkin.site")

# Seconds between looks at a lock that somebody else holds, and how long to look.
POLL = 0.2
PATIENCE = 30.0


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


def open_site(name: str, facts: Mapping[str, Any], job: Mapping[str, Any]) -> SiteHalf:
    """The site's half of a run; `CannotTakePart` or another error if there can be none.

    The caller owns the state folder (`own_state`) as long as the half lives.
    """
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
        return _open(name, facts, job, state)
    finally:
        deaths.idle()


def _open(name: str, facts: Mapping[str, Any], job: Mapping[str, Any], state: Path) -> SiteHalf:
    try:
        algorithm = find_algorithm(job["algorithm"])
        settings = algorithm.settings.at_site(job["settings"])
    except (ValueError, KeyError, ProtocolError) as error:
        raise CannotTakePart(Fault(Reason.VERSION), f"the job is not known here: {error}") from None
    target = job.get("target") or facts.get("target")
    clients = site_data(name, facts["data"], target, job["features"])
    least, rules = int(facts.get("least_rows", 0)), rules_of(facts)
    run, seed = job["run"], job["seed"]
    return SiteHalf(algorithm, settings, clients, seed, run, state, least, rules)


def rules_of(facts: Mapping[str, Any]) -> DisclosureRules | None:
    """A site's disclosure rules: the defaults, its own by name, or `false` for none at all."""
    told = facts.get("disclosure", {})
    if told is False:
        logger.warning("the disclosure rules are lifted at this site")
        return None
    return DisclosureRules.from_mapping(told)


def own_state(state: Path, patience: float = PATIENCE) -> FolderLock:
    """A process left over from before a crash must be gone before we touch its memory."""
    lock = FolderLock(state)
    deadline = time.monotonic() + patience
    while True:
        try:
            lock.take()
            return lock
        except Locked:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL)
