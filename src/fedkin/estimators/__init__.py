"""scikit-learn faces: parameters in, an engine's run, fitted attributes out. Thin."""

from fedkin.estimators.fmlr import FMLR

__all__ = ["FMLR"]
