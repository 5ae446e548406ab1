"""Rivals of FGPR with one curve for all sites: a polynomial or a network by FedAvg."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from fedkin.algorithms.fedavg import FEDAVG, FedAvgSettings, NetworkSettings, PolynomialSettings
from fedkin.estimators.curves import CurveEstimator, OneCurveEstimator
from fedkin.federation import Federation
from fedkin.models.averaged_functions import Network, legendre
from fedkin.models.curves import Independent
from fedkin.protocol import Run
from fedkin.ties import first_least

# Share of the sites held out to choose degree or depth.
HELD_OUT = 0.25
# A deviation that counts as none, but can be divided by.
LEAST_NOISE = 1e-12


class _FedAvgCurve(OneCurveEstimator):
    """What both have in common: their size is chosen at sites held out when it is None."""

    _algorithm = FEDAVG
    _private = (*CurveEstimator._private, "_units")
    _candidates: ClassVar[tuple[int, ...]]

    def _run_with(self, settings, federation) -> Run:
        choice = None
        if settings.size is None:
            choice = self._choice(settings, federation)
            settings = settings.replace(
                **{settings.size_name: int(choice[first_least(choice[:, 1]), 0])}
            )
        self._units = {}
        if federation is not None:
            self._learn_units(federation)
        run = super()._run_with(settings, federation)
        return replace(run, result=replace(run.result, choice=choice))

    def _choice(self, settings: FedAvgSettings, federation: Federation | None) -> np.ndarray:
        """Sizes and their errors at training sites that were left out."""
        name = settings.size_name
        if federation is None:
            raise ValueError(f"{name}=None needs the rows of all sites in this process")
        by: Literal["clients", "rows"] = "clients" if federation.n_clients >= 4 else "rows"
        train, test = federation.split(HELD_OUT, by, 0)
        errors = []
        for size in self._candidates:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model = clone(self).set_params(**{name: size}).fit(train).adapt(test)
            errors.append(float(np.mean(model.evaluate(test)["rmse"])))
        return np.column_stack([self._candidates, errors])

    def _read(self, run) -> None:
        result = run.result
        self.theta_, self.noise_ = result.theta, float(result.noise)
        self.n_features_in_ = result.frame.shape[1]
        self.size_ = int(result.size)
        self.choice_ = result.choice_table(self._used)
        self.converged_ = bool(result.converged)
        self.history_ = {"error": result.history_error}

    def _kept_at_sites(self) -> dict[str, dict[str, np.ndarray]]:
        return {name: {"units": np.array(units)} for name, units in self._units.items()}

    def _take_at_sites(self, parts) -> None:
        self._units = {
            name: tuple(own["units"].tolist()) for name, own in parts.items() if "units" in own
        }

    def _typical_units(self) -> tuple[float, float]:
        units = np.array(list(self._units.values()) or [(0.0, 1.0, 1.0)])
        rows = units[:, 2] if units[:, 2].any() else None
        location, scale = np.average(units[:, :2], axis=0, weights=rows)
        return float(location), float(scale)

    def _shared_curve(self) -> Independent:
        centre, reach = self._result.frame

        def moments(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            mean = self._values((X - centre) / reach)
            return mean, np.full(len(X), max(self.noise_, LEAST_NOISE))

        return Independent(moments)

    @abstractmethod
    def _values(self, inputs: np.ndarray) -> np.ndarray:
        """Expected standardised targets at rows in the common frame."""


class FedAvgPolynomial(_FedAvgCurve):
    """One polynomial for all sites' standardised targets, by FedAvg.

    Parameters
    ----------
    degree : int or None
        Degree in each feature; None chooses among 1..20 on training sites that are held out.
    learning_rate : float
        Their size, in units of the largest that is safe at every site.
    random_state : int, RandomState or None
        Decides who is asked.

    Attributes
    ----------
    theta_ : array of shape (1 + d * degree,)
        Coefficients of Legendre polynomials of the features in a common frame.
    noise_ : float
        Standard deviation of the standardised targets about the curve.
    size_ : int
        The degree.
    choice_ : Table
        Errors of the degrees that were tried.
    converged_ : bool
        Whether averaging settled.
    history_ : dict
        "error": mean squared error of the standardised targets by round.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import FedAvgPolynomial
    >>> X = np.linspace(0, 3, 24)[:, None]
    >>> groups = np.tile(["north", "south"], 12)
    >>> model = FedAvgPolynomial(1, normalize_y=False).fit(X, 5 + 2 * X[:, 0], groups=groups)
    >>> model.predict([[2.0]], groups="north").round(1)
    array([9.])
    """

    _settings = PolynomialSettings
    _fixed: ClassVar = {"model": "polynomial", "depth": 2, "width": 16, "server_rate": 0.02}
    _candidates = tuple(range(1, 21))

    def _values(self, inputs: np.ndarray) -> np.ndarray:
        return legendre(inputs, self.size_) @ self.theta_


class FedAvgNetwork(_FedAvgCurve):
    """One small network for all sites' standardised targets, by FedAvg.

    Parameters
    ----------
    depth : int or None
        Number of hidden tanh layers; None chooses among 1..5 on training sites held out.
    width : int
        Units of each layer.
    learning_rate : float
        Their size.
    server_rate : float
        Size of the server's Adam steps along the averaged change.
    random_state : int, RandomState or None
        Decides the first weights, and who is asked.

    Attributes
    ----------
    theta_ : array of shape (p,)
        Weights and biases, layer by layer.
    noise_ : float
        Standard deviation of the standardised targets about the curve.
    size_ : int
        The depth.
    choice_ : Table
        Errors of the depths that were tried.
    converged_ : bool
        Whether averaging settled.
    history_ : dict
        "error": mean squared error of the standardised targets by round.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import FedAvgNetwork
    >>> X = np.linspace(0, 3, 24)[:, None]
    >>> groups = np.tile(["north", "south"], 12)
    >>> model = FedAvgNetwork(1, width=4, tol=0.01, random_state=0)
    >>> model.fit(X, 5 + 2 * X[:, 0], groups=groups).score(X, 5 + 2 * X[:, 0], groups) > 0.9
    True
    """

    _settings = NetworkSettings
    _fixed: ClassVar = {"model": "network", "degree": 10}
    _candidates = (1, 2, 3, 4, 5)

    def _values(self, inputs: np.ndarray) -> np.ndarray:
        network = Network(self.n_features_in_, self.size_, self.width)
        return network.values(inputs[None], self.theta_[None])[0]
