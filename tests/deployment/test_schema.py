"""A job's schema: every site looks before round one, tells all its problems, and no value."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the nvflare extra is not installed")

from fedkin import Rules
from fedkin.cli.jobs import run_job
from fedkin.engines.nvflare.job_file import JobFile
from fedkin.engines.nvflare.server_process import MOST_PROBLEMS, NotReady, check_sites
from fedkin.engines.opening import open_site
from fedkin.engines.schema import JobSchema, read_units
from fedkin.engines.site_data import CannotTakePart, faults_of, site_data
from fedkin.protocol import Fault, Reason, Roster
from tests.deployment.test_losses import facts, job, write_csv

TOLD = {
    "age": {"type": "whole", "unit": "years"},
    "sex": {"levels": ["f", "m", "other"]},
    "stage": {"levels": [1, 2, 3]},
    "pressure": {"unit": "mmHg"},
}
SCHEMA = JobSchema.from_mapping(TOLD)
UNITS = {"age": "years", "pressure": "mmHg"}
FEATURES = ["age", "sex", "stage"]


def table(tmp_path, **changes):
    good = {"age": [30, 41, 52], "sex": ["f", "m", "m"], "stage": [1, 3, 2]}
    good |= {"pressure": [120.5, 130, 140]}
    return write_csv(tmp_path / "a.csv", **{**good, **changes})


def look(path, units=UNITS, schema=SCHEMA):
    return site_data("a", path, "pressure", FEATURES, schema, units)


def test_words_become_the_columns_that_the_job_says_whatever_levels_a_site_has(tmp_path):
    found = look(table(tmp_path))
    assert found.feature_names == ("age", "sex=m", "sex=other", "stage")
    np.testing.assert_array_equal(found.X, [[30, 0, 0, 1], [41, 1, 0, 3], [52, 1, 0, 2]])
    assert SCHEMA.features(FEATURES) == found.feature_names
    assert JobSchema.from_mapping(SCHEMA.to_mapping()) == SCHEMA


@pytest.mark.parametrize(
    ("changes", "units", "fault"),
    [
        ({"age": [30.5, 41, 52]}, UNITS, Fault(Reason.WHOLE, "age")),
        ({"age": ["old", 41, 52]}, UNITS, Fault(Reason.NUMBER, "age")),
        ({"age": ["", 41, 52]}, UNITS, Fault(Reason.VALUES, "age")),
        ({"sex": ["f", "x", "m"]}, UNITS, Fault(Reason.LEVEL, "sex")),
        ({"sex": ["f", "", "m"]}, UNITS, Fault(Reason.VALUES, "sex")),
        ({"stage": [1, 2, 9]}, UNITS, Fault(Reason.LEVEL, "stage")),
        ({}, {"age": "months", "pressure": "mmHg"}, Fault(Reason.UNIT, "age")),
        ({}, {"age": "years"}, Fault(Reason.UNIT, "pressure")),
    ],
)
def test_each_kind_of_problem_has_a_word_and_a_column(tmp_path, changes, units, fault):
    with pytest.raises(CannotTakePart) as caught:
        look(table(tmp_path, **changes), units)
    assert faults_of(caught.value) == (fault,)


def test_all_problems_are_told_at_once_and_none_of_the_values(tmp_path):
    path = table(tmp_path, age=[30.5, 41, 52], sex=["f", "Ann", "m"])
    with pytest.raises(CannotTakePart, match="Ann") as caught:
        site_data("a", path, "pressure", [*FEATURES, "weight"], SCHEMA, {"age": "years"})
    told = faults_of(caught.value)
    reasons = [fault.reason for fault in told]
    assert reasons == [Reason.COLUMN, Reason.WHOLE, Reason.LEVEL, Reason.UNIT]
    assert "Ann" not in " ".join(map(str, told))


def test_a_column_of_the_schema_is_a_feature_or_the_sites_target(tmp_path):
    other = JobSchema.from_mapping({"stage": {"levels": [1, 2, 3]}})
    with pytest.raises(CannotTakePart) as caught:
        site_data("a", table(tmp_path), "pressure", ["age"], other)
    assert caught.value.fault == Fault(Reason.COLUMN, "stage")
    np.savez(tmp_path / "a.npz", X=np.ones((3, 1)))
    with pytest.raises(CannotTakePart):
        site_data("a", tmp_path / "a.npz", None, None, other)


def test_a_site_takes_up_a_job_with_a_schema_and_its_own_units(tmp_path):
    own = facts(tmp_path)
    asked = job(schema={"age": {"unit": "years"}})
    with pytest.raises(CannotTakePart) as caught:
        open_site("a", own, asked)
    assert caught.value.fault == Fault(Reason.UNIT, "age")
    (tmp_path / "units.toml").write_text('age = "years"')
    units = read_units(tmp_path / "units.toml")
    assert open_site("a", {**own, "units": units}, asked).clients.n_features == 2


def test_the_coordinator_gets_every_problem_of_every_site():
    said = {
        0: {"version": "1", "n_features": 2, "problems": []},
        1: {"version": "1", "n_features": -1, "problems": [Fault(Reason.UNIT, "age")]},
    }
    failed = {1: Fault(Reason.LEVEL, "sex")}
    with pytest.raises(NotReady) as caught:
        check_sites(Roster(("a", "b"), 0), Rules(), said, failed)
    told = [(problem["site"], problem["reason"]) for problem in caught.value.problems]
    assert told == [("b", "LEVEL"), ("b", "UNIT")] and MOST_PROBLEMS > 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[schema]\nage = 3", "schema.age must be a section"),
        ("[schema.age]\nunits = 'years'", "schema.age has no key 'units'"),
        ("[schema.age]\ntype = 'text'", "type must be one of number, whole"),
        ("[schema.sex]\nlevels = []", "levels must be different words"),
        ("[schema.sex]\nlevels = ['f', 1]", "levels must be different words"),
        ("[schema.sex]\nlevels = ['f', 'm']\nunit = 'x'", "levels have no type and no unit"),
        (f"[schema.age]\nlevels = {list(range(21))}", "21 numbers as levels, 20 at most"),
        ("benefit = 'yes'", "benefit must be true or false"),
        ("features = 'age'", "features must be a list of names"),
        ("features = ['age', 'age']", "features name 'age' twice"),
        ("deadline = 0", "deadline must be a number of seconds above 0"),
        ("deadline = nan", "deadline must be a number of seconds above 0"),
        ("seed = 1.5", "seed must be a whole number"),
        ("seed = -1", "seed must be a whole number"),
        ("name = 5", "name must be text"),
        ("settings = 'x'", "settings must be a section"),
        ("[rules]\nonloss = 'wait'", "no rule .onloss.; there are"),
    ],
)
def test_what_is_wrong_with_a_job_is_said_with_its_key(tmp_path, text, told):
    path = tmp_path / "job.toml"
    path.write_text(f"method = 'FMLR'\n{text}")
    with pytest.raises(ValueError, match=told):
        JobFile.read(path)


def test_settings_that_a_method_does_not_have_are_said_before_anybody_is_asked(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text("method = 'MixedModel'\n[settings]\nrandm = 'all'")
    with pytest.raises(ValueError, match="MixedModel has no setting 'randm' in a job; there are"):
        run_job(JobFile.read(path), path, tmp_path / "no kits", tmp_path / "results", 1.0)
    assert not (tmp_path / "results").exists()


# ------------------------------------------------------------------ weights of rows


def test_a_column_says_how_much_every_row_counts(tmp_path):
    path = table(tmp_path, visits=[2, 0, 0.5])
    found = site_data("a", path, "pressure", FEATURES, SCHEMA, UNITS, "visits")
    np.testing.assert_array_equal(found.weights, [2.0, 0.5])
    np.testing.assert_array_equal(found.X[:, 0], [30, 52], "a row of weight zero is left out")
    assert "visits" not in found.feature_names
    np.savez(tmp_path / "a.npz", X=np.ones((3, 1)), y=np.ones(3), visits=np.array([1.0, 2.0, 3.0]))
    found = site_data("a", tmp_path / "a.npz", weights="visits")
    np.testing.assert_array_equal(found.weights, [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("visits", "fault"),
    [
        ([1, -1, 1], Fault(Reason.RANGE, "visits")),
        ([1, "", 1], Fault(Reason.VALUES, "visits")),
        (["x", 1, 1], Fault(Reason.NUMBER, "visits")),
        ([0, 0, 0], Fault(Reason.NUMBER)),
        (None, Fault(Reason.COLUMN, "visits")),
    ],
)
def test_weights_that_cannot_be_are_told(tmp_path, visits, fault):
    path = table(tmp_path, **({} if visits is None else {"visits": visits}))
    with pytest.raises(CannotTakePart) as caught:
        site_data("a", path, "pressure", FEATURES, SCHEMA, UNITS, "visits")
    assert caught.value.fault == fault
    np.savez(tmp_path / "a.npz", X=np.ones((3, 1)), y=np.ones(3))
    with pytest.raises(CannotTakePart) as caught:
        site_data("a", tmp_path / "a.npz", weights="visits")
    assert caught.value.fault == Fault(Reason.COLUMN, "visits")
