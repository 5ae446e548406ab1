"""Data of a site in a mixed model: sums, counts, and the columns that are worked with."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedkin.algorithms.mixed_model_settings import MixedModelSettings
from fedkin.arrays import Arrays, Floats, Indices
from fedkin.federation import Federation
from fedkin.models.glm_rows import GlmRows
from fedkin.models.least_squares import packed_statistics
from fedkin.models.random_covariance import Shape


class Coordinates(NamedTuple):
    """Columns worked with: X basis, X[:, random] spread; the target is (y - X offset) / scale.

    `places` (r, r) says which free number of the effects' factor stands where; -1 is zero.
    """

    basis: Floats
    offset: Floats
    scale: float
    random: Indices
    spread: Floats
    places: Indices

    @property
    def shape(self) -> Shape:
        """Where the free numbers of the factor stand."""
        rows, columns = np.nonzero(self.places >= 0)
        return Shape(len(self.places), rows, columns, self.places[rows, columns])

    def message(self, points: Floats) -> Arrays:
        """What sites are told."""
        return {
            "points": points,
            "basis": self.basis,
            "offset": self.offset,
            "scale": np.array(self.scale),
            "random": np.asarray(self.random, dtype=np.int64),
            "spread": self.spread,
            "places": np.asarray(self.places, dtype=np.int64),
        }

    @classmethod
    def of(cls, common: Arrays) -> Coordinates:
        """What was told."""
        return cls(
            common["basis"],
            common["offset"],
            float(common["scale"]),
            common["random"],
            common["spread"],
            common["places"],
        )


class OwnEffects(NamedTuple):
    """What sites know of their effects: modes (m, q), covariances (m, q, q), and how they move.

    `by_coef` (m, q, d): when the common coefficients go one way, effects go this way back.
    """

    effects: Floats
    given: Floats
    by_coef: Floats


# ------------------------------------------------------------------ data


def prepare(clients: Federation, settings: MixedModelSettings) -> Arrays:
    """Reduce every client to its statistics, (m, q), where that is all it takes."""
    if clients.y is None:
        raise ValueError("a mixed model needs a target y at every site")
    if not settings.gaussian:
        check_counts(clients, settings)
        return {}
    return {"statistics": np.ascontiguousarray(statistics_of(clients, settings).T)}


def statistics_of(clients: Federation, settings: MixedModelSettings) -> Floats:
    """Packed statistics of features and target less offset, (q, m)."""
    rows = settings.features(clients)
    assert clients.y is not None
    if settings.offset is not None:
        rows = replace(rows, y=clients.y - settings.column(clients, settings.offset, 0.0))
    return packed_statistics(rows, settings.fit_intercept)


def check_counts(clients: Federation, settings: MixedModelSettings) -> None:
    """Complain about targets that the family does not have."""
    assert clients.y is not None
    most = settings.column(clients, settings.trials, 1.0)
    if settings.family == "poisson":
        bad, rule = clients.y < 0, "counts of at least 0"
    else:
        bad = (clients.y < 0) | (clients.y > most)
        rule = "between 0 and the trials" if settings.trials is not None else "between 0 and 1"
    if bad.any():
        site = clients.names[int(clients.owner[np.argmax(bad)])]
        raise ValueError(
            f"site {site!r}: with family={settings.family!r} the target must be {rule}; it is "
            f"{clients.y[np.argmax(bad)]:g} there"
        )


def design_of(clients: Federation, settings: MixedModelSettings) -> Floats:
    """Features and, last, the intercept, (N, d)."""
    X = settings.features(clients).X
    return np.concatenate([X, np.ones((len(X), int(settings.fit_intercept)))], axis=1)


def glm_rows(clients: Federation, settings: MixedModelSettings, at: Coordinates) -> GlmRows:
    """Rows in the columns worked with."""
    design = design_of(clients, settings)
    return GlmRows.weighted(
        np.ascontiguousarray((design @ at.basis).T),
        np.ascontiguousarray((design[:, at.random] @ at.spread).T),
        np.asarray(clients.y, dtype=float),
        clients.offsets,
        settings.family,  # type: ignore[arg-type]
        settings.column(clients, settings.trials, 1.0),
        settings.column(clients, settings.offset, 0.0),
        clients.weights,
    )
