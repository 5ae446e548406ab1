"""The list of mutants fits the code: every one still breaks a line, and names tests that exist."""

from pathlib import Path

import pytest
from tests.mutant_list import MUTANTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_breaks_one_line_that_is_there(mutant):
    text = (ROOT / "src" / "fedkin" / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, "the line has moved on; tests/mutant_list.py must follow"
    compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / path).read_text(encoding="utf-8")


def test_names_of_mutants_are_different():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
