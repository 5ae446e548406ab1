"""What follows from a fitted mixed model: degrees of freedom, tests, predictions, new sites.

There is one class for every way to fit; all answer the same questions (`Facts`). They are made
again from what a result keeps, so a result that was read from a file answers them, too.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.federation import Federation
from fedkin.models.linear_mixed_inference import Components, Intervals
from fedkin.models.random_covariance import correlations
from fedkin.models.site_differences import SiteTest


class Rows(NamedTuple):
    """Rows to predict: design (n, d), intercept last; place of the site (-1: new); offset."""

    design: Floats
    places: Indices
    offset: Floats


class Predicted(NamedTuple):
    """Of every row: mean, standard deviation, and ends of an interval (n, 2) if asked for."""

    mean: Floats
    std: Floats
    ends: Floats | None


class Facts(Protocol):
    """What an estimator asks of a fit."""

    @property
    def degrees(self) -> Floats:
        """Satterthwaite's degrees of freedom of every coefficient, (d,)."""

    @property
    def difference(self) -> SiteTest | None:
        """The likelihood ratio test of no difference between sites, where it is known."""

    @property
    def icc(self) -> float:
        """Share of the variance that lies between sites."""

    @property
    def aic(self) -> float:
        """Akaike's criterion."""

    @property
    def bic(self) -> float:
        """Schwarz's criterion."""

    @property
    def singular(self) -> bool:
        """Whether some combination of effects has no variance."""

    @property
    def collinear(self) -> tuple[int, ...]:
        """Columns that depend on each other."""

    @property
    def n_places(self) -> int:
        """How many sites have a place."""

    def components(self) -> Components:
        """Standard deviations of the effects, their correlations, and the noise."""

    def component_intervals(self, level: float, by: str) -> Intervals:
        """Intervals of the components."""

    def means(self, rows: Rows) -> Floats:
        """Expected target of every row, (n,)."""

    def predict(self, rows: Rows, level: float | None) -> Predicted:
        """The same with its spread."""

    def extended(self, clients: Federation) -> Facts:
        """The fit with further sites that had no part in it."""


# ------------------------------------------------------------------ common ground


def own_means(client_coef: Floats, coef: Floats, rows: Rows) -> Floats:
    """Linear predictors of rows by their sites' own coefficients; the common ones if new."""
    own = np.concatenate([client_coef, coef[None]])
    return np.einsum("nd,nd->n", rows.design, own[rows.places]) + rows.offset


def components_of(covariance: Floats, sigma: float) -> Components:
    """Standard deviations, correlations and noise of a covariance (q, q)."""
    below = np.tril_indices(len(covariance), -1)
    return Components(np.sqrt(np.diag(covariance)), correlations(covariance)[below], sigma)


def only_wald(by: str) -> None:
    """Complain about intervals that this fit has not."""
    if by != "wald":
        raise ValueError(f"intervals={by!r} needs one noise and the sites' statistics; use 'wald'")


def shifted(ends: Floats | None, offset: Floats) -> Floats | None:
    """Intervals (n, 2) with the offset of their rows."""
    return None if ends is None else ends + offset[:, None]
