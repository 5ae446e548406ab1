"""Is there any difference between the sites? The likelihood ratio test of V = 0.

Under the hypothesis V lies on the edge of what is possible, and the statistic is asymptotically a
mixture of chi-squares with 0, 1, 2, ... degrees of freedom (chi-bar-square: Self and Liang 1987,
Stram and Lee 1994, Shapiro 1988). With one variance the shares are one half each. In general they
are those of a normal vector projected on the cone of possible V in the metric of V's information,
which the sums give; they are found here from projected draws, the same ones every time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.linear_mixed import Prepared, evaluate, profile
from fedkin.models.linear_mixed_fit import LinearMixedFit
from fedkin.models.random_covariance import Shape

Floats = NDArray[np.float64]

N_DRAWS = 4000
# Above this many random columns the projections take too long; the shares are then a bound.
MOST_COLUMNS = 6
MOST_STEPS = 200
# Relative change of the projected vectors at which they have come to rest.
AT_REST = 1e-6
# Survival curve points at which the mixture is matched.
N_MATCHED = 60


class SiteTest(NamedTuple):
    """Likelihood ratio statistic, p-value, and the share of every number of degrees of freedom.

    `exact` is false where the shares are a bound: the p-value is then at most this.
    """

    statistic: float
    p_value: float
    shares: Floats
    exact: bool


def site_differences(fit: LinearMixedFit) -> SiteTest:
    """Test that the random effects are all zero, by the likelihood of the fit."""
    prepared = fit.prepared
    nothing = np.zeros((fit.shape.size, fit.shape.size))
    without = profile(prepared, evaluate(prepared, nothing, slopes=False), fit.method).value
    statistic = max(without - fit.criterion, 0.0)
    shares, exact = chi_bar_shares(prepared, fit.shape)
    return SiteTest(statistic, chi_bar_tail(statistic, shares), shares, exact)


def bounded_test(without: float, criterion: float, n_free: int) -> SiteTest:
    """The test from two values of -2 log likelihood, where V's information is not known.

    One variance needs none. Else the largest degrees of freedom that can be are taken, which makes
    the p-value a bound.
    """
    statistic = max(without - criterion, 0.0)
    shares = largest_shares(n_free)
    return SiteTest(statistic, chi_bar_tail(statistic, shares), shares, n_free == 1)


def largest_shares(n_free: int) -> Floats:
    """Half for all free numbers of V and half for one less: no mixture lies further out."""
    shares = np.zeros(n_free + 1)
    shares[-2:] = 0.5
    return shares


def chi_bar_tail(statistic: float, shares: Floats) -> float:
    """Probability that the mixture of chi-squares is at least `statistic`."""
    from scipy.stats import chi2

    if statistic <= 0.0:
        return 1.0
    return float(shares[1:] @ chi2.sf(statistic, np.arange(1, len(shares))))


def chi_bar_shares(prepared: Prepared, shape: Shape) -> tuple[Floats, bool]:
    """Shares of 0, 1, ... degrees of freedom; and whether they are more than a bound."""
    n_free = shape.n_parameters
    if n_free == 1:
        return np.array([0.5, 0.5]), True
    diagonal = bool((shape.rows == shape.columns).all())
    if shape.size > MOST_COLUMNS and not diagonal:
        return largest_shares(n_free), False
    directions = _directions(shape, diagonal)
    information = covariance_information(prepared, directions)
    draws = _draws(information)
    found = _projected(draws, information, directions, diagonal)
    if diagonal:
        return _counted((found > 0).sum(axis=1), n_free), True
    statistics = np.einsum("na,ab,nb->n", found, information, found)
    return matched_shares(statistics, n_free), True


def covariance_information(prepared: Prepared, directions: Floats) -> Floats:
    """Information about V along `directions` (k, q, q) at V = 0, beta and s profiled out, (k, k).

    With R the projection off the fixed columns, s = 1 and A_a = Z E_a Z' client by client it is
    tr(R A_a R A_b) / 2 less what the noise explains, tr(R A_a) tr(R A_b) / 2 (N - p).
    """
    p = prepared.rank
    gram, fixed = prepared.products[:, p + 1 :], prepared.products[:, :p]
    turned = np.einsum("aij,jkm->aikm", directions, gram)
    own = np.einsum("aikm,bkim,m->ab", turned, turned, prepared.weights, optimize=True)
    through = np.einsum("aij,jrm->airm", directions, fixed)
    both = np.einsum("airm,ikm,bkrm,m->ab", through, gram, through, prepared.weights, optimize=True)
    outer = np.einsum("irm,aism,m->ars", fixed, through, prepared.weights, optimize=True)
    full = own - 2.0 * both + np.einsum("ars,bsr->ab", outer, outer)
    trace = np.einsum("aiim,m->a", turned, prepared.weights) - np.einsum("arr->a", outer)
    left = prepared.total_rows - p
    out = 0.5 * (full - np.outer(trace, trace) / left)
    return np.asarray(0.5 * (out + out.T))


def matched_shares(statistics: Floats, most: int) -> Floats:
    """Shares whose mixture has the survival curve of `statistics`; even ones sum to one half."""
    from scipy.optimize import nnls
    from scipy.stats import chi2

    grid = np.quantile(statistics, np.linspace(0.02, 0.995, N_MATCHED))
    grid = np.append(1e-6 * max(float(grid[-1]), 1.0), grid[grid > 0])
    curve = (statistics[:, None] >= grid).mean(axis=0)
    degrees = np.arange(1, most + 1)
    by_degree = np.concatenate([np.zeros((len(grid), 1)), chi2.sf(grid[:, None], degrees)], axis=1)
    even = (np.arange(most + 1) % 2 == 0).astype(float)
    certain = 1e3
    left = np.concatenate([by_degree, certain * even[None], certain * (1 - even)[None]])
    found = nnls(left, np.concatenate([curve, [0.5 * certain, 0.5 * certain]]))[0]
    return np.asarray(found / found.sum())


# ------------------------------------------------------------------ projected draws


def _directions(shape: Shape, diagonal: bool) -> Floats:
    """Directions in which V can move, orthonormal, (k, q, q)."""
    q = shape.size
    if diagonal:
        out = np.zeros((shape.n_parameters, q, q))
        out[shape.owner, np.arange(q), np.arange(q)] = 1.0
        return out
    out = np.zeros((len(shape.rows), q, q))
    for a, (i, j) in enumerate(zip(shape.rows, shape.columns)):
        out[a, i, j] = out[a, j, i] = 1.0 if i == j else np.sqrt(0.5)
    return out


def _draws(information: Floats) -> Floats:
    """Normal vectors with this covariance, (n, k), in pairs of opposite sign."""
    values, vectors = np.linalg.eigh(information)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    half = np.random.default_rng(20_261_116).normal(size=(N_DRAWS // 2, len(information)))
    return np.concatenate([half, -half]) @ root.T


def _projected(draws: Floats, information: Floats, directions: Floats, diagonal: bool) -> Floats:
    """The possible V with the largest 2 draw'v - v' information v, by accelerated steps, (n, k)."""
    step = 1.0 / max(float(np.linalg.eigvalsh(information)[-1]), 1e-300)
    point = ahead = np.zeros_like(draws)
    pace = 1.0
    for _ in range(MOST_STEPS):
        moved = _onto_cone(ahead + step * (draws - ahead @ information), directions, diagonal)
        new_pace = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * pace**2))
        ahead = moved + (pace - 1.0) / new_pace * (moved - point)
        change = float(np.abs(moved - point).max())
        point, pace = moved, new_pace
        if change <= AT_REST * float(np.abs(point).max(initial=1e-300)):
            break
    return point


def _onto_cone(points: Floats, directions: Floats, diagonal: bool) -> Floats:
    """The nearest possible V, in the plain metric of the directions."""
    if diagonal:
        return np.maximum(points, 0.0)
    values, vectors = np.linalg.eigh(np.tensordot(points, directions, 1))
    kept = (vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.transpose(0, 2, 1)
    return np.asarray(np.einsum("nij,aij->na", kept, directions))


def _counted(degrees: NDArray[np.intp], most: int) -> Floats:
    """Shares of 0, ..., `most`, with even and odd ones one half each, as they are in truth."""
    shares = np.bincount(degrees, minlength=most + 1) / len(degrees)
    even = np.arange(most + 1) % 2 == 0
    out = np.zeros(most + 1)
    out[even] = 0.5 * shares[even] / max(shares[even].sum(), 1e-300)
    out[~even] = 0.5 * shares[~even] / max(shares[~even].sum(), 1e-300)
    return out
