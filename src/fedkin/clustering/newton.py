"""Minimise the smoothed convex clustering objective by preconditioned Newton steps.

    F(v) = 1/2 sum_p s_p |abar_p - v_p|^2 + penalty * P(v)

P is a coupling (all pairs, or the edges of a graph). Its quadratic majoriser at v is the weighted
graph Laplacian L, so the matrix M = diag(s) + penalty L bounds the Hessian from above and equals it
but for one direction in d per pair. M therefore serves twice: as the preconditioner of the Newton
system, and, when a Newton step overshoots a kink, as a step v - M^-1 gradient that never goes up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedkin.clustering.points import Points

Array = NDArray[np.float64]

MAX_STEPS = 200
MAX_INNER_STEPS = 200
SUFFICIENT_DECREASE = 1e-4  # Armijo's share of the predicted decrease
LOOSEST_INNER_RESIDUAL = 0.1  # relative residual of the Newton system far from the solution


class Coupling(Protocol):
    """The smoothed fusion penalty at one set of positions."""

    value: float
    exact_value: float
    slack: float
    pull: Array

    def curvature(self, vectors: Array) -> Array:
        """Hessian times vectors (n, d)."""

    def solver(self, mass: Array, penalty: float) -> Callable[[Array], Array]:
        """x -> M^-1 x for M = diag(mass) + penalty * Laplacian, or a cheap stand-in above M."""


@dataclass(frozen=True)
class SmoothSolution:
    """A minimiser of the smoothed objective with what certifies it."""

    positions: Points  # (n, d)
    coupling: Coupling
    residual: Array  # (n, d), gradient / size
    n_iter: int
    fit: float  # 1/2 sum_p s_p |abar_p - v_p|^2
    objective: float  # the unsmoothed objective at these positions
    gap: float  # unsmoothed objective less a feasible dual value


def minimise(
    couple: Callable[[Points], Coupling],
    targets: Points,
    sizes: Array,
    penalty: float,
    start: Points,
    tolerance: float,
    offset: float = 0.0,
) -> SmoothSolution:
    """Minimise F from `start` (n, d) until the gradient's part of the gap is below tolerance.

    The pulls z_pq = (v_p - v_q) / max(t_pq, smoothing) have length at most one, so they are dual
    feasible, and the gap to the unsmoothed optimum is

        1/2 sum_p |gradient_p|^2 / s_p  +  penalty * sum_pq s_p s_q t_pq (1 - |z_pq|).

    `tolerance` is relative to the unsmoothed objective plus `offset`.
    """
    mass = sizes[:, None]
    positions, coupling = start, couple(start)
    for n_iter in range(MAX_STEPS + 1):
        fit = 0.5 * float(np.sum(mass * (positions - targets) ** 2))
        gradient = mass * (positions - targets) + penalty * coupling.pull
        from_gradient = 0.5 * float(np.sum(gradient**2 / mass))
        exact = fit + penalty * coupling.exact_value
        if from_gradient <= tolerance * (exact + offset) or n_iter == MAX_STEPS:
            break
        value = fit + penalty * coupling.value
        solve = coupling.solver(sizes, penalty)
        gradient_share = np.sqrt(from_gradient / (exact + offset))
        step = _newton_step(coupling, solve, mass, penalty, gradient, gradient_share)
        trial = positions + step
        at_trial = couple(trial)
        trial_value = 0.5 * float(np.sum(mass * (trial - targets) ** 2)) + penalty * at_trial.value
        slope = float(np.vdot(gradient, step))
        rounding = 1e-14 * abs(value)
        if trial_value > value + SUFFICIENT_DECREASE * slope + rounding:
            trial = positions - solve(gradient)
            at_trial = couple(trial)
        positions, coupling = trial, at_trial
    return SmoothSolution(
        positions=positions,
        coupling=coupling,
        residual=gradient / mass,
        n_iter=n_iter,
        fit=fit,
        objective=exact,
        gap=from_gradient + penalty * coupling.slack,
    )


def _newton_step(
    coupling: Coupling,
    solve: Callable[[Array], Array],
    mass: Array,
    penalty: float,
    gradient: Array,
    gradient_share: float,
) -> Array:
    """Conjugate gradients on Hessian * step = -gradient, preconditioned by `solve`."""
    step = np.zeros_like(gradient)
    residual = -gradient
    direction = preconditioned = solve(residual)
    energy = first = float(np.vdot(residual, preconditioned))
    # A residual falling like the gradient itself makes the outer steps converge quadratically.
    enough = min(LOOSEST_INNER_RESIDUAL, gradient_share) ** 2 * first
    for _ in range(MAX_INNER_STEPS):
        bent = mass * direction + penalty * coupling.curvature(direction)
        length = energy / float(np.vdot(direction, bent))
        step += length * direction
        residual = residual - length * bent
        preconditioned = solve(residual)
        previous, energy = energy, float(np.vdot(residual, preconditioned))
        if energy <= enough:
            break
        direction = preconditioned + (energy / previous) * direction
    return step
