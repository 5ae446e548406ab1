"""`fedkin federation`, `fedkin server`, `fedkin site`, `fedkin demo`: real sites, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.cli.jobs import run_job

federation = typer.Typer(help="The coordinator's commands.", no_args_is_help=True)
server = typer.Typer(help="The server's commands.", no_args_is_help=True)
site = typer.Typer(help="A site's commands.", no_args_is_help=True)

Kits = Annotated[
    Path, typer.Option("--kits", help="The folder of `federation new`, or the coordinator's kit.")
]
KitFolder = Annotated[Path, typer.Argument(help="The start-up kit.", exists=True, file_okay=False)]


@federation.command("new")
def new(
    folder: Annotated[Path, typer.Argument(help="Folder for the kits; must not exist yet.")],
    sites: Annotated[list[str], typer.Option("--site", help="Name of a site; give it for each.")],
    host: Annotated[
        str, typer.Option("--server", help="Host name by which sites reach the server.")
    ] = "localhost",
    port: Annotated[
        int | None, typer.Option("--port", help="Its port; default a free one.")
    ] = None,
) -> None:
    """Make a certificate authority and one kit for the server, the coordinator and every site."""
    from fedkin.engines.nvflare import provision

    if folder.exists():
        raise ValueError(f"{folder} exists already; choose another folder")
    kits = provision(folder, sites, host, port)
    typer.echo(f"server listens on {host}:{kits.port}")
    typer.echo(f"  {kits.server}  to the server:  fedkin server run KIT")
    for name, kit in kits.sites.items():
        typer.echo(f"  {kit}  to {name}:  fedkin site run KIT --data data.csv --target y")
    typer.echo(f"  {kits.admin}  to the coordinator:  fedkin federation submit job.toml --kits KIT")
    typer.echo(
        "Hand each kit to its owner by a way that nobody else reads, then remove it here; "
        f"{folder / 'fedkin' / 'state'} holds the authority's key: keep it offline."
    )


@server.command("run")
def run_server(kit: KitFolder) -> None:
    """Run the server in the foreground until it is told to stop (Ctrl-C)."""
    from fedkin.engines.nvflare.participants import Kit, RunsFollower, run_in_foreground

    own = Kit.open(kit, "server")
    own.check()
    typer.echo(f"server on {own.host}:{own.port}; journals in {own.state / 'runs'}")
    follow = RunsFollower(own.state)
    told = {"FEDKIN_SERVER": str(own.state)}
    raise typer.Exit(run_in_foreground(own, told, follow, _say))


@site.command("run")
def run_site(
    kit: KitFolder,
    data: Annotated[Path, typer.Option("--data", help="The site's table (CSV, Parquet, npz).")],
    target: Annotated[str | None, typer.Option("--target", help="Column with the target.")] = None,
    policy: Annotated[Path | None, typer.Option("--policy", help="The site's policy.toml.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for what the site keeps: ledger, models.")
    ] = None,
    units: Annotated[
        Path | None, typer.Option("--units", help='Units of the columns (TOML: age = "years").')
    ] = None,
) -> None:
    """Take part with the site's own table, in the foreground, until told to stop (Ctrl-C)."""
    from fedkin.engines.nvflare.participants import (
        Kit,
        LedgerFollower,
        configure_site,
        run_in_foreground,
    )
    from fedkin.engines.schema import read_units
    from fedkin.privacy import SitePolicy

    own = Kit.open(kit, "client")
    own.check()
    if not data.exists():
        raise ValueError(f"there is no data file {data}")
    facts: dict[str, Any] = {"data": str(data.resolve())}
    if target is not None:
        facts["target"] = target
    if units is not None:
        facts["units"] = read_units(units)
    if policy is not None:
        SitePolicy.read(policy)
        facts["policy"] = str(policy.resolve())
    if out is not None:
        facts["state"] = str(out.resolve())
    state = Path(configure_site(own, facts)["state"])
    typer.echo(f"site {own.name}: data {data}, server {own.host}:{own.port}, records in {state}")
    if problem := own.knock():
        _say(f"{problem} (tried again until it works)")
    follow = LedgerFollower(state)
    raise typer.Exit(run_in_foreground(own, {}, follow, _say))


@site.command("approve")
def approve(
    folder: Annotated[
        Path, typer.Argument(help="The site's folder of records (--out).", exists=True)
    ],
    method: Annotated[str, typer.Argument(help="The method, as the site's log names it.")],
) -> None:
    """Approve a method whose first run awaits it (mode.approve of the policy)."""
    from fedkin.algorithms import algorithm
    from fedkin.cli.records import ledger_in
    from fedkin.durable import private_folder, write_bytes
    from fedkin.engines.opening import approval

    ledger_in(folder)  # another folder would be approved in vain
    path = approval(folder, algorithm(method).name)
    private_folder(path.parent)
    write_bytes(path, b"approved\n")
    typer.echo(f"{method} may run from now on")


@federation.command("submit")
def submit(
    job: Annotated[Path, typer.Argument(help="The job file (TOML).")],
    kits: Kits,
    out: Annotated[Path, typer.Option("--out", help="Folder for results.")] = Path("results"),
    timeout: Annotated[float, typer.Option(help="Seconds a submission may take.")] = 3600.0,
) -> None:
    """Run a job on the federation and write its results; resubmits by itself what breaks off."""
    from fedkin.engines.nvflare.job_file import JobFile

    run_job(JobFile.read(job), job, kits, out, timeout)


@federation.command("resume")
def resume(
    run: Annotated[str, typer.Argument(help="The run's name.")],
    kits: Kits,
    out: Annotated[Path, typer.Option("--out", help="Folder of its results.")] = Path("results"),
    timeout: Annotated[float, typer.Option(help="Seconds a submission may take.")] = 3600.0,
) -> None:
    """Go on with a run that was broken off, from its journal at the server."""
    from dataclasses import replace

    from fedkin.engines.nvflare.job_file import JobFile

    kept = out / run / "job.toml"
    if not kept.exists():
        raise ValueError(f"there is no run {run!r} in {out}; give --out of its submission")
    run_job(replace(JobFile.read(kept), name=run), kept, kits, out, timeout)


@federation.command("status")
def status(kits: Kits) -> None:
    """Which sites the server knows, and which jobs it has."""
    from fedkin.engines.nvflare import Deployment
    from fedkin.engines.nvflare import Kits as KitsOnDisk
    from fedkin.tables import Table

    known = KitsOnDisk.load(kits)
    attached = Deployment.attach(known)
    try:
        here = attached.connected_sites()
        jobs = attached.jobs()
    finally:
        attached.stop()
    words = ["connected" if name in here else "not connected" for name in known.sites]
    typer.echo(str(Table({"site": list(known.sites), "state": words}, "Sites")))
    if jobs:
        columns = {key: [job[key] for job in jobs] for key in ("run", "status", "submitted")}
        typer.echo(str(Table(columns, "Jobs")))


@federation.command("results")
def results(
    run: Annotated[str, typer.Argument(help="The run's name.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of its results.")] = Path("results"),
) -> None:
    """Print what a run found."""
    path = out / run / "summary.txt"
    if not path.exists():
        raise ValueError(f"{path} is not there; the run has not ended (fedkin federation resume)")
    typer.echo(path.read_text())


@federation.command("stop")
def stop(
    kits: Kits, run: Annotated[str | None, typer.Option("--run", help="This one only.")] = None
) -> None:
    """End running jobs; a run that was stopped can be resumed.

    A program that submitted from another computer submits again: stop it there (Ctrl-C).
    """
    from fedkin.engines.nvflare import Deployment
    from fedkin.engines.nvflare import Kits as KitsOnDisk

    attached = Deployment.attach(KitsOnDisk.load(kits))
    try:
        stopped = [j["run"] for j in attached.jobs() if run in (None, j["run"]) and attached.end(j)]
    finally:
        attached.stop()
    typer.echo(f"stopped: {', '.join(stopped) or 'nothing was running'}")


def demo(
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Keep the federation's folders here.")
    ] = None,
) -> None:
    """A server and three sites on this machine: shipped data, a fit, and what left the sites."""
    import tempfile

    if folder is not None:
        return _demo(folder)
    with tempfile.TemporaryDirectory(prefix="fedkin-demo-") as place:
        return _demo(Path(place))


# What the demo fits: how the temperature behind the compressor follows age and pressure.
DEMO_FEATURES, DEMO_TARGET = ("cycle", "sensor_11"), "sensor_4"
DEMO_SITES = ("berlin", "lyon", "porto")


def _demo(folder: Path) -> None:
    import time

    import numpy as np

    from fedkin.engines.nvflare import Deployment, Flare, provision
    from fedkin.estimators import MixedModel
    from fedkin.privacy import Ledger

    begun = time.monotonic()
    files = _demo_data(folder)
    typer.echo(f"three sites with the records of 33 turbofan engines each, in {folder}")
    kits = provision(folder / "kits", DEMO_SITES)
    sites = {name: {"data": path, "target": DEMO_TARGET} for name, path in files.items()}
    typer.echo("starting a server and three sites, each a process with its own certificate ...")
    with Deployment(kits, sites) as running:
        typer.echo(f"all are there after {time.monotonic() - begun:.0f} s; now a fit ...")
        engine = Flare(running, features=DEMO_FEATURES)
        model = MixedModel(random="intercept", random_state=0, engine=engine).fit()
        model.feature_names_in_ = np.array(DEMO_FEATURES, dtype=object)
        typer.echo(str(model.summary()))
        ledger = Ledger(running.state[DEMO_SITES[0]] / "ledger")
        account = ledger.account()
    typer.echo(f"What left {DEMO_SITES[0]}, by its own ledger:")
    for name, told in account.items():
        typer.echo(f"  {name}: {told['numbers']} numbers, {told['bytes']} bytes")
    typer.echo(f"done after {time.monotonic() - begun:.0f} s; everything was stopped")


def _demo_data(folder: Path) -> dict[str, Path]:
    import numpy as np

    from fedkin.datasets import load_turbofan

    data = load_turbofan()
    columns = [data.column(name) for name in DEMO_FEATURES]
    table = np.column_stack([*columns, data.column(DEMO_TARGET)])
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for k, name in enumerate(DEMO_SITES):
        own = table[(data.engine - 1) // 33 == k]
        files[name] = folder / f"{name}.csv"
        header = ",".join([*DEMO_FEATURES, DEMO_TARGET])
        np.savetxt(files[name], own, delimiter=",", header=header, comments="", fmt="%.6g")
    return files


def _say(line: str) -> None:
    from datetime import datetime

    typer.echo(f"{datetime.now():%H:%M:%S} {line}")
