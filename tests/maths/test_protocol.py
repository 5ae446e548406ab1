"""The gate and the drive loop on three-number clients that can be checked by hand."""

from dataclasses import replace

import numpy as np
import pytest

from fedkin.engines import InProcess, Rules, drive
from fedkin.engines.driver import SiteLost, _draw
from fedkin.engines.journal import Journal, decode, encode
from fedkin.federation import Federation
from fedkin.protocol import (
    Algorithm,
    Ask,
    Fault,
    Field,
    LastReplies,
    ProtocolError,
    QuorumLost,
    Reason,
    Refusal,
    Replies,
    Result,
    Roster,
    Step,
    bind,
    inspect,
    over_roster,
)
from fedkin.protocol.gate import cleaned
from fedkin.settings import NoSettings

SCHEMA = {"a": Field(("d",), "numbers", bound=10.0)}
THREE = Federation.from_clients({"A": [[1.0]], "B": [[2.0], [4.0]], "C": [[6.0], [7.0], [8.0]]})


def block(*clients, values):
    return np.array(clients), {"a": np.array(values, dtype=float)}


def test_good_blocks_are_merged_in_roster_order():
    replies, faults = inspect(SCHEMA, [block(2, values=[[5]]), block(0, 1, values=[[1], [2]])], {})
    assert not faults
    np.testing.assert_array_equal(replies.clients, [0, 1, 2])
    np.testing.assert_array_equal(replies["a"][:, 0], [1, 2, 5])
    assert replies.total("a") == 8


def test_an_open_symbol_means_what_most_clients_mean():
    blocks = [block(0, values=[[1, 2]]), block(1, values=[[1]]), block(2, values=[[3, 4]])]
    replies, faults = inspect(SCHEMA, blocks, {})
    np.testing.assert_array_equal(replies.clients, [0, 2])
    assert faults == {1: Fault(Reason.SHAPE)}
    replies, faults = inspect(SCHEMA, blocks, {"d": 1})
    np.testing.assert_array_equal(replies.clients, [1])


def test_clients_are_counted_and_not_the_blocks_they_come_in():
    together = block(0, 1, 2, values=[[1, 2], [3, 4], [5, 6]])
    alone = [block(3, values=[[1]]), block(4, values=[[2]])]
    replies, faults = inspect(SCHEMA, [*alone, together], {})
    np.testing.assert_array_equal(replies.clients, [0, 1, 2])
    assert set(faults) == {3, 4}


@pytest.mark.parametrize(("fraction", "n_drawn"), [(0.3, 3), (0.34, 3), (0.96, 10), (0.01, 1)])
def test_a_share_of_the_sites_is_the_nearest_number_of_them(fraction, n_drawn):
    everybody = np.arange(20, 30)
    drawn = [_draw(Ask("mean", fraction=fraction), everybody, 1, number) for number in range(5)]
    assert {len(who) for who in drawn} == {n_drawn}
    assert all(np.isin(who, everybody).all() and (np.diff(who) > 0).all() for who in drawn)


def test_values_over_the_bound_and_not_finite_are_told_apart():
    replies, faults = inspect(SCHEMA, [block(0, 1, 2, values=[[11], [np.nan], [-10]])], {})
    np.testing.assert_array_equal(replies.clients, [2])
    assert faults == {0: Fault(Reason.BOUND, "a"), 1: Fault(Reason.NOT_FINITE, "a")}


def test_the_bound_holds_on_both_sides():
    for value in (-10.5, 10.5):
        _, faults = inspect(SCHEMA, [block(0, values=[[value]])], {})
        assert faults == {0: Fault(Reason.BOUND, "a")}


def test_rows_behind_an_entry_are_counted_where_they_are_known():
    rows = np.array([1, 2, 3])
    everyone, faults = block(0, 1, 2, values=[[1], [1], [1]]), {}
    assert cleaned(SCHEMA, everyone, {}, faults, None, 2) == everyone and not faults
    clients, _ = cleaned(SCHEMA, everyone, {}, faults, rows, 2)
    assert faults == {0: Fault(Reason.FEW_ROWS, "a")}
    np.testing.assert_array_equal(clients, [1, 2])


def test_an_ask_must_carry_what_is_declared():
    schema = {"x": Field(("d",), "")}
    assert bind(schema, {"x": np.zeros(3)}, {}) == {"d": 3}
    assert bind(schema, {"x": np.zeros((5, 3))}, {}, lead=1) == {"d": 3}
    for wrong in ({}, {"x": np.zeros((3, 1))}, {"x": np.zeros(3), "z": np.zeros(1)}):
        with pytest.raises(ProtocolError):
            bind(schema, wrong, {})
    with pytest.raises(ProtocolError):
        bind(schema, {"x": np.zeros(3)}, {"d": 2})


# ------------------------------------------------------------------ the drive loop


def _mean(clients, cache, settings, common, personal, memory, keys):
    totals = np.bincount(clients.owner, clients.X[:, 0], minlength=len(clients))
    calls = memory["calls"] + 1 if memory else np.ones(len(clients))
    reply = {"total": totals, "rows": clients.sizes.astype(float)}
    return reply, {"calls": calls}


def _rounds(n_rounds, **ask):
    def program(roster, settings):
        seen = []
        for _ in range(n_rounds):
            replies = yield Ask("mean", **ask)
            seen.append(replies.total("total") / replies.total("rows"))
        return {"means": np.array(seen)}

    return program


def mean_algorithm(program):
    reply = {"total": Field((), "sum of x"), "rows": Field((), "number of rows")}
    return Algorithm("mean", {"mean": Step(_mean, reply)}, program)


def test_a_mean_over_three_sites_can_be_checked_by_hand():
    run = InProcess().run(mean_algorithm(_rounds(1)), NoSettings(), THREE)
    assert run.result["means"] == [28 / 6]
    assert run.traffic.rounds == 1
    assert run.traffic.messages_up == run.traffic.messages_down == 3
    assert run.traffic.bytes_up_by_field == {"total": 24, "rows": 24}


def test_only_those_named_are_asked():
    run = InProcess().run(mean_algorithm(_rounds(2, who=np.array([2, 0]))), NoSettings(), THREE)
    np.testing.assert_array_equal(run.result["means"], [22 / 4] * 2)
    np.testing.assert_array_equal(run.memories["calls"], [2, 0, 2])


def test_memory_of_a_refused_reply_does_not_count():
    engine = InProcess(absent=lambda number, names: ["B"] if number == 2 else [])
    run = engine.run(mean_algorithm(_rounds(3)), NoSettings(), THREE)
    np.testing.assert_array_equal(run.memories["calls"], [3, 2, 3])


def test_an_unknown_step_or_setting_is_a_programming_error():
    def wrong(roster, settings):
        yield Ask("median")
        return {}

    with pytest.raises(ProtocolError, match="no client step 'median'"):
        InProcess().run(mean_algorithm(wrong), NoSettings(), THREE)
    with pytest.raises(TypeError, match="mean takes NoSettings, not dict"):
        InProcess().run(mean_algorithm(_rounds(1)), {"alpha": 1}, THREE)


class _Flaky:
    """A link whose site B never answers in time."""

    gated, rewinds, last_error = False, True, None

    def __init__(self):
        self.asked = []

    def exchange(self, number, ask, asked):
        self.asked.append(list(asked))
        blocks = [
            (np.array([k]), {"total": np.ones(1), "rows": np.ones(1)}) for k in asked if k != 1
        ]
        return blocks, {1: Fault(Reason.LATE)} if 1 in asked else {}

    def settle(self, number, accepted):
        pass

    def replay(self, ask, record):
        pass

    def deliver(self, result):
        pass

    def finish(self):
        return {}

    def memories(self):
        return None


def test_a_silent_site_is_dropped_after_the_stated_misses(tmp_path):
    link, roster = _Flaky(), Roster(("A", "B", "C"))
    rules = Rules(max_misses=2)
    run = drive(mean_algorithm(_rounds(4)), NoSettings(), roster, link, rules, Journal(tmp_path))
    assert link.asked == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2]]
    assert run.dropped == ("B",)
    again = drive(mean_algorithm(_rounds(6)), NoSettings(), roster, link, rules, Journal(tmp_path))
    assert link.asked[4:] == [[0, 2], [0, 2]]
    assert again.dropped == ("B",)


@pytest.mark.parametrize("after", range(6))
def test_misses_are_counted_alike_before_and_after_a_crash(tmp_path, after):
    roster, rules = Roster(("A", "B", "C")), Rules(max_misses=3)
    whole = _Flaky()
    drive(mean_algorithm(_rounds(6)), NoSettings(), roster, whole, rules, Journal(tmp_path))
    for number in range(after + 1, 7):
        for suffix in (".npz", ".copy"):
            (tmp_path / f"round-{number:06d}{suffix}").unlink()
    again = _Flaky()
    run = drive(mean_algorithm(_rounds(6)), NoSettings(), roster, again, rules, Journal(tmp_path))
    assert again.asked == whole.asked[after:]
    assert run.dropped == ("B",)


def test_withholding_by_the_rule_on_rows_does_not_cost_the_quorum():
    few = InProcess(least_rows=3)
    run = few.run(mean_algorithm(_rounds(1)), NoSettings(), THREE)
    assert run.result["means"] == [7.0]
    assert {r.site for r in run.refusals} == {"A", "B"}


def test_a_memory_is_replaced_whole_whatever_the_blocks():
    """Step one remembers a, step two remembers b: then nobody remembers a."""

    def remember(name):
        def function(clients, cache, settings, common, personal, memory, keys):
            has = np.full(len(clients), float("a" in (memory or {})))
            return {"has_a": has}, {name: np.ones(len(clients))}

        return function

    def program(roster, settings):
        seen = []
        for step in ("one", "two", "two"):
            replies = yield Ask(step)
            seen.append(replies["has_a"])
        return {"seen": np.array(seen)}

    reply = {"has_a": Field((), "whether a is remembered")}
    steps = {"one": Step(remember("a"), reply), "two": Step(remember("b"), reply)}
    for engine in (InProcess(), InProcess(block_size=1), InProcess(block_size=2)):
        seen = engine.run(Algorithm("kinds", steps, program), NoSettings(), THREE).result["seen"]
        np.testing.assert_array_equal(seen, [[0, 0, 0], [1, 1, 1], [0, 0, 0]])
    gap = InProcess(absent=lambda number, names: ["B"] if number == 2 else [])
    last = Algorithm("kinds", steps, _last_only(("one", "two", "two")))
    np.testing.assert_array_equal(gap.run(last, NoSettings(), THREE).result["last"], [0, 1, 0])


def _last_only(names):
    def program(roster, settings):
        for name in names:
            replies = yield Ask(name)
        return {"last": replies["has_a"]}

    return program


def test_sizes_declared_as_numbers_are_kept():
    assert bind({"x": Field((4,), "")}, {"x": np.zeros(4)}, {}) == {}
    with pytest.raises(ProtocolError):
        bind({"x": Field((4,), "")}, {"x": np.zeros(5)}, {})


def test_waiting_for_a_silent_site_stops_the_run():
    with pytest.raises(SiteLost, match="'B'"):
        drive(
            mean_algorithm(_rounds(4)),
            NoSettings(),
            Roster(("A", "B", "C")),
            _Flaky(),
            Rules(on_loss="wait"),
        )


def test_waiting_comes_before_the_quorum():
    class Silent(_Flaky):
        def exchange(self, number, ask, asked):
            return [], {int(k): Fault(Reason.LATE) for k in asked}

    rules = Rules(on_loss="wait")
    with pytest.raises(SiteLost):
        drive(mean_algorithm(_rounds(1)), NoSettings(), Roster(("A", "B", "C")), Silent(), rules)


@pytest.mark.parametrize(("quorum", "enough"), [(2 / 3, True), (0.67, False)])
def test_the_quorum_is_met_by_exactly_its_share(quorum, enough):
    engine = InProcess(absent=lambda number, names: ["B"], rules=Rules(quorum=quorum))
    if enough:
        assert engine.run(mean_algorithm(_rounds(1)), NoSettings(), THREE).refusals
    else:
        with pytest.raises(QuorumLost, match="2 of 3 asked sites"):
            engine.run(mean_algorithm(_rounds(1)), NoSettings(), THREE)


def test_a_site_that_answers_in_between_is_not_given_up():
    class Sometimes(_Flaky):
        def exchange(self, number, ask, asked):
            batches, faults = super().exchange(number, ask, asked)
            if number % 2 == 0 and 1 in asked:
                batches.append((np.array([1]), {"total": np.ones(1), "rows": np.ones(1)}))
                faults = {}
            return batches, faults

    link = Sometimes()
    rules, roster = Rules(max_misses=2), Roster(("A", "B", "C"))
    run = drive(mean_algorithm(_rounds(7)), NoSettings(), roster, link, rules)
    assert run.dropped == () and all(1 in asked for asked in link.asked)


def test_rules_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="quorum"):
        Rules(quorum=0)
    with pytest.raises(ValueError, match="max_misses"):
        Rules(max_misses=0)


def test_settings_survive_json_to_the_last_bit():
    value = {"a": np.random.default_rng(0).normal(size=(2, 3)), "b": [1, None, "x"], "c": np.pi}
    back = decode(encode(value))
    np.testing.assert_array_equal(back["a"], value["a"])
    assert back["b"] == value["b"] and back["c"] == np.pi
    empty = decode(encode({"a": np.empty((0, 3))}))
    assert empty["a"].shape == (0, 3)


# ------------------------------------------------------------------ what a round leaves


def test_faults_and_refusals_survive_json():
    for reason in Reason:
        refusal = Refusal(3, "berlin", Fault(reason, "a_field"))
        assert Refusal.from_json(refusal.to_json()) == refusal


@pytest.mark.parametrize(
    "told", [None, [], {}, {"reason": 3}, {"reason": "patient 17"}, {"field": "a"}]
)
def test_a_strange_word_about_a_fault_is_a_fault_and_is_not_repeated(told):
    assert Fault.from_json(told) == Fault(Reason.UNDECLARED)
    named = Fault.from_json({"reason": "LATE", "field": "patient 17 has 42"})
    assert named == Fault(Reason.LATE)


def test_values_of_some_clients_become_an_array_of_all():
    spread = over_roster(np.array([1.0, 2.0]), np.array([2, 0]), 4)
    np.testing.assert_array_equal(spread, [2, np.nan, 1, np.nan])
    rows = over_roster(np.ones((1, 2)), np.array([1]), 2, missing=np.array([7.0, 8.0]))
    np.testing.assert_array_equal(rows, [[7, 8], [1, 1]])


def test_the_last_reply_of_a_site_stands():
    last = LastReplies(3)
    last.hear(Replies(np.array([0, 2]), {"a": np.array([[1.0], [3.0]])}))
    np.testing.assert_array_equal(last["a"][:, 0], [1, 0, 3])
    np.testing.assert_array_equal(last.heard, [True, False, True])
    everybody = np.array([[5.0], [6.0], [7.0]])
    last.hear(Replies(np.arange(3), {"a": everybody}))
    last.hear(Replies(np.array([1]), {"a": np.array([[9.0]])}))
    np.testing.assert_array_equal(last["a"][:, 0], [5, 9, 7])
    np.testing.assert_array_equal(everybody[:, 0], [5, 6, 7])  # a reply is not ours to write on
    np.testing.assert_array_equal(last.age, [1, 0, 1])
    assert last.total("a") == 21 and last.total("a", np.array([True, False, True])) == 12


def test_replies_about_some_restarts_leave_the_others_alone():
    last = LastReplies(2)
    last.put(np.arange(2), {"a": np.zeros((2, 3))})
    last.put(np.array([1]), {"a": np.ones((1, 2))}, where=np.array([0, 2]))
    np.testing.assert_array_equal(last["a"], [[0, 0, 0], [1, 0, 1]])
    np.testing.assert_array_equal(last.total("a", where=np.array([2, 1])), [1, 0])


def test_optional_fields_leave_when_they_are_asked_for():
    def function(clients, cache, settings, common, personal, memory, keys, fields):
        both = {"a": np.ones(len(clients)), "b": np.ones(len(clients))}
        return {name: both[name] for name in ("a", *fields)}, memory

    step = Step(function, {"a": Field((), "one")}, optional={"b": Field((), "one more")})

    def program(roster, settings):
        plain = yield Ask("ones")
        more = yield Ask("ones", fields=("b",))
        return {"n_fields": np.array([len(plain), len(more)])}

    run = InProcess().run(Algorithm("ones", {"ones": step}, program), NoSettings(), THREE)
    np.testing.assert_array_equal(run.result["n_fields"], [1, 2])
    assert set(run.traffic.bytes_up_by_field) == {"a", "b"}
    with pytest.raises(ProtocolError, match="no optional field c"):
        step.replies(("c",))


def test_a_result_is_kept_by_name_and_comes_back():
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True, eq=False)
    class Found(Result):
        mean: np.ndarray
        extra: np.ndarray | None = None

    kept = dict(Found(mean=3.0))
    assert list(kept) == ["mean"] and Found.from_arrays(kept).mean == 3.0
    with pytest.raises(KeyError):
        Found(mean=3.0)["extra"]


def test_a_function_that_returns_no_memory_is_told_what_to_return():
    def forgetful(*arguments):
        return _mean(*arguments)[0]

    algorithm = mean_algorithm(_rounds(1))
    steps = {"mean": replace(algorithm.steps["mean"], function=forgetful)}
    with pytest.raises(ProtocolError, match=r"step 'mean' must return \(reply, memory\)"):
        InProcess().run(replace(algorithm, steps=steps), NoSettings(), THREE)


def test_a_lost_quorum_names_the_field_that_is_wrong():
    def column(*arguments):
        reply, memory = _mean(*arguments)
        return {**reply, "total": reply["total"][:, None]}, memory

    algorithm = mean_algorithm(_rounds(1))
    steps = {"mean": replace(algorithm.steps["mean"], function=column)}
    with pytest.raises(QuorumLost, match="site 'A': wrong shape in 'total'"):
        InProcess().run(replace(algorithm, steps=steps), NoSettings(), THREE)
