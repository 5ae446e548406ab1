"""Classes with labels in a mixed model: labels to numbers and back, probabilities, new sites."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils.validation import column_or_1d

from fedkin.algorithms.mixed_model_settings import MixedModelSettings
from fedkin.algorithms.softmax_mixed import SoftmaxMixedSettings
from fedkin.algorithms.softmax_mixed_result import SoftmaxMixedResult
from fedkin.algorithms.softmax_mixed_sites import departures
from fedkin.arrays import Array, Floats, Indices
from fedkin.federation import Federation
from fedkin.models.softmax_mixed import probabilities
from fedkin.names import listed

# Classes may be any few numbers; of more that are not whole, each would be a class of its own.
MOST_BROKEN = 10


def settings_of(settings: MixedModelSettings) -> SoftmaxMixedSettings:
    """Settings of the softmax regressions; after a step of sqrt(tol) what is left is about tol."""
    return SoftmaxMixedSettings(
        covariance="isotropic" if settings.covariance == "auto" else settings.covariance,  # type: ignore[arg-type]
        fit_intercept=settings.fit_intercept,
        share=settings.share,
        max_rounds=settings.max_rounds,
        tol=float(np.sqrt(settings.tol)),
    )


def encoded(X: Any, y: Any, groups: Any = None) -> tuple[Any, Any, Array]:
    """Data with labels as numbers 0, 1, ..., and the labels there are, in order."""
    if isinstance(X, Federation) and y is None:
        if X.y is None:
            return X, None, np.zeros(0)
        classes, codes = np.unique(X.y, return_inverse=True)
        return replace(X, y=codes.astype(np.float64)), None, _at_least_two(classes)
    if y is None:
        return X, None, np.zeros(0)
    labels = column_or_1d(y)
    missing = [k for k, value in enumerate(labels.tolist()) if value is None or value != value]
    if missing:
        where = _sites_of(missing, groups, len(labels))
        raise ValueError(
            f"the target has {len(missing)} missing labels{where}; drop these rows (NaN)"
        )
    classes, codes = np.unique(labels, return_inverse=True)
    return X, codes.astype(np.float64), _at_least_two(classes)


def _sites_of(rows: list[int], groups: Any, n_rows: int) -> str:
    """The sites of some rows for a sentence, where they can be told."""
    names = np.asarray([] if groups is None else groups).ravel()
    if len(names) != n_rows:
        return ""
    found = list(dict.fromkeys(str(names[k]) for k in rows))
    return f" at {'site' if len(found) == 1 else 'sites'} {listed(found, 3)}"


def _at_least_two(classes: Array) -> Array:
    if len(classes) < 2:
        raise ValueError(
            f"there is 1 class only ({listed(classes.tolist())}); classes need at least two"
        )
    broken = classes[classes != np.round(classes)] if classes.dtype.kind == "f" else classes[:0]
    if len(broken) and len(classes) > MOST_BROKEN:
        raise ValueError(
            f"the target has {len(classes)} different values, such as {broken[0]:g}: numbers, not "
            "classes; take family='gaussian' (Best: target='number'), or cut them into classes"
        )
    return classes


def codes_of(labels: Any, classes: Array) -> Floats:
    """Numbers of labels that the fit knows; others are refused by name."""
    given = column_or_1d(labels)
    unknown = sorted({str(label) for label in given if label not in classes})
    if unknown:
        raise ValueError(
            f"labels {listed(unknown)} are new; the fit had {listed(classes.tolist())}"
        )
    return np.searchsorted(classes, given).astype(np.float64)


class ClassesFacts:
    """A fit as estimators use it: own coefficients of known and of adapted sites."""

    def __init__(self, result: SoftmaxMixedResult, settings: SoftmaxMixedSettings) -> None:
        self.result, self.settings = result, settings
        self.own = result.coef + result.departures[result.heard]

    @property
    def n_places(self) -> int:
        """How many sites have a place."""
        return len(self.own)

    def probabilities(self, X: Floats, places: Indices) -> Floats:
        """Of every class, (n, C); -1 is a site nothing is known of."""
        table = (X - self.result.mean) / self.result.spread
        level = np.ones((len(table), int(self.settings.fit_intercept)))
        every = np.concatenate([self.own, self.result.population[None]])
        scores = np.einsum("nd,ncd->nc", np.concatenate([table, level], axis=1), every[places])
        return probabilities(scores)

    def extend(self, clients: Federation) -> None:
        """Learn how far further sites depart."""
        result = self.result
        new = departures(clients, self.settings, result.told(), result.set_weights)
        self.own = np.concatenate([self.own, result.coef + new])

    def in_units(self, coef: Floats) -> tuple[Floats, Floats]:
        """Coefficients (..., C, d) and intercepts (..., C) of the columns as they came."""
        d = len(self.result.mean)
        slopes = coef[..., :d] / self.result.spread
        return slopes, coef[..., d:].sum(axis=-1) - slopes @ self.result.mean


def with_memories(result: SoftmaxMixedResult, memories: Any) -> SoftmaxMixedResult:
    """With departures that sites in this process know but did not send."""
    if memories is None or len(result.heard):
        return result
    heard = np.flatnonzero(memories["known"])
    return replace(result, heard=heard, departures=memories["departures"])
