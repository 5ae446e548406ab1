"""Groups with covariances of their own, and groups with labels: fitted, and in use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, column_or_1d

from fedkin.estimators.mixtures import MixtureEstimator, check_start
from fedkin.federation import Federation
from fedkin.models import shaped_mixture as shaped
from fedkin.protocol import Run
from fedkin.shrinkage import borrowed

# Passes in which a site that was not in the fit finds its own values, and when they stand still.
ADAPT_PASSES = 100
ADAPT_TOL = 1e-6


class ShapedUse(MixtureEstimator):
    """What FedGrEM adds to a mixture: own covariances of groups, labels, sites that come later."""

    _private = (*MixtureEstimator._private, "_codes")
    _codes: np.ndarray | None = None
    _used: Any

    # ------------------------------------------------------------ labels

    def fit(self, X=None, y=None, groups=None):
        """Fit to sites: rows X and a site name per row, or a Federation.

        For regressions y is the target. For Gaussian mixtures y, if given, holds labels of rows,
        of any kind; NaN, None or -1 where it is not known. A group is then a class. A Federation's
        own target is not used then, with a warning.
        """
        classes, codes = None, None
        given = self._labels_of(X, y)
        if given is not None:
            classes, codes = encoded(given)
        self._given_codes, self._n_classes = codes, 0 if classes is None else len(classes)
        try:
            super().fit(X, y if self._uses_target() else None, groups)
        finally:
            del self._given_codes, self._n_classes
        if classes is not None:
            self.classes_ = classes
        return self

    def _labels_of(self, X: Any, y: Any) -> Any:
        """Labels of the rows of Gaussian mixtures, or None; a Federation's target is none."""
        if self._uses_target():
            return None
        if isinstance(X, Federation) and X.y is not None:
            self._warning(
                f"the target {X.target_name or 'y'!r} of this Federation is not used: a mixture of "
                "rows has no target. If it holds labels of groups: fit(clients.X, clients.y, "
                "groups=clients.groups)"
            )
        return None if isinstance(X, Federation) else y

    def _federation(self, X: Any, y: Any, groups: Any) -> Federation | None:
        codes = getattr(self, "_given_codes", None)
        return super()._federation(X, y if codes is None else codes, groups)

    def _settings_for(self, settings: Any, federation: Federation | None) -> Any:
        if getattr(self, "_given_codes", None) is None:
            return settings
        wanted = max(settings.n_components or 1, self._n_classes)
        return settings.replace(labels=True, n_components=wanted)

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
        kind = self._used.covariance_type
        self.n_components_ = len(result.centers)
        self.covariance_ = of_kind(result.scale, kind)
        self.group_covariance_ = of_kind(result.covariances, kind)
        self.degrees_, self.lacking_ = result.degrees, result.lacking

    def _warn(self, federation: Federation | None) -> None:
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

    # ------------------------------------------------------------ use

    def predict(self, X, groups=None, return_std=False, level=None):
        """Groups of rows, or their classes where the fit had labels; for regressions, targets.

        A site of the fit gets its own components and weights. Any other site, and groups=None after
        a fit to several sites, gets the population's components, with weights from `adapt`, else
        from these rows (Gaussian mixtures) or the sites' average (regressions: without y rows do
        not tell). For regressions `return_std` adds the standard deviation of a new target, and
        `level` the ends of intervals, (n, 2), that hold one with this probability: which group it
        is of, noise and, after a fit with standard errors, what is not known of coefficients.
        """
        found = super().predict(X, groups, return_std, level)
        if not hasattr(self, "classes_"):
            return found
        names = self.classes_
        if self.n_components_ > len(names):
            nobody = None if names.dtype.kind in "OUS" else -1
            names = np.append(names.astype(object), [nobody] * (self.n_components_ - len(names)))
            names = names if nobody is None else names.astype(self.classes_.dtype)
        return names[found]

    def score(self, X, y=None, groups=None):
        """Mean log density of the rows; share of right classes if y holds labels and the fit had.

        For regressions, R squared of `predict`.
        """
        if not hasattr(self, "classes_"):
            return super().score(X, y, groups)
        if isinstance(X, Federation) and y is None and X.y is not None:
            y = X.y[X.given_order]
        if y is None:
            return super().score(X, y, groups)
        classes, codes = encoded(y)
        known = codes >= 0
        right = self.predict(X, groups)[known] == classes[codes[known].astype(int)]
        return float(np.mean(right))

    def adapt(self, X, y=None, groups=None):
        """Learn what is a site's own, for sites not in the fit, from their own rows.

        Weights; where groups have covariances of their own, means and covariances, too, as far as
        the rows carry them from the population's. What is shared stays. `groups` names the site of
        each row, or one site for all of them. Regressions need y; else y may hold labels.
        """
        check_is_fitted(self)
        if not getattr(self._result, "shaped", False):
            return super().adapt(X, y if self._uses_target() else None, groups)
        given, codes = self._labels_of(X, y), None
        if given is not None and hasattr(self, "classes_"):
            codes = encoded(given, self.classes_)[1]
        if isinstance(X, Federation):
            X, codes = replace(X, y=None), y
        clients = self._new_clients(X, codes, groups, needs_target=False)
        for name, place in zip(clients.names, self._places(clients)):
            if place >= 0:
                raise ValueError(f"site {name!r} was in the fit and has values of its own")
        for name, *own in zip(clients.names, *self._own_of(clients)):
            self._adapted[name] = tuple(own)
        return self

    def _own_of(self, clients: Federation) -> tuple[np.ndarray, ...]:
        """Weights, means, covariances and freedom of these sites given what all share."""
        common, kind = self._result.common, self._used.covariance_type
        data, m = shaped.prepare(clients, clients.y is not None), len(clients.names)
        (n_groups, d), keep = common.centers.shape, not self._used.shares_weights
        counts, means = np.zeros((m, n_groups)), np.zeros((m, n_groups, d))
        scatter, before = np.zeros((m, n_groups, d, d)), -np.inf
        for number in range(ADAPT_PASSES):
            own = borrowed.posterior(counts, means, scatter, common, kind, keep)
            weights, covariances = own.weights, own.covariances
            if number:
                weights, covariances = borrowed.working(own, common, counts, kind, keep)
            groups = shaped.Groups(weights[:, None], own.means[:, None], covariances[:, None])
            counts, means, scatter, loglik = (part[:, 0] for part in shaped.expect(data, groups))
            gain, before = float(loglik.sum()) - before, float(loglik.sum())
            if number > 1 and abs(gain) <= ADAPT_TOL * len(clients.X):
                break
        own = borrowed.posterior(counts, means, scatter, common, kind, keep)
        return own.weights, own.means, *borrowed.predictive(own, common, kind)

    def _weights_of(self, clients: Federation) -> np.ndarray:
        if not getattr(self._result, "shaped", False):
            return super()._weights_of(clients)
        return self._at(clients)[0]

    def _at(self, clients: Federation) -> Any:
        """Weights, means, covariances of prediction and freedom of these sites."""
        result = self._result
        if not getattr(result, "shaped", False):
            return super()._at(clients)
        places, kind = self._places(clients), self._used.covariance_type
        common, (n_groups, d) = result.common, result.centers.shape
        m, nothing = len(places), np.zeros((len(places), n_groups))
        shapes = np.zeros((m, n_groups, d)), np.zeros((m, n_groups, d, d))
        keep = not self._used.shares_weights
        new = borrowed.posterior(nothing, *shapes, common, kind, keep)
        fit: Any = new.weights, new.means, *borrowed.predictive(new, common, kind)
        known = result.weights, result.components, result.predictive, result.freedom
        here, learn = places >= 0, places < 0
        fit = tuple(np.array(part) for part in fit)
        for part, fitted in zip(fit, known):
            part[here] = fitted[places[here]]
        for k, name in enumerate(clients.names):
            if name in self._adapted:
                learn[k] = False
                for part, own in zip(fit, self._adapted[name]):
                    part[k] = own
        return self._with_learnt_weights(clients, fit, learn, common) if learn.any() else fit

    def _with_learnt_weights(self, clients: Federation, fit: Any, learn: np.ndarray, common: Any):
        """Weights of sites that have none here, from these rows and what weights are usual."""
        weights, *rest = fit
        density = self._family.log_joint(
            self._family.prepare(clients), (np.ones_like(weights), *rest)
        )
        usual = common.concentration if self._used.shares_weights else np.zeros(weights.shape[1])
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


def encoded(y: Any, classes: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Classes in order, and the number of every row's class as a float; -1 where it is not known.

    With `classes` given, a label that is not among them is refused.
    """
    labels = column_or_1d(np.asarray(y))
    if labels.dtype.kind in "iub":
        known = labels != -1 if labels.dtype.kind == "i" else np.ones(len(labels), dtype=bool)
    elif labels.dtype.kind == "f":
        known = np.isfinite(labels) & (labels != -1)
    else:
        known = np.array(
            [v is not None and v == v and v != -1 for v in labels.tolist()], dtype=bool
        )
    present = labels[known]
    if present.dtype.kind == "f" and (present != np.round(present)).any():
        raise ValueError(
            "y holds numbers that are not whole; for Gaussian mixtures y are labels of groups, "
            "NaN, None or -1 where they are not known; family='regression' takes a target"
        )
    if classes is None:
        classes = np.array(sorted(set(present.tolist()))) if len(present) else np.empty(0, int)
    unknown = sorted(set(present.tolist()) - set(classes.tolist()))
    if unknown:
        raise ValueError(f"y has the class {unknown[0]!r}, which was not in the fit")
    place = {value: k for k, value in enumerate(classes.tolist())}
    codes = np.full(len(labels), -1.0)
    codes[known] = [place[value] for value in present.tolist()]
    return classes, codes


def of_kind(matrices: np.ndarray, kind: str) -> Any:
    """Covariances (..., d, d) as their kind has them: matrices, diagonals, or numbers."""
    if kind == "identity":
        return None
    if kind in ("full", "tied"):
        return matrices
    diagonal = np.einsum("...ii->...i", matrices)
    return np.array(diagonal if kind == "diag" else diagonal[..., 0])
