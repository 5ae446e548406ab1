"""Odd sites: those that a fitted model does not describe."""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Bools, Floats
from fedkin.models.kinds_prediction import Misfit

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


def odd_by_misfit(misfit: Misfit, noise_shape: float = np.inf) -> Bools:
    """Whether each site departs further, or is noisier, than a fit with departures says, (m,).

    Departures are measured beside the median site's: odd sites widen the fitted spread itself.
    `noise_shape` is a of the inverse gamma where sites have noise of their own.
    """
    from scipy.special import fdtrc

    departure, directions, residual, rows = misfit
    odd = _odd_squares(departure, directions, most_typical=1.0)
    if not np.isfinite(noise_shape):
        return odd | _odd_squares(residual, rows)
    some = rows > 0
    ratio = np.where(some, residual / np.where(some, rows, 1.0), 0.0)
    tail = fdtrc(np.where(some, rows, 1.0), 2.0 * noise_shape, ratio)
    return odd | (some & (tail < FAMILY_LEVEL / max(int(some.sum()), 1)))


def _odd_squares(squares: Floats, degrees: Floats, most_typical: float = np.inf) -> Bools:
    """Whether sums of `degrees` squares are too large beside the median one's, (m,)."""
    from scipy.special import chdtrc, gammaincinv

    odd = np.zeros(len(squares), dtype=bool)
    some = np.flatnonzero((degrees > 0) & np.isfinite(squares))
    if not len(some):
        return odd
    n, square = degrees[some], squares[some]
    typical = min(float(np.median(square / (2 * gammaincinv(n / 2, 0.5)))), most_typical)
    if typical <= 0:
        return odd
    wide = square / n > LEAST_RATIO * typical
    odd[some] = wide & (chdtrc(n, square / typical) < FAMILY_LEVEL / len(some))
    return odd
