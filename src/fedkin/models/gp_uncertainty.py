"""What a site's rows leave open of its own hyper-parameters.

Hyper-parameters fitted to few rows are over-confident: the best ones are one guess among many
that explain the rows about as well. Here they are replaced by a small cloud around the mode of
their posterior, spread by its curvature and weighted by the posterior itself (importance
sampling from Laplace's approximation, with a sequence of low discrepancy instead of chance).
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri, softmax

from fedkin.arrays import Floats
from fedkin.models.gaussian_process import evaluate
from fedkin.models.gp_priors import Priors, penalty
from fedkin.models.gp_rows import Prepared
from fedkin.models.kernels import Form

# Points of a cloud; 64 gave the same scores on the multi-fidelity functions.
CLOUD = 32
# Clouds are wider than the curvature at the mode says: posteriors of variances have long tails.
WIDER = 1.2
# Step of the finite differences of the gradient, in log-parameters.
DIFFERENCE_STEP = 1e-3
# With weak priors alone no logarithm is left more open than two either way, a factor of seven.
LEAST_CURVATURE = 0.25
# Points that count for less than this are left out.
LEAST_WEIGHT = 1e-4


def cloud(
    data: Prepared,
    form: Form,
    mode: Floats,
    centre: Floats,
    spread: float,
    priors: Priors | None = None,
) -> tuple[Floats, Floats]:
    """Log-parameters (S, p) and weights (S,) of one client; a priori normal around `centre`.

    An infinite `spread` leaves the weak `priors` alone.
    """

    def slope(theta: Floats) -> Floats:
        gradient = evaluate(data, form, theta).gradient[0] + (theta - centre) / spread**2
        return gradient if priors is None else gradient + penalty(priors, theta)[1]

    def log_posterior(theta: Floats) -> float:
        away = (theta - centre) / spread
        value = -float(evaluate(data, form, theta).value[0]) - 0.5 * float(away @ away)
        return value if priors is None else value - float(penalty(priors, theta)[0])

    units = DIFFERENCE_STEP * np.eye(len(mode))
    changes = np.array([slope(mode + unit) - slope(mode - unit) for unit in units])
    curvature = changes / (2 * DIFFERENCE_STEP)
    values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T))
    # The rows cannot know less than the prior; at a bound the curvature may say otherwise.
    least = max(spread**-2, 0.0 if priors is None else LEAST_CURVATURE)
    deviations = WIDER / np.sqrt(np.maximum(values, least))
    draws = spaced_normals(CLOUD, len(mode))
    points = np.clip(mode + (draws * deviations) @ vectors.T, form.lower, form.upper)
    logs = np.array([log_posterior(theta) for theta in points]) + 0.5 * (draws**2).sum(axis=1)
    weights = softmax(logs)
    kept = weights >= LEAST_WEIGHT
    return points[kept], weights[kept] / weights[kept].sum()


def spaced_normals(n: int, d: int) -> Floats:
    """n points of d standard normals that fill space evenly (additive recurrence, Roberts 2018).

    SciPy's sequences are others, and with them every average over a cloud would be another.
    """
    ratio = 2.0
    for _ in range(60):  # the positive root of ratio^(d + 1) = ratio + 1
        ratio = (1.0 + ratio) ** (1.0 / (d + 1))
    steps = ratio ** -np.arange(1.0, d + 1)
    uniform = (0.5 + np.outer(np.arange(1, n + 1), steps)) % 1.0
    drawn: Floats = ndtri(np.clip(uniform, 1e-6, 1 - 1e-6))
    return drawn
