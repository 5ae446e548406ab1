"""Which way is faster for a client: the covariance of all readings, or the walk along them.

Both are exact, so the answer may hang on who else is in the process. Costs are microseconds of one
core, fitted to value and gradient of 1 to 2,000 clients of 16 to 1,000 readings; what counts is
their ratio. Dense, a client costs the square and the cube of its readings; walked, a block of
clients costs calls per step, whatever its width, and little per reading. So one client alone
breaks even near 500 readings, ten near 140, thirty near 75, a hundred near 40 (Matern-3/2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedkin.models.matern_states import n_states
from fedkin.models.state_lanes import Indices, blocks_of

Floats = NDArray[np.float64]

# Dense: per call, and per client by powers of its readings.
DENSE_CALL = 100.0
DENSE_SQUARE = 0.02
DENSE_CUBE = 2.2e-5
# Walked: per block, per step of one walk there and back, per joint and step of a cut series, and
# per reading, state and column.
WALK_BLOCK = 500.0
WALK_STEP = 75.0
CUT_STEP = (105.0, 135.0, 150.0)
WALK_READING = 0.1
# The walk must win by this factor: where costs are alike, nothing changes.
MARGIN = 1.1


def walk_is_faster(sizes: Indices, smoothness: float, n_basis: int = 0) -> NDArray[np.bool_]:
    """For every client, given the sizes of all that are evaluated together, (m,)."""
    sizes = np.asarray(sizes)
    answer = np.zeros(len(sizes), dtype=bool)
    for clients, pieces in blocks_of(sizes):
        walked = walk_cost(sizes[clients], pieces, smoothness, n_basis)
        answer[clients] = MARGIN * walked < dense_cost(sizes[clients])
    return answer


def dense_cost(sizes: Indices) -> float:
    """Of clients of similar size by their covariances."""
    n = sizes.astype(np.float64)
    return DENSE_CALL + float((DENSE_SQUARE * n**2 + DENSE_CUBE * n**3).sum())


def walk_cost(sizes: Indices, pieces: int, smoothness: float, n_basis: int) -> float:
    """Of one block of clients, each cut into so many pieces."""
    s = n_states(smoothness)
    steps = float(np.ceil(sizes.max() / pieces))
    calls = WALK_STEP * steps if pieces == 1 else CUT_STEP[s - 1] * (steps + pieces)
    return WALK_BLOCK + calls + WALK_READING * s * (1 + n_basis) * float(sizes.sum())
