"""Gaussian mixtures whose groups have covariances of their own, batched over clients.

What an E-step leaves of a group at a client: how many rows, their mean, and their scatter about
that mean, as far as its kind of covariance has it. Rows with a known label count for their group
alone. Arrays have the client first; S restarts that run side by side stand between it and the R
groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, log_softmax, softmax

from fedkin.arrays import Array, Floats, Indices
from fedkin.models.latent_classes import (
    EMPTY_COMPONENT,
    after_client,
    log_weights,
    rule_out,
    to_posterior,
)
from fedkin.models.packed_matrices import n_numbers, products, products_of_rows
from fedkin.models.row_blocks import Chunk, RowBlocks
from fedkin.models.small_matrices import inverse_roots

# Kinds of covariance that are diagonal.
DIAGONAL = ("identity", "spherical", "diag")
# What log probabilities of classes are divided by, to make them less sure.
TEMPERATURES = 2.0 ** np.arange(0.0, 5.1, 0.5)
# What is less probable is as improbable as this.
LEAST_PROBABILITY = 1e-300


class Groups(NamedTuple):
    """`weights` (m, S, R), `means` (m, S, R, d), `covariances` (m, S, R, d, d).

    A client axis of length one means the same for all.
    """

    weights: Floats
    means: Floats
    covariances: Floats


class Moments(NamedTuple):
    """`counts` (m, S, R), `means` (m, S, R, d), `loglik` (m, S).

    `scatter` (m, S, R, q) about the means, as the kind of covariance has it (`packed_matrices`).
    """

    counts: Floats
    means: Floats
    scatter: Floats
    loglik: Floats


def expect(rows: RowBlocks, groups: Groups, kind: str = "full") -> Moments:
    """The E-step of every client; covariances are diagonal where their kind is."""
    parts = parts_of(rows, groups, kind in DIAGONAL)
    m, (n_restarts, n_groups, d) = rows.n_clients, groups.means.shape[1:]
    sums = np.zeros((m, n_restarts * n_groups, d + 1 + n_numbers(kind, d)))
    loglik = np.zeros((m, n_restarts))
    for chunk, wide in _with_products(rows, kind, n_restarts * n_groups * d):
        who, present = chunk.clients, wide[:, d]
        joint = _log_joint(chunk, *parts)
        joint = np.ascontiguousarray(joint.transpose(1, 2, 0, 3))
        rule_out(joint, chunk.labels)
        total = to_posterior(joint)
        loglik[who] += np.einsum("skn,kn->ks", total, present)
        joint *= present
        share = joint.reshape(-1, *present.shape).transpose(1, 0, 2)
        sums[who] += share @ wide.transpose(0, 2, 1)
    return _moments(rows, sums.reshape(m, n_restarts, n_groups, -1), loglik, kind)


def labelled_moments(rows: RowBlocks, n_groups: int, kind: str = "full") -> Moments:
    """The same of the rows with known labels alone, without restarts; likelihood zero."""
    m, d = rows.n_clients, rows.n_columns
    sums = np.zeros((m, n_groups, d + 1 + n_numbers(kind, d)))
    for chunk, wide in _with_products(rows, kind, n_groups * d):
        if chunk.labels is not None:
            same = np.arange(n_groups)[:, None] == chunk.labels[:, None]
            sums[chunk.clients] += (same * wide[:, None, d]) @ wide.transpose(0, 2, 1)
    return _moments(rows, sums, np.zeros(m), kind)


def _with_products(rows: RowBlocks, kind: str, per_row: int) -> Iterator[tuple[Chunk, Floats]]:
    """Chunks with columns, `present` and products of columns of their rows, (k, d + 1 + q, width).

    The latter stand in the same place of memory for every chunk.
    """
    size = rows.n_columns + 1
    wider, room = size + n_numbers(kind, rows.n_columns), np.empty(0)
    for chunk in rows.chunks(per_row + wider):
        k, _, width = chunk.data.shape
        needed = k * wider * width
        room = room if len(room) >= needed else np.empty(needed)
        wide = room[:needed].reshape(k, wider, width)
        wide[:, :size] = chunk.data
        products_of_rows(chunk.data[:, :-1], kind, wide[:, size:])
        yield chunk, wide


def _moments(rows: RowBlocks, sums: Floats, loglik: Floats, kind: str) -> Moments:
    """Means and scatter about them from sums about the clients' centres."""
    d = rows.n_columns
    counts = sums[..., d].copy()
    alive = (counts > EMPTY_COMPONENT)[..., None]
    about = np.where(alive, sums[..., :d] / np.where(alive, counts[..., None], 1.0), 0.0)
    scatter = products(-counts[..., None] * about, about, kind)
    scatter += sums[..., d + 1 :]
    if not alive.all():
        scatter *= alive
    means = about + after_client(rows.centre, counts.ndim - 1)
    return Moments(counts, means, scatter, loglik)


def log_joint(rows: RowBlocks, groups: Groups, freedom: Floats | None = None) -> Floats:
    """log(weight * density) of every row and group, (N, R); one restart.

    With `freedom` (m, R) of covariances that are themselves estimates, densities are Student's with
    the same covariances: what is known of a site from few rows is not taken for certain.
    """
    parts, d = parts_of(rows, groups), groups.means.shape[-1]
    if freedom is None or not np.isfinite(freedom).any():
        return rows.row_by_row(lambda chunk: _log_joint(chunk, *parts)[:, 0], _n(groups))
    eta: Floats = freedom

    def of_chunk(chunk: Chunk) -> Floats:
        who = chunk.clients
        base = own_of(parts[2], who)[:, 0, :, None]
        squares = 2.0 * (base - _log_joint(chunk, *parts)[:, 0])
        return base + students(squares, eta[who][..., None], d)

    return rows.row_by_row(of_chunk, _n(groups))


def _n(groups: Groups) -> int:
    return int(groups.means.shape[2])


def parts_of(
    rows: RowBlocks, groups: Groups, diagonal: bool = False
) -> tuple[Floats, Floats, Floats]:
    """Whitening roots, whitened means about the clients' centre, and log weights with constants."""
    roots = _diagonal_roots(groups.covariances) if diagonal else inverse_roots(groups.covariances)
    about = groups.means - rows.centre[:, None, None]
    offsets = np.einsum("...ij,...j->...i", roots, about)
    constant = np.log(np.einsum("...ii->...i", roots)).sum(axis=-1)
    constant -= 0.5 * about.shape[-1] * np.log(2 * np.pi)
    return roots, offsets, log_weights(groups.weights) + constant


def _diagonal_roots(covariances: Floats) -> Floats:
    d = covariances.shape[-1]
    roots = np.zeros_like(covariances)
    roots[..., range(d), range(d)] = 1.0 / np.sqrt(np.einsum("...ii->...i", covariances))
    return roots


def students(squares: Floats, freedom: Floats, d: int) -> Floats:
    """Log density of Student at squared distances in units of the covariance.

    Without the normal density's constant; normal where the degrees of freedom are infinite.
    """
    known = np.isfinite(freedom)
    eta = np.where(known, freedom, 3.0)
    level = gammaln((eta + d) / 2) - gammaln(eta / 2) - 0.5 * d * np.log((eta - 2.0) / 2.0)
    wide = level - 0.5 * (eta + d) * np.log1p(squares / (eta - 2.0))
    return np.where(known, wide, -0.5 * squares)


def foretold(joint: Floats, labels: Floats, owner: Indices, m: int) -> Floats:
    """Log probability (m, T) of the clients' labels, at each of `TEMPERATURES`.

    `joint` (N, R) from `log_joint`; `labels` (N,) are numbers of groups, negative where unknown.
    """
    known = np.flatnonzero(labels >= 0)
    logs, right = joint[known], labels[known].astype(np.intp)
    found = np.zeros((m, len(TEMPERATURES)))
    for place, temperature in enumerate(TEMPERATURES):
        each = log_softmax(logs / temperature, axis=1)[np.arange(len(known)), right]
        found[:, place] = np.bincount(owner[known], each, minlength=m)
    return found


def foretold_together(
    joints: Floats, shares: Floats, labels: Floats, owner: Indices, m: int
) -> Floats:
    """Log probability (m, S) of the clients' labels by two ways together, for every share.

    `joints` (2, N, R) are log probabilities but for a constant; probabilities are blended.
    """
    known = np.flatnonzero(labels >= 0)
    right = labels[known].astype(np.intp)
    first, second = (softmax(one[known], axis=1)[np.arange(len(known)), right] for one in joints)
    found = np.zeros((m, len(shares)))
    for place, share in enumerate(shares):
        each = np.log(np.maximum((1.0 - share) * first + share * second, LEAST_PROBABILITY))
        found[:, place] = np.bincount(owner[known], each, minlength=m)
    return found


def whitened(chunk: Chunk, roots: Floats, offsets: Floats) -> Floats:
    """Rows about the means, where covariances are the identity, (k, S, R, d, width)."""
    own, columns = own_of(roots, chunk.clients), chunk.data[:, :-1]
    white = own.reshape(len(own), -1, own.shape[-1]) @ columns
    found: Floats = white.reshape(len(columns), *own.shape[1:-1], -1)
    found -= own_of(offsets, chunk.clients)[..., None]
    return found


def away(rows: RowBlocks, groups: Groups, s: int, r: int) -> Floats:
    """Rows about the mean of one group of one restart, its covariance made the identity, (N, d)."""
    one = Groups(*(part[:, s : s + 1, r : r + 1] for part in groups))
    roots, offsets, _ = parts_of(rows, one)
    return rows.row_by_row(lambda chunk: whitened(chunk, roots, offsets)[:, 0, 0], rows.n_columns)


def _log_joint(chunk: Chunk, roots: Floats, offsets: Floats, logs: Floats) -> Floats:
    """(k, S, R, width) of the rows of a chunk."""
    white = whitened(chunk, roots, offsets)
    squares = np.einsum("ksrdn,ksrdn->ksrn", white, white)
    squares *= -0.5
    squares += own_of(logs, chunk.clients)[..., None]
    return np.asarray(squares)


def own_of(array: Array, who: Indices) -> Array:
    """Entries of some clients; of all, where all have the same."""
    return array if len(array) == 1 else array[who]
