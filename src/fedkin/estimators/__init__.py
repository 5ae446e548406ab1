"""scikit-learn faces: parameters in, an engine's run, fitted attributes out. Thin."""

from fedkin.estimators.fedgrem import FedGrEM
from fedkin.estimators.fmlr import FMLR
from fedkin.estimators.mixture_rivals import TGMM, FedEM, FedGMM, LocalEM, PooledEM
from fedkin.estimators.standardizer import Standardizer

__all__ = [
    "FMLR",
    "TGMM",
    "FedEM",
    "FedGMM",
    "FedGrEM",
    "LocalEM",
    "PooledEM",
    "Standardizer",
]
