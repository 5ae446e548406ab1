"""The gate and the drive loop on three-number clients that can be checked by hand."""

import numpy as np
import pytest

from fedkin.engines import InProcess, Rules, drive
from fedkin.engines.driver import SiteLost
from fedkin.engines.journal import Journal, decode, encode
from fedkin.federation import Federation
from fedkin.protocol import (
    Algorithm,
    Ask,
    Field,
    ProtocolError,
    Reason,
    Roster,
    Step,
    bind,
    inspect,
)

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
    assert faults == {1: (Reason.SHAPE, "")}
    replies, faults = inspect(SCHEMA, blocks, {"d": 1})
    np.testing.assert_array_equal(replies.clients, [1])


def test_values_over_the_bound_and_not_finite_are_told_apart():
    replies, faults = inspect(SCHEMA, [block(0, 1, 2, values=[[11], [np.nan], [-10]])], {})
    np.testing.assert_array_equal(replies.clients, [2])
    assert faults == {0: (Reason.BOUND, "a"), 1: (Reason.NOT_FINITE, "a")}


def test_rows_behind_an_entry_are_counted_where_they_are_known():
    rows = np.array([1, 2, 3])
    everyone = [block(0, 1, 2, values=[[1], [1], [1]])]
    assert inspect(SCHEMA, everyone, {}, None, 2)[1] == {}
    replies, faults = inspect(SCHEMA, everyone, {}, rows, 2)
    assert faults == {0: (Reason.FEW_ROWS, "a")}
    np.testing.assert_array_equal(replies.clients, [1, 2])


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
    outcome = InProcess().run(mean_algorithm(_rounds(1)), {}, THREE)
    assert outcome.result["means"] == [28 / 6]
    assert outcome.traffic.rounds == 1
    assert outcome.traffic.messages_up == outcome.traffic.messages_down == 3
    assert outcome.traffic.bytes_up_by_field == {"total": 24, "rows": 24}


def test_only_those_named_are_asked():
    outcome = InProcess().run(mean_algorithm(_rounds(2, who=np.array([2, 0]))), {}, THREE)
    np.testing.assert_array_equal(outcome.result["means"], [22 / 4] * 2)
    np.testing.assert_array_equal(outcome.memories["calls"], [2, 0, 2])


def test_memory_of_a_refused_reply_does_not_count():
    engine = InProcess(absent=lambda number, names: ["B"] if number == 2 else [])
    outcome = engine.run(mean_algorithm(_rounds(3)), {}, THREE)
    np.testing.assert_array_equal(outcome.memories["calls"], [3, 2, 3])


def test_an_unknown_step_or_setting_is_a_programming_error():
    def wrong(roster, settings):
        yield Ask("median")
        return {}

    with pytest.raises(ProtocolError, match="no client step 'median'"):
        InProcess().run(mean_algorithm(wrong), {}, THREE)
    with pytest.raises(ValueError, match="mean has no setting alpha"):
        InProcess().run(mean_algorithm(_rounds(1)), {"alpha": 1}, THREE)


class _Flaky:
    """A link whose site B never answers in time."""

    sizes, least_rows, last_error = None, 0, None

    def __init__(self):
        self.asked = []

    def exchange(self, number, ask, asked):
        self.asked.append(list(asked))
        blocks = [
            (np.array([k]), {"total": np.ones(1), "rows": np.ones(1)}) for k in asked if k != 1
        ]
        return blocks, {1: (Reason.LATE, "")} if 1 in asked else {}

    def settle(self, number, accepted):
        pass

    def replay(self, ask, record):
        pass

    def finish(self):
        pass

    def memories(self):
        return None


def test_a_silent_site_is_dropped_after_the_stated_misses(tmp_path):
    link, roster = _Flaky(), Roster(("A", "B", "C"))
    rules = Rules(max_misses=2)
    outcome = drive(mean_algorithm(_rounds(4)), {}, roster, link, rules, Journal(tmp_path))
    assert link.asked == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2]]
    assert outcome.dropped == ("B",)
    again = drive(mean_algorithm(_rounds(6)), {}, roster, link, rules, Journal(tmp_path))
    assert link.asked[4:] == [[0, 2], [0, 2]]
    assert again.dropped == ("B",)


@pytest.mark.parametrize("after", range(6))
def test_misses_are_counted_alike_before_and_after_a_crash(tmp_path, after):
    roster, rules = Roster(("A", "B", "C")), Rules(max_misses=3)
    whole = _Flaky()
    drive(mean_algorithm(_rounds(6)), {}, roster, whole, rules, Journal(tmp_path))
    for number in range(after + 1, 7):
        (tmp_path / f"round-{number:06d}.npz").unlink()
    again = _Flaky()
    outcome = drive(mean_algorithm(_rounds(6)), {}, roster, again, rules, Journal(tmp_path))
    assert again.asked == whole.asked[after:]
    assert outcome.dropped == ("B",)


def test_withholding_by_the_rule_on_rows_does_not_cost_the_quorum():
    few = InProcess(least_rows=3)
    outcome = few.run(mean_algorithm(_rounds(1)), {}, THREE)
    assert outcome.result["means"] == [7.0]
    assert {r.site for r in outcome.refusals} == {"A", "B"}


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
        found = engine.run(Algorithm("kinds", steps, program), {}, THREE).result["seen"]
        np.testing.assert_array_equal(found, [[0, 0, 0], [1, 1, 1], [0, 0, 0]])
    gap = InProcess(absent=lambda number, names: ["B"] if number == 2 else [])
    found = gap.run(Algorithm("kinds", steps, _last_only(("one", "two", "two"))), {}, THREE).result[
        "last"
    ]
    np.testing.assert_array_equal(found, [0, 1, 0])


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
            mean_algorithm(_rounds(4)), {}, Roster(("A", "B", "C")), _Flaky(), Rules(on_loss="wait")
        )


def test_waiting_comes_before_the_quorum():
    class Silent(_Flaky):
        def exchange(self, number, ask, asked):
            return [], {int(k): (Reason.LATE, "") for k in asked}

    rules = Rules(on_loss="wait")
    with pytest.raises(SiteLost):
        drive(mean_algorithm(_rounds(1)), {}, Roster(("A", "B", "C")), Silent(), rules)


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
