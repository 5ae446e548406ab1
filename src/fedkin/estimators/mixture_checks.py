"""What deserves a look in data that are to be parted into groups of rows (FK025, FK026, FK027)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedkin.checks import NUMBERS_AT_FIT, ROUNDING
from fedkin.federation import Federation
from fedkin.frames import Finding
from fedkin.names import listed
from fedkin.tables import read_out

UNITS, ORIGIN, FEW = "FK025", "FK026", "FK027"
# Starts go by distances, and no variance is taken for smaller than a share of the largest: where
# one column is so many times as wide as another, it decides alone. Groups whose variances are
# learnt column by column find their way up to the second.
UNLIKE_SPREADS, UNLIKE_LEARNT_SPREADS = 30.0, 1000.0
LEARNT = ("diag", "full")
# Fits that find their covariances by moments measure columns by their own spread.
WITHOUT_UNITS = ("diag", "full", "tied")
# Rows of groups with variance one vary by one and more; these vary by less than can be told apart.
TOO_NARROW = 0.3
# A line through the origin that misses the target by so many times what one beside it does.
MISSES_THE_TARGET = 1.5
SITES_SHOWN = 3


def findings_of_groups(data: Federation, settings: Any) -> Iterator[Finding]:
    """What a fit of groups of rows warns of; nothing where looking would take long."""
    if data.X.size > NUMBERS_AT_FIT or not len(data.X):
        return
    if settings.family == "regression":
        yield from _through_the_origin(data, settings)
    elif not _in_units_of_columns(settings):
        yield from _unlike_units(data, settings.covariance_type)


def findings_of_weights(data: Federation, n_groups: int) -> Iterator[Finding]:
    """Sites that cannot have met all groups, and whose weights are their own rows' alone."""
    few = [name for name, size in zip(data.names, data.sizes) if 0 < size < n_groups]
    if few:
        one = len(few) == 1
        fact = (
            f"{len(few)} of {data.n_clients} sites {'has' if one else 'have'} fewer rows than "
            f"there are groups ({n_groups}): {listed(few, SITES_SHOWN)}; a group that none of a "
            "site's rows is of has no weight there and is never predicted"
        )
        remedy = "FedGrEM with share_weights=True pulls weights together"
        yield Finding("warning", None, fact, remedy, FEW)


def _in_units_of_columns(settings: Any) -> bool:
    """Whether the fit is the same in all units (`fedkin.algorithms.mixtures.shaped`)."""
    return getattr(settings, "shaped", False) and settings.covariance_type in WITHOUT_UNITS


def _unlike_units(data: Federation, kind: str) -> Iterator[Finding]:
    """Columns in units that leave the groups to some of them, or to none."""
    spread = data.X.std(axis=0)
    varies = spread > ROUNDING * np.abs(data.X).max(axis=0)
    if not varies.any():
        return
    places = np.flatnonzero(varies)
    wide, narrow = places[spread[places].argmax()], places[spread[places].argmin()]
    ratio = spread[wide] / spread[narrow]
    names = data.feature_names
    if ratio > (UNLIKE_LEARNT_SPREADS if kind in LEARNT else UNLIKE_SPREADS):
        fact = (
            f"column {names[wide]!r} spreads {read_out(ratio, 2)} times as far as {names[narrow]!r}"
        )
        remedy = "standardise columns first (fedkin.Standardizer), or the widest decides alone"
        yield Finding("warning", None, fact, remedy, UNITS)
    elif kind == "identity" and spread[wide] < TOO_NARROW:
        fact = (
            f"no column spreads by more than {read_out(spread[wide], 2)}, but covariance_type="
            "'identity' takes rows of a group to vary by 1"
        )
        remedy = "standardise columns first (fedkin.Standardizer), or covariance_type='tied'"
        yield Finding("warning", None, fact, remedy, UNITS)


def _through_the_origin(data: Federation, settings: Any) -> Iterator[Finding]:
    """A target that regressions without an intercept cannot reach."""
    if settings.fit_intercept or data.y is None or len(data.X) <= data.n_features + 1:
        return
    without = _missed(data.X, data.y)
    beside = _missed(np.column_stack([data.X, np.ones(len(data.X))]), data.y)
    if without > MISSES_THE_TARGET * beside and without > ROUNDING * np.abs(data.y).max():
        fact = (
            f"regressions pass through the origin: one misses target {data.target_name or 'y'!r} "
            f"by {read_out(without, 3)}, with an intercept by {read_out(beside, 3)}"
        )
        yield Finding("warning", None, fact, "fit_intercept=True, or centre the target", ORIGIN)


def _missed(design: np.ndarray, y: np.ndarray) -> float:
    """Root mean square of what one regression of all rows misses."""
    length = np.sqrt(np.square(design).sum(axis=0))
    unit = design / np.where(length > 0, length, 1.0)
    coef = np.linalg.lstsq(unit, y, rcond=None)[0]
    return float(np.sqrt(np.mean(np.square(y - unit @ coef))))
