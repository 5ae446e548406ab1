"""Real FLARE sites on a bad network: cut and healed, and a reply far larger than declared."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

import numpy as np
import psutil
import pytest

pytest.importorskip("nvflare", reason="the nvflare extra is not installed")

from fedkin import Rules
from fedkin.engines.nvflare import Deployment, provision
from fedkin.protocol import LARGEST_MESSAGE, Reason
from tests.deployment.test_flare import (
    LASSO,
    NAMES,
    disturbed,
    hand_out,
    on_flare,
    skipping,
    three_sites,
    without,
)

pytestmark = [pytest.mark.flare, pytest.mark.deploy, pytest.mark.short]

# In every Python process of one site: its way to the server goes by the proxy, and it has a FLARE
# without limits, which sends what it is told to while a file is there.
AT_THE_SITE = """
import asyncio, os, socket
import numpy as np

real, proxy = map(int, os.environ["TEST_PORTS"].split(":"))
for name in ("NVFLARE_MAX_MESSAGE_SIZE", "NVFLARE_STREAMING_MAX_BLOB_SIZE"):
    os.environ[name] = str(1 << 31)

def by_proxy(address):
    return (address[0], proxy, *address[2:]) if address[1] == real else address

loop = asyncio.selector_events.BaseSelectorEventLoop
async_connect, connect = loop.sock_connect, socket.socket.connect
loop.sock_connect = lambda self, sock, address: async_connect(self, sock, by_proxy(address))
socket.socket.connect = lambda self, address: connect(
    self, by_proxy(address) if isinstance(address, tuple) else address
)

from fedkin.engines.site import Departure, SiteHalf
answer = SiteHalf.answer

def oversized(self, number, ask, acknowledged):
    if number > 2 and os.path.exists(os.environ["TEST_OVERSIZED"]):
        return Departure({"contribution": np.ones((1, N_BYTES // 8))})
    return answer(self, number, ask, acknowledged)

SiteHalf.answer = oversized
"""
OVERSIZED = 300 << 20


class Proxy:
    """Carries bytes between a site and the server, unless it is cut."""

    def __init__(self, port: int) -> None:
        self.server = ("127.0.0.1", port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.whole = True
        self.open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
                if not self.whole:
                    near.close()
                    continue
                far = socket.create_connection(self.server, 5)
                far.settimeout(None)
            except OSError:
                if self.listener.fileno() < 0:
                    return
                continue
            self.open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := one.recv(1 << 16):
                other.sendall(content)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """From now on nothing comes through."""
        self.whole = False
        for end in self.open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.open.clear()

    def heal(self) -> None:
        """New connections come through again."""
        self.whole = True

    def close(self) -> None:
        """The end."""
        self.cut()
        self.listener.close()


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Three sites, of which porto's way to the server is a proxy."""
    folder = tmp_path_factory.mktemp("network")
    hand_out(three_sites(), folder)
    sites = {n: {"data": folder / f"{n}.npz", "disclosure": False} for n in NAMES}
    kits = provision(folder / "kits", NAMES)
    proxy = Proxy(kits.port)
    (folder / "sitecustomize.py").write_text(AT_THE_SITE.replace("N_BYTES", str(OVERSIZED)))
    own = {
        "TEST_PORTS": f"{kits.port}:{proxy.port}",
        "TEST_OVERSIZED": str(folder / "oversized"),
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    }
    running = Deployment(kits, sites)
    try:
        running.start_server()
        running.start_site("berlin")
        running.start_site("lyon")
        with pytest.MonkeyPatch.context() as patched:
            for name, value in own.items():
                patched.setenv(name, value)
            running.start_site("porto")
        running.connect(NAMES, 120)
        assert proxy.open, "porto does not go by the proxy"
        yield running, proxy, folder
    finally:
        running.stop()
        proxy.close()


def test_a_network_that_is_cut_and_healed_costs_no_bit(network):
    running, proxy, _ = network

    def cut():
        proxy.cut()
        time.sleep(8.0)
        proxy.heal()

    rules = Rules(on_loss="wait")
    broken, _ = disturbed(running, cut, rules=rules, deadline=5.0)
    assert not broken.refusals
    np.testing.assert_array_equal(broken.result["coef"], skipping("porto", ()).result["coef"])


def test_a_network_that_is_cut_costs_its_site_only(network):
    running, proxy, _ = network
    cut, _ = disturbed(running, proxy.cut, rules=Rules(on_loss="continue"), deadline=3.0)
    proxy.heal()
    assert {r.site for r in cut.refusals} == {"porto"} and cut.dropped == ("porto",)
    there = skipping("porto", without(cut, "porto"))
    np.testing.assert_array_equal(cut.result["coef"], there.result["coef"])
    running.wait_for_sites(NAMES, 120)


def server_bytes(running):
    """Memory of the server's processes, the largest first."""
    parent = psutil.Process(running.processes["server"].pid)
    found = []
    for process in [parent, *parent.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(process.memory_info().rss)
    return sorted(found, reverse=True)


def test_a_reply_of_300_megabytes_costs_the_server_no_memory(network):
    """The schema says some bytes; FLARE ends a stream that announces more than the bound."""
    running, _, folder = network
    assert OVERSIZED > LARGEST_MESSAGE
    usual, seen, stop = [], [], threading.Event()

    def watch(into):
        while not stop.wait(0.02):
            into.append(server_bytes(running)[0])

    for into, wrong in ((usual, False), (seen, True)):
        if wrong:
            (folder / "oversized").touch()
        stop.clear()
        thread = threading.Thread(target=watch, args=(into,), daemon=True)
        thread.start()
        try:
            run = on_flare(LASSO, running, deadline=20.0)
        finally:
            stop.set()
            thread.join(10)
            (folder / "oversized").unlink(missing_ok=True)
    assert {(r.site, r.reason) for r in run.refusals} == {("porto", Reason.LATE)}
    there = skipping("porto", without(run, "porto", 10_000), LASSO.chosen())
    np.testing.assert_array_equal(run.result["coef"], there.result["coef"])
    assert max(seen) < max(usual) + OVERSIZED / 4, (max(usual), max(seen))
