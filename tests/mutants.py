"""Break one line of the mathematics at a time and see whether a test notices: `make mutants`.

    python -m tests.mutants [name ...]

Each mutant is a text that stands once in a file of src/fedkin, what it becomes, and the tests that
must fail then. The package is copied, the copy is broken, and the tests run against it; the working
tree is never touched. Ends with 1 if a mutant survives. Not part of CI: it takes minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.mutant_list import MUTANTS

ROOT = Path(__file__).parents[1]
SECONDS = 300


class Ended(NamedTuple):
    """What became of a mutant."""

    name: str
    word: str


def main(wanted: list[str]) -> int:
    """Run the named mutants, or all."""
    chosen = [mutant for mutant in MUTANTS if not wanted or mutant.name in wanted]
    ended = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in chosen:
            ended.append(Ended(mutant.name, fate(mutant, copy)))
            print(f"{ended[-1].word:10s} {mutant.name}", flush=True)
    alive = [one.name for one in ended if one.word != "killed"]
    print(f"{len(ended) - len(alive)} of {len(ended)} killed")
    return int(bool(alive))


def fate(mutant, copy: Path) -> str:
    """Break the copy, run the tests, mend the copy."""
    path = copy / "fedkin" / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return "stale"  # the line has moved on; the list must follow
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        return "killed" if run(mutant.tests, copy) else "survived"
    finally:
        path.write_text(text, encoding="utf-8")


def run(tests: tuple[str, ...], copy: Path) -> bool:
    """Whether one of the tests fails against the copy; a test that hangs has noticed, too."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OPENBLAS_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return True
    return ended.returncode == 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
