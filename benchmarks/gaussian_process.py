"""Likelihood and gradient of 100 sites' Gaussian processes: ours, LAPACK alone, GPyTorch.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/gaussian_process.py

CPU time of one thread, median of interleaved repeats, for one evaluation of all 100 sites.
GPyTorch is measured only where it is installed; it is no dependency. Writes gaussian_process.csv.
"""

from __future__ import annotations

import csv
import time
from pathlib import Path

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri

from fedkin.federation import Federation
from fedkin.models.gaussian_process import evaluate
from fedkin.models.gp_rows import prepare
from fedkin.models.kernels import default_spec, form_of

N_SITES = 100
WIDTHS = (32, 64, 128)
REPEATS = 15
THETA = np.log([1.3, 0.7, 0.2])


def sites(width: int) -> Federation:
    rng = np.random.default_rng(width)
    parts = [(rng.uniform(size=(width, 1)), rng.normal(size=width)) for _ in range(N_SITES)]
    return Federation.from_clients(parts)


def ours(federation: Federation):
    data, form = prepare(federation, False), form_of(default_spec(np.ones(1)), 1)
    return lambda: evaluate(data, form, THETA)


def lapack(federation: Federation):
    """Factor and inverse of the same covariances, and nothing else."""
    X = federation.X.reshape(N_SITES, -1)
    square = (X[:, :, None] - X[:, None, :]) ** 2 / 0.7**2
    K = 1.3 * np.exp(-0.5 * square) + 0.2 * np.eye(X.shape[1])

    def run():
        work = K.copy()
        for one in work:
            factor, _ = dpotrf(one.T, 1, 0, 1)
            dpotri(factor, 1, 1)

    return run


def gpytorch_rivals(federation: Federation) -> dict:
    try:
        import gpytorch
        import torch
    except ImportError as error:
        print(f"skipped GPyTorch: {error}")
        return {}
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    X = torch.tensor(federation.X.reshape(N_SITES, -1, 1))
    y = torch.tensor(federation.y.reshape(N_SITES, -1))

    class Model(gpytorch.models.ExactGP):
        def __init__(self, X, y, likelihood, shape):
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean(batch_shape=shape)
            inner = gpytorch.kernels.RBFKernel(batch_shape=shape)
            self.covar_module = gpytorch.kernels.ScaleKernel(inner, batch_shape=shape)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    def made(X, y, shape):
        likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=shape)
        model = Model(X, y, likelihood, shape)
        model.covar_module.outputscale = 1.3
        model.covar_module.base_kernel.lengthscale = 0.7
        likelihood.noise = 0.2
        model.train()
        likelihood.train()
        return model, gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def step(model, mll, X, y):
        # Its defaults take the Cholesky route at these sizes.
        model.zero_grad()
        loss = -mll(model(X), y).sum() * y.shape[-1]
        loss.backward()
        return float(loss.detach())

    whole = made(X, y, torch.Size([N_SITES]))
    alone = [made(X[k], y[k], torch.Size([])) for k in range(N_SITES)]

    def batched():
        return step(*whole, X, y)

    def loop():
        return sum(step(*alone[k], X[k], y[k]) for k in range(N_SITES))

    expected = float(ours(federation)().value.sum())
    for run in (batched, loop):
        assert abs(run() / expected - 1) < 1e-6, "GPyTorch computes another likelihood"
    return {"GPyTorch batched": batched, "GPyTorch loop": loop}


def measure(runs: dict) -> dict[str, float]:
    """Median CPU milliseconds, the methods taking turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(REPEATS):
        for name, run in runs.items():
            begin = time.process_time()
            run()
            times[name].append(1e3 * (time.process_time() - begin))
    return {name: float(np.median(found)) for name, found in times.items()}


def main() -> None:
    rows = []
    for width in WIDTHS:
        federation = sites(width)
        runs = {"ours": ours(federation), "LAPACK alone": lapack(federation)}
        found = measure({**runs, **gpytorch_rivals(federation)})
        for name, milliseconds in found.items():
            ratio = milliseconds / found["ours"]
            rows.append([width, name, f"{milliseconds:.2f}", f"{ratio:.2f}"])
            print(f"M={width} {name}: {milliseconds:.2f} ms, {ratio:.2f} of ours", flush=True)
    with open(Path(__file__).with_suffix(".csv"), "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["rows per site", "method", "ms per evaluation", "times ours"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
