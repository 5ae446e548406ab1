"""Sites whose Matern curve along a line is walked in O(n) instead of factored (`state_space.py`).

Both ways are exact; which is faster depends on how many sites are evaluated together
(`state_choice.py`), so it is decided again when some of them are taken out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.arrays import Bools, Floats, Indices
from fedkin.models.kernels import Form
from fedkin.models.matern_states import SMOOTHNESS
from fedkin.models.state_choice import walk_is_faster
from fedkin.models.state_lanes import Series, lanes_of
from fedkin.models.state_space import Evaluation, Readings, evaluate, sorted_series


class Walked(NamedTuple):
    """Clients `owner` (k,) whose readings are walked; those of more than `limit` always are."""

    owner: Indices
    readings: Readings
    smoothness: float
    limit: int

    def evaluate(self, form: Form, theta: Floats) -> Evaluation:
        """Value (k,), gradient (k, p) and jitter of these clients for theta (k, p)."""
        assert form.fast is not None
        found = evaluate(self.readings, self.smoothness, form.fast.fill(theta))
        return found._replace(gradient=found.gradient[:, form.fast.free])

    def take(self, place: Indices) -> tuple[Walked | None, list[tuple[int, Series]]]:
        """Those whose place (m,) is not negative, called by it: still walked, or not any more."""
        kept = np.flatnonzero(place[self.owner] >= 0)
        if not len(kept):
            return None, []
        series = part_of(self.readings.series, kept)
        walks = _are_walked(series.sizes, self.smoothness, series.columns.shape[1] - 1, self.limit)
        other = [
            (int(place[self.owner[kept[k]]]), part_of(series, np.array([k])))
            for k in np.flatnonzero(~walks)
        ]
        if not walks.any():
            return None, other
        series = part_of(series, np.flatnonzero(walks))
        readings = Readings(series, tuple(lanes_of(series)))
        return self._replace(owner=place[self.owner[kept[walks]]], readings=readings), other


def can_be_walked(form: Form, n_features: int) -> bool:
    """Whether the kernel is one of those that step from reading to reading."""
    return n_features == 1 and form.fast is not None and form.fast.smoothness in SMOOTHNESS


def walked(
    times: Floats, target: Floats, basis: Floats, offsets: Indices, smoothness: float, limit: int
) -> Walked | None:
    """Those clients for which it is faster, or which have more than `limit` readings."""
    chosen = np.flatnonzero(_are_walked(np.diff(offsets), smoothness, basis.shape[1], limit))
    if not len(chosen):
        return None
    series, _ = sorted_series(times, target, offsets, basis)
    series = part_of(series, chosen)
    return Walked(chosen, Readings(series, tuple(lanes_of(series))), smoothness, limit)


def _are_walked(sizes: Indices, smoothness: float, n_basis: int, limit: int) -> Bools:
    walks: Bools = walk_is_faster(sizes, smoothness, n_basis) | (sizes > limit)
    return walks


def part_of(series: Series, clients: Indices) -> Series:
    """The series of some clients."""
    sizes = series.sizes[clients]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    first = np.repeat(series.offsets[clients] - offsets[:-1], sizes)
    rows = np.arange(offsets[-1]) + first
    return Series(series.times[rows], series.columns[rows], offsets)
