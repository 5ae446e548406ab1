"""scikit-learn faces: parameters in, an engine's run, fitted attributes out. Thin."""

from fedkin.estimators.fmlr import FMLR
from fedkin.estimators.ifca import IFCA
from fedkin.estimators.odcl import ODCL, ClusterOracle, LocalERM, NaiveAveraging, OracleAveraging
from fedkin.estimators.standardizer import Standardizer

__all__ = [
    "FMLR",
    "IFCA",
    "ODCL",
    "ClusterOracle",
    "LocalERM",
    "NaiveAveraging",
    "OracleAveraging",
    "Standardizer",
]
