"""CONTRIBUTING.md followed to the letter, in a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
TEXT = (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8")
# What a new method meets: the battery, its own tests, and tests that go over all estimators.
CONCERNED = (
    "tests/conformance",
    "tests/smoke/test_median_of_means.py",
    "tests/smoke/test_docstring_examples.py",
    "tests/arguments/test_signatures.py",
    "tests/maths/test_golden.py",
    "tests/test_architecture.py",
)


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.M | re.S)


def insert(copy, block):
    """Put a row into the table that the block's first line names: '# file, in TABLE'."""
    head, row = block.split("\n", 1)
    file, table = re.fullmatch(r"# (\S+), in (\w+)", head).groups()
    replace_once(copy / file, f"\n{table} = (\n", f"\n{table} = (\n{row}")


def change(copy, block):
    """Apply the changes of the block: unchanged lines as they are, - and + before the others."""
    for file, lines in re.findall(r"^# (\S+)\n(.*?)(?=^# |\Z)", block, flags=re.M | re.S):
        for part in lines.split("...\n"):
            old = [line[1:] for line in part.splitlines() if line[0] in " -"]
            new = [line[1:] for line in part.splitlines() if line[0] in " +"]
            replace_once(copy / file, "\n".join(old) + "\n", "\n".join(new) + "\n")


def replace_once(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name} has {text.count(old)} times {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def run(copy, *arguments):
    known = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment = {**known, "PYTHONPATH": str(copy / "src")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def pytest_in(copy, *more):
    return run(copy, "-m", "pytest", "-p", "no:cacheprovider", *more)


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A copy of the repository in which steps 1 to 4 of "Add a method" have been done."""
    copy = tmp_path_factory.mktemp("repository")
    for name in ("src", "tests", "examples/new_method", "docs/decisions"):
        # What is shipped as data is not needed here.
        left_out = shutil.ignore_patterns("__pycache__", "data")
        shutil.copytree(TOP / name, copy / name, ignore=left_out)
    for name in ("pyproject.toml", "ARCHITECTURE.md"):
        shutil.copy(TOP / name, copy)
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert commands[0] == "cp -r examples/new_method/src examples/new_method/tests ."
    for folder in ("src", "tests"):
        new = copy / "examples/new_method" / folder
        assert not [f for f in new.rglob("*.py") if (copy / folder / f.relative_to(new)).exists()]
        shutil.copytree(new, copy / folder, dirs_exist_ok=True)
    for block in blocks("python"):
        insert(copy, block)
    assert commands[1] == "python -m tests.arguments.signatures MedianOfMeans"
    frozen = run(copy, *commands[1].split()[1:])
    assert frozen.returncode == 0, frozen.stderr
    assert commands[2].startswith("python -m pytest tests -k")
    return copy


def test_the_new_method_passes_the_battery_and_every_other_test(followed):
    wanted = "median_of_means or MedianOfMeans or still_public or test_architecture"
    done = pytest_in(followed, *CONCERNED, "-k", wanted)
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout).group(1)) > 60


def test_the_new_setting_is_a_parameter_with_its_check_and_a_changed_promise(followed, tmp_path):
    copy = tmp_path / "repository"
    shutil.copytree(followed, copy)
    (block,) = blocks("diff")
    change(copy, block)
    signatures = ("tests/arguments/test_signatures.py", "-k", "frozen and MedianOfMeans")
    assert "1 failed" in pytest_in(copy, *signatures).stdout
    run(copy, "-m", "tests.arguments.signatures", "MedianOfMeans")
    few = "MedianOfMeans or (median_of_means and (pooled or seed or fields or setting))"
    done = pytest_in(copy, *CONCERNED, "-k", f"({few}) and not scikit")
    assert done.returncode == 0, done.stdout[-3000:]
    script = (
        "from fedkin import MedianOfMeans as M\n"
        "rows, sites = [[0.0], [0.0], [1.0], [1.0], [5.0], [5.0]], [*'aabbcc']\n"
        "print(*(M(quantile=q).fit(rows, groups=sites).center_[0] for q in (0.1, 0.5, 1.0)))\n"
        "M(quantile=2.0).fit(rows, groups=sites)\n"
    )
    told = run(copy, "-c", script)
    assert told.stdout.split() == ["0.0", "1.0", "5.0"]
    assert "quantile must be above 0 and at most 1, not 2.0" in told.stderr
