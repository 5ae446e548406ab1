"""What a fit of FMLR knows of single sites, and what it says of their next rows.

Two classes answer the same questions: `PlainSites` where a site follows its regression exactly,
`DepartingSites` where it departs by degrees or has its own noise. They are made again from what a
result keeps, so a result that was read from a file answers them, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedkin.algorithms.fmlr_degrees import clients_for
from fedkin.algorithms.fmlr_result import FmlrResult
from fedkin.arrays import Floats, Indices
from fedkin.models.grouped_regression import noise_density, responsibilities
from fedkin.models.kinds_prediction import LEAST_DEGREES, KindsPosterior, Misfit, Mixture
from fedkin.models.least_squares import n_statistics

if TYPE_CHECKING:
    from fedkin.algorithms.fmlr import FmlrSettings


class Site(NamedTuple):
    """A site's probabilities of the regressions (K,), its own coefficients (d,), its statistics.

    Statistics (q,) are empty where they are not needed; zero for a site of which nothing is known.
    """

    share: Floats
    coef: Floats
    statistics: Floats


class PlainSites:
    """Sites that follow one of K regressions, with one noise."""

    def __init__(self, result: FmlrResult, settings: FmlrSettings) -> None:
        self.result, self.settings = result, settings

    @property
    def anybody(self) -> Site:
        """A site of which nothing is known."""
        return self._site(self.result.regular_weights)

    def of_fit(self, place: int) -> Site:
        """A site of the fit."""
        return self._site(self._shares[place])

    @cached_property
    def _shares(self) -> Floats:
        assert self.result.responsibilities is not None
        return self.result.regular_share(self.result.responsibilities)

    def _site(self, share: Floats) -> Site:
        return Site(share, share @ self.result.coef, np.zeros(0))

    def learn(self, statistics: Floats) -> list[Site]:
        """What statistics (q, m) tell of sites that were not in the fit."""
        noise = self.result.noise_group
        outside = None if noise is None else noise_density(statistics, noise)
        share, _ = responsibilities(statistics, self.result.parameters, outside)
        return [self._site(one) for one in self.result.regular_share(share[0].T)]

    def predict(self, X: Floats, sites: Sequence[Site], place: Indices) -> Mixture:
        """Predictive distributions of rows X (n, d) of sites[place]."""
        result = self.result
        n_rows = float(np.nansum(result.site_rows))
        left = max(n_rows - result.coef.size, LEAST_DEGREES)
        noise = float(result.sigma) ** 2
        if self.settings.sigma is None:
            # Maximum likelihood divides by the rows, not by what is left of them.
            noise *= n_rows / left
        errors = np.einsum("nd,kde,ne->nk", X, result.coef_covariance, X, optimize=True)
        weights = np.array([site.share for site in sites]).reshape(-1, result.n_components)[place]
        freedom = np.full(weights.shape, left if self.settings.sigma is None else np.inf)
        return Mixture(weights, X @ result.coef.T, noise + errors, freedom)


class DepartingSites:
    """Sites that depart from their kind, or have a noise of their own."""

    def __init__(self, result: FmlrResult, settings: FmlrSettings) -> None:
        self.result, self.settings = result, settings

    @cached_property
    def posterior(self) -> KindsPosterior:
        """The fit, made again."""
        result = self.result
        assert result.statistics is not None
        clients = clients_for(result.statistics, self.settings)
        return KindsPosterior(clients, result.kinds(), self._outside(result.statistics))

    def _outside(self, statistics: Floats) -> Floats | None:
        noise = self.result.noise_group
        return None if noise is None else noise_density(statistics, noise)

    @property
    def anybody(self) -> Site:
        """A site of which nothing is known."""
        share = self.result.regular_weights
        empty = np.zeros(n_statistics(self.result.coef.shape[1]))
        return Site(share, share @ self.result.coef, empty)

    @cached_property
    def _places(self) -> dict[int, int]:
        assert self.result.heard is not None
        return {int(k): i for i, k in enumerate(self.result.heard)}

    @cached_property
    def _shares(self) -> Floats:
        assert self.result.responsibilities is not None
        return self.result.regular_share(self.result.responsibilities)

    def of_fit(self, place: int) -> Site:
        """A site of the fit; one that was not heard is anybody."""
        if place not in self._places:
            return self.anybody
        assert self.result.site_coef is not None and self.result.statistics is not None
        own = self.result.statistics[:, self._places[place]]
        return Site(self._shares[place], self.result.site_coef[place], own)

    def learn(self, statistics: Floats) -> list[Site]:
        """What statistics (q, m) tell of sites that were not in the fit."""
        data = self.posterior.others(statistics)
        share, _ = self.posterior.groups(data, self._outside(statistics))
        effects, _ = self.posterior.effects(data, share)
        regular = self.posterior.regular(share).T
        own = regular @ self.result.coef + effects
        return [Site(*one) for one in zip(regular, own, statistics.T)]

    def predict(self, X: Floats, sites: Sequence[Site], place: Indices) -> Mixture:
        """Predictive distributions of rows X (n, d) of sites[place]."""
        data = self.posterior.others(np.array([site.statistics for site in sites]).T)
        share = np.array([site.share for site in sites]).T
        return self.posterior.predict(X, data, place, share)

    def misfit(self) -> Misfit:
        """How far the sites of the fit are from what it says of any."""
        return self.posterior.misfit(self.posterior.everybody.data, self.posterior.share)


def known_sites(result: FmlrResult, settings: FmlrSettings) -> PlainSites | DepartingSites:
    """What a fit knows of single sites."""
    return (PlainSites if result.way is None else DepartingSites)(result, settings)
