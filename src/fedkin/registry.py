"""The methods there are: the one place where a method is entered.

A row names a method, the module and constant of its algorithm, and its estimators with the modules
they live in. `fedkin`, `fedkin.estimators` and `fedkin.algorithms` all read it here, and load a
module when a name is first used. It is also the only door by which a site finds an algorithm:
nothing is ever unpickled or evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Method:
    """Where a method's algorithm and estimators live.

    An algorithm is in the room of algorithms, or in that of the estimators it is made of.
    """

    name: str
    module: str
    constant: str
    estimators: Mapping[str, str] = field(default_factory=dict)
    room: str = "algorithms"


METHODS = (
    Method("fmlr", "fmlr", "FMLR", {"FMLR": "fmlr"}),
    Method("mixed_model", "mixed_model", "MIXED_MODEL", {"MixedModel": "mixed_model"}),
    Method("softmax_mixed", "softmax_mixed", "SOFTMAX_MIXED"),
    Method("fedgrem", "mixtures.fedgrem", "FEDGREM", {"FedGrEM": "fedgrem"}),
    Method("fedem", "mixtures.fedem", "FEDEM", {"FedEM": "mixture_rivals"}),
    Method("fedgmm", "mixtures.fedgmm", "FEDGMM", {"FedGMM": "fedgmm"}),
    Method("tgmm", "mixtures.tgmm", "TGMM", {"TGMM": "mixture_rivals"}),
    Method(
        "local_em",
        "mixtures.local_em",
        "LOCAL_EM",
        {"LocalEM": "mixture_rivals", "PooledEM": "mixture_rivals"},
    ),
    Method(
        "odcl",
        "odcl",
        "ODCL",
        {
            "ODCL": "odcl",
            "NaiveAveraging": "odcl",
            "OracleAveraging": "odcl",
            "ClusterOracle": "odcl",
            "LocalERM": "odcl",
        },
    ),
    Method("ifca", "ifca", "IFCA", {"IFCA": "ifca"}),
    Method("standardizer", "standardizer", "STANDARDIZER", {"Standardizer": "standardizer"}),
    Method(
        "fgpr",
        "fgpr",
        "FGPR",
        {
            "FGPR": "fgpr",
            "LocalGP": "gp_rivals",
            "PooledGP": "gp_rivals",
            "CoKriging": "cokriging",
        },
    ),
    Method(
        "fedavg",
        "fedavg",
        "FEDAVG",
        {"FedAvgPolynomial": "fedavg", "FedAvgNetwork": "fedavg"},
    ),
    Method("consensus_lasso", "consensus", "CONSENSUS_LASSO"),
    Method("held_out", "held_out", "HELD_OUT"),
    Method("left_out", "left_out", "LEFT_OUT", room="estimators"),
    Method("site_checks", "site_checks", "SITE_CHECKS"),
)

ALGORITHMS = {m.name: (f"fedkin.{m.room}.{m.module}", m.constant) for m in METHODS}
# Estimators that are made of others, and have no algorithm of their own.
MADE_OF_OTHERS = {"Best": "best"}
ESTIMATORS = {
    name: f"fedkin.estimators.{module}"
    for listed in (*(m.estimators for m in METHODS), MADE_OF_OTHERS)
    for name, module in listed.items()
}
