"""What reply files of ODCL's sites hold, and how much of it can be used together.

Loaded when files are combined: the command itself starts without the library.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedkin.algorithms.odcl_settings import ASKED, ENOUGH, SENT, SUMS
from fedkin.engines.files import ReplyFile
from fedkin.names import listed

# What a person would ask a site for.
SENT_IN_WORDS = {SUMS: "statistics"}


def _holds(file: ReplyFile, word: str) -> bool:
    return set(ASKED[word]) <= set(file.arrays)


def shared(files: Sequence[ReplyFile], needed: str) -> str:
    """What is needed if as many files hold it as hold anything; else the most that they share."""
    count = {word: sum(_holds(file, word) for file in files) for word in ASKED}
    widest = [word for word in ASKED if count[word] == max(count.values())]
    return needed if needed in widest else widest[-1]


def check_enough(files: Sequence[ReplyFile], aggregate: str, send: str) -> None:
    """Complain about files that hold too little for what was asked for."""
    enough = ENOUGH.get(aggregate, tuple(SENT))
    if send in (*enough, SUMS):
        return
    without = [file.site for file in files if not any(_holds(file, word) for word in enough)]
    raise ValueError(
        f"--aggregate {aggregate} needs reply files written with --send {enough[0]}; those of "
        f"{listed(without, 3)} hold less: let these sites write again, or drop --aggregate"
    )


def held_back(files: Sequence[ReplyFile], needed: str, send: str) -> list[str]:
    """Who kept the others' files from being used in full."""
    without = [file.site for file in files if not _holds(file, needed)]
    if send == needed or len(without) == len(files):
        return []
    asked = SENT_IN_WORDS.get(needed, needed)
    return [
        f"of every reply file no more than --send {send} was used, which all share: those of "
        f"{listed(without, 3)} hold less than --send {asked}; let these sites write again with it"
    ]
