"""Mixtures whose groups may have labels: a group is then a class."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import column_or_1d

from fedkin.estimators.mixtures import MixtureEstimator
from fedkin.federation import Federation


class LabelledMixture(MixtureEstimator):
    """A mixture of rows some or all of which may have labels."""

    # Whether there may be groups that no row has the label of.
    _groups_without_labels: ClassVar[bool] = True

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
        elif hasattr(self, "classes_"):
            del self.classes_
        return self

    def _labels_of(self, X: Any, y: Any) -> Any:
        """Labels of the rows of Gaussian mixtures, or None; a Federation's target is none."""
        if self._uses_target():
            return None
        if isinstance(X, Federation) and y is not None:
            raise ValueError(
                "labels y were given beside a Federation; they go with rows and their sites: "
                "fit(X, y, groups=...)"
            )
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
        if wanted > self._n_classes and not self._groups_without_labels:
            raise ValueError(
                f"n_components={wanted}, but y has the labels of {self._n_classes} groups; "
                f"{type(self).__name__} with labels needs some of every group, FedGrEM does not"
            )
        return settings.replace(labels=True, n_components=wanted)

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
