"""Matern-3/2 curves along a line: likelihood and gradient by the way that is taken, against dense.

The way is chosen by `models/state_choice.py`; both are exact. A million readings in 100 sites have
no dense peer: their covariances would take 80 GB.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.measure import Effort, alone, race
from benchmarks.table import Promise, Row
from fedkin.federation import Federation
from fedkin.models.gaussian_process import evaluate
from fedkin.models.gp_rows import prepare
from fedkin.models.kernels import form_of, to_spec

# Sites, readings a site beside the dense way, readings a site of the large federation.
SIZES = {
    "full": (100, (8, 16, 32, 40, 64, 128, 256, 512), 10_000),
    "quick": (100, (16, 32, 64, 128), 2_000),
    "toy": (3, (6, 90), 300),
}
# One site by itself breaks even elsewhere.
ALONE = (64, 256, 400, 600, 1000)
LEAST_RATIO = 0.9
MOST_SECONDS = 2.0


def form():
    """Scale times Matern-3/2 plus noise."""
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    return form_of(to_spec(ConstantKernel(1.3) * Matern(0.05, nu=1.5) + WhiteKernel(0.2)), 1)


def federation_of(m: int, n: int) -> Federation:
    """Waves with noise."""
    rng = np.random.default_rng(n)
    X = rng.uniform(size=(m * n, 1))
    y = np.sin(12.0 * X[:, 0]) + 0.4 * rng.normal(size=m * n)
    offsets = n * np.arange(m + 1)
    return Federation(X, offsets, tuple(f"site-{k + 1}" for k in range(m)), y)


def against_dense(m: int, n: int, effort: Effort) -> Row:
    """Value and gradient by the way that is chosen, and by covariances."""
    data, kind = federation_of(m, n), form()
    chosen, dense = (prepare(data, True, "constant", 2_000, f) for f in (kind, None))
    works = {
        "chosen": lambda: evaluate(chosen, kind, kind.start),
        "dense": lambda: evaluate(dense, kind, kind.start),
    }
    found = race(works, effort)
    ours, theirs = found["chosen"], found["dense"]
    gradient = theirs.result.gradient
    apart = np.abs(ours.result.gradient - gradient).max() / np.abs(gradient).max()
    return Row(
        f"Matern-3/2 curves, value and gradient, {m} x {n}",
        ours.seconds,
        "covariances",
        theirs.seconds,
        promise=Promise("ratio", LEAST_RATIO),
        difference=float(apart),
        turns=ours.turns,
        peer_turns=theirs.turns,
        note="walked" if chosen.walked is not None else "by covariances, too",
    )


def million(m: int, n: int, effort: Effort) -> Row:
    """All readings of large sites, walked."""
    data, kind = federation_of(m, n), form()
    prepared = prepare(data, True, "constant", 500, kind)
    found = race({"ours": lambda: evaluate(prepared, kind, kind.start)}, effort)["ours"]
    return Row(
        f"Matern-3/2 curves, value and gradient, {m * n:,} readings in {m} sites",
        found.seconds,
        promise=Promise("time", MOST_SECONDS),
        turns=found.turns,
        note="walked; the covariances would not fit into memory",
    )


def rows(effort: Effort) -> Iterator[Row]:
    """All rows of this part."""
    m, sizes, large = SIZES[effort.name]
    for n in sizes:
        yield against_dense(m, n, effort)
    if effort.name == "full":
        for n in ALONE:
            yield against_dense(1, n, effort)
    yield million(m, large, effort)


if __name__ == "__main__":
    alone(rows)
