"""One EM round from packed statistics against what people write first, same work, one run.

    python benchmarks/fmlr.py

Prints CPU time per round, interleaved medians, one thread.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time

import numpy as np

from fedkin.models.grouped_regression import Parameters, expect, maximise
from fedkin.models.least_squares import upper_triangle

D, K, SIGMA = 5, 3, 1.0
COEF = np.outer([3.0, 0.0, -3.0], np.ones(D))


def clients(m: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(m, n, D))
    label = rng.integers(0, K, size=m)
    return X, np.einsum("mnd,md->mn", X, COEF[label]) + rng.normal(size=(m, n))


def packed(gram: np.ndarray, cross: np.ndarray, square: np.ndarray, n: int) -> np.ndarray:
    """The statistics of fedkin from X'X, X'y, y'y."""
    whole = np.empty((len(gram), D + 1, D + 1))
    whole[:, :D, :D], whole[:, :D, D], whole[:, D, D] = gram, cross, square
    rows, columns = upper_triangle(D + 1)
    made = np.empty((len(rows) + 1, len(gram)))
    made[:-1], made[-1] = whole[:, rows, columns].T, n
    return made


def by_client_loop(X, y, coef, weights):
    """Proposition 3.3 as it is printed: for every client, then for every component."""
    left, right = np.zeros((K, D, D)), np.zeros((K, D))
    for Xj, yj in zip(X, y):
        residual = np.array([((yj - Xj @ b) ** 2).sum() for b in coef])
        logs = np.log(weights) - residual / (2 * SIGMA**2)
        share = np.exp(logs - logs.max())
        share /= share.sum()
        for k in range(K):
            left[k] += share[k] * Xj.T @ Xj
            right[k] += share[k] * Xj.T @ yj
    return np.linalg.solve(left, right[..., None])[..., 0]


def by_einsum(gram, cross, square, coef, weights):
    """The plain vectorised version over X'X."""
    quadratic = np.einsum("kd,mde,ke->mk", coef, gram, coef, optimize=True)
    residual = square[:, None] - 2 * np.einsum("md,kd->mk", cross, coef) + quadratic
    logs = np.log(weights) - residual / (2 * SIGMA**2)
    share = np.exp(logs - logs.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    left = np.einsum("mk,mde->kde", share, gram)
    right = np.einsum("mk,md->kd", share, cross)
    return np.linalg.solve(left, right[..., None])[..., 0]


def by_fedkin(statistics, coef, weights):
    current = Parameters(coef[None], np.array([SIGMA]), weights[None])
    return maximise(expect(statistics, current), current, False, False).coef[0]


def medians(work: dict, repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, function in work.items():
            begin = time.process_time()
            function()
            times[name].append(time.process_time() - begin)
    return {name: float(np.median(values)) for name, values in times.items()}


def statistics_of(m: int, n: int):
    """Rows, and the two forms of their statistics."""
    X, y = clients(m, n)
    gram, cross = X.transpose(0, 2, 1) @ X, np.einsum("mnd,mn->md", X, y)
    square = (y**2).sum(axis=1)
    return (X, y), (gram, cross, square), packed(gram, cross, square, n)


def against_a_loop(coef: np.ndarray, weights: np.ndarray) -> None:
    rows, products, statistics = statistics_of(2500, 50)
    same = by_fedkin(statistics, coef, weights)
    for other in (by_client_loop(*rows, coef, weights), by_einsum(*products, coef, weights)):
        np.testing.assert_allclose(other, same, rtol=1e-8, atol=1e-10)
    found = medians(
        {
            "loop": lambda: by_client_loop(*rows, coef, weights),
            "ours": lambda: [by_fedkin(statistics, coef, weights) for _ in range(20)],
        },
        7,
    )
    loop, ours = found["loop"], found["ours"] / 20
    print(f"m=2,500 n=50: loop over clients {loop * 1e3:.1f} ms, ours {ours * 1e3:.3f} ms")
    print(f"  ratio {loop / ours:.0f} (promised >= 200)")


def against_einsum(coef: np.ndarray, weights: np.ndarray) -> None:
    _, products, statistics = statistics_of(1_000_000, 6)
    found = medians(
        {
            "einsum": lambda: by_einsum(*products, coef, weights),
            "ours": lambda: by_fedkin(statistics, coef, weights),
            "memory": lambda: statistics.sum(),
        },
        5,
    )
    ours = found["ours"]
    print(f"m=1,000,000: einsum {found['einsum'] * 1e3:.0f} ms, ours {ours * 1e3:.0f} ms")
    print(f"  ratio {found['einsum'] / ours:.1f} (promised >= 5)")
    print(f"  reading the statistics once: {found['memory'] * 1e3:.0f} ms")


def main() -> None:
    coef, weights = COEF + 0.3, np.full(K, 1 / K)
    against_a_loop(coef, weights)
    against_einsum(coef, weights)


if __name__ == "__main__":
    main()
