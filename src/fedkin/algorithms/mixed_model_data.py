"""Data of a site in a mixed model: sums, counts, and the columns that are worked with."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedkin.algorithms.mixed_model_settings import MixedModelSettings
from fedkin.arrays import Arrays, Bools, Floats, Indices
from fedkin.federation import Federation
from fedkin.frames import FederationError, Finding
from fedkin.models.glm_rows import GlmRows
from fedkin.models.least_squares import packed_statistics
from fedkin.models.random_covariance import Shape
from fedkin.names import listed

# Code of the check that targets of counts are whole (`docs/checks.md`), and sites named in it.
NOT_WHOLE = "FK024"
SITES_SHOWN = 3


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
    """Complain about targets that the family does not have, site by site."""
    assert clients.y is not None
    remedy = "correct them or drop these rows; numbers of any size: family='gaussian'"
    if settings.family == "poisson":
        bad, word = clients.y < 0, "are counts of at least 0"
    elif settings.trials is None:
        bad, word = (clients.y < 0) | (clients.y > 1), "are between 0 and 1"
        remedy = "successes among several trials: trials=; several classes: family='multinomial'"
    else:
        most = settings.column(clients, settings.trials, 1.0)
        bad, word = (clients.y < 0) | (clients.y > most), "are between 0 and the trials"
        remedy = "correct successes or trials, or drop these rows"
    errors = _by_site(clients, bad, f"with family={settings.family!r} targets {word}", remedy)
    if errors:
        raise FederationError(errors)


def not_whole(clients: Federation, settings: MixedModelSettings) -> list[Finding]:
    """Targets that are taken for counts and are not whole: no error, but seldom meant.

    One finding for all sites: a column of amounts is one everywhere.
    """
    assert clients.y is not None
    broken = clients.y != np.round(clients.y)
    if not broken.any():
        return []
    where = np.unique(clients.owner[broken])
    shown = listed([clients.names[k] for k in where], SITES_SHOWN)
    at = f"site{'s' * (len(where) > 1)} {shown}"
    fact = (
        f"target {clients.target_name or 'y'!r} has {int(broken.sum())} of {len(broken)} values "
        f"that are not whole, such as {clients.y[np.argmax(broken)]:g}, at {at}; "
        f"family={settings.family!r} takes them for counts, and standard errors rest on that"
    )
    remedy = {
        "poisson": "give counts, and what they are counted in by offset= (its logarithm); amounts "
        "are for family='gaussian', on the logarithm",
        "binomial": "give successes and trials=, not shares of them",
    }[settings.family]
    return [Finding("warning", None, fact, remedy, NOT_WHOLE, (clients.n_features,))]


def _by_site(clients: Federation, bad: Bools, why: str, remedy: str) -> list[Finding]:
    """An error for every site with targets that cannot be."""
    assert clients.y is not None
    counts = np.bincount(clients.owner[bad], minlength=clients.n_clients)
    found = []
    for k in np.flatnonzero(counts):
        own = clients.y[bad & (clients.owner == k)][0]
        fact = (
            f"target {clients.target_name or 'y'!r} has {counts[k]} of {clients.sizes[k]} values "
            f"that cannot be, such as {own:g}: {why}"
        )
        found.append(Finding("error", clients.names[k], fact, remedy))
    return found


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
