"""How sure shared hyper-parameters are: the inverse of the likelihood's curvature, on log scale.

Everything comes from the sites' values and gradients under priors: those of the fit and, side by
side, their neighbours, a step up and a step down in every log-parameter. With several priors a
site's score in prior j is its share of that prior times its slope there, and shares move as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.models.gaussian_process import prior_responsibilities
from fedkin.models.gp_priors import Priors, penalty
from fedkin.models.gp_uncertainty import DIFFERENCE_STEP
from fedkin.models.sandwich import known_inverse


class Neighbours(NamedTuple):
    """Priors (T, p): those of the fit (P, p), then neighbours; `open` are their (prior, parameter)
    pairs, (f, 2), a step up each before a step down each."""

    theta: Floats
    open: Indices


def neighbours_of(theta: Floats, lower: Floats, upper: Floats) -> Neighbours:
    """Of all log-parameters that are not at a bound."""
    inside = (theta > lower + DIFFERENCE_STEP) & (theta < upper - DIFFERENCE_STEP)
    free = np.argwhere(inside)
    steps = DIFFERENCE_STEP * np.eye(theta.shape[1])[free[:, 1]]
    at = theta[free[:, 0]]
    return Neighbours(np.concatenate([theta, at + steps, at - steps]), free)


def prior_errors(
    told: tuple[Floats, Floats], near: Neighbours, weights: Floats, priors: Priors | None
) -> Floats:
    """Standard errors (P, p) from sites' values (m, T) and gradients (m, T, p); NaN at a bound.

    `weights` (P,) of the priors are fitted, too; `priors` are those of the parameters, if any.
    """
    value, gradient = told
    n_priors, n_open = len(weights), len(near.open)
    names = [tuple(pair) for pair in near.open]

    def slopes(values: Floats, gradients: Floats, theta: Floats, logits: Floats) -> Floats:
        """Slope of the log likelihood of all sites in what is open and in the logits."""
        logs = logits - np.logaddexp.reduce(logits)
        _, share = prior_responsibilities(values, logs)
        by_theta = -np.einsum("kj,kjp->jp", share, gradients)
        if priors is not None:
            by_theta = by_theta - penalty(priors, theta)[1]
        by_logit = share.sum(axis=0) - len(share) * np.exp(logs)
        return np.append([by_theta[pair] for pair in names], by_logit[1:])

    logits = np.log(weights)
    bends = []
    for which, (prior, _) in enumerate(near.open):
        ends = []
        for place in (n_priors + which, n_priors + n_open + which):
            seen = np.arange(n_priors)
            seen[prior] = place
            ends.append(slopes(value[:, seen], gradient[:, seen], near.theta[seen], logits))
        bends.append((ends[1] - ends[0]) / (2 * DIFFERENCE_STEP))
    for prior in range(1, n_priors):
        step = DIFFERENCE_STEP * np.eye(n_priors)[prior]
        base = (value[:, :n_priors], gradient[:, :n_priors], near.theta[:n_priors])
        apart = slopes(*base, logits - step) - slopes(*base, logits + step)
        bends.append(apart / (2 * DIFFERENCE_STEP))
    errors = np.full((n_priors, near.theta.shape[1]), np.nan)
    if n_open:
        bend = np.array(bends)
        inverse = known_inverse(0.5 * (bend + bend.T))
        variance = np.diag(inverse)[:n_open]
        with np.errstate(invalid="ignore"):
            errors[tuple(near.open.T)] = np.sqrt(np.where(variance > 0, variance, np.nan))
    return errors
