"""Readings along a line as lanes that are walked in step: sorted, cut, packed by size.

A recursion over time costs one array operation a step whatever the width of the arrays, so many
short series are walked side by side, and a long one is cut into pieces that are walked side by
side too (`state_filter.py` says how the pieces are joined without loss). Made once per fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

# Lanes walked side by side: enough that arithmetic outweighs calls, few enough for the cache.
LANES = 1024
# Rows whose predicted states are kept at once, about 100 bytes each.
BLOCK_ROWS = 1 << 18


class Series(NamedTuple):
    """Rows of m clients in order of time: times (N,), columns (N, 1 + q), offsets (m + 1,).

    The first column is the target, the others are those of a mean function.
    """

    times: Floats
    columns: Floats
    offsets: Indices

    @property
    def sizes(self) -> Indices:
        """Rows of every client."""
        return np.diff(self.offsets)


class Lanes(NamedTuple):
    """W lanes of at most T steps, the longest first.

    `n_active` (T,) lanes still run at a step; `rows` (T, W) are places in the series; `gaps`
    (T, W) lead to the client's next reading and are 0 after its last; `columns` (T, 1 + q, W).
    `owner` (W,) counts within `clients` (k,), and `chain` (k, pieces) are the lanes of a client.
    """

    clients: Indices
    owner: Indices
    chain: Indices
    n_active: Indices
    rows: Indices
    gaps: Floats
    columns: Floats


def sorted_series(
    times: Floats, target: Floats, offsets: Indices, basis: Floats | None = None
) -> tuple[Series, Indices]:
    """The series in order of time within every client, and where each of its rows stood."""
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.lexsort((times, owner))
    columns = target[:, None] if basis is None else np.column_stack([target, basis])
    return Series(times[order], np.ascontiguousarray(columns[order]), offsets), order


def lanes_of(series: Series) -> Iterator[Lanes]:
    """Clients with rows in blocks of similar size."""
    gaps = _gaps(series)
    for clients, pieces in blocks_of(series.sizes):
        yield _block(series, gaps, clients, pieces)


def blocks_of(sizes: Indices) -> Iterator[tuple[Indices, int]]:
    """Clients walked together, sizes within an octave, and into how many pieces each is cut."""
    octave = np.frexp(sizes)[1] * (sizes > 0)
    for level in np.unique(octave[octave > 0]):
        alike = np.flatnonzero(octave == level)
        at_once = max(1, min(BLOCK_ROWS >> (level - 1), 2 * LANES))
        n_blocks = -(-len(alike) // at_once)
        for clients in np.array_split(alike, n_blocks):
            yield clients, n_pieces(1 << (level - 1), len(clients))


def n_pieces(size: int, n_clients: int) -> int:
    """Into how many pieces each of so many series of at least that size is cut.

    Joining takes a step a piece, walking a step a row of a piece: their sum is least at the root.
    """
    return max(1, min(LANES // n_clients, int(np.sqrt(size))))


def _block(series: Series, gaps: Floats, clients: Indices, pieces: int) -> Lanes:
    edges = (series.sizes[clients, None] * np.arange(pieces + 1)) // pieces
    starts = (edges[:, :-1] + series.offsets[clients, None]).ravel()
    lengths = np.diff(edges).ravel()
    place = np.argsort(-lengths, kind="stable")
    chain = np.argsort(place, kind="stable").reshape(-1, pieces)
    starts, lengths = starts[place], lengths[place]
    steps = np.arange(lengths[0])
    rows = starts + np.minimum(steps[:, None], lengths - 1)
    n_active = np.searchsorted(-lengths, -steps, side="left")
    columns = np.ascontiguousarray(series.columns[rows].transpose(0, 2, 1))
    return Lanes(clients, place // pieces, chain, n_active, rows, gaps[rows], columns)


def _gaps(series: Series) -> Floats:
    """From every reading to the client's next; 0 after its last."""
    gaps = np.append(np.diff(series.times), 0.0)
    gaps[series.offsets[1:][series.sizes > 0] - 1] = 0.0
    return gaps
