"""Minimise the smoothed convex clustering objective by preconditioned Newton steps.

    F(v) = 1/2 sum_p s_p |abar_p - v_p|^2 + penalty * P(v)

P is a coupling (all pairs, or the edges of a graph). Its quadratic majoriser at v is the weighted
graph Laplacian L, so the matrix M = diag(s) + penalty L bounds the Hessian from above and equals it
but for one direction in d per pair. M therefore serves twice: as the preconditioner of the Newton
system, and, when a Newton step overshoots a kink, as a step v - M^-1 gradient that never goes up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fedkin.arrays import Floats
from fedkin.clustering import tolerances
from fedkin.clustering.points import Points

MAX_OUTER_STEPS = 200
MAX_INNER_STEPS = 200
SUFFICIENT_DECREASE = 1e-4  # Armijo's share of the predicted decrease
MAX_HALVINGS = 8
LOOSEST_INNER_RESIDUAL = 0.1  # relative residual of the Newton system far from the solution


class Coupling(Protocol):
    """The smoothed fusion penalty at one set of positions."""

    value: float
    exact_value: float
    slack: float
    pull: Floats

    def curvature(self, vectors: Floats) -> Floats:
        """Hessian times vectors (n, d)."""

    def solver(self, mass: Floats, penalty: float) -> Callable[[Floats], Floats]:
        """x -> M^-1 x for M = diag(mass) + penalty * Laplacian, or a cheap stand-in above M."""


@dataclass(frozen=True)
class SmoothSolution:
    """Positions at which the smoothed objective is (nearly) least, with what certifies them."""

    positions: Points  # (n, d)
    coupling: Coupling
    gradient: Floats  # (n, d), of the smoothed objective
    value: float  # the smoothed objective
    objective: float  # the unsmoothed objective
    from_gradient: float  # part of the gap owed to the gradient
    gap: float  # unsmoothed objective less a feasible dual value
    n_iter: int = 0
    met_kink: bool = False  # a full Newton step did not go down


@dataclass(frozen=True)
class SmoothProblem:
    """F for given targets abar (n, d), sizes s (n,) and a coupling to be evaluated at positions."""

    targets: Points
    sizes: Floats
    penalty: float
    couple: Callable[[Points], Coupling]

    def at(self, positions: Points) -> SmoothSolution:
        """Objective, gradient and gap at positions (n, d).

        The pulls z_pq = (v_p - v_q) / max(t_pq, smoothing) are no longer than one, hence dual
        feasible, and the gap to the unsmoothed optimum is

            1/2 sum_p |gradient_p|^2 / s_p  +  penalty * sum_pq s_p s_q t_pq (1 - |z_pq|).
        """
        coupling, mass = self.couple(positions), self.sizes[:, None]
        residual = positions - self.targets
        fit = 0.5 * float(np.sum(mass * residual**2))
        gradient = mass * residual + self.penalty * coupling.pull
        from_gradient = 0.5 * float(np.sum(gradient**2 / mass))
        return SmoothSolution(
            positions=positions,
            coupling=coupling,
            gradient=gradient,
            value=fit + self.penalty * coupling.value,
            objective=fit + self.penalty * coupling.exact_value,
            from_gradient=from_gradient,
            gap=from_gradient + self.penalty * coupling.slack,
        )


def minimise(
    problem: SmoothProblem,
    start: Points,
    tolerance: float,
    offset: float = 0.0,
    stop_at_kink: bool = False,
) -> SmoothSolution:
    """Newton steps from `start` (n, d) until the gradient's part of the gap is below tolerance.

    `tolerance` is relative to the unsmoothed objective plus `offset`. With `stop_at_kink` the first
    full Newton step that does not go down ends the search: points have come within the smoothing.
    """
    here, met_kink, n_iter = problem.at(start), False, 0
    while here.from_gradient > tolerance * (here.objective + offset) and n_iter < MAX_OUTER_STEPS:
        solve = here.coupling.solver(problem.sizes, problem.penalty)
        share = float(np.sqrt(here.from_gradient / (here.objective + offset)))
        step = _newton_step(problem, here, solve, share)
        there = problem.at(here.positions + step)
        if not _goes_down(here, there, step):
            met_kink = True
            if stop_at_kink:
                break
            there = _backtrack(problem, here, step, solve)
        here, n_iter = there, n_iter + 1
    return replace(here, n_iter=n_iter, met_kink=met_kink)


def _goes_down(here: SmoothSolution, there: SmoothSolution, step: Floats) -> bool:
    slope = float(np.vdot(here.gradient, step))
    noise = tolerances.OBJECTIVE_ROUNDING * abs(here.value)
    return there.value <= here.value + SUFFICIENT_DECREASE * slope + noise


def _backtrack(
    problem: SmoothProblem, here: SmoothSolution, step: Floats, solve: Callable[[Floats], Floats]
) -> SmoothSolution:
    """The first halved step that goes down, else the majoriser's minimum, which cannot go up."""
    for _ in range(MAX_HALVINGS):
        step = 0.5 * step
        there = problem.at(here.positions + step)
        if _goes_down(here, there, step):
            return there
    return problem.at(here.positions - solve(here.gradient))


def _newton_step(
    problem: SmoothProblem,
    here: SmoothSolution,
    solve: Callable[[Floats], Floats],
    gradient_share: float,
) -> Floats:
    """Conjugate gradients on Hessian * step = -gradient, preconditioned by `solve`."""
    mass, step, residual = problem.sizes[:, None], np.zeros_like(here.gradient), -here.gradient
    direction = preconditioned = solve(residual)
    energy = float(np.vdot(residual, preconditioned))
    # A residual falling like the gradient itself makes the outer steps converge quadratically.
    enough = min(LOOSEST_INNER_RESIDUAL, gradient_share) ** 2 * energy
    for _ in range(MAX_INNER_STEPS):
        bent = mass * direction + problem.penalty * here.coupling.curvature(direction)
        length = energy / float(np.vdot(direction, bent))
        step += length * direction
        residual = residual - length * bent
        preconditioned = solve(residual)
        previous, energy = energy, float(np.vdot(residual, preconditioned))
        if energy <= enough:
            break
        direction = preconditioned + (energy / previous) * direction
    return step
