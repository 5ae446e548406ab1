"""What can be set in a mixed model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.federation import Federation
from fedkin.models.linear_mixed import Method
from fedkin.models.random_covariance import Covariance, carried_covariance
from fedkin.settings import Flag, Number, Settings, Whole, one_of, setting

# In a list of columns: no random intercept beside the slopes.
WITHOUT_LEVEL = "-intercept"
# Families whose targets are linear in the coefficients but for noise.
GAUSSIAN = "gaussian"
CLASSES = "multinomial"
COUNTS = ("binomial", "poisson")
OTHERS = ("binomial", CLASSES, "poisson")
# Rows that a site of counts has for every departure where slopes differ, too, and where a full
# covariance is looked for: with fewer Laplace's method promises too much. 537 children of three yes
# or no (ohio of geepack): the log likelihood gains 28 by slopes, and new rows lose .435, not .338.
ROWS_A_SLOPE, ROWS_AN_EFFECT = 2, 5


class RandomColumns:
    """Which columns have random effects: all, the intercept, or a list of columns."""

    def accept(self, name: str, value: Any) -> Any:
        """A word, or columns as a tuple of names or positions."""
        if isinstance(value, str):
            return one_of("all", "intercept").accept(name, value)
        try:
            columns = tuple(value)
        except TypeError:
            columns = ()
        if not columns:
            raise ValueError(
                f"{name} must be 'all', 'intercept' or a list of columns, not {value!r}"
            )
        return tuple(int(c) if isinstance(c, int | np.integer) else str(c) for c in columns)


class OneColumn:
    """None, or a column by name or position."""

    def accept(self, name: str, value: Any) -> Any:
        """The column as an int or a str."""
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ValueError(f"{name} must be a column's name or position, not {value!r}")
        return int(value)


class MixedModelSettings(Settings):
    """What can be set; `fedkin.MixedModel` says what each does."""

    random: Any = setting("all", RandomColumns())
    family: str = setting(GAUSSIAN, one_of(GAUSSIAN, *OTHERS), at_site=True)
    method: Method = setting("reml", one_of("reml", "ml"))
    covariance: str = setting("auto", one_of("auto", "full", "diagonal", "isotropic"))
    site_noise: str = setting("common", one_of("common", "own"))
    share: str = setting("statistics", one_of("statistics", "gradients"))
    fit_intercept: bool = setting(True, Flag(), at_site=True)
    robust: bool = setting(False, Flag())
    trials: Any = setting(None, OneColumn(), at_site=True)
    offset: Any = setting(None, OneColumn(), at_site=True)
    n_quadrature: int = setting(1, Whole(), at_site=True)
    max_rounds: int = setting(25, Whole())
    tol: float = setting(1e-6, Number(above=0.0))
    # Whether rows have weights, which data say and nobody sets.
    weighted: bool = setting(False, Flag())

    @property
    def gaussian(self) -> bool:
        """Whether the target is normal around its mean."""
        return self.family == GAUSSIAN

    @property
    def in_rounds(self) -> bool:
        """Whether sites send values and slopes in rounds, and not sums once."""
        return not self.gaussian or self.share == "gradients"

    @property
    def beside(self) -> tuple[int, ...]:
        """Positions of columns that are no features."""
        return tuple(c for c in (self.trials, self.offset) if c is not None)

    def features(self, clients: Federation) -> Federation:
        """The federation without the columns of trials and offset."""
        if not self.beside:
            return clients
        kept = [j for j in range(clients.n_features) if j not in self.beside]
        names = tuple(clients.feature_names[j] for j in kept)
        return replace(clients, X=np.ascontiguousarray(clients.X[:, kept]), feature_names=names)

    def column(self, clients: Federation, which: Any, otherwise: float) -> Floats:
        """A column that is no feature, (N,); `otherwise` where none is named."""
        if which is None:
            return np.full(len(clients.X), otherwise)
        return np.asarray(clients.X[:, which])

    def random_columns(self, n_coef: int) -> Indices:
        """Positions of the columns with random effects; the intercept is the last."""
        if self.random == "all":
            return np.arange(n_coef)
        level = [n_coef - 1] if self.fit_intercept and WITHOUT_LEVEL not in self.random else []
        if self.random == "intercept":
            return np.array(level, dtype=np.intp)
        slopes = [column for column in self.random if column != WITHOUT_LEVEL]
        unknown = [c for c in slopes if not isinstance(c, int) or not 0 <= c < n_coef]
        if unknown:
            raise ValueError(f"random names columns that are not there: {unknown}")
        return np.array(sorted({*slopes, *level}), dtype=np.intp)

    def random_for(self, n_rows: Floats, n_coef: int) -> Indices:
        """Random columns at sites with `n_rows` (m,): of counts the level only where rows are few.

        Who names columns, or a covariance, gets them.
        """
        random = self.random_columns(n_coef)
        asked = self.gaussian or self.random != "all" or self.covariance != "auto"
        enough = n_rows.sum() >= ROWS_A_SLOPE * len(random) * np.count_nonzero(n_rows)
        return random if asked or enough or not self.fit_intercept else random[-1:]

    def covariance_for(self, n_rows: Floats, size: int) -> Covariance:
        """Of `size` random columns at sites with `n_rows` (m,): as asked for, or as they carry."""
        if self.covariance == "auto":
            return carried_covariance(n_rows, size, 0 if self.gaussian else ROWS_AN_EFFECT)
        return self.covariance  # type: ignore[return-value]

    def check_together(self) -> None:
        """Complain about values that do not go together."""
        if self.random == "intercept" and not self.fit_intercept:
            raise ValueError("random='intercept' needs fit_intercept=True")
        if self.trials is not None and self.family != "binomial":
            raise ValueError(f"trials are for family='binomial', not {self.family!r}")
        if self.in_rounds and (self.robust or self.site_noise == "own"):
            word = "robust=True" if self.robust else "site_noise='own'"
            raise ValueError(
                f"{word} needs the sites' statistics: family='gaussian' and share='statistics'"
            )
        if self.family == CLASSES:
            self._check_classes()
        if self.n_quadrature > 1 and self.gaussian:
            raise ValueError(
                "n_quadrature is for families other than 'gaussian', which needs no quadrature"
            )

    def _check_classes(self) -> None:
        """With classes all columns differ between sites, by Laplace's method, without offset."""
        if self.random != "all" or self.n_quadrature > 1 or self.offset is not None:
            raise ValueError(
                "family='multinomial' takes random='all', n_quadrature=1 and no offset; for two "
                "classes family='binomial' takes others"
            )
