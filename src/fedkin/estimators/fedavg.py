"""Rivals of FGPR with one curve for all sites: a polynomial or a network by FedAvg."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.fedavg import FEDAVG as ALGORITHM
from fedkin.estimators.base import check_choice, check_count, check_fraction, check_positive
from fedkin.estimators.curves import CurveEstimator
from fedkin.federation import Federation
from fedkin.models.averaged_functions import Network, legendre
from fedkin.models.gp_posterior import Independent
from fedkin.models.gp_rows import standardisation
from fedkin.tables import Summary, Table
from fedkin.ties import first_least

# Share of the sites held out to choose degree or depth.
HELD_OUT = 0.25


@dataclass(eq=False, repr=False)
class _FedAvgCurve(CurveEstimator):
    """What both have in common; `_size` names the parameter that is chosen when it is None."""

    _private = ("_position", "_frame", "_units")
    _model: ClassVar[str]
    _size: ClassVar[str]
    _candidates: ClassVar[tuple[int, ...]]
    _counts: ClassVar[tuple[str, ...]] = ("local_steps", "max_rounds")
    _rates: ClassVar[tuple[str, ...]] = ("learning_rate", "tol")

    _: KW_ONLY
    normalize_y: Any = True
    local_steps: Any = 5
    max_rounds: Any = 200
    tol: Any = 1e-6
    fraction: Any = 1.0
    random_state: Any = None
    engine: Any = None

    def fit(self, X=None, y=None, groups=None):
        """Fit to sites: rows X with outcome y and a site name per row, or a Federation."""
        self._forget()
        self._check_parameters()
        federation = self._federation(X, y, groups)
        if federation is not None and federation.y is None:
            raise ValueError(f"{type(self).__name__} needs an outcome y: it is None")
        size = getattr(self, self._size)
        self.choice_ = Table({self._size: np.zeros(0), "rmse": np.zeros(0)}, "Choice of size")
        if size is None:
            size = self._choose(federation)
        self.size_ = size
        self._read(self._run(ALGORITHM, self._settings(size), federation), federation)
        if not self.converged_:
            warnings.warn(
                f"the curve did not settle within max_rounds={self.max_rounds}; raise it or tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _check_parameters(self) -> None:
        check_choice("normalize_y", self.normalize_y, (True, "mean", False))
        if getattr(self, self._size) is not None:
            check_count(self._size, getattr(self, self._size))
        for name in self._counts:
            check_count(name, getattr(self, name))
        for name in self._rates:
            check_positive(name, getattr(self, name))
        check_fraction(self.fraction)

    def _choose(self, federation: Federation | None) -> int:
        """The size with the least error at training sites that were left out."""
        if federation is None:
            raise ValueError(f"{self._size}=None needs the rows of all sites in this process")
        by: Literal["clients", "rows"] = "clients" if federation.n_clients >= 4 else "rows"
        train, test = federation.split(HELD_OUT, by, 0)
        errors = []
        for size in self._candidates:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model = clone(self).set_params(**{self._size: size}).fit(train).adapt(test)
            errors.append(float(np.mean(model.evaluate(test)["rmse"])))
        columns = {self._size: np.array(self._candidates), "rmse": np.array(errors)}
        self.choice_ = Table(columns, f"{self._size} chosen on training sites held out")
        return self._candidates[first_least(errors)]

    def _settings(self, size: int) -> dict[str, Any]:
        names = set(ALGORITHM.defaults) & set(self.get_params())
        settings = {name: getattr(self, name) for name in names}
        return {**settings, "model": self._model, self._size: size}

    def _read(self, outcome, federation: Federation | None) -> None:
        result = outcome.result
        self.theta_, self._frame, self.noise_ = result["theta"], result["frame"], result["noise"]
        self.n_features_in_ = self._frame.shape[1]
        self.converged_ = bool(result["converged"])
        self.history_ = {"error": result["history_error"]}
        self._units: dict[str, tuple[float, float, float]] = {}
        if federation is not None:
            self._learn_units(federation)

    def _learn_units(self, clients: Federation) -> None:
        """Location and scale of sites with rows, and the rows by which they speak for others."""
        location, scale, varies = standardisation(clients, self.normalize_y)
        rows = np.where(varies, clients.sizes, 0)
        for k in np.flatnonzero(clients.sizes):
            self._units[clients.names[k]] = (location[k], scale[k], rows[k])

    def _typical_units(self) -> np.ndarray:
        """Location and scale of a site that is not known."""
        units = np.array(list(self._units.values()) or [(0.0, 1.0, 1.0)])
        rows = units[:, 2] if units[:, 2].any() else None
        return np.average(units[:, :2], axis=0, weights=rows)

    @abstractmethod
    def _values(self, Z: np.ndarray) -> np.ndarray:
        """Expected standardised outcomes at standardised rows."""

    def _curve(self, name: str) -> Independent:
        known = name in self._units
        location, scale = self._units[name][:2] if known else self._typical_units()

        def moments(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            mean = self._values((X - self._frame[0]) / self._frame[1])
            return location + scale * mean, np.full(len(X), scale * max(self.noise_, 1e-12))

        return Independent(moments)

    def adapt(self, X, y=None, groups=None):
        """Learn the units (mean and standard deviation) of new sites; the curve stays."""
        check_is_fitted(self)
        self._learn_units(self._new_rows(X, y, groups))
        return self

    def summary(self) -> Summary:
        """The account and, if a size was chosen, its curve."""
        check_is_fitted(self)
        title = f"{type(self).__name__}: {len(self.client_names_)} sites, {self._size} {self.size_}"
        tables = {"choice": self.choice_, "traffic": self._traffic_table()}
        return Summary(title, tables, [self._travelled()])


@dataclass(eq=False, repr=False)
class FedAvgPolynomial(_FedAvgCurve):
    """One polynomial for all sites' standardised outcomes, by FedAvg.

    Parameters
    ----------
    degree : int or None
        None chooses among 1..20 on training sites that are held out.
    normalize_y, local_steps, learning_rate, max_rounds, tol, fraction, random_state, engine
    """

    _model, _size, _candidates = "polynomial", "degree", tuple(range(1, 21))

    degree: Any = 10
    _: KW_ONLY
    learning_rate: Any = 0.5

    def _values(self, Z: np.ndarray) -> np.ndarray:
        return legendre(Z, self.size_) @ self.theta_


@dataclass(eq=False, repr=False)
class FedAvgNetwork(_FedAvgCurve):
    """One small network for all sites' standardised outcomes, by FedAvg.

    Parameters
    ----------
    depth : int or None
        Number of hidden tanh layers; None chooses among 1..5 on training sites held out.
    width, normalize_y, local_steps, learning_rate, server_rate, max_rounds, tol, fraction,
    random_state, engine
    """

    _model, _size, _candidates = "network", "depth", (1, 2, 3, 4, 5)
    _counts = (*_FedAvgCurve._counts, "width")
    _rates = (*_FedAvgCurve._rates, "server_rate")

    depth: Any = 2
    _: KW_ONLY
    width: Any = 16
    learning_rate: Any = 0.05
    server_rate: Any = 0.02

    def _values(self, Z: np.ndarray) -> np.ndarray:
        network = Network(self.n_features_in_, self.size_, self.width)
        return network.values(Z[None], self.theta_[None])[0]
