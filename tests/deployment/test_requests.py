"""Kits and keys: what is refused and how it is said, without any process of a federation."""

from __future__ import annotations

import json
import socket
import stat
import zipfile
from datetime import datetime, timedelta

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason="the nvflare extra is not installed")

import fedkin
from fedkin.cli import app
from fedkin.engines.nvflare import (
    Deployment,
    Kits,
    SitesNotReady,
    participants,
    provision,
    requests,
)
from fedkin.engines.nvflare.engine import Problem
from fedkin.engines.nvflare.kits import COORDINATORS
from fedkin.engines.nvflare.participants import Kit, KitError

# ------------------------------------------------------------------ starts that cannot work


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    return provision(tmp_path_factory.mktemp("kits"), ("berlin",))


def told(kit, role):
    with pytest.raises(KitError) as caught:
        Kit.open(kit, role).check()
    return str(caught.value)


def test_a_port_that_is_taken_is_named_before_the_server_starts(kits):
    Kit.open(kits.server, "server").check()
    with socket.create_server(kits.address):
        assert f"port {kits.port} cannot be used" in told(kits.server, "server")


@pytest.mark.parametrize("role", ["server", "client"])
@pytest.mark.parametrize(("years", "words"), [(20, "expired on"), (-20, "set the clock")])
def test_a_certificate_out_of_its_time_is_said_with_the_dates(
    kits, role, years, words, monkeypatch
):
    class Then(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(zone) + timedelta(days=365 * years)

    monkeypatch.setattr(participants, "datetime", Then)
    assert words in told(kits.server if role == "server" else kits.sites["berlin"], role)


def test_a_coordinator_whose_certificate_has_expired_is_told_so(kits, monkeypatch):
    class Then(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(zone) + timedelta(days=365 * 20)

    monkeypatch.setattr(participants, "datetime", Then)
    with pytest.raises(KitError, match=r"expired on .*; renew the coordinator's kit"):
        Deployment.attach(kits, timeout=1.0)


def test_a_coordinator_is_told_that_the_server_does_not_answer(kits):
    with pytest.raises(TimeoutError, match=r"the server at .* does not listen in time; start it"):
        Deployment.attach(kits, timeout=0.5)


def test_another_participants_kit_is_said_to_be_one(kits):
    assert "is not the kit of a server" in told(kits.sites["berlin"], "server")


def test_a_server_that_is_not_there_is_said_to_the_site(kits):
    assert "cannot be reached" in Kit.open(kits.sites["berlin"], "client").knock()


def test_another_version_is_refused_with_both_named():
    said = {"site": "lyon", "reason": "VERSION", "field": "", "version": "0.0.1"}
    refused = str(SitesNotReady([Problem.from_json(said)]))
    assert "there 0.0.1" in refused and f"here {fedkin.__version__}" in refused


# ------------------------------------------------------------------ keys by request


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    top = tmp_path_factory.mktemp("requests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(top))  # FLARE keeps a record of requests there
        requests.open_federation(top / "home", "localhost", 8123)
        yield top


def test_a_sites_key_stays_with_it_and_its_kit_is_whole(opened):
    home, key = opened / "home", opened / "berlin"
    asked = requests.request_site("berlin", key)
    secret = (key / "berlin.key").read_bytes()
    assert b"PRIVATE KEY" in secret and stat.S_IMODE((key / "berlin.key").stat().st_mode) == 0o600
    answer = opened / "berlin.signed.zip"
    assert requests.approve(home, asked, answer).key == requests.Request.read(asked).key
    for path in (asked, answer):
        with zipfile.ZipFile(path) as parts:
            assert not any(b"PRIVATE" in parts.read(name) for name in parts.namelist())
    with pytest.raises(KitError, match="ingerprint"):
        requests.assemble(answer, key, opened / "wrong", "SHA256:" + ":".join(["00"] * 32))
    assert not (opened / "wrong").exists()
    mark = requests.fingerprint(home)
    kit = Kit.open(requests.assemble(answer, key, opened / "kit", mark), "client")
    kit.check()
    assert (kit.name, kit.host, kit.port) == ("berlin", "localhost", 8123)
    assert (kit.folder / "startup" / "client.key").read_bytes() == secret
    told = json.loads((kit.folder / "local" / "authorization.json").read_text())
    assert set(told["permissions"]) == set(COORDINATORS)
    assert told["permissions"]["lead"]["byoc"] == "none"
    for place in (home, home / "admin@fedkin.org"):
        assert list(Kits.load(place).sites) == ["berlin"]
    assert not [path for path in home.rglob("*") if path.stat().st_mode & 0o077]


def test_another_key_for_a_known_name_is_refused(opened):
    home = opened / "home"
    first = requests.request_site("lyon", opened / "lyon-1")
    requests.approve(home, first, opened / "lyon.signed.zip")
    again = requests.request_site("lyon", opened / "lyon-2")
    with pytest.raises(KitError, match="approved with another key"):
        requests.approve(home, again, opened / "lyon.signed.zip")
    requests.approve(home, again, opened / "lyon.signed.zip", renew=True)


def test_nobody_becomes_coordinator_or_another_server_by_request(opened):
    home, out = opened / "home", opened / "x.signed.zip"
    boss = {"type": "admin", "role": requests.ROLE}
    asked = requests.request("eve@fedkin.org", opened / "eve", boss)
    with pytest.raises(KitError, match="only sites and the server"):
        requests.approve(home, asked, out)
    other = requests.request_server("evil.org", opened / "evil", 8123)
    with pytest.raises(KitError, match="the server is 'localhost'"):
        requests.approve(home, other, out)
    (opened / "junk.zip").write_bytes(b"PK nothing")
    with pytest.raises(KitError, match="not a request"):
        requests.approve(home, opened / "junk.zip", out)
    assert not out.exists()


def test_a_withdrawn_site_comes_back_by_a_new_request_only(opened):
    home = opened / "home"
    for name in ("porto", "rome"):
        asked = requests.request_site(name, opened / name)
        requests.approve(home, asked, opened / f"{name}.signed.zip")
    Kits.withdraw(home, "porto")
    assert "porto" not in Kits.load(home).sites
    assert "porto" not in Kits.load(home / "admin@fedkin.org").sites
    with pytest.raises(ValueError, match="there is no site 'porto'"):
        Kits.withdraw(home, "porto")
    requests.approve(home, opened / "porto" / "porto.request.zip", opened / "porto.signed.zip")
    assert "porto" in Kits.load(home).sites


def test_the_coordinator_renews_its_own_kit(opened):
    home = opened / "home"
    key = home / "admin@fedkin.org" / "startup" / "client.key"
    before, known = key.read_bytes(), Kits.load(home).sites
    done = CliRunner().invoke(app, ["federation", "renew", str(home)])
    assert done.exit_code == 0, done.output
    assert key.read_bytes() != before and b"PRIVATE KEY" in key.read_bytes()
    assert list(Kits.load(home / "admin@fedkin.org").sites) == list(known)


def test_all_kits_can_be_made_in_one_place(tmp_path):
    call = ["federation", "new", str(tmp_path / "kits"), "--port", "8123", "--site", "a"]
    done = CliRunner().invoke(app, [*call, "--site", "b"])
    assert done.exit_code == 0, done.output
    assert "server listens on localhost:8123" in done.output
    kits = Kits.load(tmp_path / "kits")
    assert Kit.open(kits.sites["b"], "client").name == "b"
    with pytest.raises(KitError, match="not the kit of a server"):
        Kit.open(kits.sites["b"], "server")
