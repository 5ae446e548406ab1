"""FGPR as a scikit-learn estimator: a Gaussian-process prior for all sites, a posterior at each."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.fgpr import FGPR as ALGORITHM
from fedkin.algorithms.fgpr_result import NOTHING_LEARNT
from fedkin.algorithms.fgpr_settings import FgprSettings, SharedPriorSettings
from fedkin.algorithms.fgpr_sites import FREE, PERSONAL_SPREAD, WEAK, priors_of
from fedkin.estimators.curves import CurveEstimator
from fedkin.estimators.shared_prior import load_prior, save_prior
from fedkin.federation import Federation
from fedkin.models.common_site import CommonSiteCurve, Member
from fedkin.models.curves import Curve
from fedkin.models.estimates import LEVEL
from fedkin.models.gaussian_process import evaluate_each, prior_responsibilities
from fedkin.models.gp_rows import Prepared, prepare, thinned
from fedkin.models.gp_uncertainty import cloud
from fedkin.models.kernels import from_spec
from fedkin.models.site_curves import CurvePlan
from fedkin.protocol import Reason
from fedkin.tables import Table


class WrongTargetWarning(UserWarning):
    """The chosen optimiser does not aim at the optimum of the likelihood."""


class NothingLearntWarning(UserWarning):
    """No rows taught anything: what is returned is what the search began with."""


def _has_errors(estimator: Any) -> bool:
    """Whether standard errors can be asked for."""
    return "standard_errors" not in type(estimator)._fixed


class FGPR(CurveEstimator):
    """Federated Gaussian-process regression: one prior for all sites, a posterior at each.

    Where sites share a curve, too, each departs from it. A site that was not in the fit gets the
    common curve with the spread of the departures, or without one the prior around the
    population's mean; after `adapt`, the same given its own rows.

    Parameters
    ----------
    kernel : scikit-learn kernel, dict or None
        Its values are the start; None is ARD RBF times scale plus noise. It travels as words and
        numbers, a dict, which may also be given (`fedkin.models.kernels`).
    optimizer : {"exact", "sgd", "adam-restarted"}
        "exact" runs L-BFGS on the summed likelihood, one round per evaluation; "sgd" is the
        paper's local steps and averaging; "adam-restarted" is what the paper's scripts do and
        ends at the wrong point (kept to compare).
    personalise : {"choose", "posterior", "map"}
        Whether a site predicts with hyper-parameters of its own: where they win by BIC, never,
        or always but pulled to the shared ones. They stay at the site. Predictions average over
        what the site's rows leave open of them; `site_kernels_` holds the most probable ones.
    n_priors : int or None
        Number of priors in a mixture over sites; None chooses it by BIC.
    max_priors : int
        The most priors that are tried when `n_priors` is None.
    normalize_y : {True, "mean", False}
        Standardise each site's target by its own mean and standard deviation; by its mean only,
        so that the scale is shared (better for sites of few rows in the same units); or not. Of
        fits without a common curve: with one, all sites are in the same units.
    mean : {"zero", "constant", "linear"}
        Mean function of each site's standardised target, with a vague prior ("zero": none).
    init : "auto" or array of shape (p,) or (k, p)
        Log hyper-parameters in the kernel's order, a start for each of k priors, such as `theta_`
        of another fit; priors beyond these are found beside them.
    local_steps : int
        Steps that a site takes by itself in a round ("sgd" and "adam-restarted").
    batch_size : int
        Rows that a local step looks at.
    learning_rate : float
        Size of the first local steps.
    schedule : {"cosine", "inverse-sqrt", "inverse", "constant"}
        How local steps shrink; "inverse-sqrt" wants a learning rate near 1, "inverse" near 10.
    gradient_scaling : {"rows", "theory"}
        Local gradients over the number M of rows; in the theory the scale's over 3 log M.
    robust : {False, "trimmed", "median"}
        How sites' gradients per row are averaged; "trimmed" leaves out sites far from the rest;
        "median" withstands more liars but aims elsewhere (a quarter off at 8 rows a site). With
        both, the population's location and scale are medians over sites. "median" bears 30 % of
        the sites lying; "trimmed" does not if they agree or repeat an old reply, and False
        promises nothing.
    max_rounds : int
        The most rounds of a search.
    tol : float
        A search ends when no entry of the gradient per row is larger.
    fraction : float
        Share of the sites that is asked in each round. Below 1 the exact optimiser takes damped
        steps; "sgd" is then the better choice.
    common : {"choose", True, False}
        Whether sites share a curve from which each departs by a level, a slope and a curve of its
        own. False: every site draws its curve from the prior, around a mean of its own (the
        paper). "choose": both are fitted, and sites use the common curve unless their rows, each
        left out, speak against it; new sites, unless whole sites left out do. With
        `personalise="choose"` a site of 30 rows and more goes the way that is clearly better for
        it; if that is alone, rows left out in tenths say whether its hyper-parameters are pulled
        to the shared ones, held by weak priors, or free. With a kernel, several priors, `robust`,
        `fraction` or other optimisers "choose" means False; rounds for a common curve ask all
        sites.
    n_points : int or None
        Points on a grid that carry the common curve; None: 20 along a line, 50 if these carry too
        little, and more in more dimensions.
    hyperprior : bool or None
        Whether hyper-parameters have weakly informative priors in units of the data, so that few
        rows do not fit their noise to nothing; None: except with `common=False`, as in the paper.
    standard_errors : bool
        Whether the fit ends with standard errors of `theta_` (`conf_int`): one more round, of the
        same numbers as those of the search.
    random_state : int, RandomState or None
        Decides mini-batches, and who is asked.

    Attributes
    ----------
    kernel_ : scikit-learn kernel
        The prior with the largest share.
    kernels_ : list of kernels
        All P priors.
    theta_ : array of shape (P, p)
        Their log hyper-parameters, in the kernel's order.
    theta_se_ : array of shape (P, p)
        Their standard errors, with `standard_errors`: the inverse of the likelihood's curvature;
        NaN for one at a bound.
    weights_ : array of shape (P,)
        Shares of the priors among sites.
    n_priors_ : int
        Number of priors P.
    own_ : array of shape (m,)
        Whether a site predicts with hyper-parameters of its own.
    site_kernels_ : dict
        The kernel of each site by name; like the next three there in process only.
    responsibilities_ : array of shape (m, P)
        Probability of each prior at each site.
    labels_ : array of shape (m,)
        The likeliest prior of each site.
    jitter_ : array of shape (m,)
        What was added to the diagonal of a site's covariance to factor it.
    log_marginal_likelihood_ : float
        Log likelihood of all rows under what the sites use.
    choice_ : Table
        Likelihood and BIC of every number of priors that was tried.
    common_ : array of shape (m,)
        Whether a site predicts with the common curve.
    common_parameters_ : dict or None
        Most probable variances and lengths of common curve and departures, in the target's and
        the features' units (slopes per spread of a feature; they pass the "pivot", where sites
        differ least; a spline has no length, NaN), the "growth" along a line, the logarithm by
        which departures and noise get larger per unit of the feature, and the "haste" in a plane,
        the logarithm by which the pace gets larger at which the curves see each feature; lengths
        are of features as they see them. None without one.
    left_out_ : array of shape (m, 2, 2) or None
        Log density of each site's rows, each left out and all of them left out (as at a new site):
        without the common curve and with it. None where there was no choice (`common`).
    client_names_ : array of shape (m,)
        Names of the sites, in the order of all arrays.
    converged_ : bool
        Whether the search settled.
    history_ : dict
        "theta" and "value": points of the last search and their negative log likelihoods per row.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import FGPR
    >>> X = np.linspace(0, 3, 24)[:, None]
    >>> groups = np.tile(["north", "south"], 12)
    >>> y = np.sin(2 * X[:, 0]) + np.where(groups == "north", 10.0, 20.0)
    >>> model = FGPR().fit(X, y, groups=groups)
    >>> model.predict([[0.75], [0.75]], groups=["north", "south"]).round(1)
    array([11., 21.])
    """

    _algorithm = ALGORITHM
    _settings: ClassVar[type[FgprSettings]] = SharedPriorSettings
    _plots: tuple[str, ...] = ("bands", "samples", "convergence", "calibration")
    _private = (*CurveEstimator._private, "_data", "_form", "_curves", "_members")
    _used: FgprSettings

    def _check_data(self, federation: Federation, settings) -> None:
        super()._check_data(federation, settings)
        n_sites, wanted = int((federation.sizes > 0).sum()), settings.n_priors or 1
        if wanted > n_sites:
            raise ValueError(
                f"n_priors={wanted} needs at least as many sites with rows; there are {n_sites}"
            )

    def _run_with(self, settings, federation):
        self._data = federation
        return super()._run_with(settings, federation)

    # ------------------------------------------------------------ after

    def _read(self, run) -> None:
        result = self._result = run.result.with_memories(run.memories)
        self.n_features_in_ = len(result.spread)
        self._form = result.form(self._used)
        kernel = from_spec(self._form.spec)
        self.theta_, self.weights_ = result.theta, result.weights
        self.n_priors_ = len(self.weights_)
        if result.theta_errors is not None:
            self.theta_se_ = result.theta_errors
        self.kernels_ = [kernel.clone_with_theta(theta) for theta in self.theta_]
        self.kernel_ = self.kernels_[0]
        self.own_ = result.own
        self.log_marginal_likelihood_ = float(result.loglik)
        self.converged_ = bool(result.converged)
        self.history_ = {"theta": result.history_theta, "value": result.history_value}
        self.choice_ = result.choice()
        self._curves: dict[str, Curve] = {}
        self._members: list[Member] | None = None
        self.common_ = result.uses_common[:-1]
        self.common_parameters_ = result.common_parameters()
        self.left_out_ = result.left_out
        if result.site_theta is not None:
            self.responsibilities_, self.labels_ = result.responsibilities, result.labels
            self.jitter_ = result.jitter
            # Most sites use one of few priors, and a kernel takes time to make.
            distinct, which = np.unique(result.site_theta, axis=0, return_inverse=True)
            kernels = [kernel.clone_with_theta(theta) for theta in distinct]
            self.site_kernels_ = {n: kernels[k] for n, k in zip(run.roster.names, which.ravel())}

    def _warn(self, federation: Federation | None) -> None:
        super()._warn(federation)
        if not self._result.learnt:
            self._warning(NOTHING_LEARNT, NothingLearntWarning)
        kept_back = sorted({r.site for r in self.refusals_ if r.reason is Reason.TRUST})
        if kept_back:
            self._warning(
                f"{len(kept_back)} sites are not behind a common curve: sums at points of the "
                "server could single rows out, and their policies do not name fgpr.slopes and "
                "fgpr.totals (allow.trusted); common=False does not ask for them"
            )
        if self._used.optimizer == "adam-restarted":
            self._warning(
                "Adam begun anew in every round settles where the signs of the sites' gradients "
                "balance, not where the likelihood is largest; use optimizer='exact' or 'sgd'",
                WrongTargetWarning,
            )

    # ------------------------------------------------------------ use

    def adapt(self, X, y=None, groups=None):
        """Condition on the rows of sites not in the fit; shared parts stay as they are."""
        clients = self._new_clients(X, y, groups)
        if self._result.uses_common[-1]:
            for k, name in enumerate(clients.names):
                self._curves[name] = self._around_common(*clients.client(k), known=False)
            return self
        value = evaluate_each(self._prepared(clients), self._form, self.theta_).value
        _, share = prior_responsibilities(value, np.log(self.weights_))
        for k, name in enumerate(clients.names):
            self._curves[name] = self._conditioned(clients.take([k]), self.theta_, share[k])
        return self

    @available_if(_has_errors)
    def conf_int(self, level=LEVEL) -> np.ndarray:
        """Ends of intervals of `theta_`, (P, p, 2), on log scale; needs standard_errors=True."""
        check_is_fitted(self)
        return self._result.estimates.intervals(level)

    @available_if(_has_errors)
    def estimates(self, level=LEVEL) -> Table:
        """Log hyper-parameters with standard error, df, t, p and interval.

        Of the priors with standard_errors=True, and of a common curve, if there is one, from what
        all rows leave open of it.
        """
        check_is_fitted(self)
        return self._result.estimates_table(self._about(), level)

    def save_shared(self, path):
        """Write the priors to an npz file, without a row of any site; returns the place."""
        check_is_fitted(self)
        return save_prior(self, path)

    @classmethod
    def load_shared(cls, path):
        """The model of `save_shared`: knows no site until `adapt` is given its rows."""
        return load_prior(cls, path)

    # ------------------------------------------------------------ sites

    @property
    def _rows_elsewhere(self) -> bool:
        """Whether the rows by which sites' curves depart from what is shared are not here."""
        return self._data is None

    def _curve(self, name: str) -> Curve:
        if name not in self._curves:
            k = self._position.get(name)
            if k is None or self._data is None or self._result.site_theta is None:
                return self._prior_curve()
            site = self._data.take([k])
            if self._result.uses_common[k]:
                known = bool(self._result.common_heard[k])
                self._curves[name] = self._around_common(*site.client(0), known=known)
                return self._curves[name]
            theta, weights = self.theta_, self.responsibilities_[k]
            if self.own_[k]:
                theta, weights = self._own_priors(site, k)
            self._curves[name] = self._conditioned(site, theta, weights)
        return self._curves[name]

    def _prepared(self, clients: Federation) -> Prepared:
        return prepare(clients, self.normalize_y, self.mean, self.max_points, self._form)

    def _own_priors(self, site: Federation, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Hyper-parameters of a site's own with weights: what its rows leave open of them."""
        mode, freedom = self._result.site_theta[k], self._result.site_freedom[k]
        centre, spread = mode, PERSONAL_SPREAD[self._used.personalise]
        if freedom == WEAK:
            spread = np.inf
        elif freedom != FREE:
            centre = self.theta_[self.labels_[k]]
        return self._cloud(site, mode, centre, spread, freedom != FREE)

    def _cloud(
        self,
        site: Federation,
        mode: np.ndarray,
        centre: np.ndarray,
        spread: float,
        held: bool = True,
    ) -> tuple[np.ndarray, np.ndarray]:
        """What rows leave open; `held` by weak priors where the fit has them."""
        data, priors = self._prepared(site), None
        if self._used.weak_priors and held:
            priors = priors_of(site, self._form, float(data.scale[0]))
        return cloud(data, self._form, mode, centre, spread, priors)

    def _plan(self, normalize_y=None) -> CurvePlan:
        """How rows become a curve without a common one, standardised as in the fit unless told."""
        return CurvePlan(
            self._form,
            self._result.target,
            self.normalize_y if normalize_y is None else normalize_y,
            self.mean,
            self.max_points,
            self.large_sites,
        )

    def _prior_curve(self) -> Curve:
        """What is known of a site without rows."""
        d = self.n_features_in_
        if self._result.uses_common[-1]:
            return self._around_common(np.zeros((0, d)), np.zeros(0))
        return self._plan().without_rows(self.theta_, self.weights_, d)

    def _conditioned(
        self, site: Federation, theta: np.ndarray, weights: np.ndarray, normalize_y=None
    ) -> Curve:
        """The curve of one site given its rows."""
        X, y = site.client(0)
        if not len(X) or y is None:
            return self._prior_curve()
        return self._plan(normalize_y).given(site, theta, weights)

    def _around_common(
        self, X: np.ndarray, y: np.ndarray | None, known: bool = True
    ) -> CommonSiteCurve:
        """The common curve with a site's departure given its rows; are they behind it already?"""
        shared = self._result.shared
        if y is None:
            X, y = X[:0], np.zeros(0)
        few = thinned(Federation(X, np.array([0, len(X)]), ("site",), y), self.max_points)
        if not known and len(X):
            shared = shared.knowing(few.X, few.y)
            return CommonSiteCurve(shared, X, y, self.max_points, self.large_sites)
        if self._members is None:
            self._members = shared.each()
        return CommonSiteCurve(shared, X, y, self.max_points, self.large_sites, self._members)
