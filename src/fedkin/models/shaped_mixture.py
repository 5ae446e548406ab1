"""Gaussian mixtures whose groups have covariances of their own, batched over clients.

What an E-step leaves of a group at a client: how many rows, their mean, and their scatter about
that mean. Rows with a known label count for their group alone. Arrays have the client first;
S restarts that run side by side stand between it and the R groups.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from fedkin.arrays import Array, Floats, Indices
from fedkin.models.latent_classes import (
    EMPTY_COMPONENT,
    after_client,
    log_weights,
    rule_out,
    to_posterior,
)
from fedkin.models.row_blocks import Chunk, RowBlocks


class Groups(NamedTuple):
    """`weights` (m, S, R), `means` (m, S, R, d), `covariances` (m, S, R, d, d).

    A client axis of length one means the same for all.
    """

    weights: Floats
    means: Floats
    covariances: Floats


class Moments(NamedTuple):
    """`counts` (m, S, R), `means` (m, S, R, d), `scatter` (m, S, R, d, d) about them, `loglik`."""

    counts: Floats
    means: Floats
    scatter: Floats
    loglik: Floats


def expect(rows: RowBlocks, groups: Groups) -> Moments:
    """The E-step of every client."""
    roots, offsets, logs = parts_of(rows, groups)
    m, (n_restarts, n_groups, d) = rows.n_clients, groups.means.shape[1:]
    counts = np.zeros((m, n_restarts, n_groups))
    sums, products = np.zeros((*counts.shape, d)), np.zeros((*counts.shape, d, d))
    loglik = np.zeros((m, n_restarts))
    for chunk in rows.chunks(n_restarts * n_groups * d):
        who, table = chunk.clients, chunk.data
        joint = _log_joint(chunk, roots, offsets, logs)
        joint = np.ascontiguousarray(joint.transpose(1, 2, 0, 3))
        rule_out(joint, chunk.labels)
        total = to_posterior(joint)
        loglik[who] += np.einsum("skn,kn->ks", total, table[:, -1])
        share = joint.transpose(2, 0, 1, 3) * table[:, None, None, -1]
        counts[who] += share.sum(axis=-1)
        columns = table[:, :-1]
        sums[who] += share @ columns.transpose(0, 2, 1)[:, None]
        weighted = share[:, :, :, None] * columns[:, None, None]
        products[who] += weighted @ columns.transpose(0, 2, 1)[:, None, None]
    return _moments(rows, counts, sums, products, loglik)


def labelled_moments(rows: RowBlocks, n_groups: int) -> Moments:
    """The same of the rows with known labels alone, without restarts; likelihood zero."""
    m, d = rows.n_clients, rows.n_columns
    counts, sums = np.zeros((m, n_groups)), np.zeros((m, n_groups, d))
    products = np.zeros((m, n_groups, d, d))
    for chunk in rows.chunks(n_groups * d):
        if chunk.labels is None:
            continue
        present = chunk.data[:, None, -1]
        share = (np.arange(n_groups)[:, None] == chunk.labels[:, None]) * present
        columns, who = chunk.data[:, :-1], chunk.clients
        counts[who] += share.sum(axis=-1)
        sums[who] += share @ columns.transpose(0, 2, 1)
        weighted = share[:, :, None] * columns[:, None]
        products[who] += weighted @ columns.transpose(0, 2, 1)[:, None]
    return _moments(rows, counts, sums, products, np.zeros(m))


def _moments(
    rows: RowBlocks, counts: Floats, sums: Floats, products: Floats, loglik: Floats
) -> Moments:
    """Means and scatter about them from sums about the clients' centres."""
    alive = counts > EMPTY_COMPONENT
    about = np.where(alive[..., None], sums / np.where(alive, counts, 1.0)[..., None], 0.0)
    scatter = products
    scatter -= (counts[..., None] * about)[..., None] * about[..., None, :]
    scatter[~alive] = 0.0
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


def parts_of(rows: RowBlocks, groups: Groups) -> tuple[Floats, Floats, Floats]:
    """Whitening roots, whitened means about the clients' centre, and log weights with constants."""
    roots = inverse_roots(groups.covariances)
    about = groups.means - rows.centre[:, None, None]
    offsets = (roots @ about[..., None])[..., 0]
    diagonal = np.einsum("...ii->...i", roots)
    constant = np.log(diagonal).sum(axis=-1) - 0.5 * about.shape[-1] * np.log(2 * np.pi)
    return roots, offsets, log_weights(groups.weights) + constant


def students(squares: Floats, freedom: Floats, d: int) -> Floats:
    """Log density of Student at squared distances in units of the covariance.

    Without the normal density's constant; normal where the degrees of freedom are infinite.
    """
    known = np.isfinite(freedom)
    eta = np.where(known, freedom, 3.0)
    level = gammaln((eta + d) / 2) - gammaln(eta / 2) - 0.5 * d * np.log((eta - 2.0) / 2.0)
    wide = level - 0.5 * (eta + d) * np.log1p(squares / (eta - 2.0))
    return np.where(known, wide, -0.5 * squares)


def whitened(chunk: Chunk, roots: Floats, offsets: Floats) -> Floats:
    """Rows about the means, where covariances are the identity, (k, S, R, d, width)."""
    who, columns = chunk.clients, chunk.data[:, :-1]
    white: Floats = own_of(roots, who) @ columns[:, None, None]
    white -= own_of(offsets, who)[..., None]
    return white


def _log_joint(chunk: Chunk, roots: Floats, offsets: Floats, logs: Floats) -> Floats:
    """(k, S, R, width) of the rows of a chunk."""
    white = whitened(chunk, roots, offsets)
    squares = np.einsum("ksrdn,ksrdn->ksrn", white, white)
    return np.asarray(own_of(logs, chunk.clients)[..., None] - 0.5 * squares)


def own_of(array: Array, who: Indices) -> Array:
    """Entries of some clients; of all, where all have the same."""
    return array if len(array) == 1 else array[who]


def inverse_roots(covariances: Floats) -> Floats:
    """Lower triangular W (..., d, d) with W covariance W' = identity."""
    return np.linalg.inv(np.linalg.cholesky(covariances))
