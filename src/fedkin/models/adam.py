"""Adam's steps (Kingma and Ba 2015)."""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Floats

# Added to the size of a gradient, so that none divides by zero.
LEAST_SIZE = 1e-8


class Adam:
    """Gradients over their size, both averaged over steps that fade by these factors."""

    def __init__(self, fade: float = 0.9, fade_square: float = 0.999) -> None:
        self.fade, self.fade_square = fade, fade_square
        self.mean: Floats | float = 0.0
        self.square: Floats | float = 0.0

    def direction(self, gradient: Floats, number: int) -> Floats:
        """Where step `number` (from 1) leads, of the gradient's shape; entries are about 1."""
        self.mean = self.mean + (1 - self.fade) * (gradient - self.mean)
        self.square = self.square + (1 - self.fade_square) * (gradient**2 - self.square)
        size = np.sqrt(self.square / (1 - self.fade_square**number)) + LEAST_SIZE
        direction: Floats = self.mean / (1 - self.fade**number) / size
        return direction
