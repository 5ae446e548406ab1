"""Odd sites: those that a fitted model does not describe."""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Bools, Floats

# A site is odd if chance gives such misfit anywhere in the federation once in a hundred fits ...
FAMILY_LEVEL = 0.01
# ... and if its residual variance is also this many times the typical one: with many rows every
# small misfit is significant, and small misfit is not oddness.
LEAST_RATIO = 3.0


def odd_by_likelihood(loglik: Floats, rows: Floats, sigma: float) -> Bools:
    """Whether each site's likelihood is too low for a normal model with noise `sigma`, (m,).

    The scale is set by the median site, because odd sites inflate `sigma` itself. Sites that were
    not heard (NaN) or have no rows are never odd.
    """
    from scipy.special import chdtrc, gammaincinv

    heard = np.isfinite(loglik) & (np.nan_to_num(rows) > 0)
    odd = np.zeros(len(loglik), dtype=bool)
    if not heard.any():
        return odd
    n = rows[heard]
    deviance = np.maximum(-2 * loglik[heard] - n * np.log(2 * np.pi * sigma**2), 0.0)
    sizes, which = np.unique(n, return_inverse=True)
    chi2_medians = 2 * gammaincinv(sizes / 2, 0.5)
    typical = np.median(deviance / chi2_medians[which])
    if typical <= 0:
        return odd
    # Few sites pass the cheap rule; only for them the law's tail is worth computing.
    wide = np.flatnonzero(deviance / n > LEAST_RATIO * typical)
    unlikely = chdtrc(n[wide], deviance[wide] / typical) < FAMILY_LEVEL / heard.sum()
    odd[np.flatnonzero(heard)[wide[unlikely]]] = True
    return odd
