"""Shifts of sites: what all groups of a site have in common of how they differ from the centres.

Where an instrument, a climate or a kind of patient moves all groups of a site alike, the mean of
group r at site k is

    center_r + shift_k + own_kr,    shift_k ~ N(0, S),    own_kr ~ N(0, between_r),

and what one group tells of the shift serves the others: a class of few rows, or of none, at that
site, and the difference between classes, which the shift does not touch. Without S every group
would have to learn the whole of its place from its own rows.

`precision` (m, R, d, d) is the inverse covariance of own_kr and the sampling error of a mean,
zero where a site has no rows of a group; `away` (m, R, d) are means less centres.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.arrays import Floats

# What pairs of groups tell less than this share of, beside those of other sites, is nothing.
FEW = 1e-12
# Centres scatter at least by this share of what chance does.
LEAST_LEVEL = 1e-3


class Shifts(NamedTuple):
    """Posterior means (m, d) and covariances (m, d, d) of the sites' shifts."""

    means: Floats
    doubt: Floats


def precisions(axes: Floats, inverse: Floats) -> Floats:
    """Precisions (m, R, d, d) from their diagonals (m, R, d) along axes (R, d, d)."""
    return np.asarray((axes.swapaxes(-1, -2) * inverse[..., None, :]) @ axes)


def with_shifts(precision: Floats, spread: Floats) -> Floats:
    """Precisions of means whose covariance has that of shifts (d, d) besides.

    (P^-1 + S)^-1 = (1 + P S)^-1 P needs the inverse of neither.
    """
    whole = np.eye(spread.shape[-1]) + precision @ spread
    return np.asarray(np.linalg.solve(whole, precision))


def distances(precision: Floats, away: Floats) -> Floats:
    """Squared distances (m, R) of means from their centres."""
    return np.asarray(np.einsum("mri,mrij,mrj->mr", away, precision, away, optimize=True))


def expected(precision: Floats, away: Floats, spread: Floats) -> Shifts:
    """The shifts given all groups of a site: (1 + S W)^-1 S, with W the precisions added up."""
    whole = precision.sum(axis=1)
    found = np.linalg.solve(np.eye(spread.shape[-1]) + spread @ whole, spread)
    doubt = (found + found.swapaxes(-1, -2)) / 2
    told = (precision @ away[..., None]).sum(axis=1)
    return Shifts((doubt @ told)[..., 0], doubt)


def move_of_centers(precision: Floats, away: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """How far the likeliest centres are from where they are, (R, d): generalised least squares.

    Also the precision of all centres, (Rd, Rd). Means of one site have the shift in common: sites
    that have two groups tell of the difference between their centres, whatever the shift.
    """
    m, n_groups, d = away.shape
    held, told = expected(precision, away, spread), precision @ away[..., None]
    slope = (told[..., 0] - (precision @ held.means[:, None, :, None])[..., 0]).sum(axis=0)
    wide = precision.transpose(0, 2, 1, 3).reshape(m, d, n_groups * d)
    shared = held.doubt @ wide
    curvature = -wide.reshape(-1, n_groups * d).T @ shared.reshape(-1, n_groups * d)
    for r, own in enumerate(precision.sum(axis=0)):
        part = slice(r * d, (r + 1) * d)
        curvature[part, part] += own
    curvature = (curvature + curvature.T) / 2
    return solved(curvature, slope.ravel()).reshape(n_groups, d), curvature


def solved(matrix: Floats, vector: Floats) -> Floats:
    """The least solution (n,) of positive semidefinite equations (n, n), whatever the units."""
    units = units_of(matrix)
    step = np.linalg.lstsq(matrix / np.outer(units, units), vector / units, rcond=None)[0]
    return np.asarray(step / units, dtype=float)


def units_of(matrix: Floats) -> Floats:
    """Roots of the diagonal (n,) of a positive semidefinite matrix; one where it is zero."""
    diagonal = np.diag(matrix)
    return np.sqrt(np.where(diagonal > 0, diagonal, 1.0))


def pulled_together(centers: Floats, precision: Floats, unit: Floats) -> Floats:
    """Centres (R, d), known to a precision (Rd, Rd), pulled to their mean as far as they are not.

    Centres scatter about their mean by a level times `unit` (d, d): their squares, less what chance
    adds to these. Classes that chance tells apart are not told apart; such as are far apart stay.
    """
    n_groups, d = centers.shape
    if n_groups < 2:
        return centers
    about, inverse = np.eye(n_groups) - 1.0 / n_groups, np.linalg.inv(unit)
    units = units_of(precision)
    products = np.outer(units, units)
    doubt = np.linalg.pinv(precision / products, hermitian=True) / products
    doubt = doubt.reshape(n_groups, d, n_groups, d)
    by_chance = np.einsum("rs,sirj,ij->", about, doubt, inverse, optimize=True)
    away = about @ centers
    squares = np.einsum("ri,ij,rj->", away, inverse, away)
    size = (n_groups - 1.0) * d
    level = max(float(squares - by_chance), LEAST_LEVEL * float(by_chance)) / size
    whole = precision + np.kron(about, inverse / level) if level > 0 else precision
    return solved(whole, precision @ centers.ravel()).reshape(n_groups, d)


def spread_of_shifts(found: Shifts, belongs: Floats, level: float, unit: Floats) -> Floats:
    """Covariance (d, d) of shifts, a step of EM; sites count as far as they belong, (m,).

    Pulled to a level times a covariance `unit` (d, d), as by d + 2 sites, the least that has a
    mean.
    """
    least, told = len(unit) + 2.0, belongs @ found.doubt.reshape(len(belongs), -1)
    squares = (belongs[:, None] * found.means).T @ found.means + told.reshape(unit.shape)
    return np.asarray((squares + least * level * unit) / (belongs.sum() + least))


def level_of_shifts(
    precision: Floats, away: Floats, unit: Floats, spread: Floats | None = None
) -> float:
    """How many times `unit` (d, d) shifts scatter, at least 0: products of two groups of a site.

    Neither sampling errors nor what is a group's own is the same for two groups. The product of
    precision times `away` of groups r and s is on average trace(P_r unit P_s unit) times the level.
    Sites count by what they tell beside shifts of this `spread` (d, d), directions alike; without
    one the level is that of the median site.
    """
    d, turned = len(unit), unit @ precision
    if spread is not None:
        before = np.trace(np.linalg.solve(unit, spread)) / d
        less = 1.0 / (1.0 + before * np.einsum("mrii->mr", turned) / d)[..., None, None]
        precision, turned = precision * less, turned * less
    told, whole = (precision @ away[..., None])[..., 0], turned.sum(axis=1)
    added = told.sum(axis=1)
    products = np.einsum("mi,ij,mj->m", added, unit, added, optimize=True)
    products -= np.einsum("mri,ij,mrj->m", told, unit, told, optimize=True)
    pairs = np.einsum("mij,mji->m", whole, whole) - np.einsum("mrij,mrji->m", turned, turned)
    some = pairs > FEW * max(float(pairs.max(initial=0.0)), FEW)
    if some.sum() < 2:
        return 0.0
    products, pairs = products[some], pairs[some]
    level = np.median(products / pairs) if spread is None else products.sum() / pairs.sum()
    # Centres that follow the sites take as much as one of them; of a median all sites are alike,
    # of a sum one site may be nearly all of it.
    n_sites = float(len(pairs))
    if spread is not None:
        n_sites = max(float(np.square(pairs.sum()) / np.square(pairs).sum()), 2.0)
    return max(float(level * n_sites / (n_sites - 1.0)), 0.0)
