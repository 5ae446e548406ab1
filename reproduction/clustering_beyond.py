"""The clustering behind ODCL: is convex clustering solved, and is the number of clusters found?"""

from __future__ import annotations

import contextlib
import warnings
from functools import partial
from typing import Any

import numpy as np

from reproduction.pictures import dots
from reproduction.study import Promise, Results, Size, Study, cells

# ------------------------------------------------------------------ convex clustering, solved

PARTS = ("CVXPY, uniform weights", "CVXPY, neighbour weights", "gap", "interval (13)", "path")
# Problems of a replication: 50 replications make 500 gaps and 300 partitions.
SOLVES, PARTITIONS = 10, 6
# Models nearer than this share of the penalty's end count as one in CVXPY's answer.
CUT = 1e-4


def solver(seed: int, part: str) -> list[dict[str, Any]]:
    """One check of the solver: against CVXPY, by its gap, inside the interval, along a path."""
    if part.startswith("CVXPY"):
        return [_beside_cvxpy(seed, "neighbour" in part)]
    if part == "gap":
        return [_gap(SOLVES * seed + k) for k in range(SOLVES)]
    if part == "interval (13)":
        return [row for k in range(PARTITIONS) for row in _recovered(PARTITIONS * seed + k)]
    return [_nested(seed)]


def _points(rng: np.random.Generator, m: int, d: int) -> np.ndarray:
    centers = rng.choice([1.0, 3.0]) * rng.normal(size=(rng.integers(1, 9), d))
    return centers[rng.integers(len(centers), size=m)] + 0.5 * rng.normal(size=(m, d))


def same_partition(left: Any, right: Any) -> bool:
    """Whether two labellings part the points alike."""
    left, right = np.asarray(left), np.asarray(right)
    return bool(((left[:, None] == left) == (right[:, None] == right)).all())


def _beside_cvxpy(seed: int, weighted: bool) -> dict[str, Any]:
    from scipy.cluster.hierarchy import fcluster, linkage

    from fedkin.clustering import convex_clustering, nearest_neighbor_weights, penalty_range

    rng = np.random.default_rng([101, seed])
    m, d = int(rng.integers(6, 25)), int(rng.integers(1, 5))
    points = _points(rng, m, d)
    highest = penalty_range(points)[1]
    penalty = float(np.exp(rng.uniform(np.log(highest / 50), np.log(highest))))
    weights = nearest_neighbor_weights(points, 4) if weighted else None
    penalty *= 4.0 if weighted else 1.0
    expected = _cvxpy(points, penalty, None if weights is None else weights.toarray())
    found = convex_clustering(points, penalty, weights)
    # Just below a fusion the u_i lie closer than any cut that forgives CVXPY its rounding, and are
    # apart nevertheless; so both solutions are cut alike.
    ours, theirs = (
        fcluster(linkage(u, "single"), CUT * highest * m, "distance")
        for u in (found.centers, expected)
    )
    away = float(np.abs(found.centers - expected).max())
    return {"difference": away, "right": same_partition(ours, theirs)}


def _cvxpy(points: np.ndarray, penalty: float, weights: np.ndarray | None) -> np.ndarray:
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
            return np.asarray(u.value)
    raise RuntimeError("CVXPY found no optimum")


def _gap(number: int) -> dict[str, Any]:
    from fedkin.clustering import convex_clustering, penalty_range

    rng = np.random.default_rng([102, number])
    d = int(rng.choice([1, 2, 3, 5, 20]))
    points = _points(rng, 80, d)
    if number % 5 == 4:
        points = rng.standard_t(2, size=(80, d))
    if number % 7 == 6:
        points = np.round(points, 1)
    lowest, highest = penalty_range(points)
    penalty = float(np.exp(rng.uniform(np.log(lowest), np.log(highest))))
    if number % 2:
        penalty = float(highest * rng.uniform(0.1, 1.0))
    found = convex_clustering(points, penalty)
    return {"difference": float(found.gap), "right": found.certified}


def _recovered(number: int) -> list[dict[str, Any]]:
    from fedkin.clustering import convex_clustering, recovery_interval

    rng = np.random.default_rng([103, number])
    sizes = rng.integers(2, 15, size=rng.integers(2, 7))
    labels, d = np.repeat(np.arange(sizes.size), sizes), int(rng.integers(1, 8))
    points = 20.0 * rng.normal(size=(sizes.size, d))[labels]
    points += 0.1 * rng.normal(size=points.shape)
    lower, upper = recovery_interval(points, labels)
    if lower >= upper:
        return []
    penalties = [lower + share * (upper - lower) for share in (0.0, 0.5, 0.999)]
    found = [convex_clustering(points, penalty).labels for penalty in penalties]
    return [{"right": same_partition(each, labels)} for each in found]


def _nested(seed: int) -> dict[str, Any]:
    from fedkin.clustering import convex_clustering_path

    rng = np.random.default_rng([104, seed])
    path = convex_clustering_path(_points(rng, 100, int(rng.choice([1, 2, 5, 20]))))
    pairs = zip(path.labels, path.labels[1:], strict=False)
    nested = all(np.unique(f * 100 + c).size == np.unique(f).size for f, c in pairs)
    return {"right": nested and bool(path.certified.all())}


def solver_promises(results: Results) -> list[Promise]:
    """The optimum, and partitions that are proved."""
    found = []
    for part, words, most in (
        (PARTS[0], "largest difference from CVXPY's optimum", 1e-4),
        (PARTS[1], "largest difference from CVXPY's optimum", 1e-4),
        (PARTS[2], "largest relative gap", 1e-7),
    ):
        values = results.where(part=part).column("difference")
        worst = float(values.max()) if len(values) else np.nan
        found.append(Promise(f"{part}: {words}", worst, most=most))
    shares = {
        PARTS[0]: "partitions equal to CVXPY's",
        PARTS[1]: "partitions equal to CVXPY's",
        PARTS[2]: "partitions certified",
        PARTS[3]: "true partitions found by penalties inside the interval",
        PARTS[4]: "paths nested and certified at every penalty",
    }
    for part, what in shares.items():
        share = results.estimate("right", part=part).mean
        found.append(Promise(f"{part}: share of {what}", share, 1.0))
    return found


def cvxpy_is_here() -> None:
    """CVXPY is no dependency of fedkin."""
    import cvxpy  # noqa: F401


# ------------------------------------------------------------------ how many clusters

# Homogeneous points (m, d); homogeneous sites by the interval of their coefficients.
CLOUDS = ((100, 20), (50, 2), (100, 1), (20, 20))
INTERVALS = ((1.0, 2.0), (13.0, 14.0))


def number(seed: int, data: str, m: int, n: int) -> list[dict[str, Any]]:
    """How many clusters are chosen: where there is one, and on the models of the simulations."""
    from fedkin import ODCL, LocalERM
    from fedkin.clustering import choose_n_clusters
    from fedkin.datasets import make_sparse_regressions
    from reproduction.odcl_protocol import SETTINGS, models_of, without_penalty

    if data == "points":
        points = np.random.default_rng([105, seed]).normal(size=(m, n))
        chosen, true = choose_n_clusters(points).n_clusters, 1
    elif data.startswith("sites"):
        interval = INTERVALS["13" in data]
        groups = make_sparse_regressions(n, intervals=(interval,), random_state=[seed, n, 1])
        model = ODCL(fit_intercept=False, random_state=seed).fit(groups.federation)
        chosen, true = model.n_clusters_, 1
    else:
        given = SETTINGS[data]
        groups = given.draw(n, [seed, n])
        points = models_of(LocalERM(**without_penalty(given.fit)).fit(groups.federation))
        chosen, true = choose_n_clusters(points).n_clusters, given.n_clusters
    return [{"clusters": chosen, "right": chosen == true}]


NUMBERS: tuple[dict[str, Any], ...] = (
    *({"data": "points", "m": m, "n": d} for m, d in CLOUDS),
    *(
        {"data": f"sites, coefficients in [{low:g}, {high:g}]", "m": 100, "n": n}
        for n in (50, 100, 400)
        for low, high in INTERVALS
    ),
    {"data": "section 5", "m": 100, "n": 50},
    {"data": "section 5", "m": 100, "n": 100},
    {"data": "D.2", "m": 100, "n": 200},
)


def number_promises(results: Results) -> list[Promise]:
    """One cluster where there is one; ten from the gap test at n = 100."""
    found = []
    for cell in NUMBERS:
        least = {("section 5", 100): 1.0, ("section 5", 50): None, ("D.2", 200): None}.get(
            (cell["data"], cell["n"]), 0.9
        )
        if least is not None:
            what = (
                f"{cell['data']}, m = {cell['m']}, n = {cell['n']}: share of draws with the right"
            )
            share = results.estimate("right", **cell).mean
            found.append(Promise(f"{what} number of clusters", share, least))
    return found


STUDIES = (
    Study(
        name="convex-clustering",
        paper="fedkin",
        shows="solver",
        title="Convex clustering is solved",
        protocol=(
            "Convex clustering against CVXPY (50 random problems, uniform and neighbour weights), "
            "by its own gap and certificates (500 problems of 80 points), by the true partition at "
            "penalties inside interval (13), and along paths of 30 penalties. *Right*: the same "
            "partition as CVXPY's, certified, the true partition, or nested and certified."
        ),
        one=solver,
        figure=partial(dots, by=("part",), measures=("difference", "right"), log=("difference",)),
        promises=solver_promises,
        by=("part",),
        measures=("difference", "right"),
        full=Size(cells(part=PARTS), 50),
        quick=Size(cells(part=PARTS), 5),
        toy=Size(cells(part=PARTS[:4]), 1),
        needs=(cvxpy_is_here,),
    ),
    Study(
        name="number-of-clusters",
        paper="fedkin",
        shows="number of clusters",
        title="The number of clusters",
        protocol=(
            "How often the right number of clusters is chosen: for homogeneous points (m of them "
            "in n dimensions, gap test), homogeneous sites (ODCL's default, n rows a site), and "
            "the local models of ODCL's simulations (gap test without the sites' covariances)."
        ),
        one=number,
        figure=partial(dots, by=("data", "m", "n"), measures=("clusters",)),
        promises=number_promises,
        by=("data", "m", "n"),
        measures=("clusters", "right"),
        full=Size(NUMBERS, 10),
        quick=Size(NUMBERS, 2),
        toy=Size([NUMBERS[1], NUMBERS[4], NUMBERS[11]], 1),
    ),
)
