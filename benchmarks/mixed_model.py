"""MixedModel from packed statistics against statsmodels' MixedLM, and against what it must read.

The work is a random intercept and one slope common to all, by REML: from rows to coefficients,
variances and every site's own level. One evaluation of the criterion reads every site's sums once;
a fit takes about a dozen.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np

from benchmarks.measure import Effort, alone, race, roofline
from benchmarks.table import Promise, Row
from fedkin import MixedModel
from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics
from fedkin.models.linear_mixed import criterion
from fedkin.models.linear_mixed_scales import prepare

# Sites of two rows: with a peer, the promise of three seconds, and how it grows.
WITH_PEER = {"full": 8000, "quick": 1000, "toy": 30}
PROMISED = {"full": 125_000, "quick": 20_000, "toy": 40}
SITES = {
    "full": (100, 1000, 10_000, 100_000, 1_000_000),
    "quick": (100, 1000, 10_000),
    "toy": (20, 40),
}
FIT_NOTE = (
    "NOT the same work: ours also gives every site's own level with its error and the account of "
    "what travelled; the peer gives its own tests. Both by REML, to the same optimum."
)


def rows_of(m: int, n: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, target and site of every row: m sites of n rows."""
    rng = np.random.default_rng(0)
    site = np.repeat(np.arange(m), n)
    X = rng.normal(size=(m * n, 1))
    y = 1.0 + 2.0 * X[:, 0] + rng.normal(size=m)[site] + 0.5 * rng.normal(size=m * n)
    return X, y, site


def by_fedkin(data: Federation) -> MixedModel:
    """From rows to the fitted model."""
    return MixedModel("intercept").fit(data)


def by_statsmodels(X: np.ndarray, y: np.ndarray, site: np.ndarray) -> float:
    """The slope by MixedLM."""
    from statsmodels.api import MixedLM

    design = np.column_stack([X, np.ones(len(X))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = MixedLM(y, design, site).fit(reml=True)
    return float(found.fe_params[0])


def bound(m: int, n: int) -> float:
    """Rows read once, and their products."""
    return roofline().seconds(flops=9.0 * m * n, bytes=8.0 * 3 * m * n)


def rows(effort: Effort) -> Iterator[Row]:
    """Against statsmodels, the promise, and one evaluation against memory."""
    yield peer_row(WITH_PEER[effort.name], effort)
    yield promised_row(PROMISED[effort.name], effort)
    for m in SITES[effort.name]:
        yield evaluation_row(m, effort)


def peer_row(m: int, effort: Effort) -> Row:
    """A whole fit beside statsmodels."""
    X, y, site = rows_of(m)
    data = Federation.from_groups(X, site, y)
    found = race(
        {"ours": lambda: by_fedkin(data), "statsmodels": lambda: by_statsmodels(X, y, site)},
        effort,
    )
    ours, theirs = found["ours"], found["statsmodels"]
    return Row(
        f"MixedModel fit, {m:,} sites of 2 rows",
        ours.seconds,
        "statsmodels MixedLM",
        theirs.seconds,
        Promise("ratio", 20.0),
        "roofline",
        bound(m, 2),
        abs(float(ours.result.coef_[0]) - theirs.result),
        turns=ours.turns,
        peer_turns=theirs.turns,
        note=FIT_NOTE,
    )


def promised_row(m: int, effort: Effort) -> Row:
    """125,000 sites of two rows."""
    X, y, site = rows_of(m)
    data = Federation.from_groups(X, site, y)
    ours = race({"ours": lambda: by_fedkin(data)}, effort)["ours"]
    return Row(
        f"MixedModel fit, {m:,} sites of 2 rows",
        ours.seconds,
        promise=Promise("time", 3.0),
        bound="roofline",
        bound_time=bound(m, 2),
        turns=ours.turns,
    )


def evaluation_row(m: int, effort: Effort) -> Row:
    """Criterion and slope once, from statistics."""
    X, y, site = rows_of(m)
    data = Federation.from_groups(X, site, y)
    prepared, shape = prepare(packed_statistics(data, True), np.array([1]))
    theta = shape.start(1.0)
    ours = race({"ours": lambda: criterion(prepared, shape, "reml", theta)}, effort)["ours"]
    read = prepared.products.nbytes
    return Row(
        f"MixedModel criterion and slope, {m:,} sites",
        ours.seconds,
        bound="roofline",
        bound_time=roofline().seconds(flops=60.0 * m, bytes=read),
        turns=ours.turns,
    )


if __name__ == "__main__":
    alone(rows)
