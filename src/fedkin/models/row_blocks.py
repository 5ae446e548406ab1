"""Rows of ragged clients, laid out once for batched matrix products.

Clients of similar size stand side by side in blocks (k, c, width), columns before rows, zero where
a client is shorter than the width. The last column of a block is `present`: one for a row, zero for
padding. A product with it counts rows and adds up logarithms, so padding never needs a mask.
Rows may have labels: the number of a class, or UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedkin.arrays import Bools, Floats, Indices
from fedkin.federation import Federation
from fedkin.randomness import Keys

# A label of a row that is not known.
UNKNOWN = -1
# Numbers worked on at once: a MiB of doubles stays in a core's own cache.
CHUNK_ELEMENTS = 1 << 17


@dataclass(frozen=True)
class Block:
    """Clients of similar size: `data` (k, c, width), `sizes` (k,), positions `clients` (k,).

    `labels` (k, width), where rows have them.
    """

    clients: Indices
    sizes: Indices
    data: Floats
    labels: Indices | None = None

    def take(self, kept: Bools) -> Block:
        """Some of the clients (k,)."""
        labels = None if self.labels is None else self.labels[kept]
        return Block(self.clients[kept], self.sizes[kept], self.data[kept], labels)

    def at(self, places: Indices) -> Block:
        """Some rows of every client, (k, batch)."""
        data = np.take_along_axis(self.data, places[:, None, :], axis=-1)
        labels = self.labels
        if labels is not None:
            labels = np.take_along_axis(labels, places, axis=-1)
        return Block(self.clients, np.minimum(self.sizes, places.shape[1]), data, labels)

    def drawn(self, keys: Keys, batch_size: int) -> Indices | None:
        """Places of `batch_size` rows of every client, in order, (k, batch); None for all."""
        width = self.data.shape[-1]
        if width <= batch_size:
            return None
        lot = keys.take(self.clients).uniform(width)
        lot[np.arange(width) >= self.sizes[:, None]] = 2.0
        return np.sort(np.argpartition(lot, batch_size - 1)[:, :batch_size])

    def chunks(self, per_row: int) -> Iterator[Chunk]:
        """Pieces for which `per_row` numbers a row stay in cache."""
        width = self.data.shape[-1]
        n_rows = max(1, min(width, CHUNK_ELEMENTS // per_row))
        n_clients = max(1, CHUNK_ELEMENTS // (per_row * width))
        for begin in range(0, len(self.clients), n_clients):
            some = slice(begin, begin + n_clients)
            for first in range(0, width, n_rows):
                rows = slice(first, first + n_rows)
                labels = None if self.labels is None else self.labels[some, rows]
                yield Chunk(self.clients[some], self.data[some, :, rows], some, rows, labels)


@dataclass(frozen=True)
class Chunk:
    """A piece of a block that fits in cache: some of its clients and some of their rows.

    `data` (k, c, width) of the clients at positions `clients`; `members` and `rows` say which part
    of the block it is.
    """

    clients: Indices
    data: Floats
    members: slice
    rows: slice
    labels: Indices | None = None


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """The rows of m clients in blocks; `centre` (m, c - 1) has been subtracted from the columns."""

    sizes: Indices
    centre: Floats
    blocks: tuple[Block, ...]

    @classmethod
    def of(
        cls, clients: Federation, columns: Floats, centred: bool, labels: Floats | None = None
    ) -> RowBlocks:
        """From columns (N, c - 1) of a federation's rows, and their labels (N,), if there are any.

        Subtracting a client's own mean keeps products of far-away data exact.
        """
        table = np.concatenate([columns, np.ones((len(columns), 1))], axis=1)
        centre = np.zeros((clients.n_clients, columns.shape[1]))
        blocks = []
        for bucket in clients.buckets():
            data = bucket.pack(table)
            if centred:
                # By way of the first row: a column that does not vary becomes exactly zero.
                first = data[:, :-1, 0].copy()
                data[:, :-1] -= first[:, :, None] * data[:, -1:]
                own = data[:, :-1].sum(axis=-1) / bucket.sizes[:, None]
                data[:, :-1] -= own[:, :, None] * data[:, -1:]
                centre[bucket.clients] = first + own
            known = None
            if labels is not None:
                padded = bucket.pack(labels[:, None] - UNKNOWN)[:, 0]
                known = (padded + UNKNOWN).astype(np.intp)
            blocks.append(Block(bucket.clients, bucket.sizes, data, known))
        return cls(clients.sizes, centre, tuple(blocks))

    @property
    def n_clients(self) -> int:
        """Number of clients m, empty ones included."""
        return len(self.sizes)

    @property
    def n_columns(self) -> int:
        """Number of columns, `present` not counted."""
        return int(self.centre.shape[1])

    def chunks(self, per_row: int) -> Iterator[Chunk]:
        """Pieces for which `per_row` numbers a row stay in cache."""
        for block in self.blocks:
            yield from block.chunks(per_row)

    def take(self, who: Indices) -> RowBlocks:
        """Some clients, in the order given."""
        place = np.full(self.n_clients, -1)
        place[who] = np.arange(len(who))
        blocks = []
        for block in self.blocks:
            kept = place[block.clients] >= 0
            if kept.all():
                blocks.append(replace(block, clients=place[block.clients]))
            elif kept.any():
                some = block.take(kept)
                blocks.append(replace(some, clients=place[some.clients]))
        return RowBlocks(self.sizes[who], self.centre[who], tuple(blocks))

    def with_labels(self, labels: Floats) -> RowBlocks:
        """The same rows with other labels (N,)."""
        first, blocks = np.cumsum(self.sizes) - self.sizes, []
        for block in self.blocks:
            row = np.arange(block.data.shape[-1])
            place = np.minimum(first[block.clients][:, None] + row, len(labels) - 1)
            known = np.where(row < block.sizes[:, None], labels[place], UNKNOWN)
            blocks.append(replace(block, labels=known.astype(np.intp)))
        return RowBlocks(self.sizes, self.centre, tuple(blocks))

    def batch(self, keys: Keys, batch_size: int) -> RowBlocks:
        """`batch_size` rows of every client drawn without replacement; all rows where it has fewer.

        Which rows depends on the client's key alone.
        """
        blocks = []
        for block in self.blocks:
            drawn = block.drawn(keys, batch_size)
            blocks.append(block if drawn is None else block.at(drawn))
        return RowBlocks(np.minimum(self.sizes, batch_size), self.centre, tuple(blocks))

    def drawn(self, keys: Keys, batch_size: int) -> Floats:
        """One for rows that a batch holds, zero for others, (N,)."""
        inside, first = np.ones(self.sizes.sum()), np.cumsum(self.sizes) - self.sizes
        for block in self.blocks:
            drawn = block.drawn(keys, batch_size)
            if drawn is None:
                continue
            for k, client in enumerate(block.clients):
                own = inside[first[client] : first[client] + self.sizes[client]]
                own[:] = np.isin(np.arange(len(own)), drawn[k])
        return inside

    def row_by_row(self, of_chunk: Callable[[Chunk], Floats], n_values: int) -> Floats:
        """Values (N, n_values) of all rows, from those of a chunk (k, n_values, width)."""
        table, first = np.zeros((self.sizes.sum(), n_values)), np.cumsum(self.sizes) - self.sizes
        for chunk in self.chunks(n_values):
            row = chunk.rows.start + np.arange(chunk.data.shape[-1])
            client, place = np.nonzero(row < self.sizes[chunk.clients][:, None])
            table[first[chunk.clients[client]] + row[place]] = of_chunk(chunk)[client, :, place]
        return table

    @cached_property
    def unlabelled(self) -> Floats:
        """One for rows whose label is not known, zero for others, (N,)."""

        def of_chunk(chunk: Chunk) -> Floats:
            shape = len(chunk.clients), 1, chunk.data.shape[-1]
            known = None if chunk.labels is None else chunk.labels != UNKNOWN
            return np.ones(shape) if known is None else 1.0 - known[:, None]

        return self.row_by_row(of_chunk, 1)[:, 0]

    # ---------------------------------------------------------------- totals, about the centre

    @cached_property
    def squares(self) -> Floats:
        """Sum of squares of every column, (m, c - 1)."""
        total = np.zeros_like(self.centre)
        for block in self.blocks:
            columns = block.data[:, :-1]
            total[block.clients] = np.einsum("kcn,kcn->kc", columns, columns)
        return total

    @cached_property
    def scatter(self) -> Floats:
        """Sums of products of all columns, (m, c - 1, c - 1)."""
        total = np.zeros((self.n_clients, self.n_columns, self.n_columns))
        for block in self.blocks:
            columns = block.data[:, :-1]
            total[block.clients] = columns @ columns.transpose(0, 2, 1)
        return total
