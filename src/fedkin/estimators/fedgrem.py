"""FedGrEM as a scikit-learn estimator: groups inside every site, found with everybody's help."""

from __future__ import annotations

from typing import ClassVar

from fedkin.algorithms.mixtures.fedgrem import FEDGREM
from fedkin.estimators.shaped_use import ShapedUse


class FedGrEM(ShapedUse):
    """Robust federated EM for Gaussian mixtures and mixtures of regressions inside sites.

    Every site has R groups of rows with its own weights and components (means or coefficients). A
    site's components are pulled to a robust centre of all sites', so that groups mean the same
    everywhere and sites with few rows borrow from the others; odd sites neither pull nor are
    pulled. Labels of rows may be known, wholly or in part: groups are then classes.

    Parameters
    ----------
    n_components : int or None
        Number of groups R. None chooses it: the shared mixture with the least BIC (Gaussian
        mixtures). With labels there are at least as many groups as classes.
    family : {"gaussian", "regression"}
        Groups of rows x, or groups of rows with a linear regression of y on x each.
    init : {"auto", "kmeans++", "ward", "federated"} or array of shape (R, p) or (m, R, p)
        Where EM starts. "kmeans++": every site alone, the likeliest of `n_restarts`. "ward": every
        site alone from hierarchical clusters (Gaussian mixtures); slow from several thousand rows a
        site on, better on real data. "federated": shared coefficients from all sites with a spare
        component (regressions). "auto": "federated" for regressions, else "kmeans++". An array has
        the intercept last, or none: then intercepts start at 0.
    tol : float
        The fit ends when no site's components move by more than this, relative to their size.
    covariance_type : {"identity", "spherical", "diag", "tied", "full"}
        Covariance of Gaussian mixtures. "identity" (the paper), or "tied", one matrix for all
        groups and sites: standardise or whiten first (`fedkin.Standardizer`). "full", "diag" and
        "spherical": every group has a common covariance, which each site bends to its own rows as
        far as they carry; how far is estimated. Sites depart from mixtures of all, of which the one
        goes on that foretells rows left out best, and send, for each group, how many rows it has,
        their mean and scatter. (With `shrinkage="paper"`,
        gradient steps, clipping, thresholds or batches "diag" and "spherical" are each site's own,
        the same for its groups.)
    shrinkage : {"adaptive", "paper"}
        "adaptive": each site is pulled as far as its own sampling variance warrants; nothing to
        tune, but sampling variances, hence sizes of groups, leave the site. "paper": Algorithm 1
        with a penalty that is the same for all; weights stay at the site.
    second_start : {"auto"} or bool
        After the local fits, every site fits once more from the centres of all and keeps the
        likelier fit: repairs sites whose own start went astray. "auto": with "adaptive".
    step : {"auto", "em", "gradient"}
        A site's part of a round; "auto" is "em" for "adaptive", "gradient" for "paper".
    step_constant : float
        C_eta of the paper's B.1 (`step="gradient"`).
    share_weights : {"auto"} or bool
        Mixture weights are sent and pulled together like components (appendix D). "auto": where
        groups have covariances of their own, or labels.
    threshold : float or None
        Soft threshold of components, not of intercepts, for high dimension (appendix D).
    solver : {"exact", "alternating"}
        How the paper's central update is solved; "alternating" makes two sweeps, as its script.
    penalty_start : float
        lambda[0] of the paper's B.1 (`shrinkage="paper"`).
    penalty_decay : float
        kappa_0 of the paper's B.1.
    penalty_constant : float
        C of the paper's B.1.

    Attributes
    ----------
    means_ : array of shape (m, R, d)
        Means of every site's groups (Gaussian mixtures).
    coef_ : array of shape (m, R, d)
        Coefficients of every site's groups (regressions).
    intercept_ : array of shape (m, R)
        Intercepts of every site's groups (regressions).
    centers_ : array of shape (R, d)
        The population's means or coefficients.
    weights_ : array of shape (m, R)
        Share of each group at every site. In process only, as a site's own variances: elsewhere
        they stay at the sites. A site that was not heard has the population's components and
        average weights.
    covariance_ : None or array
        Covariance by `covariance_type`: (d, d) for "tied"; of every site's groups (m, R, d, d) for
        "full", (m, R, d) for "diag", (m, R) for "spherical".
    group_covariance_ : array of shape (R, d, d), (R, d) or (R,)
        What the sites' covariances of a group have in common.
    degrees_ : array of shape (R,)
        As how many rows the common covariance counts at a site.
    lacking_ : array of shape (m, R)
        Groups that a site has no rows of; they have the common mean and covariance there.
    classes_ : array
        Labels of the groups, where the fit had labels; the last groups may have none.
    sigma_ : array of shape (m,)
        Noise of the regressions, a standard deviation.
    outlier_score_ : array of shape (m,)
        How odd a site is; about standard normal for one that is not.
    ambiguous_ : array of shape (m,)
        Sites whose groups could be matched to the others' in another way.
    between_variance_ : array of shape (R,)
        Variance of a coordinate between sites (`shrinkage="adaptive"`).
    halvings_ : array of shape (m,)
        How often a site's gradient step had to be halved.
    n_components_ : int
        Number of groups.
    client_names_ : array of shape (m,)
        Names of the sites, in the order of all arrays.
    converged_ : bool
        Whether the fit settled.
    n_iter_ : int
        Rounds of improvement.
    history_ : dict
        "change": the largest relative change of a site's components by round.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import FedGrEM
    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat(["a", "b", "c"], 60)
    >>> X = np.where(np.arange(180)[:, None] % 2, [4.0, 0.0], [-4.0, 1.0])
    >>> model = FedGrEM(2, random_state=0).fit(X + rng.normal(size=(180, 2)), groups=groups)
    >>> model.means_.shape
    (3, 2, 2)
    >>> model.centers_.round() + 0.0
    array([[-4.,  1.],
           [ 4.,  0.]])
    >>> model.predict([[-4.0, 1.0], [4.0, 0.0]], groups="b")
    array([0, 1])
    """

    _algorithm = FEDGREM
    _fixed: ClassVar = {"labels": False}
