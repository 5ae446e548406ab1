"""Co-kriging as a scikit-learn estimator: what a federation of fidelities could reach at best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.fgpr_settings import NORMALIZE_Y
from fedkin.arrays import Array, Floats, Indices
from fedkin.estimators.base import NOBODY
from fedkin.estimators.curves import CurveEstimator, without_traffic
from fedkin.estimators.gp_rivals import ROWS_LEFT
from fedkin.federation import Federation
from fedkin.frames import FederationError, Finding
from fedkin.models.cokriging import CoKriged, fit_cokriging
from fedkin.models.curves import Independent, Rescaled
from fedkin.models.gp_rows import standardisation, standardised
from fedkin.names import canonical_name
from fedkin.protocol import Result, Roster, Run, Traffic
from fedkin.protocol.runs import About
from fedkin.settings import Settings, setting
from fedkin.tables import Summary, Table


class CoKrigingSettings(Settings):
    """What can be set; `fedkin.CoKriging` says what each does."""

    levels: Any = setting(None)
    normalize_y: Any = setting(True, NORMALIZE_Y)


@dataclass(frozen=True, kw_only=True, eq=False)
class CoKrigingResult(Result):
    """Parameters of T levels, (T, d + 2) and (T - 1,), and level and units of m sites, (m,)."""

    theta: Floats
    rho: Floats
    history_value: Floats
    converged: Array
    level: Indices
    location: Floats
    scale: Floats

    def title(self, about: About) -> str:
        """The fit in half a line."""
        return f"{len(self.theta)} levels"

    def tables(self, about: About) -> dict[str, Table]:
        """Levels and how they hang together."""
        levels = {
            "level": np.arange(len(self.theta)),
            "site": about.sites[np.argsort(self.level)],
            "times the level below": np.append(np.nan, self.rho),
            "scale": np.exp(self.theta[:, 0]),
            "noise": np.exp(self.theta[:, -1]),
        }
        return {"levels": Table(levels, "Levels")}

    def account(self, about: About) -> list[str]:
        """What left the sites: everything."""
        return [ROWS_LEFT]

    def remarks(self, about: About) -> list[str]:
        """Whether the search came to its end."""
        return [] if self.converged else ["The search did not come to its end."]


class CoKriging(CurveEstimator):
    """Every level (site) is a multiple of the one below plus a curve of its own.

    Shares data: the upper bound for what a federation could reach in multi-fidelity problems.

    Parameters
    ----------
    levels : list of site names or None
        The sites from cheap to dear; None for the order of their names.
    normalize_y : {True, "mean", False}
        Standardise each level by its own mean and standard deviation, its mean, or not.
    random_state : int, RandomState or None
        Not used: nothing is drawn.
    engine : engine or None
        None: the rows of all sites must be in this process.

    Attributes
    ----------
    rho_ : array of shape (T - 1,)
        By what each level multiplies the one below.
    model_ : CoKriged
        Rows and parameters of all levels.
    client_names_ : array of shape (T,)
        Names of the sites.
    converged_ : bool
        Whether the search came to its end.
    history_ : dict
        "value": negative log likelihoods per row that the search saw.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import CoKriging
    >>> X = np.linspace(0, 3, 24)[:, None]
    >>> groups = np.tile(["cheap", "dear"], 12)
    >>> y = np.sin(2 * X[:, 0]) * np.where(groups == "dear", 2.0, 1.0)
    >>> model = CoKriging(["cheap", "dear"], normalize_y=False).fit(X, y, groups=groups)
    >>> model.rho_.round(1)
    array([2.])
    """

    _settings = CoKrigingSettings
    _data: Federation

    def _run_with(self, settings, federation):
        if federation is None:
            raise ValueError("CoKriging needs the rows of all sites in this process")
        level = self._levels(federation)
        self._data = federation
        location, scale, _ = standardisation(federation, settings.normalize_y)
        target = standardised(federation, location, scale)
        model = self.model_ = fit_cokriging(federation.X, target, level[federation.owner])
        result = CoKrigingResult(
            theta=model.theta,
            rho=model.rho,
            history_value=model.values,
            converged=np.bool_(model.converged),
            level=level,
            location=location,
            scale=scale,
        )
        return Run(result, Roster(federation.names), Traffic(), ())

    def _levels(self, federation: Federation) -> Indices:
        """The level of every site, (m,); each must have rows."""
        names = list(federation.names)
        if self.levels is not None:
            names = [canonical_name(name) for name in self.levels]
        if sorted(names) != sorted(federation.names):
            raise ValueError(f"levels must name every site once: {', '.join(federation.names)}")
        remedy = "a level of co-kriging needs some: give it rows or leave the site out"
        empty = [federation.names[k] for k in np.flatnonzero(federation.sizes == 0)]
        if empty:
            raise FederationError([Finding("error", n, "has no rows", remedy) for n in empty])
        return np.array([names.index(name) for name in federation.names])

    _private = (*CurveEstimator._private, "_data")

    def _take_rows(self, rows: Federation) -> None:
        if not rows.sizes.all():
            raise ValueError("co-kriging predicts from the rows of all its sites; some are missing")
        super()._take_rows(rows)

    def _read(self, run) -> None:
        if not hasattr(self, "model_"):  # read from files
            rows, result = self._data, run.result
            target = standardised(rows, result.location, result.scale)
            level = result.level[rows.owner]
            self.model_ = CoKriged(rows.X, target, level, result.theta, result.rho)
        self.n_features_in_ = self.model_.X.shape[1]
        self.rho_ = run.result.rho
        self.converged_ = bool(run.result.converged)
        self.history_ = {"value": run.result.history_value}

    def _warn(self, federation: Federation | None) -> None:
        """A search that was cut short is told in the summary."""

    def summary(self) -> Summary:
        """Levels and how they hang together; prints as text, shows as HTML."""
        return without_traffic(super().summary())

    # ------------------------------------------------------------ use

    def adapt(self, X, y=None, groups=None):
        """Not for co-kriging: its levels are fixed by the fit."""
        check_is_fitted(self)
        raise ValueError(self._levels_are_fixed(self._new_clients(X, y, groups).names[0]))

    def _levels_are_fixed(self, name: str) -> str:
        known = ", ".join(repr(one) for one in self.client_names_)
        return (
            f"site {name!r}: co-kriging knows the levels {known} as they were in the fit; fit "
            "again with the site's rows, and with its place in levels"
        )

    def _curve(self, name: str) -> Rescaled:
        if name == NOBODY:
            raise ValueError("co-kriging needs groups: the name of the site of each row")
        if name not in self._position:
            raise ValueError(self._levels_are_fixed(name))
        k, result = self._position[name], self._result

        def moments(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            mean, variance = self.model_.predict(X, int(result.level[k]))
            return mean, np.sqrt(variance)

        return Rescaled(Independent(moments), float(result.location[k]), float(result.scale[k]))
