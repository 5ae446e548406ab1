"""The faces of ODCL and of its rivals that need one round or none."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.odcl import ODCL as ALGORITHM
from fedkin.algorithms.odcl import SEND, message_for
from fedkin.estimators.base import check_choice, check_count, check_fraction, is_number, listed
from fedkin.estimators.clustered import SHARED_PARAMETERS, ClusteredEstimator
from fedkin.federation import Federation

AGGREGATES = ("mean", "size", "precision", "statistics", "median")
CLUSTERINGS = ("kmeans", "spectral", "spectral_part_one", "gradient", "huber", "convex")
# What sites must send for an aggregate; for the others any message does.
NEEDS = {
    "size": ("rows", "covariance", "statistics"),
    "precision": ("covariance", "statistics"),
    "statistics": ("statistics",),
}
# What left a site, in words.
ACCOUNT = {
    "model": "Each site sent its own model once.",
    "model_and_rows": "Each site sent its own model and its number of rows once.",
    "model_and_covariance": "Each site sent its own model, its number of rows and the sampling "
    "covariance of the model once.",
    "statistics": "Each site sent its sums of products of features and outcome once.",
}


class NoCovarianceWarning(UserWarning):
    """Sites were to be weighted by a sampling covariance that their rows do not give."""


class ODCL(ClusteredEstimator):
    """Which sites are of a kind, and the model of each kind, in one round.

    Every site fits its own model; the server clusters the models and averages each cluster.

    Parameters
    ----------
    n_clusters : int or None
        None chooses it: the smallest number whose scatter the sites' own sampling covariances
        explain, or, where a site has too few rows to give one, the silhouette with a gap test
        against one cluster. `choice_` keeps the curve.
    clustering : "kmeans", "spectral", "spectral_part_one", "gradient", "huber" or "convex"
        "spectral_part_one" is the paper's Algorithm 2 without its last two parts; "huber" is
        gradient clustering with Huber's cost. Where sites send sampling covariances, models are
        clustered in units of their mean, except by "convex".
    penalty : "auto", "clusterpath", "interval" or float, for convex clustering
        "auto": the path's partition with the best silhouette after a polish, which sees groups of
        three sites or more. "clusterpath": the paper's appendix C. "interval": from (13) with
        `true_labels`; an ORACLE.
    n_neighbors : None or int, for convex clustering at a given penalty
        None couples all sites alike; a number only neighbours, the nearer the stronger (Remark 23).
    aggregate : "mean", "size", "precision", "statistics" or "median"
        How a cluster's model comes from its sites': plain mean, weighted by rows or by inverse
        covariance, pooled least squares from X'X and X'y (squared loss), geometric median. With
        "precision" a site that has no covariance to send (fewer than five rows more than
        coefficients, or over 200 coefficients) has no say, and a cluster of such sites alone is
        weighted by rows; a warning names them.
    robust : bool
        Set aside sites far from every neighbour (label -1, named in `odd_sites_`); they keep their
        own model. Groups of fewer than four sites count as far from every neighbour, too.
    refine_rounds : int
        Further rounds in which sites choose the model that fits them best.
    space : "auto", "models" or "predictions"
        What is clustered. "auto": models, or what shared models predict of a site if statistics
        are shared and the median site has fewer than two rows a coefficient.
    solver : "exact" or "sgd"; n_steps, batch_size, iterate ("last" or "average"), radius
        "sgd" takes `n_steps` stochastic steps at each site instead of the exact fit (I-ODCL), kept
        within `radius` of zero.
    max_clusters : None or int
        Most clusters to choose from when `n_clusters` is None and no penalty is given.
    true_labels : None, or a cluster per site, by name or in the order of `client_names_`
    send : None, "model", "rows", "covariance" or "statistics"
        What leaves a site: its model, also its number of rows, also the model's covariance, or its
        sums of products. None is the least that serves the other settings; where it is less, the
        silhouette chooses `n_clusters`.
    fraction : share of the sites asked in each refining round.
    """

    __doc__ += (
        SHARED_PARAMETERS
        + """
    Attributes
    ----------
    labels_ (m,), n_clusters_, cluster_coef_ (K, d), cluster_intercept_ (K,), coef_ (m, d),
    intercept_ (m,), local_coef_ (m, d), odd_sites_, choice_, path_, penalty_, classes_,
    client_names_, converged_, n_rounds_, history_, traffic_, refusals_
    """
    )

    _private = (*ClusteredEstimator._private, "_without_covariance")

    def __init__(
        self,
        n_clusters=None,
        *,
        loss="squared",
        clustering="kmeans",
        penalty="auto",
        n_neighbors=None,
        aggregate="mean",
        robust=False,
        refine_rounds=0,
        space="auto",
        max_clusters=None,
        alpha=None,
        fit_intercept=True,
        solver="exact",
        n_steps=1000,
        batch_size=1,
        iterate="last",
        radius=None,
        true_labels=None,
        send=None,
        fraction=1.0,
        random_state=None,
        engine=None,
    ):
        self.n_clusters = n_clusters
        self.loss = loss
        self.clustering = clustering
        self.penalty = penalty
        self.n_neighbors = n_neighbors
        self.aggregate = aggregate
        self.robust = robust
        self.refine_rounds = refine_rounds
        self.space = space
        self.max_clusters = max_clusters
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.n_steps = n_steps
        self.batch_size = batch_size
        self.iterate = iterate
        self.radius = radius
        self.true_labels = true_labels
        self.send = send
        self.fraction = fraction
        self.random_state = random_state
        self.engine = engine

    def fit(self, X=None, y=None, groups=None):
        """Fit to sites: rows X with outcome y and a site name per row, or a Federation."""
        self._check_parameters()
        federation = self._data(X, y, groups)
        settings = self._settings(federation)
        self._message = message_for(settings)
        result = self._run(ALGORITHM, settings, federation).result
        self._read(result)
        self._without_covariance = self.client_names_[result["without_covariance"]]
        if self.aggregate == "precision" and len(self._without_covariance):
            self._warn_of_weights()
        return self

    def _warn_of_weights(self) -> None:
        without, n_sites = self._without_covariance, len(self.client_names_)
        remedy = "size" if self.loss == "logistic" else "statistics"
        warnings.warn(
            f"aggregate='precision': {len(without)} of {n_sites} sites have too few rows, or too "
            f"many coefficients, for a covariance ({listed(without, 3)}); they have no say beside "
            "others, and a cluster of such sites alone is weighted by rows; take "
            f"aggregate={remedy!r}",
            NoCovarianceWarning,
            stacklevel=3,
        )

    def _check_parameters(self) -> None:
        check_choice("clustering", self.clustering, CLUSTERINGS)
        check_choice("aggregate", self.aggregate, AGGREGATES)
        check_choice("space", self.space, ("auto", "models", "predictions"))
        check_choice("solver", self.solver, ("exact", "sgd"))
        check_choice("iterate", self.iterate, ("last", "average"))
        if isinstance(self.penalty, str):
            check_choice("penalty", self.penalty, ("auto", "clusterpath", "interval"))
        elif not (is_number(self.penalty) and self.penalty >= 0):
            raise ValueError(
                f"penalty must be a word or a number of at least 0, not {self.penalty!r}"
            )
        if self.clustering == "convex" and self.n_clusters is not None and self.penalty != "auto":
            raise ValueError("give n_clusters or a penalty to convex clustering, not both")
        if self.penalty == "interval" and self.true_labels is None:
            raise ValueError("penalty='interval' is an oracle: it needs true_labels")
        if self.aggregate == "statistics" and self.loss == "logistic":
            raise ValueError(
                "aggregate='statistics' needs loss='squared': no sums stand for logistic rows; use "
                "'precision' or 'size'"
            )
        if self.aggregate == "statistics" and self.solver == "sgd":
            raise ValueError("aggregate='statistics' solves exactly; drop solver='sgd'")
        self._check_send()
        if self.space == "predictions" and self.aggregate != "statistics":
            raise ValueError("space='predictions' needs aggregate='statistics'")
        for name in ("n_clusters", "max_clusters", "n_neighbors", "n_steps", "batch_size"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.refine_rounds != 0:
            check_count("refine_rounds", self.refine_rounds)
        if self.radius is not None and not (is_number(self.radius) and self.radius > 0):
            raise ValueError(f"radius must be None or a positive number, not {self.radius!r}")
        if self.n_neighbors is not None and isinstance(self.penalty, str):
            raise ValueError("n_neighbors weighs pairs at one penalty: give penalty a number, too")
        check_fraction(self.fraction)

    def _check_send(self) -> None:
        check_choice("send", self.send, (None, *SEND))
        if self.send is None:
            return
        enough = NEEDS.get(self.aggregate, tuple(SEND))
        if self.send not in enough:
            listed_words = " or ".join(repr(word) for word in enough)
            raise ValueError(
                f"aggregate={self.aggregate!r} needs send={listed_words}, not {self.send!r}"
            )
        if self.send == "statistics" and (self.loss == "logistic" or self.solver == "sgd"):
            raise ValueError(
                "send='statistics' needs loss='squared' and solver='exact': the sums stand for no "
                "other fit"
            )

    def _settings(self, federation: Federation | None) -> dict[str, Any]:
        names = [name for name in ALGORITHM.defaults if name != "labels"]
        settings = {name: getattr(self, name) for name in names} | {"labels": None}
        if self.true_labels is not None:
            settings["true_labels"] = self._in_roster_order(
                self.true_labels, federation, "true_labels"
            )
        if federation is not None and self.n_clusters is not None:
            n_sites = int((federation.sizes > 0).sum())
            if self.n_clusters > n_sites:
                raise ValueError(
                    f"n_clusters={self.n_clusters} needs at least as many sites with rows; there "
                    f"are {n_sites}"
                )
        return settings

    def _account(self) -> list[str]:
        account = [ACCOUNT[self._message]]
        without = self._without_covariance
        if len(without):
            account.append(
                f"No covariance came from {len(without)} sites whose rows do not give one, or of "
                f"too many coefficients: {listed(without, 3)}."
            )
        if len(without) and self.aggregate == "precision":
            account.append("A cluster of such sites alone was weighted by rows, not by precision.")
        if self.refine_rounds:
            account.append("In each refining round a site also said which shared model it chose.")
        if self.penalty == "interval" and self.clustering == "convex":
            account.append("The penalty was computed from the true clusters: an oracle.")
        return account

    def plot(self, kind="sites", ax=None):
        """Draw "sites" (map of the local models), "choice" (curve) or "path" (dendrogram)."""
        check_is_fitted(self)
        check_choice("kind", kind, ("sites", "choice", "path"))
        from fedkin.estimators import odcl_plots

        return getattr(odcl_plots, f"plot_{kind}")(self, ax)


class _GivenClusters(ClusteredEstimator, ABC):
    """Sites fit once; who is averaged with whom is known beforehand."""

    _aggregate = "mean"

    @abstractmethod
    def _labels(self, federation: Federation | None) -> Any:
        """The cluster of every site."""

    def fit(self, X=None, y=None, groups=None):
        """Fit to sites: rows X with outcome y and a site name per row, or a Federation."""
        federation = self._data(X, y, groups)
        self._read(self._run(ALGORITHM, self._settings(federation), federation).result)
        return self

    def _settings(self, federation: Federation | None) -> dict[str, Any]:
        return {
            "loss": self.loss,
            "alpha": self.alpha,
            "fit_intercept": self.fit_intercept,
            "aggregate": self._aggregate,
            "labels": self._labels(federation),
        }


class NaiveAveraging(_GivenClusters):
    """One model for all sites: the mean of their models, as if they were all of a kind."""

    __doc__ += "\n\n    Parameters\n    ----------" + SHARED_PARAMETERS

    def __init__(
        self, *, loss="squared", alpha=None, fit_intercept=True, random_state=None, engine=None
    ):
        self.loss = loss
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.random_state = random_state
        self.engine = engine

    def _labels(self, federation: Federation | None) -> Any:
        return "one"


class LocalERM(NaiveAveraging):
    """Every site its own model: nobody joins."""

    __doc__ += "\n\n    Parameters\n    ----------" + SHARED_PARAMETERS

    def _labels(self, federation: Federation | None) -> Any:
        return "own"


class OracleAveraging(_GivenClusters):
    """Average the sites' models within the true clusters: an ORACLE, nobody knows `true_labels`.

    Parameters
    ----------
    true_labels : a cluster per site, by name or in the order of `client_names_`
    """

    __doc__ += SHARED_PARAMETERS.removeprefix("\n")

    def __init__(
        self,
        true_labels=None,
        *,
        loss="squared",
        alpha=None,
        fit_intercept=True,
        random_state=None,
        engine=None,
    ):
        self.true_labels = true_labels
        self.loss = loss
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.random_state = random_state
        self.engine = engine

    def _labels(self, federation: Federation | None) -> Any:
        if self.true_labels is None:
            raise ValueError(f"{type(self).__name__} is an oracle: it needs true_labels")
        return self._in_roster_order(self.true_labels, federation, "true_labels")


class ClusterOracle(OracleAveraging):
    """Fit one model to the joint rows of each true cluster: an ORACLE.

    With the squared loss the sites' sums of products do; with the logistic loss the rows themselves
    are pooled in this process, which no federation would allow.

    Parameters
    ----------
    true_labels : a cluster per site, by name or in the order of `client_names_`
    """

    __doc__ += SHARED_PARAMETERS.removeprefix("\n")
    _aggregate = "statistics"

    def fit(self, X=None, y=None, groups=None):
        """Fit to sites: rows X with outcome y and a site name per row, or a Federation."""
        if self.loss != "logistic":
            return super().fit(X, y, groups)
        federation = self._data(X, y, groups)
        if federation is None or self.engine is not None:
            raise ValueError("ClusterOracle pools rows with logistic loss: only in this process")
        labels = self._labels(federation)
        filled = np.bincount(labels, weights=federation.sizes) > 0
        if not filled.all():
            raise ValueError(f"true cluster {int(np.argmin(filled))} has no rows at any site")
        pooled = Federation.from_groups(federation.X, labels[federation.owner], federation.y)
        settings = {**self._settings(federation), "labels": "own", "aggregate": "mean"}
        outcome = self._run(ALGORITHM, settings, pooled)
        self.client_names_ = np.array(federation.names, dtype=object)
        self._position = {name: k for k, name in enumerate(federation.names)}
        everyone = np.ones(len(labels), dtype=bool)
        models = outcome.result["cluster_models"]
        self._read(
            {
                "cluster_models": models,
                "labels": labels,
                "models": models[labels],
                "heard": everyone,
                "aside": ~everyone,
                "site_rows": federation.sizes.astype(float),
                "history_changes": np.zeros(0),
            }
        )
        return self
