"""One file a method: what leaves a client, the client functions, the server program.

Algorithms import the mathematics and the protocol, never an engine. `algorithm(name)` is the only
door by which a site finds one: nothing is ever unpickled or evaluated.
"""

from __future__ import annotations

from importlib import import_module

from fedkin.protocol import Algorithm

_PLACES = {
    "fmlr": ("fedkin.algorithms.fmlr", "FMLR"),
    "fedgrem": ("fedkin.algorithms.fedgrem", "FEDGREM"),
    "fedem": ("fedkin.algorithms.fedem", "FEDEM"),
    "fedgmm": ("fedkin.algorithms.fedgmm", "FEDGMM"),
    "tgmm": ("fedkin.algorithms.tgmm", "TGMM"),
    "local_em": ("fedkin.algorithms.local_em", "LOCAL_EM"),
    "odcl": ("fedkin.algorithms.odcl", "ODCL"),
    "ifca": ("fedkin.algorithms.ifca", "IFCA"),
    "standardizer": ("fedkin.algorithms.standardizer", "STANDARDIZER"),
    "fgpr": ("fedkin.algorithms.fgpr", "FGPR"),
    "fedavg": ("fedkin.algorithms.fedavg", "FEDAVG"),
    "consensus_lasso": ("fedkin.algorithms.consensus", "CONSENSUS_LASSO"),
}


def names() -> tuple[str, ...]:
    """All algorithms by name."""
    return tuple(_PLACES)


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name."""
    if name not in _PLACES:
        raise ValueError(f"there is no algorithm {name!r}; there are {', '.join(_PLACES)}")
    module, constant = _PLACES[name]
    found: Algorithm = getattr(import_module(module), constant)
    return found
