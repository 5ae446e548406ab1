"""Estimates with their errors: intervals by Student's t, and the table that readers of lme4 expect.

One place for all methods, so that a coefficient is told in the same columns everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedkin.arrays import Array, Floats

LEVEL = 0.95
INTERCEPT = "(intercept)"


class Estimates(NamedTuple):
    """`values` and their standard `errors` (..., d), with `degrees` of freedom that broadcast.

    An error that is not known is NaN; infinite degrees make Student's t the normal law.
    """

    values: Floats
    errors: Floats
    degrees: Floats

    def intervals(self, level: float = LEVEL) -> Floats:
        """Ends between which each is with confidence `level`, (..., d, 2)."""
        from scipy.stats import t

        half = t.ppf(0.5 + checked_level(level) / 2, self.degrees) * self.errors
        return np.stack([self.values - half, self.values + half], axis=-1)

    def columns(self, level: float = LEVEL) -> dict[str, Floats]:
        """Estimate, standard error, degrees of freedom, t, p and interval, one below the other."""
        from scipy.stats import t

        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.values / self.errors
        low, high = np.moveaxis(self.intervals(level), -1, 0)
        columns = {
            "estimate": self.values,
            "std. error": self.errors,
            "df": np.broadcast_to(self.degrees, self.values.shape),
            "t": ratio,
            "p": 2.0 * t.sf(np.abs(ratio), self.degrees),
            f"{100 * level:g} % from": low,
            "to": high,
        }
        return {name: np.ravel(column) for name, column in columns.items()}

    def by_group(
        self, groups: Mapping[str, Any], terms: Sequence[str], level: float = LEVEL
    ) -> dict[str, Any]:
        """Columns of a table of K groups with d terms each, an intercept first in every group.

        `groups` are columns with a value for each of the K groups.
        """
        order = np.arange(len(terms))
        if len(terms) and terms[-1] == INTERCEPT:
            order = np.roll(order, 1)
        turned = Estimates(
            self.values[:, order],
            self.errors[:, order],
            np.broadcast_to(self.degrees, self.values.shape)[:, order],
        )
        named: dict[str, Any] = {
            name: np.repeat(np.asarray(each), len(terms)) for name, each in groups.items()
        }
        named["term"] = np.tile(np.array(terms, dtype=object)[order], len(self.values))
        return {**named, **turned.columns(level)}


def checked_level(level: float) -> float:
    """A confidence between 0 and 1, or a complaint."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level}")
    return float(level)


def terms_of(features: Sequence[str], n_coefficients: int) -> list[str]:
    """Names of coefficients: the features', and the intercept's if there is one more."""
    return [*map(str, features), INTERCEPT][:n_coefficients]


def root_of(variances: Array) -> Floats:
    """Standard errors; NaN where a variance is not known or none at all."""
    with np.errstate(invalid="ignore"):
        return np.sqrt(np.where(variances >= 0, variances, np.nan))
