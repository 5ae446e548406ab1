"""A round of federated EM for Gaussian mixtures: batched, one site at a time, scikit-learn.

Identity covariance; E-step, weights, means and log likelihood of every site. The per-site loop does
the same work with matrix products and in-place passes. Rounds follow one another, as in a fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np

from benchmarks.measure import Effort, alone, race, roofline
from benchmarks.table import Promise, Row
from fedkin.federation import Federation
from fedkin.models import gaussian_mixture as model

# Sites on which scikit-learn is timed; its time is scaled to all of them.
SKLEARN_SITES = 20
SKLEARN_ITERATIONS = 6
# Sites, mean rows a site, ragged, components, features; and the least ratios to loop and
# scikit-learn.
CASES = {
    "full": [(44, 250, False, 10, 16), (10_000, 50, True, 5, 10)],
    "quick": [(44, 250, False, 10, 16), (10_000, 50, True, 5, 10)],
    "toy": [(3, 30, True, 2, 2)],
}
PROMISED = {44: (2.5, 10.0), 10_000: (7.0, 30.0)}
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
    found = race(
        {
            "ours": lambda: model.em_step(prepared, parameters),
            "loop": lambda: loop_round(sites, parameters),
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
    promised = [Promise("ratio", limit) for limit in PROMISED.get(n_sites, ())] or [None, None]
    yield Row(
        peer="careful loop over sites",
        peer_time=found["loop"].seconds,
        promise=promised[0],
        difference=difference(found["ours"].result, found["loop"].result, clients.sizes),
        peer_turns=found["loop"].turns,
        **common,
    )
    ours = found["ours"].result[0]
    weights, means = found["one"].result
    yield Row(
        peer="scikit-learn GaussianMixture",
        peer_time=(found["more"].seconds - found["one"].seconds) * scale,
        promise=promised[1],
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


def difference(ours, loop, sizes) -> float:
    """Largest difference of weights, weighted means and mean log likelihoods."""
    found, loglik = ours
    weights, means, logliks = (np.array(part) for part in zip(*loop))
    by_row = np.abs((loglik - logliks) / sizes).max()
    return float(max(by_row, moved(found.weights, found.means, weights, means)))


if __name__ == "__main__":
    alone(rows)
