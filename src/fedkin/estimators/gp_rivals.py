"""Rivals of FGPR that are Gaussian processes: each site alone, all rows in one, co-kriging."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.fgpr import FGPR as ALGORITHM
from fedkin.algorithms.fgpr_sites import fit_personal
from fedkin.estimators.base import NOBODY, check_choice
from fedkin.estimators.curves import CurveEstimator
from fedkin.estimators.fgpr import FGPR
from fedkin.estimators.fgpr_account import prior_table
from fedkin.federation import Federation
from fedkin.frames import FederationError, Finding
from fedkin.models.cokriging import fit_cokriging
from fedkin.models.gp_posterior import Independent, Rescaled
from fedkin.models.gp_rows import prepare, standardisation
from fedkin.names import canonical_name
from fedkin.protocol import Traffic
from fedkin.tables import Summary, Table

SHARED = "This method shares data: all rows of all sites were brought together."
POOL = "all sites"


class _GPRival(FGPR):
    """FGPR's face with the parameters that apply to fits of one data set."""

    def __init__(
        self,
        kernel=None,
        *,
        normalize_y=True,
        mean="constant",
        max_points=500,
        large_sites="neighbours",
        init="auto",
        max_rounds=200,
        tol=1e-5,
        random_state=None,
        engine=None,
    ):
        self.kernel = kernel
        self.normalize_y = normalize_y
        self.mean = mean
        self.max_points = max_points
        self.large_sites = large_sites
        self.init = init
        self.max_rounds = max_rounds
        self.tol = tol
        self.random_state = random_state
        self.engine = engine

    def _as_fgpr(self) -> FGPR:
        """FGPR with these parameters: their rules are its; its others do not exist here."""
        return FGPR(**self.get_params(deep=False))

    def _check_parameters(self) -> None:
        self._as_fgpr()._check_parameters()

    def _settings(self) -> dict[str, Any]:
        return self._as_fgpr()._settings()

    def save_shared(self, path):
        """Not for a rival: nothing of it is shared by sites."""
        raise ValueError(f"{type(self).__name__} has no shared prior to save; FGPR has")


class LocalGP(_GPRival):
    """A Gaussian process at every site by itself; nothing is shared but its likelihood.

    Parameters and attributes as in `FGPR`; `kernel_` is the start, `site_kernels_` the fits.
    """

    _plots = CurveEstimator._plots

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "optimizer": "none", "personalise": "own"}

    def _warn(self) -> None:
        """Nothing is searched for together that could fail to settle."""

    def _own_priors(self, site: Federation, k: int) -> tuple[np.ndarray, np.ndarray]:
        # Maximum likelihood, as people fit a curve of their own.
        return self._site_theta[k][None], np.ones(1)

    def adapt(self, X, y=None, groups=None):
        """Fit new sites by themselves."""
        check_is_fitted(self)
        clients = self._new_rows(X, y, groups)
        data = prepare(clients, self.normalize_y, self.mean, self.max_points)
        start, bounds = self.theta_[0], (self._form.lower, self._form.upper)
        for k, name in enumerate(clients.names):
            theta = start
            if data.rows[k] > 1:
                theta = fit_personal(data.take(np.array([k])), self._form, start, *bounds, "own")
            site = clients.take([k])
            self._curves[name] = self._conditioned(site, theta[None], np.ones(1))
        return self


class PooledGP(_GPRival):
    """One Gaussian process through the rows of all sites, each standardised by its own.

    Shares data. A new site is predicted in the units of the rows given to `adapt`, which do not
    change the curve.
    """

    _private = (*FGPR._private, "_pool", "_units", "_typical")
    _units: dict[str, tuple[float, float]]

    def fit(self, X=None, y=None, groups=None):
        """Fit to sites; they must be in this process."""
        self._forget()
        self._check_parameters()
        federation = self._federation(X, y, groups)
        self._check_data(federation)
        if federation is None:
            raise ValueError("PooledGP needs the rows of all sites in this process")
        location, scale, varies = standardisation(federation, self.normalize_y)
        owner = federation.owner
        outcome = (federation.y - location[owner]) / scale[owner]
        pool = Federation.from_clients({POOL: (federation.X, outcome)})
        settings = {**self._settings(), "normalize_y": False, "personalise": "posterior"}
        self._read(self._run(ALGORITHM, settings, pool), pool)
        self._pool = self._conditioned(pool, self.theta_, self.weights_, normalize_y=False)
        self._units = {}
        self._learn_units(federation)
        # A site whose outcome does not vary has no scale to speak of, as in FGPR.
        rows = np.where(varies, federation.sizes, 0) if varies.any() else federation.sizes
        share = rows / rows.sum()
        self._typical = (float(share @ location), float(np.sqrt(share @ scale**2)))
        self._spread_over_sites(federation)
        self._warn()
        return self

    def _spread_over_sites(self, federation: Federation) -> None:
        """What was learnt of the pool holds at every site."""
        m = federation.n_clients
        self._data, self.client_names_ = federation, np.array(federation.names, dtype=object)
        self._position = {name: k for k, name in enumerate(federation.names)}
        for name in {"own_", "labels_", "responsibilities_", "jitter_"} & {*vars(self)}:
            setattr(self, name, np.repeat(getattr(self, name), m, axis=0))
        self.site_kernels_ = dict.fromkeys(federation.names, self.kernel_)

    def _learn_units(self, clients: Federation) -> None:
        location, scale, _ = standardisation(clients, self.normalize_y)
        for k in np.flatnonzero(clients.sizes):
            self._units[clients.names[k]] = (location[k], scale[k])

    def _curve(self, name: str) -> Rescaled:
        return Rescaled(self._pool, *self._units.get(name, self._typical))

    def adapt(self, X, y=None, groups=None):
        """Learn the units of new sites."""
        check_is_fitted(self)
        self._learn_units(self._new_rows(X, y, groups))
        return self

    def summary(self) -> Summary:
        """The pooled fit as tables."""
        check_is_fitted(self)
        units = [self._units.get(name, self._typical) for name in self.client_names_]
        sites = {"site": self.client_names_, "units": units}
        tables = {"priors": prior_table(self), "sites": Table(sites, "Location and scale")}
        title = f"PooledGP: {len(self.client_names_)} sites as one"
        return Summary(title, tables, [SHARED])


class CoKriging(CurveEstimator):
    """Autoregressive co-kriging: sites are fidelities, from the cheapest to the dearest.

    Shares data: the upper bound for what a federation could reach in multi-fidelity problems.

    Parameters
    ----------
    levels : list of site names from cheap to dear, None for their canonical order
    normalize_y : bool
        Standardise each level by its own mean and standard deviation.
    """

    _private = ("_units",)

    def __init__(self, levels=None, *, normalize_y=True, random_state=None, engine=None):
        self.levels = levels
        self.normalize_y = normalize_y
        self.random_state = random_state
        self.engine = engine

    def fit(self, X=None, y=None, groups=None):
        """Fit to sites; they must be in this process."""
        self._forget()
        check_choice("normalize_y", self.normalize_y, (True, "mean", False))
        federation = self._federation(X, y, groups)
        if federation is None or federation.y is None:
            raise ValueError("CoKriging needs the rows of all sites, with outcomes y")
        place = self._places(federation)
        location, scale, _ = standardisation(federation, self.normalize_y)
        owner = federation.owner
        outcome = (federation.y - location[owner]) / scale[owner]
        self.model_ = fit_cokriging(federation.X, outcome, place[owner])
        self.rho_ = self.model_.rho
        self._units = {
            n: (int(place[k]), location[k], scale[k]) for k, n in enumerate(federation.names)
        }
        self.client_names_ = np.array(federation.names, dtype=object)
        self.converged_, self.history_ = self.model_.converged, {"value": self.model_.values}
        self.n_rounds_, self.traffic_, self.refusals_, self.dropped_ = 0, Traffic(), (), ()
        return self

    def _places(self, federation: Federation) -> np.ndarray:
        """The level of every site; each must have rows."""
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

    def adapt(self, X, y=None, groups=None):
        """Not for co-kriging: its levels are fixed by the fit."""
        check_is_fitted(self)
        raise ValueError(self._levels_are_fixed(self._new_rows(X, y, groups).names[0]))

    def _levels_are_fixed(self, name: str) -> str:
        known = ", ".join(repr(one) for one in self._units)
        return (
            f"site {name!r}: co-kriging knows the levels {known} as they were in the fit; fit "
            "again with the site's rows, and with its place in levels"
        )

    def _curve(self, name: str) -> Independent:
        if name == NOBODY:
            raise ValueError("co-kriging needs groups: the name of the site of each row")
        if name not in self._units:
            raise ValueError(self._levels_are_fixed(name))
        level, location, scale = self._units[name]

        def moments(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            mean, variance = self.model_.predict(X, level)
            return location + scale * mean, scale * np.sqrt(variance)

        return Independent(moments)

    def summary(self) -> Summary:
        """Levels and how they hang together."""
        check_is_fitted(self)
        theta = self.model_.theta
        levels = {
            "level": np.arange(len(theta)),
            "site": sorted(self._units, key=lambda name: self._units[name][0]),
            "times the level below": np.append(np.nan, self.rho_),
            "scale": np.exp(theta[:, 0]),
            "noise": np.exp(theta[:, -1]),
        }
        title = f"CoKriging: {len(theta)} levels"
        notes = [SHARED] if self.converged_ else [SHARED, "The search did not come to its end."]
        return Summary(title, {"levels": Table(levels, "Levels")}, notes)
