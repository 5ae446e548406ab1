"""Clients' rows as Gaussian processes want them: standardised, cut, packed by size.

Made once per fit. Sites of more than `max_points` rows are cut into random pieces whose
likelihoods are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from fedkin.arrays import Bools, Floats, Indices
from fedkin.federation import Federation
from fedkin.models.gp_walks import Walked, can_be_walked
from fedkin.models.gp_walks import walked as walked_of
from fedkin.models.kernels import Form
from fedkin.models.state_lanes import Series
from fedkin.randomness import name_keys, row_uniforms

Normalize = bool | Literal["mean"]

# Standard deviation of the vague prior on the coefficients of a mean function, in units of the
# size (root mean square) of a client's targets.
MEAN_PRIOR = 10.0


class Packed(NamedTuple):
    """Pieces of similar size: owner (k,), X (k, d, w), y (k, w), sizes (k,), basis (k, q, w)."""

    owner: Indices
    X: Floats
    y: Floats
    sizes: Indices
    basis: Floats

    def part(self, which: Any) -> Packed:
        """Some of the pieces."""
        return Packed(*(array[which] for array in self))


class Prepared(NamedTuple):
    """What derives from the data of m clients: packed pieces and the target's standardisation.

    Clients whose target does not vary tell nothing of a standardised curve: `rows` is 0 there
    and they have no pieces.
    """

    packs: tuple[Packed, ...]
    rows: Floats
    location: Floats
    scale: Floats
    walked: Walked | None = None
    """Clients whose likelihood is not that of packed pieces."""

    def take(self, who: Indices) -> Prepared:
        """That of some clients."""
        place = np.full(len(self.rows), -1, dtype=np.intp)
        place[who] = np.arange(len(who))
        packs = []
        for pack in self.packs:
            kept = place[pack.owner] >= 0
            if kept.any():
                part = pack.part(kept)
                packs.append(part._replace(owner=place[part.owner]))
        walked = None
        if self.walked is not None:
            walked, others = self.walked.take(place)
            packs += [_packed(owner, series) for owner, series in others]
        return Prepared(tuple(packs), self.rows[who], self.location[who], self.scale[who], walked)


def _packed(owner: int, series: Series) -> Packed:
    """The rows of one client that is not walked any more."""
    y, basis = series.columns[:, 0], series.columns[:, 1:]
    return Packed(
        np.array([owner]),
        np.ascontiguousarray(series.times[None, None]),
        np.ascontiguousarray(y[None]),
        series.sizes,
        np.ascontiguousarray(basis.T[None]),
    )


def prepare(
    clients: Federation,
    normalize_y: Normalize = True,
    mean: str = "zero",
    max_points: int = 500,
    form: Form | None = None,
) -> Prepared:
    """Standardise, cut clients of more than `max_points` rows into random pieces, and pack.

    With a `form` that can be walked, clients for which that is faster are, and large ones are not
    cut.
    """
    if clients.y is None:
        raise ValueError("a Gaussian process needs a target y at every site")
    location, scale, varies = standardisation(clients, normalize_y, mean)
    y = standardised(clients, location, scale)
    basis = mean_basis(clients, y, mean)
    rows = np.where(varies, clients.sizes, 0).astype(np.float64)
    walked = None
    if form is not None and can_be_walked(form, clients.n_features):
        walked = _walked(clients, y, basis, varies, form, max_points)
    packs = _packs(clients, y, basis, max_points)
    dense = varies.copy()
    if walked is not None:
        dense[walked.owner] = False
        packs = _some_packs(clients, y, basis, max_points, np.flatnonzero(dense))
    packs = (pack.part(dense[pack.owner]) for pack in packs)
    kept = tuple(pack for pack in packs if len(pack.owner))
    return Prepared(kept, rows, location, scale, walked)


def _walked(
    clients: Federation, y: Floats, basis: Floats, varies: Bools, form: Form, max_points: int
) -> Walked | None:
    """Of those that can be learnt from."""
    assert form.fast is not None
    chosen = varies[clients.owner]
    offsets = np.concatenate([[0], np.cumsum(np.where(varies, clients.sizes, 0))])
    return walked_of(
        clients.X[chosen, 0], y[chosen], basis[chosen], offsets, form.fast.smoothness, max_points
    )


def _some_packs(
    clients: Federation, y: Floats, basis: Floats, max_points: int, which: Indices
) -> Iterator[Packed]:
    """The pieces of some clients."""
    if not len(which):
        return
    rows = np.isin(clients.owner, which)
    some = clients.take(which)
    for pack in _packs(some, y[rows], basis[rows], max_points):
        yield pack._replace(owner=which[pack.owner])


def _packs(clients: Federation, y: Floats, basis: Floats, max_points: int) -> Iterator[Packed]:
    """All clients' pieces, by size."""
    pieces, owner = _pieces(clients, y, basis, max_points)
    assert pieces.y is not None
    for bucket in pieces.buckets():
        rows, target = bucket.pack(pieces.X), bucket.pack(pieces.y)
        X, columns = rows[:, : clients.n_features], rows[:, clients.n_features :]
        yield Packed(owner[bucket.clients], X, target, bucket.sizes, columns)


def centres_only(normalize_y: Normalize, mean: str) -> bool:
    """Whether targets are centred and not scaled: asked for, or because a mean is fitted.

    With a vague prior on its mean a curve does not care where zero is, but rounding does.
    """
    return normalize_y == "mean" or (normalize_y is False and mean != "zero")


def standardisation(
    clients: Federation, normalize_y: Normalize, mean: str = "zero"
) -> tuple[Floats, Floats, Bools]:
    """Location and scale (m,) of every client's target, and whether it can be learnt from.

    `normalize_y` is True (own mean and standard deviation), "mean" (own mean only) or False.
    """
    m = clients.n_clients
    centred = centres_only(normalize_y, mean)
    if normalize_y is False and not centred:
        return np.zeros(m), np.ones(m), clients.sizes > 0
    location, spread = target_moments(clients)
    if centred:
        return location, np.ones(m), clients.sizes > 1
    varies = spread > 1e-12 * np.maximum(np.abs(location), 1e-300)
    return location, np.where(varies, spread, 1.0), varies


def standardised(clients: Federation, location: Floats, scale: Floats) -> Floats:
    """The target of every row less its client's location (m,), over its scale (m,)."""
    assert clients.y is not None
    return (clients.y - location[clients.owner]) / scale[clients.owner]


def target_moments(clients: Federation) -> tuple[Floats, Floats]:
    """Mean and standard deviation of every client's target, (m,)."""
    assert clients.y is not None
    location = _means(clients, clients.y[:, None])[:, 0]
    squares = (clients.y - location[clients.owner]) ** 2
    return location, np.sqrt(_means(clients, squares[:, None])[:, 0])


def _means(clients: Federation, rows: Floats) -> Floats:
    columns = [np.bincount(clients.owner, c, minlength=clients.n_clients) for c in rows.T]
    means: Floats = np.stack(columns, axis=1) / np.maximum(clients.sizes, 1)[:, None]
    return means


def half_octaves(values: Floats, towards: Callable[[Floats], Floats] = np.round) -> Floats:
    """Positive numbers on a grid of half octaves, which tells their order only; 0 becomes 1."""
    safe = np.where(values > 0, values, 1.0)
    rounded: Floats = 2.0 ** (towards(2.0 * np.log2(safe)) / 2.0)
    return rounded


def coarse(location: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """A spread to a half octave and a location to halves of that."""
    grid = half_octaves(spread)
    return 0.5 * grid * np.round(2.0 * location / grid), grid


def mean_basis(clients: Federation, y: Floats, mean: str) -> Floats:
    """Columns of the mean function times the standard deviation of their prior, (N, q).

    `y` are the targets as the process sees them, standardised or not.
    """
    if mean == "zero":
        return np.zeros((len(clients.X), 0))
    centre, spread = input_frame(clients)
    owner = clients.owner
    return basis_at(clients.X, centre[owner], spread[owner], mean, target_size(clients, y)[owner])


def target_size(clients: Federation, y: Floats) -> Floats:
    """Root mean square of every client's targets y, 1 where they are 0, (m,)."""
    size = np.sqrt(_means(clients, y[:, None] ** 2)[:, 0])
    return np.where(size > 0, size, 1.0)


def input_frame(clients: Federation) -> tuple[Floats, Floats]:
    """Means and standard deviations (1 where constant) of every client's features, (m, d)."""
    centre = _means(clients, clients.X)
    spread = np.sqrt(_means(clients, (clients.X - centre[clients.owner]) ** 2))
    return centre, np.where(spread > 0, spread, 1.0)


def basis_at(
    X: Floats, centre: Floats, spread: Floats, mean: str, size: Floats | float = 1.0
) -> Floats:
    """Columns of the mean function at any rows of a client whose targets have that size."""
    ones = np.full((len(X), 1), MEAN_PRIOR) * np.reshape(size, (-1, 1))
    if mean == "constant":
        return ones
    return np.concatenate([ones, ones * (X - centre) / spread], axis=1)


def thinned(clients: Federation, max_points: int) -> Federation:
    """The clients with at most `max_points` rows each, drawn by name; rows stay in order."""
    if not (clients.sizes > max_points).any():
        return clients
    within = np.arange(len(clients.X)) - clients.offsets[:-1][clients.owner]
    draw = row_uniforms(name_keys(clients.names, 0)[clients.owner], within.astype(np.uint64))
    order = np.lexsort((within, draw, clients.owner))
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = within
    kept = np.flatnonzero(rank < max_points)
    assert clients.y is not None
    sizes = np.minimum(clients.sizes, max_points)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Federation(clients.X[kept], offsets, clients.names, clients.y[kept])


def _pieces(
    clients: Federation, y: Floats, basis: Floats, max_points: int
) -> tuple[Federation, Indices]:
    """Clients as pieces of at most `max_points` rows, and whose each is.

    Rows of a Gaussian process are a Gaussian process: the pieces' summed likelihood is a
    composite likelihood with its optimum in the right place.
    """
    n_pieces = np.maximum(-(-clients.sizes // max_points), 1)
    owner = np.repeat(np.arange(len(clients)), n_pieces)
    within = np.arange(len(y)) - clients.offsets[:-1][clients.owner]
    order = np.arange(len(y))
    large = n_pieces[clients.owner] > 1
    if large.any():
        keys = name_keys(clients.names, 0)[clients.owner]
        draw = np.where(large, row_uniforms(keys, within.astype(np.uint64)), 0.0)
        order = np.lexsort((within, draw, clients.owner))
    first = np.concatenate([[0], np.cumsum(n_pieces)])[:-1]
    piece = np.sort(first[clients.owner] + within % n_pieces[clients.owner], kind="stable")
    counts = np.bincount(piece, minlength=len(owner))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rows = np.concatenate([clients.X, basis], axis=1)[order]
    names = tuple(map(str, range(len(owner))))
    return Federation(rows, offsets, names, y[order]), owner
