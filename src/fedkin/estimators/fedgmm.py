"""FedGMM as a scikit-learn estimator: regressions whose weights depend on where x lies."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.mixtures.fedgmm import FEDGMM
from fedkin.estimators.mixture_use import WEIGHT_PASSES, WEIGHT_TOL
from fedkin.estimators.mixtures import MixtureEstimator
from fedkin.federation import Federation
from fedkin.models import joint_mixture as joint
from fedkin.models.latent_classes import mixture_weights


class FedGMM(MixtureEstimator):
    """Shared components of x and shared regressions, pair weights of a site (Wu et al. 2023).

    Where x lies tells which regressions are likely there, P(r | x); predictions and densities of y
    use it. A site that was not in the fit has the sites' average pair weights until `adapt`, or
    until its y are given. Regressions only.

    Parameters
    ----------
    n_components : int
        Number of regressions R.
    family : {"regression"}
        Regressions of y on x; there is no other.
    init : {"auto", "kmeans++", "federated"} or array of shape (R, p) or (m, R, p)
        Where EM starts; see `FedGrEM`.
    n_input_components : int
        Number of components of x, M.
    random_state : int, RandomState or None
        Decides the starts and who is asked.

    Attributes
    ----------
    input_centers_ : array of shape (M, d)
        Centres of the components of x.
    input_covariances_ : array of shape (M, d, d)
        Covariances of the components of x.
    pair_weights_ : array of shape (m, M, R)
        Weights of every site's pairs, in process only; `weights_` are their sums over M.
    Besides, those of `FedGrEM`; `outlier_score_` and `between_variance_` are not known.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import FedGMM
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(-4, 1, size=(60, 1)), rng.normal(4, 1, size=(60, 1))])
    >>> y = np.abs(X[:, 0]) + 0.1 * rng.normal(size=120)
    >>> model = FedGMM(2, n_input_components=2, random_state=0)
    >>> model = model.fit(X, y, groups=["a", "b"] * 60)
    >>> np.sort(model.centers_, axis=0).round()
    array([[-1.],
           [ 1.]])
    >>> model.predict_proba([[-4.0], [4.0]], groups="a").max(axis=1) > 0.8
    array([ True,  True])
    """

    _algorithm = FEDGMM

    def _check_data(self, federation: Federation, settings) -> None:
        super()._check_data(federation, settings)
        if len(federation.X) < 2:
            raise ValueError("a covariance of x needs two rows; n_samples=1")

    def _read(self, run) -> None:
        super()._read(run)
        self.input_centers_ = self._result.input_centers
        self.input_covariances_ = self._result.input_covariances
        if self._result.pair_weights is not None:
            self.pair_weights_ = self._result.pair_weights

    # ------------------------------------------------------------ use

    def score_samples(self, X, y=None, groups=None):
        """Log density of each row's y given x, (n,); without y that of its x."""
        check_is_fitted(self)
        clients, place = self._clients(X, y, groups)
        if clients.y is not None:
            return super().score_samples(X, y, groups)
        pairs = self._weights_of(clients)[clients.owner]
        return joint.log_inputs(clients.X, pairs, self._result.shared)[place]

    def _weights_of(self, clients: Federation) -> np.ndarray:
        """Pair weights of these sites, (k, M, R)."""
        shape = (len(self.input_centers_), self.n_components_)
        even = np.full(shape, 1.0 / np.prod(shape))
        fitted, places = self._result.pair_weights, self._places(clients)
        pairs, learn = self._own_or_average(clients, places, fitted, even)
        if clients.y is not None:
            for k in np.flatnonzero(learn & (clients.sizes > 0)):
                # A pair that no site of the fit has would have weight zero for ever.
                start = (pairs[k] + even) / 2
                pairs[k] = self._learnt_pairs(*clients.client(int(k)), start)
        return pairs

    def _learnt_pairs(self, X: np.ndarray, y: Any, pairs: np.ndarray) -> np.ndarray:
        """Pair weights of a site from its own rows, by EM with all else given."""
        shared, intercept = self._result.shared, self._used.has_intercept
        for _ in range(WEIGHT_PASSES):
            counts = joint.expect(X, y, pairs, shared, intercept).pairs
            new = mixture_weights(counts.ravel(), pairs.ravel()).reshape(pairs.shape)
            moved, pairs = np.abs(new - pairs).max(), new
            if moved <= WEIGHT_TOL:
                break
        return pairs

    def _log_prior(self, clients: Federation) -> np.ndarray:
        """log P(r | x) of each row, (n, R)."""
        pairs = self._weights_of(clients)[clients.owner]
        return joint.log_shares(clients.X, pairs, self._result.shared)

    def _prior(self, clients: Federation) -> np.ndarray:
        return np.exp(self._log_prior(clients))

    def _lines(self, clients: Federation) -> np.ndarray:
        return np.asarray(clients.X @ self.centers_.T + self.intercept_[0])

    def _expected(self, clients: Federation) -> np.ndarray:
        return (self._prior(clients) * self._lines(clients)).sum(axis=1)

    def _log_joint(self, clients: Federation) -> np.ndarray:
        n_sites = len(clients.names)
        weights = np.ones((n_sites, self.n_components_))
        components = np.tile(self._result.centers, (n_sites, 1, 1))
        fit = weights, components, self._scale(self._places(clients))
        density = self._family.log_joint(self._family.prepare(clients), fit)
        return density + self._log_prior(clients)
