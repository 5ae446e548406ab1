"""A round of federated EM for Gaussian mixtures: batched, against plain and compiled peers.

Identity covariance; E-step, weights, means and log likelihood of every site. Peers on the same
work: a loop over sites with matrix products and in-place passes, one pass over the rows of all
sites one below the other in NumPy, and a loop over rows compiled by Numba (sites in parallel, if
there are threads). Rounds follow one another, as in a fit.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

import numpy as np

from benchmarks.measure import Effort, alone, race, roofline, threads
from benchmarks.table import LEVEL, Promise, Row
from fedkin.federation import Federation
from fedkin.models import gaussian_mixture as model

# Sites on which scikit-learn is timed; its time is scaled to all of them.
SKLEARN_SITES = 20
SKLEARN_ITERATIONS = 6
# Sites, mean rows a site, ragged, components, features; and what is promised of each.
CASES = {
    "full": [(44, 250, False, 10, 16), (10_000, 50, True, 5, 10)],
    "quick": [(44, 250, False, 10, 16), (10_000, 50, True, 5, 10)],
    "toy": [(3, 30, True, 2, 2)],
}
LOOP, ONE_PASS = "careful loop over sites", "one NumPy pass over the rows of all"
NUMBA, SKLEARN = "Numba, loop over rows", "scikit-learn GaussianMixture"
PROMISED = {
    44: {LOOP: Promise("ratio", 2.5), SKLEARN: Promise("ratio", 10.0)},
    10_000: {LOOP: Promise("ratio", 7.0), SKLEARN: Promise("ratio", 30.0)},
}
if threads() == 1:
    # Numba's loop runs sites in parallel where it may, ours leaves threads to linear algebra:
    # nothing is promised of more than one.
    for promises in PROMISED.values():
        promises[NUMBA] = Promise("ratio", 1 / LEVEL)
SKLEARN_NOTE = (
    "Per EM iteration, the difference of fits of two lengths, on 20 sites and scaled to all. NOT "
    "the same work: it also updates one variance a component and checks its input; weights and "
    "means after the first iteration are compared."
)


def federation(n_sites, mean_rows, ragged, n_components, n_features):
    rng = np.random.default_rng(0)
    sizes = (
        np.maximum(2 * n_components, rng.poisson(rng.gamma(4.0, mean_rows / 4.0, n_sites)))
        if ragged
        else rng.integers(mean_rows - 5, mean_rows + 6, n_sites)
    )
    centers = 3.0 * rng.normal(size=(n_components, n_features))
    owner = np.repeat(np.arange(n_sites), sizes)
    label = rng.integers(0, n_components, len(owner))
    X = centers[label] + rng.normal(size=(len(owner), n_features))
    means = centers + 0.3 * rng.normal(size=(n_sites, n_components, n_features))
    weights = rng.dirichlet(np.full(n_components, 5.0), size=n_sites)
    return Federation.from_groups(X, owner), model.Parameters(weights, means)


# ------------------------------------------------------------------ peers


def site_round(X, squares, weights, means):
    joint = X @ means.T
    joint += np.log(weights) - 0.5 * np.einsum("rd,rd->r", means, means)
    top = joint.max(axis=1, keepdims=True)
    joint -= top
    np.exp(joint, out=joint)
    total = joint.sum(axis=1, keepdims=True)
    joint /= total
    counts = joint.sum(axis=0)
    new = (joint.T @ X) / counts[:, None]
    constant = 0.5 * (squares + X.size * np.log(2 * np.pi))
    return counts / len(X), new, top.sum() + np.log(total).sum() - constant


def loop_round(sites, parameters):
    return [
        site_round(X, squares, parameters.weights[k], parameters.means[k])
        for k, (X, squares) in enumerate(sites)
    ]


def one_pass(X, owner, starts, squares, sizes, parameters):
    """All rows one below the other, component by component; sums of sites by `reduceat`."""
    weights, means = parameters.weights, parameters.means
    n_components, d = means.shape[1:]
    constant = np.log(weights) - 0.5 * np.einsum("mrd,mrd->mr", means, means)
    joint = np.empty((n_components, len(X)))
    for r in range(n_components):
        np.einsum("nd,nd->n", X, means[owner, r], out=joint[r])
        joint[r] += constant[owner, r]
    top = joint.max(axis=0)
    joint -= top
    np.exp(joint, out=joint)
    total = joint.sum(axis=0)
    joint /= total
    counts = np.add.reduceat(joint, starts, axis=1).T
    new = np.empty_like(means)
    for r in range(n_components):
        new[:, r] = np.add.reduceat(joint[r][:, None] * X, starts, axis=0)
    logliks = np.add.reduceat(top + np.log(total), starts)
    logliks -= 0.5 * (squares + sizes * d * np.log(2 * np.pi))
    return counts / sizes[:, None], new / counts[..., None], logliks


def numba_round(X, offsets, squares, parameters):
    """The compiled round as a call without arguments, or None where Numba is missing."""
    try:
        from benchmarks import compiled
    except ImportError as error:
        print(f"  Numba left out: {error}", file=sys.stderr)
        return None
    weights, means = parameters.weights, parameters.means
    return lambda: compiled.mixture_round(X, offsets, squares, weights, means)


def sklearn_fits(sites, parameters, n_iter):
    """Weights and means (k, ...) of fits of `n_iter` iterations from the given parameters."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for k, (X, _) in enumerate(sites):
            fitted = GaussianMixture(
                n_components=parameters.means.shape[1],
                covariance_type="spherical",
                weights_init=parameters.weights[k],
                means_init=parameters.means[k],
                precisions_init=np.ones(parameters.means.shape[1]),
                init_params="random",
                max_iter=n_iter,
                tol=0.0,
                random_state=0,
            ).fit(X)
            found.append((fitted.weights_, fitted.means_))
    return [np.array(part) for part in zip(*found)]


# ------------------------------------------------------------------ the comparison


def rows(effort: Effort) -> Iterator[Row]:
    for case in CASES[effort.name]:
        yield from compare(*case, effort)


def compare(n_sites, mean_rows, ragged, n_components, n_features, effort) -> Iterator[Row]:
    clients, parameters = federation(n_sites, mean_rows, ragged, n_components, n_features)
    prepared = model.prepare(clients)
    sites = [(X.copy(), float((X * X).sum())) for X, _ in map(clients.client, range(n_sites))]
    few = np.linspace(0, n_sites - 1, min(n_sites, SKLEARN_SITES)).astype(int)
    of_few = model.Parameters(parameters.weights[few], parameters.means[few])
    some = [sites[k] for k in few]
    squares = np.array([square for _, square in sites])
    rows_of_all = (clients.X, clients.owner, clients.offsets[:-1], squares, clients.sizes)
    works = {
        LOOP: lambda: loop_round(sites, parameters),
        ONE_PASS: lambda: one_pass(*rows_of_all, parameters),
    }
    fast = numba_round(clients.X, clients.offsets, squares, parameters)
    if fast is not None:
        works[NUMBA] = fast
    found = race(
        {
            "ours": lambda: model.em_step(prepared, parameters),
            **works,
            "one": lambda: sklearn_fits(some, of_few, 1),
            "more": lambda: sklearn_fits(some, of_few, 1 + SKLEARN_ITERATIONS),
        },
        effort,
    )
    scale = n_sites / len(few) / SKLEARN_ITERATIONS
    N, R, d = len(clients.X), n_components, n_features
    common = {
        "work": f"mixture round, {n_sites:,} x ~{mean_rows}, R={R}, d={d}",
        "ours": found["ours"].seconds,
        "bound": "roofline",
        "bound_time": roofline().seconds(
            flops=4.0 * N * R * (d + 1), bytes=8.0 * N * (d + 1), exps=N * R
        ),
        "turns": found["ours"].turns,
    }
    promised = PROMISED.get(n_sites, {})
    for peer in works:
        result = found[peer].result
        parts = [np.array(part) for part in (zip(*result) if peer == LOOP else result)]
        yield Row(
            peer=peer,
            peer_time=found[peer].seconds,
            promise=promised.get(peer),
            difference=difference(found["ours"].result, parts, clients.sizes),
            peer_turns=found[peer].turns,
            **common,
        )
    ours = found["ours"].result[0]
    weights, means = found["one"].result
    yield Row(
        peer=SKLEARN,
        peer_time=(found["more"].seconds - found["one"].seconds) * scale,
        promise=promised.get(SKLEARN),
        difference=moved(ours.weights[few], ours.means[few], weights, means),
        peer_turns=found["more"].turns,
        note=SKLEARN_NOTE,
        **common,
    )


def moved(weights, means, other_weights, other_means) -> float:
    """Largest difference of weights, and of means weighted.

    Where no row is near a component we keep its mean, the others divide 0 by 0.
    """
    return float(
        max(
            np.abs(weights - other_weights).max(),
            np.abs(weights[..., None] * (means - other_means)).max(),
        )
    )


def difference(ours, theirs, sizes) -> float:
    """Largest difference of weights, weighted means and mean log likelihoods."""
    found, loglik = ours
    weights, means, logliks = theirs
    by_row = np.abs((loglik - logliks) / sizes).max()
    return float(max(by_row, moved(found.weights, found.means, weights, means)))


if __name__ == "__main__":
    alone(rows)
