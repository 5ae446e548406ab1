"""Promises: which hold, which do not, and what the command and the page say of it."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import reproduction
from reproduction import Promise, Size, Study
from reproduction.__main__ import app
from reproduction.book import read_study, write_page
from reproduction.pictures import dots
from reproduction.runner import run


def counted(seed):
    return [{"error": 1.0 + seed}]


def recounted(seed):
    return [{"error": 2.0 + seed}]


def picture(found):
    return dots(found, (), ("error",))


def promising(*bounds, withdrawn=""):
    """A study whose mean error is 1.5, promised within these bounds."""

    def promises(found):
        return [Promise("mean error", found.estimate("error").mean, *bounds, withdrawn)]

    size = Size([{}], 2)
    return Study(
        name="small",
        paper="fedkin",
        shows="errors",
        title="Errors",
        protocol="One, two.",
        one=counted,
        figure=picture,
        promises=promises,
        by=(),
        measures=("error",),
        full=size,
        quick=size,
        toy=size,
    )


@pytest.fixture
def accept(tmp_path, monkeypatch):
    """Run `accept` with these studies on what is in tmp_path; its result."""

    def of(*studies, kept=True):
        known = {study.name: study for study in studies}
        monkeypatch.setattr(reproduction, "catalogue", lambda: known)
        how = ["--kept"] if kept else ["--jobs", "1"]
        return CliRunner().invoke(app, ["accept", *how, "--out", str(tmp_path)])

    return of


def page(study, out):
    return write_page([study], out).read_text(encoding="utf-8")


def test_a_promise_that_holds_ends_well(accept, tmp_path):
    study = promising(1.0, 2.0)
    run([study], tmp_path, "full")
    found = accept(study)
    assert found.exit_code == 0
    assert "holds     small: mean error: 1.5 (1 to 2)" in found.output
    assert "1 hold (" in page(study, tmp_path)


def test_a_promise_that_fails_is_said_on_the_page_and_by_the_exit_code(accept, tmp_path):
    study = promising(-math.inf, 1.4)
    run([study], tmp_path, "full")
    found = accept(study)
    assert found.exit_code == 1
    assert "FAILS     small: mean error: 1.5 (at most 1.4)" in found.output
    assert found.output.rstrip().endswith("(at most 1.4)")
    assert "| mean error | 1.5 | at most 1.4 | **FAILS** |" in page(study, tmp_path)
    assert "**FAILS**" in (tmp_path / "promises.md").read_text(encoding="utf-8")
    assert "**FAILS**" in (tmp_path / "studies" / "small.md").read_text(encoding="utf-8")


def test_a_promise_nobody_has_tested_does_not_hold(accept):
    found = accept(promising(1.0, 2.0))
    assert found.exit_code == 1 and "not run   small" in found.output


def test_a_promise_withdrawn_says_why_and_is_not_judged(accept, tmp_path):
    study = promising(-math.inf, 1.4, withdrawn="it was too much to ask")
    run([study], tmp_path, "full")
    found = accept(study)
    assert found.exit_code == 0 and "it was too much to ask" in found.output
    assert "**withdrawn**: it was too much to ask" in page(study, tmp_path)


def test_what_is_missing_is_run_and_what_is_there_is_not(accept, tmp_path):
    study = promising(1.0, 2.0)
    assert accept(study, kept=False).exit_code == 0
    rows = tmp_path / "studies" / "small.csv"
    rows.write_text(rows.read_text().replace("\n1,2\n", "\n1,2.5\n"))
    # Rows by the present code are judged as they are, kept replications or not.
    found = accept(study, kept=False)
    assert "mean error: 1.75" in found.output
    # By other code they are run again.
    found = accept(replace(study, one=recounted), kept=False)
    assert found.exit_code == 1 and "mean error: 2.5" in found.output
    assert read_study(study, tmp_path / "studies")[0].column("error").tolist() == [2, 3]


def test_a_quick_run_is_no_evidence_for_a_promise(accept, tmp_path):
    study = replace(promising(1.0, 2.0), quick=Size([{}], 1))
    run([study], tmp_path, "quick")
    accept(study, kept=False)
    assert read_study(study, tmp_path / "studies")[1]["size"] == "full"


@pytest.mark.parametrize(
    ("least", "most", "words"),
    [(0.9, 0.98, "0.9 to 0.98"), (1.0, math.inf, "at least 1"), (-math.inf, 1e-6, "at most 1e-06")],
)
def test_bounds_are_said_in_words(least, most, words):
    assert Promise("x", 0.5, least, most).bounds == words


def test_a_promise_does_not_hang_on_rounding_and_on_nothing_more():
    assert Promise("ratio", 1.0 + 4e-16, most=1.0).holds
    assert Promise("ratio", 1.0 - 4e-16, least=1.0).holds
    assert not Promise("ratio", 1.0 + 1e-9, most=1.0).holds
    assert not Promise("gap", 1e-300, most=0.0).holds
    assert not Promise("missing", float("nan"), most=1.0).holds


def test_a_number_just_outside_its_bound_shows_it():
    promise = Promise("coverage", 0.8997, 0.90, 0.98)
    assert not promise.holds and promise.shown == "0.8997"


@pytest.mark.parametrize("name", reproduction.catalogue())
def test_promises_without_rows_are_not_run_rather_than_kept(name):
    study = reproduction.catalogue()[name]
    nothing = reproduction.Results([])
    found = study.promises(nothing, *(nothing for _ in study.beside))
    assert all(promise.verdict in ("not run", "withdrawn") for promise in found)


def test_every_promise_has_a_reduced_version_among_the_tests():
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*_studies.py"))
    nothing = reproduction.Results([])
    promising = [
        name
        for name, study in reproduction.catalogue().items()
        if study.promises(nothing, *(nothing for _ in study.beside))
    ]
    assert promising and not [name for name in promising if f'"{name}"' not in text]


def test_promises_that_only_rows_can_name_are_judged_too(accept, tmp_path):
    """One about every row: without rows there is none, and that is not kept."""

    def promises(found):
        return [Promise(f"row {k}", row["error"], 0.0, 1.5) for k, row in enumerate(found.rows)]

    study = replace(promising(1.0, 2.0), promises=promises)
    found = accept(study)
    assert found.exit_code == 1 and "1 not run" in found.output
    run([study], tmp_path, "full")
    found = accept(study)
    assert found.exit_code == 1 and "1 holds, 1 FAILS" in found.output
