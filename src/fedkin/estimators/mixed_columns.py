"""Columns of a mixed model by name: sites get positions, names do not travel."""

from __future__ import annotations

from typing import Any

from fedkin.algorithms.mixed_model_settings import WITHOUT_LEVEL, MixedModelSettings
from fedkin.estimators.formulas import Design
from fedkin.federation import Federation
from fedkin.names import listed


def by_formula(settings: MixedModelSettings, design: Design) -> MixedModelSettings:
    """Settings with what the formula says of them."""
    random: Any = design.random if design.random_level else (*design.random, WITHOUT_LEVEL)
    if not design.random:
        random = "intercept"
    covariance = "diagonal" if design.parsed.uncorrelated else settings.covariance
    return settings.replace(random=random, covariance=covariance, fit_intercept=design.intercept)


def columns_of(federation: Federation | None, engine: Any) -> tuple[str, ...]:
    """Names of the columns of a fit."""
    if federation is not None:
        return federation.feature_names
    return tuple(getattr(engine, "features", None) or ())


def positions(columns: tuple[Any, ...], names: tuple[str, ...]) -> tuple[Any, ...]:
    """Columns by position; a name that is not there is told."""
    places = {name: j for j, name in enumerate(names)}
    unknown = [c for c in columns if isinstance(c, str) and c not in (*places, WITHOUT_LEVEL)]
    if unknown:
        raise ValueError(f"random names {listed(unknown)}; the columns are {listed(names)}")
    return tuple(places.get(c, c) if isinstance(c, str) else c for c in columns)


def position(word: str, column: Any, names: tuple[str, ...]) -> int | None:
    """The place of the column of trials or offset."""
    if isinstance(column, str) and column not in names:
        raise ValueError(f"{word} names {column!r}; the columns are {listed(names)}")
    if isinstance(column, str):
        return names.index(column)
    if column is not None and names and not 0 <= column < len(names):
        raise ValueError(f"{word}={column}, but there are {len(names)} columns")
    return None if column is None else int(column)
