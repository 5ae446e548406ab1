"""The library's checks on a real federation, before the first round: what a job says of them.

    [checks]
    stop = ["FK003", "FK005"]     # codes that stop the run before anything else is asked
    ignore = ["FK011"]            # codes that are not told

What the codes mean is in `fedkin.checks`. Which of them fire in which column travels as zeros and
ones (`algorithms.site_checks`); the words about it stay with the site, in `checks.txt`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedkin.algorithms.site_checks import (
    CODES,
    OTHER_UNITS,
    SITE_CHECKS,
    TARGET,
    TOO_MANY_COLUMNS,
    Fired,
    SiteChecksResult,
    SiteChecksSettings,
    all_fired,
    site_findings,
)
from fedkin.checks import CHECKS, Findings
from fedkin.durable import write_bytes
from fedkin.engines.driver import Link, Rules, drive
from fedkin.engines.site import SiteHalf
from fedkin.engines.site_data import CannotTakePart
from fedkin.engines.site_report import CHECKS_FILE, CHECKS_RUN
from fedkin.frames import Finding, plain_names
from fedkin.protocol import Fault, QuorumLost, Reason, Roster

logger = logging.getLogger("fedkin.site")

TOLD = tuple(sorted((*CODES, OTHER_UNITS, TOO_MANY_COLUMNS)))
# Whoever answers is heard: no site's silence keeps the others' findings back.
ANYBODY = Rules(quorum=1e-9)
REMEDY = f"the site's own {CHECKS_FILE} says more"
REMEDIES = {
    OTHER_UNITS: "see whether it is in other units there",
    TOO_MANY_COLUMNS: "leave columns out, or combine them",
}


@dataclass(frozen=True)
class JobChecks:
    """Which codes stop a run before its first round, and which are not told."""

    stop: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for code in (*self.stop, *self.ignore):
            if code not in TOLD:
                raise ValueError(
                    f"there is no check {code!r} at real sites; there are {', '.join(TOLD)}"
                )

    @classmethod
    def from_mapping(cls, told: Any) -> JobChecks:
        """The section of a job file, or as it travelled; an unknown key is an error."""
        if not isinstance(told, Mapping) or not set(told) <= {"stop", "ignore"}:
            raise ValueError("checks must be a section with stop and ignore, lists of codes")
        for name, codes in told.items():
            if not isinstance(codes, list | tuple) or not all(isinstance(c, str) for c in codes):
                raise ValueError(f"checks.{name} must be a list of codes such as FK003")
        return cls(tuple(told.get("stop", ())), tuple(told.get("ignore", ())))

    def to_mapping(self) -> dict[str, list[str]]:
        """As it travels."""
        return {"stop": list(self.stop), "ignore": list(self.ignore)}


@dataclass(frozen=True)
class Checked:
    """What came of the checks: what fires where, and which sites did not tell and why."""

    fired: tuple[Fired, ...] = ()
    untold: Mapping[str, Fault] = field(default_factory=dict)

    def without(self, ignored: Sequence[str]) -> Checked:
        """Only what is to be told."""
        return Checked(tuple(one for one in self.fired if one.code not in ignored), self.untold)

    def stops(self, codes: Sequence[str]) -> bool:
        """Whether one of the codes that stop a run fires."""
        return any(one.code in codes for one in self.fired)

    def to_json(self) -> dict[str, Any]:
        """As the server's job process writes it down."""
        untold = {site: fault.to_json() for site, fault in self.untold.items()}
        return {"fired": [asdict(one) for one in self.fired], "untold": untold}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Checked:
        """The inverse of `to_json`."""
        fired = (Fired(one["site"], one["code"], tuple(one["places"])) for one in told["fired"])
        untold = {site: Fault.from_json(fault) for site, fault in told["untold"].items()}
        return cls(tuple(fired), untold)

    def findings(self, features: Sequence[str] | None) -> tuple[Finding, ...]:
        """In words that the coordinator has itself; none of them came from a site."""
        found = [
            Finding("warning", one.site, _fact(one, features), remedy, one.code, one.places)
            for one in self.fired
            for remedy in [REMEDIES.get(one.code, REMEDY)]
        ]
        silent = "its findings are not known"
        found += [
            Finding("warning", site, f"{silent}: {fault}", "ask the site")
            for site, fault in self.untold.items()
        ]
        return tuple(found)


def _fact(fired: Fired, features: Sequence[str] | None) -> str:
    meaning = (CHECKS[fired.code].__doc__ or "").splitlines()[0].rstrip(".")
    known = plain_names(max(fired.places, default=0) + 1) if features is None else features
    where = ["the target" if j == TARGET else known[j] for j in fired.places]
    return meaning + (f": {', '.join(where)}" if where else "")


def check_at_sites(names: Sequence[str], link: Any) -> Checked:
    """Ask these sites what their checks say; `link` makes the way to them for a question."""
    roster, told, untold = Roster(tuple(names), 0), [], {}
    for scales in (False, True):
        settings = SiteChecksSettings(scales=scales)
        way: Link = link(roster)
        result: SiteChecksResult | None = None
        try:
            run = drive(SITE_CHECKS, settings, roster, way, ANYBODY, progress=False)
            result, refusals = run.result, run.refusals
        except QuorumLost as error:
            refusals = error.refusals
        told.append(result)
        if not scales:
            untold = {refusal.site: refusal.fault for refusal in refusals}
    return Checked(tuple(all_fired(roster.names, *told)), untold)


def open_checks(half: SiteHalf) -> SiteHalf:
    """At a site: the half that answers the checks of a run, under a name of its own."""
    policy = half.policy
    if policy.methods is not None and SITE_CHECKS.name not in policy.methods:
        raise CannotTakePart(
            Fault(Reason.POLICY), f"method {SITE_CHECKS.name} is not among allow.methods"
        )
    own = SiteChecksSettings.from_mapping({}).for_sites()
    state, run = half.memory.folder.parent, half.run + CHECKS_RUN
    given = (SITE_CHECKS, own, half.clients, half.seed, run, state, half.least_rows)
    return SiteHalf(*given, policy=policy)


def write_words(half: SiteHalf) -> None:
    """At a site: what its checks say, in words for the site itself."""
    findings = Findings(tuple(site_findings(half.clients)))
    for finding in findings:
        logger.warning("%s %s", finding.code, finding)
    write_bytes(half.memory.folder / CHECKS_FILE, f"{findings}\n".encode())
