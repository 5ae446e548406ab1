"""Functions with one vector of parameters, to be averaged over clients: polynomial and network.

Both take inputs brought to about [-1, 1] and return values and the gradient of the mean squared
error, batched over clients: `inputs` of rows (k, w, d), parameters (k, p), weights (k, w) that
are 1/n on a client's rows and 0 on padding.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.arrays import Floats

# Largest change of the whitened polynomial basis: directions the rows hardly determine stay put.
LEAST_EIGENVALUE = 1e-8


class Polynomial(NamedTuple):
    """Sum over features of polynomials of one degree, in Legendre's basis times `whitening`."""

    degree: int
    whitening: Floats

    def inputs(self, X: Floats) -> Floats:
        """Basis (..., t) at rows (..., d)."""
        return legendre(X, self.degree) @ self.whitening

    def values(self, inputs: Floats, theta: Floats) -> Floats:
        """Function values (k, w)."""
        return np.einsum("kwt,kt->kw", inputs, theta)

    def gradient(self, inputs: Floats, y: Floats, weights: Floats, theta: Floats) -> Floats:
        """Gradient of half the mean squared error, (k, t)."""
        error = weights * (self.values(inputs, theta) - y)
        return np.einsum("kwt,kw->kt", inputs, error)


def legendre(X: Floats, degree: int) -> Floats:
    """1 and Legendre polynomials 1..degree of every feature, (..., 1 + d * degree)."""
    powers = np.polynomial.legendre.legvander(X, degree)
    separate = powers[..., 1:].reshape(*X.shape[:-1], -1)
    return np.concatenate([np.ones((*X.shape[:-1], 1)), separate], axis=-1)


def whitening_of(gram: Floats) -> Floats:
    """W with W' gram W the identity on what the rows determine (t, t)."""
    values, vectors = np.linalg.eigh(gram)
    if values[-1] <= 0:
        return np.eye(len(gram))
    least = LEAST_EIGENVALUE * values[-1]
    whitening: Floats = vectors / np.sqrt(np.maximum(values, least))
    return whitening


class Network(NamedTuple):
    """A fully connected network with tanh layers."""

    n_features: int
    depth: int
    width: int

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Weights of every layer, the bias as last row."""
        inner = [(self.width + 1, self.width)] * (self.depth - 1)
        return [(self.n_features + 1, self.width), *inner, (self.width + 1, 1)]

    def start(self, rng: np.random.Generator) -> Floats:
        """Random weights of the usual size, zero biases."""
        parts = []
        for above, below in self.shapes:
            layer = rng.normal(size=(above, below)) / np.sqrt(above)
            layer[-1] = 0.0
            parts.append(layer.ravel())
        return np.concatenate(parts)

    def layers(self, theta: Floats) -> list[Floats]:
        """Parameters (k, p) as layers (k, above, below)."""
        cuts = np.cumsum([a * b for a, b in self.shapes])[:-1]
        parts = np.split(theta, cuts, axis=1)
        return [part.reshape(len(theta), *shape) for part, shape in zip(parts, self.shapes)]

    def inputs(self, X: Floats) -> Floats:
        """The rows themselves."""
        return X

    def values(self, inputs: Floats, theta: Floats) -> Floats:
        """Function values (k, w)."""
        return self._forward(inputs, self.layers(theta))[-1][..., 0]

    def _forward(self, X: Floats, layers: list[Floats]) -> list[Floats]:
        states = [X]
        for number, layer in enumerate(layers):
            total = states[-1] @ layer[:, :-1] + layer[:, -1:]
            states.append(total if number == len(layers) - 1 else np.tanh(total))
        return states

    def gradient(self, inputs: Floats, y: Floats, weights: Floats, theta: Floats) -> Floats:
        """Gradient of half the mean squared error, (k, p), by backpropagation."""
        layers = self.layers(theta)
        states = self._forward(inputs, layers)
        back = (weights * (states[-1][..., 0] - y))[..., None]
        parts: list[Floats] = []
        for number in range(len(layers) - 1, -1, -1):
            by_weight = states[number].transpose(0, 2, 1) @ back
            by_bias = back.sum(axis=1, keepdims=True)
            parts.append(np.concatenate([by_weight, by_bias], axis=1).reshape(len(theta), -1))
            if number:
                slope = 1.0 - states[number] ** 2
                back = (back @ layers[number][:, :-1].transpose(0, 2, 1)) * slope
        return np.concatenate(parts[::-1], axis=1)
