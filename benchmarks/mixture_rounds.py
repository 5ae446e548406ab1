"""A round of federated EM for Gaussian mixtures: batched, one site at a time, scikit-learn.

    OMP_NUM_THREADS=1 python benchmarks/mixture_rounds.py

Identity covariance; E-step, weights, means and log likelihood of every site. The per-site loop does
the same work with matrix products and in-place passes. scikit-learn's GaussianMixture (spherical)
does NOT do the same work: an EM iteration also updates one variance a component and checks its
input; its start and its set-up are taken out by timing fits of two lengths. CPU time, medians of
interleaved repeats of rounds that follow one another, as they do in a fit; a round that finds
the caches full of other work is shown below.
"""

from __future__ import annotations

import time
import warnings

import numpy as np

from fedkin.federation import Federation
from fedkin.models import gaussian_mixture as model

# Sites on which scikit-learn is timed; its time is scaled to all of them.
SKLEARN_SITES = 20
TARGETS = {"44 x ~250, R=10, d=16": (2.5, 10.0), "10000 x ~50, R=5, d=10": (7.0, 30.0)}


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
    for k, (X, squares) in enumerate(sites):
        yield site_round(X, squares, parameters.weights[k], parameters.means[k])


def sklearn_seconds(sites, parameters, n_iter=6):
    """CPU seconds a site and EM iteration."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    spent = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for length in (1, 1 + n_iter):
            begin = time.process_time()
            for k, (X, _) in enumerate(sites):
                GaussianMixture(
                    n_components=parameters.means.shape[1],
                    covariance_type="spherical",
                    weights_init=parameters.weights[k],
                    means_init=parameters.means[k],
                    precisions_init=np.ones(parameters.means.shape[1]),
                    init_params="random",
                    max_iter=length,
                    tol=0.0,
                    random_state=0,
                ).fit(X)
            spent[length] = time.process_time() - begin
    return (spent[1 + n_iter] - spent[1]) / n_iter / len(sites)


def timed(work, n_rounds):
    """CPU seconds a round, of rounds that follow one another as in a fit; and the last result."""
    begin = time.process_time()
    for _ in range(n_rounds):
        found = work()
    return (time.process_time() - begin) / n_rounds, found


def compare(title, clients, parameters, repeats, n_rounds):
    rows = model.prepare(clients)
    m = clients.n_clients
    sites = [(X, float((X * X).sum())) for X in (clients.client(k)[0].copy() for k in range(m))]
    every = np.linspace(0, m - 1, min(m, SKLEARN_SITES)).astype(int)
    few = [sites[k] for k in every]
    of_few = model.Parameters(parameters.weights[every], parameters.means[every])
    work = {
        "batched": lambda: model.em_step(rows, parameters),
        "loop": lambda: list(loop_round(sites, parameters)),
    }
    times = {name: [] for name in ("batched", "loop", "batched, cold", "loop, cold", "sklearn")}
    for _ in range(repeats):
        found = {}
        for name in work:
            times["sklearn"].append(sklearn_seconds(few, of_few) * m)
            times[f"{name}, cold"].append(timed(work[name], 1)[0])
            spent, found[name] = timed(work[name], n_rounds)
            times[name].append(spent)
    median = {name: 1e3 * np.median(spent) for name, spent in times.items()}
    print(f"{title}: {m} sites, {len(clients.X)} rows, CPU ms a round")
    print(f"  batched             {median['batched']:9.2f}")
    for name, wanted, remark in (
        ("loop", TARGETS[title][0], f"largest difference {difference(found, clients.sizes):.0e}"),
        ("sklearn", TARGETS[title][1], "per EM iteration; not identical work"),
    ):
        ratio = median[name] / median["batched"]
        print(f"  {name:<20}{median[name]:9.2f} {ratio:6.1f} x (wanted {wanted} x; {remark})")
    cold, loop = median["batched, cold"], median["loop, cold"]
    print(f"  one round after other work: batched {cold:.2f}, loop {loop:.2f}, {loop / cold:.1f} x")


def difference(found, sizes):
    """Largest difference of weights, means and mean log likelihoods of batched and loop.

    Means are weighted: where no row is near a component we keep its mean, the loop divides 0 by 0.
    """
    ours, loglik = found["batched"]
    weights, means, logliks = (np.array(part) for part in zip(*found["loop"]))
    return max(
        np.abs(ours.weights - weights).max(),
        np.abs(ours.weights[..., None] * (ours.means - means)).max(),
        np.abs((loglik - logliks) / sizes).max(),
    )


def main():
    compare("44 x ~250, R=10, d=16", *federation(44, 250, False, 10, 16), repeats=15, n_rounds=20)
    compare("10000 x ~50, R=5, d=10", *federation(10_000, 50, True, 5, 10), repeats=7, n_rounds=2)


if __name__ == "__main__":
    main()
