"""Convex clustering against CVXPY and against alternating minimisation (AMA) in NumPy.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/convex_clustering.py [--quick]

Every comparison is one run, one process, the same points and penalties. CPU seconds (ratios) and
wall seconds are printed. All rivals must reach a relative duality gap of 1e-7; ours goes on to
1e-10 and certifies the clusters. Points: ten clusters in d = 20.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from fedkin.clustering import convex_clustering, convex_clustering_path, recovery_interval

RELATIVE_GAP = 1e-7


def ten_clusters(m, d=20, noise=0.02, seed=0):
    rng = np.random.default_rng([seed, m])
    labels = np.arange(m) % 10
    return rng.normal(size=(10, d))[labels] + noise * rng.normal(size=(m, d)), labels


def timed(function, *arguments, at_least=1.0):
    """Result, CPU seconds and wall seconds of a call, repeated to `at_least` seconds in all."""
    calls, cpu, wall = 0, time.process_time(), time.perf_counter()
    while calls == 0 or time.perf_counter() - wall < at_least:
        result = function(*arguments)
        calls += 1
    return result, (time.process_time() - cpu) / calls, (time.perf_counter() - wall) / calls


def solve_cvxpy(points, penalty):
    import cvxpy as cp

    m, d = points.shape
    first, second = np.triu_indices(m, 1)
    u = cp.Variable((m, d))
    lengths = cp.norm(u[first] - u[second], axis=1)
    objective = 0.5 * cp.sum_squares(u - points) + penalty * cp.sum(lengths)
    cp.Problem(cp.Minimize(objective)).solve(
        solver=cp.CLARABEL, tol_gap_rel=RELATIVE_GAP, tol_gap_abs=RELATIVE_GAP
    )
    return u.value


class PairDuals:
    """One dual vector per pair, (n_pairs, d); differences are taken row by row, without gathers."""

    def __init__(self, m, d):
        self.m, self.pulls = m, np.zeros((m * (m - 1) // 2, d))
        self.starts = np.concatenate([[0], np.cumsum(np.arange(m - 1, 0, -1))])

    def rows(self):
        for i in range(self.m - 1):
            yield i, slice(self.starts[i], self.starts[i + 1])

    def pull(self):
        """Net pull on every point, (m, d)."""
        total = np.zeros((self.m, self.pulls.shape[1]))
        for i, pairs in self.rows():
            block = self.pulls[pairs]
            total[i] += block.sum(axis=0)
            total[i + 1 :] -= block
        return total


def ama(points, penalty, duals, max_rounds=20_000):
    """Chi and Lange's AMA with Nesterov's acceleration and restarts, warm-started duals.

    Pulls are kept scaled to length <= penalty; the dual step 1/m is the largest safe one. The gap
    is tested every fifth round. Returns u (m, d) and the number of rounds.
    """
    m = len(points)
    step, momentum = 1.0 / m, 1.0
    duals.pulls *= np.minimum(
        1.0, penalty / np.maximum(np.sqrt((duals.pulls**2).sum(axis=1)), 1e-300)
    )[:, None]
    previous = duals.pulls.copy()
    best = -np.inf
    for n_rounds in range(1, max_rounds + 1):
        u = points - duals.pull()
        for i, pairs in duals.rows():
            block = duals.pulls[pairs]
            block += step * (u[i] - u[i + 1 :])
            length = np.sqrt(np.einsum("ij,ij->i", block, block))
            block *= (penalty / np.maximum(length, penalty))[:, None]
        current = duals.pulls.copy()
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        if n_rounds % 5 == 0:
            u = points - duals.pull()
            dual = 0.5 * ((points**2).sum() - (u**2).sum())
            if dual < best:
                following = 1.0
            best = max(best, dual)
            if primal(points, u, penalty) - dual <= RELATIVE_GAP * primal(points, u, penalty):
                break
        duals.pulls += ((momentum - 1.0) / following) * (current - previous)
        previous, momentum = current, following
    return u, n_rounds


def primal(points, u, penalty):
    from scipy.spatial.distance import pdist

    return 0.5 * ((points - u) ** 2).sum() + penalty * pdist(u).sum()


def ama_path(points, penalties):
    centred = points - points.mean(axis=0)
    duals = PairDuals(*points.shape)
    return [ama(centred, penalty, duals) for penalty in penalties]


def against_cvxpy():
    points, labels = ten_clusters(100)
    interval = recovery_interval(points, labels)
    print("m=100 d=20, one penalty        ours CPU s   CVXPY CPU s   ratio   K   max |u - u_CVXPY|")
    for name, penalty in [
        ("nothing fused", 0.2 / 100),
        ("about to fuse", 1.1 / 100),
        ("recovery, inside (13)", interval.lower * 1.01),
    ]:
        ours, cpu, _ = timed(convex_clustering, points, penalty)
        theirs, slow, _ = timed(solve_cvxpy, points, penalty, at_least=0.0)
        error = np.abs(ours.centers - theirs).max()
        count = ours.labels.max() + 1
        print(f"  {name:28s} {cpu:10.4f} {slow:12.2f} {slow / cpu:9.0f} {count:4d}   {error:.1e}")


def against_ama(m):
    points, _ = ten_clusters(m)
    penalties = convex_clustering_path(points, n_penalties=20).penalties
    path, cpu, wall = timed(convex_clustering_path, points, penalties, at_least=0.0)
    solutions, slow, slow_wall = timed(ama_path, points, penalties, at_least=0.0)
    rounds = [n for _, n in solutions]
    error = max(
        np.abs(u + points.mean(axis=0) - c).max() for (u, _), c in zip(solutions, path.centers)
    )
    print(f"m={m} d=20, 20-point path: ours {cpu:.2f} CPU s ({wall:.2f} wall), ", end="")
    print(f"AMA NumPy {slow:.1f} CPU s ({slow_wall:.1f} wall), ratio {slow / cpu:.1f}")
    print(f"  AMA rounds {rounds}; max |u - u_AMA| {error:.1e}")
    print(f"  K {path.n_clusters.tolist()}, worst gap {path.gaps.max():.1e}, ", end="")
    print(f"certified {path.certified.sum()} of {path.certified.size}")


def long_path(m, noise=0.02, d=20):
    points, _ = ten_clusters(m, d, noise)
    path, cpu, wall = timed(convex_clustering_path, points, None, 20, at_least=0.0)
    print(f"m={m} d={d}, 20-point path: {cpu:.1f} CPU s, {wall:.1f} wall s, ", end="")
    print(f"worst gap {path.gaps.max():.1e}, certified {path.certified.all()}")
    print(f"  K {path.n_clusters.tolist()}")


def many_points(m):
    points, labels = ten_clusters(m, noise=0.01)
    interval = recovery_interval(points, labels)
    found, cpu, wall = timed(convex_clustering, points, interval.lower * 1.001, at_least=0.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"m={m} d=20 at a recovering penalty: {cpu:.1f} CPU s, {wall:.1f} wall s, ", end="")
    print(
        f"peak memory {peak:.2f} GiB, true partition {bool((found.labels == labels).all())}, ",
        end="",
    )
    print(f"gap {found.gap:.1e}, certified {found.certified}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, a minute in all")
    quick = parser.parse_args().quick
    many_points(5_000 if quick else 20_000)  # first: peak memory is that of the whole process
    against_cvxpy()
    against_ama(100 if quick else 500)
    long_path(500 if quick else 2_000)
    long_path(500 if quick else 2_000, noise=0.3, d=2)


if __name__ == "__main__":
    main()
