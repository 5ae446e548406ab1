"""What estimators of site curves share: prediction, samples, density, scores by site."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import ndtri
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from fedkin.estimators.base import SHARED_WORDS, FederatedEstimator, check_values
from fedkin.federation import Federation
from fedkin.models.common_site import CommonSiteCurve, foresee
from fedkin.models.curves import Curve, Rescaled
from fedkin.models.estimates import checked_level
from fedkin.models.gp_rows import standardisation
from fedkin.settings import Whole, one_of
from fedkin.tables import Summary, Table

# Two-sided normal quantile of the intervals in tables and pictures.
NORMAL_95 = float(ndtri(0.975))

WORDS = SHARED_WORDS | {
    "max_points": """
max_points : int
    Larger sites are trained on random pieces of this size.
""",
    "large_sites": """
large_sites : {"neighbours", "subset"}
    Whether such sites are predicted from the rows nearest to each point or a random subset.
""",
    "normalize_y": """
normalize_y : {True, "mean", False}
    Standardise each site's target by its own mean and standard deviation, its mean, or not.
""",
    "init": """
init : "auto" or array of shape (p,)
    Log hyper-parameters to start from, in the kernel's order.
""",
    "local_steps": """
local_steps : int
    Gradient steps that a site takes by itself in a round.
""",
    "tol": """
tol : float
    Averaging ends when no parameter moves by more.
""",
}


class CurveEstimator(RegressorMixin, FederatedEstimator, ABC):
    """Common ground; subclasses give the curve of a site by name, known or not."""

    _words = WORDS
    _adapts_by_rows = True

    _plots: tuple[str, ...] = ("bands", "calibration")

    @abstractmethod
    def _curve(self, name: str) -> Curve:
        """What a site's rows are predicted with."""

    def predict(self, X, groups=None, return_std=False, level=None):
        """Expected target of each row at its site.

        With `return_std` also the standard deviation of a new target, noise included; with `level`
        the ends of normal intervals, (n, 2), that hold a new target with this probability.
        """
        level = None if level is None else checked_level(level)
        rows, names = self._checked_rows(X, groups)
        mean, std = np.empty(len(rows)), np.empty(len(rows))
        for curve, where in self._by_site(names, rows):
            mean[where], std[where] = curve.predict(rows[where])
        if not return_std and level is None:
            return mean
        reach = 0.0 if level is None else float(ndtri(0.5 + level / 2)) * std
        ends = np.stack([mean - reach, mean + reach], axis=1)
        return (mean, *[std] * bool(return_std), *[ends] * (level is not None))

    def sample_y(self, X, groups=None, n_samples=1, random_state=0):
        """Joint samples of each site's targets, (n, n_samples)."""
        rows, names = self._checked_rows(X, groups)
        n_samples = Whole().accept("n_samples", n_samples)
        seed = check_random_state(random_state).randint(2**31 - 1)
        rng = np.random.default_rng(seed)
        drawn = np.empty((len(rows), n_samples))
        for curve, where in self._by_site(names):
            drawn[where] = curve.sample(rows[where], n_samples, rng)
        return drawn

    def log_predictive_density(self, X, y=None, groups=None):
        """Log density of each target given the site's model, (n,)."""
        rows, names = self._checked_rows(X, groups)
        target = target_of(X, y, names)
        density = np.empty(len(rows))
        for curve, where in self._by_site(names, rows):
            density[where] = curve.log_density(rows[where], target[where])
        return density

    def evaluate(self, X, y=None, groups=None) -> Table:
        """Held-out scores by site: RMSE, coverage of 95 % intervals, log predictive density."""
        _, names = self._checked_rows(X, groups)
        mean, std = self.predict(X, groups, return_std=True)
        error = target_of(X, y, names) - mean
        sites, codes, rows = np.unique(names.astype(str), return_inverse=True, return_counts=True)

        def by_site(scores: np.ndarray) -> np.ndarray:
            return np.bincount(codes, scores, minlength=len(sites)) / rows

        columns = {
            "site": sites,
            "rows": rows,
            "rmse": np.sqrt(by_site(error**2)),
            "coverage": by_site(np.abs(error) <= NORMAL_95 * std),
            "log density": by_site(self.log_predictive_density(X, y, groups)),
        }
        return Table(columns, "Held-out scores")

    def score(self, X, y=None, groups=None, sample_weight=None):
        """Coefficient of determination of `predict`; a Federation has its own y."""
        _, names = self._checked_rows(X, groups)
        target = target_of(X, y, names)
        return r2_score(target, self.predict(X, groups), sample_weight=sample_weight)

    def plot(self, kind="bands", ax=None, *, data=None, site=None):
        """Draw "bands" (a site's curve) or "calibration".

        Gaussian processes with a shared prior also draw "samples" of that prior and "convergence".
        `data` is a Federation, None for the rows of the fit; `site` is the one whose band is
        drawn, None for the largest.
        """
        check_is_fitted(self)
        one_of(*self._plots).accept("kind", kind)
        from fedkin.estimators import curve_plots

        return curve_plots.plot(self, kind, ax, data, site)

    def _checked_rows(self, X: Any, groups: Any) -> tuple[np.ndarray, np.ndarray]:
        check_is_fitted(self)
        return self._rows_and_sites(X, groups)

    def _by_site(
        self, names: np.ndarray, rows: np.ndarray | None = None
    ) -> Iterator[tuple[Curve, np.ndarray]]:
        """Each distinct site's curve with the positions of its rows.

        With `rows`, curves that can be asked many at once are, before they are asked one by one.
        """
        distinct, codes = np.unique(names, return_inverse=True)
        cuts = np.cumsum(np.bincount(codes, minlength=len(distinct)))[:-1]
        places = np.split(np.argsort(codes, kind="stable"), cuts)
        found = ((self._curve(str(name)), where) for name, where in zip(distinct, places))
        if rows is None:
            yield from found
            return
        curves = list(found)
        foresee([(c, rows[where]) for c, where in curves if isinstance(c, CommonSiteCurve)])
        yield from curves


class OneCurveEstimator(CurveEstimator):
    """One curve of standardised targets for all sites, at each in the site's own units."""

    _units: dict[str, tuple[float, float, float]]
    """Location and scale by site, and the rows by which it speaks for others."""

    @abstractmethod
    def _shared_curve(self) -> Curve:
        """The curve of standardised targets."""

    @abstractmethod
    def _typical_units(self) -> tuple[float, float]:
        """Location and scale of a site that is not known."""

    def _learn_units(self, clients: Federation) -> None:
        location, scale, varies = standardisation(clients, self.normalize_y)
        # A site whose target does not vary has no scale to speak of.
        rows = np.where(varies, clients.sizes, 0)
        for k in np.flatnonzero(clients.sizes):
            self._units[clients.names[k]] = (location[k], scale[k], rows[k])

    def _units_of(self, name: str) -> tuple[float, float]:
        return self._units[name][:2] if name in self._units else self._typical_units()

    def _curve(self, name: str) -> Rescaled:
        return Rescaled(self._shared_curve(), *self._units_of(name))

    def adapt(self, X, y=None, groups=None):
        """Learn the units (mean and standard deviation) of new sites; the curve stays."""
        self._learn_units(self._new_clients(X, y, groups))
        return self


def without_traffic(summary: Summary) -> Summary:
    """The summary of a fit for which rows were brought together: no messages to tell of."""
    tables = {name: table for name, table in summary.tables.items() if name != "traffic"}
    return Summary(summary.title, tables, summary.notes[1:])


def target_of(X: Any, y: Any, names: np.ndarray) -> np.ndarray:
    """The target of rows at these sites, all of them numbers."""
    target_name = "y"
    if isinstance(X, Federation) and y is None:
        y, target_name = X.y, X.target_name or target_name
        y = None if y is None else y[X.given_order]
    if y is None:
        raise ValueError("the target y is needed")
    target = np.asarray(y, dtype=np.float64)
    if target.shape != names.shape:
        raise ValueError(f"y has {target.size} values for {len(names)} rows")
    if not np.isfinite(target).all():
        check_values([(f"target {target_name!r}", target)], names)
    return target
