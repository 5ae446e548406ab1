"""Convex clustering against CVXPY and alternating minimisation (AMA) in NumPy and in Numba.

Peers must reach a relative duality gap of 1e-7; ours goes on to 1e-10 and certifies the clusters.
AMA in Numba is also timed to our own gap, which is the same work but for the certificate.
Points: ten clusters in d = 20.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.ama import RELATIVE_GAP, ama_path
from benchmarks.measure import Effort, alone, race, roofline
from benchmarks.table import Promise, Row
from fedkin.clustering import convex_clustering, convex_clustering_path, recovery_interval

N_PENALTIES = 20
D = 20
# Points: one recovering penalty within memory, against CVXPY, against AMA, a long path.
SIZES = {
    "full": (20_000, 100, 500, 2_000),
    "quick": (5_000, 60, 200, 500),
    "toy": (60, 12, 20, 20),
}
BOUND = "roofline, objective once"
BOUND_OF_PATH = "roofline, objective once a penalty"
OUR_GAP = 1e-10
AMA, AMA_NUMBA, AMA_NUMBA_SAME = "AMA in NumPy", "AMA in Numba", "AMA in Numba, to our gap"
AMA_PROMISES = {AMA: Promise("ratio", 5), AMA_NUMBA_SAME: Promise("ratio", 1.0)}
GAP_NOTE = "Peer stopped at a relative gap of 1e-7; ours at 1e-10, clusters certified."
SAME_GAP_NOTE = "Both stopped at a relative gap of 1e-10; ours also certifies the clusters."


def ten_clusters(m, d=D, noise=0.02, seed=0):
    rng = np.random.default_rng([seed, m])
    labels = np.arange(m) % 10
    return rng.normal(size=(10, d))[labels] + noise * rng.normal(size=(m, d)), labels


def objective_seconds(m: int, d: int = D) -> float:
    """Least time to evaluate (12) once: all pairs of m points from half a matrix product."""
    return roofline().seconds(flops=float(m) ** 2 * d, bytes=8.0 * m * d)


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


def rows(effort: Effort) -> Iterator[Row]:
    many, few, middle, long = SIZES[effort.name]
    yield many_points(many, effort)  # first: peak memory is that of the whole process
    yield from against_cvxpy(few, effort)
    yield from against_ama(few, effort)
    yield from against_ama(middle, effort)
    yield long_path(long, effort)


def many_points(m, effort) -> Row:
    points, labels = ten_clusters(m, noise=0.01)
    penalty = recovery_interval(points, labels).lower * 1.001
    found = race({"ours": lambda: convex_clustering(points, penalty)}, effort)["ours"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    true = bool((found.result.labels == labels).all())
    return Row(
        f"convex clustering, {m:,} points, recovery",
        found.seconds,
        promise=Promise("memory", 4.0),
        bound=BOUND,
        bound_time=objective_seconds(m),
        memory=peak,
        turns=found.turns,
        note=f"Memory is the peak of the whole process. True clusters: {true}; "
        f"certified: {found.result.certified}.",
    )


def against_cvxpy(m, effort) -> Iterator[Row]:
    points, labels = ten_clusters(m)
    lower = recovery_interval(points, labels).lower
    for name, penalty, limit in [
        ("nothing fused", 0.2 / m, 100),
        ("about to fuse", 1.1 / m, 100),
        ("recovery", lower * 1.01, 1000),
    ]:
        found = race(
            {
                "ours": lambda p=penalty: convex_clustering(points, p),
                "CVXPY": lambda p=penalty: solve_cvxpy(points, p),
            },
            effort,
        )
        ours, peer = found["ours"], found["CVXPY"]
        yield Row(
            f"convex clustering, {m} points, {name}",
            ours.seconds,
            "CVXPY, Clarabel",
            peer.seconds,
            Promise("ratio", limit) if m >= 100 else None,
            BOUND,
            objective_seconds(m),
            float(np.abs(ours.result.centers - peer.result).max()),
            turns=ours.turns,
            peer_turns=peer.turns,
            note=GAP_NOTE,
        )


def ama_peers(points, penalties):
    """Calls that solve a whole path by AMA; those of Numba only where it is installed."""
    works = {AMA: lambda: ama_path(points, penalties)}
    try:
        from benchmarks import compiled
    except ImportError as error:
        print(f"  Numba left out: {error}", file=sys.stderr)
        return works
    return works | {
        AMA_NUMBA: lambda: compiled.ama_path(points, penalties, RELATIVE_GAP),
        AMA_NUMBA_SAME: lambda: compiled.ama_path(points, penalties, OUR_GAP),
    }


def against_ama(m, effort) -> Iterator[Row]:
    points, _ = ten_clusters(m)
    penalties = convex_clustering_path(points, n_penalties=N_PENALTIES).penalties
    peers = ama_peers(points, penalties)
    found = race({"ours": lambda: convex_clustering_path(points, penalties), **peers}, effort)
    ours, mean = found.pop("ours"), points.mean(axis=0)
    for name, peer in found.items():
        pairs = zip(peer.result, ours.result.centers)
        yield Row(
            f"convex clustering path, {m} points",
            ours.seconds,
            name,
            peer.seconds,
            AMA_PROMISES.get(name) if m >= 500 else None,
            BOUND_OF_PATH,
            N_PENALTIES * objective_seconds(m),
            max(float(np.abs(u + mean - centers).max()) for (u, _), centers in pairs),
            turns=ours.turns,
            peer_turns=peer.turns,
            note=SAME_GAP_NOTE if name == AMA_NUMBA_SAME else GAP_NOTE,
        )


def long_path(m, effort) -> Row:
    points, _ = ten_clusters(m)
    found = race({"ours": lambda: convex_clustering_path(points, None, N_PENALTIES)}, effort)
    return Row(
        f"convex clustering path, {m:,} points",
        found["ours"].seconds,
        promise=Promise("time", 60.0) if m >= 2_000 else None,
        bound=BOUND_OF_PATH,
        bound_time=N_PENALTIES * objective_seconds(m),
        turns=found["ours"].turns,
    )


if __name__ == "__main__":
    alone(rows)
