"""The methods FedGrEM is compared with, as scikit-learn estimators."""

from __future__ import annotations

from dataclasses import replace

from fedkin.algorithms.mixtures.fedem import FEDEM
from fedkin.algorithms.mixtures.local_em import LOCAL_EM
from fedkin.algorithms.mixtures.tgmm import TGMM as TGMM_ALGORITHM
from fedkin.engines import InProcess
from fedkin.estimators.mixtures import MixtureEstimator
from fedkin.federation import Federation
from fedkin.protocol import Run


class FedEM(MixtureEstimator):
    """One set of components for all sites, weights of their own (Marfoq et al. 2021).

    Every site's components are the centres.

    Parameters
    ----------
    n_components : int
        Number of groups R.
    family : {"gaussian", "regression"}
        Groups of rows x, or of rows with a linear regression of y on x each.
    init : {"auto", "kmeans++", "ward", "federated"} or array of shape (R, p) or (m, R, p)
        Where EM starts; see `FedGrEM`.
    n_restarts : int
        Starts that run side by side.
    max_rounds : int
        The most rounds.
    tol : float
        The fit ends when no component moves by more than this, relative to its size.
    align : {"auto", "exhaustive", "stepwise", "assignment"}
        How groups of sites are matched, see `fedkin.alignment.align`.
    fraction : float
        Share of the sites that is asked in each round.
    covariance_type : {"identity", "spherical", "diag", "tied"}
        Covariance of Gaussian mixtures, shared by all groups; see `FedGrEM`.
    average : {"plain", "pooled"}
        The mean of the sites' M-steps, or the M-step of all rows.
    step : {"em", "gradient"}
        A site's part of a round.
    step_constant : float
        C_eta of FedGrEM's B.1 (`step="gradient"`).
    local_steps : int
        Steps of a site between rounds.
    batch_size : int or None
        Rows of a site per step; None takes all.
    clip : float or None
        Bounds how far one row may pull a component, in standard deviations.
    sigma : float or None
        Noise of the regressions; None learns one for all sites.
    fit_intercept : bool
        Whether the regressions have an intercept.
    random_state : int, RandomState or None
        Decides the starts, mini-batches and who is asked.
    engine : engine or None
        Who reaches the sites; None holds all of them in this process.

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


class TGMM(MixtureEstimator):
    """Every site with the others' first estimates as sources (Wang et al. 2021).

    Gaussian mixtures only.

    Parameters
    ----------
    n_components : int
        Number of groups R.
    family : {"gaussian"}
        Groups of rows x; there is no other.
    init : {"auto", "kmeans++", "ward"} or array of shape (R, p) or (m, R, p)
        Where EM starts; see `FedGrEM`. "auto" is "kmeans++".
    n_restarts : int
        Starts that run side by side.
    max_rounds : int
        The most rounds.
    tol : float
        The fit ends when no component moves by more than this, relative to its size.
    align : {"auto", "exhaustive", "stepwise", "assignment"}
        How groups of sites are matched, see `fedkin.alignment.align`.
    fraction : float
        Share of the sites that is asked in each round.
    covariance_type : {"identity", "spherical", "diag", "tied"}
        Covariance of Gaussian mixtures, shared by all groups; see `FedGrEM`.
    source_weight : float
        Weight of each other site.
    random_state : int, RandomState or None
        Decides the starts and who is asked.
    engine : engine or None
        Who reaches the sites; None holds all of them in this process.

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


class LocalEM(MixtureEstimator):
    """Every site alone, by EM or gradient EM; groups mean something else at every site.

    In process, sites' components are aligned afterwards to give `centers_` (medians over sites),
    nothing more; elsewhere they stay at the sites, and there is nothing to predict with.

    Parameters
    ----------
    n_components : int
        Number of groups R.
    family : {"gaussian", "regression"}
        Groups of rows x, or of rows with a linear regression of y on x each.
    init : {"auto", "kmeans++", "ward"} or array of shape (R, p) or (m, R, p)
        Where EM starts; see `FedGrEM`. "auto" is "kmeans++".
    n_restarts : int
        Starts that run side by side.
    max_rounds : int
        The most rounds; each is a whole fit, and sites that were not heard get another.
    tol : float
        A site's fit ends when a row's mean log likelihood gains less than this.
    covariance_type : {"identity", "spherical", "diag", "tied"}
        Covariance of Gaussian mixtures, shared by all groups; see `FedGrEM`.
    step : {"em", "gradient"}
        What a site does; "gradient" takes steps of `step_constant`.
    step_constant : float
        Length of a gradient step (`step="gradient"`).
    sigma : float or None
        Noise of the regressions; None learns each site's own.
    fit_intercept : bool
        Whether the regressions have an intercept.
    random_state : int, RandomState or None
        Decides the starts.
    engine : engine or None
        Who reaches the sites; None holds all of them in this process.

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


class PooledEM(LocalEM):
    """EM on all rows in one place: what could be done if data could be shared. In process only.

    Every site has the same components, weights and covariance. Given components of every site are
    averaged for the start.

    Parameters
    ----------
    n_components : int
        Number of groups R.
    family : {"gaussian", "regression"}
        Groups of rows x, or of rows with a linear regression of y on x each.
    init : {"auto", "kmeans++", "ward"} or array of shape (R, p) or (m, R, p)
        Where EM starts; see `FedGrEM`. "auto" is "kmeans++".
    n_restarts : int
        Starts that run side by side.
    max_rounds : int
        The most rounds; each is a whole fit.
    tol : float
        The fit ends when a row's mean log likelihood gains less than this.
    covariance_type : {"identity", "spherical", "diag", "tied"}
        Covariance of Gaussian mixtures, shared by all groups; see `FedGrEM`.
    step : {"em", "gradient"}
        What a site does; "gradient" takes steps of `step_constant`.
    step_constant : float
        Length of a gradient step (`step="gradient"`).
    sigma : float or None
        Noise of the regressions; None learns it.
    fit_intercept : bool
        Whether the regressions have an intercept.
    random_state : int, RandomState or None
        Decides the starts.
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

    def _run_with(self, settings, federation) -> Run:
        """One site that holds all rows; its fit is everybody's."""
        given = settings.given_start
        if given is not None and given.ndim == 3:
            settings = settings.replace(init=given.mean(axis=0))
        run = super()._run_with(settings, federation.pooled()).shared_by(federation.names)
        rows = federation.sizes.astype(float)
        return replace(run, result=replace(run.result, site_rows=rows))
