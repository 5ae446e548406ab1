"""The methods FedGrEM is compared with, as scikit-learn estimators."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from fedkin.algorithms.mixtures.fedem import FEDEM
from fedkin.algorithms.mixtures.local_em import LOCAL_EM
from fedkin.algorithms.mixtures.tgmm import TGMM as TGMM_ALGORITHM
from fedkin.engines import InProcess
from fedkin.estimators.labelled_mixture import LabelledMixture
from fedkin.federation import Federation
from fedkin.protocol import Run


class FedEM(LabelledMixture):
    """One set of components for all sites, weights of their own (Marfoq et al. 2021).

    Every site's components are the centres. Rows of Gaussian mixtures may have labels, `fit(X, y)`:
    groups are then classes and begin at the means of all rows with their label.

    Parameters
    ----------
    init : {"auto", "kmeans++", "ward", "federated"} or array of shape (R, p) or (m, R, p)
        Where EM starts; see `FedGrEM`.
    average : {"plain", "pooled"}
        The mean of the sites' M-steps, or the M-step of all rows.
    step : {"em", "gradient"}
        A site's part of a round.
    step_constant : float
        C_eta of FedGrEM's B.1 (`step="gradient"`).

    Attributes
    ----------
    Those of `FedGrEM`; `outlier_score_` and `between_variance_` are not known.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import FedEM
    >>> X = np.array([[-3.1], [-2.9], [2.8], [3.2], [-3.2], [2.9], [-2.8], [3.1]])
    >>> model = FedEM(2, random_state=0).fit(X, groups=["a"] * 4 + ["b"] * 4)
    >>> model.centers_.round(3)
    array([[-3.],
           [ 3.]])
    """

    _algorithm = FEDEM
    _fixed: ClassVar = {"labels": False}
    _groups_without_labels = False


class TGMM(LabelledMixture):
    """Every site with the others' first estimates as sources (Wang et al. 2021).

    Gaussian mixtures only. Rows may have labels, `fit(X, y)`: groups are then classes.

    Parameters
    ----------
    family : {"gaussian"}
        Groups of rows x; there is no other.
    source_weight : float
        Weight of each other site.
    random_state : int, RandomState or None
        Decides the starts and who is asked.

    Attributes
    ----------
    Those of `FedGrEM`; `outlier_score_` and `between_variance_` are not known.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import TGMM
    >>> X = np.array([[-3.1], [-2.9], [2.8], [3.2], [-3.2], [2.9], [-2.8], [3.1]])
    >>> model = TGMM(2, random_state=0).fit(X, groups=["a"] * 4 + ["b"] * 4)
    >>> model.centers_.round(3)
    array([[-3.],
           [ 3.]])
    """

    _algorithm = TGMM_ALGORITHM
    _fixed: ClassVar = {"labels": False}
    _groups_without_labels = False


class LocalEM(LabelledMixture):
    """Every site alone, by EM or gradient EM; groups mean something else at every site.

    Rows of Gaussian mixtures may have labels, `fit(X, y)`: groups are then classes, also at other
    sites; with all labels known and `covariance_type="tied"` this is linear discriminant analysis.
    In process, sites' components are aligned afterwards to give `centers_` (medians over sites),
    nothing more; elsewhere they stay at the sites, and there is nothing to predict with.

    Parameters
    ----------
    max_rounds : int
        The most rounds; each is a whole fit, and sites that were not heard get another.
    tol : float
        A site's fit ends when a row's mean log likelihood gains less than this.
    sigma : float or None
        Noise of the regressions; None learns each site's own.

    Attributes
    ----------
    history_ : dict
        "loglik": log likelihood of all sites by round.
    Besides, those of `FedGrEM`; `outlier_score_` and `between_variance_` are not known.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import LocalEM
    >>> X = np.array([[-3.1], [-2.9], [2.8], [3.2], [-3.2], [2.9], [-2.8], [3.1]])
    >>> model = LocalEM(2, random_state=0).fit(X, groups=["a"] * 4 + ["b"] * 4)
    >>> np.sort(model.means_, axis=1)[..., 0].round(3)
    array([[-3.,  3.],
           [-3.,  3.]])
    """

    _algorithm = LOCAL_EM
    _fixed: ClassVar = {"labels": False}


class PooledEM(LocalEM):
    """EM on all rows in one place: what could be done if data could be shared. In process only.

    Every site has the same components, weights and covariance. With labels of all rows,
    `fit(X, y)`, and `covariance_type="tied"` it is linear discriminant analysis. Given components
    of every site are averaged for the start.

    Parameters
    ----------
    max_rounds : int
        The most rounds; each is a whole fit.
    tol : float
        The fit ends when a row's mean log likelihood gains less than this.
    sigma : float or None
        Noise of the regressions; None learns it.
    engine : InProcess or None
        Nothing but this process will do.

    Attributes
    ----------
    Those of `LocalEM`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import PooledEM
    >>> X = np.array([[-3.1], [-2.9], [2.8], [3.2], [-3.2], [2.9], [-2.8], [3.1]])
    >>> model = PooledEM(2, random_state=0).fit(X, groups=["a"] * 4 + ["b"] * 4)
    >>> np.sort(model.centers_, axis=0).round(3)
    array([[-3.],
           [ 3.]])
    """

    def _federation(self, X, y, groups) -> Federation | None:
        if X is None or not (self.engine is None or isinstance(self.engine, InProcess)):
            raise ValueError(
                "PooledEM brings all rows to one place; that works in this process only, with data "
                "given to fit. For data that stay at the sites use FedGrEM"
            )
        return super()._federation(X, y, groups)

    def _shares_weights(self) -> bool:
        """Weights are those of all rows."""
        return True

    def _run_with(self, settings, federation) -> Run:
        """One site that holds all rows; its fit is everybody's."""
        given = settings.given_start
        if given is not None and given.ndim == 3:
            settings = settings.replace(init=given.mean(axis=0))
        run = super()._run_with(settings, federation.pooled()).shared_by(federation.names)
        rows = federation.sizes.astype(float)
        return replace(run, result=replace(run.result, site_rows=rows))
