"""How well a site's rows are foretold by its other rows, under groups borrowed by degrees.

Each row is taken out of its groups as far as it belongs to them: out of their share, mean and
covariance, by the formulas for one row less (a rank-one change of the covariance). What is common
to all sites stays: one row of one site hardly tells of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.models.latent_classes import log_weights, rule_out, to_posterior
from fedkin.models.row_blocks import RowBlocks
from fedkin.models.shaped_mixture import (
    Groups,
    own_of,
    parts_of,
    students,
    whitened,
)

# A row makes at most this share of what is known of its group.
MOST_OF_GROUP = 1.0 - 1e-6
# The least degrees of freedom of Student's density, which has a covariance from two on.
LEAST_FREEDOM = 2.5


class Holding(NamedTuple):
    """What a site's groups rest on, each (m, S, R).

    `counts` of rows; `taken`, the share of its own mean that a site keeps; `total`, as from how
    many rows the covariance is known (infinite for one that is not the site's own); `usual`, the
    rows that stand for the common weights; `freedom` of Student's density, infinite for the normal.
    """

    counts: Floats
    taken: Floats
    total: Floats
    usual: Floats
    freedom: Floats


def left_out(rows: RowBlocks, groups: Groups, held: Holding, kind: str) -> tuple[Floats, Floats]:
    """Log density (m, S) of a site's rows, each under what the others leave of its groups.

    With labels, where these are known; and the log probability of labels alone, (m, S).
    """
    parts = parts_of(rows, groups)
    d, found = rows.n_columns, np.zeros((rows.n_clients, groups.means.shape[1]))
    right = np.zeros_like(found)
    for chunk in rows.chunks(groups.means[0].size):
        who, present, known = chunk.clients, chunk.data[:, -1], chunk.labels
        own = Holding(*(part[who][..., None] for part in held))
        squares = np.square(whitened(chunk, parts[0], parts[1]))
        if kind != "diag":
            squares = squares.sum(axis=3, keepdims=True)
        base = own_of(parts[2], who)[..., None]
        share = _shares(base + students(squares.sum(axis=3), own.freedom, d), known)
        less = _without(base, squares, share, own, (kind, d))
        before = log_weights(own_of(groups.weights, who))[..., None]
        joint = less + _log_weights(share, own, rows.sizes[who]) - before
        joint = np.ascontiguousarray(joint.transpose(1, 2, 0, 3))
        of_any = to_posterior(joint if known is None else joint.copy())
        found[who] += np.einsum("skn,kn->ks", of_any, present)
        if known is not None:
            rule_out(joint, known)
            told = present * (known >= 0)
            right[who] += np.einsum("skn,kn->ks", to_posterior(joint) - of_any, told)
    return found + right, right


def _shares(joint: Floats, known: Indices | None) -> Floats:
    """Probabilities of the groups (k, S, R, width)."""
    turned = np.ascontiguousarray(joint.transpose(1, 2, 0, 3))
    rule_out(turned, known)
    to_posterior(turned)
    return np.asarray(turned.transpose(2, 0, 1, 3))


def _without(
    base: Floats, squares: Floats, share: Floats, own: Holding, shape: tuple[str, int]
) -> Floats:
    """Log joint density (k, S, R, width) with a row's own part taken out of mean and covariance."""
    kind, d = shape
    size = d if kind == "spherical" else 1
    total, part = own.total[..., None, :], share[..., None, :]
    more = 1.0 / (1.0 - np.minimum(size * part / total, MOST_OF_GROUP))
    left = 1.0 - np.minimum(part * squares / total, MOST_OF_GROUP)
    leverage = share * own.taken / np.maximum(np.maximum(own.counts, share), 1e-300)
    away = 1.0 / np.square(1.0 - np.minimum(leverage, MOST_OF_GROUP))
    distance = (squares / (more * left)).sum(axis=3) * away
    volume = 0.5 * (d * np.log(more[..., 0, :]) + size * np.log(left).sum(axis=3))
    freedom = np.maximum(own.freedom - share, LEAST_FREEDOM)
    return np.asarray(base - volume + students(distance, freedom, d))


def _log_weights(share: Floats, own: Holding, sizes: Indices) -> Floats:
    """Logarithms of the weights that the other rows of a site leave its groups."""
    rest = np.maximum(own.counts - share, 0.0) + own.usual
    whole = np.maximum(sizes[:, None, None, None] - 1.0 + own.usual.sum(axis=2, keepdims=True), 1.0)
    return np.asarray(np.log(np.maximum(rest / whole, 1e-300)))
