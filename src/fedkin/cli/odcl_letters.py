"""What letters of ODCL's sites hold, and how much of it can be used together.

Loaded when letters are combined: the command itself starts without the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedkin.algorithms.odcl import DEFAULTS, MESSAGES, SEND, message_for
from fedkin.engines.files import Letter
from fedkin.estimators.base import listed
from fedkin.estimators.odcl import NEEDS


def least(settings: dict[str, Any]) -> str:
    """The word for the least that letters must hold for these settings."""
    message = message_for({**DEFAULTS, **settings})
    return next(word for word in SEND if SEND[word] == message)


def _holds(letter: Letter, word: str) -> bool:
    return set(MESSAGES[SEND[word]]) <= set(letter.arrays)


def shared(letters: Sequence[Letter], needed: str) -> str:
    """What is needed if as many letters hold it as hold anything; else the most that they share."""
    count = {word: sum(_holds(letter, word) for letter in letters) for word in SEND}
    widest = [word for word in SEND if count[word] == max(count.values())]
    return needed if needed in widest else widest[-1]


def check_enough(letters: Sequence[Letter], aggregate: str, send: str) -> None:
    """Complain about letters that hold too little for what was asked for."""
    enough = NEEDS.get(aggregate, tuple(SEND))
    if send in enough:
        return
    without = [
        letter.site for letter in letters if not any(_holds(letter, word) for word in enough)
    ]
    raise ValueError(
        f"--aggregate {aggregate} needs letters written with --send {enough[0]}; those of "
        f"{listed(without, 3)} hold less: let these sites write again, or drop --aggregate"
    )


def held_back(letters: Sequence[Letter], needed: str, send: str) -> list[str]:
    """Who kept the others' letters from being used in full."""
    without = [letter.site for letter in letters if not _holds(letter, needed)]
    if send == needed or len(without) == len(letters):
        return []
    return [
        f"of every letter no more than --send {send} was used, which all share: those of "
        f"{listed(without, 3)} hold less than --send {needed}; let these sites write again with it"
    ]
