"""Gaussian processes of 100 sites: likelihood and gradient, a shared fit, separate fits.

Peers: scikit-learn and, where they are installed, GPyTorch, JAX and PyTorch by hand, batched over
sites; bound: LAPACK's factor and inverse of the same covariances and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri

from benchmarks.measure import Effort, alone, race
from benchmarks.table import LEVEL, Promise, Row
from fedkin import FGPR, LocalGP
from fedkin.federation import Federation
from fedkin.models.gaussian_process import evaluate
from fedkin.models.gp_rows import prepare
from fedkin.models.kernels import default_spec, form_of, from_spec
from fedkin.threads import one_thread

# Sites, rows a site for evaluations, rows a site for fits.
SIZES = {"full": (100, (32, 64, 128), 32), "quick": (100, (32, 64, 128), 32), "toy": (3, (6,), 12)}
# Scale, length scale and noise.
THETA = np.log([1.3, 0.7, 0.2])
SHORT = 32
TRUTH = np.log([2.0, 0.2, 0.5])
# Batched peers on exactly the work of an evaluation, and the modules they are in.
BY_HAND = {"PyTorch by hand, batched": "torch_peer", "JAX, batched": "jax_peer"}
BOUND = "LAPACK alone"
WITHIN = 4.0


def federation_of(m: int, n: int) -> Federation:
    """Sites whose curves are draws from one process with the parameters TRUTH."""
    rng = np.random.default_rng(n)
    parts = []
    for _ in range(m):
        X = rng.uniform(size=(n, 1))
        factor = np.linalg.cholesky(covariance(X.T[None], TRUTH)[0])
        parts.append((X, factor @ rng.normal(size=n)))
    return Federation.from_clients(parts)


def covariance(X, theta):
    """Covariances (m, n, n) of inputs (m, 1, n)."""
    scale, length, noise = np.exp(theta)
    square = (X.transpose(0, 2, 1) - X) ** 2 / length**2
    return scale * np.exp(-0.5 * square) + noise * np.eye(X.shape[-1])


def kernel():
    """Scale times RBF plus noise, as scikit-learn's and ours."""
    return from_spec(default_spec(np.ones(1)))


def packed(data: Federation) -> tuple[np.ndarray, np.ndarray]:
    """X (m, n, 1) and y (m, n) of sites of one size."""
    m = data.n_clients
    assert data.y is not None
    return data.X.reshape(m, -1, 1), data.y.reshape(m, -1)


def lapack(data: Federation) -> Callable[[], None]:
    """Factor and inverse of the same covariances, and nothing else, as fast as we know."""
    K = covariance(packed(data)[0].transpose(0, 2, 1), THETA)

    def run():
        work = K.copy()
        with one_thread(K.shape[1]):
            for one in work:
                factor, _ = dpotrf(one.T, 1, 0, 1)
                dpotri(factor, 1, 1)

    return run


def sklearn_loop(data: Federation) -> Callable[[], Any]:
    from sklearn.gaussian_process import GaussianProcessRegressor

    models = [
        GaussianProcessRegressor(kernel().clone_with_theta(THETA), alpha=0.0, optimizer=None).fit(
            X, y
        )
        for X, y in zip(*packed(data))
    ]

    def run():
        found = [
            model.log_marginal_likelihood(THETA, eval_gradient=True, clone_kernel=False)
            for model in models
        ]
        return -sum(value for value, _ in found), -sum(slope for _, slope in found)

    return run


def installed(name: str):
    """A module of this package, or None where what it needs is missing."""
    try:
        return import_module(f"benchmarks.{name}")
    except ImportError as error:
        print(f"  {name} left out: {error}", file=sys.stderr)
        return None


def gpytorch_peer():
    """The module, or None where GPyTorch is missing."""
    return installed("gpytorch_peer")


def evaluation_peers(data: Federation) -> dict[str, Callable[[], Any]]:
    X, y = packed(data)
    peers = {"scikit-learn GaussianProcessRegressor, loop": sklearn_loop(data)}
    torch = gpytorch_peer()
    if torch is not None:
        whole = torch.Peer(X, y, THETA, (len(X),))
        each = [torch.Peer(one, of, THETA) for one, of in zip(X, y)]

        def loop():
            found = [peer.evaluate() for peer in each]
            return sum(value for value, _ in found), sum(slope for _, slope in found)

        peers |= {"GPyTorch, loop": loop, "GPyTorch, batched": whole.evaluate}
    for name, module in BY_HAND.items():
        by_hand = installed(module)
        if by_hand is not None:
            peers[name] = partial(by_hand.Evaluation(X, y), THETA)
    return peers


def rows(effort: Effort) -> Iterator[Row]:
    m, widths, fitted = SIZES[effort.name]
    for n in widths:
        yield from evaluations(m, n, effort)
    data = federation_of(m, fitted)
    yield from shared_fit(data, effort)
    yield separate_fits(data, effort)


def evaluations(m, n, effort) -> Iterator[Row]:
    data = federation_of(m, n)
    prepared, form = prepare(data, False), form_of(default_spec(np.ones(1)), 1)

    def ours():
        found = evaluate(prepared, form, THETA)
        return found.value.sum(), found.gradient.sum(axis=0)

    found = race({"ours": ours, "LAPACK": lapack(data), **evaluation_peers(data)}, effort)
    mine, bound = found.pop("ours"), found.pop("LAPACK")
    common = {
        "work": f"GP likelihood and gradient, {m} x {n}",
        "ours": mine.seconds,
        "bound": BOUND,
        "bound_time": bound.seconds,
        "turns": mine.turns,
    }
    yield Row(promise=Promise("distance", WITHIN), **common)
    limits = {"GPyTorch, batched": 1.0} | dict.fromkeys(BY_HAND, 1 / LEVEL)
    limits |= {"GPyTorch, loop": 20.0} if n == SHORT else {}
    for name, timing in found.items():
        yield Row(
            peer=name,
            peer_time=timing.seconds,
            promise=Promise("ratio", limits[name]) if name in limits else None,
            difference=apart(mine.result, timing.result),
            peer_turns=timing.turns,
            **common,
        )


def apart(ours, theirs) -> float:
    """Largest relative difference of summed value and gradient."""
    value, gradient = ours
    slopes = np.abs(gradient - theirs[1]).max() / np.abs(gradient).max()
    return float(max(abs(value / theirs[0] - 1), slopes))


def shared_fit(data: Federation, effort) -> Iterator[Row]:
    torch = gpytorch_peer()
    if torch is None:
        return
    X, y = packed(data)
    start = form_of(default_spec(np.ones(1)), 1).start

    def ours():
        made = {"normalize_y": False, "mean": "zero", "personalise": "posterior", "common": False}
        return FGPR(kernel(), **made).fit(data)

    def theirs():
        # Ours stops at a gradient of 1e-5 a row.
        return torch.Peer(X, y, start).fit(1e-5 * y.size)

    works = {"ours": ours, "GPyTorch": theirs, "LAPACK": lapack(data)}
    found = race(works, effort)
    mine, peer = found["ours"], found["GPyTorch"]
    yield Row(
        f"FGPR fit, {len(X)} x {X.shape[1]}, one prior",
        mine.seconds,
        "GPyTorch batched, L-BFGS",
        peer.seconds,
        bound=f"{BOUND}, {mine.result.n_rounds_} evaluations",
        bound_time=found["LAPACK"].seconds * mine.result.n_rounds_,
        difference=float(np.abs(mine.result.theta_[0] - peer.result[0]).max()),
        turns=mine.turns,
        peer_turns=peer.turns,
        note="The same optimum from the same start; difference of log-parameters. Ours asks every "
        "site in every round and keeps the account.",
    )


def separate_fits(data: Federation, effort) -> Row:
    from sklearn.gaussian_process import GaussianProcessRegressor

    def theirs():
        made = [GaussianProcessRegressor(kernel(), alpha=0.0) for _ in range(data.n_clients)]
        fitted = [model.fit(X, y) for model, X, y in zip(made, *packed(data))]
        return sum(model.log_marginal_likelihood_value_ for model in fitted)

    made = {"normalize_y": False, "mean": "zero", "hyperprior": False}

    def ours():
        return LocalGP(kernel(), **made).fit(data).log_marginal_likelihood_

    found = race({"ours": ours, "peer": theirs}, effort)
    mine, peer = found["ours"], found["peer"]
    return Row(
        f"separate GP at each of {data.n_clients} sites x {len(data.X) // data.n_clients}",
        mine.seconds,
        "scikit-learn GaussianProcessRegressor, loop",
        peer.seconds,
        turns=mine.turns,
        peer_turns=peer.turns,
        note="Ours takes two starts a site, the peer one; log likelihood per row of the fits: ours "
        f"{mine.result / len(data.X):.4f}, theirs {peer.result / len(data.X):.4f}.",
    )


if __name__ == "__main__":
    alone(rows)
