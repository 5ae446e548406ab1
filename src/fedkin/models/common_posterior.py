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
from fedkin.models.common_form import CommonForm, curve, parameters
from fedkin.models.common_sums import inverted, site_covariance
from fedkin.models.inducing import Points, features

Floats = NDArray[np.float64]


def common_posterior(
    form: CommonForm, full: Floats, points: Points, known: Weights, X: Floats
) -> tuple[Floats, Floats]:
    """Mean and variance (n,) of the common curve at rows X."""
    phi = _scaled(form, full, points, X)
    return phi @ known.mean, _carried(phi, known) + _not_carried(form, full, phi)


def site_posterior(
    form: CommonForm,
    full: Floats,
    points: Points,
    known: Weights,
    own: tuple[Floats, Floats],
    X: Floats,
) -> tuple[Floats, Floats]:
    """Mean and variance (n,) of a site's curve, no noise, at rows X.

    `own` are the site's rows and targets, which must be among those that the weights
    know (`common_curve.updated`).
    """
    rows, y = own
    phi, prior = _scaled(form, full, points, X), _departure_variance(form, full, X)
    inverse, cross = _inverse(form, full, rows), _departure(form, full, X, rows)
    pull = cross @ inverse
    there = phi - pull @ _scaled(form, full, points, rows)
    left = prior - np.einsum("ni,ni->n", pull, cross)
    variance = _carried(there, known) + _not_carried(form, full, phi) + left
    return there @ known.mean + pull @ y, variance


def _scaled(form: CommonForm, full: Floats, points: Points, X: Floats) -> Floats:
    """Features times D."""
    phi = features(form, full, points, X)[0]
    phi[:, : len(points.places)] *= np.exp(0.5 * full[0])
    return phi


def _carried(phi: Floats, known: Weights) -> Floats:
    variance: Floats = np.einsum("ni,ij,nj->n", phi, known.covariance, phi)
    return variance


def _not_carried(form: CommonForm, full: Floats, phi: Floats) -> Floats:
    M = phi.shape[1] - form.n_mean
    return np.maximum(np.exp(full[0]) - (phi[:, :M] ** 2).sum(axis=1), 0.0)


def _departure(form: CommonForm, full: Floats, A: Floats, B: Floats) -> Floats:
    part = parameters(form, full)
    own = curve(form.own, part.own_lengths, A, B)[0]
    return part.level + part.slope * (A @ B.T) + part.own * own


def _departure_variance(form: CommonForm, full: Floats, X: Floats) -> Floats:
    part = parameters(form, full)
    variance: Floats = part.level + part.slope * (X**2).sum(axis=1) + part.own
    return variance


def _inverse(form: CommonForm, full: Floats, rows: Floats) -> Floats:
    part = parameters(form, full)
    own = part.own * curve(form.own, part.own_lengths, rows, rows)[0]
    kept = np.ones((1, len(rows)))
    return inverted(site_covariance(part, rows[None], own[None], kept), kept)[0][0]
