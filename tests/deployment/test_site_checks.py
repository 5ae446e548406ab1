"""The library's checks at real sites before the first round: codes travel, words stay."""

from __future__ import annotations

import numpy as np
import pytest

from fedkin.algorithms.site_checks import (
    CODES,
    SITE_CHECKS,
    TARGET,
    SiteChecksSettings,
    site_findings,
)
from fedkin.engines.inprocess import InProcess
from fedkin.engines.job_checks import Checked, JobChecks, check_at_sites, open_checks, write_words
from fedkin.engines.link import SiteLink
from fedkin.engines.opening import _runs_of_a_day
from fedkin.engines.site import SiteHalf
from fedkin.engines.site_data import fault_of
from fedkin.federation import Federation
from fedkin.inference import checks
from fedkin.privacy import Ledger
from fedkin.privacy.disclosure import DEFAULT_RULES
from fedkin.privacy.policy import SitePolicy
from fedkin.protocol import Fault, Reason, Roster
from tests.deployment.test_site_half import case_of

N = 60


def table(seed, n=N):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [10.0, 3.0, 1.0] + [50.0, 25.0, 0.0]
    return X, X @ [1.0, -1.0, 5.0] + rng.normal(size=n)


def spoilt(code):
    """A table in which a check fires, and the places where it does (3 is the target)."""
    X, y = table(9)
    if code == "FK003":
        X[4, 0] = -999.0
        return X, y, [0]
    if code == "FK005":
        X[:, 1] = 2.0 * y + 1.0
        return X, y, [1]
    if code == "FK006":
        X[48:], y[48:] = X[:12], y[:12]
        return X, y, []
    if code == "FK008":
        X[:, 2] = np.arange(N)
        return X, y, [2]
    if code == "FK009":
        X[:, 2] = X[:, 0] - X[:, 1]
        return X, y, [0, 1, 2]
    if code == "FK011":
        X[:, 1] = 7.0
        return X, y, [1]
    if code == "FK012":
        X[:, 2] = 1e9 + 1e-3 * X[:, 2]
        return X, y, [2]
    if code == "FK013":
        return X, np.full(N, 4.0), [3]
    if code == "FK017":
        return X[:3], y[:3], []
    assert code == "FK020"
    return X, (np.arange(N) == 3).astype(float), [3]


def one_site(X, y, name="a"):
    return Federation.from_clients({name: (X, y)}, "pressure")


@pytest.mark.parametrize("code", CODES)
def test_every_code_fires_at_a_site_that_has_the_problem_and_names_its_columns(code):
    X, y, places = spoilt(code)
    found = {finding.code: finding.columns for finding in site_findings(one_site(X, y))}
    assert code in found and sorted(found[code]) == places
    assert not site_findings(one_site(*table(9)))


class Halves(SiteLink):
    """Sites of one process that answer the checks of a run through their own halves."""

    def __init__(self, halves, roster):
        super().__init__(roster)
        self.halves = halves

    def put(self, questions):
        blocks, failed = [], {}
        for k, question in questions.items():
            try:
                half = open_checks(self.halves[self.roster.names[k]])
                leaves = half.answer(question.number, question.ask, question.acknowledged)
                fault = leaves.fault
            except Exception as error:
                fault = fault_of(error)
            if fault is not None:
                failed[k] = fault
            else:
                blocks.append((np.array([k]), leaves.arrays))
        return blocks, failed

    def end(self, ends):
        return {}


def halves(tmp_path, tables, policies=None):
    case = case_of("fmlr")
    made = {}
    for name, (X, y) in tables.items():
        policy = (policies or {}).get(name, SitePolicy(disclosure=DEFAULT_RULES))
        given = (case.algorithm, case.chosen().for_sites(), one_site(X, y, name), 3, "run")
        made[name] = SiteHalf(*given, tmp_path / name, policy=policy)
    return made


def asked(made):
    return check_at_sites(tuple(made), lambda roster: Halves(made, roster))


def told(checked):
    return {(one.site, one.code): one.places for one in checked.fired}


def test_the_coordinator_hears_codes_and_columns_of_every_site(tmp_path):
    tables = {f"s{k}": table(k) for k in range(5)}
    tables["minus"] = spoilt("FK003")[:2]
    X, y = table(7)
    tables["grams"] = (X * [1.0, 1000.0, 1.0], y)
    checked = asked(halves(tmp_path, tables))
    assert told(checked) == {("minus", "FK003"): (0,), ("grams", "FK004"): (1,)}
    assert not checked.untold
    words = [str(finding) for finding in checked.findings(["age", "bmi", "sex"])]
    assert words[0].startswith("site 'minus': Numbers such as") and ": age;" in words[0]
    assert words[1].startswith("site 'grams': A site whose scale") and ": bmi;" in words[1]
    assert Checked.from_json(checked.to_json()) == checked
    assert ": x0;" in str(checked.findings(None)[0]), "columns without names are numbered"


def test_what_all_sites_say_is_what_one_process_says(tmp_path):
    """Codes that need no rows of others are those of the checks of each table alone."""
    tables = {code: spoilt(code)[:2] for code in CODES}
    data = Federation.from_clients(tables)
    run = InProcess().run(SITE_CHECKS, SiteChecksSettings.from_mapping({}), data)
    for k, (name, own) in enumerate(tables.items()):
        fired = {CODES[c] for c in np.flatnonzero(run.result.found[k].any(axis=1))}
        alone = set(checks(*own).codes) - {"FK014", "FK018"}
        assert fired == {"FK011" if code == "FK010" else code for code in alone}, name


def test_a_site_that_withholds_does_not_keep_the_others_back(tmp_path):
    tables = {f"s{k}": table(k) for k in range(4)} | {"few": table(8, 6), "shy": table(9)}
    tables["s0"] = spoilt("FK013")[:2]
    shy = SitePolicy(methods=("fmlr",), disclosure=DEFAULT_RULES)
    checked = asked(halves(tmp_path, tables, {"shy": shy}))
    assert told(checked) == {("s0", "FK013"): (TARGET,)}
    assert checked.untold == {
        "few": Fault(Reason.FEW_ROWS, "rows"),
        "shy": Fault(Reason.POLICY),
    }
    nobody = asked(halves(tmp_path / "again", {"few": table(8, 6)}))
    assert not nobody.fired and set(nobody.untold) == {"few"}


def test_what_leaves_is_declared_and_on_record_and_holds_no_number_of_rows_concerned(tmp_path):
    X, y = table(1)
    X[:7, 0] = -999.0
    made = halves(tmp_path, {"a": (X, y)})
    asked(made)
    ledger = Ledger(tmp_path / "a" / "ledger")
    lines = ledger.lines()
    assert [(line["run"], line["step"]) for line in lines] == [
        ("run.checks", "look"),
        ("run.checks", "scales"),
    ]
    sent = [ledger.values(line) for line in lines]
    assert set(sent[0]) == {"rows", "found"} and set(sent[1]) == {"scales"}
    assert set(np.unique(sent[0]["found"])) == {0, 1} and sent[0]["rows"] == [N]
    logs = sent[1]["scales"][0]
    np.testing.assert_array_equal(logs, np.round(logs, 1))
    np.testing.assert_allclose(logs[0], np.log([*X.std(axis=0), y.std()]), atol=0.051)
    assert _runs_of_a_day(tmp_path / "a") == 1, "the checks of a run are no run of their own"


def test_the_words_stay_in_the_sites_own_folder_and_report(tmp_path):
    (half,) = halves(tmp_path, {"a": spoilt("FK003")[:2]}).values()
    write_words(half)
    own = (tmp_path / "a" / "run" / "checks.txt").read_text()
    assert "FK003" in own and "has 1 of 60 values -999" in own
    half.finish(0)
    report = (tmp_path / "a" / "run" / "report.txt").read_text()
    assert "What deserves a look in our table" in report and "values -999" in report


def test_codes_that_stop_a_job_and_codes_that_are_not_told(tmp_path):
    tables = {f"s{k}": table(k) for k in range(3)} | {"minus": spoilt("FK003")[:2]}
    checked = asked(halves(tmp_path, tables))
    assert checked.stops(["FK003"]) and not checked.stops(["FK005"]) and not checked.stops([])
    assert not checked.without(["FK003"]).fired
    for wrong in ({"stop": ["FK999"]}, {"stop": "FK003"}, {"halt": []}, [], {"ignore": [3]}):
        with pytest.raises(ValueError, match=r"check"):
            JobChecks.from_mapping(wrong)
    wanted = JobChecks(("FK003",), ("FK011",))
    assert JobChecks.from_mapping(wanted.to_mapping()) == wanted


def test_a_liar_can_say_only_yes_and_no(tmp_path):
    """Any other number is refused by the gate; who says yes everywhere is named with it."""
    made = halves(tmp_path, {f"s{k}": table(k) for k in range(3)})

    class Liar(Halves):
        def put(self, questions):
            blocks, failed = super().put(questions)
            for k, arrays in blocks:
                if k[0] == 1 and "found" in arrays:
                    arrays["found"] = arrays["found"] + 41
            return blocks, failed

    checked = check_at_sites(tuple(made), lambda roster: Liar(made, roster))
    assert checked.untold == {"s1": Fault(Reason.BOUND, "found")} and not checked.fired


def test_the_roster_of_checks_is_those_who_are_ready(tmp_path):
    made = halves(tmp_path, {"b": spoilt("FK013")[:2], "a": table(1)})
    seen = []

    def link(roster: Roster):
        seen.append(roster.names)
        return Halves(made, roster)

    assert told(check_at_sites(["b"], link)) == {("b", "FK013"): (TARGET,)}
    assert seen == [("b",), ("b",)]
