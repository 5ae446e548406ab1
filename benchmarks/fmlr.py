"""FMLR: an EM round and a whole fit from packed statistics against what people write.

Peers: the update as the paper prints it, a careful loop, einsum, and the strongest plain one: the
products of every site side by side in one row, so that both steps are one matrix product each.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.measure import Effort, alone, race, roofline
from benchmarks.table import Promise, Row
from fedkin import FMLR
from fedkin.federation import Federation
from fedkin.models.grouped_regression import Parameters, expect, maximise
from fedkin.models.least_squares import packed_statistics

D, K, SIGMA = 5, 3, 1.0
COEF = np.outer([3.0, 0.0, -3.0], np.ones(D))
START, WEIGHTS = COEF + 0.3, np.full(K, 1 / K)
# Sites and rows a site: against loops over sites, a large fit, and a federation beyond cache.
SIZES = {
    "full": ((2500, 50), (100_000, 20), (1_000_000, 6)),
    "quick": ((2500, 50), (20_000, 20), (200_000, 6)),
    "toy": ((20, 8), (30, 7), (50, 6)),
}
MATRIX_PRODUCT = "reshape and one matrix product"
# What the round promises against the strongest plain peer, which reads 31 numbers a site, not 22.
LEAST_RATIO = 1.2
PRINTED = "The update as the paper prints it: raw rows, site by site, component by component."
FIT_NOTE = (
    "NOT the same work: from rows to coefficients, but ours also checks that every site's numbers "
    "are possible, looks for the target among the columns, leaves every site out for standard "
    "errors, gives group probabilities, likelihoods and odd sites, and keeps the account of what "
    "travelled; the peer makes X'X and iterates as often."
)


def clients(m: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (m, n, D) and outcomes (m, n)."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(m, n, D))
    label = rng.integers(0, K, size=m)
    return X, np.einsum("mnd,md->mn", X, COEF[label]) + rng.normal(size=(m, n))


def federation(X, y) -> Federation:
    m, n = y.shape
    return Federation.from_groups(X.reshape(-1, D), np.repeat(np.arange(m), n), y.ravel())


# ------------------------------------------------------------------ peers


def by_printed_loop(X, y, coef):
    """Proposition 3.3 as it is printed: for every client, then for every component."""
    left, right = np.zeros((K, D, D)), np.zeros((K, D))
    for Xj, yj in zip(X, y):
        residual = np.array([((yj - Xj @ b) ** 2).sum() for b in coef])
        logs = np.log(WEIGHTS) - residual / (2 * SIGMA**2)
        share = np.exp(logs - logs.max())
        share /= share.sum()
        for k in range(K):
            left[k] += share[k] * Xj.T @ Xj
            right[k] += share[k] * Xj.T @ yj
    return np.linalg.solve(left, right[..., None])[..., 0]


def by_careful_loop(products, coef):
    """Client by client with matrix products, X'X and X'y made beforehand."""
    left, right, logs_of = np.zeros((K, D * D)), np.zeros((K, D)), np.log(WEIGHTS)
    outer = (coef[:, :, None] * coef[:, None, :]).reshape(K, -1)
    for gram, cross, square in zip(*products):
        flat = gram.ravel()
        logs = logs_of - (square - 2 * (coef @ cross) + outer @ flat) / (2 * SIGMA**2)
        share = np.exp(logs - logs.max())
        share /= share.sum()
        left += share[:, None] * flat
        right += share[:, None] * cross
    return np.linalg.solve(left.reshape(K, D, D), right[..., None])[..., 0]


def by_einsum(products, coef):
    """The plain vectorised version over X'X."""
    gram, cross, square = products
    quadratic = np.einsum("kd,mde,ke->mk", coef, gram, coef, optimize=True)
    residual = square[:, None] - 2 * np.einsum("md,kd->mk", cross, coef) + quadratic
    logs = np.log(WEIGHTS) - residual / (2 * SIGMA**2)
    share = np.exp(logs - logs.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    left = np.einsum("mk,mde->kde", share, gram)
    right = np.einsum("mk,md->kd", share, cross)
    return np.linalg.solve(left, right[..., None])[..., 0]


def by_matrix_product(table, coef):
    """Both steps as one matrix product each, over rows (X'X, X'y, y'y) of all sites (m, q)."""
    outer = (coef[:, :, None] * coef[:, None, :]).reshape(K, -1)
    residual = table @ np.concatenate([outer, -2 * coef, np.ones((K, 1))], axis=1).T
    logs = np.log(WEIGHTS) - residual / (2 * SIGMA**2)
    logs -= logs.max(axis=1, keepdims=True)
    share = np.exp(logs, out=logs)
    share /= share.sum(axis=1, keepdims=True)
    sums = share.T @ table
    left, right = sums[:, : D * D].reshape(K, D, D), sums[:, D * D : -1]
    return np.linalg.solve(left, right[..., None])[..., 0]


def table_of(products):
    """Products side by side, (m, D D + D + 1)."""
    gram, cross, square = products
    return np.concatenate([gram.reshape(len(gram), -1), cross, square[:, None]], axis=1)


def products_of(X, y):
    """X'X, X'y and y'y of every site, by the fastest plain way we know."""
    cross, square = (y[:, None] @ X)[:, 0], np.einsum("mn,mn->m", y, y)
    return X.transpose(0, 2, 1) @ X, cross, square


def fit_by_einsum(X, y, n_rounds):
    products, coef = products_of(X, y), START
    for _ in range(n_rounds):
        coef = by_einsum(products, coef)
    return coef


def fit_by_matrix_product(X, y, n_rounds):
    table, coef = table_of(products_of(X, y)), START
    for _ in range(n_rounds):
        coef = by_matrix_product(table, coef)
    return coef


# ------------------------------------------------------------------ ours


def by_fedkin(statistics, coef):
    current = Parameters(coef[None], np.array([SIGMA]), WEIGHTS[None])
    return maximise(expect(statistics, current), current, False, False).coef[0]


def fit_by_fedkin(data: Federation):
    return FMLR(K, init=START, sigma=SIGMA, weights="uniform", fit_intercept=False).fit(data)


def rows(effort: Effort) -> Iterator[Row]:
    small, middle, large = SIZES[effort.name]
    yield from round_rows(*small, effort)
    yield from fit_rows(*small, effort)
    yield from fit_rows(*middle, effort)
    yield from beyond_cache(*large, effort)


def round_rows(m, n, effort) -> Iterator[Row]:
    X, y = clients(m, n)
    products, statistics = products_of(X, y), packed_statistics(federation(X, y), False)
    table = table_of(products)
    found = race(
        {
            "ours": lambda: by_fedkin(statistics, START),
            "loop as printed": lambda: by_printed_loop(X, y, START),
            "careful loop over X'X": lambda: by_careful_loop(products, START),
            "einsum over X'X": lambda: by_einsum(products, START),
            MATRIX_PRODUCT: lambda: by_matrix_product(table, START),
        },
        effort,
    )
    promises = {
        "loop as printed": (Promise("ratio", 200), PRINTED),
        MATRIX_PRODUCT: (Promise("ratio", LEAST_RATIO), ""),
    }
    for peer in list(found)[1:]:
        promise, note = promises.get(peer, (None, ""))
        yield compared(f"FMLR round, {m:,} x {n}", peer, found, statistics, promise, note)


def beyond_cache(m, n, effort) -> Iterator[Row]:
    X, y = clients(m, n)
    products, statistics = products_of(X, y), packed_statistics(federation(X, y), False)
    table = table_of(products)
    works = {
        "ours": lambda: by_fedkin(statistics, START),
        "einsum over X'X": lambda: by_einsum(products, START),
        MATRIX_PRODUCT: lambda: by_matrix_product(table, START),
    }
    found = race(works, effort)
    for peer in list(found)[1:]:
        strongest = peer == MATRIX_PRODUCT and m >= 1_000_000
        promise = Promise("ratio", LEAST_RATIO) if strongest else None
        yield compared(f"FMLR round, {m:,} sites", peer, found, statistics, promise)


def compared(work, peer, found, statistics, promise=None, note="") -> Row:
    ours, theirs = found["ours"], found[peer]
    q, m = statistics.shape
    return Row(
        work,
        ours.seconds,
        peer,
        theirs.seconds,
        promise,
        "roofline",
        roofline().seconds(flops=4.0 * K * q * m, bytes=statistics.nbytes, exps=K * m),
        float(np.abs(ours.result - theirs.result).max()),
        turns=ours.turns,
        peer_turns=theirs.turns,
        note=note,
    )


def fit_rows(m, n, effort) -> Iterator[Row]:
    X, y = clients(m, n)
    data = federation(X, y)
    n_rounds = fit_by_fedkin(data).n_iter_
    found = race(
        {
            "ours": lambda: fit_by_fedkin(data),
            "einsum over X'X": lambda: fit_by_einsum(X, y, n_rounds),
            MATRIX_PRODUCT: lambda: fit_by_matrix_product(X, y, n_rounds),
        },
        effort,
    )
    ours = found.pop("ours")
    for peer, theirs in found.items():
        yield Row(
            f"FMLR fit, {m:,} x {n}, {n_rounds} iterations",
            ours.seconds,
            peer,
            theirs.seconds,
            bound="roofline",
            bound_time=roofline().seconds(flops=(D + 1.0) ** 2 * y.size, bytes=X.nbytes + y.nbytes),
            difference=float(np.abs(ours.result.coef_ - theirs.result).max()),
            turns=ours.turns,
            peer_turns=theirs.turns,
            note=FIT_NOTE,
        )


if __name__ == "__main__":
    alone(rows)
