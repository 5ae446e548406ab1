"""A job file is run on a federation, and what came of it is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

UNUSABLE = 2
BENEFIT_FILE, CHECKS_FILE = "benefit.txt", "checks.txt"
WAYS_FILE, NOT_READY_FILE = "ways.txt", "not-ready.txt"
# What the question whether joining helps has sites send, beside the fit.
BENEFIT_FIELDS = ("sums by fold", "scores of left-out rows")
REFIT_FIELDS = ("what the method sends, without each fold", "scores of left-out rows")
NOT_KNOWN = "Whether joining helps the sites is not known"


def run_job(job: Any, source: Path, kits: Path, out: Path, timeout: float) -> None:
    """Attach, run, and keep what came of it in a folder of the run's name."""
    import shutil
    import uuid

    from fedkin.durable import private_folder
    from fedkin.engines.nvflare import Deployment, Flare, SitesNotReady
    from fedkin.engines.nvflare import Kits as KitsOnDisk
    from fedkin.engines.nvflare.job_file import AUTO
    from fedkin.protocol import Reason

    _check_settings(job)
    run = job.name or f"{job.method.lower()}-{uuid.uuid4().hex[:12]}"
    place = private_folder(out / run)
    if source.resolve() != (place / "job.toml").resolve():
        shutil.copyfile(source, place / "job.toml")
    attached = Deployment.attach(KitsOnDisk.load(kits))
    try:
        typer.echo(f"run {run}: submitted to {len(attached.kits.sites)} sites")
        engine = Flare(
            *(attached, job.features, job.rules, job.deadline),
            timeout=timeout,
            run_id=run,
            schema=job.schema,
            checks=job.checks,
            weights=job.weights,
        )
        if job.method == AUTO:
            if job.weights is not None:
                raise ValueError("ways of sharing are compared without weights; name a method")
            job = _way_that_fits(job, engine, run, place)
            if job is None:
                return
        if job.benefit and not _answered(place):
            (place / BENEFIT_FILE).write_text(did_joining_help(job, engine, run))
        model = _estimator(job, engine).fit()
    except SitesNotReady as error:
        typer.echo(str(error.table()))
        (place / NOT_READY_FILE).write_text(str(error.table()), encoding="utf-8")
        typer.echo("Nothing was fitted. Mend these sites and submit again.", err=True)
        if any(problem.fault.reason is Reason.POLICY for problem in error.problems):
            typer.echo(
                "What its policy allows a site decides itself; why is on its own screen and in its "
                "ledger.",
                err=True,
            )
        raise typer.Exit(UNUSABLE) from None
    finally:
        attached.stop()
    _keep(model, job, place)
    if job.benefit:
        typer.echo((place / BENEFIT_FILE).read_text())
    typer.echo(f"wrote {place}")


def _estimator(job: Any, engine: Any) -> Any:
    import fedkin

    settings = {**job.settings, "random_state": job.seed, "engine": engine}
    return getattr(fedkin, job.method)(**settings)


def _check_settings(job: Any) -> None:
    """Complain about settings that the method does not have, before anybody is asked."""
    import fedkin
    from fedkin.engines.nvflare.job_file import AUTO

    method = getattr(fedkin, "Best" if job.method == AUTO else job.method)
    given = {"random_state", "engine"}
    known = sorted(set(method().get_params(deep=False)) - given)
    unknown = [name for name in job.settings if name not in known]
    if unknown:
        raise ValueError(
            f"{job.method} has no setting {unknown[0]!r} in a job; there are {', '.join(known)}"
        )


def _way_that_fits(job: Any, engine: Any, run: str, place: Path) -> Any:
    """The job with the way of sharing that left-out rows call for; None if staying alone is it."""
    from fedkin import Best
    from fedkin.engines.nvflare.engine import seed_of
    from fedkin.estimators.candidates import ALONE

    asked = RunsOfWays(engine, run)
    # A job that is submitted again has to ask the same: its name tells the seed, if nobody does.
    seed = seed_of(run) if job.seed is None else job.seed
    best = Best(**job.settings, random_state=seed, engine=asked)._choose_at_sites()
    told = f"{best.summary()}\n"
    (place / WAYS_FILE).write_text(told)
    typer.echo(told)
    if best.best_way_ == ALONE:
        (place / "summary.txt").write_text(told)
        typer.echo("Every site is best served by a model of its own rows: nothing else is asked.")
        return None
    method, settings = best.way_as_method()
    typer.echo(f"fitting {method}, the way called {best.best_way_!r}")
    return replace(job, method=method, settings=settings, benefit=True)


def did_joining_help(job: Any, engine: Any, run: str) -> str:
    """What left-out rows say of every site; or why nobody knows, which does not stop the fit."""
    from fedkin.engines.site_report import SCORES, SUMS
    from fedkin.inference import benefit

    if job.weights is not None:
        return f"{NOT_KNOWN}: left-out rows are scored without weights.\n"
    names = (run + SCORES,) if _refits(job) else (run + SUMS, run + SCORES)
    asked = NamedRuns(engine, *names)
    try:
        return str(benefit(_estimator(job, asked)).summary()) + "\n"
    except (RuntimeError, ValueError) as error:
        return f"{NOT_KNOWN}: {error}\n"


def _refits(job: Any) -> bool:
    """Whether the question goes through the method's fits once more, without each fold."""
    from fedkin.estimators.left_out import SERVED

    return job.method in SERVED


def _answered(place: Path) -> bool:
    """Whether an earlier submission of the run has asked already."""
    path = place / BENEFIT_FILE
    return path.exists() and not path.read_text().startswith(NOT_KNOWN)


class NamedRuns:
    """The engine under the names that its next runs shall have."""

    def __init__(self, engine: Any, *names: str) -> None:
        self.engine, self.names = engine, iter(names)

    def run(self, algorithm: Any, *given: Any) -> Any:
        """The next of them; the first looks at the checks if they may stop the job."""
        checks, self.engine = self.engine.checks, replace(self.engine, checks=None)
        first = checks if checks is not None and checks.stop else None
        named = replace(self.engine, run_id=self.name_of(algorithm), checks=first)
        return named.run(algorithm, *given)

    def name_of(self, algorithm: Any) -> str:
        """The name of the next run."""
        return next(self.names)


class RunsOfWays(NamedRuns):
    """The engine for the runs of a question which way fits: what a run is for tells its name."""

    def __init__(self, engine: Any, run: str) -> None:
        from fedkin.engines.site_report import WAYS_FITS, WAYS_NUMBER, WAYS_SCORES, WAYS_SUMS

        super().__init__(engine)
        self.by_method = {
            "held_out": iter((run + WAYS_SUMS, run + WAYS_SCORES)),
            "left_out": iter((run + WAYS_FITS,)),
            "fedgrem": iter((run + WAYS_NUMBER,)),
        }

    def name_of(self, algorithm: Any) -> str:
        """The name of the next run of such a method."""
        return next(self.by_method[algorithm.name])


def _keep_checks(findings: Any, place: Path) -> None:
    """What the library's checks said of the sites' tables; a resumed run asked them before."""
    from fedkin.checks import Findings

    path = place / CHECKS_FILE
    if findings or not path.exists():
        path.write_text(f"Checks of the sites' tables: {Findings(findings)}\n")
    typer.echo(path.read_text())


def _keep(model: Any, job: Any, place: Path) -> None:
    import json

    import numpy as np

    from fedkin.durable import save_arrays, write_bytes

    if job.features is not None:
        names = job.schema.features(job.features)
        model.feature_names_in_ = np.array(names, dtype=object)
    _keep_checks(model._run.findings, place)
    summary = str(model.summary())
    (place / "summary.txt").write_text(summary)
    save_arrays(place / "result.npz", dict(model._result))
    took_part = {
        "sites": list(model._run.roster.names),
        "left_out": {site: str(fault) for site, fault in model._run.left_out.items()},
        "fields": [
            *sorted(model.traffic_.bytes_up_by_field),
            *((REFIT_FIELDS if _refits(job) else BENEFIT_FIELDS) if job.benefit else ()),
        ],
    }
    write_bytes(place / "took_part.json", json.dumps(took_part, indent=1).encode())
    typer.echo(summary)
