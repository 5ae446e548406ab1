"""The common curve and a site's curve given the weights that all rows left.

A site knows its own rows; of the others it needs the weights alone. With phi the features of a new
row times D, and k, S of the site's own departure,

    site's curve = phi' w + k' inv(S) (y - Phi D w),        w ~ N(mean, covariance),

to which the part of the common curve that the points do not carry and what the site's rows leave of
its departure add their variances. A site without rows is a new one: the common curve with the
whole spread of the departures.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dtrtri

from fedkin.models.common_curve import Weights
from fedkin.models.common_form import SPLINE, CommonForm, curve, parameters
from fedkin.models.common_sums import site_covariance
from fedkin.models.gaussian_process import LOG_2PI, cholesky
from fedkin.models.inducing import Points, feature_values, not_carried
from fedkin.models.own_scale import LEAST_PRECISION, OwnRows

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


class CurveParts(NamedTuple):
    """A site's curve, no noise, at n rows: its mean (n,), and its variances in two parts.

    `common` is what is not known of the common curve, `left` what the site's rows leave of its
    departure; `there` (n, F) are the features that the weights multiply in it.
    """

    mean: Floats
    common: Floats
    left: Floats
    there: Floats


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
) -> CurveParts:
    """A site's curve at rows X (n, d).

    `own` are the site's rows and targets, which must be among those that the weights know
    (`common_curve.updated`).
    """
    rows, y = own
    phi, prior = _scaled(form, full, points, X), _departure_variance(form, full, X)
    whitening = _whitening(form, full, rows[None])[0]
    explained = _departure(form, full, X, rows) @ whitening.T
    pull = explained @ whitening
    there = phi - pull @ _scaled(form, full, points, rows)
    left = prior - np.square(explained).sum(axis=1)
    common = _carried(there, known) + _not_carried(form, full, points, phi, X)
    return CurveParts(there @ known.mean + pull @ y, common, left, there)


def site_joint(
    form: CommonForm,
    full: Floats,
    points: Points,
    known: Weights,
    own: tuple[Floats, Floats],
    X: Floats,
) -> CurveParts:
    """As `site_posterior`, with covariances (n, n) of the curve at all rows X."""
    rows, y = own
    phi, whitening = _scaled(form, full, points, X), _whitening(form, full, rows[None])[0]
    explained = _departure(form, full, X, rows) @ whitening.T
    pull = explained @ whitening
    there = phi - pull @ _scaled(form, full, points, rows)
    rest = np.exp(full[0]) * not_carried(form, full, points, X, X)
    left = _departure(form, full, X, X) - explained @ explained.T
    common = there @ known.covariance @ there.T + rest
    return CurveParts(there @ known.mean + pull @ y, common, left, there)


def site_from_nearest(
    form: CommonForm,
    full: Floats,
    points: Points,
    known: Weights,
    near: tuple[Floats, Floats],
    X: Floats,
) -> CurveParts:
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
) -> CurveParts:
    """As `site_posterior`, at once of m sites with k rows each.

    `own` are the sites' rows (m, k, d) and targets (m, k); `owner` (n,) says whose each of the rows
    X (n, d) is.
    """
    rows, y = own
    part = parameters(form, full)
    phi, features = _scaled(form, full, points, X), _of_sites(form, full, points, rows)
    whitening = _whitening(form, full, rows)[owner]
    rows = rows[owner]
    across = curve(form.own, part.own_lengths, part.bent(X)[:, None], part.bent(rows))[0][:, 0]
    lean = np.einsum("nd,nkd->nk", part.leaning(X), part.leaning(rows))
    swelling = part.swelling(X)[:, None] * part.swelling(rows)
    cross = swelling * (part.level + part.slope * lean + part.own * across)
    explained = np.einsum("nlk,nk->nl", whitening, cross)
    pull = np.einsum("nl,nlk->nk", explained, whitening)
    there = phi - np.einsum("nk,nkf->nf", pull, features[owner])
    left = _departure_variance(form, full, X) - np.square(explained).sum(axis=1)
    common = _carried(there, known) + _not_carried(form, full, points, phi, X)
    mean = there @ known.mean + np.einsum("nk,nk->n", pull, y[owner])
    return CurveParts(mean, common, left, there)


def own_rows(
    form: CommonForm, full: Floats, points: Points, known: Weights, own: tuple[Floats, Floats]
) -> OwnRows:
    """What targets (m, k) of rows (m, k, d) of m sites say of the sites' scales."""
    rows, y = own
    phi, whitening = _of_sites(form, full, points, rows), _whitening(form, full, rows)
    seen = whitening @ phi
    inside = seen @ known.covariance @ seen.swapaxes(1, 2)
    share, turn = np.linalg.eigh(0.5 * (inside + inside.swapaxes(1, 2)))
    off = np.einsum("mkl,ml->mk", whitening, y - phi @ known.mean)
    flat, d = phi.reshape(-1, phi.shape[-1]), rows.shape[-1]
    rest = _not_carried(form, full, points, flat, rows.reshape(-1, d)).reshape(y.shape)
    return OwnRows(
        np.clip(share, 0.0, 1.0),
        np.einsum("mkl,mk->ml", turn, off),
        turn.swapaxes(1, 2) @ whitening,
        known.covariance @ seen.swapaxes(1, 2) @ turn,
        rest,
    )


def left_out(
    form: CommonForm, full: Floats, points: Points, known: Weights, own: tuple[Floats, Floats]
) -> tuple[Floats, Floats, float]:
    """Mean and variance (n,) of one site's targets, each left out, and the log density of all of
    them together given the other sites' rows, as for a new site; the weights know all of them.

    With P the site's block of the inverse covariance of all targets and a = inv(S) (y - Phi D w),
    mean and variance are y - a / diag(P) and 1 / diag(P).
    """
    rows, y = own
    phi, whitening = _scaled(form, full, points, rows), _whitening(form, full, rows[None])[0]
    inverse = whitening.T @ whitening
    through, surprise = inverse @ phi, inverse @ (y - phi @ known.mean)
    block = inverse - through @ known.covariance @ through.T
    precision = np.maximum(np.diagonal(block), LEAST_PRECISION * np.diagonal(inverse))
    variance = 1.0 / precision + _not_carried(form, full, points, phi, rows)
    root = np.linalg.cholesky(0.5 * (block + block.T))
    half = np.linalg.solve(root, surprise)
    log_det = 2.0 * float(np.log(np.diagonal(root)).sum())
    whole = 0.5 * (log_det - float(half @ half) - len(y) * LOG_2PI)
    return y - surprise / precision, variance, whole


def _scaled(form: CommonForm, full: Floats, points: Points, X: Floats) -> Floats:
    """Features times D."""
    phi = feature_values(form, full, points, X)
    phi[:, : len(points.places)] *= np.exp(0.5 * full[0])
    return phi


def _of_sites(form: CommonForm, full: Floats, points: Points, rows: Floats) -> Floats:
    """The same (m, k, F) of rows (m, k, d) of several sites."""
    phi = _scaled(form, full, points, rows.reshape(-1, rows.shape[-1]))
    return phi.reshape(*rows.shape[:-1], phi.shape[1])


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
    own = curve(form.own, part.own_lengths, part.bent(A), part.bent(B))[0]
    lean = part.leaning(A) @ part.leaning(B).T
    swelling = np.outer(part.swelling(A), part.swelling(B))
    return swelling * (part.level + part.slope * lean + part.own * own)


def _departure_variance(form: CommonForm, full: Floats, X: Floats) -> Floats:
    part = parameters(form, full)
    lean = (part.leaning(X) ** 2).sum(axis=1)
    variance: Floats = part.swelling(X) ** 2 * (part.level + part.slope * lean + part.own)
    return variance


def _whitening(form: CommonForm, full: Floats, rows: Floats) -> Floats:
    """W (m, k, k) with W'W the inverse of S for rows (m, k, d) of m sites.

    Where rows leave next to nothing of a large departure, products with an inverse that is written
    out lose every digit of it; those with W keep half of them.
    """
    part = parameters(form, full)
    bent, kept = part.bent(rows), np.ones(rows.shape[:2])
    own = part.own * curve(form.own, part.own_lengths, bent, bent)[0]
    whitening = np.zeros_like(own)
    for k, S in enumerate(site_covariance(part, rows, own, kept)):
        if S.size:
            whitening[k] = dtrtri(cholesky(S)[0], lower=1)[0]
    return whitening / part.swelling(rows)[:, None, :]
