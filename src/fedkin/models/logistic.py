"""Logistic regression of many clients at once: exact minimiser, loss, gradient, curvature.

A client's loss is the mean over its rows of log(1 + exp(-y (x'theta + b))), y = -1 or 1, plus
alpha / 2 |theta|^2; the intercept b, the last coefficient if there is one, is not penalised.

Clients stand in `RowBlocks` with columns (y, x): the block's own last column, `present`, doubles as
the intercept's. Newton's steps run for all clients of a block side by side, each with its own step
length. With fewer rows than coefficients the minimiser lies in the span of the rows, so a client of
40 images with 3072 pixels is solved in 40 coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from scipy.special import expit

from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.federation import Federation
from fedkin.models.local_loss import LocalLoss
from fedkin.models.row_blocks import Block, RowBlocks

MAX_NEWTON_STEPS = 100
# Newton's decrement (twice the loss still to gain) at which a client is done; losses are below 1.
DECREMENT_TOLERANCE = 1e-22
SUFFICIENT_SHARE = 1e-4  # of the gain a linear model promises, for a step to be taken
MOST_HALVINGS = 40
# Above so many coefficients the trace stands in for the largest eigenvalue.
MOST_EIGENVALUES = 200


@dataclass(frozen=True, eq=False)
class LogisticLoss(LocalLoss):
    """Clients with their rows, target -1 or 1."""

    rows: RowBlocks

    # The paper's C, without which a site whose classes can be separated has no minimiser.
    default_alpha: ClassVar[float] = 1e-5
    # Separable rows, or rows of one class, have their minimiser at infinity; this holds it where
    # the loss is about 1e-9.
    least_penalty: ClassVar[float] = 1e-10
    steepest_row: ClassVar[float] = 0.25

    @classmethod
    def of(cls, clients: Federation, fit_intercept: bool, alpha: float) -> Self:
        """From the rows of a federation with target 0/1 or -1/1."""
        assert clients.y is not None
        known = np.isin(clients.y, (-1.0, 0.0, 1.0))
        if not known.all():
            site = clients.names[int(clients.owner[np.flatnonzero(~known)[0]])]
            raise ValueError(
                f"site {site!r}: the target has the value {clients.y[~known][0]:g}; logistic loss "
                "needs 0 and 1, or -1 and 1: recode it before fitting"
            )
        columns = np.concatenate([_signed(clients.y)[:, None], clients.X], axis=1)
        return cls(fit_intercept, alpha, RowBlocks.of(clients, columns, False))

    def take(self, who: Indices) -> Self:
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
        """Every client's own minimiser (m, d); zero for a client without rows."""
        return self.minimise()[0]

    def minimise(self) -> tuple[Floats, Bools]:
        """Every client's own minimiser (m, d), and whether its steps came to rest (m,)."""
        coef = np.zeros((self.rows.n_clients, self.n_coefficients))
        settled = np.ones(self.rows.n_clients, dtype=bool)
        for block in self.rows.blocks:
            X, y, present = self._parts(block)
            basis, X, strength = _row_space(X, self.penalties, self.fit_intercept)
            own, settled[block.clients] = _newton(X, y, present, strength)
            coef[block.clients] = own if basis is None else _from_row_space(basis, own)
        return coef, settled

    def losses(self, models: Floats) -> Floats:
        """Mean loss of every client under every model (K, d), without penalty, (m, K)."""
        out = np.zeros((self.rows.n_clients, len(models)))
        for block in self.rows.blocks:
            X, y, present = self._parts(block)
            margins = y[:, None, :] * (models @ X)
            total = np.einsum("kjn,kn->kj", np.logaddexp(0.0, -margins), present)
            out[block.clients] = total / block.sizes[:, None]
        return out

    def gradients(self, coef: Floats) -> Floats:
        """Gradient of every client's penalised loss at its own model (m, d)."""
        out = self.penalties * coef
        for block in self.rows.blocks:
            X, y, _ = self._parts(block)
            score = np.einsum("kdn,kd->kn", X, coef[block.clients])
            pull = _pull(score, y) / block.sizes[:, None]
            out[block.clients] += (X @ pull[..., None])[..., 0]
        return out

    def curvatures(self, coef: Floats | None = None) -> Floats:
        """Second derivatives at every client's model (m, d), or at zero, where they are largest."""
        at = np.zeros((self.rows.n_clients, self.n_coefficients)) if coef is None else coef
        out = np.tile(np.diag(self.penalties), (self.rows.n_clients, 1, 1))
        for block in self.rows.blocks:
            X, _, present = self._parts(block)
            share = expit(np.einsum("kdn,kd->kn", X, at[block.clients]))
            weight = share * (1.0 - share) * present / block.sizes[:, None]
            out[block.clients] += (X * weight[:, None, :]) @ X.transpose(0, 2, 1)
        return out

    def covariances(self, coef: Floats) -> Floats:
        """Inverse information of every client's fit, (m, d, d); zero with no more rows than d."""
        d = self.n_coefficients
        out = np.zeros((self.rows.n_clients, d, d))
        enough = np.flatnonzero(self.rows.sizes > d)
        if len(enough):
            part = self.take(enough)
            out[enough] = np.linalg.inv(part.curvatures(coef[enough])) / part.sizes[:, None, None]
        return out

    def steepness(self) -> Floats:
        """Largest second derivative of every client's loss, (m,); a bound if there are many."""
        if self.n_coefficients <= MOST_EIGENVALUES:
            return super().steepness()
        squares = self.rows.squares[:, 1:].sum(axis=1) / np.maximum(self.sizes, 1.0)
        return np.asarray(self.steepest_row * (squares + self.fit_intercept) + self.alpha)

    def _slopes(self, score: Floats, y: Array) -> Floats:
        return _pull(score, _signed(y))

    def _parts(self, block: Block) -> tuple[Floats, Floats, Floats]:
        """Design (k, d, width), target (k, width) and presence (k, width)."""
        data = block.data
        return data[:, 1:] if self.fit_intercept else data[:, 1:-1], data[:, 0], data[:, -1]


def _signed(y: Array) -> Floats:
    """A target of two values as -1 and 1."""
    return np.where(y > 0, 1.0, -1.0)


def _pull(score: Floats, y: Floats) -> Floats:
    """Derivatives of rows' losses in their scores; y is -1 or 1, or 0 where there is no row."""
    return np.asarray(-y * expit(-y * score))


# ------------------------------------------------------------------ one block


def _row_space(
    X: Floats, strength: Floats, fit_intercept: bool
) -> tuple[Floats | None, Floats, Floats]:
    """The design in orthonormal coordinates of the rows' span, where that has fewer of them.

    All penalised coefficients must share one strength: rotating them then leaves the penalty as it
    is. The intercept's column keeps its place. Returns (basis or None, design, strength).
    """
    n_features = len(strength) - fit_intercept
    if X.shape[-1] >= n_features:
        return None, X, strength
    basis, triangle = np.linalg.qr(X[:, :n_features])
    fewer = np.concatenate([triangle, X[:, n_features:]], axis=1)
    width = triangle.shape[1]
    return basis, fewer, np.concatenate([strength[:1].repeat(width), strength[n_features:]])


def _from_row_space(basis: Floats, coef: Floats) -> Floats:
    width = basis.shape[-1]
    features = np.einsum("kdw,kw->kd", basis, coef[:, :width])
    return np.concatenate([features, coef[:, width:]], axis=1)


def _newton(X: Floats, y: Floats, present: Floats, strength: Floats) -> tuple[Floats, Bools]:
    """Newton's method with halved steps for all clients of a block, (k, p) and (k,)."""
    coef = np.zeros(X.shape[:2])
    moving = np.arange(len(X))
    for _ in range(MAX_NEWTON_STEPS):
        if not len(moving):
            break
        part = (X[moving], y[moving], present[moving]) if len(moving) < len(X) else (X, y, present)
        coef[moving], gain = _newton_step(*part, strength, coef[moving])
        moving = moving[gain > DECREMENT_TOLERANCE]
    return coef, ~np.isin(np.arange(len(X)), moving)


def _newton_step(
    X: Floats, y: Floats, present: Floats, strength: Floats, coef: Floats
) -> tuple[Floats, Floats]:
    """One safeguarded step; and the decrement before it, zero where no step lowers the loss."""
    n_rows = present.sum(axis=1, keepdims=True)
    score = np.einsum("kdn,kd->kn", X, coef)
    share = expit(score)
    gradient = strength * coef + (X @ (_pull(score, y) / n_rows)[..., None])[..., 0]
    weight = share * (1.0 - share) * present / n_rows
    hessian = (X * weight[:, None, :]) @ X.transpose(0, 2, 1)
    hessian[:, np.arange(len(strength)), np.arange(len(strength))] += strength
    direction = -np.linalg.solve(hessian, gradient[..., None])[..., 0]
    decrement = -np.einsum("kd,kd->k", gradient, direction)
    along = np.einsum("kdn,kd->kn", X, direction)

    def value(step: Floats) -> Floats:
        margins = y * (score + step[:, None] * along)
        loss = (np.logaddexp(0.0, -margins) * present).sum(axis=1) / n_rows[:, 0]
        return np.asarray(loss + 0.5 * (strength * (coef + step[:, None] * direction) ** 2).sum(1))

    start, step = value(np.zeros(len(coef))), np.ones(len(coef))
    # Differences of losses carry rounding of this size; below it a step cannot be judged.
    rounding = 4 * np.finfo(float).eps * np.maximum(start, 1.0)
    for _ in range(MOST_HALVINGS):
        short = value(step) > start - SUFFICIENT_SHARE * step * decrement + rounding
        if not short.any():
            break
        step = np.where(short, step / 2, step)
    else:
        step = np.where(short, 0.0, step)
    return coef + step[:, None] * direction, np.where(step > 0, decrement, 0.0)
