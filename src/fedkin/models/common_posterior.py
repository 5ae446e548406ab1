"""The common curve and a site's curve given the weights that all rows left.

A site knows its own rows; of the others it needs the weights alone. With phi the features of a new
row times D, and k, S of the site's own departure,

    site's curve = phi' w + k' inv(S) (y - Phi D w),        w ~ N(mean, covariance),

to which the part of the common curve that the points do not carry and what the site's rows leave of
its departure add their variances. A site without rows is a new one: the common curve with the
whole spread of the departures.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedkin.models.common_curve import Weights
from fedkin.models.common_form import SPLINE, CommonForm, curve, parameters
from fedkin.models.common_sums import inverted, site_covariance
from fedkin.models.gaussian_process import LOG_2PI
from fedkin.models.inducing import Points, feature_values, not_carried

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

# Precisions are kept above this share of those that a known common curve would leave.
LEAST_PRECISION = 1e-12


def common_posterior(
    form: CommonForm, full: Floats, points: Points, known: Weights, X: Floats
) -> tuple[Floats, Floats]:
    """Mean and variance (n,) of the common curve at rows X."""
    phi = _scaled(form, full, points, X)
    return phi @ known.mean, _carried(phi, known) + _not_carried(form, full, points, phi, X)


def site_posterior(
    form: CommonForm,
    full: Floats,
    points: Points,
    known: Weights,
    own: tuple[Floats, Floats],
    X: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Mean (n,) of a site's curve, no noise, at rows X, and its variance in two parts.

    The first is what is not known of the common curve, the second what the site's rows leave of its
    departure. `own` are the site's rows and targets, which must be among those that the weights
    know (`common_curve.updated`).
    """
    rows, y = own
    phi, prior = _scaled(form, full, points, X), _departure_variance(form, full, X)
    inverse, cross = _inverse(form, full, rows), _departure(form, full, X, rows)
    pull = cross @ inverse
    there = phi - pull @ _scaled(form, full, points, rows)
    left = prior - np.einsum("ni,ni->n", pull, cross)
    common = _carried(there, known) + _not_carried(form, full, points, phi, X)
    return there @ known.mean + pull @ y, common, left


def site_joint(
    form: CommonForm,
    full: Floats,
    points: Points,
    known: Weights,
    own: tuple[Floats, Floats],
    X: Floats,
) -> tuple[Floats, Floats, Floats]:
    """As `site_posterior`, with covariances (n, n) of the curve at all rows X."""
    rows, y = own
    phi, cross = _scaled(form, full, points, X), _departure(form, full, X, rows)
    pull = cross @ _inverse(form, full, rows)
    there = phi - pull @ _scaled(form, full, points, rows)
    rest = np.exp(full[0]) * not_carried(form, full, points, X, X)
    left = _departure(form, full, X, X) - pull @ cross.T
    return there @ known.mean + pull @ y, there @ known.covariance @ there.T + rest, left


def site_from_nearest(
    form: CommonForm,
    full: Floats,
    points: Points,
    known: Weights,
    near: tuple[Floats, Floats],
    X: Floats,
) -> tuple[Floats, Floats, Floats]:
    """As `site_posterior`, every row X (n, d) from rows (n, k, d) and targets (n, k) of its own."""
    return sites_posterior(form, full, points, known, near, X, np.arange(len(X)))


def sites_posterior(
    form: CommonForm,
    full: Floats,
    points: Points,
    known: Weights,
    own: tuple[Floats, Floats],
    X: Floats,
    owner: Indices,
) -> tuple[Floats, Floats, Floats]:
    """As `site_posterior`, at once of m sites with k rows each.

    `own` are the sites' rows (m, k, d) and targets (m, k); `owner` (n,) says whose each of the rows
    X (n, d) is.
    """
    rows, y = own
    d, part = X.shape[1], parameters(form, full)
    phi = _scaled(form, full, points, X)
    features = _scaled(form, full, points, rows.reshape(-1, d)).reshape(*y.shape, phi.shape[1])
    departs = part.own * curve(form.own, part.own_lengths, rows, rows)[0]
    inverse, _ = inverted(site_covariance(part, rows, departs, np.ones(y.shape)), np.ones(y.shape))
    swelling = part.swelling(rows)
    inverse = inverse / (swelling[:, :, None] * swelling[:, None, :])
    rows, swelling = rows[owner], swelling[owner]
    across = curve(form.own, part.own_lengths, X[:, None], rows)[0][:, 0]
    lean = np.einsum("nd,nkd->nk", part.leaning(X), part.leaning(rows))
    cross = (
        part.swelling(X)[:, None] * swelling * (part.level + part.slope * lean + part.own * across)
    )
    pull = np.einsum("nk,nkl->nl", cross, inverse[owner])
    there = phi - np.einsum("nk,nkf->nf", pull, features[owner])
    left = _departure_variance(form, full, X) - np.einsum("nk,nk->n", pull, cross)
    common = _carried(there, known) + _not_carried(form, full, points, phi, X)
    return there @ known.mean + np.einsum("nk,nk->n", pull, y[owner]), common, left


def left_out(
    form: CommonForm, full: Floats, points: Points, known: Weights, own: tuple[Floats, Floats]
) -> tuple[Floats, Floats, float]:
    """The site's targets given all other rows of everybody, and given those of other sites.

    Mean and variance (n,) of each: with P the site's block of the inverse covariance of all targets
    and a = inv(S) (y - Phi D w), these are y - a / diag(P) and 1 / diag(P); the weights know the
    site's rows. Last the log density of all of them together, as for a new site.
    """
    rows, y = own
    phi, inverse = _scaled(form, full, points, rows), _inverse(form, full, rows)
    through = inverse @ phi
    surprise = inverse @ (y - phi @ known.mean)
    block = inverse - through @ known.covariance @ through.T
    precision = np.maximum(np.diagonal(block), LEAST_PRECISION * np.diagonal(inverse))
    variance = 1.0 / precision + _not_carried(form, full, points, phi, rows)
    root = np.linalg.cholesky(0.5 * (block + block.T))
    half = np.linalg.solve(root, surprise)
    log_det = 2.0 * float(np.log(np.diagonal(root)).sum())
    together = 0.5 * (log_det - float(half @ half) - len(y) * LOG_2PI)
    return y - surprise / precision, variance, together


def _scaled(form: CommonForm, full: Floats, points: Points, X: Floats) -> Floats:
    """Features times D."""
    phi = feature_values(form, full, points, X)
    phi[:, : len(points.places)] *= np.exp(0.5 * full[0])
    return phi


def _carried(phi: Floats, known: Weights) -> Floats:
    variance: Floats = np.einsum("ni,ij,nj->n", phi, known.covariance, phi)
    return variance


def _not_carried(form: CommonForm, full: Floats, points: Points, phi: Floats, X: Floats) -> Floats:
    """Variance (n,) of what the points do not carry."""
    if form.common == SPLINE:
        return np.exp(full[0]) * np.diagonal(not_carried(form, full, points, X, X))
    M = len(points.places)
    return np.maximum(np.exp(full[0]) - (phi[:, :M] ** 2).sum(axis=1), 0.0)


def _departure(form: CommonForm, full: Floats, A: Floats, B: Floats) -> Floats:
    part = parameters(form, full)
    own = curve(form.own, part.own_lengths, A, B)[0]
    lean = part.leaning(A) @ part.leaning(B).T
    swelling = np.outer(part.swelling(A), part.swelling(B))
    return swelling * (part.level + part.slope * lean + part.own * own)


def _departure_variance(form: CommonForm, full: Floats, X: Floats) -> Floats:
    part = parameters(form, full)
    lean = (part.leaning(X) ** 2).sum(axis=1)
    variance: Floats = part.swelling(X) ** 2 * (part.level + part.slope * lean + part.own)
    return variance


def _inverse(form: CommonForm, full: Floats, rows: Floats) -> Floats:
    part = parameters(form, full)
    own = part.own * curve(form.own, part.own_lengths, rows, rows)[0]
    kept, swelling = np.ones((1, len(rows))), part.swelling(rows)
    inverse = inverted(site_covariance(part, rows[None], own[None], kept), kept)[0][0]
    return inverse / np.outer(swelling, swelling)
