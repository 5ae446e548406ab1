"""The loss of every client behind one set of words: squared through packed statistics, or logistic.

| | squared | logistic |
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
from typing import ClassVar

import numpy as np
from scipy.special import expit

from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.federation import Federation
from fedkin.models import least_squares, logistic
from fedkin.models.logistic_ridge import choose_logistic_ridge
from fedkin.models.ridge_choice import choose_ridge
from fedkin.models.row_blocks import Block, RowBlocks

# Above so many coefficients the trace stands in for the largest eigenvalue.
MOST_EIGENVALUES = 200


@dataclass(frozen=True, eq=False)
class _PenalisedLoss(ABC):
    """What both losses of m clients have in common."""

    fit_intercept: bool
    alpha: float
    """Strength of the penalty; with `strengths` it is not looked at."""

    default_alpha: ClassVar[float] = 0.0
    """The penalty when none is asked for."""
    least_penalty: ClassVar[float] = 0.0
    """The least penalty on any coefficient, the intercept's included."""
    steepest_row: ClassVar[float] = 1.0
    """Largest second derivative of a row's loss in x'theta."""

    @property
    @abstractmethod
    def n_coefficients(self) -> int:
        """Coefficients d of a model, the intercept included."""

    @abstractmethod
    def curvatures(self) -> Floats:
        """Second derivatives of every client's penalised loss where they are largest, (m, d, d)."""

    @abstractmethod
    def _slopes(self, score: Floats, y: Array) -> Floats:
        """Derivatives of rows' losses in their scores x'theta, of the shape of both."""

    def steepness(self) -> Floats:
        """Largest second derivative of every client's loss, (m,)."""
        return np.asarray(np.linalg.eigvalsh(self.curvatures())[:, -1])

    @property
    @abstractmethod
    def own_strengths(self) -> Floats | None:
        """Strengths (m, d) that were chosen for every client; None where one `alpha` holds."""

    @cached_property
    def penalties(self) -> Floats:
        """Strength of the penalty on every coefficient, (d,); (m, d) if clients have their own."""
        if self.own_strengths is not None:
            return np.maximum(self.own_strengths, self.least_penalty)
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
        shrinking = self.alpha if self.own_strengths is None else self.penalties[:, : X.shape[-1]]
        gradient = (pull[:, None, :] @ X)[:, 0] + shrinking * weights
        if self.fit_intercept:
            gradient = np.concatenate([gradient, pull.sum(axis=1, keepdims=True)], axis=1)
        return gradient


@dataclass(frozen=True, eq=False)
class SquaredLoss(_PenalisedLoss):
    """Clients reduced to packed statistics (m, q)."""

    statistics: Floats
    strengths: Floats | None = None
    """Penalties of every client on every coefficient (m, d), instead of `alpha`."""

    @classmethod
    def of(cls, clients: Federation, fit_intercept: bool, alpha: float) -> SquaredLoss:
        """From the rows of a federation."""
        packed = least_squares.packed_statistics(clients, fit_intercept)
        return cls(fit_intercept, alpha, np.ascontiguousarray(packed.T))

    def with_chosen_strengths(self, few_rows_only: bool = False) -> SquaredLoss:
        """The same clients, the penalty of each by the errors to be expected at further rows.

        `few_rows_only`: none for a client of 2 d + 1 rows and more. Least squares of n rows adds
        d / (n - d - 1) of the noise variance to a prediction, there at most the noise itself.
        """
        chosen = choose_ridge(self.statistics, self.fit_intercept).strengths
        if few_rows_only:
            few = self.sizes < 2 * self.n_coefficients + 1
            chosen = np.where(few[:, None], chosen, 0.0)
        return replace(self, strengths=chosen)

    def take(self, who: Indices) -> SquaredLoss:
        """Some clients, in the order given."""
        own = None if self.strengths is None else self.strengths[who]
        return replace(self, statistics=self.statistics[who], strengths=own)

    @property
    def own_strengths(self) -> Floats | None:
        """Strengths (m, d) that were chosen for every client; None where one `alpha` holds."""
        return self.strengths

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
        penalised = least_squares.penalised(self.statistics, self._ridge, self.fit_intercept)
        coef, rank = least_squares.solve_many(penalised)
        several = rank < self.n_coefficients
        coef[several] = least_squares.least_norm(penalised[several])
        return coef

    def losses(self, models: Floats) -> Floats:
        """Mean loss of every client under every model (K, d), without penalty, (m, K)."""
        total = self.statistics @ least_squares.residual_coefficients(models).T
        return np.asarray(0.5 * total / np.maximum(self.sizes, 1.0)[:, None])

    def residual_variances(self, coef: Floats) -> Floats:
        """Noise variance of every client around its model (m, d), (m,); NaN without rows to spare.

        With one row to spare and more, squared residuals over what coefficients leave of the rows.
        """
        spare = self.sizes - self.n_coefficients
        toward = least_squares.residual_coefficients(coef)
        squares = np.maximum(np.einsum("mq,mq->m", toward, self.statistics), 0.0)
        return np.where(spare >= 1, squares / np.maximum(spare, 1.0), np.nan)

    def gradients(self, coef: Floats) -> Floats:
        """Gradient of every client's penalised loss at its own model (m, d)."""
        gram, cross, _, n_rows = self._unpacked
        slope = (gram @ coef[..., None])[..., 0] - cross
        return slope / np.maximum(n_rows, 1.0)[:, None] + self.penalties * coef

    def covariances(self, coef: Floats) -> Floats:
        """Sampling covariance of every client's fit, (m, d, d); zero where there is none."""
        return least_squares.sampling_covariances(
            self.statistics, coef, self._ridge, self.fit_intercept
        )

    @property
    def _ridge(self) -> float | Floats:
        """One strength, or that of every client on every feature (m, p)."""
        if self.strengths is None:
            return self.alpha
        return self.strengths[:, : self.n_coefficients - self.fit_intercept]

    def curvatures(self) -> Floats:
        """Second derivatives of every client's penalised loss, (m, d, d)."""
        gram, _, _, n_rows = self._unpacked
        return gram / np.maximum(n_rows, 1.0)[:, None, None] + _diagonal(self.penalties)

    def _slopes(self, score: Floats, y: Array) -> Floats:
        return score - y

    @cached_property
    def _unpacked(self) -> tuple[Floats, ...]:
        # Unpacked once: IFCA takes thousands of gradients of the same clients.
        return least_squares.unpack(self.statistics)


@dataclass(frozen=True, eq=False)
class LogisticLoss(_PenalisedLoss):
    """Clients with their rows, target -1 or 1."""

    rows: RowBlocks
    strengths: Floats | None = None
    """Penalties of every client on every coefficient (m, d), instead of `alpha`."""

    # The paper's C, without which a site whose classes can be separated has no minimiser.
    default_alpha: ClassVar[float] = 1e-5
    # Separable rows, or rows of one class, have their minimiser at infinity; this holds it where
    # the loss is about 1e-9.
    least_penalty: ClassVar[float] = 1e-10
    steepest_row: ClassVar[float] = 0.25

    @classmethod
    def of(cls, clients: Federation, fit_intercept: bool, alpha: float) -> LogisticLoss:
        """From the rows of a federation with target 0/1 or -1/1."""
        assert clients.y is not None
        known = np.isin(clients.y, (-1.0, 0.0, 1.0))
        if not known.all():
            site = clients.names[int(clients.owner[np.flatnonzero(~known)[0]])]
            raise ValueError(
                f"site {site!r}: the target has the value {clients.y[~known][0]:g}; logistic loss "
                "needs 0 and 1, or -1 and 1: recode it before fitting"
            )
        # A row's weight is the size of its target, whose sign is the class.
        target = logistic.signed(clients.y)
        if clients.weights is not None:
            target = target * clients.weights
        columns = np.concatenate([target[:, None], clients.X], axis=1)
        return cls(fit_intercept, alpha, RowBlocks.of(clients, columns, False))

    def take(self, who: Indices) -> LogisticLoss:
        """Some clients, in the order given."""
        own = None if self.strengths is None else self.strengths[who]
        return replace(self, rows=self.rows.take(who), strengths=own)

    @property
    def own_strengths(self) -> Floats | None:
        """Strengths (m, d) that were chosen for every client; None where one `alpha` holds."""
        return self.strengths

    @property
    def totals(self) -> Floats:
        """What the rows of every client count together, (m,)."""
        out = np.zeros(self.rows.n_clients)
        for block in self.rows.blocks:
            out[block.clients] = self._parts(block)[2].sum(axis=1)
        return out

    def with_chosen_strengths(self) -> LogisticLoss:
        """The same clients, the penalty of each by approximate leave-one-out."""
        strengths = np.zeros((self.rows.n_clients, self.n_coefficients))
        for block in self.rows.blocks:
            found = choose_logistic_ridge(*self._parts(block), self.fit_intercept)
            strengths[block.clients] = found
        return replace(self, strengths=strengths)

    @property
    def sizes(self) -> Floats:
        """Rows per client, (m,)."""
        return self.rows.sizes.astype(np.float64)

    @property
    def n_coefficients(self) -> int:
        """Coefficients d of a model, the intercept included."""
        return self.rows.n_columns - 1 + self.fit_intercept

    def fit(self) -> Floats:
        """Every client's own minimiser (m, d); zero for a client without rows."""
        return self.minimise()[0]

    def minimise(self) -> tuple[Floats, Bools]:
        """Every client's own minimiser (m, d), and whether its steps came to rest (m,)."""
        coef = np.zeros((self.rows.n_clients, self.n_coefficients))
        settled = np.ones(self.rows.n_clients, dtype=bool)
        for block in self.rows.blocks:
            strength = self._penalties_of(block)
            own = logistic.minimise(*self._parts(block), strength, self.fit_intercept)
            coef[block.clients], settled[block.clients] = own
        return coef, settled

    def losses(self, models: Floats) -> Floats:
        """Mean loss of every client under every model (K, d), without penalty, (m, K)."""
        out = np.zeros((self.rows.n_clients, len(models)))
        for block in self.rows.blocks:
            X, y, present = self._parts(block)
            margins = y[:, None, :] * (models @ X)
            total = np.einsum("kjn,kn->kj", np.logaddexp(0.0, -margins), present)
            out[block.clients] = total / present.sum(axis=1)[:, None]
        return out

    def gradients(self, coef: Floats) -> Floats:
        """Gradient of every client's penalised loss at its own model (m, d)."""
        out = self.penalties * coef
        for block in self.rows.blocks:
            X, y, present = self._parts(block)
            score = np.einsum("kdn,kd->kn", X, coef[block.clients])
            pull = logistic.slopes(score, y) * present / present.sum(axis=1)[:, None]
            out[block.clients] += (X @ pull[..., None])[..., 0]
        return out

    def curvatures(self, coef: Floats | None = None) -> Floats:
        """Second derivatives at every client's model (m, d), or at zero, where they are largest."""
        at = np.zeros((self.rows.n_clients, self.n_coefficients)) if coef is None else coef
        out = np.zeros((self.rows.n_clients, self.n_coefficients, self.n_coefficients))
        out += _diagonal(self.penalties)
        for block in self.rows.blocks:
            X, _, present = self._parts(block)
            share = expit(np.einsum("kdn,kd->kn", X, at[block.clients]))
            weight = share * (1.0 - share) * present / present.sum(axis=1)[:, None]
            out[block.clients] += (X * weight[:, None, :]) @ X.transpose(0, 2, 1)
        return out

    def covariances(self, coef: Floats) -> Floats:
        """Inverse information of every client's fit, (m, d, d); zero with no more rows than d."""
        d = self.n_coefficients
        out = np.zeros((self.rows.n_clients, d, d))
        enough = np.flatnonzero(self.rows.sizes > d)
        if len(enough):
            part = self.take(enough)
            inverse = np.linalg.inv(part.curvatures(coef[enough]))
            out[enough] = inverse / part.totals[:, None, None]
        return out

    def steepness(self) -> Floats:
        """Largest second derivative of every client's loss, (m,); a bound if there are many."""
        if self.n_coefficients <= MOST_EIGENVALUES:
            return super().steepness()
        squares = self.rows.squares[:, 1:].sum(axis=1) / np.maximum(self.sizes, 1.0)
        strongest = self.alpha if self.strengths is None else self.strengths.max(axis=1)
        return np.asarray(self.steepest_row * (squares + self.fit_intercept) + strongest)

    def _penalties_of(self, block: Block) -> Floats:
        """Penalties (d,), or (k, d) of the block's clients."""
        return self.penalties if self.strengths is None else self.penalties[block.clients]

    def _slopes(self, score: Floats, y: Array) -> Floats:
        return logistic.slopes(score, logistic.signed(y))

    def _parts(self, block: Block) -> tuple[Floats, Floats, Floats]:
        """Design (k, d, width), target (k, width) and what rows count (k, width), 0 for none."""
        data = block.data
        design = data[:, 1:] if self.fit_intercept else data[:, 1:-1]
        return design, np.sign(data[:, 0]), np.abs(data[:, 0])


LocalLoss = SquaredLoss | LogisticLoss


def _diagonal(values: Floats) -> Floats:
    """Diagonal matrices (..., d, d) of values (..., d)."""
    return values[..., None] * np.eye(values.shape[-1])


def local_loss(
    clients: Federation, loss: str, fit_intercept: bool, alpha: float | str | None
) -> LocalLoss:
    """The clients behind the loss that is asked for, "squared" or "logistic".

    `alpha` "auto" finds the penalty of each (`models.ridge_choice`, `models.logistic_ridge`).
    """
    if clients.y is None:
        raise ValueError(f"{loss} loss needs a target y at every site")
    kind: type[LocalLoss] = LogisticLoss if loss == "logistic" else SquaredLoss
    given = kind.default_alpha if alpha is None or isinstance(alpha, str) else alpha
    local = kind.of(clients, fit_intercept, given)
    return local.with_chosen_strengths() if isinstance(alpha, str) else local
