"""GPyTorch on the CPU as a peer: value and gradient, site by site and batched, and a shared fit.

Kernel: scale times RBF plus noise. GPyTorch's defaults take the Cholesky route at these sizes.
"""

from __future__ import annotations

import gpytorch
import numpy as np
import torch

from benchmarks.measure import threads

torch.set_num_threads(threads())
torch.set_default_dtype(torch.float64)


class Process(gpytorch.models.ExactGP):
    """Zero mean; one set of hyper-parameters for each of `shape` processes."""

    def __init__(self, X, y, likelihood, shape):
        super().__init__(X, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=shape)
        inner = gpytorch.kernels.RBFKernel(batch_shape=shape)
        self.covar_module = gpytorch.kernels.ScaleKernel(inner, batch_shape=shape)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Peer:
    """Data X (..., n, 1), y (..., n) with hyper-parameters of batch `shape`, started at `theta`."""

    def __init__(self, X, y, theta, shape=()):
        self.X, self.y = torch.as_tensor(X), torch.as_tensor(y)
        scale, length, noise = (float(value) for value in np.exp(theta))
        shape = torch.Size(shape)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=shape)
        self.model = Process(self.X, self.y, self.likelihood, shape)
        self.model.covar_module.outputscale = scale
        self.model.covar_module.base_kernel.lengthscale = length
        self.likelihood.noise = noise
        self.model.train()
        self.likelihood.train()
        self.density = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, self.model)

    def loss(self):
        """Negative log likelihood, all processes added."""
        return -self.density(self.model(self.X), self.y).sum() * self.y.shape[-1]

    def step(self):
        """One evaluation with its gradient."""
        self.model.zero_grad()
        loss = self.loss()
        loss.backward()
        return loss

    def hyper_parameters(self):
        """Scale, length, noise, each with the raw parameter that is learnt."""
        kernel, noise = self.model.covar_module, self.likelihood.noise_covar
        return [
            (kernel.outputscale, kernel.raw_outputscale),
            (kernel.base_kernel.lengthscale, kernel.base_kernel.raw_lengthscale),
            (noise.noise, noise.raw_noise),
        ]

    def evaluate(self):
        """Summed value, and summed gradient in the log-parameters (3,)."""
        loss = float(self.step().detach())
        # value = softplus(raw) + constant, so d raw / d log value = value / sigmoid(raw).
        gradient = [
            float((raw.grad * value / torch.sigmoid(raw)).sum().detach())
            for value, raw in self.hyper_parameters()
        ]
        return loss, np.array(gradient)

    def fit(self, tolerance):
        """L-BFGS with strong Wolfe line search to a gradient of `tolerance`.

        Log-parameters (3,) and the loss there.
        """
        optimizer = torch.optim.LBFGS(
            self.model.parameters(),
            max_iter=100,
            tolerance_grad=tolerance,
            tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )
        optimizer.step(self.step)
        values = [float(value.detach()) for value, _ in self.hyper_parameters()]
        return np.log(values), float(self.loss().detach())
