"""Rivals of FGPR that are Gaussian processes: each site alone, and all rows in one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedkin.algorithms.fgpr_result import NOTHING_LEARNT, FgprResult
from fedkin.algorithms.fgpr_settings import LocalSettings, OneDataSetSettings
from fedkin.algorithms.fgpr_sites import fit_personal, priors_of
from fedkin.arrays import Floats
from fedkin.estimators.curves import CurveEstimator, OneCurveEstimator, without_traffic
from fedkin.estimators.fgpr import FGPR, NothingLearntWarning
from fedkin.federation import Federation
from fedkin.models.gp_posterior import SiteCurve
from fedkin.models.gp_rows import Prepared, standardisation, standardised
from fedkin.protocol.runs import About
from fedkin.tables import Summary, Table

ROWS_LEFT = "This method shares data: all rows of all sites were brought together."
POOL = "all sites"
# The settings of FGPR that mean something in a fit to one data set.
_OPEN = ("kernel", "normalize_y", "mean", "max_points", "large_sites", "init", "max_rounds", "tol")
_LOCAL = {"optimizer": "none", "personalise": "own"}
_FIXED = {n: v for n, v in OneDataSetSettings.defaults().items() if n not in _OPEN}


class _GPRival(FGPR):
    """FGPR with the parameters that apply to fits of one data set."""

    def save_shared(self, path):
        """Not for a rival: nothing of it is shared by sites."""
        raise ValueError(f"{type(self).__name__} has no shared prior to save; FGPR has")


class LocalGP(_GPRival):
    """A Gaussian process at every site by itself; nothing is shared but its likelihood.

    Parameters
    ----------
    kernel : scikit-learn kernel, dict or None
        Where every site starts; None is ARD RBF times scale plus noise.
    mean : {"zero", "constant", "linear"}
        Mean function of each site's standardised target, with a vague prior ("zero": none).
    hyperprior : bool
        Whether hyper-parameters have weakly informative priors in units of the site's rows, and
        predictions average over what these leave open of them; without it is maximum likelihood,
        which may fit the noise of few rows to nothing.
    max_rounds : int
        Not used: no rounds are needed.
    tol : float
        Not used: sites search by themselves.
    random_state : int, RandomState or None
        Not used: nothing is drawn.

    Attributes
    ----------
    kernel_ : scikit-learn kernel
        The start.
    site_kernels_ : dict
        The fits by site, in process only.
    own_ : array of shape (m,)
        Whether a site could fit: with one row it keeps the start.
    log_marginal_likelihood_ : float
        Log likelihood of all rows, each under its site's fit.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import LocalGP
    >>> X = np.linspace(0, 3, 24)[:, None]
    >>> groups = np.tile(["north", "south"], 12)
    >>> y = np.sin(2 * X[:, 0]) + np.where(groups == "north", 10.0, 20.0)
    >>> LocalGP().fit(X, y, groups=groups).predict([[0.75]], groups="south").round(1)
    array([21.])
    """

    _settings = LocalSettings
    _fixed: ClassVar = {n: v for n, v in {**_FIXED, **_LOCAL}.items() if n != "hyperprior"}
    _plots = CurveEstimator._plots

    def _warn(self, federation: Federation | None) -> None:
        """Nothing is searched for together that could fail to settle."""
        if not self._result.learnt:
            self._warning(NOTHING_LEARNT, NothingLearntWarning)

    def _own_priors(self, site: Federation, k: int) -> tuple[np.ndarray, np.ndarray]:
        mode = self._result.site_theta[k]
        if not self._used.weak_priors:
            # Maximum likelihood, as people fit a curve of their own.
            return mode[None], np.ones(1)
        return self._cloud(site, mode, mode, np.inf)

    def adapt(self, X, y=None, groups=None):
        """Fit new sites by themselves."""
        clients = self._new_clients(X, y, groups)
        data, start = self._prepared(clients), self.theta_[0]
        for k, name in enumerate(clients.names):
            one, site = data.take(np.array([k])), clients.take([k])
            theta, weights = start[None], np.ones(1)
            if one.rows[0] > 1:
                theta, weights = self._fitted(site, one)
            self._curves[name] = self._conditioned(site, theta, weights)
        return self

    def _fitted(self, site: Federation, data: Prepared) -> tuple[np.ndarray, np.ndarray]:
        priors = None
        if self._used.weak_priors:
            priors = priors_of(site, self._form, float(data.scale[0]))
        mode = fit_personal(data, self._form, self.theta_[0], "own", priors)
        if priors is None:
            return mode[None], np.ones(1)
        return self._cloud(site, mode, mode, np.inf)


@dataclass(frozen=True, kw_only=True, eq=False)
class PooledResult(FgprResult):
    """FGPR's result of one client that holds all rows, and the units (m,) of every site."""

    location: Floats
    scale: Floats

    def title(self, about: About) -> str:
        """The fit in half a line."""
        return f"{len(about.sites)} sites as one, log likelihood {self.loglik:.6g}"

    def tables(self, about: About) -> dict[str, Table]:
        """The prior, and the units of the sites."""
        sites = {"site": about.sites, "location": self.location, "scale": self.scale}
        return {"priors": self.priors(about.settings), "sites": Table(sites, "Sites")}

    def account(self, about: About) -> list[str]:
        """What left the sites: everything."""
        return [ROWS_LEFT]

    def remarks(self, about: About) -> list[str]:
        """Nothing else: sites have no part of their own in it."""
        return []


class PooledGP(OneCurveEstimator, _GPRival):
    """One Gaussian process through the rows of all sites, each standardised by its own.

    Shares data. A new site is predicted in the units of the rows given to `adapt`, which do not
    change the curve.

    Parameters
    ----------
    kernel : scikit-learn kernel, dict or None
        Its values are the start; None is ARD RBF times scale plus noise.
    mean : {"zero", "constant", "linear"}
        Mean function of the standardised targets, with a vague prior ("zero": none).
    max_points : int
        If there are more rows, training is on random pieces of this size.
    large_sites : {"neighbours", "subset"}
        Whether predictions are then from the rows nearest to each point or a random subset.
    max_rounds : int
        The most evaluations of the search.
    tol : float
        The search ends when no entry of the gradient per row is larger.
    random_state : int, RandomState or None
        Not used: nothing is drawn.
    engine : engine or None
        None: the rows of all sites must be in this process.

    Attributes
    ----------
    kernel_ : scikit-learn kernel
        The fit.
    theta_ : array of shape (1, p)
        Its log hyper-parameters.
    log_marginal_likelihood_ : float
        Log likelihood of all rows, standardised.
    converged_ : bool
        Whether the search settled.
    history_ : dict
        "theta" and "value": points of the search and their negative log likelihoods per row.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import PooledGP
    >>> X = np.linspace(0, 3, 24)[:, None]
    >>> groups = np.repeat(["early", "late"], 12)
    >>> y = np.sin(2 * X[:, 0])
    >>> model = PooledGP(normalize_y=False).fit(X, y, groups=groups)
    >>> model.predict([[0.75]], groups="late").round(1)
    array([1.])
    """

    _settings = OneDataSetSettings
    _fixed: ClassVar = {**_FIXED, "personalise": "posterior"}
    _private = (*FGPR._private, "_units", "_pool")
    _data: Federation
    _pool: SiteCurve

    def _run_with(self, settings, federation):
        if federation is None:
            raise ValueError("PooledGP needs the rows of all sites in this process")
        location, scale, _ = standardisation(federation, self.normalize_y)
        plain = settings.replace(normalize_y=False)
        run = super()._run_with(plain, _pooled(federation, location, scale))
        self._data, run = federation, run.shared_by(federation.names)
        return replace(run, result=PooledResult(**run.result, location=location, scale=scale))

    def _read(self, run) -> None:
        super()._read(run)
        result, self._units = self._result, {}
        pool = _pooled(self._data, result.location, result.scale)
        self._pool = self._plan(normalize_y=False).given(pool, self.theta_, self.weights_)
        self._learn_units(self._data)

    def summary(self) -> Summary:
        """The prior and the sites' units as tables; prints as text, shows as HTML."""
        return without_traffic(super().summary())

    def _shared_curve(self) -> SiteCurve:
        return self._pool

    def _typical_units(self) -> tuple[float, float]:
        location, scale, varies = standardisation(self._data, self.normalize_y)
        rows = self._data.sizes * (varies if varies.any() else 1)
        share = rows / rows.sum()
        return float(share @ location), float(np.sqrt(share @ scale**2))


def _pooled(federation: Federation, location: Floats, scale: Floats) -> Federation:
    """One client with all rows, each site's target standardised."""
    return replace(federation, y=standardised(federation, location, scale)).pooled(POOL)
