"""scikit-learn faces: parameters in, an engine's run, fitted attributes out. Thin."""

from fedkin.estimators.fedavg import FedAvgNetwork, FedAvgPolynomial
from fedkin.estimators.fedgmm import FedGMM
from fedkin.estimators.fedgrem import FedGrEM
from fedkin.estimators.fgpr import FGPR
from fedkin.estimators.fmlr import FMLR
from fedkin.estimators.gp_rivals import CoKriging, LocalGP, PooledGP
from fedkin.estimators.ifca import IFCA
from fedkin.estimators.mixture_rivals import TGMM, FedEM, LocalEM, PooledEM
from fedkin.estimators.odcl import ODCL, ClusterOracle, LocalERM, NaiveAveraging, OracleAveraging
from fedkin.estimators.standardizer import Standardizer

__all__ = [
    "FGPR",
    "FMLR",
    "IFCA",
    "ODCL",
    "TGMM",
    "ClusterOracle",
    "CoKriging",
    "FedAvgNetwork",
    "FedAvgPolynomial",
    "FedEM",
    "FedGMM",
    "FedGrEM",
    "LocalEM",
    "LocalERM",
    "LocalGP",
    "NaiveAveraging",
    "OracleAveraging",
    "PooledEM",
    "PooledGP",
    "Standardizer",
]
