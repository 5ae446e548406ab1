"""Every algorithm of the table keeps the contract's promises."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedkin.engines import InProcess, Journal, Rules, resume
from fedkin.federation import Federation
from fedkin.privacy import Ledger
from fedkin.protocol import Field, ProtocolError, QuorumLost, Reason, Run
from fedkin.protocol.gate import LOSSES

from .cases import CASES, Case

every_algorithm = pytest.mark.parametrize("case", CASES, ids=str)
# Nothing here looks inside an algorithm: one that cannot be imported fails its own tests only.
every_algorithm_that_settles = pytest.mark.parametrize(
    "case", [case for case in CASES if case.goes_on], ids=str
)
every_algorithm_of_few_rounds = pytest.mark.parametrize(
    "case", [case for case in CASES if not case.goes_on], ids=str
)
ODD = "site-7"


def fit(case: Case, federation: Federation | None = None, seed: int = 3, **engine):
    data = case.federation() if federation is None else federation
    return InProcess(**engine).run(case.algorithm, case.chosen(), data, seed)


_kept: dict[tuple[str, int | None, bool], Run] = {}


def kept_fit(case: Case, block_size: int | None = None, without_odd: bool = False) -> Run:
    """A fit that several tests compare with, made once."""
    key = (str(case), block_size, without_odd)
    if key not in _kept:
        absent = (lambda number, names: [ODD]) if without_odd else None
        _kept[key] = fit(case, block_size=block_size, absent=absent)
    return _kept[key]


def assert_same_bits(one, other):
    assert one.result.keys() == other.result.keys()
    for name, array in one.result.items():
        np.testing.assert_array_equal(array, other.result[name], err_msg=name)
    if one.memories is not None:
        for name, array in one.memories.items():
            np.testing.assert_array_equal(array, other.memories[name], err_msg=name)


def assert_close(case, one, other, tolerance=1e-9):
    for name in case.shared:
        np.testing.assert_allclose(
            one.result[name], other.result[name], rtol=tolerance, atol=tolerance, err_msg=name
        )


@every_algorithm
def test_same_seed_gives_same_bits(case):
    assert_same_bits(kept_fit(case), fit(case))


@every_algorithm
def test_order_of_clients_is_irrelevant(case):
    data = case.federation()
    clients = {name: data.client(k) for k, name in enumerate(data.names)}
    turned = Federation.from_clients(dict(reversed(clients.items())))
    assert_same_bits(kept_fit(case), fit(case, turned))


@every_algorithm
@pytest.mark.parametrize("block_size", [1, 2, 5])
def test_one_block_equals_many_blocks_equals_one_client_at_a_time(case, block_size):
    assert_close(case, kept_fit(case), kept_fit(case, block_size))


@every_algorithm
def test_identical_clients_equal_pooled(case):
    X, y = case.federation().client(2)
    data = Federation.from_clients([(X, y)] * 4)
    found = InProcess().run(case.algorithm, case.chosen_for_pooled(), data, 0).result
    pooled = case.pooled(np.tile(X, (4, 1)), np.tile(y, 4))
    for name, expected in pooled.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-7, err_msg=name)


@every_algorithm
def test_one_client_is_enough(case):
    data = case.federation(1)
    found = InProcess().run(case.algorithm, case.chosen_for_pooled(), data, 0).result
    for name, expected in case.pooled(data.X, data.y).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-7, err_msg=name)


@every_algorithm_that_settles
def test_missing_clients_in_early_rounds_do_not_change_the_end(case):
    whole = kept_fit(case)
    gaps = fit(case, absent=lambda number, names: names[1::3] if number in case.gaps else [])
    assert any(refusal.reason is Reason.ABSENT for refusal in gaps.refusals)
    assert_close(case, whole, gaps, 1e-5)


@every_algorithm_that_settles
def test_a_client_that_missed_the_start_joins_when_it_first_answers(case):
    late = fit(case, absent=lambda number, names: [ODD] if number <= 2 else [])
    assert all(np.isfinite(late.result[name]).all() for name in case.shared)
    if not case.start_counts:
        assert_close(case, late, kept_fit(case), 1e-4)


@every_algorithm_of_few_rounds
def test_without_an_answer_the_fit_is_that_of_the_others(case):
    data = case.federation()
    others = [k for k, name in enumerate(data.names) if name != ODD]
    away = fit(case, data, absent=lambda number, names: [ODD])
    assert {(r.site, r.reason) for r in away.refusals} == {(ODD, Reason.ABSENT)}
    assert len(away.refusals) == away.traffic.rounds
    assert away.traffic.rounds == 1 or not case.one_round
    without = fit(case, data.take(others))
    assert_close(case, away, without)
    for name in case.personal:
        own = away.result[name][others]
        np.testing.assert_allclose(own, without.result[name], rtol=1e-9, atol=1e-9)


@every_algorithm
def test_an_empty_client_costs_only_itself(case):
    data = case.federation()
    clients = {name: data.client(k) for k, name in enumerate(data.names)}
    clients["site-empty"] = (np.empty((0, 3)), np.empty(0))
    found = fit(case, Federation.from_clients(clients))
    assert {r.site for r in found.refusals} == {"site-empty"}
    assert {r.reason for r in found.refusals} == {Reason.FEW_ROWS}
    assert all(np.isfinite(found.result[name]).all() for name in case.shared)


# ------------------------------------------------------------------ bad replies


def _nan(reply, schema):
    name = next(iter(schema))
    return {**reply, name: np.full_like(reply[name], np.nan)}


def _infinity(reply, schema):
    name = next(iter(schema))
    return {**reply, name: np.full_like(reply[name], -np.inf)}


def _over_the_bound(reply, schema):
    name = next(iter(schema))
    return {**reply, name: np.full_like(reply[name], 2.0 * schema[name].bound)}


def _wrong_shape(reply, schema):
    name = next(iter(schema))
    return {**reply, name: reply[name][..., None]}


def _wrong_number_of_clients(reply, schema):
    name = next(iter(schema))
    return {**reply, name: np.concatenate([reply[name]] * 2)}


def _wrong_type(reply, schema):
    name = next(iter(schema))
    return {**reply, name: reply[name].astype(np.float32)}


def _object(reply, schema):
    name = next(iter(schema))
    return {**reply, name: [1, 2, 3]}


def _missing_field(reply, schema):
    return {name: reply[name] for name in list(schema)[1:]}


def _undeclared_field(reply, schema):
    return {**reply, "rows_of_patients": np.ones((1, 5))}


def _crash(reply, schema):
    raise RuntimeError("patient 17 has value 42")


BAD = {
    _nan: Reason.NOT_FINITE,
    _infinity: Reason.NOT_FINITE,
    _over_the_bound: Reason.BOUND,
    _wrong_shape: Reason.SHAPE,
    _wrong_number_of_clients: Reason.SHAPE,
    _wrong_type: Reason.DTYPE,
    _object: Reason.DTYPE,
    _missing_field: Reason.MISSING,
    _undeclared_field: Reason.UNDECLARED,
    _crash: Reason.ERROR,
}


def _with_bad_site(case, spoil):
    def spoilt(step):
        def function(clients, *rest, **fields):
            reply, memory = step.function(clients, *rest, **fields)
            if ODD in clients.names:
                assert len(clients) == 1
                reply = spoil(reply, step.reply)
            return reply, memory

        return replace(step, function=function)

    steps = {name: spoilt(step) for name, step in case.algorithm.steps.items()}
    return replace(case.algorithm, steps=steps)


def check_bad_reply(case, spoil, folder):
    """It is refused with a record and costs only its site."""
    few, data = case.at_most(6), case.federation()
    bad = InProcess(block_size=1, ledger=folder).run(_with_bad_site(case, spoil), few, data, 3)
    assert {r.site for r in bad.refusals} == {ODD}
    assert {r.reason for r in bad.refusals} == {BAD[spoil]}
    # A site that says it failed is lost: after three rounds nobody asks it again.
    n_asked = Rules().max_misses if BAD[spoil] in LOSSES else bad.traffic.rounds
    assert bad.traffic.refused == len(bad.refusals) == min(n_asked, bad.traffic.rounds)
    assert set(bad.left_out) == {ODD}
    away = InProcess(block_size=1, absent=lambda number, names: [ODD])
    assert_close(case, bad, away.run(case.algorithm, few, data, 3), 0)


@pytest.mark.parametrize("spoil", BAD, ids=lambda f: f.__name__.strip("_"))
def test_every_kind_of_bad_reply_is_refused(spoil, tmp_path):
    """Refusing is the gate's business, the same for all algorithms: one with memory stands for all.

    What a refusal costs is each algorithm's own: the next test.
    """
    check_bad_reply(next(c for c in CASES if c.name == "consensus_lasso"), spoil, tmp_path)


@every_algorithm
def test_a_bad_reply_costs_only_its_site(case, tmp_path):
    check_bad_reply(case, _over_the_bound, tmp_path)


@every_algorithm
def test_nan_in_one_row_of_a_batched_reply_costs_only_that_client(case):
    """As above, but inside one batched call that serves everybody."""

    def spoilt(step):
        def function(clients, *rest, **fields):
            reply, memory = step.function(clients, *rest, **fields)
            reply = {name: array.copy() for name, array in reply.items()}
            if ODD in clients.names:
                reply[next(iter(step.reply))][clients.names.index(ODD)] = np.nan
            return reply, memory

        return replace(step, function=function)

    steps = {name: spoilt(step) for name, step in case.algorithm.steps.items()}
    data = case.federation()
    bad = InProcess().run(replace(case.algorithm, steps=steps), case.chosen(), data, 3)
    assert {(r.site, r.reason) for r in bad.refusals} == {(ODD, Reason.NOT_FINITE)}
    assert_close(case, bad, kept_fit(case, without_odd=True), 0)


@every_algorithm
def test_a_crash_in_a_batched_call_is_traced_to_the_client(case):
    def spoilt(step):
        def function(clients, *rest, **fields):
            if ODD in clients.names:
                raise RuntimeError("patient 17 has value 42")
            return step.function(clients, *rest, **fields)

        return replace(step, function=function)

    steps = {name: spoilt(step) for name, step in case.algorithm.steps.items()}
    found = InProcess().run(
        replace(case.algorithm, steps=steps), case.chosen(), case.federation(), 3
    )
    assert {(r.site, r.reason) for r in found.refusals} == {(ODD, Reason.ERROR)}
    assert not any("patient" in str(refusal) for refusal in found.refusals)


@every_algorithm
def test_too_few_answers_stop_the_run_and_say_who_is_missing(case):
    with pytest.raises(QuorumLost, match=r"2 of 7 asked sites.*site 'site-5'"):
        fit(case, absent=lambda number, names: names[:5])


# ------------------------------------------------------------------ what leaves a client


@every_algorithm
def test_nothing_but_the_declared_fields_leaves_a_client(case, tmp_path):
    data = case.federation()
    fit(case, data, ledger=tmp_path)
    ledger = Ledger(tmp_path)
    raw = np.concatenate([data.X.ravel(), [] if case.tells_counts else data.y])
    lines = ledger.lines()
    assert lines
    for line in lines:
        step = case.algorithm.steps[line["step"]]
        schema = {**step.reply, **step.optional}
        assert set(step.reply) <= set(line["fields"]) <= set(schema)
        assert all(isinstance(schema[name], Field) and schema[name].meaning for name in schema)
        for array in ledger.values(line).values():
            assert not np.isin(array, raw).any(), "a raw value left a site"


@every_algorithm
def test_what_is_withheld_is_not_in_the_ledger_and_resuming_does_not_write_twice(case, tmp_path):
    data = case.federation()
    small = {name for name, size in zip(data.names, data.sizes) if size < 7}
    options = {"ledger": tmp_path / "ledger", "least_rows": 7}
    fit(case, data, journal=tmp_path / "run", **options)
    lines = Ledger(tmp_path / "ledger").lines()
    assert lines and not any(small & set(line["sites"]) for line in lines)
    fit(case, data, journal=tmp_path / "run", **options)
    assert Ledger(tmp_path / "ledger").lines() == lines


@every_algorithm
def test_sites_see_no_setting_that_is_not_theirs(case):
    seen = set()

    def watched(step):
        def function(clients, cache, settings, *rest, **fields):
            seen.update(settings.to_mapping())
            return step.function(clients, cache, settings, *rest, **fields)

        return replace(step, function=function)

    steps = {name: watched(step) for name, step in case.algorithm.steps.items()}
    InProcess().run(replace(case.algorithm, steps=steps), case.chosen(), case.federation(), 3)
    assert seen == set(case.algorithm.settings.seen_at_sites())


@every_algorithm
def test_a_site_may_demand_more_rows_than_the_schema(case):
    data = case.federation()
    small = {name for name, size in zip(data.names, data.sizes) if size < 7}
    assert 0 < len(small) < 4
    found = fit(case, data, least_rows=7)
    assert {r.site for r in found.refusals} == small
    assert {r.reason for r in found.refusals} == {Reason.FEW_ROWS}


@every_algorithm
def test_traffic_counts_every_byte(case, tmp_path):
    run = fit(case, ledger=tmp_path)
    account = Ledger(tmp_path).account()
    assert {n: row["bytes"] for n, row in account.items()} == run.traffic.bytes_up_by_field
    assert run.traffic.messages_up == run.traffic.rounds * 7


# ------------------------------------------------------------------ journal


def _cut(source, target, n_rounds, half_written=False):
    """A run folder as a crash after `n_rounds` leaves it."""
    target.mkdir()
    shutil.copy(source / "run.json", target)
    for number in range(1, n_rounds + 1):
        shutil.copy(source / f"round-{number:06d}.npz", target)
    if half_written:
        following = (source / f"round-{n_rounds + 1:06d}.npz").read_bytes()
        (target / f"round-{n_rounds + 1:06d}.npz").write_bytes(following[: len(following) // 2])


@every_algorithm
def test_the_journal_changes_nothing(case, tmp_path):
    assert_same_bits(kept_fit(case), fit(case, journal=tmp_path / "run"))


@every_algorithm
@pytest.mark.parametrize("half_written", [False, True])
def test_resuming_after_any_round_gives_the_bits_of_an_unbroken_run(case, tmp_path, half_written):
    def away(number, names):
        return names[number % 7 : number % 7 + 1]

    engine = InProcess(journal=tmp_path / "whole", absent=away)
    whole = engine.run(case.algorithm, case.at_most(9), case.federation(), 3)
    n_rounds = whole.traffic.rounds
    assert n_rounds > 3 or not case.goes_on
    cuts = sorted({0, 1, 2, n_rounds // 2, n_rounds - 1} & set(range(n_rounds)))
    for after in cuts:
        folder = tmp_path / f"cut-{after}"
        _cut(tmp_path / "whole", folder, after, half_written)
        again = resume(folder, case.algorithm, case.federation(), InProcess(absent=away))
        assert_same_bits(whole, again)
        assert again.traffic == whole.traffic
        assert again.refusals == whole.refusals


@every_algorithm
def test_a_killed_process_resumes_to_the_same_bits(case, tmp_path):
    whole = kept_fit(case)
    last = min(4, whole.traffic.rounds)
    script = f"""
import os, signal
from tests.conformance.cases import CASES
from fedkin.engines import InProcess
case = next(case for case in CASES if str(case) == {str(case)!r})
def die(number, names):
    if number == {last}:
        os.kill(os.getpid(), signal.SIGKILL)
    return []
InProcess(journal={str(tmp_path)!r}, absent=die).run(
    case.algorithm, case.chosen(), case.federation(), 3)
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=os.getcwd(), timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert Journal(tmp_path).read(last) is None
    assert case.one_round or Journal(tmp_path).read(last - 1) is not None
    assert_same_bits(whole, resume(tmp_path, case.algorithm, case.federation()))


@every_algorithm
def test_a_lost_reply_is_the_same_bits_as_skipping_the_round(case):
    """Lost: the reply is refused after the client stepped. Skipped: the client does not answer."""
    n_calls, lost_round = 0, min(3, kept_fit(case).traffic.rounds)

    def lossy(step):
        def function(clients, *rest, **fields):
            nonlocal n_calls
            n_calls += 1
            reply, memory = step.function(clients, *rest, **fields)
            if n_calls == lost_round:
                reply = {name: array.copy() for name, array in reply.items()}
                reply[next(iter(step.reply))][clients.names.index(ODD)] = np.nan
            return reply, memory

        return replace(step, function=function)

    steps = {name: lossy(step) for name, step in case.algorithm.steps.items()}
    lost = InProcess().run(
        replace(case.algorithm, steps=steps), case.chosen(), case.federation(), 3
    )
    skipped = fit(case, absent=lambda number, names: [ODD] if number == lost_round else [])
    assert [r.round for r in lost.refusals] == [r.round for r in skipped.refusals] == [lost_round]
    assert_same_bits(lost, skipped)


@every_algorithm
def test_other_data_in_the_same_folder_are_noticed(case, tmp_path):
    fit(case, journal=tmp_path)
    with pytest.raises(ProtocolError, match="changed since"):
        fit(case, case.federation(seed=9), journal=tmp_path)


@every_algorithm
def test_another_run_in_the_same_folder_is_refused(case, tmp_path):
    fit(case, journal=tmp_path)
    with pytest.raises(ProtocolError, match="another run"):
        fit(case, seed=4, journal=tmp_path)


@every_algorithm_that_settles
def test_a_fraction_of_clients_is_asked_each_round(case, tmp_path):
    """Exactly as many rounds ask the share as are allowed; starts and last rounds ask everybody.

    So does every round of an algorithm that has no such setting.
    """
    known = case.algorithm.settings.defaults()
    changes = {"fraction": 0.5, case.rounds_setting: 6} if "fraction" in known else {}
    if changes and "tol" in known:
        changes["tol"] = case.never_met  # never settled: no round is saved
    if changes and "standard_errors" in known:
        changes["standard_errors"] = False  # not of a search that some sites missed
    settings = case.chosen(**changes)
    run = InProcess(journal=tmp_path).run(case.algorithm, settings, case.federation(), 3)
    asked = [len(Journal(tmp_path).read(k).asked) for k in range(1, run.traffic.rounds + 1)]
    assert asked.count(round(0.5 * 7)) == (6 if changes else 0)
    assert set(asked) <= {round(0.5 * 7), 7}
    assert all(np.isfinite(run.result[name]).all() for name in case.shared if name in run.result)
