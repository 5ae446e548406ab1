"""Questions about several starts: about all at once, or about one after the other.

A site's own rules may let it tell the means of one mixture and not of ten in one reply. Where that
is so every start is a question of its own. Rules judge every reply by itself, and each start obeys
them; their sum is not judged, as that of a fit's rounds is not, which tell more (record 5.21). A
site that wants less of that has its budget of questions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from fedkin.arrays import Bools
from fedkin.protocol import Ask, Replies

# The most starts where each is a question of its own: sites count questions, too.
STARTS_IN_TURN = 4

AboutSome = Callable[[slice], Ask]


class Turns:
    """Whether starts are asked about one by one, found out at the first question about several."""

    def __init__(self, n_clients: int) -> None:
        self.in_turn: bool | None = None
        # Sites that have told what other questions asked for.
        self.expected: Bools = np.zeros(n_clients, dtype=bool)

    def ask(self, about: AboutSome, n_starts: int) -> Generator[Ask, Replies, Replies]:
        """Replies about `n_starts` starts to a question that can be about some of them."""
        replies = yield from self.all_at_once(about, n_starts)
        if replies is not None:
            return replies
        if n_starts == 1 or not self.in_turn:
            return (yield about(slice(None)))
        return (yield from self._each(about, n_starts))

    def all_at_once(
        self, about: AboutSome, n_starts: int
    ) -> Generator[Ask, Replies, Replies | None]:
        """Replies to the first question about several starts; None if it has to be put otherwise.

        If sites that were heard before say nothing of all starts, they are asked about one.
        """
        if self.in_turn is not None or n_starts == 1:
            return None
        replies = yield replace(about(slice(None)), needed=False)
        silent = self.expected.copy()
        silent[replies.clients] = False
        self.in_turn = False
        if silent.any():
            one = replace(about(slice(0, 1)), who=np.flatnonzero(silent), needed=False)
            self.in_turn = len((yield one).clients) > 0
        return None if self.in_turn or not len(replies.clients) else replies

    def _each(self, about: AboutSome, n_starts: int) -> Generator[Ask, Replies, Replies]:
        found = []
        for start in range(n_starts):
            replies = yield about(slice(start, start + 1))
            found.append(replies)
        return side_by_side(found)


def side_by_side(found: Sequence[Replies]) -> Replies:
    """Replies about one start each as one about all; of the sites that told of every one."""
    clients = reduce(np.intersect1d, [replies.clients for replies in found])
    if not len(clients):
        return Replies(clients, {})
    places = [np.searchsorted(replies.clients, clients) for replies in found]
    arrays = {}
    for name, first in found[0].items():
        if first.ndim == 1:
            arrays[name] = first[places[0]]
        else:
            each = [replies[name][place] for replies, place in zip(found, places)]
            arrays[name] = np.concatenate(each, axis=1)
    return Replies(clients, arrays)


def some_of_each(n_starts: int) -> list[int]:
    """Places of the starts that are kept where there are too many: the first of both halves.

    Halves differ by the units of the columns, even and odd places by how long covariances are one.
    """
    if n_starts <= STARTS_IN_TURN:
        return list(range(n_starts))
    half, each = n_starts // 2, STARTS_IN_TURN // 2
    return [*range(each), *range(half, half + each)]
