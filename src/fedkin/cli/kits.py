"""Keys that never leave their owner, and sites that leave: requests, approval, withdrawal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.cli.federation import KitFolder, Kits, federation, server, site

NewFolder = Annotated[Path, typer.Option("--out", help="Folder for the key; must not exist yet.")]
Signed = Annotated[Path, typer.Argument(help="What came back: NAME.signed.zip.", exists=True)]
KeyFolder = Annotated[
    Path, typer.Option("--key", help="Folder of the request, with the key.", exists=True)
]
KitOut = Annotated[Path, typer.Option("--out", help="Folder for the kit; must not exist yet.")]
Fingerprint = Annotated[
    str, typer.Option("--fingerprint", help="The authority's, as the coordinator told it.")
]


@federation.command("open")
def open_federation(
    folder: Annotated[Path, typer.Argument(help="The coordinator's folder; must not exist yet.")],
    host: Annotated[
        str, typer.Option("--server", help="Host name by which sites reach the server.")
    ] = "localhost",
    port: Annotated[
        int | None, typer.Option("--port", help="Its port; default a free one.")
    ] = None,
) -> None:
    """Make the authority and the coordinator's kit; server and sites ask with keys of their own."""
    from fedkin.engines.nvflare import requests

    if folder.exists():
        raise ValueError(f"{folder} exists already; choose another folder")
    kits = requests.open_federation(folder, host, port)
    typer.echo(f"the server will listen on {host}:{kits.port}")
    typer.echo(f"the authority's fingerprint, to be told by telephone: {_mark(folder)}")
    typer.echo(f"server:  fedkin server request {host} --port {kits.port}")
    typer.echo("sites:   fedkin site request NAME")
    typer.echo(f"you:     fedkin federation approve {folder} NAME.request.zip")
    typer.echo(f"{folder / requests.AUTHORITY} holds the authority's key: keep it offline.")


@federation.command("renew")
def renew(
    folder: Annotated[Path, typer.Argument(help="The folder of `federation open`.", exists=True)],
) -> None:
    """Make the coordinator's own kit again, with a new key and a new certificate."""
    from fedkin.engines.nvflare import requests

    requests.renew_coordinator(folder)
    typer.echo(f"the coordinator's kit in {folder} is new")


@federation.command("approve")
def approve(
    folder: Annotated[Path, typer.Argument(help="The folder of `federation open`.", exists=True)],
    request: Annotated[Path, typer.Argument(help="A NAME.request.zip.", exists=True)],
    out: Annotated[
        Path | None, typer.Option("--out", help="The answer; default NAME.signed.zip here.")
    ] = None,
    renew: Annotated[bool, typer.Option("--renew", help="The name may have a new key.")] = False,
) -> None:
    """Sign a request of a site or of the server; what comes of it may be read by anybody."""
    from fedkin.engines.nvflare import requests

    place = out or Path(request.name.removesuffix(".request.zip") + ".signed.zip")
    asked = requests.approve(folder, request, place, renew)
    typer.echo(f"{asked.kind} {asked.name}, key {asked.key}: compare it by telephone, then send")
    typer.echo(f"{place}, with the authority's fingerprint {_mark(folder)}")


def _mark(folder: Path) -> str:
    from fedkin.engines.nvflare.requests import fingerprint

    return fingerprint(folder)


@site.command("request")
def request_site(
    name: Annotated[str, typer.Argument(help="The site's name.")], out: NewFolder = Path("key")
) -> None:
    """Make the site's key, which stays here, and a request to send to the coordinator."""
    from fedkin.engines.nvflare import requests

    _tell(requests.request_site(name, out))


@server.command("request")
def request_server(
    host: Annotated[str, typer.Argument(help="Host name by which sites reach the server.")],
    port: Annotated[int, typer.Option("--port", help="Its port.")],
    out: NewFolder = Path("key"),
) -> None:
    """Make the server's key, which stays here, and a request to send to the coordinator."""
    from fedkin.engines.nvflare import requests

    _tell(requests.request_server(host, out, port))


def _tell(path: Path) -> None:
    from fedkin.engines.nvflare.requests import Request

    asked = Request.read(path)
    typer.echo(f"send {path} to the coordinator; the key stays in {path.parent}")
    typer.echo(f"its fingerprint, to be told by telephone: {asked.key}")


@server.command("kit")
@site.command("kit")
def assemble(
    signed: Signed,
    fingerprint: Fingerprint,
    key: KeyFolder = Path("key"),
    out: KitOut = Path("kit"),
) -> None:
    """Make the kit from the own key and the coordinator's answer."""
    from fedkin.engines.nvflare import requests

    made = requests.assemble(signed, key, out, fingerprint)
    typer.echo(f"wrote {made}; {key} is not needed any more")


@site.command("standardize")
def standardize(
    records: Annotated[Path, typer.Argument(help="The site's folder of records.", exists=True)],
    run: Annotated[str, typer.Argument(help="A run of a Standardizer that has ended.")],
    data: Annotated[Path, typer.Option("--data", help="The site's table.")],
    out: Annotated[Path, typer.Option("--out", help="The scaled table (CSV).")],
) -> None:
    """Scale the site's own table as a Standardizer's run found; for `site run --data` after it."""
    from fedkin.durable import open_private
    from fedkin.engines.site_scaling import standardized

    if out.exists():
        raise ValueError(f"{out} exists already; choose another file")
    text = standardized(records, run, data).write_csv()
    with open_private(out, "wb") as file:
        file.write(text.encode())
    typer.echo(f"wrote {out}")


@federation.command("withdraw")
def withdraw(
    name: Annotated[str, typer.Argument(help="The site.")],
    kits: Kits,
    out: Annotated[Path, typer.Option("--out", help="Folder of results.")] = Path("results"),
) -> None:
    """Go on without a site, and name the runs it took part in and what they asked for."""
    from fedkin.engines.nvflare import Kits as KitsOnDisk
    from fedkin.tables import Table

    KitsOnDisk.withdraw(kits, name)
    typer.echo(f"{name} is asked for nothing from now on; runs with it cannot be resumed.")
    rows = [row for path in sorted(out.glob("*/took_part.json")) for row in _part(path, name)]
    if rows:
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        named = Table(columns, f"Runs that {name} took part in", shown_rows=len(rows))
        typer.echo(str(named))
        typer.echo("Their results hold its share: fit again without it where it must not.")
    else:
        typer.echo(f"no run in {out} had it.")
    typer.echo(
        f"At the server `fedkin server sent KIT {name}` names every reply that was kept. Its "
        "certificate stays valid until it expires: FLARE cannot revoke one."
    )


def _part(path: Path, name: str) -> list[dict[str, Any]]:
    told = json.loads(path.read_text())
    if name not in told["sites"]:
        return []
    left = told["left_out"].get(name, "")
    return [
        {"run": path.parent.name, "it was asked for": ", ".join(told["fields"]), "left out": left}
    ]


@server.command("sent")
def sent(kit: KitFolder, name: Annotated[str, typer.Argument(help="The site.")]) -> None:
    """What the server's journals hold of a site: runs, rounds, fields, bytes."""
    from fedkin.cli.records import all_rounds
    from fedkin.engines.journal import replies_of

    rows = replies_of(kit / "fedkin" / "runs", name)
    if not rows:
        typer.echo(f"no journal in {kit / 'fedkin' / 'runs'} holds a reply of {name}")
        return
    typer.echo(str(all_rounds(rows, f"Replies of {name} that are kept here")))
    typer.echo("Remove a run's folder to forget them; its results elsewhere stay what they are.")
