"""scikit-learn faces: parameters in, an engine's run, fitted attributes out. Thin."""

from fedkin.estimators.fgpr import FGPR
from fedkin.estimators.fmlr import FMLR
from fedkin.estimators.standardizer import Standardizer

__all__ = ["FMLR", "Standardizer"]
__all__ = ["FGPR", "FMLR"]
