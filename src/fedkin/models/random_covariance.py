"""The covariance of random effects, V = s^2 L L', by the free numbers of its relative factor L.

As in lme4, L is lower triangular and measured in units of the noise s. Its entries are unbounded:
the sign of a column of L does not matter, so a variance of zero is an ordinary point in the
middle of the line where the slope vanishes, and no search has to run along a wall.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Covariance = Literal["full", "diagonal", "isotropic"]

# lme4's limit: a relative standard deviation below this counts as none (`isSingular`).
SINGULAR = 1e-4
# Clients for every free number of a full covariance: with rows to spare beyond their effects, which
# tell noise and effects apart, and without, where lme4 refuses the model.
CLIENTS_A_NUMBER, WITHOUT_SPARE = 1, 10


@dataclass(frozen=True, eq=False)
class Shape:
    """Which entries of the factor (q, q) are which free number.

    Entry (`rows[k]`, `columns[k]`) is the number `owner[k]`; all other entries are zero.
    """

    size: int
    rows: Indices
    columns: Indices
    owner: Indices

    @property
    def n_parameters(self) -> int:
        """How many free numbers there are."""
        return int(self.owner.max(initial=-1)) + 1

    def factor(self, theta: Floats) -> Floats:
        """L (q, q) from its free numbers."""
        out = np.zeros((self.size, self.size))
        out[self.rows, self.columns] = theta[self.owner]
        return out

    def gather(self, slope: Floats) -> Floats:
        """The slope in the free numbers (..., p) from the slope in L's entries (..., q, q)."""
        taken = slope[..., self.rows, self.columns]
        out = np.zeros((*slope.shape[:-2], self.n_parameters))
        for k, owner in enumerate(self.owner):
            out[..., owner] += taken[..., k]
        return out

    def start(self, size: float = 1.0) -> Floats:
        """Free numbers of `size` times the identity."""
        theta = np.zeros(self.n_parameters)
        theta[self.owner[self.rows == self.columns]] = size
        return theta

    def nearest(self, covariance: Floats) -> Floats:
        """Free numbers of a factor of `covariance` (q, q), of what this shape can hold of it."""
        if np.array_equal(self.owner, np.arange(self.size)) and (self.rows == self.columns).all():
            return np.sqrt(np.maximum(np.diag(covariance), 0.0))
        if (self.rows == self.columns).all():
            counts = np.bincount(self.owner)
            return np.sqrt(np.bincount(self.owner, np.maximum(np.diag(covariance), 0.0)) / counts)
        return lower_factor(covariance)[self.rows, self.columns]


def carried_covariance(n_rows: Floats, size: int, rows_an_effect: float = 0.0) -> Covariance:
    """ "full" where clients of `n_rows` (m,) tell all of it for `size` columns, else "isotropic".

    `rows_an_effect` are needed at a client, on average.

    Twenty-four plates of four rows each and six columns fit their 21 numbers without any noise, and
    predict half as badly again as with two (Penicillin of lme4). Without rows to spare, noise that
    grows with a column is taken for slopes: so do 171 farms (RiceFarms of plm).
    """
    numbers = size * (size + 1) // 2
    spare = float(np.maximum(n_rows - size, 0.0).sum())
    clients = CLIENTS_A_NUMBER if spare >= numbers else WITHOUT_SPARE
    told = np.count_nonzero(n_rows)
    enough = told >= clients * numbers and n_rows.sum() >= rows_an_effect * size * told
    return "full" if enough or size == 1 else "isotropic"


def shape_of(covariance: Covariance, size: int, blocks: Indices | None = None) -> Shape:
    """The shape of a factor for `size` random columns.

    "isotropic" gives one variance to every block; `blocks` (q,) says which column is in which.
    """
    if covariance == "full":
        rows, columns = np.tril_indices(size)
        return Shape(size, rows, columns, np.arange(len(rows)))
    place = np.arange(size)
    if covariance == "diagonal":
        return Shape(size, place, place, place)
    if covariance == "isotropic":
        labels = np.zeros(size, dtype=np.intp) if blocks is None else np.asarray(blocks)
        return Shape(size, place, place, np.unique(labels, return_inverse=True)[1])
    raise ValueError(
        f"covariance must be 'full', 'diagonal' or 'isotropic', not {covariance!r}; choose one"
    )


def lower_factor(covariance: Floats) -> Floats:
    """A lower triangular L (q, q) with L L' = covariance, which may be singular."""
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    lower = np.linalg.qr(root.T)[1].T
    signs = np.where(np.diag(lower) < 0, -1.0, 1.0)
    return np.asarray(lower * signs)


def correlations(covariance: Floats) -> Floats:
    """The correlation matrix; zero where a variance is zero."""
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scale = np.where(spread > 0, spread, np.inf)
    out = covariance / np.outer(scale, scale)
    np.fill_diagonal(out, np.where(spread > 0, 1.0, 0.0))
    return np.asarray(out)
