"""Federated statistics for sites that are alike but not the same.

Names are loaded when first used, so that `import fedkin` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Federation": "fedkin.federation",
    "FederationError": "fedkin.frames",
    "CoKriging": "fedkin.estimators",
    "FGPR": "fedkin.estimators",
    "FedAvgNetwork": "fedkin.estimators",
    "FedAvgPolynomial": "fedkin.estimators",
    "FMLR": "fedkin.estimators",
    "FedEM": "fedkin.estimators",
    "FedGMM": "fedkin.estimators",
    "FedGrEM": "fedkin.estimators",
    "LocalEM": "fedkin.estimators",
    "PooledEM": "fedkin.estimators",
    "TGMM": "fedkin.estimators",
    "ClusterOracle": "fedkin.estimators",
    "IFCA": "fedkin.estimators",
    "LocalGP": "fedkin.estimators",
    "PooledGP": "fedkin.estimators",
    "InProcess": "fedkin.engines",
    "LocalERM": "fedkin.estimators",
    "NaiveAveraging": "fedkin.estimators",
    "ODCL": "fedkin.estimators",
    "OracleAveraging": "fedkin.estimators",
    "Rules": "fedkin.engines",
    "Standardizer": "fedkin.estimators",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedkin' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
