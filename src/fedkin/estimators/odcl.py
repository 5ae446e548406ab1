"""ODCL, and its rivals that need one round or none, as scikit-learn estimators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.clustered_result import NO_CLUSTER
from fedkin.algorithms.odcl import ODCL as ALGORITHM
from fedkin.algorithms.odcl import OdclResult
from fedkin.algorithms.odcl_settings import OdclSettings
from fedkin.estimators.base import ONLY_SITE
from fedkin.estimators.clustered import ClusteredEstimator
from fedkin.federation import Federation
from fedkin.models.local_loss import LocalLoss, SquaredLoss
from fedkin.names import listed
from fedkin.protocol import Run
from fedkin.settings import Settings, one_of

PICTURES = one_of("sites", "choice", "path")
# Rows below which a new site's own fit is not worth having.
LEAST_ROWS = 3


class NoCovarianceWarning(UserWarning):
    """Sites were to be weighted by a sampling covariance that their rows do not give."""


class _WeightedRows(ClusteredEstimator):
    """Estimators whose rows may count more or less than others."""

    _takes_weights = True

    def fit(self, X=None, y=None, groups=None, sample_weight=None):
        """Fit to sites: rows X with target y and a site name per row, or a Federation.

        `sample_weight`: what each row counts, as in scikit-learn; a row of weight zero is none. The
        logistic penalty is relative to the sum of a site's weights, the squared one to its rows.
        Without data, the engine reaches sites that hold their own.
        """
        return self._fit_to(X, y, groups, sample_weight)

    def _check_data(self, federation: Federation, settings) -> None:
        super()._check_data(federation, settings)
        if federation.weights is not None and settings.solver != "exact":
            raise ValueError("stochastic steps take no weights of rows; use solver='exact'")


class ODCL(_WeightedRows):
    """Which sites are of a kind, and the model of each kind, in one round.

    Every site fits its own model; the server clusters the models and averages each cluster.

    Parameters
    ----------
    n_clusters : int or None
        None chooses it, up to every site alone: BIC says how many kinds there are, and those kinds,
        one model for all and every site alone are compared by the errors to be expected at further
        rows of the sites. Where sites send models without sums of products or covariances, the
        silhouette decides, with a gap test against one cluster. `choice_` keeps the curve.
    clustering : {"kmeans", "spectral", "spectral_part_one", "gradient", "huber", "convex"}
        "spectral_part_one" is the paper's Algorithm 2 without its last two parts; "huber" is
        gradient clustering with Huber's cost. Where sites send sums of products or covariances, the
        distance of two models is that of their predictions at the sites' rows, except by "convex",
        and sites that cannot carry a model of their own join where their rows are likeliest.
    penalty : {"auto", "clusterpath", "interval"} or float
        For convex clustering. "auto": the path's partition with the best silhouette after a
        polish, which sees groups of three sites or more. "clusterpath": the paper's appendix C.
        "interval": from (13) with `true_labels`; an ORACLE.
    n_neighbors : int or None
        For convex clustering at a given penalty. None couples all sites alike; a number only
        neighbours, the nearer the stronger (Remark 23).
    aggregate : {"auto", "mean", "size", "precision", "statistics", "median"}
        How a cluster's model comes from its sites': weighted by inverse covariance ("precision"),
        by rows, the paper's plain mean, pooled least squares from X'X and X'y (squared loss), or
        geometric median. "auto" is "precision" as far as what is sent allows. Where covariances
        are sent, a site that has none (fewer than five rows more than coefficients) has no say
        with "precision", and a cluster of such sites alone is weighted by rows; asked for
        "precision", a warning names them.
    robust : bool
        Set aside sites far from every neighbour (label -1, named in `odd_sites_`); they keep their
        own model. Groups of fewer than four sites count as far from every neighbour, too. With
        models alone, no site weighs more than twice the median one, whatever rows it claims.
    refine_rounds : int
        Further rounds in which sites choose the model that fits them best.
    space : {"auto", "models", "predictions"}
        What is clustered. "auto": models, or what shared models predict of a site if the median
        site has fewer than two rows a coefficient, or most sites determine no model of their own.
    max_clusters : int or None
        Most clusters to choose from when `n_clusters` is None and no penalty is given; if there are
        fewer than sites, none stays alone for want of others like it.
    solver : {"exact", "sgd"}
        "sgd" takes `n_steps` stochastic steps at each site instead of the exact fit (I-ODCL).
    n_steps : int
        Stochastic steps of a site.
    batch_size : int
        Rows drawn for each stochastic step.
    iterate : {"last", "average"}
        Whether the last of the steps' models counts, or their weighted mean.
    radius : float or None
        Stochastic steps stay within this distance of zero.
    true_labels : None, sequence or mapping
        The true cluster per site, in the order of `client_names_` or by the site's name; for
        `penalty="interval"`.
    send : {None, "model", "rows", "covariance", "statistics"}
        What leaves a site: its model, also its number of rows, also the model's covariance, or its
        sums of products. None is the least that serves the other settings: with defaults the sums
        (squared loss; of more than 200 coefficients rows and model alone) or the covariance. Where
        it is less, the silhouette chooses `n_clusters`. The paper's one-shot clustering of models
        is `n_clusters=K, aggregate="mean", send="model"`.
    fraction : float
        Share of the sites asked in each refining round.
    [shared parameters]

    [attributes]

    Examples
    --------
    [sites of two kinds]
    >>> from fedkin import ODCL
    >>> model = ODCL(random_state=0).fit(X, y, groups=groups)
    >>> model.n_clusters_
    2
    >>> model.labels_
    array([0, 0, 0, 1, 1, 1])
    >>> model.cluster_coef_.round(1) + 0.0
    array([[ 1.,  2.],
           [-1.,  0.]])
    """

    _algorithm = ALGORITHM
    _fixed: ClassVar = {"given_clusters": None}
    _result: OdclResult

    def _settings_for(self, settings: Any, federation: Federation | None) -> Any:
        """Rows without sites are one site (there is a warning): it is one cluster."""
        nameless = federation is not None and federation.names == (ONLY_SITE,)
        if nameless and settings.n_clusters is not None:
            return settings.replace(n_clusters=1)
        return settings

    def _check_data(self, federation: Federation, settings) -> None:
        super()._check_data(federation, settings)
        n_sites, wanted = int((federation.sizes > 0).sum()), settings.n_clusters or 1
        if wanted > n_sites:
            raise ValueError(
                f"n_clusters={wanted} needs at least as many sites with rows; there are {n_sites}"
            )

    def _warn(self, federation: Federation | None) -> None:
        super()._warn(federation)
        without = self.client_names_[self._result.without_covariance]
        if self.aggregate != "precision" or not len(without):
            return
        remedy = "size" if self.loss == "logistic" else "statistics"
        self._warning(
            f"aggregate='precision': {len(without)} of {len(self.client_names_)} sites have too "
            f"few rows, or too many coefficients, for a covariance ({listed(without, 3)}); they "
            "have no say beside others, and a cluster of such sites alone is weighted by rows; "
            f"take aggregate={remedy!r}",
            NoCovarianceWarning,
        )

    def _for_new_sites(self, local: LocalLoss) -> tuple[np.ndarray, np.ndarray]:
        if self._result.counts.max(initial=0) > 1 or self.n_clusters_ == 1:
            return super()._for_new_sites(local)
        return models_of_their_own(local, self._result.population)

    def plot(self, kind="sites", ax=None):
        """Draw "sites" (map of the local models), "choice" (curve) or "path" (dendrogram)."""
        from fedkin.estimators import odcl_plots

        check_is_fitted(self)
        PICTURES.accept("kind", kind)
        pictures = {
            "sites": odcl_plots.plot_sites,
            "choice": odcl_plots.plot_choice,
            "path": odcl_plots.plot_path,
        }
        return pictures[kind](self, ax)


def models_of_their_own(local: LocalLoss, fallback: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fits of new sites to their own rows; those of fewer than three rows get the fallback."""
    enough = local.sizes >= LEAST_ROWS
    models = np.where(enough[:, None], local.fit(), fallback)
    return np.full(len(models), NO_CLUSTER), models


# ------------------------------------------------------------------ clusters that are given


def _fixed_but(*free: str, **values: Any) -> dict[str, Any]:
    """ODCL's settings that are not for the user to choose: all but `free` and the common ones."""
    fixed = {**OdclSettings.defaults(), **values}
    return {n: v for n, v in fixed.items() if n not in {"loss", "alpha", "fit_intercept", *free}}


class NaiveAveraging(_WeightedRows):
    """One model for all sites: the average of their models, as if they were all of a kind.

    Parameters
    ----------
    [average]
    [shared parameters]

    [attributes]

    Examples
    --------
    [sites of two kinds]
    >>> from fedkin import NaiveAveraging
    >>> NaiveAveraging(aggregate="mean").fit(X, y, groups=groups).cluster_coef_.round(1) + 0.0
    array([[0., 1.]])
    """

    _algorithm = ALGORITHM
    _fixed = _fixed_but("aggregate", given_clusters="one")


class LocalERM(_WeightedRows):
    """Every site its own model: nobody joins.

    A site that was not in the fit has the average of all (`aggregate`); one given to `adapt` has
    its own model, too. With `alpha=None` and the squared loss a site of fewer than 2 d + 1 rows for
    its d coefficients has the penalty of "auto": least squares would add more than the noise itself
    to a prediction. `alpha=0.0` is least squares everywhere.

    Parameters
    ----------
    [average]
    [shared parameters]

    [attributes]

    Examples
    --------
    [sites of two kinds]
    >>> from fedkin import LocalERM
    >>> LocalERM().fit(X, y, groups=groups).labels_
    array([0, 1, 2, 3, 4, 5])
    """

    _algorithm = ALGORITHM
    _fixed = _fixed_but("aggregate", given_clusters="own")

    def _for_new_sites(self, local: LocalLoss) -> tuple[np.ndarray, np.ndarray]:
        if self.alpha is None and isinstance(local, SquaredLoss):
            local = local.with_chosen_strengths(few_rows_only=True)
        models = local.fit()
        return np.full(len(models), NO_CLUSTER), models


class OracleAveraging(ClusteredEstimator):
    """Average the sites' models within the true clusters: an ORACLE, nobody knows `true_labels`.

    Parameters
    ----------
    [true labels]
    [shared parameters]

    [attributes]

    Examples
    --------
    [sites of two kinds]
    >>> from fedkin import OracleAveraging
    >>> model = OracleAveraging([0, 0, 0, 1, 1, 1]).fit(X, y, groups=groups)
    >>> model.cluster_coef_.round(1) + 0.0
    array([[ 1.,  2.],
           [-1.,  0.]])
    """

    _algorithm = ALGORITHM
    _fixed = _fixed_but("true_labels", given_clusters="true", aggregate="mean")

    @classmethod
    def _parameters(cls) -> dict[str, Any]:
        """The truth comes first: without it there is no oracle."""
        return {"true_labels": None, **super()._parameters()}


class ClusterOracle(OracleAveraging):
    """Fit one model to the joint rows of each true cluster: an ORACLE.

    With the squared loss the sites' sums of products do; with the logistic loss the rows themselves
    are pooled in this process, which no federation would allow.

    Parameters
    ----------
    [true labels]
    [shared parameters]

    [attributes]

    Examples
    --------
    [sites of two kinds]
    >>> from fedkin import ClusterOracle
    >>> model = ClusterOracle([0, 0, 0, 1, 1, 1]).fit(X, y, groups=groups)
    >>> model.cluster_coef_.round(1) + 0.0
    array([[ 1.,  2.],
           [-1.,  0.]])
    """

    def _chosen_settings(self) -> Settings:
        settings = super()._chosen_settings()
        return settings if self.loss == "logistic" else settings.replace(aggregate="statistics")

    def _run_with(self, settings: Any, federation: Federation | None) -> Run:
        if settings.loss != "logistic":
            return super()._run_with(settings, federation)
        if federation is None or self.engine is not None:
            raise ValueError("ClusterOracle pools rows with logistic loss: only in this process")
        labels = settings.true_clusters(federation.names)
        filled = np.bincount(labels, weights=federation.sizes) > 0
        if not filled.all():
            raise ValueError(f"true cluster {int(np.argmin(filled))} has no rows at any site")
        pooled = Federation.from_groups(federation.X, labels[federation.owner], federation.y)
        run = super()._run_with(settings.replace(given_clusters="own", true_labels=None), pooled)
        result = run.result.of_pooled(labels, federation.sizes)
        roster = replace(run.roster, names=federation.names)
        return replace(run, result=result, roster=roster, memories=None)
