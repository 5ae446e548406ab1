"""The loss of every client behind one face: squared through packed statistics, or logistic.

| | squared | logistic |
|---|---|---|
| loss of a row | (y - x'theta)^2 / 2 | log(1 + exp(-y x'theta)), y = -1 or 1 |
| penalty | alpha / 2 of the squared coefficients, the intercept's left out | the same |
| kept of a client | sums of products, whatever its n | its rows |

Models are vectors of d coefficients with the intercept last, if there is one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkin.federation import Federation
from fedkin.models import least_squares, logistic
from fedkin.models.row_blocks import RowBlocks

Floats = NDArray[np.float64]
Loss = Literal["squared", "logistic"]

# The penalty used when none is asked for: none, and for the logistic loss the paper's C, without
# which a site whose classes can be separated has no minimiser.
DEFAULT_ALPHA = {"squared": 0.0, "logistic": 1e-5}
# Above so many coefficients the trace stands in for the largest eigenvalue.
MOST_EIGENVALUES = 200


@dataclass(frozen=True, eq=False)
class SquaredLoss:
    """Clients reduced to packed statistics (m, q)."""

    statistics: Floats
    fit_intercept: bool
    alpha: float

    def take(self, who: NDArray[np.intp]) -> SquaredLoss:
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
        gram, cross, _, n_rows = self._parts
        slope = (gram @ coef[..., None])[..., 0] - cross
        return slope / np.maximum(n_rows, 1.0)[:, None] + self._strength() * coef

    def covariances(self, coef: Floats) -> Floats:
        """Sampling covariance of every client's fit, (m, d, d); zero where there is none."""
        return least_squares.sampling_covariances(
            self.statistics, coef, self.alpha, self.fit_intercept
        )

    def curvatures(self) -> Floats:
        """Second derivatives of every client's penalised loss, (m, d, d)."""
        gram, _, _, n_rows = self._parts
        return gram / np.maximum(n_rows, 1.0)[:, None, None] + np.diag(self._strength())

    @cached_property
    def _parts(self) -> tuple[Floats, ...]:
        # Unpacked once: IFCA takes thousands of gradients of the same clients.
        return least_squares.unpack(self.statistics)

    def steepness(self) -> Floats:
        """Largest second derivative of every client's loss, (m,)."""
        return np.asarray(np.linalg.eigvalsh(self.curvatures())[:, -1])

    def _strength(self) -> Floats:
        strength = np.full(self.n_coefficients, self.alpha)
        if self.fit_intercept:
            strength[-1] = 0.0
        return strength


@dataclass(frozen=True, eq=False)
class LogisticLoss:
    """Clients with their rows, outcome -1 or 1."""

    rows: RowBlocks
    fit_intercept: bool
    alpha: float

    def take(self, who: NDArray[np.intp]) -> LogisticLoss:
        """Some clients, in the order given."""
        return replace(self, rows=self.rows.take(who))

    @property
    def sizes(self) -> Floats:
        """Rows per client, (m,)."""
        return self.rows.sizes.astype(np.float64)

    @property
    def n_coefficients(self) -> int:
        """Coefficients d of a model, the intercept included."""
        return self.rows.n_columns - 1 + self.fit_intercept

    def fit(self) -> Floats:
        """Every client's own minimiser (m, d)."""
        return logistic.minimise(self.rows, self.fit_intercept, self.alpha).coef

    def losses(self, models: Floats) -> Floats:
        """Mean loss of every client under every model (K, d), without penalty, (m, K)."""
        return logistic.losses(self.rows, models, self.fit_intercept)

    def gradients(self, coef: Floats) -> Floats:
        """Gradient of every client's penalised loss at its own model (m, d)."""
        return logistic.gradients(self.rows, coef, self.fit_intercept, self.alpha)

    def covariances(self, coef: Floats) -> Floats:
        """Sampling covariance of every client's fit, (m, d, d); zero where there is none."""
        return logistic.sampling_covariances(self.rows, coef, self.fit_intercept, self.alpha)

    def curvatures(self) -> Floats:
        """Second derivatives of every client's penalised loss at zero, where they are largest."""
        at = np.zeros((self.rows.n_clients, self.n_coefficients))
        return logistic.curvatures(self.rows, at, self.fit_intercept, self.alpha)

    def steepness(self) -> Floats:
        """Largest second derivative of every client's loss, (m,); a bound if there are many."""
        if self.n_coefficients <= MOST_EIGENVALUES:
            return np.asarray(np.linalg.eigvalsh(self.curvatures())[:, -1])
        squares = self.rows.squares[:, 1:].sum(axis=1) / np.maximum(self.sizes, 1.0)
        return np.asarray(0.25 * (squares + self.fit_intercept) + self.alpha)


LocalLoss = SquaredLoss | LogisticLoss


def local_loss(
    clients: Federation, loss: Loss, fit_intercept: bool, alpha: float | None
) -> LocalLoss:
    """The clients behind the loss that is asked for."""
    if clients.y is None:
        raise ValueError(f"{loss} loss needs a target y at every site")
    strength = DEFAULT_ALPHA[loss] if alpha is None else alpha
    if loss == "logistic":
        return LogisticLoss(logistic.labelled_rows(clients), fit_intercept, strength)
    packed = least_squares.packed_statistics(clients, fit_intercept)
    return SquaredLoss(np.ascontiguousarray(packed.T), fit_intercept, strength)


def row_gradients(
    loss: Loss, X: Floats, y: Floats, coef: Floats, fit_intercept: bool, alpha: float
) -> Floats:
    """Mean gradient over drawn rows X (m, b, p), y (m, b) at each client's model (m, d)."""
    slopes = coef[:, : X.shape[-1]]
    score = (X @ slopes[..., None])[..., 0]
    if fit_intercept:
        score = score + coef[:, -1:]
    pull = -y * logistic.sigmoid(-y * score) if loss == "logistic" else score - y
    pull = pull / X.shape[1]
    gradient = (pull[:, None, :] @ X)[:, 0] + alpha * slopes
    if fit_intercept:
        gradient = np.concatenate([gradient, pull.sum(axis=1, keepdims=True)], axis=1)
    return gradient


def signed(loss: Loss, y: Any) -> Floats:
    """The outcome as the loss wants it: -1 and 1 for the logistic one."""
    return np.where(np.asarray(y) > 0, 1.0, -1.0) if loss == "logistic" else np.asarray(y)
