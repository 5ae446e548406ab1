"""What estimators of site curves share: prediction, samples, density, scores by site."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from fedkin.estimators.base import (
    NOBODY,
    FederatedEstimator,
    check_choice,
    check_count,
    check_values,
)
from fedkin.federation import Federation
from fedkin.tables import Table

# Two-sided normal quantile of the intervals in tables.
NORMAL_95 = 1.959963984540054


class Curve(Protocol):
    """What one site's rows are predicted with."""

    def predict(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of new outcomes."""

    def log_density(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Log predictive density of every outcome."""

    def sample(self, X: np.ndarray, n_samples: int, rng: np.random.Generator) -> np.ndarray:
        """Joint samples, (n, n_samples)."""


class CurveEstimator(RegressorMixin, FederatedEstimator, ABC):
    """Common ground; subclasses give the curve of a site by name, known or not."""

    _plots: tuple[str, ...] = ("bands", "calibration")

    @abstractmethod
    def _curve(self, name: str) -> Curve:
        """What a site's rows are predicted with."""

    def predict(self, X, groups=None, return_std=False):
        """Expected outcome of each row at its site; with `return_std` also the standard deviation
        of a new outcome (noise included)."""
        check_is_fitted(self)
        rows, names = self._rows_and_sites(X, groups)
        mean, std = np.empty(len(rows)), np.empty(len(rows))
        for name, where in _by_site(names):
            mean[where], std[where] = self._curve(name).predict(rows[where])
        return (mean, std) if return_std else mean

    def sample_y(self, X, groups=None, n_samples=1, random_state=0):
        """Joint samples of each site's outcomes, (n, n_samples)."""
        check_is_fitted(self)
        check_count("n_samples", n_samples)
        rows, names = self._rows_and_sites(X, groups)
        seed = check_random_state(random_state).randint(2**31 - 1)
        rng = np.random.default_rng(seed)
        drawn = np.empty((len(rows), n_samples))
        for name, where in _by_site(names):
            drawn[where] = self._curve(name).sample(rows[where], n_samples, rng)
        return drawn

    def log_predictive_density(self, X, y=None, groups=None):
        """Log density of each outcome given the site's model, (n,)."""
        check_is_fitted(self)
        rows, names = self._rows_and_sites(X, groups)
        outcomes = outcomes_of(X, y, names)
        density = np.empty(len(rows))
        for name, where in _by_site(names):
            density[where] = self._curve(name).log_density(rows[where], outcomes[where])
        return density

    def evaluate(self, X, y=None, groups=None) -> Table:
        """Held-out scores by site: RMSE, coverage of 95 % intervals, log predictive density."""
        check_is_fitted(self)
        rows, names = self._rows_and_sites(X, groups)
        outcomes = outcomes_of(X, y, names)
        columns: dict[str, list[Any]] = {
            key: [] for key in ("site", "rows", "rmse", "coverage", "log density")
        }
        for name, where in _by_site(names):
            curve = self._curve(name)
            mean, std = curve.predict(rows[where])
            error = outcomes[where] - mean
            columns["site"].append(name)
            columns["rows"].append(len(where))
            columns["rmse"].append(float(np.sqrt(np.mean(error**2))))
            columns["coverage"].append(float(np.mean(np.abs(error) <= NORMAL_95 * std)))
            density = curve.log_density(rows[where], outcomes[where])
            columns["log density"].append(float(density.mean()))
        made = {key: np.array(value) for key, value in columns.items()}
        return Table(made, "Held-out scores")

    def score(self, X, y=None, groups=None, sample_weight=None):
        """Coefficient of determination of `predict`."""
        predicted = self.predict(X, groups)
        _, names = self._rows_and_sites(X, groups)
        return r2_score(outcomes_of(X, y, names), predicted, sample_weight=sample_weight)

    def plot(self, kind="bands", ax=None, *, data=None, site=None):
        """Draw "bands" (a site's curve) or "calibration"; Gaussian processes with a shared prior
        also "samples" (of that prior) and "convergence".

        `data` is a Federation, None for the rows of the fit; `site` is the one whose band is
        drawn, None for the largest.
        """
        check_is_fitted(self)
        check_choice("kind", kind, self._plots)
        from fedkin.estimators import curve_plots

        return curve_plots.plot(self, kind, ax, data, site)

    def _new_rows(self, X: Any, y: Any, groups: Any) -> Federation:
        """Rows of sites given to `adapt`."""
        if isinstance(X, Federation):
            clients = self._with_columns_of_the_fit(X)
        else:
            rows, names = self._rows_and_sites(X, groups)
            if len(names) and names[0] == NOBODY:
                raise ValueError("adapt needs groups: the name of the site of each row")
            clients = Federation.from_groups(rows, names, y)
        if clients.y is None:
            raise ValueError("adapt needs the outcome y of the new sites' rows")
        return clients


def outcomes_of(X: Any, y: Any, names: np.ndarray) -> np.ndarray:
    """The outcomes of rows at these sites, all of them numbers."""
    target = "y"
    if isinstance(X, Federation) and y is None:
        y, target = X.y, X.target_name or target
    if y is None:
        raise ValueError("the outcomes y are needed")
    outcomes = np.asarray(y, dtype=np.float64)
    if outcomes.shape != names.shape:
        raise ValueError(f"there are {outcomes.size} outcomes for {len(names)} rows")
    if not np.isfinite(outcomes).all():
        check_values([(f"target {target!r}", outcomes)], names)
    return outcomes


def _by_site(names: np.ndarray):
    """Each distinct site with the positions of its rows."""
    distinct, codes = np.unique(names, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    cuts = np.cumsum(np.bincount(codes, minlength=len(distinct)))[:-1]
    yield from zip(map(str, distinct), np.split(order, cuts))
