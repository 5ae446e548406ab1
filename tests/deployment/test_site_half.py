"""Commit on acknowledgement, without an engine: a link that loses what it is told to lose."""

import numpy as np
import pytest

from fedkin import FMLR
from fedkin.engines import InProcess, Rules, drive
from fedkin.engines.link import SiteLink
from fedkin.engines.site import SiteHalf, site_memory, site_model
from fedkin.protocol import Ask, Fault, Reason, Roster
from tests.conformance.cases import CASES, ragged_federation
from tests.conformance.test_battery import assert_same_bits

every_algorithm = pytest.mark.parametrize("case", CASES, ids=str)


def case_of(name):
    return next(case for case in CASES if case.name == name)


class LossyLink(SiteLink):
    """Real site halves; `fate(round, site)` is "lost" (answered, never arrived), "crash" (answered,
    then the site restarts), "silent" (never asked) or None."""

    def __init__(self, case, data, folder, fate=lambda number, site: None, seed=3):
        super().__init__(Roster(data.names, seed))
        self.case, self.data, self.folder, self.fate, self.seed = case, data, folder, fate, seed
        self.halves = {}

    def half(self, k):
        if k not in self.halves:
            settings = self.case.chosen().for_sites()
            self.halves[k] = SiteHalf(
                self.case.algorithm,
                settings,
                self.data.take([k]),
                self.seed,
                "run",
                self.folder / self.data.names[k],
            )
        return self.halves[k]

    def put(self, questions):
        blocks, failed = [], {}
        for k, question in questions.items():
            fate = self.fate(question.number, self.data.names[k])
            if fate == "silent":
                failed[k] = Fault(Reason.ABSENT)
                continue
            half = self.half(k)
            answer = half.answer(question.number, question.ask, question.acknowledged)
            if fate == "lost":
                failed[k] = Fault(Reason.ABSENT)
                continue
            if fate == "crash":
                del self.halves[k]
            if answer.fault is not None:
                failed[k] = answer.fault
            else:
                blocks.append((np.array([k]), answer.arrays))
        return blocks, failed

    def end(self, ends):
        faults = {k: self.half(k).finish(end.acknowledged, end.model) for k, end in ends.items()}
        return {k: fault for k, fault in faults.items() if fault is not None}


def run(case, folder, fate=lambda number, site: None):
    data, settings = case.federation(), case.at_most(25)
    link = LossyLink(case, data, folder, fate)
    return drive(case.algorithm, settings, Roster(data.names, 3), link, Rules(quorum=0.3))


def some(what, after):
    """The fate of every fifth reply of the rounds after some."""

    def fate(number, site):
        return what if (number * 7 + int(site.split("-")[1])) % 5 == 0 and number > after else None

    return fate


# What a site needs to use its model beyond what it keeps itself, where settings decide it.
NEEDED = {
    "fmlr, degrees": ("own.site_coef", "own.site_sigma", "own.responsibilities"),
    "mixed_model": ("shared.coef", "own.effects"),
    "softmax_mixed": ("shared.population", "shared.mean", "shared.spread"),
    "fedgrem, adaptive": ("own.components", "shared.centers"),
    "fedgrem, full": ("own.components", "own.weights", "own.scale", "shared.covariances"),
    "fedgmm": ("shared.centers", "shared.noise", "shared.input_centers"),
    "odcl, defaults": ("own.models", "own.labels"),
    "ifca": ("own.models",),
    "standardizer": ("shared.mean", "shared.scale", "shared.whitening"),
    "fgpr": ("shared.theta", "shared.weights"),
    "fgpr, common curve": ("shared.common_mean", "shared.common_covariance", "own.site_common"),
    "fedavg": ("shared.theta", "shared.frame"),
    "consensus_lasso": ("shared.coef",),
}


@every_algorithm
def test_sites_one_by_one_equal_one_block(case, tmp_path):
    data = case.federation()
    together = InProcess(block_size=1).run(case.algorithm, case.at_most(25), data, 3)
    apart = run(case, tmp_path)
    for name in case.shared:
        np.testing.assert_array_equal(apart.result[name], together.result[name])
    # Every site ends with the shared model, its own row, and what never left; nobody else's row.
    result = apart.result
    # An evaluation ends with scores, checks with findings; there is no model in them.
    assert result.for_all or case.algorithm.name in ("held_out", "left_out", "site_checks")
    for k, name in enumerate(data.names):
        model = site_model(tmp_path / name, "run")
        assert {n.split(".")[0] for n in model} <= {"shared", "own", "memory"}
        assert set(NEEDED.get(str(case), ())) <= set(model)
        for field in result.for_all:
            if field in result:
                np.testing.assert_array_equal(model[f"shared.{field}"], result[field])
        for field in result.for_one:
            if field in result:
                assert len(result[field]) in (len(data), len(data) + 1)  # or one for the unseen
                np.testing.assert_array_equal(model[f"own.{field}"], result[field][k])
        assert "What left us" in (tmp_path / name / "run" / "report.txt").read_text()


@every_algorithm
def test_a_lost_reply_is_bitwise_a_skipped_round(case, tmp_path):
    n_rounds = run(case, tmp_path / "counted").traffic.rounds
    after = min(2, n_rounds - 1)
    lost = run(case, tmp_path / "lost", some("lost", after))
    silent = run(case, tmp_path / "silent", some("silent", after))
    assert lost.refusals == silent.refusals
    assert len(lost.refusals) >= min(4, lost.traffic.rounds - after) > 0
    assert_same_bits(lost, silent)


@every_algorithm
def test_a_site_that_restarts_after_any_reply_remembers(case, tmp_path):
    crashing = run(case, tmp_path / "crash", lambda number, site: "crash")
    assert_same_bits(crashing, run(case, tmp_path / "steady"))


@every_algorithm
def test_a_repeated_question_gets_the_same_answer(case, tmp_path):
    data = case.federation()
    link = LossyLink(case, data, tmp_path)
    program = case.algorithm.program(Roster(data.names, 3), case.chosen())
    ask = next(program)
    once, _ = link.exchange(1, ask, np.arange(len(data)))
    again, _ = link.exchange(1, ask, np.arange(len(data)))
    for (_, one), (_, other) in zip(once, again):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    program.close()


def test_a_site_withholds_and_writes_down_what_may_not_leave(tmp_path):
    case, data = case_of("fmlr"), ragged_federation()
    k = int(np.argmin(data.sizes))
    settings = case.chosen().for_sites()
    half = SiteHalf(
        case.algorithm, settings, data.take([k]), 3, "run", tmp_path, least_rows=data.sizes[k] + 1
    )
    answer = half.answer(1, Ask("target"), 0)
    assert not answer.arrays and answer.fault == Fault(Reason.FEW_ROWS, "target")
    assert half.ledger.lines()[0]["withheld"] == "FEW_ROWS"
    assert half.ledger.account() == {}


@pytest.mark.parametrize(
    ("step", "common"), [("format_disk", {}), ("residual", {}), ("residual", {"coef": np.ones(3)})]
)
def test_a_question_that_breaks_the_contract_gets_one_word(step, common, tmp_path):
    case, data = case_of("fmlr"), ragged_federation()
    settings = case.chosen().for_sites()
    half = SiteHalf(case.algorithm, settings, data.take([0]), 3, "run", tmp_path)
    assert half.answer(1, Ask(step, common), 0).fault == Fault(Reason.ERROR)


def stateful_half(tmp_path):
    case, data = case_of("consensus_lasso"), ragged_federation()
    settings = case.chosen().for_sites()
    return SiteHalf(case.algorithm, settings, data.take([0]), 3, "run", tmp_path)


def agree(half, number, acknowledged, value=0.1):
    coef, rho = {"coef": np.full(3, value)}, {"rho": np.full(1, 5.0)}
    return half.answer(number, Ask("agree", coef, rho), acknowledged)


def test_a_site_goes_back_one_round_with_its_server_and_not_two(tmp_path):
    half = stateful_half(tmp_path)
    replies = {n: agree(half, n, n - 1).arrays["contribution"] for n in (1, 2, 3)}
    again = agree(stateful_half(tmp_path), 2, 1)
    np.testing.assert_array_equal(again.arrays["contribution"], replies[2])
    half = stateful_half(tmp_path)
    np.testing.assert_array_equal(agree(half, 3, 2).arrays["contribution"], replies[3])
    assert agree(half, 4, 3).fault is None
    assert agree(stateful_half(tmp_path), 2, 1).fault == Fault(Reason.MEMORY)


def test_a_site_that_lost_its_memory_says_so(tmp_path):
    half = stateful_half(tmp_path)
    agree(half, 1, 0)
    agree(half, 2, 1)
    for path in tmp_path.glob("run/*.npz"):
        path.unlink()
    assert agree(stateful_half(tmp_path), 3, 2).fault == Fault(Reason.DAMAGED)


def test_an_old_question_behind_a_newer_one_changes_nothing(tmp_path):
    half = stateful_half(tmp_path)
    agree(half, 2, 0)
    agree(half, 4, 2)
    assert agree(half, 3, 2).fault == Fault(Reason.LATE)
    steady = stateful_half(tmp_path / "steady")
    agree(steady, 2, 0)
    agree(steady, 4, 2)
    one, other = agree(half, 5, 4), agree(steady, 5, 4)
    np.testing.assert_array_equal(one.arrays["contribution"], other.arrays["contribution"])


def test_damaged_memory_travels_as_a_word(tmp_path):
    half = stateful_half(tmp_path)
    agree(half, 1, 0)
    half.memory.offered.write_bytes(b"not a memory")
    assert agree(half, 2, 1).fault == Fault(Reason.DAMAGED)


def test_the_last_memory_counts_when_the_run_has_ended(tmp_path):
    half = stateful_half(tmp_path)
    agree(half, 1, 0)
    assert site_memory(tmp_path, "run") is None
    half.finish(1)
    assert set(site_memory(tmp_path, "run")) == {"local", "dual"}


@pytest.mark.parametrize("name", ["../outside", "a/b", "", ".hidden", "ledger", "salt"])
def test_a_run_cannot_be_named_into_another_folder(name, tmp_path):
    case, data = case_of("consensus_lasso"), ragged_federation()
    settings = case.chosen().for_sites()
    with pytest.raises(ValueError, match="cannot be the name of a run"):
        SiteHalf(case.algorithm, settings, data.take([0]), 3, name, tmp_path / "state")
    assert not (tmp_path / "outside").exists()


def test_a_sites_own_coefficients_are_those_that_predict_for_it():
    data = ragged_federation()
    model = FMLR(1, degrees=True, random_state=0).fit(data)
    for k, name in enumerate(data.names):
        X, _ = data.client(k)
        own = model._result.for_site(k)["own.site_coef"]
        expected = model.predict(X, groups=[name] * len(X))
        np.testing.assert_allclose(X @ own[:-1] + own[-1], expected, rtol=1e-9, atol=1e-9)
