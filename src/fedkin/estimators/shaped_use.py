"""Groups with covariances of their own: fitted, and in use."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import logsumexp, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedkin.algorithms.mixtures.families import ShapedFamily
from fedkin.estimators.fmlr import ImplausibleSitesWarning
from fedkin.estimators.labelled_mixture import LabelledMixture, encoded
from fedkin.estimators.mixtures import check_start
from fedkin.federation import Federation
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import shaped_mixture as shaped
from fedkin.models.packed_matrices import n_numbers
from fedkin.names import sites_listed
from fedkin.privacy.disclosure import DEFAULT_RULES
from fedkin.protocol import Run
from fedkin.shrinkage import borrowed

# Passes in which a site that was not in the fit finds its own values, and when they stand still.
ADAPT_PASSES = 100
ADAPT_TOL = 1e-6


class ShapedUse(LabelledMixture):
    """What FedGrEM adds to a mixture: own covariances of groups, sites that come later."""

    _used: Any

    def _check_data(self, federation: Federation, settings: Any) -> None:
        if not settings.shaped:
            super()._check_data(federation, settings)
            return
        n_rows, wanted = len(federation.X), settings.n_components or 1
        if n_rows < wanted:
            raise ValueError(
                f"n_components={wanted} needs at least as many rows; all sites together have "
                f"n_samples={n_rows}"
            )
        if settings.given_start is not None:
            check_start(settings.given_start.shape, federation, settings)

    # ------------------------------------------------------------ attributes

    def _read(self, run: Run) -> None:
        super()._read(run)
        result = self._result
        if not getattr(result, "shaped", False):
            return
        kind, self._family = self._used.covariance_type, ShapedFamily(self._used)
        self.n_components_ = len(result.centers)
        self.covariance_ = of_kind(result.covariances[0] if kind == "tied" else result.scale, kind)
        self.group_covariance_ = of_kind(result.covariances, kind)
        self.degrees_, self.lacking_ = result.degrees, result.lacking
        wrong = np.zeros(len(self.client_names_), dtype=bool)
        wrong = wrong if result.implausible is None else result.implausible
        self.implausible_sites_ = self.client_names_[wrong]
        if result.temperatures is not None:
            self.temperature_, self.new_site_temperature_ = map(float, result.temperatures)
            share = np.zeros(2) if result.taught_share is None else result.taught_share
            self.labelled_share_, self.new_site_labelled_share_ = map(float, share)

    def _has_labels(self, clients: Federation) -> np.ndarray:
        """Whether labels of these sites are known, (k,)."""
        places, labelled = self._places(clients), self._result.class_counts.sum(axis=1) > 0
        known = np.where(places >= 0, labelled[places], False)
        for k, name in enumerate(clients.names):
            if name in self._adapted:
                known[k] = self._adapted[name][-1].any()
        return known

    def _warn(self, federation: Federation | None) -> None:
        self._warn_of_rules()
        if self.converged_ or self._used.shrinkage != "paper":
            super()._warn(federation)
            return
        self._warning(
            f"FedGrEM with the paper's penalty did not settle within max_rounds={self.max_rounds}: "
            "steps of a fixed length creep. Raise max_rounds to 1000, as the paper does, take "
            "step='em', or shrinkage='adaptive', which has nothing to tune",
            ConvergenceWarning,
        )
        self._warn_of_groups()

    def _warn_of_rules(self) -> None:
        """Sites that told of their columns and not of their groups, and groups that did not leave.

        Who said nothing at all is named anyway.
        """
        result = self._result
        if not getattr(result, "shaped", False):
            return
        named = np.isin(self.client_names_, list(self.missing_sites_))
        unheard = self.client_names_[~result.heard & ~named]
        if len(unheard):
            n_groups, d = result.centers.shape
            last = {refusal.site: str(refusal.fault) for refusal in self.refusals_}
            why = "; ".join(sorted({last[name] for name in unheard if name in last}))
            needed = least_rows(n_groups * d), least_rows(d + 1)
            self._warning(
                f"nothing was told of the groups at {sites_listed(unheard)} ({why}); they have the "
                f"population's. Under the default rules the means of {n_groups} groups in {d} "
                f"columns need {needed[0]} rows at a site and {needed[1]} in a group, whatever the "
                "covariance: fewer groups or columns let more sites join. adapt(X, groups=...) "
                "finds a site's own values where its rows are; nothing leaves for that"
            )
        if len(self.implausible_sites_):
            self._warning(
                f"{sites_listed(self.implausible_sites_)} sent squares of groups that no rows can "
                "have, and had no say; their groups are the population's. Look at these sites.",
                ImplausibleSitesWarning,
            )
        if result.kept_back.any():
            self._warning(result.words_of_kept_back(self.client_names_))

    # ------------------------------------------------------------ use

    def adapt(self, X, y=None, groups=None):
        """Learn what is a site's own, for sites not in the fit, from their own rows.

        Weights; where groups have covariances of their own, means and covariances, too, as far as
        the rows carry them from the population's. What is shared stays. `groups` names the site of
        each row, or one site for all of them. Regressions need y; else y may hold labels: rows
        that have them tell of the site's classes, all rows of its groups.
        """
        check_is_fitted(self)
        if not getattr(self._result, "shaped", False):
            return super().adapt(X, y if self._uses_target() else None, groups)
        given, codes = self._labels_of(X, y), None
        if given is not None and hasattr(self, "classes_"):
            codes = encoded(given, self.classes_)[1]
        if isinstance(X, Federation):
            X = replace(X, y=None)
        clients = self._new_clients(X, codes, groups, needs_target=False)
        for name, place in zip(clients.names, self._places(clients)):
            if place >= 0:
                raise ValueError(f"site {name!r} was in the fit and has values of its own")
        learnt = self._own_of(clients)
        if hasattr(self, "temperature_"):
            learnt = (*learnt, *self._classes_of(clients))
        for name, *own in zip(clients.names, *learnt):
            self._adapted[name] = tuple(own)
        return self

    def _classes_of(self, clients: Federation) -> tuple[np.ndarray, ...]:
        """The same by labelled rows, in every way there is, and their counts.

        Of a site without any, weights are those of its other rows.
        """
        data, keep = gaussian.prepare(clients, True), self._used.share_weights is False
        found: list[np.ndarray] = []
        for common, kind in self._ways_of_classes():
            counts, means, scatter, _ = shaped.labelled_moments(data, len(common.centers), kind)
            own = borrowed.by_labels(counts, means, scatter, common, kind, keep)
            fit = own.weights, own.means, *borrowed.predictive(own, common, kind)
            learn = counts.sum(axis=1) <= 0
            if learn.any():
                fit = self._with_learnt_weights(clients, fit, learn, common)
            found += fit
        return *found, counts

    def _ways_of_classes(self) -> list[tuple[Any, str]]:
        """What is common to classes and its kind: by all rows, and by labelled rows alone."""
        result, kind = self._result, self._used.covariance_type
        ways = [(result.common, kind)]
        if result.taught_share is not None:
            ways.append((result.taught, "tied" if result.taught_alike else kind))
        return ways

    def _own_of(self, clients: Federation) -> tuple[np.ndarray, ...]:
        """Weights, means, covariances and freedom of these sites given what all share."""
        common, kind = self._result.common, self._used.covariance_type
        data, m = gaussian.prepare(clients, clients.y is not None), len(clients.names)
        (n_groups, d), keep = common.centers.shape, self._used.share_weights is False
        counts, means = np.zeros((m, n_groups)), np.zeros((m, n_groups, d))
        scatter, before = np.zeros((m, n_groups, n_numbers(kind, d))), -np.inf
        for number in range(ADAPT_PASSES):
            own = borrowed.posterior(counts, means, scatter, common, kind, keep)
            weights, covariances = own.weights, own.covariances
            if number:
                weights, covariances = borrowed.working(own, common, counts, kind, keep)
            groups = shaped.Groups(weights[:, None], own.means[:, None], covariances[:, None])
            told = shaped.expect(data, groups, kind)
            counts, means, scatter, loglik = (part[:, 0] for part in told)
            gain, before = float(loglik.sum()) - before, float(loglik.sum())
            if number > 1 and abs(gain) <= ADAPT_TOL * len(clients.X):
                break
        own = borrowed.posterior(counts, means, scatter, common, kind, keep)
        return own.weights, own.means, *borrowed.predictive(own, common, kind)

    def _weights_of(self, clients: Federation) -> np.ndarray:
        if not getattr(self._result, "shaped", False):
            return super()._weights_of(clients)
        return self._at(clients)[0]

    def _class_shares(self, clients: Federation) -> np.ndarray:
        if not hasattr(self, "temperature_"):
            return super()._class_shares(clients)
        known, result, rows = self._has_labels(clients), self._result, self._family.prepare(clients)

        def shares(way: int, temperatures: Any) -> np.ndarray:
            joint = self._family.log_joint(rows, self._classes_at(clients, way))
            unsure = np.where(known, *temperatures)[clients.owner, None]
            return softmax(joint / unsure, axis=1)

        by_all = shares(0, (self.temperature_, self.new_site_temperature_))
        if result.taught_share is None or not self._classes_are_groups():
            return by_all
        by_labelled = shares(1, result.taught_temperatures)
        share = np.where(known, self.labelled_share_, self.new_site_labelled_share_)
        return by_all + share[clients.owner, None] * (by_labelled - by_all)

    def _classes_are_groups(self) -> bool:
        """Whether every group has labels somewhere."""
        return len(self.classes_) == len(self._result.centers)

    def _at(self, clients: Federation) -> Any:
        """Weights, means, covariances of prediction and freedom of these sites."""
        result = self._result
        if not getattr(result, "shaped", False):
            return super()._at(clients)
        way = result.common, self._used.covariance_type
        return self._values_at(clients, way, result.of_groups, 0)

    def _classes_at(self, clients: Federation, way: int) -> Any:
        """The same where it is asked which class a row is of.

        Groups that have no labels anywhere are told by all rows, and the others beside them.
        """
        result = self._result
        names = result.of_classes if way == 0 else result.of_taught
        if not self._classes_are_groups():
            return self._at(clients)
        told = names if names[0] in result else result.of_groups
        return self._values_at(clients, self._ways_of_classes()[way], told, 1 + way)

    def _values_at(self, clients: Federation, way: Any, names: Any, begin: int) -> Any:
        """Values of the fit by names; of `adapt`, its parts that begin at a number; or common."""
        result, (common, kind) = self._result, way
        places, (n_groups, d) = self._places(clients), common.centers.shape
        m, nothing = len(places), np.zeros((len(places), n_groups))
        shapes = np.zeros((m, n_groups, d)), np.zeros((m, n_groups, n_numbers(kind, d)))
        keep = self._used.share_weights is False
        new = borrowed.posterior(nothing, *shapes, common, kind, keep)
        fit: Any = new.weights, new.means, *borrowed.predictive(new, common, kind)
        here, learn = places >= 0, places < 0
        fit = tuple(np.array(part) for part in fit)
        for part, name in zip(fit, names):
            part[here] = result[name][places[here]]
        for k, name in enumerate(clients.names):
            if name in self._adapted:
                learn[k] = False
                # Of groups; then, if there are labels, of classes in each way.
                for part, own in zip(fit, self._adapted[name][begin * len(fit) :]):
                    part[k] = own
        return self._with_learnt_weights(clients, fit, learn, common) if learn.any() else fit

    def _with_learnt_weights(self, clients: Federation, fit: Any, learn: np.ndarray, common: Any):
        """Weights of sites that have none here, from these rows and what weights are usual."""
        weights, *rest = fit
        density = self._family.log_joint(
            self._family.prepare(clients), (np.ones_like(weights), *rest)
        )
        own = self._used.share_weights is False
        usual = np.zeros(weights.shape[1]) if own else common.concentration
        for _ in range(ADAPT_PASSES):
            joint = density + np.log(np.maximum(weights[clients.owner], 1e-300))
            share = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
            counts = np.zeros_like(weights)
            np.add.at(counts, clients.owner, share)
            new = (counts + usual) / (counts + usual).sum(axis=1, keepdims=True)
            new = np.where(learn[:, None], new, weights)
            moved, weights = np.abs(new - weights).max(), new
            if moved <= ADAPT_TOL:
                break
        return (weights, *rest)


def least_rows(n_parameters: int) -> int:
    """How many rows the default rules want behind so many parameters."""
    return math.ceil(n_parameters / DEFAULT_RULES.nfilter_glm)


def of_kind(matrices: np.ndarray, kind: str) -> Any:
    """Covariances (..., d, d) as their kind has them: matrices, diagonals, or numbers."""
    if kind == "identity":
        return None
    if kind in ("full", "tied"):
        return matrices
    diagonal = np.einsum("...ii->...i", matrices)
    return np.array(diagonal if kind == "diag" else diagonal[..., 0])
