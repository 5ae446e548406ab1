"""The last reply of a site stands until its next: a site that is not heard keeps its place."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.arrays import Array, Arrays, Bools, Floats, Indices
from fedkin.protocol.messages import Replies


class LastReplies:
    """Every site's last reply, (m, ...) by field; what a site never sent is `missing`.

    Attributes
    ----------
    heard : who has sent anything yet, (m,)
    age : rounds since a site's last reply, (m,); infinite for a site that was never heard
    """

    def __init__(self, n_clients: int, missing: float = 0.0) -> None:
        self.heard: Bools = np.zeros(n_clients, dtype=bool)
        self.age: Floats = np.full(n_clients, np.inf)
        self._missing = missing
        self._arrays: dict[str, Array] = {}
        # Arrays that came as a reply of everybody: they are not ours to write on.
        self._borrowed: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def hear(self, replies: Replies, *names: str) -> None:
        """A round has passed in which these replies came; `names` keeps some of the fields only."""
        arrays = {name: replies[name] for name in names} if names else replies.arrays
        self.put(replies.clients, arrays)

    def put(self, clients: Indices, arrays: Arrays, where: Indices | None = None) -> None:
        """A round has passed in which some clients sent arrays (k, ...).

        With `where` the arrays are about these positions of the second axis only (restarts, say);
        the first ones to come are about all positions.
        """
        for name, array in arrays.items():
            self._write(name, clients, array, where)
        self.age += 1.0
        self.age[clients] = 0.0
        self.heard[clients] = True

    def total(self, name: str, who: Bools | None = None, where: Indices | None = None) -> Array:
        """The sum over sites; over some of them, at some positions of the second axis."""
        whole = self._arrays[name]
        if where is not None:
            rows = np.arange(len(whole)) if who is None else np.flatnonzero(who)
            whole = whole[np.ix_(rows, where)]
        elif who is not None:
            whole = whole[who]
        summed: Array = whole.sum(axis=0)
        return summed

    def _write(self, name: str, clients: Indices, array: Array, where: Indices | None) -> None:
        known, everybody = self._arrays.get(name), len(clients) == len(self.heard)
        if everybody and (known is None or where is None or len(where) == known.shape[1]):
            self._arrays[name] = array
            self._borrowed.add(name)
            return
        if known is None:
            known = np.full((len(self.heard), *array.shape[1:]), self._missing, array.dtype)
            self._arrays[name] = known
        elif name in self._borrowed:
            known = self._arrays[name] = known.copy()
        self._borrowed.discard(name)
        place: Any = clients
        if where is not None:
            place = np.s_[:, where] if everybody else np.ix_(clients, where)
        known[place] = array
