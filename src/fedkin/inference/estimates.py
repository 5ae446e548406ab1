"""How sure: what a fit estimates, with standard errors and intervals, of any method that has them.

The mathematics is in `models`: sandwiches over sites with Louis' information (FMLR, ODCL within
clusters), components that sites share by degrees (FedGrEM), curvatures on log scale (FGPR), and
Satterthwaite's degrees of freedom (MixedModel).
"""

from __future__ import annotations

from typing import Any

from fedkin.models.estimates import LEVEL
from fedkin.tables import Table


def estimates(estimator: Any, level: float = LEVEL, **options: Any) -> Table:
    """Coefficients, components or hyper-parameters of a fitted estimator, in the same columns.

    Term, estimate, standard error, degrees of freedom, t, p and interval, one group below the
    other. `options` are the estimator's own (of="sites" for FedGrEM).
    """
    if not hasattr(estimator, "estimates"):
        raise TypeError(
            f"{type(estimator).__name__} tells no standard errors; FMLR, MixedModel, ODCL and its "
            "rivals, FedGrEM and FGPR do; predict(..., level=) and conformalize give intervals of "
            "targets"
        )
    found: Table = estimator.estimates(level, **options)
    return found
