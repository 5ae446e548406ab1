"""Full-size acceptance of the clustering room; writes clustering.csv beside this file.

    OMP_NUM_THREADS=1 python -m benchmarks.accept.clustering

Figures: agreement with CVXPY on 50 random problems; gap and certificates over 500 solves; recovery
inside interval (13); nested paths; the default number of clusters on homogeneous points; the rules
on the models of section 5 and D.2. Speed is measured by benchmarks/convex_clustering.py.
"""

from __future__ import annotations

import contextlib
import csv
import time
import warnings
from pathlib import Path

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from fedkin.clustering import (
    choose_n_clusters,
    clusterpath,
    convex_clustering,
    convex_clustering_path,
    gradient_clustering,
    kmeans,
    nearest_neighbor_weights,
    penalty_range,
    polished_silhouette,
    recovery_interval,
    spectral_kmeans,
)

HERE = Path(__file__).parent


def same_partition(left, right):
    left, right = np.asarray(left), np.asarray(right)
    return bool(((left[:, None] == left) == (right[:, None] == right)).all())


def solve_cvxpy(points, penalty, weights=None):
    import cvxpy as cp

    m, d = points.shape
    first, second = np.triu_indices(m, 1)
    w = np.ones(first.size) if weights is None else weights[first, second]
    first, second, w = first[w > 0], second[w > 0], w[w > 0]
    u = cp.Variable((m, d))
    lengths = cp.norm(u[first] - u[second], axis=1)
    objective = 0.5 * cp.sum_squares(u - points) + penalty * cp.sum(cp.multiply(w, lengths))
    problem = cp.Problem(cp.Minimize(objective))
    for tolerance in (1e-10, 1e-9, 1e-8):  # the tightest that this problem lets Clarabel reach
        names = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
        with contextlib.suppress(cp.SolverError), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            problem.solve(solver=cp.CLARABEL, **dict.fromkeys(names, tolerance))
        if problem.status == cp.OPTIMAL:
            return u.value
    raise RuntimeError("CVXPY found no optimum")


def random_points(rng, m, d):
    centers = rng.choice([1.0, 3.0]) * rng.normal(size=(rng.integers(1, 9), d))
    return centers[rng.integers(len(centers), size=m)] + 0.5 * rng.normal(size=(m, d))


def agreement_with_cvxpy(weighted, n_problems=50):
    worst, equal, exactly = 0.0, 0, 0
    for seed in range(n_problems):
        rng = np.random.default_rng([101, seed])
        m, d = int(rng.integers(6, 25)), int(rng.integers(1, 5))
        points = random_points(rng, m, d)
        highest = penalty_range(points)[1]
        penalty = float(np.exp(rng.uniform(np.log(highest / 50), np.log(highest))))
        weights = nearest_neighbor_weights(points, 4) if weighted else None
        penalty *= 4.0 if weighted else 1.0
        expected = solve_cvxpy(points, penalty, weights.toarray() if weighted else None)
        found = convex_clustering(points, penalty, weights)
        worst = max(worst, float(np.abs(found.centers - expected).max()))
        # Just below a fusion the u_i lie closer than any cut that forgives CVXPY its rounding, and
        # are apart nevertheless; so both solutions are cut alike. What we call fused must be so.
        cuts = [
            fcluster(linkage(u, "single"), 1e-4 * highest * m, "distance")
            for u in (expected, found.centers)
        ]
        equal += same_partition(*cuts)
        exactly += same_partition(found.labels, cuts[0])
    kind = "neighbour weights" if weighted else "uniform"
    yield f"cvxpy, {kind}: max |u - u_CVXPY|", worst, "<= 1e-4", worst <= 1e-4
    yield f"cvxpy, {kind}: equal partitions of {n_problems}", equal, "all", equal == n_problems
    yield f"cvxpy, {kind}: our labels equal CVXPY's cut", exactly, "", True


def gaps(n_solves=500, m=80):
    worst, certified, slowest = 0.0, 0, 0.0
    for seed in range(n_solves):
        rng = np.random.default_rng([102, seed])
        d = int(rng.choice([1, 2, 3, 5, 20]))
        points = random_points(rng, m, d)
        if seed % 5 == 4:
            points = rng.standard_t(2, size=(m, d))
        if seed % 7 == 6:
            points = np.round(points, 1)
        lowest, highest = penalty_range(points)
        penalty = np.exp(rng.uniform(np.log(lowest), np.log(highest)))
        if seed % 2:
            penalty = highest * rng.uniform(0.1, 1.0)
        start = time.process_time()
        found = convex_clustering(points, float(penalty))
        slowest = max(slowest, time.process_time() - start)
        worst, certified = max(worst, found.gap), certified + found.certified
    yield f"worst relative gap of {n_solves} solves, m={m}", worst, "<= 1e-7", worst <= 1e-7
    yield f"certified partitions of {n_solves}", certified, "all", certified == n_solves
    yield "slowest of them, CPU s", slowest, "", True


def recovery(n_cases=300):
    right = tried = 0
    for seed in range(n_cases):
        rng = np.random.default_rng([103, seed])
        sizes = rng.integers(2, 15, size=rng.integers(2, 7))
        labels, d = np.repeat(np.arange(sizes.size), sizes), int(rng.integers(1, 8))
        points = 20.0 * rng.normal(size=(sizes.size, d))[labels]
        points += 0.1 * rng.normal(size=points.shape)
        lower, upper = recovery_interval(points, labels)
        for share in (0.0, 0.5, 0.999):
            if lower < upper:
                tried += 1
                penalty = lower + share * (upper - lower)
                right += same_partition(convex_clustering(points, penalty).labels, labels)
    yield f"recovered of {tried} penalties inside (13)", right, "all", right == tried


def nested_paths(n_paths=30):
    nested = certified = 0
    for seed in range(n_paths):
        rng = np.random.default_rng([104, seed])
        path = convex_clustering_path(random_points(rng, 100, int(rng.choice([1, 2, 5, 20]))))
        pairs = zip(path.labels, path.labels[1:], strict=False)
        nested += all(np.unique(f * 100 + c).size == np.unique(f).size for f, c in pairs)
        certified += bool(path.certified.all())
    yield f"nested of {n_paths} paths of 30 penalties", nested, "all", nested == n_paths
    yield "of them certified at every penalty", certified, "all", certified == n_paths


def homogeneous(n_seeds=10):
    for m, d in [(100, 20), (50, 2), (100, 1), (20, 20)]:
        draws = (np.random.default_rng([105, seed]).normal(size=(m, d)) for seed in range(n_seeds))
        ones = sum(choose_n_clusters(points).n_clusters == 1 for points in draws)
        yield f"K = 1 on homogeneous points, m={m} d={d}, of {n_seeds}", ones, ">= 9", ones >= 9


def local_models(seed, n, intercepts, m=100, d=20):
    """Least squares models of section 5 (five of twenty columns in use per row), (m, d)."""
    rng = np.random.default_rng([106, seed, n])
    models = rng.uniform(size=(len(intercepts), d)) + np.array(intercepts)[:, None]
    labels, points, covariances = np.arange(m) % len(intercepts), [], []
    for label in labels:
        x = rng.normal(size=(n, d)) * (np.argsort(rng.random((n, d)), axis=1) < 5)
        y = x @ models[label] + rng.normal(size=n)
        estimate = np.linalg.lstsq(x, y, rcond=None)[0]
        variance = ((y - x @ estimate) ** 2).sum() / (n - d)
        points.append(estimate)
        covariances.append(variance * np.linalg.inv(x.T @ x))
    return np.array(points), labels, np.array(covariances)


SECTION_5 = [1, 4, 7, 10, 13, -2, -5, -8, -11, -14]
APPENDIX_D2 = [0, 1, -1, -2]


def rules(name, intercepts, n, needed, n_seeds=10):
    count = len(intercepts)
    right = dict.fromkeys(
        ["kmeans", "spectral", "gradient", "polished", "path b", "gap", "chi2"], 0
    )
    for seed in range(n_seeds):
        points, labels, covariances = local_models(seed, n, intercepts)
        right["kmeans"] += same_partition(kmeans(points, count, 0).labels, labels)
        right["spectral"] += same_partition(spectral_kmeans(points, count, 0).labels, labels)
        right["gradient"] += same_partition(gradient_clustering(points, count, 0).labels, labels)
        right["polished"] += same_partition(polished_silhouette(points).labels, labels)
        right["path b"] += same_partition(clusterpath(points, rule="b").labels, labels)
        right["gap"] += choose_n_clusters(points).n_clusters == count
        told = choose_n_clusters(points, covariances=covariances, degrees_of_freedom=n - 20)
        right["chi2"] += told.n_clusters == count
    for rule, value in right.items():
        least = needed.get(rule)
        wanted = "" if least is None else f">= {least}"
        yield f"{name} n={n}, {rule}: right of {n_seeds}", value, wanted, value >= (least or 0)


def everything():
    yield from agreement_with_cvxpy(weighted=False)
    yield from agreement_with_cvxpy(weighted=True)
    yield from gaps()
    yield from recovery()
    yield from nested_paths()
    yield from homogeneous()
    known = {"kmeans": 10, "spectral": 10, "gradient": 10}
    yield from rules("section 5", SECTION_5, 50, known | {"polished": 9})
    yield from rules("section 5", SECTION_5, 100, known | {"polished": 10, "gap": 10})
    yield from rules("D.2", APPENDIX_D2, 200, {"polished": 9})


def main():
    with (HERE / "clustering.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["figure", "value", "wanted", "met"])
        for name, value, wanted, met in everything():
            shown = f"{value:.2g}" if isinstance(value, float) else str(value)
            table.writerow([name, shown, wanted, met])
            print(f"{'ok ' if met else 'NOT MET'} {name}: {shown} {wanted}", flush=True)


if __name__ == "__main__":
    main()
