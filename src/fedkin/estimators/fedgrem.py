"""FedGrEM as a scikit-learn estimator: groups inside every site, found with everybody's help."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.mixtures.fedgrem import FEDGREM
from fedkin.estimators.shaped_use import ShapedUse
from fedkin.federation import Federation
from fedkin.models.estimates import LEVEL
from fedkin.protocol import Run
from fedkin.settings import one_of
from fedkin.tables import Table

# Whose intervals are asked for.
OF = one_of("centers", "sites")


class FedGrEM(ShapedUse):
    """Robust federated EM for Gaussian mixtures and mixtures of regressions inside sites.

    Every site has R groups of rows with its own weights and components (means or coefficients). A
    site's components are pulled to a robust centre of all sites', so that groups mean the same
    everywhere and sites with few rows borrow from the others; odd sites neither pull nor are
    pulled. Labels of rows may be known, wholly or in part: groups are then classes. Where a third
    of the sites agree on false components near the others', honest sites lose a part of what they
    borrow (errors of 1.3 to 1.9 times those without the liars); far ones cost nothing.

    Parameters
    ----------
    n_components : int or None
        Number of groups R. None chooses it: as many as can be told apart, by the least ICL of
        mixtures that all sites share (Gaussian mixtures; rows far from normal make more groups of
        one class). With labels there are at least as many groups as classes.
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
        their mean and scatter. With labels for all rows "full" has one covariance for all groups
        where left-out labels are foretold better so, and groups of a site are moved together as far
        as they are at all sites. Where some rows have labels, a site's classes are bent to its
        labelled rows, and what is common is told in two ways that are blended: by all rows, and by
        labelled rows alone (`labelled_share_`). Take it for labels: "identity" is misled by columns
        that go together. (With `shrinkage="paper"`, gradient steps, clipping, thresholds
        or batches "diag" and "spherical" are each site's own, the same for its groups.)
    shrinkage : {"adaptive", "paper"}
        "adaptive": each site is pulled as far as its own sampling variance warrants; nothing to
        tune, but sampling variances, hence sizes of groups, leave the site. "paper": Algorithm 1
        with a penalty that is the same for all; weights stay at the site.
    second_start : {"auto"} or bool
        After the local fits, every site fits once more from the centres of all and keeps the
        likelier fit: repairs sites whose own start went astray. Where groups could still be matched
        otherwise at more than a third of the sites (few rows a site, as a rule), sites depart from
        one mixture of all, as with own covariances, and send what they do there; not with
        `standard_errors`. "auto": with "adaptive".
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
    standard_errors : bool
        Whether the fit ends with standard errors (`conf_int`, `estimates`). For them every site
        sends slope and curvature of its log likelihood with its last message: products of its rows
        weighted by group. For shrinkage="adaptive" with step="em"; Gaussian groups need
        covariance_type "identity" or "tied".

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
    centers_se_ : array of shape (R, d)
        Standard errors of the centres, with `standard_errors`: a sandwich over sites (of the mean
        of all such sites), with what it costs not to know rows' groups and sites' weights; by the
        model with fewer than five sites.
    means_se_, coef_se_ : array of shape (m, R, d)
        Standard errors of the sites' own components: what rows, centre and the spread between sites
        leave open. NaN at sites that were not heard, or whose groups could be matched otherwise.
    df_ : float
        Degrees of freedom of the centres' errors.
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
        Groups that a site has no rows of; they have the common mean and covariance there. (With
        labels for all rows, the mean is moved as the site's other groups are.)
    implausible_sites_ : array
        Names of sites that sent squares of groups that no rows can have; they had no say. (Where
        groups have covariances of their own.)
    classes_ : array
        Labels of the groups, where the fit had labels; the last groups may have none.
    temperature_ : float
        By what log probabilities of classes by all rows are divided at sites with labels, so that
        they are as sure as left-out labels allow; one where labels are at a single site.
    new_site_temperature_ : float
        The same at sites that have no labels.
    labelled_share_ : float
        By which share probabilities of classes at sites with labels are those that labelled rows
        alone tell: the mean of what left-out labels make likely, about a half where they say
        little; zero where all rows have labels. The rest is told by all rows, whose groups need not
        be the classes.
    new_site_labelled_share_ : float
        The same at sites that have no labels.
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

    def _read(self, run: Run) -> None:
        super()._read(run)
        found = self._result
        if found.center_errors is None or found.component_errors is None:
            return
        d = self.n_features_in_
        self.centers_se_, self.df_ = found.center_errors[:, :d], float(found.center_degrees[0])
        if self._uses_target():
            self.coef_se_ = found.component_errors[..., :d]
            self.intercept_se_ = found.component_errors[..., d:].sum(axis=-1)
        else:
            self.means_se_ = found.component_errors

    def conf_int(self, level=LEVEL, of="centers") -> np.ndarray:
        """Ends of intervals of `centers_`, (R, d, 2), or of the sites' own components.

        Those of="sites", (m, R, d, 2), are of `means_` or `coef_`: NaN at sites whose groups could
        be matched to the others' otherwise. Where that is so at most sites there are none at all.
        Needs standard_errors=True.
        """
        check_is_fitted(self)
        found = self._result.estimates(OF.accept("of", of))
        return found.intervals(level)[..., : self.n_features_in_, :]

    def estimates(self, level=LEVEL, of="centers") -> Table:
        """Centres, or the sites' own components, with standard error, df, t, p and interval."""
        check_is_fitted(self)
        return self._result.estimates_table(self._about(), level, OF.accept("of", of))

    def _coefficient_variances(self, clients: Federation, places: np.ndarray) -> np.ndarray:
        known = self._result.component_covariance
        if known is None:
            return super()._coefficient_variances(clients, places)
        ones = np.ones((len(clients.X), int(self._used.has_intercept)))
        design = np.concatenate([clients.X, ones], axis=1)
        typical = np.zeros(known.shape[1:])
        each = np.nan_to_num(self._own_or(typical, known, places))[clients.owner]
        return np.einsum("ni,nrij,nj->nr", design, each, design, optimize=True)
