"""How sure components are that sites share by degrees: the centre's errors, and every site's own.

Site k has components theta_k ~ N(center, V), and its rows tell of them with information I_k. At
the end of a fit each theta_k is where the slope of its likelihood equals the pull of the centre
with the spread V that was used, so that

    M_k = (1 + V I_k)^-1,   W_k = I_k M_k = (V + I_k^-1)^-1

are how theta_k follows the centre, and what site k tells of it. The centre's covariance is a
sandwich over sites of their slopes with the W_k (`models.sandwich`).

A site's own components are off by K I^-1 K' + M U M', K = 1 - M (rows, and the pull to the
centre), by what is not known of the centre, M cov M', and of the spread (Morris 1983). U is the
spread between sites once more, by restricted maximum likelihood: the fit's own V believes that it
knows which row is of which group, and is too small where it does not. Likewise noise that was
fitted is too small by the degrees of freedom that the components took. Odd sites are not pulled: as
far as a component does not belong to the others', its M is zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.arrays import Bools, Floats
from fedkin.models.estimates import root_of
from fedkin.models.sandwich import Terms, group_errors, known_inverse

# More degrees of freedom than this make no difference.
MOST_DEGREES = 1e9
# Steps of Fisher's scoring to the spread between sites.
SPREAD_STEPS = 30
# What belongs more than this is pulled like any other.
BELONGS = 0.999


class ComponentErrors(NamedTuple):
    """Standard errors of the centres (R, p) and of sites' components (m, R, p).

    With degrees of freedom (1,) and (m, R, p), whether sites told the centres' (1,), and the
    covariances of sites' components (m, R, p, p).
    """

    center: Floats
    center_degrees: Floats
    by_sites: Bools
    sites: Floats
    site_degrees: Floats
    covariance: Floats


class Told(NamedTuple):
    """Of the sites: slopes (m, P) and informations (m, P, P) of P = R p numbers, how far each of
    these belongs to the others' and is from the centre (m, P), and who counts (m,)."""

    slopes: Floats
    informations: Floats
    belongs: Floats
    away: Floats
    used: Bools


def component_errors(
    told: Told, between: Floats, metric: Floats, n_numbers: float
) -> ComponentErrors:
    """From what sites told; between them components vary by `between` (R,) times `metric` (p, p).

    `n_numbers` of the rows told a noise that was fitted; infinite where it is known.
    """
    m, n_components, p = len(told.slopes), len(between), len(metric)
    shape = (m, n_components, p)
    used = told.used
    told = told._replace(belongs=told.belongs * used[:, None])
    told = _with_honest_noise(told, _spread(between, metric), n_numbers)
    spread = _spread(between, metric)
    follows, tells = _follows_and_tells(told, spread)
    rows = np.full(m, MOST_DEGREES)
    found = group_errors(Terms(told.slopes, tells), np.where(used, 0, -1), 1, rows)
    covariance, degrees = np.nan_to_num(found.covariance[0]), found.degrees
    honest, known = honest_between(told, between, metric)
    own = _of_rows(told, follows, spread)
    follows = told.belongs[:, :, None] * follows
    turned = follows.swapaxes(1, 2)
    own += follows @ _spread(honest, metric) @ turned
    of_center = follows @ covariance @ turned
    total = own + of_center + _of_spread(told, follows, honest, known, metric)
    diagonal, part = (np.einsum("mii->mi", each) for each in (total, of_center))
    ratio = diagonal / np.maximum(part, np.finfo(float).tiny)
    site_degrees = np.minimum(degrees[0] * np.minimum(ratio, MOST_DEGREES) ** 2, MOST_DEGREES)
    blocks = np.einsum("mrirj->mrij", total.reshape(m, n_components, p, n_components, p))
    unknown = np.where(used[:, None, None], 0.0, np.nan)
    return ComponentErrors(
        root_of(np.diag(found.covariance[0])).reshape(n_components, p),
        degrees,
        found.by_sites,
        root_of(diagonal).reshape(shape) + unknown,
        site_degrees.reshape(shape),
        blocks + unknown[..., None],
    )


def _of_rows(told: Told, follows: Floats, spread: Floats) -> Floats:
    """K I^-1 K' of every site, (m, P, P): V I V turned by M where all components belong."""
    pulled = follows @ spread
    own: Floats = pulled @ told.informations @ pulled.swapaxes(1, 2)
    for k in np.flatnonzero(told.used & (told.belongs < BELONGS).any(axis=1)):
        alone = np.eye(len(spread)) - told.belongs[k][:, None] * follows[k]
        own[k] = alone @ known_inverse(told.informations[k]) @ alone.T
    return own


def _spread(between: Floats, metric: Floats) -> Floats:
    """V of all components, (P, P)."""
    return np.asarray(np.kron(np.diag(between), metric))


def _follows_and_tells(told: Told, spread: Floats) -> tuple[Floats, Floats]:
    """M and W of every site, (m, P, P); a site tells of components that belong to the others'."""
    follows = inverses(np.eye(len(spread)) + spread @ told.informations)
    tells = told.informations @ follows
    root = np.sqrt(told.belongs)
    seen: Floats = 0.5 * root[:, :, None] * (tells + tells.swapaxes(1, 2)) * root[:, None, :]
    return follows, seen


def inverses(matrices: Floats) -> Floats:
    """Of many matrices (m, P, P); of one that a site has made singular, what there is of it."""
    try:
        return np.asarray(np.linalg.inv(matrices))
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.pinv(matrices))


def _with_honest_noise(told: Told, spread: Floats, n_numbers: float) -> Told:
    """Slopes and informations with the noise that is left when fitting has taken its share."""
    if not np.isfinite(n_numbers):
        return told
    follows, tells = _follows_and_tells(told, spread)
    used = told.used
    own = np.einsum("mii->", (np.eye(len(spread)) - follows)[used])
    shared = np.linalg.pinv(tells[used].sum(axis=0), hermitian=True)
    own += np.einsum("mij,jk,mki->", follows[used], shared, tells[used], optimize=True)
    left = max(1.0 - own / n_numbers, 0.1)
    return told._replace(slopes=left * told.slopes, informations=left * told.informations)


def honest_between(told: Told, between: Floats, metric: Floats) -> tuple[Floats, Floats]:
    """Variances between sites (R,) by restricted maximum likelihood, and their information (R,).

    What sites would have found alone, to second order: I (theta - center) + slope.
    """
    n_components, p = len(between), len(metric)
    alone = np.einsum("mij,mj->mi", told.informations, told.away) + told.slopes
    alone = alone * told.belongs
    current, known = np.array(between, dtype=float), np.zeros(n_components)
    for _ in range(SPREAD_STEPS):
        spread = _spread(current, metric)
        follows, tells = _follows_and_tells(told, spread)
        seen = np.einsum("mji,mj->mi", follows, alone).reshape(-1, n_components, p)
        shared = np.linalg.pinv(tells.sum(axis=0), hermitian=True)
        taken = (tells @ shared @ tells).sum(axis=0)
        step = np.zeros(n_components)
        for r in range(n_components):
            own = slice(r * p, (r + 1) * p)
            each = tells[:, own, own] @ metric
            known[r] = 0.5 * np.einsum("mij,mji->", each, each)
            expected = np.einsum("mii->", each) - np.trace(taken[own, own] @ metric)
            found = np.einsum("mi,ij,mj->", seen[:, r], metric, seen[:, r])
            step[r] = 0.5 * (found - expected) / known[r] if known[r] > 0 else 0.0
        moved = np.maximum(current + step, 0.0)
        if np.allclose(moved, current, rtol=1e-8, atol=1e-14):
            break
        current = moved
    return current, known


def _of_spread(
    told: Told, follows: Floats, between: Floats, known: Floats, metric: Floats
) -> Floats:
    """What not knowing the spread between sites adds to the sites' covariances, (m, P, P).

    Components move with it by M (away) / between.
    """
    p, out = len(metric), np.zeros_like(follows)
    for r in np.flatnonzero((between > 0) & (known > 0)):
        own = slice(r * p, (r + 1) * p)
        moved = np.einsum("mij,mj->mi", follows[:, own, own], told.away[:, own]) / between[r]
        out[:, own, own] = moved[:, :, None] * moved[:, None, :] / known[r]
    return out
