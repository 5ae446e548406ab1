"""scikit-learn faces: parameters in, an engine's run, fitted attributes out. Thin."""

from fedkin.estimators.fedavg import FedAvgNetwork, FedAvgPolynomial
from fedkin.estimators.fgpr import FGPR
from fedkin.estimators.fmlr import FMLR
from fedkin.estimators.gp_rivals import CoKriging, LocalGP, PooledGP
from fedkin.estimators.standardizer import Standardizer

__all__ = [
    "FGPR",
    "FMLR",
    "CoKriging",
    "FedAvgNetwork",
    "FedAvgPolynomial",
    "LocalGP",
    "PooledGP",
    "Standardizer",
]
