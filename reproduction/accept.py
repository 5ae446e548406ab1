"""Whether promises are kept: the numbers of the studies beside their bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from reproduction import keys
from reproduction.book import promises_of, read_study
from reproduction.study import Study


def promising(studies: Sequence[Study]) -> list[Study]:
    """The studies that promise something; of some only their rows say what."""
    return [study for study in studies if study.promises is not Study.promises]


def missing(study: Study, folder: Path) -> bool:
    """Whether the rows in a folder are not those of the full size by the present code."""
    found = read_study(study, folder)
    if found is None or found[1]["size"] != "full":
        return True
    return found[1].get("code") != keys.code(study.one)


def judge(studies: Sequence[Study], folder: Path, say: Callable[[str], None]) -> int:
    """Say of every promise whether it holds, then which do not; how many do not."""
    broken = []
    counts = {"holds": 0, "FAILS": 0, "not run": 0, "withdrawn": 0}
    for study in promising(studies):
        promised = promises_of(study, folder)
        if not promised and read_study(study, folder) is None:  # only rows could name them
            counts["not run"] += 1
            broken.append(f"{'not run':10}{study.name}: all that it promises of its rows")
            say(broken[-1])
        for promise in promised:
            line = f"{promise.verdict:10}{study.name}: {promise.what}: {promise.shown} "
            line += f"({promise.bounds})"
            say(f"{line}; {promise.withdrawn}" if promise.withdrawn else line)
            counts[promise.verdict] += 1
            if promise.verdict in ("FAILS", "not run"):
                broken.append(line)
    say("")
    say(", ".join(f"{count} {word}" for word, count in counts.items() if count))
    for line in broken:
        say(line)
    return len(broken)
