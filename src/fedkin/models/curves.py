"""What one site's rows are predicted with: the form of a curve, and curves made of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedkin.arrays import Floats
from fedkin.models.gaussian_process import LOG_2PI


class Curve(Protocol):
    """A predictive distribution of the target at any rows."""

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of new targets, noise included."""

    def log_density(self, X: Floats, y: Floats) -> Floats:
        """Log predictive density of every target by itself."""

    def sample(self, X: Floats, n_samples: int, rng: np.random.Generator) -> Floats:
        """Joint samples, (n, n_samples)."""


@dataclass(frozen=True)
class Independent:
    """Targets that are independent normals given mean and standard deviation at every row."""

    moments: Callable[[Floats], tuple[Floats, Floats]]

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of new targets."""
        return self.moments(X)

    def log_density(self, X: Floats, y: Floats) -> Floats:
        """Log predictive density of every target."""
        mean, std = self.moments(X)
        density: Floats = -0.5 * (LOG_2PI + ((y - mean) / std) ** 2) - np.log(std)
        return density

    def sample(self, X: Floats, n_samples: int, rng: np.random.Generator) -> Floats:
        """Samples, (n, n_samples)."""
        mean, std = self.moments(X)
        return mean[:, None] + std[:, None] * rng.normal(size=(len(X), n_samples))


@dataclass(frozen=True)
class Rescaled:
    """A curve of standardised targets in a site's own units."""

    curve: Curve
    location: float
    scale: float

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of new targets."""
        mean, std = self.curve.predict(X)
        return self.location + self.scale * mean, self.scale * std

    def log_density(self, X: Floats, y: Floats) -> Floats:
        """Log predictive density of every target."""
        standard = (y - self.location) / self.scale
        density: Floats = self.curve.log_density(X, standard) - np.log(self.scale)
        return density

    def sample(self, X: Floats, n_samples: int, rng: np.random.Generator) -> Floats:
        """Joint samples, (n, n_samples)."""
        drawn: Floats = self.location + self.scale * self.curve.sample(X, n_samples, rng)
        return drawn
