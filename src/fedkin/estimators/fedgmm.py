"""The face of FedGMM: regressions whose weights depend on where x lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.algorithms.fedgmm import FEDGMM
from fedkin.estimators.base import check_count
from fedkin.estimators.mixture_rivals import SUMS_LEFT
from fedkin.estimators.mixture_use import WEIGHT_PASSES, WEIGHT_TOL
from fedkin.estimators.mixtures import JoiningEstimator
from fedkin.federation import Federation
from fedkin.models import joint_mixture as joint
from fedkin.models import regression_mixture as regression
from fedkin.models.latent_classes import mixture_weights

MOMENTS_LEFT = "Each site also sent sums of its x and of products of its x."


@dataclass(eq=False, repr=False)
class FedGMM(JoiningEstimator):
    """Shared components of x and shared regressions, pair weights of a site (Wu et al. 2023).

    n_input_components : number of components of x (M). Regressions only. Other parameters and
    attributes are those of `FedGrEM`; also `input_centers_` (M, d), `input_covariances_` (M, d, d)
    and, in process, `pair_weights_` (m, M, R), of which `weights_` are the sums over M.

    Where x lies tells which regressions are likely there, P(r | x); predictions and densities of y
    use it. A site that was not in the fit has the sites' average pair weights until `adapt`, or
    until its y are given.
    """

    _algorithm = FEDGMM

    family: Any = "regression"
    n_input_components: Any = 3
    sigma: Any = None
    fit_intercept: Any = False
    max_rounds: Any = 500

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.family != "regression":
            raise ValueError(
                "FedGMM models an outcome y beside x: family='regression'. For Gaussian mixtures "
                "use FedEM, TGMM or FedGrEM"
            )
        check_count("n_input_components", self.n_input_components)

    def _read(self, outcome) -> None:
        super()._read(outcome)
        self.input_centers_ = outcome.result["input_centers"]
        self.input_covariances_ = outcome.result["input_covariances"]
        pairs = (outcome.memories or {}).get("pairs")
        if pairs is not None:
            known = (self._heard & (pairs.sum(axis=(1, 2)) > 0))[:, None, None]
            self.pair_weights_ = np.where(known, pairs, pairs[known[:, 0, 0]].mean(axis=0))

    # ------------------------------------------------------------ use

    def _weights_of(self, clients: Federation) -> np.ndarray:
        """Pair weights of these sites, (k, M, R)."""
        shape = (len(self.input_centers_), self.n_components)
        even = np.full(shape, 1.0 / np.prod(shape))
        fitted = getattr(self, "pair_weights_", None)
        pairs, learn = self._own_or_average(clients, self._known(clients), fitted, even)
        if clients.y is not None:
            for k in np.flatnonzero(learn & (clients.sizes > 0)):
                # A pair that no site of the fit has would have weight zero for ever.
                start = (pairs[k] + even) / 2
                pairs[k] = self._learnt_pairs(*clients.client(int(k)), start)
        return pairs

    def _learnt_pairs(self, X: np.ndarray, y: Any, pairs: np.ndarray) -> np.ndarray:
        """Pair weights of a site from its own rows, by EM with all else given."""
        for _ in range(WEIGHT_PASSES):
            counts = joint.expect(X, self._with_intercept(X), y, pairs, self._shared()).pairs
            new = mixture_weights(counts.ravel(), pairs.ravel()).reshape(pairs.shape)
            moved, pairs = np.abs(new - pairs).max(), new
            if moved <= WEIGHT_TOL:
                break
        return pairs

    def _log_prior(self, clients: Federation) -> np.ndarray:
        """log P(r | x) of each row, (n, R)."""
        pairs = self._weights_of(clients)[clients.owner]
        return joint.log_shares(clients.X, pairs, self._shared())

    def _prior(self, clients: Federation) -> np.ndarray:
        return np.exp(self._log_prior(clients))

    def _expected(self, clients: Federation) -> np.ndarray:
        outcomes = self._with_intercept(clients.X) @ self._centers.T
        return (self._prior(clients) * outcomes).sum(axis=1)

    def _log_joint(self, clients: Federation) -> np.ndarray:
        n_sites = len(clients.names)
        alike = regression.Parameters(
            np.ones((n_sites, self.n_components)),
            np.tile(self._centers, (n_sites, 1, 1)),
            self._scale(self._known(clients)),
        )
        density = regression.log_joint(clients, alike, self.fit_intercept)
        return density + self._log_prior(clients)

    def _shared(self) -> joint.Shared:
        return joint.Shared(
            self.input_centers_, self.input_covariances_, self._centers, float(self.sigma_[0])
        )

    def _with_intercept(self, X: np.ndarray) -> np.ndarray:
        return np.concatenate([X, np.ones((len(X), int(self._has_intercept())))], axis=1)

    def _account(self) -> list[str]:
        return [*super()._account(), SUMS_LEFT, MOMENTS_LEFT]
