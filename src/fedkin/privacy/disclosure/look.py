"""A look at a site's rows: what sums over them would give away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.arrays import Bools, Floats, Indices
from fedkin.federation import Federation

# Whole numbers from 0 up to this are codes of levels, and their column is a table of counts.
HIGHEST_CODE = 5
# Directions whose share of the squares is below this are not there.
RANK_TOLERANCE = 1e-10


# Digits of an effective number of rows that count.
N_DIGITS = 9
# Weights below this share of the largest count as it: their squares must not vanish.
LEAST_SHARE = 1e-150


@dataclass(frozen=True)
class Look:
    """What was seen: rows that differ, the smallest cells, and the row that stands out most.

    `smallest_cell` counts rows with one level of a coded column, `smallest_pair` with one level
    each of two; where there is none they are the number of rows. Copies of a row, as one patient's
    repeated record gives, count once where some column is measured and not coded. Rows that do not
    count alike are counted by Kish's effective number: (sum of weights)^2 / sum of their squares,
    which is 1 where one row has nearly all of the weight.
    """

    n_rows: int
    n_distinct: float
    n_features: int
    smallest_cell: float
    smallest_pair: float
    leverage: float


class Table:
    """The rows of one site, target included, laid out to be looked at more than once."""

    def __init__(self, X: Floats, y: Floats | None) -> None:
        table = X if y is None else np.column_stack([X, y])
        self.n_features, coded = X.shape[1], _coded(table)
        self.copies, self.rows, self.place = np.ones(len(table)), table, np.arange(len(table))
        if len(table) and not coded.all():
            self.rows, self.place, counts = np.unique(
                table, axis=0, return_inverse=True, return_counts=True
            )
            self.place, self.copies = self.place.ravel(), counts.astype(np.float64)
        self.members = _members(_codes(self.rows))

    def look(self, weights: Floats | None = None) -> Look:
        """Look at all rows, or at what is left of them in sums with these weights (n,)."""
        if weights is None:
            shares, sums = np.ones(len(self.rows)), self.copies
        else:
            shares, sums = np.zeros(len(self.rows)), np.zeros(len(self.rows))
            np.maximum.at(shares, self.place, weights)
            np.add.at(sums, self.place, weights)
        there = shares > 0
        if not there.any():
            return Look(0, 0, self.n_features, 0, 0, 0.0)
        shares = np.maximum(shares[there] / shares.max(), LEAST_SHARE)
        n_rows = len(self.place) if weights is None else int(np.count_nonzero(weights))
        n_distinct = float(effective_rows(shares.sum(), np.square(shares).sum()))
        cell, pair = _cells(self.members[there], shares, n_distinct)
        leverage = _highest_leverage(self.rows[there], sums[there] / sums.max())
        return Look(n_rows, n_distinct, self.n_features, cell, pair, leverage)


def examine(X: Floats, y: Floats | None, weights: Floats | None = None) -> Look:
    """Look at the rows of one site, target included, that count by their weights."""
    return Table(X, y).look(weights)


def examine_client(clients: Federation, k: int) -> Look:
    """Look at the rows of one client of several."""
    own = slice(clients.offsets[k], clients.offsets[k + 1])
    return examine(*clients.client(k), None if clients.weights is None else clients.weights[own])


def examine_all(clients: Federation) -> list[Look]:
    """The looks at every client's rows, all at once.

    As `examine`, but a column counts as coded only if it is at all clients, and copies of a row
    are told by their fingerprints.
    """
    if clients.weights is not None:
        return [examine_client(clients, k) for k in range(clients.n_clients)]
    table = clients.X if clients.y is None else np.column_stack([clients.X, clients.y])
    if not len(table):
        return [Look(0, 0, clients.n_features, 0, 0, 0.0)] * clients.n_clients
    coded = _coded(table)
    sizes = clients.sizes
    distinct = sizes if coded.all() else _distinct_counts(clients, table)
    cells, pairs = _cells_of_all(clients, _codes(table))
    leverage = _leverage_of_all(clients, table)
    rows = zip(sizes.tolist(), distinct.tolist(), cells.tolist(), pairs.tolist(), leverage.tolist())
    return [Look(n, own, clients.n_features, cell, pair, h) for n, own, cell, pair, h in rows]


def _distinct_counts(clients: Federation, table: Floats) -> Indices:
    """How many rows of every client differ, (m,)."""
    weights = np.random.default_rng(0).uniform(1.0, 2.0, table.shape[1])
    prints = table @ weights
    order = np.lexsort((prints, clients.owner))
    owner, prints = clients.owner[order], prints[order]
    new = np.ones(len(prints), dtype=bool)
    new[1:] = (owner[1:] != owner[:-1]) | (prints[1:] != prints[:-1])
    return np.bincount(owner[new], minlength=clients.n_clients)


def _cells_of_all(clients: Federation, codes: Floats) -> tuple[Indices, Indices]:
    """Smallest cells of one column and of two, each (m,); a client without any has its rows."""
    cells, pairs = clients.sizes.copy(), clients.sizes.copy()
    levels = [codes == level for level in range(HIGHEST_CODE + 1)]
    members = np.concatenate([np.empty((len(codes), 0)), *levels], axis=1)
    members = members[:, members.any(axis=0)]
    if not members.shape[1]:
        return cells, pairs
    for bucket in clients.buckets():
        block = bucket.pack(members)
        together = block @ block.mT
        there = np.where(together > 0, together, np.inf)
        singles = np.diagonal(there, axis1=1, axis2=2).min(axis=1)
        # A column with one level only at a client says nothing there.
        cells[bucket.clients] = np.minimum(cells[bucket.clients], singles)
        pairs[bucket.clients] = np.minimum(pairs[bucket.clients], there.min(axis=(1, 2)))
    return cells, pairs


def _leverage_of_all(clients: Federation, table: Floats) -> Floats:
    """The highest leverage of every client's rows, (m,)."""
    highest = np.zeros(clients.n_clients)
    with_constant = np.column_stack([np.ones(len(table)), table])
    for bucket in clients.buckets():
        block = bucket.pack(with_constant)
        lengths = np.sqrt(np.square(block).sum(axis=2, keepdims=True))
        scaled = block / np.where(lengths > 0, lengths, 1.0)
        values, vectors = np.linalg.eigh(scaled @ scaled.mT)
        there = values > RANK_TOLERANCE * np.maximum(values[:, -1:], 1e-300)
        roots = np.where(there, 1.0 / np.sqrt(np.where(there, values, 1.0)), 0.0)
        turned = (vectors * roots[:, None]).mT @ scaled
        highest[bucket.clients] = np.square(turned).sum(axis=1).max(axis=1, initial=0.0)
    return highest


def _coded(table: Floats) -> Bools:
    """Which columns hold codes of levels: few whole numbers from 0 on, more than one of them."""
    whole = ((table == np.floor(table)) & (table >= 0) & (table <= HIGHEST_CODE)).all(axis=0)
    varies = (table != table[:1]).any(axis=0)
    coded: Bools = whole & varies
    return coded


def _codes(table: Floats) -> Floats:
    """The columns that are tables of counts, as codes (n, c).

    Those that hold codes, and those with two values, whatever they are: sums over -1 and 1, or over
    10 and 20, tell of either half what sums over 0 and 1 do.
    """
    lowest, highest = table.min(axis=0, initial=np.inf), table.max(axis=0, initial=-np.inf)
    two = ((table == lowest) | (table == highest)).all(axis=0) & (lowest < highest)
    codes: Floats = np.where(two, table == highest, table)[:, _coded(table) | two]
    return codes


def _members(codes: Floats) -> Floats:
    """Which rows have which level of which coded column, (n, levels)."""
    levels = [
        (codes == level)[:, (codes == level).any(axis=0)] for level in range(HIGHEST_CODE + 1)
    ]
    return np.concatenate([np.empty((len(codes), 0)), *levels], axis=1)


def _cells(members: Floats, shares: Floats, n_rows: float) -> tuple[float, float]:
    """The fewest rows in a cell that is not empty, of one column and of two."""
    if not members.shape[1]:
        return n_rows, n_rows
    weighted = members * shares[:, None]
    total, squares = members.T @ weighted, weighted.T @ weighted
    there = total > 0
    rows = np.where(there, effective_rows(total, np.where(there, squares, 1.0)), np.inf)
    return float(np.diagonal(rows).min()), float(rows.min())


def effective_rows(total: Any, squares: Any) -> Any:
    """Kish's number of rows; rounding must not make ten rows less than ten."""
    return np.round(np.square(total) / squares, N_DIGITS)


def _highest_leverage(rows: Floats, counts: Floats) -> float:
    """How much of some direction one row alone makes up: 1 means that it can be read off."""
    with_constant = np.column_stack([np.ones(len(rows)), rows])
    weighted = with_constant * np.sqrt(counts)[:, None]
    lengths = np.sqrt(np.square(weighted).sum(axis=0))
    scaled = weighted / np.where(lengths > 0, lengths, 1.0)
    values, vectors = np.linalg.eigh(scaled.T @ scaled)
    there = values > RANK_TOLERANCE * max(float(values[-1]), 1e-300)
    turned = scaled @ vectors[:, there] / np.sqrt(values[there])
    leverage: Floats = np.square(turned).sum(axis=1)
    return float(leverage.max())


def differing_rows(one: dict[str, Indices], other: dict[str, Indices]) -> int:
    """How many rows two tables of salted values differ by, as far as common columns tell.

    Each column is the sorted hashes of its values; the column that differs most decides.
    """
    found = 0
    for name in set(one) & set(other):
        values, counts = np.unique(one[name], return_counts=True)
        others, other_counts = np.unique(other[name], return_counts=True)
        everything = np.concatenate([values, others])
        signed = np.concatenate([counts, -other_counts])
        _, place = np.unique(everything, return_inverse=True)
        found = max(found, int(np.abs(np.bincount(place, weights=signed)).sum()))
    return found
