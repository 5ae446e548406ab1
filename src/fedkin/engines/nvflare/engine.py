"""The engine: submit, wait, resubmit what broke off, collect."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import fedkin
from fedkin.durable import load_arrays
from fedkin.engines.driver import Rules
from fedkin.engines.job_checks import Checked, JobChecks
from fedkin.engines.nvflare.deployment import Deployment, ServerLost
from fedkin.engines.nvflare.jobs import ENDING_FILE, Job
from fedkin.engines.schema import JobSchema
from fedkin.engines.site import check_run_name
from fedkin.federation import Federation
from fedkin.frames import Finding
from fedkin.names import name_order
from fedkin.protocol import (
    Algorithm,
    DrawnSeed,
    Fault,
    QuorumLost,
    Reason,
    Refusal,
    Roster,
    Run,
    Traffic,
)
from fedkin.settings import Settings
from fedkin.tables import Table

logger = logging.getLogger("fedkin.nvflare")


class Unfinished(RuntimeError):
    """The run did not end within the allowed resubmissions; its journal is kept."""


class ServerFailed(RuntimeError):
    """The server's program ended in an error, of which it tells."""


@dataclass
class Flare:
    """Runs algorithms on a deployment; `fit()` without data.

    features : names of the columns to use, in the order all sites shall use them; needed where
        sites hold named columns (CSV, Parquet), because names do not travel back
    deadline : seconds a site has for an answer
    resubmissions : how often a run that broke off is submitted again
    timeout : seconds a submission may take
    patience : seconds to wait for a server that was lost
    schema : what every site checks its columns against before the first round
    weights : name of the column that says how much every row of a site counts
    checks : which findings of the library's checks stop the run or are not told; None asks for none
    run_id : name of the run; give the name of an unfinished one to go on with it
    """

    deployment: Deployment
    features: Sequence[str] | None = None
    rules: Rules = field(default_factory=Rules)
    deadline: float = 60.0
    resubmissions: int = 3
    timeout: float = 3600.0
    run_id: str | None = None
    patience: float = 120.0
    schema: JobSchema = field(default_factory=lambda: JobSchema({}))
    checks: JobChecks | None = field(default_factory=JobChecks)
    weights: str | None = None

    def run(
        self,
        algorithm: Algorithm,
        settings: Settings,
        federation: Federation | None = None,
        seed: int = 0,
    ) -> Run:
        """Submit, wait, resubmit if need be, collect."""
        if federation is not None:
            raise ValueError("on real sites the data are at the sites: call fit() without data")
        algorithm.check(settings)
        run = check_run_name(self.run_id or f"{algorithm.name}-{uuid.uuid4().hex[:12]}")
        logger.info("run %s", run)
        sites = sorted(self.deployment.kits.sites, key=name_order)
        if isinstance(seed, DrawnSeed):
            seed = seed_of(run)
        job = self._job(run, algorithm, settings, int(seed), sites)
        status = "not submitted"
        self.deployment.may_run(run)
        for _ in range(self.resubmissions + 1):
            try:
                ended, status = self._submit(job, algorithm)
            except TimeoutError as error:
                raise Unfinished(f"run {run!r}: {error}; {_goes_on(run)}") from error
            except ServerLost as error:
                logger.warning("run %s: %s", run, error)
                status = str(error)
                self._recover(run, sites)
                continue
            if ended is not None:
                return ended
            if self.deployment.was_stopped(run):
                raise Unfinished(f"run {run!r} was stopped; {_goes_on(run)}")
            logger.warning("run %s broke off (%s)", run, status)
        raise Unfinished(
            f"run {run!r} did not end in {self.resubmissions + 1} submissions (last: {status}); "
            f"console.log in the kits says more, and {_goes_on(run)}"
        )

    def _job(
        self, run: str, algorithm: Algorithm, settings: Settings, seed: int, sites: Sequence[str]
    ) -> Job:
        features = None if self.features is None else list(self.features)
        both: dict[str, Any] = {"run": run, "algorithm": algorithm.name, "seed": seed}
        both |= {"features": features, "schema": self.schema.to_mapping()}
        both |= {"weights": self.weights}
        for_server = {
            **both,
            "settings": settings.to_mapping(),
            "sites": list(sites),
            "columns": list(self._columns()),
            "rules": asdict(self.rules),
            "deadline": self.deadline,
            "checks": None if self.checks is None else self.checks.to_mapping(),
        }
        own = settings.for_sites().to_mapping()
        for_sites = {**both, "settings": own, "version": fedkin.__version__}
        wait = self.rules.on_loss == "wait"
        needed = len(sites) if wait else max(1, math.ceil(self.rules.quorum * len(sites)))
        return Job(run, for_server, for_sites, sites, needed)

    def _columns(self) -> tuple[str, ...]:
        """Names that sites may repeat: the job named them."""
        named = (*(self.features or ()), *((self.weights,) if self.weights else ()))
        return tuple(dict.fromkeys([*named, *self.schema.features(named), *self.schema.rules]))

    def _submit(self, job: Job, algorithm: Algorithm) -> tuple[Run | None, str]:
        """One submission: the run, if it ended, and how it stands."""
        if self.rules.on_loss == "wait":
            self.deployment.revive(job.sites)
            self.deployment.wait_for_sites(job.sites, self.timeout)
        job_id = self.deployment.submit(job)
        status = self.deployment.wait(job_id, self.timeout)
        if status != "FINISHED:COMPLETED":
            return None, status
        return self._read(job.run, algorithm, job_id)

    def _recover(self, run: str, sites: Sequence[str]) -> None:
        try:
            self.deployment.recover(sites, self.patience)
        except (TimeoutError, ServerLost, RuntimeError) as error:
            raise Unfinished(f"run {run!r}: {error}; {_goes_on(run)}") from error

    def _read(self, run: str, algorithm: Algorithm, job_id: str) -> tuple[Run | None, str]:
        """What the server's job process wrote; no run if it is to be submitted again."""
        folder = self.deployment.collect(job_id)
        facts = json.loads((folder / ENDING_FILE).read_text())
        if facts["ended"] == "site lost":
            if facts["passing"]:
                return None, facts["message"]
            raise Unfinished(f"run {run!r}: {facts['message']}. Mend that; then {_goes_on(run)}")
        if facts["ended"] == "not ready":
            problems = [Problem.from_json(told) for told in facts["problems"]]
            raise SitesNotReady(problems, self._findings(facts))
        if facts["ended"] == "quorum lost":
            raise QuorumLost(facts["message"])
        if facts["ended"] == "failed":
            raise ServerFailed(f"run {run!r}: the server's program failed: {facts['message']}")
        left = facts["left_out"].items()
        columns = self._columns()
        ended = Run(
            algorithm.result.from_arrays(load_arrays(folder / "result.npz")),
            Roster(tuple(facts["names"]), facts["seed"]),
            Traffic(**facts["traffic"]),
            tuple(map(Refusal.from_json, facts["refusals"])),
            tuple(facts["dropped"]),
            left_out={site: Fault.from_json(told, columns) for site, told in left},
            findings=self._findings(facts),
        )
        return ended, "finished"

    def _findings(self, facts: Mapping[str, Any]) -> tuple[Finding, ...]:
        """What the library's checks said of the sites' tables."""
        named = None if self.features is None else self.schema.features(self.features)
        return Checked.from_json(facts["checked"]).findings(named)


def seed_of(run: str) -> int:
    """The seed of a run for which nobody chose one: it belongs to the run's name."""
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:4], "little") % (2**31 - 1)


def _goes_on(run: str) -> str:
    return f"`fedkin federation resume {run}`, or Flare(..., run_id={run!r}), goes on with it"


@dataclass(frozen=True)
class Problem:
    """Why a site cannot take part, and the version of fedkin it has."""

    site: str
    fault: Fault
    version: str

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Problem:
        """As the server's job process wrote it."""
        place = str(told["field"])
        return cls(str(told["site"]), Fault.from_json(told, (place,)), str(told["version"]))

    def __str__(self) -> str:
        ours = f" (there {self.version}, here {fedkin.__version__})"
        return f"{self.fault}{ours if self.fault.reason is Reason.VERSION else ''}"


class SitesNotReady(RuntimeError):
    """Some sites cannot take part as they are; nothing was asked of anybody but checks."""

    def __init__(self, problems: Sequence[Problem], findings: Sequence[Finding] = ()) -> None:
        self.problems, self.findings = tuple(problems), tuple(findings)
        told = [f"site {p.site!r}: {p}" for p in problems]
        told += [f"{finding.code} {finding}".strip() for finding in findings]
        super().__init__(f"{'; '.join(told)}. Mend these sites, or leave them out")

    def table(self) -> Table:
        """Sites by problems."""
        rows = [(p.site, str(p)) for p in self.problems]
        rows += [(f.site or "all", f"{f.code} {f.fact}".strip()) for f in self.findings]
        columns = zip(*rows) if rows else ((), ())
        named = {name: list(column) for name, column in zip(("site", "problem"), columns)}
        return Table(named, "Sites that are not ready")
