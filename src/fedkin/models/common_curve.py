"""A common curve and sites' own departures from it, fitted from sums over sites.

The model is that of `common_form.py`. Across sites the common curve is carried by its values at M
fixed points, with the collapsed variational bound of Titsias (2009), in which a site's own
departure takes the place of noise: with weights w of F = M + q features (q of the common mean)

    bound = log N(y; 0, Phi D D Phi' + S) - tr(inv(S) R) common / 2,      D = diag(common^(1/2), 1),

S block diagonal over sites. It never exceeds the likelihood, equals it when the points lie on all
rows, and approaches it as they get dense; its gradient is exact. With A = sum of Phi' inv(S) Phi,
b = sum of Phi' inv(S) y and G = 1 + D A D,

    -2 bound = y' inv(S) y - b' D inv(G) D b + log det G + log det S + n log 2 pi + common * missed,

and the weights given all rows are N(inv(G) D b, inv(G)).

What travels
- Once: the box of the features down, so that all sites use the same points (`inducing.grid`).
- A round of the search down: `full`, 5 + 3d numbers, one more along a line, two in a plane. Up,
  from every site: `common_sums.Sums`, that is one symmetric matrix less of F + 1 columns (the last
  is the target) as halves, twice as many numbers and the number of rows. With d = 1: 2,041 numbers
  for F = 21, 10,625 for F = 50. The server gets value and gradient from sums over sites, one round
  an evaluation. (Sending G back and asking for the gradient's numbers alone would take two rounds
  and a third of the bytes.)
- At the end down: inv(G) D b and inv(G), from which sites predict.
No row leaves; a site of few rows can nevertheless be read out of its own matrices, so least rows
or secure sums belong to the schema.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.common_form import CommonForm, parameters
from fedkin.models.common_sums import Sums, together
from fedkin.models.gaussian_process import LOG_2PI

Floats = NDArray[np.float64]

# Rounding of sums over rows, in units of what one product may be off by.
ROUNDED_OFF = 100.0


class Weights(NamedTuple):
    """Weights of the features given all rows: mean (F,) and covariance (F, F).

    Features are taken times D: the common curve's standard deviation, and 1 for the mean's.
    """

    mean: Floats
    covariance: Floats


class Solved(NamedTuple):
    """D (F,), A and b times D, inv(G), log det G and the weights' mean."""

    scale: Floats
    gram: Floats
    cross: Floats
    inverse: Floats
    log_det: float
    mean: Floats


def negative_bound(form: CommonForm, full: Floats, of_clients: Sums) -> tuple[float, Floats]:
    """Negative bound of the log likelihood of all rows and its gradient by `full`."""
    total = _with_noise_slope(form, together(of_clients))
    common = parameters(form, full).common
    solved = _solve(form, common, total.gram[0, 0])
    gradient = np.empty(len(full))
    gradient[0] = _by_common(form, solved) + common * total.missed[0, 0]
    change = np.einsum("pij,ij->p", total.gram[0, 1:], _sensitivity(solved))
    gradient[1:] = change + total.log_det[0, 1:] + common * total.missed[0, 1:]
    return _value(common, total, solved), 0.5 * gradient


def negative_bound_value(form: CommonForm, full: Floats, of_clients: Sums) -> float:
    """The bound alone, from sums with or without slopes."""
    total, common = together(of_clients), parameters(form, full).common
    return _value(common, total, _solve(form, common, total.gram[0, 0]))


def _value(common: float, total: Sums, solved: Solved) -> float:
    fit = total.gram[0, 0, -1, -1] - solved.cross @ solved.mean
    value = fit + solved.log_det + total.log_det[0, 0] + total.rows[0] * LOG_2PI
    return 0.5 * float(value + common * total.missed[0, 0])


def weights(form: CommonForm, full: Floats, of_clients: Sums) -> Weights:
    """The common curve given the rows of these clients."""
    solved = _solve(form, parameters(form, full).common, of_clients.gram[:, 0].sum(axis=0))
    return Weights(solved.mean, solved.inverse)


def updated(form: CommonForm, full: Floats, known: Weights, of_clients: Sums) -> Weights:
    """The common curve given the rows of further clients, too."""
    scale = _scale(form, parameters(form, full).common, len(known.mean))
    gram = of_clients.gram[:, 0].sum(axis=0)
    precision = np.linalg.inv(known.covariance)
    more = precision + scale[:, None] * gram[:-1, :-1] * scale
    covariance = np.linalg.inv(more)
    return Weights(covariance @ (precision @ known.mean + scale * gram[:-1, -1]), covariance)


def share_missed(form: CommonForm, full: Floats, of_clients: Sums) -> float:
    """What the points do not carry of the common curve: bound lost per row."""
    common = parameters(form, full).common
    rows = max(float(of_clients.rows.sum()), 1.0)
    return 0.5 * common * float(of_clients.missed[:, 0].sum()) / rows


def _with_noise_slope(form: CommonForm, total: Sums) -> Sums:
    """Slopes by noise, from what scaling all variances of a site does."""
    d = form.n_features
    variances = np.array([1 + d, 2 + d, 3 + d])
    gram = -total.gram[:, :1] - total.gram[:, variances].sum(axis=1, keepdims=True)
    missed = -total.missed[:, :1] - total.missed[:, variances].sum(axis=1, keepdims=True)
    log_det = total.rows[:, None] - total.log_det[:, variances].sum(axis=1, keepdims=True)
    return Sums(
        np.concatenate([total.gram, gram], axis=1),
        np.concatenate([total.log_det, log_det], axis=1),
        np.concatenate([total.missed, missed], axis=1),
        total.rows,
    )


def _scale(form: CommonForm, common: float, n_features: int) -> Floats:
    scale = np.ones(n_features)
    scale[: n_features - form.n_mean] = np.sqrt(common)
    return scale


def _solve(form: CommonForm, common: float, gram: Floats) -> Solved:
    scale = _scale(form, common, len(gram) - 1)
    scaled = scale[:, None] * gram[:-1, :-1] * scale
    cross = scale * gram[:-1, -1]
    G = np.eye(len(scale)) + 0.5 * (scaled + scaled.T)
    half = np.linalg.inv(_root(G))
    log_det = -2.0 * float(np.log(np.diagonal(half)).sum())
    inverse = half.T @ half
    return Solved(scale, scaled, cross, inverse, log_det, inverse @ cross)


def _root(G: Floats) -> Floats:
    """Lower Cholesky factor of the unit matrix and more.

    Where a search tries parameters at which columns are huge, rounding can outweigh the unit: then
    the diagonal gets what may have been rounded off, which makes the curve stiffer, never freer.
    """
    try:
        root = np.linalg.cholesky(G)
    except np.linalg.LinAlgError:
        rounded = len(G) * np.finfo(float).eps * float(np.diagonal(G).max())
        root = np.linalg.cholesky(G + ROUNDED_OFF * rounded * np.eye(len(G)))
    return np.asarray(root)


def _by_common(form: CommonForm, solved: Solved) -> float:
    """Twice the slope of the bound's negative by the log common variance, but for `missed`."""
    M = len(solved.scale) - form.n_mean
    spread = np.einsum("ij,ji->i", solved.inverse, solved.gram)[:M].sum()
    fitted = (solved.gram @ solved.mean)[:M] - solved.cross[:M]
    return float(spread + solved.mean[:M] @ fitted)


def _sensitivity(solved: Solved) -> Floats:
    """Derivative of twice the negative bound by the gram, (F + 1, F + 1)."""
    pull = np.append(-solved.scale * solved.mean, 1.0)
    inside = np.outer(pull, pull)
    inside[:-1, :-1] += solved.scale[:, None] * solved.inverse * solved.scale
    return inside
