"""Break one line of the mathematics at a time and see whether a test notices: `make mutants`.

    python -m tests.mutants [words of names ...]

Each mutant is a text that stands once in a file of src/fedkin, what it becomes, and the tests that
must fail then. The package is copied, the copy is broken, and the tests run against it; the working
tree is never touched. First all these tests must pass on the copy as it is: what fails anyway
notices nothing. Ends with 1 if a mutant survives. Not part of CI: it takes minutes.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
# CPU time that the tests of one mutant may take, and all tests before anything is broken; time by
# the clock would call a mutant killed because the machine is loaded.
SECONDS, BEFORE = 300, 3000
# How pytest ends.
PASSED, FAILED = 0, 1


class Ended(NamedTuple):
    """What became of a mutant."""

    name: str
    word: str


class Run(NamedTuple):
    """How pytest ended, and its last words."""

    code: int
    said: str


def main(wanted: list[str]) -> int:
    """Run the mutants whose names hold one of the words, or all."""
    chosen = [m for m in MUTANTS if not wanted or any(words in m.name for words in wanted)]
    ended: list[Ended] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        before = run(tuple(sorted({t for m in chosen for t in m.tests})), copy, BEFORE)
        if chosen and before.code != PASSED:
            print("the tests fail before anything is broken", before.said, sep="\n")
            return 1
        for mutant in chosen:
            ended.append(Ended(mutant.name, fate(mutant, copy)))
            print(f"{ended[-1].word:10s} {mutant.name}", flush=True)
    alive = [one.name for one in ended if one.word != "killed"]
    print(f"{len(ended) - len(alive)} of {len(ended)} killed")
    return int(bool(alive))


def fate(mutant: Mutant, copy: Path) -> str:
    """Break the copy, run the tests, mend the copy."""
    path = copy / "fedkin" / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return "stale"  # the line has moved on; the list must follow
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code = run(mutant.tests, copy, SECONDS).code
        return {FAILED: "killed", PASSED: "survived"}.get(code, "broken")
    finally:
        path.write_text(text, encoding="utf-8")


def run(tests: tuple[str, ...], copy: Path, seconds: int) -> Run:
    """How pytest ends on these tests against the copy; a test that hangs has failed, too."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OPENBLAS_NUM_THREADS": "1"}

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))

    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, preexec_fn=bounded
    )
    hung = ended.returncode == -signal.SIGXCPU
    return Run(FAILED if hung else ended.returncode, "\n".join(ended.stdout.splitlines()[-5:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
