"""How likely a site's rows are where its groups are drawn around common ones: a bound.

log p(rows) >= E log p(rows | own values) - distance of the own values from what is common, with the
own values of `borrowed.Posterior` as the approximate posterior (Kullback-Leibler distances). The
first term is what an E-step with `borrowed.working` returns as its log likelihood. Comparable among
fits of one model to the same rows: it tells which groups sites share, where the likelihood of one
mixture for all would take kinds of sites for groups.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, psi

from fedkin.arrays import Floats
from fedkin.shrinkage.borrowed import (
    OWN_KINDS,
    Common,
    Posterior,
    block,
    log_multigamma,
    ratios,
)


def departure(
    own: Posterior, common: Common, counts: Floats, kind: str, own_weights: bool
) -> Floats:
    """Distance (m,) of sites' own values, found with `counts` (m, R), from the common ones."""
    apart = mean_departure(own, common)
    if kind in OWN_KINDS:
        apart = apart + covariance_departure(own, common, kind)
    found: Floats = apart.sum(axis=1)
    if not own_weights:
        found = found + weight_departure(counts, common.concentration)
    return found


def mean_departure(own: Posterior, common: Common) -> Floats:
    """N(mean, doubt) from N(center, between), (m, R).

    A site that does not belong comes from a wider one, whose width fits best, at the prior odds of
    `spread.belonging`: N^2 : 1 among N estimates.
    """
    root = np.linalg.inv(np.linalg.cholesky(common.between))
    away = np.einsum("rij,mrj->mri", root, own.means - common.centers)
    white = root @ own.doubt @ root.swapaxes(-1, -2)
    d = away.shape[-1]
    squares = (away**2).sum(axis=-1) + np.einsum("mrii->mr", white)
    narrow = np.linalg.slogdet(white)[1]
    usual = 0.5 * (squares - d - narrow)
    wider = np.maximum(squares / d, 1.0)
    odd = 0.5 * (squares / wider - d + d * np.log(wider) - narrow)
    odd = odd + 2.0 * np.log(np.maximum(common.n_estimates, 1.0))
    nearer: Floats = np.maximum(np.minimum(usual, odd), 0.0)
    return nearer


def covariance_departure(own: Posterior, common: Common, kind: str) -> Floats:
    """The inverse Wishart of a site's covariance from the common one, (m, R)."""
    d = own.means.shape[-1]
    order, times = block(kind, d)
    seen, beyond = ratios(own.scatter, common.covariances, kind), common.degrees[..., None]
    before, more = common.degrees + order + 1.0, times * own.rows
    after, n_blocks = before + more, seen.shape[-1] // order
    each = log_multigamma(before / 2, order) - log_multigamma(after / 2, order)
    each = each + 0.5 * more * psi((after[..., None] - np.arange(order)) / 2).sum(axis=-1)
    volume = 0.5 * before * np.log1p(seen / beyond).sum(axis=-1)
    trace = 0.5 * after * (beyond / (beyond + seen) - 1.0).sum(axis=-1)
    found: Floats = np.maximum(n_blocks * each + volume + trace, 0.0)
    return found


def weight_departure(counts: Floats, concentration: Floats) -> Floats:
    """Dirichlet(counts + concentration) from Dirichlet(concentration), (m,)."""
    held = counts + concentration
    total, before = held.sum(axis=-1), concentration.sum()
    level = gammaln(total) - gammaln(before) - (gammaln(held) - gammaln(concentration)).sum(axis=-1)
    found: Floats = level + (counts * (psi(held) - psi(total)[..., None])).sum(axis=-1)
    return found
