"""Promises under thousands of schedules of faults; a failure prints the schedule's number.

Waiting: the result, every site's memory and every site's model have the bits of an unbroken run,
and nobody is refused. Going on: the result is that of a run in which refused replies never were.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedkin import InProcess, Rules
from fedkin.engines.site import site_memory, site_model
from tests.deployment.simulator import CASE, DATA, SEED, SETTINGS, Schedule, clear, simulate

# Schedules run in memory where there is such a disk: they sync thousands of times.
PLACE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@cache
def unbroken():
    return InProcess(block_size=1).run(CASE.algorithm, SETTINGS, DATA, SEED)


def check_waiting(number: int) -> Schedule:
    folder = Path(tempfile.mkdtemp(dir=PLACE))
    try:
        run, schedule = simulate(number, folder)
        told = f"schedule {number}: {schedule.told}"
        assert not run.refusals, told
        np.testing.assert_array_equal(run.result["coef"], unbroken().result["coef"], told)
        for k, name in enumerate(DATA.names):
            state = folder / "sites" / name
            for field, array in site_memory(state, "run").items():
                np.testing.assert_array_equal(array[0], unbroken().memories[field][k], told)
            model = site_model(state, "run")
            np.testing.assert_array_equal(model["shared.coef"], unbroken().result["coef"], told)
        return schedule
    finally:
        clear(folder)


def check_going_on(number: int) -> Schedule:
    folder = Path(tempfile.mkdtemp(dir=PLACE))
    try:
        run, schedule = simulate(number, folder, "continue")
        told = f"schedule {number}: {schedule.told}, {run.refusals}"
        missing = {(r.round, r.site) for r in run.refusals}
        last = run.traffic.rounds
        for site in run.dropped:
            first = max(number for number, name in missing if name == site)
            missing |= {(number, site) for number in range(first, last + 1)}
        away = InProcess(
            block_size=1,
            rules=Rules(quorum=0.3),
            absent=lambda number, names: [name for name in names if (number, name) in missing],
        ).run(CASE.algorithm, SETTINGS, DATA, SEED)
        np.testing.assert_array_equal(run.result["coef"], away.result["coef"], told)
        return schedule
    finally:
        clear(folder)


def test_a_schedule_is_its_number():
    one, other = check_waiting(17), check_waiting(17)
    assert one.told == other.told


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1))
def test_waiting_gives_the_bits_of_an_unbroken_run(number):
    check_waiting(number)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1))
def test_a_refused_reply_never_changes_a_result(number):
    check_going_on(number)


@pytest.mark.deploy
@pytest.mark.short
def test_many_schedules():
    n_schedules = int(os.environ.get("FEDKIN_SCHEDULES") or 200)
    seen: set[str] = set()
    for number in range(n_schedules):
        check = check_waiting if number % 2 else check_going_on
        seen.update(word.split(" ")[0] for word in check(number).told)
    assert {"crash", "disk", "round", "server"} <= seen
