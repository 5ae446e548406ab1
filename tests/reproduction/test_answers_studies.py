"""What survives of the studies of answers at toy size."""

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "benefit-draws",
        "conformal-tables",
        "plan-draws",
        "interval-draws",
        "best-way",
        "best-way-small-tables",
        "odd-influence",
        "how-many",
    ],
)
def test_studies_run_at_toy_size(toy, name):
    assert toy(name).rows


def test_intervals_hold_most_differences(toy):
    found = toy("benefit-draws")
    assert found.estimate("expected_held").mean >= 0.8
    assert found.estimate("fitted_held").mean >= 0.75
    assert found.estimate("right").mean >= 0.8


def test_sites_with_the_same_groups_are_told_that_joining_helps(toy):
    found = toy("benefit-known")
    assert found.estimate("told").mean >= 0.9 and found.estimate("contrary").mean == 0.0


def test_plans_are_near_what_is_found(toy):
    found = toy("plan-draws")
    ratio = found.column("planned") / found.column("excess")
    assert abs(ratio.mean() - 1.0) < 0.25


def test_conformal_intervals_hold_on_engines(toy):
    held = toy("conformal-tables").estimate("held", table="turbofan").mean
    assert 0.93 <= held <= 0.97


def test_most_intervals_hold_the_truth(toy):
    found = toy("interval-draws")
    assert found.estimate("held").mean >= 0.8
    assert found.estimate("sites_held").mean >= 0.85
    assert 0.9 <= found.estimate("targets_held").mean <= 0.99


def test_outlier_tasks_are_found_and_clean_sites_hardly_ever(toy):
    found = toy("odd-sites")
    assert found.estimate("power", design="B.1 as printed, h = 0").mean == 1.0
    assert found.estimate("false_alarms", design="by degrees").mean <= 0.15


def test_one_step_goes_with_refits(toy):
    assert toy("odd-influence").estimate("correlation").mean > 0.9


def test_by_degrees_is_named(toy):
    assert toy("how-many").estimate("right").mean == 1.0


def test_hindsight_is_one_candidate_that_was_tried_in_all_splits():
    from reproduction.best_way import HINDSIGHT, OURS, best_single
    from reproduction.study import Results

    errors = {
        "alone": (1.0, 3.0),
        "by degrees": (2.0, 1.5),
        OURS: (0.1, 0.1),
        HINDSIGHT: (1.0, 1.5),
    }
    rows = [
        {"seed": seed, "method": name, "rmse": error, "log": -error}
        for name, each in errors.items()
        for seed, error in enumerate(each)
    ]
    rows.append({"seed": 1, "method": "by degrees, own noise", "rmse": 0.2, "log": -0.2})
    found = Results(rows)
    assert best_single(found, "rmse") == 1.75 and best_single(found, "log") == -1.75
