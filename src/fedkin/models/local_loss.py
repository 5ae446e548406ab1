"""The loss of every client behind one set of words: squared through packed statistics, or logistic.

| | squared | logistic (`models.logistic`) |
|---|---|---|
| loss of a row | (y - x'theta)^2 / 2 | log(1 + exp(-y x'theta)), y = -1 or 1 |
| penalty | alpha / 2 of the squared coefficients, the intercept's left out | as squared |
| kept of a client | sums of products, whatever its n | its rows |

Models are vectors of d coefficients with the intercept last, if there is one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from fedkin.arrays import Array, Floats, Indices
from fedkin.federation import Federation
from fedkin.models import least_squares


@dataclass(frozen=True, eq=False)
class LocalLoss(ABC):
    """The penalised loss of m clients."""

    fit_intercept: bool
    alpha: float

    default_alpha: ClassVar[float] = 0.0
    """The penalty when none is asked for."""
    least_penalty: ClassVar[float] = 0.0
    """The least penalty on any coefficient, the intercept's included."""
    steepest_row: ClassVar[float] = 1.0
    """Largest second derivative of a row's loss in x'theta."""

    @abstractmethod
    def take(self, who: Indices) -> Self:
        """Some clients, in the order given."""

    @property
    @abstractmethod
    def sizes(self) -> Floats:
        """Rows per client, (m,)."""

    @property
    @abstractmethod
    def n_coefficients(self) -> int:
        """Coefficients d of a model, the intercept included."""

    @abstractmethod
    def fit(self) -> Floats:
        """Every client's own minimiser (m, d)."""

    @abstractmethod
    def losses(self, models: Floats) -> Floats:
        """Mean loss of every client under every model (K, d), without penalty, (m, K)."""

    @abstractmethod
    def gradients(self, coef: Floats) -> Floats:
        """Gradient of every client's penalised loss at its own model (m, d)."""

    @abstractmethod
    def covariances(self, coef: Floats) -> Floats:
        """Sampling covariance of every client's fit, (m, d, d); zero where there is none."""

    @abstractmethod
    def curvatures(self) -> Floats:
        """Second derivatives of every client's penalised loss where they are largest, (m, d, d)."""

    @abstractmethod
    def _slopes(self, score: Floats, y: Array) -> Floats:
        """Derivatives of rows' losses in their scores x'theta, of the shape of both."""

    def steepness(self) -> Floats:
        """Largest second derivative of every client's loss, (m,)."""
        return np.asarray(np.linalg.eigvalsh(self.curvatures())[:, -1])

    @cached_property
    def penalties(self) -> Floats:
        """Strength of the penalty on every coefficient, (d,)."""
        strength = np.full(self.n_coefficients, max(self.alpha, self.least_penalty))
        if self.fit_intercept:
            strength[-1] = self.least_penalty
        return strength

    def row_gradients(self, X: Floats, y: Array, coef: Floats) -> Floats:
        """Mean gradient over drawn rows X (m, b, p), y (m, b) at each client's model (m, d)."""
        weights = coef[:, : X.shape[-1]]
        score = (X @ weights[..., None])[..., 0]
        if self.fit_intercept:
            score = score + coef[:, -1:]
        pull = self._slopes(score, y) / X.shape[1]
        gradient = (pull[:, None, :] @ X)[:, 0] + self.alpha * weights
        if self.fit_intercept:
            gradient = np.concatenate([gradient, pull.sum(axis=1, keepdims=True)], axis=1)
        return gradient


@dataclass(frozen=True, eq=False)
class SquaredLoss(LocalLoss):
    """Clients reduced to packed statistics (m, q)."""

    statistics: Floats

    @classmethod
    def of(cls, clients: Federation, fit_intercept: bool, alpha: float) -> Self:
        """From the rows of a federation."""
        packed = least_squares.packed_statistics(clients, fit_intercept)
        return cls(fit_intercept, alpha, np.ascontiguousarray(packed.T))

    def take(self, who: Indices) -> Self:
        """Some clients, in the order given."""
        return replace(self, statistics=self.statistics[who])

    @property
    def sizes(self) -> Floats:
        """Rows per client, (m,)."""
        return self.statistics[:, -1]

    @property
    def n_coefficients(self) -> int:
        """Coefficients d of a model, the intercept included."""
        return least_squares.n_coefficients(self.statistics.shape[1])

    def fit(self) -> Floats:
        """Every client's own minimiser (m, d), the shortest one where there are several."""
        penalised = least_squares.penalised(self.statistics, self.alpha, self.fit_intercept)
        coef, rank = least_squares.solve_many(penalised)
        several = rank < self.n_coefficients
        coef[several] = least_squares.least_norm(penalised[several])
        return coef

    def losses(self, models: Floats) -> Floats:
        """Mean loss of every client under every model (K, d), without penalty, (m, K)."""
        total = self.statistics @ least_squares.residual_coefficients(models).T
        return np.asarray(0.5 * total / np.maximum(self.sizes, 1.0)[:, None])

    def gradients(self, coef: Floats) -> Floats:
        """Gradient of every client's penalised loss at its own model (m, d)."""
        gram, cross, _, n_rows = self._unpacked
        slope = (gram @ coef[..., None])[..., 0] - cross
        return slope / np.maximum(n_rows, 1.0)[:, None] + self.penalties * coef

    def covariances(self, coef: Floats) -> Floats:
        """Sampling covariance of every client's fit, (m, d, d); zero where there is none."""
        return least_squares.sampling_covariances(
            self.statistics, coef, self.alpha, self.fit_intercept
        )

    def curvatures(self) -> Floats:
        """Second derivatives of every client's penalised loss, (m, d, d)."""
        gram, _, _, n_rows = self._unpacked
        return gram / np.maximum(n_rows, 1.0)[:, None, None] + np.diag(self.penalties)

    def _slopes(self, score: Floats, y: Array) -> Floats:
        return score - y

    @cached_property
    def _unpacked(self) -> tuple[Floats, ...]:
        # Unpacked once: IFCA takes thousands of gradients of the same clients.
        return least_squares.unpack(self.statistics)


def local_loss(
    clients: Federation, loss: str, fit_intercept: bool, alpha: float | None
) -> LocalLoss:
    """The clients behind the loss that is asked for, "squared" or "logistic"."""
    from fedkin.models.logistic import LogisticLoss  # which builds on this module

    if clients.y is None:
        raise ValueError(f"{loss} loss needs a target y at every site")
    kind = LogisticLoss if loss == "logistic" else SquaredLoss
    return kind.of(clients, fit_intercept, kind.default_alpha if alpha is None else alpha)
