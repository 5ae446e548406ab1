"""How sure components are that sites share by degrees: the centre's errors, and every site's own.

Site k has components theta_k ~ N(center, V), and its rows tell of them with information I_k. At the
end of a fit each theta_k is where the slope of its likelihood equals the pull of the centre, so that

    M_k = (1 + V I_k)^-1,   W_k = I_k M_k = (V + I_k^-1)^-1

are how theta_k follows the centre, and what site k tells of it. The centre's covariance is a sandwich
over sites of their slopes with the W_k (`models.sandwich`). A site's own components have the
posterior's covariance M_k V, what is not known of the centre, M_k cov M_k', and what is not known of
the spread V between sites (Morris 1983). Without a spread a site's components are the centre.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.arrays import Bools, Floats
from fedkin.models.estimates import root_of
from fedkin.models.sandwich import Terms, group_errors

# More degrees of freedom than this make no difference.
MOST_DEGREES = 1e9


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
    """Of the sites: slopes (m, R, p), informations (m, R p, R p), whether they count (m,), how far
    each of their components belongs to the others' (m, R), and how far it is from the centre,
    (m, R, p)."""

    slopes: Floats
    informations: Floats
    used: Bools
    belongs: Floats
    away: Floats


def component_errors(told: Told, between: Floats, metric: Floats) -> ComponentErrors:
    """From what sites told; between them components vary by `between` (R,) times `metric` (p, p)."""
    m, n_components, p = told.slopes.shape
    size = n_components * p
    spread = np.zeros((size, size))
    for r in range(n_components):
        own = slice(r * p, (r + 1) * p)
        spread[own, own] = between[r] * metric
    follows = np.linalg.inv(np.eye(size) + spread @ told.informations)
    tells = told.informations @ follows
    tells = 0.5 * (tells + tells.swapaxes(1, 2))
    share = np.repeat(np.sqrt(told.belongs), p, axis=1)
    terms = Terms(told.slopes.reshape(m, size), share[:, :, None] * tells * share[:, None, :])
    labels = np.where(told.used, 0, -1)
    found = group_errors(terms, labels, 1, np.full(m, np.inf))
    covariance, degrees = found.covariance[0], found.degrees
    posterior = follows @ spread
    of_center = follows @ np.nan_to_num(covariance) @ follows.swapaxes(1, 2)
    of_spread = _unsure_spread(told, terms.informations, posterior, between, metric)
    total = posterior + of_center + of_spread
    diagonal = np.einsum("mii->mi", total)
    part = np.einsum("mii->mi", of_center)
    with np.errstate(divide="ignore"):
        site_degrees = degrees[0] * (diagonal / np.maximum(part, np.finfo(float).tiny)) ** 2
    blocks = np.stack(
        [total[:, r * p : (r + 1) * p, r * p : (r + 1) * p] for r in range(n_components)], axis=1
    )
    unknown = np.where(told.used[:, None, None], 0.0, np.nan)
    return ComponentErrors(
        root_of(np.diag(covariance)).reshape(n_components, p),
        degrees,
        found.by_sites,
        root_of(diagonal).reshape(m, n_components, p) + unknown,
        np.minimum(site_degrees, MOST_DEGREES).reshape(m, n_components, p),
        blocks + unknown[..., None],
    )


def _unsure_spread(
    told: Told, tells: Floats, posterior: Floats, between: Floats, metric: Floats
) -> Floats:
    """What not knowing the spread between sites adds to the sites' covariances, (m, R p, R p).

    Its variance is one over its information, half the sum of squared traces of W; components move
    with it by posterior away / between^2, in units of the metric.
    """
    m, n_components, p = told.slopes.shape
    out = np.zeros_like(posterior)
    inverse = np.linalg.inv(metric)
    for r in range(n_components):
        own = slice(r * p, (r + 1) * p)
        if not between[r] > 0:
            continue
        each = tells[told.used, own, own] @ metric
        known = 0.5 * np.einsum("mij,mji->", each, each)
        if not known > 0:
            continue
        pull = told.away[:, r] @ inverse / between[r] ** 2
        moved = np.einsum("mij,mj->mi", posterior[:, own, own], pull)
        out[:, own, own] = moved[:, :, None] * moved[:, None, :] / known
    return out
