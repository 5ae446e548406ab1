"""Quick rules for sites that a fitted model does not describe, from what a fit knows anyway."""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Bools, Floats
from fedkin.models.kinds_prediction import Misfit

# A site is odd if chance gives such misfit anywhere in the federation once in a hundred fits ...
FAMILY_LEVEL = 0.01
# ... and if its residual variance is also this many times the typical one: with many rows every
# small misfit is significant, and small misfit is not oddness.
LEAST_RATIO = 3.0
# A fitted scale of which the median site needs less than this share is not believed.
FAR_TOO_WIDE = 0.5
# Between the quartiles of a normal law, in standard deviations.
QUARTILES = 1.349


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


def odd_by_misfit(misfit: Misfit, own_noise: bool = False) -> Bools:
    """Whether each site departs further, or is noisier, than a fit with departures says, (m,).

    Everything is measured beside the sites in the middle: odd ones widen the fitted spread of
    departures, and that of noises where every site has its own.
    """
    departure, directions, residual, rows = misfit
    odd = _odd_squares(departure, directions, fitted=True)
    return odd | (_odd_noises if own_noise else _odd_squares)(residual, rows)


def _odd_noises(squares: Floats, degrees: Floats) -> Bools:
    """Whether residual variances are too large beside the middle half of all, on log scale, (m,).

    The logarithm of a variance from n squares varies by trigamma(n / 2) around the site's own.
    """
    from scipy.special import digamma, ndtr, polygamma

    odd = np.zeros(len(squares), dtype=bool)
    some = np.flatnonzero((degrees > 0) & (squares > 0) & np.isfinite(squares))
    if len(some) < 2:
        return odd
    n = degrees[some]
    logs = np.log(squares[some] / n) - digamma(n / 2) + np.log(n / 2)
    chance = polygamma(1, n / 2)
    low, middle, high = np.quantile(logs, (0.25, 0.5, 0.75))
    between = max(((high - low) / QUARTILES) ** 2 - float(np.median(chance)), 0.0)
    away = logs - middle
    unlikely = ndtr(-away / np.sqrt(between + chance)) < FAMILY_LEVEL / len(some)
    odd[some] = unlikely & (away > np.log(LEAST_RATIO))
    return odd


def _odd_squares(squares: Floats, degrees: Floats, fitted: bool = False) -> Bools:
    """Whether sums of `degrees` squares are too large beside the median one's, (m,).

    Where their scale is `fitted` it is believed, unless the median says that it is far too wide.
    """
    from scipy.special import chdtrc, gammaincinv

    odd = np.zeros(len(squares), dtype=bool)
    some = np.flatnonzero((degrees > 0) & np.isfinite(squares))
    if not len(some):
        return odd
    n, square = degrees[some], squares[some]
    typical = float(np.median(square / (2 * gammaincinv(n / 2, 0.5))))
    if fitted and typical > FAR_TOO_WIDE:
        typical = 1.0
    if typical <= 0:
        return odd
    wide = square / n > LEAST_RATIO * typical
    odd[some] = wide & (chdtrc(n, square / typical) < FAMILY_LEVEL / len(some))
    return odd
