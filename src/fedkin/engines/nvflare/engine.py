"""The engine: submit, wait, resubmit what broke off, collect."""

from __future__ import annotations

import json
import logging
import math
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from fedkin.durable import load_arrays
from fedkin.engines.driver import Rules
from fedkin.engines.nvflare.deployment import Deployment
from fedkin.engines.nvflare.jobs import ENDING_FILE, Job
from fedkin.engines.site import check_run_name
from fedkin.federation import Federation
from fedkin.names import name_order
from fedkin.protocol import Algorithm, QuorumLost, Refusal, Roster, Run, Traffic
from fedkin.settings import Settings

logger = logging.getLogger("fedkin.nvflare")


class Unfinished(RuntimeError):
    """The run did not end within the allowed resubmissions; its journal is kept."""


@dataclass
class Flare:
    """Runs algorithms on a deployment; `fit()` without data.

    features : names of the columns to use, in the order all sites shall use them; needed where
        sites hold named columns (CSV, Parquet), because names do not travel back
    deadline : seconds a site has for an answer
    resubmissions : how often a run that broke off is submitted again
    run_id : name of the run; give the name of an unfinished one to go on with it
    """

    deployment: Deployment
    features: Sequence[str] | None = None
    rules: Rules = field(default_factory=Rules)
    deadline: float = 60.0
    resubmissions: int = 3
    timeout: float = 3600.0
    run_id: str | None = None

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
        sites = sorted(self.deployment.kits.sites, key=name_order)
        run = check_run_name(self.run_id or f"{algorithm.name}-{uuid.uuid4().hex[:12]}")
        logger.info("run %s", run)
        algorithm.check(settings)
        both = {"run": run, "algorithm": algorithm.name, "seed": seed}
        for_server = {
            **both,
            "settings": settings.to_mapping(),
            "sites": sites,
            "rules": asdict(self.rules),
            "deadline": self.deadline,
        }
        own = settings.for_sites().to_mapping()
        for_sites = {**both, "settings": own, "features": self.features}
        wait = self.rules.on_loss == "wait"
        needed = len(sites) if wait else max(1, math.ceil(self.rules.quorum * len(sites)))
        status = "not submitted"
        for _ in range(self.resubmissions + 1):
            if wait:
                self.deployment.wait_for_sites(sites, self.timeout)
            job_id = self.deployment.submit(Job(run, for_server, for_sites, sites, needed))
            try:
                status = self.deployment.wait(job_id, self.timeout)
            except TimeoutError as error:
                raise Unfinished(f"run {run!r}: {error}; run_id={run!r} goes on with it") from error
            ended = self._read(algorithm, job_id) if status == "FINISHED:COMPLETED" else None
            if ended is not None:
                return ended
            logger.warning("run %s broke off (%s)", run, status)
        raise Unfinished(
            f"run {run!r} did not end in {self.resubmissions + 1} submissions (last: {status}); "
            "console.log in the kits says more, and "
            f"Flare(..., run_id={run!r}) goes on with it"
        )

    def _read(self, algorithm: Algorithm, job_id: str) -> Run | None:
        """What the server's job process wrote; None if the run is to be submitted again."""
        folder = self.deployment.collect(job_id)
        facts = json.loads((folder / ENDING_FILE).read_text())
        if facts["ended"] == "site lost":
            return None
        if facts["ended"] == "quorum lost":
            raise QuorumLost(facts["message"])
        if facts["ended"] == "failed":
            raise RuntimeError(f"the server program failed: {facts['message']}")
        return Run(
            algorithm.result.from_arrays(load_arrays(folder / "result.npz")),
            Roster(tuple(facts["names"]), facts["seed"]),
            Traffic(**facts["traffic"]),
            tuple(map(Refusal.from_json, facts["refusals"])),
            tuple(facts["dropped"]),
        )
