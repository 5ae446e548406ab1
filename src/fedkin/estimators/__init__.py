"""scikit-learn faces: parameters in, an engine's run, fitted attributes out. Thin."""

from fedkin.estimators.fedgrem import FedGrEM
from fedkin.estimators.fmlr import FMLR
from fedkin.estimators.ifca import IFCA
from fedkin.estimators.mixture_rivals import TGMM, FedEM, FedGMM, LocalEM, PooledEM
from fedkin.estimators.odcl import ODCL, ClusterOracle, LocalERM, NaiveAveraging, OracleAveraging
from fedkin.estimators.standardizer import Standardizer

__all__ = [
    "FMLR",
    "IFCA",
    "ODCL",
    "TGMM",
    "ClusterOracle",
    "FedEM",
    "FedGMM",
    "FedGrEM",
    "LocalEM",
    "LocalERM",
    "NaiveAveraging",
    "OracleAveraging",
    "PooledEM",
    "Standardizer",
]
