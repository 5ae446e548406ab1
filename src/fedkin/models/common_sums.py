"""What a site tells of the common curve: sums over its rows with its own departure integrated out.

With S the covariance of a site's targets around the common curve (level, slopes, own curve, noise),
Phi the features of its rows (`inducing.py`), y its targets and R = (correlation of the common curve
within the site) - Phi Phi' the part of it that the points do not carry (of a spline nothing),

    gram = [Phi y]' inv(S) [Phi y],     log det S,     missed = tr(inv(S) R),

and with U = inv(S) [Phi y] their slopes by a parameter of S, and by a common length (by a feature's
haste both),

    -U' dS U,   <inv(S), dS>,   -<inv(S) R inv(S), dS>;      dPhi' U + U' dPhi,   0,   <inv(S), dR>.

Where departures and noise swell by s(x), rows of Phi, y and R are divided by it instead, which is
the same but for the log determinant.

The common variance is a factor that the server knows, and scaling all parts of S scales the sums in
a known way: the common variance and the noise need no slopes of their own.

Cost is cubic in a site's rows and its memory quadratic: 0.05 s for a site of 500 rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotri

from fedkin.federation import Federation
from fedkin.models.common_form import (
    SPLINE,
    CommonForm,
    Parameters,
    curve,
    curve_moved,
    parameters,
)
from fedkin.models.gaussian_process import cholesky
from fedkin.models.inducing import Points, features, features_moved
from fedkin.threads import one_thread

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Told = tuple[Floats, Floats, Floats]

# Doubles of one array handled at once: a few of them fit into the second-level cache.
CHUNK_ELEMENTS = 1 << 16


class Pack(NamedTuple):
    """Clients of similar size, padded with zeros: X (k, w, d), y (k, w), sizes (k,)."""

    clients: Indices
    X: Floats
    y: Floats
    sizes: Indices

    def part(self, which: slice) -> Pack:
        """Some of the clients."""
        return Pack(self.clients[which], self.X[which], self.y[which], self.sizes[which])


class Sums(NamedTuple):
    """Per client, the value first and then the slopes in the order of `sent`.

    `gram` (m, 1 + P, F + 1, F + 1) has the target as last column; as they travel, (m, 1 + P, half),
    only the upper triangles are there. `log_det` and `missed` (m, 1 + P); `rows` (m,).
    """

    gram: Floats
    log_det: Floats
    missed: Floats
    rows: Floats


class Site(NamedTuple):
    """Clients of a chunk, zero where padded: inverse of S, U, and inv(S) R inv(S)."""

    inverse: Floats
    solved: Floats
    passed: Floats


def sent(form: CommonForm) -> tuple[str, ...]:
    """Names of the parameters by which slopes are sent."""
    return form.names[1:-1]


def pack(clients: Federation) -> tuple[Pack, ...]:
    """Clients with rows in blocks of similar size; made once per fit."""
    assert clients.y is not None
    return tuple(
        Pack(b.clients, b.stack(clients.X), b.stack(clients.y), b.sizes) for b in clients.buckets()
    )


def sums(
    packs: tuple[Pack, ...],
    n_clients: int,
    form: CommonForm,
    full: Floats,
    points: Points,
    slopes: bool = True,
) -> Sums:
    """Of every client; zero of those without rows. Without slopes P is 0."""
    width = len(points.places) + form.n_mean + 1
    whole = _zeros(n_clients, form, slopes, (width, width))
    for chunk in _chunks(packs, width):
        for p, told in enumerate(_told(chunk, form, full, points, slopes)):
            for total, part in zip(whole, told):
                total[chunk.clients, p] = part
        whole.rows[chunk.clients] = chunk.sizes
    return whole


def travelling(
    packs: tuple[Pack, ...],
    n_clients: int,
    asked: list[tuple[CommonForm, Floats, Points]],
    slopes: bool = True,
) -> Sums:
    """The same at each of several parameters on as many points, (m, K, ...), as they travel.

    The matrices are halved while they are in the cache: they are most of what a search costs.
    """
    form, _, points = asked[0]
    width = len(points.places) + form.n_mean + 1
    upper = np.ravel_multi_index(np.triu_indices(width), (width, width))
    whole = _zeros(n_clients, form, slopes, (len(upper),), len(asked))
    for chunk in _chunks(packs, width):
        for k, each in enumerate(asked):
            for p, (gram, *others) in enumerate(_told(chunk, *each, slopes)):
                half = np.take(gram.reshape(len(gram), -1), upper, axis=1)
                for total, part in zip(whole, (half, *others)):
                    total[chunk.clients, k, p] = part
        whole.rows[chunk.clients] = chunk.sizes
    return whole


def _zeros(
    n_clients: int, form: CommonForm, slopes: bool, matrix: tuple[int, ...], *asked: int
) -> Sums:
    head = (n_clients, *asked, 1 + len(sent(form)) * slopes)
    return Sums(np.zeros((*head, *matrix)), np.zeros(head), np.zeros(head), np.zeros(n_clients))


def together(of_clients: Sums) -> Sums:
    """Added over clients; the first axis stays, of length 1."""
    return Sums(*(array.sum(axis=0, keepdims=True) for array in of_clients))


def wholes(upper: Floats, width: int) -> Floats:
    """Symmetric matrices from their upper triangles (..., half), as they travel."""
    rows, columns = np.triu_indices(width)
    gram = np.empty((*upper.shape[:-1], width, width))
    gram[..., rows, columns] = upper
    gram[..., columns, rows] = upper
    return gram


def _chunks(packs: tuple[Pack, ...], width: int) -> Iterator[Pack]:
    for block in packs:
        n = block.X.shape[1]
        step = max(1, CHUNK_ELEMENTS // max(n, width) ** 2)
        for begin in range(0, len(block.clients), step):
            yield block.part(slice(begin, begin + step))


# ------------------------------------------------------------------ one chunk


def _told(chunk: Pack, form: CommonForm, full: Floats, points: Points, slopes: bool) -> list[Told]:
    """Gram, log determinant and what is missed, then their slopes."""
    with one_thread(chunk.X.shape[1]):
        return _told_in_one_thread(chunk, form, full, points, slopes)


def _told_in_one_thread(
    chunk: Pack, form: CommonForm, full: Floats, points: Points, slopes: bool
) -> list[Told]:
    part = parameters(form, full)
    kept = (np.arange(chunk.X.shape[1]) < chunk.sizes[:, None]).astype(np.float64)
    both, bent = kept[:, :, None] * kept[:, None, :], part.bent(chunk.X)
    own, by_own = curve(form.own, part.own_lengths, bent, bent)
    own, lean = part.own * own * both, part.leaning(chunk.X) * kept[:, :, None]
    inverse, log_det = inverted(site_covariance(part, chunk.X, own, kept), kept)
    growing, scaled = part.growing(chunk.X) * kept, kept / part.swelling(chunk.X)
    log_det = log_det + 2.0 * part.growth.sum() * growing.sum(axis=1)
    both_scaled = scaled[:, :, None] * scaled[:, None, :]
    Phi, by_feature = features(form, full, points, chunk.X)
    rest, by_shared = np.zeros_like(both), np.zeros((1, *both.shape))
    if form.common != SPLINE:
        shared, by_shared = curve(form.common, part.common_lengths, bent, bent)
        carried = Phi[:, :, : len(points.places)]
        rest = (shared - carried @ carried.swapaxes(1, 2)) * both_scaled
    columns = np.concatenate([Phi, chunk.y[:, :, None]], axis=2) * scaled[:, :, None]
    solved = inverse @ columns
    found: list[Told] = [(columns.swapaxes(1, 2) @ solved, log_det, _inner(inverse, rest))]
    if slopes:
        site = Site(inverse, solved, inverse @ rest @ inverse)
        pairs = zip(by_feature * scaled[:, :, None], by_shared * both_scaled)
        found += [_by_common_length(site, *pair) for pair in pairs]
        found += [_by_columns(site, part.level, kept[:, :, None])]
        found += [_by_columns(site, part.slope, lean), _by_matrix(site, own)]
        found += [_by_matrix(site, part.own * slope * both) for slope in by_own]
        found += [_by_pivot(site, part.slope, kept, column) for column in np.moveaxis(lean, 2, 0)]
        found += [_by_growth(site, growing, columns, rest)] * form.n_growth
        if form.n_haste:
            found += _by_haste(site, form, part, chunk.X, both, points)
    return found


def site_covariance(part: Parameters, X: Floats, own: Floats, kept: Floats) -> Floats:
    """S (k, w, w) of padded clients before it swells, with a unit diagonal where padded."""
    both = kept[:, :, None] * kept[:, None, :]
    S = own + part.level * both
    if part.slope > 0:
        lean = part.leaning(X) * kept[:, :, None]
        S = S + part.slope * (lean @ lean.swapaxes(1, 2))
    return S + np.eye(X.shape[1]) * np.where(kept > 0, part.noise, 1.0)[:, :, None]


def inverted(S: Floats, kept: Floats) -> tuple[Floats, Floats]:
    """Inverses, zero where padded, and log determinants."""
    inverse, log_det = np.empty_like(S), np.empty(len(S))
    for k, matrix in enumerate(S):
        root, _ = cholesky(matrix)
        log_det[k] = 2.0 * np.log(np.diagonal(root)).sum()
        # The lower triangle; what is above the diagonal stays zero.
        inverse[k] = dpotri(root, 1)[0] if root.size else root
    both = inverse + inverse.swapaxes(1, 2)
    diagonal = np.arange(S.shape[1])
    both[:, diagonal, diagonal] *= 0.5
    return both * (kept[:, :, None] * kept[:, None, :]), log_det


def _by_matrix(site: Site, slope: Floats) -> Told:
    """Slopes of gram, log det and missed for dS (k, w, w)."""
    gram = site.solved.swapaxes(1, 2) @ (slope @ site.solved)
    return -gram, _inner(site.inverse, slope), -_inner(site.passed, slope)


def _by_columns(site: Site, variance: float, columns: Floats) -> Told:
    """The same for dS = variance * columns columns'."""
    seen = columns.swapaxes(1, 2) @ site.solved
    within, missed = (
        variance * _inner(columns, matrix @ columns) for matrix in (site.inverse, site.passed)
    )
    return -variance * (seen.swapaxes(1, 2) @ seen), within, -missed


def _by_pivot(site: Site, variance: float, ones: Floats, lean: Floats) -> Told:
    """The same for dS = -variance (1 lean' + lean 1'), both (k, w)."""
    both = np.stack([ones, lean], axis=2)
    seen = both.swapaxes(1, 2) @ site.solved
    gram = seen[:, 0, :, None] * seen[:, 1, None, :]
    within, missed = (
        -2.0 * variance * np.einsum("ki,kij,kj->k", ones, matrix, lean)
        for matrix in (site.inverse, site.passed)
    )
    return variance * (gram + gram.swapaxes(1, 2)), within, -missed


def _by_growth(site: Site, growing: Floats, columns: Floats, rest: Floats) -> Told:
    """The same for the growth, by which columns and rest are divided: of log s (k, w)."""
    gram = (columns * growing[:, :, None]).swapaxes(1, 2) @ site.solved
    missed = -2.0 * np.einsum("ki,kij,kij->k", growing, site.inverse, rest)
    return -gram - gram.swapaxes(1, 2), 2.0 * growing.sum(axis=1), missed


def _by_haste(
    site: Site, form: CommonForm, part: Parameters, X: Floats, both: Floats, points: Points
) -> list[Told]:
    """The same for the haste of each feature, with which the own and the common curve move."""
    rows = part.bent(X), part.bending(X)
    own = part.own * both * curve_moved(form.own, part.own_lengths, rows, rows)
    shared = both * curve_moved(form.common, part.common_lengths, rows, rows)
    by_feature = features_moved(form, part, points, X) * both[:, 0, :, None]
    parts = [
        (_by_matrix(site, matrix), _by_common_length(site, *common))
        for matrix, *common in zip(own, by_feature, shared)
    ]
    return [(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in parts]


def _by_common_length(site: Site, by_feature: Floats, by_shared: Floats) -> Told:
    """The same for a common curve that changes, by its features and its correlation."""
    M = by_feature.shape[2]
    gram = np.zeros((len(by_feature), site.solved.shape[2], site.solved.shape[2]))
    gram[:, :M] = by_feature.swapaxes(1, 2) @ site.solved
    gram = gram + gram.swapaxes(1, 2)
    missed = _inner(site.inverse, by_shared) - 2.0 * _inner(site.solved[:, :, :M], by_feature)
    return gram, np.zeros(len(gram)), missed


def _inner(a: Floats, b: Floats) -> Floats:
    total: Floats = np.einsum("kij,kij->k", a, b)
    return total
