"""Answers of searches that are asked for again and again with the same numbers.

Who tries one to twelve kinds compares each with the same mixed model. Searches are functions of
their arrays alone, so the last few answers are kept by the content of these.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, TypeVar

import numpy as np

from fedkin.arrays import Array

Answer = TypeVar("Answer")
# Answers that are kept.
MOST = 4


class LastAnswers(Generic[Answer]):
    """The last answers of one function; whoever gets one must not write into it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Answer] = OrderedDict()
        self._lock = Lock()

    def of(self, asked: Sequence[Array], words: str, compute: Callable[[], Answer]) -> Answer:
        """The answer to arrays and words; computed if it is not among the last."""
        key = _digest(asked, words)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = compute()
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)
        return found


def _digest(asked: Sequence[Array], words: str) -> bytes:
    told = hashlib.blake2b(words.encode(), digest_size=16)
    for values in asked:
        told.update(f"\0{values.dtype.str}{values.shape}".encode())
        told.update(np.ascontiguousarray(values).data)
    return told.digest()
