"""kill -9 of anything, anywhere, of every method: who waits gets the bits of an unbroken run.

A schedule of kills comes from one number, which a failure prints: `FEDKIN_KILLS_SEED`. Every kill
has a victim (a process of a site or of the server, or all of one of them), a place (the library's
checks, a round, the end) and a moment: before sites compute, after they have written what they
remember and before the reply leaves, or some milliseconds later, whatever is going on then. Sites
stop at the place until the kill has happened, so that none comes too late. `FEDKIN_KILLS` is how
many a method gets, `FEDKIN_KILLED` which methods; each kill costs a resubmission. The driver does
everything else by itself. `make test` kills a little, `make test-deploy` ten times in every method.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("nvflare", reason="the nvflare extra is not installed")

from fedkin import Rules
from fedkin.engines.nvflare import Deployment, Flare, provision
from fedkin.engines.site import site_memory, site_model
from fedkin.federation import Federation
from fedkin.registry import METHODS
from tests.conformance.cases import CASES
from tests.deployment.test_flare import NAMES, hand_out

pytestmark = [pytest.mark.flare, pytest.mark.deploy, pytest.mark.short]

KILLS = int(os.environ.get("FEDKIN_KILLS") or 2)
# One method that asks once, one in rounds with memories, one in rounds without.
KILLED = (os.environ.get("FEDKIN_KILLED") or "mixed_model fedgrem fgpr").split()
SEED = int(os.environ.get("FEDKIN_KILLS_SEED") or 0)
# More rounds than this show nothing that these do not.
MOST_ROUNDS = 25
MOMENTS = ("before", "after", "free")
END = -1
# Seconds until a place must have been reached, with resubmissions on a busy machine.
BOUND = 240.0

# In every job process of a site: it says that it has come to a place of the plan, and stops there
# until the place is taken from the plan.
AT_THE_SITE = """
import os, sys, time
if any(word.endswith("client.worker_process") for word in sys.orig_argv):
    from pathlib import Path
    from fedkin.engines.site import SiteHalf
    plan = Path(os.environ["TEST_PLAN"])

    def come_to(half, place, moment):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                lines = plan.read_text().splitlines()
            except OSError:
                return
            wanted = [line for line in lines if line.startswith(f"{half.run} {place} ")]
            if not wanted or wanted[0].split()[2] not in (moment, "free"):
                return
            (plan.parent / f"{wanted[0].replace(' ', '_')}.{half.clients.names[0]}").touch()
            if wanted[0].endswith("free"):
                return
            time.sleep(0.005)

    def at_the_place(function, place_of):
        def stopping(self, number, *rest):
            come_to(self, place_of(number), "before")
            answer = function(self, number, *rest)
            come_to(self, place_of(number), "after")
            return answer
        return stopping

    SiteHalf.answer = at_the_place(SiteHalf.answer, lambda number: number)
    SiteHalf.finish = at_the_place(SiteHalf.finish, lambda number: -1)
"""


def one_case(name):
    """The method's row of the battery with rounds to be killed in, if there is one."""
    rows = [case for case in CASES if case.name == name]
    return next((case for case in rows if not case.one_round), rows[0])


def federation_of(case):
    data = case.federation(3)
    return Federation.from_clients({name: data.client(k) for k, name in enumerate(NAMES)})


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """A server and three sites for all methods; one has lenient rules of disclosure."""
    folder = tmp_path_factory.mktemp("kills")
    (folder / "sitecustomize.py").write_text(AT_THE_SITE)
    # Lyon has six rows, in folds of three where a method cuts them.
    lenient = {"nfilter_subset": 3, "nfilter_tab": 0, "nfilter_glm": 100.0, "leverage": 2.0}
    rules = {"berlin": False, "lyon": lenient, "porto": False}
    own = {n: {"data": folder / f"{n}.npz", "disclosure": rules[n]} for n in NAMES}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TEST_PLAN", str(folder / "plan"))
        patched.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        with Deployment(provision(folder / "kits", NAMES), own) as running:
            yield running, folder


# ------------------------------------------------------------------ kills


def kill_job(running, name):
    """The job process alone; its parent lives."""
    running.kill(name, only_job=True)


def kill_parent(running, name):
    """The parent alone; its job process lives on until it notices."""
    process = running.processes[name]
    process.kill()
    process.wait(timeout=10)


def kill_all(running, name):
    """Everything of a site or of the server."""
    running.kill(name)


HOW = (kill_job, kill_parent, kill_all)


@dataclass
class Kill:
    """One kill: whom, how, where and when."""

    victim: str
    how: int
    place: str
    moment: str
    delay: float

    def __str__(self) -> str:
        what = HOW[self.how].__name__.replace("_", " ")
        return f"{what} of {self.victim}, {self.moment} {self.place}"


def schedule(name: str, n_rounds: int) -> list[list[Kill]]:
    """Kills of a method by runs; places of one run differ. The same number, the same kills."""
    rng = np.random.default_rng([SEED, zlib.crc32(name.encode())])
    places = ["RUN.checks 1", *(f"RUN {number}" for number in range(1, n_rounds + 1)), f"RUN {END}"]
    runs: list[list[Kill]] = []
    left = KILLS
    while left > 0:
        chosen = np.sort(rng.choice(len(places), size=min(left, len(places)), replace=False))
        runs.append(
            [
                Kill(
                    victim=str(rng.choice([*NAMES, "server", "server", "server"])),
                    how=int(rng.integers(len(HOW))),
                    place=places[at],
                    moment=str(rng.choice(MOMENTS)),
                    delay=float(rng.uniform(0.0, 0.08)),
                )
                for at in chosen
            ]
        )
        left -= len(chosen)
    return runs


@dataclass
class Killer:
    """Kills by plan while a run is under way; bounded."""

    running: Deployment
    folder: Path
    run: str
    kills: list[Kill]
    done: list[str] = field(default_factory=list)

    def line(self, kill: Kill) -> str:
        return f"{kill.place.replace('RUN', self.run, 1)} {kill.moment}"

    def plan(self, kills: list[Kill]) -> None:
        """What sites stop at from now on; replaced as a whole."""
        fresh = self.folder / "plan.new"
        fresh.write_text("\n".join(map(self.line, kills)))
        os.replace(fresh, self.folder / "plan")

    def __enter__(self) -> Killer:
        self.plan(self.kills)
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.plan([])
        self.thread.join(BOUND)

    def _work(self) -> None:
        for at, kill in enumerate(self.kills):
            mark = self.line(kill).replace(" ", "_")
            deadline = time.monotonic() + BOUND
            while not any(self.folder.glob(f"{mark}.*")):
                if time.monotonic() > deadline or not (self.folder / "plan").read_text():
                    return
                time.sleep(0.005)
            time.sleep(kill.delay)
            with contextlib.suppress(psutil.NoSuchProcess):
                HOW[kill.how](self.running, kill.victim)
            self.done.append(str(kill))
            self.plan(self.kills[at + 1 :])


# ------------------------------------------------------------------ the promise


def kept(running, run):
    """What every site remembers of a run, and its model."""
    found = {}
    for name, state in running.state.items():
        found[name] = {f"model {key}": array for key, array in site_model(state, run).items()}
        found[name] |= {f"memory {k}": a for k, a in (site_memory(state, run) or {}).items()}
    return found


def same_bits(found, expected, told):
    assert set(found) == set(expected), told
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, f"{name}: {told}")


def killed_methods():
    names = [method.name for method in METHODS]
    if KILLED == ["all"]:
        return names
    assert set(KILLED) <= set(names), f"FEDKIN_KILLED is 'all', or some of {names}"
    return KILLED


@pytest.mark.parametrize("name", killed_methods())
def test_kills_change_no_bit_of_a_run_that_waits(name, sites):
    running, folder = sites
    case = one_case(name)
    hand_out(federation_of(case), folder)

    def fit(run):
        engine = Flare(
            running,
            rules=Rules(on_loss="wait"),
            deadline=5.0,
            timeout=BOUND,
            resubmissions=4 * KILLS + 4,
            run_id=run,
        )
        return engine.run(case.algorithm, case.at_most(MOST_ROUNDS), seed=3)

    whole = fit(f"{name}-whole")
    models = kept(running, f"{name}-whole")
    for at, kills in enumerate(schedule(name, whole.traffic.rounds)):
        run = f"{name}-{at}"
        told = f"FEDKIN_KILLS_SEED={SEED}, {run}: " + "; ".join(map(str, kills))
        try:
            with Killer(running, folder, run, kills) as killer:
                broken = fit(run)
        except Exception as error:
            raise AssertionError(f"{told}; done: {killer.done}") from error
        assert killer.done == list(map(str, kills)), f"{told}; done: {killer.done}"
        assert broken.traffic == whole.traffic and broken.refusals == whole.refusals, told
        same_bits(dict(broken.result), dict(whole.result), told)
        for site, arrays in kept(running, run).items():
            same_bits(arrays, models[site], f"{site}, {told}")
