"""Pictures of fits as scikit-learn displays: a picture and its numbers at once.

Every display is made by `from_estimator` (or `from_benefit`, `from_odd_sites`), has its numbers in
`frame`, a small table, and draws itself with `plot`. `specs` holds what is drawn, without drawing;
the report draws the same. Owns no statistics: it reads fitted attributes.
"""

from fedkin.displays.displays import (
    BenefitDisplay,
    ChoiceDisplay,
    ClusterPathDisplay,
    ConvergenceDisplay,
    CurvesDisplay,
    ForestDisplay,
    OddSitesDisplay,
    SiteMapDisplay,
    draw,
)

__all__ = [
    "BenefitDisplay",
    "ChoiceDisplay",
    "ClusterPathDisplay",
    "ConvergenceDisplay",
    "CurvesDisplay",
    "ForestDisplay",
    "OddSitesDisplay",
    "SiteMapDisplay",
    "draw",
]
